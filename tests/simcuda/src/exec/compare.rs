//! Comparisons and selections.

use super::half::{Bf16, F16, Half};
use super::lanes::{Flow, LANES, Lane, NONE, Op, Run, mask2};
use super::math::flush;
use super::warp::Warp;
use crate::lane_fn;
use crate::ptx::tree::{Instr, Ty};

/// `imm` of `set`: the result is a number, not a predicate.
pub const TO_U32: u64 = 1;
pub const TO_F32: u64 = 2;
/// How `setp` joins another predicate.
pub const JOINS: [&str; 3] = ["and", "or", "xor"];

/// `more`: second destination (or `NONE`), and how another predicate is joined, coded, where one is.
fn finish(op: &Op, w: &mut Warp, mask: u32) -> Flow {
    let (mut p, mut q) = (mask, !mask);
    if let [_, how, joined] = op.more[..] {
        let c = w.predicate(joined);
        let join = |x: u32| match how {
            0 => x & c,
            1 => x | c,
            _ => x ^ c,
        };
        (p, q) = (join(p), join(q));
    }
    if op.imm != 0 {
        let one = if op.imm == TO_F32 { 1.0f32.to_bits() } else { u32::MAX };
        let values: [u32; LANES] = std::array::from_fn(|l| if p >> l & 1 != 0 { one } else { 0 });
        w.put32(op.d, &values);
        return Flow::Next;
    }
    if op.d != NONE {
        w.put_predicate(op.d, p);
    }
    if let Some(second) = op.more.first().filter(|s| **s != NONE) {
        w.put_predicate(*second, q);
    }
    Flow::Next
}

#[inline(always)]
fn compare<T: Lane>(op: &Op, w: &mut Warp, f: impl Fn(T, T) -> bool) -> Flow {
    let mask = mask2(&T::get(w, op.a), &T::get(w, op.b), f);
    finish(op, w, mask)
}

macro_rules! ordered {
    ($t:ty, $cmp:expr) => {
        match $cmp {
            "eq" => lane_fn!(|op, w, env| compare::<$t>(op, w, |a, b| a == b)),
            "ne" => lane_fn!(|op, w, env| compare::<$t>(op, w, |a, b| a != b)),
            "lt" | "lo" => lane_fn!(|op, w, env| compare::<$t>(op, w, |a, b| a < b)),
            "le" | "ls" => lane_fn!(|op, w, env| compare::<$t>(op, w, |a, b| a <= b)),
            "gt" | "hi" => lane_fn!(|op, w, env| compare::<$t>(op, w, |a, b| a > b)),
            "ge" | "hs" => lane_fn!(|op, w, env| compare::<$t>(op, w, |a, b| a >= b)),
            _ => return None,
        }
    };
}

/// With floats, `ne` is false for NaN, and the forms that end in `u` are true for it.
macro_rules! floats {
    ($t:ty, $cmp:expr, $to:expr) => {
        match $cmp {
            "eq" => lane_fn!(|op, w, env| compare::<$t>(op, w, |a, b| $to(a) == $to(b))),
            "ne" => lane_fn!(|op, w, env| compare::<$t>(op, w, |a, b| $to(a) < $to(b) || $to(a) > $to(b))),
            "lt" => lane_fn!(|op, w, env| compare::<$t>(op, w, |a, b| $to(a) < $to(b))),
            "le" => lane_fn!(|op, w, env| compare::<$t>(op, w, |a, b| $to(a) <= $to(b))),
            "gt" => lane_fn!(|op, w, env| compare::<$t>(op, w, |a, b| $to(a) > $to(b))),
            "ge" => lane_fn!(|op, w, env| compare::<$t>(op, w, |a, b| $to(a) >= $to(b))),
            "equ" => lane_fn!(|op, w, env| compare::<$t>(op, w, |a, b| !($to(a) < $to(b) || $to(a) > $to(b)))),
            "neu" => lane_fn!(|op, w, env| compare::<$t>(op, w, |a, b| $to(a) != $to(b))),
            "ltu" => lane_fn!(|op, w, env| compare::<$t>(op, w, |a, b| !($to(a) >= $to(b)))),
            "leu" => lane_fn!(|op, w, env| compare::<$t>(op, w, |a, b| !($to(a) > $to(b)))),
            "gtu" => lane_fn!(|op, w, env| compare::<$t>(op, w, |a, b| !($to(a) <= $to(b)))),
            "geu" => lane_fn!(|op, w, env| compare::<$t>(op, w, |a, b| !($to(a) < $to(b)))),
            "num" => lane_fn!(|op, w, env| compare::<$t>(op, w, |a, b| $to(a) == $to(a) && $to(b) == $to(b))),
            "nan" => lane_fn!(|op, w, env| compare::<$t>(op, w, |a, b| $to(a) != $to(a) || $to(b) != $to(b))),
            _ => return None,
        }
    };
}

/// `setp` and `set`: `ty` is that of the operands.
#[allow(clippy::neg_cmp_op_on_partial_ord, clippy::eq_op, clippy::redundant_closure_call)]
pub fn compare_fn(instr: &Instr, ty: Ty) -> Option<Run> {
    let cmp = instr.parts.get(1)?.as_str();
    Some(match ty {
        Ty::U16 | Ty::B16 => ordered!(u16, cmp),
        Ty::S16 => ordered!(i16, cmp),
        Ty::U32 | Ty::B32 => ordered!(u32, cmp),
        Ty::S32 => ordered!(i32, cmp),
        Ty::U64 | Ty::B64 => ordered!(u64, cmp),
        Ty::S64 => ordered!(i64, cmp),
        Ty::F32 if instr.has("ftz") => floats!(f32, cmp, flush),
        Ty::F32 => floats!(f32, cmp, |x: f32| x),
        Ty::F64 => floats!(f64, cmp, |x: f64| x),
        Ty::F16 => floats!(u16, cmp, F16::to_f32),
        Ty::Bf16 => floats!(u16, cmp, Bf16::to_f32),
        _ => return None,
    })
}

/// `selp d, a, b, p`: `c` is the predicate, coded.
pub fn select(ty: Ty) -> Run {
    if ty.bytes() == 8 {
        lane_fn!(|op, w, env| {
            let (a, b, p) = (*w.wide(op.a), *w.wide(op.b), w.predicate(op.c));
            w.put64(op.d, &std::array::from_fn(|l| if p >> l & 1 != 0 { a[l] } else { b[l] }));
            Flow::Next
        })
    } else {
        lane_fn!(|op, w, env| {
            let (a, b, p) = (w.rows[op.a as usize].0, w.rows[op.b as usize].0, w.predicate(op.c));
            w.put32(op.d, &std::array::from_fn(|l| if p >> l & 1 != 0 { a[l] } else { b[l] }));
            Flow::Next
        })
    }
}

/// `slct d, a, b, c`: `a` where `c` is not negative.
pub fn select_by_sign(ty: Ty, by: Ty) -> Option<Run> {
    Some(match (ty.bytes(), by) {
        (8, Ty::S32) => crate::op3!(u64, u64, i32 => u64, |a, b, c| if c >= 0 { a } else { b }),
        (8, Ty::F32) => crate::op3!(u64, u64, f32 => u64, |a, b, c| if c >= 0.0 { a } else { b }),
        (_, Ty::S32) => crate::op3!(u32, u32, i32 => u32, |a, b, c| if c >= 0 { a } else { b }),
        (_, Ty::F32) => crate::op3!(u32, u32, f32 => u32, |a, b, c| if c >= 0.0 { a } else { b }),
        _ => return None,
    })
}

/// `testp`: what kind of float it is.
pub fn test(instr: &Instr, ty: Ty) -> Option<Run> {
    macro_rules! test {
        ($t:ty, $f:expr) => {
            lane_fn!(|op, w, env| {
                let a = <$t>::get(w, op.a);
                let mask = mask2(&a, &a, |x, _| $f(x));
                finish(op, w, mask)
            })
        };
    }
    macro_rules! kinds {
        ($t:ty) => {
            match instr.parts.get(1)?.as_str() {
                "finite" => test!($t, |x: $t| x.is_finite()),
                "infinite" => test!($t, |x: $t| x.is_infinite()),
                "number" => test!($t, |x: $t| !x.is_nan()),
                "notanumber" => test!($t, |x: $t| x.is_nan()),
                "normal" => test!($t, |x: $t| x.is_normal()),
                "subnormal" => test!($t, |x: $t| x.is_subnormal()),
                _ => return None,
            }
        };
    }
    Some(match ty {
        Ty::F32 => kinds!(f32),
        Ty::F64 => kinds!(f64),
        _ => return None,
    })
}
