//! What attention does element by element between its products: softmax as it goes, its derivative, sums of rows.
//!
//! Written once over arrays; [`Rows`] holds the functions compiled for the processor's vectors.

use super::block::PAD;
use super::real::{Real, Stored};
use crate::runtime::device::product::Unit;
use std::ops::Range;

/// Elements that all functions go through at a time: queries in softmax, keys in its derivative.
pub const LANES: usize = 16;

/// Scores of [`LANES`] queries, side by side, by some keys, one below the other.
pub struct Softmax<R> {
    /// Replaced by the weights e^(score - top).
    pub scores: *mut R,
    /// Elements from key to key.
    pub stride: usize,
    /// The keys that any of the queries sees.
    pub seen: Range<usize>,
    /// The keys that any of their neighbours sees, too.
    pub near: Range<usize>,
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

    /// Keys from the first number to the second are seen by all of the queries.
    fn clear(&self) -> Range<usize> {
        let (start, end) = (self.seen.start as i64, self.seen.end as i64);
        let last = if self.causal { self.ahead + 1 } else { end };
        let first = self.reach.map_or(start, |r| self.ahead + LANES as i64 - i64::from(r));
        let first = first.clamp(start, end);
        first as usize..last.clamp(first, end) as usize
    }
}

#[inline(always)]
unsafe fn softmax<R: Real, const FMA: bool>(w: &Softmax<R>) {
    let changes = Softmax::<R>::changes(w.scale.value(), w.cap.value(), w.extra.is_some());
    let larger = |x: R, y: R| if x > y { x } else { y };
    let smaller = |x: R, y: R| if x < y { x } else { y };
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
        let factor = R::of(std::f64::consts::LOG2_E) * if changes { R::ONE } else { w.scale };
        let clear = w.clear();
        // Lanes from a number on stay as they are by the least of them and what begins so far from the first border; lanes up
        // to a number by what begins so far from the second one.
        let mut clip = [R::LOWEST; 3 * LANES];
        clip[LANES..2 * LANES].fill(R::HIGHEST);
        for k in (w.seen.start..clear.start).chain(clear.end..w.seen.end) {
            // Query i is `ahead + i - k` positions after the key.
            let first = k as i64 - w.ahead;
            let end = w.reach.map_or(i64::MAX, |r| first + i64::from(r));
            let first = if w.causal { first } else { i64::MIN };
            let [first, end] = [first, end].map(|x| x.clamp(0, LANES as i64) as usize);
            let [after, before] =
                [LANES - first, 2 * LANES - end].map(|at| *clip.as_ptr().add(at).cast::<[R; LANES]>());
            let s = row(k);
            for i in 0..LANES {
                s[i] = smaller(smaller(s[i], after[i]), before[i]);
            }
        }
        let (top, total) = (&mut *w.top.cast::<[R; LANES]>(), &mut *w.total.cast::<[R; LANES]>());
        let shrink = &mut *w.shrink.cast::<[R; LANES]>();
        let mut largest = *top;
        let mut k = w.seen.start;
        // Some keys at a time: the compiler keeps the largest ones in memory.
        while k + 8 <= w.seen.end {
            let s: [[R; LANES]; 8] = std::array::from_fn(|j| *row(k + j));
            for i in 0..LANES {
                let halves = [0, 4].map(|j| larger(larger(s[j][i], s[j + 1][i]), larger(s[j + 2][i], s[j + 3][i])));
                largest[i] = larger(larger(halves[0], halves[1]), largest[i]);
            }
            k += 8;
        }
        for k in k..w.seen.end {
            let s = row(k);
            for i in 0..LANES {
                largest[i] = larger(s[i], largest[i]);
            }
        }
        let mut base = largest;
        for i in 0..LANES {
            base[i] = if largest[i] == R::LOWEST { R::default() } else { largest[i] };
            shrink[i] = (top[i] - base[i]).power_inline::<FMA>(factor);
        }
        let mut sum = [R::default(); LANES];
        for k in w.seen.clone() {
            let s = row(k);
            for i in 0..LANES {
                let weight = (s[i] - base[i]).power_inline::<FMA>(factor);
                s[i] = weight;
                sum[i] = sum[i] + weight;
            }
        }
        for i in 0..LANES {
            total[i] = total[i].multiply_add::<FMA>(shrink[i], sum[i]);
        }
        *top = largest;
        // Tiles of the product that follows may lie across.
        for k in (w.near.start..w.seen.start).chain(w.seen.end..w.near.end) {
            *row(k) = [R::default(); LANES];
        }
    }
}

/// Ends softmax for some queries.
pub struct End<R> {
    pub queries: usize,
    /// What the largest scores are to be multiplied by.
    pub factor: R,
    /// For each query the largest score; replaced by the logsumexp, inf where no key was seen.
    pub top: *mut R,
    /// For each query the sum of weights; replaced by what the sums of values are to be multiplied by.
    pub total: *mut R,
}

#[inline(always)]
unsafe fn end<R: Real, const FMA: bool>(w: &End<R>) {
    for first in (0..w.queries).step_by(LANES) {
        // SAFETY: the caller's arrays hold a multiple of `LANES` elements.
        let (top, total) =
            unsafe { (&mut *w.top.add(first).cast::<[R; LANES]>(), &mut *w.total.add(first).cast::<[R; LANES]>()) };
        for i in 0..LANES {
            let (t, sum) = (top[i], total[i]);
            let log = t.multiply_add::<FMA>(w.factor, sum.ln_inline::<FMA>());
            top[i] = if t == R::LOWEST { R::HIGHEST } else { log };
            total[i] = if t == R::LOWEST { R::default() } else { R::ONE / sum };
        }
    }
}

/// Products of some queries, one below the other, with some keys, side by side.
pub struct Backward<R> {
    /// Of queries and keys; replaced by the weights.
    pub scores: *mut R,
    /// Of the result's cotangent and the values; replaced by the cotangents of scores before the scale.
    pub by_weight: *mut R,
    /// Elements from query to query in all arrays.
    pub stride: usize,
    pub queries: usize,
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
    let changes = w.cap > R::default() || w.extra.is_some();
    let base = R::of(std::f64::consts::LOG2_E);
    // SAFETY: the caller's arrays hold rows of `stride` elements, a multiple of `LANES`, and lists an element a query.
    unsafe {
        for q in 0..w.queries {
            let [own_begin, own_end] = *w.seen.add(q);
            let (log, level) = (*w.log.add(q), *w.level.add(q));
            // Tiles of the products that follow take neighbours together: up to so many more keys are read.
            let begin = own_begin.saturating_sub(LANES) / LANES * LANES;
            for k in (begin..w.stride.min(own_end + LANES)).step_by(LANES) {
                let p = &mut *w.scores.add(q * w.stride + k).cast::<[R; LANES]>();
                let d = &mut *w.by_weight.add(q * w.stride + k).cast::<[R; LANES]>();
                if !changes && k >= own_begin && k + LANES <= own_end {
                    for i in 0..LANES {
                        let weight = p[i].multiply_add::<FMA>(w.scale, R::default() - log).power_inline::<FMA>(base);
                        p[i] = weight;
                        d[i] = weight * (d[i] - level);
                    }
                    continue;
                }
                if k >= own_end || k + LANES <= own_begin {
                    (*p, *d) = ([R::default(); LANES], [R::default(); LANES]);
                    continue;
                }
                let (mut score, mut slope) = (*p, [R::ONE; LANES]);
                score.iter_mut().for_each(|s| *s = *s * w.scale);
                if w.cap > R::default() {
                    for i in 0..LANES {
                        let t = (score[i] / w.cap).tanh_inline::<FMA>();
                        score[i] = w.cap * t;
                        slope[i] = R::ONE - t * t;
                    }
                }
                if let Some(extra) = w.extra {
                    let extra = &*extra.add(q * w.stride + k).cast::<[R; LANES]>();
                    for i in 0..LANES {
                        score[i] = if extra[i] == R::LOWEST { R::LOWEST } else { score[i] + extra[i] };
                    }
                }
                let (first, last) = (own_begin.saturating_sub(k) as i32, (own_end - k).min(LANES) as i32);
                for i in 0..LANES {
                    let seen = (i as i32 >= first) & ((i as i32) < last) & (score[i] != R::LOWEST);
                    let weight = (score[i] - log).power_inline::<FMA>(base);
                    let by_product = weight * (d[i] - level) * slope[i];
                    p[i] = if seen { weight } else { R::default() };
                    d[i] = if seen { by_product } else { R::default() };
                }
            }
        }
    }
}

/// Rows with their elements side by side, to be copied to scratch memory and filled with zeros up to a multiple of [`PAD`].
pub struct Copy<R> {
    pub from: *const u8,
    /// In bytes.
    pub row_step: isize,
    pub rows: usize,
    pub width: usize,
    pub to: *mut R,
    /// Elements from row to row.
    pub stride: usize,
}

#[inline(always)]
unsafe fn copy<E: Stored>(w: &Copy<E::Sum>) {
    let filled = w.width.next_multiple_of(PAD);
    // SAFETY: all rows are in the caller's arrays.
    unsafe {
        for r in 0..w.rows {
            let from = std::slice::from_raw_parts(w.from.offset(r as isize * w.row_step).cast::<E>(), w.width);
            let to = std::slice::from_raw_parts_mut(w.to.add(r * w.stride), filled);
            E::widen_all(from, to);
            for x in &mut to[w.width..] {
                *x = <E::Sum as Default>::default();
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
    /// What all rows, and each, are multiplied by.
    pub scale: R,
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
            let by = w.by.map_or(w.scale, |by| by[r] * w.scale);
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

/// Rows that are added to others; both have their elements side by side.
pub struct Gather<R> {
    pub from: *const R,
    /// Elements from row to row.
    pub stride: usize,
    pub rows: usize,
    pub width: usize,
    pub scale: R,
    pub to: *mut u8,
    /// In bytes.
    pub row_step: isize,
    /// Whether rows are replaced instead.
    pub replace: bool,
}

#[inline(always)]
unsafe fn gather<R: Real, const FMA: bool>(w: &Gather<R>) {
    // SAFETY: all rows are in the caller's arrays.
    unsafe {
        for r in 0..w.rows {
            let from = std::slice::from_raw_parts(w.from.add(r * w.stride), w.width);
            let to = std::slice::from_raw_parts_mut(w.to.offset(r as isize * w.row_step).cast::<R>(), w.width);
            if w.replace {
                to.iter_mut().zip(from).for_each(|(to, x)| *to = *x * w.scale);
            } else {
                to.iter_mut().zip(from).for_each(|(to, x)| *to = x.multiply_add::<FMA>(w.scale, *to));
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
            let mut sums = [R::default(); LANES];
            let [x, y] = [(w.x, w.strides[0]), (w.y, w.strides[1])].map(|(at, step)| at.offset(r as isize * step));
            for i in (0..w.width).step_by(LANES) {
                let (x, y) = (&*x.add(i).cast::<[R; LANES]>(), &*y.add(i).cast::<[R; LANES]>());
                for i in 0..LANES {
                    sums[i] = x[i].multiply_add::<FMA>(y[i], sums[i]);
                }
            }
            let eight: [R; 8] = std::array::from_fn(|i| sums[i] + sums[i + 8]);
            let four: [R; 4] = std::array::from_fn(|i| eight[i] + eight[i + 4]);
            *w.to.add(r) = (four[0] + four[2]) + (four[1] + four[3]);
        }
    }
}

/// Multiplies each row of `stride` elements by a number.
#[inline(always)]
unsafe fn shrink<R: Real>(rows: *mut R, stride: usize, by: &[R]) {
    for (r, by) in by.iter().enumerate() {
        if *by != R::ONE {
            // SAFETY: the caller's array holds a row for each number.
            let row = unsafe { std::slice::from_raw_parts_mut(rows.add(r * stride), stride) };
            row.iter_mut().for_each(|x| *x = *x * *by);
        }
    }
}

/// The functions for one kind of processor, which they may be called on.
pub struct Rows<E: Stored> {
    pub softmax: unsafe fn(&Softmax<E::Sum>),
    pub end: unsafe fn(&End<E::Sum>),
    pub backward: unsafe fn(&Backward<E::Sum>),
    pub copy: unsafe fn(&Copy<E::Sum>),
    pub finish: unsafe fn(&Finish<E::Sum>),
    pub gather: unsafe fn(&Gather<E::Sum>),
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
            unsafe fn end<R: Real>(w: &End<R>) {
                // SAFETY: as promised by the caller.
                unsafe { super::end::<R, true>(w) }
            }
            #[target_feature(enable = $features)]
            unsafe fn backward<R: Real>(w: &Backward<R>) {
                // SAFETY: as promised by the caller.
                unsafe { super::backward::<R, true>(w) }
            }
            #[target_feature(enable = $features)]
            unsafe fn copy<E: Stored>(w: &Copy<E::Sum>) {
                // SAFETY: as promised by the caller.
                unsafe { super::copy::<E>(w) }
            }
            #[target_feature(enable = $features)]
            unsafe fn finish<E: Stored>(w: &Finish<E::Sum>) {
                // SAFETY: as promised by the caller.
                unsafe { super::finish::<E>(w) }
            }
            #[target_feature(enable = $features)]
            unsafe fn gather<R: Real>(w: &Gather<R>) {
                // SAFETY: as promised by the caller.
                unsafe { super::gather::<R, true>(w) }
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
                Rows { softmax, end, backward, copy: copy::<E>, finish: finish::<E>, gather, level, shrink }
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
                end: end::<E::Sum, FMA>,
                backward: backward::<E::Sum, FMA>,
                copy: copy::<E>,
                finish: finish::<E>,
                gather: gather::<E::Sum, FMA>,
                level: level::<E::Sum, FMA>,
                shrink: shrink::<E::Sum>,
            },
        }
    }
}
