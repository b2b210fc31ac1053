//! The front end, derivatives and the interpreter together: golden losses in f64, without any backend.

#[path = "support/golden.rs"]
mod golden;

use partita::interp;
use partita::ir::OutputKind;
use partita::types::DType;

struct Case {
    losses: Vec<f64>,
    norms: Vec<f64>,
}

fn run(model: &str, preset: &str, steps: usize) -> (Case, serde_json::Value) {
    let (graph, mut env, facts) = golden::load(model, preset, DType::F64);
    let mut case = Case { losses: vec![], norms: vec![] };
    for step in 0..steps {
        env.step = step as u64;
        env.inputs = golden::batch(&facts, step as u64);
        let out = interp::run(&graph, &env).unwrap();
        let mut loss = 0.0;
        for (o, t) in graph.outputs.iter().zip(out) {
            match o.kind {
                OutputKind::Loss => loss += t.item(),
                OutputKind::Metric if o.name == "grad_norm" => case.norms.push(t.item()),
                OutputKind::Param(p) => env.params[p.index()] = t,
                OutputKind::State(s) => env.states[s.index()] = t,
                _ => {}
            }
        }
        case.losses.push(loss);
    }
    (case, facts)
}

fn compare(model: &str, preset: &str) {
    let (case, facts) = run(model, preset, 20);
    for (k, (ours, theirs)) in case.losses.iter().zip(facts["loss"].as_array().unwrap()).enumerate() {
        let theirs = theirs.as_f64().unwrap();
        assert!((ours / theirs - 1.0).abs() < 1e-9, "{model}/{preset} step {k}: {ours} against {theirs}");
    }
    for (k, (ours, theirs)) in case.norms.iter().zip(facts["grad_norm"].as_array().unwrap()).enumerate() {
        let theirs = theirs.as_f64().unwrap();
        assert!((ours / theirs - 1.0).abs() < 1e-8, "{model}/{preset} norm {k}: {ours} against {theirs}");
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
