//! `cp.async`: copies from global to shared memory that arrive as late as the program allows, at the wait for their
//! group, so that a missing wait is seen to read what was there before.

use super::env::{Env, addresses};
use super::lanes::{Flow, LANES, NONE, Op, Run};
use super::memory::{WIDE_ADDRESS, count_banks, read_global, unaligned, within};
use super::warp::Warp;
use crate::check::fault::Kind;
use crate::check::races::How;
use crate::lane_fn;
use std::collections::VecDeque;

/// One instruction's copies that have not arrived.
struct Copy {
    op: Op,
    lanes: u32,
    to: [u64; LANES],
    from: [u64; LANES],
    bytes: usize,
    /// Bytes that are read; zeros follow.
    read: [u32; LANES],
}

#[derive(Default)]
pub struct Copies {
    groups: VecDeque<Vec<Copy>>,
    open: Vec<Copy>,
}

impl Copies {
    pub fn clear(&mut self) {
        self.groups.clear();
        self.open.clear();
    }
}

/// `more`: bytes, row of the bytes to read (or `NONE`), offsets of target and source, flags of the target's address.
fn copy(op: &Op, w: &mut Warp, env: &mut Env) -> Flow {
    let bytes = op.more[0] as usize;
    let offset = |i: usize| i64::from(op.more[i] as i32) as u64;
    let to = addresses(w, op.a, op.more[4] & WIDE_ADDRESS != 0, offset(2));
    let from = addresses(w, op.b, true, offset(3));
    for at in [&to, &from] {
        let wrong = (0..LANES)
            .filter(|l| w.exec >> l & 1 != 0 && !at[*l].is_multiple_of(bytes as u64))
            .fold(0, |m, l| m | 1 << l);
        if wrong != 0 {
            return unaligned(op, env, wrong, at, bytes as u64);
        }
    }
    let read = if op.more[1] == NONE { [bytes as u32; LANES] } else { w.rows[op.more[1] as usize].0 };
    if !within(op, w, env, &to, bytes, env.shared.data.len(), "shared") {
        return Flow::Fault;
    }
    for l in (0..LANES).filter(|l| w.exec >> l & 1 != 0) {
        let races = env.shared.races.as_ref();
        if let Some(thread) = races.and_then(|r| r.read_before(env.warp, to[l] as u32, bytes as u32)) {
            let message = format!(
                "copies {bytes} bytes to byte {} of shared memory, which thread {thread} read with no barrier between",
                to[l]
            );
            env.fail(op, 1 << l, Kind::Race, message);
            return Flow::Fault;
        }
    }
    w.copies.open.push(Copy { op: op.clone(), lanes: w.exec, to, from, bytes, read });
    Flow::Next
}

fn arrive(copy: &Copy, w: &mut Warp, env: &mut Env) -> Flow {
    let (exec, total, op) = (w.exec, copy.bytes, &copy.op);
    let full = (0..LANES).filter(|l| copy.lanes >> l & 1 != 0 && copy.read[*l] as usize >= total);
    let mut bytes = [0u8; LANES * 16];
    w.exec = full.fold(0, |m, l| m | 1 << l);
    let mut flow = Flow::Next;
    if w.exec != 0 {
        flow = read_global(op, w, env, &copy.from, total, &mut bytes);
    }
    // Lanes that read a part of their bytes.
    for l in (0..LANES).filter(|l| copy.lanes >> l & 1 != 0 && copy.read[*l] > 0 && (copy.read[*l] as usize) < total) {
        let n = copy.read[l] as usize;
        if let Err(kind) = env.memory.read(copy.from[l], &mut bytes[l * total..l * total + n]) {
            let message = format!("a read of {}", env.memory.describe(copy.from[l], n));
            env.fail(op, 1 << l, kind, message);
            flow = Flow::Fault;
        }
    }
    w.exec = copy.lanes;
    if flow == Flow::Next {
        count_banks(w, env, &copy.to, total);
        for l in (0..LANES).filter(|l| copy.lanes >> l & 1 != 0) {
            let at = copy.to[l] as usize;
            if !env.note_shared(op, l, at as u32, total as u32, How::Write) {
                flow = Flow::Fault;
                break;
            }
            env.shared.data[at..at + total].copy_from_slice(&bytes[l * total..(l + 1) * total]);
        }
    }
    w.exec = exec;
    flow
}

fn wait(w: &mut Warp, env: &mut Env, keep: usize) -> Flow {
    while w.copies.groups.len() > keep {
        for copy in w.copies.groups.pop_front().unwrap_or_default() {
            if arrive(&copy, w, env) != Flow::Next {
                return Flow::Fault;
            }
        }
    }
    Flow::Next
}

pub fn copy_fn() -> Run {
    lane_fn!(|op, w, env| copy(op, w, env))
}

pub fn commit_fn() -> Run {
    lane_fn!(|op, w, env| {
        let open = std::mem::take(&mut w.copies.open);
        w.copies.groups.push_back(open);
        Flow::Next
    })
}

/// `cp.async.wait_group imm`.
pub fn wait_fn() -> Run {
    lane_fn!(|op, w, env| wait(w, env, op.imm as usize))
}

pub fn wait_all_fn() -> Run {
    lane_fn!(|op, w, env| {
        let open = std::mem::take(&mut w.copies.open);
        w.copies.groups.push_back(open);
        wait(w, env, 0)
    })
}
