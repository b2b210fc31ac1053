//! A sample item as routines of a program: what is computed once, and the steps for one and for several new positions.

use super::check::{self, not_streamable};
use super::findings::{Findings, Outcome};
use super::options::Options;
use super::origin::Author;
use super::pipeline::{sound, target, with};
use super::sharding::{self, Spread};
use super::{plan, size};
use crate::check::constant::Const;
use crate::diag::{Diagnostic, did_you_mean};
use crate::elaborate::sample::{NEXT, SampleFacts, Text};
use crate::elaborate::{Elab, Mode, Settings};
use crate::ir::{self, Graph, StateKind, prune};
use crate::kernel::Module;
use crate::memory;
use crate::program::Program;
use crate::resolve::{self, Entity};
use crate::runtime::RuntimeError;
use crate::runtime::checkpoint::TensorInfo;
use crate::runtime::data::Input;
use crate::runtime::tokenizer::TokenizerFile;
use crate::shard::Storage;
use crate::source::World;
use crate::stream;
use crate::syntax::ast::{
    Arg, DataSource, ExprKind, ItemKind, Sample, StmtKind, TrainKind, TrainLine, TypeDim, TypeName,
};
use crate::types::DType;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// What sampling needs to know beyond its routines.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct SampleRecipe {
    /// Of the sample item.
    pub name: String,
    pub model: String,
    /// The program, for checkpoints.
    #[serde(default)]
    pub author: Author,
    /// The train items that train this model; each writes to a run of its name.
    #[serde(default)]
    pub trained_by: Vec<String>,
    pub params: Vec<TensorInfo>,
    /// Model states that it reads.
    pub states: Vec<TensorInfo>,
    /// Those that it reads, the fed one among them.
    pub inputs: Vec<Input>,
    pub fed: Option<Fed>,
    pub text: Option<TextForm>,
    pub length: Option<u64>,
    pub stop: Option<String>,
    /// The written temperature; None where nothing is drawn.
    pub temperature: Option<f64>,
    /// Whether what does not depend on the fed input is computed first.
    pub prelude: bool,
    /// Names of what is computed, without the next input.
    pub outputs: Vec<String>,
}

/// An input that is fed back.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Fed {
    pub input: String,
    /// Positions that the model has.
    pub capacity: usize,
    /// Positions that a prompt enters by at a time.
    pub chunk: usize,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum TextForm {
    Bytes,
    Chars,
    Ids,
    Tokenizer(TokenizerFile),
}

/// A sample item as graphs.
#[derive(Clone)]
pub struct SampleGraphs {
    pub findings: Findings,
    pub recipe: SampleRecipe,
    /// Routine name and graph, in the order in which they run.
    pub routines: Vec<(&'static str, Graph)>,
    /// How the plan spreads them over ranks; none on one device.
    pub spread: Option<Spread>,
}

pub const PRELUDE: &str = "sample once";
pub const STEP: &str = "sample step";
pub const CHUNK: &str = "sample chunk";
pub const WHOLE: &str = "sample";

/// Positions that a prompt enters by at a time, where the model has that many.
const CHUNK_POSITIONS: usize = 32;

/// Everything up to graphs. The sample dim has one element: prompts are sampled one after another.
pub fn graphs(options: &Options, item: Option<&str>, world: &dyn World) -> Outcome<SampleGraphs> {
    let c = sound(check::load(&options.request, world))?;
    let single = plan::single(options, &c.program).map_err(|d| with(d, &c.sources))?;
    let chosen = sample_item(&c.program, item).map_err(|d| with(d, &c.sources))?;
    let (mut e, facts) = elaborated(&c.program, &c.settings, chosen, single.precision);
    let mut findings = Findings { sources: c.sources.clone(), sink: c.sink.clone() };
    findings.sink.extend(std::mem::take(&mut e.sink));
    let spread = match findings.sink.has_errors() {
        true => None,
        false => sharding::of_sampler(options, &c.program, &mut e, &mut findings.sink),
    };
    if findings.sink.has_errors() {
        return Err(Box::new(findings));
    }
    let temperature = if facts.feed.is_some() { e.free_temperature() } else { None };
    let base = options.request.path.parent().map(PathBuf::from).unwrap_or_default();
    let whole = prune::prune(&e.b.finish());
    let mut recipe = recipe(&facts, chosen, &whole, &base);
    recipe.temperature = temperature;
    recipe.trained_by = trained_by(&c.program, chosen);
    recipe.text = recipe.text.or_else(|| trained_on(&c.program, chosen));
    recipe.author = Author::of(&c, &options.request.path);
    if let Some(feed) = &facts.feed {
        let capacity = whole.size(feed.dim);
        let input = whole.inputs[feed.input.index()].name.clone();
        recipe.fed = Some(Fed { input, capacity, chunk: CHUNK_POSITIONS.min(capacity) });
    }
    let all = spread.is_some().then(|| whole.clone());
    let routines = routines(whole, &facts).map_err(|d| with(d, &findings.sources))?;
    recipe.prelude = routines[0].0 == PRELUDE;
    let spread = spread.zip(all).map(|(s, whole)| s.on(&whole, routines.iter().map(|r| &r.1)));
    Ok(SampleGraphs { findings, recipe, routines, spread })
}

/// Walks a sample item. The sample dim has one element where an input is fed back.
fn elaborated<'a>(
    program: &'a resolve::Program,
    settings: &Settings,
    item: &'a Sample,
    precision: DType,
) -> (Elab<'a>, SampleFacts) {
    let mut settings = settings.clone();
    if item.body.stmts.iter().any(|s| matches!(s.kind, StmtKind::Feed { .. })) {
        one_sample(program, &mut settings);
    }
    let mut e = Elab::new(program, settings, Mode::STREAM, precision);
    let facts = e.sample(item);
    (e, facts)
}

/// The whole graph of a sample item as what is run.
fn routines(whole: Graph, facts: &SampleFacts) -> Result<Vec<(&'static str, Graph)>, Diagnostic> {
    let mut routines = Vec::new();
    match &facts.feed {
        None => routines.push((WHOLE, whole)),
        Some(feed) => {
            let chunk = CHUNK_POSITIONS.min(whole.size(feed.dim));
            let stream =
                |n: usize| stream::stream(&whole, feed.input, feed.dim, n).map_err(|p| not_streamable(p, feed.span));
            let one = stream(1)?;
            routines.extend(one.prelude.map(|p| (PRELUDE, p)));
            routines.push((STEP, prune::prune(&one.graph)));
            if chunk > 1 {
                routines.push((CHUNK, prune::prune(&stream(chunk)?.graph)));
            }
        }
    }
    routines.iter().try_for_each(|(_, graph)| size::addressable(graph))?;
    Ok(routines)
}

/// No value of a sound sample item, as it is run, is larger than an address can say.
pub fn addressable(program: &resolve::Program, settings: &Settings, item: &Sample) -> Result<(), Diagnostic> {
    let (e, facts) = elaborated(program, settings, item, DType::F32);
    if e.failed() {
        return Ok(());
    }
    routines(prune::prune(&e.b.finish()), &facts).map(|_| ())
}

/// Whether the file has a sample item.
pub fn has_item(options: &Options, world: &dyn World) -> Outcome<bool> {
    let c = sound(check::load(&options.request, world))?;
    let items = c.program.main_items(|i| match i {
        ItemKind::Sample(s) => Some(s),
        _ => None,
    });
    Ok(!items.is_empty())
}

/// Adds the routines to a program under construction, whose parameters and states may be stored in a way of their own.
pub fn lower_into(module: &mut Module, g: &SampleGraphs, stored: Option<&Storage>, options: &Options) -> Outcome<()> {
    let lowering = options.lowering();
    let spread = g.spread.as_ref().map(|s| s.beside(stored.unwrap_or(&Storage::default())));
    for (name, graph) in &g.routines {
        let own = spread.as_ref().map(|s| s.routine(graph)).transpose()?;
        module.add(name, own.as_ref().unwrap_or(graph), &lowering);
    }
    Ok(())
}

/// A program that samples and does nothing else.
pub fn program(g: &SampleGraphs, options: &Options) -> Outcome<Program> {
    let sources = g.findings.sources.clone();
    let mut module = Module::new(&sources);
    lower_into(&mut module, g, None, options)?;
    memory::plan_all(&mut module.program);
    let code = target()?.compile(&module.kernels, options.thread_count());
    module.program.code = code.map_err(|why| super::passes::internal("generate code", &why))?;
    Ok(module.program)
}

/// A sample item for the file's model: tokens in sequence are fed back, of other models an output is given.
fn first_sample(program: &resolve::Program) -> String {
    let Some(model) = program.models().first().map(|at| program.model(*at)) else {
        return "add a model, and `sample Model { output name = .. }`".to_string();
    };
    let name = &model.name.text;
    let named = |a: &Arg| -> Vec<String> {
        (a.ty.dims.iter().flatten())
            .filter_map(|d| if let TypeDim::Dim(n) = d { Some(n.text.clone()) } else { None })
            .collect()
    };
    let tokens = model
        .args
        .iter()
        .find(|a| a.default.is_none() && a.ty.dtype.is_some_and(|(t, _)| t == TypeName::Int) && named(a).len() == 2);
    if let Some(a) = tokens {
        return format!("add `sample {name} {{ feed {}[{}] = draw[vocab](logits) }}`", a.name.text, named(a)[1]);
    }
    let output = model.body.stmts.iter().find_map(|s| match &s.kind {
        StmtKind::Output { name, .. } => Some(name.text.as_str()),
        _ => None,
    });
    match output {
        Some(output) => format!("say what it gives: `sample {name}() {{ output result = {output} }}`"),
        None => format!("add an `output y = ..` to the model, and `sample {name}() {{ output result = y }}`"),
    }
}

fn sample_item<'a>(program: &'a resolve::Program, wanted: Option<&str>) -> Result<&'a Sample, Diagnostic> {
    let items = program.main_items(|i| match i {
        ItemKind::Sample(s) => Some(s),
        _ => None,
    });
    let name = |s: &'a Sample| s.name.as_ref().unwrap_or(&s.model).text.as_str();
    let names: Vec<&str> = items.iter().map(|s| name(s)).collect();
    let found = match wanted {
        Some(w) => items.iter().find(|s| name(s) == w),
        None if items.len() == 1 => items.first(),
        None => items.iter().find(|s| s.name.is_none()),
    };
    found.copied().ok_or_else(|| match wanted {
        Some(w) => {
            let d = Diagnostic::error("E0711", format!("the file has no sample item `{w}`"));
            d.help(match did_you_mean(w, names.iter().copied()) {
                Some(n) => format!("did you mean `{n}`?"),
                None => format!("its sample items: {}", names.join(", ")),
            })
        }
        None if names.is_empty() => {
            Diagnostic::error("E0711", "the file has no sample item").help(first_sample(program))
        }
        None => Diagnostic::error("E0711", "the file has several sample items")
            .help(format!("choose one with `--item NAME`: {}", names.join(", "))),
    })
}

/// The names of the train items of a sample item's model.
fn trained_by(program: &resolve::Program, sample: &Sample) -> Vec<String> {
    let names = program.main_items(|i| match i {
        ItemKind::Train(t) if t.model.text == sample.model.text => Some(t.name.as_ref().unwrap_or(&t.model)),
        _ => None,
    });
    names.into_iter().map(|n| n.text.clone()).collect()
}

/// How the data that the model is trained on writes ids, where the sample item does not say.
fn trained_on(program: &resolve::Program, sample: &Sample) -> Option<TextForm> {
    let source = |line: &TrainLine| match &line.kind {
        TrainKind::Data { valid: false, source: DataSource::Stream(e), .. } => match &*e.kind {
            ExprKind::Call { callee, .. } => match &*callee.kind {
                ExprKind::Name(n) => Some(n.clone()),
                _ => None,
            },
            _ => None,
        },
        _ => None,
    };
    let sources = program.main_items(|i| match i {
        ItemKind::Train(t) if t.model.text == sample.model.text => Some(t.lines.iter().find_map(source)),
        _ => None,
    });
    match sources.into_iter().flatten().next()?.as_str() {
        "tokens" => Some(TextForm::Ids),
        "chars" => Some(TextForm::Chars),
        "bytes" => Some(TextForm::Bytes),
        _ => None,
    }
}

impl SampleRecipe {
    /// The train item whose initial weights it samples with: the only one of its model, or the one that is named like the
    /// sample item, or like the model.
    pub fn begun_by(&self) -> Result<&str, RuntimeError> {
        let named = |wanted: &str| self.trained_by.iter().find(|n| *n == wanted);
        let found = match &self.trained_by[..] {
            [only] => Some(only),
            _ => named(&self.name).or_else(|| named(&self.model)),
        };
        found.map(String::as_str).ok_or_else(|| match self.trained_by.is_empty() {
            true => RuntimeError::new(
                "E0711",
                format!("no train item of `{}` says what its weights begin with", self.model),
            )
            .help(format!("add `train {} {{ load .. }}`", self.model)),
            false => RuntimeError::new(
                "E0711",
                format!("several train items of `{}` say what its weights begin with", self.model),
            )
            .help(format!("name the sample item like one of them: {}", self.trained_by.join(", "))),
        })
    }
}

/// Sets the sample dim to 1.
fn one_sample(program: &resolve::Program, settings: &mut Settings) {
    let Some(main) = program.modules.first() else { return };
    let named = program.main_items(|i| match i {
        ItemKind::Train(t) => t.lines.iter().find_map(|l| match &l.kind {
            crate::syntax::ast::TrainKind::Samples { dim, .. } => Some(dim.text.as_str()),
            _ => None,
        }),
        _ => None,
    });
    let name = named.first().copied().unwrap_or("batch");
    if let Some(Entity::Dim(at)) = main.names.get(name).map(|b| b.entity) {
        settings.values.insert(at, Const::int(1));
    }
}

fn recipe(facts: &SampleFacts, item: &Sample, g: &Graph, base: &std::path::Path) -> SampleRecipe {
    let info = |path: &str, dtype: DType, dims: &[ir::DimId]| {
        TensorInfo::new(path, dtype, dims.iter().map(|d| g.size(*d)).collect::<Vec<_>>())
    };
    SampleRecipe {
        name: facts.name.clone(),
        model: item.model.text.clone(),
        author: Author::default(),
        trained_by: Vec::new(),
        params: g.params.iter().map(|p| info(&p.path, p.dtype, &p.dims)).collect(),
        states: (g.states.iter())
            .filter(|s| s.kind == StateKind::Model)
            .map(|s| info(&s.path, s.dtype, &s.dims))
            .collect(),
        // Tables keep the inputs of the whole model; those that the sampler does not read need no value.
        inputs: (super::data::inputs(g, None).into_iter().enumerate())
            .filter(|(n, _)| g.ops.iter().any(|o| matches!(o.op, ir::Op::Input(i) if i.index() == *n)))
            .map(|(_, input)| input)
            .collect(),
        fed: None,
        text: facts.text.as_ref().map(|(t, _)| match t {
            Text::Bytes => TextForm::Bytes,
            Text::Chars => TextForm::Chars,
            Text::Ids => TextForm::Ids,
            Text::Tokenizer(p) => TextForm::Tokenizer(TokenizerFile::at(base.join(p))),
        }),
        length: facts.length,
        stop: facts.stop.clone(),
        temperature: None,
        prelude: false,
        outputs: g.outputs.iter().filter(|o| o.name != NEXT).map(|o| o.name.clone()).collect(),
    }
}

/// Writes an array as a NumPy file (version 1.0 of the format), bf16 as f32.
pub fn write_npy(path: &std::path::Path, s: &super::sampler::Sampled) -> Result<(), RuntimeError> {
    let failed = |e: std::io::Error| {
        RuntimeError::new("E0813", format!("cannot write `{}`: {e}", path.display()))
            .help("see that the directory is there, writable, and has space")
    };
    let (descr, bytes) = match s.dtype {
        DType::Bool => ("|b1", s.bytes.clone()),
        DType::I32 => ("<i4", s.bytes.clone()),
        DType::F32 => ("<f4", s.bytes.clone()),
        DType::F64 => ("<f8", s.bytes.clone()),
        DType::F16 => ("<f2", s.bytes.clone()),
        DType::BF16 => {
            let wide = super::engine::numbers(s.dtype, &s.bytes);
            ("<f4", wide.into_iter().flat_map(|x| (x as f32).to_le_bytes()).collect())
        }
    };
    let shape: String = s.shape.iter().map(|n| format!("{n},")).collect();
    let mut header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({shape}), }}");
    // The whole header is a multiple of 64 bytes and ends with a line end.
    let padding = 63 - (10 + header.len()) % 64;
    header.push_str(&" ".repeat(padding));
    header.push('\n');
    let mut all = b"\x93NUMPY\x01\x00".to_vec();
    all.extend((header.len() as u16).to_le_bytes());
    all.extend(header.as_bytes());
    all.extend(bytes);
    std::fs::write(path, all).map_err(failed)
}
