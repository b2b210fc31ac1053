//! Operations that the runtime has kernels for: their operands in canonical order.

use super::Lowerer;
use super::emit::{Emitter, HERE};
use crate::ir::*;
use crate::kernel::{Index, LoopId, Pass, Statement};
use crate::program::{Action, BufferId, Library, Place, Step};
use crate::types::{DType, MapOp};

impl Lowerer<'_, '_> {
    /// Storage order of a library operation's result.
    pub(super) fn library_order(&self, id: OpId) -> Vec<DimId> {
        let op = self.graph.op(id);
        let dims = &self.graph.value(op.results[0]).dims;
        let last = |minor: &[DimId]| -> Vec<DimId> {
            dims.iter().filter(|d| !minor.contains(d)).chain(minor).copied().collect()
        };
        match &op.op {
            Op::ArgSort { dim } => last(&[*dim]),
            Op::TopK { k, .. } => last(&[*k]),
            Op::PackPlace { packed, .. } => last(packed),
            Op::Draw { dims, .. } => dims.clone(),
            Op::Scatter { targets, .. } => {
                let (batch, _, own) = self.scatter_dims(id);
                batch.iter().chain(targets).chain(&own).copied().collect()
            }
            other => unreachable!("{other:?} is no library operation"),
        }
    }

    /// Of a scatter: dims that indices and result share, dims that go away, dims of x alone.
    fn scatter_dims(&self, id: OpId) -> (Vec<DimId>, Vec<DimId>, Vec<DimId>) {
        let op = self.graph.op(id);
        let Op::Scatter { removed, targets, .. } = &op.op else { unreachable!("asked of a scatter") };
        let mut indexed: Vec<DimId> = Vec::new();
        for index in &op.args[1..=targets.len()] {
            for d in &self.graph.value(*index).dims {
                if !indexed.contains(d) {
                    indexed.push(*d);
                }
            }
        }
        let x = &self.graph.value(op.args[0]).dims;
        let batch = indexed.iter().copied().filter(|d| !removed.contains(d)).collect();
        let own = x.iter().copied().filter(|d| !indexed.contains(d) && !removed.contains(d)).collect();
        (batch, removed.clone(), own)
    }

    /// How the operand of a scatter has to lie. Dims that go away and that it lacks repeat its rows, if they stand together.
    pub(super) fn scatter_source(&self, id: OpId) -> Vec<DimId> {
        let (batch, removed, own) = self.scatter_dims(id);
        let dims = &self.graph.value(self.graph.op(id).args[0]).dims;
        let lacks = |d: &DimId| !dims.contains(d);
        let mut runs: Vec<bool> = removed.iter().map(lacks).collect();
        runs.dedup();
        let together = runs.iter().filter(|lacks| **lacks).count() <= 1;
        let rows = removed.iter().filter(|d| !(together && lacks(d)));
        batch.iter().chain(rows).chain(&own).copied().collect()
    }

    pub(super) fn emit_library(&mut self, id: OpId, steps: &mut Vec<Step>) {
        let Operation { op, args, results, .. } = self.graph.op(id).clone();
        let order = self.library_order(id);
        let add = match &op {
            Op::Scatter { targets, .. } => args.get(1 + targets.len()).copied(),
            _ => None,
        };
        if let Some(v) = add
            && let Some(buffer) = self.canonical(v, &order)
        {
            match self.routine.buffer(buffer).place {
                Place::Arena(_) => self.take_over(buffer, results[0]),
                Place::Argument(_) => self.buffers[results[0].index()] = Some(buffer),
                _ => {}
            }
        }
        let out = self.buffer(results[0]);
        if let Some(v) = add {
            self.copy_into(v, &order, out, id, steps);
        }
        let x_dims = self.graph.value(args[0]).dims.clone();
        let rows_then = |minor: &[DimId]| -> Vec<DimId> {
            order.iter().filter(|d| x_dims.contains(d) && !minor.contains(d)).chain(minor).copied().collect()
        };
        let size = |low: &Self, dims: &[DimId]| low.graph.elements(dims);
        let action = match op {
            Op::ArgSort { dim } => {
                let x = self.canonical_or_copy(args[0], &order, id, steps);
                let n = self.graph.size(dim);
                Library::ArgSort { x, out, rows: size(self, &order) / n, n }
            }
            Op::TopK { dim, k } => {
                let from = rows_then(&[dim]);
                let x = self.canonical_or_copy(args[0], &from, id, steps);
                let (n, k) = (self.graph.size(dim), self.graph.size(k));
                Library::TopK { x, out, rows: size(self, &from) / n, n, k }
            }
            Op::PackPlace { packed, limit } => {
                let index = self.canonical_or_copy(args[0], &order, id, steps);
                let n = size(self, &packed);
                Library::PackPlace { index, out, rows: size(self, &order) / n, n, limit }
            }
            Op::Draw { dim, top_k, top_p, stream, dims } => {
                let mut from = dims.clone();
                from.push(dim);
                let logits = self.canonical_or_copy(args[0], &from, id, steps);
                let key = self.turn_key(stream, &args[1..]);
                let (rows, n) = (size(self, &dims), self.graph.size(dim));
                Library::Draw { logits, out, rows, n, top_k, top_p, key }
            }
            Op::Scatter { kind, targets, .. } => {
                let (batch, removed, own) = self.scatter_dims(id);
                let from = self.scatter_source(id);
                let repeated = |d: &&DimId| !from.contains(d);
                let times = removed.iter().filter(repeated).map(|d| self.graph.size(*d)).product::<usize>().max(1);
                let rest = removed.iter().rposition(|d| repeated(&d)).map_or(0, |n| n + 1);
                let each = if times == 1 { 1 } else { size(self, &removed[rest..]).max(1) };
                let x = self.canonical_or_copy(args[0], &from, id, steps);
                let index = self.flat_index(id, &batch, &removed, &targets, steps);
                Library::Scatter {
                    kind,
                    x,
                    index,
                    out,
                    batch: size(self, &batch),
                    m: size(self, &removed),
                    targets: size(self, &targets),
                    width: size(self, &own),
                    times,
                    each,
                    add: add.is_some(),
                }
            }
            other => unreachable!("{other:?} is no library operation"),
        };
        let label = super::op_word(&self.graph.op(id).op).to_string();
        let step = self.step(Action::Library(action), id, label);
        steps.push(step);
    }

    /// The place among all targets that each element goes to; -1 for those that are dropped. Row-major over batch, removed.
    fn flat_index(
        &mut self,
        id: OpId,
        batch: &[DimId],
        removed: &[DimId],
        targets: &[DimId],
        steps: &mut Vec<Step>,
    ) -> BufferId {
        let args = self.graph.op(id).args.clone();
        let order: Vec<DimId> = batch.iter().chain(removed).copied().collect();
        let elements = self.graph.elements(&order);
        let to = self.temporary("index", DType::I32, elements, id);
        let result = self.graph.op(id).results[0];
        let rows = order.len().saturating_sub(1);
        let mut emit = Emitter::new(self, &order, rows, vec![], id);
        let zero = emit.constant(0.0, DType::I32);
        let mut flat = Index::default();
        let mut dropped = None;
        for (target, index) in targets.iter().zip(&args[1..]) {
            let raw = emit.value(*index, HERE);
            let negative = emit.map(MapOp::Lt, &[raw, zero], DType::Bool);
            dropped = Some(match dropped {
                None => negative,
                Some(d) => emit.map(MapOp::Or, &[d, negative], DType::Bool),
            });
            let at = emit.map(MapOp::Max, &[raw, zero], DType::I32);
            let at = emit.check(at, *target, result, None);
            let mut next = Index::default();
            next.add(&flat, emit.low.graph.size(*target) as i64);
            next.add(&Index::of_expr(at), 1);
            flat = next;
        }
        let place = emit.index(flat);
        let minus = emit.constant(-1.0, DType::I32);
        let value = match dropped {
            Some(d) => emit.map(MapOp::Where, &[d, minus, place], DType::I32),
            None => place,
        };
        let store = emit.store_to(to, &order, value);
        let loops = (rows..order.len()).map(|l| LoopId(l as u32)).collect();
        let body = vec![Statement::Pass(Pass { loops, stores: vec![store], ..Pass::default() })];
        emit.finish(body, "index".to_string(), steps);
        to
    }
}
