//! Running combinations and linear recurrences along a dim that is cut: each rank goes through its block from nothing, the totals of all
//! blocks are gathered, and what comes before a block is joined to it (the two levels of Blelloch's scan, CMU-CS-90-190).

use super::super::nest::{Along, Nest};
use super::super::{Reason, Why};
use super::Emitter;
use crate::ir::*;
use crate::mesh::{Cut, Entry};
use crate::types::{DType, MapOp, ReduceKind, ScanKind};

/// The blocks of a dim, of which each rank has one.
pub(super) struct Blocks {
    /// The dim as this rank has it.
    pub part: DimId,
    /// The number of the block: of this rank alone, and of all.
    pub own: DimId,
    pub all: DimId,
    pub entries: Cut,
    pub reverse: bool,
}

impl Emitter<'_, '_> {
    /// Nothing where the dim is not cut.
    pub(super) fn chained(
        &mut self,
        (id, op): (OpId, &Operation),
        (nest, cuts): (&Nest, &[Cut]),
        args: &[ValueId],
        types: &[(DType, Vec<DimId>)],
    ) -> Option<Vec<ValueId>> {
        let (dim, reverse) = match op.op {
            Op::Scan { dim, reverse, .. } | Op::LinearScan { dim, reverse } => (dim, reverse),
            _ => return None,
        };
        let (_, cut) = nest.loops.iter().zip(cuts).find(|(l, c)| l.along == Along::Chained && !c.is_empty())?;
        let entries: Cut = cut.iter().map(|e| Entry::new(e.atom)).collect();
        let count = entries.iter().map(|e| self.s.mesh.size(e.atom)).product();
        let part = self.local.dim(&mut self.b, dim, cut);
        let name = format!("{}.blocks", self.b.graph.dim(part).name);
        let all = self.b.add_dim(&name, count, false);
        let own = self.local.dim(&mut self.b, all, &entries);
        let blocks = Blocks { part, own, all, entries, reverse };
        Some(vec![match op.op {
            Op::Scan { kind, exclusive, .. } => self.scan(id, &blocks, (kind, exclusive), (op.args[0], args[0])),
            _ => self.recurrence(id, &blocks, op, args, &types[0]),
        }])
    }

    fn scan(
        &mut self,
        id: OpId,
        of: &Blocks,
        (kind, exclusive): (ScanKind, bool),
        (v, x): (ValueId, ValueId),
    ) -> ValueId {
        let (reduce, join) = match kind {
            ScanKind::Prod => (ReduceKind::Prod, MapOp::Mul),
            ScanKind::Max => (ReduceKind::Max, MapOp::Max),
            _ => (ReduceKind::Sum, MapOp::Add),
        };
        let neutral = reduce.neutral(self.b.dtype(x));
        let x = self.local.masked(&mut self.b, x, &[of.part], neutral);
        let within = self.b.scan(kind, of.part, exclusive, of.reverse, x);
        let total = self.b.reduce(reduce, &[of.part], x);
        let totals = self.gathered(id, of, v, total);
        let earlier = self.earlier(of);
        let none = self.b.scalar(neutral, self.b.dtype(x));
        let totals = self.b.select(earlier, totals, none);
        let before = self.b.reduce(reduce, &[of.all], totals);
        self.b.map(join, &[within, before])
    }

    fn recurrence(
        &mut self,
        id: OpId,
        of: &Blocks,
        op: &Operation,
        args: &[ValueId],
        (dtype, dims): &(DType, Vec<DimId>),
    ) -> ValueId {
        // A factor that is the same everywhere counts once for each place.
        let g = self.b.broadcast(args[0], &[of.part]);
        let g = self.local.masked(&mut self.b, g, &[of.part], 1.0);
        let x = self.b.broadcast(args[1], &[of.part]);
        let x = self.local.masked(&mut self.b, x, &[of.part], 0.0);
        let own = Op::LinearScan { dim: of.part, reverse: of.reverse };
        let within = self.b.emit(own, &[g, x], &[(*dtype, dims.clone())])[0];
        let factor = self.b.reduce(ReduceKind::Prod, &[of.part], g);
        let end = if of.reverse { 0 } else { self.b.size(of.part) - 1 };
        let (place, zero) = (self.b.iota(of.part), self.b.scalar(0.0, *dtype));
        let last = self.b.map_scalar(MapOp::Eq, place, end as f64);
        let last = self.b.select(last, within, zero);
        let state = self.b.reduce(ReduceKind::Sum, &[of.part], last);
        let factors = self.gathered(id, of, op.args[0], factor);
        let states = self.gathered(id, of, op.args[1], state);
        let after = self.b.linear_scan(of.all, of.reverse, factors, states);
        let before = self.b.shift(of.all, if of.reverse { -1 } else { 1 }, 0.0, after);
        let (place, here) = (self.b.iota(of.all), self.local.first(&mut self.b, of.own));
        let here = self.b.map(MapOp::Eq, &[place, here]);
        let before = self.b.select(here, before, zero);
        let before = self.b.reduce(ReduceKind::Sum, &[of.all], before);
        let decay = self.b.scan(ScanKind::Prod, of.part, false, of.reverse, g);
        let more = self.b.mul(decay, before);
        self.b.add(within, more)
    }

    /// Which blocks come before this rank's.
    fn earlier(&mut self, of: &Blocks) -> ValueId {
        let (place, here) = (self.b.iota(of.all), self.local.first(&mut self.b, of.own));
        self.b.map(if of.reverse { MapOp::Gt } else { MapOp::Lt }, &[place, here])
    }

    /// A rank's total as one of those of all blocks.
    pub(super) fn gathered(&mut self, id: OpId, of: &Blocks, v: ValueId, total: ValueId) -> ValueId {
        let one = self.b.broadcast(total, &[of.own]);
        let dtype = self.b.dtype(one);
        let dims: Vec<DimId> = self.b.dims(one).iter().map(|d| if *d == of.own { of.all } else { *d }).collect();
        let size = (self.b.graph.elements(self.b.dims(one)) * dtype.bytes()) as f64;
        let bytes = size * (self.b.size(of.all) as f64 - 1.0);
        self.reasons.insert(
            OpId(self.b.graph.ops.len() as u32),
            Reason { operation: id, why: Why::Chain, value: v, bytes, again: None },
        );
        let atoms = of.entries.iter().map(|e| e.atom).collect();
        let dims_changed = vec![(of.own, of.all)];
        let c =
            Collective { kind: CollectiveKind::AllGather, atoms, reduce: None, dims: dims_changed, hops: 0, bucket: 0 };
        self.b.emit(Op::Collective(c), &[one], &[(dtype, dims)])[0]
    }
}
