//! `atom` and `red`: lanes one after the other, in their order.

use super::env::{Env, addresses};
use super::lanes::{Flow, LANES, NONE, Op, Run};
use super::memory::{GENERIC, GLOBAL, SHARED, WIDE_ADDRESS, specific, unaligned, within};
use super::warp::Warp;
use crate::check::fault::Kind;
use crate::check::races::How;
use crate::lane_fn;
use crate::ptx::tree::Ty;
use half::{bf16, f16};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    Add,
    Min,
    Max,
    And,
    Or,
    Xor,
    Inc,
    Dec,
    Exch,
    Cas,
}

const CHANGES: [(&str, Change); 10] = [
    ("add", Change::Add),
    ("min", Change::Min),
    ("max", Change::Max),
    ("and", Change::And),
    ("or", Change::Or),
    ("xor", Change::Xor),
    ("inc", Change::Inc),
    ("dec", Change::Dec),
    ("exch", Change::Exch),
    ("cas", Change::Cas),
];

const TYPES: [Ty; 15] = [
    Ty::U32,
    Ty::S32,
    Ty::U64,
    Ty::S64,
    Ty::F32,
    Ty::F64,
    Ty::F16,
    Ty::F16x2,
    Ty::Bf16,
    Ty::Bf16x2,
    Ty::B32,
    Ty::B64,
    Ty::B16,
    Ty::U16,
    Ty::S16,
];

impl Change {
    pub fn parse(word: &str) -> Option<u64> {
        CHANGES.iter().position(|c| c.0 == word).map(|i| i as u64)
    }
}

/// `imm` of an operation: what is done, the type, the space.
pub fn pack(change: u64, ty: Ty, space: u8) -> Option<u64> {
    let ty = TYPES.iter().position(|t| *t == ty)? as u64;
    Some(change | ty << 8 | u64::from(space) << 16)
}

/// What is in memory afterwards.
fn change(what: Change, ty: Ty, old: u64, b: u64, c: u64) -> u64 {
    let halves = |f: &dyn Fn(u16, u16) -> u16| {
        let low = f(old as u16, b as u16);
        let high = f((old >> 16) as u16, (b >> 16) as u16);
        u64::from(low) | u64::from(high) << 16
    };
    let f16_add = |x: u16, y: u16| f16::from_f32(f16::from_bits(x).to_f32() + f16::from_bits(y).to_f32()).to_bits();
    let bf16_add = |x: u16, y: u16| bf16::from_f32(bf16::from_bits(x).to_f32() + bf16::from_bits(y).to_f32()).to_bits();
    match (what, ty) {
        (Change::Exch, _) => b,
        (Change::Cas, _) => {
            if old == b {
                c
            } else {
                old
            }
        }
        (Change::And, _) => old & b,
        (Change::Or, _) => old | b,
        (Change::Xor, _) => old ^ b,
        (Change::Inc, _) => u64::from(if old as u32 >= b as u32 { 0 } else { old as u32 + 1 }),
        (Change::Dec, _) => {
            let (old, b) = (old as u32, b as u32);
            u64::from(if old == 0 || old > b { b } else { old - 1 })
        }
        (Change::Add, Ty::F32) => u64::from((f32::from_bits(old as u32) + f32::from_bits(b as u32)).to_bits()),
        (Change::Add, Ty::F64) => (f64::from_bits(old) + f64::from_bits(b)).to_bits(),
        (Change::Add, Ty::F16) => u64::from(f16_add(old as u16, b as u16)),
        (Change::Add, Ty::Bf16) => u64::from(bf16_add(old as u16, b as u16)),
        (Change::Add, Ty::F16x2) => halves(&f16_add),
        (Change::Add, Ty::Bf16x2) => halves(&bf16_add),
        (Change::Add, _) => old.wrapping_add(b),
        (Change::Min, Ty::S32) => u64::from((old as i32).min(b as i32) as u32),
        (Change::Max, Ty::S32) => u64::from((old as i32).max(b as i32) as u32),
        (Change::Min, Ty::S64) => (old as i64).min(b as i64) as u64,
        (Change::Max, Ty::S64) => (old as i64).max(b as i64) as u64,
        (Change::Min, _) => old.min(b),
        (Change::Max, _) => old.max(b),
    }
}

/// `d` takes the old values (`NONE` for `red`); `a` the address with the offset `more[0]`; `b`, `c` the operands.
fn atomic(op: &Op, w: &mut Warp, env: &mut Env) -> Flow {
    let what = CHANGES[(op.imm & 0xff) as usize].1;
    let ty = TYPES[(op.imm >> 8 & 0xff) as usize];
    let bytes = ty.bytes();
    let offset = i64::from(op.more[0] as i32) as u64;
    let mut at = addresses(w, op.a, op.more[1] & WIDE_ADDRESS != 0, offset);
    let mut space = (op.imm >> 16) as u8;
    if space == GENERIC {
        let Some(found) = specific(op, w, env, &mut at) else { return Flow::Fault };
        space = found;
    }
    let value = |w: &Warp, row: u32, l: usize| match row {
        NONE => 0,
        row if bytes == 8 => w.wide(row)[l],
        row => u64::from(w.rows[row as usize].0[l]),
    };
    let wrong = (0..LANES)
        .filter(|l| w.exec >> l & 1 != 0 && !at[*l].is_multiple_of(bytes as u64))
        .fold(0, |m, l| m | 1u32 << l);
    if wrong != 0 {
        return unaligned(op, env, wrong, &at, bytes as u64);
    }
    if space == SHARED && !within(op, w, env, &at, bytes, env.shared.data.len(), "shared") {
        return Flow::Fault;
    }
    let mut olds = [0u64; LANES];
    for l in (0..LANES).filter(|l| w.exec >> l & 1 != 0) {
        let mut raw = [0u8; 8];
        if space == GLOBAL {
            if let Err(kind) =
                env.memory.read(at[l], &mut raw[..bytes]).map(|n| env.counters.unique_read_bytes += u64::from(n))
            {
                let message = format!("an atomic operation on {}", env.memory.describe(at[l], bytes));
                env.fail(op, 1 << l, kind, message);
                return Flow::Fault;
            }
        } else if space == SHARED {
            if !env.note_shared(op, l, at[l] as u32, bytes as u32, How::Atomic) {
                return Flow::Fault;
            }
            raw[..bytes].copy_from_slice(&env.shared.data[at[l] as usize..][..bytes]);
        } else {
            env.fail(op, 1 << l, Kind::Invalid, "an atomic operation outside of global and shared memory".into());
            return Flow::Fault;
        }
        olds[l] = u64::from_le_bytes(raw);
        let new = change(what, ty, olds[l], value(w, op.b, l), value(w, op.c, l)).to_le_bytes();
        if space == GLOBAL {
            if let Ok(n) = env.memory.write(at[l], &new[..bytes]) {
                env.counters.unique_written_bytes += u64::from(n);
            }
        } else {
            env.shared.data[at[l] as usize..][..bytes].copy_from_slice(&new[..bytes]);
        }
    }
    if space == GLOBAL {
        let all = u64::from(w.exec.count_ones()) * bytes as u64;
        env.counters.global_accesses += 1;
        env.counters.read_bytes += all;
        env.counters.written_bytes += all;
    }
    if op.d != NONE {
        if bytes == 8 {
            w.put64(op.d, &olds);
        } else {
            w.put32(op.d, &olds.map(|o| o as u32));
        }
    }
    Flow::Next
}

pub fn atomic_fn() -> Run {
    lane_fn!(|op, w, env| atomic(op, w, env))
}
