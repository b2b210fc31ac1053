//! Matrix products against the `gemm` crate: GFLOP/s, interleaved, the lower tenth of many rounds.
//!
//! `cargo bench --bench products [-- FILTER]`; filters are parts of names.

use half::{bf16, f16};
use partita::runtime::device::pool::Pool;
use partita::runtime::device::product::{Extent, Product, SCRATCH};
use partita::types::DType;

/// Time of one measurement and number of them.
const SAMPLE: f64 = 0.004;
const ROUNDS: usize = 31;

struct Shape {
    name: &'static str,
    batch: usize,
    m: usize,
    n: usize,
    k: usize,
    /// Whether a and b lie transposed.
    turned: [bool; 2],
}

const fn shape(name: &'static str, batch: usize, m: usize, n: usize, k: usize, turned: [bool; 2]) -> Shape {
    Shape { name, batch, m, n, k, turned }
}

const SHAPES: &[Shape] = &[
    shape("square 1024", 1, 1024, 1024, 1024, [false, false]),
    shape("small y=x@w", 1, 1024, 3072, 768, [false, false]),
    shape("small dx=dy@w'", 1, 1024, 768, 3072, [false, true]),
    shape("small dw=x'@dy", 1, 768, 3072, 1024, [true, false]),
    shape("small proj", 1, 1024, 768, 768, [false, false]),
    shape("nano y 128", 1, 2048, 128, 128, [false, false]),
    shape("nano y 512", 1, 2048, 512, 128, [false, false]),
    shape("nano dx 512", 1, 2048, 128, 512, [false, true]),
    shape("nano dw 512", 1, 128, 512, 2048, [true, false]),
    shape("nanogpt y", 1, 768, 128, 128, [false, false]),
    shape("nanogpt dw", 1, 128, 512, 768, [true, false]),
    shape("micro y", 1, 2048, 1536, 384, [false, false]),
    shape("wide y/8", 1, 64, 8192, 4096, [false, false]),
    shape("wide dx/8", 1, 64, 4096, 8192, [false, true]),
    shape("wide dw/8", 1, 4096, 8192, 64, [true, false]),
    shape("heads 64 q@k'", 48, 64, 64, 32, [false, true]),
    shape("heads 64 p@v", 48, 64, 32, 64, [false, false]),
    shape("heads 64 p'@dy", 48, 64, 32, 64, [true, false]),
    shape("heads 256 q@k'", 48, 256, 256, 64, [false, true]),
    shape("heads 256 p@v", 48, 256, 64, 256, [false, false]),
    shape("heads 256 p'@dy", 48, 256, 64, 256, [true, false]),
    shape("tiny 16", 256, 16, 16, 16, [false, false]),
    shape("vector x@w", 1, 1, 768, 768, [false, false]),
    shape("vector x@w'", 1, 1, 768, 768, [false, true]),
    shape("vector big x@w", 1, 1, 3072, 768, [false, false]),
    shape("vector big x@w'", 1, 1, 50257, 768, [false, true]),
    shape("mlp y", 1, 128, 512, 784, [false, false]),
    shape("mlp dw", 1, 784, 512, 128, [true, false]),
    shape("mlp out", 1, 128, 10, 512, [false, false]),
    shape("mlp dx", 1, 128, 512, 10, [false, true]),
];

/// One element type: numbers, and the `gemm` crate's product where it has one.
trait Number: Copy + Send + Sync + 'static {
    const DTYPE: DType;
    const ONE: Self;
    fn of(x: f32) -> Self;
    fn in_crate() -> bool {
        true
    }
}

impl Number for f32 {
    const DTYPE: DType = DType::F32;
    const ONE: f32 = 1.0;
    fn of(x: f32) -> f32 {
        x
    }
}

impl Number for f64 {
    const DTYPE: DType = DType::F64;
    const ONE: f64 = 1.0;
    fn of(x: f32) -> f64 {
        f64::from(x)
    }
}

impl Number for f16 {
    const DTYPE: DType = DType::F16;
    const ONE: f16 = f16::ONE;
    fn of(x: f32) -> f16 {
        f16::from_f32(x)
    }
}

impl Number for bf16 {
    const DTYPE: DType = DType::BF16;
    const ONE: bf16 = bf16::ONE;
    fn of(x: f32) -> bf16 {
        bf16::from_f32(x)
    }
    fn in_crate() -> bool {
        false
    }
}

struct Address<T>(T);
// SAFETY: addresses of arrays whose parts are written by one thread each.
unsafe impl<T> Sync for Address<T> {}
impl<T: Copy> Address<T> {
    fn get(&self) -> T {
        self.0
    }
}

struct Operands<T> {
    a: Vec<T>,
    b: Vec<T>,
    c: Vec<T>,
}

/// Steps along rows and columns.
fn steps(rows: usize, columns: usize, turned: bool) -> (isize, isize) {
    if turned { (1, rows as isize) } else { (columns as isize, 1) }
}

fn ours<T: Number>(s: &Shape, pool: &Pool, x: &mut Operands<T>, scratch: &mut [u64]) {
    let ((am, ak), (bk, bn)) = (steps(s.m, s.k, s.turned[0]), steps(s.k, s.n, s.turned[1]));
    let product = Product {
        batch: &[Extent { size: s.batch, a: (s.m * s.k) as isize, b: (s.k * s.n) as isize, c: (s.m * s.n) as isize }],
        sums: &[],
        m: Extent { size: s.m, a: am, b: 0, c: s.n as isize },
        n: Extent { size: s.n, a: 0, b: bn, c: 1 },
        k: Extent { size: s.k, a: ak, b: bk, c: 0 },
        accumulate: false,
        dtype: T::DTYPE,
        out: T::DTYPE,
    };
    // SAFETY: the arrays hold these sizes.
    unsafe {
        product.run(pool, x.a.as_ptr().cast(), x.b.as_ptr().cast(), x.c.as_mut_ptr().cast(), scratch).expect("runs");
    }
}

/// The crate on one matrix for each thread: cut along its longer side, or by batches.
fn theirs<T: Number>(s: &Shape, pool: &Pool, x: &mut Operands<T>) {
    let ((am, ak), (bk, bn)) = (steps(s.m, s.k, s.turned[0]), steps(s.k, s.n, s.turned[1]));
    let parts = if s.batch > 1 || s.m * s.n * s.k < 1 << 19 { 1 } else { pool.threads() };
    let by_rows = s.m >= s.n;
    let (a, b, c) = (Address(x.a.as_ptr()), Address(x.b.as_ptr()), Address(x.c.as_mut_ptr()));
    let one = |task: usize| {
        let (batch, part) = (task / parts, task % parts);
        let size = if by_rows { s.m } else { s.n };
        let cut = |part: usize| if part == parts { size } else { size * part / parts / 16 * 16 };
        let (from, to) = (cut(part), cut(part + 1));
        // SAFETY: parts of the arrays.
        unsafe {
            let (mut a, mut b) = (a.get().add(batch * s.m * s.k), b.get().add(batch * s.k * s.n));
            let mut c = c.get().add(batch * s.m * s.n);
            let (mut m, mut n) = (s.m, s.n);
            if by_rows {
                (a, c, m) = (a.offset(from as isize * am), c.add(from * s.n), to - from);
            } else {
                (b, c, n) = (b.offset(from as isize * bn), c.add(from), to - from);
            }
            let none = gemm::Parallelism::None;
            gemm::gemm(
                m,
                n,
                s.k,
                c,
                1,
                s.n as isize,
                false,
                a,
                ak,
                am,
                b,
                bn,
                bk,
                T::ONE,
                T::ONE,
                false,
                false,
                false,
                none,
            );
        }
    };
    if parts > 1 {
        pool.run(s.batch * parts, &one).expect("runs");
    } else {
        pool.split(s.batch, ((1 << 16) / (s.m * s.n * s.k)).max(1), &|b, e| (b..e).for_each(&one)).expect("runs");
    }
}

/// Seconds: of the processor where there is one thread, so that other processes disturb less, else of the wall.
fn now(threads: usize) -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let clock = if threads == 1 { libc::CLOCK_THREAD_CPUTIME_ID } else { libc::CLOCK_MONOTONIC };
    // SAFETY: the call fills the value.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    time.tv_sec as f64 + 1e-9 * time.tv_nsec as f64
}

/// Seconds of one call: as many calls as fill a sample.
fn time(threads: usize, mut call: impl FnMut()) -> f64 {
    let (start, mut calls) = (now(threads), 0);
    loop {
        call();
        calls += 1;
        let spent = now(threads) - start;
        if spent > SAMPLE {
            return spent / f64::from(calls);
        }
    }
}

/// The lower tenth: what a call takes where the machine is not busy with something else.
fn typical(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 10]
}

fn compare<T: Number>(filter: &str) {
    println!("{}: name, then GFLOP/s of ours, of the crate, and the ratio, on 1 and on 2 threads", T::DTYPE);
    let pools = [Pool::new(1), Pool::new(2)];
    let mut scratch = vec![0; SCRATCH / 8 * 2];
    for s in SHAPES.iter().filter(|s| s.name.contains(filter)) {
        let fill = |n: usize| (0..n).map(|i| T::of((i * 7 % 11) as f32 / 8.0 - 0.5)).collect::<Vec<T>>();
        let mut x =
            Operands { a: fill(s.batch * s.m * s.k), b: fill(s.batch * s.k * s.n), c: fill(s.batch * s.m * s.n) };
        print!("{:16}", s.name);
        for pool in &pools {
            let (mut own, mut other) = (Vec::new(), Vec::new());
            for _ in 0..ROUNDS {
                own.push(time(pool.threads(), || ours(s, pool, &mut x, &mut scratch)));
                if T::in_crate() {
                    other.push(time(pool.threads(), || theirs(s, pool, &mut x)));
                }
            }
            let work = 2e-9 * (s.batch * s.m * s.n * s.k) as f64;
            print!("  {:7.1}", work / typical(&mut own));
            if T::in_crate() {
                let ratio = typical(&mut other) / typical(&mut own);
                print!(" {:7.1}  {ratio:5.2}", work / typical(&mut other));
            }
        }
        println!();
    }
}

fn main() {
    // cargo passes `--bench`.
    let words: Vec<String> = std::env::args().skip(1).filter(|w| !w.starts_with("--")).collect();
    let (filter, types) = match words.as_slice() {
        [] => ("", vec!["f32", "bf16", "f16", "f64"]),
        [filter] => (filter.as_str(), vec!["f32", "bf16", "f16", "f64"]),
        [filter, types @ ..] => (filter.as_str(), types.iter().map(String::as_str).collect()),
    };
    for name in types {
        match name {
            "f32" => compare::<f32>(filter),
            "f64" => compare::<f64>(filter),
            "f16" => compare::<f16>(filter),
            _ => compare::<bf16>(filter),
        }
    }
}
