//! Where the buffers of routines lie in memory.

use super::{RunArgs, Slab};
use crate::program::{ALIGN, Buffer, BufferId, Place, Program, Routine};
use crate::runtime::RuntimeError;
use crate::runtime::device::library::Element;
use crate::types::DType;
use crate::with_element;
use std::ops::Range;

pub struct Memory {
    pub params: Vec<Slab>,
    pub states: Vec<Slab>,
    pub inputs: Vec<Slab>,
    constants: Slab,
    /// Temporaries of the routine that runs.
    arena: Slab,
    /// Those that lie in a file.
    host: Slab,
    /// Step, position and coordinates, one cache line each.
    cells: Slab,
    /// Where the arena of the routine that runs begins in that of its caller, in bytes.
    pub frame: usize,
}

/// Where a buffer lies.
#[derive(Clone, Copy)]
pub enum Spot {
    Fixed(*mut u8),
    /// Bytes of the routine's arena from `start`.
    Arena {
        start: usize,
        bytes: usize,
    },
    /// It moves with a loop; see [`Place::Slice`].
    Slice {
        base: BufferId,
        turn: BufferId,
        offset: i64,
        stride: i64,
        bytes: usize,
        base_bytes: usize,
    },
}

impl Memory {
    /// `coordinates`: of the rank along the mesh's atoms.
    pub fn new(program: &Program, rank: usize, coordinates: &[usize]) -> Result<Memory, RuntimeError> {
        let stage = program.stage(rank);
        let slab = |s: &crate::program::Slot| match (if s.is_at(stage) { s.bytes() } else { 0 }, s.host) {
            (bytes, true) => Slab::in_file(bytes, &format!("`{}`", s.path)),
            (bytes, false) => Slab::new(bytes, &format!("`{}`", s.path)),
        };
        let slabs = |slots: &[crate::program::Slot]| slots.iter().map(slab).collect::<Result<Vec<Slab>, _>>();
        let mut constants = Slab::new(program.constants.len(), "constants")?;
        constants.bytes_mut().copy_from_slice(&program.constants);
        let mut cells = Slab::new(program.cells_bytes(), "cells")?;
        for (cell, at) in cells.bytes_mut().chunks_exact_mut(ALIGN).skip(2).zip(coordinates) {
            cell[..4].copy_from_slice(&(*at as i32).to_ne_bytes());
        }
        Ok(Memory {
            params: slabs(&program.params)?,
            states: slabs(&program.states)?,
            inputs: slabs(&program.inputs)?,
            constants,
            arena: Slab::new(program.arena_bytes(stage), "temporary values")?,
            host: Slab::in_file(program.host_bytes(stage), "values that wait for the backward pass")?,
            cells,
            frame: 0,
        })
    }

    /// Bytes of everything that outlives a run, in whole cache lines as they are allocated.
    pub fn persistent_bytes(&self) -> usize {
        let slots = self.params.iter().chain(&self.states).chain(&self.inputs);
        slots.filter(|s| !s.arena.is_file()).map(|s| s.arena.len().next_multiple_of(ALIGN)).sum::<usize>()
            + self.constants.arena.len().next_multiple_of(ALIGN)
            + self.cells.arena.len()
    }

    pub fn paint(&mut self, byte: u8) {
        self.arena.bytes_mut().fill(byte);
        self.host.bytes_mut().fill(byte);
    }

    /// Bytes of the arena of the routine that runs.
    pub fn overwrite(&mut self, range: &Range<usize>, byte: u8) {
        self.arena.bytes_mut()[self.frame + range.start..self.frame + range.end].fill(byte);
    }

    pub fn touched(&self, byte: u8) -> [usize; 2] {
        let end = |slab: &Slab| slab.bytes().iter().rposition(|b| *b != byte).map_or(0, |last| last + 1);
        [end(&self.arena), end(&self.host)].map(|end| end.next_multiple_of(ALIGN))
    }

    /// By routine; nothing of those that ranks of this stage do not run.
    pub fn spots(&self, program: &Program, stage: usize) -> Vec<Vec<Spot>> {
        let mut runs = program.routines_at(stage);
        let calls = |r: &usize| program.routines[*r].called().map(|c| c as usize).collect::<Vec<_>>();
        runs.extend(runs.iter().flat_map(calls).collect::<Vec<_>>());
        runs.sort_unstable();
        runs.dedup();
        let mut spots = vec![Vec::new(); program.routines.len()];
        for r in runs {
            let routine = &program.routines[r];
            spots[r] = routine.buffers.iter().map(|b| self.spot(routine, b)).collect();
        }
        spots
    }

    fn spot(&self, routine: &Routine, buffer: &Buffer) -> Spot {
        let bytes = buffer.bytes();
        let fixed = |slab: &Slab, offset: usize| Spot::Fixed(slab.arena.claim(offset, bytes));
        // What belongs to other stages of a pipeline is not here, and no step of this rank touches it.
        let held = |slab: &Slab| if slab.bytes().is_empty() { Spot::Fixed(slab.arena.base()) } else { fixed(slab, 0) };
        match buffer.place {
            Place::Arena(offset) => {
                self.arena.arena.claim(offset, bytes);
                Spot::Arena { start: offset, bytes }
            }
            Place::Host(offset) => fixed(&self.host, offset),
            Place::Param(n) => held(&self.params[n as usize]),
            Place::State(n) => held(&self.states[n as usize]),
            Place::Input(n) => held(&self.inputs[n as usize]),
            Place::Constant(offset) => fixed(&self.constants, offset),
            // Found when a strip is made, or at a call.
            Place::Strip | Place::Argument(_) => Spot::Fixed(std::ptr::null_mut()),
            Place::Step => fixed(&self.cells, 0),
            Place::Position => fixed(&self.cells, ALIGN),
            Place::Coordinate(atom) => fixed(&self.cells, (2 + atom.index()) * ALIGN),
            Place::Slice { base, turn, offset, stride } => {
                Spot::Slice { base, turn, offset, stride, bytes, base_bytes: routine.buffer(base).bytes() }
            }
        }
    }

    pub fn set_cells(&mut self, args: RunArgs) {
        let cells = self.cells.bytes_mut();
        cells[..4].copy_from_slice(&(args.step as i32).to_ne_bytes());
        cells[ALIGN..ALIGN + 4].copy_from_slice(&args.position.to_ne_bytes());
    }

    /// Where a buffer begins now.
    pub fn locate(&self, spots: &[Spot], buffer: BufferId) -> *mut u8 {
        match spots[buffer.index()] {
            Spot::Fixed(start) => start,
            Spot::Arena { start, .. } => self.arena.arena.base().wrapping_add(self.frame + start),
            Spot::Slice { base, turn, offset, stride, bytes, base_bytes } => {
                let cell = self.locate(spots, turn).cast::<i32>();
                // SAFETY: the cell is an I32 of the program.
                let value = unsafe { cell.read() };
                let from = offset + i64::from(value) * stride;
                let inside = usize::try_from(from).is_ok_and(|from| from + bytes <= base_bytes);
                assert!(inside, "slice {from}..+{bytes} is outside of its buffer of {base_bytes} bytes");
                // SAFETY: inside of the base, as just checked.
                unsafe { self.locate(spots, base).offset(from as isize) }
            }
        }
    }

    /// One past the last cache line of the arena that a buffer may use; 0 for one outside of the arena.
    pub fn arena_end(&self, spots: &[Spot], buffer: BufferId) -> usize {
        match spots[buffer.index()] {
            Spot::Fixed(_) => 0,
            Spot::Arena { start, bytes } => (self.frame + start + bytes).next_multiple_of(ALIGN),
            Spot::Slice { base, .. } => self.arena_end(spots, base),
        }
    }
}

/// The first element of an array as a number.
pub fn number(dtype: DType, bytes: &[u8]) -> f64 {
    assert!(bytes.len() >= dtype.bytes(), "an array without elements has no number");
    // SAFETY: as many bytes as one element has; any bits are an element of these types.
    with_element!(dtype, E => unsafe { bytes.as_ptr().cast::<E>().read_unaligned() }.value())
}
