//! Memory of a routine, planned before anything runs: lifetimes, one offset per buffer in one arena, the exact peak.
//!
//! In: a `program::Routine` whose temporaries have no place yet. Out: the same with an offset for each and the size of the
//! arena; and a [`Report`] of what the peak consists of.
//!
//! Invariants: buffers whose lifetimes meet do not share a byte; offsets are multiples of `program::ALIGN`; the arena ends
//! where its highest buffer ends. Reading order: `lifetimes`, `offsets`, `report`.

mod lifetimes;
mod offsets;
mod report;

pub use lifetimes::{Lifetime, lifetimes};
pub use report::{Entry, Instant, Report, report};

use crate::program::{Place, Routine};

/// Gives every temporary its place and the routine its arena.
pub fn plan(routine: &mut Routine) {
    let lives = lifetimes(routine);
    let wanted: Vec<offsets::Wanted> = routine
        .buffers
        .iter()
        .enumerate()
        .filter(|(_, b)| matches!(b.place, Place::Arena(_)))
        .filter_map(|(i, b)| lives[i].map(|life| offsets::Wanted { id: i, bytes: b.bytes(), life }))
        .collect();
    let (places, arena) = offsets::assign(&wanted);
    for (w, at) in wanted.iter().zip(places) {
        routine.buffers[w.id].place = Place::Arena(at);
    }
    for (buffer, life) in routine.buffers.iter_mut().zip(&lives) {
        // What no step touches takes no room.
        if matches!(buffer.place, Place::Arena(_)) && life.is_none() {
            buffer.place = Place::Arena(0);
        }
    }
    routine.arena = arena;
}

#[cfg(test)]
mod tests;
