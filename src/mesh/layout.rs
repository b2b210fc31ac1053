//! How a tensor lies on a mesh.

use super::{Atom, Cut, Mesh, cut};
use crate::types::ReduceKind;
use serde::{Deserialize, Serialize};

/// For each dim how it is cut, and over which atoms the value is partial. Along all other atoms it is replicated.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub struct Layout {
    /// In the order of the tensor's dims.
    pub dims: Vec<Cut>,
    /// In order of their atoms.
    pub partial: Vec<Partial>,
}

/// The value is what `op` makes of the ranks' arrays along the atom.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct Partial {
    pub atom: Atom,
    pub op: ReduceKind,
}

impl Layout {
    /// The same everywhere.
    pub fn replicated(dims: usize) -> Layout {
        Layout { dims: vec![Cut::new(); dims], partial: Vec::new() }
    }

    /// The dim that an atom cuts.
    pub fn dim_of(&self, atom: Atom) -> Option<usize> {
        self.dims.iter().position(|c| c.iter().any(|e| e.atom == atom))
    }

    pub fn partial_of(&self, atom: Atom) -> Option<ReduceKind> {
        self.partial.iter().find(|p| p.atom == atom).map(|p| p.op)
    }

    /// Whether an atom has no role.
    pub fn free(&self, atom: Atom) -> bool {
        self.dim_of(atom).is_none() && self.partial_of(atom).is_none()
    }

    pub fn is_replicated(&self) -> bool {
        self.partial.is_empty() && self.dims.iter().all(Cut::is_empty)
    }

    /// The shape of every rank's buffer.
    pub fn local(&self, mesh: &Mesh, shape: &[usize]) -> Vec<usize> {
        self.dims.iter().zip(shape).map(|(c, n)| cut::nominal(mesh, c, *n)).collect()
    }
}
