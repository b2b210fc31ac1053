//! Products of blocks by the register tiles of matrix products, and the packing of operands for them.

use super::ahead::Ahead;
use super::real::{Real, Stored};
use super::rows::{Copy, Rows};
use crate::runtime::device::product::{self, Kernel, Pack, PackFn, Tile, Unit};
use std::ops::Range;

/// Elements that rows in scratch memory are filled up to: a multiple of all vectors' lanes.
pub const PAD: usize = 16;
/// Rows of a panel: a multiple of all vectors' lanes, and few enough for a panel to stay in the first cache.
pub const PANEL: usize = 64;

/// Elements from row to row of a matrix in scratch memory: an odd number of cache lines, so that neighbouring rows do not
/// meet in the same few sets of the cache.
pub fn stride(width: usize) -> usize {
    (width.div_ceil(PAD) | 1) * PAD
}

/// A matrix in memory, by steps in bytes.
#[derive(Clone, Copy)]
pub struct Matrix {
    pub at: *const u8,
    pub row: isize,
    pub column: isize,
}

/// How operands of one type are packed and multiplied.
pub struct Blocks<E: Stored> {
    kernel: Kernel,
    pack: PackFn,
    copy: unsafe fn(&Copy<E::Sum>),
    /// Of an element in scratch memory.
    bytes: usize,
}

/// One product: to[column][row] = sum over terms of a[term][row] * b(term, column). Rows of the result lie side by side,
/// those of a side by side in each panel; steps are in bytes.
pub struct Multiply {
    pub rows: usize,
    pub columns: usize,
    pub a: *const u8,
    pub a_step: isize,
    pub a_panel: usize,
    pub b: *const u8,
    pub b_column: isize,
    pub b_step: isize,
    pub to: *mut u8,
    pub to_column: isize,
    pub add: bool,
}

impl<E: Stored> Blocks<E> {
    pub fn new(unit: Unit) -> Blocks<E> {
        // Pairs of bf16 are of no use here: weights are sums of f32.
        let unit = match unit {
            Unit::Avx512 { .. } | Unit::Amx => Unit::Avx512 { bf16: false },
            other => other,
        };
        let sum = <E::Sum as Real>::DTYPE;
        let (kernel, pack) = (unit.kernel(sum, sum), unit.kernel(E::DTYPE, sum).pack);
        Blocks { kernel, pack, copy: Rows::<E>::of(unit).copy, bytes: sum.bytes() }
    }

    /// Writes rows `stride` elements apart, each filled with zeros up to a multiple of [`PAD`].
    ///
    /// # Safety
    /// The matrix must be valid memory, and the target hold all rows of `stride` elements.
    pub unsafe fn straight(&self, from: Matrix, rows: usize, columns: usize, stride: usize, to: *mut u8) {
        let Matrix { at, row, column } = from;
        // SAFETY: the caller's promise.
        unsafe {
            if column == size_of::<E>() as isize {
                (self.copy)(&Copy { from: at, row_step: row, rows, width: columns, to: to.cast(), stride });
            } else {
                let (rows, row_step, terms, term_step) = (columns, column, rows, row);
                (self.pack)(&Pack { from: at, rows, row_step, terms, term_step, width: stride, to });
            }
        }
    }

    /// Writes columns in panels of [`PANEL`] rows, the last one filled with zeros.
    ///
    /// # Safety
    /// The matrix must be valid memory, and the target hold all panels.
    pub unsafe fn turned(&self, from: Matrix, rows: usize, columns: usize, to: *mut u8) {
        let Matrix { at, row, column } = from;
        let pack = Pack { from: at, rows, row_step: row, terms: columns, term_step: column, width: PANEL, to };
        // SAFETY: the caller's promise.
        unsafe { (self.pack)(&pack) }
    }

    /// Computes a product in which columns may need only some rows and terms: `limits` says which, given the first and
    /// one past the last of some neighbouring columns. Other rows are left as they are.
    ///
    /// # Safety
    /// All that is named must be valid memory.
    pub unsafe fn multiply(
        &self,
        m: &Multiply,
        ahead: &Ahead,
        limits: impl Fn(usize, usize) -> (Range<usize>, Range<usize>),
    ) {
        let kernel = &self.kernel;
        let (lanes, vectors) = (kernel.lanes, m.rows.div_ceil(kernel.lanes));
        let (vector, panel, shift) = (lanes * self.bytes, PANEL / lanes, lanes.trailing_zeros());
        for from in (0..vectors).step_by(panel) {
            let a = m.a.wrapping_add(from / panel * m.a_panel).wrapping_sub(from * vector);
            for first in (0..m.columns).step_by(kernel.columns()) {
                let n = kernel.columns().min(m.columns - first);
                let (rows, terms) = limits(first, first + n);
                let end = ((rows.end.min(m.rows) + lanes - 1) >> shift).min(from + panel);
                let mut at = from.max(rows.start >> shift);
                while at < end && (!m.add || !terms.is_empty()) {
                    let taken = kernel.vectors(end - at);
                    let last = if at + taken == vectors { m.rows - (vectors - 1) * lanes } else { lanes };
                    // SAFETY: the caller's promise; only the rows, columns and terms named are touched.
                    unsafe {
                        kernel.tiles[taken - 1][n - 1](&Tile {
                            k: terms.len(),
                            a: a.wrapping_add(at * vector).offset(terms.start as isize * m.a_step),
                            a_step: m.a_step,
                            b: m.b.offset(first as isize * m.b_column + terms.start as isize * m.b_step),
                            b_columns: m.b_column,
                            b_step: m.b_step,
                            c: m.to.add(at * vector).offset(first as isize * m.to_column),
                            c_columns: m.to_column,
                            last,
                            add: m.add,
                            ahead: product::Ahead::none(m.to),
                        });
                    }
                    ahead.work(taken * lanes * n * terms.len());
                    at += taken;
                }
            }
        }
    }
}
