//! Small changes to the best table: where a rank waits, what it waits for and what it could do instead change places.

use super::{Found, Search};
use crate::schedule::Table;
use crate::schedule::fill::without_weights;

/// Actions that all attempts together may place: bounds the time that the search takes.
const WORK: usize = 500_000;

pub fn improve(search: &mut Search<'_>) {
    let Some(best) = &search.best else { return };
    let bound = least(best, search);
    if best.simulation.makespan <= bound * (1.0 + 1e-9) {
        return;
    }
    let mut order = without_weights(&best.table);
    let mut attempts = (WORK / best.table.len().max(1)).clamp(8, 400);
    loop {
        let mut better = false;
        for (rank, index) in gaps(search) {
            if attempts == 0 {
                return;
            }
            attempts -= 1;
            let Some(changed) = exchanged(search, &order, rank, index) else { continue };
            if search.refill(&changed) {
                order = changed;
                better = true;
                break;
            }
        }
        if !better {
            return;
        }
    }
}

/// No table with these places is shorter: a rank does its work after the first microbatch has come to it.
fn least(best: &Found, search: &Search<'_>) -> f64 {
    let (table, costs) = (&best.table, search.costs);
    let mut there = 0.0f64;
    let mut out = 0.0f64;
    let mut seen = vec![false; table.ranks.len()];
    for (stage, cost) in costs.stages.iter().enumerate() {
        let rank = table.rank_of[stage][0];
        if !std::mem::replace(&mut seen[rank], true) {
            out = out.max(there + best.simulation.busy[rank]);
        }
        let next = table.rank_of.get(stage + 1).map(|r| r[0]);
        there += cost.forward;
        if next.is_some_and(|n| n != rank) {
            there += costs.transfer[stage][0];
        }
    }
    out
}

/// Actions before which a rank waits, the longest first.
fn gaps(search: &Search<'_>) -> Vec<(usize, usize)> {
    let Some(best) = &search.best else { return Vec::new() };
    let mut out: Vec<(f64, usize, usize)> = Vec::new();
    for (rank, times) in best.simulation.times.iter().enumerate() {
        // Before its first action there is nothing to change.
        for (index, pair) in times.windows(2).enumerate() {
            let gap = pair[1][0] - pair[0][1];
            if gap > 1e-9 * best.simulation.makespan {
                out.push((gap, rank, index + 1));
            }
        }
    }
    out.sort_by(|a, b| b.0.total_cmp(&a.0).then((a.1, a.2).cmp(&(b.1, b.2))));
    out.into_iter().map(|(_, rank, index)| (rank, index)).collect()
}

/// The order in which what waits lets the next action of another kind go first.
fn exchanged(search: &Search<'_>, order: &Table, rank: usize, index: usize) -> Option<Table> {
    let waits = search.best.as_ref()?.table.ranks[rank][index];
    let list = &order.ranks[rank];
    let at = list.iter().position(|a| *a == waits)?;
    let other = (at + 1..list.len()).find(|j| list[*j].op != waits.op || list[*j].stage != waits.stage)?;
    let mut out = order.clone();
    let moved = out.ranks[rank].remove(other);
    out.ranks[rank].insert(at, moved);
    Some(out)
}
