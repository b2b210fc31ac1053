//! The numbers that attention computes in, and their exponential and hyperbolic tangent.
//!
//! The functions are straight lines without calls, so that loops over arrays of them become vector code. `FMA`: whether the
//! processor multiplies and adds in one instruction; without it that would be a slow call.

use crate::runtime::device::library::Element;
use crate::types::DType;
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

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
    /// 2^(x * by) for products below the largest exponent; 0 where the result is hardly a normal number or none. The
    /// relative error is that of the product's last place, and there is none where the product is 0.
    fn power_inline<const FMA: bool>(self, by: Self) -> Self;
    /// Of positive normal numbers.
    fn ln_inline<const FMA: bool>(self) -> Self;
    fn tanh_inline<const FMA: bool>(self) -> Self;
}

/// An element of an operand.
pub trait Stored: Element<Sum: Real> {
    #[inline(always)]
    fn widen_all(from: &[Self], to: &mut [Self::Sum]) {
        to.iter_mut().zip(from).for_each(|(to, x)| *to = x.widen());
    }
}

impl Stored for f32 {}
impl Stored for f64 {}
impl Stored for bf16 {}
impl Stored for f16 {
    fn widen_all(from: &[f16], to: &mut [f32]) {
        from.convert_to_f32_slice(&mut to[..from.len()]);
    }
}

/// Added to a number below 2^22 it leaves the nearest whole number in the lowest bits.
const ROUND: f32 = 12_582_912.0;
/// The same for F64, below 2^51.
const ROUND_F64: f64 = 6_755_399_441_055_744.0;
/// Of 2^r for r from -1/2 to 1/2, the highest power first: the least relative error that a polynomial of the degree has.
const POWER: [f32; 7] =
    [1.534_582_7e-4, 1.339_993_1e-3, 9.618_489e-3, 5.550_328_6e-2, 0.240_226_46, std::f32::consts::LN_2, 1.0];
const POWER_F64: [f64; 12] = [
    4.435_286_674_587_416_5e-10,
    7.074_105_251_236_832_5e-9,
    1.017_819_799_338_246_8e-7,
    1.321_543_309_185_115e-6,
    1.525_273_349_006_237_1e-5,
    1.540_353_046_250_996_5e-4,
    1.333_355_814_678_983_6e-3,
    9.618_129_107_588_34e-3,
    5.550_410_866_481_992_5e-2,
    0.240_226_506_959_101_55,
    std::f64::consts::LN_2,
    1.0,
];
/// The square root of 1/2.
const ROOT: f32 = std::f32::consts::FRAC_1_SQRT_2;
/// Of (ln(1 + m) - m + m^2/2) / m^3, the highest power first; from the Cephes library, too.
const LOGARITHM: [f32; 9] = [
    7.037_683_6e-2,
    -0.115_146_1,
    0.116_769_99,
    -0.124_201_41,
    0.142_493_23,
    -0.166_680_57,
    0.200_007_14,
    -0.249_999_94,
    0.333_333_3,
];
/// ln 2 in two parts, the first one with few bits, as in the Cephes library (Moshier 1989), whence the polynomials, too.
const LN2_HIGH: f32 = 0.693_359_4;
const LN2_LOW: f32 = -2.121_944_4e-4;
/// Below it e^x is less than the least normal number.
const LEAST: f32 = -87.33;

/// e^x for x up to 88; results below the normal range are 0.
#[inline(always)]
fn exp<const FMA: bool>(x: f32) -> f32 {
    let shifted = x.multiply_add::<FMA>(std::f32::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = n.multiply_add::<FMA>(-LN2_LOW, n.multiply_add::<FMA>(-LN2_HIGH, x));
    let mut p = 1.987_569_1e-4f32;
    for c in [1.398_2e-3, 8.333_452e-3, 4.166_579_6e-2, 0.166_666_66, 0.5] {
        p = p.multiply_add::<FMA>(r, c);
    }
    let p = p.multiply_add::<FMA>(r * r, r) + 1.0;
    let power = f32::from_bits((shifted.to_bits() << 23).wrapping_add(1.0f32.to_bits()));
    if x < LEAST { 0.0 } else { p * power }
}

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
    fn power_inline<const FMA: bool>(self, by: f32) -> f32 {
        let shifted = self.multiply_add::<FMA>(by, ROUND);
        let n = shifted - ROUND;
        let r = self.multiply_add::<FMA>(by, -n);
        let mut p = POWER[0];
        for c in &POWER[1..] {
            p = p.multiply_add::<FMA>(r, *c);
        }
        let power = f32::from_bits((shifted.to_bits() << 23).wrapping_add(1.0f32.to_bits()));
        if n < -125.0 { 0.0 } else { p * power }
    }
    #[inline(always)]
    fn ln_inline<const FMA: bool>(self) -> f32 {
        // The number is m * 2^n, with m from sqrt(1/2) to sqrt(2).
        let n = self.to_bits().wrapping_sub(ROOT.to_bits()) as i32 >> 23;
        let m = f32::from_bits(self.to_bits().wrapping_sub((n << 23) as u32)) - 1.0;
        let n = n as f32;
        let mut p = LOGARITHM[0];
        for c in &LOGARITHM[1..] {
            p = p.multiply_add::<FMA>(m, *c);
        }
        let z = m * m;
        let low = n.multiply_add::<FMA>(LN2_LOW, (p * z).multiply_add::<FMA>(m, -0.5 * z));
        n.multiply_add::<FMA>(LN2_HIGH, low + m)
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
        let e = exp::<FMA>(-2.0 * x);
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
    fn power_inline<const FMA: bool>(self, by: f64) -> f64 {
        let shifted = self.multiply_add::<FMA>(by, ROUND_F64);
        let n = shifted - ROUND_F64;
        let r = self.multiply_add::<FMA>(by, -n);
        let mut p = POWER_F64[0];
        for c in &POWER_F64[1..] {
            p = p.multiply_add::<FMA>(r, *c);
        }
        let power = f64::from_bits((shifted.to_bits() << 52).wrapping_add(1.0f64.to_bits()));
        if n < -1021.0 { 0.0 } else { p * power }
    }
    #[inline(always)]
    fn ln_inline<const FMA: bool>(self) -> f64 {
        self.ln()
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
            for found in [super::exp::<true>(x), super::exp::<false>(x)] {
                assert!(ulps(found, exact) <= 2.0, "exp({x:e}) = {found:e}, exactly {exact:e}");
            }
        }
        for x in [f32::NEG_INFINITY, -1e30, -88.0] {
            assert_eq!(super::exp::<true>(x), 0.0, "{x}");
        }
        assert!(super::exp::<true>(f32::NAN).is_nan());
        assert_eq!(super::exp::<false>(0.0), 1.0);
    }

    #[test]
    fn powers_are_as_exact_as_their_exponents() {
        for x in numbers(125.4) {
            for by in [1.0, 0.125f32, std::f32::consts::LOG2_E] {
                let product = f64::from(x) * f64::from(by);
                let most = 1.5 + if product.abs() > 125.4 { continue } else { product.abs() };
                assert!(ulps(x.power_inline::<true>(by), product.exp2()) <= 1.5, "2^({x:e} * {by})");
                assert!(ulps(x.power_inline::<false>(by), product.exp2()) <= most, "2^({x:e} * {by}) without fma");
                let wide = f64::from(x);
                for found in [wide.power_inline::<true>(f64::from(by)), wide.power_inline::<false>(f64::from(by))] {
                    assert!((found / product.exp2() - 1.0).abs() < 1e-15 * most, "2^({x:e} * {by}) in f64");
                }
            }
        }
        for x in [f32::NEG_INFINITY, -1e30, -126.6] {
            assert_eq!(Real::power_inline::<true>(x, 1.0), 0.0, "{x}");
            assert_eq!(Real::power_inline::<false>(f64::from(x) * 9.0, 1.0), 0.0, "{x}");
        }
        assert_eq!([Real::power_inline::<true>(0.0f32, 2.0), Real::power_inline::<false>(0.0f32, 2.0)], [1.0; 2]);
        assert!(Real::power_inline::<true>(f32::NAN, 1.0).is_nan());
        assert!(Real::power_inline::<true>(f64::NAN, 1.0).is_nan());
    }

    #[test]
    fn logarithms_are_within_two_ulp() {
        let least = f32::MIN_POSITIVE;
        for x in
            numbers(f32::MAX).map(f32::abs).filter(|x| *x >= least).chain([1.0, 1.0 + f32::EPSILON, least, f32::MAX])
        {
            let exact = f64::from(x).ln();
            for found in [x.ln_inline::<true>(), x.ln_inline::<false>()] {
                assert!(
                    x == 1.0 && found == 0.0 || ulps(found, exact) <= 2.0,
                    "ln({x:e}) = {found:e}, exactly {exact:e}"
                );
            }
        }
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
