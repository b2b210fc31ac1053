//! Products with few columns whose rows are neighbours, too few for long runs of memory: all threads read whole pieces along k,
//! and the sums of the pieces are added at the end. The pieces depend on the shape alone.

use super::super::pool::Pool;
use super::super::share::Shared;
use super::block::Base;
use super::few::{Few, SIDE_BY_SIDE};
use super::finish::Finish;
use super::plan::{SHARED_BYTES, Task, cut};
use crate::types::DType;
use std::ops::{AddAssign, Range};

/// Pieces of k.
const PIECES: usize = 8;
/// Bytes of neighbouring rows that are a long run, of which each thread may take a part.
const LONG_RUN: usize = 16 << 10;
/// Bytes of an operand that are worth two threads.
const LEAST: usize = 256 << 10;
/// Rows that are worth a thread when sums are added.
const ROWS: usize = 1024;

impl Task<'_> {
    /// Whether k is cut into pieces.
    pub fn in_pieces(&self) -> bool {
        let product = self.product;
        let run = self.rows * product.dtype.bytes();
        self.few
            && self.a_row == product.dtype.bytes() as isize
            && product.batches() == 1
            && product.sum_count() == 1
            && run <= LONG_RUN
            && run * self.k >= LEAST
            && self.k >= PIECES * SIDE_BY_SIDE
            && PIECES * self.columns * self.sums_of_column() <= SHARED_BYTES
    }

    /// Bytes of the sums of a column of a piece.
    fn sums_of_column(&self) -> usize {
        self.rows.next_multiple_of(self.kernel.lanes) * self.kernel.sum.bytes()
    }

    /// # Safety
    /// As for a product; `sums` begins [`SHARED_BYTES`] of scratch memory, at a cache line.
    pub unsafe fn run_in_pieces(&self, pool: &Pool, base: &Base, sums: Shared<u8>) -> Result<(), String> {
        let Some(few) = self.kernel.few else { return Err("a product that is none of few columns".to_string()) };
        let column = self.sums_of_column();
        let piece = column * self.columns;
        // Where there are many threads, each takes some rows of a piece.
        let parts = (2 * pool.threads()).div_ceil(PIECES);
        pool.run(PIECES * parts, &|n| {
            let k = cut(self.k, PIECES, SIDE_BY_SIDE, n / parts);
            let rows = cut(self.rows, parts, self.kernel.rows(), n % parts);
            if rows.is_empty() {
                return;
            }
            let sum = self.kernel.sum.bytes();
            // SAFETY: elements of the operands by the caller's promise, and sums of this part alone.
            unsafe {
                few(&Few {
                    rows: rows.len(),
                    columns: self.columns,
                    k: k.len(),
                    a: base.a.offset(k.start as isize * self.a_k + rows.start as isize * self.a_row),
                    a_row: self.a_row,
                    a_k: self.a_k,
                    b: base.b.offset(k.start as isize * self.b_k),
                    b_column: self.b_column,
                    b_k: self.b_k,
                    c: sums.get().add(n / parts * piece + rows.start * sum),
                    c_row: sum as isize,
                    c_column: column as isize,
                    add: false,
                });
            }
        })?;
        pool.split(self.rows, ROWS, &|begin, end| {
            // SAFETY: all sums are there; each row is finished once.
            unsafe {
                match self.kernel.sum {
                    DType::F64 => self.add_pieces::<f64>(begin..end, sums.get()),
                    _ => self.add_pieces::<f32>(begin..end, sums.get()),
                }
                let finish = Finish {
                    from: sums.get().add(begin * self.kernel.sum.bytes()),
                    from_column: column,
                    sum: self.kernel.sum,
                    to: base.c.offset(begin as isize * self.c_row),
                    rows: end - begin,
                    row_step: self.c_row,
                    columns: self.columns,
                    column_step: self.c_column,
                    out: self.product.out,
                    add: self.product.accumulate,
                };
                finish.run();
            }
        })
    }

    /// Adds the sums of all pieces to those of the first one.
    ///
    /// # Safety
    /// They must be there, of type `T`, and nobody else may use those of these rows.
    unsafe fn add_pieces<T: Copy + AddAssign>(&self, rows: Range<usize>, sums: *mut u8) {
        let column = self.sums_of_column();
        // SAFETY: as promised by the caller.
        let of = |n: usize| unsafe { sums.add(n * column).cast::<T>().add(rows.start) };
        for j in 0..self.columns {
            for piece in 1..PIECES {
                // SAFETY: as above; the sums of different pieces are different memory.
                let (all, more) = unsafe {
                    let all = std::slice::from_raw_parts_mut(of(j), rows.len());
                    (all, std::slice::from_raw_parts(of(piece * self.columns + j), rows.len()))
                };
                all.iter_mut().zip(more).for_each(|(sum, x)| *sum += *x);
            }
        }
    }
}
