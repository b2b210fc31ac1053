//! Which loops of each operation are cut, atom by atom.
//!
//! A loop is *agreed* if an operand has it and every operand and result that has it is cut so by a rule: it takes the
//! atom, unless one operand alone has the loop and a rule cuts the result and another operand along another one (rows of experts that
//! come back to their tokens). Where nothing is agreed, the loops that some slot is cut along, and no loop at all, are priced: bytes to bring each operand
//! to what is needed and the result from what is made to its layout, times the weight of the axis, and twice in the forward pass for what
//! has a gradient (the dual move). Least wins; ties: fewer collectives, a cut before none, a loop of the result before a
//! contracted one, order of declaration. An open result takes the form in which it is made.

use super::explain::{Choice, Priced};
use super::facts::{Origin, State, is_edge};
use super::halo::{self, Reach};
use super::nest::{Along, Loop, Nest, slot_value};
use super::propagate::{accept, cut_of, in_slot, propagate};
use crate::ir::*;
use crate::mesh::{Atom, Cut, Entry, Order};
use crate::types::DType;
use std::collections::HashSet;

/// Where an atom is in a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Role {
    /// On the dim of a loop; `usize::MAX`: on one that is no loop's, or of one that cannot be cut.
    Cut(usize),
    /// On no dim.
    Free,
}

/// What has been decided along the way.
struct Assigner {
    /// Values that exist in a form without an atom that cuts them.
    gathered: HashSet<(usize, Atom)>,
    phase: Phase,
}

/// Cuts the loops of all operations of a phase (`Backward`: and of updates).
pub fn assign(s: &mut State<'_>, phase: Phase) {
    let mut a = Assigner { gathered: HashSet::new(), phase };
    for id in s.classes.speakers.clone() {
        let op = s.g.op(id);
        let class = s.classes.of_op[id.index()] as usize;
        let now = (op.phase == Phase::Forward) == (phase == Phase::Forward);
        if !now || s.loops[class].is_some() {
            continue;
        }
        if let Some(nest) = s.nests[id.index()].take() {
            let cuts = a.operation(s, id, &nest);
            s.loops[class] = Some(cuts);
            s.nests[id.index()] = Some(nest);
        }
    }
}

impl Assigner {
    fn operation(&mut self, s: &mut State<'_>, id: OpId, nest: &Nest) -> Vec<Cut> {
        let op = s.g.op(id);
        let slots = nest.operands + op.results.len();
        let mut atoms: Vec<Atom> = Vec::new();
        for i in 0..slots {
            let v = slot_value(op, i);
            atoms.extend(s.held(v).cuts.iter().flatten().map(|e| e.atom));
        }
        atoms.sort_unstable();
        atoms.dedup();
        let mut chosen: Vec<(Atom, Option<usize>)> = Vec::new();
        if is_edge(op) && s.held(op.results[0]).fixed.contains(&true) {
            // It moves a value to the layout that it says, all axes at once.
            for a in atoms {
                let role = role(s, op, nest, nest.operands, a);
                let taken = if let Role::Cut(l) = role { Some(l).filter(|l| *l != usize::MAX) } else { None };
                let class = s.classes.of_op[id.index()];
                s.choices.insert((class, a), Choice { operation: id, atom: a, taken, priced: Vec::new() });
                chosen.push((a, taken));
            }
            return ordered(s, op, nest, &chosen);
        }
        let mut grown = false;
        for a in atoms {
            let roles: Vec<Role> = (0..slots).map(|i| role(s, op, nest, i, a)).collect();
            let (at, priced) = match agreed(s, op, nest, a, &chosen) {
                Some(l) => (Some(l), Vec::new()),
                None => self.cheapest(s, op, nest, a, &roles, &chosen),
            };
            let class = s.classes.of_op[id.index()];
            s.choices.insert((class, a), Choice { operation: id, atom: a, taken: at, priced });
            for (i, v) in op.args.iter().enumerate() {
                let moves = roles[i] != Role::Free && at.is_none_or(|l| roles[i] != Role::Cut(l));
                if moves && at.is_none_or(|l| nest.loops[l].slots[i].is_none()) {
                    self.gathered.insert((s.classes.class(*v), a));
                }
            }
            grown |= at.is_some_and(|l| adopt(s, id, op, nest, l, a, self.phase));
            chosen.push((a, at));
        }
        if grown {
            propagate(s, self.phase);
        }
        ordered(s, op, nest, &chosen)
    }

    fn cheapest(
        &self,
        s: &State<'_>,
        op: &Operation,
        nest: &Nest,
        a: Atom,
        roles: &[Role],
        chosen: &[(Atom, Option<usize>)],
    ) -> (Option<usize>, Vec<Priced>) {
        let mut candidates: Vec<Option<usize>> = Vec::new();
        for (k, l) in nest.loops.iter().enumerate() {
            let here = roles.contains(&Role::Cut(k));
            if l.along != Along::Whole && here && !full(nest, k, chosen) {
                candidates.push(Some(k));
            }
        }
        candidates.push(None);
        let rank = |c: &Option<usize>| {
            let price = self.price(s, op, nest, a, *c, roles, chosen);
            let kind = match c {
                None => 2,
                Some(k) if matches!(nest.loops[*k].along, Along::Contract(_)) => 1,
                Some(_) => 0,
            };
            (price.0, price.1, kind, c.unwrap_or(usize::MAX))
        };
        let ranks: Vec<_> = candidates.iter().map(rank).collect();
        let least = (0..ranks.len()).min_by(|x, y| ranks[*x].partial_cmp(&ranks[*y]).expect("bytes are numbers"));
        let priced = candidates.iter().zip(&ranks).map(|(at, r)| Priced { at: *at, bytes: r.0, collectives: r.1 });
        (least.and_then(|k| candidates[k]), priced.collect())
    }

    /// Bytes and collectives.
    #[allow(clippy::too_many_arguments)]
    fn price(
        &self,
        s: &State<'_>,
        op: &Operation,
        nest: &Nest,
        a: Atom,
        at: Option<usize>,
        roles: &[Role],
        chosen: &[(Atom, Option<usize>)],
    ) -> (f64, usize) {
        let n = s.mesh.size(a) as f64;
        let share = (n - 1.0) / n * s.mesh.weight(&[a]) as f64;
        let (mut bytes, mut count) = (0.0, 0);
        let mut add = |x: f64, v: ValueId| {
            if x > 0.0 {
                let twice = op.phase == Phase::Forward && s.varies[s.classes.class(v)];
                bytes += if twice { 2.0 * x } else { x };
                count += 1;
            }
        };
        for (i, v) in op.args.iter().enumerate() {
            let needed = at.filter(|l| nest.loops[*l].slots[i].is_some());
            let whole = local_bytes(s, *v, a);
            match (roles[i], needed) {
                (Role::Cut(x), Some(l)) if x == l => {}
                (Role::Free, _) => {}
                (Role::Cut(_), None) => {
                    if !self.gathered.contains(&(s.classes.class(*v), a)) {
                        add(share * whole, *v);
                    }
                }
                (Role::Cut(_), Some(_)) => add(share * whole / n, *v),
            }
        }
        if let Some(l) = at.filter(|l| nest.loops[*l].along == Along::Chained) {
            // The total of each block, from every operand.
            let turns = nest.loops[l].extent.max(1) as f64;
            op.args.iter().for_each(|v| add((n - 1.0) * local_bytes(s, *v, a) / turns, *v));
        }
        if let (Some(Along::Picked), Op::TopK { dim, k }) = (at.map(|l| nest.loops[l].along), &op.op) {
            // The candidates of each block, with their places.
            let each = s.g.size(*k).min(s.g.size(*dim).div_ceil(s.mesh.size(a))) as f64;
            let v = op.args[0];
            let entry = 1.0 + DType::I32.bytes() as f64 / s.g.value(v).dtype.bytes() as f64;
            add((n - 1.0) * each * entry * local_bytes(s, v, a) / s.g.size(*dim).max(1) as f64, v);
        }
        if let Some(halo) = at.and_then(|l| halo_bytes(s, op, nest, l, a, roles)) {
            add(halo.0, halo.1);
        }
        for (k, v) in op.results.iter().enumerate() {
            let i = nest.operands + k;
            // What of the result is cut by atoms that were decided before.
            let whole = made_bytes(s, nest, *v, i, chosen);
            let made = at.map(|l| (l, nest.loops[l].slots[i].is_some(), nest.loops[l].along));
            match (made, roles[i]) {
                (None, _) => {}
                (Some((l, true, _)), Role::Cut(x)) if x == l => {}
                (Some((l, true, _)), Role::Free) => {
                    let place = nest.loops[l].slots[i].expect("just seen");
                    if s.held(*v).fixed[place.at] {
                        add(share * whole, *v);
                    }
                }
                (Some((_, true, _)), Role::Cut(_)) => add(share * whole / n, *v),
                (Some((_, false, Along::Contract(_))), Role::Cut(_)) => add(share * whole, *v),
                (Some((_, false, Along::Contract(_))), Role::Free) => {
                    let open = free_dim(s, *v, a).is_some();
                    add(if open { share * whole } else { 2.0 * share * whole }, *v);
                }
                (Some((_, false, _)), _) => {}
            }
        }
        (bytes, count)
    }
}

/// Where a slot has an atom.
fn role(s: &State<'_>, op: &Operation, nest: &Nest, i: usize, a: Atom) -> Role {
    let cuts = |c: &Cut| c.iter().any(|e| e.atom == a);
    let Some(at) = s.held(slot_value(op, i)).cuts.iter().position(cuts) else { return Role::Free };
    // Several loops may share a dim: each has some of its entries.
    let of = |l: &Loop| {
        let here = l.along != Along::Whole && l.slots[i].is_some_and(|p| p.at == at);
        here && cut_of(s, op, l, i).is_some_and(|c| cuts(&c))
    };
    Role::Cut(nest.loops.iter().position(of).unwrap_or(usize::MAX))
}

/// The loop that facts agree on.
fn agreed(s: &State<'_>, op: &Operation, nest: &Nest, a: Atom, chosen: &[(Atom, Option<usize>)]) -> Option<usize> {
    let fact = |l: &Loop, i: usize| {
        let Some(place) = l.slots[i] else { return true };
        let fixed = s.held(slot_value(op, i)).fixed[place.at];
        fixed && cut_of(s, op, l, i).is_some_and(|c| c.iter().any(|e| e.atom == a))
    };
    let slots = nest.operands + op.results.len();
    let all = |l: &Loop| l.along != Along::Whole && (0..slots).all(|i| fact(l, i));
    let with_operand = |l: &Loop| l.slots[..nest.operands].iter().any(Option::is_some);
    let largest = |l: &Loop| {
        let sizes = (0..nest.operands).filter(|i| l.slots[*i].is_some()).map(|i| s.g.bytes(slot_value(op, i)));
        sizes.max().unwrap_or(0)
    };
    // A loop of one operand alone does not outvote one that another operand and the result are cut along.
    let claimed = |l: &Loop| {
        let says = |i: usize| l.slots[i].is_some() && fact(l, i);
        l.along == Along::Parallel && (0..nest.operands).any(says) && (nest.operands..slots).any(says)
    };
    let alone = |l: &Loop| l.slots.iter().flatten().count() == 1;
    let outvoted =
        |k: usize| alone(&nest.loops[k]) && nest.loops.iter().enumerate().any(|(j, other)| j != k && claimed(other));
    let mut best: Option<(usize, usize)> = None;
    for (k, l) in nest.loops.iter().enumerate() {
        if with_operand(l)
            && all(l)
            && !full(nest, k, chosen)
            && !outvoted(k)
            && best.is_none_or(|(_, b)| largest(l) > b)
        {
            best = Some((k, largest(l)));
        }
    }
    if best.is_some() || op.phase != Phase::Backward {
        return best.map(|b| b.0);
    }
    // What adds to a parameter's gradient is no larger than the part of the parameter.
    let closed = |v: &ValueId| s.held(*v).origin.contains(&Origin::Closed);
    if !op.results.iter().all(closed) {
        return None;
    }
    nest.loops.iter().position(|l| !with_operand(l) && l.slots.iter().any(Option::is_some) && all(l))
}

/// What a window, or what it adds to, has with other ranks, and of which value; none where all of it is there.
fn halo_bytes(s: &State<'_>, op: &Operation, nest: &Nest, l: usize, a: Atom, roles: &[Role]) -> Option<(f64, ValueId)> {
    let l = &nest.loops[l];
    let reach = Reach::of(s.g, op, l)?;
    if reach.input == 0 && roles[0] == Role::Free {
        return None;
    }
    let v = slot_value(op, reach.input);
    let extent = s.g.size(reach.axis.input);
    let own = Entry::new(a);
    let runs = halo::runs(s.g, s.mesh, reach.axis, reach.term, &own);
    let foreign = halo::foreign(s.mesh, extent, &vec![own], runs);
    Some((foreign * local_bytes(s, v, a) / extent.max(1) as f64, v))
}

/// Whether a loop of which one atom alone can cut blocks is cut by another one already.
fn full(nest: &Nest, k: usize, chosen: &[(Atom, Option<usize>)]) -> bool {
    matches!(nest.loops[k].along, Along::Shifted | Along::Picked) && chosen.iter().any(|c| c.1 == Some(k))
}

/// Bytes of a rank's part of a value, but for what one atom cuts.
fn local_bytes(s: &State<'_>, v: ValueId, but: Atom) -> f64 {
    let others = s.held(v).cuts.iter().flatten().filter(|e| e.atom != but);
    s.g.bytes(v) as f64 / others.map(|e| s.mesh.size(e.atom) as f64).product::<f64>()
}

fn made_bytes(s: &State<'_>, nest: &Nest, v: ValueId, slot: usize, chosen: &[(Atom, Option<usize>)]) -> f64 {
    let cut = chosen.iter().filter(|(_, l)| l.is_some_and(|l| nest.loops[l].slots[slot].is_some()));
    s.g.bytes(v) as f64 / cut.map(|(a, _)| s.mesh.size(*a) as f64).product::<f64>()
}

/// The largest dim of an open value that an atom could cut.
fn free_dim(s: &State<'_>, v: ValueId, a: Atom) -> Option<usize> {
    let held = s.held(v);
    let dims = &s.g.value(v).dims;
    let fits = |i: &usize| !held.fixed[*i] && held.cuts[*i].is_empty() && s.g.size(dims[*i]) >= s.mesh.size(a);
    (0..dims.len()).filter(fits).max_by_key(|i| (s.g.size(dims[*i]), std::cmp::Reverse(*i)))
}

/// An open result takes the form in which it is made.
fn adopt(s: &mut State<'_>, id: OpId, op: &Operation, nest: &Nest, l: usize, a: Atom, phase: Phase) -> bool {
    let mut changed = false;
    for (k, v) in op.results.iter().enumerate() {
        let i = nest.operands + k;
        if s.held(*v).cuts.iter().flatten().any(|e| e.atom == a) {
            continue;
        }
        let Some(place) = nest.loops[l].slots[i] else { continue };
        let entry = entry_of(s, op, nest, l, a);
        let mut cut = s.held(*v).cuts[place.at].clone();
        if place.skip > 1 && in_slot(s, *v, place, &nest.loops[l], &[]).is_none_or(|c| c != cut) {
            continue;
        }
        cut.extend(super::units::to_slot(s.mesh, &[entry], nest.loops[l].extent, place.scale));
        changed |= accept(s, *v, place.at, &cut, Origin::Chosen(id), phase);
    }
    changed
}

/// The entry by which some slot has an atom on a loop.
fn entry_of(s: &State<'_>, op: &Operation, nest: &Nest, l: usize, a: Atom) -> Entry {
    let slots = nest.operands + op.results.len();
    let found = (0..slots).find_map(|i| cut_of(s, op, &nest.loops[l], i)?.into_iter().find(|e| e.atom == a));
    found.unwrap_or(Entry::new(a))
}

/// The cuts of all loops, entries in the order that the slots have them.
fn ordered(s: &State<'_>, op: &Operation, nest: &Nest, chosen: &[(Atom, Option<usize>)]) -> Vec<Cut> {
    let slots = nest.operands + op.results.len();
    let mut cuts = vec![Cut::new(); nest.loops.len()];
    for (k, cut) in cuts.iter_mut().enumerate() {
        let mine = |a: Atom| chosen.iter().any(|(b, l)| *b == a && *l == Some(k));
        for i in 0..slots {
            for e in cut_of(s, op, &nest.loops[k], i).into_iter().flatten() {
                if mine(e.atom) && !cut.iter().any(|c| c.atom == e.atom) {
                    cut.push(e);
                }
            }
        }
        // Blocks from both ends are dealt last.
        cut.sort_by_key(|e| e.order == Order::Zigzag);
    }
    // What is minor is cut only where all that is major to it is cut into single elements.
    for k in 0..nest.loops.len() {
        let full = |i: usize| {
            let Some(place) = nest.loops[k].slots[i].filter(|p| p.skip > 1) else { return true };
            let mut major = nest
                .loops
                .iter()
                .zip(&cuts)
                .filter(|(l, _)| l.slots[i].is_some_and(|p| p.at == place.at && p.skip < place.skip));
            major.all(|(l, c)| c.iter().map(|e| s.mesh.size(e.atom)).product::<usize>() == l.extent)
        };
        if !(0..slots).all(full) {
            cuts[k].clear();
        }
    }
    cuts
}
