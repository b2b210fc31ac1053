//! From which step to which step a buffer holds something that is still read.

use crate::program::{Access, Action, BufferId, Place, Routine, Step};

/// Numbers of steps, both included. Steps of loop bodies have numbers of their own, after that of the loop.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lifetime {
    pub first: usize,
    pub last: usize,
}

impl Lifetime {
    pub fn meets(self, other: Lifetime) -> bool {
        self.first <= other.last && other.first <= self.last
    }

    fn cover(&mut self, other: Lifetime) {
        self.first = self.first.min(other.first);
        self.last = self.last.max(other.last);
    }
}

/// One loop with the numbers that it and its body take, and its turn's cell.
struct Range {
    life: Lifetime,
    turn: BufferId,
}

struct Walk {
    now: usize,
    lives: Vec<Option<Lifetime>>,
    /// Whether the first access wrote without reading.
    starts_written: Vec<bool>,
    loops: Vec<Range>,
}

/// The steps by the numbers that lifetimes are counted in; None for what a loop does between its turns.
pub fn by_number(routine: &Routine) -> Vec<Option<&Step>> {
    fn add<'p>(steps: &'p [Step], out: &mut Vec<Option<&'p Step>>) {
        for step in steps {
            out.push(Some(step));
            if let Action::Loop(l) = &step.action {
                add(&l.body, out);
                out.extend(std::iter::repeat_n(None, l.moves.len() + 1));
            }
        }
    }
    let mut out = Vec::new();
    add(&routine.steps, &mut out);
    out
}

/// Lifetimes of all buffers; None where no step names one. Buffers of persistent places have lifetimes, too; a slice's is
/// its base's.
pub fn lifetimes(routine: &Routine) -> Vec<Option<Lifetime>> {
    let n = routine.buffers.len();
    let mut walk = Walk { now: 0, lives: vec![None; n], starts_written: vec![false; n], loops: Vec::new() };
    walk.steps(&routine.steps, routine);
    let end = walk.now;
    for output in &routine.outputs {
        walk.touch(output.buffer, Access::Read, end, routine);
    }
    // Inner loops first, so that what they extend is seen by those around them.
    for range in walk.loops.iter().rev() {
        let whole = range.life;
        for i in 0..n {
            let Some(life) = &mut walk.lives[i] else { continue };
            if !life.meets(whole) {
                continue;
            }
            let local = whole.first < life.first && life.last < whole.last && walk.starts_written[i];
            // What goes from turn to turn, in or out lives as long as the loop.
            if !local {
                life.cover(whole);
            }
        }
    }
    walk.lives
}

impl Walk {
    fn steps(&mut self, steps: &[Step], routine: &Routine) {
        for step in steps {
            let number = self.now;
            self.now += 1;
            let mut touched = Vec::new();
            step.action.accesses(|b, access| touched.push((b, access)));
            // Reads of a step come before its writes.
            touched.sort_by_key(|(_, access)| !access.reads());
            for (b, access) in touched {
                self.touch(b, access, number, routine);
            }
            if let Action::Collective(c) = &step.action {
                // Whoever moves the elements may do so as soon as all have begun.
                self.touch(c.to, Access::Write, number, routine);
            }
            if let Action::Loop(l) = &step.action {
                let at = self.loops.len();
                self.loops.push(Range { life: Lifetime { first: number, last: number }, turn: l.turn });
                self.steps(&l.body, routine);
                for (from, to) in &l.moves {
                    let number = self.now;
                    self.now += 1;
                    self.touch(*from, Access::Read, number, routine);
                    self.touch(*to, Access::Write, number, routine);
                }
                // One more number, so that what the last move reads still ends inside.
                self.loops[at].life.last = self.now;
                self.now += 1;
                // Targets of moves go from turn to turn.
                for (_, to) in &l.moves {
                    let whole = self.loops[at].life;
                    self.touch(*to, Access::Read, whole.first, routine);
                    self.touch(*to, Access::Read, whole.last, routine);
                }
                let whole = self.loops[at].life;
                self.touch(l.turn, Access::Read, whole.last, routine);
            }
        }
    }

    fn touch(&mut self, b: BufferId, access: Access, number: usize, routine: &Routine) {
        let here = Lifetime { first: number, last: number };
        match &mut self.lives[b.index()] {
            Some(life) => life.cover(here),
            slot => {
                *slot = Some(here);
                self.starts_written[b.index()] = !access.reads();
            }
        }
        if let Place::Slice { base, turn, .. } = routine.buffer(b).place {
            // Other turns' slices must stay: the base lives through the whole loop.
            self.touch(turn, Access::Read, number, routine);
            self.touch(base, access, number, routine);
            let whole = self.loops.iter().rev().find(|l| l.turn == turn).map(|l| l.life.first);
            if let Some(first) = whole {
                self.touch(base, access, first, routine);
            }
        }
    }
}
