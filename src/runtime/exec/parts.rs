//! Arrays of which each rank holds a part: from the whole to the parts and back.

use super::Ranks;
use crate::mesh::{Entry, Mesh, cut};
use crate::program::{Output, Part, Program, Slot};
use crate::runtime::comm::plan::{Block, Piece, blocks};

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

/// What each rank holds of an array.
pub struct Held<'p> {
    program: &'p Program,
    mesh: &'p Mesh,
    /// See [`Slot::on`].
    on: &'p [u32],
    /// Of a rank's buffer.
    shape: &'p [usize],
    cut: &'p [Option<Part>],
}

impl<'p> Held<'p> {
    pub fn of(program: &'p Program, slot: &'p Slot) -> Held<'p> {
        Held { program, mesh: &program.mesh, on: &slot.on, shape: &slot.shape, cut: &slot.cut }
    }

    /// What the ranks hold of an output.
    pub fn of_output(program: &'p Program, out: &'p Output) -> Held<'p> {
        Held { program, mesh: &program.mesh, on: &[], shape: &out.shape, cut: &out.cut }
    }

    /// A rank's part of a whole, both row-major. What is not real of it becomes 0.
    pub fn take(&self, rank: usize, bytes: usize, whole: &[u8], own: &mut [u8]) {
        let blocks = self.blocks(rank);
        if blocks.iter().map(Block::elements).sum::<usize>() * bytes < own.len() {
            own.fill(0);
        }
        for b in blocks {
            b.runs(0, b.elements(), &mut |from, to, len| {
                let [from, to, len] = [from, to, len].map(|n| n * bytes);
                own[to..to + len].copy_from_slice(&whole[from..from + len]);
            });
        }
    }

    /// The shape of what all ranks hold together.
    pub fn whole(&self) -> Vec<usize> {
        self.shape.iter().zip(self.cut).map(|(n, c)| c.as_ref().map_or(*n, |c| c.extent)).collect()
    }

    fn cuts(&self) -> impl Iterator<Item = &'p [Entry]> {
        self.cut.iter().map(|c| c.as_ref().map_or(&[][..], |c| &c.cut))
    }

    /// Where the elements that a rank holds are in the whole (`from`), and in its buffer (`to`).
    pub fn blocks(&self, rank: usize) -> Vec<Block> {
        let whole = self.whole();
        let pieces = |(entries, extent): (&[Entry], &usize)| -> Vec<Piece> {
            let spans = cut::spans_of(self.mesh, entries, *extent, rank);
            spans.iter().map(|s| Piece { from: s.global, to: s.local, len: s.len }).collect()
        };
        let all: Vec<Vec<Piece>> = self.cuts().zip(&whole).map(pieces).collect();
        blocks(&all, &whole, self.shape)
    }

    /// Whether a rank is the first of those that hold the same part.
    fn is_first(&self, rank: usize) -> bool {
        let cuts = |a| self.cuts().any(|c| c.iter().any(|e| e.atom == a));
        let stages = |a| !self.on.is_empty() && self.program.pipeline.contains(&a);
        let first = self.on.first().is_none_or(|s| self.program.stage(rank) == *s as usize);
        first && self.mesh.atoms().all(|a| cuts(a) || stages(a) || self.mesh.coordinate(rank, a) == 0)
    }

    /// Puts an array together from what `read` gives of each rank that is asked. Of ranks that hold the same part the first one
    /// counts.
    pub fn gather(&self, bytes: usize, whole: &mut Vec<u8>, mut read: impl FnMut(usize, &mut dyn FnMut(&[u8]))) {
        whole.clear();
        whole.resize(self.whole().iter().product::<usize>() * bytes, 0);
        for rank in (0..self.mesh.ranks()).filter(|r| self.is_first(*r)) {
            read(rank, &mut |own| {
                for b in self.blocks(rank) {
                    b.runs(0, b.elements(), &mut |from, to, len| {
                        let [from, to, len] = [from, to, len].map(|n| n * bytes);
                        whole[from..from + len].copy_from_slice(&own[to..to + len]);
                    });
                }
            });
        }
    }
}

impl Ranks {
    /// The shape of the whole array.
    pub fn shape(&self, array: Array) -> Vec<usize> {
        Held::of(self.program(), array.slot(self.program())).whole()
    }

    /// Gives every rank its part of an array, row-major in the whole's shape. What is not real of a part becomes 0.
    pub fn scatter(&mut self, array: Array, whole: &[u8]) {
        let program = self.program().clone();
        let slot = array.slot(&program);
        let (held, bytes) = (Held::of(&program, slot), slot.dtype.bytes());
        assert_eq!(whole.len(), held.whole().iter().product::<usize>() * bytes, "bytes of `{}`", slot.path);
        for rank in (0..self.ranks()).filter(|r| slot.is_at(program.stage(*r))) {
            let mut exec = self.executor(rank);
            let own = match array {
                Array::Param(n) => exec.param_mut(n),
                Array::State(n) => exec.state_mut(n),
                Array::Input(n) => exec.input_mut(n),
            };
            held.take(rank, bytes, whole, own);
        }
    }

    /// Bytes of a whole array, row-major.
    pub fn gather(&self, array: Array, whole: &mut Vec<u8>) {
        let program = self.program();
        let slot = array.slot(program);
        Held::of(program, slot).gather(slot.dtype.bytes(), whole, |rank, take| {
            let exec = self.executor(rank);
            take(match array {
                Array::Param(n) => exec.param(n),
                Array::State(n) => exec.state(n),
                Array::Input(n) => exec.input(n),
            });
        });
    }

    /// Shape and bytes of an output of the routine that ran last, put together from what the ranks hold of it.
    pub fn output(&self, routine: usize, n: usize, whole: &mut Vec<u8>) -> Vec<usize> {
        let program = self.program();
        let r = &program.routines[routine];
        let out = &r.outputs[n];
        let held = Held::of_output(program, out);
        let bytes = r.buffer(out.buffer).dtype.bytes();
        held.gather(bytes, whole, |rank, take| take(self.executor(rank).output(routine, n)));
        held.whole()
    }
}
