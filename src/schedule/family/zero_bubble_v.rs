//! ZB-V (Qi et al., arXiv 2401.10241): two chunks a rank in the shape of a V, so that the rank that begins ends as well, and as
//! many microbatches in flight as 1F1B has on its first rank.

use super::place;
use super::row::Row;
use crate::schedule::fill::fill;
use crate::schedule::{Costs, Table};

/// Of fewer microbatches than twice the ranks, the table for those without the surplus, and `W` where it leaves idle time.
pub fn table(p: usize, m: usize) -> Table {
    let full = m.max(2 * p);
    let mut t = Table::of(place::v(p), full, p);
    for (rank, list) in t.ranks.iter_mut().enumerate() {
        let mut row = Row::new([rank, 2 * p - 1 - rank], full);
        // Until the first microbatch comes back.
        (0..2 * (p - rank) - 1).for_each(|_| row.f(0));
        for _ in 0..rank {
            row.f(1);
            row.f(0);
        }
        for _ in 0..p - rank {
            row.f(1);
            row.iw(1);
        }
        while row.forward_left(1) {
            if row.forward_left(0) {
                row.f(0);
            }
            row.iw(0);
            row.f(1);
            row.iw(1);
        }
        // Nothing more comes in: gradients of inputs first, for others wait for them.
        for _ in 0..rank {
            row.i(0);
            row.i(1);
        }
        for _ in 0..p - rank {
            row.iw(0);
        }
        row.rest();
        *list = row.list;
    }
    if m == full { t } else { fill(&t.first(m), &vec![2.0 * p as f64; p], &Costs::unit(2 * p)) }
}
