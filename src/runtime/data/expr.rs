//! Elementwise expressions over arrays, compiled to a list of stack operations and evaluated a sample at a time.

use half::{bf16, f16};

use super::array::{Array, Numbers};
use super::spec::Expr;
use crate::runtime::error::{Result, RuntimeError};
use crate::types::{DType, MapOp, counted};

/// A compiled expression with the arrays that it reads.
#[derive(Debug)]
pub struct Compiled {
    ops: Vec<Op>,
    arrays: Vec<Array>,
    /// The type of its value.
    pub numbers: Numbers,
    /// One register per stack level, each of a sample's elements.
    stack: Vec<Vec<f64>>,
}

#[derive(Debug)]
enum Op {
    Load(usize),
    Const(f64),
    /// Takes as many of the topmost registers as the function has operands, and whether all are whole numbers.
    Map(MapOp, bool),
}

impl Compiled {
    pub fn new(expr: &Expr) -> Result<Compiled> {
        let mut out = Compiled { ops: vec![], arrays: vec![], numbers: Numbers::Float, stack: vec![] };
        out.numbers = out.compile(expr)?;
        let Some(first) = out.arrays.first() else {
            return Err(RuntimeError::new("E0803", "an expression under `data` reads no file")
                .help("use a source: `npy`, `idx` or `csv`"));
        };
        for other in &out.arrays[1..] {
            if other.sample_shape() != first.sample_shape() || other.len() != first.len() {
                return Err(RuntimeError::new(
                    "E0803",
                    format!(
                        "`{}` and `{}` in one expression differ: {} of {:?}, {} of {:?}",
                        first.path().display(),
                        other.path().display(),
                        counted(first.len(), "sample"),
                        first.sample_shape(),
                        other.len(),
                        other.sample_shape()
                    ),
                )
                .help("both must have the same samples"));
            }
        }
        let elements = out.array().sample_shape().iter().product();
        let mut depth: usize = 0;
        for op in &out.ops {
            match op {
                Op::Load(_) | Op::Const(_) => depth += 1,
                Op::Map(op, _) => depth = depth + 1 - op.arity(),
            }
            if depth > out.stack.len() {
                out.stack.push(vec![0.0; elements]);
            }
        }
        Ok(out)
    }

    /// The first array, which has the shape of the value.
    pub fn array(&self) -> &Array {
        &self.arrays[0]
    }

    /// Where a number that is not whole was seen, if the value's type is a float for that reason.
    pub fn fraction_at(&self) -> Option<&str> {
        self.arrays.iter().find_map(|a| a.fraction_at.as_deref())
    }

    /// The value for one sample, in C order.
    pub fn eval(&mut self, sample: u64) -> Result<&[f64]> {
        let mut top = 0;
        for op in &self.ops {
            match *op {
                Op::Load(i) => {
                    self.arrays[i].read(sample, &mut self.stack[top])?;
                    top += 1;
                }
                Op::Const(value) => {
                    self.stack[top].fill(value);
                    top += 1;
                }
                Op::Map(op, whole) => {
                    top -= op.arity() - 1;
                    let (first, others) = self.stack[top - 1..].split_at_mut(1);
                    apply(op, whole, &mut first[0], others);
                }
            }
        }
        Ok(&self.stack[0])
    }

    /// Appends the operations of an expression, whose depth the parser has bounded, and gives its type.
    fn compile(&mut self, expr: &Expr) -> Result<Numbers> {
        Ok(match expr {
            Expr::Source(source) => {
                let array = Array::open(source)?;
                let numbers = array.numbers;
                self.ops.push(Op::Load(self.arrays.len()));
                self.arrays.push(array);
                numbers
            }
            Expr::Int(value) => {
                self.ops.push(Op::Const(*value as f64));
                Numbers::Int
            }
            Expr::Float(value) => {
                self.ops.push(Op::Const(*value));
                Numbers::Float
            }
            Expr::Bool(value) => {
                self.ops.push(Op::Const(f64::from(u8::from(*value))));
                Numbers::Bool
            }
            Expr::Map(op, operands) => {
                let mut kinds = vec![];
                for x in operands {
                    kinds.push(self.compile(x)?);
                }
                let numbers = self.result(*op, operands, &kinds)?;
                self.ops.push(Op::Map(*op, kinds.iter().all(|k| *k <= Numbers::Int)));
                numbers
            }
        })
    }

    /// The type of a function's value, as in the language.
    fn result(&self, op: MapOp, operands: &[Expr], kinds: &[Numbers]) -> Result<Numbers> {
        use MapOp::*;
        let widest = kinds.iter().copied().max().unwrap_or(Numbers::Float).max(Numbers::Int);
        let takes = |at: &[Numbers], most: Numbers, what: &str, cure: &str| match at.iter().all(|k| *k <= most) {
            true => Ok(()),
            false => {
                let path = self.arrays.first().map(|a| a.path().display().to_string()).unwrap_or_default();
                Err(RuntimeError::new("E0803", format!("`{}` takes {what}, an operand has others", op.name()))
                    .place(path)
                    .help(cure))
            }
        };
        Ok(match op {
            Not | And | Or => {
                takes(kinds, Numbers::Bool, "bools", "compare first: `x != 0`")?;
                Numbers::Bool
            }
            Eq | Ne | Lt | Le | Gt | Ge | IsFinite => Numbers::Bool,
            Cast(DType::Bool) => Numbers::Bool,
            Cast(DType::I32) => Numbers::Int,
            Cast(DType::F16 | DType::BF16 | DType::F32 | DType::F64) => Numbers::Float,
            Neg | Square | Abs | Sign | Floor | Ceil | Round | Add | Sub | Mul | Rem | Max | Min => widest,
            FloorDiv => {
                takes(kinds, Numbers::Int, "ints", "write `floor(a / b)`")?;
                Numbers::Int
            }
            Pow => match operands {
                [_, Expr::Int(n)] if *n >= 0 => widest,
                _ => Numbers::Float,
            },
            Where => {
                takes(&kinds[..1], Numbers::Bool, "a bool as its condition", "compare first: `x != 0`")?;
                match kinds[1..].iter().all(|k| *k == Numbers::Bool) {
                    true => Numbers::Bool,
                    false => kinds[1..].iter().copied().max().unwrap_or(Numbers::Int).max(Numbers::Int),
                }
            }
            Div | Exp | Expm1 | Log | Log1p | Sqrt | Rsqrt | Tanh | Sigmoid | Softplus | Erf | Sin | Cos => {
                Numbers::Float
            }
        })
    }
}

/// Computes a function of `first` and `others` into `first`. `whole`: of ints, for which division by 0 gives 0.
fn apply(op: MapOp, whole: bool, first: &mut [f64], others: &[Vec<f64>]) {
    use MapOp::*;
    let bit = |b: bool| f64::from(u8::from(b));
    let quotient = |a: f64, b: f64| if whole && b == 0.0 { 0.0 } else { (a / b).floor() };
    match op {
        Neg => one(first, |x| -x),
        Not => one(first, |x| bit(x == 0.0)),
        Exp => one(first, f64::exp),
        Expm1 => one(first, f64::exp_m1),
        Log => one(first, f64::ln),
        Log1p => one(first, f64::ln_1p),
        Sqrt => one(first, f64::sqrt),
        Rsqrt => one(first, |x| 1.0 / x.sqrt()),
        Square => one(first, |x| x * x),
        Abs => one(first, f64::abs),
        Sign => one(first, |x| if x == 0.0 || x.is_nan() { x } else { x.signum() }),
        Tanh => one(first, f64::tanh),
        Sigmoid => one(first, |x| 1.0 / (1.0 + (-x).exp())),
        Softplus => one(first, |x| if x.is_nan() { x } else { x.max(0.0) + (-x.abs()).exp().ln_1p() }),
        Erf => one(first, libm::erf),
        Sin => one(first, f64::sin),
        Cos => one(first, f64::cos),
        Floor => one(first, f64::floor),
        Ceil => one(first, f64::ceil),
        Round => one(first, f64::round_ties_even),
        Cast(to) => one(first, |x| cast(x, to)),
        IsFinite => one(first, |x| bit(x.is_finite())),
        Add => two(first, others, |a, b| a + b),
        Sub => two(first, others, |a, b| a - b),
        Mul => two(first, others, |a, b| a * b),
        Div => two(first, others, |a, b| a / b),
        FloorDiv => two(first, others, quotient),
        Rem if whole => two(first, others, |a, b| if b == 0.0 { 0.0 } else { a - b * quotient(a, b) }),
        Rem => two(first, others, |a, b| a - b * quotient(a, b)),
        Pow => two(first, others, f64::powf),
        Max => two(first, others, |a, b| if a.is_nan() || b.is_nan() { f64::NAN } else { a.max(b) }),
        Min => two(first, others, |a, b| if a.is_nan() || b.is_nan() { f64::NAN } else { a.min(b) }),
        And => two(first, others, |a, b| bit(a != 0.0 && b != 0.0)),
        Or => two(first, others, |a, b| bit(a != 0.0 || b != 0.0)),
        Eq => two(first, others, |a, b| bit(a == b)),
        Ne => two(first, others, |a, b| bit(a != b)),
        Lt => two(first, others, |a, b| bit(a < b)),
        Le => two(first, others, |a, b| bit(a <= b)),
        Gt => two(first, others, |a, b| bit(a > b)),
        Ge => two(first, others, |a, b| bit(a >= b)),
        Where => {
            for (i, c) in first.iter_mut().enumerate() {
                *c = others[if *c != 0.0 { 0 } else { 1 }][i];
            }
        }
    }
}

fn one(x: &mut [f64], f: impl Fn(f64) -> f64) {
    x.iter_mut().for_each(|v| *v = f(*v));
}

fn two(a: &mut [f64], others: &[Vec<f64>], f: impl Fn(f64, f64) -> f64) {
    for (a, b) in a.iter_mut().zip(&others[0]) {
        *a = f(*a, *b);
    }
}

/// As `MapOp::Cast`: to int towards zero and saturating, NaN gives 0.
fn cast(v: f64, to: DType) -> f64 {
    match to {
        DType::Bool => f64::from(u8::from(v != 0.0)),
        DType::I32 => f64::from(v as i32),
        DType::F16 => f16::from_f64(v).to_f64(),
        DType::BF16 => bf16::from_f64(v).to_f64(),
        DType::F32 => f64::from(v as f32),
        DType::F64 => v,
    }
}

#[cfg(test)]
mod tests {
    use super::super::npy;
    use super::super::spec::{Source, SourceKind};
    use super::*;

    fn file(dir: &tempfile::TempDir, name: &str, content: &[u8]) -> Expr {
        let path = dir.path().join(name);
        std::fs::write(&path, content).unwrap();
        Expr::Source(Source::new(path, SourceKind::Npy))
    }

    fn binary(op: MapOp, a: Expr, b: Expr) -> Expr {
        Expr::Map(op, vec![a, b])
    }

    fn unary(op: MapOp, a: Expr) -> Expr {
        Expr::Map(op, vec![a])
    }

    #[test]
    fn arithmetic_and_types() {
        let dir = tempfile::tempdir().unwrap();
        let x = file(&dir, "x.npy", &npy::write("|u1", false, &[2, 2], &[0, 51, 102, 255]));
        let scaled = binary(MapOp::Div, x.clone(), Expr::Int(255));
        let centred = binary(MapOp::Mul, binary(MapOp::Sub, scaled, Expr::Float(0.5)), Expr::Int(2));
        let mut c = Compiled::new(&centred).unwrap();
        assert_eq!(c.numbers, Numbers::Float);
        let second: Vec<f32> = c.eval(1).unwrap().iter().map(|&v| v as f32).collect();
        assert_eq!(second, [-0.2, 1.0]);

        let shifted = binary(MapOp::Sub, unary(MapOp::Neg, x.clone()), Expr::Int(1));
        let mut c = Compiled::new(&shifted).unwrap();
        assert_eq!((c.numbers, c.eval(0).unwrap()), (Numbers::Int, &[-1.0, -52.0][..]));

        let cast = unary(MapOp::Cast(DType::I32), binary(MapOp::Div, x.clone(), Expr::Int(50)));
        let mut c = Compiled::new(&cast).unwrap();
        assert_eq!((c.numbers, c.eval(1).unwrap()), (Numbers::Int, &[2.0, 5.0][..]));

        let sum = binary(MapOp::Add, x.clone(), binary(MapOp::Add, Expr::Int(1), x));
        assert_eq!(Compiled::new(&sum).unwrap().eval(0).unwrap(), [1.0, 103.0]);
    }

    #[test]
    fn functions_and_their_types() {
        use MapOp::*;
        let dir = tempfile::tempdir().unwrap();
        let int = file(&dir, "i.npy", &npy::write("|i1", false, &[1, 4], &[-7i8 as u8, 0, 3, 12]));
        let bool = file(&dir, "b.npy", &npy::write("|b1", false, &[1, 4], &[1, 0, 1, 0]));
        let halves = [-1.5f32, 0.0, 0.5, 2.5].map(f32::to_le_bytes).concat();
        let float = file(&dir, "f.npy", &npy::write("<f4", false, &[1, 4], &halves));
        let of = |e: Expr| {
            let mut c = Compiled::new(&e).unwrap();
            (c.numbers, c.eval(0).unwrap().to_vec())
        };
        use Numbers::{Bool, Float, Int};
        let n = |n| Expr::Int(n);
        let cases: Vec<(Expr, Numbers, [f64; 4])> = vec![
            (binary(Rem, int.clone(), n(10)), Int, [3.0, 0.0, 3.0, 2.0]),
            (binary(Rem, int.clone(), n(0)), Int, [0.0; 4]),
            (binary(Rem, float.clone(), n(1)), Float, [0.5, 0.0, 0.5, 0.5]),
            (binary(FloorDiv, int.clone(), n(2)), Int, [-4.0, 0.0, 1.0, 6.0]),
            (binary(FloorDiv, int.clone(), n(0)), Int, [0.0; 4]),
            (binary(Pow, int.clone(), n(2)), Int, [49.0, 0.0, 9.0, 144.0]),
            (binary(Pow, int.clone(), Expr::Float(1.0)), Float, [-7.0, 0.0, 3.0, 12.0]),
            (binary(Gt, int.clone(), n(2)), Bool, [0.0, 0.0, 1.0, 1.0]),
            (binary(And, bool.clone(), binary(Le, int.clone(), n(0))), Bool, [1.0, 0.0, 0.0, 0.0]),
            (unary(Not, bool.clone()), Bool, [0.0, 1.0, 0.0, 1.0]),
            (Expr::Map(Where, vec![bool.clone(), int.clone(), float.clone()]), Float, [-7.0, 0.0, 3.0, 2.5]),
            (Expr::Map(Where, vec![bool.clone(), bool.clone(), Expr::Bool(true)]), Bool, [1.0; 4]),
            (binary(Max, int.clone(), n(1)), Int, [1.0, 1.0, 3.0, 12.0]),
            (unary(Round, float.clone()), Float, [-2.0, 0.0, 0.0, 2.0]),
            (unary(Floor, int.clone()), Int, [-7.0, 0.0, 3.0, 12.0]),
            (unary(Sqrt, unary(Square, int.clone())), Float, [7.0, 0.0, 3.0, 12.0]),
            (binary(Add, bool.clone(), bool.clone()), Int, [2.0, 0.0, 2.0, 0.0]),
            (unary(Sign, float.clone()), Float, [-1.0, 0.0, 1.0, 1.0]),
        ];
        for (i, (e, numbers, values)) in cases.into_iter().enumerate() {
            assert_eq!(of(e), (numbers, values.to_vec()), "case {i}");
        }
        for wrong in [
            binary(And, bool.clone(), int.clone()),
            unary(Not, int.clone()),
            binary(FloorDiv, int.clone(), float.clone()),
            Expr::Map(Where, vec![int.clone(), int.clone(), int]),
        ] {
            let e = Compiled::new(&wrong).unwrap_err();
            assert!(e.code == "E0803" && e.help.is_some(), "{e}");
        }
    }

    #[test]
    fn functions_are_those_of_the_interpreter() {
        let dir = tempfile::tempdir().unwrap();
        let numbers = [0.3f64, 1.0, 2.5];
        let x = file(&dir, "x.npy", &npy::write("<f8", false, &[1, 3], &numbers.map(f64::to_le_bytes).concat()));
        for &op in MapOp::ALL.iter().filter(|op| op.arity() == 1 && !matches!(op, MapOp::Cast(_) | MapOp::Not)) {
            let found = Compiled::new(&unary(op, x.clone())).unwrap().eval(0).unwrap().to_vec();
            for (x, y) in numbers.iter().zip(found) {
                let wanted = crate::interp::eval_map(op, DType::F64, &[*x]);
                assert!((y - wanted).abs() < 1e-14, "{op:?} of {x}: {y}, {wanted}");
            }
        }
    }

    #[test]
    fn casts_follow_the_language() {
        assert_eq!(cast(-1.9, DType::I32), -1.0);
        assert_eq!(cast(f64::NAN, DType::I32), 0.0);
        assert_eq!(cast(1e12, DType::I32), 2147483647.0);
        assert_eq!(cast(0.1, DType::F16), 0.0999755859375);
        assert_eq!(cast(-3.0, DType::Bool), 1.0);
    }

    #[test]
    fn differing_arrays_streams_and_constants_are_errors() {
        let dir = tempfile::tempdir().unwrap();
        let x = file(&dir, "x.npy", &npy::write("|u1", false, &[2, 2], &[0; 4]));
        let y = file(&dir, "y.npy", &npy::write("|u1", false, &[4], &[0; 4]));
        assert_eq!(Compiled::new(&binary(MapOp::Add, x, y)).unwrap_err().code, "E0803");
        assert_eq!(Compiled::new(&Expr::Int(3)).unwrap_err().code, "E0803");
        let bytes = Expr::Source(Source::new(dir.path().join("x.npy"), SourceKind::Bytes));
        assert!(Compiled::new(&bytes).unwrap_err().message.contains("is a stream"));
    }
}
