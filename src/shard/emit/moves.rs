//! Moves from layout to layout: the cheapest way from a form that there is, as collectives and local operations.

use super::super::facts::Stored;
use super::super::{Reason, Regather, Why};
use super::{Emitter, Form};
use crate::ir::*;
use crate::mesh::reshard::{self, Kind, Step};
use crate::mesh::{Atom, Layout, Partial};
use crate::types::{DType, MapOp, ReduceKind};

impl Emitter<'_, '_> {
    /// The value in a layout; made from the form from which that takes least.
    pub(super) fn form(&mut self, v: ValueId, want: &Layout, operation: OpId, why: Why) -> ValueId {
        if let Some(f) = self.usable(v).find(|f| f.layout == *want) {
            return f.value;
        }
        let shape = self.shape(v);
        let bytes = self.s.g.value(v).dtype.bytes();
        let usable: Vec<Form> = self.usable(v).cloned().collect();
        let mesh = self.s.mesh;
        let mut best: Option<(reshard::Cost, &Form)> = None;
        for f in &usable {
            if let Some(c) = reshard::cost(mesh, &shape, bytes, &f.layout, want)
                && best.as_ref().is_none_or(|(b, _)| c.order(b).is_lt())
            {
                best = Some((c, f));
            }
        }
        let (_, from) = best.unwrap_or_else(|| panic!("no way to {want:?} from {usable:?}"));
        let mut gathered = from.gathered;
        let steps = reshard::path(mesh, &shape, bytes, &from.layout, want).expect("a cost has a path");
        let mut at = from.value;
        for step in steps {
            at = self.step(v, at, &step, Reason { operation, why, value: v, bytes: step.bytes, again: None });
            self.add_form(v, step.to.clone(), at);
            gathered = step.kind == Kind::AllGather || (gathered && step.kind != Kind::Slice);
            self.forms.get_mut(&v).and_then(|f| f.last_mut()).expect("just made").gathered = gathered;
        }
        at
    }

    /// Forms that a use may take: parameters that are gathered again in the backward pass were not kept.
    pub(super) fn usable(&self, v: ValueId) -> impl Iterator<Item = &Form> {
        let all = self.forms.get(&v).expect("a value is made before its use");
        let dropped = self.b.phase != Phase::Forward
            && self
                .stored(v)
                .is_some_and(|stored| stored.regather == Regather::Backward && stored.between != stored.compute);
        all.iter().filter(move |f| !dropped || !f.gathered || f.phase != Phase::Forward)
    }

    /// How the parameter is stored that a value is, or is in another type.
    fn stored(&self, v: ValueId) -> Option<&Stored> {
        let g = self.s.g;
        let outside = std::iter::successors(Some(v), |v| self.captured.get(v).copied()).last()?;
        let op = g.def_op(outside)?;
        match op.op {
            Op::Param(p) => Some(&self.s.storage.params[&g.params[p.index()].path]),
            Op::Map(MapOp::Cast(_)) if matches!(g.def_op(op.args[0])?.op, Op::Param(_)) => self.stored(op.args[0]),
            _ => None,
        }
    }

    pub(super) fn step(&mut self, v: ValueId, x: ValueId, step: &Step, reason: Reason) -> ValueId {
        let kind = match step.kind {
            Kind::MakePartial => return self.make_partial(v, x, step),
            Kind::ShardToPartial => return self.spread(v, x, step),
            Kind::Slice => CollectiveKind::Slice,
            Kind::ReduceScatter => CollectiveKind::ReduceScatter,
            Kind::AllToAll => CollectiveKind::AllToAll,
            Kind::Permute => CollectiveKind::Permute,
            Kind::AllGather => CollectiveKind::AllGather,
            Kind::AllReduce => CollectiveKind::AllReduce,
        };
        let (from, to) = (self.dims(v, &step.from), self.dims(v, &step.to));
        let parts: Vec<Atom> = (step.from.partial.iter().map(|p| p.atom))
            .filter(|a| !step.to.partial.iter().any(|p| p.atom == *a))
            .collect();
        let reduce = step.reduce.filter(|_| !parts.is_empty()).map(|op| (op, parts));
        let dims = from.iter().zip(&to).filter(|(a, b)| a != b).map(|(a, b)| (*a, *b)).collect();
        let c = Collective { kind, atoms: step.atoms.clone(), reduce, dims, hops: 0, bucket: 0 };
        let dtype = self.b.dtype(x);
        if kind != CollectiveKind::Slice {
            self.reasons.insert(OpId(self.b.graph.ops.len() as u32), reason);
        }
        self.b.emit(Op::Collective(c), &[x], &[(dtype, to)])[0]
    }

    /// Kept where the coordinates are 0, and elsewhere what changes nothing.
    fn make_partial(&mut self, v: ValueId, x: ValueId, step: &Step) -> ValueId {
        let new: Vec<Partial> = step.to.partial.iter().filter(|p| !step.from.partial.contains(p)).copied().collect();
        let mut at = x;
        for p in new {
            let neutral = p.op.neutral(self.s.g.value(v).dtype);
            at = self.only_first(at, p.atom, neutral);
        }
        at
    }

    fn only_first(&mut self, x: ValueId, atom: Atom, neutral: f64) -> ValueId {
        let c = self.local.coordinate(&mut self.b, atom);
        let zero = self.b.scalar(0.0, DType::I32);
        let first = self.b.map(MapOp::Eq, &[c, zero]);
        let fill = self.b.scalar(neutral, self.b.dtype(x));
        let types = [(self.b.dtype(x), self.b.dims(x).to_vec())];
        self.b.emit(Op::Map(MapOp::Where), &[first, x, fill], &types)[0]
    }

    /// A rank's part at its place, and elsewhere what changes nothing.
    fn spread(&mut self, v: ValueId, x: ValueId, step: &Step) -> ValueId {
        let dtype = self.s.g.value(v).dtype;
        let op = step.to.partial.first().map_or(ReduceKind::Sum, |p| p.op);
        let (from, to) = (self.dims(v, &step.from), self.dims(v, &step.to));
        let mut at = x;
        for (a, b) in from.iter().zip(&to).filter(|(a, b)| a != b) {
            // Read by index: what another rank has is what changes nothing.
            let index = self.local.index(&mut self.b, *b);
            let index = self.local.masked(&mut self.b, index, &[*b], -1.0);
            let index = self.local.inwards(&mut self.b, index, *a, true);
            let zero = self.b.scalar(0.0, DType::I32);
            let mine = self.b.map(MapOp::Ge, &[index, zero]);
            let dims: Vec<DimId> = self.b.dims(at).iter().map(|d| if d == a { *b } else { *d }).collect();
            let gather = Op::Gather { dims: vec![*a], mode: GatherMode::Zero };
            let read = self.b.emit(gather, &[at, index], &[(dtype, dims.clone())])[0];
            let fill = self.b.scalar(op.neutral(dtype), dtype);
            at = self.b.emit(Op::Map(MapOp::Where), &[mine, read, fill], &[(dtype, dims)])[0];
        }
        at
    }
}
