//! Zero bubble with one stage a rank (Qi et al., arXiv 2401.10241): 1F1B with the gradients of weights later, where they
//! fill what would be idle.

use super::place;
use crate::schedule::{Action, Table, Work};

/// As many microbatches in flight as 1F1B has on its first rank.
pub fn h1(p: usize, m: usize) -> Table {
    table(p, m, 0)
}

/// Almost twice as many in flight, and no rank waits between its first action and its last. Where there are not so many microbatches,
/// as many as there are.
pub fn h2(p: usize, m: usize) -> Table {
    table(p, m, m.saturating_sub(p).min(p - 1))
}

/// `more`: how many microbatches are in flight beyond `p`. A rank does some forward steps before its first backward one, and `W` comes some
/// microbatches after `I`; the two together are what is in flight.
fn table(p: usize, m: usize, more: usize) -> Table {
    let mut t = Table::of(place::looped(p, 1), m, p);
    for (rank, list) in t.ranks.iter_mut().enumerate() {
        let (ahead, lag) = (p - rank + more.min(p - rank - 1), rank + more.min(rank));
        let mut add = |op, k| list.push(Action::new(op, rank, k));
        (0..ahead.min(m)).for_each(|k| add(Work::F, k));
        for k in 0..m {
            add(Work::I, k);
            if k >= lag {
                add(Work::W, k - lag);
            }
            if k + ahead < m {
                add(Work::F, k + ahead);
            }
        }
        (m.saturating_sub(lag)..m).for_each(|k| add(Work::W, k));
    }
    t
}
