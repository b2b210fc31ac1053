//! What the peak consists of: by category and by place in the source, to the byte.

use super::moments::{Alive, Bytes, Lives, Moment};
use crate::program::{ALIGN, Category, Program, Role, Routine, Slot, SourceId};
use indexmap::IndexMap;
use serde::Serialize;

/// Memory of one rank at its peak. Both lists are of the same instant and sum to `peak_bytes`.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Report {
    pub peak_bytes: usize,
    /// In files beside that.
    pub offloaded_bytes: usize,
    pub peak_at: Instant,
    /// In the order of `Category::ALL`, zeros included.
    pub by_category: IndexMap<&'static str, usize>,
    /// Largest first.
    pub by_source: Vec<Entry>,
}

/// The step at which most of the arena is in use.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Instant {
    /// `train`, `eval` or `init`.
    pub routine: String,
    /// The same; in a step in stages the function of a stage.
    pub action: String,
    /// Where there is one of it for each; 0 in JSON where not.
    #[serde(serialize_with = "number")]
    pub microbatch: Option<u32>,
    /// What the step computes.
    pub value: String,
}

fn number<S: serde::Serializer>(microbatch: &Option<u32>, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_u32(microbatch.unwrap_or(0))
}

impl Instant {
    /// `train`; `train, B0 of microbatch 3`
    pub fn told(&self) -> String {
        match (self.microbatch, self.routine == self.action) {
            (Some(m), _) => format!("{}, {} of microbatch {m}", self.routine, self.action),
            (None, false) => format!("{}, {}", self.routine, self.action),
            (None, true) => self.routine.clone(),
        }
    }
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize)]
pub struct Entry {
    /// Empty where the bytes have no place in the source.
    pub file: String,
    pub line: u32,
    pub column: u32,
    pub value: String,
    pub category: &'static str,
    pub bytes: usize,
}

impl Entry {
    /// `gpt.pta:12:5`; empty where it has no place.
    pub fn place(&self) -> String {
        if self.file.is_empty() { String::new() } else { format!("{}:{}:{}", self.file, self.line, self.column) }
    }
}

/// An array that is alive at some instant.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Living {
    #[serde(flatten)]
    pub entry: Entry,
    /// The instance of the layer that makes it, as `block.3.attention`; may be empty.
    pub layer: String,
    /// Where there is one for each.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub microbatch: Option<u32>,
}

/// The peak of a planned routine with all that is persistent on ranks of a stage; without a pipeline, of stage 0.
pub fn report(program: &Program, routine: &Routine, stage: usize) -> Report {
    let lives = Lives::new(program, routine);
    let peak = lives.peak();
    let living = living(&lives, peak.as_ref().map_or(0, |m| m.number), stage);
    let mut by_category: IndexMap<&'static str, usize> = Category::ALL.iter().map(|c| (c.name(), 0)).collect();
    let mut entries: IndexMap<Entry, usize> = IndexMap::new();
    for Living { entry, .. } in living {
        by_category[entry.category] += entry.bytes;
        let bytes = entry.bytes;
        *entries.entry(Entry { bytes: 0, ..entry }).or_insert(0) += bytes;
    }
    let mut by_source: Vec<Entry> = entries.into_iter().map(|(e, bytes)| Entry { bytes, ..e }).collect();
    by_source.sort_by_key(|e| std::cmp::Reverse(e.bytes));
    let peak_at =
        peak.map_or_else(|| (routine.name.clone(), None, String::new()), |m| (m.action, m.microbatch, m.value));
    let (action, microbatch, value) = peak_at;
    let peak_at = Instant { routine: routine.entry().to_string(), action, microbatch, value };
    Report {
        peak_bytes: program.persistent_bytes(stage) + routine.arena,
        offloaded_bytes: program.offloaded_bytes(stage),
        peak_at,
        by_category,
        by_source,
    }
}

/// All that a rank of a stage has at an instant of a routine: the persistent arrays first, then temporaries, then what is free in the arena
/// (at the peak, gaps between arrays). Sums to what the rank takes.
pub fn living(lives: &Lives<'_>, number: usize, stage: usize) -> Vec<Living> {
    let (program, routine) = (lives.program(), lives.routine());
    let one = |source: SourceId, value: &str, category: Category, bytes: usize, microbatch: Option<u32>| {
        let s = &program.sources[source.0 as usize];
        let (file, value, layer) = (s.file.clone(), value.to_string(), s.scope.clone());
        let entry = Entry { file, line: s.line, column: s.column, value, category: category.name(), bytes };
        Living { entry, layer, microbatch }
    };
    let mut out = Vec::new();
    let mut gaps = 0;
    for slot in held(program, stage) {
        out.push(one(slot.source, &slot.path, category(slot), slot.bytes(), None));
        gaps += slot.reserved() - slot.bytes();
    }
    let nowhere = SourceId(0);
    out.push(one(nowhere, "constants", Category::Data, program.constants.len(), None));
    out.push(one(nowhere, "step and coordinates", Category::Data, program.cells_bytes(), None));
    gaps += program.constants.len().next_multiple_of(ALIGN) - program.constants.len();
    let mut in_use = 0;
    for Alive { buffer, microbatch } in lives.alive(number) {
        in_use += buffer.bytes();
        out.push(one(buffer.source, &buffer.name, buffer.category, buffer.bytes(), microbatch));
    }
    gaps += routine.arena - in_use;
    let is_peak = lives.peak().is_some_and(|p| p.number == number);
    let free = if is_peak { "gaps between buffers" } else { "free at this instant" };
    out.push(one(nowhere, free, Category::Workspace, gaps, None));
    out.retain(|l| l.entry.bytes > 0);
    out
}

/// What ranks of a stage have in memory between runs, by category and in bytes, and what lies between.
pub fn persistent(program: &Program, stage: usize) -> Bytes {
    let mut out = Bytes::default();
    held(program, stage).for_each(|s| out[category(s) as usize] += s.bytes());
    out[Category::Data as usize] += program.constants.len() + program.cells_bytes();
    out[Category::Workspace as usize] += program.persistent_bytes(stage) - out.iter().sum::<usize>();
    out
}

/// The instants of a routine.
pub fn moments(program: &Program, routine: &Routine) -> Vec<Moment> {
    Lives::new(program, routine).moments()
}

fn held(program: &Program, stage: usize) -> impl Iterator<Item = &Slot> {
    program.slots().filter(move |s| !s.host && s.is_at(stage))
}

fn category(slot: &Slot) -> Category {
    match slot.role {
        Role::Param => Category::Parameters,
        Role::Optimizer => Category::OptimizerState,
        Role::Model | Role::Average | Role::Scaling | Role::Cache => Category::State,
        Role::InFlight => Category::Activations,
        Role::Sum => Category::Gradients,
        Role::Input => Category::Data,
    }
}
