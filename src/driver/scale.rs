//! What `verify` runs: the options' plan at its own sizes, where that is little enough to be interpreted; else at smaller ones.
//!
//! Smaller: a mesh axis becomes 2, or 3 where it has an odd number of ranks (so each of its atoms); dims of the main file whose sizes are
//! numbers follow: one that is cut keeps whether it divides and whether there is less of it than ranks, loops of the source have two turns,
//! others are at most 8. Where that does not compile, cannot be run, or exchanges something else than the program as it is, larger
//! ones are tried.

use super::findings::{Findings, Outcome};
use super::options::Options;
use super::pipeline::{self, Graphs, with};
use super::sharding::{self, Sharding};
use super::verify::Stopped;
use super::{check, plan, stages, verify};
use crate::diag::{Diagnostic, Severity};
use crate::inspect::Comm;
use crate::ir::{DimId, ENTRY, Graph, work};
use crate::kernel;
use crate::mesh::Axis;
use crate::resolve::{Entity, MAIN, Program};
use crate::source::{SourceMap, World};
use crate::stage;
use crate::syntax::ast::{DimDef, DimValue};
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
    let mut notes = Vec::new();
    let report = match (full, small_enough(&g, MOST_RANKS)) {
        (false, Err(d)) => {
            let ranks = g.sharding.as_ref().map_or(1, |s| s.mesh().ranks());
            notes.push(format!(
                "made smaller, from {ranks} ranks and {:.3} GFLOP a step",
                work::flops(&g.train, ENTRY) / 1e9
            ));
            let smaller = smaller(&options, &g, steps, d, world)?;
            if !smaller.alike {
                notes.push(
                    "what is exchanged differs from the program as it is: these sizes are the best that were found"
                        .into(),
                );
            }
            g = smaller.graphs;
            smaller.report.expect("it was run")
        }
        _ => run(&g, steps)?.map_err(|e| super::passes::internal("verify", &e.why))?,
    };
    let place = report.differs.as_ref().and_then(|d| d.span).map(|s| g.findings.sources.place(s));
    let mut findings = g.findings.clone();
    sharding::train(&g)?.warnings.iter().for_each(|d| findings.sink.push(d.clone()));
    let mesh = g.sharding.as_ref().map_or_else(String::new, |s| s.mesh().to_string());
    Ok(Verified { plan: name, mesh, sizes: sizes(&g.train), notes, report, place, findings })
}

/// Compares all ranks with one device; what stops the programs is no finding.
fn run(g: &Graphs, steps: u64) -> Outcome<Result<verify::Report, Stopped>> {
    let programs = sharding::programs(g)?.expect("a plan of several ranks has programs");
    let staged = stages::staged(g, &programs, &kernel::Options::default())?;
    Ok(verify::compare(g, &programs, staged.as_ref(), steps))
}

/// A program of smaller sizes.
struct Smaller {
    graphs: Graphs,
    /// Whether it exchanges what the program as it is does.
    alike: bool,
    report: Option<verify::Report>,
}

/// What of an uncut dim stays, and how many elements a rank has of one that is cut; smallest first.
const TRIES: [(usize, usize); 8] = [(8, 1), (8, 2), (16, 2), (16, 4), (8, 8), (32, 4), (64, 8), (256, 32)];

/// From here on a rank may get more elements than it has of the program as it is.
const MORE: usize = 8;

/// The smallest sizes that are tried and found good, else the best, run. Else what was wrong with the sizes; `large`: with its own.
fn smaller(options: &Options, g: &Graphs, steps: u64, large: Diagnostic, world: &dyn World) -> Outcome<Smaller> {
    let c = check::load(&options.request, world);
    let Some(s) = &g.sharding else { return Err(with(large, &g.findings.sources)) };
    let wanted = exchanged(g)?;
    let axis = |a: &Axis| (a.name.clone(), a.atoms.iter().map(|n| few(*n) as u64).product());
    let mesh: Vec<(String, u64)> = s.mesh().axes.iter().map(axis).collect();
    let mut others: Vec<Smaller> = Vec::new();
    let mut tried: Vec<(String, String)> = Vec::new();
    // What dims must have for the numbers that the program computes with.
    let mut least: Vec<(String, usize)> = Vec::new();
    let mut tries = TRIES.iter().peekable();
    // Each is left when the same sizes come again.
    while let Some((uncut, each)) = tries.peek() {
        let mut smaller = Options { mesh: mesh.clone(), ..options.clone() };
        let mut sizes: Vec<String> = mesh.iter().map(|(n, size)| format!("{n} = {size}")).collect();
        for (name, size) in dims(&c.program, &c.sources) {
            let least = least.iter().filter(|l| l.0 == name).map(|l| l.1).max().unwrap_or(0);
            if !options.request.sets.iter().any(|(n, _)| *n == name)
                && let Some(new) = resized(g, s, &name, size, *uncut, *each, least)
            {
                sizes.push(format!("{name} = {new}"));
                smaller.request.sets.push((name, new.to_string()));
            }
        }
        let sizes = sizes.join(", ");
        if tried.iter().any(|t| t.0 == sizes) {
            tries.next();
            continue;
        }
        // Sizes that do not fit each other are no finding of the user's.
        let graphs = match pipeline::graphs(&smaller, world) {
            Ok(graphs) => graphs,
            Err(f) => {
                let first = f.sink.sorted().iter().find(|d| d.severity == Severity::Error).map(|d| d.message.clone());
                tried.push((sizes, first.unwrap_or_default()));
                continue;
            }
        };
        if graphs.sharding.is_none() {
            tried.push((sizes, "nothing is spread over ranks".into()));
            continue;
        }
        if let Err(d) = small_enough(&graphs, MOST_RANKS_SCALED) {
            tried.push((sizes, d.message));
            continue;
        }
        let alike = exchanged(&graphs)? == wanted;
        let mut found = Smaller { graphs, alike, report: None };
        if !alike {
            others.push(found);
            tries.next();
            continue;
        }
        match run(&found.graphs, steps)? {
            Ok(report) => {
                found.report = Some(report);
                return Ok(found);
            }
            Err(e) => {
                // Once a dim: a program may miss at any size.
                least.extend(e.needs.filter(|n| least.iter().all(|l| l.0 != n.0)));
                tried.push((sizes, e.why));
            }
        }
    }
    while let Some(mut found) = others.pop() {
        match run(&found.graphs, steps)? {
            Ok(report) => {
                found.report = Some(report);
                return Ok(found);
            }
            Err(e) => tried.push((String::new(), e.why)),
        }
    }
    let mut d = large;
    for (sizes, why) in tried.iter().filter(|t| !t.0.is_empty()).rev().take(2) {
        d = d.with_note(format!("{sizes}: {why}"));
    }
    Err(with(d, &g.findings.sources))
}

type Class = (crate::ir::CollectiveKind, Vec<String>, crate::ir::Phase, String, String);

/// The collectives of the training step, alike ones once.
fn exchanged(g: &Graphs) -> Outcome<Vec<Class>> {
    let program = sharding::train(g)?;
    let comm = Comm::of("", Vec::new(), "train", Some((&program, &g.findings.sources)));
    let mut out: Vec<Class> = Vec::new();
    for class in comm.collectives.iter().map(|e| e.class()) {
        if !out.contains(&class) {
            out.push(class);
        }
    }
    Ok(out)
}

/// Dims that the main file defines or imports whose sizes are written as numbers.
fn dims(program: &Program, sources: &SourceMap) -> Vec<(String, usize)> {
    let number = |d: &DimDef| match &d.value {
        DimValue::Size(e) => sources.text(e.span).trim().replace('_', "").parse::<usize>().ok(),
        DimValue::Group(_) => None,
    };
    let names = program.module(MAIN).names.iter();
    let own = names.filter_map(|(name, b)| match b.entity {
        Entity::Dim(at) => Some((name.clone(), number(program.dim(at))?)),
        _ => None,
    });
    own.collect()
}

/// The ranks of an axis in place of so many. Of three a size may be no multiple that is one of two.
fn few(ranks: usize) -> usize {
    if ranks.is_multiple_of(2) { 2 } else { ranks.min(3) }
}

/// The smaller size of a dim, at least `least`; none where it stays.
fn resized(
    g: &Graphs,
    s: &Sharding,
    name: &str,
    written: usize,
    uncut: usize,
    each: usize,
    least: usize,
) -> Option<usize> {
    let uncut = uncut.max(least);
    let train = &g.train;
    let id = train.dims.iter().position(|d| d.name == name).map(|i| DimId(i as u32));
    let used = |d: &DimId| train.values.iter().any(|v| v.dims.contains(d));
    // Samples are counted in microbatches, where there are any.
    let divided = id.is_some_and(|d| stage::part_of(train, d).is_some());
    let Some(d) = id.filter(|d| divided || used(d)) else {
        let written = id.map_or(written, |d| train.size(d));
        // A loop of the source; of stages, a turn for each of them.
        let stages = s.plan.pipeline.as_ref().map_or(1, |p| p.schedule.chunks().unwrap_or(1) as usize);
        let of_axis = |p: &crate::elaborate::plan::Pipeline| s.plan.mesh[p.axis].size as usize;
        let ranks = s.plan.pipeline.as_ref().map_or(1, of_axis);
        let left = usize::from(!written.is_multiple_of(ranks * stages));
        let turns = (few(ranks) * stages + left).max(2);
        return (written > turns).then_some(turns);
    };
    let n = train.size(d);
    let pins = s.train.pins.iter().filter(|p| p.dim == d && !p.entries.is_empty());
    let atoms: Vec<crate::mesh::Atom> = pins.flat_map(|p| p.entries.iter().map(|e| e.atom)).collect();
    let zero = s.train.zero.iter().flat_map(|z| z.atoms.iter().copied());
    let group = |atoms: &[crate::mesh::Atom]| {
        let mut all: Vec<_> = atoms.to_vec();
        all.sort_unstable();
        all.dedup();
        let old: usize = all.iter().map(|a| s.mesh().size(*a)).product();
        let new: usize = all.iter().map(|a| few(s.mesh().size(*a))).product();
        (old, new)
    };
    let new = if atoms.is_empty() {
        // Storage may cut it.
        let (old, few) = group(&zero.collect::<Vec<_>>());
        if n <= uncut {
            n
        } else if n.is_multiple_of(old) {
            if uncut.is_multiple_of(few) { uncut } else { uncut * few }
        } else {
            uncut + usize::from(uncut.is_multiple_of(few))
        }
    } else {
        let (old, few) = group(&atoms);
        let (q, r) = (n / old, n % old);
        let batch = divided || train.inputs.first().and_then(|i| i.dims.first()) == Some(&d);
        let turns = if batch { s.plan.microbatches as usize } else { 1 };
        // More than a rank had, at last: other dims may be fractions of this one.
        let most = if each < MORE { q } else { usize::MAX };
        let real = if q == 0 { 0 } else { each.min(most) * few };
        let real = real.max(least.next_multiple_of(few));
        let whole = if turns > 1 { real.next_multiple_of(few * turns) } else { real };
        whole + usize::from(r > 0)
    };
    (new < n).then_some(new)
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
