//! A table made moment by moment: each rank takes the most urgent of what it can do.

use crate::schedule::{Action, Costs, Table, Work};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// What a rank takes first of what is ready. `W` come when nothing else can be done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum First {
    Forward,
    Input,
    /// The other one than the last time.
    Turns,
}

#[derive(Clone, Copy, Debug)]
pub struct Policy {
    pub first: First,
    /// Whether later stages of the rank come before earlier ones, or earlier microbatches before later ones.
    pub deep: bool,
    /// Most forward steps whose `I` is to come, as a multiple of what 1F1B has.
    pub ahead: f64,
}

impl Policy {
    /// Those that are worth trying where ranks hold so many stages.
    pub fn all(chunks: usize) -> Vec<Policy> {
        let mut out = Vec::new();
        for first in [First::Input, First::Turns, First::Forward] {
            for deep in [true, false].into_iter().filter(|d| *d || chunks > 1) {
                for ahead in [1.0, 1.5, 2.0, f64::INFINITY] {
                    out.push(Policy { first, deep, ahead });
                }
            }
        }
        out
    }
}

struct Rank {
    /// Its stages, in the model's order.
    stages: Vec<usize>,
    /// The next microbatch of `F` and of `I`, by stage.
    forward: Vec<usize>,
    input: Vec<usize>,
    pending: VecDeque<Action>,
    memory: f64,
    free: f64,
    last: Work,
    /// Most forward steps whose `I` is to come.
    ahead: f64,
}

struct Making<'a> {
    costs: &'a Costs,
    cap: f64,
    policy: Policy,
    table: Table,
    ranks: Vec<Rank>,
    /// When what `F` and `I` need is there, by stage and microbatch; not a number while that is not known.
    there: [Vec<f64>; 2],
    events: BinaryHeap<Reverse<(u64, usize)>>,
}

/// The table of a policy. Stages lie on one rank each.
pub fn greedy(rank_of: Vec<Vec<usize>>, p: usize, m: usize, costs: &Costs, cap: f64, policy: Policy) -> Table {
    let stages = rank_of.len();
    let table = Table::of(rank_of, m, p);
    let ranks: Vec<Rank> = (0..p)
        .map(|r| {
            let own = table.stages_of(r);
            // In units of stages, what 1F1B has in flight between a stage's `F` and its `I`.
            let ahead: usize = own.iter().map(|s| (stages - s).div_ceil(stages / p)).sum();
            Rank {
                forward: vec![0; own.len()],
                input: vec![0; own.len()],
                stages: own,
                pending: VecDeque::new(),
                memory: 0.0,
                free: 0.0,
                last: Work::I,
                ahead: (ahead as f64 * policy.ahead).max(1.0),
            }
        })
        .collect();
    let mut there = [vec![f64::NAN; stages * m], vec![f64::NAN; stages * m]];
    there[0][..m].fill(0.0);
    let events = (0..p).map(|r| Reverse((0, r))).collect();
    let mut making = Making { costs, cap, policy, table, ranks, there, events };
    while let Some(Reverse((bits, rank))) = making.events.pop() {
        let now = f64::from_bits(bits);
        if making.ranks[rank].free <= now {
            making.step(rank, now);
        }
    }
    making.table
}

impl Making<'_> {
    fn step(&mut self, rank: usize, now: f64) {
        let [forward, input] = [self.forward(rank, now), self.input(rank, now)];
        let by_policy = match self.policy.first {
            First::Forward => forward.or(input),
            First::Input => input.or(forward),
            First::Turns if self.ranks[rank].last == Work::F => input.or(forward),
            First::Turns => forward.or(input),
        };
        if let Some(a) = by_policy {
            self.take(rank, a, now);
        } else if let Some(w) = self.ranks[rank].pending.pop_front() {
            self.take(rank, w, now);
        }
    }

    /// The most urgent forward step that is ready and fits.
    fn forward(&self, rank: usize, now: f64) -> Option<Action> {
        let (r, m) = (&self.ranks[rank], self.table.microbatches);
        let in_flight: usize = r.forward.iter().zip(&r.input).map(|(f, i)| f - i).sum();
        let held = |c: usize| self.costs.stages[r.stages[c]].held;
        let ready = |c: &usize| {
            let k = r.forward[*c];
            // Room is left for the later stages of one microbatch on this rank.
            let rest: f64 = (*c + 1..r.stages.len()).map(held).sum();
            k < m
                && self.there[0][r.stages[*c] * m + k] <= now
                && r.memory + held(*c) + rest <= self.cap * (1.0 + 1e-9)
                // What has begun goes on, else nobody may get to the end.
                && (*c > 0 || in_flight == 0 || in_flight as f64 + 1.0 <= r.ahead)
        };
        let found = (0..r.stages.len()).filter(ready);
        let chosen = if self.policy.deep { found.max() } else { found.min_by_key(|c| (r.forward[*c], Reverse(*c))) };
        chosen.map(|c| Action::new(Work::F, r.stages[c], r.forward[c]))
    }

    fn input(&self, rank: usize, now: f64) -> Option<Action> {
        let (r, m) = (&self.ranks[rank], self.table.microbatches);
        let ready = |c: &usize| {
            let k = r.input[*c];
            k < r.forward[*c] && (r.stages[*c] + 1 == self.table.stages || self.there[1][r.stages[*c] * m + k] <= now)
        };
        let found = (0..r.stages.len()).filter(ready);
        let chosen = if self.policy.deep { found.max() } else { found.min_by_key(|c| (r.input[*c], Reverse(*c))) };
        chosen.map(|c| Action::new(Work::I, r.stages[c], r.input[c]))
    }

    fn take(&mut self, rank: usize, a: Action, now: f64) {
        let m = self.table.microbatches;
        let end = now + self.costs.of(a.op, a.stage);
        let r = &mut self.ranks[rank];
        let chunk = r.stages.iter().position(|s| *s == a.stage).unwrap_or(0);
        match a.op {
            Work::F => r.forward[chunk] += 1,
            Work::I => {
                r.input[chunk] += 1;
                r.pending.push_back(Action { op: Work::W, ..a });
            }
            Work::W | Work::B => {}
        }
        if a.op != Work::W {
            r.last = a.op;
        }
        r.memory += self.costs.memory(a.op, a.stage);
        r.free = end;
        self.table.ranks[rank].push(a);
        self.events.push(Reverse((end.to_bits(), rank)));
        let next = match a.op {
            Work::F if a.stage + 1 < self.table.stages => Action { stage: a.stage + 1, ..a },
            Work::I if a.stage > 0 => Action { stage: a.stage - 1, ..a },
            _ => return,
        };
        let to = self.table.rank_of[next.stage][0];
        let then = end + if to == rank { 0.0 } else { self.costs.between(next) };
        self.there[usize::from(a.op == Work::I)][next.stage * m + a.microbatch] = then;
        self.events.push(Reverse((then.to_bits(), to)));
    }
}
