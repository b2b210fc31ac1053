//! What keeps a carry from position to position: windows, shifts, cumulative operations, recurrences, loops.

use super::{Problem, Streamer};
use crate::ir::*;
use crate::types::{DType, MapOp, ReduceKind, ScanKind};

impl Streamer<'_> {
    /// A state that begins as `first` at position 0.
    fn carried(&mut self, what: &str, dtype: DType, dims: Vec<DimId>, first: ValueId) -> (StateId, String, ValueId) {
        let name = format!("{what}:{}", self.b.graph.states.len());
        let id = self.add_cache(&name, dtype, dims.clone());
        let old = self.b.state(id);
        let p = self.position();
        let zero = self.b.scalar(0.0, DType::I32);
        let start = self.b.map(MapOp::Eq, &[p, zero]);
        let first = self.b.broadcast(first, &dims);
        let v = self.b.select(start, first, old);
        (id, name, v)
    }

    /// A causal window: the positions that it reaches back to are kept.
    pub(super) fn window(&mut self, op: &Operation, axes: &[WindowAxis], fill: f64) -> Result<(), Problem> {
        let axis = axes.iter().find(|a| a.input == self.dim).expect("checked by the caller");
        let own = axis.terms.iter().find(|t| t.0 == self.dim);
        let reach: i64 =
            (axis.terms.iter()).filter(|t| t.0 != self.dim).map(|t| t.1.max(0) * (self.g.size(t.0) as i64 - 1)).sum();
        let back: i64 =
            (axis.terms.iter()).filter(|t| t.0 != self.dim).map(|t| t.1.min(0) * (self.g.size(t.0) as i64 - 1)).sum();
        if own.is_none_or(|t| t.1 != 1) || axis.dynamic || axis.offset + reach > 0 {
            return self.fail(
                op,
                "the value at a position depends on later positions: only causal windows and shifts with stride 1 \
                 can be streamed",
            );
        }
        let depth = (-(axis.offset + back)).max(0) as usize;
        let x = self.get(op.args[0]);
        let (dtype, new) = (self.b.dtype(x), self.new);
        let n = self.b.size(new);
        let mut axes: Vec<WindowAxis> = axes
            .iter()
            .map(|a| WindowAxis {
                input: a.input,
                terms: a.terms.iter().map(|t| (self.move_dim(t.0), t.1)).collect(),
                ..a.clone()
            })
            .collect();
        let k = axes.iter().position(|a| a.input == self.dim).expect("still there");
        let source = if depth == 0 {
            axes[k].input = new;
            x
        } else {
            let past = self.b.add_dim(&format!("{}.past", self.g.dim(self.dim).name), depth, false);
            let all = self.b.add_dim(&format!("{}.seen", self.g.dim(self.dim).name), depth + n, false);
            let dims: Vec<DimId> = self.b.dims(x).iter().map(|d| if *d == new { past } else { *d }).collect();
            let first = self.b.scalar(fill, dtype);
            let (id, name, old) = self.carried("window", dtype, dims, first);
            let joined = self.b.concat(&[past, new], all, &[old, x]);
            let next = self.b.slice(all, n, past, joined);
            self.b.output(OutputKind::State(id), &name, next);
            axes[k].input = all;
            axes[k].offset += depth as i64;
            joined
        };
        let offsets: Vec<ValueId> = op.args[1..].iter().map(|a| self.get(*a)).collect();
        let v = self.b.window(axes, fill, source, &offsets);
        self.bind(op, v);
        Ok(())
    }

    pub(super) fn cumulative(
        &mut self,
        op: &Operation,
        kind: ScanKind,
        exclusive: bool,
        reverse: bool,
    ) -> Result<(), Problem> {
        if reverse || kind == ScanKind::ArgMax {
            return self.fail(op, "the value at a position depends on later positions");
        }
        let x = self.get(op.args[0]);
        let (dtype, new) = (self.b.dtype(x), self.new);
        let dims: Vec<DimId> = self.b.dims(x).iter().copied().filter(|d| *d != new).collect();
        let (neutral, join, total) = match kind {
            ScanKind::Sum => (0.0, MapOp::Add, ReduceKind::Sum),
            ScanKind::Prod => (1.0, MapOp::Mul, ReduceKind::Prod),
            _ if dtype == DType::I32 => (f64::from(i32::MIN), MapOp::Max, ReduceKind::Max),
            _ => (f64::NEG_INFINITY, MapOp::Max, ReduceKind::Max),
        };
        let first = self.b.scalar(neutral, dtype);
        let (id, name, old) = self.carried("running", dtype, dims, first);
        let part = self.b.scan(kind, new, exclusive, false, x);
        let v = self.b.map(join, &[part, old]);
        let sum = self.b.reduce(total, &[new], x);
        let next = self.b.map(join, &[old, sum]);
        self.b.output(OutputKind::State(id), &name, next);
        self.bind(op, v);
        Ok(())
    }

    /// h[i] = g[i] h[i-1] + x[i] from the kept h.
    pub(super) fn recurrence(&mut self, op: &Operation, reverse: bool) -> Result<(), Problem> {
        if reverse {
            return self.fail(op, "the value at a position depends on later positions");
        }
        let (g, x) = (self.get(op.args[0]), self.get(op.args[1]));
        let new = self.new;
        let union = self.b.union(&[x, g]);
        let dtype = self.b.dtype(x);
        let dims: Vec<DimId> = union.iter().copied().filter(|d| *d != new).collect();
        let first = self.b.scalar(0.0, dtype);
        let (id, name, old) = self.carried("recurrence", dtype, dims, first);
        let own = self.b.linear_scan(new, false, g, x);
        let decay = self.b.scan(ScanKind::Prod, new, false, false, g);
        let kept = self.b.mul(decay, old);
        let v = self.b.add(own, kept);
        let last = self.b.size(new) - 1;
        let next = self.b.index(new, last, v);
        self.b.output(OutputKind::State(id), &name, next);
        self.bind(op, v);
        Ok(())
    }

    /// A loop: over the streamed dim its carries are kept; over another its body works on the new positions.
    pub(super) fn run_loop(&mut self, op: &Operation, dim: DimId, reverse: bool) -> Result<(), Problem> {
        let Op::Loop { body, carries, .. } = op.op else { unreachable!("called for loops") };
        let over = dim == self.dim;
        if over && reverse {
            return self.fail(op, "the value at a position depends on later positions: the scan runs in reverse");
        }
        let n = carries as usize;
        let mut initial = Vec::new();
        let mut kept = Vec::new();
        for a in &op.args[..n] {
            let first = self.get(*a);
            if over {
                let (dtype, dims) = (self.b.dtype(first), self.b.dims(first).to_vec());
                let (id, name, v) = self.carried("carry", dtype, dims, first);
                kept.push((id, name));
                initial.push(v);
            } else {
                initial.push(first);
            }
        }
        let captures: Vec<ValueId> = op.args[n..].iter().map(|a| self.get(*a)).collect();
        // Positions and states are read outside the body.
        let position = self.position();
        let frame = self.b.begin_loop(self.move_dim(dim), reverse, &initial);
        let block = self.g.block(body).clone();
        self.values.insert(block.params[0], frame.turn);
        if over {
            let turn = self.b.add(frame.turn, position);
            self.turns.insert(block.params[0], turn);
        }
        for (p, c) in block.params[1..=n].iter().zip(&frame.carries) {
            self.values.insert(*p, *c);
        }
        for (p, c) in block.params[n + 1..].iter().zip(captures) {
            self.values.insert(*p, c);
        }
        for (p, a) in block.params[1..].iter().zip(&op.args) {
            let entry = self.futures.entry(*a);
            self.futures.set(*p, entry);
        }
        for id in &block.ops {
            let inner = self.g.op(*id);
            let keeps = matches!(
                inner.op,
                Op::Reshape { .. } | Op::Window { .. } | Op::Scan { .. } | Op::LinearScan { .. } | Op::Loop { .. }
            );
            let mixes = inner.args.iter().any(|a| self.g.value(*a).dims.contains(&self.dim));
            if keeps && mixes && inner.op.names_dim(self.dim) {
                return self.fail(inner, "history inside a `scan` cannot be kept");
            }
            self.operation(inner)?;
        }
        let results: Vec<ValueId> = block.results.iter().map(|r| self.get(*r)).collect();
        let (finals, stacked) = self.b.end_loop(frame, &results[..n], &results[n..]);
        for ((id, name), v) in kept.iter().zip(&finals) {
            self.b.output(OutputKind::State(*id), name, *v);
        }
        for (k, (r, v)) in op.results.iter().zip(finals.into_iter().chain(stacked)).enumerate() {
            self.values.insert(*r, v);
            let entry = self.futures.entry(block.results[k]);
            self.futures.set(*r, entry);
        }
        Ok(())
    }
}
