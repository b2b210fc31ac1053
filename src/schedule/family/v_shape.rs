//! V schedules of controlled memory (Qi et al., arXiv 2405.15362): the work of one microbatch is a block that is repeated every six
//! units of time, and how long the block keeps activations decides what all of them need.
//!
//! A block goes down the ranks and back (`F`), and again (`I`), at a constant pace on each of the four ways. It can be repeated where
//! the four fall on different sixths of a period on every rank; `W` take what is left. The paces and turns below were found by trying
//! all small ones. In unit costs a rank is idle for `3p - 5` (`p` even, above two) or `3p - 4` units in `half` where there are `p/2 + 1` microbatches, and
//! for `4p - 5` in `min`; 1F1B with two chunks of the same size one after the other is idle for `6p - 6`.

use super::place;
use crate::schedule::fill::fill;
use crate::schedule::{Action, Costs, Table, Work};

/// Units of time between microbatches: `F`, `I`, `W` of two chunks.
const PERIOD: usize = 6;

/// Half of the bubble and half of the activations of 1F1B: of `p/2 + 1` microbatches.
pub fn half(p: usize, m: usize) -> Table {
    let turns = if p.is_multiple_of(2) { [4, 2, 4] } else { [1, 1, 2] };
    table(p, m, Block { paces: [1, 2, 1, 2], turns }, (p + 2) / 2)
}

/// Two thirds of the bubble and a third of the activations of 1F1B: of `(p + 4) / 3` microbatches.
pub fn min(p: usize, m: usize) -> Table {
    // At a pace of one the ways down fall on the same sixth where the whole way is a multiple of six.
    let turns = if p.is_multiple_of(3) { [3, 1, 3] } else { [1, 1, 1] };
    table(p, m, Block { paces: [1, 1, 1, 1], turns }, (p + 4) / 3)
}

/// The way of a microbatch, in units of time.
struct Block {
    /// From rank to rank: down and up with `F`, down and up with `I`.
    paces: [usize; 4],
    /// From the beginning of the last step of a way to that of the first step of the next one.
    turns: [usize; 3],
}

impl Block {
    /// When a rank begins `F` of its chunk on the way down and of that on the way up, then `I` of the latter and of the former.
    fn times(&self, p: usize, rank: usize) -> [usize; 4] {
        let (last, [down, up, back_down, back_up]) = (p - 1, self.paces);
        let at_last = down * last + self.turns[0];
        let at_first = at_last + up * last + self.turns[1];
        let back_at_last = at_first + back_down * last + self.turns[2];
        [down * rank, at_last + up * (last - rank), at_first + back_down * rank, back_at_last + back_up * (last - rank)]
    }
}

/// `limit`: of microbatches whose activations a rank keeps.
fn table(p: usize, m: usize, block: Block, limit: usize) -> Table {
    let mut order = Table::of(place::v(p), m, p);
    for (rank, list) in order.ranks.iter_mut().enumerate() {
        let (first, second) = (rank, 2 * p - 1 - rank);
        let works = [(Work::F, first), (Work::F, second), (Work::I, second), (Work::I, first)];
        let times = block.times(p, rank);
        let mut timed: Vec<(usize, Action)> = (0..m)
            .flat_map(|k| works.iter().zip(times).map(move |((op, s), t)| (t + PERIOD * k, Action::new(*op, *s, k))))
            .collect();
        timed.sort_by_key(|t| t.0);
        list.extend(timed.into_iter().map(|t| t.1));
    }
    fill(&order, &vec![2.0 * limit as f64; p], &Costs::unit(2 * p))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_can_be_repeated() {
        for p in 1..=64 {
            for t in [half(p, 1), min(p, 1)] {
                assert_eq!(t.len(), 6 * p);
            }
            for (paces, turns) in [
                ([1, 2, 1, 2], if p % 2 == 0 { [4, 2, 4] } else { [1, 1, 2] }),
                ([1; 4], if p % 3 == 0 { [3, 1, 3] } else { [1, 1, 1] }),
            ] {
                for rank in 0..p {
                    let mut sixths = Block { paces, turns }.times(p, rank).map(|t| t % PERIOD);
                    sixths.sort_unstable();
                    assert!(sixths.windows(2).all(|w| w[0] < w[1]), "{p} {rank} {paces:?} {turns:?}");
                }
            }
        }
    }
}
