//! Evaluates a small program by the reference interpreter: what its outputs, losses and metrics are.
#![allow(dead_code, reason = "each test binary uses a part")]

use partita::diag::render;
use partita::driver::{self, Request};
use partita::elaborate::{Elab, Mode};
use partita::interp::{self, Env, Tensor};
use partita::ir::OutputKind;
use partita::source::Memory;
use partita::types::DType;
use std::collections::BTreeMap;

/// A value with the names of its dims in the order of its elements.
pub struct Named {
    pub dims: Vec<String>,
    pub sizes: Vec<usize>,
    pub data: Vec<f64>,
}

impl Named {
    /// The element at these indices, by name of dim (`key` also finds `f.key`, and `f.key#2`, which is of another size).
    pub fn at(&self, place: &[(&str, usize)]) -> f64 {
        let mut index = 0;
        for (dim, size) in self.dims.iter().zip(&self.sizes) {
            let own = dim.rsplit('.').next().unwrap_or(dim);
            let own = own.split('#').next().unwrap_or(own);
            let (_, i) = place.iter().find(|(name, _)| *name == own).unwrap_or_else(|| panic!("no index for {dim}"));
            index = index * size + i;
        }
        self.data[index]
    }
}

/// What a program is run at, beside its inputs.
pub struct Setting<'a> {
    pub mode: Mode,
    pub step: u64,
    /// Parameters are [`noise`] in the place of their initial values, many of which are 0 or 1 and show nothing.
    pub noisy: bool,
    /// Model state that is not as it begins: the end of its path, and its elements.
    pub states: &'a [(&'a str, Vec<f64>)],
}

impl Default for Setting<'_> {
    fn default() -> Self {
        Setting { mode: Mode::EVAL, step: 0, noisy: false, states: &[] }
    }
}

/// Elaborates the only model of a text in one mode and runs it once. Inputs are by name, in declared order of axes;
/// parameters have their initial values.
pub fn run(text: &str, mode: Mode, inputs: &[(&str, Vec<f64>)]) -> BTreeMap<String, Named> {
    run_at(text, &Setting { mode, ..Setting::default() }, inputs)
}

pub fn run_at(text: &str, setting: &Setting, inputs: &[(&str, Vec<f64>)]) -> BTreeMap<String, Named> {
    let mut world = Memory::default();
    world.0.insert("main.pta".into(), text.to_string());
    let checked = driver::check::load(&Request { path: "main.pta".into(), ..Request::default() }, &world);
    assert!(!checked.sink.has_errors(), "{}", render::text(&checked.sink, &checked.sources, false));
    let model = checked.program.models()[0];
    let mut walk = Elab::new(&checked.program, checked.settings.clone(), setting.mode, DType::F64);
    walk.model(model);
    assert!(!walk.failed(), "{}", render::text(&walk.sink, &checked.sources, false));

    let mut env = Env { seed: 1, step: setting.step, ..Env::default() };
    let init = &walk.init.graph;
    let blank = |dtype: DType, dims: &[partita::ir::DimId]| {
        Tensor::filled(dtype, dims.iter().map(|d| init.dim(*d).size).collect(), 0.0)
    };
    let unset = Env {
        params: init.params.iter().map(|p| blank(p.dtype, &p.dims)).collect(),
        states: init.states.iter().map(|s| blank(s.dtype, &s.dims)).collect(),
        ..env.clone()
    };
    let started = interp::run(init, &unset).expect("initial values can be computed");
    for (output, value) in init.outputs.iter().zip(started) {
        match output.kind {
            OutputKind::InitParam(_) => env.params.push(value),
            OutputKind::InitState(_) => env.states.push(value),
            _ => {}
        }
    }
    let graph = &walk.b.graph;
    if setting.noisy {
        for (n, p) in env.params.iter_mut().enumerate() {
            p.data = noise(1000 + n as u32, p.data.len());
        }
    }
    for (path, data) in setting.states {
        let at = graph.states.iter().position(|s| s.path.ends_with(path)).expect("the model has this state");
        assert_eq!(env.states[at].data.len(), data.len());
        env.states[at].data.clone_from(data);
    }
    for input in &graph.inputs {
        let shape: Vec<usize> = input.dims.iter().map(|d| graph.dim(*d).size).collect();
        let (_, data) = inputs.iter().find(|(name, _)| *name == input.name).expect("every input is given");
        env.inputs.push(Tensor::new(input.dtype, shape, data.clone()));
    }
    env.exact = true;
    let values = interp::run(graph, &env).expect("the program can be evaluated");
    let mut found = BTreeMap::new();
    for (output, value) in graph.outputs.iter().zip(values) {
        let kept =
            matches!(output.kind, OutputKind::Loss | OutputKind::Metric | OutputKind::Value | OutputKind::State(_));
        if !kept {
            continue;
        }
        let dims: Vec<String> =
            graph.values[output.value.0 as usize].dims.iter().map(|d| graph.dim(*d).name.clone()).collect();
        found.insert(output.name.clone(), Named { dims, sizes: value.shape, data: value.data });
    }
    found
}

/// A spread of numbers without pattern, in [-1, 1).
pub fn noise(seed: u32, n: usize) -> Vec<f64> {
    (0..n as u32)
        .map(|i| {
            let mut x = i.wrapping_mul(0x9E37_79B9) ^ seed.wrapping_mul(0x85EB_CA6B);
            x ^= x >> 15;
            x = x.wrapping_mul(0x2C1B_3C6D);
            x ^= x >> 12;
            x = x.wrapping_mul(0x297A_2D39);
            x ^= x >> 15;
            f64::from(x) / f64::from(1u32 << 31) - 1.0
        })
        .collect()
}
