//! How fast ranks of one process exchange: `cargo bench --bench ranks [-- FILTER]`. Throughput counts the bytes of the whole array
//! once, whatever the number of ranks; a run of nothing but a sum of one element is the cost of meeting.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use partita::codegen::cpu::Target;
use partita::ir::parse::parse;
use partita::kernel::{Module, Options};
use partita::memory;
use partita::runtime::exec::{ExecOptions, RankOptions, Ranks, RunArgs};
use partita::source::SourceMap;
use std::sync::Arc;
use std::time::Duration;

/// A collective of an array of `n` elements, ten times in a row: runs begin and end so seldom that they do not count.
fn text(kind: &str, ranks: usize, dtype: &str, n: usize) -> String {
    let part = n.div_ceil(ranks);
    let dims = format!("axis dp = {ranks}\ndim n = {n}\ndim part = {part} of {n} by dp\ndim turn = 10\n");
    let (from, to, call) = match kind {
        "all_reduce" => ("n", "n", "all_reduce dp; sum dp; "),
        "all_gather" => ("part", "n", "all_gather dp; part -> n"),
        _ => ("n", "part", "reduce_scatter dp; sum dp; n -> part"),
    };
    format!(
        "{dims}input 0 x: {dtype}[{from}]\n%0: {dtype}[{from}] = input[0 x]\n%1: {dtype}[{to}] = collective[{call}](%0)\n\
         %2: {dtype}[{to}] = loop[turn](%1; %0) {{\nparams(%3: int, %4: {dtype}[{to}], %5: {dtype}[{from}])\n\
         %6: {dtype}[{to}] = collective[{call}](%5)\nresults(%6; )\n}}\noutput value y = %2\n"
    )
}

fn exchanges(c: &mut Criterion) {
    let mut group = c.benchmark_group("ranks");
    group.sample_size(10).warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(1));
    let cases = [
        ("all_reduce", 2, "f32", 1),
        ("all_reduce", 2, "f32", 1 << 14),
        ("all_reduce", 2, "f32", 1 << 20),
        ("all_reduce", 2, "f32", 1 << 24),
        ("all_reduce", 2, "bf16", 1 << 20),
        ("all_gather", 2, "f32", 1 << 20),
        ("reduce_scatter", 2, "f32", 1 << 20),
        ("all_reduce", 16, "f32", 1),
        ("all_reduce", 16, "f32", 1 << 20),
    ];
    for (kind, ranks, dtype, n) in cases {
        let graph = parse(&text(kind, ranks, dtype, n)).unwrap_or_else(|e| panic!("{kind}: {e}"));
        let texts = SourceMap::default();
        let mut module = Module::new(&texts);
        module.add("exchange", &graph, &Options::default());
        let (mut program, kernels) = (module.program, module.kernels);
        program.routines.iter_mut().for_each(memory::plan);
        program.code = Target::host().expect("a supported processor").compile(&kernels, 1).expect("it compiles");
        let exec = ExecOptions { threads: ranks, ..ExecOptions::default() };
        let mut all = Ranks::new(Arc::new(program), RankOptions { exec, ..RankOptions::default() }).expect("ranks");
        let bytes = if dtype == "f32" { 4 * n } else { 2 * n };
        group.throughput(Throughput::Bytes(11 * bytes as u64));
        let id = BenchmarkId::new(format!("{kind} of {dtype} on {ranks}"), n);
        group.bench_function(id, |b| b.iter(|| all.run(0, RunArgs::default()).expect("it runs")));
    }
    group.finish();
}

criterion_group!(benches, exchanges);
criterion_main!(benches);
