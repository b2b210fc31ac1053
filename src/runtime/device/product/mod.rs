//! Matrix products of a program: any strides, batches and further summed dims, any element types.
//!
//! The scheme is that of Goto and van de Geijn ("Anatomy of high-performance matrix multiplication", 2008): k is cut into
//! chunks, operands are packed into panels that fit a level of the cache each, and a tile of c stays in registers along a
//! chunk. Transposes and conversions of 16-bit floats happen in packing; operands that lie well are read in place.
//! Accumulation is in f32 or f64; other results are rounded once, after the whole sum. A call allocates nothing.
//!
//! Invariant: every element is summed in an order that depends on the shape, the strides and the processor alone. The
//! work is cut along rows, columns and batches, along a summed dim only into pieces that the shape decides (`pieces.rs`), and all
//! tiles sum alike, so results are the same for any number of threads. On x86-64 with FMA and on aarch64 they are the same for f32 and f64, too.
//!
//! Reading order: this file, `plan.rs` (what is packed, and how the work is cut), `block.rs` (loops), `ahead.rs`, `pack.rs`, `tile.rs`,
//! `few.rs`, `pieces.rs`, `strips.rs` (results that are used block by block), `kernel.rs` and the units that it chooses from,
//! `finish.rs`, `integers.rs`.

mod ahead;
#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod block;
mod few;
mod finish;
mod integers;
mod kernel;
#[cfg(target_arch = "aarch64")]
mod neon;
mod pack;
mod pieces;
mod plain;
mod plan;
mod strips;
#[cfg(test)]
mod tests;
mod tile;

pub(super) use few::Few;
pub(super) use kernel::Kernel;
pub use kernel::Unit;
pub(super) use pack::{Pack, PackFn};
pub use plan::SCRATCH;
pub use strips::{Beside, Block, Units};
pub(super) use tile::{Ahead, Tile};

use super::pool::Pool;
use crate::types::DType;

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

impl Product<'_> {
    /// Whether a call needs scratch memory: [`SCRATCH`] bytes for each thread.
    pub fn needs_scratch(dtype: DType) -> bool {
        dtype.is_float()
    }

    /// Computes the product. `scratch` is [`SCRATCH`] bytes for each thread of the pool, or empty where it is not needed.
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
        // SAFETY: the caller's promise; the unit is one of this processor.
        unsafe { self.run_on(Unit::best(), pool, a, b, c, scratch) }
    }

    /// The same by a unit of this processor.
    ///
    /// # Safety
    /// As for [`Product::run`]; and the unit must be one of [`Unit::available`].
    pub unsafe fn run_on(
        &self,
        unit: Unit,
        pool: &Pool,
        a: *const u8,
        b: *const u8,
        c: *mut u8,
        scratch: &mut [u64],
    ) -> Result<(), String> {
        if !(self.dtype.is_float() && self.out.is_float()) {
            // SAFETY: the caller's promise.
            return unsafe { integers::run(self, pool, a, b, c) };
        }
        assert!(scratch.len() * 8 >= SCRATCH * pool.threads(), "scratch for {} threads", pool.threads());
        let task = plan::Task::new(self, unit.kernel(self.dtype, self.out));
        let (a, b) = if task.turned { (b, a) } else { (a, b) };
        // SAFETY: the caller's promise.
        unsafe { block::run(&task, pool, block::Base { a, b, c }, scratch) }
    }

    fn batches(&self) -> usize {
        self.batch.iter().map(|b| b.size).product()
    }

    fn sum_count(&self) -> usize {
        if self.k.size == 0 { 0 } else { self.sums.iter().map(|s| s.size).product() }
    }

    /// Offsets of the operands at one index of the given extents.
    fn offsets(extents: &[Extent], index: usize) -> [isize; 3] {
        let (mut at, mut rest) = ([0; 3], index);
        for extent in extents.iter().rev() {
            let i = (rest % extent.size) as isize;
            rest /= extent.size;
            for (at, step) in at.iter_mut().zip([extent.a, extent.b, extent.c]) {
                *at += i * step;
            }
        }
        at
    }
}
