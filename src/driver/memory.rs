//! What a program needs of memory: the exact peak, by category and by place in the text.

use super::findings::{Findings, Outcome, span_of};
use super::options::Options;
use super::pipeline::{self, Graphs};
use super::weights;
use crate::diag::Diagnostic;
use crate::memory::{self, Report};
use crate::program::Source;
use crate::runtime::exec::scratch_bytes;
use crate::source::World;

/// The plan's name and the report of its one rank.
pub struct Needed {
    pub plan: Option<String>,
    pub report: Report,
    /// Working memory of the threads, beside the report's.
    pub scratch_bytes: usize,
    /// The copy of parameters and states that is written in the background when a checkpoint is made.
    pub checkpoint_bytes: usize,
    pub graphs: Graphs,
}

/// The peak of the routine that needs most: all routines share one arena.
pub fn needed(options: &Options, world: &dyn World) -> Outcome<Needed> {
    let graphs = pipeline::graphs(options, world)?;
    let mut module = pipeline::lowered(&graphs, pipeline::ALL, &graphs.findings.sources, options);
    module.program.routines.iter_mut().for_each(memory::plan);
    let program = &module.program;
    // The first of equals: training comes first.
    let most = program.routines.iter().rev().max_by_key(|r| r.arena);
    let report = most.map(|r| memory::report(program, r));
    let scratch_bytes = scratch_bytes(program, options.thread_count());
    let report = report.ok_or_else(|| super::passes::internal("plan memory", "there is no routine"))?;
    drop(module);
    let checkpoint_bytes = weights::saved_bytes(&graphs.recipe);
    Ok(Needed { plan: options.plan.clone(), report, scratch_bytes, checkpoint_bytes, graphs })
}

impl Needed {
    /// The error where the peak of a run, which writes a checkpoint at its end at the latest, is over a limit: it points at
    /// what takes most.
    pub fn over(&self, limit: u64) -> Option<Box<Findings>> {
        let peak = (self.report.peak_bytes + self.scratch_bytes + self.checkpoint_bytes) as u64;
        if peak <= limit {
            return None;
        }
        let sources = &self.graphs.findings.sources;
        let mut d = Diagnostic::error(
            "E0604",
            format!("the program needs {}, more than the limit of {}", show(peak), show(limit)),
        );
        let place = |e: &memory::Entry| {
            span_of(&Source { file: e.file.clone(), line: e.line, column: e.column, ..Source::default() }, sources)
        };
        let mut shown = 0;
        for e in &self.report.by_source {
            let Some(span) = place(e) else { continue };
            let text = format!("{} of {}: `{}`", show(e.bytes as u64), e.category, e.value);
            d = if shown == 0 { d.at(span, text) } else { d.and(span, text) };
            shown += 1;
            if shown == 3 {
                break;
            }
        }
        let copy = show(self.checkpoint_bytes as u64);
        d = d
            .with_note(format!("{copy} of it are a copy, while a checkpoint is written: `train --no-save` takes none"));
        let mut f = Findings { sources: sources.clone(), ..Findings::default() };
        f.sink.push(d.help("use a smaller batch, `microbatches` in a plan, or a lower precision"));
        Some(Box::new(f))
    }

    /// As `--json` prints it.
    pub fn json(&self) -> serde_json::Value {
        let mut rank = serde_json::json!({"rank": 0, "stage": 0, "scratch_bytes": self.scratch_bytes,
            "checkpoint_bytes": self.checkpoint_bytes});
        if let (Some(all), Ok(serde_json::Value::Object(report))) =
            (rank.as_object_mut(), serde_json::to_value(&self.report))
        {
            all.extend(report);
        }
        serde_json::json!({"plan": self.plan, "mesh": {}, "ranks": [rank]})
    }
}

/// Bytes for people.
pub fn show(bytes: u64) -> String {
    super::show::bytes(bytes)
}
