//! How long each stage of the compiler takes: `cargo bench --bench compile [-- FILTER]`.

use criterion::{BatchSize, BenchmarkId, Criterion, criterion_group, criterion_main};
use partita::codegen::cpu::Target;
use partita::driver::{Options, check, comm, pipeline};
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

/// From the text to the verified program of a rank, on few ranks and on very many: `cargo bench --bench compile -- ranks`. What must
/// not happen is that the second takes much longer.
fn ranks(c: &mut Criterion) {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("llama3.pta");
    let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/llama3.pta"))
        .expect("the example");
    let plan = "\nplan big {\n    mesh dp = 128, tp = 128\n    shard batch by dp\n    shard heads, mlp, vocab by tp\n    \
                shard seq by tp in RmsNorm\n    zero 3 by dp\n}\n";
    std::fs::write(&file, text + plan).expect("the program is written");
    let mut group = c.benchmark_group("llama 126 on ranks");
    group.sample_size(10);
    for (dp, tp) in [(2, 4), (128, 128)] {
        let mut options = Options::of(file.clone());
        options.request.presets = vec!["llama_405b".into()];
        options.plan = Some("big".into());
        options.mesh = vec![("dp".into(), dp), ("tp".into(), tp)];
        let check = || check::check_with_plan(&options, &Disk);
        assert!(!check().sink.has_errors(), "the program has mistakes");
        group.bench_function(BenchmarkId::new("check", dp * tp), |b| b.iter(|| black_box(check())));
        let spmd = || comm::found(&options, &Disk).unwrap_or_else(|_| panic!("the program has mistakes"));
        group.bench_function(BenchmarkId::new("spmd", dp * tp), |b| b.iter(|| black_box(spmd())));
    }
    group.finish();
}

criterion_group!(benches, stages, ranks);
criterion_main!(benches);
