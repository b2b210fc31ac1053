//! Transcendental functions. In f32 they are polynomials, mostly of the Cephes library (S. L. Moshier), inline and the
//! same for one element and for four; what is rarer, and everything in f64, is a call of the runtime's helpers.

use super::ops::Ops;
use crate::codegen::coefficients::{ERF_FAR, ERF_NEAR, EXP, ROUNDER, TANH};
use crate::program::Helper;
use crate::types::rng::{LN, LN2_HIGH, LN2_LOW};
use cranelift_codegen::ir::condcodes::FloatCC;
use cranelift_codegen::ir::types::{F32, F64};
use cranelift_codegen::ir::{InstBuilder, Value};

impl<'f> Ops<'f> {
    fn is_f64(&self, x: Value) -> bool {
        self.ty(x) == F64
    }

    /// A function that only the helpers have, computed in f64.
    pub fn by_helper(&mut self, helper: Helper, operands: &[Value]) -> Value {
        if self.is_f64(operands[0]) {
            return self.call(helper, operands);
        }
        let operands: Vec<(Value, bool)> = operands.iter().map(|x| (*x, false)).collect();
        self.each_lane(&operands, |ops, x| {
            let wide: Vec<Value> = x.iter().map(|x| ops.b.ins().fpromote(F64, *x)).collect();
            let y = ops.call(helper, &wide);
            ops.b.ins().fdemote(F32, y)
        })
    }

    pub fn exp(&mut self, x: Value) -> Value {
        if self.is_f64(x) {
            return self.call(Helper::Exp, &[x]);
        }
        let (n, q, x) = self.exp_parts(x);
        let one = self.f32(x, 1.0);
        let y = self.fadd(q, one);
        self.scale(y, n)
    }

    /// e^x = (1 + q) * 2^n; x is clamped to where its exponential changes (NaN stays NaN).
    fn exp_parts(&mut self, x: Value) -> (Value, Value, Value) {
        let (low, high) = (self.f32(x, -104.0), self.f32(x, 89.0));
        let below = self.fcmp(FloatCC::LessThan, x, low);
        let x = self.pick(below, low, x);
        let above = self.fcmp(FloatCC::GreaterThan, x, high);
        let x = self.pick(above, high, x);
        let (log2e, rounder) = (self.f32(x, std::f32::consts::LOG2_E), self.f32(x, ROUNDER));
        let sum = self.mul_add(x, log2e, rounder);
        let whole = self.fsub(sum, rounder);
        let n = self.bits(sum);
        let n = self.add_bits(n, (ROUNDER.to_bits() as i32).wrapping_neg());
        let (minus_high, minus_low) = (self.f32(x, -LN2_HIGH), self.f32(x, -LN2_LOW));
        let r = self.mul_add(whole, minus_high, x);
        let r = self.mul_add(whole, minus_low, r);
        let p = self.polynomial(r, &EXP);
        let square = self.fmul(r, r);
        (n, self.mul_add(p, square, r), x)
    }

    /// y * 2^n for n from -150 to 129, in two steps since 2^n alone may not be a normal number.
    fn scale(&mut self, y: Value, n: Value) -> Value {
        let half = self.shift_right_signed(n, 1);
        let rest = self.b.ins().isub(n, half);
        let (a, b) = (self.power_of_two(half), self.power_of_two(rest));
        let y = self.fmul(y, a);
        self.fmul(y, b)
    }

    /// 2^n for n from -126 to 127.
    fn power_of_two(&mut self, n: Value) -> Value {
        let biased = self.add_bits(n, 127);
        let bits = self.shift_left(biased, 23);
        self.of_bits(bits)
    }

    pub fn expm1(&mut self, x: Value) -> Value {
        if self.is_f64(x) {
            return self.call(Helper::Expm1, &[x]);
        }
        let (n, q, clamped) = self.exp_parts(x);
        // (1 + q) 2^n - 1 = q 2^n + (2^n - 1); for large n the last part is 2^n, or too large for this form.
        let one = self.f32(x, 1.0);
        let scaled = self.scale(q, n);
        let power = self.scale(one, n);
        let power = self.fsub(power, one);
        let near = self.fadd(scaled, power);
        let (bound, all) = (self.f32(x, 60.0), self.fadd(q, one));
        let far = self.scale(all, n);
        let large = self.fcmp(FloatCC::GreaterThan, clamped, bound);
        let y = self.pick(large, far, near);
        // Keeps the sign of zero.
        let zero = self.f32(x, 0.0);
        let none = self.fcmp(FloatCC::Equal, x, zero);
        self.pick(none, x, y)
    }

    pub fn log(&mut self, x: Value) -> Value {
        if self.is_f64(x) {
            return self.call(Helper::Log, &[x]);
        }
        // Denormal numbers are made normal first.
        let (least, up) = (self.f32(x, f32::MIN_POSITIVE), self.f32(x, 8_388_608.0));
        let small = self.fcmp(FloatCC::LessThan, x, least);
        let scaled = self.fmul(x, up);
        let normal = self.pick(small, scaled, x);
        let (shift, none) = (self.f32(x, -23.0), self.f32(x, 0.0));
        let shift = self.pick(small, shift, none);
        let y = self.log_normal(normal, Some(shift));
        let (zero, infinity) = (self.f32(x, 0.0), self.f32(x, f32::INFINITY));
        let (minus_infinity, nan) = (self.f32(x, f32::NEG_INFINITY), self.f32(x, f32::NAN));
        let unbounded = self.fcmp(FloatCC::Equal, x, infinity);
        let y = self.pick(unbounded, x, y);
        let at_zero = self.fcmp(FloatCC::Equal, x, zero);
        let y = self.pick(at_zero, minus_infinity, y);
        let defined = self.fcmp(FloatCC::GreaterThanOrEqual, x, zero);
        self.pick(defined, y, nan)
    }

    /// The logarithm of a positive normal number; `shift` is added to its binary exponent.
    pub fn log_normal(&mut self, x: Value, shift: Option<Value>) -> Value {
        let root = std::f32::consts::FRAC_1_SQRT_2.to_bits() as i32;
        let bits = self.bits(x);
        let relative = self.add_bits(bits, root.wrapping_neg());
        let exponent = self.shift_right_signed(relative, 23);
        let fraction = self.and_bits(relative, 0x007F_FFFF);
        let mantissa = self.add_bits(fraction, root);
        let mantissa = self.of_bits(mantissa);
        let ty = self.ty(x);
        let mut e = self.b.ins().fcvt_from_sint(ty, exponent);
        if let Some(shift) = shift {
            e = self.fadd(e, shift);
        }
        let one = self.f32(x, 1.0);
        let f = self.fsub(mantissa, one);
        let p = self.polynomial(f, &LN);
        let square = self.fmul(f, f);
        let cube = self.fmul(square, f);
        let low = self.f32(x, LN2_LOW);
        let y = self.fmul(p, cube);
        let y = self.mul_add(e, low, y);
        let minus_half = self.f32(x, -0.5);
        let y = self.mul_add(square, minus_half, y);
        let y = self.fadd(f, y);
        let high = self.f32(x, LN2_HIGH);
        self.mul_add(e, high, y)
    }

    pub fn log1p(&mut self, x: Value) -> Value {
        if self.is_f64(x) {
            return self.call(Helper::Log1p, &[x]);
        }
        // ln(u) * (x / (u - 1)) with u = 1 + x rounded: the error of u cancels (W. Kahan).
        let one = self.f32(x, 1.0);
        let u = self.fadd(x, one);
        let log = self.log(u);
        let change = self.fsub(u, one);
        let ratio = self.fdiv(x, change);
        let y = self.fmul(log, ratio);
        let infinity = self.f32(x, f32::INFINITY);
        let unbounded = self.fcmp(FloatCC::Equal, x, infinity);
        let y = self.pick(unbounded, x, y);
        let same = self.fcmp(FloatCC::Equal, u, one);
        self.pick(same, x, y)
    }

    pub fn tanh(&mut self, x: Value) -> Value {
        if self.is_f64(x) {
            return self.call(Helper::Tanh, &[x]);
        }
        let z = self.b.ins().fabs(x);
        let square = self.fmul(x, x);
        let p = self.polynomial(square, &TANH);
        let p = self.fmul(p, square);
        let near = self.mul_add(p, x, x);
        let twice = self.fadd(z, z);
        let e = self.exp(twice);
        let (one, two) = (self.f32(x, 1.0), self.f32(x, 2.0));
        let below = self.fadd(e, one);
        let rest = self.fdiv(two, below);
        let far = self.fsub(one, rest);
        let far = self.with_sign_of(far, x);
        let bound = self.f32(x, 0.625);
        let small = self.fcmp(FloatCC::LessThan, z, bound);
        self.pick(small, near, far)
    }

    pub fn sigmoid(&mut self, x: Value) -> Value {
        if self.is_f64(x) {
            return self.call(Helper::Sigmoid, &[x]);
        }
        let e = self.exp_of_minus_abs(x);
        let (zero, one) = (self.f32(x, 0.0), self.f32(x, 1.0));
        let below = self.fadd(e, one);
        let negative = self.fcmp(FloatCC::LessThan, x, zero);
        let above = self.pick(negative, e, one);
        self.fdiv(above, below)
    }

    pub fn softplus(&mut self, x: Value) -> Value {
        if self.is_f64(x) {
            return self.call(Helper::Softplus, &[x]);
        }
        let e = self.exp_of_minus_abs(x);
        let rest = self.log1p(e);
        let zero = self.f32(x, 0.0);
        let positive = self.fmax(x, zero);
        self.fadd(positive, rest)
    }

    pub fn erf(&mut self, x: Value) -> Value {
        if self.is_f64(x) {
            return self.call(Helper::Erf, &[x]);
        }
        let square = self.fmul(x, x);
        let near = self.polynomial(square, &ERF_NEAR);
        let near = self.mul_add(near, x, x);
        let z = self.b.ins().fabs(x);
        // From 4 on the nearest f32 is 1.
        let most = self.f32(x, 4.0);
        let large = self.fcmp(FloatCC::GreaterThan, z, most);
        let clamped = self.pick(large, most, z);
        let log = self.polynomial(clamped, &ERF_FAR);
        let rest = self.exp(log);
        let one = self.f32(x, 1.0);
        let far = self.fsub(one, rest);
        let far = self.with_sign_of(far, x);
        let small = self.fcmp(FloatCC::LessThan, z, one);
        self.pick(small, near, far)
    }

    /// x^n for a small constant n by multiplications, or None.
    pub fn small_power(&mut self, x: Value, n: f64) -> Option<Value> {
        let one = self.float(x, 1.0);
        let square = self.fmul(x, x);
        Some(match n {
            1.0 => x,
            2.0 => square,
            3.0 => self.fmul(square, x),
            4.0 => self.fmul(square, square),
            -1.0 => self.fdiv(one, x),
            -2.0 => self.fdiv(one, square),
            _ => return None,
        })
    }

    /// A number that is not negative, with the sign of another. There is no copysign of vectors.
    fn with_sign_of(&mut self, y: Value, x: Value) -> Value {
        let (y, sign) = (self.bits(y), self.bits(x));
        let sign = self.and_bits(sign, i32::MIN);
        let y = self.b.ins().bor(y, sign);
        self.of_bits(y)
    }

    fn exp_of_minus_abs(&mut self, x: Value) -> Value {
        let z = self.b.ins().fabs(x);
        let z = self.b.ins().fneg(z);
        self.exp(z)
    }
}
