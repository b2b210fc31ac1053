//! Products of blocks by the register tiles of matrix products, and the packing of operands for them.

use super::real::{Real, Stored};
use crate::runtime::device::product::{Ahead, Kernel, Pack, PackFn, Tile, Unit};
use std::ops::Range;

/// Elements that rows in scratch memory are filled up to: a multiple of all vectors' lanes.
pub const PAD: usize = 16;

/// A matrix in memory, by steps in bytes.
#[derive(Clone, Copy)]
pub struct Matrix {
    pub at: *const u8,
    pub row: isize,
    pub column: isize,
}

/// How operands of one type are packed and multiplied.
pub struct Blocks {
    kernel: Kernel,
    pack: PackFn,
    bytes: usize,
}

/// One product: to[column][row] = sum over terms of a[term][row] * b(term, column). Rows lie side by side; steps in
/// bytes.
pub struct Multiply {
    pub rows: usize,
    pub columns: usize,
    pub a: *const u8,
    pub a_step: isize,
    pub b: *const u8,
    pub b_column: isize,
    pub b_step: isize,
    pub to: *mut u8,
    pub to_column: isize,
    pub add: bool,
}

impl Blocks {
    pub fn new<E: Stored>(unit: Unit) -> Blocks {
        // Pairs of bf16 are of no use here: weights are sums of f32.
        let unit = match unit {
            Unit::Avx512 { .. } | Unit::Amx => Unit::Avx512 { bf16: false },
            other => other,
        };
        let sum = <E::Sum as Real>::DTYPE;
        Blocks { kernel: unit.kernel(sum, sum), pack: unit.kernel(E::DTYPE, sum).pack, bytes: sum.bytes() }
    }

    /// Writes rows one after the other, each filled with zeros up to `width`.
    ///
    /// # Safety
    /// The matrix must be valid memory, and the target hold all rows.
    pub unsafe fn straight(&self, from: Matrix, rows: usize, columns: usize, width: usize, to: *mut u8) {
        let Matrix { at, row, column } = from;
        let pack = Pack { from: at, rows: columns, row_step: column, terms: rows, term_step: row, width, to };
        // SAFETY: the caller's promise.
        unsafe { (self.pack)(&pack) }
    }

    /// Writes columns one after the other, each filled with zeros up to `width`.
    ///
    /// # Safety
    /// As for [`Blocks::straight`].
    pub unsafe fn turned(&self, from: Matrix, rows: usize, columns: usize, width: usize, to: *mut u8) {
        // SAFETY: the caller's promise.
        unsafe { self.straight(Matrix { row: from.column, column: from.row, ..from }, columns, rows, width, to) }
    }

    /// Computes a product in which columns may need only some rows and terms: `limits` says which, given the first and
    /// one past the last of some neighbouring columns. Other rows are left as they are.
    ///
    /// # Safety
    /// All that is named must be valid memory; rows of a must be filled up to a vector's lanes.
    pub unsafe fn multiply(&self, m: &Multiply, limits: impl Fn(usize, usize) -> (Range<usize>, Range<usize>)) {
        let kernel = &self.kernel;
        let (lanes, vectors) = (kernel.lanes, m.rows.div_ceil(kernel.lanes));
        let vector = lanes * self.bytes;
        for first in (0..m.columns).step_by(kernel.columns()) {
            let n = kernel.columns().min(m.columns - first);
            let (rows, terms) = limits(first, first + n);
            let end = rows.end.min(m.rows).div_ceil(lanes);
            let mut at = rows.start / lanes;
            while at < end && (!m.add || !terms.is_empty()) {
                let taken = kernel.vectors(end - at);
                let last = if at + taken == vectors { m.rows - (vectors - 1) * lanes } else { lanes };
                // SAFETY: the caller's promise; only the rows, columns and terms named are touched.
                unsafe {
                    kernel.tiles[taken - 1][n - 1](&Tile {
                        k: terms.len(),
                        a: m.a.add(at * vector).offset(terms.start as isize * m.a_step),
                        a_step: m.a_step,
                        b: m.b.offset(first as isize * m.b_column + terms.start as isize * m.b_step),
                        b_columns: m.b_column,
                        b_step: m.b_step,
                        c: m.to.add(at * vector).offset(first as isize * m.to_column),
                        c_columns: m.to_column,
                        last,
                        add: m.add,
                        ahead: Ahead::none(m.to),
                    });
                }
                at += taken;
            }
        }
    }
}
