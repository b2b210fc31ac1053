//! Memory of a routine, planned before anything runs: lifetimes, one offset per buffer in one arena, the exact peak.
//!
//! In: a `program::Routine` whose temporaries have no place yet. Out: the same with an offset for each and the size of the
//! arena; and a [`Report`] of what the peak consists of.
//!
//! Invariants: buffers whose lifetimes meet do not share a byte; offsets are multiples of `program::ALIGN`; the arena ends
//! where its highest buffer ends. Reading order: `lifetimes`, `offsets`, `moments`, `report`.

mod free;
mod lifetimes;
mod moments;
mod offload;
mod offsets;
mod report;

pub use free::free;
pub use lifetimes::{Lifetime, lifetimes};
pub use moments::{Alive, Bytes, Lives, Moment};
pub use offload::{Offload, offload};
pub use report::{Entry, Instant, Living, Report, living, moments, persistent, report};

use crate::program::{Action, Place, Program, Routine};

/// Plans all routines: those that call others last, since these need room in their arenas.
pub fn plan_all(program: &mut Program) {
    let calls = |r: &Routine| r.steps.iter().any(|s| matches!(s.action, Action::Call(_)));
    program.routines.iter_mut().filter(|r| !calls(r)).for_each(plan);
    let arenas: Vec<usize> = program.routines.iter().map(|r| r.arena).collect();
    for routine in program.routines.iter_mut().filter(|r| calls(r)) {
        for step in &routine.steps {
            if let Action::Call(c) = &step.action {
                let room = &mut routine.buffers[c.workspace.index()];
                room.elements = arenas[c.routine as usize].div_ceil(room.dtype.bytes());
            }
        }
        plan(routine);
    }
}

/// Gives every temporary its place, in the arena or in the file, and the routine its arena.
pub fn plan(routine: &mut Routine) {
    let lives = lifetimes(routine);
    routine.arena = assign(routine, &lives, Place::Arena, |p| matches!(p, Place::Arena(_)));
    routine.host = assign(routine, &lives, Place::Host, |p| matches!(p, Place::Host(_)));
}

/// Offsets of the temporaries of one kind, and where the last one ends.
fn assign(routine: &mut Routine, lives: &[Option<Lifetime>], make: fn(usize) -> Place, is: fn(Place) -> bool) -> usize {
    let all = routine.buffers.iter().enumerate().filter(|(_, b)| is(b.place));
    let wanted: Vec<offsets::Wanted> =
        all.filter_map(|(i, b)| lives[i].map(|life| offsets::Wanted { id: i, bytes: b.bytes(), life })).collect();
    let (places, end) = offsets::assign(&wanted);
    for (w, at) in wanted.iter().zip(places) {
        routine.buffers[w.id].place = make(at);
    }
    for (buffer, life) in routine.buffers.iter_mut().zip(lives) {
        // What no step touches takes no room.
        if is(buffer.place) && life.is_none() {
            buffer.place = make(0);
        }
    }
    end
}

#[cfg(test)]
mod tests;
