//! All forward work, then all backward work, chunk by chunk: GPipe with one chunk a rank, breadth-first (Lamy-Poirier,
//! arXiv 2211.05953) with several.

use super::place;
use crate::schedule::{Action, Table, Work};

pub fn table(p: usize, m: usize, v: usize) -> Table {
    let mut t = Table::of(place::looped(p, v), m, p);
    for (rank, list) in t.ranks.iter_mut().enumerate() {
        let all = |chunk: usize, op| (0..m).map(move |k| Action::new(op, chunk * p + rank, k));
        list.extend((0..v).flat_map(|c| all(c, Work::F)));
        list.extend((0..v).rev().flat_map(|c| all(c, Work::B)));
    }
    t
}
