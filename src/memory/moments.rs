//! What is in memory at each instant of a routine: one moment for each of its steps, with what is at most in use while it is done.

use super::lifetimes::by_number;
use super::{Lifetime, lifetimes};
use crate::program::{Action, Buffer, Call, Category, Place, Program, Routine, Step};
use std::collections::HashMap;

/// Bytes by category, in the order of `Category::ALL`.
pub type Bytes = [usize; Category::ALL.len()];

/// A step of a routine. Where it calls another one: at that one's peak.
#[derive(Clone, PartialEq, Debug)]
pub struct Moment {
    /// Of the step, as `lifetimes` counts them.
    pub number: usize,
    /// What runs: the routine; in a step in stages the function, or what is sent or received.
    pub action: String,
    /// Of what there is for each.
    pub microbatch: Option<u32>,
    /// What the step computes.
    pub value: String,
    /// Bytes of temporaries, without gaps.
    pub in_use: usize,
    pub by_category: Bytes,
    /// Activations that are kept of each microbatch, in bytes; by number.
    pub in_flight: Vec<(u32, usize)>,
}

impl Moment {
    /// `B0.3`: what runs, and of which microbatch.
    pub fn name(&self) -> String {
        match self.microbatch {
            Some(m) => format!("{}.{m}", self.action),
            None => self.action.clone(),
        }
    }
}

/// A temporary that is alive at some instant.
pub struct Alive<'p> {
    pub buffer: &'p Buffer,
    /// Of the caller, where that has it.
    pub microbatch: Option<u32>,
}

/// Lifetimes of a routine's temporaries, and the peaks of what it calls.
pub struct Lives<'p> {
    program: &'p Program,
    routine: &'p Routine,
    lives: Vec<Option<Lifetime>>,
    /// What each number is: a step, or one of a loop's body.
    steps: Vec<Option<&'p Step>>,
    called: HashMap<u32, Called<'p>>,
}

/// A routine that is called, at its peak.
struct Called<'p> {
    lives: Lives<'p>,
    peak: Option<Moment>,
}

impl<'p> Lives<'p> {
    pub fn new(program: &'p Program, routine: &'p Routine) -> Lives<'p> {
        let lives = lifetimes(routine);
        let steps = by_number(routine);
        let mut called: HashMap<u32, Called> = HashMap::new();
        for call in steps.iter().flatten().filter_map(|s| call(s)) {
            called.entry(call.routine).or_insert_with(|| {
                let lives = Lives::new(program, &program.routines[call.routine as usize]);
                let peak = lives.peak();
                Called { lives, peak }
            });
        }
        Lives { program, routine, lives, steps, called }
    }

    fn own(&self) -> impl Iterator<Item = (&'p Buffer, Lifetime)> {
        let all = self.routine.buffers.iter().zip(&self.lives);
        all.filter_map(|(b, life)| life.filter(|_| matches!(b.place, Place::Arena(_))).map(|l| (b, l)))
    }

    /// All instants, in order.
    pub fn moments(&self) -> Vec<Moment> {
        let n = self.steps.len();
        let (mut begin, mut end) = (vec![Vec::new(); n], vec![Vec::new(); n + 1]);
        for (b, life) in self.own().filter(|(_, life)| life.first < n) {
            begin[life.first].push(b);
            end[(life.last + 1).min(n)].push(b);
        }
        let mut now: Bytes = Bytes::default();
        let mut flying: std::collections::BTreeMap<u32, usize> = Default::default();
        let mut out = Vec::with_capacity(n);
        for number in 0..n {
            for b in &end[number] {
                now[b.category as usize] -= b.bytes();
                if let Some(left) = flies(b).and_then(|m| flying.get_mut(&m)) {
                    *left -= b.bytes();
                }
            }
            for b in &begin[number] {
                now[b.category as usize] += b.bytes();
                if let Some(m) = flies(b) {
                    *flying.entry(m).or_default() += b.bytes();
                }
            }
            let Some(step) = self.steps[number] else { continue };
            let in_flight = flying.iter().filter(|(_, b)| **b > 0).map(|(m, b)| (*m, *b)).collect();
            out.push(self.moment(number, step, now, in_flight));
        }
        out
    }

    fn moment(&self, number: usize, step: &Step, mut by_category: Bytes, in_flight: Vec<(u32, usize)>) -> Moment {
        let (mut action, mut microbatch, mut value) = (self.routine.name.clone(), None, step.label.clone());
        match &step.action {
            Action::Call(c) => {
                microbatch = c.args.iter().find_map(|a| self.routine.buffer(a.buffer).microbatch);
                action = match microbatch {
                    Some(_) => step.label.split('.').next().unwrap_or_default().to_string(),
                    None => step.label.clone(),
                };
                by_category[Category::Workspace as usize] -= self.routine.buffer(c.workspace).bytes();
                let peak = self.called[&c.routine].peak.as_ref();
                value = peak.map_or_else(String::new, |p| p.value.clone());
                let inner = peak.map(|p| p.by_category).unwrap_or_default();
                by_category.iter_mut().zip(inner).for_each(|(a, b)| *a += b);
            }
            Action::Send(t) | Action::Sent(t) | Action::Receive(t) => {
                let buffer = self.routine.buffer(t.buffer);
                microbatch = buffer.microbatch;
                (action, value) = (step.label.clone(), buffer.name.clone());
            }
            _ => {}
        }
        let in_use = by_category.iter().sum();
        Moment { number, action, microbatch, value, in_use, by_category, in_flight }
    }

    /// The first of the moments at which most is in use.
    pub fn peak(&self) -> Option<Moment> {
        self.moments().into_iter().rev().max_by_key(|m| m.in_use)
    }

    /// What is alive at the step of a number, and in what it calls at that one's peak.
    pub fn alive(&self, number: usize) -> Vec<Alive<'p>> {
        let called = self.steps.get(number).copied().flatten().and_then(call);
        let room = called.map(|c| self.routine.buffer(c.workspace) as *const Buffer);
        let here = |(_, life): &(&Buffer, Lifetime)| life.first <= number && number <= life.last;
        let own = self.own().filter(here).filter(|(b, _)| Some(*b as *const Buffer) != room);
        let mut out: Vec<Alive> = own.map(|(buffer, _)| Alive { buffer, microbatch: buffer.microbatch }).collect();
        if let Some(c) = called {
            let Called { lives, peak } = &self.called[&c.routine];
            out.extend(peak.iter().flat_map(|p| lives.alive(p.number)));
        }
        out
    }

    pub fn program(&self) -> &'p Program {
        self.program
    }

    pub fn routine(&self) -> &'p Routine {
        self.routine
    }
}

/// The microbatch that an array is kept of.
fn flies(b: &Buffer) -> Option<u32> {
    b.microbatch.filter(|_| b.category == Category::Activations)
}

fn call(step: &Step) -> Option<&Call> {
    match &step.action {
        Action::Call(c) => Some(c),
        _ => None,
    }
}
