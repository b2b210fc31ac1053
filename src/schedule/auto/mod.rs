//! A schedule found from costs: the best of the built-in ones, of the same with gradients of weights placed anew, and of several
//! greedy ones, improved by small changes; all below a cap of memory. The same question gives the same table.
//!
//! Reading order: this file (candidates and choice), `greedy.rs`, `improve.rs`.

mod greedy;
mod improve;

use super::family::{dual, interleaved, looped, place, v_shape, zero_bubble, zero_bubble_v};
use super::fill::fill;
use super::{Costs, Problem, Simulation, Table, Work, simulate};
use greedy::{Policy, greedy};

/// Actions that greedy searches may place.
const WORK: usize = 3_000_000;

/// The most memory that a rank may keep by these costs: the cap, or as much as 1F1B keeps on its first rank: the activations of as many
/// microbatches as there are ranks.
pub fn cap(ranks: usize, costs: &Costs) -> f64 {
    let held = |rank: usize| -> f64 { costs.stages.iter().skip(rank).step_by(ranks).map(|s| s.held).sum() };
    costs.cap.unwrap_or_else(|| (0..ranks).map(held).fold(0.0, f64::max) * ranks as f64)
}

/// A table for a model cut into as many stages as there are costs, and its times.
pub fn auto(ranks: usize, microbatches: usize, costs: &Costs) -> Result<Table, Problem> {
    let stages = costs.stages.len();
    if stages == 0 || !stages.is_multiple_of(ranks) {
        return Err(Problem::impossible(
            format!("{stages} stages do not divide by {ranks} ranks"),
            "give each rank the same number of stages",
        ));
    }
    let mut search = Search { limit: cap(ranks, costs), costs, best: None, least: f64::INFINITY };
    let chunks = stages / ranks;
    for t in built_in(ranks, microbatches, chunks) {
        search.refill(&t);
        search.offer(t);
    }
    // Of large tables only some are made.
    let attempts = (WORK / (6 * stages * microbatches)).max(6);
    let places = places(ranks, chunks);
    let all = Policy::all(chunks).into_iter().flat_map(|policy| places.iter().map(move |p| (p, policy)));
    for (rank_of, policy) in all.take(attempts) {
        let t = greedy(rank_of.clone(), ranks, microbatches, costs, search.limit, policy);
        search.refill(&t);
        search.offer(t);
    }
    improve::improve(&mut search);
    match search.best {
        Some(found) => Ok(found.table),
        None => Err(Problem::impossible(
            format!("no schedule keeps below {:.3}: the least that a rank needs is {:.3}", search.limit, search.least),
            "allow more memory, or cut the batch into more microbatches",
        )),
    }
}

/// The built-in schedules that hold each stage on one rank, and as many on each.
fn built_in(p: usize, m: usize, chunks: usize) -> Vec<Table> {
    let mut out = vec![interleaved::table(p, m, chunks), looped::table(p, m, chunks)];
    match chunks {
        1 => out.extend([zero_bubble::h1(p, m), zero_bubble::h2(p, m)]),
        2 => out.extend([zero_bubble_v::table(p, m), v_shape::half(p, m), v_shape::min(p, m), dual::pipe_v(p, m)]),
        _ => {}
    }
    out
}

fn places(p: usize, chunks: usize) -> Vec<Vec<Vec<usize>>> {
    let mut out = vec![place::looped(p, chunks)];
    if chunks == 2 && p > 1 {
        out.push(place::v(p));
    }
    out
}

/// A table that keeps below the cap.
#[derive(Clone)]
struct Found {
    table: Table,
    simulation: Simulation,
}

impl Found {
    /// Shorter is better, then less memory.
    fn key(&self) -> (f64, f64) {
        (self.simulation.makespan, self.simulation.peak_memory.iter().sum())
    }
}

struct Search<'a> {
    costs: &'a Costs,
    limit: f64,
    best: Option<Found>,
    /// The least peak of all that was seen.
    least: f64,
}

impl Search<'_> {
    /// Keeps a table if it is the best one that keeps below the cap; says whether.
    fn offer(&mut self, table: Table) -> bool {
        // A change may have made an order in which ranks wait for each other, which ends early.
        let work: usize = table.ranks.iter().flatten().map(|a| if a.op == Work::B { 2 } else { 1 }).sum();
        if work != 3 * table.stages * table.microbatches {
            return false;
        }
        let Ok(simulation) = simulate(&table, self.costs) else { return false };
        let peak = simulation.peak_memory.iter().copied().fold(0.0, f64::max);
        self.least = self.least.min(peak);
        // Sums of many costs are not exact.
        if peak > self.limit * (1.0 + 1e-9) {
            return false;
        }
        let found = Found { table, simulation };
        let better = self.best.as_ref().is_none_or(|b| found.key() < b.key());
        if better {
            self.best = Some(found);
        }
        better
    }

    /// A table's forward work and gradients of inputs in their order, with `W` where they cost least.
    fn refill(&mut self, table: &Table) -> bool {
        let caps = vec![self.limit; table.ranks.len()];
        self.offer(fill(table, &caps, self.costs))
    }
}
