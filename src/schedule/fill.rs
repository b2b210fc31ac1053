//! Puts the gradients of weights where they cost least: where a rank would be idle, and where memory must be free for the next
//! forward step.

use super::{Action, Costs, Index, Table, Work};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// The table with the same `F` and `I` (or `B`, which are split) in the same order on each rank, and `W` placed anew. A rank takes its
/// next `F` or `I` as soon as it can: what that needs is there, and an `F` fits below the rank's cap (in units of `Costs::memory`).
/// Otherwise it does its oldest `W`. An `F` that never fits is taken where no `W` is left. Where the order makes ranks wait for each
/// other the table ends early.
pub fn fill(table: &Table, caps: &[f64], costs: &Costs) -> Table {
    Filling::new(&without_weights(table), caps, costs).run()
}

/// `I` in the place of `B`, and no `W`.
pub fn without_weights(table: &Table) -> Table {
    let mut out = table.clone();
    for list in &mut out.ranks {
        list.retain(|a| a.op != Work::W);
        list.iter_mut().filter(|a| a.op == Work::B).for_each(|a| *a = Action { op: Work::I, ..*a });
    }
    out
}

struct Filling<'a> {
    /// Without `W`.
    order: &'a Table,
    index: Index,
    caps: &'a [f64],
    costs: &'a Costs,
    out: Table,
    ranks: Vec<Rank>,
    /// When the entries of `order` end, by rank.
    ends: Vec<Vec<Option<f64>>>,
    /// Moments at which a rank may go on. Times are not negative, so their bits are in their order.
    events: BinaryHeap<Reverse<(u64, usize)>>,
}

#[derive(Clone, Default)]
struct Rank {
    /// The next entry of `order`.
    next: usize,
    free: f64,
    memory: f64,
    pending: VecDeque<Action>,
}

impl<'a> Filling<'a> {
    fn new(order: &'a Table, caps: &'a [f64], costs: &'a Costs) -> Filling<'a> {
        let mut out = order.clone();
        out.ranks.iter_mut().for_each(Vec::clear);
        let ends = order.ranks.iter().map(|r| vec![None; r.len()]).collect();
        let ranks = vec![Rank::default(); order.ranks.len()];
        let events = (0..ranks.len()).map(|r| Reverse((0, r))).collect();
        Filling { index: Index::of(order), order, caps, costs, out, ranks, ends, events }
    }

    fn run(mut self) -> Table {
        while let Some(Reverse((bits, rank))) = self.events.pop() {
            let now = f64::from_bits(bits);
            if self.ranks[rank].free <= now {
                self.step(rank, now);
            }
        }
        self.out
    }

    /// When all is there that the rank's next entry needs; none if that is not known yet.
    fn there(&self, rank: usize, a: Action) -> Option<f64> {
        let mut at = 0.0f64;
        for from in self.index.needs(self.order, a).into_iter().flatten() {
            let mut end = self.ends[from.rank][from.index]?;
            if from.rank != rank {
                end += self.costs.between(a);
            }
            at = at.max(end);
        }
        Some(at)
    }

    fn step(&mut self, rank: usize, now: f64) {
        let state = &self.ranks[rank];
        let Some(a) = self.order.ranks[rank].get(state.next).copied() else {
            return self.weight(rank, now);
        };
        let fits = a.op != Work::F || state.memory + self.costs.memory(a.op, a.stage) <= self.caps[rank] * (1.0 + 1e-9);
        match self.there(rank, a) {
            Some(at) if at <= now && (fits || self.ranks[rank].pending.is_empty()) => {
                let at = self.ranks[rank].next;
                self.ranks[rank].next += 1;
                let end = self.take(rank, a, now);
                self.ends[rank][at] = Some(end);
                if a.op == Work::I {
                    self.ranks[rank].pending.push_back(Action { op: Work::W, ..a });
                }
                self.wake(rank, a, end);
            }
            // Otherwise, and where there is no `W`, it is woken by what it waits for.
            _ => self.weight(rank, now),
        }
    }

    fn weight(&mut self, rank: usize, now: f64) {
        if let Some(w) = self.ranks[rank].pending.pop_front() {
            self.take(rank, w, now);
        }
    }

    fn take(&mut self, rank: usize, a: Action, now: f64) -> f64 {
        let end = now + self.costs.of(a.op, a.stage);
        self.out.ranks[rank].push(a);
        self.ranks[rank].free = end;
        self.ranks[rank].memory += self.costs.memory(a.op, a.stage);
        self.events.push(Reverse((end.to_bits(), rank)));
        end
    }

    /// The rank that waits for the result of an action goes on when it is there.
    fn wake(&mut self, rank: usize, a: Action, end: f64) {
        let after = match a.op {
            Work::F if a.stage + 1 < self.order.stages => self.index.forward(a.stage + 1, a.microbatch),
            Work::I | Work::B if a.stage > 0 => self.index.input(a.stage - 1, a.microbatch),
            _ => None,
        };
        if let Some(p) = after.filter(|p| p.rank != rank) {
            let then = end + self.costs.between(self.order.action(p));
            self.events.push(Reverse((then.to_bits(), p.rank)));
        }
    }
}
