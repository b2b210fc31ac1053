//! How far results of a program may lie apart though nothing is wrong: what noise in the last bits of parameters, states and data makes of
//! them. Sums over ranks are added in another order than on one device; where a result hangs on differences of numbers that are nearly
//! equal (a variance of few elements, a gradient that is zero but for rounding), any such order gives another one.

use super::pipeline::Graphs;
use super::verify::{Stopped, data, settle};
use crate::interp::{self, Env, Tensor};
use crate::ir::Graph;
use crate::types::rng;

/// Runs with noise: one alone may come out without a difference by chance.
const RUNS: u64 = 3;

/// A difference may be so many times what noise makes: sums of many numbers round more than once.
const FACTOR: f64 = 64.0;

/// Runs on one device beside the one without noise, each a step further when it is asked for.
pub struct Noise {
    envs: Vec<Env>,
    /// Steps that they have taken, and what the last of them gave.
    taken: u64,
    results: Vec<Vec<Tensor>>,
    /// The same of the outer step, where one followed.
    outer: Vec<Vec<Tensor>>,
}

/// A routine of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Of {
    Step,
    Outer,
}

impl Noise {
    /// From the values that the first step begins with.
    pub fn new(start: &Env) -> Noise {
        let run = |run: u64| Env {
            params: start.params.iter().enumerate().map(|(i, t)| noisy(t, run, i as u64)).collect(),
            states: start.states.iter().enumerate().map(|(i, t)| noisy(t, run, 1 << 20 | i as u64)).collect(),
            ..start.clone()
        };
        Noise { envs: (0..RUNS).map(run).collect(), taken: 0, results: Vec::new(), outer: Vec::new() }
    }

    /// What an output of a step, or of the outer step after it, may differ by, absolutely.
    pub fn of(&mut self, g: &Graphs, (of, steps): (Of, u64), output: usize, own: &Tensor) -> Result<f64, Stopped> {
        while self.taken < steps {
            self.results.clear();
            self.outer.clear();
            for (run, env) in self.envs.iter_mut().enumerate() {
                env.step = self.taken;
                let inputs = (0..g.train.inputs.len()).map(|i| {
                    let whole = data(&g.train, i, g.recipe.seed, self.taken);
                    noisy(&whole, run as u64, 1 << 21 | i as u64)
                });
                env.inputs = inputs.collect();
                let values = interp::run(&g.train, env)?;
                settle(&g.train, &g.train, env, &values);
                self.results.push(values);
                if let Some(outer) = due(g, self.taken) {
                    let values = interp::run(outer, &Env { inputs: Vec::new(), ..env.clone() })?;
                    settle(outer, &g.train, env, &values);
                    self.outer.push(values);
                }
            }
            self.taken += 1;
        }
        let results = if of == Of::Step { &self.results } else { &self.outer };
        let moved = results.iter().flat_map(|values| values[output].data.iter().zip(&own.data));
        let most = moved.map(|(x, y)| (x - y).abs()).filter(|d| d.is_finite()).fold(0.0, f64::max);
        Ok(FACTOR * most)
    }
}

/// The outer step that follows a step.
pub fn due(g: &Graphs, step: u64) -> Option<&Graph> {
    g.outer.as_ref().filter(|(every, _)| (step + 1).is_multiple_of(*every)).map(|(_, outer)| outer)
}

/// An array whose numbers are up to two roundings off.
fn noisy(t: &Tensor, run: u64, number: u64) -> Tensor {
    if !t.dtype.is_float() {
        return t.clone();
    }
    let key = rng::key(run, number, 0x0f2e, 0);
    let off = |(i, x): (usize, &f64)| x * (1.0 + f64::EPSILON * (f64::from(rng::draw_int(5, key, i as u64)) - 2.0));
    Tensor { data: t.data.iter().enumerate().map(off).collect(), ..t.clone() }
}
