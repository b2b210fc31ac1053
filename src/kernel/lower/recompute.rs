//! Decides which values of the forward pass stay in memory for the backward pass, and has the others computed again there.
//!
//! Only operations that go over elements one by one are ever repeated: products, attention, reductions and the like are too
//! dear. Among those, the cheapest choice is a minimum cut (as in "Min-Cut Optimal Recomputation", functorch 2022): a value
//! that the backward pass wants is either kept, which costs its bytes, or computed again, which costs a little time
//! and needs its operands in turn. What is computed again stands before its first reader; `group` puts it into a kernel
//! that reads the same kept values.

use super::group::is_standalone;
use super::values::is_heavy;
use crate::ir::mincut::{NEVER, Network, NodeId, SINK, SOURCE};
use crate::ir::*;
use crate::types::rng::Dist;
use indexmap::IndexMap;

/// Costs are counted in parts of this for each byte that is kept.
const BYTE: u64 = 32;
/// A kept value that the forward pass itself does not need in memory must be written for it.
const EXTRA_WRITE: u64 = BYTE / 4;
/// For each byte of a value that a product of the backward pass reads: it is written once more.
const REWRITE: u64 = BYTE / 8;
/// For each element of an operation's result, and of one that takes more than a few instructions.
const LIGHT: u64 = 4;
const HEAVY: u64 = 16;

/// Rewrites all blocks. `each` is the number of bytes that must be gained for each operation that is repeated.
///
/// What a program says is to be computed again is of the forward pass and of the backward pass: first it counts as a reader of what
/// the one has kept, and then what it makes itself is looked at in the same way.
pub(super) fn recompute(graph: &mut Graph, each: usize) {
    let asked: Vec<bool> = graph.blocks.iter().map(|b| b.ops.iter().any(|id| graph.op(*id).again)).collect();
    for (block, asked) in asked.into_iter().enumerate() {
        let block = BlockId(block as u32);
        for makes in [Makes::Once, Makes::Again] {
            if makes == Makes::Again && !asked {
                continue;
            }
            let dropped = Choice::of(graph, block, makes, each as u64 * BYTE);
            if dropped.contains(&true) {
                again::repeat(graph, block, &dropped, |op| makes.is_reader(op));
            }
        }
    }
}

/// Which operations make the values that are kept or not.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Makes {
    /// Those of the forward pass.
    Once,
    /// What the program has repeated.
    Again,
}

impl Makes {
    fn is_maker(self, op: &Operation) -> bool {
        match self {
            Makes::Once => op.phase == Phase::Forward,
            Makes::Again => op.again,
        }
    }

    fn is_reader(self, op: &Operation) -> bool {
        match self {
            Makes::Once => op.phase != Phase::Forward,
            Makes::Again => op.phase != Phase::Forward && !op.again,
        }
    }
}

/// What can be said about the values of a block.
struct Choice<'g> {
    graph: &'g Graph,
    block: BlockId,
    makes: Makes,
    /// What an operation costs at least.
    each: u64,
    /// How many products and other large steps lie before a value, one after the other.
    rank: Vec<u32>,
    /// Values that are functions of parameters and states alone.
    weights: Vec<bool>,
    /// Values that a step of the runtime reads at an address, in the forward pass and after it.
    addressed: [Vec<bool>; 2],
    /// Values that are in memory whatever is chosen.
    stays: Vec<bool>,
}

impl<'g> Choice<'g> {
    /// For each value whether the backward pass computes it again.
    fn of(graph: &'g Graph, block: BlockId, makes: Makes, each: u64) -> Vec<bool> {
        let n = graph.values.len();
        let ops = &graph.block(block).ops;
        let any = |of: &dyn Fn(&Operation) -> bool| ops.iter().any(|id| of(graph.op(*id)));
        if !any(&|op| makes.is_maker(op)) || !any(&|op| makes.is_reader(op)) {
            return Vec::new();
        }
        let mut choice = Choice {
            graph,
            block,
            makes,
            each,
            rank: vec![0; n],
            weights: vec![false; n],
            addressed: [vec![false; n], vec![false; n]],
            stays: vec![false; n],
        };
        choice.look();
        choice.cut()
    }

    fn look(&mut self) {
        let graph = self.graph;
        let block = graph.block(self.block);
        for id in &block.ops {
            let op = graph.op(*id);
            let before = op.args.iter().map(|a| self.rank[a.index()]).max().unwrap_or(0);
            let of_weights = match op.op {
                Op::Param(_) | Op::State(_) => true,
                _ => {
                    let known = |a: &ValueId| self.weights[a.index()] || self.is_constant(*a);
                    op.args.iter().any(|a| self.weights[a.index()]) && op.args.iter().all(known)
                }
            };
            for r in &op.results {
                self.rank[r.index()] = before + u32::from(is_standalone(&op.op));
                self.weights[r.index()] = of_weights;
            }
            if self.makes.is_maker(op) {
                // What waits beside a product must be there after it.
                let after = op.results.first().map_or(0, |r| self.rank[r.index()]);
                for a in &op.args {
                    self.stays[a.index()] |= self.rank[a.index()] < after;
                }
            }
        }
        for id in block.ops.iter().rev() {
            let op = graph.op(*id);
            let own = usize::from(!self.makes.is_maker(op));
            let standalone = is_standalone(&op.op);
            for a in &op.args {
                self.addressed[own][a.index()] |= standalone;
            }
            if is_view(&op.op) {
                for addressed in &mut self.addressed {
                    addressed[op.args[0].index()] |= addressed[op.results[0].index()];
                }
            }
        }
        let outputs = graph.outputs.iter().map(|o| o.value);
        outputs.chain(block.results.iter().copied()).for_each(|v| self.stays[v.index()] = true);
    }

    fn is_constant(&self, v: ValueId) -> bool {
        let op = self.graph.def_op(v).map(|o| &o.op);
        matches!(op, Some(Op::Constant(_) | Op::Iota(_) | Op::Step | Op::Position))
    }

    /// The operation that computes a value in the forward pass of this block; None for what is there anyway.
    fn forward_op(&self, v: ValueId) -> Option<&'g Operation> {
        let graph = self.graph;
        let op = graph.def_op(v).filter(|o| o.block == self.block && self.makes.is_maker(o))?;
        (!op.args.is_empty() || matches!(op.op, Op::Random { .. })).then_some(op)
    }

    /// What it costs to compute a value again.
    fn cost_again(&self, v: ValueId, op: &Operation) -> u64 {
        let Value { dtype, dims, .. } = self.graph.value(v);
        let elements = self.graph.elements(dims) as u64;
        let each = match &op.op {
            Op::Reshape { .. } | Op::Broadcast { .. } => return 0,
            Op::Window { .. } => 0,
            // Weights are read by nothing else then, and are as large as what is computed from them.
            Op::Map(_) if self.weights[v.index()] => return NEVER,
            Op::Map(f) if is_heavy(*f) => HEAVY,
            Op::Random { dist: Dist::Normal { .. } | Dist::TruncNormal { .. }, .. } => 2 * HEAVY,
            Op::Random { .. } => HEAVY,
            Op::Map(_) => LIGHT,
            _ => return NEVER,
        };
        let write = if self.addressed[1][v.index()] { REWRITE * dtype.bytes() as u64 } else { 0 };
        self.each + elements * (each + write)
    }

    fn cost_of_keeping(&self, v: ValueId, dear: bool) -> u64 {
        let Value { dtype, dims, .. } = self.graph.value(v);
        let bytes = (self.graph.elements(dims) * dtype.bytes()) as u64;
        let there = dear || self.stays[v.index()] || self.addressed[0][v.index()];
        bytes * if there { BYTE } else { BYTE + EXTRA_WRITE }
    }

    fn cut(&self) -> Vec<bool> {
        let graph = self.graph;
        let mut network = Network::new();
        // Of a value: what stands for it before and after it is kept.
        let mut nodes: IndexMap<ValueId, [NodeId; 2]> = IndexMap::new();
        let mut work: Vec<ValueId> = Vec::new();
        let mut reach = |v: ValueId, network: &mut Network, work: &mut Vec<ValueId>| {
            *nodes.entry(v).or_insert_with(|| {
                work.push(v);
                [network.node(), network.node()]
            })
        };
        let readers = graph.block(self.block).ops.iter().map(|id| graph.op(*id));
        for op in readers.filter(|o| self.makes.is_reader(o)) {
            for a in op.args.iter().filter(|a| self.forward_op(**a).is_some()) {
                let [_, after] = reach(*a, &mut network, &mut work);
                network.arc(after, SINK, NEVER);
            }
        }
        while let Some(v) = work.pop() {
            let Some(op) = self.forward_op(v) else { continue };
            let [before, after] = reach(v, &mut network, &mut work);
            let cost = self.cost_again(v, op);
            network.arc(SOURCE, before, cost);
            network.arc(before, after, self.cost_of_keeping(v, cost == NEVER));
            if cost == NEVER {
                continue;
            }
            for a in op.args.iter().filter(|a| self.forward_op(**a).is_some()) {
                let [_, there] = reach(*a, &mut network, &mut work);
                network.arc(there, before, NEVER);
            }
        }
        let side = network.sink_side();
        let mut again = vec![false; graph.values.len()];
        for (v, [before, _]) in nodes {
            again[v.index()] = side[before];
        }
        again
    }
}

/// Another name for elements of its first operand.
fn is_view(op: &Op) -> bool {
    matches!(op, Op::Reshape { .. } | Op::Broadcast { .. } | Op::Window { .. })
}
