//! Arithmetic of 16-bit floats, one or two to a register. Sums and products are exact in f32 but for their rounding, which
//! is innocuous before the second one (24 >= 2 * 11 + 2 bits); fused ones go through f64, rounded to odd.

use super::lanes::Run;
use super::math::{exp2_or_nan, maximum, minimum, saturate, tanh, two_sum};
use crate::ptx::tree::{Instr, Ty};
use crate::{op1, op2, op3};
use half::{bf16, f16};

/// How 16 bits are a float.
pub trait Half {
    fn to_f32(x: u16) -> f32;
    fn of_f32(x: f32) -> u16;
    fn of_f64(x: f64) -> u16;
}

pub struct F16;
pub struct Bf16;

const NAN16: u16 = 0x7fff;

impl Half for F16 {
    #[inline(always)]
    fn to_f32(x: u16) -> f32 {
        f16::from_bits(x).to_f32()
    }

    #[inline(always)]
    fn of_f32(x: f32) -> u16 {
        if x.is_nan() { NAN16 } else { f16::from_f32(x).to_bits() }
    }

    fn of_f64(x: f64) -> u16 {
        if x.is_nan() { NAN16 } else { f16::from_f64(x).to_bits() }
    }
}

impl Half for Bf16 {
    #[inline(always)]
    fn to_f32(x: u16) -> f32 {
        f32::from_bits(u32::from(x) << 16)
    }

    #[inline(always)]
    fn of_f32(x: f32) -> u16 {
        let bits = x.to_bits();
        let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
        if x.is_nan() { NAN16 } else { rounded as u16 }
    }

    fn of_f64(x: f64) -> u16 {
        if x.is_nan() { NAN16 } else { bf16::from_f64(x).to_bits() }
    }
}

#[inline(always)]
pub fn fma<H: Half>(a: u16, b: u16, c: u16) -> f64 {
    let (sum, rest) = two_sum(f64::from(H::to_f32(a)) * f64::from(H::to_f32(b)), f64::from(H::to_f32(c)));
    if rest == 0.0 || !rest.is_finite() {
        return sum;
    }
    // Rounded to odd: the next rounding cannot take it for a tie.
    let bits = sum.to_bits();
    if bits & 1 != 0 {
        return sum;
    }
    f64::from_bits(if (rest > 0.0) == (sum > 0.0) { bits + 1 } else { bits - 1 })
}

#[inline(always)]
fn both(a: u32, f: impl Fn(u16) -> u16) -> u32 {
    u32::from(f(a as u16)) | u32::from(f((a >> 16) as u16)) << 16
}

#[inline(always)]
fn both2(a: u32, b: u32, f: impl Fn(u16, u16) -> u16) -> u32 {
    u32::from(f(a as u16, b as u16)) | u32::from(f((a >> 16) as u16, (b >> 16) as u16)) << 16
}

#[inline(always)]
fn both3(a: u32, b: u32, c: u32, f: impl Fn(u16, u16, u16) -> u16) -> u32 {
    let high = f((a >> 16) as u16, (b >> 16) as u16, (c >> 16) as u16);
    u32::from(f(a as u16, b as u16, c as u16)) | u32::from(high) << 16
}

macro_rules! typed1 {
    ($ty:expr, $f:expr) => {
        match $ty {
            Ty::F16 => op1!(u32 => u32, |a| u32::from(F16::of_f32($f(F16::to_f32(a as u16))))),
            Ty::Bf16 => op1!(u32 => u32, |a| u32::from(Bf16::of_f32($f(Bf16::to_f32(a as u16))))),
            Ty::F16x2 => op1!(u32 => u32, |a| both(a, |x| F16::of_f32($f(F16::to_f32(x))))),
            Ty::Bf16x2 => op1!(u32 => u32, |a| both(a, |x| Bf16::of_f32($f(Bf16::to_f32(x))))),
            _ => return None,
        }
    };
}

macro_rules! typed2 {
    ($ty:expr, $f:expr) => {
        match $ty {
            Ty::F16 => op2!(u32 => u32, |a, b| {
                u32::from(F16::of_f32($f(F16::to_f32(a as u16), F16::to_f32(b as u16))))
            }),
            Ty::Bf16 => op2!(u32 => u32, |a, b| {
                u32::from(Bf16::of_f32($f(Bf16::to_f32(a as u16), Bf16::to_f32(b as u16))))
            }),
            Ty::F16x2 => op2!(u32 => u32, |a, b| both2(a, b, |x, y| F16::of_f32($f(F16::to_f32(x), F16::to_f32(y))))),
            Ty::Bf16x2 => {
                op2!(u32 => u32, |a, b| both2(a, b, |x, y| Bf16::of_f32($f(Bf16::to_f32(x), Bf16::to_f32(y)))))
            }
            _ => return None,
        }
    };
}

/// One more step after the function: `.sat` or `.relu`.
macro_rules! finished2 {
    ($instr:expr, $ty:expr, $f:expr) => {
        if $instr.has("sat") {
            typed2!($ty, |a: f32, b: f32| saturate($f(a, b)))
        } else if $instr.has("relu") {
            typed2!($ty, |a: f32, b: f32| maximum($f(a, b), 0.0, true))
        } else {
            typed2!($ty, $f)
        }
    };
}

pub fn unary(instr: &Instr, ty: Ty) -> Option<Run> {
    Some(match instr.parts[0].as_str() {
        "neg" => match ty {
            Ty::F16x2 | Ty::Bf16x2 => op1!(u32 => u32, |a| a ^ 0x8000_8000),
            _ => op1!(u32 => u32, |a| a ^ 0x8000),
        },
        "abs" => op1!(u32 => u32, |a| a & 0x7fff_7fff),
        "ex2" => typed1!(ty, exp2_or_nan),
        "tanh" => typed1!(ty, tanh),
        _ => return None,
    })
}

pub fn binary(instr: &Instr, ty: Ty) -> Option<Run> {
    let nan = instr.has("NaN");
    Some(match instr.parts[0].as_str() {
        "add" => finished2!(instr, ty, |a: f32, b: f32| a + b),
        "sub" => finished2!(instr, ty, |a: f32, b: f32| a - b),
        "mul" => finished2!(instr, ty, |a: f32, b: f32| a * b),
        "min" if nan => finished2!(instr, ty, |a: f32, b: f32| minimum(a, b, true)),
        "max" if nan => finished2!(instr, ty, |a: f32, b: f32| maximum(a, b, true)),
        "min" => finished2!(instr, ty, |a: f32, b: f32| minimum(a, b, false)),
        "max" => finished2!(instr, ty, |a: f32, b: f32| maximum(a, b, false)),
        _ => return None,
    })
}

macro_rules! typed3 {
    ($ty:expr, $g:ident) => {
        match $ty {
            Ty::F16 => op3!(u32 => u32, |a, b, c| u32::from($g::<F16>(a as u16, b as u16, c as u16))),
            Ty::Bf16 => op3!(u32 => u32, |a, b, c| u32::from($g::<Bf16>(a as u16, b as u16, c as u16))),
            Ty::F16x2 => op3!(u32 => u32, |a, b, c| both3(a, b, c, $g::<F16>)),
            Ty::Bf16x2 => op3!(u32 => u32, |a, b, c| both3(a, b, c, $g::<Bf16>)),
            _ => return None,
        }
    };
}

fn plain<H: Half>(a: u16, b: u16, c: u16) -> u16 {
    H::of_f64(fma::<H>(a, b, c))
}

fn saturated<H: Half>(a: u16, b: u16, c: u16) -> u16 {
    H::of_f32(saturate(H::to_f32(plain::<H>(a, b, c))))
}

fn rectified<H: Half>(a: u16, b: u16, c: u16) -> u16 {
    H::of_f32(maximum(H::to_f32(plain::<H>(a, b, c)), 0.0, true))
}

pub fn ternary(instr: &Instr, ty: Ty) -> Option<Run> {
    if instr.parts[0] != "fma" {
        return None;
    }
    Some(if instr.has("sat") {
        typed3!(ty, saturated)
    } else if instr.has("relu") {
        typed3!(ty, rectified)
    } else {
        typed3!(ty, plain)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conversions_agree_with_the_crate_and_fused_ones_round_once() {
        for bits in (0..=u16::MAX).filter(|b| !bf16::from_bits(*b).is_nan()) {
            assert_eq!(Bf16::of_f32(Bf16::to_f32(bits)), bits);
        }
        for i in 0..100_000u32 {
            let x = f32::from_bits(i.wrapping_mul(42_949));
            if !x.is_nan() {
                assert_eq!(Bf16::of_f32(x), bf16::from_f32(x).to_bits());
            }
        }
        // 1 + 2^-8 is a tie between two bf16; the smallest addend decides it.
        let (x, tiny) = (0x3f80u16, 0x0080u16);
        let near = bf16::from_f32(1.0 / 256.0).to_bits();
        let up = Bf16::of_f64(fma::<Bf16>(x, near, x));
        assert_eq!(up, 0x3f80);
        assert_eq!(Bf16::of_f64(fma::<Bf16>(0x3f88, 0x3f88, tiny)), {
            let exact = 1.0625f64 * 1.0625 + f64::from(Bf16::to_f32(tiny));
            bf16::from_f64(exact).to_bits()
        });
    }
}
