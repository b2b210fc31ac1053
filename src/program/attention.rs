//! Attention of the runtime, without stored scores.

use super::{Access, BufferId};
use crate::types::DType;
use serde::{Deserialize, Serialize};

/// out[batch, group, query, value] = the mean of values[batch, key, value] by softmax over the keys of the scores of
/// q[batch, group, query, feature] and keys[batch, key, feature]. What a score is and which keys are seen: `ir::Attention`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Attention {
    /// Extents of the dims that all of q, keys and values have; major first.
    pub batch: Vec<usize>,
    /// Extents of the dims that q alone has, but the position.
    pub group: Vec<usize>,
    pub queries: usize,
    pub keys: usize,
    pub features: usize,
    /// Extent of the values' own dim.
    pub width: usize,
    pub q: Strided,
    pub k: Strided,
    pub v: Strided,
    pub out: Strided,
    /// The logsumexp of the scores, F32 (F64); the forward pass leaves it out where nobody reads it.
    pub log: Option<Strided>,
    /// I32: numbers of queries and of keys.
    pub documents: Option<[Strided; 2]>,
    /// Bool.
    pub mask: Option<Strided>,
    /// Of the operands' type.
    pub bias: Option<Strided>,
    /// I32: the position of the first query, which is 0 without.
    pub first: Option<BufferId>,
    pub scale: f64,
    pub cap: f64,
    pub causal: bool,
    pub reach: Option<u32>,
    /// Of q, keys, values and the result.
    pub dtype: DType,
}

/// The cotangents of an attention's operands, by the cotangent of its result. Those that nobody reads are left out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AttentionGrad {
    /// Its results are read here.
    pub of: Attention,
    pub d_out: Strided,
    pub dq: Option<Strided>,
    pub dk: Option<Strided>,
    pub dv: Option<Strided>,
    /// Where dq is summed before it goes to its place, in the type of the sums; none where it is summed in place.
    pub sums: Option<Strided>,
}

/// An array by the dims of an attention: batch, group, query, key, feature, value, in this order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Strided {
    pub buffer: BufferId,
    pub offset: usize,
    /// How far one step along each dim moves; 0 for those that it lacks.
    pub steps: Vec<isize>,
}

impl Attention {
    /// Calls `visit` for each operand.
    fn operands(&self, visit: &mut impl FnMut(&Strided)) {
        [&self.q, &self.k, &self.v].into_iter().for_each(&mut *visit);
        self.documents.iter().flatten().chain(&self.mask).chain(&self.bias).for_each(visit);
    }

    fn read(&self, visit: &mut impl FnMut(BufferId, Access)) {
        self.operands(&mut |s| visit(s.buffer, Access::Read));
        self.first.iter().for_each(|b| visit(*b, Access::Read));
    }

    fn arrays_mut(&mut self, change: &mut impl FnMut(&mut BufferId)) {
        let always = [&mut self.q, &mut self.k, &mut self.v, &mut self.out];
        let optional = self.documents.iter_mut().flatten().chain(&mut self.mask).chain(&mut self.bias);
        always.into_iter().chain(&mut self.log).chain(optional).for_each(|s| change(&mut s.buffer));
        self.first.iter_mut().for_each(change);
    }

    pub(super) fn accesses(&self, visit: &mut impl FnMut(BufferId, Access)) {
        self.read(visit);
        std::iter::once(&self.out).chain(&self.log).for_each(|s| visit(s.buffer, Access::Write));
    }

    pub(super) fn buffers_mut(&mut self, change: &mut impl FnMut(&mut BufferId)) {
        self.arrays_mut(change);
    }

    /// Pairs of a query and a key that may see each other by their positions; where these begin anywhere, of those in the
    /// middle.
    fn pairs(&self) -> u64 {
        let rows: usize = self.batch.iter().chain(&self.group).product();
        let first = if self.first.is_some() { (self.keys - self.queries.min(self.keys)) / 2 } else { 0 };
        let one: u64 = (0..self.queries).map(|q| self.seen((first + q) as i64).len() as u64).sum();
        rows as u64 * one
    }

    /// The keys that the query at a position may see; the others may be left out. Positions before the first key are negative.
    pub fn seen(&self, query: i64) -> std::ops::Range<usize> {
        let within = |n: i64| n.clamp(0, self.keys as i64) as usize;
        let end = if self.causal { within(query + 1) } else { self.keys };
        let begin = self.reach.map_or(0, |r| within(query + 1 - i64::from(r)));
        begin.min(end)..end
    }

    /// Two products; what softmax takes is not counted.
    pub(super) fn flops(&self) -> u64 {
        self.pairs() * 2 * (self.features + self.width) as u64
    }
}

impl AttentionGrad {
    pub(super) fn accesses(&self, visit: &mut impl FnMut(BufferId, Access)) {
        self.of.read(visit);
        let results = [&self.of.out, &self.d_out].into_iter().chain(&self.of.log);
        results.for_each(|s| visit(s.buffer, Access::Read));
        let written = self.dq.iter().chain(&self.dk).chain(&self.dv).chain(&self.sums);
        written.for_each(|s| visit(s.buffer, Access::Write));
    }

    pub(super) fn buffers_mut(&mut self, change: &mut impl FnMut(&mut BufferId)) {
        self.of.arrays_mut(change);
        let own = [&mut self.dq, &mut self.dk, &mut self.dv, &mut self.sums].into_iter().flatten();
        std::iter::once(&mut self.d_out).chain(own).for_each(|s| change(&mut s.buffer));
    }

    /// Five products.
    pub(super) fn flops(&self) -> u64 {
        self.of.pairs() * 2 * (3 * self.of.features + 2 * self.of.width) as u64
    }
}
