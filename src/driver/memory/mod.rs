//! What a program needs of memory: the exact peak of each rank, by category and by place in the text, and what is there at any instant.
//!
//! Reading order: this file, `over.rs` (limits), `instants.rs` (what is alive when), `json.rs`, `uneven.rs`.

mod instants;
mod json;
mod over;
mod page;
mod uneven;

pub use instants::{Instants, Shown};
pub use json::More;
pub use over::told;

use super::findings::Outcome;
use super::options::Options;
use super::pipeline::{self, Graphs};
use super::recompute::Repeated;
use super::{check, plan, sharding, weights};
use crate::diag::Sink;
use crate::kernel::Module;
use crate::memory::{self, Offload, Report};
use crate::program::Program;
use crate::runtime::exec::scratch_bytes;
use crate::source::World;
use uneven::uneven;

/// What ranks need; on one device the only one. Buffers have the same size on all ranks of a stage: where parts are uneven, that of the
/// largest.
pub struct Needed {
    pub plan: Option<String>,
    /// Names and sizes of the plan's axes.
    pub mesh: Vec<(String, u64)>,
    pub ranks: usize,
    /// By coordinate along the pipeline; one without a pipeline.
    pub stages: Vec<Stage>,
    /// With the places of all arrays, without machine code.
    pub program: Program,
    /// Working memory of a rank's threads, beside the report's.
    pub scratch_bytes: usize,
    /// The copy of parameters and states that is written in the background when a checkpoint is made: a whole one, once for
    /// all ranks of a process.
    pub checkpoint_bytes: usize,
    /// Dims whose parts are not of one size: `vocab 257 by tp: parts of 65 to 62`.
    pub uneven: Vec<String>,
    /// The peak of the same program on one device; none where it is on one.
    pub one_device: Option<usize>,
    /// What the backward pass of training computes again because of the plan.
    pub again: Option<Repeated>,
    pub graphs: Graphs,
}

/// The ranks at one coordinate along the pipeline, which are all alike.
pub struct Stage {
    pub coordinate: usize,
    pub ranks: Vec<usize>,
    /// The one that needs most there: all routines share one arena. By number.
    pub routine: usize,
    pub report: Report,
}

/// The peaks of all ranks.
pub fn needed(options: &Options, world: &dyn World) -> Outcome<Needed> {
    let mesh = plan::axes(options, &check::load(&options.request, world).program, &mut Sink::default());
    let graphs = pipeline::graphs(options, world)?;
    let sources = &graphs.findings.sources;
    let programs = sharding::programs(&graphs)?;
    let program = planned(pipeline::of_rank(&graphs, programs.as_ref(), sources, options)?, graphs.offload);
    let stages = stages(&program);
    if stages.is_empty() {
        return Err(super::passes::internal("plan memory", "there is no routine"));
    }
    let ranks = program.mesh.ranks();
    let one_device = (ranks > 1).then(|| {
        let program = planned(pipeline::lowered(&graphs, pipeline::ALL, sources, options), Offload::default());
        program.persistent_bytes(0) + program.arena_bytes(0)
    });
    let scratch_bytes = scratch_bytes(&program, (options.thread_count() / ranks).max(1));
    let checkpoint_bytes = weights::saved_bytes(&graphs.recipe);
    let again = Repeated::of(programs.as_ref().map_or(&graphs.train, |p| &p.train.graph));
    let uneven = programs.map_or_else(Vec::new, |p| uneven(&p.train.graph));
    let plan = options.plan.clone();
    Ok(Needed {
        plan,
        mesh,
        ranks,
        stages,
        program,
        scratch_bytes,
        checkpoint_bytes,
        uneven,
        one_device,
        again,
        graphs,
    })
}

/// Gives all arrays of a program their places.
pub fn plan(program: &mut Program, offload: Offload) {
    memory::offload(program, pipeline::TRAIN, offload);
    memory::plan_all(program);
}

fn planned(module: Module<'_>, offload: Offload) -> Program {
    let mut program = module.program;
    plan(&mut program, offload);
    program
}

/// By coordinate along the pipeline: the routine that needs most there, the first of equals, for training comes first.
fn stages(program: &Program) -> Vec<Stage> {
    let stage = |coordinate: usize| {
        let arena = |r: &usize| program.routines[*r].arena;
        let routine = program.routines_at(coordinate).into_iter().rev().max_by_key(arena)?;
        let ranks = (0..program.mesh.ranks()).filter(|r| program.stage(*r) == coordinate).collect();
        let report = memory::report(program, &program.routines[routine], coordinate);
        Some(Stage { coordinate, ranks, routine, report })
    };
    (0..program.stages()).filter_map(stage).collect()
}

impl Stage {
    /// The same ranks with another routine, and what that takes.
    fn running(&self, routine: usize, program: &Program) -> Stage {
        let report = memory::report(program, &program.routines[routine], self.coordinate);
        Stage { coordinate: self.coordinate, ranks: self.ranks.clone(), routine, report }
    }
}

impl Needed {
    /// The first of the stages that need most.
    pub fn most(&self) -> &Stage {
        self.stages.iter().rev().max_by_key(|s| s.report.peak_bytes).expect("a stage")
    }

    /// The peak of the ranks that need most.
    pub fn report(&self) -> &Report {
        &self.most().report
    }
}

/// Bytes for people.
pub fn show(bytes: u64) -> String {
    super::show::bytes(bytes)
}
