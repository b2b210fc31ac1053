//! The cheapest choice of what is computed again, at a price for each byte that is kept.
//!
//! Within each unit (a turn of the loop over layers; where there is none, a layer of the model) a minimum cut says which values of the
//! forward pass are kept for the backward pass and which are computed again from them, as for kernels (`kernel/lower/recompute.rs`),
//! but with products, attention and exchanges among what may be computed again. What leaves a unit is kept. The higher the price, the
//! more is computed again; at none nothing is. Units that are alike choose alike, so between two prices the first units, whose
//! values would wait longest, take the higher one.

use super::choose::{Facts, is_exchange, leaving, path_units, turns};
use crate::ir::mincut::{NEVER, Network, NodeId, SINK, SOURCE};
use crate::ir::*;
use indexmap::IndexMap;

/// What operations on floats, and bytes between ranks, take in the time of a byte of memory.
const FLOPS_A_BYTE: f64 = 16.0;
const LINK: f64 = 8.0;
/// Costs are counted in parts of this.
const UNIT: f64 = 64.0;
/// Prices are this times powers of the square root of two; the highest is beyond what any product is worth.
const LEAST: f64 = 1.0 / 64.0;
const LEVELS: i32 = 48;

/// The price of one unit's bytes is `high` for the first `turns` units, `low` for others; in parts of [`UNIT`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Prices {
    pub low: u64,
    pub high: u64,
    pub turns: u32,
}

/// What can be chosen in a program.
pub struct Market<'g> {
    g: &'g Graph,
    facts: Facts,
    leaves: Vec<bool>,
    keep_collectives: bool,
    /// By unit in order of the program: its operations of the forward pass, in their block.
    units: Vec<(BlockId, Vec<OpId>)>,
    /// By value: whether the backward pass reads it.
    wanted: Vec<bool>,
}

impl<'g> Market<'g> {
    pub fn new(g: &'g Graph, keep_collectives: bool) -> Market<'g> {
        let of_turns = turns(g);
        let unit = if of_turns.iter().any(Option::is_some) { of_turns } else { path_units(g) };
        let mut units: IndexMap<(BlockId, u32), Vec<OpId>> = IndexMap::new();
        let mut wanted = vec![false; g.values.len()];
        for (b, block) in g.blocks.iter().enumerate() {
            for id in &block.ops {
                let op = g.op(*id);
                match op.phase {
                    Phase::Forward => {
                        if let Some(u) = unit[op.scope.index()] {
                            units.entry((BlockId(b as u32), u)).or_default().push(*id);
                        }
                    }
                    Phase::Backward => op.args.iter().for_each(|a| wanted[a.index()] = true),
                    Phase::Update => {}
                }
            }
        }
        let units = units.into_iter().map(|((block, _), ops)| (block, ops)).collect();
        Market { g, facts: Facts::new(g), leaves: leaving(g, &unit), keep_collectives, units, wanted }
    }

    pub fn units(&self) -> u32 {
        self.units.len() as u32
    }

    /// Prices at which choices differ, ascending; at the first one nothing is computed again.
    pub fn levels(&self) -> Vec<u64> {
        let mut out = vec![0];
        let mut last = vec![false; self.g.values.len()];
        for k in 0..LEVELS {
            let price = (UNIT * LEAST * 2f64.powf(f64::from(k) / 2.0)) as u64;
            let next = self.dropped(Prices { low: price, high: price, turns: 0 });
            if next != last {
                out.push(price);
                last = next;
            }
        }
        out
    }

    /// For each value whether the backward pass computes it again.
    pub fn dropped(&self, prices: Prices) -> Vec<bool> {
        let mut out = vec![false; self.g.values.len()];
        for (k, (_, ops)) in self.units.iter().enumerate() {
            let price = if (k as u32) < prices.turns { prices.high } else { prices.low };
            if price > 0 {
                self.unit(ops, price, &mut out);
            }
        }
        out
    }

    /// Whether an operation may be computed again.
    fn may(&self, op: &Operation) -> bool {
        let free = |r: &ValueId| !self.facts.stays[r.index()] && !self.leaves[r.index()];
        op.results.iter().all(free) && !(self.keep_collectives && is_exchange(op))
    }

    fn cost(&self, op: &Operation) -> u64 {
        match self.may(op) {
            false => NEVER,
            // Parameters are gathered again for the backward pass.
            true if op.results.iter().all(|r| self.facts.weights[r.index()]) => 1,
            true => cost(self.g, op),
        }
    }

    fn unit(&self, ops: &[OpId], price: u64, out: &mut [bool]) {
        let g = self.g;
        let mut network = Network::new();
        // Before an operation's results are kept, and after that.
        let mut before: IndexMap<OpId, NodeId> = IndexMap::new();
        let mut after: IndexMap<ValueId, NodeId> = IndexMap::new();
        for id in ops {
            let op = g.op(*id);
            let node = network.node();
            before.insert(*id, node);
            network.arc(SOURCE, node, self.cost(op));
            for r in &op.results {
                let there = network.node();
                after.insert(*r, there);
                // What is there anyway costs nothing to keep.
                let free = self.facts.stays[r.index()];
                network.arc(node, there, if free { 0 } else { (g.bytes(*r) as u64).saturating_mul(price) });
                if self.wanted[r.index()] {
                    network.arc(there, SINK, NEVER);
                }
            }
            for a in &op.args {
                if let Some(there) = after.get(a) {
                    network.arc(*there, node, NEVER);
                }
            }
        }
        let side = network.sink_side();
        for (id, node) in before {
            if side[node] && self.may(g.op(id)) {
                g.op(id).results.iter().for_each(|r| out[r.index()] = true);
            }
        }
    }
}

/// What it costs to compute something once more, in parts of a byte's time.
fn cost(g: &Graph, op: &Operation) -> u64 {
    let bytes = |list: &[ValueId]| list.iter().map(|v| g.bytes(*v) as f64).sum::<f64>();
    let bytes = match &op.op {
        Op::Reshape { .. } | Op::Broadcast { .. } | Op::Window { .. } => 0.0,
        Op::Collective(c) if is_exchange(op) => {
            LINK * g.mesh.weight(&c.atoms) as f64 * bytes(&op.args).max(bytes(&op.results))
        }
        // Made together with what reads it.
        Op::Map(_) | Op::Random { .. } => bytes(&op.results) / 4.0,
        _ => bytes(&op.args) + bytes(&op.results),
    };
    1 + (UNIT * (bytes + work::flops_of(g, op) / FLOPS_A_BYTE)).min(1e18) as u64
}
