//! What a plan says of replicas, on the graphs of a training run: the walk of one replica's share, the step of all of them, and
//! what a run must know of it.

use super::check::Checked;
use super::options::Options;
use super::pipeline::role;
use super::recipe::{Copied, Recipe};
use crate::autodiff;
use crate::check::plan::mesh;
use crate::check::replicas::{self, Replicas, Rule};
use crate::diag::{Diagnostic, Severity, Sink};
use crate::elaborate::train::TrainFacts;
use crate::elaborate::{Elab, Mode, plan};
use crate::ir::{Dim, DimId, Graph, ParamId, StateId};
use crate::resolve::Program;
use crate::runtime::checkpoint::TensorInfo;
use crate::source::Span;
use crate::stage;
use crate::stage::replicas::{Delayed, Local, Outer, Step};
use crate::syntax::ast::{Train, TrainKind};
use crate::types::counted;

/// What the options' plan says of replicas, where it changes a step. What is wrong with it is found where the plan is resolved.
pub fn asked(options: &Options, program: &Program) -> Option<Replicas> {
    let plan = plan::find(program, options.plan.as_ref()?).ok()?;
    let mut sink = Sink::default();
    let axes = mesh(plan, &options.mesh, &mut sink);
    replicas::replicas(plan, &axes, &mut sink).filter(|r| r.rule != Rule::Stale(0) && !sink.has_errors())
}

/// The train item with a replica's share of the batch.
pub struct Share<'a> {
    pub walk: Elab<'a>,
    facts: TrainFacts,
    sample: DimId,
}

/// Walks the model as it is on a replica's share. `train`: the walk of the whole batch.
pub fn share<'a>(
    c: &'a Checked,
    train: &Elab<'a>,
    facts: &TrainFacts,
    item: &'a Train,
    r: &Replicas,
) -> Result<Share<'a>, Diagnostic> {
    let none = |why: String| Diagnostic::error("E0606", why).at(r.span, "asked for here");
    let Some(sample) = facts.sample_dim else {
        let d = none("nothing is fed, so replicas have nothing to share".into());
        return Err(d.help("leave the statement out: all ranks would compute the same"));
    };
    let Dim { name, size, .. } = train.b.graph.dim(sample);
    let count = r.count as usize;
    if !size.is_multiple_of(count) {
        let why = format!("{count} replicas do not divide `{name}`, which has {}", counted(size, "sample"));
        let d = Diagnostic::error("E0304", why).at(r.span, "asked for here");
        return Err(d.help(format!("make `{name}` a multiple of {count}")));
    }
    if let Some((slices, span)) = facts.slices.filter(|(n, _)| !n.is_multiple_of(count)) {
        let d = none(format!("{count} replicas do not divide the {slices} slices that have statistics of their own"));
        let d = d.and(span, "slices are asked for here");
        return Err(d.help(format!("write a multiple of {count} slices, or leave them out: `samples {name}`")));
    }
    let average = item.lines.iter().find(|l| matches!(l.kind, TrainKind::Average(_)));
    if let (Some(line), Rule::Local { .. }) = (average, r.rule) {
        return Err(averaged(line.span, "replicas that train apart have no average of each step").and(r.span, "here"));
    }
    let Some(mut settings) = train.with_samples(sample, size / count) else {
        let d = none(format!("the sample dim `{name}` is no dim of the file, so replicas cannot share it"));
        return Err(d.help("declare it: `dim batch = 32`"));
    };
    settings.shares = Some(count);
    let mut walk = Elab::new(&c.program, settings, Mode::TRAIN, train.precision);
    let facts = walk.train(item, &stage::slices, &autodiff::gradients_of_params);
    if walk.sink.has_errors() {
        let first = walk.sink.sorted().into_iter().find(|d| d.severity == Severity::Error).expect("there is one");
        return Err(first.with_note(format!("with a replica's share of {}", counted(size / count, "sample"))));
    }
    let sample = facts.sample_dim.unwrap_or(sample);
    Ok(Share { walk, facts, sample })
}

/// A pipeline with two versions of the parameters (`at`) has neither replicas beside it nor averages.
pub fn alone(at: Span, r: Option<&Replicas>, item: &Train) -> Result<(), Diagnostic> {
    if let Some(r) = r {
        let d = Diagnostic::error("E0606", "a step computes with earlier parameters for one reason alone");
        let d = d.at(r.span, "late gradients, or late parameters").and(at, "two versions of the parameters");
        return Err(d.help("leave one of them out"));
    }
    match item.lines.iter().find(|l| matches!(l.kind, TrainKind::Average(_))) {
        Some(line) => Err(averaged(line.span, "a pipeline with two versions of the parameters keeps no third")
            .and(at, "two versions")),
        None => Ok(()),
    }
}

fn averaged(span: Span, why: &str) -> Diagnostic {
    let d = Diagnostic::error("E0606", why).at(span, "an average is asked for here");
    d.help("leave `average` out: the model that evaluation reads is kept beside what is trained")
}

/// The graphs of a run.
pub struct Graphs {
    pub train: Graph,
    pub init: Graph,
    /// After so many steps each.
    pub outer: Option<(u64, Graph)>,
    /// By how many steps gradients are late.
    pub late: u64,
    /// Parameters, and the states that evaluation reads in their place.
    pub averages: Vec<(ParamId, StateId)>,
    /// These are the model itself, and parameters are copies of it.
    pub copied: bool,
    /// Counts the samples of the step.
    pub sample: Option<DimId>,
}

impl Graphs {
    /// Of a step as it was walked.
    pub fn walked(walk: Elab<'_>, facts: &TrainFacts) -> Graphs {
        Graphs {
            train: walk.b.finish(),
            init: walk.init.finish(),
            outer: None,
            late: 0,
            averages: facts.averages.clone(),
            copied: false,
            sample: facts.sample_dim,
        }
    }

    /// Of replicas that take the walked step each.
    pub fn apart(share: Share<'_>, r: &Replicas) -> Result<Graphs, Box<Diagnostic>> {
        let Share { walk, facts, sample } = share;
        let mut g = Graphs::walked(walk, &facts);
        let step = Step { graph: &g.train, sample, count: r.count as usize };
        let placed = |d: Box<Diagnostic>| match d.primary {
            Some(_) => Box::new(d.and(r.span, "replicas are asked for here")),
            None => Box::new(d.at(r.span, "replicas are asked for here")),
        };
        match r.rule {
            Rule::Local { steps, lr, momentum } => {
                let made = stage::replicas::local(step, &g.init, Outer { lr, momentum }).map_err(placed)?;
                let Local { step, outer, init, models } = made;
                (g.train, g.init, g.averages, g.copied) = (step, init, models, true);
                g.outer = Some((steps, outer));
            }
            Rule::Stale(steps) => {
                g.late = steps;
                g.train = stage::replicas::stale(step, &facts.gradients, steps as usize).map_err(placed)?;
            }
        }
        Ok(g)
    }

    /// Of a pipeline with two versions of the parameters.
    pub fn delayed(self) -> Graphs {
        let Delayed { step, init, models } = stage::replicas::delayed(&self.train, &self.init);
        Graphs { train: step, init, averages: models, copied: true, ..self }
    }

    /// Notes in the recipe, which is of the model itself, what a run holds beside it.
    pub fn note(&self, recipe: &mut Recipe) {
        let g = &self.train;
        let info = |path: String, dtype, dims: &[DimId]| {
            TensorInfo::new(path, dtype, dims.iter().map(|d| g.size(*d)).collect::<Vec<_>>())
        };
        recipe.states = g.states.iter().map(|s| (info(s.path.clone(), s.dtype, &s.dims), role(s.kind))).collect();
        recipe.outer = self.outer.as_ref().map(|o| o.0);
        recipe.late = self.late;
        let copied = self.averages.iter().filter(|_| self.copied);
        recipe.copied = copied
            .map(|(p, s)| {
                let param = &g.params[p.index()];
                let info = info(format!("copy:{}", param.path), param.dtype, &param.dims);
                Copied { param: p.index(), model: s.index(), info }
            })
            .collect();
    }
}
