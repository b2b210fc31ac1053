//! Which values of the forward pass a policy has computed again.
//!
//! *Units* are what is computed again as a whole: a turn of the loop over layers, an instance of a layer. Of a unit is kept what others
//! read of it; what enters it is made elsewhere, and kept there. Functions of parameters alone are as large as these and kept, but for
//! gathered ones that the backward pass does not read itself: it gathers parameters again.

use super::price::Market;
use super::{Part, Policy, What};
use crate::ir::*;
use crate::types::MapOp;
use std::collections::HashMap;

/// For each value whether the backward pass is to compute it again.
pub fn dropped(g: &Graph, policy: &Policy) -> Vec<bool> {
    let facts = Facts::new(g);
    let mut out = vec![false; g.values.len()];
    match &policy.what {
        What::Gathers => gathered(g, &facts, &mut out),
        What::Full => inside(g, &turns(g), &facts, &mut out),
        What::Priced(prices) => return Market::new(g, policy.keep_collectives).dropped(*prices),
        What::Parts(parts) => {
            let mut called = vec![false; g.values.len()];
            for part in parts {
                match part {
                    Part::Inside(roots) => inside(g, &instances(g, roots), &facts, &mut out),
                    Part::Named(name, scopes) => named(g, name, scopes, &facts, &mut called),
                }
            }
            follow(g, &facts, called, &mut out);
        }
    }
    let exchanged = |v: usize| g.def_op(ValueId(v as u32)).is_some_and(is_exchange);
    for (v, drop) in out.iter_mut().enumerate() {
        *drop &= !(facts.stays[v] || policy.keep_collectives && exchanged(v));
    }
    // One that is there spares the others.
    for op in &g.ops {
        if op.results.len() > 1 && op.results.iter().any(|r| !out[r.index()]) {
            op.results.iter().for_each(|r| out[r.index()] = false);
        }
    }
    out
}

/// A collective by which ranks send something.
pub fn is_exchange(op: &Operation) -> bool {
    matches!(&op.op, Op::Collective(c) if c.kind != CollectiveKind::Slice)
}

/// What holds of values, whatever the policy is.
pub(super) struct Facts {
    /// There for the backward pass in any case: made by no operation of the forward pass that has operands or draws, needed as it
    /// is by the update or outside, or a function of parameters.
    pub stays: Vec<bool>,
    /// Functions of parameters alone.
    pub weights: Vec<bool>,
}

impl Facts {
    pub fn new(g: &Graph) -> Facts {
        let n = g.values.len();
        let mut f = Facts { stays: vec![true; n], weights: vec![false; n] };
        // Functions of parameters that were gathered, and what is the same whatever they are.
        let mut gathered = vec![false; n];
        let mut known = vec![false; n];
        // The body of a loop comes after the block that it stands in.
        for block in &g.blocks {
            let ops = || block.ops.iter().map(|id| g.op(*id));
            let mut read = vec![false; n];
            ops().filter(|o| o.phase == Phase::Backward).flat_map(|o| &o.args).for_each(|a| read[a.index()] = true);
            for op in ops() {
                if let Op::Loop { body, carries, .. } = op.op {
                    // What a loop captures is inside what it is outside.
                    let inner = &g.block(body).params[1 + carries as usize..];
                    for (p, a) in inner.iter().zip(&op.args[carries as usize..]) {
                        let (p, a) = (p.index(), a.index());
                        (f.weights[p], gathered[p], known[p]) = (f.weights[a], gathered[a], known[a]);
                    }
                }
                if op.phase != Phase::Forward {
                    continue;
                }
                let leaf = op.args.is_empty() && !matches!(op.op, Op::Random { .. });
                let of_weights = match op.op {
                    Op::Param(_) => true,
                    Op::Loop { .. } => false,
                    _ => {
                        let weights = |a: &ValueId| f.weights[a.index()];
                        op.args.iter().any(weights) && op.args.iter().all(|a| weights(a) || known[a.index()])
                    }
                };
                let again = op.args.iter().any(|a| gathered[a.index()]) || is_exchange(op);
                for r in &op.results {
                    let r = r.index();
                    f.weights[r] = of_weights;
                    known[r] = matches!(op.op, Op::Constant(_) | Op::Iota(_) | Op::Coordinate(_));
                    gathered[r] = of_weights && again && !read[r];
                    f.stays[r] = leaf || of_weights && !gathered[r];
                }
            }
            ops().filter(|o| o.phase == Phase::Update).flat_map(|o| &o.args).for_each(|a| f.stays[a.index()] = true);
            block.results.iter().for_each(|v| f.stays[v.index()] = true);
        }
        g.outputs.iter().for_each(|o| f.stays[o.value.index()] = true);
        f
    }
}

/// By scope: the turn of the outermost loop over layers that it belongs to.
pub(super) fn turns(g: &Graph) -> Vec<Option<u32>> {
    let mut known: HashMap<&str, u32> = HashMap::new();
    let mut out = Vec::with_capacity(g.scopes.len());
    for s in &g.scopes {
        let next = known.len() as u32;
        out.push(turn(&s.path).map(|path| *known.entry(path).or_insert(next)));
    }
    out
}

/// By scope: the layer of the model that it belongs to.
pub(super) fn path_units(g: &Graph) -> Vec<Option<u32>> {
    let mut known: HashMap<&str, u32> = HashMap::new();
    let mut out = Vec::with_capacity(g.scopes.len());
    for s in &g.scopes {
        let next = known.len() as u32;
        let first = s.path.split('.').next().filter(|p| !p.is_empty());
        out.push(first.map(|path| *known.entry(path).or_insert(next)));
    }
    out
}

/// `block.3` of `block.3.attention`.
fn turn(path: &str) -> Option<&str> {
    let mut end = 0;
    for part in path.split('.') {
        end += part.len();
        if !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit()) {
            return Some(&path[..end]);
        }
        end += 1;
    }
    None
}

/// By scope: the outermost of these roots that it belongs to.
fn instances(g: &Graph, roots: &[ScopeId]) -> Vec<Option<u32>> {
    let mut out: Vec<Option<u32>> = Vec::with_capacity(g.scopes.len());
    for (k, s) in g.scopes.iter().enumerate() {
        let above = s.parent.filter(|p| p.index() < k).and_then(|p| out[p.index()]);
        out.push(above.or_else(|| roots.contains(&ScopeId(k as u32)).then_some(k as u32)));
    }
    out
}

/// By value: whether operations of the forward pass that do not belong to its unit read it.
pub(super) fn leaving(g: &Graph, unit: &[Option<u32>]) -> Vec<bool> {
    let of = |op: &Operation| unit[op.scope.index()];
    let mut leaves = vec![false; g.values.len()];
    for block in &g.blocks {
        for op in block.ops.iter().map(|id| g.op(*id)).filter(|op| op.phase == Phase::Forward) {
            let here = of(op);
            for a in &op.args {
                leaves[a.index()] |= g.def_op(*a).is_some_and(|made| of(made) != here);
            }
        }
    }
    leaves
}

/// Drops what units make and nobody else reads.
fn inside(g: &Graph, unit: &[Option<u32>], facts: &Facts, out: &mut [bool]) {
    let of = |op: &Operation| unit[op.scope.index()];
    let leaves = leaving(g, unit);
    for op in in_order(g).filter(|op| op.phase == Phase::Forward && of(op).is_some()) {
        // What others read of gathered parameters is gathered again for them, too.
        op.results.iter().for_each(|r| out[r.index()] |= !leaves[r.index()] || facts.weights[r.index()]);
    }
}

/// Drops values of a name in all their forms, and what leads to them alone: else that would be kept in their place.
fn named(g: &Graph, name: &str, scopes: &[ScopeId], facts: &Facts, out: &mut [bool]) {
    let forward = || in_order(g).filter(|op| op.phase == Phase::Forward);
    let mut own = vec![false; g.values.len()];
    let mut readers = vec![0u32; g.values.len()];
    for op in forward() {
        op.args.iter().for_each(|a| readers[a.index()] += 1);
        for r in &op.results {
            let called = g.value(*r).name.as_deref() == Some(name) && scopes.contains(&op.scope);
            own[r.index()] = called || is_form(op) && own[op.args[0].index()];
        }
    }
    // Back to the last products and the like.
    let ops: Vec<&Operation> = forward().collect();
    for op in ops.into_iter().rev() {
        for r in &op.results {
            // All readers were met, and found to lead here alone.
            own[r.index()] |= readers[r.index()] == LED;
            out[r.index()] |= own[r.index()] && !facts.weights[r.index()];
        }
        if is_light(op) && op.results.iter().all(|r| own[r.index()]) {
            for a in &op.args {
                readers[a.index()] = match readers[a.index()] {
                    1 | LED => LED,
                    n => n - 1,
                };
            }
        }
    }
}

/// Drops named values, and what elementwise operations alone make of dropped ones: else that would be kept in their place.
fn follow(g: &Graph, facts: &Facts, mut called: Vec<bool>, out: &mut [bool]) {
    // What is there, or drawn again.
    let mut cheap = facts.stays.clone();
    for op in in_order(g).filter(|op| op.phase == Phase::Forward) {
        let light = is_light(op) && !matches!(op.op, Op::Collective(_));
        let all = |of: &dyn Fn(usize) -> bool| op.args.iter().all(|a| of(a.index()));
        let from = light && op.args.iter().any(|a| called[a.index()]) && all(&|a| called[a] || out[a] || cheap[a]);
        let drawn = matches!(op.op, Op::Random { .. }) || light && all(&|a| cheap[a]);
        for r in &op.results {
            cheap[r.index()] |= drawn;
            called[r.index()] |= from && !facts.weights[r.index()];
            out[r.index()] |= called[r.index()];
        }
    }
}

/// What stands for a number of readers that all lead to a named value.
const LED: u32 = u32::MAX;

/// Drops what was gathered, in all its forms.
fn gathered(g: &Graph, facts: &Facts, out: &mut [bool]) {
    let gathers = |op: &Operation| matches!(&op.op, Op::Collective(c) if c.kind == CollectiveKind::AllGather);
    for op in in_order(g).filter(|op| op.phase == Phase::Forward) {
        for r in &op.results {
            let from = gathers(op) || matches!(op.op, Op::Reshape { .. }) && out[op.args[0].index()];
            out[r.index()] = from && !facts.weights[r.index()];
        }
    }
}

/// The operations of blocks, each block's in order.
fn in_order(g: &Graph) -> impl Iterator<Item = &Operation> {
    g.blocks.iter().flat_map(|b| &b.ops).map(|id| g.op(*id))
}

/// Whether an operation gives its operand in another layout, type or under other names of dims.
fn is_form(op: &Operation) -> bool {
    matches!(op.op, Op::Reshape { .. } | Op::Broadcast { .. } | Op::Collective(_) | Op::Map(MapOp::Cast(_)))
}

/// Whether an operation moves elements, or goes over them one by one.
fn is_light(op: &Operation) -> bool {
    let moves = matches!(op.op, Op::Window { .. } | Op::Concat { .. } | Op::Stack { .. } | Op::StopGradient);
    moves || is_form(op) || matches!(op.op, Op::Map(_))
}
