//! What `verify` runs: the options' plan at its own sizes, where that is little enough to be interpreted; else at smaller ones.
//!
//! Smaller: a mesh axis becomes 2, or 3 where it has an odd number of ranks (so each of its atoms); dims of the main file whose sizes are
//! numbers follow: one that is cut keeps whether it divides and whether there is less of it than ranks, loops of the source have two turns,
//! others are at most 8. Where that does not compile, cannot be run, or exchanges something else than the program as it is, larger
//! ones are tried, and at last each dim for itself.
//!
//! Reading order: this file, `search.rs` (which sizes are taken), `sizes.rs` (which a dim may have).

mod search;
mod sizes;

use super::findings::{Findings, Outcome};
use super::options::Options;
use super::pipeline::{self, Graphs};
use super::sharding;
use super::verify::Stopped;
use super::{plan, recompute, stages, verify};
use crate::check::replicas::Rule;
use crate::diag::Diagnostic;
use crate::ir::{ENTRY, Graph, work};
use crate::kernel;
use crate::schedule::Schedule;
use crate::source::World;
use crate::types::DType;

/// Most ranks that are emulated, and most arithmetic of a step that is interpreted, unless it is asked for.
const MOST_RANKS: usize = 16;
const MOST_FLOPS: f64 = 2e9;
/// Most ranks of a program that was made smaller: it computes little.
const MOST_RANKS_SCALED: usize = 64;

/// A plan that was run.
pub struct Verified {
    pub plan: String,
    /// `dp = 2, tp = 4`
    pub mesh: String,
    /// Of the dims that inputs and parameters have.
    pub sizes: Vec<(String, usize)>,
    /// Further facts, a line each.
    pub notes: Vec<String>,
    pub report: verify::Report,
    /// Where the first value that differs is declared.
    pub place: Option<String>,
    pub findings: Findings,
}

/// Runs so many steps of the options' plan, or of the file's only one. `full`: however large.
pub fn verified(options: &Options, steps: u64, full: bool, world: &dyn World) -> Outcome<Verified> {
    let options = Options { precision: Some(DType::F64), ..plan::spread(options, world)? };
    let mut g = pipeline::graphs(&options, world)?;
    let name = options.plan.clone().unwrap_or_default();
    if g.sharding.is_none() {
        return Ok(alone(g, name, steps));
    }
    let mut notes: Vec<String> = apart(&g).into_iter().collect();
    // Smaller sizes may fit.
    let short = g.short.take();
    let report = match (full, small_enough(&g, MOST_RANKS)) {
        (false, Err(d)) => {
            let ranks = g.sharding.as_ref().map_or(1, |s| s.mesh().ranks());
            notes.push(format!(
                "made smaller, from {ranks} ranks and {:.3} GFLOP a step",
                work::flops(&g.train, ENTRY) / 1e9
            ));
            let smaller = search::smaller(&options, &g, steps, d, world)?;
            if !smaller.alike {
                notes.push(
                    "what is exchanged, or whether dims divide, differs from the program as it is: these sizes are the best that were found"
                        .into(),
                );
            }
            g = smaller.graphs;
            smaller.report
        }
        _ => run(&g, steps)?.map_err(|e| e.findings())?,
    };
    let place = report.differs.as_ref().and_then(|d| d.span).map(|s| g.findings.sources.place(s));
    let mut findings = g.findings.clone();
    let of_f64 = |d| recompute::unmet(d).with_note("these figures are of f64, in which `verify` runs every plan");
    short.iter().for_each(|d| findings.sink.push(of_f64(d)));
    let warnings = sharding::train(&g)?.warnings;
    recompute::besides(&warnings, short.as_ref()).for_each(|d| findings.sink.push(d.clone()));
    let mesh = g.sharding.as_ref().map_or_else(String::new, |s| s.mesh().to_string());
    Ok(Verified { plan: name, mesh, sizes: sizes(&g.train), notes, report, place, findings })
}

/// What a plan that changes what is computed is compared with.
fn apart(g: &Graphs) -> Option<String> {
    let plan = &g.sharding.as_ref()?.plan;
    let two = plan.pipeline.as_ref().is_some_and(|p| p.schedule == Schedule::TwoBw);
    let rule = match plan.replicas.as_ref().map(|r| r.rule) {
        Some(Rule::Local { .. }) => "`local`",
        Some(Rule::Stale(late)) if late > 0 => "`async`",
        _ if two => "`schedule = 2bw`",
        _ => return None,
    };
    Some(format!(
        "{rule} changes what is computed: one device follows the same rule here; how that compares with plain training is not tested"
    ))
}

/// Compares all ranks with one device; what stops the programs is no finding.
fn run(g: &Graphs, steps: u64) -> Outcome<Result<verify::Report, Stopped>> {
    let programs = sharding::programs(g)?.expect("a plan of several ranks has programs");
    let staged = stages::staged(g, &programs, &kernel::Options::default())?;
    Ok(verify::compare(g, &programs, staged.as_ref(), steps))
}

/// A plan of one rank is what it is compared with.
fn alone(g: Graphs, plan: String, steps: u64) -> Verified {
    let report = verify::Report {
        ranks: 1,
        steps,
        compared: 0,
        largest: 0.0,
        noisy: Vec::new(),
        differs: None,
        in_stages: false,
    };
    let notes = vec!["one rank: there is nothing to compare".to_string()];
    let mesh = "no mesh of several ranks".to_string();
    Verified { plan, mesh, sizes: Vec::new(), notes, report, place: None, findings: g.findings }
}

/// An error where a program would take hours.
fn small_enough(g: &Graphs, most: usize) -> Result<(), Diagnostic> {
    let flops = work::flops(&g.train, ENTRY);
    let ranks = g.sharding.as_ref().map_or(1, |s| s.mesh().ranks());
    if ranks <= most && flops <= MOST_FLOPS {
        return Ok(());
    }
    let message = if ranks > most {
        format!("{ranks} ranks are more than the {most} that are emulated")
    } else {
        format!("a step of {:.1} GFLOP is more than the {} that are interpreted", flops / 1e9, MOST_FLOPS / 1e9)
    };
    Err(Diagnostic::error("E0505", message)
        .with_note("a plan is verified by interpreting the program twice: whole, and on every rank")
        .with_note("no smaller sizes of the file's own dims were found that can be run instead")
        .help("make dims smaller by `--set NAME=N` and axes by `--mesh AXIS=N`, or run it as it is by `--full`"))
}

/// Sizes of the dims that inputs and parameters have.
fn sizes(g: &Graph) -> Vec<(String, usize)> {
    let all = g.inputs.iter().flat_map(|i| &i.dims).chain(g.params.iter().flat_map(|p| &p.dims));
    let mut out: Vec<(String, usize)> = Vec::new();
    for d in all {
        let (name, size) = (&g.dim(*d).name, g.size(*d));
        if !out.iter().any(|(n, _)| n == name) {
            out.push((name.clone(), size));
        }
    }
    out
}
