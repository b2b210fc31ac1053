//! Whole models in microbatches: their training steps against the same steps on the whole batch, in the interpreter and
//! on the CPU backend.

#[path = "support/backend.rs"]
mod backend;
#[path = "support/divided.rs"]
mod divided;

use divided::divided;
use partita::autodiff;
use partita::driver::{Request, check};
use partita::elaborate::{Elab, Mode};
use partita::interp::{self, Env, Tensor};
use partita::ir::{DimId, Graph, OutputKind, prune, verify};
use partita::kernel::Options;
use partita::runtime::exec::ExecOptions;
use partita::source::{Disk, Memory};
use partita::stage::accumulate;
use partita::syntax::ast::ItemKind;
use partita::types::DType;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The text of a golden model with so many slices of its batch.
fn in_slices(text: &str, slices: usize) -> String {
    let with = format!("    samples batch in {slices} slices\n    steps 20");
    assert!(text.contains("    steps 20"));
    text.replace("    steps 20", &with)
}

/// The train step of a golden model, its sample dim, and initial values with a batch of data.
fn step(model: &str, slices: usize, precision: DType) -> (Graph, DimId, Env) {
    step_with(model, slices, precision, &[])
}

fn step_with(model: &str, slices: usize, precision: DType, sets: &[(&str, &str)]) -> (Graph, DimId, Env) {
    let text = std::fs::read_to_string(format!("tests/golden_models/{model}.pta")).unwrap();
    let world = Memory(BTreeMap::from([("model.pta".into(), in_slices(&text, slices))]));
    let request = Request {
        path: "model.pta".into(),
        presets: vec!["tiny".into()],
        sets: sets.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect(),
    };
    let checked = check::load(&request, &world);
    let trains = checked.program.main_items(|k| match k {
        ItemKind::Train(t) => Some(t),
        _ => None,
    });
    let mut e = Elab::new(&checked.program, checked.settings.clone(), Mode::TRAIN, precision);
    let facts = e.train(trains[0], &partita::stage::slices, &|b, losses, params| {
        autodiff::gradients_of_params(b, losses, params)
    });
    assert!(!e.failed(), "{}", partita::diag::render::text(&e.sink, &checked.sources, false));
    let (mut graph, init) = (e.b.finish(), e.init.finish());
    graph.outputs.retain(|o| o.kind != OutputKind::Value);
    let sizes = |dims: &[DimId]| dims.iter().map(|d| graph.size(*d)).collect::<Vec<_>>();
    let mut env = Env { seed: 3, ..Env::default() };
    env.params = graph.params.iter().map(|p| Tensor::filled(p.dtype, sizes(&p.dims), 0.0)).collect();
    env.states = graph.states.iter().map(|s| Tensor::filled(s.dtype, sizes(&s.dims), 0.0)).collect();
    let values = interp::run(&init, &Env { seed: 3, ..env.clone() }).unwrap();
    for (o, t) in init.outputs.iter().zip(values) {
        match o.kind {
            OutputKind::InitParam(p) => env.params[p.index()] = t,
            OutputKind::InitState(s) => env.states[s.index()] = t,
            _ => {}
        }
    }
    for (k, input) in graph.inputs.iter().enumerate() {
        let n = graph.elements(&input.dims);
        let data = (0..n).map(|i| ((i * 7 + k * 3 + i * i) % 60) as f64).collect();
        env.inputs.push(Tensor::new(input.dtype, sizes(&input.dims), data));
    }
    (graph, facts.sample_dim.unwrap(), env)
}

fn near(name: &str, want: &Tensor, found: &Tensor, tolerance: f64) {
    assert_eq!((want.dtype, want.data.len()), (found.dtype, found.data.len()), "{name}");
    let scale = want.data.iter().fold(1.0f64, |m, x| m.max(x.abs()));
    for (a, b) in want.data.iter().zip(&found.data) {
        assert!((a - b).abs() <= tolerance * scale, "{name}: {b} instead of {a}");
    }
}

fn compare(model: &str, slices: usize, precision: DType, tolerance: f64) {
    let (whole, sample, env) = step(model, slices, precision);
    let want = interp::run(&prune::prune(&whole), &env).unwrap();
    for parts in [2, 4] {
        let cut = accumulate(&whole, sample, parts).unwrap_or_else(|e| panic!("{e:?}"));
        verify::verify(&cut).unwrap();
        let env = divided(&cut, &env);
        let found = interp::run(&cut, &env).unwrap();
        let program = Arc::new(backend::compile(&cut, &Options::default()));
        let options = ExecOptions { threads: 2, ..ExecOptions::default() };
        let mut exec = backend::executor(&program, &env, options);
        let machine = backend::run(&mut exec, &cut, &env).unwrap();
        for (((o, w), f), m) in cut.outputs.iter().zip(&want).zip(&found).zip(&machine) {
            near(&format!("{model}, {} in {parts}", o.name), w, f, tolerance);
            near(&format!("{model}, {} in {parts}, on the CPU", o.name), w, m, tolerance);
        }
    }
}

#[test]
fn gpt_in_f64() {
    compare("gpt", 1, DType::F64, 1e-10);
}

#[test]
fn gpt_in_f32() {
    compare("gpt", 1, DType::F32, 1e-4);
}

#[test]
fn llama_in_f64() {
    compare("llama", 1, DType::F64, 1e-10);
}

/// The balance of experts and their queues are those of slices, of which each microbatch has some.
#[test]
fn moe_in_slices() {
    compare("moe", 4, DType::F64, 1e-10);
}

#[test]
fn a_balance_loss_over_the_batch_is_refused() {
    let (whole, sample, _) = step("moe", 1, DType::F32);
    let d = accumulate(&whole, sample, 2).unwrap_err();
    assert_eq!(d.code, "E0601");
    assert!(d.primary.is_some(), "{d:?}");
}

#[test]
fn activations_of_one_microbatch_are_alive() {
    let (whole, sample, _) = step_with("gpt", 1, DType::F32, &[("batch", "16")]);
    let arena = |g: &Graph| backend::compile(g, &Options::default()).routines[0].arena;
    let (one, four) = (arena(&prune::prune(&whole)), arena(&accumulate(&whole, sample, 4).unwrap()));
    assert!(5 * four < 3 * one, "{four} bytes in four microbatches, {one} in one");
}

/// A golden model with a plan of two microbatches, through the passes of the driver.
fn with_plan(model: &str, slices: usize) -> Result<Graph, Vec<partita::diag::Diagnostic>> {
    let folder = tempfile::tempdir().unwrap();
    let text = std::fs::read_to_string(format!("tests/golden_models/{model}.pta")).unwrap();
    let path = folder.path().join("model.pta");
    std::fs::write(&path, format!("{}\nplan micro {{\n    microbatches 2\n}}\n", in_slices(&text, slices))).unwrap();
    let mut options = partita::driver::Options::of(path);
    options.plan = Some("micro".into());
    match partita::driver::pipeline::graphs(&options, &Disk) {
        Ok(g) => Ok(g.train),
        Err(f) => Err(f.sink.sorted()),
    }
}

#[test]
fn a_plan_asks_for_microbatches() {
    let graph = with_plan("gpt", 1).unwrap();
    assert!(graph.dims.iter().any(|d| d.name == "microbatches" && d.size == 2));
    assert!(with_plan("moe", 2).is_ok());
    let found = with_plan("moe", 1).expect_err("the balance loss is a statistic of the batch");
    assert_eq!(found[0].code, "E0601");
    assert!(found[0].primary.is_some() && !found[0].secondary.is_empty(), "{found:?}");
}
