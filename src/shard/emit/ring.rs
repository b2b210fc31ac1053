//! Attention of which a rank has some queries and a block of keys and values: the blocks go round.
//!
//! Turn s brings the block of the rank s places before. Forward, what queries got of earlier blocks and their logsumexp are combined with
//! what they get of this one (online softmax: Milakov and Gimelshein 2018, arXiv 1805.02867). Backward, the
//! cotangents of a block travel one turn behind it, collect what each rank adds, and come home with the last turn.

use super::super::nest::{Along, Nest};
use super::super::ring::travels;
use super::super::{Reason, Why};
use super::Emitter;
use crate::ir::*;
use crate::mesh::{Atom, Cut, Entry, Layout, Order, Partial, cut};
use crate::types::{DType, MapOp};

/// What all turns of one attention share.
struct Ring<'o> {
    id: OpId,
    op: &'o Operation,
    a: Attention,
    entry: Entry,
    ranks: usize,
    /// The dims of a block of keys: as a part, and while it goes round.
    part: DimId,
    block: DimId,
    query: DimId,
    /// This rank's coordinate.
    here: ValueId,
    types: Vec<(DType, Vec<DimId>)>,
}

impl Emitter<'_, '_> {
    pub(super) fn ring(
        &mut self,
        (id, op): (OpId, &Operation),
        a: &Attention,
        (nest, cuts): (&Nest, &[Cut]),
        entry: Entry,
    ) {
        let g = self.s.g;
        let grad = matches!(op.op, Op::AttentionGrad(_));
        let with_block = |mut layout: Layout, v: ValueId| {
            if let Some(at) = g.value(v).dims.iter().position(|d| *d == a.key) {
                layout.dims[at] = vec![entry];
            }
            layout
        };
        let mut args = Vec::with_capacity(op.args.len());
        for (i, v) in op.args.iter().enumerate() {
            let mut want = self.slot_layout(nest, cuts, i, g.value(*v).dims.len());
            if travels(a, i) {
                want = with_block(want, *v);
            }
            args.push(self.form(*v, &want, id, Why::Operand));
        }
        let mut made = Vec::new();
        for (k, r) in op.results.iter().enumerate() {
            let slot = nest.operands + k;
            let mut layout = with_block(self.slot_layout(nest, cuts, slot, g.value(*r).dims.len()), *r);
            for (l, cut) in nest.loops.iter().zip(cuts) {
                if let (Along::Contract(kind), None) = (l.along, l.slots[slot]) {
                    let others = cut.iter().filter(|e| e.atom != entry.atom);
                    layout.partial.extend(others.map(|e| Partial { atom: e.atom, op: kind }));
                }
            }
            layout.partial.sort_unstable();
            made.push(layout);
        }
        let part = self.local.dim(&mut self.b, a.key, &vec![entry]);
        let order = Order::Ring { len: self.b.size(part) as u32 };
        let block = self.local.dim(&mut self.b, a.key, &vec![Entry { unit: 1, order, ..entry }]);
        let types = op.results.iter().zip(&made).map(|(r, l)| {
            let dims = self.dims(*r, l).into_iter().map(|d| if d == part { block } else { d }).collect();
            (g.value(*r).dtype, dims)
        });
        let types = types.collect();
        let query = self.local.dim(&mut self.b, a.query, &vec![entry]);
        let here = self.local.coordinate(&mut self.b, entry.atom);
        let ranks = self.s.mesh.size(entry.atom);
        let r = Ring { id, op, a: a.clone(), entry, ranks, part, block, query, here, types };
        for i in (0..args.len()).filter(|i| travels(a, *i)) {
            args[i] = self.b.rename(part, block, args[i]);
        }
        let values = if grad {
            let dead = self.dead(op, nest, cuts);
            self.mask_gradient(a, &dead, &mut args);
            self.ring_back(&r, args)
        } else {
            self.ring_forward(&r, args)
        };
        for ((v, layout), value) in op.results.iter().zip(made).zip(values) {
            let value = if self.b.dims(value).contains(&block) { self.b.rename(block, part, value) } else { value };
            self.add_form(*v, layout, value);
            self.settle(*v, id);
        }
    }

    /// The operation with one block of keys: of the rank itself, or of another coordinate.
    fn with_block(&mut self, r: &Ring<'_>, of: Option<ValueId>, args: &[ValueId]) -> Vec<ValueId> {
        let mut a = Attention { key: r.block, query: r.query, ..r.a.clone() };
        let mut args = args.to_vec();
        let from = of.unwrap_or(r.here);
        self.columns(r, from, &mut args);
        let extent = self.b.graph.extent(r.part);
        let even = cut::even(self.s.mesh, &[r.entry], extent);
        let counted = a.causal || a.reach.is_some();
        // Keys beyond the last one lie behind all queries, unless these are counted from further on.
        let hidden = even || a.causal && a.position().is_none();
        if r.entry.order == Order::Block && hidden {
            if counted {
                let first = self.local.first(&mut self.b, r.query);
                let size = self.b.scalar(self.b.size(r.block) as f64, DType::I32);
                let begin = self.b.mul(from, size);
                let first = self.b.sub(first, begin);
                match a.position() {
                    Some(at) => args[at] = self.b.add(args[at], first),
                    None => args.insert(a.operands(), first),
                }
                a.first = true;
            }
        } else {
            self.seen(r, &mut a, from, &mut args);
        }
        let known = match r.op.op {
            Op::Attention(_) => Op::Attention(a),
            _ => Op::AttentionGrad(a),
        };
        self.b.emit(known, &args, &r.types)
    }

    /// A mask and a bias may have columns for all keys: those of a block take their place.
    fn columns(&mut self, r: &Ring<'_>, from: ValueId, args: &mut [ValueId]) {
        let (_, mask, bias) = r.a.extras();
        for i in [mask, bias].into_iter().flatten() {
            if !self.b.dims(args[i]).contains(&r.a.key) {
                continue;
            }
            let at = self.keys(r, from);
            // What lies behind the last key is hidden elsewhere.
            let at = self.b.map_scalar(MapOp::Min, at, self.b.graph.extent(r.part) as f64 - 1.0);
            args[i] = self.b.gather(&[r.a.key], GatherMode::Error, args[i], &[at]);
        }
    }

    /// I32 over a block: the places of its keys in the whole.
    fn keys(&mut self, r: &Ring<'_>, from: ValueId) -> ValueId {
        let at = self.b.iota(r.block);
        let size = self.b.size(r.block);
        self.local.outwards(&mut self.b, at, &r.entry, size, from)
    }

    /// Who sees whom, as a mask.
    fn seen(&mut self, r: &Ring<'_>, a: &mut Attention, from: ValueId, args: &mut Vec<ValueId>) {
        let mut q = self.local.index(&mut self.b, r.query);
        if let Some(at) = a.position() {
            q = self.b.add(q, args[at]);
        }
        let extent = self.b.graph.extent(r.part);
        let k = self.keys(r, from);
        let n = self.b.scalar(extent as f64, DType::I32);
        let mut seen = self.b.map(MapOp::Lt, &[k, n]);
        if a.causal {
            let m = self.b.map(MapOp::Le, &[k, q]);
            seen = self.b.map(MapOp::And, &[seen, m]);
        }
        if let Some(reach) = a.reach {
            let far = self.b.sub(q, k);
            let m = self.b.map_scalar(MapOp::Lt, far, f64::from(reach));
            seen = self.b.map(MapOp::And, &[seen, m]);
        }
        match a.extras().1 {
            Some(own) => args[own] = self.b.map(MapOp::And, &[args[own], seen]),
            None => args.insert(3 + 2 * usize::from(a.documents), seen),
        }
        (a.causal, a.reach, a.mask) = (false, None, true);
    }

    /// The coordinate whose block is here in a turn.
    fn source(&mut self, r: &Ring<'_>, turn: ValueId) -> ValueId {
        let hops = self.b.map_scalar(MapOp::Add, turn, 1.0);
        let at = self.b.sub(r.here, hops);
        let round = self.b.map_scalar(MapOp::Add, at, r.ranks as f64);
        let below = self.b.map_scalar(MapOp::Lt, at, 0.0);
        self.b.select(below, round, at)
    }

    fn hop(&mut self, r: &Ring<'_>, x: ValueId, v: ValueId) -> ValueId {
        let (dtype, dims) = (self.b.dtype(x), self.b.dims(x).to_vec());
        let bytes = (self.b.graph.elements(&dims) * dtype.bytes()) as f64;
        let atoms: Vec<Atom> = vec![r.entry.atom];
        let c = Collective { kind: CollectiveKind::Permute, atoms, reduce: None, dims: Vec::new(), hops: 1, bucket: 0 };
        let reason = Reason { operation: r.id, why: Why::Ring, value: v, bytes, again: None };
        self.reasons.insert(OpId(self.b.graph.ops.len() as u32), reason);
        self.b.emit(Op::Collective(c), &[x], &[(dtype, dims)])[0]
    }

    /// The turns: `join` makes the next carries of these and of what a block gives. Returns the last ones.
    fn round(
        &mut self,
        r: &Ring<'_>,
        args: &[ValueId],
        carries: &[ValueId],
        mut join: impl FnMut(&mut Self, &[ValueId], Vec<ValueId>) -> Vec<ValueId>,
    ) -> Vec<ValueId> {
        let moving: Vec<usize> = (0..args.len()).filter(|i| travels(&r.a, *i)).collect();
        let mut initial: Vec<ValueId> = moving.iter().map(|i| args[*i]).collect();
        initial.extend(carries);
        let name = format!("{}.turn", self.s.mesh.name(r.entry.atom).replace(':', "."));
        let dim = self.b.add_dim(&name, r.ranks - 1, false);
        let frame = self.b.begin_loop(dim, false, &initial);
        let inner = self.b.block();
        let mut now = args.to_vec();
        let mut next = Vec::new();
        for (carried, i) in frame.carries.iter().zip(&moving) {
            now[*i] = self.hop(r, *carried, r.op.args[*i]);
            next.push(now[*i]);
        }
        let from = self.source(r, frame.turn);
        let more = self.with_block(r, Some(from), &now);
        next.extend(join(self, &frame.carries[moving.len()..], more));
        let (mut last, _) = self.b.end_loop(frame, &next, &[]);
        self.local.close(inner);
        last.split_off(moving.len())
    }

    fn ring_forward(&mut self, r: &Ring<'_>, args: Vec<ValueId>) -> Vec<ValueId> {
        let own = self.with_block(r, None, &args);
        let sums = self.b.dtype(own[1]);
        let joined =
            |e: &mut Self, x: &[ValueId]| [e.b.cast(x[0], sums), e.replaced(x[1], f64::INFINITY, f64::NEG_INFINITY)];
        let own = joined(self, &own);
        let last = self.round(r, &args, &own, |e, carried, more| {
            let more = joined(e, &more);
            e.combined((carried[0], carried[1]), (more[0], more[1])).to_vec()
        });
        let log = self.replaced(last[1], f64::NEG_INFINITY, f64::INFINITY);
        vec![self.b.cast(last[0], r.types[0].0), log]
    }

    /// x, with one number in place of another.
    fn replaced(&mut self, x: ValueId, old: f64, new: f64) -> ValueId {
        let is = self.b.map_scalar(MapOp::Eq, x, old);
        let new = self.b.scalar(new, self.b.dtype(x));
        self.b.select(is, new, x)
    }

    /// Means by weights of two sets of keys as that of both; logsumexps, which are -inf of sets that are not seen.
    fn combined(&mut self, one: (ValueId, ValueId), other: (ValueId, ValueId)) -> [ValueId; 2] {
        let top = self.b.map(MapOp::Max, &[one.1, other.1]);
        let nothing = self.b.scalar(0.0, self.b.dtype(top));
        let mut weight = |log: ValueId| {
            let less = self.b.sub(log, top);
            let w = self.b.map(MapOp::Exp, &[less]);
            let none = self.b.map_scalar(MapOp::Eq, log, f64::NEG_INFINITY);
            self.b.select(none, nothing, w)
        };
        let (u, v) = (weight(one.1), weight(other.1));
        let total = self.b.add(u, v);
        let empty = self.b.map_scalar(MapOp::Eq, total, 0.0);
        let unit = self.b.scalar(1.0, self.b.dtype(total));
        let divisor = self.b.select(empty, unit, total);
        let mut scaled = |y: ValueId, w: ValueId| {
            let share = self.b.map(MapOp::Div, &[w, divisor]);
            self.b.mul(y, share)
        };
        let (a, b) = (scaled(one.0, u), scaled(other.0, v));
        let ln = self.b.map(MapOp::Log, &[divisor]);
        let log = self.b.add(top, ln);
        let bottom = self.b.scalar(f64::NEG_INFINITY, self.b.dtype(log));
        [self.b.add(a, b), self.b.select(empty, bottom, log)]
    }

    fn ring_back(&mut self, r: &Ring<'_>, args: Vec<ValueId>) -> Vec<ValueId> {
        let own = self.with_block(r, None, &args);
        let sums = if r.types[0].0 == DType::F64 { DType::F64 } else { DType::F32 };
        let mut initial = vec![self.b.cast(own[0], sums)];
        for (dtype, dims) in &r.types[1..] {
            initial.push(self.b.splat_of(0.0, *dtype, dims));
        }
        let last = self.round(r, &args, &initial, |e, carried, more| {
            let dq = e.b.cast(more[0], sums);
            let mut next = vec![e.b.add(carried[0], dq)];
            for k in 1..3 {
                let all = e.b.add(carried[k], more[k]);
                next.push(e.hop(r, all, r.op.results[k]));
            }
            next
        });
        let dq = self.b.cast(last[0], r.types[0].0);
        vec![dq, self.b.add(last[1], own[1]), self.b.add(last[2], own[2])]
    }
}
