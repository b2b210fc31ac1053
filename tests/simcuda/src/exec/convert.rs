//! `cvt`: common pairs of types have functions of their own, the others one that goes through i128 and f64, which hold
//! every value exactly.

use super::half::{Bf16, F16, Half};
use super::lanes::{Flow, LANES, NONE, Op, Run};
use super::math::{Round, canonical, direct, flush, maximum, narrow, saturate};
use super::warp::Warp;
use crate::lane_fn;
use crate::ptx::tree::{Instr, Ty};
use crate::{op1, op2};

const TYPES: [Ty; 15] = [
    Ty::U8,
    Ty::S8,
    Ty::U16,
    Ty::S16,
    Ty::U32,
    Ty::S32,
    Ty::U64,
    Ty::S64,
    Ty::F16,
    Ty::Bf16,
    Ty::F32,
    Ty::F64,
    Ty::B8,
    Ty::B16,
    Ty::Tf32,
];

const SAT: u64 = 1 << 24;
const FTZ: u64 = 1 << 25;
const RELU: u64 = 1 << 26;
/// Registers of 64 bits.
const WIDE_FROM: u64 = 1 << 27;
const WIDE_TO: u64 = 1 << 28;

/// The function, and `imm` for it.
pub fn convert(instr: &Instr, wide_from: bool, wide_to: bool) -> Option<(Run, u64)> {
    let [to, from] = instr.types()[..] else { return None };
    let has = |m: &str| instr.has(m);
    let plain = !has("sat") && !has("ftz") && !has("relu") && !has("satfinite");
    let nearest = !has("rz") && !has("rm") && !has("rp");
    let only_sat = has("sat") && !has("ftz") && !has("relu") && nearest;
    let fast = match (to, from) {
        (Ty::F32, Ty::F32) if only_sat && !has("rni") => Some(op1!(f32 => f32, saturate)),
        _ if !plain => None,
        (Ty::F32, Ty::F32) if has("rni") => Some(op1!(f32 => f32, |a| canonical(a.round_ties_even()))),
        (Ty::F32, Ty::F32) if has("rzi") => Some(op1!(f32 => f32, |a| canonical(a.trunc()))),
        (Ty::F32, Ty::F32) if has("rmi") => Some(op1!(f32 => f32, |a| canonical(a.floor()))),
        (Ty::F64, Ty::S32) => Some(op1!(i32 => f64, f64::from)),
        (Ty::Bf16, Ty::F32) if nearest => Some(op1!(f32 => u16, Bf16::of_f32)),
        (Ty::F16, Ty::F32) if nearest => Some(op1!(f32 => u16, F16::of_f32)),
        (Ty::F32, Ty::Bf16) => Some(op1!(u16 => f32, |a| canonical(Bf16::to_f32(a)))),
        (Ty::F32, Ty::F16) => Some(op1!(u16 => f32, |a| canonical(F16::to_f32(a)))),
        (Ty::F64, Ty::F32) => Some(op1!(f32 => f64, f64::from)),
        (Ty::F32, Ty::F64) if nearest => Some(op1!(f64 => f32, |a| canonical(a as f32))),
        (Ty::F32, Ty::S32) if nearest => Some(op1!(i32 => f32, |a| a as f32)),
        (Ty::F32, Ty::U32) if nearest => Some(op1!(u32 => f32, |a| a as f32)),
        (Ty::S32, Ty::F32) if has("rzi") => Some(op1!(f32 => i32, |a| a as i32)),
        (Ty::S64, Ty::S32) => Some(op1!(i32 => i64, i64::from)),
        (Ty::U64, Ty::U32) => Some(op1!(u32 => u64, u64::from)),
        (Ty::U32 | Ty::S32, Ty::U64 | Ty::S64) => Some(op1!(u64 => u32, |a| a as u32)),
        (Ty::U32 | Ty::S32, Ty::U16) => Some(op1!(u16 => u32, u32::from)),
        (Ty::U16 | Ty::S16, Ty::U32 | Ty::S32) if !wide_to => Some(op1!(u32 => u16, |a| a as u16)),
        (Ty::Tf32, Ty::F32) if has("rna") => Some(op1!(f32 => u32, |a| a.to_bits().wrapping_add(0x1000) & !0x1fff)),
        (Ty::Tf32, Ty::F32) => {
            Some(op1!(f32 => u32, |a| a.to_bits().wrapping_add(0xfff + (a.to_bits() >> 13 & 1)) & !0x1fff))
        }
        _ => None,
    };
    let ends = (wide_from == (from.bytes() == 8)) && (wide_to == (to.bytes() == 8));
    if let Some(run) = fast.filter(|_| ends) {
        return Some((run, 0));
    }
    let code = |t: Ty| TYPES.iter().position(|x| *x == t).map(|i| i as u64);
    let round = match () {
        () if has("rzi") || has("rz") => 1,
        () if has("rmi") || has("rm") => 2,
        () if has("rpi") || has("rp") => 3,
        () => 0,
    };
    let integral = u64::from(["rni", "rzi", "rmi", "rpi"].iter().any(|r| has(r)));
    let flag = |on: bool, bit: u64| if on { bit } else { 0 };
    let imm = code(to)? | code(from)? << 8 | round << 16 | integral << 20;
    let imm = imm | flag(has("sat"), SAT) | flag(has("ftz"), FTZ) | flag(has("relu"), RELU);
    let imm = imm | flag(wide_from, WIDE_FROM) | flag(wide_to, WIDE_TO);
    Some((lane_fn!(|op, w, env| any(op, w)), imm))
}

enum Value {
    Int(i128),
    Float(f64),
}

fn any(op: &Op, w: &mut Warp) -> Flow {
    let (to, from) = (TYPES[(op.imm & 255) as usize], TYPES[(op.imm >> 8 & 255) as usize]);
    let raw: [u64; LANES] =
        if op.imm & WIDE_FROM != 0 { *w.wide(op.a) } else { w.rows[op.a as usize].0.map(u64::from) };
    let out = raw.map(|x| one(x, to, from, op.imm));
    if op.imm & WIDE_TO != 0 {
        w.put64(op.d, &out);
    } else if to.bytes() <= 2 && op.c == 2 {
        // The rest of a 16-bit register's lane is zero.
        w.put32(op.d, &out.map(|x| x as u32 & 0xffff));
    } else {
        w.put32(op.d, &out.map(|x| x as u32));
    }
    Flow::Next
}

fn one(raw: u64, to: Ty, from: Ty, imm: u64) -> u64 {
    let value = match from {
        Ty::U8 | Ty::B8 => Value::Int(i128::from(raw as u8)),
        Ty::S8 => Value::Int(i128::from(raw as i8)),
        Ty::U16 | Ty::B16 => Value::Int(i128::from(raw as u16)),
        Ty::S16 => Value::Int(i128::from(raw as i16)),
        Ty::U32 => Value::Int(i128::from(raw as u32)),
        Ty::S32 => Value::Int(i128::from(raw as i32)),
        Ty::U64 => Value::Int(i128::from(raw)),
        Ty::S64 => Value::Int(i128::from(raw as i64)),
        Ty::F16 => Value::Float(f64::from(F16::to_f32(raw as u16))),
        Ty::Bf16 => Value::Float(f64::from(Bf16::to_f32(raw as u16))),
        Ty::F64 => Value::Float(f64::from_bits(raw)),
        _ => {
            let x = f32::from_bits(raw as u32);
            Value::Float(f64::from(if imm & FTZ != 0 { flush(x) } else { x }))
        }
    };
    let round = match imm >> 16 & 15 {
        1 => Round::Zero,
        2 => Round::Down,
        3 => Round::Up,
        _ => Round::Nearest,
    };
    if to.float() { to_float(value, to, round, imm) } else { to_int(value, to, round, imm) }
}

fn to_float(value: Value, to: Ty, round: Round, imm: u64) -> u64 {
    let (mut x, rest) = match value {
        // An i64 has more bits than an f64: what the rounding lost is kept.
        Value::Int(i) => (i as f64, (i - (i as f64) as i128) as f64),
        Value::Float(x) => (x, 0.0),
    };
    if imm >> 20 & 1 != 0 {
        x = integral(x, round);
    }
    if imm & SAT != 0 {
        x = if x.is_nan() { 0.0 } else { x.clamp(0.0, 1.0) };
    }
    if imm & RELU != 0 && !x.is_nan() {
        x = x.max(0.0);
    }
    match to {
        Ty::F64 => direct(x, rest, round).to_bits(),
        Ty::F16 => u64::from(toward::<F16>(x, round)),
        Ty::Bf16 => u64::from(toward::<Bf16>(x, round)),
        _ => {
            // Both roundings of a wide integer are one where the first is to odd.
            let odd = if rest != 0.0 && round == Round::Nearest { (x.to_bits() | 1).max(1) } else { x.to_bits() };
            let f = canonical(narrow(f64::from_bits(odd), rest, round));
            u64::from(if imm & FTZ != 0 { flush(f) } else { f }.to_bits())
        }
    }
}

/// A 16-bit float in a direction: the nearest one, moved where it lies on the wrong side.
fn toward<H: Half>(x: f64, round: Round) -> u16 {
    let near = H::of_f64(x);
    let value = f64::from(H::to_f32(near));
    let down = value > x && (round == Round::Down || round == Round::Zero && x > 0.0);
    let up = value < x && (round == Round::Up || round == Round::Zero && x < 0.0);
    // Bits of a float count its magnitude.
    match (down || up, value > 0.0 || value == 0.0 && up) {
        (false, _) => near,
        (true, positive) if positive == up => ((near & 0x7fff) + 1) | (near & 0x8000),
        (true, _) if near & 0x7fff == 0 => 0x8001,
        (true, _) => near - 1,
    }
}

fn integral(x: f64, round: Round) -> f64 {
    match round {
        Round::Nearest => x.round_ties_even(),
        Round::Zero => x.trunc(),
        Round::Down => x.floor(),
        Round::Up => x.ceil(),
    }
}

fn to_int(value: Value, to: Ty, round: Round, imm: u64) -> u64 {
    let bits = 8 * to.bytes() as u32;
    let (low, high) =
        if to.signed() { (-(1i128 << (bits - 1)), (1i128 << (bits - 1)) - 1) } else { (0, (1i128 << bits) - 1) };
    let x = match value {
        // Floats are brought into the range always, NaN is zero.
        Value::Float(x) => (integral(x, round) as i128).clamp(low, high),
        Value::Int(i) if imm & SAT != 0 => i.clamp(low, high),
        Value::Int(i) => i,
    };
    // Cut to the type and extended to the register.
    let shift = 64 - bits;
    if to.signed() { (((x as u64) << shift) as i64 >> shift) as u64 } else { x as u64 & high as u64 }
}

/// `cvt.rn.bf16x2.f32 d, a, b`: `a` becomes the upper half.
pub fn pack(instr: &Instr, to: Ty) -> Option<Run> {
    let relu = instr.has("relu");
    if instr.has("rz") {
        return None;
    }
    Some(match (to, relu) {
        (Ty::Bf16x2, false) => {
            op2!(f32 => u32, |a, b| u32::from(Bf16::of_f32(a)) << 16 | u32::from(Bf16::of_f32(b)))
        }
        (Ty::F16x2, false) => op2!(f32 => u32, |a, b| u32::from(F16::of_f32(a)) << 16 | u32::from(F16::of_f32(b))),
        (Ty::Bf16x2, true) => op2!(f32 => u32, |a, b| {
            let r = |x: f32| u32::from(Bf16::of_f32(maximum(x, 0.0, true)));
            r(a) << 16 | r(b)
        }),
        (Ty::F16x2, true) => op2!(f32 => u32, |a, b| {
            let r = |x: f32| u32::from(F16::of_f32(maximum(x, 0.0, true)));
            r(a) << 16 | r(b)
        }),
        _ => return None,
    })
}

/// `mov` of one value between registers of 64 bits, and of others.
pub fn copy(wide: bool) -> Run {
    if wide { op1!(u64 => u64, |a| a) } else { op1!(u32 => u32, |a| a) }
}

/// `mov d, {a, b, ..}`: the parts' rows in `more`, `imm` the bits of each part.
pub fn join() -> Run {
    lane_fn!(|op, w, env| {
        let mut out = [0u64; LANES];
        for (i, row) in op.more.iter().enumerate() {
            let values = w.rows[*row as usize].0;
            for l in 0..LANES {
                let part = u64::from(values[l]) & (u64::MAX >> (64 - op.imm));
                out[l] |= part << (i as u64 * op.imm);
            }
        }
        if op.more.len() as u64 * op.imm == 64 {
            w.put64(op.d, &out);
        } else {
            w.put32(op.d, &out.map(|x| x as u32));
        }
        Flow::Next
    })
}

/// `mov {a, b, ..}, d`.
pub fn split() -> Run {
    lane_fn!(|op, w, env| {
        let raw: [u64; LANES] =
            if op.more.len() as u64 * op.imm == 64 { *w.wide(op.a) } else { w.rows[op.a as usize].0.map(u64::from) };
        for (i, row) in op.more.iter().enumerate().filter(|r| *r.1 != NONE) {
            let part = raw.map(|x| (x >> (i as u64 * op.imm) & (u64::MAX >> (64 - op.imm))) as u32);
            w.put32(*row, &part);
        }
        Flow::Next
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directed_halves_lie_on_their_side() {
        for i in 0..2000 {
            let x = (f64::from(i) - 1000.0) * 0.137_31;
            for round in [Round::Down, Round::Up, Round::Zero] {
                let y = f64::from(Bf16::to_f32(toward::<Bf16>(x, round)));
                match round {
                    Round::Down => assert!(y <= x && x - y <= x.abs() / 128.0),
                    Round::Up => assert!(y >= x && y - x <= x.abs() / 128.0),
                    _ => assert!(y.abs() <= x.abs() && (x - y).abs() <= x.abs() / 128.0),
                }
            }
        }
    }

    #[test]
    fn floats_become_integers_within_range() {
        let to = |x: f32, t: Ty| to_int(Value::Float(f64::from(x)), t, Round::Zero, 0);
        assert_eq!(to(-3.7, Ty::S32) as i64, -3);
        assert_eq!(to(-3.7, Ty::U32), 0);
        assert_eq!(to(1e20, Ty::S32), i32::MAX as u64);
        assert_eq!(to(f32::NAN, Ty::S64), 0);
        assert_eq!(to_int(Value::Int(300), Ty::U8, Round::Zero, 0), 44);
        assert_eq!(to_int(Value::Int(200), Ty::S8, Round::Zero, 0) as i64, -56);
    }
}
