//! One forward, one backward: with one chunk a rank (1F1B), with several interleaved (Narayanan et al., arXiv 2104.04473).
//!
//! Microbatches go in rounds of as many as there are ranks; in a round all of them pass a chunk before the next chunk. Where
//! they do not divide into rounds the last one is not full: the table is that of full rounds without the surplus.

use super::place;
use crate::schedule::{Action, Table, Work};

pub fn table(p: usize, m: usize, v: usize) -> Table {
    let full = if v == 1 { m } else { m.next_multiple_of(p) };
    let mut t = Table::of(place::looped(p, v), full, p);
    let total = full * v;
    // Chunk and microbatch of a rank's n-th unit of forward work.
    let nth = |n: usize| {
        let (round, at) = (n / (p * v), n % (p * v));
        if v == 1 { (0, n) } else { (at / p, round * p + at % p) }
    };
    for (rank, list) in t.ranks.iter_mut().enumerate() {
        let forward = |n: usize| {
            let (c, k) = nth(n);
            Action::new(Work::F, c * p + rank, k)
        };
        let backward = |n: usize| {
            let (c, k) = nth(n);
            Action::new(Work::B, (v - 1 - c) * p + rank, k)
        };
        let behind = p - 1 - rank;
        let ahead = (if v == 1 { behind } else { 2 * behind + (v - 1) * p }).min(total);
        list.extend((0..ahead).map(forward));
        for n in ahead..total {
            list.extend([forward(n), backward(n - ahead)]);
        }
        list.extend((total - ahead..total).map(backward));
    }
    t.first(m)
}
