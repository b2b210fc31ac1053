//! Pipeline schedules as data: tables of actions, made by generators, checked, simulated, proved free of deadlock.
//!
//! In: a number of ranks along the pipeline's axis, a number of microbatches, costs. Out: a [`Table`]: for each rank the list
//! of what it computes, in order. Knows no graph and no runtime: what a stage is, is its number. Invariants: a table that
//! [`check`](check::check) accepts can be run by ranks that compute in order and wait for what they need; generators give such
//! tables only, and the same table for the same question.
//!
//! - **Stages** are numbered through the model from 0; a rank may hold several (its chunks).
//! - **Actions**: `F` forward; `I` gradient of the stage's input; `W` gradient of its weights; `B` both in one.
//! - A stage is held by one rank, in DualPipe by two: each microbatch keeps to one copy of each stage, that whose rank
//!   computes its `F`.
//!
//! Reading order: this file (tables), `kind.rs` (schedules by name), `family/` (generators), `continued.rs` (steps without an end), `auto/` (tables found from costs), `check.rs`, `costs.rs`, `machine.rs`,
//! `simulate.rs` (times and memory), `file.rs` (tables as text), `program/` (what ranks do and send),
//! `certify.rs` (why they cannot wait for each other forever).

mod auto;
pub mod certify;
pub mod check;
mod continued;
mod costs;
mod family;
pub mod file;
mod fill;
mod kind;
mod machine;
mod problem;
pub mod program;
mod simulate;

pub use auto::cap;
pub use continued::Continued;
pub use costs::{Costs, StageCost};
pub use kind::{Schedule, WITH_ARGUMENT, WORDS, fits};
pub use machine::Machine;
pub use problem::{Fault, Problem};
pub use simulate::{Simulation, simulate};

use std::fmt;

/// What is computed of a stage for a microbatch.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Work {
    /// Forward.
    F,
    /// The gradient of the stage's input.
    I,
    /// The gradient of the stage's weights.
    W,
    /// `I` and `W` in one.
    B,
}

impl Work {
    pub const ALL: [Work; 4] = [Work::F, Work::I, Work::W, Work::B];

    pub fn name(self) -> &'static str {
        match self {
            Work::F => "F",
            Work::I => "I",
            Work::W => "W",
            Work::B => "B",
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Action {
    pub op: Work,
    pub stage: usize,
    pub microbatch: usize,
}

impl Action {
    pub fn new(op: Work, stage: usize, microbatch: usize) -> Action {
        Action { op, stage, microbatch }
    }
}

/// `0F3`: of stage 0 the forward computation, for microbatch 3.
impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}{}", self.stage, self.op.name(), self.microbatch)
    }
}

/// An entry of a table.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Place {
    pub rank: usize,
    /// In the rank's list.
    pub index: usize,
}

/// What every rank of a pipeline computes, in order.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Table {
    /// Of the whole model.
    pub stages: usize,
    pub microbatches: usize,
    /// The ranks that hold a stage, by stage: one, or two (those of DualPipe, the one with the smaller number first).
    pub rank_of: Vec<Vec<usize>>,
    pub ranks: Vec<Vec<Action>>,
}

impl Table {
    /// A table with nothing to do yet.
    fn of(rank_of: Vec<Vec<usize>>, microbatches: usize, ranks: usize) -> Table {
        Table { stages: rank_of.len(), microbatches, rank_of, ranks: vec![Vec::new(); ranks] }
    }

    pub fn action(&self, at: Place) -> Action {
        self.ranks[at.rank][at.index]
    }

    /// All entries, rank by rank.
    pub fn places(&self) -> impl Iterator<Item = (Place, Action)> + '_ {
        let of = |(rank, list): (usize, &'_ Vec<Action>)| (0..list.len()).map(move |index| Place { rank, index });
        self.ranks.iter().enumerate().flat_map(of).map(|p| (p, self.action(p)))
    }

    /// How many entries there are.
    pub fn len(&self) -> usize {
        self.ranks.iter().map(Vec::len).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The stages that a rank holds.
    pub fn stages_of(&self, rank: usize) -> Vec<usize> {
        (0..self.stages).filter(|s| self.rank_of[*s].contains(&rank)).collect()
    }

    /// Without the microbatches from `count` on. What is left keeps its order, so that it can be run if the whole can.
    fn first(mut self, count: usize) -> Table {
        self.ranks.iter_mut().for_each(|r| r.retain(|a| a.microbatch < count));
        self.microbatches = count;
        self
    }
}

/// Where a table has each action, by stage and microbatch; `B` stands for `I` and `W`. Of actions that are there more
/// than once, the first.
pub struct Index {
    microbatches: usize,
    /// `[F, I, W]`
    at: Vec<[Option<Place>; 3]>,
}

impl Index {
    pub fn of(table: &Table) -> Index {
        let mut at = vec![[None; 3]; table.stages * table.microbatches];
        for (place, a) in table.places() {
            if a.stage >= table.stages || a.microbatch >= table.microbatches {
                continue;
            }
            let here = &mut at[a.stage * table.microbatches + a.microbatch];
            let slots: &[usize] = match a.op {
                Work::F => &[0],
                Work::I => &[1],
                Work::W => &[2],
                Work::B => &[1, 2],
            };
            for s in slots {
                here[*s] = here[*s].or(Some(place));
            }
        }
        Index { microbatches: table.microbatches, at }
    }

    pub fn forward(&self, stage: usize, microbatch: usize) -> Option<Place> {
        self.at[stage * self.microbatches + microbatch][0]
    }

    /// Of `I` or `B`.
    pub fn input(&self, stage: usize, microbatch: usize) -> Option<Place> {
        self.at[stage * self.microbatches + microbatch][1]
    }

    /// Of `W` or `B`.
    pub fn weight(&self, stage: usize, microbatch: usize) -> Option<Place> {
        self.at[stage * self.microbatches + microbatch][2]
    }

    /// What must be done before an action: first what the same rank has done for the same microbatch, then what comes
    /// from a neighbouring stage. At most two.
    pub fn needs(&self, table: &Table, a: Action) -> [Option<Place>; 2] {
        let (s, k) = (a.stage, a.microbatch);
        match a.op {
            Work::F => [None, s.checked_sub(1).and_then(|s| self.forward(s, k))],
            Work::I | Work::B => {
                let above = (s + 1 < table.stages).then(|| self.input(s + 1, k)).flatten();
                [self.forward(s, k), above]
            }
            Work::W => [self.input(s, k), None],
        }
    }
}
