//! A plan's pipeline: which turns make a stage, the table of its schedule, and the steps of the ranks of each stage.

use super::findings::{Findings, Outcome};
use super::pipeline::{EVAL, Graphs, INIT, OUTER, TRAIN, with};
use super::sharding::Programs;
use crate::diag::Diagnostic;
use crate::elaborate::plan::Pipeline;
use crate::ir::{DimId, Graph, Param, StateId};
use crate::kernel::{self, Module, Options};
use crate::mesh::Atom;
use crate::pipeline::{Endless, Holders, Pipelined, Turns, pipelined};
use crate::schedule::{Action, Continued, Schedule, Table, Work};
use crate::stage::replicas::param_of;

/// The steps of a training run, cut into stages.
pub struct Staged {
    pub atoms: Vec<Atom>,
    pub train: Pipelined,
    pub eval: Pipelined,
}

/// None without a pipeline over several ranks.
pub fn staged(g: &Graphs, p: &Programs, options: &Options) -> Outcome<Option<Staged>> {
    let Some(sharding) = &g.sharding else { return Ok(None) };
    let Some(plan) = &sharding.plan.pipeline else { return Ok(None) };
    let atoms = sharding.mesh().atoms_of(plan.axis);
    let Some(eval) = step(g, &p.eval.graph, true, &Holders::new(), options)? else { return Ok(None) };
    // What evaluation reads is trained where it reads it; of a parameter that is copies of the model's the copies are there, too.
    let mut also = eval.holders();
    for (path, homes) in eval.holders() {
        if let Some(param) = param_of(&path) {
            *also.entry(param.to_string()).or_default() |= homes;
        }
    }
    let train = step(g, &p.train.graph, false, &also, options)?;
    Ok(train.map(|train| Staged { atoms, train, eval }))
}

fn refused(why: &str, plan: &Pipeline, g: &Graphs) -> Box<Findings> {
    let d = Diagnostic::error("E0605", format!("the step cannot be cut into stages: {why}")).help(
        "leave the pipeline out, or write what goes through the layers so that each depends on the one before it",
    );
    with(d.at(plan.span, "asked for here"), &g.findings.sources)
}

/// Who holds what for a step of evaluation.
pub fn holders(g: &Graphs, eval: &Graph, options: &Options) -> Outcome<Holders> {
    let cut = step(g, eval, true, &Holders::new(), options)?;
    Ok(cut.map_or_else(Holders::new, |p| p.holders()))
}

/// The program of a rank, cut into stages: a training step, or one of evaluation; `also`: who holds what for other steps.
pub fn step(g: &Graphs, graph: &Graph, eval: bool, also: &Holders, options: &Options) -> Outcome<Option<Pipelined>> {
    let Some(sharding) = &g.sharding else { return Ok(None) };
    let (Some(plan), Some((table, per))) = (&sharding.plan.pipeline, &sharding.table) else { return Ok(None) };
    let once = forward(table);
    let (dims, table) = if eval { (&sharding.eval_loops, &once) } else { (&plan.dims, table) };
    let turns = turns(graph, dims, per);
    let two = !eval && plan.schedule == Schedule::TwoBw;
    let lists = Continued::new(table.ranks.len(), table.microbatches).filter(|_| two);
    let endless = lists.as_ref().map(|lists| Endless { lists, latest: latest(graph) });
    let cut = pipelined(&kernel::keep_little(graph.clone(), options), &turns, table, endless, also);
    cut.map(Some).map_err(|why| refused(&why, plan, g))
}

/// By parameter: the state that holds its latest version, where steps compute with an earlier one.
fn latest(g: &Graph) -> Vec<Option<StateId>> {
    let state = |p: &Param| g.states.iter().position(|s| param_of(&s.path) == Some(&p.path));
    g.params.iter().map(|p| state(p).map(|s| StateId(s as u32))).collect()
}

impl Staged {
    /// Adds routines of these names.
    pub fn lower_into(
        &self,
        module: &mut Module<'_>,
        (init, outer): (&Graph, Option<&Graph>),
        routines: &[&str],
        options: &Options,
    ) {
        module.program.pipeline = self.atoms.clone();
        for (name, step) in [(TRAIN, &self.train), (EVAL, &self.eval)] {
            if routines.contains(&name) {
                module.add_pipelined(name, step, options);
            }
        }
        for (name, graph) in [(INIT, Some(init)), (OUTER, outer)] {
            if let Some(graph) = graph.filter(|_| routines.contains(&name)) {
                module.add_by_stage(name, graph, self.train.ranks.len(), options);
            }
        }
    }
}

/// The forward pass of one microbatch, through the stages of a table.
fn forward(table: &Table) -> Table {
    let rank_of: Vec<Vec<usize>> = table.rank_of.iter().map(|r| r[..1].to_vec()).collect();
    let mut ranks = vec![Vec::new(); table.ranks.len()];
    for (stage, on) in rank_of.iter().enumerate() {
        ranks[on[0]].push(Action::new(Work::F, stage, 0));
    }
    Table { stages: table.stages, microbatches: 1, rank_of, ranks }
}

/// The stages of the turns; `per`: how many each stage has.
fn turns(g: &Graph, dims: &[DimId], per: &[u64]) -> Turns {
    let mut loops = Vec::new();
    let mut count = 0;
    for d in dims {
        loops.push((*d, count));
        count += g.size(*d);
    }
    let stage = per.iter().enumerate().flat_map(|(s, n)| std::iter::repeat_n(s, *n as usize)).collect();
    Turns { loops, stage }
}
