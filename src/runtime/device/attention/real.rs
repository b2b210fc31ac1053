//! The numbers that attention computes in, and their exponential and hyperbolic tangent.
//!
//! The functions are straight lines without calls, so that loops over arrays of them become vector code. `FMA`: whether the
//! processor multiplies and adds in one instruction; without it that would be a slow call.

use crate::runtime::device::library::Element;
use crate::types::DType;

/// F32 or F64.
pub trait Real:
    Copy
    + Send
    + Sync
    + PartialOrd
    + Default
    + std::ops::Add<Output = Self>
    + std::ops::Sub<Output = Self>
    + std::ops::Mul<Output = Self>
    + std::ops::Div<Output = Self>
    + 'static
{
    const DTYPE: DType;
    const LOWEST: Self;
    const HIGHEST: Self;
    const ONE: Self;
    fn of(x: f64) -> Self;
    fn value(self) -> f64;
    fn multiply_add<const FMA: bool>(self, by: Self, plus: Self) -> Self;
    /// e^x for x up to 88 (F32); results below the normal range of F32 are 0.
    fn exp_inline<const FMA: bool>(self) -> Self;
    fn tanh_inline<const FMA: bool>(self) -> Self;
}

/// An element of an operand.
pub trait Stored: Element<Sum: Real> {}

impl<E: Element<Sum: Real>> Stored for E {}

/// Added to a number below 2^22 it leaves the nearest whole number in the lowest bits.
const ROUND: f32 = 12_582_912.0;
/// ln 2 in two parts, the first one with few bits, as in the Cephes library (Moshier 1989), whence the polynomials, too.
const LN2_HIGH: f32 = 0.693_359_4;
const LN2_LOW: f32 = -2.121_944_4e-4;
/// Below it e^x is less than the least normal number.
const LEAST: f32 = -87.33;

impl Real for f32 {
    const DTYPE: DType = DType::F32;
    const LOWEST: f32 = f32::NEG_INFINITY;
    const HIGHEST: f32 = f32::INFINITY;
    const ONE: f32 = 1.0;
    #[inline(always)]
    fn of(x: f64) -> f32 {
        x as f32
    }
    #[inline(always)]
    fn value(self) -> f64 {
        f64::from(self)
    }
    #[inline(always)]
    fn multiply_add<const FMA: bool>(self, by: f32, plus: f32) -> f32 {
        if FMA { self.mul_add(by, plus) } else { self * by + plus }
    }
    #[inline(always)]
    fn exp_inline<const FMA: bool>(self) -> f32 {
        let shifted = self.multiply_add::<FMA>(std::f32::consts::LOG2_E, ROUND);
        let n = shifted - ROUND;
        let r = n.multiply_add::<FMA>(-LN2_LOW, n.multiply_add::<FMA>(-LN2_HIGH, self));
        let mut p = 1.987_569_1e-4f32;
        for c in [1.398_2e-3, 8.333_452e-3, 4.166_579_6e-2, 0.166_666_66, 0.5] {
            p = p.multiply_add::<FMA>(r, c);
        }
        let p = p.multiply_add::<FMA>(r * r, r) + 1.0;
        let power = f32::from_bits((shifted.to_bits() << 23).wrapping_add(1.0f32.to_bits()));
        if self < LEAST { 0.0 } else { p * power }
    }
    #[inline(always)]
    fn tanh_inline<const FMA: bool>(self) -> f32 {
        let x = self.abs();
        let z = self * self;
        let mut p = -5.704_988_7e-3f32;
        for c in [2.063_909e-2, -5.373_971_6e-2, 0.133_314_42, -0.333_332_83] {
            p = p.multiply_add::<FMA>(z, c);
        }
        let small = (p * z).multiply_add::<FMA>(self, self);
        let e = (-2.0 * x).exp_inline::<FMA>();
        let large = ((1.0 - e) / (1.0 + e)).copysign(self);
        if x < 0.625 { small } else { large }
    }
}

impl Real for f64 {
    const DTYPE: DType = DType::F64;
    const LOWEST: f64 = f64::NEG_INFINITY;
    const HIGHEST: f64 = f64::INFINITY;
    const ONE: f64 = 1.0;
    #[inline(always)]
    fn of(x: f64) -> f64 {
        x
    }
    #[inline(always)]
    fn value(self) -> f64 {
        self
    }
    #[inline(always)]
    fn multiply_add<const FMA: bool>(self, by: f64, plus: f64) -> f64 {
        if FMA { self.mul_add(by, plus) } else { self * by + plus }
    }
    #[inline(always)]
    fn exp_inline<const FMA: bool>(self) -> f64 {
        f64::exp(self)
    }
    #[inline(always)]
    fn tanh_inline<const FMA: bool>(self) -> f64 {
        f64::tanh(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Distance in units of the last place of the exact result.
    fn ulps(found: f32, exact: f64) -> f64 {
        let near = exact as f32;
        let step = f64::from(f32::from_bits(near.abs().to_bits() + 1)) - f64::from(near.abs());
        (f64::from(found) - exact).abs() / step
    }

    /// Numbers of every exponent and sign up to `most`.
    fn numbers(most: f32) -> impl Iterator<Item = f32> {
        (0..1u32 << 21).map(|i| f32::from_bits(i.wrapping_mul(2_654_435_761))).filter(move |x| x.abs() <= most)
    }

    #[test]
    fn exp_is_within_two_ulp_and_flushes_what_is_not_normal() {
        for x in numbers(87.3) {
            let exact = f64::from(x).exp();
            for found in [x.exp_inline::<true>(), x.exp_inline::<false>()] {
                assert!(ulps(found, exact) <= 2.0, "exp({x:e}) = {found:e}, exactly {exact:e}");
            }
        }
        for x in [f32::NEG_INFINITY, -1e30, -88.0] {
            assert_eq!(Real::exp_inline::<true>(x), 0.0, "{x}");
        }
        assert!(Real::exp_inline::<true>(f32::NAN).is_nan());
        assert_eq!(Real::exp_inline::<false>(0.0f32), 1.0);
    }

    #[test]
    fn tanh_is_within_two_ulp() {
        for x in numbers(f32::MAX) {
            let exact = f64::from(x).tanh();
            for found in [x.tanh_inline::<true>(), x.tanh_inline::<false>()] {
                assert!(exact == 0.0 || ulps(found, exact) <= 2.0, "tanh({x:e}) = {found:e}, exactly {exact:e}");
            }
        }
        assert_eq!(Real::tanh_inline::<true>(f32::INFINITY), 1.0);
        assert_eq!(Real::tanh_inline::<true>(f32::NEG_INFINITY), -1.0);
        assert!(Real::tanh_inline::<true>(f32::NAN).is_nan());
    }
}
