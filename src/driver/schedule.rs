//! The schedule of a plan's pipeline: its table, its times, its certificate.

use super::check::{self, Checked};
use super::findings::{Findings, Outcome};
use super::options::Options;
use super::passes::internal;
use super::pipeline::{sound, train_item, with};
use super::plan;
use crate::diag::{Diagnostic, Sink};
use crate::elaborate::plan::{Pipeline, ResolvedPlan, all as plans, find};
use crate::elaborate::{Elab, Mode};
use crate::inspect::schedule::Timeline;
use crate::resolve::{ItemRef, Program};
use crate::schedule::certify::{Refusal, certify};
use crate::schedule::check::check;
use crate::schedule::file::{self, Written};
use crate::schedule::program::{self, build};
use crate::schedule::{Costs, Fault, Place, Problem, Schedule, StageCost, Table, fits, simulate};
use crate::source::{FileId, SourceMap, Span, World};
use crate::syntax::ast::ItemKind;
use std::ops::Range;
use std::path::Path;

/// A schedule in time, and what was found on the way.
pub struct Shown {
    pub timeline: Timeline,
    /// What the ranks do and send.
    pub program: program::Program,
    pub findings: Findings,
}

/// The schedule of the options' plan. `unit`: in units of time instead of modelled times.
pub fn shown(options: &Options, unit: bool, world: &dyn World) -> Outcome<Shown> {
    let options = plan::spread(options, world)?;
    let mut c = sound(check::load(&options.request, world))?;
    let (plan, p) = pipeline(&options, &c)?;
    let base = options.request.path.parent().unwrap_or(Path::new(""));
    let ranks = plan.mesh[p.axis].size as usize;
    let mut asked = Asked { pipeline: &p, ranks, base, world, sources: &mut c.sources };
    let (table, turns) = asked.table(&by_turns)?;
    let costs = by_turns(&turns);
    let shown = if unit { Costs::unit(table.stages) } else { costs.clone() };
    let broken = |d: Diagnostic| with(d.at(p.schedule_span, "here"), &c.sources);
    let simulation = simulate(&table, &shown).map_err(|e| broken(Diagnostic::error("E0603", e.message(&table))))?;
    let program = build(&table, &costs, &vec![(0, 0); table.stages.saturating_sub(1)])
        .map_err(|e| broken(Diagnostic::error("E0603", e.message(&table))))?;
    let certificate = certify(&program).map_err(|e| broken(stuck(&e, &program)))?;
    let timeline = Timeline {
        plan: plan.name.clone(),
        schedule: p.schedule.to_string(),
        axis: plan.mesh[p.axis].name.clone(),
        unit: if unit { "units" } else { "turns" },
        held: if unit { "activations of a stage" } else { "activations of a turn" },
        table,
        simulation,
        certificate,
    };
    Ok(Shown { timeline, program, findings: Findings { sources: c.sources, sink: c.sink } })
}

/// Tables of files that the plans of a program name, for `check`: each against the first model that its plan fits.
pub fn check_files(
    program: &Program,
    models: &mut [Elab<'_>],
    sources: &mut SourceMap,
    path: &Path,
    world: &dyn World,
    found: &mut Sink,
) {
    let base = path.parent().unwrap_or(Path::new(""));
    // With presets a plan may be meant for other sizes.
    let presets = !program.main_items(|i| matches!(i, ItemKind::Preset(_)).then_some(())).is_empty();
    for ast in plans(program) {
        let Some(plan) = models.iter_mut().find_map(|e| e.resolve_plan(ast, &[]).0) else { continue };
        let Some(p) = plan.pipeline.as_ref().filter(|p| matches!(p.schedule, Schedule::File(_))) else { continue };
        let ranks = plan.mesh[p.axis].size as usize;
        if let Err(wrong) = (Asked { pipeline: p, ranks, base, world, sources }).table(&by_turns) {
            *sources = wrong.sources;
            let counts = |d: &Diagnostic| !(presets && d.code == "E0602");
            wrong.sink.sorted().into_iter().filter(counts).for_each(|d| found.push(d));
        }
    }
}

/// The plan of the options and its pipeline, against the model that is trained.
fn pipeline(options: &Options, c: &Checked) -> Outcome<(ResolvedPlan, Pipeline)> {
    let single = plan::single(options, &c.program).map_err(|d| with(d, &c.sources))?;
    let mut e = Elab::new(&c.program, c.settings.clone(), Mode::TRAIN, single.precision);
    if let Some(model) = model(options, c, &mut e)? {
        e.model(model);
    }
    let mut found = c.sink.clone();
    found.extend(std::mem::take(&mut e.sink));
    let stop = |found: Sink| Box::new(Findings { sources: c.sources.clone(), sink: found });
    if found.has_errors() {
        return Err(stop(found));
    }
    let name = options.plan.as_deref().unwrap_or_default();
    let ast = find(&c.program, name).map_err(|d| with(d, &c.sources))?;
    let (plan, more) = e.resolve_plan(ast, &options.mesh);
    found.extend(more);
    let Some(plan) = plan else { return Err(stop(found)) };
    let Some(p) = plan.pipeline.clone() else {
        let loops: Vec<String> = e.loop_dims.keys().map(|d| e.b.graph.dim(*d).name.clone()).collect();
        let over = loops.first().map_or("depth", String::as_str);
        let d = Diagnostic::error("E0509", format!("plan `{name}` has no pipeline"))
            .at(ast.name.span, "all of its ranks compute the whole model")
            .help(format!("add an axis and `pipeline {over} by pp {{ schedule = 1f1b, microbatches = 8 }}`"));
        return Err(with(d, &c.sources));
    };
    Ok((plan, p))
}

/// The model of the train item, or the only one of a file without train items.
fn model(options: &Options, c: &Checked, e: &mut Elab<'_>) -> Outcome<Option<ItemRef>> {
    match (train_item(options, c), &c.program.models()[..]) {
        (Ok(item), _) => Ok(e.model_of(&item.model)),
        (Err(_), [only]) if options.item.is_none() => Ok(Some(*only)),
        (Err(d), _) => Err(with(d, &c.sources)),
    }
}

/// The table of a plan's pipeline, and the turns of each stage; none where it has one rank.
pub fn of_plan(
    plan: &ResolvedPlan,
    options: &Options,
    world: &dyn World,
    sources: &mut SourceMap,
) -> Outcome<Option<(Table, Vec<u64>)>> {
    let Some(pipeline) = &plan.pipeline else { return Ok(None) };
    let ranks = plan.mesh[pipeline.axis].size as usize;
    let base = options.request.path.parent().unwrap_or(Path::new(""));
    match ranks {
        1 => Ok(None),
        _ => Asked { pipeline, ranks, base, world, sources }.table(&by_turns).map(Some),
    }
}

/// A pipeline whose table is asked for.
pub struct Asked<'a> {
    pub pipeline: &'a Pipeline,
    /// Along its axis.
    pub ranks: usize,
    /// Where paths of files begin.
    pub base: &'a Path,
    pub world: &'a dyn World,
    /// Takes the text of a file, so that findings can point into it.
    pub sources: &'a mut SourceMap,
}

/// Stages cost what their turns of the loops cost, all of them the same, and sending nothing.
pub fn by_turns(turns: &[u64]) -> Costs {
    let cost = |t: &u64| {
        let t = *t as f64;
        StageCost { forward: t, input: t, weight: t, held: t, kept: t }
    };
    Costs { stages: turns.iter().map(cost).collect(), ..Costs::unit(turns.len()) }
}

impl Asked<'_> {
    /// The table, checked, and the turns of each stage. `costs`: of stages with these turns.
    pub fn table(&mut self, costs: &dyn Fn(&[u64]) -> Costs) -> Outcome<(Table, Vec<u64>)> {
        let (p, m) = (self.pipeline, self.pipeline.microbatches as usize);
        if let Schedule::File(path) = &p.schedule {
            let table = self.file(path)?;
            let turns = self.turns(table.stages)?;
            return Ok((table, turns));
        }
        let given = p.stages.as_ref().map(Vec::len);
        let turns = self.turns(p.schedule.stages(self.ranks, p.turns as usize, given).unwrap_or(self.ranks))?;
        let none = |_: &str| Err("no file is meant".to_string());
        match p.schedule.table(self.ranks, m, &costs(&turns), &none) {
            Ok(table) => Ok((table, turns)),
            Err(e) => Err(self.refused(&e)),
        }
    }

    /// A schedule that does not exist.
    fn refused(&self, e: &Problem) -> Box<Findings> {
        let Fault::Impossible { why, cure } = &e.fault else {
            return internal("schedule", &format!("{e:?}"));
        };
        let d = Diagnostic::error("E0603", why.clone())
            .at(self.pipeline.schedule_span, "asked for here")
            .help(cure.clone());
        with(d, self.sources)
    }

    /// The turns of so many stages: as given, else as even as can be.
    fn turns(&self, stages: usize) -> Outcome<Vec<u64>> {
        let (turns, p) = (self.pipeline.turns as usize, self.pipeline);
        let have = match &p.stages {
            Some(given) if given.len() == stages => return Ok(given.clone()),
            None if turns >= stages => {
                return Ok((0..stages).map(|s| (turns / stages + usize::from(s < turns % stages)) as u64).collect());
            }
            Some(given) => format!("{} are listed", given.len()),
            None => format!("the loops have {turns} turns"),
        };
        let d = Diagnostic::error("E0602", format!("the schedule has {stages} stages, but {have}"))
            .at(p.span, "does not fit the schedule")
            .help("list the turns of every stage, or take a schedule with fewer stages");
        Err(with(d, self.sources))
    }

    /// The table of a file, judged.
    fn file(&mut self, path: &str) -> Outcome<Table> {
        let at = self.base.join(path);
        let span = self.pipeline.schedule_span;
        let read = self.world.read(&at).and_then(|b| String::from_utf8(b).map_err(|_| "it is not UTF-8".into()));
        let text = match read {
            Ok(text) => text,
            Err(why) => {
                let d = Diagnostic::error("E0207", format!("cannot read `{}`: {why}", at.display()))
                    .at(span, "needed here")
                    .help("paths are relative to the file that names them");
                return Err(with(d, self.sources));
            }
        };
        let id = self.sources.add(at.display().to_string(), text.clone());
        let Written { table, places } = match file::parse(&text) {
            Ok(w) => w,
            Err(e) => {
                let Fault::Unreadable { bytes, why, .. } = e.fault else { return Err(self.refused(&e)) };
                let d = Diagnostic::error("E0603", why)
                    .at(Span::new(id, bytes.start, bytes.end), "cannot be read")
                    .and(span, "the table of this pipeline")
                    .help("a line a rank, cells like `0F3`: stage, action, microbatch");
                return Err(with(d, self.sources));
            }
        };
        if let Some(e) = fits(&table, self.ranks, self.pipeline.microbatches as usize) {
            return Err(self.refused(&e));
        }
        let problems = check(&table);
        if problems.is_empty() {
            return Ok(table);
        }
        let mut sink = Sink::default();
        problems.iter().for_each(|e| sink.push(wrong(e, &table, &places, id, span)));
        Err(Box::new(Findings { sources: self.sources.clone(), sink }))
    }
}

/// What is wrong with a user's table.
fn wrong(e: &Problem, table: &Table, places: &[Vec<Range<usize>>], file: FileId, plan: Span) -> Diagnostic {
    let span = |p: &Place| {
        let bytes = &places[p.rank][p.index];
        Span::new(file, bytes.start, bytes.end)
    };
    let mut d = Diagnostic::error("E0603", e.message(table));
    d = match (&e.at, &e.fault) {
        (_, Fault::Cycle { around }) => {
            d.message = "ranks wait for each other in a circle".into();
            for (k, p) in around.iter().enumerate() {
                let step = &e.drawing(table)[k];
                d = if k == 0 { d.at(span(p), step) } else { d.and(span(p), step) };
            }
            d.with_note(e.drawing(table).join("\n"))
        }
        (Some(p), fault) => {
            d = d.at(span(p), "here");
            match fault {
                Fault::Twice { first } => d.and(span(first), "the first time"),
                Fault::Apart { forward } => d.and(span(forward), "its forward computation"),
                Fault::Early { needs } => d.and(span(needs), "needed before"),
                _ => d,
            }
        }
        (None, _) => d.at(plan, "the table of this pipeline"),
    };
    match e.cure() {
        Some(cure) => d.help(cure),
        None => d.help("each stage and microbatch has `F` once, and `B` or `I` and `W` once, on the same rank"),
    }
}

/// What keeps a step from being certified.
fn stuck(e: &Refusal, p: &program::Program) -> Diagnostic {
    Diagnostic::error("E0603", format!("the step may wait forever: {}", e.message(p)))
}
