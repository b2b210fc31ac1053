//! Where the buffers of routines lie on a device.

use crate::program::{ALIGN, Program, Slot};
use crate::runtime::RuntimeError;
use crate::runtime::device::cuda::{Context, Room, Stream};
use std::sync::Arc;

pub struct Memory {
    pub params: Vec<Room>,
    pub states: Vec<Room>,
    pub inputs: Vec<Room>,
    pub constants: Room,
    /// Temporaries of the routine that runs.
    pub arena: Room,
    /// Those that a CPU would have in a file.
    pub host: Room,
    /// Step, position, coordinates, the next step; a cache line each.
    pub cells: Room,
    /// What kernels of one step hand to each other.
    pub scratch: Room,
    pub status: Room,
}

impl Memory {
    /// All that a rank needs, cleared where it outlives a run. `scratch`: bytes.
    pub fn new(
        context: &Arc<Context>,
        stream: &Stream,
        program: &Program,
        (rank, coordinates): (usize, &[usize]),
        scratch: usize,
    ) -> Result<Memory, RuntimeError> {
        let stage = program.stage(rank);
        let slot = |s: &Slot| -> Result<Room, RuntimeError> {
            let bytes = if s.is_at(stage) { s.bytes() } else { 0 };
            let room = context.room(bytes, &format!("`{}`", s.path))?;
            stream.zero(room.at(), bytes)?;
            Ok(room)
        };
        let slots = |all: &[Slot]| all.iter().map(slot).collect::<Result<Vec<Room>, _>>();
        let constants = context.room(program.constants.len(), "constants")?;
        stream.write(constants.at(), &program.constants)?;
        let mut cells = vec![0u8; program.cells_bytes() + ALIGN];
        for (cell, at) in cells.chunks_exact_mut(ALIGN).skip(2).zip(coordinates) {
            cell[..4].copy_from_slice(&(*at as i32).to_ne_bytes());
        }
        let memory = Memory {
            params: slots(&program.params)?,
            states: slots(&program.states)?,
            inputs: slots(&program.inputs)?,
            constants,
            arena: context.room(program.arena_bytes(stage), "temporary values")?,
            host: context.room(program.host_bytes(stage), "values that wait for the backward pass")?,
            cells: context.room(cells.len(), "cells")?,
            scratch: context.room(scratch, "working memory")?,
            status: context.room(8, "the status cell")?,
        };
        stream.write(memory.cells.at(), &cells)?;
        stream.wait()?;
        Ok(memory)
    }

    /// The cell of the next step.
    pub fn next_step(&self) -> u64 {
        self.cells.at() + (self.cells.bytes() - ALIGN) as u64
    }
}
