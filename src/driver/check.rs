//! The front end as a whole: reads, resolves and walks a program in each of its modes.

use super::options::Options;
use super::pipeline::STACK;
use super::{comm, sample, schedule, size};
use crate::check::style;
use crate::diag::{Diagnostic, Sink};
use crate::elaborate::{Elab, Mode, Settings, plan};
use crate::ir::{Builder, Param, ParamId, StateKind, ValueId, prune};
use crate::resolve::{self, ItemRef, Program};
use crate::source::{Memory, SourceMap, Span, World};
use crate::stream;
use crate::syntax::ast::{ItemKind, Sample, Train};
use crate::types::DType;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::thread::Builder as Threads;

/// What to compile.
#[derive(Clone, Debug, Default)]
pub struct Request {
    pub path: PathBuf,
    pub presets: Vec<String>,
    /// `--set name=value`
    pub sets: Vec<(String, String)>,
}

/// A program that was read, with all that was found.
pub struct Checked {
    pub sources: SourceMap,
    pub sink: Sink,
    pub program: Program,
    pub settings: Settings,
    pub models: Vec<ModelFacts>,
}

impl Checked {
    /// How many layers, functions and optimizers the main file defines.
    pub fn definitions(&self) -> usize {
        self.program.main_items(|i| matches!(i, ItemKind::Def(_)).then_some(())).len()
    }
}

/// What `check` reports of a model.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ModelFacts {
    pub name: String,
    /// Elements of all parameters.
    pub parameters: u64,
    /// Elements of all model states.
    pub states: u64,
    pub tensors: usize,
}

/// Reads a program and its settings.
pub fn load(request: &Request, world: &dyn World) -> Checked {
    let mut sources = SourceMap::default();
    let mut sink = Sink::default();
    let program = resolve::load(&request.path, world, &mut sources, &mut sink);
    let settings = Settings::new(&program, &request.presets, &request.sets, &mut sink);
    Checked { sources, sink, program, settings, models: Vec::new() }
}

/// A program whose sample item feeds an input back, though its values depend on later positions.
pub fn not_streamable(p: stream::Problem, feed: Span) -> Diagnostic {
    Diagnostic::error("E0408", p.message)
        .at(p.span.unwrap_or(feed), "this cannot be computed position by position")
        .and(feed, "fed back here")
        .help("mask reductions over positions by `iota[key] <= iota[seq]`, or sample without `feed`")
}

/// Reads a program and judges all its models and items.
pub fn check(request: &Request, world: &dyn World) -> Checked {
    judge(request, world, Judged::All)
}

/// What of a program is judged beside its models and train and sample items.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Judged<'a> {
    /// All plans, and weights items.
    All,
    /// The same, of the plans the one of this name.
    Plan(&'a str),
    /// Nothing: a run may not use them, and they may not fit sizes that are set for it alone.
    Nothing,
}

/// The same, of plans only that of the options, and what is found when the program of a rank is made under the options' plan. The two read the program each for
/// itself, on two threads; what is wrong without a plan comes first, and alone.
pub fn check_with_plan(options: &Options, world: &dyn World) -> Checked {
    let judged = options.plan.as_deref().map_or(Judged::All, Judged::Plan);
    let (mut c, found) = std::thread::scope(|scope| {
        let check = || judge(&options.request, world, judged);
        let beside = Threads::new().name("check".into()).stack_size(STACK).spawn_scoped(scope, check);
        let found = comm::found(options, world);
        let c = match beside {
            Ok(thread) => thread.join().unwrap_or_else(|panic| resume_unwind(panic)),
            // Where the system gives no thread.
            Err(_) => check(),
        };
        (c, found)
    });
    if c.sink.has_errors() {
        return c;
    }
    match found {
        Ok(found) => {
            c.sink.extend(found.sink);
            c.sources = found.sources;
        }
        Err(found) => (c.sources, c.sink) = (found.sources, found.sink),
    }
    c
}

/// The same but for plans and weights items.
pub fn check_for_run(request: &Request, world: &dyn World) -> Checked {
    judge(request, world, Judged::Nothing)
}

fn judge(request: &Request, world: &dyn World, judged: Judged<'_>) -> Checked {
    let all = judged != Judged::Nothing;
    let mut c = load(request, world);
    let mut walks = Walks::default();
    let mut broken: Vec<&str> = Vec::new();
    for at in c.program.models() {
        let facts = walk(&c.program, &c.settings, at, all, &mut walks);
        if facts.is_none() {
            broken.push(&c.program.model(at).name.text);
        }
        c.models.extend(facts);
    }
    // Items are judged where what they speak of is sound, whatever else is wrong.
    let read = !c.sink.has_errors();
    if all && read && broken.is_empty() {
        let plans = match judged {
            Judged::Plan(name) => plan::find(&c.program, name).into_iter().collect(),
            _ => plan::all(&c.program),
        };
        plan::check_all(&c.program, &plans, &mut walks.trained, &mut walks.found);
        let files = schedule::Files { path: &request.path, world, sources: &mut c.sources };
        schedule::check_files(&c.program, &plans, &mut walks.trained, files, &mut walks.found);
    }
    for mut e in std::mem::take(&mut walks.trained) {
        walks.collect(&mut e);
    }
    if read {
        let sound = |item: &&Train| !broken.contains(&item.model.text.as_str());
        for item in c.program.main_items(train_item).into_iter().filter(sound) {
            let mut e = Elab::new(&c.program, c.settings.clone(), Mode::TRAIN, DType::F32);
            let facts = e.train(item, &crate::stage::slices, &without_gradients);
            if !e.failed() {
                super::pipeline::loads(&c, &e, &facts, item, Path::new(""), &mut walks.found);
                if let Err(d) = size::step_addressable(&e.b.graph) {
                    walks.found.push(d);
                }
            }
            walks.collect(&mut e);
        }
    }
    if read {
        let sound = |item: &&Sample| !broken.contains(&item.model.text.as_str());
        for item in c.program.main_items(sample_item).into_iter().filter(sound) {
            let mut e = Elab::new(&c.program, c.settings.clone(), Mode::STREAM, DType::F32);
            let facts = e.sample(item);
            let failed = e.failed();
            walks.collect(&mut e);
            if failed {
                continue;
            }
            let whole = prune::prune(&e.b.finish());
            if let Some(feed) = facts.feed
                && let Err(p) = stream::stream(&whole, feed.input, feed.dim, 1)
            {
                walks.found.push(not_streamable(p, feed.span));
            } else if size::addressable(&whole).is_err()
                // With a single sample, as it is run, it may be smaller.
                && let Err(d) = sample::addressable(&c.program, &c.settings, item)
            {
                walks.found.push(d);
            }
        }
    }
    let Walks { used, names, mut found, .. } = walks;
    style::check(&c.program, &mut found);
    let mut rest = Elab::new(&c.program, c.settings.clone(), Mode::TRAIN, DType::F32);
    rest.used_defs = used;
    rest.used_names = names;
    rest.unused_defs();
    rest.all_globals();
    rest.predefined_names();
    Settings::check_presets(&c.program, &mut found);
    if !found.has_errors() && !rest.failed() && !c.sink.has_errors() {
        rest.unused_names();
    }
    found.extend(rest.sink);
    c.sink.extend(found);
    c
}

fn sample_item(item: &ItemKind) -> Option<&Sample> {
    match item {
        ItemKind::Sample(s) => Some(s),
        _ => None,
    }
}

fn train_item(item: &ItemKind) -> Option<&Train> {
    match item {
        ItemKind::Train(t) => Some(t),
        _ => None,
    }
}

/// Stands in for the derivatives, whose values do not matter to checking.
fn without_gradients(b: &mut Builder, _: &[ValueId], params: &[ParamId]) -> Vec<ValueId> {
    let zeros = |p: &ParamId| {
        let Param { dtype, dims, .. } = b.graph.params[p.index()].clone();
        b.splat_of(0.0, dtype, &dims)
    };
    params.iter().map(zeros).collect()
}

/// What the walks of all models and items have found.
#[derive(Default)]
struct Walks<'a> {
    used: indexmap::IndexSet<ItemRef>,
    names: indexmap::IndexSet<(resolve::ModuleId, String)>,
    found: Sink,
    /// The models in training, for plans to be judged by.
    trained: Vec<Elab<'a>>,
}

impl Walks<'_> {
    /// Takes what one walk has met and found.
    fn collect(&mut self, e: &mut Elab) {
        self.used.extend(std::mem::take(&mut e.used_defs));
        self.names.extend(std::mem::take(&mut e.used_names));
        self.found.extend(std::mem::take(&mut e.sink));
    }
}

fn walk<'a>(
    program: &'a Program,
    settings: &Settings,
    at: ItemRef,
    weights: bool,
    walks: &mut Walks<'a>,
) -> Option<ModelFacts> {
    let mut facts: Option<(ModelFacts, Vec<String>)> = None;
    for mode in [Mode::TRAIN, Mode::EVAL] {
        let mut e = Elab::new(program, settings.clone(), mode, DType::F32);
        let root = e.model(at);
        let failed = e.failed();
        if weights && mode == Mode::EVAL && !failed {
            e.check_weights(at, root);
        }
        walks.collect(&mut e);
        let graph = &e.b.graph;
        let count = |dims: &[crate::ir::DimId]| dims.iter().fold(1u64, |n, d| n.saturating_mul(graph.size(*d) as u64));
        let now = ModelFacts {
            name: program.model(at).name.text.clone(),
            parameters: graph.params.iter().map(|p| count(&p.dims)).sum(),
            states: graph.states.iter().filter(|s| s.kind == StateKind::Model).map(|s| count(&s.dims)).sum(),
            tensors: graph.params.len(),
        };
        let paths: Vec<String> = graph.params.iter().map(|p| format!("{} {:?}", p.path, p.dims.len())).collect();
        if failed {
            return None;
        }
        if let Err(d) = size::step_addressable(&e.b.graph) {
            walks.found.push(d);
            return None;
        }
        if mode == Mode::TRAIN {
            walks.trained.push(e);
        }
        match &facts {
            None => facts = Some((now, paths)),
            Some((first, before)) if first.parameters != now.parameters || *before != paths => {
                let odd = paths.iter().find(|p| !before.contains(p)).or(before.iter().find(|p| !paths.contains(p)));
                let name = odd.map_or(String::new(), |p| p.split(' ').next().unwrap_or("").to_string());
                walks.found.push(
                    Diagnostic::error("E0407", format!("training and evaluation disagree on parameter `{name}`"))
                        .at(program.model(at).name.span, "its modes have different parameters")
                        .help("declare parameters outside `if training`"),
                );
            }
            Some(_) => {}
        }
    }
    facts.map(|f| f.0)
}

/// Checks one text without a file system; for fuzzing and tools. Never panics.
pub fn check_source(text: &str) -> Sink {
    let mut world = Memory::default();
    world.0.insert(PathBuf::from("main.pta"), text.to_string());
    check(&Request { path: Path::new("main.pta").to_path_buf(), ..Request::default() }, &world).sink
}
