//! One warp: its registers, its lanes' places in the program, and the step through operations.

use super::asynccopy::Copies;
use super::env::Env;
use super::lanes::{Flow, LANES, NONE, Op, Row};
use crate::check::fault::Kind;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    Ready,
    /// At a barrier: its number, the threads that it is for (0: all), and the line of the instruction.
    Waiting {
        barrier: u32,
        threads: u32,
        line: u32,
    },
    Done,
}

pub struct Warp {
    pub rows: Vec<Row>,
    /// A mask of lanes for each predicate.
    pub predicates: Vec<u32>,
    /// Lanes that the operation at hand is for.
    pub exec: u32,
    /// Lanes that stand at `pc`.
    pub active: u32,
    /// Lanes that have not exited.
    pub live: u32,
    pub pc: u32,
    /// Other lanes, which stand later in the program: (place, lanes), the nearest last.
    pub groups: Vec<(u32, u32)>,
    pub local: Vec<u8>,
    pub copies: Copies,
    /// The carry flag of each lane (`add.cc`).
    pub carry: u32,
    pub index: u32,
    pub state: State,
    /// What a barrier with a reduction gives, and where to.
    pub vote: (u32, bool),
    /// Targets of the lanes of a `brx.idx`.
    pub switch: [u32; LANES],
    pub instructions: u64,
    pub lane_instructions: u64,
}

impl Warp {
    #[inline(always)]
    pub fn put32(&mut self, row: u32, values: &[u32; LANES]) {
        let into = &mut self.rows[row as usize].0;
        if self.exec == u32::MAX {
            *into = *values;
        } else {
            for l in 0..LANES {
                let keep = ((self.exec >> l) & 1).wrapping_sub(1);
                into[l] = into[l] & keep | values[l] & !keep;
            }
        }
    }

    #[inline(always)]
    pub fn wide(&self, row: u32) -> &[u64; LANES] {
        let rows: &[Row; 2] = self.rows[row as usize..row as usize + 2].try_into().expect("two rows");
        bytemuck::cast_ref::<[Row; 2], [u64; LANES]>(rows)
    }

    #[inline(always)]
    pub fn put64(&mut self, row: u32, values: &[u64; LANES]) {
        let exec = self.exec;
        let rows: &mut [Row; 2] = (&mut self.rows[row as usize..row as usize + 2]).try_into().expect("two rows");
        let into = bytemuck::cast_mut::<[Row; 2], [u64; LANES]>(rows);
        if exec == u32::MAX {
            *into = *values;
        } else {
            for l in 0..LANES {
                let keep = u64::from((exec >> l) & 1).wrapping_sub(1);
                into[l] = into[l] & keep | values[l] & !keep;
            }
        }
    }

    #[inline(always)]
    pub fn put_predicate(&mut self, number: u32, mask: u32) {
        let into = &mut self.predicates[number as usize];
        *into = *into & !self.exec | mask & self.exec;
    }

    /// A predicate as operand: twice its number, plus one where it is negated.
    #[inline(always)]
    pub fn predicate(&self, coded: u32) -> u32 {
        self.predicates[(coded >> 1) as usize] ^ (coded & 1).wrapping_neg()
    }

    /// Puts the warp at the begin of the program, with `lanes` alive.
    pub fn begin(&mut self, lanes: u32) {
        self.active = lanes;
        self.live = lanes;
        self.pc = 0;
        self.groups.clear();
        self.copies.clear();
        self.state = if lanes == 0 { State::Done } else { State::Ready };
    }

    /// Steps until a barrier, the end, or a fault.
    pub fn run(&mut self, ops: &[Op], env: &mut Env) -> Flow {
        let (mut pc, mut limit) = (self.pc, self.limit());
        let budget = env.budget;
        loop {
            let Some(op) = ops.get(pc as usize) else { return Flow::Exit };
            let mut exec = self.active;
            if op.guard != NONE {
                exec &= self.predicate(op.guard);
            }
            self.instructions += 1;
            self.lane_instructions += u64::from(self.active.count_ones());
            pc += 1;
            if exec != 0 {
                self.exec = exec;
                // SAFETY: `cuInit` has found the processor to have what operations are compiled for.
                let flow = unsafe { (op.run)(op, self, env) };
                if flow != Flow::Next {
                    self.pc = pc;
                    match flow {
                        Flow::Branch => self.leave(exec, op.imm as u32),
                        Flow::Switch => {
                            let targets = self.switch;
                            for (l, target) in targets.iter().enumerate().filter(|(l, _)| exec >> l & 1 != 0) {
                                self.leave(1 << l, *target);
                            }
                        }
                        Flow::Exit => {
                            self.live &= !exec;
                            self.active &= !exec;
                            if self.active == 0 && !self.nearest() {
                                self.state = State::Done;
                                return Flow::Exit;
                            }
                        }
                        Flow::Fault | Flow::Barrier => {
                            self.pc = pc;
                            return flow;
                        }
                        Flow::Next => {}
                    }
                    if self.active == 0 {
                        self.nearest();
                    }
                    self.earliest();
                    pc = self.pc;
                    limit = self.limit();
                    if self.instructions > budget {
                        env.fail(op, exec, Kind::Endless, format!("the block has run {budget} instructions"));
                        return Flow::Fault;
                    }
                    continue;
                }
            }
            if pc == limit {
                // Lanes that parted meet again.
                let (_, lanes) = self.groups.pop().expect("a limit is the place of a group");
                self.active |= lanes;
                limit = self.limit();
            }
        }
    }

    fn limit(&self) -> u32 {
        self.groups.last().map_or(u32::MAX, |g| g.0)
    }

    /// Moves lanes of the group at hand to another place.
    fn leave(&mut self, lanes: u32, target: u32) {
        self.active &= !lanes;
        match self.groups.iter().position(|g| g.0 <= target) {
            Some(i) if self.groups[i].0 == target => self.groups[i].1 |= lanes,
            Some(i) => self.groups.insert(i, (target, lanes)),
            None => self.groups.push((target, lanes)),
        }
    }

    /// Takes up the nearest other group where the one at hand is empty.
    fn nearest(&mut self) -> bool {
        let Some((pc, lanes)) = self.groups.pop() else { return false };
        (self.pc, self.active) = (pc, lanes);
        true
    }

    /// Goes on with the lanes that stand earliest in the program, so that the others can be met later.
    fn earliest(&mut self) {
        while let Some((at, lanes)) = self.groups.last().copied() {
            if at > self.pc {
                break;
            }
            self.groups.pop();
            if at == self.pc {
                self.active |= lanes;
            } else {
                let (pc, active) = (self.pc, self.active);
                (self.pc, self.active) = (at, lanes);
                self.leave_from(pc, active);
                break;
            }
        }
    }

    fn leave_from(&mut self, pc: u32, lanes: u32) {
        match self.groups.iter().position(|g| g.0 <= pc) {
            Some(i) if self.groups[i].0 == pc => self.groups[i].1 |= lanes,
            Some(i) => self.groups.insert(i, (pc, lanes)),
            None => self.groups.push((pc, lanes)),
        }
    }
}
