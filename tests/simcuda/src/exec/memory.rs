//! Loads and stores. An access of a warp is checked lane by lane, or at once where the lanes follow each other.

use super::env::{Env, addresses};
use super::lanes::{Flow, LANES, NONE, Op, Run};
use super::warp::Warp;
use crate::check::banks;
use crate::check::fault::Kind;
use crate::check::races::How;
use crate::lane_fn;
use crate::ptx::link::{LOCAL_WINDOW, PARAM_WINDOW, SHARED_WINDOW};

/// Bits of `Op::c` of a load or a store.
pub const WIDE_ADDRESS: u32 = 1;
pub const SIGNED: u32 = 2;
/// The registers have 64 bits, whatever the elements have.
pub const WIDE_REGISTERS: u32 = 4;

/// State spaces, as const parameters.
pub const GLOBAL: u8 = 0;
pub const SHARED: u8 = 1;
pub const LOCAL: u8 = 2;
pub const PARAM: u8 = 3;
pub const GENERIC: u8 = 4;

/// The space that a generic address lies in, and what to take off it.
pub fn window(address: u64) -> (u8, u64) {
    if address >= PARAM_WINDOW {
        (PARAM, PARAM_WINDOW)
    } else if address >= LOCAL_WINDOW {
        (LOCAL, LOCAL_WINDOW)
    } else if address >= SHARED_WINDOW {
        (SHARED, SHARED_WINDOW)
    } else {
        (GLOBAL, 0)
    }
}

/// The one space of a generic access, its addresses taken to it. `None` (and a fault) where lanes differ.
pub fn specific(op: &Op, w: &Warp, env: &mut Env, at: &mut [u64; LANES]) -> Option<u8> {
    let (space, base) = window(at[w.exec.trailing_zeros() as usize]);
    let differ = (0..LANES).filter(|l| w.exec >> l & 1 != 0 && window(at[*l]).0 != space).fold(0, |m, l| m | 1 << l);
    if differ != 0 {
        env.fail(op, differ, Kind::Invalid, "lanes of one access are in different state spaces".into());
        return None;
    }
    at.iter_mut().for_each(|a| *a = a.wrapping_sub(base));
    Some(space)
}

#[inline(always)]
fn follow(at: &[u64; LANES], bytes: u64) -> bool {
    let mut same = true;
    for l in 0..LANES {
        same &= at[l] == at[0].wrapping_add(l as u64 * bytes);
    }
    same
}

#[inline(always)]
fn misaligned(at: &[u64; LANES], exec: u32, bytes: u64) -> u32 {
    let mut mask = 0u32;
    for l in 0..LANES {
        mask |= u32::from(at[l] & (bytes - 1) != 0) << l;
    }
    mask & exec
}

/// Sectors of 32 bytes that lanes touch, where neighbours in memory are neighbours in the warp.
fn sectors(at: &[u64; LANES], exec: u32, bytes: u64) -> u64 {
    let (mut last, mut n) = (u64::MAX, 0);
    for (_, a) in at.iter().enumerate().filter(|(l, _)| exec >> l & 1 != 0) {
        for s in a / 32..=(a + bytes - 1) / 32 {
            n += u64::from(s != last);
            last = s;
        }
    }
    n
}

#[cold]
fn refuse(op: &Op, env: &mut Env, lane: usize, kind: Kind, what: &str, at: u64, bytes: usize) -> Flow {
    let message = format!("{what} of {}", env.memory.describe(at, bytes));
    env.fail(op, 1 << lane, kind, message);
    Flow::Fault
}

#[cold]
pub fn unaligned(op: &Op, env: &mut Env, lanes: u32, at: &[u64; LANES], bytes: u64) -> Flow {
    let address = at[lanes.trailing_zeros() as usize];
    let message = format!("{bytes} bytes at {address:#x}, which is no multiple of {bytes}");
    env.fail(op, lanes, Kind::Misaligned, message);
    Flow::Fault
}

/// Bytes of all lanes, one lane's after the other.
pub type Bytes = [u8];

/// Reads `total` bytes for each lane from global memory.
#[inline(always)]
pub fn read_global(op: &Op, w: &Warp, env: &mut Env, at: &[u64; LANES], total: usize, into: &mut Bytes) -> Flow {
    env.counters.global_accesses += 1;
    if w.exec == u32::MAX && follow(at, total as u64) {
        let all = LANES * total;
        if let Ok(fresh) = env.memory.read(at[0], &mut into[..all]) {
            env.counters.read_bytes += all as u64;
            env.counters.unique_read_bytes += u64::from(fresh);
            env.counters.sectors += (at[0] + all as u64 - 1) / 32 - at[0] / 32 + 1;
            return Flow::Next;
        }
    }
    env.counters.sectors += sectors(at, w.exec, total as u64);
    for l in 0..LANES {
        if w.exec >> l & 1 != 0 {
            match env.memory.read(at[l], &mut into[l * total..(l + 1) * total]) {
                Ok(fresh) => env.counters.unique_read_bytes += u64::from(fresh),
                Err(kind) => return refuse(op, env, l, kind, "a read", at[l], total),
            }
        }
    }
    env.counters.read_bytes += u64::from(w.exec.count_ones()) * total as u64;
    Flow::Next
}

#[inline(always)]
pub fn write_global(op: &Op, w: &Warp, env: &mut Env, at: &[u64; LANES], total: usize, from: &Bytes) -> Flow {
    env.counters.global_accesses += 1;
    if w.exec == u32::MAX && follow(at, total as u64) {
        let all = LANES * total;
        if let Ok(fresh) = env.memory.write(at[0], &from[..all]) {
            env.counters.written_bytes += all as u64;
            env.counters.unique_written_bytes += u64::from(fresh);
            env.counters.sectors += (at[0] + all as u64 - 1) / 32 - at[0] / 32 + 1;
            return Flow::Next;
        }
    }
    env.counters.sectors += sectors(at, w.exec, total as u64);
    for l in 0..LANES {
        if w.exec >> l & 1 != 0 {
            match env.memory.write(at[l], &from[l * total..(l + 1) * total]) {
                Ok(fresh) => env.counters.unique_written_bytes += u64::from(fresh),
                Err(kind) => return refuse(op, env, l, kind, "a write", at[l], total),
            }
        }
    }
    env.counters.written_bytes += u64::from(w.exec.count_ones()) * total as u64;
    Flow::Next
}

/// Faults for lanes outside of a space of `size` bytes.
#[inline(always)]
pub fn within(op: &Op, w: &Warp, env: &mut Env, at: &[u64; LANES], total: usize, size: usize, space: &str) -> bool {
    let most = (size as u64).wrapping_sub(total as u64);
    if size >= total && (0..LANES).fold(true, |good, l| good & (at[l] <= most)) {
        return true;
    }
    for l in 0..LANES {
        if w.exec >> l & 1 != 0 && at[l].checked_add(total as u64).is_none_or(|end| end > size as u64) {
            let message = format!("{total} bytes at byte {} of {size} bytes of {space} memory", at[l] as i64);
            env.fail(op, 1 << l, Kind::OutOfBounds, message);
            return false;
        }
    }
    true
}

#[inline(always)]
pub fn count_banks(w: &Warp, env: &mut Env, at: &[u64; LANES], total: usize) {
    if !env.shared.count_banks {
        return;
    }
    let first = at[w.exec.trailing_zeros() as usize];
    let (parts, cycles) = if w.exec == u32::MAX && total == 4 && (follow(at, 4) || at.iter().all(|a| *a == first)) {
        (1, 1)
    } else {
        banks::cycles(&at.map(|a| a as u32), total as u32, w.exec)
    };
    env.counters.shared_accesses += parts;
    env.counters.shared_cycles += cycles;
}

#[inline(always)]
fn read_shared(op: &Op, w: &Warp, env: &mut Env, at: &[u64; LANES], total: usize, into: &mut Bytes) -> Flow {
    if !within(op, w, env, at, total, env.shared.data.len(), "shared") {
        return Flow::Fault;
    }
    count_banks(w, env, at, total);
    let first = w.exec.trailing_zeros() as usize;
    if at.iter().all(|a| *a == at[first]) {
        // All lanes read the same place, and get what one of them reads.
        if !env.note_shared(op, first, at[first] as u32, total as u32, How::ReadByAll) {
            return Flow::Fault;
        }
        let a = at[first] as usize;
        let value = &env.shared.data[a..a + total];
        into[..LANES * total].chunks_exact_mut(total).for_each(|i| i.copy_from_slice(value));
        return Flow::Next;
    }
    let checked = env.shared.find_uninitialised || env.shared.races.is_some();
    for l in 0..LANES {
        if w.exec >> l & 1 != 0 {
            // Neighbours often read the same place: it is looked at once for all of them.
            let next = l + 1 < LANES && w.exec >> (l + 1) & 1 != 0 && at[l + 1] == at[l];
            let before = l > 0 && w.exec >> (l - 1) & 1 != 0 && at[l - 1] == at[l];
            let how = if next { How::ReadByAll } else { How::Read };
            if checked && !before && !env.note_shared(op, l, at[l] as u32, total as u32, how) {
                return Flow::Fault;
            }
            let a = at[l] as usize;
            into[l * total..(l + 1) * total].copy_from_slice(&env.shared.data[a..a + total]);
        }
    }
    Flow::Next
}

#[inline(always)]
pub fn write_shared(op: &Op, w: &Warp, env: &mut Env, at: &[u64; LANES], total: usize, from: &Bytes) -> Flow {
    if !within(op, w, env, at, total, env.shared.data.len(), "shared") {
        return Flow::Fault;
    }
    count_banks(w, env, at, total);
    for l in 0..LANES {
        if w.exec >> l & 1 != 0 {
            let (a, bytes) = (at[l] as usize, &from[l * total..(l + 1) * total]);
            // What is there already may be written again in any order.
            let same = env.shared.data[a..a + total] == *bytes && !env.shared.written[a..a + total].contains(&0);
            if !same {
                if !env.note_shared(op, l, a as u32, total as u32, How::Write) {
                    return Flow::Fault;
                }
                env.shared.data[a..a + total].copy_from_slice(bytes);
            }
        }
    }
    Flow::Next
}

#[inline(always)]
fn read(op: &Op, w: &Warp, env: &mut Env, space: u8, at: &[u64; LANES], total: usize, into: &mut Bytes) -> Flow {
    match space {
        GLOBAL => read_global(op, w, env, at, total, into),
        SHARED => read_shared(op, w, env, at, total, into),
        LOCAL => {
            let size = env.launch.kernel.local_bytes;
            if !within(op, w, env, at, total, size, "local") {
                return Flow::Fault;
            }
            for l in 0..LANES {
                if w.exec >> l & 1 != 0 {
                    let a = l * size + at[l] as usize;
                    into[l * total..(l + 1) * total].copy_from_slice(&w.local[a..a + total]);
                }
            }
            Flow::Next
        }
        _ => {
            if !within(op, w, env, at, total, env.launch.params.len(), "parameter") {
                return Flow::Fault;
            }
            for l in 0..LANES {
                if w.exec >> l & 1 != 0 {
                    let a = at[l] as usize;
                    into[l * total..(l + 1) * total].copy_from_slice(&env.launch.params[a..a + total]);
                }
            }
            Flow::Next
        }
    }
}

#[inline(always)]
fn write(op: &Op, w: &mut Warp, env: &mut Env, space: u8, at: &[u64; LANES], total: usize, from: &Bytes) -> Flow {
    match space {
        GLOBAL => write_global(op, w, env, at, total, from),
        SHARED => write_shared(op, w, env, at, total, from),
        LOCAL => {
            let size = env.launch.kernel.local_bytes;
            if !within(op, w, env, at, total, size, "local") {
                return Flow::Fault;
            }
            for l in 0..LANES {
                if w.exec >> l & 1 != 0 {
                    let a = l * size + at[l] as usize;
                    w.local[a..a + total].copy_from_slice(&from[l * total..(l + 1) * total]);
                }
            }
            Flow::Next
        }
        _ => {
            env.fail(op, w.exec, Kind::Invalid, "a write to parameters".into());
            Flow::Fault
        }
    }
}

#[inline(always)]
fn element<const E: usize>(bytes: &[u8]) -> u64 {
    let mut raw = [0u8; 8];
    raw[..E].copy_from_slice(&bytes[..E]);
    u64::from_le_bytes(raw)
}

#[inline(always)]
fn load<const E: usize, const N: usize, const T: usize, const S: u8>(op: &Op, w: &mut Warp, env: &mut Env) -> Flow {
    let total = T;
    let mut at = addresses(w, op.a, op.c & WIDE_ADDRESS != 0, op.imm);
    let space = if S == GENERIC {
        let Some(space) = specific(op, w, env, &mut at) else { return Flow::Fault };
        space
    } else {
        S
    };
    let wrong = misaligned(&at, w.exec, total as u64);
    if wrong != 0 {
        return unaligned(op, env, wrong, &at, total as u64);
    }
    let mut bytes = [[0u8; T]; LANES];
    let bytes = bytes.as_flattened_mut();
    if read(op, w, env, space, &at, total, bytes) != Flow::Next {
        return Flow::Fault;
    }
    for k in 0..N {
        let row = op.more[k];
        if row == NONE {
            continue;
        }
        if E == 4 && op.c & WIDE_REGISTERS == 0 {
            let values: [u32; LANES] = std::array::from_fn(|l| element::<4>(&bytes[l * total + k * E..]) as u32);
            w.put32(row, &values);
            continue;
        }
        let mut values: [u64; LANES] = std::array::from_fn(|l| element::<E>(&bytes[l * total + k * E..]));
        if op.c & SIGNED != 0 {
            let shift = 64 - 8 * E as u32;
            values.iter_mut().for_each(|v| *v = ((*v << shift) as i64 >> shift) as u64);
        }
        if op.c & WIDE_REGISTERS != 0 {
            w.put64(row, &values);
        } else {
            w.put32(row, &values.map(|v| v as u32));
        }
    }
    Flow::Next
}

#[inline(always)]
fn store<const E: usize, const N: usize, const T: usize, const S: u8>(op: &Op, w: &mut Warp, env: &mut Env) -> Flow {
    let total = T;
    let mut at = addresses(w, op.a, op.c & WIDE_ADDRESS != 0, op.imm);
    let space = if S == GENERIC {
        let Some(space) = specific(op, w, env, &mut at) else { return Flow::Fault };
        space
    } else {
        S
    };
    let wrong = misaligned(&at, w.exec, total as u64);
    if wrong != 0 {
        return unaligned(op, env, wrong, &at, total as u64);
    }
    let mut bytes = [[0u8; T]; LANES];
    let bytes = bytes.as_flattened_mut();
    for k in 0..N {
        let row = op.more[k];
        if E == 8 || op.c & WIDE_REGISTERS != 0 {
            let values = w.wide(row);
            for l in 0..LANES {
                bytes[l * total + k * E..][..E].copy_from_slice(&values[l].to_le_bytes()[..E]);
            }
        } else {
            let values = &w.rows[row as usize].0;
            for l in 0..LANES {
                bytes[l * total + k * E..][..E].copy_from_slice(&values[l].to_le_bytes()[..E]);
            }
        }
    }
    write(op, w, env, space, &at, total, bytes)
}

macro_rules! by_shape {
    ($f:ident, $s:ident, $bytes:expr, $count:expr) => {
        match ($bytes, $count) {
            (1, 1) => lane_fn!(|op, w, env| $f::<1, 1, 1, $s>(op, w, env)),
            (1, 2) => lane_fn!(|op, w, env| $f::<1, 2, 2, $s>(op, w, env)),
            (1, 4) => lane_fn!(|op, w, env| $f::<1, 4, 4, $s>(op, w, env)),
            (2, 1) => lane_fn!(|op, w, env| $f::<2, 1, 2, $s>(op, w, env)),
            (2, 2) => lane_fn!(|op, w, env| $f::<2, 2, 4, $s>(op, w, env)),
            (2, 4) => lane_fn!(|op, w, env| $f::<2, 4, 8, $s>(op, w, env)),
            (4, 1) => lane_fn!(|op, w, env| $f::<4, 1, 4, $s>(op, w, env)),
            (4, 2) => lane_fn!(|op, w, env| $f::<4, 2, 8, $s>(op, w, env)),
            (4, 4) => lane_fn!(|op, w, env| $f::<4, 4, 16, $s>(op, w, env)),
            (8, 1) => lane_fn!(|op, w, env| $f::<8, 1, 8, $s>(op, w, env)),
            (8, 2) => lane_fn!(|op, w, env| $f::<8, 2, 16, $s>(op, w, env)),
            _ => return None,
        }
    };
}

macro_rules! by_space {
    ($f:ident, $space:expr, $bytes:expr, $count:expr) => {
        Some(match $space {
            GLOBAL => by_shape!($f, GLOBAL, $bytes, $count),
            SHARED => by_shape!($f, SHARED, $bytes, $count),
            LOCAL => by_shape!($f, LOCAL, $bytes, $count),
            PARAM => by_shape!($f, PARAM, $bytes, $count),
            _ => by_shape!($f, GENERIC, $bytes, $count),
        })
    };
}

/// The function of a load of `count` elements of `bytes` bytes. `None` where PTX has none.
pub fn load_fn(space: u8, bytes: usize, count: usize) -> Option<Run> {
    by_space!(load, space, bytes, count)
}

pub fn store_fn(space: u8, bytes: usize, count: usize) -> Option<Run> {
    by_space!(store, space, bytes, count)
}
