//! When each action of a table begins and ends, and what memory lives: every rank computes in order, as soon as what an
//! action needs is there. Transfers take time but no rank's.

use super::{Costs, Index, Problem, Table, Work, check};

/// A table in time.
#[derive(Clone, PartialEq, Debug)]
pub struct Simulation {
    /// Beginning and end of each action, by rank.
    pub times: Vec<Vec<[f64; 2]>>,
    /// From the beginning of the step to the end of its last action.
    pub makespan: f64,
    /// Time that a rank computes.
    pub busy: Vec<f64>,
    /// Most forward computations of a stage that a rank has done whose `W` (or `B`) is still to come.
    pub peak_activations: Vec<usize>,
    /// The same, counted until `I` (or `B`).
    pub peak_until_input: Vec<usize>,
    /// Most memory that stays, by the costs.
    pub peak_memory: Vec<f64>,
    /// Memory that stays from a time on, at each change, by rank. It grows where an `F` begins, shrinks where backward work ends.
    pub memory: Vec<Vec<(f64, f64)>>,
}

impl Simulation {
    /// The idle share of ranks times makespan.
    pub fn bubble_fraction(&self) -> f64 {
        let whole = self.makespan * self.busy.len() as f64;
        if whole > 0.0 { 1.0 - self.busy.iter().sum::<f64>() / whole } else { 0.0 }
    }

    /// Time from a rank's first action to the end of its last one.
    pub fn span(&self, rank: usize) -> f64 {
        match (self.times[rank].first(), self.times[rank].last()) {
            (Some(first), Some(last)) => last[1] - first[0],
            _ => 0.0,
        }
    }
}

/// Runs a table in which all that an action needs is there; else the ranks wait for each other.
pub fn simulate(table: &Table, costs: &Costs) -> Result<Simulation, Problem> {
    let index = Index::of(table);
    let order = check::order(table, &index)?;
    let mut times: Vec<Vec<[f64; 2]>> = table.ranks.iter().map(|r| Vec::with_capacity(r.len())).collect();
    let mut busy = vec![0.0; table.ranks.len()];
    for place in order {
        let a = table.action(place);
        let mut start = times[place.rank].last().map_or(0.0, |t| t[1]);
        for from in index.needs(table, a).into_iter().flatten() {
            let mut there = times[from.rank][from.index][1];
            if from.rank != place.rank {
                there += costs.between(a);
            }
            start = start.max(there);
        }
        let takes = costs.of(a.op, a.stage);
        busy[place.rank] += takes;
        times[place.rank].push([start, start + takes]);
    }
    let makespan = times.iter().filter_map(|r| r.last()).map(|t| t[1]).fold(0.0, f64::max);
    let mut out = Simulation {
        makespan,
        busy,
        peak_activations: Vec::new(),
        peak_until_input: Vec::new(),
        peak_memory: Vec::new(),
        memory: Vec::new(),
        times,
    };
    for rank in 0..table.ranks.len() {
        out.count(table, costs, rank);
    }
    Ok(out)
}

impl Simulation {
    fn count(&mut self, table: &Table, costs: &Costs, rank: usize) {
        let (mut live, mut until_input, mut memory) = (0usize, 0usize, 0.0);
        let (mut most_live, mut most_until_input, mut most) = (0, 0, 0.0f64);
        let mut changes = Vec::new();
        for (a, time) in table.ranks[rank].iter().zip(&self.times[rank]) {
            // A table that was not checked may end what it has not begun.
            match a.op {
                Work::F => (live, until_input) = (live + 1, until_input + 1),
                Work::I => until_input = until_input.saturating_sub(1),
                Work::W => live = live.saturating_sub(1),
                Work::B => (live, until_input) = (live.saturating_sub(1), until_input.saturating_sub(1)),
            }
            most_live = most_live.max(live);
            most_until_input = most_until_input.max(until_input);
            memory += costs.memory(a.op, a.stage);
            most = most.max(memory);
            changes.push((if a.op == Work::F { time[0] } else { time[1] }, memory));
        }
        self.peak_activations.push(most_live);
        self.peak_until_input.push(most_until_input);
        self.peak_memory.push(most);
        self.memory.push(changes);
    }
}
