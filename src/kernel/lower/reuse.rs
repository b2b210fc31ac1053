//! A kernel's result takes the place of an operand that is read for the last time, where the kernel reads each element in
//! the iteration that writes it: less memory in use at once, and what is written is in the cache already. So does the result of a
//! reduction over ranks.

use super::Lowerer;
use crate::program::{Access, Action, Buffer, BufferId, Launch, Loop, Place, Step};

/// Where a buffer is named.
#[derive(Clone, Copy)]
struct Use {
    /// The list of steps, by number; `MANY` if it is more than one.
    list: u32,
    first: usize,
    last: usize,
    /// How often the step that names it first, or last, names it.
    times: [u32; 2],
    written_first: bool,
    /// The buffer that is there longest, and how long: the place is named after it.
    longest: (usize, BufferId),
}

const NONE: u32 = u32::MAX;
const MANY: u32 = u32::MAX - 1;

impl Lowerer<'_, '_> {
    pub(super) fn reuse_operands(&mut self, steps: &mut [Step]) {
        if !self.options.fuse {
            return;
        }
        let never = |n| {
            let longest = (0, BufferId(n));
            Use { list: NONE, first: 0, last: 0, times: [0; 2], written_first: false, longest }
        };
        let mut uses: Vec<Use> = (0..self.routine.buffers.len() as u32).map(never).collect();
        let mut lists = 0;
        find_uses(steps, &mut lists, &mut uses);
        // What is read after the routine, or in slices.
        self.routine.outputs.iter().for_each(|o| uses[o.buffer.index()].list = MANY);
        for buffer in &self.routine.buffers {
            if let Place::Slice { base, turn, .. } = buffer.place {
                [base, turn].iter().for_each(|b| uses[b.index()].list = MANY);
            }
        }
        let mut become_: Vec<BufferId> = (0..uses.len() as u32).map(BufferId).collect();
        self.reuse_in(steps, &mut uses, &mut become_);
        for (n, u) in uses.iter().enumerate() {
            let BufferId(longest) = u.longest.1;
            if longest as usize != n {
                let Buffer { name, category, source, .. } = self.routine.buffers[longest as usize].clone();
                let named = &mut self.routine.buffers[n];
                (named.name, named.category, named.source) = (name, category, source);
            }
        }
        let renamed = &mut |b: &mut BufferId| *b = become_[b.index()];
        steps.iter_mut().for_each(|s| s.action.buffers_mut(renamed));
    }

    fn reuse_in(&self, steps: &[Step], uses: &mut [Use], become_: &mut [BufferId]) {
        for (i, step) in steps.iter().enumerate() {
            let (launch, product) = match &step.action {
                Action::Launch(launch) => (launch, None),
                Action::Finished(f) => (&f.launch, Some([f.gemm.a.buffer, f.gemm.b.buffer])),
                Action::Loop(l) => {
                    self.reuse_in(&l.body, uses, become_);
                    continue;
                }
                Action::Wait(_) => {
                    // So far every wait stands behind what begins the exchange.
                    if let Some(Action::Collective(c)) = steps[..i].last().map(|s| &s.action)
                        && c.is_in_place()
                        && self.may_take(c.to, c.from, i, uses, become_)
                    {
                        take(c.to, c.from, uses, become_);
                    }
                    continue;
                }
                _ => continue,
            };
            for written in launch.args.iter().filter(|a| a.access == Access::Write) {
                let free = |b: BufferId| product.is_none_or(|p| !p.contains(&b));
                let operands = launch.args.iter().filter(|a| a.access == Access::Read && free(a.buffer));
                let dies = |b: &BufferId| {
                    self.may_take(written.buffer, *b, i, uses, become_) && self.is_aligned(launch, written.buffer, *b)
                };
                let Some(place) = operands.map(|a| a.buffer).find(dies) else { continue };
                take(written.buffer, place, uses, become_);
            }
        }
    }

    /// Whether a result may be written where an operand of step `i` is.
    fn may_take(&self, result: BufferId, operand: BufferId, i: usize, uses: &[Use], become_: &[BufferId]) -> bool {
        let place = become_[operand.index()];
        let (new, old) = (uses[result.index()], uses[place.index()]);
        let [to, from] = [result, place].map(|b| self.routine.buffer(b));
        let temporary = |p: Place| matches!(p, Place::Arena(_));
        let same = to.dtype == from.dtype && to.elements == from.elements;
        let begins = new.first == i && new.written_first && new.times[0] == 1;
        let ends = old.last == i && old.times[1] == 1 && old.first < i && old.written_first;
        let together = new.list == old.list && new.list != MANY;
        same && temporary(to.place) && temporary(from.place) && begins && ends && together
    }

    /// Whether a kernel reads the operand where it writes the result.
    fn is_aligned(&self, launch: &Launch, result: BufferId, operand: BufferId) -> bool {
        let kernel = &self.module.kernels[launch.function as usize];
        let at = |arg: crate::kernel::ArgId| launch.args[arg.index()].buffer;
        kernel.updates_in_place(|arg| at(arg) == result, |arg| at(arg) == operand)
    }
}

/// Has a result lie where an operand is.
fn take(result: BufferId, operand: BufferId, uses: &mut [Use], become_: &mut [BufferId]) {
    let place = become_[operand.index()];
    become_[result.index()] = place;
    let Use { first, last, times, .. } = uses[result.index()];
    let old = &mut uses[place.index()];
    if old.longest.0 == 0 {
        old.longest.0 = old.last - old.first;
    }
    old.longest = old.longest.max((last - first, result));
    old.last = last;
    old.times[1] = times[1];
}

/// Numbers the lists of steps in the order in which they are met.
fn find_uses(steps: &[Step], lists: &mut u32, uses: &mut [Use]) {
    let list = *lists;
    *lists += 1;
    for (i, step) in steps.iter().enumerate() {
        step.action.accesses(|b, access| {
            let u = &mut uses[b.index()];
            match u.list {
                NONE => {
                    *u = Use { list, first: i, last: i, times: [1; 2], written_first: access == Access::Write, ..*u }
                }
                same if same == list => {
                    u.times[0] += u32::from(u.first == i);
                    u.times[1] = if u.last == i { u.times[1] + 1 } else { 1 };
                    u.last = i;
                }
                _ => u.list = MANY,
            }
        });
        if let Action::Loop(Loop { body, moves, turn, .. }) = &step.action {
            find_uses(body, lists, uses);
            moves.iter().flat_map(|(from, to)| [from, to]).chain([turn]).for_each(|b| uses[b.index()].list = MANY);
        }
    }
}
