//! What is computed while ranks exchange: the order of the operations of a rank's program.
//!
//! An exchange begins where its operation stands and is waited for at its first use. So gradients that only updates use are reduced
//! while the backward pass goes on: the updates stand behind it, by one *batch* of reductions. A batch is full when it has a quarter of
//! all, or some MiB, so that no more than two of them (or as many single arrays) are kept longer than without that. The reductions of a batch
//! that go along the same atoms are one bucket, which is waited for at once. What is gathered of a parameter begins one layer ahead.
//!
//! The order is the same on all ranks, as the program is.

use crate::ir::*;
use crate::mesh::Atom;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

/// Bytes from which on a batch is full: this part of all that a block reduces so, between these two.
const PART: usize = 4;
const LEAST: usize = 64 << 10;
const MOST: usize = 24 << 20;

/// Puts the operations of all blocks into an order in which exchanges may be under way while others run.
pub fn overlap(g: &mut Graph) {
    let mut buckets = 0;
    for block in 0..g.blocks.len() as u32 {
        let block = BlockId(block);
        if g.block(block).ops.iter().any(|op| exchange(g, *op).is_some()) {
            ahead(g, block);
            let mut order = Order::new(g, block, buckets);
            order.run();
            buckets = order.buckets;
            let (out, of) = (order.out, order.bucket);
            g.blocks[block.index()].ops = out;
            for (op, n) in of {
                if let Op::Collective(c) = &mut g.ops[op.index()].op {
                    c.bucket = n;
                }
            }
        }
    }
}

/// A collective that is no slice.
fn exchange(g: &Graph, op: OpId) -> Option<&Collective> {
    match &g.op(op).op {
        Op::Collective(c) if c.kind != CollectiveKind::Slice => Some(c),
        _ => None,
    }
}

/// Bytes that an exchange keeps in memory.
fn moved(g: &Graph, op: OpId) -> usize {
    let op = g.op(op);
    g.bytes(op.args[0]).max(g.bytes(op.results[0]))
}

/// By operation: whether others compute between the beginning of an exchange and the wait for it.
pub fn overlapped(g: &Graph) -> Vec<bool> {
    let mut out = vec![false; g.ops.len()];
    let mut place = vec![0; g.ops.len()];
    let mut ends = vec![usize::MAX; g.ops.len()];
    for (b, block) in g.blocks.iter().enumerate() {
        let here = BlockId(b as u32);
        // How many operations that take time stand before each.
        let mut before = vec![0u32];
        for (i, id) in block.ops.iter().enumerate() {
            place[id.index()] = i;
            before.push(before[i] + u32::from(takes_time(g, *id)));
        }
        let mut of_bucket: HashMap<u32, usize> = HashMap::new();
        for (i, id) in block.ops.iter().enumerate() {
            for a in &g.op(*id).args {
                let Def::Op(made, _) = g.value(*a).def else { continue };
                let Some(c) = exchange(g, made).filter(|_| g.op(made).block == here) else { continue };
                ends[made.index()] = ends[made.index()].min(i);
                if c.bucket > 0 {
                    of_bucket.entry(c.bucket).or_insert(i);
                }
            }
        }
        for id in &block.ops {
            let Some(c) = exchange(g, *id) else { continue };
            let own = ends[id.index()].min(block.ops.len());
            let end = of_bucket.get(&c.bucket).copied().unwrap_or(own).min(own);
            out[id.index()] = before[end] > before[place[id.index()] + 1];
        }
    }
    out
}

/// Products and the like; what goes over elements one by one is put together with others and may stand elsewhere in the end.
fn takes_time(g: &Graph, id: OpId) -> bool {
    let op = &g.op(id).op;
    matches!(op, Op::Dot { .. } | Op::Attention(_) | Op::AttentionGrad(_) | Op::Loop { .. } | Op::Scatter { .. })
}

/// Has what is gathered of parameters begin with the layer before the one that uses it.
fn ahead(g: &mut Graph, block: BlockId) {
    let ops = std::mem::take(&mut g.blocks[block.index()].ops);
    // Runs of operations of one turn of a loop in the source.
    let mut starts: Vec<usize> = Vec::new();
    let mut run = Vec::with_capacity(ops.len());
    let mut last: Option<(&str, Phase)> = None;
    for (i, id) in ops.iter().enumerate() {
        let op = g.op(*id);
        let path = g.scopes.get(op.scope.index()).map_or("", |s| turn(&s.path));
        if !path.is_empty() && last != Some((path, op.phase)) {
            last = Some((path, op.phase));
            starts.push(i);
        }
        run.push(starts.len());
    }
    let mut to: Vec<(usize, usize)> = (0..ops.len()).map(|i| (i, i)).collect();
    let mut place = vec![usize::MAX; g.ops.len()];
    for (i, id) in ops.iter().enumerate() {
        let gathers = exchange(g, *id).is_some_and(|c| c.kind == CollectiveKind::AllGather);
        if gathers && g.op(*id).phase != Phase::Update && run[i] >= 2 {
            // The run before its own.
            let first = starts[run[i] - 2];
            let mut chain = vec![*id];
            while let Some(op) = g.def_op(g.op(chain[chain.len() - 1]).args[0]) {
                let Def::Op(made, _) = g.value(op.results[0]).def else { break };
                if place[made.index()] == usize::MAX {
                    break;
                }
                match op.op {
                    Op::Param(_) => {
                        chain.push(made);
                        for moved in &chain {
                            let at = &mut to[place[moved.index()].min(i)];
                            at.0 = at.0.min(first);
                        }
                        break;
                    }
                    Op::Map(crate::types::MapOp::Cast(_)) => chain.push(made),
                    _ => break,
                }
            }
        }
        place[id.index()] = i;
    }
    // Those that move stand before what was there, in their own order.
    let key = |(at, own): (usize, usize)| (at, at == own, own);
    to.sort_by_key(|t| key(*t));
    g.blocks[block.index()].ops = to.into_iter().map(|(_, own)| ops[own]).collect();
}

/// `block.3` of `block.3.attention`; empty where there is no turn.
fn turn(path: &str) -> &str {
    let mut end = 0;
    let mut at = 0;
    for part in path.split('.') {
        at += part.len();
        if part.bytes().all(|b| b.is_ascii_digit()) {
            end = at;
            break;
        }
        at += 1;
    }
    &path[..end]
}

/// Reductions that are under way together.
#[derive(Default)]
struct Batch {
    bytes: usize,
    ops: Vec<OpId>,
    /// By atoms: the number of the bucket.
    buckets: Vec<(Vec<Atom>, u32)>,
}

/// The new order of a block as it comes about.
struct Order<'g> {
    g: &'g Graph,
    ops: Vec<OpId>,
    /// By operation, as all below: where it stood.
    place: Vec<usize>,
    users: Vec<Vec<usize>>,
    /// Operations whose results it lacks yet.
    lacks: Vec<usize>,
    /// Whether it may stand behind what followed it.
    waits: Vec<bool>,
    /// Whether it stands where its last operand is there, wherever that is.
    free: Vec<bool>,
    done: Vec<bool>,
    ready: BinaryHeap<Reverse<usize>>,
    open: Batch,
    full: Batch,
    /// Bytes from which on one is full.
    batch: usize,
    buckets: u32,
    bucket: Vec<(OpId, u32)>,
    out: Vec<OpId>,
}

impl<'g> Order<'g> {
    fn new(g: &'g Graph, block: BlockId, buckets: u32) -> Order<'g> {
        let ops = g.block(block).ops.clone();
        let n = ops.len();
        let mut place = vec![usize::MAX; g.ops.len()];
        ops.iter().enumerate().for_each(|(i, id)| place[id.index()] = i);
        let mut users: Vec<Vec<usize>> = vec![Vec::new(); n];
        let mut lacks = vec![0; n];
        for (i, id) in ops.iter().enumerate() {
            let mut seen: Vec<usize> = Vec::new();
            for a in &g.op(*id).args {
                if let Def::Op(made, _) = g.value(*a).def
                    && let k = place[made.index()]
                    && k != usize::MAX
                    && !seen.contains(&k)
                {
                    seen.push(k);
                    users[k].push(i);
                }
            }
            lacks[i] = seen.len();
        }
        let mut waits = vec![false; n];
        for i in (0..n).rev() {
            let op = g.op(ops[i]);
            let light = match &op.op {
                Op::Map(_) | Op::Reshape { .. } | Op::Broadcast { .. } => true,
                Op::Collective(c) => c.kind == CollectiveKind::Slice,
                _ => false,
            };
            let update = op.phase == Phase::Update && !matches!(op.op, Op::Loop { .. });
            waits[i] = update || (light && users[i].iter().all(|u| waits[*u]));
        }
        let free = ops.iter().map(|id| g.op(*id).phase == Phase::Update).collect();
        Order {
            g,
            place,
            users,
            lacks,
            waits,
            free,
            done: vec![false; n],
            ready: BinaryHeap::new(),
            open: Batch::default(),
            full: Batch::default(),
            batch: 0,
            buckets,
            bucket: Vec::new(),
            out: Vec::with_capacity(n),
            ops,
        }
    }

    fn run(&mut self) {
        let late = (0..self.ops.len()).filter(|i| self.late(*i));
        let all: usize = late.map(|i| moved(self.g, self.ops[i])).sum();
        self.batch = (all / PART).clamp(LEAST, MOST);
        // What updates need beside gradients.
        for i in 0..self.ops.len() {
            if self.free[i] && self.lacks[i] == 0 {
                self.put(i);
            }
        }
        for i in 0..self.ops.len() {
            if self.free[i] || self.done[i] {
                continue;
            }
            if self.lacks[i] > 0 && self.waits[i] {
                // It comes when what it lacks is waited for.
                self.free[i] = true;
                continue;
            }
            while self.lacks[i] > 0 && self.release() {}
            self.put(i);
        }
        while self.release() {}
        debug_assert_eq!(self.out.len(), self.ops.len(), "operations wait for each other");
    }

    /// An operation stands here, and what it was the last to be lacked by.
    fn put(&mut self, i: usize) {
        self.ready.push(Reverse(i));
        while let Some(Reverse(i)) = self.ready.pop() {
            if std::mem::replace(&mut self.done[i], true) {
                continue;
            }
            let id = self.ops[i];
            self.out.push(id);
            match exchange(self.g, id) {
                Some(c) if self.late(i) => self.begin(id, c),
                _ => self.there(i),
            }
        }
    }

    /// A result can be used.
    fn there(&mut self, i: usize) {
        for k in 0..self.users[i].len() {
            let u = self.users[i][k];
            self.lacks[u] -= 1;
            if self.lacks[u] == 0 && self.free[u] {
                self.ready.push(Reverse(u));
            }
        }
    }

    /// Whether it is an exchange whose users can wait.
    fn late(&self, i: usize) -> bool {
        exchange(self.g, self.ops[i]).is_some() && self.users[i].iter().all(|u| self.waits[*u])
    }

    /// An exchange whose users can wait.
    fn begin(&mut self, id: OpId, c: &Collective) {
        self.open.bytes += moved(self.g, id);
        self.open.ops.push(id);
        let known = self.open.buckets.iter().find(|(atoms, _)| *atoms == c.atoms).map(|(_, n)| *n);
        let number = known.unwrap_or_else(|| {
            self.buckets += 1;
            self.open.buckets.push((c.atoms.clone(), self.buckets));
            self.buckets
        });
        self.bucket.push((id, number));
        if self.open.bytes >= self.batch {
            let waited = std::mem::replace(&mut self.full, std::mem::take(&mut self.open));
            self.end(waited);
        }
    }

    fn end(&mut self, batch: Batch) {
        for id in batch.ops {
            self.there(self.place[id.index()]);
        }
    }

    /// Waits for the older batch; whether there was any.
    fn release(&mut self) -> bool {
        let mut batch = std::mem::take(&mut self.full);
        if batch.ops.is_empty() {
            batch = std::mem::take(&mut self.open);
        }
        let any = !batch.ops.is_empty();
        self.end(batch);
        if let Some(Reverse(i)) = self.ready.pop() {
            self.put(i);
        }
        any
    }
}

#[cfg(test)]
mod tests;
