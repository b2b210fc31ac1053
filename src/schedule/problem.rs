//! What can be wrong with a table or with the question for one, as values.

use super::{Action, Place, Table};
use std::ops::Range;

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Problem {
    /// Where in the table; none if something is missing or the schedule does not exist.
    pub at: Option<Place>,
    pub fault: Fault,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Fault {
    /// The schedule does not exist for these numbers: why, and what to write instead.
    Impossible { why: String, cure: String },
    /// A stage or microbatch that the table has not.
    Unknown,
    /// The same work is done twice.
    Twice { first: Place },
    /// Work that no rank does.
    Missing { action: Action },
    /// The rank does not hold the stage.
    Elsewhere,
    /// The stage's forward computation of this microbatch is done by another rank.
    Apart { forward: Place },
    /// Something that it needs comes later on the same rank.
    Early { needs: Place },
    /// Each waits for the next, the last for the first.
    Cycle { around: Vec<Place> },
    /// A text that cannot be read: where, also as line and column from 1, and what is wrong.
    Unreadable { bytes: Range<usize>, line: usize, column: usize, why: String },
}

impl Problem {
    pub fn new(fault: Fault) -> Problem {
        Problem { at: None, fault }
    }

    pub fn at(at: Place, fault: Fault) -> Problem {
        Problem { at: Some(at), fault }
    }

    pub fn impossible(why: impl Into<String>, cure: impl Into<String>) -> Problem {
        Problem::new(Fault::Impossible { why: why.into(), cure: cure.into() })
    }

    /// One sentence without a full stop. Entries are counted from 1, as lines are.
    pub fn message(&self, table: &Table) -> String {
        let place = |p: &Place| match table.ranks.get(p.rank).and_then(|r| r.get(p.index)) {
            Some(a) => format!("{a} (entry {} of rank {})", p.index + 1, p.rank),
            None => format!("entry {} of rank {}", p.index + 1, p.rank),
        };
        let here = self.at.as_ref().map(place).unwrap_or_default();
        match &self.fault {
            Fault::Impossible { why, .. } => why.clone(),
            Fault::Unknown => format!(
                "{here} is outside of the table's {} stages and {} microbatches",
                table.stages, table.microbatches
            ),
            Fault::Twice { first } => format!("{here} repeats {}", place(first)),
            Fault::Missing { action } => format!("no rank computes {action}"),
            Fault::Elsewhere => format!("{here} is on a rank that does not hold its stage"),
            Fault::Apart { forward } => format!("{here} is on another rank than {}", place(forward)),
            Fault::Early { needs } => format!("{here} comes before {}, which it needs", place(needs)),
            Fault::Cycle { around } => {
                let all: Vec<String> = around.iter().map(place).collect();
                format!("ranks wait for each other in a circle: {}", all.join(", "))
            }
            Fault::Unreadable { why, .. } => why.clone(),
        }
    }

    /// A circle of waiting, one step a line; empty of other faults.
    pub fn drawing(&self, table: &Table) -> Vec<String> {
        let Fault::Cycle { around } = &self.fault else { return Vec::new() };
        let step = |k: usize| {
            let (a, b) = (around[k], around[(k + 1) % around.len()]);
            let word = if a.rank == b.rank { "comes after" } else { "waits for" };
            let name = |p: Place| format!("{} of rank {}", table.action(p), p.rank);
            format!("{} {word} {}", name(a), name(b))
        };
        (0..around.len()).map(step).collect()
    }

    /// What to do about it, where that is known.
    pub fn cure(&self) -> Option<&str> {
        match &self.fault {
            Fault::Impossible { cure, .. } => Some(cure),
            Fault::Early { .. } => Some("let what it needs come first"),
            Fault::Cycle { .. } => Some("let one of them come later"),
            Fault::Unknown
            | Fault::Twice { .. }
            | Fault::Missing { .. }
            | Fault::Elsewhere
            | Fault::Apart { .. }
            | Fault::Unreadable { .. } => None,
        }
    }
}
