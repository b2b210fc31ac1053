//! Which bytes of an arena nothing needs, step by step: what tests overwrite.

use super::lifetimes::{by_number, lifetimes};
use crate::program::{Place, Program, Routine};
use std::ops::Range;

/// By routine and step (those of loop bodies after their loop's): the bytes of the routine's arena that hold nothing of use from
/// before the step until behind it.
pub fn free(program: &Program) -> Vec<Vec<Vec<Range<usize>>>> {
    program.routines.iter().map(of_routine).collect()
}

fn of_routine(routine: &Routine) -> Vec<Vec<Range<usize>>> {
    let lives = lifetimes(routine);
    let mut placed = Vec::new();
    for (b, life) in routine.buffers.iter().zip(lives) {
        if let (Place::Arena(at), Some(life)) = (b.place, life) {
            placed.push((at, at + b.bytes(), life));
        }
    }
    placed.sort_by_key(|(at, ..)| *at);
    let gaps = |(now, _): (usize, _)| {
        let (mut out, mut free) = (Vec::new(), 0);
        for (at, end, _) in placed.iter().filter(|(_, _, life)| life.first <= now && now <= life.last) {
            if free < *at {
                out.push(free..*at);
            }
            free = free.max(*end);
        }
        if free < routine.arena {
            out.push(free..routine.arena);
        }
        out
    };
    by_number(routine).into_iter().enumerate().filter(|(_, step)| step.is_some()).map(gaps).collect()
}
