//! Which bytes of an arena nothing needs, step by step: what tests overwrite.

use super::lifetimes;
use crate::program::{Action, Place, Program, Routine, Step};
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
    let mut numbers = Vec::new();
    number(&routine.steps, &mut 0, &mut numbers);
    let gaps = |now: &usize| {
        let (mut out, mut free) = (Vec::new(), 0);
        for (at, end, _) in placed.iter().filter(|(_, _, life)| life.first <= *now && *now <= life.last) {
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
    numbers.iter().map(gaps).collect()
}

/// The numbers that `lifetimes` gives to steps.
fn number(steps: &[Step], next: &mut usize, out: &mut Vec<usize>) {
    for step in steps {
        out.push(*next);
        *next += 1;
        if let Action::Loop(l) = &step.action {
            number(&l.body, next, out);
            *next += l.moves.len() + 1;
        }
    }
}
