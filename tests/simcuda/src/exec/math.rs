//! Functions of floats, as exact as a rounded result of f64 arithmetic. Devices' `.approx` forms may be off by some ulp
//! (PTX ISA, 9.7.3), so a program must not depend on these bits.

/// 2^x. The polynomial is the Taylor series about the nearest integer: 1e-10 relative.
#[inline(always)]
pub fn exp2(x: f32) -> f32 {
    let x = f64::from(x.clamp(-200.0, 200.0));
    let n = x.round_ties_even();
    let f = (x - n) * std::f64::consts::LN_2;
    // 1 / k!
    const C: [f64; 9] = [1.0 / 40320.0, 1.0 / 5040.0, 1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0];
    let mut p = C[0];
    for c in &C[1..] {
        p = p.mul_add(f, *c);
    }
    let scale = f64::from_bits(((n as i64 + 1023) as u64) << 52);
    (p * scale) as f32
}

#[inline(always)]
pub fn exp2_or_nan(x: f32) -> f32 {
    if x.is_nan() { NAN } else { exp2(x) }
}

/// The NaN that devices give.
pub const NAN: f32 = f32::from_bits(0x7fff_ffff);

/// log2(x), by atanh of the mantissa's place between sqrt(1/2) and sqrt(2).
#[inline(always)]
pub fn log2(x: f32) -> f32 {
    let d = f64::from(x);
    let bits = d.to_bits();
    // Exponent such that the mantissa lies in [sqrt(1/2), sqrt(2)).
    let k = (bits.wrapping_sub(0x3fe6_a09e_667f_3bcd) as i64) >> 52;
    let m = f64::from_bits(bits.wrapping_sub((k << 52) as u64));
    let s = (m - 1.0) / (m + 1.0);
    let z = s * s;
    let mut p = 1.0 / 17.0;
    for c in [15.0, 13.0, 11.0, 9.0, 7.0, 5.0, 3.0, 1.0] {
        p = f64::mul_add(p, z, 1.0 / c);
    }
    let value = (k as f64 + 2.0 * std::f64::consts::LOG2_E * s * p) as f32;
    if x > 0.0 && x < f32::INFINITY {
        value
    } else if x == 0.0 {
        f32::NEG_INFINITY
    } else if x == f32::INFINITY {
        x
    } else {
        NAN
    }
}

/// tanh(x) = (e^2x - 1) / (e^2x + 1), by its series near zero.
#[inline(always)]
pub fn tanh(x: f32) -> f32 {
    f64::from(x).tanh() as f32
}

/// Subnormals as zero of their sign.
#[inline(always)]
pub fn flush(x: f32) -> f32 {
    if x.abs() < f32::MIN_POSITIVE { f32::from_bits(x.to_bits() & 0x8000_0000) } else { x }
}

/// A NaN becomes the one that devices give.
#[inline(always)]
pub fn canonical(x: f32) -> f32 {
    if x.is_nan() { NAN } else { x }
}

#[inline(always)]
pub fn saturate(x: f32) -> f32 {
    if x.is_nan() { 0.0 } else { x.clamp(0.0, 1.0) + 0.0 }
}

/// Rounding modes of floats.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Round {
    Nearest,
    Zero,
    Down,
    Up,
}

/// `near` rounded to f32 in another direction, where the exact value is `near + rest` and `rest` is below its ulp.
#[inline(always)]
pub fn narrow(near: f64, rest: f64, round: Round) -> f32 {
    let f = near as f32;
    let over = f64::from(f) - near;
    // Whether the f32 lies above or below the exact value.
    let above = over > 0.0 || over == 0.0 && rest < 0.0;
    let below = over < 0.0 || over == 0.0 && rest > 0.0;
    if !f.is_finite() && !near.is_finite() {
        return f;
    }
    match round {
        Round::Nearest => f,
        Round::Down if above => f.next_down(),
        Round::Up if below => f.next_up(),
        Round::Zero if near > 0.0 && above => f.next_down(),
        Round::Zero if near < 0.0 && below => f.next_up(),
        _ => f,
    }
}

/// The same for f64: `near` is the nearest f64, `rest` what it lacks.
#[inline(always)]
pub fn direct(near: f64, rest: f64, round: Round) -> f64 {
    if !near.is_finite() {
        return near;
    }
    match round {
        Round::Down if rest < 0.0 => near.next_down(),
        Round::Up if rest > 0.0 => near.next_up(),
        Round::Zero if near > 0.0 && rest < 0.0 => near.next_down(),
        Round::Zero if near < 0.0 && rest > 0.0 => near.next_up(),
        _ => near,
    }
}

/// A sum and what its rounding lost (Knuth's two-sum).
#[inline(always)]
pub fn two_sum(a: f64, b: f64) -> (f64, f64) {
    let s = a + b;
    let bb = s - a;
    (s, (a - (s - bb)) + (b - bb))
}

/// min and max as PTX defines them: -0 < +0; a NaN gives the other operand, or itself with `.NaN`.
#[inline(always)]
pub fn minimum(a: f32, b: f32, nan: bool) -> f32 {
    if a.is_nan() || b.is_nan() {
        return if nan || a.is_nan() && b.is_nan() {
            NAN
        } else if a.is_nan() {
            b
        } else {
            a
        };
    }
    if a < b || a == b && a.is_sign_negative() { a } else { b }
}

#[inline(always)]
pub fn maximum(a: f32, b: f32, nan: bool) -> f32 {
    if a.is_nan() || b.is_nan() {
        return minimum(a, b, nan);
    }
    if a > b || a == b && a.is_sign_positive() { a } else { b }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_within_an_ulp() {
        for i in 0..200_000u32 {
            let x = -150.0 + i as f32 * 0.0015;
            let want = f64::from(x).exp2() as f32;
            assert!((exp2(x).to_bits() as i64 - want.to_bits() as i64).abs() <= 1, "2^{x}: {} {want}", exp2(x));
            let y = f32::from_bits(1 + i * 10_000);
            let want = f64::from(y).log2() as f32;
            assert!((log2(y) - want).abs() <= 1e-7 * want.abs().max(1e-7), "log2 {y:e}: {} {want}", log2(y));
        }
        assert_eq!(exp2(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp2(f32::INFINITY), f32::INFINITY);
        assert_eq!(log2(0.0), f32::NEG_INFINITY);
        assert!(log2(-1.0).is_nan());
    }

    #[test]
    fn rounding_has_its_direction() {
        let third = 1.0f64 / 3.0;
        assert!(f64::from(narrow(third, 0.0, Round::Down)) < third);
        assert!(f64::from(narrow(third, 0.0, Round::Up)) > third);
        assert_eq!(narrow(1.0, -1e-30, Round::Down), 1.0f32.next_down());
        assert_eq!(narrow(-1.0, 1e-30, Round::Zero), (-1.0f32).next_up());
        assert_eq!(minimum(0.0, -0.0, false).to_bits(), (-0.0f32).to_bits());
        assert_eq!(maximum(f32::NAN, 2.0, false), 2.0);
        assert!(maximum(f32::NAN, 2.0, true).is_nan());
    }
}
