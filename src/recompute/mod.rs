//! Recomputation: what of the forward pass the backward pass computes again, because a plan says so, instead of having it kept.
//!
//! In: the program of a rank (or of the only one) with its forward and backward pass, and a [`Policy`]. Out: the same program, in which
//! values that the policy does not keep end with the forward pass; before its first reader in the backward pass stands a
//! repetition of what makes them, marked [`Operation::again`](crate::ir::Operation::again). It computes the same numbers: draws are functions of
//! where they stand. It comes after sharding, whose collectives it repeats or keeps, and before kernels are made, which by themselves
//! repeat what is cheap (`kernel/lower/recompute.rs`).
//!
//! Reading order: this file, `choose.rs` (which values a policy drops), `price.rs` (which cost least).

mod choose;
mod price;
#[cfg(test)]
mod tests;

use crate::ir::*;
use crate::source::Span;
use crate::types::MapOp;

pub use choose::{dropped, is_exchange};
pub use price::{Market, Prices};

/// What a plan says.
#[derive(Clone, PartialEq, Debug)]
pub struct Policy {
    pub what: What,
    /// Results of collectives are kept: recomputation repeats no exchange.
    pub keep_collectives: bool,
    /// Of the statement.
    pub span: Span,
}

#[derive(Clone, PartialEq, Debug)]
pub enum What {
    /// What ranks gathered of values that are not stored.
    Gathers,
    /// All that a turn of the outermost loop over layers makes, but for what leaves it.
    Full,
    Parts(Vec<Part>),
    /// What is the cheapest at these prices.
    Priced(Prices),
}

/// A part of a list.
#[derive(Clone, PartialEq, Debug)]
pub enum Part {
    /// All that these instances make, but for what leaves them.
    Inside(Vec<ScopeId>),
    /// The values of a name that operations of these scopes make, in all their forms.
    Named(String, Vec<ScopeId>),
}

/// Has the backward pass compute again what the policy does not keep. Returns for each operation of the result the one that it was
/// or repeats.
pub fn recompute(graph: &mut Graph, policy: &Policy) -> Vec<OpId> {
    let dropped = dropped(graph, policy);
    repeat(graph, &dropped)
}

/// The same with the values themselves given.
pub fn repeat(graph: &mut Graph, dropped: &[bool]) -> Vec<OpId> {
    let mut dropped = dropped.to_vec();
    keep_compared(graph, &mut dropped);
    let mut origins: Vec<OpId> = (0..graph.ops.len() as u32).map(OpId).collect();
    let is_reader = |op: &Operation| op.phase == Phase::Backward;
    for block in 0..graph.blocks.len() as u32 {
        for (made, of) in again::repeat(graph, BlockId(block), &dropped, is_reader) {
            debug_assert_eq!(made.index(), origins.len());
            origins.push(of);
        }
    }
    // What is not read any more is gone, and so are turns that loops collected for the backward pass.
    let (pruned, were) = prune::prune_tracing(graph);
    *graph = pruned;
    were.into_iter().map(|old| origins[old.index()]).collect()
}

/// Keeps what is compared with its own reduction over ranks (where the extreme of a part is that of the whole): a repetition could
/// not be told from another value in parts.
fn keep_compared(g: &Graph, dropped: &mut [bool]) {
    for op in &g.ops {
        let (Op::Map(MapOp::Eq | MapOp::Ne), &[own, best]) = (&op.op, &op.args[..]) else { continue };
        let mut at = best;
        while let Some(Operation { op: Op::Collective(_), args, .. }) = g.def_op(at) {
            at = args[0];
        }
        if at == own && at != best {
            let results = g.def_op(own).map_or(&[][..], |op| &op.results);
            results.iter().for_each(|r| dropped[r.index()] = false);
        }
    }
}
