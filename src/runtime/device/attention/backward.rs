//! The backward pass: a task is all queries that share keys. Chunks of keys go over blocks of queries, so that the
//! cotangents of keys and values are summed in scratch memory, those of queries at their place if there are several chunks.

use super::ahead::Ahead;
use super::block::{Blocks, Matrix, Multiply, PAD, PANEL, stride};
use super::head::{Array, Dim, Head, Pair};
use super::real::{Real, Stored};
use super::rows::{Backward, Finish, Gather, Level, Rows};
use super::{AHEAD, KEYS, Parts, QUERIES, Sizes, each, scratch_bytes};
use crate::program::{AttentionGrad, BufferId};
use crate::runtime::device::pool::{Pool, worker};
use crate::runtime::device::product::Unit;
use crate::runtime::device::share::Shared;

/// What all tasks have in common.
struct Call<'a, E: Stored> {
    head: Head<'a>,
    grads: Grads<'a>,
    sizes: Sizes,
    blocks: Blocks<E>,
    rows: Rows<E>,
}

/// The arrays of cotangents.
#[derive(Clone, Copy)]
struct Grads<'a> {
    d_out: Array<'a>,
    dq: Option<Array<'a>>,
    dk: Option<Array<'a>>,
    dv: Option<Array<'a>>,
    /// Where dq is summed.
    sums: Option<Array<'a>>,
}

impl<'a> Grads<'a> {
    fn map(self, change: impl Fn(Array<'a>) -> Array<'a>) -> Grads<'a> {
        let Grads { d_out, dq, dk, dv, sums } = self;
        let [dq, dk, dv, sums] = [dq, dk, dv, sums].map(|x| x.map(&change));
        Grads { d_out: change(d_out), dq, dk, dv, sums }
    }
}

/// A task's memory.
struct Memory<R> {
    /// A chunk of keys and values in panels, feature by feature.
    k_turned: *mut R,
    v_turned: *mut R,
    /// Row by row.
    k: *mut R,
    dk: *mut R,
    dv: *mut R,
    /// A block of queries, row by row.
    q: *mut R,
    d_out: *mut R,
    /// The result; then the cotangent of the queries.
    out: *mut R,
    dq: *mut R,
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
    let (a, sum) = (&g.of, <E::Sum as Real>::DTYPE);
    if a.log.is_none() {
        return Err("the gradient of attention needs the logsumexp".to_string());
    }
    // SAFETY: the caller's promise.
    let array = |s, dtype| unsafe { Array::new(a, s, dtype, locate) };
    let grads = Grads {
        d_out: array(&g.d_out, a.dtype),
        dq: g.dq.as_ref().map(|s| array(s, a.dtype)),
        dk: g.dk.as_ref().map(|s| array(s, a.dtype)),
        dv: g.dv.as_ref().map(|s| array(s, a.dtype)),
        sums: g.sums.as_ref().map(|s| array(s, sum)),
    };
    // SAFETY: the caller's promise.
    let head = unsafe { Head::new(a, sum, locate) };
    let call: Call<E> = Call { head, grads, sizes: Sizes::of(a), blocks: Blocks::new(unit), rows: Rows::of(unit) };
    let bytes = scratch_bytes(a);
    assert!(scratch.len() * 8 >= bytes * pool.threads(), "scratch for {} threads", pool.threads());
    let (scratch, call) = (Shared(scratch.as_mut_ptr().cast::<u8>()), &call);
    let pairs = call.head.pairs(&(0..a.queries)) * a.group.iter().product::<usize>() as u64;
    let task = |batch| (call.head.of_batch(batch), call.grads.map(|x| x.of_batch(a, batch)));
    each(pool, a.batch.iter().product(), &|batch, next| {
        let (head, grads) = task(batch);
        let mut ahead = Ahead::new(pairs * (3 * a.features + 2 * a.width) as u64);
        call.expect(&mut ahead, &grads, next.map(task));
        // SAFETY: each thread takes a part of its own; tasks write results of their own keys and queries.
        unsafe {
            let memory = call.memory(Parts::of_thread(scratch.get(), bytes, worker()));
            call.task(&head, &grads, &ahead, &memory);
        }
    })
}

impl<E: Stored> Call<'_, E> {
    fn memory(&self, mut parts: Parts<E::Sum>) -> Memory<E::Sum> {
        let Sizes { features, width, extra, chunk } = self.sizes;
        Memory {
            k_turned: parts.take(chunk * self.head.a.features),
            v_turned: parts.take(chunk * self.head.a.width),
            k: parts.take(chunk * features),
            dk: parts.take(chunk * features),
            dv: parts.take(chunk * width),
            q: parts.take(QUERIES * features),
            d_out: parts.take(QUERIES * width),
            out: parts.take(QUERIES * width),
            dq: parts.take(QUERIES * features),
            scores: parts.take(QUERIES * stride(KEYS)),
            by_weight: parts.take(QUERIES * stride(KEYS)),
            extra: parts.take(extra),
            log: parts.take(QUERIES),
            level: parts.take(QUERIES),
        }
    }

    /// What a task writes, and what the next one reads first.
    fn expect(&self, ahead: &mut Ahead, grads: &Grads<'_>, next: Option<(Head<'_>, Grads<'_>)>) {
        let (a, stored) = (self.head.a, size_of::<E>() as isize);
        let (queries, keys) = (a.queries.min(AHEAD), a.keys.min(AHEAD));
        let mut add = |x: Array<'_>, dim: Dim, along: Dim| {
            let rows = if let Dim::Query = dim { queries } else { keys };
            let columns = if let Dim::Value = along { a.width } else { a.features };
            ahead.add(x.matrix(dim, 0, along), rows, columns, stored);
        };
        for (x, dim, along) in
            [(grads.dq, Dim::Query, Dim::Feature), (grads.dk, Dim::Key, Dim::Feature), (grads.dv, Dim::Key, Dim::Value)]
        {
            if let Some(x) = x {
                add(x, dim, along);
            }
        }
        if let Some((head, grads)) = next {
            add(head.k, Dim::Key, Dim::Feature);
            add(head.v, Dim::Key, Dim::Value);
            add(head.q, Dim::Query, Dim::Feature);
            add(grads.d_out, Dim::Query, Dim::Value);
            add(head.out, Dim::Query, Dim::Value);
        }
    }

    /// # Safety
    /// The arrays must be valid, the memory the thread's own.
    unsafe fn task(&self, head: &Head<'_>, grads: &Grads<'_>, ahead: &Ahead, m: &Memory<E::Sum>) {
        let (a, Sizes { features, width, chunk, .. }) = (head.a, self.sizes);
        let groups = a.group.iter().product();
        let (zero, scale) = (E::Sum::default(), E::Sum::of(a.scale));
        // SAFETY: all within the arrays, by their extents, and the parts of the scratch memory.
        unsafe {
            for first in (0..a.keys).step_by(chunk) {
                let keys = chunk.min(a.keys - first);
                let (k, v) = (head.k.matrix(Dim::Key, first, Dim::Feature), head.v.matrix(Dim::Key, first, Dim::Value));
                self.blocks.turned(k, keys, a.features, m.k_turned.cast());
                self.blocks.turned(v, keys, a.width, m.v_turned.cast());
                self.blocks.straight(k, keys, a.features, features, m.k.cast());
                std::slice::from_raw_parts_mut(m.dk, keys * features).fill(zero);
                std::slice::from_raw_parts_mut(m.dv, keys * width).fill(zero);
                for group in 0..groups {
                    let (head, grads) = (head.of_group(group), grads.map(|x| x.of_group(a, group)));
                    for query in (0..a.queries).step_by(QUERIES) {
                        let pair = head.pair((query, QUERIES.min(a.queries - query)), (first, keys));
                        self.block(&head, &grads, &pair, ahead, m);
                    }
                }
                for (to, along, from, stride, wide, scale) in [
                    (grads.dk, Dim::Feature, m.dk, features, a.features, scale),
                    (grads.dv, Dim::Value, m.dv, width, a.width, E::Sum::ONE),
                ] {
                    if let Some(to) = to {
                        self.finish((from, stride, scale), (keys, wide), to.matrix(Dim::Key, first, along));
                    }
                }
            }
            if let (true, Some(sums), Some(dq)) = (a.keys > chunk, grads.sums, grads.dq) {
                for group in 0..groups {
                    let [sums, dq] = [sums, dq].map(|x| x.of_group(a, group).matrix(Dim::Query, 0, Dim::Feature));
                    let stride = (sums.row / size_of::<E::Sum>() as isize) as usize;
                    self.finish((sums.at.cast(), stride, E::Sum::ONE), (a.queries, a.features), dq);
                }
            }
        }
    }

    unsafe fn finish(
        &self,
        (from, stride, scale): (*const E::Sum, usize, E::Sum),
        (rows, width): (usize, usize),
        to: Matrix,
    ) {
        let Matrix { at, row, column } = to;
        // SAFETY: as promised to `task`.
        unsafe {
            (self.rows.finish)(&Finish {
                from,
                stride,
                rows,
                width,
                scale,
                by: None,
                to: at.cast_mut(),
                row_step: row,
                step: column,
            });
        }
    }

    /// A block of queries with the chunk of keys that is packed.
    unsafe fn block(&self, head: &Head<'_>, grads: &Grads<'_>, all: &Pair<'_>, ahead: &Ahead, m: &Memory<E::Sum>) {
        let (a, Sizes { features, chunk, .. }) = (head.a, self.sizes);
        let Pair { query, queries, .. } = *all;
        let seen = all.seen(0, queries);
        // SAFETY: as promised to `task`.
        unsafe {
            if !seen.is_empty() {
                self.pack_queries(head, grads, all, m);
            }
            let mut more = false;
            for at in (seen.start / KEYS * KEYS..seen.end).step_by(KEYS) {
                let pair = Pair { key: all.key + at, keys: KEYS.min(all.keys - at), ..*all };
                self.pair(head, grads, &pair, (at, more), ahead, m);
                more = true;
            }
            let Some(dq) = grads.dq else { return };
            if !more {
                std::slice::from_raw_parts_mut(m.dq, queries * features).fill(E::Sum::default());
            }
            let scale = E::Sum::of(a.scale);
            if a.keys <= chunk {
                self.finish((m.dq, features, scale), (queries, a.features), dq.matrix(Dim::Query, query, Dim::Feature));
            } else {
                let sums = grads.sums.unwrap_or(dq);
                (self.rows.gather)(&Gather {
                    from: m.dq,
                    stride: features,
                    rows: queries,
                    width: a.features,
                    scale,
                    to: sums.place(Dim::Query, query),
                    row_step: sums.step(Dim::Query),
                    replace: all.key == 0,
                });
            }
        }
    }

    unsafe fn pack_queries(&self, head: &Head<'_>, grads: &Grads<'_>, p: &Pair<'_>, m: &Memory<E::Sum>) {
        let (a, Sizes { features, width, .. }) = (head.a, self.sizes);
        let bytes = size_of::<E::Sum>() as isize;
        // SAFETY: as promised to `task`.
        unsafe {
            let q = head.q.matrix(Dim::Query, p.query, Dim::Feature);
            self.blocks.straight(q, p.queries, a.features, features, m.q.cast());
            let d_out = grads.d_out.matrix(Dim::Query, p.query, Dim::Value);
            self.blocks.straight(d_out, p.queries, a.width, width, m.d_out.cast());
            // The result is read once: in place where it can be.
            let out = head.out.matrix(Dim::Query, p.query, Dim::Value);
            let near = E::DTYPE == <E::Sum as Real>::DTYPE && out.column == bytes && a.width.is_multiple_of(PAD);
            let (y, step) = if near {
                (out.at.cast(), out.row / bytes)
            } else {
                self.blocks.straight(out, p.queries, a.width, width, m.out.cast());
                (m.out.cast_const(), width as isize)
            };
            (self.rows.level)(&Level {
                x: m.d_out,
                y,
                strides: [width as isize, step],
                rows: p.queries,
                width: a.width.next_multiple_of(PAD),
                to: m.level,
            });
            if let Some(log) = head.log {
                for i in 0..p.queries {
                    *m.log.add(i) = log.place(Dim::Query, p.query + i).cast::<E::Sum>().read();
                }
            }
        }
    }

    /// The packed block of queries with the keys of the chunk from number `at` on. `more`: they are not its first ones.
    unsafe fn pair(
        &self,
        head: &Head<'_>,
        grads: &Grads<'_>,
        pair: &Pair<'_>,
        (at, more): (usize, bool),
        ahead: &Ahead,
        m: &Memory<E::Sum>,
    ) {
        let (a, Sizes { features, width, .. }) = (head.a, self.sizes);
        let (queries, keys, line) = (pair.queries, pair.keys, stride(KEYS));
        let bytes = size_of::<E::Sum>() as isize;
        let mut each = [[0; 2]; QUERIES];
        for (i, each) in each[..queries].iter_mut().enumerate() {
            let own = pair.seen(i, i + 1);
            *each = [own.start, own.end];
        }
        // SAFETY: as promised to `task`.
        unsafe {
            let by_query = |turned: *mut E::Sum, terms: usize, x: *mut E::Sum, x_stride: usize, to: *mut E::Sum| {
                let product = Multiply {
                    rows: keys.next_multiple_of(PAD),
                    columns: queries,
                    a: turned.add(at * terms).cast(),
                    a_step: PANEL as isize * bytes,
                    a_panel: PANEL * terms * bytes as usize,
                    b: x.cast(),
                    b_column: x_stride as isize * bytes,
                    b_step: bytes,
                    to: to.cast(),
                    to_column: line as isize * bytes,
                    add: false,
                };
                self.blocks.multiply(&product, ahead, |from, to| (pair.seen(from, to), 0..terms));
            };
            by_query(m.k_turned, a.features, m.q, features, m.scores);
            by_query(m.v_turned, a.width, m.d_out, width, m.by_weight);
            let extra = head.adds();
            if extra {
                head.write_added::<E>(pair, m.extra, [line, 1]);
            }
            (self.rows.backward)(&Backward {
                scores: m.scores,
                by_weight: m.by_weight,
                stride: line,
                queries,
                seen: each.as_ptr(),
                scale: E::Sum::of(a.scale),
                cap: E::Sum::of(a.cap),
                extra: extra.then_some(m.extra.cast_const()),
                log: m.log,
                level: m.level,
            });
            // Over queries: to keys and values.
            let by_key = |x: *mut E::Sum, wide: usize, x_stride: usize, weights: *mut E::Sum, to: *mut E::Sum| {
                let product = Multiply {
                    rows: wide,
                    columns: keys,
                    a: x.cast(),
                    a_step: x_stride as isize * bytes,
                    a_panel: PANEL * bytes as usize,
                    b: weights.cast(),
                    b_column: bytes,
                    b_step: line as isize * bytes,
                    to: to.add(at * x_stride).cast(),
                    to_column: x_stride as isize * bytes,
                    add: true,
                };
                self.blocks.multiply(&product, ahead, |from, to| (0..wide, pair.seeing(from, to)));
            };
            if grads.dv.is_some() {
                by_key(m.d_out, a.width, width, m.scores, m.dv);
            }
            if grads.dk.is_some() {
                by_key(m.q, a.features, features, m.by_weight, m.dk);
            }
            if grads.dq.is_some() {
                let product = Multiply {
                    rows: a.features,
                    columns: queries,
                    a: m.k.add(at * features).cast(),
                    a_step: features as isize * bytes,
                    a_panel: PANEL * bytes as usize,
                    b: m.by_weight.cast(),
                    b_column: line as isize * bytes,
                    b_step: bytes,
                    to: m.dq.cast(),
                    to_column: features as isize * bytes,
                    add: more,
                };
                self.blocks.multiply(&product, ahead, |from, to| (0..a.features, pair.seen(from, to)));
            }
        }
    }
}
