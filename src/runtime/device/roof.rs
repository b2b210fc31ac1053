//! What the machine does at best: a product that stays in the caches, and a sum over memory that does not.

use super::arena::Arena;
use super::pool::Pool;
use super::product::{Extent, Product, SCRATCH};
use super::share::Shared;
use crate::types::DType;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Long enough for the clock of the processor to settle.
const LEAST: Duration = Duration::from_millis(60);
/// Rows, columns and sums of the product of one thread.
const SIZE: usize = 384;
/// A cache line.
type Line = [u64; 8];
/// Lines that one thread reads, and all together at most: more than stays in a cache.
const LINES: usize = 2 << 20;
const MOST_LINES: usize = 16 << 20;
/// Places that one thread reads from side by side: with one alone it would wait for memory half of the time.
const STREAMS: usize = 8;

/// Operations on f32 and bytes read from memory, each a second, by all threads of a pool at once. 0 where it cannot be
/// measured.
pub fn measure(pool: &Pool) -> (f64, f64) {
    (flops(pool, DType::F32), bytes(pool))
}

/// The best of several tries at doing `round`, as amount a second.
fn best(amount: f64, mut round: impl FnMut()) -> f64 {
    let begin = Instant::now();
    let mut best = f64::INFINITY;
    while begin.elapsed() < LEAST || best.is_infinite() {
        let start = Instant::now();
        round();
        best = best.min(start.elapsed().as_secs_f64());
    }
    amount / best.max(1e-9)
}

/// Operations of products of this type a second.
pub fn flops(pool: &Pool, dtype: DType) -> f64 {
    let n = SIZE as isize;
    let extent = |a, b, c| Extent { size: SIZE, a, b, c };
    // One product for each thread.
    let batch = [Extent { size: pool.threads(), a: n * n, b: n * n, c: n * n }];
    let product = Product {
        batch: &batch,
        sums: &[],
        m: extent(n, 0, n),
        n: extent(0, 1, 1),
        k: extent(1, n, 0),
        accumulate: false,
        dtype,
        out: dtype,
    };
    let arrays = [(); 3].map(|()| vec![0u8; SIZE * SIZE * pool.threads() * dtype.bytes() + size_of::<Line>()]);
    // Elements are aligned to their size.
    let [a, b, mut c] = arrays;
    let start = |v: &Vec<u8>| v.as_ptr().align_offset(size_of::<Line>());
    let [at_a, at_b, at_c] = [&a, &b, &c].map(start);
    let mut scratch = vec![0u64; SCRATCH * pool.threads() / 8];
    let work = 2.0 * (SIZE * SIZE * SIZE * pool.threads()) as f64;
    best(work, || {
        // SAFETY: the arrays hold as many elements as the extents reach.
        let done = unsafe {
            let (a, b, c) = (a.as_ptr().add(at_a), b.as_ptr().add(at_b), c.as_mut_ptr().add(at_c));
            product.run(pool, a.cast(), b.cast(), c.cast(), &mut scratch)
        };
        std::hint::black_box(done).ok();
    })
}

/// Bytes read from memory a second.
pub fn bytes(pool: &Pool) -> f64 {
    let each = LINES.min(MOST_LINES / pool.threads()).max(STREAMS);
    // Large pages, as weights have them.
    let Some(arena) = Arena::new(each * pool.threads() * size_of::<Line>()) else { return 0.0 };
    let base = Shared(arena.base().cast::<Line>());
    // SAFETY: parts of the arena, which are disjoint.
    let part = |n: usize| unsafe { std::slice::from_raw_parts_mut(base.get().add(n * each), each) };
    // Memory that was never written to is no memory.
    let filled = pool.run(pool.threads(), &|n| part(n).fill([1; 8]));
    let total = AtomicU64::new(0);
    let rate = best((each * pool.threads() * size_of::<Line>()) as f64, || {
        let done = pool.run(pool.threads(), &|n| {
            total.fetch_add(sum(part(n)), Ordering::Relaxed);
        });
        std::hint::black_box(done).ok();
    });
    if filled.is_ok() { rate } else { 0.0 }
}

/// The sum of one word of each line, which brings the whole line.
fn sum(lines: &[Line]) -> u64 {
    let mut sums = [0u64; STREAMS];
    let each = lines.len() / STREAMS;
    for i in 0..each {
        for stream in 0..STREAMS {
            sums[stream] = sums[stream].wrapping_add(lines[stream * each + i][0]);
        }
    }
    sums.into_iter().fold(0, u64::wrapping_add)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_is_read() {
        let lines: Vec<Line> = (0..1000).map(|i| [i; 8]).collect();
        assert_eq!(sum(&lines), 999 * 500);
    }

    #[test]
    fn more_operations_than_bytes() {
        let (flops, bytes) = measure(&Pool::new(1));
        assert!(flops > 1e6 && bytes > 1e6, "{flops} {bytes}");
    }
}
