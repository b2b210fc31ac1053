//! The forward pass: a task is a block of queries.

use super::block::{Blocks, Matrix, Multiply, PAD};
use super::real::{Real, Stored};
use super::rows::{Finish, LANES, Rows, Softmax};
use super::{Array, Dim, Extras, KEYS, Parts, QUERIES, Sizes, scratch_bytes, wide};
use crate::program::{Attention, BufferId};
use crate::runtime::device::pool::{Pool, worker};
use crate::runtime::device::product::Unit;
use crate::runtime::device::share::Shared;

/// What all tasks have in common.
struct Call<'a, E: Stored> {
    a: &'a Attention,
    sizes: Sizes,
    blocks: Blocks,
    rows: Rows<E>,
    q: Array<'a>,
    k: Array<'a>,
    v: Array<'a>,
    out: Array<'a>,
    log: Option<Array<'a>>,
    extras: Extras<'a>,
}

/// A task's memory.
struct Memory<R> {
    /// A block of queries, feature by feature.
    q: *mut R,
    /// Blocks of keys and values, row by row.
    k: *mut R,
    v: *mut R,
    /// Key by key.
    scores: *mut R,
    extra: *mut R,
    /// Query by query.
    sums: *mut R,
    top: *mut R,
    total: *mut R,
    shrink: *mut R,
}

/// # Safety
/// As for [`super::forward`].
pub unsafe fn run<E: Stored>(
    unit: Unit,
    pool: &Pool,
    a: &Attention,
    locate: &dyn Fn(BufferId) -> *mut u8,
    scratch: &mut [u64],
) -> Result<(), String> {
    // SAFETY: the caller's promise.
    let array = |s, dtype| unsafe { Array::new(a, s, dtype, locate) };
    let call: Call<E> = Call {
        a,
        sizes: Sizes::of(a),
        blocks: Blocks::new::<E>(unit),
        rows: Rows::of(unit),
        q: array(&a.q, a.dtype),
        k: array(&a.k, a.dtype),
        v: array(&a.v, a.dtype),
        out: array(&a.out, a.dtype),
        log: a.log.as_ref().map(|s| array(s, wide(a.dtype))),
        // SAFETY: the caller's promise.
        extras: unsafe { Extras::new(a, locate) },
    };
    let blocks = a.queries.div_ceil(QUERIES);
    let (batches, groups): (usize, usize) = (a.batch.iter().product(), a.group.iter().product());
    let bytes = scratch_bytes(a);
    assert!(scratch.len() * 8 >= bytes * pool.threads(), "scratch for {} threads", pool.threads());
    let (scratch, call) = (Shared(scratch.as_mut_ptr().cast::<u8>()), &call);
    pool.run(batches * groups * blocks, &|n| {
        let (block, head) = (n % blocks, n / blocks);
        // SAFETY: each thread takes a part of its own; tasks write results of their own queries.
        unsafe {
            let memory = call.memory(Parts::of_thread(scratch.get(), bytes, worker()));
            call.at(head / groups, head % groups).block(block, &memory);
        }
    })
}

impl<'a, E: Stored> Call<'a, E> {
    fn memory(&self, mut parts: Parts<E::Sum>) -> Memory<E::Sum> {
        let Sizes { features, width, extra } = self.sizes;
        Memory {
            q: parts.take(self.a.features * QUERIES),
            k: parts.take(KEYS * features),
            v: parts.take(KEYS * width),
            scores: parts.take(KEYS * QUERIES),
            extra: parts.take(extra),
            sums: parts.take(QUERIES * width),
            top: parts.take(QUERIES),
            total: parts.take(QUERIES),
            shrink: parts.take(QUERIES),
        }
    }

    fn at(&self, batch: usize, group: usize) -> Head<'_, E> {
        let (batches, groups) = (&self.a.batch, &self.a.group);
        let both = |x: Array<'a>| x.at(0, batches, batch).at(batches.len(), groups, group);
        Head {
            call: self,
            q: both(self.q),
            k: both(self.k),
            v: both(self.v),
            out: both(self.out),
            log: self.log.map(both),
            extras: self.extras.at(0, batches, batch).at(batches.len(), groups, group),
        }
    }
}

/// The arrays at one index of batch and group.
struct Head<'a, E: Stored> {
    call: &'a Call<'a, E>,
    q: Array<'a>,
    k: Array<'a>,
    v: Array<'a>,
    out: Array<'a>,
    log: Option<Array<'a>>,
    extras: Extras<'a>,
}

impl<E: Stored> Head<'_, E> {
    /// # Safety
    /// The arrays must be valid, the memory the thread's own.
    unsafe fn block(&self, number: usize, m: &Memory<E::Sum>) {
        let Call { a, sizes, blocks, rows, .. } = self.call;
        let first = number * QUERIES;
        let queries = QUERIES.min(a.queries - first);
        let begin = a.seen(first).start;
        let end = a.seen(first + queries - 1).end;
        // SAFETY: all within the arrays, by their extents, and the parts of the scratch memory.
        unsafe {
            blocks.turned(self.q.matrix(Dim::Query, first, Dim::Feature), queries, a.features, QUERIES, m.q.cast());
            std::slice::from_raw_parts_mut(m.top, QUERIES).fill(E::Sum::LOWEST);
            std::slice::from_raw_parts_mut(m.total, QUERIES).fill(E::Sum::default());
            if begin >= end {
                std::slice::from_raw_parts_mut(m.sums, queries * sizes.width).fill(E::Sum::default());
            }
            for at in (begin..end).step_by(KEYS) {
                self.keys((first, queries), (at, KEYS.min(end - at)), at > begin, m);
            }
            let total = std::slice::from_raw_parts_mut(m.total, queries);
            let top = std::slice::from_raw_parts(m.top, queries);
            if let Some(log) = &self.log {
                let factor = if self.changes() { 1.0 } else { a.scale };
                for (i, (top, total)) in top.iter().zip(total.iter()).enumerate() {
                    let to = log.place(Dim::Query, first + i).cast::<E::Sum>();
                    let nothing = *top == E::Sum::LOWEST;
                    *to = if nothing { E::Sum::HIGHEST } else { E::Sum::of(top.value() * factor + total.value().ln()) };
                }
            }
            for (total, top) in total.iter_mut().zip(top) {
                *total = if *top == E::Sum::LOWEST { E::Sum::default() } else { E::Sum::ONE / *total };
            }
            (rows.finish)(&Finish {
                from: m.sums,
                stride: sizes.width,
                rows: queries,
                width: a.width,
                by: Some(total),
                to: self.out.place(Dim::Query, first),
                row_step: self.out.step(Dim::Query),
                step: self.out.step(Dim::Value),
            });
        }
    }

    fn changes(&self) -> bool {
        Softmax::<E::Sum>::changes(self.call.a.scale, self.call.a.cap, self.extras.any())
    }

    /// One block of keys; `more`: it is not the first one.
    unsafe fn keys(
        &self,
        (first, queries): (usize, usize),
        (at, keys): (usize, usize),
        more: bool,
        m: &Memory<E::Sum>,
    ) {
        let Call { a, sizes, blocks, rows, .. } = self.call;
        let bytes = size_of::<E::Sum>() as isize;
        // The keys of this block that one of some queries sees, and the queries that see one of some keys.
        let seen = |from: usize, to: usize| {
            let (begin, end) = (a.seen(first + from).start, a.seen(first + to - 1).end);
            begin.saturating_sub(at).min(keys)..end.saturating_sub(at).min(keys)
        };
        let seeing = |from: usize, to: usize| {
            let begin = if a.causal { (at + from).saturating_sub(first) } else { 0 };
            let end = a.reach.map_or(queries, |r| (at + to - 1 + r as usize).saturating_sub(first).min(queries));
            begin.min(end)..end
        };
        // SAFETY: all within the arrays, by their extents, and the parts of the scratch memory.
        unsafe {
            let near = self.k.step(Dim::Feature) == bytes && E::DTYPE == <E::Sum as Real>::DTYPE;
            let from = self.k.matrix(Dim::Key, at, Dim::Feature);
            let k = if near {
                from
            } else {
                blocks.straight(from, keys, a.features, sizes.features, m.k.cast());
                Matrix { at: m.k.cast(), row: sizes.features as isize * bytes, column: bytes }
            };
            let padded = queries.next_multiple_of(PAD);
            let scores = Multiply {
                rows: padded,
                columns: keys,
                a: m.q.cast(),
                a_step: QUERIES as isize * bytes,
                b: k.at,
                b_column: k.row,
                b_step: k.column,
                to: m.scores.cast(),
                to_column: QUERIES as isize * bytes,
                add: false,
            };
            blocks.multiply(&scores, |from, to| (seeing(from, to), 0..a.features));
            let extra = self.extras.any();
            if extra {
                self.extras.write::<E>((first, queries), (at, keys), m.extra, [1, QUERIES]);
            }
            for lane in (0..queries).step_by(LANES) {
                (rows.softmax)(&Softmax {
                    scores: m.scores.add(lane),
                    stride: QUERIES,
                    keys,
                    seen: seen(lane, queries.min(lane + LANES)),
                    ahead: (first + lane) as i64 - at as i64,
                    causal: a.causal,
                    reach: a.reach,
                    scale: E::Sum::of(a.scale),
                    cap: E::Sum::of(a.cap),
                    extra: extra.then_some(m.extra.add(lane).cast_const()),
                    top: m.top.add(lane),
                    total: m.total.add(lane),
                    shrink: m.shrink.add(lane),
                });
            }
            if more {
                (rows.shrink)(m.sums, sizes.width, std::slice::from_raw_parts(m.shrink, queries));
            }
            blocks.straight(self.v.matrix(Dim::Key, at, Dim::Value), keys, a.width, sizes.width, m.v.cast());
            let sums = Multiply {
                rows: sizes.width,
                columns: queries,
                a: m.v.cast(),
                a_step: sizes.width as isize * bytes,
                b: m.scores.cast(),
                b_column: bytes,
                b_step: QUERIES as isize * bytes,
                to: m.sums.cast(),
                to_column: sizes.width as isize * bytes,
                add: more,
            };
            blocks.multiply(&sums, |from, to| (0..sizes.width, seen(from, to)));
        }
    }
}
