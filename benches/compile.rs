//! How long each stage of the compiler takes: `cargo bench --bench compile [-- FILTER]`.

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use partita::codegen::cpu::Target;
use partita::driver::{Options, check, pipeline};
use partita::memory;
use partita::source::Disk;
use std::hint::black_box;
use std::path::Path;

fn options(file: &str, preset: Option<&str>, sets: &[(&str, &str)]) -> Options {
    let mut options = Options::of(Path::new(env!("CARGO_MANIFEST_DIR")).join(file));
    options.request.presets = preset.iter().map(ToString::to_string).collect();
    options.request.sets = sets.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
    options.threads = 1;
    options
}

fn stages(c: &mut Criterion) {
    let models = [
        ("gpt small", options("benches/models/gpt.pta", Some("small"), &[])),
        ("llama 32", options("examples/llama3.pta", None, &[])),
        ("llama 126", options("examples/llama3.pta", Some("llama_405b"), &[])),
    ];
    for (name, options) in models {
        let mut group = c.benchmark_group(name);
        group.sample_size(10);
        group.bench_function("check", |b| b.iter(|| black_box(check::check_for_run(&options.request, &Disk))));
        let graphs = || pipeline::graphs(&options, &Disk).unwrap_or_else(|_| panic!("{name} has mistakes"));
        group.bench_function("graphs", |b| b.iter(|| black_box(graphs())));
        let g = graphs();
        let lowered = || pipeline::lowered(&g, pipeline::ALL, &g.findings.sources, &options);
        group.bench_function("lower", |b| b.iter(|| black_box(lowered())));
        let module = lowered();
        let routines = || module.program.routines.clone();
        group.bench_function("plan memory", |b| {
            b.iter_batched(routines, |mut all| all.iter_mut().for_each(memory::plan), BatchSize::LargeInput);
        });
        let target = Target::host().expect("a supported processor");
        group.bench_function("generate code", |b| b.iter(|| black_box(target.compile(&module.kernels, 1))));
        group.finish();
    }
}

criterion_group!(benches, stages);
criterion_main!(benches);
