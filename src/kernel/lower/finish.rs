//! The end of a routine: values that leave it, new parameters and states in their slots, and buffers that nothing uses.
//!
//! A new parameter or state is written straight into its slot by the kernel that computes it, if nothing reads the old value
//! later and the kernel itself reads it only element by element where it writes. Else it is copied at the end.

use super::Lowerer;
use crate::ir::*;
use crate::program::{self, Action, Buffer, BufferId, Category, Launch, Loop, Place, Step};

/// Where new parameters, states and results of a function go.
fn is_slot(place: Place) -> bool {
    matches!(place, Place::Param(_) | Place::State(_) | Place::Argument(_))
}

impl Lowerer<'_, '_> {
    pub(super) fn outputs(&mut self, steps: &mut Vec<Step>) {
        let mut copies: Vec<(BufferId, BufferId, OpId)> = Vec::new();
        for output in self.graph.outputs.clone() {
            let v = output.value;
            let op = match self.graph.value(v).def {
                Def::Op(op, _) => op,
                Def::BlockParam(_) => OpId(0),
            };
            let kind = match output.kind {
                OutputKind::Loss => program::OutputKind::Loss,
                OutputKind::Metric => program::OutputKind::Metric,
                OutputKind::Value => program::OutputKind::Value,
                OutputKind::Param(p) | OutputKind::InitParam(p) => {
                    let (dims, slot) = (self.graph.params[p.index()].dims.clone(), self.slots.params[p.index()]);
                    self.write_slot(v, &dims, Place::Param(slot), op, steps, &mut copies);
                    continue;
                }
                OutputKind::State(s) | OutputKind::InitState(s) => {
                    let (dims, place) = (self.graph.states[s.index()].dims.clone(), self.slots.states[s.index()]);
                    self.write_slot(v, &dims, place, op, steps, &mut copies);
                    continue;
                }
            };
            let dims = self.graph.value(v).dims.clone();
            let buffer = match self.canonical(v, &dims) {
                Some(b) if matches!(self.routine.buffer(b).place, Place::Arena(_)) => b,
                _ => {
                    let Value { dtype, .. } = *self.graph.value(v);
                    let to = self.temporary(&output.name, dtype, self.graph.elements(&dims), op);
                    self.copy(v, &dims, to, op, steps);
                    to
                }
            };
            let source = self.module.source(output.span, "", None);
            self.routine.outputs.push(program::Output {
                kind,
                name: output.name.clone(),
                buffer,
                dims: dims.iter().map(|d| self.graph.dim(*d).name.clone()).collect(),
                shape: dims.iter().map(|d| self.graph.size(*d)).collect(),
                cut: super::ranks::parts(&self.graph, &dims),
                source,
            });
        }
        for (from, to, op) in copies {
            let step = self.step(Action::Copy { from, to }, op, "update".to_string());
            steps.push(step);
        }
        self.update_in_place(steps);
    }

    /// Has a value end in a slot.
    fn write_slot(
        &mut self,
        v: ValueId,
        order: &[DimId],
        place: Place,
        op: OpId,
        steps: &mut Vec<Step>,
        copies: &mut Vec<(BufferId, BufferId, OpId)>,
    ) {
        let dtype = self.graph.value(v).dtype;
        let elements = self.graph.elements(order);
        let to = self.slot_buffer(place, dtype, elements);
        let from = match self.canonical(v, order) {
            Some(b) if b == to => return,
            // Another slot's value is taken aside, since that slot may get a new one, too.
            Some(b) if !is_slot(self.routine.buffer(b).place) => b,
            _ => {
                let aside = self.temporary("update", dtype, elements, op);
                self.copy(v, order, aside, op, steps);
                aside
            }
        };
        copies.push((from, to, op));
    }

    pub(super) fn slot_buffer(&mut self, place: Place, dtype: crate::types::DType, elements: usize) -> BufferId {
        let (path, category) = match place {
            Place::Param(i) => (self.module.program.params[i as usize].path.clone(), Category::Parameters),
            Place::State(i) => {
                let slot = &self.module.program.states[i as usize];
                let optimizer = slot.role == program::Role::Optimizer;
                (slot.path.clone(), if optimizer { Category::OptimizerState } else { Category::State })
            }
            Place::Argument(n) => (format!("argument {n}"), Category::Activations),
            other => unreachable!("{other:?} is no slot"),
        };
        self.fixed(place, dtype, elements, &path, category)
    }

    /// Turns final copies into writes by the kernel itself.
    fn update_in_place(&mut self, steps: &mut Vec<Step>) {
        let n = self.routine.buffers.len();
        // Last step that reads a buffer, and the step that writes it if there is only one.
        let mut last_read: Vec<Option<usize>> = vec![None; n];
        let mut writer: Vec<Option<usize>> = vec![None; n];
        let mut writes: Vec<u32> = vec![0; n];
        for (i, step) in steps.iter().enumerate() {
            visit(step, &mut |b, access| {
                if access.reads() {
                    last_read[b.index()] = Some(i);
                }
                if access.writes() {
                    writer[b.index()] = Some(i);
                    writes[b.index()] += 1;
                }
            });
        }
        let leaves: Vec<BufferId> = self.routine.outputs.iter().map(|o| o.buffer).collect();
        let mut gone = vec![false; steps.len()];
        for i in 0..steps.len() {
            let Action::Copy { from, to } = steps[i].action else { continue };
            let (source, target) = (self.routine.buffer(from), self.routine.buffer(to));
            if !is_slot(target.place) || !matches!(source.place, Place::Arena(_)) || leaves.contains(&from) {
                continue;
            }
            let Some(w) = writer[from.index()] else { continue };
            let read_later = last_read[to.index()].is_some_and(|r| r > w);
            let whole = source.elements == target.elements && source.dtype == target.dtype;
            if read_later || writes[from.index()] != 1 || !whole {
                continue;
            }
            let aligned = match &steps[w].action {
                Action::Finished(_) => false,
                Action::Launch(launch) => self.updates_aligned(launch, from, to),
                Action::Gemm(g) => g.a.buffer != to && g.b.buffer != to,
                Action::Copy { .. } => true,
                Action::Library(_) => last_read[to.index()].is_none_or(|r| r < w),
                Action::Wait(_) => last_read[to.index()].is_none_or(|r| r < w),
                Action::Collective(_) | Action::Loop(_) => false,
                Action::Call(_) | Action::Send(_) | Action::Receive(_) | Action::Sent(_) => false,
            };
            if !aligned {
                continue;
            }
            let place = self.routine.buffer(to).place;
            let Buffer { category, .. } = *self.routine.buffer(to);
            self.routine.buffers[from.index()].place = place;
            self.routine.buffers[from.index()].category = category;
            gone[i] = true;
        }
        let mut at = 0;
        steps.retain(|_| {
            at += 1;
            !gone[at - 1]
        });
    }

    /// Whether a kernel that writes `from` and reads `to` still works when the two are one: each element is read in the
    /// iteration that writes it, and in no other pass.
    fn updates_aligned(&self, launch: &Launch, from: BufferId, to: BufferId) -> bool {
        let kernel = &self.module.kernels[launch.function as usize];
        kernel.updates_in_place(
            |arg| launch.args[arg.index()].buffer == from,
            |arg| launch.args[arg.index()].buffer == to,
        )
    }

    /// Drops buffers that no step, slice or output names, and renumbers the rest.
    pub(super) fn drop_unused(&mut self) {
        let mut routine = std::mem::take(&mut self.routine);
        let mut used = vec![false; routine.buffers.len()];
        for step in &routine.steps {
            visit(step, &mut |b, _| used[b.index()] = true);
        }
        routine.outputs.iter().for_each(|o| used[o.buffer.index()] = true);
        for i in (0..routine.buffers.len()).rev() {
            if let (true, Place::Slice { base, turn, .. }) = (used[i], routine.buffers[i].place) {
                used[base.index()] = true;
                used[turn.index()] = true;
            }
        }
        let mut number = vec![BufferId(u32::MAX); used.len()];
        let mut kept = Vec::new();
        for (i, buffer) in routine.buffers.into_iter().enumerate() {
            if used[i] {
                number[i] = BufferId(kept.len() as u32);
                kept.push(buffer);
            }
        }
        for b in &mut kept {
            if let Place::Slice { base, turn, .. } = &mut b.place {
                *base = number[base.index()];
                *turn = number[turn.index()];
            }
        }
        routine.buffers = kept;
        routine.outputs.iter_mut().for_each(|o| o.buffer = number[o.buffer.index()]);
        let renumber = &mut |b: &mut BufferId| *b = number[b.index()];
        routine.steps.iter_mut().for_each(|s| s.action.buffers_mut(renumber));
        self.routine = routine;
    }
}

/// All buffers that a step names, those of a loop's body included.
pub(super) fn visit(step: &Step, f: &mut impl FnMut(BufferId, program::Access)) {
    let mut work = vec![step];
    while let Some(step) = work.pop() {
        step.action.accesses(&mut *f);
        if let Action::Loop(Loop { body, moves, .. }) = &step.action {
            for (from, to) in moves {
                f(*from, program::Access::Read);
                f(*to, program::Access::Write);
            }
            work.extend(body);
        }
    }
}
