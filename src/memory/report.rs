//! What the peak consists of: by category and by place in the source, to the byte.

use super::lifetimes;
use crate::program::{Action, Category, Place, Program, Role, Routine, Step};
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
    /// The routine.
    pub action: String,
    pub microbatch: usize,
    /// What the step computes.
    pub value: String,
}

#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Entry {
    /// Empty where the bytes have no place in the source.
    pub file: String,
    pub line: u32,
    pub column: u32,
    pub value: String,
    pub category: &'static str,
    pub bytes: usize,
}

/// The peak of a planned routine with all that is persistent on ranks of a stage; without a pipeline, of stage 0.
pub fn report(program: &Program, routine: &Routine, stage: usize) -> Report {
    let lives = lifetimes(routine);
    let arena = |i: &usize| matches!(routine.buffers[*i].place, Place::Arena(_));
    let temporaries: Vec<usize> = (0..routine.buffers.len()).filter(arena).collect();
    let last = lives.iter().flatten().map(|l| l.last).max().unwrap_or(0);
    // Bytes in use at each step, by differences.
    let mut change = vec![0isize; last + 2];
    for i in &temporaries {
        if let Some(life) = lives[*i] {
            let bytes = routine.buffers[*i].bytes() as isize;
            change[life.first] += bytes;
            change[life.last + 1] -= bytes;
        }
    }
    let mut used = 0;
    let (mut peak, mut at) = (0, 0);
    for (step, difference) in change.iter().enumerate() {
        used += difference;
        if used > peak {
            (peak, at) = (used, step);
        }
    }

    let mut entries: IndexMap<(String, u32, u32, String, Category), usize> = IndexMap::new();
    let mut add = |source: crate::program::SourceId, value: &str, category: Category, bytes: usize| {
        let s = &program.sources[source.0 as usize];
        *entries.entry((s.file.clone(), s.line, s.column, value.to_string(), category)).or_insert(0) += bytes;
    };
    let mut gaps = 0;
    for slot in program.params.iter().chain(&program.states).chain(&program.inputs) {
        let category = match slot.role {
            Role::Param => Category::Parameters,
            Role::Optimizer => Category::OptimizerState,
            Role::Model | Role::Average | Role::Scaling | Role::Cache => Category::State,
            Role::Input => Category::Data,
        };
        if slot.host || !slot.is_at(stage) {
            continue;
        }
        add(slot.source, &slot.path, category, slot.bytes());
        gaps += slot.reserved() - slot.bytes();
    }
    let nowhere = crate::program::SourceId(0);
    add(nowhere, "constants", Category::Data, program.constants.len());
    let mut in_use = 0;
    for i in &temporaries {
        let buffer = &routine.buffers[*i];
        if lives[*i].is_some_and(|l| l.first <= at && at <= l.last) {
            in_use += buffer.bytes();
            add(buffer.source, &buffer.name, buffer.category, buffer.bytes());
        }
    }
    gaps += routine.arena - in_use;
    add(nowhere, "gaps between buffers", Category::Workspace, gaps);
    entries.retain(|_, bytes| *bytes > 0);

    let mut by_category: IndexMap<&'static str, usize> = Category::ALL.iter().map(|c| (c.name(), 0)).collect();
    let mut by_source: Vec<Entry> = Vec::with_capacity(entries.len());
    for ((file, line, column, value, category), bytes) in entries {
        by_category[category.name()] += bytes;
        by_source.push(Entry { file, line, column, value, category: category.name(), bytes });
    }
    by_source.sort_by_key(|e| std::cmp::Reverse(e.bytes));
    let value = label(&routine.steps, at).unwrap_or_default();
    Report {
        peak_bytes: program.persistent_bytes(stage) + routine.arena,
        offloaded_bytes: program.host_bytes(routine),
        peak_at: Instant { action: routine.name.clone(), microbatch: 0, value },
        by_category,
        by_source,
    }
}

/// The label of the step with a number of `lifetimes`.
fn label(steps: &[Step], number: usize) -> Option<String> {
    fn count(steps: &[Step]) -> usize {
        steps
            .iter()
            .map(|s| match &s.action {
                Action::Loop(l) => count(&l.body) + l.moves.len() + 2,
                _ => 1,
            })
            .sum()
    }
    let mut now = 0;
    for step in steps {
        let size = count(std::slice::from_ref(step));
        if number < now + size {
            return match &step.action {
                Action::Loop(l) if number > now => label(&l.body, number - now - 1).or(Some(step.label.clone())),
                _ => Some(step.label.clone()),
            };
        }
        now += size;
    }
    None
}
