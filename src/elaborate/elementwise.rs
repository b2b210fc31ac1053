//! Elementwise expressions: promotion of element types, and the widest-operand rule.

use super::Elab;
use super::value::{Conflict, Ev, Tree, Val};
use crate::check::constant::{self, Const, Problem};
use crate::diag::Diagnostic;
use crate::ir::{DimId, ValueId};
use crate::source::Span;
use crate::syntax::ast::{BinaryOp, UnaryOp};
use crate::types::{DType, MapOp};

/// What promotion sees of an operand.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Kind {
    Tensor(DType),
    /// A whole number: takes any type but bool.
    Whole,
    Real,
    Truth,
}

impl Elab<'_> {
    /// The operand as the leaf or subtree of an elementwise tree.
    fn tree_of(&self, e: &Ev) -> Tree {
        match (&e.tree, &e.val) {
            (Some(t), _) => t.clone(),
            (None, Val::Tensor(v)) => Tree::leaf(self.b.dims(*v)),
            _ => Tree::default(),
        }
    }

    /// Joins the operands' trees at an operator.
    fn join(&self, op: Span, sum: bool, args: &[Ev]) -> Tree {
        let mut all = Tree::default();
        for (i, a) in args.iter().enumerate() {
            let (leaves, iotas) = (all.leaves.len(), all.iotas.len());
            all.merge(self.tree_of(a));
            if i > 0 && all.conflict.is_none() && !all.covered() {
                all.leaves.truncate(leaves);
                all.iotas.truncate(iotas);
                let (before, mine) = (all.union(), self.tree_of(a));
                let right = (a.span, mine.union());
                all.merge(mine);
                all.conflict = Some(Conflict { op, sum, left: (args[i - 1].span, before), right });
            }
        }
        all
    }

    /// Ends an elementwise tree: its union of dims must be those of one leaf, or be declared.
    pub fn close(&mut self, e: Ev, declared: Option<&[DimId]>) -> Val {
        let Some(tree) = &e.tree else { return e.val };
        let mapped = self.frames.last().map_or(Vec::new(), |f| f.mapped.clone());
        let licensed =
            |all: &[DimId]| declared.is_some_and(|d| all.iter().all(|x| d.contains(x) || mapped.contains(x)));
        if e.val.is_error() || tree.covered() || licensed(&tree.union()) {
            return e.val;
        }
        let c = tree.conflict.clone().unwrap_or(Conflict {
            op: e.span,
            sum: false,
            left: (e.span, tree.union()),
            right: (e.span, Vec::new()),
        });
        let (l, r) = (self.show_dims(&c.left.1), self.show_dims(&c.right.1));
        let mut d = Diagnostic::error("E0301", "operands have different dims, and neither has them all")
            .at(c.op, "this would be an outer product");
        if c.left.0 != c.op {
            d = d.and(c.left.0, format!("this has {l}"));
        }
        if c.right.0 != c.op {
            d = d.and(c.right.0, format!("this has {r}"));
        }
        let missing: Vec<DimId> = c.left.1.iter().copied().filter(|x| c.right.1.contains(x)).collect();
        let cure = match missing.first() {
            _ if c.sum => self.cure_of_sum(&c),
            Some(x) => format!(
                "to contract, write `dot[{}](a, b)`; for an outer product on purpose, declare the type or write `outer(a, b)`",
                super::dims::last(&self.dim_name(*x))
            ),
            None => {
                "for an outer product on purpose, declare the type of the result or write `outer(a, b)`".to_string()
            }
        };
        self.error(d.help(cure));
        Val::Error
    }

    /// What to write where a sum meets dims that only one side has.
    fn cure_of_sum(&self, c: &Conflict) -> String {
        let only = |a: &[DimId], b: &[DimId]| -> Vec<DimId> { a.iter().copied().filter(|x| !b.contains(x)).collect() };
        let (left, right) = (only(&c.left.1, &c.right.1), only(&c.right.1, &c.left.1));
        let name = |d: DimId| super::dims::last(&self.dim_name(d)).to_string();
        let purpose = "for all pairs on purpose, declare the type of the result";
        match (&left[..], &right[..]) {
            ([a], [b]) if self.b.size(*a) == self.b.size(*b) => {
                format!("rename one: `(..)[{} -> {}]`; {purpose}", name(*b), name(*a))
            }
            ([a], [b]) => format!("reduce `{}` or `{}` first: their sizes differ; {purpose}", name(*a), name(*b)),
            _ => format!("rename or reduce dims of one side; {purpose}"),
        }
    }

    pub fn binary(&mut self, op: BinaryOp, op_span: Span, span: Span, a: Ev, b: Ev) -> Ev {
        if a.val.is_error() || b.val.is_error() {
            return Ev::error(span);
        }
        if let (Val::Const(x), Val::Const(y)) = (&a.val, &b.val) {
            return match constant::binary(op, x, y) {
                Ok(c) => Ev::new(Val::Const(c), span),
                Err(p) => {
                    self.constant_problem(p, op_span);
                    Ev::error(span)
                }
            };
        }
        self.elementwise(map_of(op), op_span, span, vec![a, b])
    }

    pub fn unary(&mut self, op: UnaryOp, span: Span, a: Ev) -> Ev {
        if let Val::Const(x) = &a.val {
            let r = if op == UnaryOp::Neg { constant::negate(x) } else { constant::not(x) };
            return match r {
                Ok(c) => Ev::new(Val::Const(c), span),
                Err(p) => {
                    self.constant_problem(p, span);
                    Ev::error(span)
                }
            };
        }
        let map = if op == UnaryOp::Neg { MapOp::Neg } else { MapOp::Not };
        self.elementwise(map, span, span, vec![a])
    }

    pub fn constant_problem(&mut self, p: Problem, span: Span) {
        let d = match p {
            Problem::Kinds(a, b) => Diagnostic::error("E0309", format!("this operation does not take {a} and {b}"))
                .at(span, "wrong kinds of constants")
                .help("numbers take arithmetic and comparison; bools take `and`, `or`, `not`"),
            Problem::DivisionByZero => Diagnostic::error("E0312", "division by zero in a constant")
                .at(span, "the divisor is 0")
                .help("constants are computed when compiling"),
            Problem::Overflow => Diagnostic::error("E0312", "a constant is too large")
                .at(span, "beyond the largest number of 64 bits, about 1.8e308")
                .help("write `inf` for infinity"),
            Problem::NoFunction => Diagnostic::error("E0312", "this is no function of constants")
                .at(span, "here")
                .help("constants take operators and elementwise functions such as `sqrt` and `floor`"),
            Problem::Arity(n) => {
                Diagnostic::error("E0314", format!("this function takes {n} argument{}", if n == 1 { "" } else { "s" }))
                    .at(span, "wrong number of arguments")
                    .help(format!("give it {n}"))
            }
        };
        self.error(d);
    }

    fn kind(&mut self, e: &Ev) -> Option<Kind> {
        Some(match &e.val {
            Val::Tensor(v) => Kind::Tensor(self.b.dtype(*v)),
            Val::Const(Const::Bool(_)) => Kind::Truth,
            Val::Const(Const::Exact(_, 1) | Const::Unknown) => Kind::Whole,
            Val::Const(Const::Exact(..) | Const::Float(_)) => Kind::Real,
            Val::Error => return None,
            other => {
                let what = other.kind();
                self.error(
                    Diagnostic::error("E0206", format!("{what} is used as a value"))
                        .at(e.span, format!("this is {what}"))
                        .help("an instance is called with parentheses: `norm(x)`; a tuple is taken apart by `let (a, b) = ..`"),
                );
                return None;
            }
        })
    }

    /// The common type of arithmetic operands; `real`: the function needs floats (`/`, exp).
    fn promote(&mut self, span: Span, kinds: &[Kind], real: bool) -> Option<DType> {
        let floats: Vec<DType> = kinds
            .iter()
            .filter_map(|k| match k {
                Kind::Tensor(t) if t.is_float() => Some(*t),
                _ => None,
            })
            .collect();
        if floats.contains(&DType::F16) && floats.contains(&DType::BF16) {
            self.error(
                Diagnostic::error("E0310", "f16 and bf16 do not mix")
                    .at(span, "operands are f16 and bf16")
                    .help("convert one: `bf16(x)`, or both: `f32(x)`"),
            );
            return None;
        }
        if let Some(t) = floats.iter().max() {
            return Some(*t);
        }
        let real = real || kinds.contains(&Kind::Real);
        Some(if real { self.single() } else { DType::I32 })
    }

    /// An elementwise operation on evaluated operands, at least one of them no constant (or a function without a constant
    /// form). Promotes, converts, emits.
    pub fn elementwise(&mut self, op: MapOp, op_span: Span, span: Span, args: Vec<Ev>) -> Ev {
        let mut kinds = Vec::new();
        for a in &args {
            match self.kind(a) {
                Some(k) => kinds.push(k),
                None => return Ev::error(span),
            }
        }
        use MapOp::*;
        let wanted: Option<Vec<DType>> = match op {
            Not | And | Or => self.all_bool(&args, &kinds).then(|| vec![DType::Bool; args.len()]),
            Where => self.where_types(op_span, &args, &kinds),
            Cast(_) | IsFinite => Some(vec![self.own_type(kinds[0])]),
            Eq | Ne if kinds.iter().all(|k| matches!(k, Kind::Truth | Kind::Tensor(DType::Bool))) => {
                Some(vec![DType::I32; args.len()])
            }
            Eq | Ne | Lt | Le | Gt | Ge | Add | Sub | Mul | Neg | Abs | Square | Max | Min | Sign | Rem => {
                self.promote(op_span, &kinds, false).map(|t| vec![t; args.len()])
            }
            Floor | Ceil | Round => self.promote(op_span, &kinds, false).map(|t| vec![t; args.len()]),
            FloorDiv => self.only_int(op_span, &kinds).then(|| vec![DType::I32; args.len()]),
            Pow => {
                // An int to a constant below zero is a fraction.
                let below = matches!(&args[1].val, Val::Const(c) if c.as_int().is_some_and(|n| n < 0));
                self.promote(op_span, &kinds, below).map(|t| vec![t; args.len()])
            }
            Div | Exp | Expm1 | Log | Log1p | Sqrt | Rsqrt | Tanh | Sigmoid | Softplus | Erf | Sin | Cos => {
                self.promote(op_span, &kinds, true).map(|t| vec![t; args.len()])
            }
        };
        let Some(wanted) = wanted else { return Ev::error(span) };
        let tree = self.join(op_span, matches!(op, Add | Sub), &args);
        let mut values = Vec::new();
        for (a, t) in args.iter().zip(&wanted) {
            match self.as_tensor(&a.val, *t) {
                Some(v) => values.push(v),
                None => return Ev::error(span),
            }
        }
        self.b.span = Some(span);
        // Rounding an int is the int itself.
        if matches!(op, Floor | Ceil | Round) && wanted[0] == DType::I32 {
            return Ev { val: Val::Tensor(values[0]), span, tree: Some(tree) };
        }
        let v = self.b.map(op, &values);
        Ev { val: Val::Tensor(v), span, tree: Some(tree) }
    }

    fn own_type(&self, k: Kind) -> DType {
        match k {
            Kind::Tensor(t) => t,
            Kind::Whole => DType::I32,
            Kind::Real => self.single(),
            Kind::Truth => DType::Bool,
        }
    }

    fn all_bool(&mut self, args: &[Ev], kinds: &[Kind]) -> bool {
        for (a, k) in args.iter().zip(kinds) {
            if !matches!(k, Kind::Truth | Kind::Tensor(DType::Bool)) {
                self.error(
                    Diagnostic::error("E0309", "`and`, `or`, `not` and conditions take bools")
                        .at(a.span, format!("this is {}", self.own_type(*k)))
                        .help("compare it: `x != 0`"),
                );
                return false;
            }
        }
        true
    }

    fn only_int(&mut self, span: Span, kinds: &[Kind]) -> bool {
        if kinds.iter().all(|k| matches!(k, Kind::Whole | Kind::Tensor(DType::I32 | DType::Bool))) {
            return true;
        }
        self.error(
            Diagnostic::error("E0309", "`floor_div` is for ints")
                .at(span, "an operand is a float")
                .help("write `floor(a / b)`"),
        );
        false
    }

    fn where_types(&mut self, span: Span, args: &[Ev], kinds: &[Kind]) -> Option<Vec<DType>> {
        if !self.all_bool(&args[..1], &kinds[..1]) {
            return None;
        }
        let bools = kinds[1..].iter().all(|k| matches!(k, Kind::Truth | Kind::Tensor(DType::Bool)));
        let t = if bools { DType::Bool } else { self.promote(span, &kinds[1..], false)? };
        Some(vec![DType::Bool, t, t])
    }

    /// The value as a tensor of the given type (constants as scalars).
    pub fn as_tensor(&mut self, val: &Val, dtype: DType) -> Option<ValueId> {
        match val {
            Val::Tensor(v) => Some(self.b.cast(*v, dtype)),
            Val::Const(c) => {
                let x = match c {
                    Const::Bool(b) => f64::from(u8::from(*b)),
                    Const::Unknown => 1.0,
                    _ => c.as_f64()?,
                };
                let x = match dtype {
                    DType::I32 => x.trunc(),
                    DType::Bool => f64::from(u8::from(x != 0.0)),
                    _ => x,
                };
                Some(self.b.scalar(x, dtype))
            }
            _ => None,
        }
    }

    /// The value as a tensor of its natural type.
    pub fn tensor(&mut self, e: &Ev) -> Option<ValueId> {
        let k = self.kind(e)?;
        let t = self.own_type(k);
        self.as_tensor(&e.val, t)
    }
}

/// The function of an operator.
pub fn map_of(op: BinaryOp) -> MapOp {
    use BinaryOp::*;
    match op {
        Or => MapOp::Or,
        And => MapOp::And,
        Eq => MapOp::Eq,
        Ne => MapOp::Ne,
        Lt => MapOp::Lt,
        Le => MapOp::Le,
        Gt => MapOp::Gt,
        Ge => MapOp::Ge,
        Add => MapOp::Add,
        Sub => MapOp::Sub,
        Mul => MapOp::Mul,
        Div => MapOp::Div,
        Rem => MapOp::Rem,
        Pow => MapOp::Pow,
    }
}
