//! A program's train step under a plan, on given data: what all ranks hold together, by the interpreter and on the executor.

use crate::plans;
use crate::support;
use partita::driver::verify::{part, places};
use partita::driver::{Options, sharding};
use partita::interp::{self, Env, Tensor};
use partita::ir::{CollectiveKind, DimId, Graph, Op, OutputKind};
use partita::runtime::exec::RunArgs;
use partita::types::DType;
use std::collections::BTreeMap;

/// What a step gives, by name: loss terms, metrics, new parameters and states; all of them wholes.
pub type Results = BTreeMap<String, Vec<f64>>;

/// A program's train step on every rank.
pub struct Spread {
    pub graph: Graph,
    pub envs: Vec<Env>,
    /// The same on one device.
    one: Graph,
    whole: Env,
}

fn sizes(g: &Graph, dims: &[DimId]) -> Vec<usize> {
    dims.iter().map(|d| g.size(*d)).collect()
}

fn zeros(g: &Graph) -> Env {
    Env {
        seed: 5,
        params: g.params.iter().map(|p| Tensor::filled(p.dtype, sizes(g, &p.dims), 0.0)).collect(),
        states: g.states.iter().map(|s| Tensor::filled(s.dtype, sizes(g, &s.dims), 0.0)).collect(),
        ..Env::default()
    }
}

/// Values of outputs take their places.
fn settle(graph: &Graph, of: &Graph, env: &mut Env, values: &[Tensor]) {
    for (o, v) in graph.outputs.iter().zip(values) {
        match o.kind {
            OutputKind::Param(p) | OutputKind::InitParam(p) => {
                let at = of.params.iter().position(|q| q.path == graph.params[p.index()].path);
                env.params[at.expect("a parameter")] = v.clone();
            }
            OutputKind::State(s) | OutputKind::InitState(s) => {
                let at = of.states.iter().position(|q| q.path == graph.states[s.index()].path);
                env.states[at.expect("a state")] = v.clone();
            }
            _ => {}
        }
    }
}

/// Compiles a program with a plan, on one device where that has no ranks. Initial values are computed by each rank.
pub fn spread(source: &str, plan: &str, precision: DType, inputs: &[(&str, Vec<f64>)]) -> Spread {
    let (world, options) = plans::planned(source, plan);
    let g = plans::graphs(&(world, Options { precision: Some(precision), ..options }), plan);
    let p = plans::sound(plan, sharding::programs(&g));
    let (graph, start) = match p {
        Some(p) => (p.train.graph, p.init.graph),
        None => (g.train.clone(), g.init.clone()),
    };
    let one = g.train;
    let mut whole = zeros(&one);
    settle(&g.init, &one, &mut whole, &interp::run(&g.init, &zeros(&g.init)).expect("initial values"));
    for i in &one.inputs {
        let (_, data) = inputs.iter().find(|x| x.0 == i.name).unwrap_or_else(|| panic!("input {}", i.name));
        whole.inputs.push(Tensor::new(i.dtype, sizes(&one, &i.dims), data.clone()));
    }
    let of = |rank: usize| Env {
        rank,
        inputs: graph.inputs.iter().zip(&whole.inputs).map(|(i, t)| part(&graph, &i.dims, t, rank)).collect(),
        ..zeros(&graph)
    };
    let mut envs: Vec<Env> = (0..graph.mesh.ranks()).map(of).collect();
    let init: Vec<Env> = envs.iter().map(|e| Env { rank: e.rank, ..zeros(&start) }).collect();
    for (env, values) in envs.iter_mut().zip(interp::run_ranks(&start, &init).expect("initial values")) {
        settle(&start, &graph, env, &values);
    }
    Spread { graph, envs, one, whole }
}

fn dims_of(g: &Graph, k: usize) -> &[DimId] {
    match g.outputs[k].kind {
        OutputKind::Param(p) | OutputKind::InitParam(p) => &g.params[p.index()].dims,
        OutputKind::State(s) | OutputKind::InitState(s) => &g.states[s.index()].dims,
        _ => &g.value(g.outputs[k].value).dims,
    }
}

fn name(g: &Graph, k: usize) -> String {
    let o = &g.outputs[k];
    match o.kind {
        OutputKind::Param(_) => format!("param {}", o.name),
        OutputKind::State(_) => format!("state {}", o.name),
        _ => o.name.clone(),
    }
}

impl Spread {
    /// What ranks hold, put together. Ranks that hold the same place have the same there, and some rank holds each.
    fn wholes(&self, ranks: &[Vec<Tensor>]) -> Results {
        let g = &self.graph;
        let mut out = Results::new();
        for k in 0..g.outputs.len() {
            let dims = dims_of(g, k);
            let count: usize = dims.iter().map(|d| g.extent(*d)).product();
            let mut whole: Vec<Option<f64>> = vec![None; count];
            for (rank, values) in ranks.iter().enumerate() {
                for (at, x) in places(g, dims, rank).into_iter().zip(&values[k].data) {
                    let Some(at) = at else { continue };
                    let held = *whole[at].get_or_insert(*x);
                    assert!(
                        held.to_bits() == x.to_bits() || (held.is_nan() && x.is_nan()),
                        "{} at {at}: {held} on one rank, {x} on rank {rank}",
                        name(g, k)
                    );
                }
            }
            let all = whole.into_iter().enumerate();
            let data = all.map(|(i, x)| x.unwrap_or_else(|| panic!("nobody holds {} at {i}", name(g, k))));
            out.insert(name(g, k), data.collect());
        }
        out
    }

    pub fn interpreted(&self) -> Results {
        self.wholes(&interp::run_ranks(&self.graph, &self.envs).unwrap_or_else(|e| panic!("{e}")))
    }

    pub fn compiled(&self) -> Results {
        let mut all = support::ranks(&self.graph, 2);
        support::feed(&all, &self.envs);
        let Env { seed, step, .. } = self.envs[0];
        let args = RunArgs { seed, step, position: 0, ..RunArgs::default() };
        support::measured_run(&mut all, 0, args, seed % 2 == 1).unwrap_or_else(|e| panic!("{e}"));
        self.wholes(&support::results(&all, &self.graph))
    }

    /// The same step on one device.
    pub fn alone(&self) -> Results {
        let values = interp::run(&self.one, &self.whole).unwrap_or_else(|e| panic!("{e}"));
        values.into_iter().enumerate().map(|(k, t)| (name(&self.one, k), t.data)).collect()
    }

    /// A parameter before the step.
    pub fn before(&self, path: &str) -> Vec<f64> {
        let at = self.one.params.iter().position(|p| p.path == path).expect("a parameter");
        self.whole.params[at].data.clone()
    }

    /// A state before the step.
    pub fn state(&self, path: &str) -> Vec<f64> {
        let at = self.one.states.iter().position(|p| p.path == path).expect("a state");
        self.whole.states[at].data.clone()
    }

    /// A parameter before the step, of what ranks hold.
    pub fn held(&self, path: &str) -> Vec<f64> {
        let at = self.graph.params.iter().position(|p| p.path == path).expect("a parameter");
        let dims = &self.graph.params[at].dims;
        let mut whole = vec![f64::NAN; self.whole.params[at].data.len()];
        for env in &self.envs {
            for (at, x) in places(&self.graph, dims, env.rank).into_iter().zip(&env.params[at].data) {
                if let Some(at) = at {
                    whole[at] = *x;
                }
            }
        }
        whole
    }

    /// What stops the executor.
    pub fn failure(&self) -> String {
        let mut all = support::ranks(&self.graph, 2);
        support::feed(&all, &self.envs);
        all.run(0, RunArgs::default()).expect_err("it stops").to_string()
    }

    /// Takes the step, on all ranks and on one device.
    pub fn advance(&mut self) {
        let values = interp::run(&self.one, &self.whole).unwrap_or_else(|e| panic!("{e}"));
        settle(&self.one, &self.one, &mut self.whole, &values);
        let all = interp::run_ranks(&self.graph, &self.envs).unwrap_or_else(|e| panic!("{e}"));
        for (env, values) in self.envs.iter_mut().zip(&all) {
            settle(&self.graph, &self.graph, env, values);
            env.step += 1;
        }
        self.whole.step += 1;
    }

    /// Other data for the next step.
    pub fn feed(&mut self, input: &str, data: &[f64]) {
        let at = self.one.inputs.iter().position(|i| i.name == input).expect("an input");
        self.whole.inputs[at].data.copy_from_slice(data);
        for env in &mut self.envs {
            env.inputs[at] = part(&self.graph, &self.graph.inputs[at].dims, &self.whole.inputs[at], env.rank);
        }
    }

    /// A result, by the interpreter and on the executor.
    #[track_caller]
    pub fn expect(&self, name: &str, want: &[f64], tolerance: f64) {
        for (engine, results) in [("interpreter", self.interpreted()), ("CPU", self.compiled())] {
            let found = results.get(name).unwrap_or_else(|| panic!("no {name} among {:?}", results.keys()));
            assert_eq!(found.len(), want.len(), "{engine}: {name} is {found:?}");
            for (f, w) in found.iter().zip(want) {
                let off = (f - w).abs() / w.abs().max(1.0);
                assert!(f == w || off <= tolerance, "{engine}: {name} is {found:?}, not {want:?}");
            }
        }
    }

    /// All results are those of one device, on both engines.
    #[track_caller]
    pub fn as_alone(&self, tolerance: f64) {
        let wanted = self.alone();
        for (engine, results) in [("interpreter", self.interpreted()), ("CPU", self.compiled())] {
            for (name, want) in &wanted {
                let found = &results[name];
                let scale = want.iter().filter(|x| x.is_finite()).fold(1e-4f64, |m, x| m.max(x.abs()));
                for (i, (f, w)) in found.iter().zip(want).enumerate() {
                    let same = f == w || (f.is_nan() && w.is_nan()) || (f - w).abs() <= tolerance * scale;
                    assert!(same, "{engine}: {name} at {i} is {f}, on one device {w}");
                }
            }
        }
    }

    /// Kinds, axes and bytes of what arrives, of all that a step exchanges: `all_reduce tp`.
    pub fn exchanged(&self) -> Vec<String> {
        let g = &self.graph;
        let ops = g.ops.iter().filter_map(|o| match &o.op {
            Op::Collective(c) if c.kind != CollectiveKind::Slice && !c.atoms.is_empty() => {
                let axes: Vec<String> = c.atoms.iter().map(|a| g.mesh.name(*a)).collect();
                let dims: Vec<&str> = g.value(o.results[0]).dims.iter().map(|d| g.dim(*d).name.as_str()).collect();
                Some(format!("{} {} [{}]", c.kind.name(), axes.join(","), dims.join(", ")))
            }
            _ => None,
        });
        ops.collect()
    }
}
