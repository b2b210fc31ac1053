//! Attention without stored scores, forward and backward.
//!
//! The scheme is that of Dao ("FlashAttention-2", 2023): a block of queries goes over blocks of keys, keeps the largest score
//! and the sum of weights so far, and rescales what it has summed when a larger score comes; the backward pass computes
//! the weights anew from the logsumexp. Blocks, tiles of blocks and terms of sums that no query may see are left out. Sums are in
//! f32 or f64.
//!
//! Operands are packed once for all blocks that read them; what the next task reads comes into the cache while this one computes.
//!
//! Invariants: nothing is allocated; a task is some blocks of queries (forward), or all queries that share keys (backward), and
//! blocks of keys are the same for all tasks, so results do not depend on the number of threads.
//!
//! Reading order: this file, `head.rs` (arrays), `forward.rs`, `one.rs` (of single queries), `backward.rs`, `block.rs` (products),
//! `rows.rs` (what is between them), `real.rs`, `ahead.rs`.

mod ahead;
mod backward;
mod block;
mod forward;
mod head;
mod one;
mod real;
mod rows;
#[cfg(test)]
mod tests;

use super::pool::Pool;
use super::product::Unit;
use crate::program::{Attention, AttentionGrad, BufferId};
use crate::types::DType;
use block::stride;
use half::{bf16, f16};
use real::Real;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Queries in a block.
const QUERIES: usize = 64;
/// Keys in a block.
const KEYS: usize = 128;
/// Blocks of queries that a task of the forward pass takes through the keys together, at most.
const TASK: usize = 4;
/// Rows of an array that are asked for ahead, at most.
const AHEAD: usize = 512;
/// What the backward pass packs of keys and values together, about; it stays in the second cache.
const CHUNK_BYTES: usize = 400 << 10;

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

/// Sizes in scratch memory, in elements.
#[derive(Clone, Copy)]
struct Sizes {
    /// From row to row.
    features: usize,
    width: usize,
    /// Of a block of what is added to scores.
    extra: usize,
    /// Keys that the backward pass packs together.
    chunk: usize,
}

impl Sizes {
    fn of(a: &Attention) -> Sizes {
        let extra = a.documents.is_some() || a.mask.is_some() || a.bias.is_some();
        let (features, width) = (stride(a.features), stride(a.width));
        let most = (CHUNK_BYTES / (wide(a.dtype).bytes() * (3 * features + 2 * width))).max(KEYS) / KEYS * KEYS;
        let chunk = most.min(a.keys.next_multiple_of(KEYS));
        Sizes { features, width, extra: if extra { stride(QUERIES) * stride(KEYS) } else { 0 }, chunk }
    }

    /// What either pass needs.
    fn elements(&self) -> usize {
        let Sizes { features, width, extra, chunk } = *self;
        let forward = TASK * QUERIES * (features + width + 2) + KEYS * (features + width + stride(QUERIES));
        let backward = chunk * (3 * features + 2 * width) + QUERIES * (2 * features + 2 * width + 2 * stride(KEYS) + 2);
        forward.max(backward) + extra + 2 * QUERIES
    }
}

/// Runs each task once, as a pool does, and tells which one the thread will take next.
fn each(pool: &Pool, tasks: usize, run: &(dyn Fn(usize, Option<usize>) + Sync)) -> Result<(), String> {
    let next = AtomicUsize::new(0);
    let take = || Some(next.fetch_add(1, Ordering::Relaxed)).filter(|n| *n < tasks);
    pool.run(pool.threads().min(tasks), &|_| {
        let mut now = take();
        while let Some(task) = now {
            now = take();
            run(task, now);
        }
    })
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
