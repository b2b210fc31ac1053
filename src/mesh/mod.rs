//! Meshes and layouts as plain values: how ranks are arranged, and what of a tensor each of them holds.
//!
//! In: sizes and names. Out: blocks, local shapes, the moves that lead from one layout to another and their bytes. Knows no
//! graph. Reading order: this file (meshes), `cut.rs` (one dim cut by axes), `layout.rs` (a whole tensor), `text.rs` (its notation),
//! `algebra.rs` (operators of partial values), `reshard/` (moves between layouts, their cost, the cheapest path).
//!
//! - Every axis is a product of **atoms**, major first, which is more than one only where a rule needs a part of an axis.
//!   Rules work on atoms; text joins them again.
//! - The rank of coordinates is row-major over the axes as declared: the last axis is innermost.
//! - An atom has at most one role in a layout: it cuts one dim, or the value is partial over it, or the value is replicated
//!   along it.

pub mod algebra;
mod collective;
pub mod cut;
#[cfg(test)]
mod emulate;
mod layout;
pub mod reshard;
mod text;

pub use collective::CollectiveKind;
pub use cut::{Cut, Entry, Order, Span};
pub use layout::{Layout, Partial};
pub use text::parse_layout;

use serde::{Deserialize, Serialize};

/// A part of a mesh axis, numbered through the mesh: those of the first axis first, of an axis the major one first.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct Atom(pub u16);

impl Atom {
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// An axis of the device grid.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Axis {
    pub name: String,
    /// Sizes of its atoms, major first; their product is the size of the axis.
    pub atoms: Vec<usize>,
    /// What a byte along it costs, relative to the fastest link.
    pub weight: u32,
}

impl Axis {
    /// An axis in one piece, with the fastest links.
    pub fn new(name: &str, size: usize) -> Axis {
        Axis { name: name.to_string(), atoms: vec![size], weight: 1 }
    }

    pub fn size(&self) -> usize {
        self.atoms.iter().product()
    }
}

/// The arrangement of ranks. Without axes: one rank.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Mesh {
    /// The last one is innermost: neighbours along it have neighbouring ranks.
    pub axes: Vec<Axis>,
}

impl Mesh {
    /// A mesh of axes in one piece.
    pub fn of(axes: &[(&str, usize)]) -> Mesh {
        Mesh { axes: axes.iter().map(|(name, size)| Axis::new(name, *size)).collect() }
    }

    /// The number of ranks.
    pub fn ranks(&self) -> usize {
        self.axes.iter().map(Axis::size).product()
    }

    /// All atoms, in order of number.
    pub fn atoms(&self) -> impl Iterator<Item = Atom> + use<> {
        let count: usize = self.axes.iter().map(|a| a.atoms.len()).sum();
        (0..count as u16).map(Atom)
    }

    /// The atoms of an axis, major first.
    pub fn atoms_of(&self, axis: usize) -> Vec<Atom> {
        let first: usize = self.axes[..axis].iter().map(|a| a.atoms.len()).sum();
        (first..first + self.axes[axis].atoms.len()).map(|i| Atom(i as u16)).collect()
    }

    /// The axis of an atom, and which of its atoms it is.
    pub fn axis_of(&self, atom: Atom) -> (usize, usize) {
        let mut left = atom.index();
        for (i, a) in self.axes.iter().enumerate() {
            if left < a.atoms.len() {
                return (i, left);
            }
            left -= a.atoms.len();
        }
        panic!("atom {} is not of this mesh", atom.0)
    }

    /// The number of blocks that an atom makes.
    pub fn size(&self, atom: Atom) -> usize {
        let (axis, part) = self.axis_of(atom);
        self.axes[axis].atoms[part]
    }

    /// The number of ranks in a group along some atoms.
    pub fn group(&self, atoms: &[Atom]) -> usize {
        atoms.iter().map(|a| self.size(*a)).product()
    }

    /// What a byte costs along some atoms: as along the slowest of them.
    pub fn weight(&self, atoms: &[Atom]) -> u64 {
        atoms.iter().map(|a| u64::from(self.axes[self.axis_of(*a).0].weight)).max().unwrap_or(1)
    }

    /// How far apart in rank two neighbours along an atom are.
    pub fn stride(&self, atom: Atom) -> usize {
        self.atoms().skip(atom.index() + 1).map(|a| self.size(a)).product()
    }

    /// Where a rank is along an atom.
    pub fn coordinate(&self, rank: usize, atom: Atom) -> usize {
        rank / self.stride(atom) % self.size(atom)
    }

    /// The rank so many places before this one in the ring of its group.
    pub fn before(&self, rank: usize, atoms: &[Atom], hops: u32) -> usize {
        let group = self.members(rank, atoms);
        let at = group.iter().position(|r| *r == rank).expect("a rank is of its group");
        group[(at + group.len() - hops as usize % group.len()) % group.len()]
    }

    /// The ranks that differ from this one at most along the atoms, in order of their coordinates (the first atom major).
    pub fn members(&self, rank: usize, atoms: &[Atom]) -> Vec<usize> {
        let base = atoms.iter().fold(rank, |r, a| r - self.coordinate(rank, *a) * self.stride(*a));
        let mut all = vec![base];
        for a in atoms {
            let (size, stride) = (self.size(*a), self.stride(*a));
            all = all.iter().flat_map(|r| (0..size).map(move |i| r + i * stride)).collect();
        }
        all
    }

    /// An axis by its name.
    pub fn axis(&self, name: &str) -> Option<usize> {
        self.axes.iter().position(|a| a.name == name)
    }

    /// The name of an atom: of its axis, with its number where the axis has several (`tp:0`).
    pub fn name(&self, atom: Atom) -> String {
        let (axis, part) = self.axis_of(atom);
        let a = &self.axes[axis];
        if a.atoms.len() == 1 { a.name.clone() } else { format!("{}:{part}", a.name) }
    }

    /// Names of atoms, those of whole axes joined: `dp`, `tp:0`.
    pub fn names(&self, atoms: &[Atom]) -> Vec<String> {
        let mut out = Vec::new();
        let mut i = 0;
        while i < atoms.len() {
            let (axis, _) = self.axis_of(atoms[i]);
            let whole = self.atoms_of(axis);
            if atoms[i..].starts_with(&whole) {
                out.push(self.axes[axis].name.clone());
                i += whole.len();
            } else {
                out.push(self.name(atoms[i]));
                i += 1;
            }
        }
        out
    }
}

/// `dp = 2, tp = 4`
impl std::fmt::Display for Mesh {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (i, a) in self.axes.iter().enumerate() {
            write!(f, "{}{} = {}", if i == 0 { "" } else { ", " }, a.name, a.size())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_row_major_over_the_axes() {
        let mut mesh = Mesh::of(&[("dp", 2), ("tp", 4)]);
        mesh.axes[1].atoms = vec![2, 2];
        let [dp, major, minor] = [Atom(0), Atom(1), Atom(2)];
        assert_eq!(mesh.ranks(), 8);
        assert_eq!([dp, major, minor].map(|a| mesh.coordinate(6, a)), [1, 1, 0]);
        assert_eq!(mesh.members(6, &[minor]), [6, 7]);
        assert_eq!(mesh.members(6, &[dp]), [2, 6]);
        assert_eq!(mesh.members(6, &[dp, major]), [0, 2, 4, 6]);
        assert_eq!(mesh.members(6, &[major, dp]), [0, 4, 2, 6]);
        assert_eq!(mesh.names(&[major, minor, dp]), ["tp", "dp"]);
        assert_eq!(mesh.names(&[minor]), ["tp:1"]);
        assert_eq!(mesh.to_string(), "dp = 2, tp = 4");
    }
}
