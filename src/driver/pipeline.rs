//! From a path and options to a compiled program: the flat ordered list of passes.

use super::check::{self, Checked};
use super::findings::{Findings, Outcome};
use super::options::Options;
use super::origin::Origin;
use super::passes::{Passes, internal};
use super::recipe::{Copied, Load, Recipe, Valid};
use super::recompute;
use super::sample::{self, SampleGraphs};
use super::sharding::{self, Programs, Sharding};
use super::{average, data, gpu, memory, plan, replicas, schedule, size, stages};
use crate::autodiff;
use crate::codegen::cpu::Target;
use crate::diag::{Diagnostic, Sink, did_you_mean};
use crate::elaborate::train::TrainFacts;
use crate::elaborate::weights::{self, WeightsMap};
use crate::elaborate::{Elab, Mode};
use crate::ir::{Constant, Graph, Op, OutputKind, ParamId, StateId, StateKind, prune};
use crate::kernel::{self, Module};
use crate::memory::Offload;
use crate::program::{Program, Role};
use crate::recompute::Policy;
use crate::resolve::{Entity, MAIN};
use crate::runtime::checkpoint::TensorInfo;
use crate::source::{SourceMap, World};
use crate::stage;
use crate::syntax::ast::{ItemKind, Train};
use std::borrow::Cow;
use std::panic::resume_unwind;
use std::path::Path;
use std::thread::Builder;
use std::time::Duration;

/// A checked train item as graphs: the whole train step, the step of evaluation, and the computation of initial values.
pub struct Graphs {
    /// The texts, and warnings.
    pub findings: Findings,
    pub recipe: Recipe,
    pub train: Graph,
    pub eval: Graph,
    pub init: Graph,
    /// After every so many training steps, what makes replicas one again.
    pub outer: Option<(u64, Graph)>,
    /// How the plan spreads them over ranks; none on one device.
    pub sharding: Option<Sharding>,
    /// What the backward pass of the train step computes again: on one device it does so in `train`.
    pub again: Option<Policy>,
    /// Why that does not have it fit into the memory that the plan allows.
    pub short: Option<Diagnostic>,
    /// What lies in files.
    pub offload: Offload,
    pub timings: Vec<(&'static str, Duration)>,
}

/// Names of the routines of a program.
pub const TRAIN: &str = "train";
pub const EVAL: &str = "eval";
pub const INIT: &str = "init";
pub const OUTER: &str = "outer";

/// Everything up to graphs, for a run whose results are to be kept: none if `check` refuses a model, train or sample item,
/// though the run itself may not read it.
///
/// The two walk the program each for itself, on two threads; what `check` finds comes first.
pub fn checked_graphs(options: &Options, world: &dyn World) -> Outcome<Graphs> {
    let check = || sound(check::check_for_run(&options.request, world)).map(|_| ());
    std::thread::scope(|scope| {
        let beside = Builder::new().name("check".into()).stack_size(STACK).spawn_scoped(scope, check);
        let g = graphs(options, world);
        let mut p = Passes::new(options);
        p.run("rest of check", || match beside {
            Ok(thread) => thread.join().unwrap_or_else(|panic| resume_unwind(panic)),
            // Where the system gives no thread.
            Err(_) => check(),
        })?;
        let mut g = g?;
        g.timings.append(&mut p.timings);
        Ok(g)
    })
}

/// Of the thread that checks: as much as the first thread of a process has at most, in builds that need most.
pub const STACK: usize = 64 << 20;

/// Everything up to graphs.
pub fn graphs(options: &Options, world: &dyn World) -> Outcome<Graphs> {
    let mut p = Passes::new(options);
    let c = p.run("read", || check::load(&options.request, world));
    let c = sound(c)?;
    let single = plan::single(options, &c.program).map_err(|d| with(d, &c.sources))?;
    let item = train_item(options, &c).map_err(|d| with(d, &c.sources))?;
    let mut found = c.sink.clone();

    // Gradients and updates come with elaboration: an optimizer is code over gradients.
    let mut train = Elab::new(&c.program, c.settings.clone(), Mode::TRAIN, single.precision);
    let facts = p.run("elaborate train", || train.train(item, &stage::slices, &autodiff::gradients_of_params));
    take(&mut found, &mut train.sink, &c.sources)?;
    p.graph("train", &train.b.graph, &c.sources)?;
    p.graph("init", &train.init.graph, &c.sources)?;

    // Evaluation is elaborated on its own: `training` is another constant there.
    let apart = replicas::asked(options, &c.program);
    let share = apart.as_ref().map(|r| p.run("elaborate replica", || replicas::share(&c, &train, &facts, item, r)));
    let mut share = share.transpose().map_err(|d| with(d, &c.sources))?;
    if let Some(s) = &mut share {
        take(&mut found, &mut s.walk.sink, &c.sources)?;
    }

    let mut eval = Elab::new(&c.program, c.settings.clone(), Mode::EVAL, single.precision);
    eval.fed = train.fed.clone();
    p.run("elaborate eval", || {
        if let Some(at) = eval.model_of(&item.model) {
            eval.model(at);
        }
    });
    take(&mut found, &mut eval.sink, &c.sources)?;

    let (mut sharding, asked, offload) = p.run("resolve plan", || {
        let walk = share.as_mut().map_or(&mut train, |s| &mut s.walk);
        sharding::resolve(options, &c.program, walk, &mut eval, &mut found)
    });
    take(&mut found, &mut Sink::default(), &c.sources)?;
    if let Some(s) = &mut sharding {
        let mut texts = c.sources.clone();
        s.table = p.run("schedule", || schedule::of_plan(&s.plan, &train.b.graph, options, world, &mut texts))?;
    }
    let mut recipe = recipe(&train, &facts, item, options, &c.sources).map_err(|d| with(d, &c.sources))?;
    let base = options.request.path.parent().unwrap_or(Path::new(""));
    recipe.loads = p.run("map weights", || loads(&c, &train, &facts, item, base, &mut found));
    take(&mut found, &mut Sink::default(), &c.sources)?;
    recipe.origin = p.run("fingerprints", || {
        let plan = options.plan.as_deref();
        let replicas = apart.as_ref().map(|r| r.span).or(single.delayed);
        Origin::of(&c, &options.request.path, (plan, replicas), item, &train)
    });
    let made = p.run("replicas", || match (share, &apart) {
        (Some(s), Some(r)) => replicas::Graphs::apart(s, r),
        _ => Ok(replicas::Graphs::walked(train, &facts)),
    });
    let mut made = made.map_err(|d| with(*d, &c.sources))?;
    if let Some(at) = single.delayed {
        let alone = replicas::alone(at, apart.as_ref(), item).map_err(|d| with(d, &c.sources));
        alone?;
        made = p.run("earlier parameters", || made.delayed());
    }
    made.note(&mut recipe);
    let replicas::Graphs { mut train, init, outer, averages, sample, .. } = made;
    let mut eval = eval.b.finish();

    // Weights that evaluation reads are the averages, where there are any.
    p.run("read averages", || average::read_averages(&mut eval, &train, &averages));
    // What nobody reads at each step is not computed: tools that want an `output` compile it on purpose.
    wanted_outputs(&eval, options).map_err(|d| with(d, &c.sources))?;
    p.run("drop outputs", || {
        train.outputs.retain(|o| o.kind != OutputKind::Value);
        eval.outputs.retain(|o| match o.kind {
            OutputKind::Value => options.outputs.contains(&o.name),
            kind => matches!(kind, OutputKind::Loss | OutputKind::Metric),
        });
    });
    p.graph("eval", &eval, &c.sources)?;
    // A step in microbatches is a rewrite of the whole step, which therefore must be complete.
    if let (Some((parts, span)), Some(sample)) = (single.microbatches, sample) {
        let in_stages = sharding.as_ref().is_some_and(|s| s.table.is_some());
        let cut = if in_stages { stage::accumulate_in_stages } else { stage::accumulate };
        train = p.run("accumulate", || cut(&train, sample, parts as usize)).map_err(|d| {
            let d = match d.primary {
                Some(_) => d.and(span, "microbatches are asked for here"),
                None => d.at(span, "asked for here"),
            };
            with(d, &c.sources)
        })?;
    }
    let outer = outer.map(|(every, g)| (every, prune::prune(&g)));
    let init = p.run("drop zeros", || without_zeros(init));
    let [train, eval, init] = p.run("prune", || [train, eval, init].map(|g| prune::prune(&g)));
    for (name, graph) in [("train-pruned", &train), ("eval-pruned", &eval), ("init-pruned", &init)] {
        p.graph(name, graph, &c.sources)?;
        size::addressable(graph).map_err(|d| with(d, &c.sources))?;
    }
    let findings = Findings { sources: c.sources, sink: found };
    let sharding = sharding.map(|s| s.on(&train));
    let mut g = Graphs {
        findings,
        recipe,
        train,
        eval,
        init,
        outer,
        sharding,
        again: None,
        short: None,
        offload,
        timings: Vec::new(),
    };
    p.run("recompute", || recompute::apply(asked, &mut g, options))?;
    if g.sharding.is_none() && g.again.is_some() {
        p.graph("train-again", &g.train, &g.findings.sources)?;
    }
    g.timings = p.timings;
    Ok(g)
}

/// Parameters and states are zeros before their initial values are computed, so those that begin as zeros need no pass
/// over their memory (of Adam's two moments, twice the model's).
fn without_zeros(mut init: Graph) -> Graph {
    let is_zero = |mut value| loop {
        match init.def_op(value).map(|o| (&o.op, &o.args)) {
            Some((Op::Constant(Constant::Splat(x)), _)) => break x.to_bits() == 0,
            Some((Op::Broadcast { .. }, args)) => value = args[0],
            _ => break false,
        }
    };
    let zeros: Vec<bool> = init.outputs.iter().map(|o| is_zero(o.value)).collect();
    let mut zeros = zeros.into_iter();
    init.outputs.retain(|_| !zeros.next().expect("one for each output"));
    init
}

/// All routines of training.
pub const ALL: &[&str] = &[TRAIN, EVAL, INIT, OUTER];

/// Graphs as a program for this machine: the routines of these names, and those of sampling.
pub fn program(
    g: &mut Graphs,
    routines: &[&str],
    sample: Option<&SampleGraphs>,
    options: &Options,
) -> Outcome<Program> {
    let mut p = Passes::new(options);
    let sources = g.findings.sources.clone();
    if let Some(short) = g.short.take().filter(|_| routines.contains(&TRAIN)) {
        return Err(with(short, &sources));
    }
    let mut module = Module::new(&sources);
    let mut stored = None;
    let mut staged = None;
    let sample = sample.map(|s| of_model(s, &g.train, &g.recipe));
    let sample = sample.as_deref();
    if let Some(programs) = p.run("shard", || sharding::programs(g))? {
        staged = p.run("cut stages", || stages::staged(g, &programs, &options.lowering()))?;
        (g.train, g.eval, g.init) = (programs.train.graph, programs.eval.graph, programs.init.graph);
        if let (Some((_, to)), Some(outer)) = (&mut g.outer, programs.outer) {
            *to = outer.graph;
        }
        stored = g.sharding.take().map(|s| s.storage);
    }
    // What is lowered is not needed any more.
    p.run("lower", || {
        let mut outer = std::mem::take(&mut g.outer).map(|o| o.1);
        if let Some(s) = &staged {
            s.lower_into(&mut module, (&g.init, outer.as_ref()), routines, &options.lowering());
            return;
        }
        let outer = outer.as_mut().map(|g| (OUTER, g));
        for (name, graph) in [(TRAIN, &mut g.train), (EVAL, &mut g.eval), (INIT, &mut g.init)].into_iter().chain(outer)
        {
            if routines.contains(&name) {
                module.add_pruned(name, std::mem::take(graph), &options.lowering());
            }
        }
    });
    if let Some(s) = sample {
        let first = module.program.routines.len();
        p.run("lower sampling", || sample::lower_into(&mut module, s, stored.as_ref(), options))?;
        if staged.is_some() {
            module.keep_copies(first..module.program.routines.len());
        }
    }
    // Offsets come last: they need the final list of steps.
    p.run("plan memory", || memory::plan(&mut module.program, g.offload));
    p.text("kernel", || kernel::print::print(&module))?;
    if options.device.has_gpus(module.program.mesh.ranks()) {
        p.run("compile for GPUs", || gpu::compile(&mut module.program, &module.kernels))?;
        g.timings.append(&mut p.timings);
        return Ok(module.program);
    }
    let target = target()?;
    let code = p.run("generate code", || target.compile(&module.kernels, options.thread_count()));
    module.program.code = code.map_err(|why| internal("generate code", &why))?;
    g.timings.append(&mut p.timings);
    Ok(module.program)
}

/// A sampler beside training: what it reads are not the copies that are trained.
fn of_model<'s>(s: &'s SampleGraphs, train: &Graph, recipe: &Recipe) -> Cow<'s, SampleGraphs> {
    if recipe.copied.is_empty() {
        return Cow::Borrowed(s);
    }
    let number = |c: &Copied| (ParamId(c.param as u32), StateId(c.model as u32));
    let models: Vec<(ParamId, StateId)> = recipe.copied.iter().map(number).collect();
    let mut own = s.clone();
    own.routines.iter_mut().for_each(|(_, g)| average::read_averages(g, train, &models));
    Cow::Owned(own)
}

/// Routines as steps and kernels, without machine code, on one device.
pub fn lowered<'s>(g: &Graphs, routines: &[&str], sources: &'s SourceMap, options: &Options) -> Module<'s> {
    module([&g.train, &g.eval, &g.init], g.outer.as_ref().map(|o| &o.1), routines, sources, options)
}

/// The same of all routines of the ranks that the plan spreads it over: of one of them, which stands for all; of each stage.
pub fn of_rank<'s>(g: &Graphs, p: Option<&Programs>, sources: &'s SourceMap, options: &Options) -> Outcome<Module<'s>> {
    let Some(p) = p else { return Ok(lowered(g, ALL, sources, options)) };
    let Some(staged) = stages::staged(g, p, &options.lowering())? else {
        let outer = p.outer.as_ref().map(|o| &o.graph);
        return Ok(module([&p.train.graph, &p.eval.graph, &p.init.graph], outer, ALL, sources, options));
    };
    let mut module = Module::new(sources);
    let outer = p.outer.as_ref().map(|o| &o.graph);
    staged.lower_into(&mut module, (&p.init.graph, outer), ALL, &options.lowering());
    Ok(module)
}

fn module<'s>(
    graphs: [&Graph; 3],
    outer: Option<&Graph>,
    routines: &[&str],
    sources: &'s SourceMap,
    options: &Options,
) -> Module<'s> {
    let mut module = Module::new(sources);
    for (name, graph) in ALL.iter().zip(graphs.into_iter().chain(outer)) {
        if routines.contains(name) {
            module.add_pruned(name, graph.clone(), &options.lowering());
        }
    }
    module
}

/// The processor that this runs on.
pub fn target() -> Outcome<Target> {
    Target::host().map_err(|why| Findings::of(Diagnostic::error("E0812", why)))
}

/// Every output that is asked for is there.
fn wanted_outputs(eval: &Graph, options: &Options) -> Result<(), Diagnostic> {
    let names: Vec<&str> =
        eval.outputs.iter().filter(|o| o.kind == OutputKind::Value).map(|o| o.name.as_str()).collect();
    match options.outputs.iter().find(|o| !names.contains(&o.as_str())) {
        None => Ok(()),
        Some(missing) => Err(Diagnostic::error("E0201", format!("the model has no output `{missing}`")).help(
            match names.is_empty() {
                true => "the model has none: add `output name = ..` to it".to_string(),
                false => format!("its outputs: {}", names.join(", ")),
            },
        )),
    }
}

/// The train item to use: by name, else the only one, else the first that is named like its model.
pub fn train_item<'a>(options: &Options, c: &'a Checked) -> Result<&'a Train, Diagnostic> {
    let items = c.program.main_items(|i| match i {
        ItemKind::Train(t) => Some(t),
        _ => None,
    });
    let name = |t: &'a Train| t.name.as_ref().unwrap_or(&t.model).text.as_str();
    let names: Vec<&str> = items.iter().map(|t| name(t)).collect();
    if let Some(wanted) = &options.item {
        return items.iter().find(|t| name(t) == wanted).copied().ok_or_else(|| {
            let d = Diagnostic::error("E0711", format!("the file has no train item `{wanted}`"));
            match did_you_mean(wanted, names.iter().copied()) {
                Some(n) => d.help(format!("did you mean `{n}`?")),
                None if names.is_empty() => d.help("add `train Model { .. }`"),
                None => d.help(format!("its train items: {}", names.join(", "))),
            }
        });
    }
    if let [only] = &items[..] {
        return Ok(only);
    }
    items.iter().find(|t| t.name.is_none()).copied().ok_or_else(|| {
        if items.is_empty() {
            Diagnostic::error("E0711", "the file has no train item")
                .help("add `train Model { data .. optimizer .. steps .. }`")
        } else {
            Diagnostic::error("E0711", "the file has several train items")
                .help(format!("choose one with `--item NAME`: {}", names.join(", ")))
        }
    })
}

fn recipe(
    train: &Elab,
    facts: &TrainFacts,
    item: &Train,
    options: &Options,
    sources: &SourceMap,
) -> Result<Recipe, Diagnostic> {
    let graph = &train.b.graph;
    let base = options.request.path.parent().unwrap_or(Path::new(""));
    let info = |path: &str, dtype, dims: &[crate::ir::DimId]| {
        TensorInfo::new(path, dtype, dims.iter().map(|d| graph.size(*d)).collect::<Vec<_>>())
    };
    let inputs = data::inputs(graph, facts.sample_dim);
    let samples = facts.sample_dim.map_or(1, |d| graph.size(d)) as u64;
    let tokens = graph.inputs.iter().find(|i| i.name == "tokens");
    let (unit, units) = match tokens {
        Some(i) => ("tokens", graph.elements(&i.dims) as u64),
        None => ("samples", samples),
    };
    let valid = match &facts.valid {
        Some(v) => {
            let (data, at) = (data::spec(&v.feed, base)?, data::places(&v.feed, sources));
            Some(Valid { data, at, every: v.every, batches: v.batches })
        }
        None => None,
    };
    Ok(Recipe {
        name: facts.name.clone(),
        model: item.model.text.clone(),
        steps: facts.steps.unwrap_or(DEFAULT_STEPS),
        seed: facts.seed,
        save_every: facts.save_every,
        keep: facts.keep,
        save_best: facts.save_best,
        log_every: facts.log_every,
        data: facts.data.as_ref().map(|f| data::spec(f, base)).transpose()?,
        data_at: facts.data.as_ref().map_or_else(Default::default, |f| data::places(f, sources)),
        valid,
        inputs,
        params: graph.params.iter().map(|p| info(&p.path, p.dtype, &p.dims)).collect(),
        states: graph.states.iter().map(|s| (info(&s.path, s.dtype, &s.dims), role(s.kind))).collect(),
        averages: facts.averages.iter().map(|(p, s)| (p.index(), s.index())).collect(),
        copied: Vec::new(),
        outer: None,
        late: 0,
        loads: Vec::new(),
        unit: unit.to_string(),
        units,
        precision: train.precision.name().to_string(),
        origin: Origin::default(),
    })
}

/// The files of weights to begin with, and how their tensors lie in the parameters.
pub fn loads(c: &Checked, train: &Elab, facts: &TrainFacts, item: &Train, base: &Path, sink: &mut Sink) -> Vec<Load> {
    let Some(Entity::Model(model)) = c.program.module(MAIN).names.get(&item.model.text).map(|b| b.entity) else {
        return Vec::new();
    };
    let graph = &train.b.graph;
    let mut out = Vec::new();
    for l in &facts.loads {
        let map = match &l.with {
            Some((name, at)) => weights::map(&c.program, &c.settings, model, name, Some(*at), train.precision, sink),
            None => Some(WeightsMap::own(graph)),
        };
        let params: Vec<usize> = l.params.iter().map(|p| p.index()).collect();
        let states: Vec<usize> = l.states.iter().map(|s| s.index()).collect();
        let at = data::at(l.span, &c.sources);
        out.extend(map.map(|map| Load { path: base.join(&l.path), at, map, params, states }));
    }
    out
}

/// Steps of a train item that does not say.
const DEFAULT_STEPS: u64 = 1000;

pub(super) fn role(kind: StateKind) -> Role {
    match kind {
        StateKind::Model => Role::Model,
        StateKind::Optimizer => Role::Optimizer,
        StateKind::Average | StateKind::Latest => Role::Average,
        StateKind::Scaling => Role::Scaling,
        StateKind::Cache | StateKind::Argument => Role::Cache,
    }
}

/// Stops at errors of reading; warnings go on.
pub fn sound(c: Checked) -> Outcome<Checked> {
    if c.sink.has_errors() {
        return Err(Box::new(Findings { sources: c.sources, sink: c.sink }));
    }
    Ok(c)
}

/// A finding with the texts that it points into.
pub fn with(d: Diagnostic, sources: &SourceMap) -> Box<Findings> {
    let mut out = Findings::of(d);
    out.sources = sources.clone();
    out
}

/// Collects what a walk has found, and stops at errors.
fn take(found: &mut Sink, new: &mut Sink, sources: &SourceMap) -> Outcome<()> {
    found.extend(std::mem::take(new));
    if found.has_errors() {
        return Err(Box::new(Findings { sources: sources.clone(), sink: std::mem::take(found) }));
    }
    Ok(())
}
