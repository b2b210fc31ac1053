//! What lanes of a warp exchange: shuffles, votes, reductions.

use super::env::Env;
use super::lanes::{Flow, LANES, NONE, Op, Run};
use super::warp::Warp;
use crate::check::fault::Kind;
use crate::lane_fn;
use crate::ptx::tree::{Instr, Ty};

/// Faults where lanes that the mask names are alive and not here.
fn gathered(op: &Op, w: &Warp, env: &mut Env, row: u32) -> bool {
    let masks = &w.rows[row as usize].0;
    for l in (0..LANES).filter(|l| w.exec >> l & 1 != 0) {
        let missing = masks[l] & w.live & !w.exec;
        if masks[l] >> l & 1 == 0 || missing != 0 {
            let message = if missing != 0 {
                format!("the mask {:#010x} names lanes {missing:#010x}, which are elsewhere", masks[l])
            } else {
                format!("the mask {:#010x} does not name the lane itself", masks[l])
            };
            env.fail(op, 1 << l, Kind::DivergentBarrier, message);
            return false;
        }
    }
    true
}

const UP: u64 = 0;
const DOWN: u64 = 1;
const BUTTERFLY: u64 = 2;

/// `a` value, `b` lane or distance, `c` clamp and segment; `more`: predicate (or `NONE`), row of the mask (or `NONE`).
/// The source lane is as in the PTX ISA, 9.7.9.6.
fn shuffle(op: &Op, w: &mut Warp, env: &mut Env) -> Flow {
    if op.more[1] != NONE && !gathered(op, w, env, op.more[1]) {
        return Flow::Fault;
    }
    let row = |r: u32| &w.rows[r as usize].0;
    let (a, b, c) = (*row(op.a), *row(op.b), *row(op.c));
    let (mut out, mut good) = ([0u32; LANES], 0u32);
    for l in 0..LANES as u32 {
        let i = l as usize;
        let (by, clamp, segment) = (b[i] & 31, c[i] & 31, c[i] >> 8 & 31);
        let most = l & segment | clamp & !segment;
        let least = l & segment;
        let (from, inside) = match op.imm {
            UP => (l.wrapping_sub(by), l as i32 - by as i32 >= most as i32),
            DOWN => (l + by, l + by <= most),
            BUTTERFLY => (l ^ by, l ^ by <= most),
            _ => (least | by & !segment, least | by & !segment <= most),
        };
        let from = if inside { from } else { l };
        good |= u32::from(inside) << l;
        out[i] = a[from as usize & 31];
        if w.exec >> l & 1 != 0 && w.exec >> from & 1 == 0 {
            let message = format!("a shuffle reads lane {from}, which takes no part");
            env.fail(op, 1 << l, Kind::DivergentBarrier, message);
            return Flow::Fault;
        }
    }
    w.put32(op.d, &out);
    if op.more[0] != NONE {
        w.put_predicate(op.more[0], good);
    }
    Flow::Next
}

pub fn shuffle_fn(instr: &Instr) -> Option<(Run, u64)> {
    let mode = match () {
        () if instr.has("up") => UP,
        () if instr.has("down") => DOWN,
        () if instr.has("bfly") => BUTTERFLY,
        () if instr.has("idx") => 3,
        () => return None,
    };
    Some((lane_fn!(|op, w, env| shuffle(op, w, env)), mode))
}

/// `a` is a coded predicate, `c` the row of the mask (or `NONE`); `d` a predicate, for `ballot` a row.
pub fn vote_fn(instr: &Instr) -> Option<Run> {
    macro_rules! vote {
        ($f:expr) => {
            lane_fn!(|op, w, env| {
                if op.c != NONE && !gathered(op, w, env, op.c) {
                    return Flow::Fault;
                }
                let (yes, all) = (w.predicate(op.a) & w.exec, w.exec);
                let result: bool = $f(yes, all);
                w.put_predicate(op.d, if result { u32::MAX } else { 0 });
                Flow::Next
            })
        };
    }
    Some(match () {
        () if instr.has("all") => vote!(|yes, all| yes == all),
        () if instr.has("any") => vote!(|yes, _| yes != 0),
        () if instr.has("uni") => vote!(|yes, all| yes == all || yes == 0),
        () if instr.has("ballot") => lane_fn!(|op, w, env| {
            if op.c != NONE && !gathered(op, w, env, op.c) {
                return Flow::Fault;
            }
            let yes = w.predicate(op.a) & w.exec;
            w.put32(op.d, &[yes; LANES]);
            Flow::Next
        }),
        () => return None,
    })
}

/// `redux.sync`: `c` is the row of the mask.
pub fn redux_fn(instr: &Instr, ty: Ty) -> Option<Run> {
    macro_rules! reduce {
        ($t:ty, $f:expr) => {
            lane_fn!(|op, w, env| {
                if !gathered(op, w, env, op.c) {
                    return Flow::Fault;
                }
                let a = w.rows[op.a as usize].0;
                let lanes = (0..LANES).filter(|l| w.exec >> l & 1 != 0).map(|l| a[l] as $t);
                let result = lanes.reduce($f).unwrap_or(0) as u32;
                w.put32(op.d, &[result; LANES]);
                Flow::Next
            })
        };
    }
    Some(match (instr.parts.get(2)?.as_str(), ty) {
        ("add", _) => reduce!(u32, |x, y| x.wrapping_add(y)),
        ("and", _) => reduce!(u32, |x, y| x & y),
        ("or", _) => reduce!(u32, |x, y| x | y),
        ("xor", _) => reduce!(u32, |x, y| x ^ y),
        ("min", Ty::U32) => reduce!(u32, |x, y| x.min(y)),
        ("max", Ty::U32) => reduce!(u32, |x, y| x.max(y)),
        ("min", Ty::S32) => reduce!(i32, |x, y| x.min(y)),
        ("max", Ty::S32) => reduce!(i32, |x, y| x.max(y)),
        _ => return None,
    })
}

/// `match.any.sync` and `match.all.sync`: `c` is the row of the mask; `imm` the bytes of the value, plus 16 for `all`;
/// `more` the predicate of `all`.
pub fn match_fn() -> Run {
    lane_fn!(|op, w, env| {
        if !gathered(op, w, env, op.c) {
            return Flow::Fault;
        }
        let wide = op.imm & 15 == 8;
        let values: [u64; LANES] = if wide { *w.wide(op.a) } else { w.rows[op.a as usize].0.map(u64::from) };
        let alike = |l: usize| {
            (0..LANES).filter(|k| w.exec >> k & 1 != 0 && values[*k] == values[l]).fold(0u32, |m, k| m | 1 << k)
        };
        let mut out: [u32; LANES] = std::array::from_fn(alike);
        if op.imm & 16 != 0 {
            let first = w.exec.trailing_zeros() as usize;
            let all = out[first] == w.exec;
            out = [if all { w.exec } else { 0 }; LANES];
            if op.more[0] != NONE {
                w.put_predicate(op.more[0], if all { u32::MAX } else { 0 });
            }
        }
        w.put32(op.d, &out);
        Flow::Next
    })
}

/// `elect.sync d|p`: `more` the predicate, `a` the row of the mask.
pub fn elect_fn() -> Run {
    lane_fn!(|op, w, env| {
        if !gathered(op, w, env, op.a) {
            return Flow::Fault;
        }
        let first = w.exec.trailing_zeros();
        w.put32(op.d, &[first; LANES]);
        w.put_predicate(op.more[0], 1 << first);
        Flow::Next
    })
}

/// `bar.warp.sync`: `a` is the row of the mask.
pub fn sync_fn() -> Run {
    lane_fn!(|op, w, env| {
        if !gathered(op, w, env, op.a) {
            return Flow::Fault;
        }
        if let Some(races) = &mut env.shared.races {
            races.tick(env.warp as usize);
        }
        Flow::Next
    })
}

pub fn active_fn() -> Run {
    lane_fn!(|op, w, env| {
        let active = w.exec;
        w.put32(op.d, &[active; LANES]);
        Flow::Next
    })
}
