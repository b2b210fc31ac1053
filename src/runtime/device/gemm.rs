//! Matrix products of a program: any strides, batches and further summed dims, any element types.
//!
//! The work is cut along rows, columns and batches only, never along a summed dim, so every element is summed in one
//! order whatever the number of threads. f32 and f64 operands are used in place; others are widened tile by tile into
//! scratch memory of the thread.

use super::library::Element;
use super::matrix::{self, Scalar};
use super::pool::{Pool, worker};
use super::share::Shared;
use crate::types::DType;
use crate::with_element;

/// A size and how far one step along it moves in each operand, in elements; 0 where an operand lacks it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    pub size: usize,
    pub a: isize,
    pub b: isize,
    pub c: isize,
}

/// c[batch.., m, n] = sum over sums.. and k of a[batch.., m, sums.., k] * b[batch.., sums.., k, n]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Product<'a> {
    pub batch: &'a [Extent],
    pub sums: &'a [Extent],
    pub m: Extent,
    pub n: Extent,
    pub k: Extent,
    /// Adds to c instead of replacing it.
    pub accumulate: bool,
    /// Of a and b.
    pub dtype: DType,
    /// Of c.
    pub out: DType,
}

/// Multiply-adds below which one product is not worth two threads.
const SPLIT_WORK: usize = 1 << 19;
/// A piece of a product has at least so many rows or columns. Together with `OTHER` it keeps pieces and whole on the
/// same code path of the `gemm` crate (it has others for vectors and for very small results), hence bitwise equal.
const PIECE: usize = 96;
const OTHER: usize = 4;

/// Largest tile of a product with operands that are widened: rows, columns, and terms of the sum.
const TILE_M: usize = 256;
const TILE_N: usize = 512;
const TILE_K: usize = 512;
/// Bytes of scratch for each thread: a tile of each operand, in f64 at most.
pub const SCRATCH: usize = (TILE_M * TILE_K + TILE_K * TILE_N + TILE_M * TILE_N) * 8;

impl Product<'_> {
    fn batches(&self) -> usize {
        self.batch.iter().map(|b| b.size).product()
    }

    /// Whether the call needs scratch memory: [`SCRATCH`] bytes for each thread.
    pub fn needs_scratch(dtype: DType, out: DType) -> bool {
        !(dtype == out && matches!(dtype, DType::F32 | DType::F64))
    }

    /// Computes the product. `scratch` is [`SCRATCH`] bytes for each thread of the pool, 8-byte aligned, or empty where it
    /// is not needed.
    ///
    /// # Safety
    /// Every element that the extents reach from `a`, `b` and `c` must be valid memory of its operand, and no element of
    /// `c` may overlap another one or the operands.
    pub unsafe fn run(
        &self,
        pool: &Pool,
        a: *const u8,
        b: *const u8,
        c: *mut u8,
        scratch: &mut [u64],
    ) -> Result<(), String> {
        // SAFETY: the caller's promise, passed on with the types that the dtypes stand for.
        unsafe {
            match (self.dtype, self.out) {
                (DType::F32, DType::F32) => self.in_place(pool, a.cast::<f32>(), b.cast::<f32>(), c.cast::<f32>()),
                (DType::F64, DType::F64) => self.in_place(pool, a.cast::<f64>(), b.cast::<f64>(), c.cast::<f64>()),
                (DType::I32 | DType::Bool, _) => self.integers(pool, a, b, c),
                (DType::F64, _) | (_, DType::F64) => self.widened::<f64>(pool, a, b, c, scratch),
                _ => self.widened::<f32>(pool, a, b, c, scratch),
            }
        }
    }

    /// Offsets of the operands at one index of the given extents.
    fn offsets(extents: &[Extent], index: usize) -> (isize, isize, isize) {
        let (mut a, mut b, mut c, mut rest) = (0, 0, 0, index);
        for extent in extents.iter().rev() {
            let i = (rest % extent.size) as isize;
            rest /= extent.size;
            a += i * extent.a;
            b += i * extent.b;
            c += i * extent.c;
        }
        (a, b, c)
    }

    fn sum_count(&self) -> usize {
        if self.k.size == 0 { 0 } else { self.sums.iter().map(|s| s.size).product() }
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

    unsafe fn in_place<T: Scalar>(&self, pool: &Pool, a: *const T, b: *const T, c: *mut T) -> Result<(), String> {
        let batches = self.batches();
        let sums = self.sum_count();
        let (pieces, by_rows) = self.pieces(pool.threads());
        let (a, b, c) = (Shared(a.cast_mut()), Shared(b.cast_mut()), Shared(c));
        let one = |batch: usize, piece: usize| {
            let (mut ao, mut bo, mut co) = Self::offsets(self.batch, batch);
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
            // An empty sum still clears the result.
            for s in 0..sums.max(1) {
                let (sa, sb, _) = if sums == 0 { (0, 0, 0) } else { Self::offsets(self.sums, s) };
                let k = if sums == 0 { 0 } else { self.k.size };
                // SAFETY: the caller vouches for all elements of the product, of which these are a part of their own.
                unsafe {
                    matrix::multiply(
                        (m, n, k),
                        (a.get().offset(ao + sa), self.m.a, self.k.a),
                        (b.get().offset(bo + sb), self.k.b, self.n.b),
                        (c.get().offset(co), self.m.c, self.n.c),
                        self.accumulate || s > 0,
                    );
                }
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

    unsafe fn widened<T: Scalar>(
        &self,
        pool: &Pool,
        a: *const u8,
        b: *const u8,
        c: *mut u8,
        scratch: &mut [u64],
    ) -> Result<(), String> {
        assert!(scratch.len() * 8 >= SCRATCH * pool.threads(), "scratch for {} threads", pool.threads());
        // Fixed by the shape alone. Smaller tiles where there would be too few.
        let (m, n) = (self.m.size, self.n.size);
        let (tile_m, tile_n) = if m * n < 8 * TILE_M * TILE_N { (TILE_M / 2, TILE_N / 2) } else { (TILE_M, TILE_N) };
        let (rows, cols) = (m.div_ceil(tile_m), n.div_ceil(tile_n));
        let sums = self.sum_count();
        let (a, b, c) = (Shared(a.cast_mut()), Shared(b.cast_mut()), Shared(c));
        let scratch = Shared(scratch.as_mut_ptr());
        pool.run(self.batches() * rows * cols, &|task| {
            let (batch, tile) = (task / (rows * cols), task % (rows * cols));
            let (from_m, from_n) = (tile / cols * tile_m, tile % cols * tile_n);
            let (m, n) = (tile_m.min(m - from_m), tile_n.min(n - from_n));
            let (ao, bo, co) = Self::offsets(self.batch, batch);
            let ao = ao + from_m as isize * self.m.a;
            let bo = bo + from_n as isize * self.n.b;
            let co = co + from_m as isize * self.m.c + from_n as isize * self.n.c;
            // SAFETY: each thread has a part of the scratch of its own; all elements are those of the product.
            unsafe {
                let own: *mut T = scratch.get().add(worker() * SCRATCH / 8).cast();
                let (wide_a, wide_b, wide_c) =
                    (own, own.add(TILE_M * TILE_K), own.add(TILE_M * TILE_K + TILE_K * TILE_N));
                let (mc, nc) = (self.m.c, self.n.c);
                if self.accumulate {
                    with_element!(self.out, C => widen::<C, T>(c.get().cast::<C>().offset(co), (m, mc), (n, nc), wide_c));
                }
                let mut more = self.accumulate;
                for s in 0..sums {
                    let (sa, sb, _) = Self::offsets(self.sums, s);
                    for from_k in (0..self.k.size).step_by(TILE_K) {
                        let k = TILE_K.min(self.k.size - from_k);
                        let ao = ao + sa + from_k as isize * self.k.a;
                        let bo = bo + sb + from_k as isize * self.k.b;
                        with_element!(self.dtype, A => {
                            widen::<A, T>(a.get().cast::<A>().offset(ao), (m, self.m.a), (k, self.k.a), wide_a);
                            widen::<A, T>(b.get().cast::<A>().offset(bo), (k, self.k.b), (n, self.n.b), wide_b);
                        });
                        let (k_step, n_step) = (k as isize, n as isize);
                        matrix::multiply(
                            (m, n, k),
                            (wide_a, k_step, 1),
                            (wide_b, n_step, 1),
                            (wide_c, n_step, 1),
                            more,
                        );
                        more = true;
                    }
                }
                if !more {
                    std::slice::from_raw_parts_mut(wide_c, m * n).fill(T::ZERO);
                }
                with_element!(self.out, C => narrow::<C, T>(wide_c, (m, mc), (n, nc), c.get().cast::<C>().offset(co)));
            }
        })
    }

    /// I32 (wrapping), plainly: these are rare.
    unsafe fn integers(&self, pool: &Pool, a: *const u8, b: *const u8, c: *mut u8) -> Result<(), String> {
        if (self.dtype, self.out) != (DType::I32, DType::I32) {
            return Err(format!("no matrix product of {} giving {}", self.dtype, self.out));
        }
        let sums = self.sum_count();
        let (a, b, c) =
            (Shared(a.cast_mut().cast::<i32>()), Shared(b.cast_mut().cast::<i32>()), Shared(c.cast::<i32>()));
        pool.split(self.batches() * self.m.size, 1, &|begin, end| {
            for row in begin..end {
                let (batch, i) = (row / self.m.size, (row % self.m.size) as isize);
                let (ao, bo, co) = Self::offsets(self.batch, batch);
                for j in 0..self.n.size as isize {
                    // SAFETY: elements of the product; the row of c belongs to this turn alone.
                    unsafe {
                        let c = c.get().offset(co + i * self.m.c + j * self.n.c);
                        let mut sum = if self.accumulate { *c } else { 0i32 };
                        for s in 0..sums {
                            let (sa, sb, _) = Self::offsets(self.sums, s);
                            for l in 0..self.k.size as isize {
                                let x = *a.get().offset(ao + sa + i * self.m.a + l * self.k.a);
                                let y = *b.get().offset(bo + sb + l * self.k.b + j * self.n.b);
                                sum = sum.wrapping_add(x.wrapping_mul(y));
                            }
                        }
                        *c = sum;
                    }
                }
            }
        })
    }
}

/// Copies a strided matrix into a dense row-major one of a wider type. Walks along the operand's shorter stride.
///
/// # Safety
/// All elements must be valid.
unsafe fn widen<A: Element, T: Scalar>(from: *const A, rows: (usize, isize), cols: (usize, isize), to: *mut T) {
    // SAFETY: as promised by the caller.
    unsafe {
        if cols.1.abs() <= rows.1.abs() {
            for i in 0..rows.0 {
                let (from, to) = (from.offset(i as isize * rows.1), to.add(i * cols.0));
                for j in 0..cols.0 {
                    *to.add(j) = T::of(*from.offset(j as isize * cols.1));
                }
            }
        } else {
            for j in 0..cols.0 {
                let (from, to) = (from.offset(j as isize * cols.1), to.add(j));
                for i in 0..rows.0 {
                    *to.add(i * cols.0) = T::of(*from.offset(i as isize * rows.1));
                }
            }
        }
    }
}

/// Copies a dense row-major matrix into a strided one, rounding once.
///
/// # Safety
/// All elements must be valid.
unsafe fn narrow<C: Element, T: Scalar>(from: *const T, rows: (usize, isize), cols: (usize, isize), to: *mut C) {
    for i in 0..rows.0 {
        for j in 0..cols.0 {
            // SAFETY: as promised by the caller.
            unsafe {
                *to.offset(i as isize * rows.1 + j as isize * cols.1) = (*from.add(i * cols.0 + j)).round_to();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::rng;
    use half::{bf16, f16};

    fn numbers(stream: u64, n: usize) -> Vec<f64> {
        // Few bits, so that every type holds them.
        (0..n).map(|i| f64::from(rng::draw_int(33, stream | 1, i as u64) - 16) / 8.0).collect()
    }

    fn bytes(dtype: DType, x: &[f64]) -> Vec<u64> {
        let raw: Vec<u8> = x
            .iter()
            .flat_map(|&x| match dtype {
                DType::F64 => x.to_le_bytes().to_vec(),
                DType::F32 => (x as f32).to_le_bytes().to_vec(),
                DType::BF16 => bf16::from_f64(x).to_le_bytes().to_vec(),
                DType::F16 => f16::from_f64(x).to_le_bytes().to_vec(),
                DType::I32 => ((x * 8.0) as i32).to_le_bytes().to_vec(),
                DType::Bool => unreachable!(),
            })
            .collect();
        raw.chunks(8)
            .map(|c| {
                let mut word = [0; 8];
                word[..c.len()].copy_from_slice(c);
                u64::from_le_bytes(word)
            })
            .collect()
    }

    fn values(dtype: DType, raw: &[u64], n: usize) -> Vec<f64> {
        // SAFETY: as many elements as were written by `bytes`.
        unsafe {
            with_element!(dtype, E => {
                std::slice::from_raw_parts(raw.as_ptr().cast::<E>(), n).iter().map(|x| x.value()).collect()
            })
        }
    }

    struct Case {
        size: (usize, usize, usize),
        batch: usize,
        sum: usize,
        /// Each of a, b, c: whether its columns, not its rows, are dense.
        turned: [bool; 3],
        accumulate: bool,
        dtype: DType,
        out: DType,
    }

    fn check(case: &Case) {
        let Case { size: (m, n, k), batch, sum, turned, accumulate, dtype, out } = *case;
        let lay = |rows: usize, cols: usize, turned: bool| {
            if turned {
                (1isize, rows as isize + 3, (cols * (rows + 3) + 5) as isize)
            } else {
                (cols as isize + 2, 1, (rows * (cols + 2) + 5) as isize)
            }
        };
        let (am, ak, a_next) = lay(m, k, turned[0]);
        let (bk, bn, b_next) = lay(k, n, turned[1]);
        let (cm, cn, c_next) = lay(m, n, turned[2]);
        let (a_batch, b_batch) = (a_next * sum as isize, b_next * sum as isize);
        let product = Product {
            batch: &[Extent { size: batch, a: a_batch, b: b_batch, c: c_next }],
            sums: &[Extent { size: sum, a: a_next, b: b_next, c: 0 }],
            m: Extent { size: m, a: am, b: 0, c: cm },
            n: Extent { size: n, a: 0, b: bn, c: cn },
            k: Extent { size: k, a: ak, b: bk, c: 0 },
            accumulate,
            dtype,
            out,
        };
        let (na, nb, nc) = (batch * a_batch as usize, batch * b_batch as usize, batch * c_next as usize);
        let (a, b, start) =
            (bytes(dtype, &numbers(11, na)), bytes(dtype, &numbers(12, nb)), bytes(out, &numbers(13, nc)));
        let (x, y) = (values(dtype, &a, na), values(dtype, &b, nb));
        let mut expected = values(out, &start, nc);
        let at = |t: usize, next: isize, i: usize, di: isize, j: usize, dj: isize| {
            t * next as usize + i * di as usize + j * dj as usize
        };
        for t in 0..batch {
            for i in 0..m {
                for j in 0..n {
                    let mut total = 0.0;
                    for s in t * sum..(t + 1) * sum {
                        total += (0..k)
                            .map(|l| x[at(s, a_next, i, am, l, ak)] * y[at(s, b_next, l, bk, j, bn)])
                            .sum::<f64>();
                    }
                    let c = &mut expected[at(t, c_next, i, cm, j, cn)];
                    *c = if accumulate { *c + total } else { total };
                }
            }
        }
        let tolerance = match out {
            DType::F64 => 1e-13,
            DType::F32 => 1e-6,
            DType::F16 => 1e-3,
            DType::BF16 => 4e-3,
            DType::I32 | DType::Bool => 0.0,
        };
        let mut first: Option<Vec<u64>> = None;
        for threads in [1, 2, 3] {
            let pool = Pool::new(threads);
            let mut c = start.clone();
            let mut scratch = vec![0; if Product::needs_scratch(dtype, out) { threads * SCRATCH / 8 } else { 0 }];
            // SAFETY: the vectors hold all that the extents reach.
            unsafe {
                product.run(&pool, a.as_ptr().cast(), b.as_ptr().cast(), c.as_mut_ptr().cast(), &mut scratch).unwrap();
            }
            for (i, (got, want)) in values(out, &c, nc).iter().zip(&expected).enumerate() {
                let near = (got - want).abs() <= tolerance * want.abs().max((k * sum).max(1) as f64);
                assert!(near, "{dtype} {m}x{n}x{k} at {i}: {got} for {want}");
            }
            assert!(*first.get_or_insert(c.clone()) == c, "{dtype} {m}x{n}x{k}: {threads} threads differ");
        }
    }

    #[test]
    fn any_strides_and_types_agree_with_the_plain_sum() {
        let sizes = [(1, 1, 1), (3, 5, 7), (1, 17, 9), (17, 1, 33), (16, 16, 2), (20, 12, 64), (5, 5, 0), (33, 65, 19)];
        let types = [
            (DType::F32, DType::F32),
            (DType::F64, DType::F64),
            (DType::BF16, DType::BF16),
            (DType::BF16, DType::F32),
            (DType::F16, DType::F16),
            (DType::F32, DType::F64),
            (DType::I32, DType::I32),
        ];
        for (i, size) in sizes.into_iter().enumerate() {
            for ways in 0..8 {
                let turned = [ways & 1 != 0, ways & 2 != 0, ways & 4 != 0];
                let (dtype, out) = types[(i + ways) % types.len()];
                for accumulate in [false, true] {
                    check(&Case { size, batch: 1 + i % 3, sum: ways % 3, turned, accumulate, dtype, out });
                }
            }
        }
    }

    #[test]
    fn large_products_are_the_same_on_any_number_of_threads() {
        for turned in [[false, false, false], [true, false, false], [false, true, true]] {
            for (dtype, out) in [(DType::F32, DType::F32), (DType::BF16, DType::F32)] {
                let case = |size, batch, accumulate| Case { size, batch, sum: 1, turned, accumulate, dtype, out };
                check(&case((310, 70, 130), 1, false));
                check(&case((9, 401, 600), 2, true));
            }
        }
    }
}
