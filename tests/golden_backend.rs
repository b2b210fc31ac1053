//! Whole training steps on the CPU backend: golden losses in f64 and f32, the same on any number of threads.

#[path = "support/backend.rs"]
mod backend;
#[path = "support/golden.rs"]
mod golden;

use partita::ir::OutputKind;
use partita::kernel::Options;
use partita::runtime::exec::ExecOptions;
use partita::types::DType;
use std::sync::Arc;

fn losses(model: &str, preset: &str, precision: DType, threads: usize, steps: usize) -> (Vec<f64>, serde_json::Value) {
    let (graph, mut env, facts) = golden::load(model, preset, precision);
    let program = Arc::new(backend::compile(&graph, &Options::default()));
    let mut exec = backend::executor(&program, &env, ExecOptions { threads, ..ExecOptions::default() });
    let mut all = Vec::new();
    for step in 0..steps {
        env.step = step as u64;
        for (n, t) in golden::batch(&facts, step as u64).iter().enumerate() {
            exec.input_mut(n).copy_from_slice(&backend::pack(t.dtype, &t.data));
        }
        let out = backend::run(&mut exec, &graph, &env).unwrap();
        all.push(
            graph.outputs.iter().zip(&out).filter(|(o, _)| o.kind == OutputKind::Loss).map(|(_, t)| t.item()).sum(),
        );
    }
    (all, facts)
}

/// f64 within 1e-9 at every step; f32 within 2e-4 at the first five steps and 2e-3 at the last.
fn compare(model: &str, preset: &str) {
    for precision in [DType::F64, DType::F32] {
        let (ours, facts) = losses(model, preset, precision, 2, 20);
        let theirs: Vec<f64> = facts["loss"].as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect();
        assert_eq!(ours.len(), theirs.len());
        for (k, (ours, theirs)) in ours.iter().zip(&theirs).enumerate() {
            let error = (ours / theirs - 1.0).abs();
            let limit = match (precision, k) {
                (DType::F64, _) => 1e-9,
                (_, 0..5) => 2e-4,
                _ => 2e-3,
            };
            assert!(error < limit, "{model}/{preset} {precision} step {k}: {ours} against {theirs}");
        }
    }
}

#[test]
fn gpt_tiny() {
    compare("gpt", "tiny");
}

#[test]
fn llama_tiny() {
    compare("llama", "tiny");
}

#[test]
fn moe_tiny() {
    compare("moe", "tiny");
}

#[test]
fn moe_tiny_with_capacity() {
    compare("moe", "tiny_capacity");
}

#[test]
fn threads_do_not_change_a_bit() {
    let of = |threads| losses("gpt", "tiny", DType::F32, threads, 3).0;
    let one = of(1);
    assert_eq!(one, of(2));
    assert_eq!(one, of(3));
}

#[test]
fn bfloat16_trains_alike() {
    let (ours, facts) = losses("gpt", "tiny", DType::BF16, 2, 5);
    for (k, (ours, theirs)) in ours.iter().zip(facts["loss"].as_array().unwrap()).enumerate() {
        let theirs = theirs.as_f64().unwrap();
        assert!((ours / theirs - 1.0).abs() < 1e-2, "step {k}: {ours} against {theirs}");
    }
}
