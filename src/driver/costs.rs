//! What the turns of a pipeline's loops take, by a model of the machine: for cuts that are even in time, schedules that are found from
//! times, and pictures in seconds.
//!
//! Products and attention take their operations at the machine's rate, other operations the bytes of their results; what fuses or
//! has no elements to write takes nothing. A gradient of an activation takes a product as the forward pass does, and so does one of a
//! weight. Ranks along the other axes share all of it evenly, and their exchanges take no time here. What stands before the loops counts
//! with their first turn, what follows a turn with that turn: the embedding is in the first stage, the head in the last one.

use crate::elaborate::plan::{Pipeline, Recompute, ResolvedPlan};
use crate::ir::{BlockId, ENTRY, Graph, Op, Operation, Phase, ScopeId, ValueId, work};
use crate::pipeline::Turns;
use crate::schedule::{Costs, Machine, StageCost};
use crate::types::{DType, MapOp};
use std::collections::{HashMap, HashSet};

/// Of one microbatch.
pub struct Model {
    /// By turn of the loops, one after the other.
    turns: Vec<StageCost>,
    /// Bytes of what goes from a turn to the next.
    crossing: f64,
    machine: Machine,
}

const WEIGHT: u8 = 1;
const FED: u8 = 2;

impl Model {
    /// `g`: the model's forward pass, with or without what follows it.
    pub fn new(g: &Graph, plan: &ResolvedPlan, p: &Pipeline, machine: Machine) -> Model {
        // What stays is counted in turns.
        let none = StageCost { held: 1.0, kept: 1.0, ..StageCost::default() };
        let mut m = Model { turns: vec![none; (p.turns as usize).max(1)], crossing: 0.0, machine };
        let place = places(g, p);
        let share = p.microbatches as f64 * (plan.ranks() / plan.mesh[p.axis].size.max(1)).max(1) as f64;
        let again = |scope: ScopeId, turn: bool| match &plan.recompute {
            Recompute::Full => turn,
            Recompute::Scopes(scopes) => g.outwards(scope).any(|s| scopes.iter().any(|p| p.roots.contains(&s))),
            Recompute::None | Recompute::Auto(_) | Recompute::Gathers => false,
        };
        let mut kind = vec![0u8; g.values.len()];
        let mut at: Vec<Option<usize>> = vec![None; g.values.len()];
        // A loop's body stands behind the block that has the loop, and its captures are of that.
        for (block, times) in blocks(g) {
            for id in &g.block(block).ops {
                let op = g.op(*id);
                if op.phase != Phase::Forward {
                    continue;
                }
                let own = match op.op {
                    Op::Param(_) | Op::State(_) => WEIGHT,
                    Op::Input(_) | Op::Random { .. } | Op::Draw { .. } => FED,
                    _ => 0,
                };
                let made = op.args.iter().fold(own, |k, a| k | kind[a.index()]);
                let own_turn = place[op.scope.index()];
                let turn = own_turn.or_else(|| op.args.iter().filter_map(|a| at[a.index()]).max());
                for r in &op.results {
                    (kind[r.index()], at[r.index()]) = (made, turn);
                }
                if let Op::Loop { body, .. } = op.op {
                    for (p, a) in g.block(body).params[1..].iter().zip(&op.args) {
                        (kind[p.index()], at[p.index()]) = (kind[a.index()], at[a.index()].or(turn));
                    }
                    continue;
                }
                let cost = m.operation(g, op, &kind, times / share);
                let to = &mut m.turns[turn.unwrap_or(0)];
                to.forward += cost.forward;
                to.weight += cost.weight;
                to.input += cost.input + if again(op.scope, own_turn.is_some()) { cost.forward } else { 0.0 };
            }
        }
        m.crossing = crossing(g, &at, &place) / share;
        m
    }

    fn operation(&self, g: &Graph, op: &Operation, kind: &[u8], times: f64) -> StageCost {
        let bytes = |v: &ValueId| {
            let value = g.value(*v);
            value.dims.iter().map(|d| g.size(*d) as f64).product::<f64>() * value.dtype.bytes() as f64
        };
        let written = op.results.iter().map(bytes).sum::<f64>() * times / self.machine.memory;
        let dtype = op.results.first().map_or(DType::F32, |r| g.value(*r).dtype);
        let product = work::flops_of(g, op) * times / self.machine.flops(dtype);
        let of = |wanted: u8| op.args.iter().filter(|a| kind[a.index()] == wanted).count() as f64;
        let (weights, inner) = (of(WEIGHT), of(WEIGHT | FED));
        let (forward, input, weight) = match op.op {
            Op::Dot { .. } => (product, product * inner, product * weights),
            Op::Attention(_) => (product, 2.5 * product, 0.0),
            Op::Param(_) | Op::State(_) | Op::Input(_) | Op::Constant(_) | Op::Iota(_) | Op::Step | Op::Position => {
                (0.0, 0.0, 0.0)
            }
            Op::Broadcast { .. } | Op::Reshape { .. } | Op::StopGradient | Op::Coordinate(_) => (0.0, 0.0, 0.0),
            Op::Map(MapOp::Cast(_)) => (0.0, 0.0, 0.0),
            _ => (written, if inner > 0.0 { 2.0 * written } else { 0.0 }, written * weights.min(1.0)),
        };
        StageCost { forward, input, weight, ..StageCost::default() }
    }

    /// Of stages with so many turns each.
    pub fn stages(&self, per: &[u64]) -> Costs {
        let mut first = 0;
        let mut sum = |n: &u64| {
            let own = &self.turns[first..(first + *n as usize).min(self.turns.len())];
            first += own.len();
            own.iter().fold(StageCost::default(), |s, t| StageCost {
                forward: s.forward + t.forward,
                input: s.input + t.input,
                weight: s.weight + t.weight,
                held: s.held + t.held,
                kept: s.kept + t.kept,
            })
        };
        let stages: Vec<StageCost> = per.iter().map(&mut sum).collect();
        let sent = self.machine.latency + self.crossing / self.machine.link;
        let transfer = vec![[sent; 2]; stages.len().saturating_sub(1)];
        Costs { stages, transfer, cap: None }
    }

    /// Turns for each of so many stages, at least one each: such that the longest stage is as short as can be, then the sum of squares.
    /// Costs that differ by less than a hundredth are the same, and then earlier stages have the turns that do not divide.
    pub fn balanced(&self, stages: usize) -> Vec<u64> {
        let n = self.turns.len();
        let each: Vec<f64> = self.turns.iter().map(|t| t.forward + t.input + t.weight).collect();
        let least = each.iter().copied().filter(|c| *c > 0.0).fold(f64::INFINITY, f64::min);
        // Whole numbers add up without rounding.
        let whole = |c: &f64| if least.is_finite() { (100.0 * c / least).round().min(1e12) as u128 } else { 1 };
        let each: Vec<u128> = each.iter().map(whole).collect();
        let mut sums = vec![0u128; n + 1];
        (0..n).for_each(|k| sums[k + 1] = sums[k] + each[k]);
        // By the number of turns that are given out: the best (most, squares), and the last stage's turns.
        let mut best: Vec<Option<(u128, u128)>> = vec![None; n + 1];
        best[0] = Some((0, 0));
        let mut choice = vec![vec![0usize; n + 1]; stages];
        for (s, chosen) in choice.iter_mut().enumerate() {
            let mut next = vec![None; n + 1];
            for end in s + 1..=n - (stages - 1 - s) {
                // Short last stages first, so that of equal cuts the first stages have more.
                for begin in (s..end).rev() {
                    let Some((most, squares)) = best[begin] else { continue };
                    let own = sums[end] - sums[begin];
                    let cut = (most.max(own), squares + own * own);
                    if next[end].is_none_or(|known| cut < known) {
                        (next[end], chosen[end]) = (Some(cut), end - begin);
                    }
                }
            }
            best = next;
        }
        let (mut left, mut out) = (n, vec![0u64; stages]);
        for s in (0..stages).rev() {
            out[s] = choice[s][left] as u64;
            left -= choice[s][left];
        }
        out
    }
}

/// By scope: the turn of the pipeline's loops that it belongs to.
fn places(g: &Graph, p: &Pipeline) -> Vec<Option<usize>> {
    let mut loops = Vec::new();
    let mut first = 0;
    for d in &p.dims {
        loops.push((*d, first));
        first += g.size(*d);
    }
    let turns = Turns { loops, stage: (0..first).collect() };
    (0..g.scopes.len()).map(|s| turns.of_scope(g, ScopeId(s as u32))).collect()
}

/// The program's block and the bodies of its loops, each with how often it runs; outer ones first.
fn blocks(g: &Graph) -> Vec<(BlockId, f64)> {
    let mut all = vec![(ENTRY, 1.0)];
    let mut k = 0;
    while let Some((block, times)) = all.get(k).copied() {
        for id in &g.block(block).ops {
            if let Op::Loop { body, dim, .. } = g.op(*id).op {
                all.push((body, times * g.size(dim) as f64));
            }
        }
        k += 1;
    }
    all
}

/// Bytes that a turn takes from the one before it, of the whole batch: the most of any.
fn crossing(g: &Graph, at: &[Option<usize>], place: &[Option<usize>]) -> f64 {
    let mut read = HashSet::new();
    let mut bytes: HashMap<usize, f64> = HashMap::new();
    for op in g.ops.iter().filter(|o| o.phase == Phase::Forward) {
        let Some(turn) = place[op.scope.index()] else { continue };
        for a in &op.args {
            let value = g.value(*a);
            let from = at[a.index()].filter(|_| !matches!(g.def_op(*a).map(|o| &o.op), Some(Op::Param(_))));
            if from.is_some_and(|f| f + 1 == turn) && read.insert((*a, turn)) {
                let own = value.dims.iter().map(|d| g.size(*d) as f64).product::<f64>() * value.dtype.bytes() as f64;
                *bytes.entry(turn).or_default() += own;
            }
        }
    }
    bytes.into_values().fold(0.0, f64::max)
}
