//! How many elements ranks hold, and how many of what they need: sums over all ranks of the mesh, as whole numbers.
//!
//! What one dim's cut leaves sums to the dim's extent over the coordinates, whatever is uneven; so a layout's total needs no
//! loop. Only where two uneven cuts meet does one go over coordinates, and only over those of the atoms of such dims.

use super::super::{Atom, Cut, Entry, Layout, Mesh, Order, Span, cut};

/// The real elements of all ranks' buffers together.
pub fn held(mesh: &Mesh, shape: &[usize], layout: &Layout) -> u128 {
    let cuts: u128 = layout.dims.iter().flatten().map(|e| mesh.size(e.atom) as u128).product();
    // An atom cuts at most once, so this divides.
    shape.iter().map(|n| *n as u128).product::<u128>() * (mesh.ranks() as u128 / cuts)
}

/// The elements of a rank's buffer, dead ones included.
pub fn room(mesh: &Mesh, shape: &[usize], layout: &Layout) -> u128 {
    layout.dims.iter().zip(shape).map(|(c, n)| cut::nominal(mesh, c, *n) as u128).product()
}

/// The elements that ranks hold both under one set of cuts and under another, all ranks together.
pub fn shared(mesh: &Mesh, shape: &[usize], from: &[Cut], to: &[Cut]) -> u128 {
    let mut total = mesh.ranks() as u128;
    let mut pairs = Vec::new();
    for ((a, b), n) in from.iter().zip(to).zip(shape) {
        let pair = Pair::new(mesh, a, b, *n);
        if pair.longer().is_some_and(|c| c.is_empty() || cut::even(mesh, c, pair.extent)) {
            // As many on every rank.
            total *= cut::nominal(mesh, pair.longer().expect("just seen"), pair.extent) as u128;
        } else {
            pairs.push(pair);
        }
    }
    while let Some(first) = pairs.pop() {
        // The dims whose counts hang together by an atom.
        let mut atoms = first.atoms.clone();
        let mut group = vec![first];
        while let Some(i) = pairs.iter().position(|p| p.atoms.iter().any(|a| atoms.contains(a))) {
            let next = pairs.swap_remove(i);
            let more: Vec<Atom> = next.atoms.iter().copied().filter(|a| !atoms.contains(a)).collect();
            atoms.extend(more);
            group.push(next);
        }
        let ranks: u128 = mesh.group(&atoms) as u128;
        let sum = match &group[..] {
            [one] if one.longer().is_some() => {
                // All atoms are of the finer cut, whose blocks make up the dim.
                one.extent as u128
            }
            _ => count(mesh, &atoms, &group),
        };
        total = total / ranks * sum;
    }
    total
}

/// How a dim is cut before and after, without what both begin with where that leaves equal blocks.
struct Pair<'a> {
    from: &'a [Entry],
    to: &'a [Entry],
    extent: usize,
    /// Of both.
    atoms: Vec<Atom>,
}

impl<'a> Pair<'a> {
    fn new(mesh: &Mesh, mut from: &'a [Entry], mut to: &'a [Entry], mut extent: usize) -> Pair<'a> {
        while let ([a, rest @ ..], [b, others @ ..]) = (from, to)
            && a == b
            && a.order == Order::Block
            && cut::even(mesh, &[*a], extent)
        {
            extent = cut::nominal(mesh, &[*a], extent);
            (from, to) = (rest, others);
        }
        let mut atoms: Vec<Atom> = from.iter().map(|e| e.atom).collect();
        atoms.extend(to.iter().map(|e| e.atom).filter(|a| from.iter().all(|e| e.atom != *a)));
        Pair { from, to, extent, atoms }
    }

    /// What is held twice, for all coordinates of its atoms.
    fn table(&self, mesh: &Mesh) -> Vec<usize> {
        let sizes: Vec<usize> = self.atoms.iter().map(|a| mesh.size(*a)).collect();
        let mut all = Vec::with_capacity(sizes.iter().product());
        let place = |e: &Entry| self.atoms.iter().position(|a| *a == e.atom).expect("one of both");
        let (from, to): (Vec<usize>, Vec<usize>) =
            (self.from.iter().map(place).collect(), self.to.iter().map(place).collect());
        let (mut i, mut k) = (vec![0; from.len()], vec![0; to.len()]);
        each(&sizes, |at| {
            i.iter_mut().zip(&from).for_each(|(i, place)| *i = at[*place]);
            k.iter_mut().zip(&to).for_each(|(k, place)| *k = at[*place]);
            let before = cut::spans(mesh, self.from, self.extent, &i);
            let after = cut::spans(mesh, self.to, self.extent, &k);
            all.push(overlap(&before, &after));
        });
        all
    }

    /// The finer cut, where one only goes on from the other: all that a rank holds under it is held under both.
    fn longer(&self) -> Option<&'a [Entry]> {
        if self.from.starts_with(self.to) {
            Some(self.from)
        } else if self.to.starts_with(self.from) {
            Some(self.to)
        } else {
            None
        }
    }
}

/// The sum over coordinates of the atoms of products of what is held twice along each dim.
fn count(mesh: &Mesh, atoms: &[Atom], dims: &[Pair]) -> u128 {
    // Of each dim for all coordinates of its own atoms, and how far apart therein those of the group's atoms are.
    let tables: Vec<(Vec<usize>, Vec<usize>)> = dims
        .iter()
        .map(|d| {
            let stride = |a: &Atom| match d.atoms.iter().position(|x| x == a) {
                Some(i) => mesh.group(&d.atoms[i + 1..]),
                None => 0,
            };
            (d.table(mesh), atoms.iter().map(stride).collect())
        })
        .collect();
    let sizes: Vec<usize> = atoms.iter().map(|a| mesh.size(*a)).collect();
    let mut sum = 0;
    each(&sizes, |at| {
        let of = |(table, strides): &(Vec<usize>, Vec<usize>)| {
            table[at.iter().zip(strides).map(|(i, s)| i * s).sum::<usize>()] as u128
        };
        sum += tables.iter().map(of).product::<u128>();
    });
    sum
}

/// All coordinates, those of the last fastest.
fn each(sizes: &[usize], mut visit: impl FnMut(&[usize])) {
    let mut at = vec![0; sizes.len()];
    loop {
        visit(&at);
        let Some(i) = (0..at.len()).rev().find(|i| at[*i] + 1 < sizes[*i]) else { return };
        at[i] += 1;
        at[i + 1..].fill(0);
    }
}

fn overlap(a: &[Span], b: &[Span]) -> usize {
    let both = |x: &Span, y: &Span| (x.global + x.len).min(y.global + y.len).saturating_sub(x.global.max(y.global));
    a.iter().flat_map(|x| b.iter().map(move |y| both(x, y))).sum()
}
