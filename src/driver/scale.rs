//! What `verify` runs: the options' plan at its own sizes, where that is little enough to be interpreted.

use super::findings::{Findings, Outcome};
use super::options::Options;
use super::pipeline::{self, Graphs, with};
use super::{plan, sharding, verify};
use crate::diag::Diagnostic;
use crate::ir::{BlockId, ENTRY, Graph, Op};
use crate::source::World;
use crate::types::DType;

/// Most ranks that are emulated, and most arithmetic of a step that is interpreted, unless it is asked for.
const MOST_RANKS: usize = 16;
const MOST_FLOPS: f64 = 2e9;

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
    let g = pipeline::graphs(&options, world)?;
    let name = options.plan.clone().unwrap_or_default();
    let Some(sharding) = &g.sharding else { return Ok(alone(g, name, steps)) };
    if !full {
        small_enough(&g, sharding.mesh().ranks()).map_err(|d| with(d, &g.findings.sources))?;
    }
    let programs = sharding::programs(&g)?.expect("a plan of several ranks has programs");
    let report = verify::compare(&g, &programs, steps).map_err(|why| super::passes::internal("verify", &why))?;
    let place = report.differs.as_ref().and_then(|d| d.span).map(|s| g.findings.sources.place(s));
    let mut findings = g.findings.clone();
    programs.train.warnings.iter().for_each(|d| findings.sink.push(d.clone()));
    let mesh = sharding.mesh().to_string();
    Ok(Verified { plan: name, mesh, sizes: sizes(&g.train), notes: Vec::new(), report, place, findings })
}

/// A plan of one rank is what it is compared with.
fn alone(g: Graphs, plan: String, steps: u64) -> Verified {
    let report = verify::Report { ranks: 1, steps, compared: 0, largest: 0.0, differs: None };
    let notes = vec!["one rank: there is nothing to compare".to_string()];
    let mesh = "no mesh of several ranks".to_string();
    Verified { plan, mesh, sizes: Vec::new(), notes, report, place: None, findings: g.findings }
}

/// An error where a program would take hours.
fn small_enough(g: &Graphs, ranks: usize) -> Result<(), Diagnostic> {
    let flops = flops(&g.train, ENTRY);
    if ranks <= MOST_RANKS && flops <= MOST_FLOPS {
        return Ok(());
    }
    let message = if ranks > MOST_RANKS {
        format!("{ranks} ranks are more than the {MOST_RANKS} that are emulated")
    } else {
        format!("a step of {:.1} GFLOP is more than the {} that are interpreted", flops / 1e9, MOST_FLOPS / 1e9)
    };
    Err(Diagnostic::error("E0505", message)
        .with_note("a plan is verified by interpreting the program twice: whole, and on every rank")
        .help("make dims smaller by `--set NAME=N` and axes by `--mesh AXIS=N`, or run it as it is by `--full`"))
}

/// Arithmetic of a block, roughly: of products what they multiply and add, of all else its elements.
pub fn flops(g: &Graph, block: BlockId) -> f64 {
    let size = |dims: &[crate::ir::DimId]| dims.iter().map(|d| g.size(*d) as f64).product::<f64>();
    let one = |id: &crate::ir::OpId| {
        let op = g.op(*id);
        let results: f64 = op.results.iter().map(|r| size(&g.value(*r).dims)).sum();
        match &op.op {
            Op::Loop { body, dim, .. } => g.size(*dim) as f64 * flops(g, *body),
            Op::Dot { contract } => 2.0 * results * size(contract),
            Op::Attention(a) | Op::AttentionGrad(a) => {
                let work = 2.0 * size(&g.value(op.args[0]).dims) * g.size(a.key) as f64;
                if matches!(op.op, Op::Attention(_)) { 2.0 * work } else { 5.0 * work }
            }
            _ => op.args.iter().map(|a| size(&g.value(*a).dims)).fold(results, f64::max),
        }
    };
    g.block(block).ops.iter().map(one).sum()
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
