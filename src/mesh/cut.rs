//! One dim cut into blocks by atoms, major first.
//!
//! Of a dim of extent n, an atom of size a makes blocks of u * ceil(n / (u a)) elements, where u is its unit; coordinate i holds
//! block i, of which only what lies below n is real: the last ranks may hold less, or nothing. A minor atom cuts the block
//! of the major one in the same way (its nominal size, whatever part of it is real), so that gathering the minor atom gives
//! exactly the major one's block. In zigzag order an atom of size a makes 2a blocks, and coordinate i holds blocks i and 2a - 1 - i.
//! Blocks with a halo overlap: what windows on a rank read beside its own block. Blocks in a ring change hands. Both are within a program only,
//! no value's layout.

use super::{Atom, Mesh};
use serde::{Deserialize, Serialize};

/// One atom that cuts a dim.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct Entry {
    pub atom: Atom,
    /// Blocks are multiples of so many elements.
    pub unit: u32,
    pub order: Order,
}

impl Entry {
    /// Contiguous blocks of any size.
    pub fn new(atom: Atom) -> Entry {
        Entry { atom, unit: 1, order: Order::Block }
    }
}

/// How blocks are dealt to coordinates.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Debug, Serialize, Deserialize)]
pub enum Order {
    #[default]
    Block,
    /// Two blocks each, one from either end; only of the minor-most entry of a dim.
    Zigzag,
    /// Coordinate i holds `len` elements from `i * step - lead` on, as far as there are such; only of the one entry of a dim.
    Halo { step: u32, lead: i32, len: u32 },
    /// Coordinate i holds the `len` elements of some coordinate: whose they are changes while blocks go round. Only of the one entry of a dim.
    Ring { len: u32 },
}

impl Order {
    /// Whether it is of a dim within a program only, and of no value's layout.
    pub fn is_passing(self) -> bool {
        matches!(self, Order::Halo { .. } | Order::Ring { .. })
    }
}

/// How one dim is cut: entries, major first. Empty: not at all.
pub type Cut = Vec<Entry>;

/// A run of elements of a dim that a rank holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Span {
    /// In the whole dim.
    pub global: usize,
    /// In the rank's own buffer.
    pub local: usize,
    pub len: usize,
}

/// The elements that each coordinate of an entry has room for, of `extent` ones.
pub fn block(mesh: &Mesh, entry: &Entry, extent: usize) -> usize {
    let unit = entry.unit as usize;
    let parts = mesh.size(entry.atom);
    match entry.order {
        Order::Block => extent.div_ceil(unit * parts) * unit,
        Order::Zigzag => 2 * (extent.div_ceil(unit * 2 * parts) * unit),
        Order::Halo { len, .. } | Order::Ring { len } => len as usize,
    }
}

/// The extent of a rank's buffer along a dim; the same on every rank.
pub fn nominal(mesh: &Mesh, cut: &[Entry], extent: usize) -> usize {
    cut.iter().fold(extent, |n, e| block(mesh, e, n))
}

/// The nominal extents before each entry and after the last.
pub fn extents(mesh: &Mesh, cut: &[Entry], extent: usize) -> Vec<usize> {
    let mut all = vec![extent];
    for e in cut {
        all.push(block(mesh, e, *all.last().expect("never empty")));
    }
    all
}

/// Whether every element of every rank's buffer is real.
pub fn even(mesh: &Mesh, cut: &[Entry], extent: usize) -> bool {
    let mut n = extent;
    cut.iter().all(|e| {
        let b = block(mesh, e, n);
        let fits = b * mesh.size(e.atom) == n && !e.order.is_passing();
        n = b;
        fits
    })
}

/// What of a dim the rank at these coordinates (one for each entry) holds: at most two runs, empty ones left out.
pub fn spans(mesh: &Mesh, cut: &[Entry], extent: usize, coordinates: &[usize]) -> Vec<Span> {
    // The part that is left: from where, how much is real, and the nominal size.
    let (mut begin, mut end, mut n) = (0, extent, extent);
    for (e, i) in cut.iter().zip(coordinates) {
        let b = block(mesh, e, n);
        match e.order {
            Order::Block => {
                let from = begin + i * b;
                (begin, end) = (from.min(end), (from + b).min(end));
                n = b;
            }
            Order::Zigzag => {
                let half = b / 2;
                let places = [*i, 2 * mesh.size(e.atom) - 1 - i];
                let runs = places.iter().enumerate().map(|(k, place)| {
                    let from = (begin + place * half).min(end);
                    Span { global: from, local: k * half, len: (from + half).min(end) - from }
                });
                return runs.filter(|s| s.len > 0).collect();
            }
            Order::Halo { step, lead, len } => {
                let from = *i as i64 * i64::from(step) - i64::from(lead);
                let clamp = |x: i64| x.clamp(0, end as i64) as usize;
                let (first, last) = (clamp(from), clamp(from + i64::from(len)));
                let local = (first as i64 - from) as usize;
                let run = Span { global: first, local, len: last.saturating_sub(first) };
                return if run.len > 0 { vec![run] } else { Vec::new() };
            }
            // Whose they are is not known here.
            Order::Ring { len } => return vec![Span { global: 0, local: 0, len: len as usize }],
        }
    }
    if end > begin { vec![Span { global: begin, local: 0, len: end - begin }] } else { Vec::new() }
}

/// As [`spans`], for a rank.
pub fn spans_of(mesh: &Mesh, cut: &[Entry], extent: usize, rank: usize) -> Vec<Span> {
    let coordinates: Vec<usize> = cut.iter().map(|e| mesh.coordinate(rank, e.atom)).collect();
    spans(mesh, cut, extent, &coordinates)
}

/// The index into a whole dim that is meant by one beyond every part of it: itself, or a negative one that was moved there, 2^31 further,
/// for negative indices into parts are elements of other ranks.
pub fn told(index: i64) -> i64 {
    const NEGATIVE: i64 = 1 << 24;
    if index > i64::from(i32::MAX) - NEGATIVE { index + i64::from(i32::MIN) } else { index }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lens(mesh: &Mesh, cut: &[Entry], extent: usize) -> Vec<Vec<(usize, usize)>> {
        (0..mesh.ranks())
            .map(|r| spans_of(mesh, cut, extent, r).iter().map(|s| (s.global, s.global + s.len)).collect())
            .collect()
    }

    #[test]
    fn blocks_are_ceilings_and_the_last_may_be_empty() {
        let real = |extent, parts| -> Vec<usize> {
            let mesh = Mesh::of(&[("a", parts)]);
            let cut = [Entry::new(Atom(0))];
            (0..parts).map(|r| spans_of(&mesh, &cut, extent, r).iter().map(|s| s.len).sum()).collect()
        };
        assert_eq!(real(5, 4), [2, 2, 1, 0]);
        assert_eq!(real(17, 8), [3, 3, 3, 3, 3, 2, 0, 0]);
        assert_eq!(real(10, 4), [3, 3, 3, 1]);
        assert_eq!(real(257, 4), [65, 65, 65, 62]);
        assert_eq!(real(0, 2), [0, 0]);
    }

    #[test]
    fn a_minor_atom_cuts_the_nominal_block_of_the_major_one() {
        let mesh = Mesh::of(&[("a", 4), ("b", 2)]);
        let cut = [Entry::new(Atom(0)), Entry::new(Atom(1))];
        let wanted: [&[(usize, usize)]; 8] =
            [&[(0, 2)], &[(2, 3)], &[(3, 5)], &[(5, 6)], &[(6, 8)], &[(8, 9)], &[(9, 10)], &[]];
        assert_eq!(lens(&mesh, &cut, 10), wanted);
        assert_eq!(nominal(&mesh, &cut, 10), 2);
        assert_eq!(extents(&mesh, &cut, 10), [10, 3, 2]);
        assert!(!even(&mesh, &cut, 10) && even(&mesh, &cut, 16));
    }

    #[test]
    fn zigzag_deals_from_both_ends() {
        let mesh = Mesh::of(&[("cp", 2)]);
        let cut = [Entry { order: Order::Zigzag, ..Entry::new(Atom(0)) }];
        let wanted: [&[(usize, usize)]; 2] = [&[(0, 2), (6, 8)], &[(2, 4), (4, 6)]];
        assert_eq!(lens(&mesh, &cut, 8), wanted);
        // Six elements: blocks of two, the last of which is empty.
        let wanted: [&[(usize, usize)]; 2] = [&[(0, 2)], &[(2, 4), (4, 6)]];
        assert_eq!(lens(&mesh, &cut, 6), wanted);
    }

    #[test]
    fn halos_overlap_and_end_with_the_whole() {
        let mesh = Mesh::of(&[("a", 3)]);
        let order = Order::Halo { step: 4, lead: 1, len: 6 };
        let cut = [Entry { order, ..Entry::new(Atom(0)) }];
        let wanted: [&[(usize, usize)]; 3] = [&[(0, 5)], &[(3, 9)], &[(7, 10)]];
        assert_eq!(lens(&mesh, &cut, 10), wanted);
        assert_eq!(spans_of(&mesh, &cut, 10, 0)[0].local, 1);
        assert_eq!(nominal(&mesh, &cut, 10), 6);
        // Each coordinate has room for as much as there is, and yet not all of it is real.
        let order = Order::Halo { step: 4, lead: 0, len: 4 };
        assert!(!even(&mesh, &[Entry { order, ..Entry::new(Atom(0)) }], 12));
        // Beyond the end there is nothing.
        assert_eq!(lens(&mesh, &[Entry { order, ..Entry::new(Atom(0)) }], 3), [&[(0, 3)][..], &[], &[]]);
    }

    #[test]
    fn blocks_are_multiples_of_their_unit() {
        let mesh = Mesh::of(&[("a", 2)]);
        let cut = [Entry { unit: 3, ..Entry::new(Atom(0)) }];
        let wanted: [&[(usize, usize)]; 2] = [&[(0, 6)], &[(6, 9)]];
        assert_eq!(lens(&mesh, &cut, 9), wanted);
    }
}
