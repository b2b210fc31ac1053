//! Zero bubble with one stage a rank (Qi et al., arXiv 2401.10241): 1F1B with the gradients of weights later, where they
//! fill what would be idle.

use super::place;
use crate::schedule::{Action, Table, Work};

/// As many microbatches in flight as 1F1B has on its first rank.
pub fn h1(p: usize, m: usize) -> Table {
    table(p, m, |rank| (p - rank, rank))
}

/// Almost twice as many in flight, and no rank waits between its first action and its last.
pub fn h2(p: usize, m: usize) -> Table {
    table(p, m, |rank| (2 * (p - rank) - 1, 2 * rank))
}

/// `of` tells how many forward steps a rank does before its first backward one, and by how many microbatches `W` comes after `I`.
fn table(p: usize, m: usize, of: impl Fn(usize) -> (usize, usize)) -> Table {
    let mut t = Table::of(place::looped(p, 1), m, p);
    for (rank, list) in t.ranks.iter_mut().enumerate() {
        let (ahead, lag) = of(rank);
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
