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
}

/// Outputs of the step on all ranks of the mesh, in order; `envs` (of all of them) hold the new parameters and states then. A new parameter
/// or state that a rank does not hold is given as that of one that does.
pub fn run(p: &Pipelined, atoms: &[Atom], envs: &mut [Env]) -> Result<Vec<Vec<Tensor>>, Stopped> {
    let mesh = &p.graph.mesh;
    let mut run = Run { p, mesh, atoms, envs, vars: vec![HashMap::new(); p.ranks.len()], sent: HashMap::new() };
    run.forget_others();
    let mut at = vec![0; p.ranks.len()];
    // A run by itself: what steps that go over into each other do early is done in its own.
    let list = |l: &Vec<Item>| -> Vec<Does> {
        l.iter().filter(|i| i.when.holds(false, false)).map(|i| i.does.clone()).collect()
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
            return run.outputs();
        }
        if !moved {
            return Err(Stopped { why: "the ranks of a pipeline wait for each other".into(), needs: None });
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
                let value = self.vars[stage].get(&key(var, microbatch)).cloned();
                let none = || Stopped { why: format!("{var:?} is sent before it is made"), needs: None };
                self.sent.insert(number, value.ok_or_else(none)?);
            }
            Does::Receive { var, microbatch, from, number } => {
                let Some(value) = self.sent.get(&number) else { return Ok(false) };
                // Ranks along the pipeline change places.
                let all = (0..self.envs.len()).map(|rank| value[self.twin(rank, from)].clone()).collect();
                self.vars[stage].insert(key(var, microbatch), all);
            }
            Does::Sent { .. } | Does::Resume { .. } => {}
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
            let arguments = g.states.iter().filter(|s| s.kind == StateKind::Argument);
            for (arg, state) in f.args.iter().zip(arguments) {
                let known = self.vars[stage].get(&key(arg.var, microbatch)).map(|all| all[rank].clone());
                env.states.push(match arg.var {
                    Var::Microbatch => Tensor::scalar(DType::I32, microbatch as f64),
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
                    let var = key(f.args[s.index() - own].var, microbatch);
                    self.vars[stage].insert(var, made.iter().map(|values| values[k].clone()).collect());
                }
                OutputKind::Param(p) => self.each_of(stage, |env, rank| env.params[p.index()] = made[rank][k].clone()),
                OutputKind::State(s) => self.each_of(stage, |env, rank| env.states[s.index()] = made[rank][k].clone()),
                _ => {}
            }
        }
        Ok(())
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
                    let value = var.and_then(|v| self.vars[stage].get(&key(v, 0))).map(|all| all[rank].clone());
                    value
                        .ok_or_else(|| Stopped { why: format!("`{}` is not there in the end", o.name), needs: None })?
                }
            })
        };
        (0..self.envs.len()).map(|r| (0..self.p.graph.outputs.len()).map(|k| one(r, k)).collect()).collect()
    }
}

/// What there is for each microbatch has its number, else 0.
fn key(var: Var, microbatch: usize) -> (Var, usize) {
    (var, if matches!(var, Var::Each(_)) { microbatch } else { 0 })
}
