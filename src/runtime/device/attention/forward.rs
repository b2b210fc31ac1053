//! The forward pass: a task is some blocks of queries, which go through the blocks of keys together.

use super::ahead::Ahead;
use super::block::{Blocks, Matrix, Multiply, PAD, PANEL, stride};
use super::head::{Array, Dim, Head, Pair};
use super::real::{Real, Stored};
use super::rows::{End, Finish, LANES, Rows, Softmax};
use super::{AHEAD, KEYS, Parts, QUERIES, Sizes, TASK, each, scratch_bytes};
use crate::program::{Attention, BufferId};
use crate::runtime::device::pool::{Pool, worker};
use crate::runtime::device::product::Unit;
use crate::runtime::device::share::Shared;
use std::ops::Range;

/// Fewer queries than this read values where they lie, if they lie well.
const FEW: usize = 16;
/// Tasks for each thread, at least, where there is enough to do.
const SHARE: usize = 6;

/// What all tasks have in common.
struct Call<'a, E: Stored> {
    head: Head<'a>,
    sizes: Sizes,
    blocks: Blocks<E>,
    rows: Rows<E>,
    /// Whether scores are more than products by a positive scale.
    changes: bool,
}

/// A task's memory.
struct Memory<R> {
    /// Blocks of queries in panels, feature by feature.
    q: *mut R,
    /// A block of keys and one of values, row by row.
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
    let head = unsafe { Head::new(a, <E::Sum as Real>::DTYPE, locate) };
    // SAFETY: as above.
    if let Some(done) = unsafe { super::one::run::<E>(unit, pool, &head, scratch) } {
        return done;
    }
    let changes = Softmax::<E::Sum>::changes(a.scale, a.cap, head.adds());
    let call: Call<E> = Call { head, sizes: Sizes::of(a), blocks: Blocks::new(unit), rows: Rows::of(unit), changes };
    let (batches, groups): (usize, usize) = (a.batch.iter().product(), a.group.iter().product());
    let (blocks, heads) = (a.queries.div_ceil(QUERIES), batches * groups);
    // How many blocks go together changes no result.
    let together = (heads * blocks / (SHARE * pool.threads())).clamp(1, TASK);
    let tasks = blocks.div_ceil(together);
    let bytes = scratch_bytes(a);
    assert!(scratch.len() * 8 >= bytes * pool.threads(), "scratch for {} threads", pool.threads());
    let (scratch, call) = (Shared(scratch.as_mut_ptr().cast::<u8>()), &call);
    let task = |n: usize| {
        // The last queries may see the most keys.
        let (task, head) = (tasks - 1 - n / heads, n % heads);
        let end = a.queries.min((task + 1) * together * QUERIES);
        (call.head.of_batch(head / groups).of_group(head % groups), task * together * QUERIES..end)
    };
    each(pool, heads * tasks, &|n, next| {
        let (head, queries) = task(n);
        let mut ahead = Ahead::new(head.pairs(&queries) * (a.features + a.width) as u64);
        call.expect(&mut ahead, (&head, &queries), next.map(task));
        // SAFETY: each thread takes a part of its own; tasks write results of their own queries.
        unsafe {
            let memory = call.memory(Parts::of_thread(scratch.get(), bytes, worker()));
            call.task(&head, queries, &ahead, &memory);
        }
    })
}

impl<E: Stored> Call<'_, E> {
    fn memory(&self, mut parts: Parts<E::Sum>) -> Memory<E::Sum> {
        let Sizes { features, width, extra, .. } = self.sizes;
        Memory {
            q: parts.take(TASK * QUERIES * features),
            k: parts.take(KEYS * features),
            v: parts.take(KEYS * width),
            scores: parts.take(KEYS * stride(QUERIES)),
            extra: parts.take(extra),
            sums: parts.take(TASK * QUERIES * width),
            top: parts.take(TASK * QUERIES),
            total: parts.take(TASK * QUERIES),
            shrink: parts.take(QUERIES),
        }
    }

    /// What a task writes, and what the next one reads first.
    fn expect(
        &self,
        ahead: &mut Ahead,
        (head, queries): (&Head<'_>, &Range<usize>),
        next: Option<(Head<'_>, Range<usize>)>,
    ) {
        let (a, stored) = (head.a, size_of::<E>() as isize);
        ahead.add(head.out.matrix(Dim::Query, queries.start, Dim::Value), queries.len(), a.width, stored);
        if let Some((head, queries)) = next {
            let keys = head.seen(queries.start).start..head.seen(queries.end - 1).end;
            let few = keys.len().min(AHEAD);
            ahead.add(head.q.matrix(Dim::Query, queries.start, Dim::Feature), queries.len(), a.features, stored);
            ahead.add(head.k.matrix(Dim::Key, keys.start, Dim::Feature), few, a.features, stored);
            ahead.add(head.v.matrix(Dim::Key, keys.start, Dim::Value), few, a.width, stored);
        }
    }

    /// The results of some queries of one head.
    ///
    /// # Safety
    /// The arrays must be valid, the memory the thread's own.
    unsafe fn task(&self, head: &Head<'_>, queries: Range<usize>, ahead: &Ahead, m: &Memory<E::Sum>) {
        let Range { start: first, end } = queries;
        let (a, Sizes { features, width, .. }) = (head.a, self.sizes);
        let bytes = size_of::<E::Sum>() as isize;
        // SAFETY: all within the arrays, by their extents, and the parts of the scratch memory.
        unsafe {
            for at in (first..end).step_by(QUERIES) {
                let (q, to) = (head.q.matrix(Dim::Query, at, Dim::Feature), m.q.add((at - first) * features));
                self.blocks.turned(q, QUERIES.min(end - at), a.features, to.cast());
            }
            let lanes = (end - first).next_multiple_of(LANES);
            std::slice::from_raw_parts_mut(m.top, lanes).fill(E::Sum::LOWEST);
            std::slice::from_raw_parts_mut(m.total, lanes).fill(E::Sum::default());
            // Elements of keys are read one by one; those of values as vectors, in many turns where there are many queries.
            let near = |x: &Array<'_>, along: Dim| E::DTYPE == <E::Sum as Real>::DTYPE && x.step(along) == bytes;
            let k_in_place = near(&head.k, Dim::Feature);
            let v_in_place = near(&head.v, Dim::Value) && end - first < FEW;
            let mut begun = [false; TASK];
            let last = head.seen(end - 1).end;
            for key in (head.seen(first).start / KEYS * KEYS..last).step_by(KEYS) {
                let keys = KEYS.min(last - key);
                let (mut k, mut v) =
                    (head.k.matrix(Dim::Key, key, Dim::Feature), head.v.matrix(Dim::Key, key, Dim::Value));
                if !k_in_place {
                    self.blocks.straight(k, keys, a.features, features, m.k.cast());
                    k = Matrix { at: m.k.cast(), row: features as isize * bytes, column: bytes };
                }
                if !v_in_place {
                    self.blocks.straight(v, keys, a.width, width, m.v.cast());
                    v = Matrix { at: m.v.cast(), row: width as isize * bytes, column: bytes };
                }
                for (i, query) in (first..end).step_by(QUERIES).enumerate() {
                    let pair = head.pair((query, QUERIES.min(end - query)), (key, keys));
                    if !pair.seen(0, pair.queries).is_empty() {
                        self.pair(head, &pair, (k, v), (i, begun[i]), ahead, m);
                        begun[i] = true;
                    }
                }
            }
            let (top, total, queries) = (m.top, m.total, end - first);
            let factor = if self.changes { E::Sum::ONE } else { E::Sum::of(a.scale) };
            (self.rows.end)(&End { queries, factor, top, total });
            if let Some(log) = &head.log {
                for i in 0..queries {
                    *log.place(Dim::Query, first + i).cast::<E::Sum>() = *top.add(i);
                }
            }
            for (i, begun) in begun.into_iter().enumerate() {
                if !begun {
                    std::slice::from_raw_parts_mut(m.sums.add(i * QUERIES * width), QUERIES * width)
                        .fill(E::Sum::default());
                }
            }
            (self.rows.finish)(&Finish {
                from: m.sums,
                stride: width,
                rows: queries,
                width: a.width,
                scale: E::Sum::ONE,
                by: Some(std::slice::from_raw_parts(total, queries)),
                to: head.out.place(Dim::Query, first),
                row_step: head.out.step(Dim::Query),
                step: head.out.step(Dim::Value),
            });
        }
    }

    /// Block number `block` of a task's queries with the block of keys that is there. `more`: it is not their first one.
    unsafe fn pair(
        &self,
        head: &Head<'_>,
        pair: &Pair<'_>,
        (k, v): (Matrix, Matrix),
        (block, more): (usize, bool),
        ahead: &Ahead,
        m: &Memory<E::Sum>,
    ) {
        let (a, Sizes { features, width, .. }) = (head.a, self.sizes);
        let (queries, keys, line) = (pair.queries, pair.keys, stride(QUERIES));
        let bytes = size_of::<E::Sum>() as isize;
        let own = block * QUERIES;
        // SAFETY: all within the arrays, by their extents, and the parts of the scratch memory.
        unsafe {
            let scores = Multiply {
                rows: queries.next_multiple_of(PAD),
                columns: keys,
                a: m.q.add(own * features).cast(),
                a_step: PANEL as isize * bytes,
                a_panel: PANEL * a.features * bytes as usize,
                b: k.at,
                b_column: k.row,
                b_step: k.column,
                to: m.scores.cast(),
                to_column: line as isize * bytes,
                add: false,
            };
            self.blocks.multiply(&scores, ahead, |from, to| (pair.seeing(from, to), 0..a.features));
            let extra = head.adds();
            if extra {
                head.write_added::<E>(pair, m.extra, [1, line]);
            }
            for lane in (0..queries).step_by(LANES) {
                let end = queries.min(lane + LANES);
                (self.rows.softmax)(&Softmax {
                    scores: m.scores.add(lane),
                    stride: line,
                    seen: pair.seen(lane, end),
                    near: pair.seen(lane.saturating_sub(LANES), queries.min(end + LANES)),
                    ahead: pair.position + lane as i64 - pair.key as i64,
                    causal: a.causal,
                    reach: a.reach,
                    scale: E::Sum::of(a.scale),
                    cap: E::Sum::of(a.cap),
                    extra: extra.then_some(m.extra.add(lane).cast_const()),
                    top: m.top.add(own + lane),
                    total: m.total.add(own + lane),
                    shrink: m.shrink.add(lane),
                });
            }
            let sums = m.sums.add(own * width);
            if more {
                (self.rows.shrink)(sums, width, std::slice::from_raw_parts(m.shrink, queries));
            }
            let sums = Multiply {
                rows: a.width,
                columns: queries,
                a: v.at,
                a_step: v.row,
                a_panel: PANEL * bytes as usize,
                b: m.scores.cast(),
                b_column: bytes,
                b_step: line as isize * bytes,
                to: sums.cast(),
                to_column: width as isize * bytes,
                add: more,
            };
            self.blocks.multiply(&sums, ahead, |from, to| (0..a.width, pair.seen(from, to)));
        }
    }
}
