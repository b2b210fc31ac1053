//! 1F1B that goes on from step to step: while the last microbatches of a step come back, ranks begin those of the next one
//! (PipeDream-2BW: Narayanan and others, "Memory-Efficient Pipeline-Parallel DNN Training", 2021).
//!
//! The lists are those of 1F1B over the microbatches of all steps, one after the other. A step ends on all ranks at about the same time, so that
//! what ranks exchange at its end keeps none of them waiting: with F = 1 and B = 2, rank r of p computes F of microbatch i at the time 3 i + r
//! and has done B of microbatch j at 3 j + 3 p - 2 r, counted through. When rank 0 is done with the last B of a step, rank r has done
//! floor(2 r / 3) B and p - 1 - ceil(r / 3) F of the next one.

use super::{Action, Table, Work, family};

/// What ranks compute of two steps in a row. Microbatches of the second one are counted on from those of the first.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Continued {
    pub microbatches: usize,
    /// By rank: of the first step what the run of the step before has done, where there was one.
    pub early: Vec<Vec<Action>>,
    /// By rank: the rest of it, and what is done early of the second one.
    pub steady: Vec<Vec<Action>>,
}

impl Continued {
    /// None where a step has too few microbatches to be begun while the one before is under way, or where there is nobody to wait for.
    pub fn new(p: usize, m: usize) -> Option<Continued> {
        if p < 2 || m < p {
            return None;
        }
        let all = family::interleaved::table(p, 2 * m, 1);
        let (mut early, mut steady) = (Vec::new(), Vec::new());
        for (rank, list) in all.ranks.iter().enumerate() {
            let back = 2 * rank / 3;
            let ahead = back + (p - 1 - rank) + back;
            early.push(list[..ahead].to_vec());
            steady.push(list[ahead..ahead + 2 * m].to_vec());
        }
        Some(Continued { microbatches: m, early, steady })
    }

    /// Whether the run of the step before computes this, where there was one.
    pub fn is_early(&self, rank: usize, op: Work, microbatch: usize) -> bool {
        let is = |a: &&Action| (a.op == Work::F) == (op == Work::F);
        microbatch % self.microbatches < self.early[rank].iter().filter(is).count()
    }

    /// So many steps in a row, as one table.
    pub fn steps(&self, n: usize) -> Table {
        family::interleaved::table(self.early.len(), n * self.microbatches, 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Windows follow each other: what is early is what the window before does of the next step, and each step is whole.
    #[test]
    fn steps_follow_each_other() {
        for (p, m) in (2..8).flat_map(|p| (p..p + 6).map(move |m| (p, m))) {
            let c = Continued::new(p, m).expect("enough microbatches");
            for rank in 0..p {
                let next: Vec<Action> = c.steady[rank].iter().filter(|a| a.microbatch >= m).copied().collect();
                let shifted = next.iter().map(|a| Action::new(a.op, a.stage, a.microbatch - m));
                assert_eq!(shifted.collect::<Vec<_>>(), c.early[rank], "rank {rank} of {p}, {m}");
                let mut whole: Vec<(bool, usize)> =
                    c.early[rank].iter().chain(&c.steady[rank]).map(|a| (a.op == Work::F, a.microbatch)).collect();
                whole.retain(|a| a.1 < m);
                whole.sort_unstable();
                let wanted = [false, true].into_iter().flat_map(|f| (0..m).map(move |k| (f, k)));
                assert_eq!(whole, wanted.collect::<Vec<_>>(), "rank {rank} of {p}, {m}");
                for a in &c.early[rank] {
                    assert!(c.is_early(rank, a.op, a.microbatch) && c.is_early(rank, a.op, a.microbatch + m));
                }
                assert!(!c.is_early(rank, Work::B, 2 * rank / 3));
            }
        }
        assert_eq!([Continued::new(1, 8), Continued::new(4, 3)], [None, None]);
    }
}
