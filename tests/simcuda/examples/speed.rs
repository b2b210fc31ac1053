//! How fast the software GPU interprets: `cargo run --release -p simcuda --example speed [kernel ..]`. Figures are lane-instructions
//! of one core.

#[path = "../tests/common/mod.rs"]
mod common;

use common::{Arg, Gpu, bf16s, floats};
use simcuda::check::counters::Counters;
use simcuda::check::fault::Fault;

/// A launch, with the time of the processor in the place of the clock's.
fn launch(
    gpu: &Gpu,
    text: &str,
    name: &str,
    grid: [u32; 3],
    block: [u32; 3],
    dynamic: usize,
    args: &[Arg],
) -> Result<Counters, Fault> {
    let begin = processor_time();
    let counters = gpu.launch(text, name, grid, block, dynamic, args)?;
    Ok(Counters { nanoseconds: processor_time() - begin, ..counters })
}

fn run(name: &str, check: &str) -> Counters {
    let gpu = Gpu::with(&[("SIMCUDA_CHECK", check)]);
    let u = |n: usize| Arg::U32(n as u32);
    let (rows, cols, size) = (512usize, 1024usize, 256usize);
    let n = rows * cols;
    match name {
        "gelu_bias" => {
            let (x, b, o) = (gpu.put(&floats(1, n)), gpu.put(&floats(2, cols)), gpu.room(4 * n));
            let args = [Arg::Pointer(x), Arg::Pointer(b), Arg::Pointer(o), u(n / 4), u(cols)];
            launch(&gpu, include_str!("../kernels/basic.ptx"), name, [64, 1, 1], [256, 1, 1], 0, &args)
        }
        "softmax" => {
            let (x, o) = (gpu.put(&floats(1, n)), gpu.room(4 * n));
            let args = [Arg::Pointer(x), Arg::Pointer(o), u(cols)];
            launch(&gpu, include_str!("../kernels/basic.ptx"), name, [rows as u32, 1, 1], [256, 1, 1], 0, &args)
        }
        "flash" => {
            let tokens = 512;
            let n = 2 * tokens * 64;
            let at: Vec<u64> = (0..3).map(|s| gpu.put(&bf16s(s, n))).chain([gpu.room(4 * n)]).collect();
            let args: Vec<Arg> = at.into_iter().map(Arg::Pointer).chain([u(tokens)]).collect();
            launch(&gpu, include_str!("../kernels/attention.ptx"), name, [8, 2, 1], [128, 1, 1], 27_648, &args)
        }
        _ => {
            let threads = if name == "tiled" { 256 } else { 128 };
            let (a, b) = if name == "tiled" {
                (gpu.put(&floats(1, size * size)), gpu.put(&floats(2, size * size)))
            } else {
                (gpu.put(&bf16s(1, size * size)), gpu.put(&bf16s(2, size * size)))
            };
            let c = gpu.room(4 * size * size);
            let args = [Arg::Pointer(a), Arg::Pointer(b), Arg::Pointer(c), u(size), u(size), u(size)];
            launch(&gpu, include_str!("../kernels/products.ptx"), name, [4, 4, 1], [threads, 1, 1], 0, &args)
        }
    }
    .unwrap_or_else(|f| panic!("{f}"))
}

/// Of this thread, in nanoseconds: what else the machine does counts little.
fn processor_time() -> u64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: room for the answer.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut t) };
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

fn main() {
    println!("{:<10} {:>26} {:>10} {:>8} {:>12}", "kernel", "checks", "ms", "G/s", "conflicts");
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    for name in ["gelu_bias", "softmax", "tiled", "mma_bf16", "flash"] {
        if !wanted.is_empty() && !wanted.iter().any(|w| w == name) {
            continue;
        }
        for check in ["bounds", "uninitialised,counters", "all"] {
            let best = (0..3).map(|_| run(name, check)).min_by_key(|c| c.nanoseconds).expect("three runs");
            println!(
                "{name:<10} {check:>26} {:>10.2} {:>8.2} {:>12.2}",
                best.nanoseconds as f64 / 1e6,
                best.lane_instructions as f64 / best.nanoseconds as f64,
                best.shared_cycles as f64 / best.shared_accesses.max(1) as f64
            );
        }
    }
}
