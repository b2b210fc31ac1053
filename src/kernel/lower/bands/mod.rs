//! Wide values band by band: a large product that is read row by row, and by products that sum over it, is never there as a
//! whole. The operations that touch it move into a loop, each turn of which makes some of its rows (a *band*), uses them up
//! and leaves what is small: values of the rows, and totals over all rows, which are carries.
//!
//! The logits of a language model are such a value: rows are tokens, and the loss, its gradient, the gradients of the weights
//! and of what comes in all follow from a band of them. Nothing here knows of losses: `region` looks for operations
//! that take rows one by one or sum over them all, `rewrite` puts them into the loop. Whatever mixes rows, or needs a total before the
//! rows are done, stays as it was.
//!
//! The first band stands before the loop, so that its totals are what the loop begins with, and it may have fewer rows.

mod region;
mod rewrite;
#[cfg(test)]
mod tests;

use super::strips;
use crate::ir::*;
use crate::kernel::Bands;

/// Rows of bands are whole tiles of products, and whole vectors.
const UNIT: usize = 16;

/// Rewrites a graph's blocks.
pub(super) fn cut_bands(graph: &mut Graph, bands: &Bands) {
    for block in 0..graph.blocks.len() as u32 {
        let block = BlockId(block);
        let mut failures = region::Failures::default();
        // What is cut is gone from the block; what is left may hold another such value.
        while let Some(region) = region::find(graph, block, bands, &mut failures) {
            rewrite::rewrite(graph, block, &region);
        }
    }
}

/// How many rows at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Sizes {
    /// Rows of the first band, before the loop; 0 if there is none.
    first: usize,
    /// Rows of each other band, and their number.
    band: usize,
    turns: usize,
}

impl Bands {
    /// How to cut `rows` rows that take `row` bytes each; None where they are too few. `sums`: products sum over the rows.
    fn sizes(&self, rows: usize, row: usize, sums: bool) -> Option<Sizes> {
        if rows <= 2 * self.rows {
            return None;
        }
        let unit = if self.rows < UNIT { 1 } else { UNIT };
        let wanted = (self.bytes / row.max(1)).max(self.rows).max(1) / unit * unit;
        let band = rows.div_ceil(rows.div_ceil(wanted)).next_multiple_of(unit);
        let turns = (rows - 1) / band;
        let first = rows - turns * band;
        let sizes = match sums || first < band {
            true => Sizes { first, band, turns },
            false => Sizes { first: 0, band, turns: turns + 1 },
        };
        (turns > 0).then_some(sizes)
    }
}

impl Default for Bands {
    fn default() -> Bands {
        // A band reads the weights twice, reads their gradient and writes it: 16 bytes for 6 operations with each row. So
        // many rows are some 100 operations for each byte, several times more than any machine has time for.
        const ROWS: usize = 256;
        // Sums over fewer rows than two such bands may be made strip by strip, so that the gradient is not stored.
        const { assert!(2 * ROWS >= strips::MOST_SUMS) };
        // What is smaller stays in a cache from one kernel to the next. `bytes` is a part of a large one.
        Bands { least: 16 << 20, bytes: 32 << 20, rows: ROWS, wider: 5 }
    }
}
