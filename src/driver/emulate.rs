//! Runs a step that is cut into stages, by interpreting its functions in the order of each rank's list: the oracle of pipelines.
//!
//! Ranks that differ in the other axes alone run the same list, in step, so that their exchanges meet. Parameters and states are new as soon as
//! a function has written them; what a rank does not hold is no number there.

use super::verify::Stopped;
use crate::interp::{self, Env, Tensor};
use crate::ir::{DimId, OutputKind, StateKind};
use crate::mesh::{Atom, Mesh};
use crate::pipeline::{Does, Function, Item, Pipelined, Var};
use crate::types::DType;
use std::collections::HashMap;

/// By rank of the whole mesh; of those along the pipeline only the one that computed it counts.
type Everywhere = Vec<Tensor>;

/// A run that goes over into the next one.
#[derive(Default)]
pub struct Onward {
    /// By rank along the pipeline: what the run before has begun of this step; none where it has begun nothing.
    begun: Option<Vec<HashMap<(Var, usize), Everywhere>>>,
    /// Inputs of the next step, by rank of the mesh, if it is to be begun.
    pub next: Option<Vec<Vec<Tensor>>>,
}

/// A step under way.
struct Run<'a> {
    p: &'a Pipelined,
    mesh: &'a Mesh,
    /// The atoms of the pipeline's axis.
    atoms: &'a [Atom],
    envs: &'a mut [Env],
    /// By rank along the pipeline: what its functions handed on.
    vars: Vec<HashMap<(Var, usize), Everywhere>>,
    /// What was sent, by number.
    sent: HashMap<usize, Everywhere>,
    /// Inputs of the next step.
    next: Option<Vec<Vec<Tensor>>>,
}

/// Outputs of the step on all ranks of the mesh, in order; `envs` (of all of them) hold the new parameters and states then. A new parameter
/// or state that a rank does not hold is given as that of one that does. Where steps go over into each other, `onward` has what runs leave to
/// each other.
pub fn run(p: &Pipelined, atoms: &[Atom], envs: &mut [Env], onward: &mut Onward) -> Result<Vec<Vec<Tensor>>, Stopped> {
    let mesh = &p.graph.mesh;
    let (begun, next) = (onward.begun.take(), onward.next.take());
    let (goes_on, ahead) = (begun.is_some(), next.is_some());
    let vars = begun.unwrap_or_else(|| vec![HashMap::new(); p.ranks.len()]);
    let mut run = Run { p, mesh, atoms, envs, vars, sent: HashMap::new(), next };
    run.forget_others();
    let mut at = vec![0; p.ranks.len()];
    let list = |l: &Vec<Item>| -> Vec<Does> {
        l.iter().filter(|i| i.when.holds(goes_on, ahead)).map(|i| i.does.clone()).collect()
    };
    let lists: Vec<Vec<Does>> = p.ranks.iter().map(list).collect();
    loop {
        let mut moved = false;
        for (stage, list) in lists.iter().enumerate() {
            while let Some(does) = list.get(at[stage]) {
                if !run.does(stage, does)? {
                    break;
                }
                at[stage] += 1;
                moved = true;
            }
        }
        if lists.iter().zip(&at).all(|(l, a)| *a == l.len()) {
            onward.begun = ahead.then(|| run.carried());
            return run.outputs();
        }
        if !moved {
            return Err(Stopped { why: "the ranks of a pipeline wait for each other".into(), range: None });
        }
    }
}

impl Run<'_> {
    /// The rank along the pipeline of a rank of the mesh.
    fn stage(&self, rank: usize) -> usize {
        self.atoms.iter().fold(0, |s, a| s * self.mesh.size(*a) + self.mesh.coordinate(rank, *a))
    }

    /// The rank at another place along the pipeline, and at the same one along all other axes.
    fn twin(&self, rank: usize, stage: usize) -> usize {
        let (mut to, mut rest) = (rank, stage);
        for a in self.atoms.iter().rev() {
            let size = self.mesh.size(*a);
            to = to + (rest % size) * self.mesh.stride(*a) - self.mesh.coordinate(rank, *a) * self.mesh.stride(*a);
            rest /= size;
        }
        to
    }

    fn forget_others(&mut self) {
        for rank in 0..self.envs.len() {
            let bit = 1u128 << self.stage(rank);
            let env = &mut self.envs[rank];
            let params = env.params.iter_mut().zip(&self.p.params);
            let lost = params.chain(env.states.iter_mut().zip(&self.p.states)).filter(|(_, held)| **held & bit == 0);
            // Of what the step does not touch nobody is said to hold it.
            lost.filter(|(t, held)| **held != 0 && t.dtype.is_float()).for_each(|(t, _)| t.data.fill(f64::NAN));
        }
    }

    /// False: what it waits for is not there yet.
    fn does(&mut self, stage: usize, does: &Does) -> Result<bool, Stopped> {
        match *does {
            Does::Call { function, microbatch } => self.call(stage, &self.p.functions[function], microbatch)?,
            Does::Send { var, microbatch, number, .. } => {
                let value = self.vars[stage].get(&self.key(var, microbatch)).cloned();
                let none = || Stopped { why: format!("{var:?} is sent before it is made"), range: None };
                self.sent.insert(number, value.ok_or_else(none)?);
            }
            Does::Receive { var, microbatch, from, number } => {
                let Some(value) = self.sent.get(&number) else { return Ok(false) };
                // Ranks along the pipeline change places.
                let all = (0..self.envs.len()).map(|rank| value[self.twin(rank, from)].clone()).collect();
                let key = self.key(var, microbatch);
                self.vars[stage].insert(key, all);
            }
            Does::Resume { var } => {
                let [own, next] = [0, self.p.microbatches].map(|k| self.key(var, k));
                let begun = self.vars[stage].remove(&next);
                let none = || Stopped { why: format!("{var:?} was not begun"), range: None };
                self.vars[stage].insert(own, begun.ok_or_else(none)?);
            }
            Does::Sent { .. } => {}
        }
        Ok(true)
    }

    fn call(&mut self, stage: usize, f: &Function, microbatch: usize) -> Result<(), Stopped> {
        let g = &f.graph;
        let zeros =
            |dtype: DType, dims: &[DimId]| Tensor::filled(dtype, dims.iter().map(|d| g.size(*d)).collect(), 0.0);
        let mut envs = Vec::with_capacity(self.envs.len());
        for rank in 0..self.envs.len() {
            let mut env = Env { rank, ..self.envs[self.twin(rank, stage)].clone() };
            if microbatch >= self.p.microbatches {
                self.advance(&mut env, rank);
            }
            let arguments = g.states.iter().filter(|s| s.kind == StateKind::Argument);
            for (arg, state) in f.args.iter().zip(arguments) {
                let known = self.vars[stage].get(&self.key(arg.var, microbatch)).map(|all| all[rank].clone());
                env.states.push(match arg.var {
                    Var::Microbatch => Tensor::scalar(DType::I32, (microbatch % self.p.microbatches) as f64),
                    _ => known.unwrap_or_else(|| zeros(state.dtype, &state.dims)),
                });
            }
            envs.push(env);
        }
        let made = interp::run_ranks(g, &envs)?;
        for (k, o) in g.outputs.iter().enumerate() {
            let own = self.p.graph.states.len();
            match o.kind {
                OutputKind::State(s) if s.index() >= own => {
                    let var = self.key(f.args[s.index() - own].var, microbatch);
                    self.vars[stage].insert(var, made.iter().map(|values| values[k].clone()).collect());
                }
                OutputKind::Param(p) => self.each_of(stage, |env, rank| env.params[p.index()] = made[rank][k].clone()),
                OutputKind::State(s) => self.each_of(stage, |env, rank| env.states[s.index()] = made[rank][k].clone()),
                _ => {}
            }
        }
        Ok(())
    }

    /// What the next step reads.
    fn advance(&self, env: &mut Env, rank: usize) {
        let latest = self.p.onward.iter().flat_map(|o| o.latest.iter().enumerate());
        for (p, state) in latest.filter_map(|(p, s)| Some((p, (*s)?))) {
            env.params[p] = env.states[state.index()].clone();
        }
        env.step += 1;
        if let Some(next) = &self.next {
            env.inputs = next[rank].clone();
        }
    }

    /// What was begun of the next step, by its own microbatches.
    fn carried(&mut self) -> Vec<HashMap<(Var, usize), Everywhere>> {
        let m = self.p.microbatches;
        let of = |vars: &mut HashMap<(Var, usize), Everywhere>| {
            let next = vars.iter().filter_map(|((var, at), value)| match var {
                Var::Each(_) => Some(((*var, at.checked_sub(m)?), value.clone())),
                _ => (*at == 1).then(|| ((*var, 1), value.clone())),
            });
            next.collect()
        };
        self.vars.iter_mut().map(of).collect()
    }

    /// What there is for each microbatch has its number; of the rest there is one for this step, and one for the next.
    fn key(&self, var: Var, microbatch: usize) -> (Var, usize) {
        let next = usize::from(microbatch >= self.p.microbatches);
        (var, if matches!(var, Var::Each(_)) { microbatch } else { next })
    }

    fn each_of(&mut self, stage: usize, mut set: impl FnMut(&mut Env, usize)) {
        for rank in 0..self.envs.len() {
            if self.stage(rank) == stage {
                set(&mut self.envs[rank], rank);
            }
        }
    }

    fn outputs(&self) -> Result<Vec<Vec<Tensor>>, Stopped> {
        let holder = |rank: usize, homes: u128| match homes & (1 << self.stage(rank)) != 0 || homes == 0 {
            true => rank,
            false => self.twin(rank, homes.trailing_zeros() as usize),
        };
        let one = |rank: usize, k: usize| -> Result<Tensor, Stopped> {
            let o = &self.p.graph.outputs[k];
            Ok(match o.kind {
                OutputKind::Param(p) => self.envs[holder(rank, self.p.params[p.index()])].params[p.index()].clone(),
                OutputKind::State(s) => self.envs[holder(rank, self.p.states[s.index()])].states[s.index()].clone(),
                _ => {
                    let stage = self.stage(rank);
                    let var = self.p.outputs.iter().find(|(n, _)| *n == k).map(|(_, vars)| vars[stage]);
                    let value = var.and_then(|v| self.vars[stage].get(&self.key(v, 0))).map(|all| all[rank].clone());
                    value
                        .ok_or_else(|| Stopped { why: format!("`{}` is not there in the end", o.name), range: None })?
                }
            })
        };
        (0..self.envs.len()).map(|r| (0..self.p.graph.outputs.len()).map(|k| one(r, k)).collect()).collect()
    }
}
