//! What a program needs of memory: the exact peak, by category and by place in the text.

use super::findings::{Findings, Outcome, span_of};
use super::options::Options;
use super::pipeline::{self, Graphs};
use super::recompute::Repeated;
use super::{check, plan, sharding, weights};
use crate::diag::{Diagnostic, Sink};
use crate::ir::{CutDim, Graph};
use crate::kernel::Module;
use crate::memory::{self, Offload, Report};
use crate::mesh::{Atom, Mesh, cut};
use crate::program::{Program, Source};
use crate::runtime::exec::scratch_bytes;
use crate::source::World;
use crate::types::grouped;
use serde_json::{Map, Value, json};

/// What a rank needs; on one device the only one. Buffers have the same size on all ranks: where parts are uneven, that of the
/// largest.
pub struct Needed {
    pub plan: Option<String>,
    /// Names and sizes of the plan's axes.
    pub mesh: Vec<(String, u64)>,
    pub ranks: usize,
    pub report: Report,
    /// Working memory of a rank's threads, beside the report's.
    pub scratch_bytes: usize,
    /// The copy of parameters and states that is written in the background when a checkpoint is made: a whole one, once for
    /// all ranks of a process.
    pub checkpoint_bytes: usize,
    /// Dims whose parts are not of one size: `vocab 257 by tp: parts of 65 to 62`.
    pub uneven: Vec<String>,
    /// The peak of the same program on one device; none where it is on one.
    pub one_device: Option<usize>,
    /// What the backward pass of training computes again because of the plan.
    pub again: Option<Repeated>,
    pub graphs: Graphs,
}

/// The peak of the routine that needs most: all routines share one arena.
pub fn needed(options: &Options, world: &dyn World) -> Outcome<Needed> {
    let mesh = plan::axes(options, &check::load(&options.request, world).program, &mut Sink::default());
    let graphs = pipeline::graphs(options, world)?;
    let sources = &graphs.findings.sources;
    let programs = sharding::programs(&graphs)?;
    let (report, program) = peak(pipeline::of_rank(&graphs, programs.as_ref(), sources, options)?, graphs.offload)?;
    let ranks = program.mesh.ranks();
    let one_device = match ranks {
        1 => None,
        _ => Some(peak(pipeline::lowered(&graphs, pipeline::ALL, sources, options), Offload::default())?.0.peak_bytes),
    };
    let scratch_bytes = scratch_bytes(&program, (options.thread_count() / ranks).max(1));
    let checkpoint_bytes = weights::saved_bytes(&graphs.recipe);
    let again = Repeated::of(programs.as_ref().map_or(&graphs.train, |p| &p.train.graph));
    let uneven = programs.map_or_else(Vec::new, |p| uneven(&p.train.graph));
    let plan = options.plan.clone();
    Ok(Needed { plan, mesh, ranks, report, scratch_bytes, checkpoint_bytes, uneven, one_device, again, graphs })
}

/// Gives all arrays of a program their places.
pub fn plan(program: &mut Program, offload: Offload) {
    memory::offload(program, pipeline::TRAIN, offload);
    memory::plan_all(program);
}

/// The report of the routine that needs most.
fn peak(module: Module<'_>, offload: Offload) -> Outcome<(Report, Program)> {
    let mut program = module.program;
    plan(&mut program, offload);
    // The first of equals: training comes first, and the first stage.
    let report = match program.pipeline.is_empty() {
        true => program.routines.iter().rev().max_by_key(|r| r.arena).map(|r| memory::report(&program, r, 0)),
        false => by_stage(&program).into_iter().rev().max_by_key(|r| r.peak_bytes),
    };
    let report = report.ok_or_else(|| super::passes::internal("plan memory", "there is no routine"))?;
    Ok((report, program))
}

/// By coordinate along the pipeline: the routine that needs most there.
fn by_stage(program: &Program) -> Vec<Report> {
    let stages = program.routines.iter().map(|r| r.variants.len()).max().unwrap_or(0);
    let most = |stage: usize| {
        let own = program.routines.iter().filter_map(|r| r.variants.get(stage));
        own.map(|v| &program.routines[*v as usize]).rev().max_by_key(|r| r.arena)
    };
    (0..stages).filter_map(|s| most(s).map(|r| memory::report(program, r, s))).collect()
}

/// Dims of which ranks have unequal parts, with the sizes of the parts.
fn uneven(graph: &Graph) -> Vec<String> {
    let mesh = &graph.mesh;
    let mut out: Vec<String> = Vec::new();
    for dim in &graph.dims {
        let Some(cut) = dim.cut.as_ref().filter(|c| !cut::even(mesh, &c.entries, c.extent)) else { continue };
        let atoms: Vec<Atom> = cut.entries.iter().map(|e| e.atom).collect();
        let sizes = part_sizes(mesh, cut);
        let [most, least] = [sizes.iter().max(), sizes.iter().min()].map(|n| n.copied().unwrap_or(0) as u64);
        let name = dim.name.split('.').next().unwrap_or(&dim.name);
        let (by, extent) = (mesh.names(&atoms).join(", "), grouped(cut.extent as u64));
        let line = format!("{name} {extent} by {by}: parts of {} to {}", grouped(most), grouped(least));
        if !out.contains(&line) {
            out.push(line);
        }
    }
    out
}

/// How many elements of a dim each coordinate of its cut holds.
fn part_sizes(mesh: &Mesh, dim: &CutDim) -> Vec<usize> {
    let mut all: Vec<Vec<usize>> = vec![Vec::new()];
    for e in &dim.entries {
        let size = mesh.size(e.atom);
        all = all.iter().flat_map(|c| (0..size).map(move |i| [&c[..], &[i]].concat())).collect();
    }
    let held = |c: &Vec<usize>| cut::spans(mesh, &dim.entries, dim.extent, c).iter().map(|s| s.len).sum();
    all.iter().map(held).collect()
}

impl Needed {
    /// The error where the peak of a run, which writes a checkpoint at its end at the latest, is over a limit: it points at
    /// what takes most. Of several ranks each has the limit for itself, and the checkpoint is not of one of them.
    pub fn over(&self, limit: u64) -> Option<Box<Findings>> {
        let copy = if self.ranks == 1 { self.checkpoint_bytes } else { 0 };
        let peak = (self.report.peak_bytes + self.scratch_bytes + copy) as u64;
        if peak <= limit {
            return None;
        }
        let sources = &self.graphs.findings.sources;
        let who = if self.ranks == 1 { "the program" } else { "each rank" };
        let mut d =
            Diagnostic::error("E0604", format!("{who} needs {}, more than the limit of {}", show(peak), show(limit)));
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
        if copy > 0 {
            let copy = show(copy as u64);
            d = d.with_note(format!(
                "{copy} of it are a copy, while a checkpoint is written: `train --no-save` takes none"
            ));
        }
        let cure = match self.ranks {
            1 => "use a smaller batch, `microbatches` or `recompute auto(memory = ..)` in a plan, or a lower precision",
            _ => {
                "use more ranks, a higher level of `zero`, `recompute auto(memory = ..)`, `microbatches`, or a lower precision"
            }
        };
        let mut f = Findings { sources: sources.clone(), ..Findings::default() };
        f.sink.push(d.help(cure));
        Some(Box::new(f))
    }

    /// The error where no recomputation has it fit into what the plan allows.
    pub fn short(&self) -> Option<Box<Findings>> {
        let mut f = Findings { sources: self.graphs.findings.sources.clone(), ..Findings::default() };
        f.sink.push(self.graphs.short.clone()?);
        Some(Box::new(f))
    }

    /// As `--json` prints it.
    pub fn json(&self) -> serde_json::Value {
        let number = if self.ranks == 1 { json!(0) } else { (0..self.ranks).collect() };
        let mut rank = json!({"rank": number, "stage": 0, "scratch_bytes": self.scratch_bytes,
            "checkpoint_bytes": self.checkpoint_bytes});
        if let (Some(all), Ok(Value::Object(report))) = (rank.as_object_mut(), serde_json::to_value(&self.report)) {
            all.extend(report);
        }
        let mesh: Map<String, Value> = self.mesh.iter().map(|(name, size)| (name.clone(), json!(size))).collect();
        let mut out = json!({"plan": self.plan, "mesh": mesh, "ranks": [rank]});
        if let Some(bytes) = self.one_device {
            out["one_device"] = json!({"peak_bytes": bytes});
            out["uneven"] = json!(self.uneven);
        }
        if let Some(again) = &self.again {
            let one = |(value, times): &(String, usize)| json!({"value": value, "times": times});
            let values: Vec<Value> = again.values.iter().map(one).collect();
            out["recomputed"] = json!({"more_flops": again.share, "values": values});
        }
        out
    }
}

/// Bytes for people.
pub fn show(bytes: u64) -> String {
    super::show::bytes(bytes)
}
