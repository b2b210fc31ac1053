//! What a plan's step sends.

use super::check;
use super::findings::{Findings, Outcome};
use super::options::Options;
use super::pipeline::{self, Graphs};
use super::{plan, sharding};
use crate::inspect::Comm;
use crate::shard::Sharded;
use crate::source::World;

/// The collectives of a step, and what they were read from.
pub struct Shown {
    pub comm: Comm,
    pub graphs: Graphs,
    /// None on one device.
    pub sharded: Option<Sharded>,
}

/// The training step's collectives under the options' plan, or those of evaluation.
pub fn shown(options: &Options, eval: bool, world: &dyn World) -> Outcome<Shown> {
    let options = plan::spread(options, world)?;
    let mesh = plan::axes(&options, &check::load(&options.request, world).program);
    let graphs = pipeline::graphs(&options, world)?;
    let sharded = match (&graphs.sharding, eval) {
        (None, _) => None,
        (Some(_), true) => sharding::eval(&graphs)?,
        (Some(_), false) => Some(sharding::train(&graphs)?),
    };
    let step = if eval { "eval" } else { "train" };
    let name = options.plan.as_deref().unwrap_or_default();
    let comm = Comm::of(name, mesh, step, sharded.as_ref().map(|s| (s, &graphs.findings.sources)));
    Ok(Shown { comm, graphs, sharded })
}

impl Shown {
    /// Warnings and notes.
    pub fn findings(&self) -> Findings {
        let mut out = self.graphs.findings.clone();
        self.sharded.iter().flat_map(|s| &s.warnings).for_each(|d| out.sink.push(d.clone()));
        out
    }
}
