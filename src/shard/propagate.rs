//! What follows from facts: layouts spread along the dims that operations tie together.
//!
//! Levels, each until nothing changes, and back to the first one after any change: (0) elementwise operations, renames, casts, edges
//! of scopes and carries of loops; (1) splits, merges, slices and their like; (2) contractions, reductions and gathers from
//! operand to result and back; (3) from operand to operand along contracted dims. Each sweep goes through the program in order, then
//! in reverse. What is fixed never changes; lists of entries only grow. The forward program is settled first and does not
//! change while the backward one is.

use super::facts::{Origin, State};
use super::nest::{Along, Loop, Nest, Place, Tie, slot_value};
use super::units::{head, to_loop, to_slot};
use crate::ir::*;
use crate::mesh::{Atom, Cut, Entry, Order};

/// Spreads layouts among values of a phase (`Backward`: and of updates).
pub fn propagate(s: &mut State<'_>, phase: Phase) {
    let speakers: Vec<OpId> = s.classes.speakers.clone();
    if s.swept.0 != phase {
        s.swept = (phase, vec![[u32::MAX; 4]; s.g.ops.len()]);
    }
    let mut level = 0;
    while level < 4 {
        let mut any = false;
        loop {
            let mut changed = false;
            for id in speakers.iter().chain(speakers.iter().rev()) {
                changed |= sweep(s, *id, level, phase);
            }
            any |= changed;
            if !changed {
                break;
            }
        }
        level = if any && level > 0 { 0 } else { level + 1 };
    }
}

/// Whether the layout of a value may still change in a phase.
fn open(s: &State<'_>, v: ValueId, phase: Phase) -> bool {
    let first = s.classes.first[s.classes.class(v)];
    match s.g.def_op(first) {
        Some(op) => (op.phase == Phase::Forward) == (phase == Phase::Forward),
        None => true,
    }
}

fn sweep(s: &mut State<'_>, id: OpId, level: u32, phase: Phase) -> bool {
    let g = s.g;
    let op = g.op(id);
    if let Op::Loop { body, carries, .. } = op.op {
        return level == 0 && through_loop(s, id, op, body, carries as usize, phase);
    }
    let tie = s.nests[id.index()].as_ref().map(|n| n.tie);
    let here = matches!((tie, level), (Some(Tie::Same), 0) | (Some(Tie::Moved), 1) | (Some(Tie::Nest), 2 | 3));
    // Cuts only grow: as many entries as last time are the same ones, which led to nothing more.
    let entries = |v: &ValueId| s.held(*v).cuts.iter().map(Vec::len).sum::<usize>() as u32;
    if !here {
        return false;
    }
    let now: u32 = op.args.iter().chain(&op.results).map(entries).sum();
    if std::mem::replace(&mut s.swept.1[id.index()][level as usize], now) == now {
        return false;
    }
    let Some(nest) = s.nests[id.index()].take() else { return false };
    let changed = match level {
        3 => among_operands(s, id, op, &nest, phase),
        _ => between(s, id, op, &nest, phase),
    };
    s.nests[id.index()] = Some(nest);
    changed
}

/// A slot's cut along a loop, in turns.
pub fn cut_of(s: &State<'_>, op: &Operation, l: &Loop, i: usize) -> Option<Cut> {
    let place = l.slots[i]?;
    let v = slot_value(op, i);
    let held = s.held(v);
    let extent = s.g.size(s.g.value(v).dims[place.at]);
    if matches!(l.along, Along::Shifted | Along::Picked) {
        // Runs, and blocks that are all real up to the last ones, are of one atom.
        return Some(held.cuts[place.at].iter().take(1).filter(|e| e.order == Order::Block).copied().collect());
    }
    let mut cut = &held.cuts[place.at][..];
    if l.along == Along::Chained {
        // Blocks that follow each other.
        cut = &cut[..cut.iter().take_while(|e| e.order == Order::Block).count()];
    }
    let rest = head(s.mesh, cut, extent, place.skip).map_or(&[][..], |n| &cut[n..]);
    Some(to_loop(s.mesh, rest, extent / place.skip.max(1) as usize, l.extent, place.scale))
}

fn between(s: &mut State<'_>, id: OpId, op: &Operation, nest: &Nest, phase: Phase) -> bool {
    let mut changed = false;
    let contested = contested(s, op, nest);
    let (operands, all) = (nest.operands, nest.operands + op.results.len());
    for l in nest.loops.iter().filter(|l| l.along != Along::Whole) {
        for i in 0..operands {
            let Some(cut) = cut_of(s, op, l, i) else { continue };
            let cut: Cut = cut.into_iter().take_while(|e| !contested.contains(&e.atom)).collect();
            for j in operands..all {
                changed |= offer(s, id, op, l, (i, &cut), j, phase);
            }
        }
        for j in operands..all {
            let Some(cut) = cut_of(s, op, l, j) else { continue };
            for i in 0..operands {
                changed |= offer(s, id, op, l, (j, &cut), i, phase);
            }
        }
    }
    changed
}

/// Atoms that operands have on different loops.
fn contested(s: &State<'_>, op: &Operation, nest: &Nest) -> Vec<Atom> {
    let mut seen: Vec<(Atom, usize)> = Vec::new();
    let mut out = Vec::new();
    for (k, l) in nest.loops.iter().enumerate() {
        for i in 0..nest.operands {
            for e in cut_of(s, op, l, i).into_iter().flatten() {
                if seen.iter().any(|(a, other)| *a == e.atom && *other != k) {
                    out.push(e.atom);
                }
                seen.push((e.atom, k));
            }
        }
    }
    out
}

fn among_operands(s: &mut State<'_>, id: OpId, op: &Operation, nest: &Nest, phase: Phase) -> bool {
    let mut changed = false;
    for l in nest.loops.iter().filter(|l| matches!(l.along, Along::Contract(_))) {
        for i in 0..nest.operands {
            let Some(cut) = cut_of(s, op, l, i) else { continue };
            for j in 0..nest.operands {
                if i != j {
                    changed |= offer(s, id, op, l, (i, &cut), j, phase);
                }
            }
        }
    }
    changed
}

/// Offers a cut of a loop to a slot.
fn offer(
    s: &mut State<'_>,
    id: OpId,
    op: &Operation,
    l: &Loop,
    (from, cut): (usize, &Cut),
    to: usize,
    phase: Phase,
) -> bool {
    let Some(place) = &l.slots[to] else { return false };
    if cut.is_empty() {
        return false;
    }
    let v = slot_value(op, to);
    let Some(cut) = in_slot(s, v, *place, l, cut) else { return false };
    accept(s, v, place.at, &cut, Origin::From(slot_value(op, from), id), phase)
}

/// A cut of a loop as one of a slot's dim, behind what loops major to it cut there; none if they do not cut all of theirs.
pub fn in_slot(s: &State<'_>, v: ValueId, place: Place, l: &Loop, cut: &[Entry]) -> Option<Cut> {
    let own = &s.held(v).cuts[place.at];
    let n = head(s.mesh, own, s.g.size(s.g.value(v).dims[place.at]), place.skip)?;
    Some(own[..n].iter().copied().chain(to_slot(s.mesh, cut, l.extent, place.scale)).collect())
}

/// The longest continuation of a dim's cut that is free.
pub fn accept(s: &mut State<'_>, v: ValueId, at: usize, cut: &[Entry], origin: Origin, phase: Phase) -> bool {
    if !open(s, v, phase) {
        return false;
    }
    let class = s.classes.class(v);
    let held = &s.held[class];
    let own = &held.cuts[at];
    // Nothing is cut further that was dealt from both ends.
    let dealt = own.last().is_some_and(|e| e.order == Order::Zigzag);
    if dealt || held.fixed[at] || own.len() >= cut.len() || !cut.starts_with(own) {
        return false;
    }
    let used = |a: Atom| held.cuts.iter().flatten().any(|e| e.atom == a);
    let more: Cut = cut[own.len()..].iter().take_while(|e| !used(e.atom)).copied().collect();
    if more.is_empty() {
        return false;
    }
    let held = &mut s.held[class];
    held.cuts[at].extend(more);
    held.origin[at] = origin;
    true
}

/// Values that are the same array inside and outside of a loop at run time.
pub fn ties(g: &Graph, op: &Operation, body: BlockId, carries: usize) -> Vec<(ValueId, ValueId)> {
    let block = g.block(body);
    let mut out = Vec::new();
    for c in 0..carries {
        let param = block.params[1 + c];
        out.extend([(op.args[c], param), (block.results[c], param), (param, op.results[c])]);
    }
    out.extend(op.args[carries..].iter().copied().zip(block.params[1 + carries..].iter().copied()));
    out.extend(block.results[carries..].iter().copied().zip(op.results[carries..].iter().copied()));
    out
}

fn through_loop(s: &mut State<'_>, id: OpId, op: &Operation, body: BlockId, carries: usize, phase: Phase) -> bool {
    let mut changed = false;
    for (a, b) in ties(s.g, op, body, carries) {
        for (from, to) in [(a, b), (b, a)] {
            let dims = s.g.value(from).dims.clone();
            for (i, d) in dims.iter().enumerate() {
                let Some(at) = s.g.value(to).dims.iter().position(|x| x == d) else { continue };
                let cut = s.held(from).cuts[i].clone();
                changed |= accept(s, to, at, &cut, Origin::From(from, id), phase);
            }
        }
    }
    changed
}
