//! The cheapest path where the obvious one may not be it: by the A* algorithm over layouts.
//!
//! Every state keeps what both ends have in common. What will cost no less than the obvious path is not looked at, and after
//! so many moves the obvious path is taken: meshes and tensors have few axes and dims, so that this is for safety only.

use super::super::{Atom, Entry, Layout, Mesh, Order, algebra, cut};
use super::plan::{Key, Walk, scatter};
use super::{Kind, volume};
use crate::types::ReduceKind;
use indexmap::IndexMap;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Moves looked at, those among very many ranks counting more: they take longer to price.
const LIMIT: usize = 4_000;

/// A layout on the way.
struct Node<'a> {
    walk: Walk<'a>,
    /// Where it was reached from, and how.
    parent: Option<(usize, Move)>,
}

enum Move {
    Step(Kind, Vec<Atom>, Option<ReduceKind>),
    /// To other cuts at once.
    Redistribute,
}

/// A path that is cheaper than the obvious one, or that one.
pub fn better<'a>(from: &Layout, to: &Layout, direct: Walk<'a>) -> Walk<'a> {
    let dims = places(&direct, from, to);
    better_over(dims, from, to, direct)
}

/// The dims to cut on the way: those that are cut otherwise in the end; and the largest other one, as a place to put things:
/// what is sent hardly hangs on which it is.
fn places(direct: &Walk, from: &Layout, to: &Layout) -> Vec<usize> {
    let (mut changed, same): (Vec<usize>, Vec<usize>) =
        (0..from.dims.len()).partition(|d| from.dims[*d] != to.dims[*d]);
    let open = |d: &usize| from.dims[*d].last().is_none_or(|e| e.order == Order::Block);
    let room = |d: &usize| cut::nominal(direct.mesh, &from.dims[*d], direct.shape[*d]);
    changed.extend(same.into_iter().filter(open).rev().max_by_key(room));
    changed
}

/// The same with the dims to cut on the way given.
pub fn better_over<'a>(dims: Vec<usize>, from: &Layout, to: &Layout, direct: Walk<'a>) -> Walk<'a> {
    let ends = Ends::new(dims, from, to);
    let ahead = Ahead::new(&direct, &ends);
    let whole = |key: Key, layout: &Layout| (key.0 + ahead.least(layout), key.1, key.2, key.3);
    let start = Walk::new(direct.mesh, direct.shape, from, false);
    let mut best: IndexMap<Layout, Key> = IndexMap::from([(from.clone(), start.key)]);
    let mut queue = BinaryHeap::from([Reverse((whole(start.key, from), 0))]);
    let mut nodes = vec![Node { walk: start, parent: None }];
    let mut looked = 0;
    while looked < LIMIT {
        let Some(Reverse((_, i))) = queue.pop() else { return direct };
        let (at, key) = (nodes[i].walk.at.clone(), nodes[i].walk.key);
        if at == *to {
            return if direct.keeps() { retrace(&nodes, i, from) } else { nodes.swap_remove(i).walk };
        }
        if key > best[&at] {
            continue;
        }
        ends.moves(direct.mesh, &at, &mut |mv, target| {
            looked += ahead.work;
            // No move makes a path cheaper.
            if best.get(&target).is_some_and(|k| *k <= key) {
                return;
            }
            let mut walk = nodes[i].walk.clone();
            apply(&mut walk, &mv, &target);
            if walk.key >= direct.key || best.get(&target).is_some_and(|k| *k <= walk.key) {
                return;
            }
            let key = whole(walk.key, &target);
            if key < direct.key {
                best.insert(target, walk.key);
                queue.push(Reverse((key, nodes.len())));
                nodes.push(Node { walk, parent: Some((i, mv)) });
            }
        });
    }
    direct
}

/// What the rest of a path sends at least, whatever it is.
struct Ahead<'l> {
    mesh: &'l Mesh,
    shape: &'l [usize],
    to: &'l Layout,
    /// Of the fastest links.
    weight: u128,
    /// Elements, once for each set of ranks that exchange nothing with others.
    once: u128,
    /// Elements that ranks hold in the end, once for those that the value becomes partial over.
    held: u128,
    makes_partial: bool,
    /// What looking at a move counts for.
    work: usize,
}

impl<'l> Ahead<'l> {
    fn new(direct: &Walk<'l>, ends: &Ends<'l>) -> Ahead<'l> {
        let (mesh, from, to) = (direct.mesh, ends.from, ends.to);
        let moves = |a: &Atom| {
            let cut = |l: &Layout| l.dims.iter().zip(&ends.kept).any(|(c, n)| c[*n..].iter().any(|e| e.atom == *a));
            cut(from) || cut(to) || from.partial_of(*a) != to.partial_of(*a)
        };
        let (moving, still): (Vec<Atom>, Vec<Atom>) = mesh.atoms().partition(moves);
        let alone: Vec<Atom> = still.into_iter().filter(|a| from.dim_of(*a).is_none()).collect();
        let made: Vec<Atom> = moving.iter().copied().filter(|a| to.partial_of(*a).is_some()).collect();
        Ahead {
            mesh,
            shape: direct.shape,
            to,
            weight: moving.iter().map(|a| u128::from(mesh.weight(&[*a]))).min().unwrap_or(1),
            once: direct.shape.iter().map(|n| *n as u128).product::<u128>() * mesh.group(&alone) as u128,
            held: volume::held(mesh, direct.shape, to) / mesh.group(&made) as u128,
            makes_partial: !made.is_empty(),
            work: 1 + mesh.group(&moving) / 1024,
        }
    }

    fn least(&self, at: &Layout) -> u128 {
        let ended = at.partial.iter().filter(|p| self.to.partial_of(p.atom) != Some(p.op));
        let parts: u128 = ended.map(|p| self.mesh.size(p.atom) as u128).product();
        let sent = if parts > 1 {
            // Parts come together in one place, and what they make goes to all others that hold it.
            (parts - 1) * self.once + self.held.saturating_sub(self.once)
        } else if self.makes_partial {
            0
        } else {
            self.held - volume::shared(self.mesh, self.shape, &at.dims, &self.to.dims)
        };
        sent * self.weight
    }
}

fn apply(walk: &mut Walk, mv: &Move, target: &Layout) {
    match mv {
        Move::Step(kind, atoms, reduce) => walk.step(*kind, atoms, *reduce, |at| at.clone_from(target)),
        Move::Redistribute => walk.redistribute_to(target.dims.clone()),
    }
}

/// The path to a node, with its steps.
fn retrace<'a>(nodes: &[Node<'a>], last: usize, from: &Layout) -> Walk<'a> {
    let mut chain = vec![last];
    while let Some((parent, _)) = nodes[chain[chain.len() - 1]].parent {
        chain.push(parent);
    }
    let mut walk = Walk::new(nodes[last].walk.mesh, nodes[last].walk.shape, from, true);
    for i in chain.into_iter().rev() {
        if let Some((_, mv)) = &nodes[i].parent {
            apply(&mut walk, mv, &nodes[i].walk.at);
        }
    }
    walk
}

/// What every layout on the way is between.
struct Ends<'l> {
    from: &'l Layout,
    to: &'l Layout,
    /// That may be cut.
    dims: Vec<usize>,
    /// So many entries of each dim stay.
    kept: Vec<usize>,
}

impl<'l> Ends<'l> {
    fn new(dims: Vec<usize>, from: &'l Layout, to: &'l Layout) -> Ends<'l> {
        let common = |(a, b): (&Vec<Entry>, &Vec<Entry>)| a.iter().zip(b).take_while(|(x, y)| x == y).count();
        Ends { from, to, dims, kept: from.dims.iter().zip(&to.dims).map(common).collect() }
    }

    /// Every layout that one move leads to.
    fn moves(&self, mesh: &Mesh, at: &Layout, visit: &mut impl FnMut(Move, Layout)) {
        self.slices(at, visit);
        self.to_partial(at, visit);
        self.reductions(mesh, at, visit);
        self.exchanges(at, visit);
        self.arrivals(at, visit);
    }

    /// How an atom cuts a dim where it does so at an end; anyhow else.
    fn entry(&self, dim: usize, atom: Atom) -> Entry {
        let ends = self.to.dims[dim].iter().chain(&self.from.dims[dim]);
        ends.copied().find(|e| e.atom == atom).unwrap_or(Entry::new(atom))
    }

    /// Dims with a place for a minor entry.
    fn open(&self, at: &Layout) -> impl Iterator<Item = usize> {
        self.dims.iter().copied().filter(|d| at.dims[*d].last().is_none_or(|e| e.order == Order::Block))
    }

    /// The layout with a dim cut by more atoms, unless one deals from both ends before the last.
    fn cut_by(&self, at: &Layout, dim: usize, atoms: &[Atom]) -> Option<Layout> {
        let entries: Vec<Entry> = atoms.iter().map(|a| self.entry(dim, *a)).collect();
        let (_, before) = entries.split_last()?;
        if before.iter().any(|e| e.order == Order::Zigzag) {
            return None;
        }
        let mut next = at.clone();
        scatter(&mut next, dim, &entries);
        Some(next)
    }

    fn slices(&self, at: &Layout, visit: &mut impl FnMut(Move, Layout)) {
        for e in self.to.dims.iter().flatten().filter(|e| at.free(e.atom)) {
            for d in self.open(at) {
                if let Some(next) = self.cut_by(at, d, &[e.atom]) {
                    visit(Move::Step(Kind::Slice, Vec::new(), None), next);
                }
            }
        }
    }

    fn to_partial(&self, at: &Layout, visit: &mut impl FnMut(Move, Layout)) {
        for p in self.to.partial.iter().filter(|p| at.partial_of(p.atom).is_none()) {
            if at.partial.iter().any(|q| q.op != p.op) {
                continue;
            }
            let mut next = at.clone();
            let kind = match at.dim_of(p.atom) {
                None => Kind::MakePartial,
                Some(d) if next.dims[d].pop().is_some_and(|e| e.atom == p.atom) => Kind::ShardToPartial,
                Some(_) => continue,
            };
            next.partial.push(*p);
            next.partial.sort();
            visit(Move::Step(kind, Vec::new(), Some(p.op)), next);
        }
    }

    fn reductions(&self, mesh: &Mesh, at: &Layout, visit: &mut impl FnMut(Move, Layout)) {
        let ended = at.partial.iter().filter(|p| self.to.partial_of(p.atom) != Some(p.op));
        // What ends replicated over links of one kind stays together.
        let mut bundles: Vec<Vec<Atom>> = Vec::new();
        for a in ended.filter(|p| algebra::is_monoid(p.op)).map(|p| p.atom) {
            let alike = |b: &Atom| self.to.free(a) && self.to.free(*b) && mesh.weight(&[a]) == mesh.weight(&[*b]);
            match bundles.iter_mut().find(|b| alike(&b[0])) {
                Some(bundle) => bundle.push(a),
                None => bundles.push(vec![a]),
            }
        }
        let op = at.partial.first().map(|p| p.op);
        for chosen in sequences(bundles.len()) {
            let run: Vec<Atom> = chosen.iter().flat_map(|i| bundles[*i].iter().copied()).collect();
            for d in self.open(at) {
                if let Some(next) = self.cut_by(at, d, &run) {
                    visit(Move::Step(Kind::ReduceScatter, run.clone(), op), next);
                }
            }
            if chosen.is_sorted() {
                let mut next = at.clone();
                next.partial.retain(|p| !run.contains(&p.atom));
                visit(Move::Step(Kind::AllReduce, run, op), next);
            }
        }
    }

    /// Gathers of what cuts a dim last, and sending it to another dim.
    fn exchanges(&self, at: &Layout, visit: &mut impl FnMut(Move, Layout)) {
        for (d, kept) in self.kept.iter().enumerate() {
            for first in *kept..at.dims[d].len() {
                let mut next = at.clone();
                let atoms: Vec<Atom> = next.dims[d].drain(first..).map(|e| e.atom).collect();
                for e in self.open(at).filter(|e| *e != d) {
                    if let Some(sent) = self.cut_by(&next, e, &atoms) {
                        visit(Move::Redistribute, sent);
                    }
                }
                visit(Move::Step(Kind::AllGather, atoms, None), next);
            }
        }
    }

    /// The wanted cuts at once, when all that is to be cut was reduced. What will be partial and is cut is gathered, or left
    /// as the minor part of a dim.
    fn arrivals(&self, at: &Layout, visit: &mut impl FnMut(Move, Layout)) {
        if self.to.dims.iter().flatten().any(|e| at.partial_of(e.atom).is_some()) {
            return;
        }
        let there = Layout { dims: self.to.dims.clone(), partial: at.partial.clone() };
        let cut = self.to.partial.iter().map(|p| p.atom).filter(|a| at.dim_of(*a).is_some());
        let cut: Vec<Atom> = cut.collect();
        for d in self.open(&there) {
            if let Some(next) = self.cut_by(&there, d, &cut).filter(|n| n.dims != at.dims) {
                visit(Move::Redistribute, next);
            }
        }
        if there.dims != at.dims {
            visit(Move::Redistribute, there);
        }
    }
}

/// Every choice of some of so many things in every order.
fn sequences(count: usize) -> Vec<Vec<usize>> {
    let mut all: Vec<Vec<usize>> = vec![Vec::new()];
    let mut i = 0;
    while i < all.len() {
        for next in 0..count {
            if !all[i].contains(&next) {
                let longer = all[i].iter().copied().chain([next]).collect();
                all.push(longer);
            }
        }
        i += 1;
    }
    all.split_off(1)
}

#[cfg(test)]
mod tests {
    use super::super::super::emulate::layouts;
    use super::*;

    #[test]
    fn what_lies_ahead_is_never_overestimated() {
        let mut meshes = [Mesh::of(&[("a", 2), ("b", 3)]), Mesh::of(&[("a", 2), ("b", 3)])];
        meshes[1].axes[1].weight = 10;
        let (mut exact, mut count) = (0, 0);
        for (mesh, shape) in meshes.iter().zip([[6, 12], [5, 7]]) {
            let all = layouts(mesh, 2, ReduceKind::Sum);
            for (from, to) in all.iter().flat_map(|a| all.iter().map(move |b| (a, b))) {
                let direct = Walk::direct(mesh, &shape, from, to, false).expect("a path");
                let least = Ahead::new(&direct, &Ends::new(vec![0, 1], from, to)).least(from);
                let found = better(from, to, direct).key.0;
                assert!(least <= found, "{mesh}: {from:?} -> {to:?}: {least} over {found}");
                (exact, count) = (exact + usize::from(least == found), count + 1);
            }
        }
        // It says enough to be worth the while.
        assert!(2 * exact > count, "{exact} of {count}");
    }
}
