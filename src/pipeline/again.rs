//! What the backward pass of a stage computes again is of use to that stage alone.
//!
//! Cotangents go from later stages to earlier ones; a later stage that read what an earlier one computes again would wait for it, and it for the later
//! one. Such a stage reads what the forward pass has made.

use super::flat::Flat;
use crate::ir::*;
use std::collections::HashMap;

/// Has stages read what the forward pass has made instead of what an earlier stage computes again. `of`: the stage of each operation.
pub fn first_made(flat: &mut Flat, of: &[Option<usize>]) {
    let g = &mut flat.g;
    let mut first: Option<HashMap<ValueId, ValueId>> = None;
    for id in g.block(ENTRY).ops.clone() {
        let (Some(own), Phase::Backward) = (of[id.index()], g.op(id).phase) else { continue };
        for k in 0..g.op(id).args.len() {
            let v = g.op(id).args[k];
            let Def::Op(made, _) = g.value(v).def else { continue };
            let earlier = of[made.index()].is_some_and(|stage| stage < own);
            if !is_copy(g.op(made)) || !earlier {
                continue;
            }
            match first.get_or_insert_with(|| originals(g)).get(&v) {
                Some(original) => g.ops[id.index()].args[k] = *original,
                None => to_forward(g, made),
            }
        }
    }
    if first.is_some() {
        without_unread(flat);
    }
}

fn is_copy(op: &Operation) -> bool {
    op.again && op.phase == Phase::Backward
}

/// Of values that are computed again: what the forward pass makes alike.
fn originals(g: &Graph) -> HashMap<ValueId, ValueId> {
    let mut made: HashMap<(ScopeId, &[ValueId]), Vec<&Operation>> = HashMap::new();
    let mut out: HashMap<ValueId, ValueId> = HashMap::new();
    for op in g.block(ENTRY).ops.iter().map(|id| g.op(*id)) {
        if !is_copy(op) {
            made.entry((op.scope, &op.args)).or_default().push(op);
            continue;
        }
        let args: Vec<ValueId> = op.args.iter().map(|a| out.get(a).copied().unwrap_or(*a)).collect();
        let alike = |o: &&&Operation| o.op == op.op && o.span == op.span;
        if let Some(original) = made.get(&(op.scope, &args[..])).and_then(|all| all.iter().find(alike)) {
            out.extend(op.results.iter().copied().zip(original.results.iter().copied()));
        }
    }
    out
}

/// Makes an operation, with what it needs of what is computed again, one of the forward pass: nothing else there makes its results.
fn to_forward(g: &mut Graph, id: OpId) {
    let op = &mut g.ops[id.index()];
    (op.phase, op.again) = (Phase::Forward, false);
    for a in op.args.clone() {
        if let Def::Op(made, _) = g.value(a).def
            && is_copy(g.op(made))
        {
            to_forward(g, made);
        }
    }
}

/// Takes copies out that nothing reads any more.
fn without_unread(flat: &mut Flat) {
    let g = &mut flat.g;
    let mut read = vec![false; g.values.len()];
    let left = g.outputs.iter().map(|o| o.value).chain(flat.sums.iter().map(|s| s.next));
    left.for_each(|v| read[v.index()] = true);
    let mut ops = std::mem::take(&mut g.blocks[ENTRY.index()].ops);
    let mut kept = Vec::with_capacity(ops.len());
    while let Some(id) = ops.pop() {
        let op = g.op(id);
        if !is_copy(op) || op.results.iter().any(|r| read[r.index()]) {
            op.args.iter().for_each(|a| read[a.index()] = true);
            kept.push(id);
        }
    }
    kept.reverse();
    g.blocks[ENTRY.index()].ops = kept;
}
