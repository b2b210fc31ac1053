//! Programs on a GPU made of software: graphs of all operations against the interpreter, whole training steps against golden losses.
//! Without NVRTC they say that they are skipped.

#[path = "support/golden.rs"]
mod golden;
#[path = "support/gpu.rs"]
mod gpu;
#[path = "support/graphs.rs"]
mod graphs;

use partita::ir::OutputKind;
use partita::kernel::Options;
use partita::runtime::device::cuda::nvrtc;
use partita::types::DType;
use partita::{self, interp};
use std::sync::Arc;

/// Relative tolerance of a whole graph, and the part of elements that may be beyond it where roundings are coarse: a
/// comparison may fall on the other side.
fn tolerance(dtype: DType) -> (f64, f64) {
    match dtype {
        DType::F64 => (1e-10, 0.0),
        DType::F32 => (2e-4, 0.01),
        _ => (6e-2, 0.05),
    }
}

fn compare(seed: u64, case: &graphs::Case, dtype: DType, fuse: bool) -> Result<(), String> {
    let told = |what: String| format!("seed {seed}, fuse {fuse}, {dtype}, {:?}: {what}", case.recipe);
    let expected = interp::run(&case.graph, &case.env).expect("evaluates");
    let program = Arc::new(gpu::compile(&case.graph, &Options { fuse, ..Options::default() }));
    let mut gpus = gpu::open(&program, &case.env);
    let got = gpu::run(&mut gpus, &case.graph, &case.env).map_err(|e| told(e.to_string()))?;
    let (near, part) = tolerance(dtype);
    for (o, (e, g)) in case.graph.outputs.iter().zip(expected.iter().zip(&got)) {
        if e.data.len() != g.data.len() {
            return Err(told(format!("{} has {} elements, not {}", o.name, g.data.len(), e.data.len())));
        }
        let scale = e.data.iter().filter(|x| x.is_finite()).fold(1.0f64, |m, x| m.max(x.abs()));
        let is_wrong = |i: &usize| {
            let (x, y) = (e.data[*i], g.data[*i]);
            !(x == y || (x - y).abs() <= near * scale || (x.is_nan() && y.is_nan()))
        };
        let wrong: Vec<usize> = (0..e.data.len()).filter(is_wrong).collect();
        if wrong.len() as f64 > part * e.data.len() as f64 {
            let i = wrong[0];
            return Err(told(format!("{} [{i}] is {}, expected {}", o.name, g.data[i], e.data[i])));
        }
    }
    Ok(())
}

fn all(cases: impl Iterator<Item = (u64, DType, usize, Vec<usize>)>) {
    if !gpu::is_there() {
        return;
    }
    let mut failures = Vec::new();
    for (seed, dtype, length, kinds) in cases {
        let case = graphs::random_case(seed, dtype, length, &kinds);
        failures.extend(compare(seed, &case, dtype, seed % 3 != 0).err());
    }
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures[..failures.len().min(12)].join("\n"));
}

#[test]
fn each_kind_of_operation_in_f32() {
    all((0..graphs::KINDS).flat_map(|k| (6..8).map(move |s| (s * 1000 + k as u64, DType::F32, 2, vec![k]))));
}

#[test]
fn each_kind_of_operation_in_f64() {
    all((0..graphs::KINDS).map(|k| (3000 + k as u64, DType::F64, 2, vec![k])));
}

#[test]
fn random_graphs_in_f32() {
    all((0..8).map(|s| (90_000 + s, DType::F32, 12, vec![])));
}

#[test]
fn random_graphs_in_sixteen_bits() {
    for dtype in [DType::BF16, DType::F16] {
        all((0..6).map(|s| (s, dtype, 4, vec![])));
    }
}

/// Steps of a golden model on one GPU.
fn losses(model: &str, precision: DType, steps: usize) -> (Vec<f64>, Vec<f64>) {
    let (graph, mut env, facts) = golden::load(model, "tiny", precision);
    let program = Arc::new(gpu::compile(&graph, &Options::default()));
    let mut gpus = gpu::open(&program, &env);
    let mut ours = Vec::new();
    for step in 0..steps {
        env.step = step as u64;
        for (n, t) in golden::batch(&facts, step as u64).iter().enumerate() {
            let bytes: Vec<u8> = t.data.iter().flat_map(|x| (*x as i32).to_ne_bytes()).collect();
            gpus.scatter(partita::runtime::exec::Array::Input(n), &bytes).unwrap();
        }
        let out = gpu::run(&mut gpus, &graph, &env).unwrap_or_else(|e| panic!("{model} step {step}: {e}"));
        let of_loss = graph.outputs.iter().zip(&out).filter(|(o, _)| o.kind == OutputKind::Loss);
        ours.push(of_loss.map(|(_, t)| t.item()).sum());
    }
    let theirs = facts["loss"].as_array().unwrap().iter().take(steps).map(|x| x.as_f64().unwrap()).collect();
    (ours, theirs)
}

/// f32 within 2e-4 of the golden losses, bf16 within two percent.
fn golden_steps(model: &str) {
    if !gpu::is_there() {
        return;
    }
    for (precision, steps, limit) in [(DType::F32, 3, 2e-4), (DType::BF16, 2, 2e-2)] {
        let (ours, theirs) = losses(model, precision, steps);
        assert_eq!(ours.len(), theirs.len());
        for (k, (ours, theirs)) in ours.iter().zip(&theirs).enumerate() {
            let error = (ours / theirs - 1.0).abs();
            assert!(error < limit, "{model} {precision} step {k}: {ours} against {theirs}");
        }
    }
}

#[test]
fn gpt_trains() {
    golden_steps("gpt");
}

#[test]
fn llama_trains() {
    golden_steps("llama");
}

#[test]
fn a_mixture_of_experts_trains() {
    golden_steps("moe");
}

#[test]
fn kernels_compile_for_later_devices() {
    if !gpu::is_there() {
        return;
    }
    let (graph, ..) = golden::load("llama", "tiny", DType::BF16);
    let program = gpu::compile(&graph, &Options::default());
    let text = &program.gpu.as_ref().unwrap().text;
    let ptx = nvrtc::compile(text, 90).unwrap_or_else(|e| panic!("{e}"));
    assert!(ptx.contains(".target sm_90"), "{}", &ptx[..300]);
    assert!(text.matches("mma.sync").count() > 0 && text.contains("copy_later("), "no tensor cores");
}

/// A program that adds two arrays.
fn small() -> Arc<partita::program::Program> {
    let case = graphs::random_case(7, DType::F32, 3, &[]);
    Arc::new(gpu::compile(&case.graph, &Options::default()))
}

#[test]
fn what_cannot_be_used_is_told() {
    if !gpu::is_there() {
        return;
    }
    let open = |program| partita::runtime::gpu::Gpus::open(Arc::new(program)).err().expect("an error");
    let mut elsewhere = (*small()).clone();
    elsewhere.gpu.as_mut().unwrap().devices = vec![9];
    let e = open(elsewhere);
    assert_eq!(e.code, "E0817");
    assert!(e.notes.iter().any(|n| n.contains("the driver has")), "{e}");
    let mut large = (*small()).clone();
    large.routines[0].arena = 1 << 40;
    let e = open(large);
    assert_eq!(e.code, "E0811", "{e}");
    assert!(e.message.contains("1099511627776 bytes for temporary values"), "{e}");
}

#[test]
fn a_launch_that_the_driver_refuses_is_an_error() {
    if !gpu::is_there() {
        return;
    }
    let mut wrong = (*small()).clone();
    let launches = wrong.gpu.as_mut().unwrap().steps.iter_mut().flatten().flatten();
    launches.for_each(|l| l.threads = 5000);
    let wrong = Arc::new(wrong);
    let mut gpus = partita::runtime::gpu::Gpus::open(wrong).unwrap_or_else(|e| panic!("{e}"));
    let e = gpus.run(0, Default::default()).unwrap_err();
    assert_eq!(e.code, "E0818");
    assert!(e.message.contains("launching a kernel"), "{e}");
}
