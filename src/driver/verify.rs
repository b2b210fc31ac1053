//! Translation validation: the program of a rank, run on all ranks of an emulated mesh, against the whole program on one device.
//!
//! Both are interpreted, step by step, from the same initial values and data. What is compared: losses and metrics, and every
//! parameter and state after each step (which hold every gradient's effect). A program that is cut into stages is run both before and
//! after that.

use super::emulate::{self, Onward};
use super::findings::{Findings, Outcome};
use super::noise::{Noise, Of, due};
use super::options::Options;
use super::passes::internal;
use super::pipeline::{self, Graphs, with};
use super::sharding::{self, Programs};
use super::stages::{self, Staged};
use crate::diag::Diagnostic;
use crate::interp::{self, Env, InterpError, OutOfRange, Tensor};
use crate::ir::{DimId, Graph, InputId, Output, OutputKind};
use crate::kernel;
use crate::runtime::RuntimeError;
use crate::shard::Sharded;
use crate::source::{Span, World};
use crate::types::DType;
use crate::types::rng;

/// What a verification found.
#[derive(Clone, PartialEq, Debug)]
pub struct Report {
    pub ranks: usize,
    pub steps: u64,
    /// How many arrays were compared, over all steps.
    pub compared: usize,
    /// Largest difference, relative to the largest element of its array; of arrays that noise moves no further.
    pub largest: f64,
    /// Arrays that noise in the last bits moves further than [`TOLERANCE`], and the most that they differ by.
    pub noisy: Vec<(String, f64)>,
    pub differs: Option<Difference>,
    /// Only when the program was cut into stages.
    pub in_stages: bool,
}

/// The first array that differs.
#[derive(Clone, PartialEq, Debug)]
pub struct Difference {
    pub step: u64,
    pub name: String,
    pub rank: usize,
    pub coordinate: Vec<usize>,
    pub one: f64,
    pub many: f64,
    /// Where it is declared.
    pub span: Option<Span>,
}

/// Most that is taken for a difference of grouping alone.
pub const TOLERANCE: f64 = 1e-9;

/// Arrays whose elements are all smaller count as if the largest were this: gradients that are zero but for rounding.
const FLOOR: f64 = 1e-4;

/// Why programs could not be run to be compared.
#[derive(Clone, PartialEq, Debug)]
pub struct Stopped {
    pub why: String,
    /// An index that a dim does not have.
    pub range: Option<OutOfRange>,
}

impl Stopped {
    /// A dim that is too small, and the size that it would have to have.
    pub fn needs(&self) -> Option<(String, usize)> {
        let at = self.range.as_ref()?;
        Some((at.dim.clone(), usize::try_from(at.index).ok()? + 1))
    }

    /// The same as a run says it; without an index it is our own mistake.
    pub fn findings(&self) -> Box<Findings> {
        match &self.range {
            Some(at) if at.ragged => RuntimeError::overfull(at.index, &at.dim, at.size).into(),
            Some(at) => RuntimeError::out_of_range(at.index, &at.dim, at.size).into(),
            None => internal("verify", &self.why),
        }
    }
}

impl std::fmt::Display for Stopped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.why)
    }
}

impl From<InterpError> for Stopped {
    fn from(e: InterpError) -> Stopped {
        let why = e.to_string();
        let range = match e {
            InterpError::Range(_, range) => Some(range),
            InterpError::Env(_) => None,
        };
        Stopped { why, range }
    }
}

/// Runs `steps` steps of the plan of the options in f64.
pub fn verify(options: &Options, world: &dyn World, steps: u64) -> Outcome<Report> {
    let options = Options { precision: Some(DType::F64), ..options.clone() };
    let g = pipeline::graphs(&options, world)?;
    let Some(programs) = sharding::programs(&g)? else {
        let d =
            Diagnostic::error("E0507", "nothing is spread over ranks").help("name a plan with a mesh: `--plan NAME`");
        return Err(with(d, &g.findings.sources));
    };
    let staged = stages::staged(&g, &programs, &kernel::Options::default())?;
    compare(&g, &programs, staged.as_ref(), steps).map_err(|e| e.findings())
}

/// Compares the programs with the graphs that they were made of; those of the stages too, where there are some.
pub fn compare(g: &Graphs, p: &Programs, staged: Option<&Staged>, steps: u64) -> Result<Report, Stopped> {
    let ranks = p.train.graph.mesh.ranks();
    let seed = g.recipe.seed;
    let zeros =
        |dtype: DType, dims: &[DimId]| Tensor::filled(dtype, dims.iter().map(|d| g.train.size(*d)).collect(), 0.0);
    // Types that the program gives are no matter here: their roundings would differ with the order of sums.
    let mut one = Env {
        seed,
        exact: true,
        params: g.train.params.iter().map(|p| zeros(p.dtype, &p.dims)).collect(),
        states: g.train.states.iter().map(|s| zeros(s.dtype, &s.dims)).collect(),
        ..Env::default()
    };
    let mut report =
        Report { ranks, steps, compared: 0, largest: 0.0, noisy: Vec::new(), differs: None, in_stages: false };
    let mut many: Vec<Env> = (0..ranks).map(|rank| Env { rank, ..part_of(&p.train.graph, &one, rank) }).collect();
    // Initial values, each in its own way.
    let init = Env { inputs: Vec::new(), ..one.clone() };
    let own = interp::run(&g.init, &on(&g.init, &g.train, &init))?;
    let envs: Vec<Env> = many.iter().map(|e| on(&p.init.graph, &p.train.graph, e)).collect();
    let theirs = interp::run_ranks(&p.init.graph, &envs)?;
    settle(&g.init, &g.train, &mut one, &own);
    for (env, values) in many.iter_mut().zip(&theirs) {
        settle(&p.init.graph, &p.train.graph, env, values);
    }
    if check(&mut report, 0, &p.init.graph, &g.init.outputs, &own, &theirs, &mut |_, _| Ok(0.0))? {
        return Ok(report);
    }
    let start = one.clone();
    let mut cut = staged.map(|s| (s, many.clone(), Onward::default()));
    let mut noise: Option<Noise> = None;
    for step in 0..steps {
        one.step = step;
        let fed =
            |step: u64| -> Vec<Tensor> { (0..g.train.inputs.len()).map(|i| data(&g.train, i, seed, step)).collect() };
        let parts = |whole: &[Tensor], rank: usize| -> Vec<Tensor> {
            let inputs = p.train.graph.inputs.iter().zip(whole);
            inputs.map(|(i, whole)| part(&p.train.graph, &i.dims, whole, rank)).collect()
        };
        one.inputs = fed(step);
        for (rank, env) in many.iter_mut().enumerate() {
            (env.step, env.inputs) = (step, parts(&one.inputs, rank));
        }
        let own = interp::run(&g.train, &one)?;
        let theirs = interp::run_ranks(&p.train.graph, &many)?;
        let mut allowed = |k: usize, own: &Tensor| {
            noise.get_or_insert_with(|| Noise::new(&start)).of(g, (Of::Step, step + 1), k, own)
        };
        if check(&mut report, step + 1, &p.train.graph, &g.train.outputs, &own, &theirs, &mut allowed)? {
            return Ok(report);
        }
        if let Some((s, envs, onward)) = &mut cut {
            for (env, whole) in envs.iter_mut().zip(&many) {
                (env.step, env.inputs) = (step, whole.inputs.clone());
            }
            if s.train.onward.is_some() && step + 1 < steps {
                let next = fed(step + 1);
                onward.next = Some((0..ranks).map(|rank| parts(&next, rank)).collect());
            }
            let theirs = emulate::run(&s.train, &s.atoms, envs, onward)?;
            if check(&mut report, step + 1, &s.train.graph, &g.train.outputs, &own, &theirs, &mut allowed)? {
                report.in_stages = true;
                return Ok(report);
            }
        }
        settle(&g.train, &g.train, &mut one, &own);
        for (env, values) in many.iter_mut().zip(&theirs) {
            settle(&p.train.graph, &p.train.graph, env, values);
        }
        let (Some(outer), Some(Sharded { graph: spread, .. })) = (due(g, step), &p.outer) else { continue };
        let own = interp::run(outer, &on(outer, &g.train, &one))?;
        let envs: Vec<Env> = many.iter().map(|e| on(spread, &p.train.graph, e)).collect();
        let theirs = interp::run_ranks(spread, &envs)?;
        let mut allowed = |k: usize, own: &Tensor| {
            noise.get_or_insert_with(|| Noise::new(&start)).of(g, (Of::Outer, step + 1), k, own)
        };
        if check(&mut report, step + 1, spread, &outer.outputs, &own, &theirs, &mut allowed)? {
            return Ok(report);
        }
        settle(outer, &g.train, &mut one, &own);
        let cut = cut.iter_mut().flat_map(|(_, envs, _)| envs.iter_mut().zip(&theirs));
        for (env, values) in many.iter_mut().zip(&theirs).chain(cut) {
            settle(spread, &p.train.graph, env, values);
        }
    }
    Ok(report)
}

/// An environment of one graph for another one with some of its parameters and states.
fn on(graph: &Graph, of: &Graph, env: &Env) -> Env {
    let find = |path: &str| of.params.iter().position(|p| p.path == path);
    let params = graph.params.iter().filter_map(|p| env.params.get(find(&p.path)?).cloned()).collect();
    let find = |path: &str| of.states.iter().position(|s| s.path == path);
    let states = graph.states.iter().filter_map(|s| env.states.get(find(&s.path)?).cloned()).collect();
    Env { params, states, inputs: Vec::new(), ..env.clone() }
}

/// New parameters and states take their places.
pub(super) fn settle(graph: &Graph, of: &Graph, env: &mut Env, values: &[Tensor]) {
    for (o, v) in graph.outputs.iter().zip(values) {
        match o.kind {
            OutputKind::Param(p) | OutputKind::InitParam(p) => {
                let path = &graph.params[p.index()].path;
                if let Some(i) = of.params.iter().position(|p| p.path == *path) {
                    env.params[i] = v.clone();
                }
            }
            OutputKind::State(s) | OutputKind::InitState(s) => {
                let path = &graph.states[s.index()].path;
                if let Some(i) = of.states.iter().position(|s| s.path == *path) {
                    env.states[i] = v.clone();
                }
            }
            OutputKind::Loss | OutputKind::Metric | OutputKind::Value => {}
        }
    }
}

/// Numbers for an input that depend on its name, the seed and the step alone.
pub(super) fn data(g: &Graph, input: usize, seed: u64, step: u64) -> Tensor {
    let i = &g.inputs[input];
    let shape: Vec<usize> = i.dims.iter().map(|d| g.size(*d)).collect();
    let key = rng::key(seed, step, 0x1e57 + input as u64, 0);
    let count: usize = shape.iter().product();
    let bound = super::data::bound(g, InputId(input as u32)).map_or(2, |b| b.size.max(1));
    let one = |k: usize| match i.dtype {
        DType::I32 => f64::from(rng::draw_int(bound as u32, key, k as u64)),
        DType::Bool => f64::from(u8::from(rng::unit(key, k as u64) < 0.5)),
        _ => f64::from(rng::draw(rng::Dist::Normal { std: 1.0 }, key, k as u64)),
    };
    Tensor::new(i.dtype, shape, (0..count).map(one).collect())
}

/// Every rank's parts of parameters and states.
fn part_of(graph: &Graph, whole: &Env, rank: usize) -> Env {
    let params = graph.params.iter().zip(&whole.params).map(|(p, t)| part(graph, &p.dims, t, rank));
    let states = graph.states.iter().zip(&whole.states).map(|(s, t)| part(graph, &s.dims, t, rank));
    Env { params: params.collect(), states: states.collect(), inputs: Vec::new(), ..whole.clone() }
}

/// For each place in a rank's part the flat index in the whole.
pub fn places(g: &Graph, dims: &[DimId], rank: usize) -> Vec<Option<usize>> {
    let mut all: Vec<Option<usize>> = vec![Some(0)];
    for d in dims {
        let (extent, own) = (g.extent(*d), g.places(*d, rank));
        all = all.iter().flat_map(|base| own.iter().map(move |i| Some((*base)? * extent + (*i)?))).collect();
    }
    all
}

/// What a rank holds of an array; 0 where nothing is real.
pub fn part(g: &Graph, dims: &[DimId], whole: &Tensor, rank: usize) -> Tensor {
    let data = places(g, dims, rank).into_iter().map(|p| p.map_or(0.0, |p| whole.data[p])).collect();
    Tensor { dtype: whole.dtype, shape: dims.iter().map(|d| g.size(*d)).collect(), data }
}

/// Compares the outputs of all ranks with those of one device; true at the first difference. `allowed`: what an output may differ by where it
/// differs at all.
fn check(
    report: &mut Report,
    step: u64,
    graph: &Graph,
    outputs: &[Output],
    one: &[Tensor],
    many: &[Vec<Tensor>],
    allowed: &mut dyn FnMut(usize, &Tensor) -> Result<f64, Stopped>,
) -> Result<bool, Stopped> {
    for (k, (o, whole)) in outputs.iter().zip(one).enumerate() {
        let scale = whole.data.iter().filter(|x| x.is_finite()).fold(FLOOR, |m, x| m.max(x.abs()));
        let dims: &[DimId] = match graph.outputs[k].kind {
            OutputKind::Param(p) | OutputKind::InitParam(p) => &graph.params[p.index()].dims,
            OutputKind::State(s) | OutputKind::InitState(s) => &graph.states[s.index()].dims,
            OutputKind::Loss | OutputKind::Metric | OutputKind::Value => &graph.value(graph.outputs[k].value).dims,
        };
        report.compared += 1;
        let mut bound = TOLERANCE;
        for (rank, values) in many.iter().enumerate() {
            for (at, x) in places(graph, dims, rank).into_iter().zip(&values[k].data) {
                let Some(at) = at else { continue };
                let y = whole.data[at];
                let same = x.to_bits() == y.to_bits() || (x.is_nan() && y.is_nan());
                let off = if same { 0.0 } else { (x - y).abs() / scale };
                if off.is_finite() && off > bound && bound == TOLERANCE {
                    bound = bound.max(allowed(k, whole)? / scale);
                }
                if off <= TOLERANCE {
                    report.largest = report.largest.max(off);
                    continue;
                }
                let name = o.name.clone();
                if off <= bound {
                    match report.noisy.iter_mut().find(|n| n.0 == name) {
                        Some(n) => n.1 = n.1.max(off),
                        None => report.noisy.push((name, off)),
                    }
                    continue;
                }
                let mut coordinate = Vec::new();
                let mut rest = at;
                for d in dims.iter().rev() {
                    coordinate.push(rest % graph.extent(*d));
                    rest /= graph.extent(*d);
                }
                coordinate.reverse();
                let span = match graph.outputs[k].kind {
                    OutputKind::Param(p) | OutputKind::InitParam(p) => graph.params[p.index()].span,
                    OutputKind::State(s) | OutputKind::InitState(s) => graph.states[s.index()].span,
                    OutputKind::Loss | OutputKind::Metric | OutputKind::Value => o.span,
                };
                report.differs = Some(Difference { step, name, rank, coordinate, one: y, many: *x, span });
                return Ok(true);
            }
        }
    }
    Ok(false)
}
