//! Persistent arrays of which each rank holds a part: from the whole to the parts and back.

use super::Ranks;
use crate::mesh::{Entry, Mesh, cut};
use crate::program::{Program, Slot};
use crate::runtime::comm::plan::{Block, Piece, blocks, room};

/// A persistent array by its number in the program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Array {
    Param(usize),
    State(usize),
    Input(usize),
}

impl Array {
    pub fn slot(self, program: &Program) -> &Slot {
        match self {
            Array::Param(n) => &program.params[n],
            Array::State(n) => &program.states[n],
            Array::Input(n) => &program.inputs[n],
        }
    }
}

/// Where the elements that a rank holds are in the whole (`from`), and in its part (`to`).
fn part(mesh: &Mesh, slot: &Slot, rank: usize) -> Vec<Block> {
    let whole = slot.whole();
    let pieces = |(entries, extent): (&[Entry], &usize)| -> Vec<Piece> {
        let spans = cut::spans_of(mesh, entries, *extent, rank);
        spans.iter().map(|s| Piece { from: s.global, to: s.local, len: s.len }).collect()
    };
    let all: Vec<Vec<Piece>> = slot.cuts().zip(&whole).map(pieces).collect();
    let local: Vec<usize> = slot.cuts().zip(&whole).map(|(c, n)| room(mesh, c, *n)).collect();
    blocks(&all, &whole, &local)
}

/// Whether a rank is the first of those that hold the same part.
fn is_first(mesh: &Mesh, slot: &Slot, rank: usize) -> bool {
    let cuts = |a| slot.cuts().any(|c| c.iter().any(|e| e.atom == a));
    mesh.atoms().all(|a| cuts(a) || mesh.coordinate(rank, a) == 0)
}

impl Ranks {
    /// Bytes of the whole array.
    pub fn bytes(&self, array: Array) -> usize {
        let slot = array.slot(self.program());
        slot.whole().iter().product::<usize>() * slot.dtype.bytes()
    }

    /// Gives every rank its part of an array, row-major in the whole's shape. What is not real of a part becomes 0.
    pub fn scatter(&mut self, array: Array, whole: &[u8]) {
        let program = self.program().clone();
        let slot = array.slot(&program);
        let size = slot.dtype.bytes();
        assert_eq!(whole.len(), self.bytes(array), "bytes of `{}`", slot.path);
        for rank in 0..self.ranks() {
            let mut exec = self.executor(rank);
            let own = match array {
                Array::Param(n) => exec.param_mut(n),
                Array::State(n) => exec.state_mut(n),
                Array::Input(n) => exec.input_mut(n),
            };
            own.fill(0);
            for b in part(&program.mesh, slot, rank) {
                b.runs(0, b.elements(), &mut |from, to, len| {
                    let [from, to, len] = [from, to, len].map(|n| n * size);
                    own[to..to + len].copy_from_slice(&whole[from..from + len]);
                });
            }
        }
    }

    /// Puts an array together from the parts. Of ranks that hold the same part the first one counts.
    pub fn gather(&self, array: Array, whole: &mut Vec<u8>) {
        let program = self.program();
        let slot = array.slot(program);
        let size = slot.dtype.bytes();
        whole.clear();
        whole.resize(self.bytes(array), 0);
        for rank in (0..self.ranks()).filter(|r| is_first(&program.mesh, slot, *r)) {
            let exec = self.executor(rank);
            let own = match array {
                Array::Param(n) => exec.param(n),
                Array::State(n) => exec.state(n),
                Array::Input(n) => exec.input(n),
            };
            for b in part(&program.mesh, slot, rank) {
                b.runs(0, b.elements(), &mut |from, to, len| {
                    let [from, to, len] = [from, to, len].map(|n| n * size);
                    whole[from..from + len].copy_from_slice(&own[to..to + len]);
                });
            }
        }
    }
}
