//! Elementwise functions in the vector IR.

use super::ir::*;
use super::nest::Build;
use crate::program::Helper;
use crate::types::{DType, MapOp, ReduceKind};

impl Build<'_> {
    /// The value of an elementwise function; `dtype` is that of the operands (of the last one: a condition is Bool).
    pub fn map(&mut self, op: MapOp, dtype: DType, x: &[Reg]) -> Reg {
        if let MapOp::Cast(to) = op {
            return self.f.cast(dtype, to, x[0]);
        }
        if op == MapOp::Where {
            return self.pick(x[0], x[1], x[2]);
        }
        match dtype {
            DType::Bool => self.map_bool(op, x),
            DType::I32 => self.map_int(op, x),
            DType::F16 | DType::BF16 | DType::F32 | DType::F64 => self.map_float(op, x),
        }
    }

    /// `mask ? yes : no`, of vectors or masks.
    pub fn pick(&mut self, mask: Reg, yes: Reg, no: Reg) -> Reg {
        if self.f.class(yes) != Class::Mask {
            return self.f.select(mask, yes, no);
        }
        let yes = self.f.op(Op::MaskAnd, &[mask, yes]);
        let no = self.f.op(Op::MaskAndNot, &[mask, no]);
        self.f.op(Op::MaskOr, &[yes, no])
    }

    fn map_float(&mut self, op: MapOp, x: &[Reg]) -> Reg {
        use MapOp::*;
        let f = &mut self.f;
        let a = x[0];
        match op {
            Neg => {
                let sign = f.i32(i32::MIN);
                f.op(Op::Xor, &[a, sign])
            }
            Exp => f.exp(a),
            Expm1 => f.expm1(a),
            Log => f.log(a),
            Log1p => f.log1p(a),
            Sqrt => f.root(a),
            Rsqrt => {
                let (root, one) = (f.root(a), f.f32(1.0));
                f.divide(one, root)
            }
            Square => f.op(Op::Mul, &[a, a]),
            Abs => f.abs(a),
            Sign => {
                let (zero, one, minus) = (f.f32(0.0), f.f32(1.0), f.f32(-1.0));
                let positive = f.op(Op::Compare(Relation::Greater), &[a, zero]);
                let negative = f.op(Op::Compare(Relation::Less), &[a, zero]);
                let rest = f.select(negative, minus, a);
                f.select(positive, one, rest)
            }
            Tanh => f.tanh(a),
            Sigmoid => f.sigmoid(a),
            Softplus => f.softplus(a),
            Erf => f.erf(a),
            Sin => f.sine(a, Helper::Sin),
            Cos => f.sine(a, Helper::Cos),
            Pow => f.op(Op::Call(Helper::Pow), &[a, x[1]]),
            Floor => f.op(Op::Round(Rounding::Down), &[a]),
            Ceil => f.op(Op::Round(Rounding::Up), &[a]),
            Round => f.op(Op::Round(Rounding::Nearest), &[a]),
            IsFinite => {
                let (size, infinity) = (f.abs(a), f.f32(f32::INFINITY));
                f.op(Op::Compare(Relation::Less), &[size, infinity])
            }
            Add => f.op(Op::Add, &[a, x[1]]),
            Sub => f.op(Op::Sub, &[a, x[1]]),
            Mul => f.op(Op::Mul, &[a, x[1]]),
            Div => f.divide(a, x[1]),
            FloorDiv => {
                let quotient = f.op(Op::Div, &[a, x[1]]);
                f.op(Op::Round(Rounding::Down), &[quotient])
            }
            Rem => {
                let quotient = f.op(Op::Div, &[a, x[1]]);
                let whole = f.op(Op::Round(Rounding::Down), &[quotient]);
                let product = f.op(Op::Mul, &[x[1], whole]);
                f.op(Op::Sub, &[a, product])
            }
            Max => f.extreme(Op::Max, a, x[1]),
            Min => f.extreme(Op::Min, a, x[1]),
            Eq | Ne | Lt | Le | Gt | Ge => f.op(Op::Compare(relation(op)), &[a, x[1]]),
            Not | And | Or | Where | Cast(_) => unreachable!("{op:?} of floats"),
        }
    }

    fn map_int(&mut self, op: MapOp, x: &[Reg]) -> Reg {
        use MapOp::*;
        let all = self.f.mask(self.f.lanes);
        let f = &mut self.f;
        let a = x[0];
        match op {
            Neg => {
                let zero = f.i32(0);
                f.op(Op::SubInt, &[zero, a])
            }
            Square => f.op(Op::MulInt, &[a, a]),
            Abs => f.op(Op::AbsInt, &[a]),
            Sign => {
                let (one, minus) = (f.i32(1), f.i32(-1));
                let least = f.op(Op::MaxInt, &[a, minus]);
                f.op(Op::MinInt, &[least, one])
            }
            Floor | Ceil | Round => a,
            IsFinite => all,
            Add => f.op(Op::AddInt, &[a, x[1]]),
            Sub => f.op(Op::SubInt, &[a, x[1]]),
            Mul => f.op(Op::MulInt, &[a, x[1]]),
            FloorDiv => f.floor_div_int(a, x[1]),
            Rem => {
                let quotient = f.floor_div_int(a, x[1]);
                let product = f.op(Op::MulInt, &[x[1], quotient]);
                let rest = f.op(Op::SubInt, &[a, product]);
                let zero = f.i32(0);
                let none = f.op(Op::CompareInt(Relation::Equal), &[x[1], zero]);
                f.select(none, zero, rest)
            }
            Pow => f.op(Op::Call(Helper::PowInt), &[a, x[1]]),
            Max => f.op(Op::MaxInt, &[a, x[1]]),
            Min => f.op(Op::MinInt, &[a, x[1]]),
            Eq | Ne | Lt | Le | Gt | Ge => f.op(Op::CompareInt(relation(op)), &[a, x[1]]),
            Exp | Expm1 | Log | Log1p | Sqrt | Rsqrt | Tanh | Sigmoid | Softplus | Erf | Sin | Cos | Div | Not
            | And | Or | Where | Cast(_) => unreachable!("{op:?} of ints"),
        }
    }

    fn map_bool(&mut self, op: MapOp, x: &[Reg]) -> Reg {
        use MapOp::*;
        let f = &mut self.f;
        let a = x[0];
        match op {
            Not => f.mask_not(a),
            And | Mul | Min => f.op(Op::MaskAnd, &[a, x[1]]),
            Or | Max => f.op(Op::MaskOr, &[a, x[1]]),
            Ne => f.op(Op::MaskXor, &[a, x[1]]),
            Eq => {
                let differ = f.op(Op::MaskXor, &[a, x[1]]);
                f.mask_not(differ)
            }
            // false < true
            Lt => f.op(Op::MaskAndNot, &[a, x[1]]),
            Gt => f.op(Op::MaskAndNot, &[x[1], a]),
            Le => {
                let greater = f.op(Op::MaskAndNot, &[x[1], a]);
                f.mask_not(greater)
            }
            Ge => {
                let less = f.op(Op::MaskAndNot, &[a, x[1]]);
                f.mask_not(less)
            }
            IsFinite => f.mask(f.lanes),
            Neg | Exp | Expm1 | Log | Log1p | Sqrt | Rsqrt | Square | Abs | Sign | Tanh | Sigmoid | Softplus | Erf
            | Sin | Cos | Floor | Ceil | Round | Add | Sub | Div | FloorDiv | Rem | Pow | Where | Cast(_) => {
                unreachable!("{op:?} of conditions")
            }
        }
    }

    /// What a reduction does with one more value.
    pub fn combine(&mut self, kind: ReduceKind, dtype: DType, x: Reg, y: Reg) -> Reg {
        let op = match kind {
            ReduceKind::Sum => MapOp::Add,
            ReduceKind::Prod => MapOp::Mul,
            ReduceKind::Max => MapOp::Max,
            ReduceKind::Min => MapOp::Min,
            ReduceKind::Any => MapOp::Or,
            ReduceKind::All => MapOp::And,
            ReduceKind::ArgMax | ReduceKind::ArgMin => unreachable!("{kind:?} is made of carries"),
        };
        self.map(op, dtype, &[x, y])
    }

    /// What a reduction starts from.
    pub fn neutral(&mut self, kind: ReduceKind, dtype: DType) -> Reg {
        let int = dtype == DType::I32;
        let x = match kind {
            ReduceKind::Sum | ReduceKind::Any => 0.0,
            ReduceKind::Prod | ReduceKind::All => 1.0,
            ReduceKind::Max if int => f64::from(i32::MIN),
            ReduceKind::Max => f64::NEG_INFINITY,
            ReduceKind::Min if int => f64::from(i32::MAX),
            ReduceKind::Min => f64::INFINITY,
            ReduceKind::ArgMax | ReduceKind::ArgMin => unreachable!("{kind:?} is made of carries"),
        };
        self.constant(dtype, x)
    }
}

fn relation(op: MapOp) -> Relation {
    match op {
        MapOp::Eq => Relation::Equal,
        MapOp::Ne => Relation::NotEqual,
        MapOp::Lt => Relation::Less,
        MapOp::Le => Relation::LessEqual,
        MapOp::Gt => Relation::Greater,
        MapOp::Ge => Relation::GreaterEqual,
        op => unreachable!("{op:?} is no comparison"),
    }
}

impl Function {
    pub fn abs(&mut self, x: Reg) -> Reg {
        let mask = self.i32(i32::MAX);
        self.op(Op::And, &[x, mask])
    }

    /// The larger or smaller; NaN if either is NaN.
    pub fn extreme(&mut self, op: Op, x: Reg, y: Reg) -> Reg {
        // The instruction gives the second operand if either is NaN.
        let ordered = self.op(op, &[x, y]);
        let number = self.op(Op::Compare(Relation::Equal), &[x, x]);
        self.select(number, ordered, x)
    }

    /// A quotient. By a power of two it is an exact product.
    pub fn divide(&mut self, x: Reg, y: Reg) -> Reg {
        if let Some(Constant::Splat { bits, .. }) = self.constant_of(y) {
            let divisor = f32::from_bits(*bits);
            let inverse = 1.0 / divisor;
            let exact = bits & 0x007F_FFFF == 0 && divisor.is_normal() && inverse.is_normal();
            if exact {
                let inverse = self.f32(inverse);
                return self.op(Op::Mul, &[x, inverse]);
            }
        }
        self.op(if self.uniform { Op::DivFirst } else { Op::Div }, &[x, y])
    }

    fn root(&mut self, x: Reg) -> Reg {
        self.op(if self.uniform { Op::SqrtFirst } else { Op::Sqrt }, &[x])
    }

    /// The quotient rounded down; 0 by 0.
    fn floor_div_int(&mut self, x: Reg, y: Reg) -> Reg {
        let (zero, one) = (self.i32(0), self.i32(1));
        let none = self.op(Op::CompareInt(Relation::Equal), &[y, zero]);
        let divisor = self.select(none, one, y);
        let quotient = self.op(Op::FloorDivInt, &[x, divisor]);
        self.select(none, zero, quotient)
    }
}
