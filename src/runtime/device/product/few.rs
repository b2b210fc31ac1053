//! Products with few columns: the operand with the rows passes through once, at the speed of memory.
//!
//! A core reads one stream at about half of the speed at which it reads several, so several rows (or steps along k) are read side
//! by side; and a thread should read whole runs of memory, or what its processor reads ahead is another thread's. So where
//! neighbouring rows are short runs, k is cut into pieces instead of the rows: `pieces.rs`. The order of each sum depends on the
//! shape alone.

use super::tile::{Simd, expect};

/// For each of the rows of a and the few columns of b. Either both operands run along k, or rows are neighbours in a and in c.
/// Steps are in bytes.
pub struct Few {
    pub rows: usize,
    pub columns: usize,
    pub k: usize,
    pub a: *const u8,
    pub a_row: isize,
    pub a_k: isize,
    pub b: *const u8,
    pub b_column: isize,
    pub b_k: isize,
    /// In the type of the sum.
    pub c: *mut u8,
    pub c_row: isize,
    pub c_column: isize,
    pub add: bool,
}

pub type FewFn = unsafe fn(&Few);

/// How elements of the operands become lanes of a vector. As for [`Simd`], pointers must be valid for what is read.
pub trait Operand<S: Simd> {
    /// Of an element.
    const BYTES: usize;
    unsafe fn load(from: *const u8) -> S::Vector;
    /// The first `n` lanes, 1 to all; the others are zero.
    unsafe fn load_part(from: *const u8, n: usize) -> S::Vector;
    /// One element in all lanes.
    unsafe fn splat(from: *const u8) -> S::Vector;
}

/// Elements that are lanes already.
pub struct Same;

// SAFETY (of all functions): as the trait demands.
impl<S: Simd> Operand<S> for Same {
    const BYTES: usize = S::BYTES;
    #[inline(always)]
    unsafe fn load(from: *const u8) -> S::Vector {
        unsafe { S::load(from) }
    }
    #[inline(always)]
    unsafe fn load_part(from: *const u8, n: usize) -> S::Vector {
        unsafe { S::load_part(from, S::mask(n)) }
    }
    #[inline(always)]
    unsafe fn splat(from: *const u8) -> S::Vector {
        unsafe { S::splat(from) }
    }
}

/// Some 16-bit elements, and zeros behind them.
///
/// # Safety
/// There must be as many.
#[inline(always)]
pub unsafe fn halves<const N: usize>(from: *const u8, n: usize) -> [u16; N] {
    let mut all = [0; N];
    for (i, x) in all[..n].iter_mut().enumerate() {
        // SAFETY: the caller's promise.
        *x = unsafe { from.cast::<u16>().add(i).read_unaligned() };
    }
    all
}

/// Vectors of sums of one dot product.
const SUMS: usize = 4;
/// Bytes that are asked for ahead in each stream.
const AHEAD: usize = 1024;
/// The same in rows that are short.
const SHORT_AHEAD: isize = 4;
/// Bytes up to which a processor reads ahead by itself.
const PAGE: isize = 4096;
/// Steps along k that are read side by side.
pub const SIDE_BY_SIDE: usize = 8;

/// # Safety
/// All that is named must be valid, and the processor must have the unit. Operands are packed elements.
#[inline(always)]
pub unsafe fn few<S: Simd, O: Operand<S>>(f: &Few) {
    // SAFETY: as promised by the caller.
    unsafe {
        if f.a_row == O::BYTES as isize && f.c_row == S::BYTES as isize {
            lines::<S, O>(f);
        } else if S::LANES == 16 {
            dots::<S, O, 4>(f);
        } else {
            dots::<S, O, 2>(f);
        }
    }
}

/// Dot products along k, those of `R` distant rows side by side.
#[inline(always)]
unsafe fn dots<S: Simd, O: Operand<S>, const R: usize>(f: &Few) {
    let each = f.rows / R;
    // In short rows it is one of the next ones.
    let ahead = if f.k * O::BYTES < 2 * AHEAD { SHORT_AHEAD * f.a_row } else { AHEAD as isize };
    // SAFETY: as promised to `few`.
    unsafe {
        for row in 0..each {
            dots_of::<S, O, R>(f, std::array::from_fn(|r| (r * each + row) as isize), ahead);
        }
        for row in each * R..f.rows {
            dots_of::<S, O, 1>(f, [row as isize], ahead);
        }
    }
}

#[inline(always)]
#[expect(clippy::needless_range_loop, reason = "loops with constant bounds over arrays that are registers")]
unsafe fn dots_of<S: Simd, O: Operand<S>, const R: usize>(f: &Few, rows: [isize; R], ahead: isize) {
    let vector = S::LANES * O::BYTES;
    // SAFETY: as promised to `few`.
    unsafe {
        for column in 0..f.columns as isize {
            let mut a = rows.map(|row| f.a.offset(row * f.a_row));
            let mut b = f.b.offset(column * f.b_column);
            let mut sums = [[S::zero(); SUMS]; R];
            for _ in 0..f.k / (SUMS * S::LANES) {
                for i in 0..SUMS {
                    let y = O::load(b.add(i * vector));
                    for r in 0..R {
                        expect(a[r].wrapping_add(i * vector).wrapping_offset(ahead));
                        sums[r][i] = S::multiply_add(O::load(a[r].add(i * vector)), y, sums[r][i]);
                    }
                }
                a = a.map(|a| a.add(SUMS * vector));
                b = b.add(SUMS * vector);
            }
            let mut left = f.k % (SUMS * S::LANES);
            while left > 0 {
                let n = left.min(S::LANES);
                let y = O::load_part(b, n);
                for r in 0..R {
                    sums[r][0] = S::multiply_add(O::load_part(a[r], n), y, sums[r][0]);
                }
                left -= n;
                a = a.map(|a| a.wrapping_add(vector));
                b = b.wrapping_add(vector);
            }
            for r in 0..R {
                let [p, q, s, t] = sums[r];
                let mut lanes = [S::Sum::default(); 16];
                S::store(lanes.as_mut_ptr().cast(), S::add(S::add(p, q), S::add(s, t)));
                let mut width = S::LANES;
                while width > 1 {
                    width /= 2;
                    (0..width).for_each(|i| lanes[i] = lanes[i] + lanes[i + width]);
                }
                let c = f.c.offset(rows[r] * f.c_row + column * f.c_column).cast::<S::Sum>();
                *c = if f.add { *c + lanes[0] } else { lanes[0] };
            }
        }
    }
}

/// Sums over neighbouring rows: some steps along k at a time are added to all of them.
#[inline(always)]
unsafe fn lines<S: Simd, O: Operand<S>>(f: &Few) {
    // Long runs of memory, one behind the other, the processor reads ahead by itself, and better.
    let apart = f.a_k != (f.rows * O::BYTES) as isize || f.a_k < PAGE;
    // SAFETY: as promised to `few`.
    unsafe {
        let mut first = 0;
        while first + SIDE_BY_SIDE <= f.k {
            if apart {
                steps::<S, O, SIDE_BY_SIDE, true>(f, first);
            } else {
                steps::<S, O, SIDE_BY_SIDE, false>(f, first);
            }
            first += SIDE_BY_SIDE;
        }
        while first < f.k {
            steps::<S, O, 1, false>(f, first);
            first += 1;
        }
        if f.k == 0 {
            steps::<S, O, 0, false>(f, 0);
        }
    }
}

/// Steps `first .. first + K` along k.
#[inline(always)]
unsafe fn steps<S: Simd, O: Operand<S>, const K: usize, const AHEAD: bool>(f: &Few, first: usize) {
    // SAFETY: as promised to `few`.
    unsafe {
        for column in 0..f.columns as isize {
            let b = f.b.offset(column * f.b_column);
            let y: [S::Vector; K] = std::array::from_fn(|j| O::splat(b.offset((first + j) as isize * f.b_k)));
            let a: [*const u8; K] = std::array::from_fn(|j| f.a.offset((first + j) as isize * f.a_k));
            let c = f.c.offset(column * f.c_column);
            let whole = f.rows / S::LANES;
            for i in 0..whole {
                let (at, to) = (i * S::LANES * O::BYTES, c.add(i * S::LANES * S::BYTES));
                let mut sum = if first > 0 || f.add { S::load(to) } else { S::zero() };
                for j in 0..K {
                    if AHEAD {
                        // The same rows of the next steps.
                        expect(a[j].wrapping_offset(K as isize * f.a_k).wrapping_add(at));
                    }
                    sum = S::multiply_add(O::load(a[j].add(at)), y[j], sum);
                }
                S::store(to, sum);
            }
            let left = f.rows % S::LANES;
            if left > 0 {
                let (at, to) = (whole * S::LANES * O::BYTES, c.add(whole * S::LANES * S::BYTES));
                let mask = S::mask(left);
                let mut sum = if first > 0 || f.add { S::load_part(to, mask) } else { S::zero() };
                for j in 0..K {
                    sum = S::multiply_add(O::load_part(a[j].add(at), left), y[j], sum);
                }
                S::store_part(to, mask, sum);
            }
        }
    }
}
