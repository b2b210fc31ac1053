//! Derivatives of loops: a loop the other way round, each turn of which recomputes the forward turn from the carries that it
//! began with and then goes back through it.
//!
//! Carries of the backward loop: the cotangents of the forward carries, then one sum per captured value that needs a gradient. A
//! captured value that the body only reads at its own turn (`x[seq = t]`) needs no sum: its cotangent is collected turn by
//! turn.

use super::Reverse;
use crate::ir::*;
use crate::types::DType;
use std::collections::HashMap;

/// Repeats operations in the builder's current block, with their spans and scopes. `map` says what stands for values
/// defined before; it is extended by the results. Returns the new operations of this block (not of inner ones).
pub fn clone_ops(b: &mut Builder, ops: &[OpId], map: &mut HashMap<ValueId, ValueId>) -> Vec<OpId> {
    let start = b.graph.block(b.block()).ops.len();
    let (span, scope) = (b.span, b.scope);
    for id in ops {
        let op = b.graph.op(*id).clone();
        (b.span, b.scope) = (op.span, op.scope);
        let args: Vec<ValueId> = op.args.iter().map(|a| map[a]).collect();
        let results = if let Op::Loop { body, dim, reverse, carries } = op.op {
            let carries = carries as usize;
            let block = b.graph.block(body).clone();
            let frame = b.begin_loop(dim, reverse, &args[..carries]);
            map.insert(block.params[0], frame.turn);
            map.extend(block.params[1..].iter().copied().zip(frame.carries.iter().chain(&args[carries..]).copied()));
            clone_ops(b, &block.ops, map);
            let all: Vec<ValueId> = block.results.iter().map(|r| map[r]).collect();
            let (finals, collected) = b.end_loop(frame, &all[..carries], &all[carries..]);
            [finals, collected].concat()
        } else {
            let types: Vec<(DType, Vec<DimId>)> =
                op.results.iter().map(|r| (b.dtype(*r), b.dims(*r).to_vec())).collect();
            b.emit(op.op, &args, &types)
        };
        for (old, new) in op.results.iter().zip(&results) {
            if let Some(name) = b.graph.value(*old).name.clone() {
                b.name(*new, &name);
            }
        }
        map.extend(op.results.iter().copied().zip(results));
    }
    (b.span, b.scope) = (span, scope);
    b.graph.block(b.block()).ops[start..].to_vec()
}

/// What a value is at the turn of the open loop; a value without the loop's dim as it is.
fn at_turn(b: &mut Builder, dim: DimId, turn: ValueId, v: ValueId) -> ValueId {
    if !b.dims(v).contains(&dim) {
        return v;
    }
    let axis = WindowAxis { input: dim, offset: 0, dynamic: true, terms: vec![] };
    b.window(vec![axis], 0.0, v, &[turn])
}

/// A carry at the start of every turn.
struct Trail {
    collected: ValueId,
    /// The loop's own dim in the carry, and the dim that it is called in the collected value.
    renamed: Option<(DimId, DimId)>,
}

impl Reverse<'_> {
    pub(super) fn mark_loop(&mut self, op: &Operation, body: BlockId, carries: usize) {
        let block = self.b.graph.block(body).clone();
        for (a, p) in op.args.iter().zip(&block.params[1..]) {
            self.needs.set(*p, self.wants(*a));
        }
        for (a, p) in op.args[carries..].iter().zip(&block.params[1 + carries..]) {
            self.wide.set(*p, self.wide.get(*a));
        }
        loop {
            self.mark(&block.ops);
            let mut grown = false;
            for c in 0..carries {
                let (before, after) = (block.params[1 + c], block.results[c]);
                if self.wants(after) && !self.needs.get(before) {
                    self.needs.set(before, true);
                    grown = true;
                }
            }
            if !grown {
                break;
            }
        }
        for (i, r) in op.results.iter().enumerate() {
            let needs = self.wants(block.results[i]) || (i < carries && self.wants(block.params[1 + i]));
            self.needs.set(*r, needs);
        }
    }

    pub(super) fn loop_rule(&mut self, id: OpId, op: &Operation) {
        let Op::Loop { body, dim, reverse, carries } = op.op else { return };
        let carries = carries as usize;
        let block = self.b.graph.block(body).clone();
        let active: Vec<usize> = (0..carries).filter(|c| self.wants(block.params[1 + c])).collect();
        let slices = self.slices(&block, dim, carries);
        // Each outer value once, though the body may know it under several names.
        let mut summed: Vec<ValueId> = Vec::new();
        for (a, p) in op.args[carries..].iter().zip(&block.params[1 + carries..]) {
            if self.wants(*p) && !summed.contains(a) && self.used_otherwise(&block, *p, &slices) {
                summed.push(*a);
            }
        }
        let trails: Vec<Trail> = (0..carries).map(|c| self.trail(id, body, dim, carries, c)).collect();

        let mut initial = Vec::new();
        for c in &active {
            let result = op.results[*c];
            let g = match self.cotangents.get(result) {
                Some(g) => g,
                None => self.zero(result),
            };
            initial.push(self.full(g, result));
        }
        for a in &summed {
            let dims = self.b.dims(*a).to_vec();
            initial.push(self.b.splat_of(0.0, sum_type(self.b.dtype(*a)), &dims));
        }
        let frame = self.b.begin_loop(dim, !reverse, &initial);

        let mut map: HashMap<ValueId, ValueId> = HashMap::new();
        map.insert(block.params[0], frame.turn);
        let mut starts = Vec::new();
        for (c, trail) in trails.iter().enumerate() {
            let mut start = at_turn(self.b, dim, frame.turn, trail.collected);
            if let Some((own, name)) = trail.renamed {
                start = self.b.rename(name, own, start);
            }
            self.needs.set(start, self.needs.get(block.params[1 + c]));
            map.insert(block.params[1 + c], start);
            starts.push(start);
        }
        for (a, p) in op.args[carries..].iter().zip(&block.params[1 + carries..]) {
            let inner = self.b.reach(*a);
            self.needs.set(inner, self.needs.get(*p));
            self.wide.set(inner, self.wide.get(*p));
            map.insert(*p, inner);
        }
        let again = clone_ops(self.b, &block.ops, &mut map);
        self.mark(&again);
        for (op, _) in &slices {
            let result = map[&self.b.graph.op(*op).results[0]];
            if let Def::Op(new, _) = self.b.graph.value(result).def {
                self.cut.push(new);
            }
        }
        for (k, c) in active.iter().enumerate() {
            let next = self.b.reach(map[&block.results[*c]]);
            self.contribute(next, frame.carries[k], &[]);
        }
        for (k, r) in op.results[carries..].iter().enumerate() {
            if let Some(g) = self.cotangents.get(*r) {
                let inner = self.b.reach(map[&block.results[carries + k]]);
                if self.wants(inner) {
                    let g = at_turn(self.b, dim, frame.turn, g);
                    self.contribute(inner, g, &[]);
                }
            }
        }
        self.run(&again);

        let mut next = Vec::new();
        for c in &active {
            next.push(self.cotangent_or_zero(starts[*c]));
        }
        for (k, a) in summed.iter().enumerate() {
            let so_far = frame.carries[active.len() + k];
            let inner = self.b.reach(*a);
            next.push(match self.cotangents.get(inner) {
                Some(g) => {
                    let g = self.b.cast(g, self.b.dtype(so_far));
                    self.b.add(so_far, g)
                }
                None => so_far,
            });
        }
        let mut pieces = Vec::new();
        for (op, _) in &slices {
            let result = map[&self.b.graph.op(*op).results[0]];
            pieces.push(self.cotangent_or_zero(result));
        }
        let (finals, collected) = self.b.end_loop(frame, &next, &pieces);

        for (k, c) in active.iter().enumerate() {
            self.contribute(op.args[*c], finals[k], &[]);
        }
        for (k, a) in summed.iter().enumerate() {
            self.contribute(*a, finals[active.len() + k], &[]);
        }
        for ((_, capture), g) in slices.iter().zip(collected) {
            self.contribute(op.args[*capture], g, &[]);
        }
    }

    fn cotangent_or_zero(&mut self, v: ValueId) -> ValueId {
        let g = match self.cotangents.get(v) {
            Some(g) => self.b.cast(g, self.b.dtype(v)),
            None => self.zero(v),
        };
        self.full(g, v)
    }

    /// Operations of the body that read a captured value at the loop's own turn, with the number of the loop's operand.
    fn slices(&self, block: &Block, dim: DimId, carries: usize) -> Vec<(OpId, usize)> {
        let turn = block.params[0];
        let mut found = Vec::new();
        for id in &block.ops {
            let op = self.b.graph.op(*id);
            let reads_turn = match &op.op {
                Op::Window { axes, .. } => {
                    matches!(axes.as_slice(), [a] if a.input == dim && a.dynamic && a.offset == 0 && a.terms.is_empty())
                }
                Op::Gather { dims, .. } => dims == &[dim],
                _ => false,
            };
            if !reads_turn || op.args[1] != turn || !self.wants(op.args[0]) {
                continue;
            }
            if let Some(i) = block.params[1 + carries..].iter().position(|p| *p == op.args[0]) {
                found.push((*id, carries + i));
            }
        }
        found
    }

    fn used_otherwise(&self, block: &Block, param: ValueId, slices: &[(OpId, usize)]) -> bool {
        let elsewhere = |id: &OpId| !slices.iter().any(|(s, _)| s == id) && self.b.graph.op(*id).args.contains(&param);
        block.ops.iter().any(elsewhere) || block.results.contains(&param)
    }

    /// Makes the forward loop collect a carry at the start of each turn, unless it does.
    fn trail(&mut self, id: OpId, body: BlockId, dim: DimId, carries: usize, c: usize) -> Trail {
        let graph = &mut self.b.graph;
        let start = graph.block(body).params[1 + c];
        if let Some(k) = graph.block(body).results[carries..].iter().position(|r| *r == start) {
            return Trail { collected: graph.op(id).results[carries + k], renamed: None };
        }
        let mut kept = start;
        let mut renamed = None;
        if graph.value(start).dims.contains(&dim) {
            let Dim { name, size, .. } = graph.dim(dim).clone();
            let other = self.b.add_dim(&name, size, false);
            let graph = &mut self.b.graph;
            let mut value = graph.value(start).clone();
            for d in value.dims.iter_mut().filter(|d| **d == dim) {
                *d = other;
            }
            let made = OpId(graph.ops.len() as u32);
            value.def = Def::Op(made, 0);
            kept = ValueId(graph.values.len() as u32);
            graph.values.push(value);
            let Operation { span, scope, phase, again, .. } = *graph.op(id);
            let groups = vec![(vec![dim], vec![other])];
            let (args, results) = (vec![start], vec![kept]);
            let op = Op::Reshape { groups };
            graph.ops.push(Operation { op, args, results, block: body, span, scope, phase, again });
            graph.blocks[body.index()].ops.push(made);
            renamed = Some((dim, other));
        }
        let graph = &mut self.b.graph;
        let mut value = graph.value(kept).clone();
        value.dims.insert(0, dim);
        value.block = graph.op(id).block;
        value.def = Def::Op(id, graph.op(id).results.len() as u32);
        let collected = ValueId(graph.values.len() as u32);
        graph.values.push(value);
        graph.blocks[body.index()].results.push(kept);
        graph.ops[id.index()].results.push(collected);
        Trail { collected, renamed }
    }
}

/// What turns add up in.
fn sum_type(dtype: DType) -> DType {
    if dtype.bytes() == 2 { DType::F32 } else { dtype }
}
