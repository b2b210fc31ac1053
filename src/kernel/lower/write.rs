//! Writes into a kept array: its new elements go to their places, and the others stay where they are.

use super::emit::{Emitter, HERE};
use super::{Lowerer, op_word};
use crate::ir::*;
use crate::kernel::{Index, LoopId, Pass, Statement};
use crate::program::{Place, Step};

impl Lowerer<'_, '_> {
    /// The state that a write changes in its slot: the old one is read by the write alone, and what comes out is the new one.
    pub(super) fn written_state(&self, id: OpId) -> Option<StateId> {
        let op = self.graph.op(id);
        let Op::WriteAt { .. } = op.op else { return None };
        let Some(Op::State(s)) = self.graph.def_op(op.args[0]).map(|o| &o.op) else { return None };
        let once = self.graph.ops.iter().filter(|o| o.op == Op::State(*s)).count() == 1;
        let alone = self.users[op.args[0].index()] == [id] && !op.args[1..].contains(&op.args[0]);
        let new = |o: &Output| o.kind == OutputKind::State(*s);
        let becomes = self.graph.outputs.iter().filter(|o| new(o)).all(|o| o.value == op.results[0]);
        let kept = self.graph.outputs.iter().any(new) && self.graph.outputs.iter().all(|o| o.value != op.args[0]);
        (op.block == ENTRY && once && alone && becomes && kept).then_some(*s)
    }

    /// Whether the result of a write lies in the slot of its state.
    pub(super) fn writes_in_slot(&self, id: OpId) -> bool {
        let op = self.graph.op(id);
        matches!(op.op, Op::WriteAt { .. })
            && self.buffers[op.results[0].index()]
                .is_some_and(|b| matches!(self.routine.buffer(b).place, Place::State(_)))
    }

    /// Stores what is written, at coordinates that are checked.
    pub(super) fn emit_write(&mut self, id: OpId, steps: &mut Vec<Step>) {
        let Operation { op, args, results, .. } = self.graph.op(id).clone();
        let Op::WriteAt { dim, part } = op else { unreachable!("a write") };
        let order: Vec<DimId> =
            self.order_of(results[0]).into_iter().map(|d| if d == dim { part } else { d }).collect();
        let rows = order.len() - 1;
        let label = op_word(&op).to_string();
        let mut emit = Emitter::new(self, &order, rows, vec![], id);
        let value = emit.value(args[1], HERE);
        let mut at = Index::of_expr(emit.value(args[2], HERE));
        at.add(&emit.coordinate(HERE, part), 1);
        let at = emit.index(at);
        let at = Index::of_expr(emit.check(at, dim, results[0], None));
        let coordinates =
            order.iter().map(|d| if *d == part { (dim, at.clone()) } else { (*d, emit.coordinate(HERE, *d)) });
        let frame = coordinates.collect();
        let frame = emit.frame(frame, None);
        let store = emit.store_value(results[0], frame, value);
        let pass = Pass { loops: vec![LoopId(rows as u32)], stores: vec![store], ..Pass::default() };
        emit.finish(vec![Statement::Pass(pass)], label, steps);
    }
}
