//! Arithmetic of f32 and f64.

use super::lanes::Run;
use super::math::{
    NAN, Round, canonical, direct, exp2_or_nan, flush, log2, maximum, minimum, narrow, saturate, tanh, two_sum,
};
use crate::ptx::tree::{Instr, Ty};
use crate::{op1, op2, op3};

fn round(instr: &Instr) -> Round {
    match () {
        () if instr.has("rz") => Round::Zero,
        () if instr.has("rm") => Round::Down,
        () if instr.has("rp") => Round::Up,
        () => Round::Nearest,
    }
}

/// A sum, product or fused product of f32 in f64 with its rest, for directed rounding.
#[inline(always)]
fn fma_directed(a: f32, b: f32, c: f32, round: Round) -> f32 {
    let (sum, rest) = two_sum(f64::from(a) * f64::from(b), f64::from(c));
    canonical(narrow(sum, rest, round))
}

#[inline(always)]
fn fma64(a: f64, b: f64, c: f64, round: Round) -> f64 {
    let near = a.mul_add(b, c);
    // The product and its rest, then the sum's rest: exact but for extreme exponents.
    let p = a * b;
    let low = a.mul_add(b, -p);
    let (s, rest) = two_sum(p, c);
    direct(near, (s - near) + (rest + low), round)
}

/// `$f` with and without flushing of subnormals and saturation.
macro_rules! forms1 {
    ($instr:expr, $f:expr) => {
        match ($instr.has("ftz"), $instr.has("sat")) {
            (false, false) => op1!(f32 => f32, $f),
            (true, false) => op1!(f32 => f32, |a| flush(($f)(flush(a)))),
            (false, true) => op1!(f32 => f32, |a| saturate(($f)(a))),
            (true, true) => op1!(f32 => f32, |a| saturate(($f)(flush(a)))),
        }
    };
}

macro_rules! forms2 {
    ($instr:expr, $f:expr) => {
        match ($instr.has("ftz"), $instr.has("sat")) {
            (false, false) => op2!(f32 => f32, $f),
            (true, false) => op2!(f32 => f32, |a, b| flush(($f)(flush(a), flush(b)))),
            (false, true) => op2!(f32 => f32, |a, b| saturate(($f)(a, b))),
            (true, true) => op2!(f32 => f32, |a, b| saturate(($f)(flush(a), flush(b)))),
        }
    };
}

macro_rules! forms3 {
    ($instr:expr, $f:expr) => {
        match ($instr.has("ftz"), $instr.has("sat")) {
            (false, false) => op3!(f32 => f32, $f),
            (true, false) => op3!(f32 => f32, |a, b, c| flush(($f)(flush(a), flush(b), flush(c)))),
            (false, true) => op3!(f32 => f32, |a, b, c| saturate(($f)(a, b, c))),
            (true, true) => op3!(f32 => f32, |a, b, c| saturate(($f)(flush(a), flush(b), flush(c)))),
        }
    };
}

macro_rules! directed {
    ($instr:expr, $forms:ident, |$($x:ident),*| $r:ident => $e:expr) => {
        match round($instr) {
            Round::Down => $forms!($instr, |$($x: f32),*| { const $r: Round = Round::Down; $e }),
            Round::Up => $forms!($instr, |$($x: f32),*| { const $r: Round = Round::Up; $e }),
            _ => $forms!($instr, |$($x: f32),*| { const $r: Round = Round::Zero; $e }),
        }
    };
}

pub fn binary(instr: &Instr, ty: Ty) -> Option<Run> {
    let opcode = instr.parts[0].as_str();
    if ty == Ty::F64 {
        return binary64(instr);
    }
    let nan = instr.has("NaN");
    let nearest = round(instr) == Round::Nearest;
    Some(match opcode {
        "add" if nearest => forms2!(instr, |a: f32, b: f32| a + b),
        "sub" if nearest => forms2!(instr, |a: f32, b: f32| a - b),
        "mul" if nearest => forms2!(instr, |a: f32, b: f32| a * b),
        "add" => directed!(instr, forms2, |a, b| R => fma_directed(a, 1.0, b, R)),
        "sub" => directed!(instr, forms2, |a, b| R => fma_directed(b, -1.0, a, R)),
        "mul" => directed!(instr, forms2, |a, b| R => canonical(narrow(f64::from(a) * f64::from(b), 0.0, R))),
        "div" if nearest => forms2!(instr, |a: f32, b: f32| a / b),
        "div" => directed!(instr, forms2, |a, b| R => {
            let q = f64::from(a) / f64::from(b);
            let rest = (-q).mul_add(f64::from(b), f64::from(a)) * f64::from(b).signum();
            canonical(narrow(q, rest, R))
        }),
        "min" | "max" if instr.has("xorsign") => {
            // The smaller or larger magnitude, with the product of the signs.
            if opcode == "min" {
                op2!(f32 => f32, |a, b| minimum(a.abs(), b.abs(), false).copysign(f32::from_bits(a.to_bits() ^ b.to_bits())))
            } else {
                op2!(f32 => f32, |a, b| maximum(a.abs(), b.abs(), false).copysign(f32::from_bits(a.to_bits() ^ b.to_bits())))
            }
        }
        "min" if nan => forms2!(instr, |a: f32, b: f32| minimum(a, b, true)),
        "max" if nan => forms2!(instr, |a: f32, b: f32| maximum(a, b, true)),
        "min" => forms2!(instr, |a: f32, b: f32| minimum(a, b, false)),
        "max" => forms2!(instr, |a: f32, b: f32| maximum(a, b, false)),
        // The sign of the first operand on the magnitude of the second.
        "copysign" => op2!(f32 => f32, |a, b| b.copysign(a)),
        _ => return None,
    })
}

fn binary64(instr: &Instr) -> Option<Run> {
    let r = round(instr);
    macro_rules! by_round {
        (|$a:ident, $b:ident| $r:ident => $e:expr) => {
            match r {
                Round::Nearest => op2!(f64 => f64, |$a, $b| { const $r: Round = Round::Nearest; $e }),
                Round::Zero => op2!(f64 => f64, |$a, $b| { const $r: Round = Round::Zero; $e }),
                Round::Down => op2!(f64 => f64, |$a, $b| { const $r: Round = Round::Down; $e }),
                Round::Up => op2!(f64 => f64, |$a, $b| { const $r: Round = Round::Up; $e }),
            }
        };
    }
    Some(match instr.parts[0].as_str() {
        "add" if r == Round::Nearest => op2!(f64 => f64, |a, b| a + b),
        "sub" if r == Round::Nearest => op2!(f64 => f64, |a, b| a - b),
        "mul" if r == Round::Nearest => op2!(f64 => f64, |a, b| a * b),
        "add" => by_round!(|a, b| R => { let (s, e) = two_sum(a, b); direct(s, e, R) }),
        "sub" => by_round!(|a, b| R => { let (s, e) = two_sum(a, -b); direct(s, e, R) }),
        "mul" => by_round!(|a, b| R => { let p = a * b; direct(p, a.mul_add(b, -p), R) }),
        "div" => by_round!(|a, b| R => { let q = a / b; direct(q, (-q).mul_add(b, a) * b.signum(), R) }),
        "min" => op2!(f64 => f64, |a, b| a.min(b)),
        "max" => op2!(f64 => f64, |a, b| a.max(b)),
        "copysign" => op2!(f64 => f64, |a, b| b.copysign(a)),
        _ => return None,
    })
}

pub fn ternary(instr: &Instr, ty: Ty) -> Option<Run> {
    if !matches!(instr.parts[0].as_str(), "fma" | "mad") {
        return None;
    }
    Some(match (ty, round(instr)) {
        (Ty::F64, Round::Nearest) => op3!(f64 => f64, |a, b, c| a.mul_add(b, c)),
        (Ty::F64, Round::Zero) => op3!(f64 => f64, |a, b, c| fma64(a, b, c, Round::Zero)),
        (Ty::F64, Round::Down) => op3!(f64 => f64, |a, b, c| fma64(a, b, c, Round::Down)),
        (Ty::F64, Round::Up) => op3!(f64 => f64, |a, b, c| fma64(a, b, c, Round::Up)),
        (Ty::F32, Round::Nearest) => forms3!(instr, |a: f32, b: f32, c: f32| a.mul_add(b, c)),
        (Ty::F32, _) => directed!(instr, forms3, |a, b, c| R => fma_directed(a, b, c, R)),
        _ => return None,
    })
}

/// Rounds a function's value in f64, whose error is below the rest of an f32, in the instruction's direction.
macro_rules! rounded1 {
    ($instr:expr, $f:expr) => {
        match round($instr) {
            Round::Nearest => forms1!($instr, |a: f32| canonical($f(f64::from(a)) as f32)),
            _ => directed!($instr, forms1, |a| R => canonical(narrow($f(f64::from(a)), 0.0, R))),
        }
    };
}

pub fn unary(instr: &Instr, ty: Ty) -> Option<Run> {
    let opcode = instr.parts[0].as_str();
    if ty == Ty::F64 {
        return Some(match opcode {
            "neg" => op1!(f64 => f64, |a| -a),
            "abs" => op1!(f64 => f64, |a| a.abs()),
            "sqrt" => op1!(f64 => f64, |a| a.sqrt()),
            "rsqrt" => op1!(f64 => f64, |a| 1.0 / a.sqrt()),
            // `rcp.approx.ftz.f64` keeps 20 bits of the mantissa, from which NVRTC's division goes on.
            "rcp" if instr.has("approx") => {
                op1!(f64 => f64, |a| f64::from_bits((1.0 / a).to_bits() & 0xffff_ffff_0000_0000))
            }
            "rcp" => op1!(f64 => f64, |a| 1.0 / a),
            _ => return None,
        });
    }
    Some(match opcode {
        "neg" => forms1!(instr, |a: f32| -a),
        "abs" => forms1!(instr, |a: f32| a.abs()),
        "sqrt" => rounded1!(instr, |a: f64| a.sqrt()),
        "rsqrt" => forms1!(instr, |a: f32| canonical((1.0 / f64::from(a).sqrt()) as f32)),
        "rcp" => rounded1!(instr, |a: f64| 1.0 / a),
        "ex2" => forms1!(instr, exp2_or_nan),
        "lg2" => forms1!(instr, log2),
        "sin" => forms1!(instr, |a: f32| if a.is_finite() { f64::from(a).sin() as f32 } else { NAN }),
        "cos" => forms1!(instr, |a: f32| if a.is_finite() { f64::from(a).cos() as f32 } else { NAN }),
        "tanh" => forms1!(instr, tanh),
        _ => return None,
    })
}
