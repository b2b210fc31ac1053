//! Derivatives of contractions, reductions, rearrangements and scans.

use super::Reverse;
use crate::ir::*;
use crate::types::{DType, MapOp, ReduceKind, ScanKind};

/// Whether a float result can depend smoothly on operand `i`, if that is a float.
pub(super) fn differentiable(op: &Op, i: usize) -> bool {
    match op {
        Op::Map(m) => {
            use MapOp::*;
            !matches!(m, Sign | Floor | Ceil | Round | FloorDiv)
        }
        Op::Reduce { kind, .. } => {
            matches!(kind, ReduceKind::Sum | ReduceKind::Prod | ReduceKind::Max | ReduceKind::Min)
        }
        Op::Broadcast { .. }
        | Op::Dot { .. }
        | Op::Reshape { .. }
        | Op::Fold { .. }
        | Op::Concat { .. }
        | Op::Stack { .. }
        | Op::LinearScan { .. }
        | Op::Loop { .. } => true,
        Op::Window { .. } | Op::Gather { .. } | Op::Scatter { .. } => i == 0,
        Op::Scan { kind, .. } => *kind != ScanKind::ArgMax,
        Op::WriteAt { .. } => i < 2,
        Op::Attention(_) => i < 3,
        Op::Param(_)
        | Op::State(_)
        | Op::Input(_)
        | Op::Constant(_)
        | Op::Iota(_)
        | Op::Step
        | Op::Position
        | Op::Random { .. }
        | Op::ArgSort { .. }
        | Op::TopK { .. }
        | Op::PackPlace { .. }
        | Op::Draw { .. }
        | Op::AttentionGrad(_)
        | Op::Coordinate(_)
        | Op::Collective(_)
        | Op::StopGradient => false,
    }
}

impl Reverse<'_> {
    /// An operation with one result, whose cotangent is `g`.
    pub(super) fn rule(&mut self, op: &Operation, g: ValueId) {
        let (args, y) = (&op.args, op.results[0]);
        let Some(&x) = args.first() else { return };
        match &op.op {
            Op::Broadcast { dims } => self.contribute(x, g, dims),
            Op::Reduce { kind, dims } => self.reduce_rule(*kind, dims, x, g),
            Op::Dot { .. } => {
                self.dot_part(args[0], args[1], y, g);
                self.dot_part(args[1], args[0], y, g);
            }
            Op::Reshape { groups } => {
                let mut back = Vec::new();
                let mut g = g;
                for (from, to) in groups {
                    // A group along all of which the cotangent is the same stays so.
                    if to.iter().any(|d| self.b.dims(g).contains(d)) || to.is_empty() {
                        g = self.b.broadcast(g, to);
                        back.push((to.clone(), from.clone()));
                    }
                }
                let part = reshape_back(self.b, &back, g);
                self.contribute(x, part, &[]);
            }
            Op::Window { axes, .. } => self.window_rule(axes, args, g),
            Op::Fold { axes } => {
                let g = self.full(g, y);
                let part = self.b.window(axes.clone(), 0.0, g, &[]);
                self.contribute(x, part, &[]);
            }
            Op::Gather { dims, .. } => self.gather_rule(dims, args, y, g),
            Op::Scatter { kind, removed, targets } => self.scatter_rule(*kind, removed, targets, args, y, g),
            Op::Concat { parts, to } => {
                let mut start = 0;
                for (part, v) in parts.iter().zip(args) {
                    let piece = if self.b.dims(g).contains(to) { self.b.slice(*to, start, *part, g) } else { g };
                    self.contribute(*v, piece, &[]);
                    start += self.b.size(*part);
                }
            }
            Op::Stack { dim } => {
                for (k, v) in args.iter().enumerate() {
                    let piece = if self.b.dims(g).contains(dim) { self.b.index(*dim, k, g) } else { g };
                    self.contribute(*v, piece, &[]);
                }
            }
            Op::Scan { kind, dim, exclusive, reverse } => {
                let g = self.full(g, y);
                self.scan_rule(*kind, *dim, *exclusive, *reverse, x, g);
            }
            Op::LinearScan { dim, reverse } => self.linear_scan_rule(*dim, *reverse, args, y, g),
            Op::WriteAt { dim, part } => {
                let g = self.full(g, y);
                if self.wants(args[1]) {
                    let axis = WindowAxis { input: *dim, offset: 0, dynamic: true, terms: vec![(*part, 1)] };
                    let piece = self.b.window(vec![axis], 0.0, g, &[args[2]]);
                    self.contribute(args[1], piece, &[]);
                }
                if self.wants(x) {
                    let (dtype, dims) = (self.b.dtype(g), self.b.dims(args[1]).to_vec());
                    let nothing = self.b.splat_of(0.0, dtype, &dims);
                    let types = [(dtype, self.b.dims(x).to_vec())];
                    let rest = self.b.emit(op.op.clone(), &[g, nothing, args[2]], &types)[0];
                    self.contribute(x, rest, &[]);
                }
            }
            Op::Attention(a) => {
                let g = self.full(g, y);
                let g = self.b.cast(g, self.b.dtype(y));
                let all = [args.as_slice(), &op.results, &[g]].concat();
                let parts = self.b.attention_grad(a, &all);
                for (v, part) in args.iter().zip(parts) {
                    self.contribute(*v, part, &[]);
                }
            }
            // Elementwise functions and loops have their own files; the rest has no derivative.
            Op::Map(_)
            | Op::Loop { .. }
            | Op::Param(_)
            | Op::State(_)
            | Op::Input(_)
            | Op::Constant(_)
            | Op::Iota(_)
            | Op::Step
            | Op::Position
            | Op::Random { .. }
            | Op::ArgSort { .. }
            | Op::TopK { .. }
            | Op::PackPlace { .. }
            | Op::Draw { .. }
            | Op::AttentionGrad(_)
            | Op::Coordinate(_)
            | Op::Collective(_)
            | Op::StopGradient => {}
        }
    }

    fn reduce_rule(&mut self, kind: ReduceKind, dims: &[DimId], x: ValueId, g: ValueId) {
        match kind {
            // The same along all that was summed.
            ReduceKind::Sum => self.contribute(x, g, &[]),
            ReduceKind::Max | ReduceKind::Min => {
                let arg = if kind == ReduceKind::Max { ReduceKind::ArgMax } else { ReduceKind::ArgMin };
                let chosen = self.b.reduce(arg, dims, x);
                let place = self.b.flat_iota(dims);
                let here = self.b.map(MapOp::Eq, &[place, chosen]);
                let zero = self.zero(g);
                let part = self.b.select(here, g, zero);
                self.contribute(x, part, &[]);
            }
            ReduceKind::Prod => {
                // The product of all others: what stands before times what stands behind, so that zeros do no harm.
                let groups: Vec<(Vec<DimId>, Vec<DimId>)>;
                let dim = if let [dim] = dims {
                    groups = vec![];
                    *dim
                } else {
                    let merged = self.b.add_dim("product", self.b.graph.elements(dims), false);
                    groups = vec![(dims.to_vec(), vec![merged])];
                    merged
                };
                let flat = reshape_back(self.b, &groups, x);
                let before = self.b.scan(ScanKind::Prod, dim, true, false, flat);
                let behind = self.b.scan(ScanKind::Prod, dim, true, true, flat);
                let others = self.b.mul(before, behind);
                let back: Vec<_> = groups.into_iter().map(|(f, t)| (t, f)).collect();
                let others = reshape_back(self.b, &back, others);
                let others = self.b.cast(others, self.b.dtype(g));
                let part = self.b.mul(g, others);
                self.contribute(x, part, &[]);
            }
            ReduceKind::Any | ReduceKind::All | ReduceKind::ArgMax | ReduceKind::ArgMin => {}
        }
    }

    /// The contribution to one factor of a product.
    fn dot_part(&mut self, v: ValueId, other: ValueId, y: ValueId, g: ValueId) {
        if !self.wants(v) {
            return;
        }
        let g = self.b.cast(g, self.b.dtype(v));
        let contract: Vec<DimId> = self.b.dims(other).iter().copied().filter(|d| !self.b.dims(v).contains(d)).collect();
        if contract.is_empty() {
            let part = self.b.mul(g, other);
            return self.contribute(v, part, &[]);
        }
        let g = self.full(g, y);
        let dtype = self.held_in(v);
        let part = self.b.dot(&contract, g, other, dtype);
        self.contribute(v, part, &[]);
    }

    fn window_rule(&mut self, axes: &[WindowAxis], args: &[ValueId], g: ValueId) {
        let x = args[0];
        let g = {
            let terms: Vec<DimId> = axes.iter().flat_map(|a| a.terms.iter().map(|t| t.0)).collect();
            let g = self.b.broadcast(g, &terms);
            self.b.cast(g, self.held_in(x))
        };
        if axes.iter().any(|a| a.dynamic) {
            return self.dynamic_window_rule(axes, args, g);
        }
        // An axis that each element of x answers at most once, in order: moved back by a window of its own.
        let simple = |a: &WindowAxis| matches!(a.terms.as_slice(), [] | [(_, 1 | -1)]);
        if !axes.iter().all(simple) {
            let part = self.b.fold_window(axes.to_vec(), g);
            return self.contribute(x, part, &[]);
        }
        let back: Vec<WindowAxis> = axes
            .iter()
            .filter_map(|a| a.terms.first().map(|(d, c)| (a, *d, *c)))
            .map(|(a, d, c)| WindowAxis { input: d, offset: -c * a.offset, dynamic: false, terms: vec![(a.input, c)] })
            .filter(|a| !is_identity(self.b, a))
            .collect();
        let mut part = if back.is_empty() { g } else { self.b.window(back, 0.0, g, &[]) };
        for a in axes.iter().filter(|a| a.terms.is_empty()) {
            let place = self.b.iota(a.input);
            let at = self.b.scalar(a.offset as f64, DType::I32);
            let here = self.b.map(MapOp::Eq, &[place, at]);
            let zero = self.zero(part);
            part = self.b.select(here, part, zero);
        }
        self.contribute(x, part, &[]);
    }

    /// Adds the pieces where they came from, by computed indices.
    fn dynamic_window_rule(&mut self, axes: &[WindowAxis], args: &[ValueId], g: ValueId) {
        let x = args[0];
        let mut offsets = args[1..].iter();
        let mut indices = Vec::new();
        for a in axes {
            let reach = |f: fn(i64, i64) -> i64, b: &Builder| -> i64 {
                a.terms.iter().map(|(d, c)| f(0, c * (b.size(*d) as i64 - 1))).sum()
            };
            let last = self.b.size(a.input) as i64 - 1;
            let mut index = match a.dynamic.then(|| offsets.next()).flatten() {
                Some(offset) => {
                    let (below, above) = (reach(i64::min, self.b), reach(i64::max, self.b));
                    let start = self.b.map_scalar(MapOp::Add, *offset, a.offset as f64);
                    let start = self.b.map_scalar(MapOp::Min, start, (last - above) as f64);
                    self.b.map_scalar(MapOp::Max, start, -below as f64)
                }
                None => self.b.scalar(a.offset as f64, DType::I32),
            };
            for (d, c) in &a.terms {
                let place = self.b.iota(*d);
                let step = self.b.map_scalar(MapOp::Mul, place, *c as f64);
                index = self.b.add(index, step);
            }
            // What lies outside came from the filling.
            let inside = self.b.map_scalar(MapOp::Le, index, last as f64);
            let nowhere = self.b.scalar(-1.0, DType::I32);
            indices.push(self.b.select(inside, index, nowhere));
        }
        let removed: Vec<DimId> = axes.iter().flat_map(|a| a.terms.iter().map(|t| t.0)).collect();
        let targets: Vec<DimId> = axes.iter().map(|a| a.input).collect();
        let part = self.b.scatter(ReduceKind::Sum, &removed, &targets, g, &indices);
        self.contribute(x, part, &[]);
    }

    fn gather_rule(&mut self, dims: &[DimId], args: &[ValueId], y: ValueId, g: ValueId) {
        let (x, indices) = (args[0], &args[1..]);
        let kept: Vec<DimId> = self.b.dims(x).iter().copied().filter(|d| !dims.contains(d)).collect();
        let mut removed: Vec<DimId> = Vec::new();
        for d in indices.iter().flat_map(|i| self.b.dims(*i)) {
            if !kept.contains(d) && !removed.contains(d) {
                removed.push(*d);
            }
        }
        if removed.is_empty() {
            // Each element of x is taken once at most: elementwise, without a place to add into.
            let mut part = g;
            for (d, index) in dims.iter().zip(indices) {
                let place = self.b.iota(*d);
                let here = self.b.map(MapOp::Eq, &[place, *index]);
                let zero = self.zero(part);
                part = self.b.select(here, part, zero);
            }
            return self.contribute(x, part, &[]);
        }
        let g = self.full(g, y);
        let g = self.b.cast(g, self.held_in(x));
        let part = self.b.scatter(ReduceKind::Sum, &removed, dims, g, indices);
        self.contribute(x, part, &[]);
    }

    fn scatter_rule(
        &mut self,
        kind: ReduceKind,
        removed: &[DimId],
        targets: &[DimId],
        args: &[ValueId],
        y: ValueId,
        g: ValueId,
    ) {
        let (x, indices) = (args[0], &args[1..]);
        let over = self.b.union(args);
        let g = self.b.broadcast(g, targets);
        let taken = self.b.gather(targets, GatherMode::Zero, g, indices);
        if kind == ReduceKind::Sum {
            return self.contribute(x, taken, &over);
        }
        // Of the elements equal to the largest at their target, the first.
        let best = self.b.gather(targets, GatherMode::Zero, y, indices);
        let equal = self.b.map(MapOp::Eq, &[x, best]);
        let place = self.b.flat_iota(removed);
        let never = self.b.scalar(f64::from(i32::MAX), DType::I32);
        let candidate = self.b.select(equal, place, never);
        let candidate = self.b.broadcast(candidate, &over);
        let first = self.b.scatter(ReduceKind::Min, removed, targets, candidate, indices);
        let winner = self.b.gather(targets, GatherMode::Zero, first, indices);
        let is_first = self.b.map(MapOp::Eq, &[place, winner]);
        let wins = self.b.map(MapOp::And, &[equal, is_first]);
        let zero = self.zero(taken);
        let part = self.b.select(wins, taken, zero);
        self.contribute(x, part, &over);
    }

    fn scan_rule(&mut self, kind: ScanKind, dim: DimId, exclusive: bool, reverse: bool, x: ValueId, g: ValueId) {
        // Along the scan, the next element stands one step ahead.
        let ahead = if reverse { 1 } else { -1 };
        match kind {
            ScanKind::Sum => {
                let part = self.b.scan(ScanKind::Sum, dim, exclusive, !reverse, g);
                self.contribute(x, part, &[]);
            }
            ScanKind::Prod => {
                // (product of what came before) times s, where s[i] = g[i] + x[i + 1] s[i + 1].
                let before = self.b.scan(ScanKind::Prod, dim, true, reverse, x);
                let gate = self.b.shift(dim, ahead, 0.0, x);
                let source = if exclusive { self.b.shift(dim, ahead, 0.0, g) } else { g };
                let sums = self.b.linear_scan(dim, !reverse, gate, source);
                let part = self.b.mul(before, sums);
                self.contribute(x, part, &[]);
            }
            ScanKind::Max => {
                let chosen = self.b.scan(ScanKind::ArgMax, dim, exclusive, reverse, x);
                let part = self.b.scatter(ReduceKind::Sum, &[dim], &[dim], g, &[chosen]);
                self.contribute(x, part, &[]);
            }
            ScanKind::ArgMax => {}
        }
    }

    fn linear_scan_rule(&mut self, dim: DimId, reverse: bool, args: &[ValueId], y: ValueId, g: ValueId) {
        let (gate, x) = (args[0], args[1]);
        let over = self.b.dims(y).to_vec();
        let g = self.full(g, y);
        let ahead = if reverse { 1 } else { -1 };
        let next = if self.b.dims(gate).contains(&dim) { self.b.shift(dim, ahead, 0.0, gate) } else { gate };
        let sums = self.b.linear_scan(dim, !reverse, next, g);
        self.contribute(x, sums, &over);
        if self.wants(gate) {
            let last = self.b.shift(dim, -ahead, 0.0, y);
            let part = self.b.mul(sums, last);
            self.contribute(gate, part, &over);
        }
    }
}

fn reshape_back(b: &mut Builder, groups: &[(Vec<DimId>, Vec<DimId>)], v: ValueId) -> ValueId {
    if groups.is_empty() { v } else { b.reshape(groups, v) }
}

/// Reads a dim as it stands.
fn is_identity(b: &Builder, a: &WindowAxis) -> bool {
    !a.dynamic && a.offset == 0 && a.terms == [(a.input, 1)] && b.size(a.input) > 0
}
