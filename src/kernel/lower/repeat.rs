//! Loops at run time: the body is lowered once; carries stay in buffers of their own from turn to turn, collected values
//! are written to their slice of the stacked array. A product that is added to a carry adds to it in place.

use super::{Lowerer, Status, View};
use crate::ir::*;
use crate::program::{self, Action, Buffer, BufferId, Category, Place, Step};
use crate::types::{DType, MapOp};
use std::collections::HashMap;

impl Lowerer<'_, '_> {
    pub(super) fn emit_loop(&mut self, id: OpId, steps: &mut Vec<Step>) {
        let Operation { op, args, results, .. } = self.graph.op(id).clone();
        let Op::Loop { body, dim, reverse, carries } = op else { unreachable!("a loop node holds a loop") };
        let carries = carries as usize;
        let sums = self.sums_in_place(body, carries);
        let Block { params, results: ends, .. } = self.graph.block(body).clone();

        let turn = self.temporary("turn", DType::I32, 1, id);
        self.buffers[params[0].index()] = Some(turn);
        self.place_root(params[0], &[], Status::Memory);

        // Carries: a buffer each, which is also the final value.
        let mut kept: Vec<BufferId> = Vec::new();
        for i in 0..carries {
            let order = self.graph.value(results[i]).dims.clone();
            let buffer = match self.taken_over(id, &args, i, results[i]) {
                Some(buffer) => buffer,
                None => {
                    let buffer = self.buffer(results[i]);
                    self.copy_into(args[i], &order, buffer, id, steps);
                    buffer
                }
            };
            self.place_root(params[i + 1], &order, Status::Memory);
            self.buffers[params[i + 1].index()] = Some(buffer);
            kept.push(buffer);
        }
        for (i, product) in sums {
            let Def::Op(op, _) = self.graph.value(product).def else { unreachable!("a product is an operation's") };
            self.graph.values[product.index()].dims = self.graph.value(results[i]).dims.clone();
            self.buffers[product.index()] = Some(kept[i]);
            self.adds.insert(op);
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
                microbatch: None,
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

    /// Carries that grow by a product and are read by nothing else: the body's sum becomes the product alone. Returns the
    /// numbers of these carries with their products.
    fn sums_in_place(&mut self, body: BlockId, carries: usize) -> Vec<(usize, ValueId)> {
        let graph = &self.graph;
        let block = graph.block(body);
        let mut uses: HashMap<ValueId, u32> = HashMap::new();
        let args = block.ops.iter().flat_map(|id| &graph.op(*id).args);
        args.chain(&block.results).for_each(|v| *uses.entry(*v).or_insert(0) += 1);
        let mut sums = Vec::new();
        for i in 0..carries {
            let (carry, next) = (block.params[i + 1], block.results[i]);
            let Value { dtype, dims, def: Def::Op(sum, _), block: own, .. } = graph.value(next) else { continue };
            let Operation { op: Op::Map(MapOp::Add), args, .. } = graph.op(*sum) else { continue };
            let wide = matches!(dtype, DType::F32 | DType::F64);
            let Some(&product) = args.iter().find(|a| **a != carry) else { continue };
            let is_product = graph.def_op(product).is_some_and(|o| o.block == body && matches!(o.op, Op::Dot { .. }));
            let once = args.contains(&carry) && [carry, next, product].iter().all(|v| uses.get(v) == Some(&1));
            let whole = graph.value(product).dims.len() == dims.len();
            if *own == body && wide && is_product && once && whole && self.options.fuse {
                sums.push((i, product, *sum));
            }
        }
        let block = &mut self.graph.blocks[body.index()];
        for (i, product, sum) in &sums {
            block.ops.retain(|id| id != sum);
            block.results[*i] = *product;
        }
        sums.into_iter().map(|(i, product, _)| (i, product)).collect()
    }

    /// The buffer of a carry's initial value, where that is made for the loop alone.
    fn taken_over(&mut self, id: OpId, args: &[ValueId], i: usize, result: ValueId) -> Option<BufferId> {
        let v = args[i];
        let order = self.graph.value(result).dims.clone();
        let own = self.graph.value(v).block == self.current && matches!(self.graph.value(v).def, Def::Op(..));
        let alone = self.users[v.index()] == [id] && args.iter().filter(|a| **a == v).count() == 1;
        let results = &self.graph.block(self.current).results;
        let leaves = results.contains(&v) || self.graph.outputs.iter().any(|o| o.value == v);
        if !self.options.fuse || !own || !alone || leaves || self.view(v).root != v {
            return None;
        }
        let buffer = self.canonical(v, &order).filter(|b| self.is_temporary(*b))?;
        self.take_over(buffer, result);
        Some(buffer)
    }

    /// Has a value lie where one was that nothing else reads.
    pub(super) fn take_over(&mut self, buffer: BufferId, v: ValueId) {
        let named = self.buffer(v);
        let Buffer { name, category, source, .. } = self.routine.buffer(named).clone();
        let taken = &mut self.routine.buffers[buffer.index()];
        (taken.name, taken.category, taken.source) = (name, category, source);
        self.buffers[v.index()] = Some(buffer);
    }

    pub(super) fn is_temporary(&self, buffer: BufferId) -> bool {
        matches!(self.routine.buffer(buffer).place, Place::Arena(_))
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
