//! Elementwise functions.

use super::ops::Ops;
use crate::program::Helper;
use crate::types::{DType, MapOp, ReduceKind};
use cranelift_codegen::ir::condcodes::{FloatCC, IntCC};
use cranelift_codegen::ir::types::{I32, I64};
use cranelift_codegen::ir::{InstBuilder, Value};

/// Whether a function of I32 or of floats has a form for vectors; others are computed lane by lane.
pub fn has_vector_form(op: MapOp, dtype: DType) -> bool {
    use MapOp::*;
    match op {
        Sin | Cos | Pow => false,
        FloorDiv | Rem => dtype != DType::I32,
        Cast(DType::F64) => false,
        _ => dtype != DType::F64,
    }
}

impl<'f> Ops<'f> {
    /// The value of an elementwise function; `dtype` is that of the operands (of the last one: a condition is Bool).
    /// Operands are all scalars or all vectors.
    pub fn map(&mut self, op: MapOp, dtype: DType, x: &[Value]) -> Value {
        if let MapOp::Cast(to) = op {
            return self.cast(dtype, to, x[0]);
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

    fn map_float(&mut self, op: MapOp, x: &[Value]) -> Value {
        use MapOp::*;
        let a = x[0];
        match op {
            Neg => self.b.ins().fneg(a),
            Exp => self.exp(a),
            Expm1 => self.expm1(a),
            Log => self.log(a),
            Log1p => self.log1p(a),
            Sqrt => self.b.ins().sqrt(a),
            Rsqrt => {
                let root = self.b.ins().sqrt(a);
                let one = self.float(a, 1.0);
                self.fdiv(one, root)
            }
            Square => self.fmul(a, a),
            Abs => self.b.ins().fabs(a),
            Sign => {
                let (zero, one, minus) = (self.float(a, 0.0), self.float(a, 1.0), self.float(a, -1.0));
                let positive = self.fcmp(FloatCC::GreaterThan, a, zero);
                let negative = self.fcmp(FloatCC::LessThan, a, zero);
                let rest = self.pick(negative, minus, a);
                self.pick(positive, one, rest)
            }
            Tanh => self.tanh(a),
            Sigmoid => self.sigmoid(a),
            Softplus => self.softplus(a),
            Erf => self.erf(a),
            Sin => self.by_helper(Helper::Sin, x),
            Cos => self.by_helper(Helper::Cos, x),
            Pow => self.by_helper(Helper::Pow, x),
            Floor => self.b.ins().floor(a),
            Ceil => self.b.ins().ceil(a),
            Round => self.b.ins().nearest(a),
            IsFinite => {
                let size = self.b.ins().fabs(a);
                let infinity = self.float(a, f64::INFINITY);
                self.fcmp(FloatCC::LessThan, size, infinity)
            }
            Add => self.fadd(a, x[1]),
            Sub => self.fsub(a, x[1]),
            Mul => self.fmul(a, x[1]),
            Div => self.fdiv(a, x[1]),
            FloorDiv => {
                let quotient = self.fdiv(a, x[1]);
                self.b.ins().floor(quotient)
            }
            Rem => {
                let quotient = self.fdiv(a, x[1]);
                let whole = self.b.ins().floor(quotient);
                let product = self.fmul(x[1], whole);
                self.fsub(a, product)
            }
            Max => self.fmax(a, x[1]),
            Min => self.fmin(a, x[1]),
            Eq => self.fcmp(FloatCC::Equal, a, x[1]),
            Ne => self.fcmp(FloatCC::NotEqual, a, x[1]),
            Lt => self.fcmp(FloatCC::LessThan, a, x[1]),
            Le => self.fcmp(FloatCC::LessThanOrEqual, a, x[1]),
            Gt => self.fcmp(FloatCC::GreaterThan, a, x[1]),
            Ge => self.fcmp(FloatCC::GreaterThanOrEqual, a, x[1]),
            Not | And | Or | Where | Cast(_) => unreachable!("{op:?} of floats"),
        }
    }

    fn map_int(&mut self, op: MapOp, x: &[Value]) -> Value {
        use MapOp::*;
        let a = x[0];
        match op {
            Neg => self.b.ins().ineg(a),
            Square => self.b.ins().imul(a, a),
            Abs => self.b.ins().iabs(a),
            Sign => {
                let (zero, one, minus) = (self.i32(a, 0), self.i32(a, 1), self.i32(a, -1));
                let positive = self.icmp(IntCC::SignedGreaterThan, a, zero);
                let negative = self.icmp(IntCC::SignedLessThan, a, zero);
                let rest = self.pick(negative, minus, zero);
                self.pick(positive, one, rest)
            }
            Floor | Ceil | Round => a,
            IsFinite => self.icmp(IntCC::Equal, a, a),
            Add => self.b.ins().iadd(a, x[1]),
            Sub => self.b.ins().isub(a, x[1]),
            Mul => self.b.ins().imul(a, x[1]),
            FloorDiv => self.each_lane(&[(a, false), (x[1], false)], |ops, x| ops.floor_div(x[0], x[1])),
            Rem => self.each_lane(&[(a, false), (x[1], false)], |ops, x| {
                let quotient = ops.floor_div(x[0], x[1]);
                let product = ops.b.ins().imul(x[1], quotient);
                let rest = ops.b.ins().isub(x[0], product);
                let zero = ops.i32(x[0], 0);
                let none = ops.icmp(IntCC::Equal, x[1], zero);
                ops.pick(none, zero, rest)
            }),
            Pow => self.each_lane(&[(a, false), (x[1], false)], |ops, x| ops.call(Helper::PowInt, x)),
            Max => self.b.ins().smax(a, x[1]),
            Min => self.b.ins().smin(a, x[1]),
            Eq => self.icmp(IntCC::Equal, a, x[1]),
            Ne => self.icmp(IntCC::NotEqual, a, x[1]),
            Lt => self.icmp(IntCC::SignedLessThan, a, x[1]),
            Le => self.icmp(IntCC::SignedLessThanOrEqual, a, x[1]),
            Gt => self.icmp(IntCC::SignedGreaterThan, a, x[1]),
            Ge => self.icmp(IntCC::SignedGreaterThanOrEqual, a, x[1]),
            Exp | Expm1 | Log | Log1p | Sqrt | Rsqrt | Tanh | Sigmoid | Softplus | Erf | Sin | Cos | Div | Not
            | And | Or | Where | Cast(_) => unreachable!("{op:?} of ints"),
        }
    }

    /// The quotient rounded down; 0 by 0. In 64 bits, where the one quotient that overflows 32 does not trap.
    fn floor_div(&mut self, a: Value, b: Value) -> Value {
        let (zero, one) = (self.i32(a, 0), self.i32(a, 1));
        let none = self.icmp(IntCC::Equal, b, zero);
        let divisor = self.pick(none, one, b);
        let (wide_a, wide_b) = (self.b.ins().sextend(I64, a), self.b.ins().sextend(I64, divisor));
        let quotient = self.b.ins().sdiv(wide_a, wide_b);
        let quotient = self.b.ins().ireduce(I32, quotient);
        let product = self.b.ins().imul(quotient, divisor);
        let uneven = self.icmp(IntCC::NotEqual, product, a);
        let signs = self.b.ins().bxor(a, divisor);
        let opposite = self.icmp(IntCC::SignedLessThan, signs, zero);
        let down = self.b.ins().band(uneven, opposite);
        let down = self.b.ins().uextend(I32, down);
        let quotient = self.b.ins().isub(quotient, down);
        self.pick(none, zero, quotient)
    }

    fn map_bool(&mut self, op: MapOp, x: &[Value]) -> Value {
        use MapOp::*;
        let a = x[0];
        match op {
            Not => self.not(a),
            And | Mul | Min => self.b.ins().band(a, x[1]),
            Or | Max => self.b.ins().bor(a, x[1]),
            Ne => self.b.ins().bxor(a, x[1]),
            Eq => {
                let differ = self.b.ins().bxor(a, x[1]);
                self.not(differ)
            }
            // false < true
            Lt => {
                let no = self.not(a);
                self.b.ins().band(no, x[1])
            }
            Le => {
                let no = self.not(a);
                self.b.ins().bor(no, x[1])
            }
            Gt => {
                let no = self.not(x[1]);
                self.b.ins().band(a, no)
            }
            Ge => {
                let no = self.not(x[1]);
                self.b.ins().bor(a, no)
            }
            IsFinite => {
                let no = self.not(a);
                self.b.ins().bor(a, no)
            }
            Neg | Exp | Expm1 | Log | Log1p | Sqrt | Rsqrt | Square | Abs | Sign | Tanh | Sigmoid | Softplus | Erf
            | Sin | Cos | Floor | Ceil | Round | Add | Sub | Div | FloorDiv | Rem | Pow | Where | Cast(_) => {
                unreachable!("{op:?} of conditions")
            }
        }
    }

    /// What a reduction does with one more value.
    pub fn combine(&mut self, kind: ReduceKind, dtype: DType, x: Value, y: Value) -> Value {
        match kind {
            ReduceKind::Sum => self.map(MapOp::Add, dtype, &[x, y]),
            ReduceKind::Prod => self.map(MapOp::Mul, dtype, &[x, y]),
            ReduceKind::Max => self.map(MapOp::Max, dtype, &[x, y]),
            ReduceKind::Min => self.map(MapOp::Min, dtype, &[x, y]),
            ReduceKind::Any => self.map(MapOp::Or, dtype, &[x, y]),
            ReduceKind::All => self.map(MapOp::And, dtype, &[x, y]),
            ReduceKind::ArgMax | ReduceKind::ArgMin => unreachable!("{kind:?} is made of carries"),
        }
    }
}

/// The value that a reduction starts from.
pub fn neutral(kind: ReduceKind, dtype: DType) -> f64 {
    let int = dtype == DType::I32;
    match kind {
        ReduceKind::Sum | ReduceKind::Any => 0.0,
        ReduceKind::Prod | ReduceKind::All => 1.0,
        ReduceKind::Max if int => f64::from(i32::MIN),
        ReduceKind::Max => f64::NEG_INFINITY,
        ReduceKind::Min if int => f64::from(i32::MAX),
        ReduceKind::Min => f64::INFINITY,
        ReduceKind::ArgMax | ReduceKind::ArgMin => unreachable!("{kind:?} is made of carries"),
    }
}
