//! Products with few columns: the operand with the rows passes through once, at the speed of memory.
//!
//! A core reads one stream at about half of the speed at which it reads several, so several rows (or steps along k) are read side
//! by side. The order of each sum depends on k alone.

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

/// Vectors of sums of one dot product.
const SUMS: usize = 4;
/// Bytes that are asked for ahead in each stream.
const AHEAD: usize = 1024;
/// Steps along k that are read side by side.
const SIDE_BY_SIDE: usize = 8;

/// # Safety
/// All that is named must be valid, and the processor must have the unit. Operands are packed elements.
#[inline(always)]
pub unsafe fn few<S: Simd>(f: &Few) {
    let element = S::BYTES as isize;
    // SAFETY: as promised by the caller.
    unsafe {
        if f.a_row == element && f.c_row == element {
            lines::<S>(f);
        } else if S::LANES == 16 {
            dots::<S, 4>(f);
        } else {
            dots::<S, 2>(f);
        }
    }
}

/// Dot products along k, those of `R` distant rows side by side.
#[inline(always)]
unsafe fn dots<S: Simd, const R: usize>(f: &Few) {
    let each = f.rows / R;
    // SAFETY: as promised to `few`.
    unsafe {
        for row in 0..each {
            dots_of::<S, R>(f, std::array::from_fn(|r| (r * each + row) as isize));
        }
        for row in each * R..f.rows {
            dots_of::<S, 1>(f, [row as isize]);
        }
    }
}

#[inline(always)]
#[expect(clippy::needless_range_loop, reason = "loops with constant bounds over arrays that are registers")]
unsafe fn dots_of<S: Simd, const R: usize>(f: &Few, rows: [isize; R]) {
    let vector = S::LANES * S::BYTES;
    // SAFETY: as promised to `few`.
    unsafe {
        for column in 0..f.columns as isize {
            let mut a = rows.map(|row| f.a.offset(row * f.a_row));
            let mut b = f.b.offset(column * f.b_column);
            let mut sums = [[S::zero(); SUMS]; R];
            for _ in 0..f.k / (SUMS * S::LANES) {
                for i in 0..SUMS {
                    let y = S::load(b.add(i * vector));
                    for r in 0..R {
                        expect(a[r].wrapping_add(i * vector + AHEAD));
                        sums[r][i] = S::multiply_add(S::load(a[r].add(i * vector)), y, sums[r][i]);
                    }
                }
                a = a.map(|a| a.add(SUMS * vector));
                b = b.add(SUMS * vector);
            }
            let mut left = f.k % (SUMS * S::LANES);
            while left > 0 {
                let mask = S::mask(left.min(S::LANES));
                let y = S::load_part(b, mask);
                for r in 0..R {
                    sums[r][0] = S::multiply_add(S::load_part(a[r], mask), y, sums[r][0]);
                }
                left -= left.min(S::LANES);
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
unsafe fn lines<S: Simd>(f: &Few) {
    // SAFETY: as promised to `few`.
    unsafe {
        let mut first = 0;
        while first + SIDE_BY_SIDE <= f.k {
            steps::<S, SIDE_BY_SIDE>(f, first);
            first += SIDE_BY_SIDE;
        }
        while first < f.k {
            steps::<S, 1>(f, first);
            first += 1;
        }
        if f.k == 0 {
            steps::<S, 0>(f, 0);
        }
    }
}

/// Steps `first .. first + K` along k.
#[inline(always)]
unsafe fn steps<S: Simd, const K: usize>(f: &Few, first: usize) {
    let vector = S::LANES * S::BYTES;
    // SAFETY: as promised to `few`.
    unsafe {
        for column in 0..f.columns as isize {
            let b = f.b.offset(column * f.b_column);
            let y: [S::Vector; K] = std::array::from_fn(|j| S::splat(b.offset((first + j) as isize * f.b_k)));
            let a: [*const u8; K] = std::array::from_fn(|j| f.a.offset((first + j) as isize * f.a_k));
            let c = f.c.offset(column * f.c_column);
            let whole = f.rows / S::LANES;
            for at in (0..whole).map(|i| i * vector) {
                let mut sum = if first > 0 || f.add { S::load(c.add(at)) } else { S::zero() };
                for j in 0..K {
                    // The same rows of the next steps.
                    expect(a[j].wrapping_offset(K as isize * f.a_k).wrapping_add(at));
                    sum = S::multiply_add(S::load(a[j].add(at)), y[j], sum);
                }
                S::store(c.add(at), sum);
            }
            let left = f.rows % S::LANES;
            if left > 0 {
                let (mask, at) = (S::mask(left), whole * vector);
                let mut sum = if first > 0 || f.add { S::load_part(c.add(at), mask) } else { S::zero() };
                for j in 0..K {
                    sum = S::multiply_add(S::load_part(a[j].add(at), mask), y[j], sum);
                }
                S::store_part(c.add(at), mask, sum);
            }
        }
    }
}
