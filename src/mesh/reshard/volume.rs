//! How many elements ranks hold, and how many of what they need: sums over all ranks of the mesh, as whole numbers.
//!
//! What one dim's cut leaves sums to the dim's extent over the coordinates, whatever is uneven; so a layout's total needs no
//! loop. Only where cuts meet that are uneven or no part of each other does one go over coordinates: over those of the atoms
//! of one dim, and then atom by atom, so that the size of the mesh matters little.

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
    let mut factors = Vec::new();
    let mut atoms: Vec<Atom> = Vec::new();
    for (i, pair) in pairs.iter().enumerate() {
        atoms.extend(&pair.atoms);
        let others = || pairs.iter().enumerate().filter(|(k, _)| *k != i);
        let alone = !others().any(|(_, p)| p.atoms.iter().any(|a| pair.atoms.contains(a)));
        factors.push(match pair.longer() {
            // All its atoms are of the finer cut, whose blocks make up the dim.
            Some(_) if alone => Factor { atoms: Vec::new(), table: vec![pair.extent as u128] },
            _ => pair.factor(mesh),
        });
    }
    atoms.sort_unstable();
    atoms.dedup();
    total / mesh.group(&atoms) as u128 * sum(mesh, factors)
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
    fn factor(&self, mesh: &Mesh) -> Factor {
        let place = |e: &Entry| self.atoms.iter().position(|a| *a == e.atom).expect("one of both");
        let places = |c: &[Entry]| c.iter().map(place).collect::<Vec<usize>>();
        let (from, to) = (places(self.from), places(self.to));
        let plain = self.from.iter().chain(self.to).all(|e| e.order == Order::Block);
        let sizes = [self.from, self.to].map(|c| cut::extents(mesh, c, self.extent));
        let table = each(mesh, &self.atoms, |at| {
            if plain {
                let (a, b) = (run(&sizes[0], &from, at), run(&sizes[1], &to, at));
                return a.1.min(b.1).saturating_sub(a.0.max(b.0)) as u128;
            }
            let of = |c, places: &[usize]| {
                cut::spans(mesh, c, self.extent, &places.iter().map(|i| at[*i]).collect::<Vec<usize>>())
            };
            overlap(&of(self.from, &from), &of(self.to, &to)) as u128
        });
        Factor { atoms: self.atoms.clone(), table }
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

/// A number for each set of coordinates of some atoms.
struct Factor {
    atoms: Vec<Atom>,
    /// Those of the last atom next to each other.
    table: Vec<u128>,
}

/// The sum of the factors' product over all coordinates: over those of one atom after the other, that with the least to do first.
fn sum(mesh: &Mesh, mut factors: Vec<Factor>) -> u128 {
    let joint = |factors: &[Factor], atom: Atom| {
        let mut all: Vec<Atom> = Vec::new();
        for a in factors.iter().filter(|f| f.atoms.contains(&atom)).flat_map(|f| &f.atoms) {
            if *a != atom && !all.contains(a) {
                all.push(*a);
            }
        }
        all.push(atom);
        all
    };
    let next = |factors: &[Factor]| {
        let all = factors.iter().flat_map(|f| &f.atoms).map(|a| joint(factors, *a));
        all.min_by_key(|atoms| mesh.group(atoms))
    };
    while let Some(mut atoms) = next(&factors) {
        let last = *atoms.last().expect("one at least");
        let (with, without): (Vec<Factor>, Vec<Factor>) = factors.into_iter().partition(|f| f.atoms.contains(&last));
        let stride =
            |f: &Factor, a: &Atom| f.atoms.iter().position(|x| x == a).map_or(0, |i| mesh.group(&f.atoms[i + 1..]));
        let strides: Vec<Vec<usize>> = with.iter().map(|f| atoms.iter().map(|a| stride(f, a)).collect()).collect();
        let table = each(mesh, &atoms, |at| {
            let place = |strides: &[usize]| at.iter().zip(strides).map(|(i, s)| i * s).sum::<usize>();
            with.iter().zip(&strides).map(|(f, s)| f.table[place(s)]).product()
        });
        atoms.pop();
        factors = without;
        factors.push(Factor { atoms, table: table.chunks(mesh.size(last)).map(|c| c.iter().sum()).collect() });
    }
    factors.iter().map(|f| f.table[0]).product()
}

/// What is said of all coordinates of the atoms, those of the last fastest.
fn each(mesh: &Mesh, atoms: &[Atom], mut of: impl FnMut(&[usize]) -> u128) -> Vec<u128> {
    let sizes: Vec<usize> = atoms.iter().map(|a| mesh.size(*a)).collect();
    let mut out = Vec::with_capacity(sizes.iter().product());
    let mut at = vec![0; sizes.len()];
    loop {
        out.push(of(&at));
        let Some(i) = (0..at.len()).rev().find(|i| at[*i] + 1 < sizes[*i]) else { return out };
        at[i] += 1;
        at[i + 1..].fill(0);
    }
}

/// As [`cut::spans`] where all blocks are in order: from nominal extents, and where coordinates stand.
fn run(extents: &[usize], places: &[usize], at: &[usize]) -> (usize, usize) {
    places.iter().zip(&extents[1..]).fold((0, extents[0]), |(begin, end), (place, size)| {
        let from = begin + at[*place] * size;
        (from.min(end), (from + size).min(end))
    })
}

fn overlap(a: &[Span], b: &[Span]) -> usize {
    let both = |x: &Span, y: &Span| (x.global + x.len).min(y.global + y.len).saturating_sub(x.global.max(y.global));
    a.iter().flat_map(|x| b.iter().map(move |y| both(x, y))).sum()
}
