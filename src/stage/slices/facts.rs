//! Which values of a model are statistics of the batch, or depend on them.
//!
//! A value *of the batch* depends on samples; without a sample dim it is *whole*. An operation whose result is of samples takes a
//! *statistic* if a loss needs it and it reads a whole value or works across samples; but not where a loss is linear in its
//! result and the whole value depends on no parameter (the count of a masked mean that divides each sample's loss).

use super::super::accumulate::reads_params;
use super::super::samplewise::{Class, Samples, linear, samplewise};
use super::pair::splat;
use crate::ir::*;
use crate::types::ReduceKind;

/// By value. Of loop bodies only `of_batch` and `same` are known.
pub struct Facts<'a> {
    g: &'a Graph,
    part: &'a Graph,
    pairs: &'a [Option<OpId>],
    samples: &'a Samples,
    /// Depends on samples, or has an element a sample.
    pub of_batch: Vec<bool>,
    on_params: Vec<bool>,
    /// A loss needs it.
    pub needed: Vec<bool>,
    /// The losses are linear in it.
    linear: Vec<bool>,
    /// Computed in a slice as in the batch, up to the number of samples.
    pub same: Vec<bool>,
    /// `same`, and each sample's part needs that sample alone.
    pub plain: Vec<bool>,
    /// Depends on a statistic, so that it is another value once statistics are taken per slice.
    pub cut: Vec<bool>,
    /// Of samples, after the statistics: it reads values of the whole batch.
    pub global: Vec<bool>,
    /// A whole value that is not affine in whole values that depend on parameters.
    pub curved: Vec<bool>,
}

impl<'a> Facts<'a> {
    pub fn new(g: &'a Graph, part: &'a Graph, pairs: &'a [Option<OpId>], samples: &'a Samples) -> Facts<'a> {
        let none = || vec![false; g.values.len()];
        let mut f = Facts {
            g,
            part,
            pairs,
            samples,
            of_batch: none(),
            on_params: none(),
            needed: none(),
            linear: vec![true; g.values.len()],
            same: none(),
            plain: none(),
            cut: none(),
            global: none(),
            curved: none(),
        };
        f.depend(ENTRY);
        f.compare(ENTRY, true);
        f.losses();
        for id in &g.block(ENTRY).ops {
            f.statistics(g.op(*id));
        }
        f
    }

    pub fn sample_dims(&self, v: ValueId) -> Vec<DimId> {
        self.g.value(v).dims.iter().copied().filter(|d| self.samples.contains(*d)).collect()
    }

    pub fn counts_samples(&self, d: DimId) -> bool {
        self.samples.contains(d)
    }

    fn of_samples(&self, v: ValueId) -> bool {
        self.g.value(v).dims.iter().any(|d| self.samples.contains(*d))
    }

    pub fn whole(&self, v: ValueId) -> bool {
        self.of_batch[v.index()] && !self.of_samples(v)
    }

    fn whole_on_params(&self, v: ValueId) -> bool {
        self.whole(v) && self.on_params[v.index()]
    }

    fn depend(&mut self, block: BlockId) {
        for id in &self.g.block(block).ops {
            let op = self.g.op(*id);
            let on_params = reads_params(self.g, op) || op.args.iter().any(|a| self.on_params[a.index()]);
            if let Op::Loop { body, carries, .. } = op.op {
                self.depend_in_loop(op, body, carries as usize);
            } else {
                let of_batch = op.args.iter().any(|a| self.of_batch[a.index()]);
                for r in &op.results {
                    self.of_batch[r.index()] = of_batch || self.of_samples(*r);
                }
            }
            for r in &op.results {
                self.on_params[r.index()] = on_params;
            }
        }
    }

    fn depend_in_loop(&mut self, op: &Operation, body: BlockId, carries: usize) {
        let block = self.g.block(body);
        for (p, a) in block.params[1..].iter().zip(&op.args) {
            self.of_batch[p.index()] = self.of_batch[a.index()] || self.of_samples(*p);
        }
        loop {
            self.depend(body);
            let mut grown = false;
            for c in 0..carries {
                let (before, after) = (block.params[1 + c].index(), block.results[c].index());
                if self.of_batch[after] && !self.of_batch[before] {
                    self.of_batch[before] = true;
                    grown = true;
                }
            }
            if !grown {
                break;
            }
        }
        for (k, (r, inner)) in op.results.iter().zip(&block.results).enumerate() {
            let carried = k < carries && self.of_batch[block.params[1 + k].index()];
            self.of_batch[r.index()] = self.of_batch[inner.index()] || carried || self.of_samples(*r);
        }
    }

    /// Fills `same`; `base` is whether what enters the block is the same.
    fn compare(&mut self, block: BlockId, base: bool) -> bool {
        for p in &self.g.block(block).params {
            self.same[p.index()] = base;
        }
        let mut all = base;
        for id in &self.g.block(block).ops {
            let op = self.g.op(*id);
            let Some(other) = self.pairs[id.index()].map(|q| self.part.op(q)) else { continue };
            let args = op.args.iter().zip(&other.args).all(|(a, b)| match (splat(self.g, *a), splat(self.part, *b)) {
                (Some(x), Some(y)) => x == y,
                _ => self.same[a.index()],
            });
            let same = match op.op {
                Op::Loop { body, .. } => self.compare(body, args),
                Op::Constant(_) if op.results.iter().any(|r| self.of_samples(*r)) => true,
                _ => args && op.op == other.op,
            };
            let sized = |d: &DimId| self.samples.contains(*d) || self.g.size(*d) == self.part.size(*d);
            for r in &op.results {
                let same = same && self.g.value(*r).dims.iter().all(sized);
                self.same[r.index()] = same;
                all &= same;
            }
        }
        all
    }

    /// What the losses need, and what they are linear in.
    fn losses(&mut self) {
        for o in self.g.outputs.iter().filter(|o| o.kind == OutputKind::Loss) {
            self.needed[o.value.index()] = true;
        }
        for id in self.g.block(ENTRY).ops.iter().rev() {
            let op = self.g.op(*id);
            if !op.results.iter().any(|r| self.needed[r.index()]) {
                continue;
            }
            let after = op.results.iter().all(|r| self.linear[r.index()]);
            for (i, a) in op.args.iter().enumerate() {
                let part = |j: usize| op.args[j] == op.args[i];
                let coefficient = |j: usize| !part(j) && !self.whole_on_params(op.args[j]);
                let straight = after && linear(op, &part, &coefficient, &|_| true);
                self.needed[a.index()] = true;
                self.linear[a.index()] &= straight;
            }
        }
    }

    /// Whether each sample's part of the results needs that sample alone, given the operands.
    fn samplewise(&self, op: &Operation) -> bool {
        let Op::Loop { body, dim, .. } = op.op else {
            let touches = op.args.iter().chain(&op.results).any(|v| self.of_samples(*v));
            return !touches || samplewise(self.g, self.samples, op, op.results[0]).is_ok();
        };
        let inner = |id: &OpId| {
            let op = self.g.op(*id);
            let touches = op.args.iter().chain(&op.results).any(|v| self.of_samples(*v));
            match op.op {
                Op::Loop { .. } => self.samplewise(op),
                _ => {
                    let kept = |r: &ValueId| matches!(samplewise(self.g, self.samples, op, *r), Ok(Class::Region(_)));
                    !touches || op.results.iter().all(kept)
                }
            }
        };
        !self.samples.contains(dim) && self.g.block(body).ops.iter().all(inner)
    }

    fn statistics(&mut self, op: &Operation) {
        let alone = self.samplewise(op);
        let reads_whole = op.args.iter().any(|a| self.whole(*a));
        let cut = op.args.iter().any(|a| self.cut[a.index()]);
        let paired = op.args.iter().any(|a| self.sample_dims(*a).len() > 1);
        for r in &op.results {
            let i = r.index();
            if !self.of_samples(*r) {
                self.cut[i] = cut;
                self.curved[i] = self.of_batch[i] && self.on_params[i] && self.bends(op, alone && !paired);
                continue;
            }
            let after = alone && self.needed[i] && self.linear[i] && !op.args.iter().any(|a| self.whole_on_params(*a));
            let statistic = self.needed[i] && (!alone || (reads_whole && !after));
            self.cut[i] = cut || statistic;
            self.global[i] = after && (reads_whole || op.args.iter().any(|a| self.global[a.index()]));
            let operands = op.args.iter().all(|a| {
                let a = a.index();
                self.plain[a] || (!self.of_batch[a] && (self.same[a] || splat(self.g, ValueId(a as u32)).is_some()))
            });
            self.plain[i] = self.same[i] && alone && operands;
        }
    }

    /// Whether a whole value is not affine in whole values that depend on parameters. Totals are what is affine in itself.
    fn bends(&self, op: &Operation, alone: bool) -> bool {
        if op.args.iter().any(|a| self.curved[a.index()]) {
            return true;
        }
        let total = |i: usize| self.whole_on_params(op.args[i]);
        let any = (0..op.args.len()).any(total);
        if !op.args.iter().any(|a| self.of_samples(*a)) {
            return any && !linear(op, &total, &|i| !total(i), &|_| true);
        }
        let sums = match &op.op {
            Op::Reduce { kind, .. } | Op::Scatter { kind, .. } => *kind == ReduceKind::Sum,
            Op::Dot { .. } => true,
            _ => false,
        };
        any || !alone || !sums
    }
}
