//! What attention does element by element between its products: softmax as it goes, its derivative, sums of rows.
//!
//! Written once over arrays; [`Rows`] holds the functions compiled for the processor's vectors.

use super::real::{Real, Stored};
use crate::runtime::device::product::Unit;

/// Queries that softmax goes through at a time.
pub const LANES: usize = 32;
/// Keys that its derivative goes through at a time.
const STEP: usize = 16;

/// Scores of [`LANES`] queries, side by side, by some keys, one below the other.
pub struct Softmax<R> {
    /// Replaced by the weights e^(score - top).
    pub scores: *mut R,
    /// Elements from key to key.
    pub stride: usize,
    pub keys: usize,
    /// The keys that any of the queries sees.
    pub seen: std::ops::Range<usize>,
    /// The position of the first query, less that of the first key.
    pub ahead: i64,
    pub causal: bool,
    pub reach: Option<u32>,
    pub scale: R,
    /// 0: none.
    pub cap: R,
    /// What is added to scores, as they lie; -inf where a key is not seen.
    pub extra: Option<*const R>,
    /// For each query so far: the largest score (by the scale, unless `changes`), and the sum of weights.
    pub top: *mut R,
    pub total: *mut R,
    /// Set to what the weights of earlier keys shrink by.
    pub shrink: *mut R,
}

impl<R: Real> Softmax<R> {
    /// Whether scores are more than products by a positive scale.
    pub fn changes(scale: f64, cap: f64, extra: bool) -> bool {
        cap > 0.0 || extra || scale <= 0.0
    }
}

#[inline(always)]
unsafe fn softmax<R: Real, const FMA: bool>(w: &Softmax<R>) {
    let changes = Softmax::<R>::changes(w.scale.value(), w.cap.value(), w.extra.is_some());
    // SAFETY: the caller's arrays hold `LANES` elements for every key and query list.
    unsafe {
        let row = |k: usize| &mut *w.scores.add(k * w.stride).cast::<[R; LANES]>();
        if changes {
            for k in w.seen.clone() {
                let s = row(k);
                s.iter_mut().for_each(|s| *s = *s * w.scale);
                if w.cap > R::default() {
                    s.iter_mut().for_each(|s| *s = w.cap * (*s / w.cap).tanh_inline::<FMA>());
                }
                if let Some(extra) = w.extra {
                    let extra = &*extra.add(k * w.stride).cast::<[R; LANES]>();
                    for i in 0..LANES {
                        s[i] = if extra[i] == R::LOWEST { R::LOWEST } else { s[i] + extra[i] };
                    }
                }
            }
        }
        let factor = if changes { R::ONE } else { w.scale };
        for k in w.seen.clone() {
            // Query i is `ahead + i - k` positions after the key.
            let first = k as i64 - w.ahead;
            if w.causal && first > 0 {
                row(k)[..first.min(LANES as i64) as usize].fill(R::LOWEST);
            }
            if let Some(reach) = w.reach
                && first + i64::from(reach) < LANES as i64
            {
                row(k)[(first + i64::from(reach)).max(0) as usize..].fill(R::LOWEST);
            }
        }
        let (top, total) = (&mut *w.top.cast::<[R; LANES]>(), &mut *w.total.cast::<[R; LANES]>());
        let shrink = &mut *w.shrink.cast::<[R; LANES]>();
        // In memory, and a few keys at a time: the compiler makes vectors of the loop only then.
        let largest = &mut *w.shrink.cast::<[R; LANES]>();
        *largest = *top;
        let larger = |x: R, y: R| if x > y { x } else { y };
        let mut k = w.seen.start;
        while k + 4 <= w.seen.end {
            let [a, b, c, d] = [k, k + 1, k + 2, k + 3].map(|k| &*w.scores.add(k * w.stride).cast::<[R; LANES]>());
            for i in 0..LANES {
                largest[i] = larger(larger(a[i], b[i]), larger(larger(c[i], d[i]), largest[i]));
            }
            k += 4;
        }
        for k in k..w.seen.end {
            let s = row(k);
            for i in 0..LANES {
                largest[i] = larger(s[i], largest[i]);
            }
        }
        let largest = *largest;
        let mut base = largest;
        for i in 0..LANES {
            base[i] = if largest[i] == R::LOWEST { R::default() } else { largest[i] };
            shrink[i] = ((top[i] - base[i]) * factor).exp_inline::<FMA>();
        }
        let mut sum = [R::default(); LANES];
        for k in w.seen.clone() {
            let s = row(k);
            for i in 0..LANES {
                let weight = ((s[i] - base[i]) * factor).exp_inline::<FMA>();
                s[i] = weight;
                sum[i] = sum[i] + weight;
            }
        }
        for i in 0..LANES {
            total[i] = total[i].multiply_add::<FMA>(shrink[i], sum[i]);
        }
        *top = largest;
        for k in (0..w.seen.start).chain(w.seen.end..w.keys) {
            *row(k) = [R::default(); LANES];
        }
    }
}

/// Products of some queries, one below the other, with some keys, side by side.
pub struct Backward<R> {
    /// Of queries and keys; replaced by the weights.
    pub scores: *mut R,
    /// Of the result's cotangent and the values; replaced by the cotangents of the products of queries and keys.
    pub by_weight: *mut R,
    /// Elements from query to query in all arrays.
    pub stride: usize,
    pub queries: usize,
    /// Keys, those that fill the last vector included.
    pub keys: usize,
    /// Of each query the keys that it sees.
    pub seen: *const [usize; 2],
    pub scale: R,
    pub cap: R,
    pub extra: Option<*const R>,
    /// Of each query the logsumexp, and the result times its cotangent.
    pub log: *const R,
    pub level: *const R,
}

#[inline(always)]
unsafe fn backward<R: Real, const FMA: bool>(w: &Backward<R>) {
    // SAFETY: the caller's arrays hold rows of `stride` elements, a multiple of `STEP`, and lists an element a query.
    unsafe {
        for q in 0..w.queries {
            let [begin, end] = *w.seen.add(q);
            let (log, level) = (*w.log.add(q), *w.level.add(q));
            for k in (0..w.keys).step_by(STEP) {
                let p = &mut *w.scores.add(q * w.stride + k).cast::<[R; STEP]>();
                let d = &mut *w.by_weight.add(q * w.stride + k).cast::<[R; STEP]>();
                if k >= end || k + STEP <= begin {
                    (*p, *d) = ([R::default(); STEP], [R::default(); STEP]);
                    continue;
                }
                let (mut score, mut slope) = (*p, [w.scale; STEP]);
                score.iter_mut().for_each(|s| *s = *s * w.scale);
                if w.cap > R::default() {
                    for i in 0..STEP {
                        let t = (score[i] / w.cap).tanh_inline::<FMA>();
                        score[i] = w.cap * t;
                        slope[i] = w.scale * (R::ONE - t * t);
                    }
                }
                if let Some(extra) = w.extra {
                    let extra = &*extra.add(q * w.stride + k).cast::<[R; STEP]>();
                    for i in 0..STEP {
                        score[i] = if extra[i] == R::LOWEST { R::LOWEST } else { score[i] + extra[i] };
                    }
                }
                let (first, last) = (begin.saturating_sub(k) as i32, (end - k).min(STEP) as i32);
                for i in 0..STEP {
                    let seen = (i as i32 >= first) & ((i as i32) < last) & (score[i] != R::LOWEST);
                    let weight = (score[i] - log).exp_inline::<FMA>();
                    let by_product = weight * (d[i] - level) * slope[i];
                    p[i] = if seen { weight } else { R::default() };
                    d[i] = if seen { by_product } else { R::default() };
                }
            }
        }
    }
}

/// Rows of results in scratch memory, and where they go.
pub struct Finish<'a, R> {
    pub from: *const R,
    /// Elements from row to row.
    pub stride: usize,
    pub rows: usize,
    pub width: usize,
    /// What each row is multiplied by.
    pub by: Option<&'a [R]>,
    pub to: *mut u8,
    /// In bytes.
    pub row_step: isize,
    pub step: isize,
}

#[inline(always)]
unsafe fn finish<E: Stored>(w: &Finish<E::Sum>) {
    let near = w.step == size_of::<E>() as isize;
    // SAFETY: all rows are in the caller's arrays.
    unsafe {
        for r in 0..w.rows {
            let from = std::slice::from_raw_parts(w.from.add(r * w.stride), w.width);
            let to = w.to.offset(r as isize * w.row_step);
            let by = w.by.map_or(<E::Sum as Real>::ONE, |by| by[r]);
            if near {
                let to = std::slice::from_raw_parts_mut(to.cast::<E>(), w.width);
                to.iter_mut().zip(from).for_each(|(to, x)| *to = E::narrow(*x * by));
            } else {
                for (i, x) in from.iter().enumerate() {
                    *to.offset(i as isize * w.step).cast::<E>() = E::narrow(*x * by);
                }
            }
        }
    }
}

/// Rows of two arrays, a multiple of 16 elements wide.
pub struct Level<R> {
    pub x: *const R,
    pub y: *const R,
    /// Elements from row to row in each.
    pub strides: [isize; 2],
    pub rows: usize,
    pub width: usize,
    pub to: *mut R,
}

#[inline(always)]
unsafe fn level<R: Real, const FMA: bool>(w: &Level<R>) {
    // SAFETY: both arrays hold all rows.
    unsafe {
        for r in 0..w.rows {
            let mut sums = [R::default(); STEP];
            let [x, y] = [(w.x, w.strides[0]), (w.y, w.strides[1])].map(|(at, step)| at.offset(r as isize * step));
            for i in (0..w.width).step_by(STEP) {
                let (x, y) = (&*x.add(i).cast::<[R; STEP]>(), &*y.add(i).cast::<[R; STEP]>());
                for i in 0..STEP {
                    sums[i] = x[i].multiply_add::<FMA>(y[i], sums[i]);
                }
            }
            *w.to.add(r) = sums.into_iter().fold(R::default(), |a, x| a + x);
        }
    }
}

/// Multiplies each row by a number.
#[inline(always)]
unsafe fn shrink<R: Real>(rows: *mut R, width: usize, by: &[R]) {
    for (r, by) in by.iter().enumerate() {
        // SAFETY: the caller's array holds a row for each number.
        let row = unsafe { std::slice::from_raw_parts_mut(rows.add(r * width), width) };
        row.iter_mut().for_each(|x| *x = *x * *by);
    }
}

/// The functions for one kind of processor, which they may be called on.
pub struct Rows<E: Stored> {
    pub softmax: unsafe fn(&Softmax<E::Sum>),
    pub backward: unsafe fn(&Backward<E::Sum>),
    pub finish: unsafe fn(&Finish<E::Sum>),
    pub level: unsafe fn(&Level<E::Sum>),
    pub shrink: unsafe fn(*mut E::Sum, usize, &[E::Sum]),
}

macro_rules! versions {
    ($module:ident, $features:literal) => {
        #[cfg(target_arch = "x86_64")]
        mod $module {
            use super::*;

            #[target_feature(enable = $features)]
            unsafe fn softmax<R: Real>(w: &Softmax<R>) {
                // SAFETY: as promised by the caller.
                unsafe { super::softmax::<R, true>(w) }
            }
            #[target_feature(enable = $features)]
            unsafe fn backward<R: Real>(w: &Backward<R>) {
                // SAFETY: as promised by the caller.
                unsafe { super::backward::<R, true>(w) }
            }
            #[target_feature(enable = $features)]
            unsafe fn finish<E: Stored>(w: &Finish<E::Sum>) {
                // SAFETY: as promised by the caller.
                unsafe { super::finish::<E>(w) }
            }
            #[target_feature(enable = $features)]
            unsafe fn level<R: Real>(w: &Level<R>) {
                // SAFETY: as promised by the caller.
                unsafe { super::level::<R, true>(w) }
            }
            #[target_feature(enable = $features)]
            unsafe fn shrink<R: Real>(rows: *mut R, width: usize, by: &[R]) {
                // SAFETY: as promised by the caller.
                unsafe { super::shrink(rows, width, by) }
            }
            pub fn rows<E: Stored>() -> Rows<E> {
                Rows { softmax, backward, finish: finish::<E>, level, shrink }
            }
        }
    };
}

versions!(wide, "avx512f,avx2,fma,f16c");
versions!(narrow, "avx2,fma,f16c");

impl<E: Stored> Rows<E> {
    /// The unit must be one of this processor.
    pub fn of(unit: Unit) -> Rows<E> {
        // On 64-bit ARM the instruction is always there.
        const FMA: bool = cfg!(target_arch = "aarch64");
        match unit {
            #[cfg(target_arch = "x86_64")]
            Unit::Avx512 { .. } | Unit::Amx => wide::rows(),
            #[cfg(target_arch = "x86_64")]
            Unit::Avx2 => narrow::rows(),
            _ => Rows {
                softmax: softmax::<E::Sum, FMA>,
                backward: backward::<E::Sum, FMA>,
                finish: finish::<E>,
                level: level::<E::Sum, FMA>,
                shrink: shrink::<E::Sum>,
            },
        }
    }
}
