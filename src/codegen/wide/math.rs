//! Transcendental functions of f32 in the vector IR, as polynomials, mostly those of the Cephes library (S. L. Moshier).

use super::ir::*;
use crate::codegen::coefficients::{ERF_FAR, ERF_NEAR, EXP, ROUNDER, TANH};
use crate::program::Helper;
use crate::types::rng::{LN, LN2_HIGH, LN2_LOW};

/// (sin(r) - r) / r^3 and (cos(r) - 1 + r^2 / 2) / r^4 over r^2, for |r| <= pi / 4.
const SIN: [f32; 3] = [-1.951_529_6e-4, 8.332_161e-3, -1.666_665_5e-1];
const COS: [f32; 3] = [2.443_315_7e-5, -1.388_731_6e-3, 4.166_664_6e-2];
/// -pi / 2 in three parts; with the first a difference to a near number is exact.
const MINUS_HALF_PI: [f32; 3] = [-std::f32::consts::FRAC_PI_2, 4.371_139e-8, 1.715_124_5e-15];
/// Up to here quarter turns are counted well enough in f32.
const SINE_LIMIT: f32 = 30_000.0;

impl Function {
    fn add(&mut self, x: Reg, y: Reg) -> Reg {
        self.op(Op::Add, &[x, y])
    }

    fn sub(&mut self, x: Reg, y: Reg) -> Reg {
        self.op(Op::Sub, &[x, y])
    }

    fn mul(&mut self, x: Reg, y: Reg) -> Reg {
        self.op(Op::Mul, &[x, y])
    }

    fn less(&mut self, x: Reg, y: Reg) -> Reg {
        self.op(Op::Compare(Relation::Less), &[x, y])
    }

    fn equal(&mut self, x: Reg, y: Reg) -> Reg {
        self.op(Op::Compare(Relation::Equal), &[x, y])
    }

    /// x * y + z; rounded once if functions may fuse.
    fn mul_add(&mut self, x: Reg, y: Reg, z: Reg) -> Reg {
        if self.fused {
            return self.op(Op::MulAdd, &[x, y, z]);
        }
        let product = self.mul(x, y);
        self.add(product, z)
    }

    /// A polynomial, highest power first.
    pub fn polynomial(&mut self, x: Reg, coefficients: &[f32]) -> Reg {
        let (first, rest) = coefficients.split_first().expect("a polynomial has coefficients");
        let mut p = self.f32(*first);
        for c in rest {
            let c = self.f32(*c);
            p = self.mul_add(p, x, c);
        }
        p
    }

    pub fn exp(&mut self, x: Reg) -> Reg {
        // Below this the result is 0. It is not computed there: results that underflow take a hundred times as long, and
        // what a softmax masks off is all of that kind.
        let (low, zero, one) = (self.f32(-104.0), self.f32(0.0), self.f32(1.0));
        let none = self.less(x, low);
        let x = self.select(none, zero, x);
        let (whole, q) = self.exp_parts(x);
        let y = self.add(q, one);
        let y = self.scale(y, whole);
        self.select(none, zero, y)
    }

    /// e^x = (1 + q) * 2^whole; x is not below -104, and is clamped to where its exponential is infinite (NaN stays NaN).
    fn exp_parts(&mut self, x: Reg) -> (Reg, Reg) {
        let high = self.f32(89.0);
        let x = self.op(Op::Min, &[high, x]);
        let (log2e, rounder) = (self.f32(std::f32::consts::LOG2_E), self.f32(ROUNDER));
        let sum = self.mul_add(x, log2e, rounder);
        let whole = self.sub(sum, rounder);
        let (minus_high, minus_low) = (self.f32(-LN2_HIGH), self.f32(-LN2_LOW));
        let r = self.mul_add(whole, minus_high, x);
        let r = self.mul_add(whole, minus_low, r);
        let p = self.polynomial(r, &EXP);
        let square = self.mul(r, r);
        (whole, self.mul_add(p, square, r))
    }

    /// y * 2^n for whole n from -150 to 129.
    fn scale(&mut self, y: Reg, n: Reg) -> Reg {
        if self.lanes == 16 {
            return self.op(Op::Scale, &[y, n]);
        }
        // In two steps, since 2^n alone may not be a normal number.
        let n = self.op(Op::ToInt, &[n]);
        let half = self.op(Op::ShiftRightSigned(1), &[n]);
        let rest = self.op(Op::SubInt, &[n, half]);
        let [a, b] = [half, rest].map(|n| {
            let bias = self.i32(127);
            let biased = self.op(Op::AddInt, &[n, bias]);
            self.op(Op::ShiftLeft(23), &[biased])
        });
        let y = self.mul(y, a);
        self.mul(y, b)
    }

    pub fn expm1(&mut self, x: Reg) -> Reg {
        // Below this the result is -1.
        let low = self.f32(-30.0);
        let clamped = self.op(Op::Max, &[low, x]);
        let (n, q) = self.exp_parts(clamped);
        // (1 + q) 2^n - 1 = q 2^n + (2^n - 1); for large n the last part is 2^n, or too large for this form.
        let (zero, one, bound) = (self.f32(0.0), self.f32(1.0), self.f32(60.0));
        let scaled = self.scale(q, n);
        let power = self.scale(one, n);
        let power = self.sub(power, one);
        let near = self.add(scaled, power);
        let all = self.add(q, one);
        let far = self.scale(all, n);
        let large = self.less(bound, x);
        let y = self.select(large, far, near);
        // Keeps the sign of zero.
        let none = self.equal(x, zero);
        self.select(none, x, y)
    }

    pub fn log(&mut self, x: Reg) -> Reg {
        // Denormal numbers are made normal first.
        let (least, up) = (self.f32(f32::MIN_POSITIVE), self.f32(8_388_608.0));
        let small = self.less(x, least);
        let scaled = self.mul(x, up);
        let normal = self.select(small, scaled, x);
        let (shift, zero) = (self.f32(-23.0), self.f32(0.0));
        let shift = self.select(small, shift, zero);
        let y = self.log_normal(normal, Some(shift));
        let (infinity, nan) = (self.f32(f32::INFINITY), self.f32(f32::NAN));
        let minus_infinity = self.f32(f32::NEG_INFINITY);
        let unbounded = self.equal(x, infinity);
        let y = self.select(unbounded, x, y);
        let at_zero = self.equal(x, zero);
        let y = self.select(at_zero, minus_infinity, y);
        let defined = self.op(Op::Compare(Relation::GreaterEqual), &[x, zero]);
        self.select(defined, y, nan)
    }

    /// The logarithm of a positive normal number; `shift` is added to its binary exponent.
    pub fn log_normal(&mut self, x: Reg, shift: Option<Reg>) -> Reg {
        let root = std::f32::consts::FRAC_1_SQRT_2.to_bits() as i32;
        let (minus_root, fraction_bits, root) = (self.i32(-root), self.i32(0x007F_FFFF), self.i32(root));
        let relative = self.op(Op::AddInt, &[x, minus_root]);
        let exponent = self.op(Op::ShiftRightSigned(23), &[relative]);
        let fraction = self.op(Op::And, &[relative, fraction_bits]);
        let mantissa = self.op(Op::AddInt, &[fraction, root]);
        let mut e = self.op(Op::ToFloat, &[exponent]);
        if let Some(shift) = shift {
            e = self.add(e, shift);
        }
        let one = self.f32(1.0);
        let f = self.sub(mantissa, one);
        let p = self.polynomial(f, &LN);
        let square = self.mul(f, f);
        let cube = self.mul(square, f);
        let (low, high, minus_half) = (self.f32(LN2_LOW), self.f32(LN2_HIGH), self.f32(-0.5));
        let y = self.mul(p, cube);
        let y = self.mul_add(e, low, y);
        let y = self.mul_add(square, minus_half, y);
        let y = self.add(f, y);
        self.mul_add(e, high, y)
    }

    pub fn log1p(&mut self, x: Reg) -> Reg {
        // ln(u) * (x / (u - 1)) with u = 1 + x rounded: the error of u cancels (W. Kahan).
        let one = self.f32(1.0);
        let u = self.add(x, one);
        let log = self.log(u);
        let change = self.sub(u, one);
        let ratio = self.op(Op::Div, &[x, change]);
        let y = self.mul(log, ratio);
        let infinity = self.f32(f32::INFINITY);
        let unbounded = self.equal(x, infinity);
        let y = self.select(unbounded, x, y);
        let same = self.equal(u, one);
        self.select(same, x, y)
    }

    pub fn tanh(&mut self, x: Reg) -> Reg {
        let z = self.abs(x);
        let square = self.mul(x, x);
        let p = self.polynomial(square, &TANH);
        let p = self.mul(p, square);
        let near = self.mul_add(p, x, x);
        let twice = self.add(z, z);
        let e = self.exp(twice);
        let (one, two, bound) = (self.f32(1.0), self.f32(2.0), self.f32(0.625));
        let below = self.add(e, one);
        let rest = self.op(Op::Div, &[two, below]);
        let far = self.sub(one, rest);
        let far = self.with_sign_of(far, x);
        let small = self.less(z, bound);
        self.select(small, near, far)
    }

    /// The sine or cosine.
    pub fn sine(&mut self, x: Reg, which: Helper) -> Reg {
        let (per_turn, rounder) = (self.f32(std::f32::consts::FRAC_2_PI), self.f32(ROUNDER));
        // Quarter turns, in the low bits too.
        let sum = self.mul_add(x, per_turn, rounder);
        let whole = self.sub(sum, rounder);
        let mut r = x;
        for part in MINUS_HALF_PI {
            let part = self.f32(part);
            r = self.mul_add(whole, part, r);
        }
        let square = self.mul(r, r);
        let (minus_half, one) = (self.f32(-0.5), self.f32(1.0));
        let p = self.polynomial(square, &SIN);
        let p = self.mul(p, square);
        let sine = self.mul_add(p, r, r);
        let p = self.polynomial(square, &COS);
        let p = self.mul(p, square);
        let p = self.mul_add(p, square, one);
        let cosine = self.mul_add(square, minus_half, p);
        let (zero, ones, two) = (self.i32(0), self.i32(1), self.i32(2));
        let turns = if which == Helper::Cos { self.op(Op::AddInt, &[sum, ones]) } else { sum };
        let odd = self.op(Op::And, &[turns, ones]);
        let even = self.op(Op::CompareInt(Relation::Equal), &[odd, zero]);
        let near = self.select(even, sine, cosine);
        let sign = self.op(Op::And, &[turns, two]);
        let sign = self.op(Op::ShiftLeft(30), &[sign]);
        let y = self.op(Op::Xor, &[near, sign]);
        // Few arguments are so large, or no numbers.
        let (size, limit) = (self.abs(x), self.f32(SINE_LIMIT));
        let near = self.op(Op::Compare(Relation::LessEqual), &[size, limit]);
        let far = self.mask_not(near);
        self.effect(Op::IfAny, &[far]);
        let exact = self.op(Op::Call(which), &[x]);
        self.set(y, Op::Select, &[far, exact, y]);
        self.effect(Op::End, &[]);
        y
    }

    pub fn sigmoid(&mut self, x: Reg) -> Reg {
        let e = self.exp_of_minus_abs(x);
        let (zero, one) = (self.f32(0.0), self.f32(1.0));
        let below = self.add(e, one);
        let negative = self.less(x, zero);
        let above = self.select(negative, e, one);
        self.op(Op::Div, &[above, below])
    }

    pub fn softplus(&mut self, x: Reg) -> Reg {
        let e = self.exp_of_minus_abs(x);
        let rest = self.log1p(e);
        let zero = self.f32(0.0);
        let positive = self.extreme(Op::Max, x, zero);
        self.add(positive, rest)
    }

    pub fn erf(&mut self, x: Reg) -> Reg {
        let square = self.mul(x, x);
        let near = self.polynomial(square, &ERF_NEAR);
        let near = self.mul_add(near, x, x);
        let z = self.abs(x);
        // From 4 on the nearest f32 is 1.
        let (most, one) = (self.f32(4.0), self.f32(1.0));
        let clamped = self.op(Op::Min, &[most, z]);
        let log = self.polynomial(clamped, &ERF_FAR);
        let rest = self.exp(log);
        let far = self.sub(one, rest);
        let far = self.with_sign_of(far, x);
        let small = self.less(z, one);
        self.select(small, near, far)
    }

    /// x^n for a small constant n by multiplications.
    pub fn small_power(&mut self, x: Reg, n: f64) -> Reg {
        let one = self.f32(1.0);
        match n {
            1.0 => x,
            2.0 => self.mul(x, x),
            3.0 => {
                let square = self.mul(x, x);
                self.mul(square, x)
            }
            4.0 => {
                let square = self.mul(x, x);
                self.mul(square, square)
            }
            -1.0 => self.op(Op::Div, &[one, x]),
            -2.0 => {
                let square = self.mul(x, x);
                self.op(Op::Div, &[one, square])
            }
            n => unreachable!("{n} is no exponent of `plan::small_power`"),
        }
    }

    /// A number that is not negative, with the sign of another.
    fn with_sign_of(&mut self, y: Reg, x: Reg) -> Reg {
        let mask = self.i32(i32::MIN);
        let sign = self.op(Op::And, &[x, mask]);
        self.op(Op::Or, &[y, sign])
    }

    fn exp_of_minus_abs(&mut self, x: Reg) -> Reg {
        let sign = self.i32(i32::MIN);
        let z = self.op(Op::Or, &[x, sign]);
        self.exp(z)
    }
}
