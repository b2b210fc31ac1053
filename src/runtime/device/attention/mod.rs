//! Attention without stored scores, forward and backward.
//!
//! The scheme is that of Dao ("FlashAttention-2", 2023): a block of queries goes over blocks of keys, keeps the largest score
//! and the sum of weights so far, and rescales what it has summed when a larger score comes; the backward pass computes
//! the weights anew from the logsumexp. Blocks, tiles of blocks and terms of sums that no query may see are left out. Sums are in
//! f32 or f64.
//!
//! Invariants: nothing is allocated; a task is a block of queries (forward), or all queries that share keys (backward), so results do not
//! depend on the number of threads.
//!
//! Reading order: this file, `forward.rs`, `backward.rs`, `block.rs` (products), `rows.rs` (what is between them), `real.rs`.

mod backward;
mod block;
mod forward;
mod real;
mod rows;
#[cfg(test)]
mod tests;

use super::pool::Pool;
use super::product::Unit;
use crate::program::{Attention, AttentionGrad, BufferId, Strided};
use crate::types::DType;
use block::{Matrix, PAD};
use half::{bf16, f16};
use real::{Real, Stored};

/// Queries in a block.
const QUERIES: usize = 64;
/// Keys in a block.
const KEYS: usize = 128;

/// Bytes of scratch memory for each thread.
pub fn scratch_bytes(a: &Attention) -> usize {
    Sizes::of(a).elements() * wide(a.dtype).bytes() + 64
}

fn wide(dtype: DType) -> DType {
    if dtype == DType::F64 { DType::F64 } else { DType::F32 }
}

/// Runs the forward pass. `locate` says where buffers lie.
///
/// # Safety
/// All that the call's arrays reach must be valid memory of their types; results are apart from each other and from the operands.
/// `scratch` holds [`scratch_bytes`] for each thread.
pub unsafe fn forward(
    pool: &Pool,
    a: &Attention,
    locate: &dyn Fn(BufferId) -> *mut u8,
    scratch: &mut [u64],
) -> Result<(), String> {
    // SAFETY: the caller's promise.
    unsafe { forward_on(Unit::best(), pool, a, locate, scratch) }
}

/// The same by a unit of this processor.
///
/// # Safety
/// As for [`forward`].
unsafe fn forward_on(
    unit: Unit,
    pool: &Pool,
    a: &Attention,
    locate: &dyn Fn(BufferId) -> *mut u8,
    scratch: &mut [u64],
) -> Result<(), String> {
    // SAFETY: the caller's promise.
    unsafe {
        match a.dtype {
            DType::F16 => forward::run::<f16>(unit, pool, a, locate, scratch),
            DType::BF16 => forward::run::<bf16>(unit, pool, a, locate, scratch),
            DType::F64 => forward::run::<f64>(unit, pool, a, locate, scratch),
            _ => forward::run::<f32>(unit, pool, a, locate, scratch),
        }
    }
}

/// Runs the backward pass.
///
/// # Safety
/// As for [`forward`].
pub unsafe fn backward(
    pool: &Pool,
    a: &AttentionGrad,
    locate: &dyn Fn(BufferId) -> *mut u8,
    scratch: &mut [u64],
) -> Result<(), String> {
    // SAFETY: the caller's promise.
    unsafe { backward_on(Unit::best(), pool, a, locate, scratch) }
}

/// The same by a unit of this processor.
///
/// # Safety
/// As for [`forward`].
unsafe fn backward_on(
    unit: Unit,
    pool: &Pool,
    a: &AttentionGrad,
    locate: &dyn Fn(BufferId) -> *mut u8,
    scratch: &mut [u64],
) -> Result<(), String> {
    // SAFETY: the caller's promise.
    unsafe {
        match a.of.dtype {
            DType::F16 => backward::run::<f16>(unit, pool, a, locate, scratch),
            DType::BF16 => backward::run::<bf16>(unit, pool, a, locate, scratch),
            DType::F64 => backward::run::<f64>(unit, pool, a, locate, scratch),
            _ => backward::run::<f32>(unit, pool, a, locate, scratch),
        }
    }
}

/// Widths of rows in scratch memory.
#[derive(Clone, Copy)]
struct Sizes {
    features: usize,
    width: usize,
    /// Elements of a block of what is added to scores.
    extra: usize,
}

impl Sizes {
    fn of(a: &Attention) -> Sizes {
        let extra = a.documents.is_some() || a.mask.is_some() || a.bias.is_some();
        Sizes {
            features: a.features.next_multiple_of(PAD),
            width: a.width.next_multiple_of(PAD),
            extra: if extra { QUERIES * KEYS } else { 0 },
        }
    }

    /// What either pass needs: the backward pass has the larger parts.
    fn elements(&self) -> usize {
        let keys = KEYS * (3 * self.features + 3 * self.width);
        let queries = QUERIES * (2 * self.features + 2 * self.width);
        keys + queries + 2 * QUERIES * KEYS + self.extra + 8 * QUERIES
    }
}

/// Hands out parts of a thread's scratch memory.
struct Parts<R> {
    next: *mut R,
    left: usize,
}

impl<R: Real> Parts<R> {
    /// # Safety
    /// `scratch` must hold `bytes` bytes for each thread up to this one.
    unsafe fn of_thread(scratch: *mut u8, bytes: usize, thread: usize) -> Parts<R> {
        // SAFETY: the caller's promise; `bytes` has room to begin at a cache line.
        unsafe {
            let at = scratch.add(thread * bytes);
            let skip = at.align_offset(64);
            Parts { next: at.add(skip).cast(), left: (bytes - skip) / size_of::<R>() }
        }
    }

    fn take(&mut self, elements: usize) -> *mut R {
        assert!(elements <= self.left, "scratch memory of attention");
        let at = self.next;
        // SAFETY: checked.
        self.next = unsafe { at.add(elements) };
        self.left -= elements;
        at
    }
}

/// An array of a call, at one index of the batch (and group) dims.
#[derive(Clone, Copy)]
struct Array<'a> {
    at: *mut u8,
    steps: &'a [isize],
    /// Of an element.
    bytes: isize,
    dims: usize,
}

// SAFETY: only an address; tasks write disjoint elements.
unsafe impl Sync for Array<'_> {}
// SAFETY: as above.
unsafe impl Send for Array<'_> {}

/// A dim of an attention after those of the batch and the group.
#[derive(Clone, Copy)]
enum Dim {
    Query,
    Key,
    Feature,
    Value,
}

impl<'a> Array<'a> {
    /// # Safety
    /// The buffer must hold the array.
    unsafe fn new(a: &Attention, s: &'a Strided, dtype: DType, locate: &dyn Fn(BufferId) -> *mut u8) -> Array<'a> {
        let bytes = dtype.bytes();
        // SAFETY: the caller's promise.
        let at = unsafe { locate(s.buffer).add(s.offset * bytes) };
        Array { at, steps: &s.steps, bytes: bytes as isize, dims: a.batch.len() + a.group.len() }
    }

    /// The array at one index of dims that begin with number `first`.
    fn at(self, first: usize, extents: &[usize], index: usize) -> Array<'a> {
        let (mut offset, mut rest) = (0, index);
        for (extent, step) in extents.iter().zip(&self.steps[first..]).rev() {
            offset += (rest % extent) as isize * step;
            rest /= extent;
        }
        Array { at: self.at.wrapping_offset(offset * self.bytes), ..self }
    }

    /// Bytes from one index along a dim to the next.
    fn step(&self, dim: Dim) -> isize {
        self.steps[self.dims + dim as usize] * self.bytes
    }

    /// The place at an index.
    fn place(&self, dim: Dim, index: usize) -> *mut u8 {
        self.at.wrapping_offset(index as isize * self.step(dim))
    }

    /// The matrix of one dim by another, from an index of the first on.
    fn matrix(&self, rows: Dim, first: usize, columns: Dim) -> Matrix {
        Matrix { at: self.place(rows, first), row: self.step(rows), column: self.step(columns) }
    }
}

/// What is added to scores: bias, mask and documents.
struct Extras<'a> {
    documents: Option<[Array<'a>; 2]>,
    mask: Option<Array<'a>>,
    bias: Option<Array<'a>>,
}

impl<'a> Extras<'a> {
    /// # Safety
    /// The buffers must hold the arrays.
    unsafe fn new(a: &'a Attention, locate: &dyn Fn(BufferId) -> *mut u8) -> Extras<'a> {
        // SAFETY: the caller's promise.
        let array = |s: &'a Strided, dtype| unsafe { Array::new(a, s, dtype, locate) };
        Extras {
            documents: a.documents.as_ref().map(|[q, k]| [array(q, DType::I32), array(k, DType::I32)]),
            mask: a.mask.as_ref().map(|s| array(s, DType::Bool)),
            bias: a.bias.as_ref().map(|s| array(s, a.dtype)),
        }
    }

    fn any(&self) -> bool {
        self.documents.is_some() || self.mask.is_some() || self.bias.is_some()
    }

    fn at(&self, first: usize, extents: &[usize], index: usize) -> Extras<'a> {
        let at = |x: Array<'a>| x.at(first, extents, index);
        Extras { documents: self.documents.map(|x| x.map(at)), mask: self.mask.map(at), bias: self.bias.map(at) }
    }

    /// Writes what is added to the scores of a block, -inf where a key is not seen. Steps are those of the target.
    ///
    /// # Safety
    /// The arrays must hold the block, and the target its elements.
    unsafe fn write<E: Stored>(
        &self,
        (first_query, queries): (usize, usize),
        (first_key, keys): (usize, usize),
        to: *mut E::Sum,
        [query_step, key_step]: [usize; 2],
    ) {
        // SAFETY: the caller's promise; elements by the types that the program gives.
        unsafe {
            for q in 0..queries {
                let own = self.documents.map(|[x, _]| x.place(Dim::Query, first_query + q).cast::<i32>().read());
                for k in 0..keys {
                    let pair = |x: &Array| {
                        x.place(Dim::Query, first_query + q)
                            .wrapping_offset((first_key + k) as isize * x.step(Dim::Key))
                    };
                    let mut value =
                        self.bias.map_or(<E::Sum as Default>::default(), |x| pair(&x).cast::<E>().read().widen());
                    let other = |[_, x]: &[Array; 2]| x.place(Dim::Key, first_key + k).cast::<i32>().read();
                    if self.mask.is_some_and(|x| *pair(&x) == 0)
                        || self.documents.is_some_and(|x| own != Some(other(&x)))
                    {
                        value = E::Sum::LOWEST;
                    }
                    *to.add(q * query_step + k * key_step) = value;
                }
            }
        }
    }
}
