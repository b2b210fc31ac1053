//! Attention in a ring: where queries and keys are cut alike, blocks of keys and values go round, and each rank combines what its
//! queries get of one after another (Liu et al. 2023, arXiv 2310.01889).

use super::facts::State;
use super::nest::{Along, Nest};
use crate::ir::*;
use crate::mesh::{Cut, Entry};

/// The entry by which blocks go round: the one that cuts queries, keys and values, along an atom for which a rule says so.
pub fn entry(s: &State<'_>, op: &Operation, nest: &Nest, cuts: &[Cut]) -> Option<Entry> {
    let (Op::Attention(a) | Op::AttentionGrad(a)) = &op.op else { return None };
    let query =
        nest.loops.iter().zip(cuts).find(|(l, _)| l.slots[0].is_some_and(|p| dim(s, op, 0, p.at) == a.query))?;
    let [entry] = query.1[..] else { return None };
    let taken = |i: usize| {
        let v = op.args[i];
        let at = s.g.value(v).dims.iter().position(|d| *d == a.key);
        at.is_some_and(|at| s.held(v).cuts[at] == [entry])
    };
    // Nothing else of what a rank has of keys and values is cut by it.
    let elsewhere =
        nest.loops.iter().zip(cuts).any(|(l, c)| {
            l.along != Along::Whole && (l.slots[1].is_some() || l.slots[2].is_some()) && c.contains(&entry)
        });
    (s.ring.contains(&entry.atom) && taken(1) && taken(2) && !elsewhere && s.g.size(a.query) == s.g.size(a.key))
        .then_some(entry)
}

fn dim(s: &State<'_>, op: &Operation, slot: usize, at: usize) -> DimId {
    s.g.value(op.args[slot]).dims[at]
}

/// Operands that go round: keys, values, and the numbers of the keys' documents.
pub fn travels(a: &Attention, operand: usize) -> bool {
    matches!(operand, 1 | 2) || a.documents && operand == 4
}
