//! Batched matrix products over strided operands.
//!
//! The work is cut along rows, columns and batches only, never along the summed dim, so every element is summed in one
//! order whatever the number of threads.

use super::pool::Pool;
use gemm::Parallelism;

/// A size and how far one step along it moves in each operand, in elements; 0 where an operand lacks it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    pub size: usize,
    pub a: isize,
    pub b: isize,
    pub c: isize,
}

/// c[batch.., m, n] = sum over k of a[batch.., m, k] * b[batch.., k, n]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Product<'a> {
    pub batch: &'a [Extent],
    pub m: Extent,
    pub n: Extent,
    pub k: Extent,
    /// Adds to c instead of replacing it.
    pub accumulate: bool,
}

/// An element type that matrix products are computed in.
pub trait Scalar: Copy + Send + Sync + 'static {
    const ZERO: Self;
    const ONE: Self;
}

impl Scalar for f32 {
    const ZERO: f32 = 0.0;
    const ONE: f32 = 1.0;
}

impl Scalar for f64 {
    const ZERO: f64 = 0.0;
    const ONE: f64 = 1.0;
}

/// Multiply-adds below which one product is not worth two threads.
const SPLIT_WORK: usize = 1 << 19;
/// A piece of a product has at least so many rows or columns. Together with `OTHER` it keeps pieces and whole on the
/// same code path of the `gemm` crate (it has others for vectors and for very small results), hence bitwise equal.
const PIECE: usize = 96;
const OTHER: usize = 4;

impl Product<'_> {
    fn batches(&self) -> usize {
        self.batch.iter().map(|b| b.size).product()
    }

    /// Number of pieces of each product, and whether they cut rows (else columns).
    fn pieces(&self, threads: usize) -> (usize, bool) {
        let by_rows = self.m.size >= self.n.size;
        let (long, short) = if by_rows { (self.m.size, self.n.size) } else { (self.n.size, self.m.size) };
        let work = long.saturating_mul(short).saturating_mul(self.k.size);
        if threads == 1 || short < OTHER || long < 2 * PIECE || work < SPLIT_WORK {
            return (1, by_rows);
        }
        let wanted = threads.div_ceil(self.batches().max(1));
        (wanted.min(long / PIECE).max(1), by_rows)
    }

    /// Computes the product.
    ///
    /// # Safety
    /// Every element that the extents reach from `a`, `b` and `c` must be valid memory of its operand, and no element of
    /// `c` may overlap another one or the operands.
    pub unsafe fn run<T: Scalar>(&self, pool: &Pool, a: *const T, b: *const T, c: *mut T) -> Result<(), String> {
        let batches = self.batches();
        let (pieces, by_rows) = self.pieces(pool.threads());
        let (a, b, c) = (Shared(a.cast_mut()), Shared(b.cast_mut()), Shared(c));
        let one = |batch: usize, piece: usize| {
            // The closure captures the wrappers, not their fields.
            let (a, b, c) = (a.get(), b.get(), c.get());
            let (mut ao, mut bo, mut co) = (0isize, 0isize, 0isize);
            let mut rest = batch;
            for extent in self.batch.iter().rev() {
                let i = (rest % extent.size) as isize;
                rest /= extent.size;
                ao += i * extent.a;
                bo += i * extent.b;
                co += i * extent.c;
            }
            let (mut m, mut n) = (self.m.size, self.n.size);
            let cut = |size: usize, piece: usize| {
                // Multiples of 16 keep the rows of a piece aligned where those of the whole are.
                if piece == pieces { size } else { size * piece / pieces / 16 * 16 }
            };
            if by_rows {
                let (from, to) = (cut(m, piece), cut(m, piece + 1));
                ao += from as isize * self.m.a;
                co += from as isize * self.m.c;
                m = to - from;
            } else {
                let (from, to) = (cut(n, piece), cut(n, piece + 1));
                bo += from as isize * self.n.b;
                co += from as isize * self.n.c;
                n = to - from;
            }
            // SAFETY: the caller vouches for all elements of the product, of which these are a part of their own.
            unsafe {
                gemm::gemm(
                    m,
                    n,
                    self.k.size,
                    c.offset(co),
                    self.n.c,
                    self.m.c,
                    self.accumulate,
                    a.offset(ao),
                    self.k.a,
                    self.m.a,
                    b.offset(bo),
                    self.n.b,
                    self.k.b,
                    T::ONE,
                    T::ONE,
                    false,
                    false,
                    false,
                    Parallelism::None,
                );
            }
        };
        let work = self.m.size.saturating_mul(self.n.size).saturating_mul(self.k.size).max(1);
        if pieces == 1 {
            let least = (SPLIT_WORK / 8 / work).max(1);
            pool.split(batches, least, &|begin, end| (begin..end).for_each(|batch| one(batch, 0)))
        } else {
            pool.run(batches * pieces, &|task| one(task / pieces, task % pieces))
        }
    }
}

/// A pointer that tasks may share: they write disjoint elements.
#[derive(Clone, Copy)]
pub struct Shared<T>(pub *mut T);

impl<T> Shared<T> {
    pub fn get(self) -> *mut T {
        self.0
    }
}

// SAFETY: only an address; those who dereference it see to disjointness.
unsafe impl<T> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Shared<T> {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::rng;

    fn numbers(stream: u64, n: usize) -> Vec<f64> {
        (0..n).map(|i| rng::unit(stream | 1, i as u64) as f64 - 0.5).collect()
    }

    /// Operand layouts: each of a, b, c either way round, inside wider rows, with a gap between batches.
    fn check(m: usize, n: usize, k: usize, batch: usize, ways: [bool; 3], accumulate: bool) {
        let lay = |rows: usize, cols: usize, turned: bool| {
            if turned {
                (1isize, rows as isize + 3, (cols * (rows + 3) + 5) as isize)
            } else {
                (cols as isize + 2, 1, (rows * (cols + 2) + 5) as isize)
            }
        };
        let ((am, ak, ab), (bk, bn, bb), (cm, cn, cb)) = (lay(m, k, ways[0]), lay(k, n, ways[1]), lay(m, n, ways[2]));
        let product = Product {
            batch: &[Extent { size: batch, a: ab, b: bb, c: cb }],
            m: Extent { size: m, a: am, b: 0, c: cm },
            n: Extent { size: n, a: 0, b: bn, c: cn },
            k: Extent { size: k, a: ak, b: bk, c: 0 },
            accumulate,
        };
        let a = numbers(11, batch * ab as usize);
        let b = numbers(12, batch * bb as usize);
        let start = numbers(13, batch * cb as usize);
        let mut expected = start.clone();
        for t in 0..batch {
            for i in 0..m {
                for j in 0..n {
                    let mut sum = 0.0;
                    for l in 0..k {
                        sum += a[t * ab as usize + i * am as usize + l * ak as usize]
                            * b[t * bb as usize + l * bk as usize + j * bn as usize];
                    }
                    let c = &mut expected[t * cb as usize + i * cm as usize + j * cn as usize];
                    *c = if accumulate { *c + sum } else { sum };
                }
            }
        }
        let narrow = |v: &[f64]| v.iter().map(|x| *x as f32).collect::<Vec<f32>>();
        let (a32, b32) = (narrow(&a), narrow(&b));
        let mut first: Option<(Vec<f64>, Vec<f32>)> = None;
        for threads in [1, 2, 3] {
            let pool = Pool::new(threads);
            let (mut c, mut c32) = (start.clone(), narrow(&start));
            // SAFETY: the vectors hold all that the extents reach.
            unsafe {
                product.run(&pool, a.as_ptr(), b.as_ptr(), c.as_mut_ptr()).unwrap();
                product.run(&pool, a32.as_ptr(), b32.as_ptr(), c32.as_mut_ptr()).unwrap();
            }
            for (i, want) in expected.iter().enumerate() {
                assert!((c[i] - want).abs() < 1e-12 * k.max(1) as f64, "f64 {m}x{n}x{k} at {i}: {} for {want}", c[i]);
                let near = (c32[i] as f64 - want).abs() < 1e-6 * k.max(1) as f64;
                assert!(near, "f32 {m}x{n}x{k} at {i}: {} for {want}", c32[i]);
            }
            match &first {
                None => first = Some((c, c32)),
                Some(first) => assert!(*first == (c, c32), "{m}x{n}x{k}: {threads} threads differ"),
            }
        }
    }

    #[test]
    fn any_strides_agree_with_the_plain_sum() {
        for (i, &(m, n, k, batch)) in [
            (1, 1, 1, 1),
            (3, 5, 7, 2),
            (1, 17, 9, 3),
            (17, 1, 33, 1),
            (16, 16, 2, 1),
            (20, 12, 64, 5),
            (5, 5, 0, 2),
            (33, 65, 19, 2),
        ]
        .iter()
        .enumerate()
        {
            for ways in 0..8 {
                let ways = [ways & 1 != 0, ways & 2 != 0, ways & 4 != 0];
                check(m, n, k, batch, ways, i % 2 == 0);
                check(m, n, k, batch, ways, i % 2 != 0);
            }
        }
    }

    #[test]
    fn large_products_are_the_same_on_any_number_of_threads() {
        for ways in [[false, false, false], [true, false, false], [false, true, true]] {
            check(310, 70, 130, 1, ways, false);
            check(9, 401, 600, 2, ways, true);
        }
    }
}
