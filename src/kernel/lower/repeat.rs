//! Loops at run time: the body is lowered once; carries stay in buffers of their own from turn to turn, collected values
//! are written to their slice of the stacked array.

use super::{Lowerer, Status, View};
use crate::ir::*;
use crate::program::{self, Action, Buffer, BufferId, Category, Place, Step};
use crate::types::DType;

impl Lowerer<'_, '_> {
    pub(super) fn emit_loop(&mut self, id: OpId, steps: &mut Vec<Step>) {
        let Operation { op, args, results, .. } = self.graph.op(id).clone();
        let Op::Loop { body, dim, reverse, carries } = op else { unreachable!("a loop node holds a loop") };
        let carries = carries as usize;
        let Block { params, results: ends, .. } = self.graph.block(body).clone();

        let turn = self.temporary("turn", DType::I32, 1, id);
        self.buffers[params[0].index()] = Some(turn);
        self.place_root(params[0], &[], Status::Memory);

        // Carries: a buffer each, which is also the final value.
        let mut kept: Vec<BufferId> = Vec::new();
        for i in 0..carries {
            let order = self.graph.value(results[i]).dims.clone();
            let buffer = self.buffer(results[i]);
            self.copy_into(args[i], &order, buffer, id, steps);
            self.place_root(params[i + 1], &order, Status::Memory);
            self.buffers[params[i + 1].index()] = Some(buffer);
            kept.push(buffer);
        }
        for (param, outer) in params[carries + 1..].iter().zip(&args[carries..]) {
            let view = self.view(*outer).clone();
            let dims = self.graph.value(*param).dims.clone();
            let strides = dims.iter().map(|d| self.stride(*outer, *d)).collect();
            // The buffer must exist before the body asks for it.
            self.buffer(view.root);
            self.views[param.index()] = Some(View { strides, ..view });
            self.status[param.index()] = Status::Memory;
            self.orders[param.index()] = self.order_of(*param);
        }

        // Collected values: slices.
        let mut slices: Vec<(ValueId, BufferId, Vec<DimId>)> = Vec::new();
        for (v, stacked) in ends[carries..].iter().zip(&results[carries..]) {
            let base = self.buffer(*stacked);
            let order: Vec<DimId> = self.graph.value(*stacked).dims.iter().copied().filter(|d| *d != dim).collect();
            let all: Vec<DimId> = std::iter::once(dim).chain(order.iter().copied()).collect();
            self.place_root(*stacked, &all, Status::Memory);
            let Value { dtype, name, .. } = self.graph.value(*v).clone();
            let elements = self.graph.elements(&order);
            let stride = (elements * dtype.bytes()) as i64;
            let source = self.source(id);
            let slice = self.add_buffer(Buffer {
                place: Place::Slice { base, turn, offset: 0, stride },
                dtype,
                elements,
                name: name.unwrap_or_else(|| "collected".into()),
                category: Category::Activations,
                source,
            });
            let made_here = matches!(self.graph.value(*v).def, Def::Op(..)) && self.graph.value(*v).block == body;
            if made_here && self.graph.value(*v).dims == order && self.buffers[v.index()].is_none() {
                self.buffers[v.index()] = Some(slice);
            }
            slices.push((*v, slice, order));
        }

        let mut inner = self.block(body);

        for (v, slice, order) in slices {
            let there = self.view(v).root == v && self.buffers[v.index()] == Some(slice);
            if !(there && self.canonical(v, &order) == Some(slice)) {
                self.copy(v, &order, slice, id, &mut inner);
            }
        }
        let mut moves = Vec::new();
        for i in 0..carries {
            let order = self.graph.value(results[i]).dims.clone();
            let next = ends[i];
            if self.canonical(next, &order) == Some(kept[i]) {
                continue;
            }
            // What comes from another carry, or stays as it is outside, is taken aside before anything moves.
            let root = self.view(next).root;
            let made_here = self.graph.value(root).block == body && !params.contains(&root);
            let from = if made_here {
                self.canonical_or_copy(next, &order, id, &mut inner)
            } else {
                let Value { dtype, .. } = self.graph.value(next).clone();
                let aside = self.temporary("carry", dtype, self.graph.elements(&order), id);
                self.copy(next, &order, aside, id, &mut inner);
                aside
            };
            moves.push((from, kept[i]));
        }
        let trip = self.graph.size(dim);
        let action = Action::Loop(program::Loop { trip, reverse, turn, body: inner, moves });
        let step = self.step(action, id, "loop".to_string());
        steps.push(step);
    }

    /// Writes a value to a buffer, row-major in `order`.
    pub(super) fn copy_into(&mut self, v: ValueId, order: &[DimId], to: BufferId, op: OpId, steps: &mut Vec<Step>) {
        match self.canonical(v, order) {
            Some(from) if from == to => {}
            Some(from) => {
                let step = self.step(Action::Copy { from, to }, op, "copy".to_string());
                steps.push(step);
            }
            None => self.copy(v, order, to, op, steps),
        }
    }
}
