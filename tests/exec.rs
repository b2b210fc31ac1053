//! Random graphs on the CPU backend against the interpreter.

#[path = "support/backend.rs"]
mod backend;
#[path = "support/graphs.rs"]
mod graphs;

use partita::kernel::Options;
use partita::runtime::exec::ExecOptions;
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
    let expected = interp::run(&case.graph, &case.env).expect("evaluates");
    let program = Arc::new(backend::compile(&case.graph, &Options { fuse, ..Options::default() }));
    let mut first = None;
    for threads in [1, 2, 3] {
        let options = ExecOptions { threads, ..ExecOptions::default() };
        let mut exec = backend::executor(&program, &case.env, options);
        let got = backend::run(&mut exec, &case.graph, &case.env).map_err(|e| e.to_string())?;
        let (near, part) = tolerance(dtype);
        for (o, (e, g)) in case.graph.outputs.iter().zip(expected.iter().zip(&got)) {
            if e.data.len() != g.data.len() {
                return Err(format!("seed {seed}: {} has {} elements, not {}", o.name, g.data.len(), e.data.len()));
            }
            let scale = e.data.iter().filter(|x| x.is_finite()).fold(1.0f64, |m, x| m.max(x.abs()));
            let wrong: Vec<usize> = (0..e.data.len())
                .filter(|i| {
                    let (x, y) = (e.data[*i], g.data[*i]);
                    !(x == y || (x - y).abs() <= near * scale || (x.is_nan() && y.is_nan()))
                })
                .collect();
            if wrong.len() as f64 > part * e.data.len() as f64 {
                let i = wrong[0];
                return Err(format!(
                    "seed {seed}, fuse {fuse}, {dtype}, {:?}: {} [{i}] is {}, expected {}",
                    case.recipe, o.name, g.data[i], e.data[i]
                ));
            }
        }
        let bits: Vec<u64> = got.iter().flat_map(|t| &t.data).map(|x| x.to_bits()).collect();
        if *first.get_or_insert(bits.clone()) != bits {
            return Err(format!("seed {seed}: {threads} threads differ"));
        }
    }
    Ok(())
}

fn all(cases: impl Iterator<Item = (u64, DType, usize, Vec<usize>)>) {
    let mut failures = Vec::new();
    for (seed, dtype, length, kinds) in cases {
        let case = graphs::random_case(seed, dtype, length, &kinds);
        for fuse in [true, false] {
            failures.extend(compare(seed, &case, dtype, fuse).err());
        }
    }
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures[..failures.len().min(12)].join("\n"));
}

#[test]
fn each_kind_of_operation_in_f64() {
    all((0..graphs::KINDS).flat_map(|k| (0..4).map(move |s| (s * 1000 + k as u64, DType::F64, 2, vec![k]))));
}

#[test]
fn each_kind_of_operation_in_f32() {
    all((0..graphs::KINDS).flat_map(|k| (6..9).map(move |s| (s * 1000 + k as u64, DType::F32, 2, vec![k]))));
}

#[test]
fn random_graphs_in_every_precision() {
    for dtype in [DType::F64, DType::F32] {
        all((0..25).map(|s| (90_000 + s, dtype, 12, vec![])));
    }
}

#[test]
fn random_graphs_in_sixteen_bits() {
    for dtype in [DType::BF16, DType::F16] {
        all((0..20).map(|s| (s, dtype, 4, vec![])));
    }
}
