//! Puts the operations of a block together into nodes, one kernel (or step) each.
//!
//! A node's *rows* are the dims that all of its members' results have; a kernel runs them in parallel. A member that reads
//! another aligned stays in its row, so that a chain such as max, exp, sum, divide becomes one kernel with several passes
//! over each row. The reductions of a node give one number a row.
//!
//! Invariant kept while nodes grow: nodes do not wait for each other in a circle. Every node has a rank above the
//! ranks of all nodes that it waits for, which also bounds the search for circles.

use super::{Lowerer, Source, Status};
use crate::ir::*;
use std::collections::{HashMap, HashSet};

/// Nodes with fewer rows leave threads idle ..
const FEW_ROWS: usize = 8;
/// .. which does not matter below this number of elements.
const LITTLE_WORK: usize = 32;
/// Elements that do not stay in a cache from one kernel to the next.
const MUCH_MEMORY: usize = 1 << 14;
/// Bounds the size of a kernel: members, and operations with those that they compute inline (a kernel may be one long chain,
/// which is walked by recursion).
const MAX_MEMBERS: usize = 128;
const MAX_COST: u32 = 2048;

/// Nodes with more ranks between them do not join: one surely waits for the other through a third (a forward value that the
/// backward pass reads), and to find out would take the longer, the deeper the model.
const MAX_APART: u32 = 48;

#[derive(Clone, Debug, Default)]
pub(super) struct Node {
    /// In program order; empty once the node is part of another.
    pub ops: Vec<OpId>,
    /// Nodes that must have run (may name nodes that became part of others until `group` ends).
    pub before: Vec<u32>,
    after: Vec<u32>,
    rank: u32,
    joined: Option<u32>,
    /// Whether it may grow.
    open: bool,
}

impl Lowerer<'_, '_> {
    pub(super) fn group(&mut self, block: BlockId) {
        // Who reads a gradient first, or what is kept for values that are computed again.
        let mut first_reader: HashMap<ValueId, u32> = HashMap::new();
        let mut newest = 0;
        for id in self.graph.block(block).ops.clone() {
            let op = self.graph.op(id);
            let Some(&v) = op.results.first() else { continue };
            let standalone = is_standalone(&op.op);
            if !standalone && self.status[v.index()] != Status::Member {
                continue;
            }
            let inputs = if standalone {
                let args = op.args.clone();
                self.sources(&args, false)
            } else {
                self.inputs[v.index()].clone()
            };
            self.inputs[v.index()] = inputs.clone();
            let node = self.nodes.len() as u32;
            self.node_of[id.index()] = node;
            let makers = inputs.iter().flat_map(|s| self.makers(s.value));
            let mut before: Vec<u32> = makers.filter_map(|v| self.node_of_value(v)).collect();
            before.sort_unstable();
            before.dedup();
            let mut rank = before.iter().map(|p| self.nodes[*p as usize].rank + 1).max().unwrap_or(0);
            // What is computed again waits for little, but belongs where it stands.
            let again = self.graph.op(id).again;
            if again {
                rank = rank.max(newest);
            } else if op.phase != Phase::Update {
                newest = rank;
            }
            let after_forward = op.phase == Phase::Backward;
            for p in &before {
                self.nodes[*p as usize].after.push(node);
            }
            let alone = matches!(op.op, Op::Scan { .. } | Op::LinearScan { .. }) || self.writes_in_slot(id);
            let open = !standalone && !alone;
            self.nodes.push(Node { ops: vec![id], before, after: vec![], rank, joined: None, open });
            if open && self.options.fuse {
                for s in inputs.iter().filter(|s| s.aligned) {
                    let Some(p) = self.node_of_value(s.value) else { continue };
                    let early = again && self.is_forward(s.value);
                    if !early {
                        self.try_join(p, self.find(node));
                    }
                    let kept =
                        after_forward && (again || first_reader.contains_key(&s.value)) && self.is_large_kept(s.value);
                    if kept || self.is_large_gradient(s.value) {
                        let sibling = *first_reader.entry(s.value).or_insert(node);
                        self.try_join(self.find(sibling), self.find(node));
                    }
                }
                self.join_parts(v, node);
            }
        }
        if block == ENTRY {
            self.update_last();
        }
        self.close(block);
        self.find_leaving();
    }

    /// Parts of one whole are often made of the same values: one kernel makes them.
    fn join_parts(&mut self, v: ValueId, node: u32) {
        let Some(whole) = self.parts.get(&v).map(|p| p.whole) else { return };
        for other in self.makers(whole) {
            if let Some(p) = self.node_of_value(other) {
                self.try_join(p, self.find(node));
            }
        }
    }

    /// A product that is read to be measured and applied: the readers share it, so that it comes from memory once.
    fn is_large_gradient(&self, v: ValueId) -> bool {
        let large = self.graph.elements(&self.graph.value(v).dims) >= MUCH_MEMORY;
        large
            && self
                .graph
                .def_op(v)
                .is_some_and(|o| matches!(o.op, Op::Dot { .. }) && o.phase == Phase::Backward && !o.again)
    }

    /// A value of the forward pass that is read to compute others again: the readers share it, too.
    fn is_large_kept(&self, v: ValueId) -> bool {
        self.is_forward(v) && self.graph.elements(&self.graph.value(v).dims) >= MUCH_MEMORY
    }

    fn is_forward(&self, v: ValueId) -> bool {
        self.graph.def_op(v).is_some_and(|o| o.phase == Phase::Forward)
    }

    /// The node that computes a value; None for what is there before the block runs.
    pub(super) fn node_of_value(&self, v: ValueId) -> Option<u32> {
        match self.graph.value(v).def {
            Def::Op(op, _) if self.graph.value(v).block == self.current && self.node_of[op.index()] != u32::MAX => {
                Some(self.find(self.node_of[op.index()]))
            }
            _ => None,
        }
    }

    fn find(&self, mut node: u32) -> u32 {
        while let Some(into) = self.nodes[node as usize].joined {
            node = into;
        }
        node
    }

    /// What a node's members cost, each with what it computes inline.
    fn node_cost(&self, node: u32) -> u32 {
        let ops = &self.nodes[node as usize].ops;
        let results = ops.iter().filter_map(|id| self.graph.op(*id).results.first());
        results.map(|v| self.cost[v.index()]).fold(0, u32::saturating_add)
    }

    fn try_join(&mut self, a: u32, b: u32) {
        if a == b || !self.nodes[a as usize].open || !self.nodes[b as usize].open {
            return;
        }
        let members = self.nodes[a as usize].ops.len() + self.nodes[b as usize].ops.len();
        let cost = self.node_cost(a).saturating_add(self.node_cost(b));
        let ranks = [a, b].map(|n| self.nodes[n as usize].rank);
        if ranks[0].abs_diff(ranks[1]) > MAX_APART {
            return;
        }
        if members > MAX_MEMBERS || cost > MAX_COST || !self.may_share(a, b) || self.path(a, b) || self.path(b, a) {
            return;
        }
        let gone = std::mem::take(&mut self.nodes[b as usize]);
        self.nodes[b as usize].joined = Some(a);
        let node = &mut self.nodes[a as usize];
        node.ops.extend(gone.ops);
        node.ops.sort_unstable_by_key(|op| self.position[op.index()]);
        node.before.extend(gone.before);
        node.after.extend(gone.after);
        self.raise(a, gone.rank);
    }

    /// Gives a node at least the given rank and mends the ranks of those that wait for it.
    fn raise(&mut self, node: u32, rank: u32) {
        let mut work = vec![(node, rank)];
        let mut first = true;
        while let Some((n, rank)) = work.pop() {
            let n = self.find(n);
            let higher = rank > self.nodes[n as usize].rank;
            if !higher && !first {
                continue;
            }
            first = false;
            let rank = rank.max(self.nodes[n as usize].rank);
            self.nodes[n as usize].rank = rank;
            let after = self.nodes[n as usize].after.clone();
            work.extend(after.into_iter().filter(|m| self.find(*m) != n).map(|m| (m, rank + 1)));
        }
    }

    /// Whether b waits for a through a third node.
    fn path(&self, a: u32, b: u32) -> bool {
        let floor = self.nodes[a as usize].rank;
        let mut seen: HashSet<u32> = HashSet::new();
        let mut work: Vec<u32> = Vec::new();
        let visit = |n: u32, seen: &mut HashSet<u32>, work: &mut Vec<u32>| {
            for p in &self.nodes[n as usize].before {
                let p = self.find(*p);
                if p != n && self.nodes[p as usize].rank > floor && seen.insert(p) {
                    work.push(p);
                }
            }
        };
        visit(b, &mut seen, &mut work);
        while let Some(n) = work.pop() {
            if n == b || n == a {
                continue;
            }
            if self.nodes[n as usize].before.iter().any(|p| self.find(*p) == a) {
                return true;
            }
            visit(n, &mut seen, &mut work);
        }
        false
    }

    /// Whether two nodes can be one kernel.
    fn may_share(&self, a: u32, b: u32) -> bool {
        let ops: Vec<OpId> = self.nodes[a as usize].ops.iter().chain(&self.nodes[b as usize].ops).copied().collect();
        let inside = |v: ValueId| self.node_of_value(v).is_some_and(|n| n == a || n == b);
        let rows = self.rows(&ops);
        let mut work = 0;
        for id in &ops {
            let op = self.graph.op(*id);
            let v = op.results[0];
            // What is read out of place must be complete before.
            let out_of_place = |s: &&Source| !s.aligned || self.wholes.contains_key(&s.value);
            if self.inputs[v.index()].iter().filter(out_of_place).any(|s| self.makers(s.value).into_iter().any(inside))
            {
                return false;
            }
            let dims = &self.graph.value(v).dims;
            work = work
                .max(self.graph.elements(dims))
                .max(op.args.iter().map(|x| self.graph.elements(&self.graph.value(*x).dims)).max().unwrap_or(0));
            if is_reducing(&self.graph, *id) && dims.len() != rows.len() {
                return false;
            }
            // What is written with an inner loop must have it as its minor dims.
            if self.order_of(v)[..rows.len()].iter().any(|d| !rows.contains(d)) {
                return false;
            }
        }
        let count = |ops: &[OpId]| self.graph.elements(&self.rows(ops));
        let rows = self.graph.elements(&rows);
        let before = count(&self.nodes[a as usize].ops).max(count(&self.nodes[b as usize].ops));
        rows >= FEW_ROWS || work <= LITTLE_WORK || rows == before
    }

    /// Has the node that computes a new parameter or state wait for all that read the old one, where that is possible, so
    /// that the new one can take its place.
    fn update_last(&mut self) {
        let mut readers: HashMap<ValueId, Vec<u32>> = HashMap::new();
        for i in 0..self.nodes.len() as u32 {
            for id in &self.nodes[i as usize].ops {
                for s in &self.inputs[self.graph.op(*id).results[0].index()] {
                    let leaf = self.graph.def_op(s.value).map(|o| &o.op);
                    if matches!(leaf, Some(Op::Param(_) | Op::State(_))) {
                        readers.entry(s.value).or_default().push(i);
                    }
                }
            }
        }
        let mut old: HashMap<OutputKind, ValueId> = HashMap::new();
        for id in &self.graph.block(ENTRY).ops {
            let op = self.graph.op(*id);
            match op.op {
                Op::Param(p) => old.insert(OutputKind::Param(p), op.results[0]),
                Op::State(s) => old.insert(OutputKind::State(s), op.results[0]),
                _ => None,
            };
        }
        for output in self.graph.outputs.clone() {
            let (Some(old), Some(writer)) = (old.get(&output.kind), self.node_of_value(output.value)) else { continue };
            for reader in readers.get(old).into_iter().flatten() {
                let reader = self.find(*reader);
                let known = self.nodes[writer as usize].before.contains(&reader);
                if reader == writer || known || self.waits_for(reader, writer) {
                    continue;
                }
                self.nodes[writer as usize].before.push(reader);
                self.nodes[reader as usize].after.push(writer);
                let rank = self.nodes[reader as usize].rank + 1;
                self.raise(writer, rank);
            }
        }
    }

    fn waits_for(&self, a: u32, b: u32) -> bool {
        self.nodes[a as usize].before.iter().any(|p| self.find(*p) == b) || self.path(b, a)
    }

    /// The dims that all results have.
    pub(super) fn rows(&self, ops: &[OpId]) -> Vec<DimId> {
        let dims = |id: &OpId| &self.graph.value(self.graph.op(*id).results[0]).dims;
        let mut rows = dims(&ops[0]).clone();
        for id in &ops[1..] {
            rows.retain(|d| dims(id).contains(d));
        }
        rows
    }

    /// Resolves what nodes wait for.
    fn close(&mut self, block: BlockId) {
        for i in 0..self.nodes.len() {
            let mut before: Vec<u32> = self.nodes[i].before.iter().map(|p| self.find(*p)).collect();
            before.retain(|p| *p != i as u32);
            before.sort_unstable();
            before.dedup();
            self.nodes[i].before = before;
        }
        for op in self.graph.block(block).ops.clone() {
            let node = self.node_of[op.index()];
            if node != u32::MAX {
                self.node_of[op.index()] = self.find(node);
            }
        }
    }

    /// Whether something outside of its node reads a member's result.
    pub(super) fn leaves_node(&self, v: ValueId) -> bool {
        self.need[v.index()] || self.leaving.contains(&v)
    }

    /// Members that another node, or their own out of place, reads.
    fn find_leaving(&mut self) {
        for i in 0..self.nodes.len() {
            for id in self.nodes[i].ops.clone() {
                let v = self.graph.op(id).results[0];
                for Source { value, aligned } in self.inputs[v.index()].clone() {
                    if !aligned || self.node_of_value(value) != Some(i as u32) {
                        self.leaving.insert(value);
                    }
                }
            }
        }
    }
}

/// Operations that are a step of their own.
pub(super) fn is_standalone(op: &Op) -> bool {
    matches!(
        op,
        Op::Dot { .. }
            | Op::Loop { .. }
            | Op::ArgSort { .. }
            | Op::TopK { .. }
            | Op::PackPlace { .. }
            | Op::Draw { .. }
            | Op::Scatter { .. }
            | Op::Collective(_)
            | Op::Attention(_)
            | Op::AttentionGrad(_)
    )
}

/// Members with loops of their own over dims that their result lacks.
pub(super) fn is_reducing(graph: &Graph, id: OpId) -> bool {
    match &graph.op(id).op {
        Op::Reduce { .. } => true,
        Op::Fold { axes } => !super::emit::fold_loops(graph, axes).is_empty(),
        _ => false,
    }
}
