//! What the backward pass computes again instead of keeping it.
//!
//! A repetition stands before its first reader, with the scope and the place of what it repeats, marked by [`Operation::again`]. Draws
//! are functions of their operands, so a draw that is repeated is the same.

use super::*;
use indexmap::IndexMap;
use std::collections::HashSet;

/// Has readers in a block read repetitions of the dropped values instead of the values; what nothing reads any more is gone.
/// Returns the new operations, those of loops inside it included, each with what it repeats.
///
/// Of values that are dropped, all results of their operation are, and no other reader follows them but those that
/// `is_reader` knows. A collective that a later reader repeats itself stands in for a repetition.
pub fn repeat(
    graph: &mut Graph,
    block: BlockId,
    dropped: &[bool],
    is_reader: impl Fn(&Operation) -> bool,
) -> Vec<(OpId, OpId)> {
    let old = std::mem::take(&mut graph.blocks[block.index()].ops);
    let later = |id: &OpId| is_reader(graph.op(*id)) && graph.op(*id).phase == Phase::Backward;
    let exchanges = old.iter().copied().filter(|id| later(id) && is_collective(graph.op(*id))).collect();
    let ops = Vec::with_capacity(old.len());
    let mut pass =
        Repeat { graph, dropped, exchanges, placed: HashSet::new(), copies: IndexMap::new(), made: Vec::new(), ops };
    for id in old {
        if pass.placed.contains(&id) {
            continue;
        }
        if is_reader(pass.graph.op(id)) {
            pass.feed(id);
        }
        pass.ops.push(id);
    }
    let Repeat { made, mut ops, .. } = pass;
    drop_unread(graph, block, &mut ops, dropped);
    graph.blocks[block.index()].ops = ops;
    made
}

struct Repeat<'g> {
    graph: &'g mut Graph,
    dropped: &'g [bool],
    /// Collectives among the readers.
    exchanges: Vec<OpId>,
    /// Those of them that stand already.
    placed: HashSet<OpId>,
    copies: IndexMap<ValueId, ValueId>,
    made: Vec<(OpId, OpId)>,
    ops: Vec<OpId>,
}

impl Repeat<'_> {
    fn is_dropped(&self, v: ValueId) -> bool {
        self.dropped.get(v.index()).copied().unwrap_or(false)
    }

    fn maker(&self, v: ValueId) -> Option<OpId> {
        match self.graph.value(v).def {
            Def::Op(id, _) => Some(id),
            Def::BlockParam(_) => None,
        }
    }

    /// Has an operation read repetitions.
    fn feed(&mut self, id: OpId) {
        for i in 0..self.graph.op(id).args.len() {
            let a = self.graph.op(id).args[i];
            if self.is_dropped(a) {
                self.copy(a);
                self.graph.ops[id.index()].args[i] = self.copies[&a];
            }
        }
    }

    /// Repeats the operation of a value, and first those of its operands that are computed again.
    fn copy(&mut self, v: ValueId) {
        let mut work = vec![v];
        while let Some(&v) = work.last() {
            let Some(from) = self.maker(v).filter(|_| !self.copies.contains_key(&v)) else {
                work.pop();
                continue;
            };
            let missing = |a: &&ValueId| self.is_dropped(**a) && !self.copies.contains_key(*a);
            let missing: Vec<ValueId> = self.graph.op(from).args.iter().filter(missing).copied().collect();
            if !missing.is_empty() {
                work.extend(missing);
                continue;
            }
            work.pop();
            let made = match self.twin(from) {
                Some(id) => {
                    self.placed.insert(id);
                    self.feed(id);
                    id
                }
                None => self.copied(from, self.graph.op(from).block),
            };
            self.ops.push(made);
            let results = self.graph.op(from).results.clone();
            self.copies.extend(results.into_iter().zip(self.graph.op(made).results.clone()));
        }
    }

    /// What a reader exchanges just as an operation does.
    fn twin(&self, from: OpId) -> Option<OpId> {
        let own = Some(self.graph.op(from)).filter(|op| is_collective(op))?;
        let same = |o: &Operation| (&own.op, &own.args) == (&o.op, &o.args);
        self.exchanges.iter().copied().find(|id| same(self.graph.op(*id)) && !self.placed.contains(id))
    }

    /// An operation like another one, in a block, on what stands for its operands.
    fn copied(&mut self, from: OpId, block: BlockId) -> OpId {
        let mut op = self.graph.op(from).clone();
        op.args.iter_mut().for_each(|a| *a = self.copies.get(a).copied().unwrap_or(*a));
        (op.phase, op.again, op.block) = (Phase::Backward, true, block);
        if let Op::Loop { body, .. } = &mut op.op {
            *body = self.copied_body(*body);
        }
        let id = OpId(self.graph.ops.len() as u32);
        op.results =
            (op.results.iter().enumerate()).map(|(i, r)| self.copied_value(*r, block, Def::Op(id, i as u32))).collect();
        self.graph.ops.push(op);
        self.made.push((id, from));
        id
    }

    fn copied_value(&mut self, v: ValueId, block: BlockId, def: Def) -> ValueId {
        let value = Value { def, block, ..self.graph.value(v).clone() };
        self.graph.values.push(value);
        ValueId(self.graph.values.len() as u32 - 1)
    }

    fn copied_body(&mut self, body: BlockId) -> BlockId {
        let old = self.graph.block(body).clone();
        let block = BlockId(self.graph.blocks.len() as u32);
        self.graph.blocks.push(Block::default());
        let outer = self.copies.clone();
        let params: Vec<ValueId> = (old.params.iter().enumerate())
            .map(|(i, p)| self.copied_value(*p, block, Def::BlockParam(i as u32)))
            .collect();
        self.copies.extend(old.params.iter().copied().zip(params.iter().copied()));
        let mut ops = Vec::with_capacity(old.ops.len());
        for id in &old.ops {
            let made = self.copied(*id, block);
            let results = self.graph.op(*id).results.clone();
            self.copies.extend(results.into_iter().zip(self.graph.op(made).results.clone()));
            ops.push(made);
        }
        let results = old.results.iter().map(|r| self.copies[r]).collect();
        self.copies = outer;
        self.graph.blocks[block.index()] = Block { params, ops, results };
        block
    }
}

fn is_collective(op: &Operation) -> bool {
    matches!(op.op, Op::Collective(_))
}

/// Drops operations of values that were computed for the backward pass alone.
fn drop_unread(graph: &Graph, block: BlockId, ops: &mut Vec<OpId>, dropped: &[bool]) {
    let mut read = vec![false; graph.values.len()];
    let outputs = graph.outputs.iter().map(|o| o.value);
    outputs.chain(graph.block(block).results.iter().copied()).for_each(|v| read[v.index()] = true);
    let is_dropped = |v: ValueId| dropped.get(v.index()).copied().unwrap_or(false);
    let mut kept: Vec<OpId> = Vec::with_capacity(ops.len());
    for id in ops.iter().rev() {
        let op = graph.op(*id);
        if op.results.iter().all(|r| is_dropped(*r) && !read[r.index()]) && !op.results.is_empty() {
            continue;
        }
        op.args.iter().for_each(|a| read[a.index()] = true);
        kept.push(*id);
    }
    kept.reverse();
    *ops = kept;
}
