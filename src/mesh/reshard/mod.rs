//! Moves that lead from one layout of a tensor to another, what they send, and the cheapest path.
//!
//! In: a mesh, a shape and two layouts. Out: steps, each of which a rank does with what the members of its group hold.
//! Cheapest is what sends the fewest bytes, each times the weight of its axes; then the fewest collectives, the least memory
//! at the worst, the smallest groups. Only atoms whose role differs, and those minor to them on the same dim, move.
//!
//! Reading order: this file; `volume.rs` counts elements; `plan.rs` writes the obvious path down at once and knows when
//! nothing beats it; `search.rs` looks for a better one else.
//!
//! - Bytes are of real elements, mean over ranks: dead tails of uneven blocks are never sent.
//! - Sums over all ranks are whole numbers, so that comparisons are exact and no path hangs on rounding.

#[cfg(test)]
mod cases;
mod plan;
mod search;
#[cfg(test)]
mod tests;
mod volume;

use super::{Atom, Layout, Mesh};
use crate::types::ReduceKind;
use std::cmp::Ordering;

/// What a step does. Of ranks that differ in the step's atoms, unless it says that it is local.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Kind {
    /// Local: a rank's elements of the new layout are among those of the old one, in order.
    Slice,
    /// Local, replicated to partial: coordinate 0 keeps its array, others hold the operator's identity. Where the operator is
    /// idempotent all may keep theirs.
    MakePartial,
    /// Local, cut to partial: the identity wherever a rank held nothing.
    ShardToPartial,
    /// Partial to cut: each gets its block, combined.
    ReduceScatter,
    /// Cut to cut: each gets what it lacks of its new block from those that hold it.
    AllToAll,
    /// The same where each needs the whole block of exactly one other.
    Permute,
    /// Cut to replicated: each gets the others' blocks.
    AllGather,
    /// Partial to replicated: each gets all, combined.
    AllReduce,
}

impl Kind {
    /// Whether a rank needs no other.
    pub fn local(self) -> bool {
        matches!(self, Kind::Slice | Kind::MakePartial | Kind::ShardToPartial)
    }

    pub fn name(self) -> &'static str {
        match self {
            Kind::Slice => "slice",
            Kind::MakePartial => "make_partial",
            Kind::ShardToPartial => "shard_to_partial",
            Kind::ReduceScatter => "reduce_scatter",
            Kind::AllToAll => "all_to_all",
            Kind::Permute => "permute",
            Kind::AllGather => "all_gather",
            Kind::AllReduce => "all_reduce",
        }
    }
}

/// One move.
#[derive(Clone, PartialEq, Debug)]
pub struct Step {
    pub kind: Kind,
    /// Along which the ranks of a group differ, major first; none where the step is local.
    pub atoms: Vec<Atom>,
    /// Of steps that end or begin a partial value.
    pub reduce: Option<ReduceKind>,
    pub from: Layout,
    pub to: Layout,
    /// Sent per rank, mean over ranks.
    pub bytes: f64,
}

/// What a path takes.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Cost {
    /// Bytes times the weight of the axes they go along.
    pub weighted: f64,
    /// Sent per rank, mean over ranks.
    pub bytes: f64,
    pub collectives: usize,
    /// Of the largest buffer on the way, the ends included.
    pub peak: f64,
    /// The atoms of all groups together.
    pub atoms: usize,
}

impl Cost {
    /// Of one after the other.
    pub fn then(self, next: Cost) -> Cost {
        Cost {
            weighted: self.weighted + next.weighted,
            bytes: self.bytes + next.bytes,
            collectives: self.collectives + next.collectives,
            peak: self.peak.max(next.peak),
            atoms: self.atoms + next.atoms,
        }
    }

    /// Of so many turns.
    pub fn times(self, count: f64) -> Cost {
        Cost { weighted: self.weighted * count, bytes: self.bytes * count, ..self }
    }

    /// Cheaper first. Bytes that differ by rounding only are the same.
    pub fn order(&self, other: &Cost) -> Ordering {
        let near = |a: f64, b: f64| {
            if (a - b).abs() <= 1e-9 * a.abs().max(b.abs()) { Ordering::Equal } else { a.total_cmp(&b) }
        };
        near(self.weighted, other.weighted)
            .then(self.collectives.cmp(&other.collectives))
            .then(near(self.peak, other.peak))
            .then(self.atoms.cmp(&other.atoms))
    }
}

/// The steps from one layout to another, the cheapest ones; none where they are equal. `None` where no path exists: where a
/// value would be partial by two operators at once, or the roles of an atom differ over which it is partial by an operator that
/// is no monoid.
pub fn path(mesh: &Mesh, shape: &[usize], element_bytes: usize, from: &Layout, to: &Layout) -> Option<Vec<Step>> {
    let plan = plan::Walk::direct(mesh, shape, from, to, true)?;
    let plan = if plan.best { plan } else { search::better(from, to, plan) };
    Some(plan.finish(element_bytes))
}

/// What [`path`] takes, without the steps where that is less work.
pub fn cost(mesh: &Mesh, shape: &[usize], element_bytes: usize, from: &Layout, to: &Layout) -> Option<Cost> {
    let plan = plan::Walk::direct(mesh, shape, from, to, false)?;
    let plan = if plan.best { plan } else { search::better(from, to, plan) };
    Some(plan.cost(element_bytes))
}
