//! `bar.sync` and its like: the operations, and what a block knows of its 16 barriers.

use super::env::Env;
use super::lanes::{Flow, LANES, NONE, Op, Run};
use super::warp::{State, Warp};
use crate::check::fault::Kind;
use crate::lane_fn;

/// What a barrier instruction does besides waiting: `imm` of its operation.
pub const SYNC: u64 = 0;
pub const ARRIVE: u64 = 1;
pub const COUNT: u64 = 2;
pub const ALL: u64 = 3;
pub const ANY: u64 = 4;
/// All threads of a warp execute it together.
pub const ALIGNED: u64 = 16;

/// `a`: row of the number, `b`: row of the threads (or `NONE`), `c`: coded predicate.
pub fn barrier_fn() -> Run {
    lane_fn!(|op, w, env| barrier(op, w, env))
}

fn barrier(op: &Op, w: &mut Warp, env: &mut Env) -> Flow {
    if w.exec != w.live {
        if op.imm & ALIGNED != 0 {
            let others = w.live & !w.exec;
            let message = format!("lanes {others:#010x} of the warp are not at this barrier");
            env.fail(op, w.exec, Kind::DivergentBarrier, message);
            return Flow::Fault;
        }
        env.fail(op, w.exec, Kind::Invalid, "a barrier for a part of a warp is not supported".into());
        return Flow::Fault;
    }
    let first = w.exec.trailing_zeros() as usize;
    let number = w.rows[op.a as usize].0[first];
    let threads = if op.b == NONE { 0 } else { w.rows[op.b as usize].0[first] };
    if number > 15 || threads % LANES as u32 != 0 {
        env.fail(op, w.exec, Kind::Invalid, format!("barrier {number} for {threads} threads"));
        return Flow::Fault;
    }
    let yes = if op.c == NONE { 0 } else { w.predicate(op.c) & w.exec };
    w.vote = (yes.count_ones(), yes == w.exec);
    w.state = State::Waiting { barrier: number, threads, line: op.line };
    Flow::Barrier
}

/// One of the 16 barriers of a block.
#[derive(Clone, Copy, Default)]
pub struct Barrier {
    /// Warps that have come, and those of them that wait.
    pub come: u32,
    pub waiting: u32,
    pub threads: u32,
    pub votes: u32,
    pub all: bool,
}

impl Barrier {
    pub fn arrive(&mut self, w: &Warp, threads: u32, waits: bool) {
        if self.come == 0 {
            self.all = true;
        }
        self.come |= 1 << w.index;
        self.threads = self.threads.max(threads);
        self.votes += w.vote.0;
        self.all &= w.vote.1;
        if waits {
            self.waiting |= 1 << w.index;
        }
    }
}
