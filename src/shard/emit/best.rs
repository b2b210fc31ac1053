//! The k largest elements along a dim that is cut: each rank finds those of its block, these candidates are gathered, and the k largest of
//! them are taken. What is sent does not grow with the dim.

use super::super::nest::{Along, Nest};
use super::Emitter;
use super::scan::Blocks;
use crate::ir::*;
use crate::mesh::{Cut, Entry};
use crate::types::{DType, ReduceKind};

impl Emitter<'_, '_> {
    /// Nothing where the dim is not cut.
    pub(super) fn best(
        &mut self,
        (id, op): (OpId, &Operation),
        (nest, cuts): (&Nest, &[Cut]),
        x: ValueId,
        (dtype, dims): &(DType, Vec<DimId>),
    ) -> Option<ValueId> {
        let Op::TopK { dim, k } = op.op else { return None };
        let (_, cut) = nest.loops.iter().zip(cuts).find(|(l, c)| l.along == Along::Picked && !c.is_empty())?;
        let entries: Cut = cut.iter().map(|e| Entry::new(e.atom)).collect();
        let ranks = entries.iter().map(|e| self.s.mesh.size(e.atom)).product();
        let part = self.local.dim(&mut self.b, dim, cut);
        let each = self.b.size(k).min(self.b.size(part));
        let name = self.b.graph.dim(part).name.clone();
        let all = self.b.add_dim(&format!("{name}.blocks"), ranks, false);
        let few = self.b.add_dim(&format!("{name}.best"), each, false);
        let both = self.b.add_dim(&format!("{name}.candidates"), ranks * each, false);
        let own = self.local.dim(&mut self.b, all, &entries);
        let of = Blocks { part, own, all, entries, reverse: false };
        // Elements that are not real lie behind all that are, and count less or come later.
        let least = ReduceKind::Max.neutral(self.b.dtype(x));
        let x = self.local.masked(&mut self.b, x, &[part], least);
        let at = self.b.top_k(part, few, x);
        let found = self.b.gather(&[part], GatherMode::Error, x, &[at]);
        let places = self.local.whole(&mut self.b, at, part);
        let candidates = [(found, op.args[0]), (places, op.results[0])].map(|(v, whole)| {
            let v = self.gathered(id, &of, whole, v);
            // Blocks in order, so that the lowest place wins among equals.
            self.b.reshape(&[(vec![all, few], vec![both])], v)
        });
        let chosen = self.b.top_k(both, k, candidates[0]);
        let gather = Op::Gather { dims: vec![both], mode: GatherMode::Error };
        Some(self.b.emit(gather, &[candidates[1], chosen], &[(*dtype, dims.clone())])[0])
    }
}
