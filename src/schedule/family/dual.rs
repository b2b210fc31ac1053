//! DualPipe (DeepSeek-V3, arXiv 2412.19437): microbatches enter at both ends, and forward work of one direction goes with
//! backward work of the other. DualPipeV is its half: the way back goes over the same ranks as a second chunk.
//!
//! The two are one schedule: rank `r` of DualPipe does for the two directions what rank `r` of a V of half as many ranks does for its
//! two chunks, and the ranks of the other half do the same with the directions changed. Where there are fewer
//! microbatches than it needs, it is the table of enough without the surplus, with `W` where that leaves idle time.

use super::place;
use super::row::Row;
use crate::schedule::fill::fill;
use crate::schedule::{Action, Costs, Table};

pub fn pipe_v(p: usize, m: usize) -> Table {
    let full = m.max(2 * p);
    let mut t = Table::of(place::v(p), full, p);
    for (rank, list) in t.ranks.iter_mut().enumerate() {
        *list = row(p, rank, full, [rank, 2 * p - 1 - rank]);
    }
    if m == full { t } else { fill(&t.first(m), &vec![2.0 * p as f64 + 1.0; p], &Costs::unit(2 * p)) }
}

/// The first half of the microbatches, and one more where they are odd, enters at rank 0, the other half at the last rank.
pub fn pipe(p: usize, m: usize) -> Table {
    if p == 1 {
        return super::looped::table(1, m, 1);
    }
    let (half, down) = (p / 2, m.div_ceil(2));
    let full = down.max(2 * half);
    let mut t = Table::of(place::dual(p), m, p);
    for (rank, list) in t.ranks.iter_mut().enumerate() {
        let near = rank.min(p - 1 - rank);
        for mut a in row(half, near, full, [near, p - 1 - near]) {
            // A rank meets the microbatches of its own end in the stage that is nearer to that end.
            let downward = (a.stage == near) == (rank < half);
            if a.microbatch < if downward { down } else { m - down } {
                a.microbatch += if downward { 0 } else { down };
                list.push(a);
            }
        }
    }
    if down == full { t } else { fill(&t, &vec![p as f64 + 1.0; p], &Costs::unit(p)) }
}

/// Of one rank of a V of `p` ranks.
fn row(p: usize, rank: usize, m: usize, stages: [usize; 2]) -> Vec<Action> {
    let mut row = Row::new(stages, m);
    let behind = p - 1 - rank;
    (0..2 * behind).for_each(|_| row.f(0));
    for _ in 0..=rank {
        row.f(0);
        row.f(1);
    }
    for _ in 0..behind {
        row.iw(1);
        row.f(1);
    }
    // Pairs of forward and backward work, whose communication hides behind each other's computation.
    for _ in 0..m - 2 * p + rank + 1 {
        row.f(0);
        row.b(1);
        row.f(1);
        row.b(0);
    }
    for _ in 0..behind {
        row.b(1);
        row.f(1);
        row.b(0);
    }
    // In the second half of what is left gradients of weights wait.
    for n in 0..2 * (rank + 1) {
        let chunk = 1 - n % 2;
        if n <= rank { row.b(chunk) } else { row.i(chunk) }
    }
    for _ in 0..behind {
        row.oldest_w();
        row.i(0);
    }
    row.rest();
    row.list
}
