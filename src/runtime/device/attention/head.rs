//! The arrays of a call, and which of their elements a block touches.

use super::block::Matrix;
use super::real::{Real, Stored};
use crate::program::{Attention, BufferId, Strided};
use crate::types::DType;
use std::ops::Range;

/// An array of a call, at one index of the batch (and group) dims.
#[derive(Clone, Copy)]
pub struct Array<'a> {
    at: *mut u8,
    steps: &'a [isize],
    /// Of an element.
    pub bytes: isize,
    dims: usize,
}

// SAFETY: only an address; tasks write disjoint elements.
unsafe impl Sync for Array<'_> {}
// SAFETY: as above.
unsafe impl Send for Array<'_> {}

/// A dim of an attention after those of the batch and the group.
#[derive(Clone, Copy)]
pub enum Dim {
    Query,
    Key,
    Feature,
    Value,
}

impl<'a> Array<'a> {
    /// # Safety
    /// The buffer must hold the array.
    pub unsafe fn new(a: &Attention, s: &'a Strided, dtype: DType, locate: &dyn Fn(BufferId) -> *mut u8) -> Array<'a> {
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

    /// The array at one index of the batch.
    pub fn of_batch(self, a: &Attention, batch: usize) -> Array<'a> {
        self.at(0, &a.batch, batch)
    }

    /// The array at one index of the group.
    pub fn of_group(self, a: &Attention, group: usize) -> Array<'a> {
        self.at(a.batch.len(), &a.group, group)
    }

    /// Bytes from one index along a dim to the next.
    pub fn step(&self, dim: Dim) -> isize {
        self.steps[self.dims + dim as usize] * self.bytes
    }

    /// The place at an index.
    pub fn place(&self, dim: Dim, index: usize) -> *mut u8 {
        self.at.wrapping_offset(index as isize * self.step(dim))
    }

    /// The matrix of one dim by another, from an index of the first on.
    pub fn matrix(&self, rows: Dim, first: usize, columns: Dim) -> Matrix {
        Matrix { at: self.place(rows, first), row: self.step(rows), column: self.step(columns) }
    }
}

/// The arrays that both passes have.
#[derive(Clone, Copy)]
pub struct Head<'a> {
    pub a: &'a Attention,
    /// The position of the first query, less that of the first key.
    first: i64,
    pub q: Array<'a>,
    pub k: Array<'a>,
    pub v: Array<'a>,
    pub out: Array<'a>,
    pub log: Option<Array<'a>>,
    /// I32: numbers of queries and of keys.
    documents: Option<[Array<'a>; 2]>,
    mask: Option<Array<'a>>,
    bias: Option<Array<'a>>,
}

impl<'a> Head<'a> {
    /// # Safety
    /// The buffers must hold the arrays.
    pub unsafe fn new(a: &'a Attention, sum: DType, locate: &dyn Fn(BufferId) -> *mut u8) -> Head<'a> {
        // SAFETY: the caller's promise.
        let array = |s: &'a Strided, dtype| unsafe { Array::new(a, s, dtype, locate) };
        Head {
            a,
            // SAFETY: the caller's promise: an I32.
            first: a.first.map_or(0, |b| i64::from(unsafe { locate(b).cast::<i32>().read() })),
            q: array(&a.q, a.dtype),
            k: array(&a.k, a.dtype),
            v: array(&a.v, a.dtype),
            out: array(&a.out, a.dtype),
            log: a.log.as_ref().map(|s| array(s, sum)),
            documents: a.documents.as_ref().map(|[q, k]| [array(q, DType::I32), array(k, DType::I32)]),
            mask: a.mask.as_ref().map(|s| array(s, DType::Bool)),
            bias: a.bias.as_ref().map(|s| array(s, a.dtype)),
        }
    }

    fn map(self, change: impl Fn(Array<'a>) -> Array<'a>) -> Head<'a> {
        Head {
            a: self.a,
            first: self.first,
            q: change(self.q),
            k: change(self.k),
            v: change(self.v),
            out: change(self.out),
            log: self.log.map(&change),
            documents: self.documents.map(|x| x.map(&change)),
            mask: self.mask.map(&change),
            bias: self.bias.map(&change),
        }
    }

    /// The arrays at one index of the batch.
    pub fn of_batch(self, batch: usize) -> Head<'a> {
        self.map(|x| x.of_batch(self.a, batch))
    }

    /// The arrays at one index of the group.
    pub fn of_group(self, group: usize) -> Head<'a> {
        self.map(|x| x.of_group(self.a, group))
    }

    /// The keys that a query sees by its position.
    pub fn seen(&self, query: usize) -> Range<usize> {
        self.a.seen(self.first + query as i64)
    }

    /// A block of queries, from number `query` on, with a block of keys.
    pub fn pair(&self, (query, queries): (usize, usize), (key, keys): (usize, usize)) -> Pair<'a> {
        Pair { a: self.a, query, position: self.first + query as i64, key, queries, keys }
    }

    /// Pairs of one of some queries with a key that it sees, about.
    pub fn pairs(&self, queries: &Range<usize>) -> u64 {
        let [first, last] = [queries.start, queries.end - 1].map(|q| self.seen(q).len());
        (queries.len() * (first + last)) as u64 / 2
    }

    /// Whether something is added to scores.
    pub fn adds(&self) -> bool {
        self.documents.is_some() || self.mask.is_some() || self.bias.is_some()
    }

    /// Writes what is added to the scores of a block, -inf where a key is not seen. Steps are those of the target.
    ///
    /// # Safety
    /// The arrays must hold the block, and the target its elements.
    pub unsafe fn write_added<E: Stored>(&self, p: &Pair, to: *mut E::Sum, [query_step, key_step]: [usize; 2]) {
        // SAFETY: the caller's promise; elements by the types that the program gives.
        unsafe {
            for q in 0..p.queries {
                let own = self.documents.map(|[x, _]| x.place(Dim::Query, p.query + q).cast::<i32>().read());
                for k in 0..p.keys {
                    let pair = |x: &Array| {
                        x.place(Dim::Query, p.query + q).wrapping_offset((p.key + k) as isize * x.step(Dim::Key))
                    };
                    let mut value =
                        self.bias.map_or(<E::Sum as Default>::default(), |x| pair(&x).cast::<E>().read().widen());
                    let other = |[_, x]: &[Array; 2]| x.place(Dim::Key, p.key + k).cast::<i32>().read();
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

/// A block of queries with a block of keys.
#[derive(Clone, Copy)]
pub struct Pair<'a> {
    pub a: &'a Attention,
    /// The first ones.
    pub query: usize,
    /// The position of the first query; before the first key it is negative.
    pub position: i64,
    pub key: usize,
    pub queries: usize,
    pub keys: usize,
}

impl Pair<'_> {
    /// The keys that one of some queries sees; numbers in the blocks.
    pub fn seen(&self, from: usize, to: usize) -> Range<usize> {
        let seen = |query: usize| self.a.seen(self.position + query as i64);
        let first = seen(from).start.saturating_sub(self.key);
        let end = seen(to - 1).end.saturating_sub(self.key).min(self.keys);
        first.min(end)..end
    }

    /// The queries that see one of some keys; numbers in the blocks.
    pub fn seeing(&self, from: usize, to: usize) -> Range<usize> {
        let ahead = |key: usize| ((key as i64 - self.position).max(0) as usize).min(self.queries);
        let end = self.a.reach.map_or(self.queries, |r| ahead(self.key + to - 1 + r as usize));
        let first = if self.a.causal { ahead(self.key + from) } else { 0 };
        first.min(end)..end
    }
}
