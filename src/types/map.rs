//! Elementwise functions, reductions and scans as closed enums. Their meaning is given here in words; the reference
//! values are in `interp`, the machine code in `codegen`.

use super::DType;

/// An elementwise function of one, two or three operands. All float arithmetic is that of the result's type, except
/// that 16-bit floats are computed in f32 and rounded (half to even) when stored.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, serde::Serialize, serde::Deserialize)]
pub enum MapOp {
    // one operand
    Neg,
    Not,
    Exp,
    Expm1,
    Log,
    Log1p,
    Sqrt,
    Rsqrt,
    Square,
    Abs,
    /// -1, 0 or 1; NaN stays NaN.
    Sign,
    Tanh,
    Sigmoid,
    /// log(1 + e^x), without overflow.
    Softplus,
    Erf,
    Sin,
    Cos,
    Floor,
    Ceil,
    /// Half to even.
    Round,
    /// Conversion to the type of the result: to Bool is `!= 0`; float to I32 truncates towards zero and saturates,
    /// NaN gives 0; 16-bit results round half to even.
    Cast(DType),
    /// Is neither infinite nor NaN: Bool.
    IsFinite,
    // two operands of one type
    Add,
    Sub,
    Mul,
    /// Floats only.
    Div,
    /// I32: floor division; by 0 gives 0.
    FloorDiv,
    /// I32: a - b * floor_div(a, b); by 0 gives 0. Floats: a - b * floor(a / b).
    Rem,
    /// I32: wraps; a negative exponent gives the whole part of the fraction, 0 at 0.
    Pow,
    /// NaN if either is NaN.
    Max,
    /// NaN if either is NaN.
    Min,
    And,
    Or,
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
    // three operands: condition (Bool), then, else
    Where,
}

impl MapOp {
    pub fn arity(self) -> usize {
        use MapOp::*;
        match self {
            Neg | Not | Exp | Expm1 | Log | Log1p | Sqrt | Rsqrt | Square | Abs | Sign | Tanh | Sigmoid | Softplus
            | Erf | Sin | Cos | Floor | Ceil | Round | Cast(_) | IsFinite => 1,
            Add | Sub | Mul | Div | FloorDiv | Rem | Pow | Max | Min | And | Or | Eq | Ne | Lt | Le | Gt | Ge => 2,
            Where => 3,
        }
    }

    /// The word in printed IRs; `Cast` prints as the type's name.
    pub fn name(self) -> &'static str {
        use MapOp::*;
        match self {
            Neg => "neg",
            Not => "not",
            Exp => "exp",
            Expm1 => "expm1",
            Log => "log",
            Log1p => "log1p",
            Sqrt => "sqrt",
            Rsqrt => "rsqrt",
            Square => "square",
            Abs => "abs",
            Sign => "sign",
            Tanh => "tanh",
            Sigmoid => "sigmoid",
            Softplus => "softplus",
            Erf => "erf",
            Sin => "sin",
            Cos => "cos",
            Floor => "floor",
            Ceil => "ceil",
            Round => "round",
            Cast(t) => t.name(),
            IsFinite => "is_finite",
            Add => "add",
            Sub => "sub",
            Mul => "mul",
            Div => "div",
            FloorDiv => "floor_div",
            Rem => "rem",
            Pow => "pow",
            Max => "max",
            Min => "min",
            And => "and",
            Or => "or",
            Eq => "eq",
            Ne => "ne",
            Lt => "lt",
            Le => "le",
            Gt => "gt",
            Ge => "ge",
            Where => "where",
        }
    }

    pub const ALL: &'static [MapOp] = {
        use MapOp::*;
        &[
            Neg,
            Not,
            Exp,
            Expm1,
            Log,
            Log1p,
            Sqrt,
            Rsqrt,
            Square,
            Abs,
            Sign,
            Tanh,
            Sigmoid,
            Softplus,
            Erf,
            Sin,
            Cos,
            Floor,
            Ceil,
            Round,
            Cast(DType::Bool),
            Cast(DType::I32),
            Cast(DType::F16),
            Cast(DType::BF16),
            Cast(DType::F32),
            Cast(DType::F64),
            IsFinite,
            Add,
            Sub,
            Mul,
            Div,
            FloorDiv,
            Rem,
            Pow,
            Max,
            Min,
            And,
            Or,
            Eq,
            Ne,
            Lt,
            Le,
            Gt,
            Ge,
            Where,
        ]
    };

    pub fn parse(name: &str) -> Option<MapOp> {
        MapOp::ALL.iter().copied().find(|op| op.name() == name)
    }
}

/// How elements are combined along reduced dims. Sums and products of 16-bit floats accumulate in f32.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, serde::Serialize, serde::Deserialize)]
pub enum ReduceKind {
    Sum,
    Prod,
    Max,
    Min,
    Any,
    All,
    /// I32: flattened index (dims in the order that the operation lists them, major first) of the first largest.
    ArgMax,
    ArgMin,
}

impl ReduceKind {
    pub const ALL: [ReduceKind; 8] = [
        ReduceKind::Sum,
        ReduceKind::Prod,
        ReduceKind::Max,
        ReduceKind::Min,
        ReduceKind::Any,
        ReduceKind::All,
        ReduceKind::ArgMax,
        ReduceKind::ArgMin,
    ];

    /// What makes one of two results.
    pub fn combining(self) -> MapOp {
        match self {
            ReduceKind::Sum => MapOp::Add,
            ReduceKind::Prod => MapOp::Mul,
            ReduceKind::Max | ReduceKind::ArgMax => MapOp::Max,
            ReduceKind::Min | ReduceKind::ArgMin => MapOp::Min,
            ReduceKind::Any => MapOp::Or,
            ReduceKind::All => MapOp::And,
        }
    }

    /// What changes nothing when it is combined with a value of a type.
    pub fn neutral(self, dtype: DType) -> f64 {
        let int = dtype == DType::I32;
        match self {
            ReduceKind::Sum | ReduceKind::Any => 0.0,
            ReduceKind::Prod | ReduceKind::All => 1.0,
            ReduceKind::Max | ReduceKind::ArgMax if int => f64::from(i32::MIN),
            ReduceKind::Min | ReduceKind::ArgMin if int => f64::from(i32::MAX),
            ReduceKind::Max | ReduceKind::ArgMax => f64::NEG_INFINITY,
            ReduceKind::Min | ReduceKind::ArgMin => f64::INFINITY,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            ReduceKind::Sum => "sum",
            ReduceKind::Prod => "prod",
            ReduceKind::Max => "max",
            ReduceKind::Min => "min",
            ReduceKind::Any => "any",
            ReduceKind::All => "all",
            ReduceKind::ArgMax => "argmax",
            ReduceKind::ArgMin => "argmin",
        }
    }
}

/// Running combinations along one dim.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, serde::Serialize, serde::Deserialize)]
pub enum ScanKind {
    Sum,
    Prod,
    Max,
    /// I32: index of the first largest so far.
    ArgMax,
}

impl ScanKind {
    pub const ALL: [ScanKind; 4] = [ScanKind::Sum, ScanKind::Prod, ScanKind::Max, ScanKind::ArgMax];

    pub fn name(self) -> &'static str {
        match self {
            ScanKind::Sum => "cumsum",
            ScanKind::Prod => "cumprod",
            ScanKind::Max => "cummax",
            ScanKind::ArgMax => "cumargmax",
        }
    }
}
