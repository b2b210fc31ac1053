//! The backward pass: a task is all queries that share keys. Blocks of keys go over blocks of queries, so that the
//! cotangents of keys and values are summed in scratch memory, those of queries at their place.

use super::block::{Blocks, Multiply, PAD};
use super::real::{Real, Stored};
use super::rows::{Backward, Finish, Level, Rows};
use super::{Array, Dim, Extras, KEYS, Parts, QUERIES, Sizes, scratch_bytes, wide};
use crate::program::{Attention, AttentionGrad, BufferId};
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
    d_out: Array<'a>,
    log: Array<'a>,
    extras: Extras<'a>,
    dq: Option<Array<'a>>,
    dk: Option<Array<'a>>,
    dv: Option<Array<'a>>,
    sums: Option<Array<'a>>,
}

/// A task's memory. "Turned": feature by feature, with positions side by side.
struct Memory<R> {
    k_turned: *mut R,
    v_turned: *mut R,
    k: *mut R,
    dk: *mut R,
    dv: *mut R,
    q: *mut R,
    d_out: *mut R,
    out: *mut R,
    /// Query by query.
    scores: *mut R,
    by_weight: *mut R,
    extra: *mut R,
    log: *mut R,
    level: *mut R,
}

/// # Safety
/// As for [`super::backward`].
pub unsafe fn run<E: Stored>(
    unit: Unit,
    pool: &Pool,
    g: &AttentionGrad,
    locate: &dyn Fn(BufferId) -> *mut u8,
    scratch: &mut [u64],
) -> Result<(), String> {
    let a = &g.of;
    // SAFETY: the caller's promise.
    let array = |s, dtype| unsafe { Array::new(a, s, dtype, locate) };
    let log = a.log.as_ref().ok_or("the gradient of attention needs the logsumexp")?;
    let call: Call<E> = Call {
        a,
        sizes: Sizes::of(a),
        blocks: Blocks::new::<E>(unit),
        rows: Rows::of(unit),
        q: array(&a.q, a.dtype),
        k: array(&a.k, a.dtype),
        v: array(&a.v, a.dtype),
        out: array(&a.out, a.dtype),
        d_out: array(&g.d_out, a.dtype),
        log: array(log, wide(a.dtype)),
        // SAFETY: the caller's promise.
        extras: unsafe { Extras::new(a, locate) },
        dq: g.dq.as_ref().map(|s| array(s, a.dtype)),
        dk: g.dk.as_ref().map(|s| array(s, a.dtype)),
        dv: g.dv.as_ref().map(|s| array(s, a.dtype)),
        sums: g.sums.as_ref().map(|s| array(s, wide(a.dtype))),
    };
    let bytes = scratch_bytes(a);
    assert!(scratch.len() * 8 >= bytes * pool.threads(), "scratch for {} threads", pool.threads());
    let (scratch, call) = (Shared(scratch.as_mut_ptr().cast::<u8>()), &call);
    pool.run(a.batch.iter().product(), &|batch| {
        // SAFETY: each thread takes a part of its own; tasks write results of their own keys and queries.
        unsafe {
            let memory = call.memory(Parts::of_thread(scratch.get(), bytes, worker()));
            call.batch(batch, &memory);
        }
    })
}

impl<'a, E: Stored> Call<'a, E> {
    fn memory(&self, mut parts: Parts<E::Sum>) -> Memory<E::Sum> {
        let Sizes { features, width, extra } = self.sizes;
        Memory {
            k_turned: parts.take(self.a.features * KEYS),
            v_turned: parts.take(self.a.width * KEYS),
            k: parts.take(KEYS * features),
            dk: parts.take(KEYS * features),
            dv: parts.take(KEYS * width),
            q: parts.take(QUERIES * features),
            d_out: parts.take(QUERIES * width),
            out: parts.take(QUERIES * width),
            scores: parts.take(QUERIES * KEYS),
            by_weight: parts.take(QUERIES * KEYS),
            extra: parts.take(extra),
            log: parts.take(QUERIES),
            level: parts.take(QUERIES),
        }
    }

    /// # Safety
    /// The arrays must be valid, the memory the thread's own.
    unsafe fn batch(&self, batch: usize, m: &Memory<E::Sum>) {
        let a = self.a;
        let (batches, groups) = (&a.batch, a.group.iter().product());
        let at = |x: Array<'a>| x.at(0, batches, batch);
        let heads = |x: Array<'a>, group: usize| at(x).at(batches.len(), &a.group, group);
        // SAFETY: all within the arrays, by their extents, and the parts of the scratch memory.
        unsafe {
            let sums = self.sums.or(self.dq);
            for group in 0..groups {
                for q in 0..a.queries {
                    let Some(sums) = sums else { break };
                    let row = heads(sums, group).place(Dim::Query, q).cast::<E::Sum>();
                    std::slice::from_raw_parts_mut(row, a.features).fill(E::Sum::default());
                }
            }
            for first in (0..a.keys).step_by(KEYS) {
                let keys = KEYS.min(a.keys - first);
                self.pack_keys(at(self.k), at(self.v), first, keys, m);
                for group in 0..groups {
                    let head = Head {
                        call: self,
                        q: heads(self.q, group),
                        out: heads(self.out, group),
                        d_out: heads(self.d_out, group),
                        log: heads(self.log, group),
                        sums: sums.map(|x| heads(x, group)),
                        extras: self.extras.at(0, batches, batch).at(batches.len(), &a.group, group),
                    };
                    for query in (0..a.queries).step_by(QUERIES) {
                        let queries = QUERIES.min(a.queries - query);
                        let (begin, end) = (a.seen(query).start, a.seen(query + queries - 1).end);
                        if begin < first + keys && first < end {
                            head.block((query, queries), (first, keys), m);
                        }
                    }
                }
                self.finish_keys(self.dk.map(at), Dim::Feature, first, keys, m.dk);
                self.finish_keys(self.dv.map(at), Dim::Value, first, keys, m.dv);
            }
            if let (Some(sums), Some(dq)) = (self.sums, self.dq) {
                for group in 0..groups {
                    let (from, to) = (heads(sums, group), heads(dq, group));
                    (self.rows.finish)(&Finish {
                        from: from.at.cast(),
                        stride: (from.step(Dim::Query) / from.bytes) as usize,
                        rows: a.queries,
                        width: a.features,
                        by: None,
                        to: to.at,
                        row_step: to.step(Dim::Query),
                        step: to.step(Dim::Feature),
                    });
                }
            }
        }
    }

    unsafe fn pack_keys(&self, k: Array<'_>, v: Array<'_>, first: usize, keys: usize, m: &Memory<E::Sum>) {
        let Call { a, sizes, blocks, .. } = self;
        let (k, v) = (k.matrix(Dim::Key, first, Dim::Feature), v.matrix(Dim::Key, first, Dim::Value));
        // SAFETY: as promised to `batch`.
        unsafe {
            blocks.turned(k, keys, a.features, KEYS, m.k_turned.cast());
            blocks.turned(v, keys, a.width, KEYS, m.v_turned.cast());
            blocks.straight(k, keys, a.features, sizes.features, m.k.cast());
            std::slice::from_raw_parts_mut(m.dk, keys * sizes.features).fill(E::Sum::default());
            std::slice::from_raw_parts_mut(m.dv, keys * sizes.width).fill(E::Sum::default());
        }
    }

    unsafe fn finish_keys(&self, to: Option<Array<'_>>, along: Dim, first: usize, keys: usize, from: *const E::Sum) {
        let Some(to) = to else { return };
        let (width, stride) = match along {
            Dim::Value => (self.a.width, self.sizes.width),
            _ => (self.a.features, self.sizes.features),
        };
        // SAFETY: as promised to `batch`.
        unsafe {
            (self.rows.finish)(&Finish {
                from,
                stride,
                rows: keys,
                width,
                by: None,
                to: to.place(Dim::Key, first),
                row_step: to.step(Dim::Key),
                step: to.step(along),
            });
        }
    }
}

/// The arrays of queries at one index of batch and group.
struct Head<'a, E: Stored> {
    call: &'a Call<'a, E>,
    q: Array<'a>,
    out: Array<'a>,
    d_out: Array<'a>,
    log: Array<'a>,
    sums: Option<Array<'a>>,
    extras: Extras<'a>,
}

impl<E: Stored> Head<'_, E> {
    /// A block of queries with the block of keys that is packed.
    ///
    /// # Safety
    /// The arrays must be valid, the memory the thread's own.
    unsafe fn block(&self, (first, queries): (usize, usize), (at, keys): (usize, usize), m: &Memory<E::Sum>) {
        let Call { a, sizes, blocks, rows, .. } = self.call;
        let bytes = size_of::<E::Sum>() as isize;
        let (block, features, width) =
            (KEYS as isize * bytes, sizes.features as isize * bytes, sizes.width as isize * bytes);
        let (padded, all_queries) = (keys.next_multiple_of(PAD), 0..queries);
        // The keys of the block that one of some queries sees, and the queries that see one of some keys.
        let seen = |from: usize, to: usize| {
            let (begin, end) = (a.seen(first + from).start, a.seen(first + to - 1).end);
            let end = end.saturating_sub(at).min(keys);
            begin.saturating_sub(at).min(end)..end
        };
        let seeing = |from: usize, to: usize| {
            let end = a.reach.map_or(queries, |r| (at + to - 1 + r as usize).saturating_sub(first).min(queries));
            let begin = if a.causal { (at + from).saturating_sub(first).min(end) } else { 0 };
            begin..end
        };
        let mut each = [[0; 2]; QUERIES];
        for (i, each) in each[..queries].iter_mut().enumerate() {
            let own = seen(i, i + 1);
            *each = [own.start, own.end];
        }
        // SAFETY: all within the arrays, by their extents, and the parts of the scratch memory.
        unsafe {
            blocks.straight(
                self.q.matrix(Dim::Query, first, Dim::Feature),
                queries,
                a.features,
                sizes.features,
                m.q.cast(),
            );
            let result = |x: &Array, to: *mut E::Sum| {
                blocks.straight(x.matrix(Dim::Query, first, Dim::Value), queries, a.width, sizes.width, to.cast());
            };
            result(&self.d_out, m.d_out);
            // The result is read once: in place where it can be.
            let near =
                E::DTYPE == <E::Sum as Real>::DTYPE && self.out.step(Dim::Value) == bytes && a.width == sizes.width;
            let (y, step) = if near {
                (self.out.place(Dim::Query, first).cast(), self.out.step(Dim::Query) / bytes)
            } else {
                result(&self.out, m.out);
                (m.out, sizes.width as isize)
            };
            let strides = [sizes.width as isize, step];
            (rows.level)(&Level { x: m.d_out, y, strides, rows: queries, width: sizes.width, to: m.level });
            for i in all_queries.clone() {
                *m.log.add(i) = self.log.place(Dim::Query, first + i).cast::<E::Sum>().read();
            }
            let product = |a: *mut E::Sum, b: *mut E::Sum, b_column: isize, to: *mut E::Sum| Multiply {
                rows: padded,
                columns: queries,
                a: a.cast(),
                a_step: block,
                b: b.cast(),
                b_column,
                b_step: bytes,
                to: to.cast(),
                to_column: block,
                add: false,
            };
            blocks.multiply(&product(m.k_turned, m.q, features, m.scores), |from, to| (seen(from, to), 0..a.features));
            blocks.multiply(&product(m.v_turned, m.d_out, width, m.by_weight), |from, to| (seen(from, to), 0..a.width));
            let extra = self.extras.any();
            if extra {
                self.extras.write::<E>((first, queries), (at, keys), m.extra, [KEYS, 1]);
            }
            (rows.backward)(&Backward {
                scores: m.scores,
                by_weight: m.by_weight,
                stride: KEYS,
                queries,
                keys: padded,
                seen: each.as_ptr(),
                scale: E::Sum::of(a.scale),
                cap: E::Sum::of(a.cap),
                extra: extra.then_some(m.extra.cast_const()),
                log: m.log,
                level: m.level,
            });
            // Over queries: to keys and values.
            let over_queries = |x: *mut E::Sum, width: usize, weights: *mut E::Sum, to: *mut E::Sum| Multiply {
                rows: width,
                columns: keys,
                a: x.cast(),
                a_step: width as isize * bytes,
                b: weights.cast(),
                b_column: bytes,
                b_step: block,
                to: to.cast(),
                to_column: width as isize * bytes,
                add: true,
            };
            if self.call.dv.is_some() {
                let product = over_queries(m.d_out, sizes.width, m.scores, m.dv);
                blocks.multiply(&product, |from, to| (0..sizes.width, seeing(from, to)));
            }
            if self.call.dk.is_some() {
                let product = over_queries(m.q, sizes.features, m.by_weight, m.dk);
                blocks.multiply(&product, |from, to| (0..sizes.features, seeing(from, to)));
            }
            if let Some(sums) = &self.sums {
                let product = Multiply {
                    rows: a.features,
                    columns: queries,
                    a: m.k.cast(),
                    a_step: features,
                    b: m.by_weight.cast(),
                    b_column: block,
                    b_step: bytes,
                    to: sums.place(Dim::Query, first),
                    to_column: sums.step(Dim::Query),
                    add: true,
                };
                blocks.multiply(&product, |from, to| (0..a.features, seen(from, to)));
            }
        }
    }
}
