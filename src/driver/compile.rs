//! Compiled items, taken from the cache where the same was compiled before.
//!
//! An entry is found by all that says what to compile and how, and by whom: the text of the main file, settings, the
//! processor, this very compiler. It holds every other file that was read, and counts only while all of them read the
//! same. Warnings are kept with it, so a run that is not compiled says what one that is compiled says.

use super::build::Bundle;
use super::cache::Cache;
use super::findings::{Findings, Outcome};
use super::options::Options;
use super::pipeline::{self, Graphs, target};
use super::recipe::Recipe;
use super::sample::{self, SampleRecipe};
use crate::diag::{Diagnostic, Sink};
use crate::kernel::Bands;
use crate::program::{self, Program};
use crate::source::{SourceMap, World};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

/// A compiled item with what running it needs to know.
pub struct Compilation<R> {
    /// The texts, and warnings.
    pub findings: Findings,
    pub recipe: R,
    pub program: Program,
    pub timings: Vec<(&'static str, Duration)>,
}

/// What is compiled, beside what [`Options`] say.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
enum What {
    Training,
    Evaluation { initial: bool },
    Sampling { initial: bool },
    Everything,
}

/// A train item, if `check` accepts the program.
pub fn training(options: &Options, world: &dyn World) -> Outcome<Compilation<Recipe>> {
    kept(options, What::Training, world, |world| {
        compiled(pipeline::checked_graphs(options, world)?, pipeline::ALL, options)
    })
}

/// A train item's evaluation, and its initial values if these are to be evaluated.
pub fn evaluation(options: &Options, initial: bool, world: &dyn World) -> Outcome<Compilation<Recipe>> {
    let routines = if initial { pipeline::ALL } else { &[pipeline::EVAL] };
    kept(options, What::Evaluation { initial }, world, |world| {
        compiled(pipeline::graphs(options, world)?, routines, options)
    })
}

/// A sample item; with `initial` also the initial values of the train item that trains its model.
pub fn sampling(
    options: &Options,
    initial: bool,
    world: &dyn World,
) -> Outcome<Compilation<(SampleRecipe, Option<Recipe>)>> {
    kept(options, What::Sampling { initial }, world, |world| {
        let g = sample::graphs(options, options.item.as_deref(), world)?;
        if !initial {
            let program = sample::program(&g, options)?;
            return Ok(Compilation { findings: g.findings, recipe: (g.recipe, None), program, timings: Vec::new() });
        }
        let options = Options { item: Some(g.recipe.begun_by()?.to_string()), ..options.clone() };
        let mut begun = pipeline::graphs(&options, world)?;
        let program = pipeline::program(&mut begun, &[pipeline::INIT], Some(&g), &options)?;
        let recipe = (g.recipe, Some(begun.recipe));
        Ok(Compilation { findings: g.findings, recipe, program, timings: begun.timings })
    })
}

/// All that a built program does.
pub fn everything(options: &Options, world: &dyn World) -> Outcome<Compilation<Bundle>> {
    kept(options, What::Everything, world, |world| {
        let mut g = pipeline::checked_graphs(options, world)?;
        let sampling = match sample::has_item(options, world)? {
            true => Some(sample::graphs(options, None, world)?),
            false => None,
        };
        let program = pipeline::program(&mut g, pipeline::ALL, sampling.as_ref(), options)?;
        let recipe = Bundle { recipe: g.recipe, sample: sampling.map(|s| s.recipe) };
        Ok(Compilation { findings: g.findings, recipe, program, timings: g.timings })
    })
}

fn compiled(mut g: Graphs, routines: &[&str], options: &Options) -> Outcome<Compilation<Recipe>> {
    let program = pipeline::program(&mut g, routines, None, options)?;
    Ok(Compilation { findings: g.findings, recipe: g.recipe, program, timings: g.timings })
}

/// All that an entry depends on, but for the files that the main one imports.
#[derive(Serialize)]
struct Key<'a> {
    partita: &'static str,
    program: u32,
    /// Size and time of the executable: a compiler under development keeps its version.
    compiler: (u64, u128),
    target: &'a str,
    what: What,
    path: &'a Path,
    /// Checkpoints name the program by its absolute path.
    absolute: PathBuf,
    text: Vec<u8>,
    presets: &'a [String],
    sets: &'a [(String, String)],
    item: Option<&'a str>,
    plan: Option<&'a str>,
    mesh: &'a [(String, u64)],
    precision: Option<crate::types::DType>,
    outputs: &'a [String],
    unfused: bool,
    bands: Bands,
    gpu: Option<(bool, u32, usize)>,
}

/// What an entry holds.
#[derive(Serialize, Deserialize)]
struct Entry<R> {
    reads: Reads,
    texts: Vec<(String, String)>,
    found: Vec<Diagnostic>,
    recipe: R,
    program: Program,
}

/// Files and what was read.
type Reads = Vec<(PathBuf, Result<Vec<u8>, String>)>;

/// Takes from the cache or makes, and then keeps; the program runs on the devices that are asked for.
fn kept<R: Serialize + DeserializeOwned>(
    options: &Options,
    what: What,
    world: &dyn World,
    make: impl FnOnce(&dyn World) -> Outcome<Compilation<R>>,
) -> Outcome<Compilation<R>> {
    let mut made = taken(options, what, world, make)?;
    if let Some(gpu) = &mut made.program.gpu {
        gpu.devices = options.device.numbers();
    }
    Ok(made)
}

fn taken<R: Serialize + DeserializeOwned>(
    options: &Options,
    what: What,
    world: &dyn World,
    make: impl FnOnce(&dyn World) -> Outcome<Compilation<R>>,
) -> Outcome<Compilation<R>> {
    // Whoever wants to see what passes leave wants them to run.
    let Some(cache) = options.cache.as_ref().filter(|_| options.dump.is_none()) else { return make(world) };
    let world = Once { world, reads: Mutex::default() };
    let start = Instant::now();
    let Some(key) = key(options, what, &world) else { return make(&world) };
    if let Some(mut found) = found(cache, &key, &world) {
        found.timings.push(("read cache", start.elapsed()));
        return Ok(found);
    }
    let mut made = make(&world)?;
    let start = Instant::now();
    let entry = Entry {
        reads: world.reads.into_inner().unwrap_or_else(PoisonError::into_inner),
        texts: made.findings.sources.files().map(|(_, f)| (f.name.clone(), f.text.clone())).collect(),
        found: made.findings.sink.sorted(),
        recipe: made.recipe,
        program: made.program,
    };
    if let Ok(bytes) = postcard::to_stdvec(&entry) {
        // A cache that cannot be written is none; `partita doctor` says why.
        let _ = cache.put(&key, &bytes);
    }
    made.timings.push(("write cache", start.elapsed()));
    Ok(Compilation { recipe: entry.recipe, program: entry.program, ..made })
}

/// None where something cannot be known, which compiling then reports.
fn key(options: &Options, what: What, world: &dyn World) -> Option<Vec<u8>> {
    let path = &options.request.path;
    let executable = std::fs::metadata(std::env::current_exe().ok()?).ok()?;
    let made = executable.modified().ok()?.duration_since(SystemTime::UNIX_EPOCH).ok()?;
    let target = target().ok()?;
    let key = Key {
        partita: env!("CARGO_PKG_VERSION"),
        program: program::VERSION,
        compiler: (executable.len(), made.as_nanos()),
        target: target.name(),
        what,
        path,
        absolute: std::fs::canonicalize(path).or_else(|_| std::path::absolute(path)).ok()?,
        text: world.read(path).ok()?,
        presets: &options.request.presets,
        sets: &options.request.sets,
        item: options.item.as_deref(),
        plan: options.plan.as_deref(),
        mesh: &options.mesh,
        precision: options.precision,
        outputs: &options.outputs,
        unfused: options.unfused,
        bands: options.bands,
        gpu: options.device.key(),
    };
    postcard::to_stdvec(&key).ok()
}

fn found<R: DeserializeOwned>(cache: &Cache, key: &[u8], world: &dyn World) -> Option<Compilation<R>> {
    let entry: Entry<R> = postcard::from_bytes(&cache.get(key)?).ok()?;
    if entry.reads.iter().any(|(path, before)| world.read(path) != *before) {
        return None;
    }
    let (mut sources, mut sink) = (SourceMap::default(), Sink::default());
    for (name, text) in entry.texts {
        sources.add(name, text);
    }
    entry.found.into_iter().for_each(|d| sink.push(d));
    let findings = Findings { sources, sink };
    Some(Compilation { findings, recipe: entry.recipe, program: entry.program, timings: Vec::new() })
}

/// Reads every file once, so that all passes see one text, and notes what was read.
struct Once<'w> {
    world: &'w dyn World,
    reads: Mutex<Reads>,
}

impl World for Once<'_> {
    fn read(&self, path: &Path) -> Result<Vec<u8>, String> {
        let mut reads = self.reads.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, known)) = reads.iter().find(|(p, _)| p == path) {
            return known.clone();
        }
        let read = self.world.read(path);
        reads.push((path.to_path_buf(), read.clone()));
        read
    }
}
