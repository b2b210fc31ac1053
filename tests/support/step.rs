//! A program's train step, evaluated by the interpreter and on the CPU backend.
#![allow(dead_code, reason = "each test binary uses a part")]

#[path = "backend.rs"]
pub mod backend;

use partita::driver::{Options, pipeline};
use partita::interp::{self, Env, Tensor};
use partita::ir::{DimId, Graph, OutputKind};
use partita::runtime::exec::ExecOptions;
use partita::source::Disk;
use partita::types::DType;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A program's train step and what it is run on.
pub struct Step {
    pub graph: Graph,
    pub env: Env,
}

/// What a step gives, by name: loss terms, metrics, new parameters and states.
pub type Results = BTreeMap<String, Vec<f64>>;

fn sizes(g: &Graph, dims: &[DimId]) -> Vec<usize> {
    dims.iter().map(|d| g.size(*d)).collect()
}

/// Compiles a program's train item. `microbatches`: by a plan.
pub fn step(source: &str, microbatches: usize, precision: DType, inputs: &[(&str, Vec<f64>)]) -> Step {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("case.pta");
    std::fs::write(&path, format!("{source}\nplan micro {{ microbatches {microbatches} }}\n")).unwrap();
    let mut options = Options::of(&path);
    options.precision = Some(precision);
    if microbatches > 1 {
        options.plan = Some("micro".into());
    }
    let g = pipeline::graphs(&options, &Disk)
        .unwrap_or_else(|f| panic!("{}", partita::diag::render::text(&f.sink, &f.sources, false)));
    let graph = g.train;
    let mut env = Env { seed: 5, ..Env::default() };
    env.params = graph.params.iter().map(|p| Tensor::filled(p.dtype, sizes(&graph, &p.dims), 0.0)).collect();
    env.states = graph.states.iter().map(|s| Tensor::filled(s.dtype, sizes(&graph, &s.dims), 0.0)).collect();
    let init = Env { seed: 5, params: env.params.clone(), states: env.states.clone(), ..Env::default() };
    for (o, t) in g.init.outputs.iter().zip(interp::run(&g.init, &init).unwrap()) {
        match o.kind {
            OutputKind::InitParam(p) => {
                let at = graph.params.iter().position(|q| q.path == g.init.params[p.index()].path);
                env.params[at.unwrap()] = t;
            }
            OutputKind::InitState(s) => {
                let at = graph.states.iter().position(|q| q.path == g.init.states[s.index()].path);
                env.states[at.unwrap()] = t;
            }
            _ => {}
        }
    }
    for i in &graph.inputs {
        let (_, data) = inputs.iter().find(|x| x.0 == i.name).unwrap_or_else(|| panic!("input {}", i.name));
        env.inputs.push(Tensor::new(i.dtype, sizes(&graph, &i.dims), data.clone()));
    }
    Step { graph, env }
}

pub fn named(g: &Graph, values: Vec<Tensor>) -> Results {
    let mut out = Results::new();
    for (o, t) in g.outputs.iter().zip(values) {
        let name = match o.kind {
            OutputKind::Param(_) => format!("param {}", o.name),
            OutputKind::State(_) => format!("state {}", o.name),
            _ => o.name.clone(),
        };
        out.insert(name, t.data);
    }
    out
}

impl Step {
    pub fn interpreted(&self) -> Results {
        named(&self.graph, interp::run(&self.graph, &self.env).unwrap())
    }

    pub fn compiled(&self) -> Results {
        let program = Arc::new(backend::compile(&self.graph, &partita::kernel::Options::default()));
        let options = ExecOptions { threads: 2, ..ExecOptions::default() };
        let mut exec = backend::executor(&program, &self.env, options);
        named(&self.graph, backend::run(&mut exec, &self.graph, &self.env).unwrap())
    }

    /// Checks a result on both.
    pub fn expect(&self, name: &str, want: &[f64], tolerance: f64) {
        for (engine, results) in [("interpreter", self.interpreted()), ("CPU", self.compiled())] {
            let found = results.get(name).unwrap_or_else(|| panic!("no {name} among {:?}", results.keys()));
            assert_eq!(found.len(), want.len(), "{engine}: {name} is {found:?}");
            for (f, w) in found.iter().zip(want) {
                assert!((f - w).abs() <= tolerance * w.abs().max(1.0), "{engine}: {name} is {found:?}, not {want:?}");
            }
        }
    }
}
