//! Waits for exchanges between ranks stand as late as they may: just before a step that reads the result, writes what it is made
//! of, or is a loop. Exchanges of one bucket are waited for together.

use super::Lowerer;
use crate::ir::{Op, OpId};
use crate::program::{Access, Action, Begun, BufferId, Place, Step};
use std::collections::HashMap;

/// A wait that has not found its place yet.
struct Late {
    begun: Begun,
    bucket: u32,
    step: Step,
}

/// What steps conflict over.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Memory {
    Buffer(BufferId),
    /// Several buffers may be one slot.
    Slot(Place),
}

impl Lowerer<'_, '_> {
    /// Moves waits down and numbers exchanges.
    pub(super) fn join_waits(&self, steps: Vec<Step>) -> Vec<Step> {
        let mut steps = self.waits_moved(steps);
        let mut numbers = HashMap::new();
        number(&mut steps, &mut numbers);
        steps
    }

    fn waits_moved(&self, steps: Vec<Step>) -> Vec<Step> {
        let mut out = Vec::with_capacity(steps.len());
        let mut late: Vec<Late> = Vec::new();
        for mut step in steps {
            match &mut step.action {
                Action::Wait(all) => {
                    for begun in std::mem::take(all) {
                        let Op::Collective(c) = &self.graph.op(OpId(begun.number)).op else {
                            unreachable!("exchanges are numbered by their operations so far")
                        };
                        late.push(Late { begun, bucket: c.bucket, step: step.clone() });
                    }
                    continue;
                }
                Action::Loop(l) => {
                    while !late.is_empty() {
                        finish(0, &mut late, &mut out);
                    }
                    l.body = self.waits_moved(std::mem::take(&mut l.body));
                }
                action => {
                    let mut touched: Vec<(Memory, Access)> = Vec::new();
                    action.accesses(|b, access| touched.push((self.memory(b), access)));
                    let meets = |l: &Late| {
                        let (from, to) = (self.memory(l.begun.from), self.memory(l.begun.to));
                        touched.iter().any(|(m, access)| *m == to || (*m == from && access.writes()))
                    };
                    while let Some(i) = late.iter().position(meets) {
                        finish(i, &mut late, &mut out);
                    }
                }
            }
            out.push(step);
        }
        while !late.is_empty() {
            finish(0, &mut late, &mut out);
        }
        out
    }

    fn memory(&self, b: BufferId) -> Memory {
        match self.routine.buffer(b).place {
            Place::Slice { base, .. } => self.memory(base),
            place @ (Place::Param(_) | Place::State(_) | Place::Input(_) | Place::Argument(_)) => Memory::Slot(place),
            _ => Memory::Buffer(b),
        }
    }
}

/// Waits here for an exchange, and all of its bucket that have begun.
fn finish(i: usize, late: &mut Vec<Late>, out: &mut Vec<Step>) {
    let bucket = late[i].bucket;
    let mut kinds: Vec<&str> = Vec::new();
    let mut all = Vec::new();
    let mut step = late[i].step.clone();
    let mut at = 0;
    late.retain(|l| {
        at += 1;
        let joins = at - 1 == i || (bucket > 0 && l.bucket == bucket);
        if joins {
            if all.is_empty() {
                step = l.step.clone();
            }
            if !kinds.contains(&l.begun.kind.name()) {
                kinds.push(l.begun.kind.name());
            }
            all.push(l.begun.clone());
        }
        !joins
    });
    out.push(Step { action: Action::Wait(all), label: kinds.join("+"), ..step });
}

/// Numbers exchanges in order.
fn number(steps: &mut [Step], numbers: &mut HashMap<u32, u32>) {
    for step in steps {
        match &mut step.action {
            Action::Collective(c) => {
                let next = numbers.len() as u32;
                c.number = *numbers.entry(c.number).or_insert(next);
            }
            Action::Wait(all) => all.iter_mut().for_each(|b| b.number = numbers[&b.number]),
            Action::Loop(l) => number(&mut l.body, numbers),
            _ => {}
        }
    }
}
