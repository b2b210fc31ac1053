//! What is there at an instant: of which rank, and when.

use super::{Needed, Stage};
use crate::diag::Diagnostic;
use crate::driver::findings::{Findings, Outcome};
use crate::memory::{self, Bytes, Lives, Living, Moment};
use crate::program::Category;

/// The instants of the ranks of a stage.
pub struct Instants {
    pub coordinate: usize,
    /// Bytes that are there between runs, too.
    pub persistent: Bytes,
    /// What is there besides.
    pub moments: Vec<Moment>,
}

/// All that ranks of a stage have at one instant; the list, in which what is free then has a line of its own, sums to `bytes`.
pub struct Shown {
    pub moment: Moment,
    /// Bytes that hold something.
    pub in_use: usize,
    pub bytes: usize,
    /// Largest first.
    pub alive: Vec<Living>,
}

impl Needed {
    /// The stage of a rank; without one, that which needs most.
    pub fn of_rank(&self, rank: Option<usize>) -> Outcome<&Stage> {
        let Some(rank) = rank else { return Ok(self.most()) };
        self.stages.iter().find(|s| s.ranks.contains(&rank)).ok_or_else(|| {
            let d = Diagnostic::error("E0902", format!("there is no rank {rank}"));
            Findings::of(d.help(format!("ranks of this plan are 0 to {}", self.ranks - 1)))
        })
    }

    /// The ranks of a stage with another routine than the one that needs most.
    pub fn running(&self, stage: &Stage, routine: &str) -> Outcome<Stage> {
        let all = self.program.routines_at(stage.coordinate);
        let found = all.iter().find(|r| self.program.routines[**r].entry() == routine);
        let found = found.ok_or_else(|| {
            let names: Vec<&str> = all.iter().map(|r| self.program.routines[*r].entry()).collect();
            let d = Diagnostic::error("E0902", format!("there is no routine `{routine}`"));
            Findings::of(d.help(format!("say one of {}", names.join(", "))))
        })?;
        Ok(stage.running(*found, &self.program))
    }

    fn lives(&self, stage: &Stage) -> Lives<'_> {
        Lives::new(&self.program, &self.program.routines[stage.routine])
    }

    /// In order of time.
    pub fn instants(&self, stage: &Stage) -> Instants {
        let coordinate = stage.coordinate;
        let persistent = memory::persistent(&self.program, coordinate);
        Instants { coordinate, persistent, moments: self.lives(stage).moments() }
    }

    /// What is alive at `peak`, at an instant by its number, or when an action (`B0.3`) or a step of a name needs most.
    pub fn at(&self, stage: &Stage, at: &str) -> Outcome<Shown> {
        let lives = self.lives(stage);
        let moments = lives.moments();
        let last = moments.last().map_or(0, |m| m.number);
        let named = |m: &&Moment| match (at, at.parse::<usize>()) {
            ("peak", _) => true,
            (_, Ok(number)) => m.number == number,
            _ => m.name() == at || m.value == at,
        };
        let found = moments.iter().filter(named).rev().max_by_key(|m| m.in_use).cloned();
        let moment = found.ok_or_else(|| {
            let d = Diagnostic::error("E0902", format!("there is no instant `{at}`"));
            Findings::of(d.help(format!(
                "say `peak`, a number of 0 to {last}, or what runs, as `{}`: `--timeline` lists all",
                moments.last().map_or_else(String::new, Moment::name)
            )))
        })?;
        let mut alive = memory::living(&lives, moment.number, stage.coordinate);
        alive.sort_by_key(|l| std::cmp::Reverse(l.entry.bytes));
        let bytes = alive.iter().map(|l| l.entry.bytes).sum();
        let in_use = self.instants(stage).by_category(&moment).iter().sum();
        Ok(Shown { moment, in_use, bytes, alive })
    }
}

impl Instants {
    /// Bytes of one of them by category, what is always there included.
    pub fn by_category(&self, moment: &Moment) -> Bytes {
        let mut all = self.persistent;
        all.iter_mut().zip(moment.by_category).for_each(|(a, b)| *a += b);
        all
    }

    /// Of how many microbatches activations are kept at most.
    pub fn in_flight(&self) -> usize {
        self.moments.iter().map(|m| m.in_flight.len()).max().unwrap_or(0)
    }

    /// Categories of which there is ever something.
    pub fn categories(&self) -> Vec<Category> {
        let ever = |c: &Category| {
            let k = *c as usize;
            self.persistent[k] > 0 || self.moments.iter().any(|m| m.by_category[k] > 0)
        };
        Category::ALL.into_iter().filter(ever).collect()
    }
}
