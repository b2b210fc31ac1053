//! How long a kernel of each class takes, on one thread: `cargo bench --bench kernels [-- FILTER]`.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use partita::codegen::cpu::Target;
use partita::ir::parse::parse;
use partita::kernel::{Module, Options};
use partita::memory;
use partita::runtime::exec::{ExecOptions, Executor, RunArgs};
use partita::source::SourceMap;
use std::sync::Arc;

/// Rows and columns.
const TABLES: &str = "dim r = 512\ndim c = 1024\ndim v = 4096\ndim q = 256\ndim k = 256\ndim h = 8\ndim f = 64\n";

/// A class, its inputs as (name, type), and its operations: inputs are %0, %1, ..; the last value is the result.
type Class = (&'static str, &'static [(&'static str, &'static str)], &'static [(&'static str, &'static str)]);

const CLASSES: &[Class] = &[
    ("elementwise", &[("x", "f32[r, c]"), ("y", "f32[r, c]")], &[("f32[r, c]", "mul(%0, %1)")]),
    ("functions", &[("x", "f32[r, c]")], &[("f32[r, c]", "tanh(%0)"), ("f32[r, c]", "mul(%0, %1)")]),
    (
        "softmax",
        &[("x", "f32[r, c]")],
        &[
            ("f32[r]", "reduce_max[c](%0)"),
            ("f32[r, c]", "sub(%0, %1)"),
            ("f32[r, c]", "exp(%2)"),
            ("f32[r]", "reduce_sum[c](%3)"),
            ("f32[r, c]", "div(%3, %4)"),
        ],
    ),
    (
        "norm",
        &[("x", "f32[r, c]"), ("scale", "f32[c]")],
        &[
            ("f32[r, c]", "mul(%0, %0)"),
            ("f32[r]", "reduce_sum[c](%2)"),
            ("f32[r]", "rsqrt(%3)"),
            ("f32[r, c]", "mul(%0, %4)"),
            ("f32[r, c]", "mul(%5, %1)"),
        ],
    ),
    ("sum of rows", &[("x", "f32[r, c]")], &[("f32[r]", "reduce_sum[c](%0)")]),
    ("sum of columns", &[("x", "f32[r, c]")], &[("f32[c]", "reduce_sum[r](%0)")]),
    ("gather", &[("x", "f32[v, c]"), ("i", "int[r]")], &[("f32[r, c]", "gather[v; error](%0, %1)")]),
    ("scatter", &[("x", "f32[r, c]"), ("i", "int[r]")], &[("f32[v, c]", "scatter_sum[r -> v](%0, %1)")]),
    (
        "product with bias",
        &[("x", "f32[r, c]"), ("w", "f32[c, q]"), ("b", "f32[q]")],
        &[("f32[r, q]", "dot[c](%0, %1)"), ("f32[r, q]", "add(%3, %2)"), ("f32[r, q]", "tanh(%4)")],
    ),
    (
        "attention",
        &[("x", "f32[h, q, f]"), ("keys", "f32[h, k, f]"), ("values", "f32[h, k, f]")],
        &[("f32[h, q, f], %4: f32[h, q]", "attention[q, k, f, f; scale = 0.125; cap = 0.0; causal](%0, %1, %2)")],
    ),
];

fn graph((name, inputs, ops): &Class) -> String {
    let mut text = TABLES.to_string();
    for (i, (input, ty)) in inputs.iter().enumerate() {
        text += &format!("input {i} {input}: {ty}\n");
    }
    for (i, (input, ty)) in inputs.iter().enumerate() {
        text += &format!("%{i}: {ty} = input[{i} {input}]\n");
    }
    for (i, (ty, op)) in ops.iter().enumerate() {
        text += &format!("%{}: {ty} = {op}\n", inputs.len() + i);
    }
    let result = inputs.len() + ops.len() - 1;
    text + &format!("output value \"{name}\" = %{result}\n")
}

fn classes(c: &mut Criterion) {
    let mut group = c.benchmark_group("kernels");
    for class in CLASSES {
        let graph = parse(&graph(class)).unwrap_or_else(|e| panic!("{}: {e:?}", class.0));
        let texts = SourceMap::default();
        let mut module = Module::new(&texts);
        module.add("class", &graph, &Options::default());
        let (mut program, kernels) = (module.program, module.kernels);
        program.routines.iter_mut().for_each(memory::plan);
        program.code = Target::host().expect("a supported processor").compile(&kernels, 1).expect("it compiles");
        let bytes: usize = program.inputs.iter().map(|i| i.bytes()).sum();
        let options = ExecOptions { threads: 1, ..ExecOptions::default() };
        let mut exec = Executor::new(Arc::new(program), options).expect("an executor");
        group.throughput(Throughput::Bytes(bytes as u64));
        group.bench_function(class.0, |b| b.iter(|| exec.run(0, RunArgs::default()).expect("it runs")));
    }
    group.finish();
}

criterion_group!(benches, classes);
criterion_main!(benches);
