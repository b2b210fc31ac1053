//! One forward, one backward: with one chunk a rank (1F1B), with several interleaved (Narayanan et al., arXiv 2104.04473).
//!
//! Microbatches go in rounds of as many as there are ranks; in a round all of them pass a chunk before the next chunk. Where they do not
//! divide into such rounds, rounds are as even as can be and none is smaller: the idle time stays the same, and a rank keeps up to
//! `v - 1` activations more for each microbatch that the largest round has more than there are ranks.

use super::place;
use crate::schedule::{Action, Table, Work};

pub fn table(p: usize, m: usize, v: usize) -> Table {
    let rounds = if v == 1 { m } else { (m / p).max(1) };
    let largest = m.div_ceil(rounds);
    // Chunk and microbatch of a rank's units of forward work.
    let mut units: Vec<(usize, usize)> = Vec::with_capacity(m * v);
    let mut first = 0;
    for round in 0..rounds {
        let size = m / rounds + usize::from(round < m % rounds);
        units.extend((0..v).flat_map(|c| (first..first + size).map(move |k| (c, k))));
        first += size;
    }
    let mut t = Table::of(place::looped(p, v), m, p);
    for (rank, list) in t.ranks.iter_mut().enumerate() {
        let forward = |(c, k): (usize, usize)| Action::new(Work::F, c * p + rank, k);
        let backward = |(c, k): (usize, usize)| Action::new(Work::B, (v - 1 - c) * p + rank, k);
        let behind = p - 1 - rank;
        let ahead = (if v == 1 { behind } else { 2 * behind + (v - 1) * largest }).min(units.len());
        list.extend(units[..ahead].iter().copied().map(forward));
        for (f, b) in units[ahead..].iter().zip(&units) {
            list.extend([forward(*f), backward(*b)]);
        }
        list.extend(units[units.len() - ahead..].iter().copied().map(backward));
    }
    t
}
