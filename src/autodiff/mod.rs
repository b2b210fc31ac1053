//! Reverse-mode derivatives: extends a forward graph by the gradients of its losses.
//!
//! In: a [`Builder`] at the end of the program's block, the losses in it and what to differentiate by. Out: values of
//! phase `Backward` appended to the program, in the order that frees activations last to first. Reading order: this file
//! (entry points, bookkeeping), `map.rs` (elementwise), `rules.rs` (all other operations), `loops.rs`.
//!
//! - [`gradients`]: of one scalar by values; [`gradients_of_params`]: of a sum of losses by parameters, over all their
//!   reads; [`backward`]: with given cotangents (loss scaling, several seeds).
//! - A gradient has the dims of its value (in any order) and the value's element type; a parameter's gradient has the type of
//!   the master copy. What the losses do not depend on has a gradient of zeros.
//! - Operations stand with the span and scope of the forward operation that they derive.
//! - Operations that turn out unused (recomputation in loops) are left for `ir::prune` to drop.
//! - A forward loop may gain results (its carries at the start of each turn); reads of parameters inside loop bodies are moved
//!   out of them.
//!
//! Inside, a cotangent may lack dims of its value: it is then the same along them. Cotangents of 16-bit copies of parameters (and
//! views of these) are f32, so that everything that is summed into a parameter's gradient is summed in f32.

mod hoist;
mod loops;
mod map;
mod rules;

pub use loops::clone_ops;

use crate::ir::*;
use crate::types::{DType, MapOp};

/// The gradients of a scalar of the program's block with respect to values of it.
pub fn gradients(b: &mut Builder, loss: ValueId, wrt: &[ValueId]) -> Vec<ValueId> {
    let seed = in_backward(b, |b| b.scalar(1.0, b.dtype(loss)));
    backward(b, &[(loss, seed)], wrt)
}

/// The gradients of the sum of `losses` with respect to parameters, whose reads may stand anywhere.
pub fn gradients_of_params(b: &mut Builder, losses: &[ValueId], params: &[ParamId]) -> Vec<ValueId> {
    let seeds: Vec<(ValueId, ValueId)> =
        losses.iter().map(|l| (*l, in_backward(b, |b| b.scalar(1.0, b.dtype(*l))))).collect();
    gradients_of_params_seeded(b, &seeds, params)
}

/// As [`gradients_of_params`], each loss with its cotangent (a scalar of its type; 1 gives the plain gradient).
pub fn gradients_of_params_seeded(b: &mut Builder, seeds: &[(ValueId, ValueId)], params: &[ParamId]) -> Vec<ValueId> {
    hoist::hoist_params(&mut b.graph);
    let mut reads: Vec<Vec<ValueId>> = vec![Vec::new(); params.len()];
    for id in &b.graph.block(ENTRY).ops {
        let op = b.graph.op(*id);
        if let Op::Param(p) = op.op
            && let Some(k) = params.iter().position(|q| *q == p)
        {
            reads[k].push(op.results[0]);
        }
    }
    let all: Vec<ValueId> = reads.concat();
    let found = partial_gradients(b, seeds, &all);
    let mut found = found.into_iter();
    in_backward(b, |b| {
        params
            .iter()
            .zip(&reads)
            .map(|(p, reads)| {
                let parts: Vec<ValueId> = found.by_ref().take(reads.len()).flatten().collect();
                let Param { dtype, dims, .. } = b.graph.params[p.index()].clone();
                match parts.into_iter().reduce(|x, y| b.add(x, y)) {
                    Some(sum) => b.broadcast(sum, &dims),
                    None => b.splat_of(0.0, dtype, &dims),
                }
            })
            .collect()
    })
}

/// The cotangents of `wrt`, given cotangents of other values (of their types; they may lack dims, along which they are the same).
pub fn backward(b: &mut Builder, seeds: &[(ValueId, ValueId)], wrt: &[ValueId]) -> Vec<ValueId> {
    let found = partial_gradients(b, seeds, wrt);
    in_backward(b, |b| {
        found
            .into_iter()
            .zip(wrt)
            .map(|(g, v)| {
                let Value { dtype, dims, .. } = b.graph.value(*v).clone();
                match g {
                    Some(g) => {
                        let g = b.cast(g, dtype);
                        b.broadcast(g, &dims)
                    }
                    None => b.splat_of(0.0, dtype, &dims),
                }
            })
            .collect()
    })
}

/// What phase, span and scope new operations are stamped with while `f` runs: backward, those of the builder.
fn in_backward<T>(b: &mut Builder, f: impl FnOnce(&mut Builder) -> T) -> T {
    let phase = std::mem::replace(&mut b.phase, Phase::Backward);
    let result = f(b);
    b.phase = phase;
    result
}

fn partial_gradients(b: &mut Builder, seeds: &[(ValueId, ValueId)], wrt: &[ValueId]) -> Vec<Option<ValueId>> {
    debug_assert_eq!(b.block(), ENTRY);
    let ops = b.graph.block(ENTRY).ops.clone();
    let mut r =
        Reverse { b, cotangents: Table::default(), needs: Table::default(), wide: Table::default(), cut: vec![] };
    for v in wrt {
        r.needs.set(*v, true);
    }
    r.mark(&ops);
    for (value, seed) in seeds {
        if r.needs.get(*value) {
            r.contribute(*value, *seed, &[]);
        }
    }
    r.run(&ops);
    wrt.iter().map(|v| r.cotangents.get(*v)).collect()
}

/// A side table by value that grows with the graph.
#[derive(Default)]
struct Table<T>(Vec<T>);

impl<T: Copy + Default> Table<T> {
    fn get(&self, v: ValueId) -> T {
        self.0.get(v.index()).copied().unwrap_or_default()
    }

    fn set(&mut self, v: ValueId, x: T) {
        if self.0.len() <= v.index() {
            self.0.resize(v.index() + 1, T::default());
        }
        self.0[v.index()] = x;
    }
}

struct Reverse<'b> {
    b: &'b mut Builder,
    cotangents: Table<Option<ValueId>>,
    /// Depends on what is differentiated by, through differentiable operations.
    needs: Table<bool>,
    /// A parameter, or a cast or view of one: its cotangent is at least f32.
    wide: Table<bool>,
    /// Operations that pass nothing back: the loop collects the cotangents of their results.
    cut: Vec<OpId>,
}

impl Reverse<'_> {
    /// Fills `needs` and `wide` for the results of the operations.
    fn mark(&mut self, ops: &[OpId]) {
        for id in ops {
            let op = self.b.graph.op(*id).clone();
            if let Op::Loop { body, carries, .. } = op.op {
                self.mark_loop(&op, body, carries as usize);
                continue;
            }
            let y = op.results[0];
            if matches!(op.op, Op::Param(_)) {
                self.wide.set(y, true);
            }
            if matches!(op.op, Op::Map(MapOp::Cast(_)) | Op::Reshape { .. } | Op::Window { .. } | Op::Broadcast { .. })
                && self.wide.get(op.args[0])
            {
                self.wide.set(y, true);
            }
            let flows = self.b.dtype(y).is_float()
                && (op.args.iter().enumerate()).any(|(i, a)| self.needs.get(*a) && rules::differentiable(&op.op, i));
            if flows {
                self.needs.set(y, true);
            }
        }
    }

    /// Walks the operations from the last to the first.
    fn run(&mut self, ops: &[OpId]) {
        let (span, scope, phase) = (self.b.span, self.b.scope, self.b.phase);
        self.b.phase = Phase::Backward;
        for id in ops.iter().rev() {
            let op = self.b.graph.op(*id);
            let reached = op.results.iter().any(|r| self.cotangents.get(*r).is_some());
            if !reached || self.cut.contains(id) || !op.args.iter().any(|a| self.needs.get(*a)) {
                continue;
            }
            let op = op.clone();
            (self.b.span, self.b.scope) = (op.span, op.scope);
            match &op.op {
                Op::Loop { .. } => self.loop_rule(*id, &op),
                Op::Map(m) => {
                    if let Some(g) = self.cotangents.get(op.results[0]) {
                        self.map_rule(*m, &op.args, op.results[0], g);
                    }
                }
                _ => {
                    if let Some(g) = self.cotangents.get(op.results[0]) {
                        self.rule(&op, g);
                    }
                }
            }
        }
        (self.b.span, self.b.scope, self.b.phase) = (span, scope, phase);
    }

    /// Whether a contribution to operand `v` is worth computing.
    fn wants(&self, v: ValueId) -> bool {
        self.needs.get(v) && self.b.dtype(v).is_float()
    }

    /// The element type that cotangents of a value are held in.
    fn held_in(&self, v: ValueId) -> DType {
        let dtype = self.b.dtype(v);
        if self.wide.get(v) && dtype.bytes() == 2 { DType::F32 } else { dtype }
    }

    /// Adds `g` to the cotangent of `v`. `over`: dims beyond those of `v` that `g` ranges over, whether it has them or is the
    /// same along them; it is summed over these.
    fn contribute(&mut self, v: ValueId, g: ValueId, over: &[DimId]) {
        if !self.wants(v) {
            return;
        }
        let dtype = self.held_in(v);
        let summed = self.sum_over(g, over, v, dtype);
        let total = match self.cotangents.get(v) {
            Some(old) => self.b.add(old, summed),
            None => summed,
        };
        self.cotangents.set(v, Some(total));
    }

    fn sum_over(&mut self, mut g: ValueId, over: &[DimId], v: ValueId, dtype: DType) -> ValueId {
        let extra: Vec<DimId> = over.iter().copied().filter(|d| !self.b.dims(v).contains(d)).collect();
        let (present, absent): (Vec<DimId>, Vec<DimId>) = extra.into_iter().partition(|d| self.b.dims(g).contains(d));
        if dtype.bytes() > self.b.dtype(g).bytes() {
            g = self.b.cast(g, dtype);
        }
        g = self.b.sum(&present, g);
        let times = self.b.graph.elements(&absent);
        if times > 1 {
            g = self.b.map_scalar(MapOp::Mul, g, times as f64);
        }
        self.b.cast(g, dtype)
    }

    /// The cotangent with all dims of `v`.
    fn full(&mut self, g: ValueId, v: ValueId) -> ValueId {
        let dims = self.b.dims(v).to_vec();
        self.b.broadcast(g, &dims)
    }

    fn zero(&mut self, like: ValueId) -> ValueId {
        let dtype = self.b.dtype(like);
        self.b.scalar(0.0, dtype)
    }
}
