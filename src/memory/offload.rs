//! What waits in a file instead of in memory: activations that the backward pass reads, optimizer state, parameters.
//!
//! Steps read and write it where it is: the system brings pages of a mapped file into memory when they are touched, ahead of steps that go
//! through an array, and takes them out when memory is short.

use super::lifetimes;
use crate::program::{Action, Category, Place, Program, Role, Routine, Step};

/// What is to lie in files.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Offload {
    pub activations: bool,
    pub optimizer: bool,
    pub parameters: bool,
}

/// Smaller arrays stay: a page of a file is no smaller.
const LEAST: usize = 4 << 10;

/// Gives arrays their kind of place, before offsets are planned. `step`: the routine with a backward pass.
pub fn offload(program: &mut Program, step: &str, what: Offload) {
    for s in program.params.iter_mut().filter(|_| what.parameters) {
        s.host = s.bytes() >= LEAST;
    }
    for s in program.states.iter_mut().filter(|s| what.optimizer && s.role == Role::Optimizer) {
        s.host = s.bytes() >= LEAST;
    }
    let variants = program.routines.iter().find(|r| r.name == step).map_or_else(Vec::new, |r| r.variants.clone());
    for (n, r) in program.routines.iter_mut().enumerate().filter(|_| what.activations) {
        if variants.contains(&(n as u32)) {
            between_calls(r);
        } else if r.name == step {
            activations(r);
        }
    }
}

/// Of a step in stages: what waits from the forward pass of a microbatch to its backward pass, while others are worked on.
fn between_calls(routine: &mut Routine) {
    let lives = lifetimes(routine);
    let is_call = |step: &Step| matches!(step.action, Action::Call(_));
    let calls: Vec<usize> = (0..routine.steps.len()).filter(|k| is_call(&routine.steps[*k])).collect();
    for (buffer, life) in routine.buffers.iter_mut().zip(&lives) {
        let Some(life) = life else { continue };
        let waits = calls.iter().any(|k| life.first < *k && *k < life.last);
        let made = buffer.category == Category::Activations && buffer.microbatch.is_some();
        if made && waits && matches!(buffer.place, Place::Arena(_)) && buffer.bytes() >= LEAST {
            buffer.place = Place::Host(usize::MAX);
        }
    }
}

/// Those that are still there when the last one of the forward pass is made.
fn activations(routine: &mut Routine) {
    let lives = lifetimes(routine);
    let made = |b: &crate::program::Buffer| b.category == Category::Activations && matches!(b.place, Place::Arena(_));
    let all = routine.buffers.iter().zip(&lives).filter(|(b, _)| made(b) && b.bytes() >= LEAST);
    let Some(turn) = all.filter_map(|(_, life)| life.map(|l| l.first)).max() else { return };
    let leaves: Vec<_> = routine.outputs.iter().map(|o| o.buffer.index()).collect();
    for (i, (buffer, life)) in routine.buffers.iter_mut().zip(&lives).enumerate() {
        let waits = life.is_some_and(|l| l.first < turn && turn < l.last);
        if made(buffer) && waits && buffer.bytes() >= LEAST && !leaves.contains(&i) {
            buffer.place = Place::Host(usize::MAX);
        }
    }
}
