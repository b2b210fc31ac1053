//! Copies operands into panels: for every step along k the rows of a panel side by side, converted to what tiles read.

use std::marker::PhantomData;

use super::super::library::Element;
use super::tile::expect;
use half::{bf16, f16};

/// Steps along k that are packed together when the source runs along k, so that a panel's lines are filled while they
/// are in the first cache.
const STEPS: usize = 64;
/// Steps that are asked for ahead.
const AHEAD: isize = 8;
/// Rows that are asked for ahead where the source runs along k.
const NEXT_ROWS: usize = 16;
/// Panels that are written side by side when the source runs along the rows.
const PANELS: usize = 8;

/// Rows of an operand (columns, for b) to pack into panels of `width` rows, one after the other. Steps are in bytes.
pub struct Pack {
    pub from: *const u8,
    pub rows: usize,
    pub row_step: isize,
    /// Terms of the sum.
    pub terms: usize,
    pub term_step: isize,
    pub width: usize,
    pub to: *mut u8,
}

pub type PackFn = unsafe fn(&Pack);

/// How elements of an operand become packed elements.
///
/// Pointers must be valid for what is named.
pub trait Form {
    type Source: Copy;
    type Unit: Copy;
    /// Terms in one packed element.
    const GROUP: usize;
    /// Packed elements along k come in multiples of this, the last ones zero.
    const PAD: usize = 1;
    /// Of `terms` terms from here on, at most a group.
    unsafe fn one(from: *const u8, term_step: isize, terms: usize) -> Self::Unit;
    /// The same for `W` neighbouring rows.
    #[inline(always)]
    unsafe fn run<const W: usize>(from: *const u8, term_step: isize, terms: usize, to: *mut Self::Unit) {
        // All read before any is written, so that the compiler may use vectors.
        // SAFETY: as promised by the caller.
        unsafe {
            let units: [Self::Unit; W] =
                std::array::from_fn(|i| Self::one(from.add(i * size_of::<Self::Source>()), term_step, terms));
            to.cast::<[Self::Unit; W]>().write_unaligned(units);
        }
    }
    /// Four rows by four packed elements that follow one another along k; to rows of `width` elements.
    #[inline(always)]
    unsafe fn square(from: *const u8, row_step: isize, width: usize, to: *mut Self::Unit) {
        let size = size_of::<Self::Source>();
        for i in 0..4 {
            for j in 0..4 {
                // SAFETY: as promised by the caller.
                unsafe {
                    let from = from.offset(i as isize * row_step).add(j * Self::GROUP * size);
                    *to.add(j * width + i) = Self::one(from, size as isize, Self::GROUP);
                }
            }
        }
    }
}

/// # Safety
/// All rows and terms of the source must be valid, and the target must hold all panels, the last one whole.
#[inline(always)]
pub unsafe fn pack<F: Form>(p: &Pack) {
    let filled = p.terms.div_ceil(F::GROUP);
    let steps = filled.next_multiple_of(F::PAD);
    let size = size_of::<F::Source>() as isize;
    let to: *mut F::Unit = p.to.cast();
    // SAFETY: as promised by the caller; every pointer below stays within the rows, terms and panels named.
    unsafe {
        if steps > filled {
            for first in (0..p.rows).step_by(p.width) {
                to.add(first * steps + filled * p.width).write_bytes(0, (steps - filled) * p.width);
            }
        }
        if p.row_step == size {
            match p.width {
                6 => along_rows::<F, 6>(p, steps, to),
                width if width % 16 == 0 => along_rows::<F, 16>(p, steps, to),
                width if width % 8 == 0 => along_rows::<F, 8>(p, steps, to),
                width if width % 4 == 0 => along_rows::<F, 4>(p, steps, to),
                _ => along_rows::<F, 2>(p, steps, to),
            }
        } else {
            for first in (0..p.rows).step_by(p.width) {
                let rows = p.width.min(p.rows - first);
                let from = p.from.offset(first as isize * p.row_step);
                across_rows::<F>(p, from, rows, filled, to.add(first * steps));
            }
        }
    }
}

#[inline(always)]
unsafe fn along_rows<F: Form, const W: usize>(p: &Pack, steps: usize, to: *mut F::Unit) {
    let size = size_of::<F::Source>();
    let group = p.width * PANELS;
    let whole = p.rows / p.width * p.width;
    // SAFETY: as promised to `pack`.
    unsafe {
        for first in (0..p.rows).step_by(group) {
            let end = p.rows.min(first + group);
            for step in 0..p.terms.div_ceil(F::GROUP) {
                let terms = F::GROUP.min(p.terms - step * F::GROUP);
                let from = p.from.offset((step * F::GROUP) as isize * p.term_step);
                // The next steps are far away, often in other pages, where no processor looks ahead by itself.
                let ahead = from.wrapping_offset(AHEAD * F::GROUP as isize * p.term_step);
                (first * size..end * size).step_by(64).for_each(|at| expect(ahead.wrapping_add(at)));
                let mut row = first;
                while row < end.min(whole) {
                    let (from, to) = (from.add(row * size), to.add(row * steps + step * p.width));
                    let mut i = 0;
                    while i < p.width {
                        F::run::<W>(from.add(i * size), p.term_step, terms, to.add(i));
                        i += W;
                    }
                    row += p.width;
                }
                if row < end {
                    let to = to.add(row * steps + step * p.width);
                    for i in 0..p.width {
                        if row + i < end {
                            *to.add(i) = F::one(from.add((row + i) * size), p.term_step, terms);
                        } else {
                            to.add(i).write_bytes(0, 1);
                        }
                    }
                }
            }
        }
    }
}

#[inline(always)]
unsafe fn across_rows<F: Form>(p: &Pack, from: *const u8, rows: usize, steps: usize, to: *mut F::Unit) {
    let size = size_of::<F::Source>() as isize;
    let along = p.term_step == size;
    // SAFETY: as promised to `pack`.
    unsafe {
        let at = |row: usize, step: usize| {
            from.offset(row as isize * p.row_step).offset((step * F::GROUP) as isize * p.term_step)
        };
        for first in (0..steps).step_by(STEPS) {
            let end = steps.min(first + STEPS);
            // Whole groups of terms alone.
            let whole = if along { first + (end.min(p.terms / F::GROUP) - first) / 4 * 4 } else { first };
            for row in (0..rows / 4 * 4).step_by(4) {
                // What comes next: too short runs for the processor to look ahead by itself.
                let next = row + NEXT_ROWS;
                let (next, step) = if next < rows { (next, first) } else { (next - rows, end) };
                if along && next < rows && step < steps {
                    for row in next..(next + 4).min(rows) {
                        let ahead = at(row, step);
                        (0..STEPS * F::GROUP * size as usize / 64)
                            .for_each(|line| expect(ahead.wrapping_add(line * 64)));
                    }
                }
                for step in (first..whole).step_by(4) {
                    F::square(at(row, step), p.row_step, p.width, to.add(step * p.width + row));
                }
            }
            for row in 0..rows {
                let begin = if row < rows / 4 * 4 { whole } else { first };
                for step in begin..end {
                    let terms = F::GROUP.min(p.terms - step * F::GROUP);
                    *to.add(step * p.width + row) = F::one(at(row, step), p.term_step, terms);
                }
            }
            if rows < p.width {
                (first..end).for_each(|step| to.add(step * p.width + rows).write_bytes(0, p.width - rows));
            }
        }
    }
}

/// f32 as it is.
pub struct Single;

impl Form for Single {
    type Source = f32;
    type Unit = f32;
    const GROUP: usize = 1;
    #[inline(always)]
    unsafe fn one(from: *const u8, _: isize, _: usize) -> f32 {
        // SAFETY: as promised by the caller.
        unsafe { *from.cast() }
    }
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn square(from: *const u8, row_step: isize, width: usize, to: *mut f32) {
        use std::arch::x86_64::_mm_loadu_ps;
        // SAFETY: as promised by the caller.
        unsafe { turn_four([0, 1, 2, 3].map(|i| _mm_loadu_ps(from.offset(i * row_step).cast())), width, to) }
    }
}

/// f64 as it is.
pub struct Double;

impl Form for Double {
    type Source = f64;
    type Unit = f64;
    const GROUP: usize = 1;
    #[inline(always)]
    unsafe fn one(from: *const u8, _: isize, _: usize) -> f64 {
        // SAFETY: as promised by the caller.
        unsafe { *from.cast() }
    }
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn square(from: *const u8, row_step: isize, width: usize, to: *mut f64) {
        use std::arch::x86_64::{_mm_loadu_pd, _mm_storeu_pd, _mm_unpackhi_pd, _mm_unpacklo_pd};
        for (i, j) in [(0, 0), (0, 2), (2, 0), (2, 2)] {
            // SAFETY: as promised by the caller.
            unsafe {
                let x = _mm_loadu_pd(from.offset(i * row_step).cast::<f64>().add(j));
                let y = _mm_loadu_pd(from.offset((i + 1) * row_step).cast::<f64>().add(j));
                _mm_storeu_pd(to.add(j * width).offset(i), _mm_unpacklo_pd(x, y));
                _mm_storeu_pd(to.add((j + 1) * width).offset(i), _mm_unpackhi_pd(x, y));
            }
        }
    }
}

/// bf16 widened to f32.
pub struct Brain;

impl Form for Brain {
    type Source = bf16;
    type Unit = f32;
    const GROUP: usize = 1;
    #[inline(always)]
    unsafe fn one(from: *const u8, _: isize, _: usize) -> f32 {
        // SAFETY: as promised by the caller.
        unsafe { f32::from_bits(u32::from(*from.cast::<u16>()) << 16) }
    }
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn square(from: *const u8, row_step: isize, width: usize, to: *mut f32) {
        use std::arch::x86_64::{_mm_castsi128_ps, _mm_loadl_epi64, _mm_setzero_si128, _mm_unpacklo_epi16};
        // SAFETY: as promised by the caller.
        unsafe {
            let row = |i| _mm_loadl_epi64(from.offset(i * row_step).cast());
            turn_four(
                [0, 1, 2, 3].map(|i| _mm_castsi128_ps(_mm_unpacklo_epi16(_mm_setzero_si128(), row(i)))),
                width,
                to,
            );
        }
    }
}

/// f16 widened to f32; `F16C`: by the instruction of that name.
pub struct Small<const F16C: bool>;

impl<const F16C: bool> Form for Small<F16C> {
    type Source = f16;
    type Unit = f32;
    const GROUP: usize = 1;
    #[inline(always)]
    unsafe fn one(from: *const u8, _: isize, _: usize) -> f32 {
        #[cfg(target_arch = "x86_64")]
        if F16C {
            use std::arch::x86_64::{_mm_cvtph_ps, _mm_cvtsi32_si128, _mm_cvtss_f32};
            // SAFETY: as promised by the caller; the instruction is there where this form is chosen.
            unsafe { return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(i32::from(*from.cast::<u16>())))) }
        }
        // SAFETY: as promised by the caller.
        unsafe { (*from.cast::<f16>()).to_f32() }
    }
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn run<const W: usize>(from: *const u8, _: isize, _: usize, to: *mut f32) {
        use std::arch::x86_64::{_mm_loadu_si128, _mm256_cvtph_ps, _mm256_storeu_ps};
        // SAFETY: as promised by the caller; the instruction is there where this form is chosen.
        unsafe {
            if F16C && W.is_multiple_of(8) {
                for i in (0..W).step_by(8) {
                    _mm256_storeu_ps(to.add(i), _mm256_cvtph_ps(_mm_loadu_si128(from.add(2 * i).cast())));
                }
            } else {
                (0..W).for_each(|i| *to.add(i) = Self::one(from.add(2 * i), 0, 1));
            }
        }
    }
}

/// Anything widened to f64.
pub struct Wide<E>(PhantomData<E>);

impl<E: Element> Form for Wide<E> {
    type Source = E;
    type Unit = f64;
    const GROUP: usize = 1;
    #[inline(always)]
    unsafe fn one(from: *const u8, _: isize, _: usize) -> f64 {
        // SAFETY: as promised by the caller.
        unsafe { (*from.cast::<E>()).value() }
    }
}

/// bf16 in pairs of terms, the first one in the lower half.
pub struct Pairs;

impl Form for Pairs {
    type Source = bf16;
    type Unit = u32;
    const GROUP: usize = 2;
    #[inline(always)]
    unsafe fn one(from: *const u8, term_step: isize, terms: usize) -> u32 {
        // SAFETY: as promised by the caller.
        unsafe {
            let first = u32::from(*from.cast::<u16>());
            if terms < 2 { first } else { first | u32::from(*from.offset(term_step).cast::<u16>()) << 16 }
        }
    }
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn square(from: *const u8, row_step: isize, width: usize, to: *mut u32) {
        use std::arch::x86_64::_mm_loadu_ps;
        // SAFETY: as promised by the caller. Only moved, so that it does not matter what the bits mean.
        unsafe { turn_four([0, 1, 2, 3].map(|i| _mm_loadu_ps(from.offset(i * row_step).cast())), width, to.cast()) }
    }
}

/// Pairs in panels of whole registers of the matrix unit.
#[cfg(target_arch = "x86_64")]
pub struct Blocks;

#[cfg(target_arch = "x86_64")]
impl Form for Blocks {
    type Source = bf16;
    type Unit = u32;
    const GROUP: usize = 2;
    const PAD: usize = 16;
    #[inline(always)]
    unsafe fn one(from: *const u8, term_step: isize, terms: usize) -> u32 {
        // SAFETY: as promised by the caller.
        unsafe { Pairs::one(from, term_step, terms) }
    }
    #[inline(always)]
    unsafe fn square(from: *const u8, row_step: isize, width: usize, to: *mut u32) {
        // SAFETY: as promised by the caller.
        unsafe { Pairs::square(from, row_step, width, to) }
    }
}

/// Rows that are read together where they run side by side, so that the lines of all are read whole.
#[cfg(target_arch = "x86_64")]
const SIDE_BY_SIDE: usize = 32;

/// Packs rows one after the other, each along k.
///
/// # Safety
/// As for [`pack`]; the target holds every row by itself.
#[cfg(target_arch = "x86_64")]
pub unsafe fn pack_apart<F: Form>(p: &Pack) {
    let (whole, filled) = (p.terms / F::GROUP, p.terms.div_ceil(F::GROUP));
    let steps = filled.next_multiple_of(F::PAD);
    let to: *mut F::Unit = p.to.cast();
    // SAFETY: as promised by the caller.
    unsafe {
        if p.term_step == size_of::<F::Source>() as isize && size_of::<F::Unit>() == F::GROUP * size_of::<F::Source>() {
            for row in 0..p.rows {
                let from = p.from.offset(row as isize * p.row_step);
                from.copy_to_nonoverlapping(to.add(row * steps).cast(), whole * size_of::<F::Unit>());
            }
        } else {
            for first in (0..p.rows).step_by(SIDE_BY_SIDE) {
                for step in 0..whole {
                    let from = p.from.offset((step * F::GROUP) as isize * p.term_step);
                    for row in first..p.rows.min(first + SIDE_BY_SIDE) {
                        *to.add(row * steps + step) =
                            F::one(from.offset(row as isize * p.row_step), p.term_step, F::GROUP);
                    }
                }
            }
        }
        for row in 0..p.rows {
            let to = to.add(row * steps);
            if whole < filled {
                let from = p.from.offset(row as isize * p.row_step).offset((whole * F::GROUP) as isize * p.term_step);
                *to.add(whole) = F::one(from, p.term_step, p.terms - whole * F::GROUP);
            }
            to.add(filled).write_bytes(0, steps - filled);
        }
    }
}

/// Stores a square of four by four turned.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn turn_four(rows: [std::arch::x86_64::__m128; 4], width: usize, to: *mut f32) {
    use std::arch::x86_64::{_mm_movehl_ps, _mm_movelh_ps, _mm_storeu_ps, _mm_unpackhi_ps, _mm_unpacklo_ps};
    let [a, b, c, d] = rows;
    // SAFETY: as promised by the caller.
    unsafe {
        let (ab, cd) = (_mm_unpacklo_ps(a, b), _mm_unpacklo_ps(c, d));
        let (ab_high, cd_high) = (_mm_unpackhi_ps(a, b), _mm_unpackhi_ps(c, d));
        _mm_storeu_ps(to, _mm_movelh_ps(ab, cd));
        _mm_storeu_ps(to.add(width), _mm_movehl_ps(cd, ab));
        _mm_storeu_ps(to.add(2 * width), _mm_movelh_ps(ab_high, cd_high));
        _mm_storeu_ps(to.add(3 * width), _mm_movehl_ps(cd_high, ab_high));
    }
}
