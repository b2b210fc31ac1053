//! Measures this machine, for modelled times.

use super::findings::Findings;
use super::passes::internal;
use crate::codegen::cpu::Target;
use crate::ir::parse::parse;
use crate::kernel::{Module, Options};
use crate::memory;
use crate::runtime::device::pool::Pool;
use crate::runtime::device::roof;
use crate::runtime::exec::{ExecOptions, RankOptions, Ranks, RunArgs};
use crate::schedule::Machine;
use crate::source::SourceMap;
use crate::types::DType;
use std::sync::Arc;
use std::time::Instant;

/// Exchanges in one measured run.
const TURNS: usize = 10;
/// Elements of a long message.
const LONG: usize = 1 << 20;
/// Runs, of which the fastest counts.
const RUNS: usize = 7;

/// What a rank reaches while `ranks` of them work, each with `threads` threads.
pub fn calibrated(ranks: usize, threads: usize) -> Result<Machine, Box<Findings>> {
    let pool = Pool::new(ranks * threads);
    let each = |rate: f64| (rate / ranks as f64).max(1.0);
    let product = |dtype: DType| each(roof::flops(&pool, dtype));
    let name = format!("this machine, {ranks} x {threads} threads");
    let (f64, f32, half) = (product(DType::F64), product(DType::F32), product(DType::BF16));
    let memory = each(roof::bytes(&pool));
    drop(pool);
    let long = exchange(LONG)?;
    let latency = exchange(1)?;
    let link = (4 * LONG) as f64 / (long - latency).max(1e-9);
    Ok(Machine { name, f64, f32, half, memory, link, latency })
}

/// Seconds in which two ranks of one process give each other as many numbers.
fn exchange(n: usize) -> Result<f64, Box<Findings>> {
    let text = format!(
        "axis pp = 2\ndim n = {whole}\ndim part = {n} of {whole} by pp\ndim turn = {TURNS}\ninput 0 x: f32[part]\n\
         %0: f32[part] = input[0 x]\n%1: f32[n] = collective[all_gather pp; part -> n](%0)\n\
         %2: f32[n] = loop[turn](%1; %0) {{\nparams(%3: int, %4: f32[n], %5: f32[part])\n\
         %6: f32[n] = collective[all_gather pp; part -> n](%5)\nresults(%6; )\n}}\noutput value y = %2\n",
        whole = 2 * n,
    );
    let failed = |why: String| internal("calibrate", &why);
    let graph = parse(&text).map_err(|e| failed(e.to_string()))?;
    let texts = SourceMap::default();
    let mut module = Module::new(&texts);
    module.add("exchange", &graph, &Options::default());
    let (mut program, kernels) = (module.program, module.kernels);
    program.routines.iter_mut().for_each(memory::plan);
    program.code = Target::host().and_then(|t| t.compile(&kernels, 1)).map_err(failed)?;
    let exec = ExecOptions { threads: 2, ..ExecOptions::default() };
    let mut both = Ranks::new(Arc::new(program), RankOptions { exec, ..RankOptions::default() })
        .map_err(|e| failed(e.to_string()))?;
    let mut best = f64::INFINITY;
    for _ in 0..RUNS {
        let start = Instant::now();
        both.run(0, RunArgs::default()).map_err(|e| failed(e.to_string()))?;
        best = best.min(start.elapsed().as_secs_f64());
    }
    // One more than the loop has.
    Ok(best / (TURNS + 1) as f64)
}
