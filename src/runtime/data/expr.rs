//! Elementwise expressions over arrays, compiled to a list of stack operations and evaluated a sample at a time.

use half::{bf16, f16};

use super::array::{Array, Numbers};
use super::spec::{BinOp, Expr};
use crate::runtime::error::{Result, RuntimeError};
use crate::types::DType;

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
    Neg,
    Binary(BinOp),
    Cast(DType),
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
                        "`{}` and `{}` in one expression differ: {} samples of {:?}, {} of {:?}",
                        first.path().display(),
                        other.path().display(),
                        first.len(),
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
                Op::Neg | Op::Cast(_) => {}
                Op::Binary(_) => depth -= 1,
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
                Op::Neg => self.stack[top - 1].iter_mut().for_each(|v| *v = -*v),
                Op::Cast(to) => self.stack[top - 1].iter_mut().for_each(|v| *v = cast(*v, to)),
                Op::Binary(op) => {
                    let (below, above) = self.stack.split_at_mut(top - 1);
                    let f = match op {
                        BinOp::Add => |a: f64, b: f64| a + b,
                        BinOp::Sub => |a, b| a - b,
                        BinOp::Mul => |a, b| a * b,
                        BinOp::Div => |a, b| a / b,
                    };
                    for (a, b) in below[top - 2].iter_mut().zip(&above[0]) {
                        *a = f(*a, *b);
                    }
                    top -= 1;
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
            Expr::Neg(a) => {
                let numbers = self.compile(a)?;
                self.ops.push(Op::Neg);
                numbers.max(Numbers::Int)
            }
            Expr::Cast(to, a) => {
                self.compile(a)?;
                self.ops.push(Op::Cast(*to));
                match to {
                    DType::Bool => Numbers::Bool,
                    DType::I32 => Numbers::Int,
                    DType::F16 | DType::BF16 | DType::F32 | DType::F64 => Numbers::Float,
                }
            }
            Expr::Binary(op, a, b) => {
                let numbers = self.compile(a)?.max(self.compile(b)?).max(Numbers::Int);
                self.ops.push(Op::Binary(*op));
                if *op == BinOp::Div { Numbers::Float } else { numbers }
            }
        })
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

    fn binary(op: BinOp, a: Expr, b: Expr) -> Expr {
        Expr::Binary(op, Box::new(a), Box::new(b))
    }

    #[test]
    fn arithmetic_and_types() {
        let dir = tempfile::tempdir().unwrap();
        let x = file(&dir, "x.npy", &npy::write("|u1", false, &[2, 2], &[0, 51, 102, 255]));
        let scaled = binary(BinOp::Div, x.clone(), Expr::Int(255));
        let centred = binary(BinOp::Mul, binary(BinOp::Sub, scaled, Expr::Float(0.5)), Expr::Int(2));
        let mut c = Compiled::new(&centred).unwrap();
        assert_eq!(c.numbers, Numbers::Float);
        let second: Vec<f32> = c.eval(1).unwrap().iter().map(|&v| v as f32).collect();
        assert_eq!(second, [-0.2, 1.0]);

        let shifted = binary(BinOp::Sub, Expr::Neg(Box::new(x.clone())), Expr::Int(1));
        let mut c = Compiled::new(&shifted).unwrap();
        assert_eq!((c.numbers, c.eval(0).unwrap()), (Numbers::Int, &[-1.0, -52.0][..]));

        let cast = Expr::Cast(DType::I32, Box::new(binary(BinOp::Div, x.clone(), Expr::Int(50))));
        let mut c = Compiled::new(&cast).unwrap();
        assert_eq!((c.numbers, c.eval(1).unwrap()), (Numbers::Int, &[2.0, 5.0][..]));

        let sum = binary(BinOp::Add, x.clone(), binary(BinOp::Add, Expr::Int(1), x));
        assert_eq!(Compiled::new(&sum).unwrap().eval(0).unwrap(), [1.0, 103.0]);
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
        assert_eq!(Compiled::new(&binary(BinOp::Add, x, y)).unwrap_err().code, "E0803");
        assert_eq!(Compiled::new(&Expr::Int(3)).unwrap_err().code, "E0803");
        let bytes = Expr::Source(Source::new(dir.path().join("x.npy"), SourceKind::Bytes));
        assert!(Compiled::new(&bytes).unwrap_err().message.contains("is a stream"));
    }
}
