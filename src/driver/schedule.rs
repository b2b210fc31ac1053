//! The schedule of a plan's pipeline: its table, its times, its certificate.

use super::check::{self, Checked};
use super::costs::Model;
use super::findings::{Findings, Outcome};
use super::options::Options;
use super::passes::internal;
use super::pipeline::{graphs, sound, train_item, with};
use super::{plan, recompute, sharding, stages};
use crate::diag::{Diagnostic, Sink};
use crate::elaborate::plan::{Pipeline, Recompute, ResolvedPlan, find};
use crate::elaborate::{Elab, Mode};
use crate::inspect::schedule::Timeline;
use crate::inspect::schedule::compare::{Comparison, Measured};
use crate::ir::Graph;
use crate::resolve::{ItemRef, Program};
use crate::runtime::data::reason;
use crate::schedule::certify::{Certificate, Refusal, certify};
use crate::schedule::check::check;
use crate::schedule::file::{self, Written};
use crate::schedule::program::{self, build};
use crate::schedule::{
    Continued, Costs, Fault, Machine, Place, Problem, Schedule, Simulation, StageCost, Table, fits, simulate,
};
use crate::source::{FileId, SourceMap, Span, World};
use crate::syntax::ast::{ItemKind, Plan};
use std::ops::Range;
use std::path::Path;

/// A schedule in time, and what was found on the way.
pub struct Shown {
    pub timeline: Timeline,
    /// What the timeline was simulated from.
    pub costs: Costs,
    /// Ranks of the plan at each place of the pipeline.
    copies: usize,
    /// How steps go over into each other, if they do.
    continued: Option<Continued>,
    /// Parameters of the program, and elements of its inputs.
    sizes: [u64; 2],
    /// What the ranks do and send.
    pub program: program::Program,
    pub findings: Findings,
}

/// What times are counted in.
#[derive(Clone, PartialEq, Debug)]
pub enum Clock {
    /// `F = I = W = 1`.
    Units,
    /// A turn of the loop takes 1.
    Turns,
    /// Seconds on a machine.
    Seconds(Machine),
}

/// The schedule of the options' plan.
pub fn shown(options: &Options, clock: &Clock, world: &dyn World) -> Outcome<Shown> {
    let options = plan::spread(options, world)?;
    let mut c = sound(check::load(&options.request, world))?;
    let (plan, p, graph) = pipeline(&options, &c)?;
    let base = options.request.path.parent().unwrap_or(Path::new(""));
    let ranks = plan.mesh[p.axis].size as usize;
    let model = Model::new(&graph, &plan, &p, Machine::usual());
    let (table, turns) = Asked { pipeline: &p, model, ranks, base, world, sources: &mut c.sources }.table()?;
    let (shown, unit, held) = match clock {
        Clock::Units => (Costs::unit(table.stages), "units", "activations of a stage"),
        Clock::Turns => (by_turns(&turns), "turns", "activations of a turn"),
        Clock::Seconds(machine) => {
            (Model::new(&graph, &plan, &p, machine.clone()).stages(&turns), "s", "activations of a turn")
        }
    };
    let two = p.schedule == Schedule::TwoBw;
    let continued = Continued::new(ranks, table.microbatches).filter(|_| two);
    // A step with one before and one behind it.
    let steps = if continued.is_some() { 3 } else { 1 };
    let table = continued.as_ref().map_or(table, |c| c.steps(steps));
    let broken = |d: Diagnostic| with(d.at(p.schedule_span, "here"), &c.sources);
    let simulation = simulate(&table, &shown).map_err(|e| broken(Diagnostic::error("E0603", e.message(&table))))?;
    let program = build(&table, &by_turns(&turns), &vec![(0, 0); table.stages.saturating_sub(1)])
        .map_err(|e| broken(Diagnostic::error("E0603", e.message(&table))))?;
    let certificate = certify(&program).map_err(|e| broken(stuck(&e, &program)))?;
    let timeline = Timeline {
        plan: plan.name.clone(),
        schedule: p.schedule.to_string(),
        axis: plan.mesh[p.axis].name.clone(),
        machine: if let Clock::Seconds(m) = clock { Some(m.name.clone()) } else { None },
        turns,
        unit,
        held,
        steps,
        between: between(continued.as_ref(), steps, &simulation, &shown),
        table,
        simulation,
        certificate,
        of_ranks: None,
    };
    let copies = plan.ranks() as usize / ranks;
    let sizes = [
        graph.params.iter().map(|p| graph.elements(&p.dims) as u64).sum(),
        graph.inputs.iter().map(|i| graph.elements(&i.dims) as u64).sum(),
    ];
    // What does not fit is found where memory is planned. What else stands in the way of a step is no matter of its schedule.
    let fitted = matches!(plan.recompute, Recompute::Auto(_)) && train_item(&options, &c).is_ok();
    let short = if fitted { graphs(&options, world).ok().and_then(|g| g.short) } else { None };
    let mut findings = Findings { sources: c.sources, sink: c.sink };
    short.iter().for_each(|d| findings.sink.push(recompute::unmet(d)));
    Ok(Shown { timeline, costs: shown, copies, continued, sizes, program, findings })
}

/// What is shown of the program that the ranks of the options' plan run; none where nothing is trained, or by one rank.
pub fn of_ranks(options: &Options, world: &dyn World) -> Outcome<Option<Certificate>> {
    let options = plan::spread(options, world)?;
    let c = sound(check::load(&options.request, world))?;
    if train_item(&options, &c).is_err() {
        return Ok(None);
    }
    let g = graphs(&options, world)?;
    let Some(programs) = sharding::programs(&g)? else { return Ok(None) };
    let staged = stages::staged(&g, &programs, &options.lowering())?;
    Ok(staged.map(|s| s.train.certificate))
}

impl Shown {
    /// Beside the trace of a run, which is read from a file.
    pub fn beside(&self, trace: &Path) -> Result<Comparison, Diagnostic> {
        let bad = |why: String| {
            let d = Diagnostic::error("E0902", format!("`{}` is no trace of this schedule: {why}", trace.display()));
            d.help("write one by `partita train FILE --plan NAME --trace FILE`, with the same plan, sizes and mesh")
        };
        let text = read(trace)?;
        let compared =
            Measured::parse(&text).and_then(|m| m.of_sizes(self.sizes)).and_then(|measured| match &self.continued {
                None => measured.beside(&self.timeline, &self.costs, self.copies),
                Some(c) => {
                    // All of them are one table.
                    let steps = (measured.microbatches() / c.microbatches).max(1);
                    let table = c.steps(steps);
                    let simulation = simulate(&table, &self.costs).map_err(|e| e.message(&table))?;
                    let timeline = Timeline { table, simulation, steps, ..self.timeline.clone() };
                    measured.counted_through(c.microbatches).beside(&timeline, &self.costs, self.copies)
                }
            });
        compared.map_err(bad)
    }
}

/// The time that one more step takes.
fn between(continued: Option<&Continued>, steps: usize, all: &Simulation, costs: &Costs) -> f64 {
    let fewer = continued.and_then(|c| simulate(&c.steps(steps - 1), costs).ok());
    all.makespan - fewer.map_or(0.0, |s| s.makespan)
}

/// The machine of a name, or of a file that `partita calibrate` has written; the usual one where none is given.
pub fn machine(name: Option<&str>) -> Result<Machine, Diagnostic> {
    let Some(name) = name else { return Ok(Machine::usual()) };
    if let Some(known) = Machine::named(name) {
        return Ok(known);
    }
    Machine::parse(&read(Path::new(name))?).map_err(|why| {
        Diagnostic::error("E0902", format!("`{name}` does not describe a machine: {why}")).help(format!(
            "write one by `partita calibrate -o FILE`, or take one of those that are known: {}",
            Machine::NAMES.join(", ")
        ))
    })
}

/// A file of any size, unlike the texts of programs.
fn read(path: &Path) -> Result<String, Diagnostic> {
    let bytes = std::fs::read(path).map_err(|e| reason(&e));
    bytes.and_then(|b| String::from_utf8(b).map_err(|_| "it is not UTF-8".into())).map_err(|why| {
        let d = Diagnostic::error("E0207", format!("cannot read `{}`: {why}", path.display()));
        d.help("give the path of a file that is there")
    })
}

/// Where files are that a program names.
pub struct Files<'a> {
    /// Of the program.
    pub path: &'a Path,
    pub world: &'a dyn World,
    pub sources: &'a mut SourceMap,
}

/// Tables of files that plans of a program name, for `check`: each against the first model that its plan fits.
pub fn check_files<'a>(
    program: &'a Program,
    plans: &[&'a Plan],
    models: &mut [Elab<'a>],
    files: Files<'_>,
    found: &mut Sink,
) {
    let Files { path, world, sources } = files;
    let base = path.parent().unwrap_or(Path::new(""));
    // With presets a plan may be meant for other sizes.
    let presets = !program.main_items(|i| matches!(i, ItemKind::Preset(_)).then_some(())).is_empty();
    for ast in plans {
        let fits = |(k, e): (usize, &mut Elab<'_>)| e.resolve_plan(ast, &[]).0.map(|plan| (k, plan));
        let Some((k, plan)) = models.iter_mut().enumerate().find_map(fits) else { continue };
        let Some(p) = plan.pipeline.as_ref().filter(|p| matches!(p.schedule, Schedule::File(_))) else { continue };
        let ranks = plan.mesh[p.axis].size as usize;
        let model = Model::new(&models[k].b.graph, &plan, p, Machine::usual());
        if let Err(wrong) = (Asked { pipeline: p, model, ranks, base, world, sources }).table() {
            *sources = wrong.sources;
            let counts = |d: &Diagnostic| !(presets && d.code == "E0602");
            wrong.sink.sorted().into_iter().filter(counts).for_each(|d| found.push(d));
        }
    }
}

/// The plan of the options and its pipeline, against the model that is trained, and that.
fn pipeline(options: &Options, c: &Checked) -> Outcome<(ResolvedPlan, Pipeline, Graph)> {
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
    Ok((plan, p, e.b.graph))
}

/// The model of the train item, or the only one of a file without train items.
fn model(options: &Options, c: &Checked, e: &mut Elab<'_>) -> Outcome<Option<ItemRef>> {
    match (train_item(options, c), &c.program.models()[..]) {
        (Ok(item), _) => Ok(e.model_of(&item.model)),
        (Err(_), [only]) if options.item.is_none() => Ok(Some(*only)),
        (Err(d), _) => Err(with(d, &c.sources)),
    }
}

/// The table of a plan's pipeline, and the turns of each stage; none where it has one rank. `graph`: what the plan was resolved
/// against.
pub fn of_plan(
    plan: &ResolvedPlan,
    graph: &Graph,
    options: &Options,
    world: &dyn World,
    sources: &mut SourceMap,
) -> Outcome<Option<(Table, Vec<u64>)>> {
    let Some(pipeline) = &plan.pipeline else { return Ok(None) };
    let ranks = plan.mesh[pipeline.axis].size as usize;
    let base = options.request.path.parent().unwrap_or(Path::new(""));
    match ranks {
        1 => Ok(None),
        _ => {
            let model = Model::new(graph, plan, pipeline, Machine::usual());
            Asked { pipeline, model, ranks, base, world, sources }.table().map(Some)
        }
    }
}

/// A pipeline whose table is asked for.
pub struct Asked<'a> {
    pub pipeline: &'a Pipeline,
    /// What cuts and found schedules go by: the same on any machine, so that the same program is made everywhere.
    pub model: Model,
    /// Along its axis.
    pub ranks: usize,
    /// Where paths of files begin.
    pub base: &'a Path,
    pub world: &'a dyn World,
    /// Takes the text of a file, so that findings can point into it.
    pub sources: &'a mut SourceMap,
}

/// Stages cost what their turns of the loops cost, all of them the same, and sending nothing.
fn by_turns(turns: &[u64]) -> Costs {
    let cost = |t: &u64| {
        let t = *t as f64;
        StageCost { forward: t, input: t, weight: t, held: t, kept: t }
    };
    Costs { stages: turns.iter().map(cost).collect(), ..Costs::unit(turns.len()) }
}

impl Asked<'_> {
    /// The table, checked, and the turns of each stage.
    pub fn table(&mut self) -> Outcome<(Table, Vec<u64>)> {
        let (p, m) = (self.pipeline, self.pipeline.microbatches as usize);
        if let Schedule::File(path) = &p.schedule {
            let table = self.file(path)?;
            let turns = self.turns(table.stages)?;
            return Ok((table, turns));
        }
        if matches!(p.schedule, Schedule::Auto | Schedule::Within(_))
            && p.stages.is_none()
            && p.turns as usize >= 2 * self.ranks
        {
            return self.found(m);
        }
        let given = p.stages.as_ref().map(Vec::len);
        let turns = self.turns(p.schedule.stages(self.ranks, p.turns as usize, given).unwrap_or(self.ranks))?;
        let none = |_: &str| Err("no file is meant".to_string());
        match p.schedule.table(self.ranks, m, &self.model.stages(&turns), &none) {
            Ok(table) => Ok((table, turns)),
            Err(e) => Err(self.refused(&e)),
        }
    }

    /// The shorter one of what is found with one and with two stages a rank.
    fn found(&self, m: usize) -> Outcome<(Table, Vec<u64>)> {
        let of = |chunks: usize| {
            let turns = self.turns(chunks * self.ranks)?;
            let costs = self.model.stages(&turns);
            let none = |_: &str| Err("no file is meant".to_string());
            let table = self.pipeline.schedule.table(self.ranks, m, &costs, &none).map_err(|e| self.refused(&e))?;
            let took = simulate(&table, &costs).map_err(|e| self.refused(&e))?.makespan;
            Ok((took, table, turns))
        };
        let (one, two) = (of(1), of(2));
        let (_, table, turns) = match (one, two) {
            (Ok(a), Ok(b)) => {
                if b.0 < a.0 {
                    b
                } else {
                    a
                }
            }
            (Ok(a), Err(_)) | (Err(_), Ok(a)) => a,
            (Err(e), Err(_)) => return Err(e),
        };
        Ok((table, turns))
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

    /// The turns of so many stages: as given, else such that the longest stage is as short as can be.
    fn turns(&self, stages: usize) -> Outcome<Vec<u64>> {
        let (turns, p) = (self.pipeline.turns as usize, self.pipeline);
        let have = match &p.stages {
            Some(given) if given.len() == stages => return Ok(given.clone()),
            None if turns >= stages => {
                return Ok(self.model.balanced(stages));
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
