//! Schedules by the names that plans use, and their tables.

use super::check::check;
use super::{Costs, Problem, Table, auto, family, file};

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Schedule {
    GPipe,
    OneFOneB,
    /// PipeDream-2BW: the order of 1F1B, with the parameters of the step before.
    TwoBw,
    /// Stages a rank holds.
    Interleaved(u64),
    LoopedBfs(u64),
    ZbH1,
    ZbH2,
    ZbV,
    VHalf,
    VMin,
    DualPipe,
    DualPipeV,
    /// Found from the costs.
    Auto,
    /// The same, where a rank keeps the activations of so many microbatches at most.
    Within(u64),
    /// A table that a user has written: its path.
    File(String),
}

/// Schedules that are one word.
pub const WORDS: &[(&str, Schedule)] = &[
    ("gpipe", Schedule::GPipe),
    ("1f1b", Schedule::OneFOneB),
    ("2bw", Schedule::TwoBw),
    ("zb_h1", Schedule::ZbH1),
    ("zb_h2", Schedule::ZbH2),
    ("zb_v", Schedule::ZbV),
    ("v_half", Schedule::VHalf),
    ("v_min", Schedule::VMin),
    ("dualpipe", Schedule::DualPipe),
    ("dualpipe_v", Schedule::DualPipeV),
    ("auto", Schedule::Auto),
];

/// Schedules that take an argument.
pub const WITH_ARGUMENT: &[&str] = &["interleaved", "looped_bfs", "file"];

/// Larger tables are refused.
const MAX_ACTIONS: usize = 1 << 24;

/// As plans write it.
impl std::fmt::Display for Schedule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Schedule::Interleaved(v) => write!(f, "interleaved({v})"),
            Schedule::LoopedBfs(v) => write!(f, "looped_bfs({v})"),
            Schedule::Within(n) => write!(f, "auto({n})"),
            Schedule::File(path) => write!(f, "file(\"{path}\")"),
            word => f.write_str(WORDS.iter().find(|w| w.1 == *word).map_or("", |w| w.0)),
        }
    }
}

impl Schedule {
    /// How many stages a rank holds; of `auto` and a file's table that depends on what they are given.
    pub fn chunks(&self) -> Option<u64> {
        match self {
            Schedule::Interleaved(v) | Schedule::LoopedBfs(v) => Some(*v),
            Schedule::ZbV | Schedule::VHalf | Schedule::VMin | Schedule::DualPipeV => Some(2),
            // In DualPipe a rank holds two stages, each of which another rank holds as well.
            Schedule::GPipe
            | Schedule::OneFOneB
            | Schedule::TwoBw
            | Schedule::ZbH1
            | Schedule::ZbH2
            | Schedule::DualPipe => Some(1),
            Schedule::Auto | Schedule::Within(_) | Schedule::File(_) => None,
        }
    }

    /// How many stages the whole model is cut into on so many ranks; unknown of a file's table that is not read yet. `auto` takes
    /// as many as are given, else two a rank where the loops have so many turns.
    pub fn stages(&self, ranks: usize, turns: usize, given: Option<usize>) -> Option<usize> {
        match (self, self.chunks()) {
            (_, Some(v)) => Some(ranks.saturating_mul(v as usize)),
            (Schedule::Auto | Schedule::Within(_), None) => {
                Some(given.unwrap_or(if turns >= 2 * ranks { 2 * ranks } else { ranks }))
            }
            (_, None) => None,
        }
    }

    /// Why the schedule does not exist for so many ranks and microbatches.
    pub fn refuses(&self, ranks: usize, microbatches: usize) -> Option<Problem> {
        if *self == Schedule::DualPipe && ranks > 1 && !ranks.is_multiple_of(2) {
            return Some(Problem::impossible(
                "`dualpipe` needs an even number of ranks",
                format!("take {} or {} ranks, or `dualpipe_v`, which goes with any number", ranks - 1, ranks + 1),
            ));
        }
        let stages = ranks.saturating_mul(self.chunks().unwrap_or(1) as usize);
        if stages == 0 || microbatches == 0 {
            return Some(Problem::impossible("a schedule needs ranks, stages and microbatches", "take one at least"));
        }
        (stages.saturating_mul(3).saturating_mul(microbatches) > MAX_ACTIONS).then(|| {
            Problem::impossible(
                format!("{stages} stages of {microbatches} microbatches are more than {MAX_ACTIONS} actions"),
                "take fewer microbatches",
            )
        })
    }

    /// The table for so many ranks along the pipeline's axis. `costs`, which must be of as many stages as the table has,
    /// matter to `auto` alone; `read` gives the text of a file, which matters to `file` alone.
    pub fn table(
        &self,
        ranks: usize,
        microbatches: usize,
        costs: &Costs,
        read: &dyn Fn(&str) -> Result<String, String>,
    ) -> Result<Table, Problem> {
        if let Some(p) = self.refuses(ranks, microbatches) {
            return Err(p);
        }
        let (p, m) = (ranks, microbatches);
        Ok(match self {
            Schedule::GPipe => family::looped::table(p, m, 1),
            Schedule::OneFOneB | Schedule::TwoBw => family::interleaved::table(p, m, 1),
            Schedule::Interleaved(v) => family::interleaved::table(p, m, *v as usize),
            Schedule::LoopedBfs(v) => family::looped::table(p, m, *v as usize),
            Schedule::ZbH1 => family::zero_bubble::h1(p, m),
            Schedule::ZbH2 => family::zero_bubble::h2(p, m),
            Schedule::ZbV => family::zero_bubble_v::table(p, m),
            Schedule::VHalf => family::v_shape::half(p, m),
            Schedule::VMin => family::v_shape::min(p, m),
            Schedule::DualPipe => family::dual::pipe(p, m),
            Schedule::DualPipeV => family::dual::pipe_v(p, m),
            Schedule::Auto => auto::auto(p, m, costs)?,
            Schedule::Within(n) => {
                let each = auto::cap(p, &Costs { cap: None, ..costs.clone() }) / p as f64;
                auto::auto(p, m, &Costs { cap: Some(each * *n as f64), ..costs.clone() })?
            }
            Schedule::File(path) => {
                let text = read(path)
                    .map_err(|e| Problem::impossible(format!("{path} cannot be read: {e}"), "check the path"))?;
                let table = file::parse(&text)?.table;
                if let Some(p) = fits(&table, p, m).or_else(|| check(&table).into_iter().next()) {
                    return Err(p);
                }
                table
            }
        })
    }
}

/// What is wrong with a table for so many ranks and microbatches.
pub fn fits(table: &Table, ranks: usize, microbatches: usize) -> Option<Problem> {
    if table.ranks.len() != ranks {
        return Some(Problem::impossible(
            format!("the table has {} ranks, the axis {ranks}", table.ranks.len()),
            format!("write {ranks} lines, or make the axis {}", table.ranks.len()),
        ));
    }
    (table.microbatches != microbatches).then(|| {
        Problem::impossible(
            format!("the table has {} microbatches, the pipeline {microbatches}", table.microbatches),
            format!("write `microbatches = {}`", table.microbatches),
        )
    })
}
