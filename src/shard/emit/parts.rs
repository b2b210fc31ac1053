//! An operation on the parts that a rank holds: its dims are those of the parts, indices count in them, and what is not real
//! takes no part in a sum.

use super::super::facts::is_edge;
use super::super::nest::{Along, Nest};
use super::super::units::to_slot;
use super::Emitter;
use crate::ir::*;
use crate::mesh::{Cut, Layout, Order};
use crate::types::{DType, MapOp, ReduceKind};
use std::collections::HashMap;

impl Emitter<'_, '_> {
    /// A dim as a slot of the operation has it.
    fn dim_in(&mut self, layouts: &[(ValueId, Layout)], slots: &[usize], d: DimId) -> DimId {
        for i in slots {
            let (v, layout) = &layouts[*i];
            if let Some(at) = self.s.g.value(*v).dims.iter().position(|x| *x == d) {
                return self.local.dim(&mut self.b, d, &layout.dims[at].clone());
            }
        }
        d
    }

    pub(super) fn emit_local(
        &mut self,
        id: OpId,
        op: &Operation,
        nest: &Nest,
        cuts: &[Cut],
        args: &[ValueId],
        made: &[Layout],
    ) -> Vec<ValueId> {
        let s = self.s;
        let mut layouts: Vec<(ValueId, Layout)> = Vec::new();
        for (i, a) in op.args.iter().enumerate() {
            layouts.push((*a, self.slot_layout(nest, cuts, i, s.g.value(*a).dims.len())));
        }
        let first_result = layouts.len();
        layouts.extend(op.results.iter().copied().zip(made.iter().cloned()));
        let operands: Vec<usize> = (0..first_result).collect();
        let results: Vec<usize> = (first_result..layouts.len()).collect();
        let all: Vec<usize> = operands.iter().chain(&results).copied().collect();
        let types: Vec<(DType, Vec<DimId>)> =
            (op.results.iter().zip(made)).map(|(r, layout)| (s.g.value(*r).dtype, self.dims(*r, layout))).collect();
        let mut args = args.to_vec();
        let dead = self.dead(op, nest, cuts);
        if let Some(done) = self.chained((id, op), (nest, cuts), &args, &types) {
            return done;
        }
        match &op.op {
            Op::Window { axes, fill } => {
                return self.window((id, op), (axes, *fill), (nest, cuts), &args, &types);
            }
            Op::Fold { axes } => return self.fold((id, op), axes, (nest, cuts), &args, &types),
            Op::Iota(_) => return vec![self.local.index(&mut self.b, types[0].1[0])],
            Op::TopK { .. } => {
                if let Some(done) = self.best((id, op), (nest, cuts), args[0], &types[0]) {
                    return vec![done];
                }
            }
            Op::Reduce { kind, dims } => {
                let neutral = kind.neutral(self.b.dtype(args[0]));
                args[0] = self.local.masked(&mut self.b, args[0], &dead, neutral);
                if matches!(kind, ReduceKind::ArgMax | ReduceKind::ArgMin) && !dead.is_empty() {
                    let local: Vec<DimId> = dims.iter().map(|d| self.dim_in(&layouts, &operands, *d)).collect();
                    return vec![self.arg_extreme((id, op), *kind, &local, args[0], &made[0])];
                }
            }
            Op::Dot { .. } => {
                for a in &mut args {
                    *a = self.local.masked(&mut self.b, *a, &dead, 0.0);
                }
            }
            Op::AttentionGrad(a) => self.mask_gradient(a, &dead, &mut args),
            Op::Gather { dims, mode } => {
                let mut local = Vec::new();
                let mut cut = false;
                for (k, d) in dims.iter().enumerate() {
                    let own = self.dim_in(&layouts, &[0], *d);
                    args[k + 1] = self.sound_index(args[k + 1]);
                    if own != *d {
                        args[k + 1] = self.local.inwards(&mut self.b, args[k + 1], own, *mode == GatherMode::Zero);
                        cut = true;
                    }
                    local.push(own);
                }
                let mode = if cut { GatherMode::Zero } else { *mode };
                return self.b.emit(Op::Gather { dims: local, mode }, &args, &types);
            }
            Op::Scatter { kind, removed, targets } => {
                let removed: Vec<DimId> = removed.iter().map(|d| self.dim_in(&layouts, &operands, *d)).collect();
                let mut local = Vec::new();
                for (k, d) in targets.iter().enumerate() {
                    let own = self.dim_in(&layouts, &[first_result], *d);
                    args[k + 1] = self.sound_index(args[k + 1]);
                    if own != *d {
                        args[k + 1] = self.local.inwards(&mut self.b, args[k + 1], own, true);
                    }
                    local.push(own);
                }
                // What is not real goes nowhere.
                if let Some(first) = args.get(1).copied()
                    && !targets.is_empty()
                {
                    let have: Vec<DimId> = dead.iter().copied().filter(|d| self.b.dims(first).contains(d)).collect();
                    args[1] = self.local.masked(&mut self.b, first, &have, -1.0);
                    let lack: Vec<DimId> = dead.iter().copied().filter(|d| !have.contains(d)).collect();
                    let neutral = kind.neutral(self.b.dtype(args[0]));
                    args[0] = self.local.masked(&mut self.b, args[0], &lack, neutral);
                }
                return self.b.emit(Op::Scatter { kind: *kind, removed, targets: local }, &args, &types);
            }
            _ => {}
        }
        if let Op::Reshape { groups } = &op.op {
            // Two dims may change places.
            let mut own = Vec::with_capacity(groups.len());
            for (from, to) in groups {
                let from = from.iter().map(|d| self.dim_in(&layouts, &operands, *d)).collect();
                own.push((from, to.iter().map(|d| self.dim_in(&layouts, &results, *d)).collect()));
            }
            if is_edge(op) {
                return vec![args[0]];
            }
            return self.b.emit(Op::Reshape { groups: own }, &args, &types);
        }
        let mut known = op.op.clone();
        if let Op::Attention(a) | Op::AttentionGrad(a) = &mut known {
            let query = self.dim_in(&layouts, &all, a.query);
            let key = self.dim_in(&layouts, &all, a.key);
            self.place_queries(a, query, key, &mut args);
        }
        let op = &Operation { op: known, ..op.clone() };
        let mut renamed = HashMap::new();
        op.op.map_dims(&mut |d| {
            renamed.insert(d, d);
            d
        });
        let mut names: Vec<DimId> = renamed.keys().copied().collect();
        names.sort_unstable();
        for d in names {
            // Splits and merges name their dims on one side only.
            let own = self.dim_in(&layouts, &all, d);
            renamed.insert(d, own);
        }
        let local = op.op.map_dims(&mut |d| renamed[&d]);
        self.b.emit(local, &args, &types)
    }

    /// Dims of contracted loops that are not all real, as operands have them.
    pub(super) fn dead(&mut self, op: &Operation, nest: &Nest, cuts: &[Cut]) -> Vec<DimId> {
        let mut dead: Vec<DimId> = Vec::new();
        for (l, cut) in nest.loops.iter().zip(cuts) {
            if cut.is_empty() || !matches!(l.along, Along::Contract(_)) {
                continue;
            }
            for (i, v) in op.args.iter().enumerate() {
                if let Some(place) = l.slots[i] {
                    let d = self.s.g.value(*v).dims[place.at];
                    let cut = to_slot(self.s.mesh, cut, l.extent, place.scale);
                    let d = self.local.dim(&mut self.b, d, &cut);
                    if !dead.contains(&d) {
                        dead.push(d);
                    }
                }
            }
        }
        dead
    }

    /// Queries that are not real add nothing to the cotangents of keys and values.
    pub(super) fn mask_gradient(&mut self, a: &Attention, dead: &[DimId], args: &mut [ValueId]) {
        let n = a.operands();
        for (i, fill) in [(0, 0.0), (n, 0.0), (n + 1, f64::INFINITY), (n + 2, 0.0)] {
            args[i] = self.local.masked(&mut self.b, args[i], dead, fill);
        }
    }

    /// Tells an attention which of all queries its own are, where it counts them.
    fn place_queries(&mut self, a: &mut Attention, query: DimId, key: DimId, args: &mut Vec<ValueId>) {
        let Some(cut) = self.b.graph.dim(query).cut.clone().filter(|_| a.causal || a.reach.is_some()) else { return };
        let all = a.operands();
        if cut.entries.iter().all(|e| e.order == Order::Block) {
            let first = self.local.first(&mut self.b, query);
            match a.position() {
                Some(at) => args[at] = self.b.add(args[at], first),
                None => args.insert(all, first),
            }
            a.first = true;
            return;
        }
        // Not one run: a mask says who sees whom.
        let (mut q, k) = (self.local.index(&mut self.b, query), self.b.iota(key));
        if let Some(at) = a.position() {
            q = self.b.add(q, args[at]);
        }
        let mut seen: Option<ValueId> = a.extras().1.map(|at| args[at]);
        let mut join = |b: &mut Builder, m: ValueId| {
            seen = Some(match seen {
                None => m,
                Some(s) => b.map(MapOp::And, &[s, m]),
            });
        };
        if a.causal {
            let m = self.b.map(MapOp::Le, &[k, q]);
            join(&mut self.b, m);
        }
        if let Some(reach) = a.reach {
            let far = self.b.sub(q, k);
            let n = self.b.scalar(f64::from(reach), DType::I32);
            let m = self.b.map(MapOp::Lt, &[far, n]);
            join(&mut self.b, m);
        }
        let seen = seen.expect("queries are counted for one of the two");
        match a.extras().1 {
            Some(at) => args[at] = seen,
            None => args.insert(3 + 2 * usize::from(a.documents), seen),
        }
        (a.causal, a.reach, a.mask) = (false, None, true);
    }

    /// An index that is in range where it is not real, too.
    fn sound_index(&mut self, index: ValueId) -> ValueId {
        let dims = self.b.dims(index).to_vec();
        self.local.masked(&mut self.b, index, &dims, 0.0)
    }
}
