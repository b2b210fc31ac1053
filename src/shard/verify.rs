//! Checks the program of a rank beyond the invariants of a graph: what is partial reaches only what is linear in it.
//!
//! Worked out anew from the program alone, so that a mistake of the passes before does not hide itself.

use super::halo::{self, Reach};
use super::nest::{Along, Loop, nest};
use super::reduce::{Linear, is_zero, linear};
use crate::ir::*;
use crate::mesh::{Atom, Entry, Order};
use crate::types::{DType, MapOp, ReduceKind};
use std::collections::BTreeSet;

type Parts = BTreeSet<(Atom, ReduceKind)>;

/// Ok if the program is sound; otherwise the first fault found, in words.
pub fn verify(g: &Graph) -> Result<(), String> {
    crate::ir::verify::verify(g)?;
    let mut parts: Vec<Parts> = vec![Parts::new(); g.values.len()];
    block(g, ENTRY, &mut parts)?;
    match g.outputs.iter().find(|o| !parts[o.value.index()].is_empty()) {
        Some(o) => Err(format!("output `{}` is in parts", o.name)),
        None => Ok(()),
    }
}

fn block(g: &Graph, id: BlockId, parts: &mut Vec<Parts>) -> Result<(), String> {
    for id in &g.block(id).ops {
        let op = g.op(*id);
        if let Op::Loop { body, carries, .. } = op.op {
            looped(g, op, body, carries as usize, parts).map_err(|why| format!("{id}: {why}"))?;
            continue;
        }
        let made = operation(g, op, parts).map_err(|why| format!("{id}: {why}"))?;
        for (r, p) in op.results.iter().zip(made) {
            parts[r.index()] = p;
        }
    }
    Ok(())
}

/// Parts as far as they follow when carries are taken for whole: what is added to zeros says what the sum is.
fn guess(g: &Graph, body: BlockId, parts: &mut Vec<Parts>) {
    for id in &g.block(body).ops {
        let op = g.op(*id);
        if let Op::Loop { body, carries, .. } = op.op {
            let _ = looped(g, op, body, carries as usize, parts);
            continue;
        }
        let riding = || op.args.iter().flat_map(|a| parts[a.index()].iter().copied()).collect::<Parts>();
        let made = operation(g, op, parts).unwrap_or_else(|_| vec![riding(); op.results.len()]);
        for (r, p) in op.results.iter().zip(made) {
            parts[r.index()] = p;
        }
    }
}

/// Carries may be sums in parts, from zeros or from parts; what is captured is as outside.
fn looped(g: &Graph, op: &Operation, body: BlockId, carries: usize, parts: &mut Vec<Parts>) -> Result<(), String> {
    let Block { params, results, .. } = g.block(body);
    for (param, a) in params[1..].iter().zip(&op.args) {
        parts[param.index()] = parts[a.index()].clone();
    }
    guess(g, body, parts);
    for (c, a) in op.args[..carries].iter().enumerate() {
        if is_zero(g, *a) {
            parts[params[1 + c].index()] = parts[results[c].index()].clone();
        }
    }
    block(g, body, parts)?;
    for (i, v) in results.iter().enumerate() {
        let want = if i < carries { parts[params[1 + i].index()].clone() } else { Parts::new() };
        if parts[v.index()] != want {
            return Err(format!("{v} leaves a turn in other parts than it has to be"));
        }
        parts[op.results[i].index()] = want;
    }
    Ok(())
}

/// What of the results is partial.
fn operation(g: &Graph, op: &Operation, parts: &[Parts]) -> Result<Vec<Parts>, String> {
    if let Op::Collective(c) = &op.op {
        let mut left = parts[op.args[0].index()].clone();
        if let Some((kind, atoms)) = &c.reduce {
            for a in atoms {
                if !left.remove(&(*a, *kind)) {
                    return Err(format!("it reduces over {}, over which nothing is partial so", g.mesh.name(*a)));
                }
            }
        }
        return Ok(vec![left]);
    }
    let riding: Parts = op.args.iter().flat_map(|a| parts[a.index()].iter().copied()).collect();
    if is_own_extreme(g, op) {
        return Ok(vec![Parts::new()]);
    }
    // A rank's part at the place of the rank along a new dim: there all parts are told apart.
    let mut riding = riding;
    if let Op::Broadcast { .. } = op.op {
        let new = |e: &&Entry| entries_of(g, op.args[0]).all(|x| x.atom != e.atom);
        let single: Vec<Atom> = entries_of(g, op.results[0]).filter(new).map(|e| e.atom).collect();
        riding.retain(|p| !single.contains(&p.0));
    }
    // The place of an extreme in a part says nothing alone: other ranks' places are put aside for the lowest to be found.
    let places = |kind: ReduceKind| matches!(kind, ReduceKind::ArgMax | ReduceKind::ArgMin);
    if riding.iter().any(|p| places(p.1)) {
        let own =
            |d: &DimId| g.dim(*d).cut.iter().flat_map(|c| &c.entries).all(|e| riding.iter().any(|p| p.0 == e.atom));
        return match &op.op {
            // The elements at these places of the part, as much in parts as the places.
            Op::Gather { dims, .. } if parts[op.args[0].index()].is_empty() && dims.iter().all(own) => Ok(vec![riding]),
            Op::Map(MapOp::Where) if parts[op.args[0].index()].is_empty() && is_none(g, op.args[2]) => {
                Ok(vec![riding.into_iter().map(|(a, _)| (a, ReduceKind::Min)).collect()])
            }
            // Index arithmetic.
            Op::Map(_) if riding.iter().all(|p| places(p.1)) => Ok(vec![riding]),
            _ => Err("it takes the place of an extreme in a part for that in the whole".into()),
        };
    }
    let mut products = 0;
    for (i, a) in op.args.iter().enumerate() {
        let own = &parts[a.index()];
        match linear(g, op, i) {
            Linear::No if !own.is_empty() => return Err(format!("{a} is in parts, in which it is not linear")),
            Linear::Product if !own.is_empty() => products += 1,
            // A summand that is whole would count once for each rank.
            Linear::Sum if *own != riding && !is_zero(g, *a) => return Err(format!("{a} is not in the same parts")),
            _ => {}
        }
    }
    if products > 1 {
        return Err("a product of parts".into());
    }
    let nest = nest(g, op);
    let mut made = vec![riding; op.results.len()];
    let place = match op.op {
        Op::Reduce { kind, .. } if places(kind) => Some(kind),
        _ => None,
    };
    for l in &nest.loops {
        let slots = op.args.iter().chain(&op.results).zip(&l.slots);
        let entries: Vec<&Entry> = slots
            .filter_map(|(v, p)| g.dim(g.value(*v).dims[(*p)?.at]).cut.as_ref())
            .flat_map(|c| &c.entries)
            .collect();
        let atoms: BTreeSet<Atom> = entries.iter().map(|e| e.atom).collect();
        for (k, parts) in made.iter_mut().enumerate() {
            if let (Along::Contract(kind), None) = (l.along, l.slots[nest.operands + k]) {
                // What goes round meets all ranks; what is read by its place in a larger block stays in parts of that.
                let within = matches!(op.op, Op::Gather { .. });
                let round = |a: &&Atom| entries_of(g, op.results[k]).any(|e| e.atom == **a && (within || is_ring(e)));
                parts.extend(atoms.iter().filter(|a| !round(a)).map(|a| (*a, place.unwrap_or(kind))));
            }
        }
        if l.along == Along::Picked {
            made[0].extend(atoms.iter().map(|a| (*a, ReduceKind::ArgMax)));
        }
        if l.along == Along::Shifted {
            shifted(g, op, l, &mut made[0])?;
        }
        let ring = matches!(op.op, Op::Attention(_) | Op::AttentionGrad(_)) && entries.iter().all(|e| is_ring(e));
        if l.along == Along::Whole && !atoms.is_empty() && !ring {
            return Err("a loop is cut whose turns need each other".into());
        }
    }
    if let Op::Reshape { groups } = &op.op {
        let cut = |d: &DimId| g.dim(*d).cut.is_some();
        let torn = |side: &Vec<DimId>| (1..side.len()).any(|k| cut(&side[k]) && g.elements(&side[..k]) > 1);
        if groups.iter().any(|(a, b)| torn(a) || torn(b)) {
            return Err("a dim is cut that is minor to one which is not single".into());
        }
    }
    // Kept on one rank along an atom, and neutral on the others.
    if let Some(atom) = first_only(g, op) {
        made[0].insert((atom, ReduceKind::Sum));
    }
    Ok(made)
}

/// Where places are in parts the other side is in the runs that they reach, or in blocks that hold these; what is added to runs is
/// in parts.
fn shifted(g: &Graph, op: &Operation, l: &Loop, made: &mut Parts) -> Result<(), String> {
    let reach = Reach::of(g, op, l).ok_or("it has no windows there")?;
    let entries = |d: DimId| g.dim(d).cut.as_ref().map_or(&[][..], |c| &c.entries);
    match (entries(reach.axis.input), entries(reach.axis.terms[reach.term].0)) {
        ([], []) => Ok(()),
        ([a], [b]) if a.atom == b.atom && matches!(a.order, Order::Halo { .. }) => {
            made.extend(matches!(op.op, Op::Fold { .. }).then_some((a.atom, ReduceKind::Sum)));
            Ok(())
        }
        ([a], [b]) if a == b => {
            let runs = halo::runs(g, &g.mesh, reach.axis, reach.term, b);
            match halo::local(&g.mesh, g.extent(reach.axis.input), a, runs) {
                true => Ok(()),
                false => Err("windows reach beyond the block that they are given".into()),
            }
        }
        _ => Err("places are in other parts than what they reach".into()),
    }
}

/// Whether an operation asks if a part's extreme is that of the whole, or no number.
fn is_own_extreme(g: &Graph, op: &Operation) -> bool {
    let (Op::Map(MapOp::Eq | MapOp::Ne), [own, best]) = (&op.op, &op.args[..]) else { return false };
    let mut at = *best;
    while let Some(Operation { op: Op::Collective(_), args, .. }) = g.def_op(at) {
        at = args[0];
    }
    let extreme = |o: &Operation| matches!(o.op, Op::Reduce { kind: ReduceKind::Max | ReduceKind::Min, .. });
    at == *own && g.def_op(at).is_some_and(extreme)
}

/// Whether a value is the neutral element of the least place.
fn is_none(g: &Graph, v: ValueId) -> bool {
    let none = ReduceKind::Min.neutral(DType::I32);
    matches!(g.def_op(v).map(|o| &o.op), Some(Op::Constant(Constant::Splat(x))) if *x == none)
}

fn entries_of(g: &Graph, v: ValueId) -> impl Iterator<Item = &Entry> {
    g.value(v).dims.iter().filter_map(|d| g.dim(*d).cut.as_ref()).flat_map(|c| &c.entries)
}

fn is_ring(e: &Entry) -> bool {
    matches!(e.order, Order::Ring { .. })
}

/// `where(coordinate == 0, x, 0)`
fn first_only(g: &Graph, op: &Operation) -> Option<Atom> {
    let Op::Map(MapOp::Where) = op.op else { return None };
    let test = g.def_op(op.args[0])?;
    let (Op::Map(MapOp::Eq), true) = (&test.op, is_zero(g, op.args[2])) else { return None };
    match g.def_op(test.args[0])?.op {
        Op::Coordinate(a) => Some(a),
        _ => None,
    }
}
