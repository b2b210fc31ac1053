//! `partita sample`: text from a trained model, as it is drawn; or the arrays of a written-out sampler.

use super::args::{CompileArgs, DeviceArgs};
use super::output::Output;
use super::{Code, OK, profile, train};
use crate::diag::Diagnostic;
use crate::driver::compile::{self, Compilation};
use crate::driver::findings::{Findings, Outcome};
use crate::driver::recipe::Recipe;
use crate::driver::sample::{self, STEP, SampleRecipe, WHOLE};
use crate::driver::sampler::{Draws, Sampler, Weights};
use crate::program::Program;
use crate::runtime::RuntimeError;
use crate::runtime::checkpoint::Checkpoint;
use crate::runtime::exec::ExecOptions;
use crate::runtime::tokenizer::Codec;
use crate::source::{Disk, SourceMap};
use clap::Args;
use std::path::{Path, PathBuf};

/// What to sample.
#[derive(Args, Debug)]
pub struct SampleArgs {
    #[command(flatten)]
    pub compile: CompileArgs,
    #[command(flatten)]
    pub device: DeviceArgs,
    #[command(flatten)]
    pub how: How,
}

/// What does not depend on the program's text.
#[derive(Args, Debug)]
pub struct How {
    /// The run or checkpoint to sample from [default: that of the model's train item]
    #[arg(long, value_name = "DIR", conflicts_with = "initial")]
    pub checkpoint: Option<PathBuf>,
    /// Sample with the weights that training begins with, such as those of a `load`
    #[arg(long)]
    pub initial: bool,
    /// Text to go on from (may be given several times)
    #[arg(long, value_name = "TEXT")]
    pub prompt: Vec<String>,
    /// The value of another input of the item: an .npy file, a number for all elements, a number for each (1,2,3), or
    /// text for a sequence (may be given several times)
    #[arg(long, value_name = "NAME=VALUE", value_parser = input)]
    pub input: Vec<(String, String)>,
    /// The most elements (bytes, characters, tokens) to draw
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub length: Option<u64>,
    /// How many samples of each prompt
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    pub count: u64,
    /// Seed of the draws
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
    /// Divides the logits; 0 takes the most likely element
    #[arg(long, value_name = "T")]
    pub temperature: Option<f64>,
    /// Draw among the K most likely elements alone; 0: among all
    #[arg(long, value_name = "K")]
    pub top_k: Option<u32>,
    /// Draw among the most likely elements that together have this probability
    #[arg(long, value_name = "P")]
    pub top_p: Option<f64>,
    /// Say at the end where the time of a token (of a written-out sampler: of a sample) went
    #[arg(long)]
    pub profile: bool,
    /// Where the arrays of a written-out sampler go, as .npy files
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
}

fn input(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.trim().is_empty() => Ok((name.trim().to_string(), value.to_string())),
        _ => Err("expected NAME=VALUE".to_string()),
    }
}

/// Elements drawn where neither the item nor the command line says.
const DEFAULT_LENGTH: u64 = 200;

pub fn run(args: &SampleArgs, threads: usize, out: &mut Output) -> Code {
    match compiled(args, threads, out) {
        Ok(code) => code,
        Err(findings) => out.findings(&findings),
    }
}

fn compiled(args: &SampleArgs, threads: usize, out: &mut Output) -> Outcome<Code> {
    let mut options = args.compile.options(threads);
    options.device = args.device.choose(args.how.profile.then_some("--profile"))?;
    let Compilation { findings, recipe: (recipe, begun), program, timings } =
        compile::sampling(&options, args.how.initial, &Disk)?;
    train::warnings(&findings, out);
    if args.compile.timings {
        train::timings(&timings, out);
    }
    sampled(program, recipe, begun.as_ref(), &args.how, threads, &findings.sources, out)
}

/// Samples from a compiled program. `begun`: the train item whose initial weights may be asked for.
pub fn sampled(
    program: Program,
    recipe: SampleRecipe,
    begun: Option<&Recipe>,
    how: &How,
    threads: usize,
    sources: &SourceMap,
    out: &mut Output,
) -> Outcome<Code> {
    let found;
    let from = match begun.filter(|_| how.initial) {
        Some(begun) => Weights::Initial(begun),
        None => {
            found = checkpoint(&recipe, how.checkpoint.as_deref())?;
            if let Some(d) = recipe.author.warning(&found) {
                out.findings(&Findings::of(d));
            }
            Weights::Trained(&found)
        }
    };
    let draws = Draws { temperature: how.temperature, top_k: how.top_k, top_p: how.top_p };
    let options = ExecOptions { threads, timing: how.profile, ..ExecOptions::default() };
    let mut sampler = Sampler::open(program, recipe, from, draws, how.seed, options)
        .map_err(|stop| Findings::of_stop(stop, sources))?;
    sampler.set_inputs(&how.input)?;
    if sampler.recipe().fed.is_none() {
        return arrays(&mut sampler, how, sources, out);
    }
    let codec = sampler.codec()?;
    let length = how.length.or(sampler.recipe().length).unwrap_or(DEFAULT_LENGTH);
    let prompts: Vec<String> = if how.prompt.is_empty() { vec![String::new()] } else { how.prompt.clone() };
    let mut number = 0;
    for prompt in &prompts {
        let ids = prompt_ids(&*codec, prompt)?;
        positions(sampler.recipe(), ids.len() as u64, length, out);
        for _ in 0..how.count {
            if !out.open() {
                return Ok(OK);
            }
            if number > 0 {
                out.line("\n---");
            }
            one(&mut sampler, &*codec, (prompt, &ids), length, number, out)
                .map_err(|stop| Findings::of_stop(stop, sources))?;
            number += 1;
        }
    }
    out.line("");
    if how.profile {
        profile::print(sampler.machine_mut(), STEP, "token", out);
    }
    Ok(OK)
}

/// The checkpoint that is named; or that of the only run of the model, or of the run that is named like the sample item.
fn checkpoint(recipe: &SampleRecipe, named: Option<&Path>) -> Outcome<Checkpoint> {
    if let Some(dir) = named {
        return Ok(Checkpoint::open(dir)?);
    }
    let run = |name: &str| Path::new("runs").join(name);
    if let [only] = &recipe.trained_by[..] {
        return Ok(Checkpoint::open(&run(only))?);
    }
    Checkpoint::open(&run(&recipe.name)).map_err(|e| {
        let runs: Vec<String> = recipe.trained_by.iter().map(|n| format!("`{}`", run(n).display())).collect();
        match runs.is_empty() {
            true => e.into(),
            false => e.help(format!("choose a run of its model with `--checkpoint DIR`: {}", runs.join(", "))).into(),
        }
    })
}

/// Says so where a sample is longer than what the model looks back on.
fn positions(recipe: &SampleRecipe, prompt: u64, length: u64, out: &Output) {
    let Some(fed) = &recipe.fed else { return };
    let (capacity, keep) = (fed.capacity, fed.capacity.div_ceil(2));
    if prompt + length > capacity as u64 + 1 {
        out.say(format!(
            "the model has {capacity} positions: beyond them it goes on from the last {keep} elements alone"
        ));
    }
}

/// The prompt as ids; where there is none, what begins a text: a line end, or the tokenizer's own mark.
fn prompt_ids(codec: &dyn Codec, prompt: &str) -> Outcome<Vec<u32>> {
    let text = if prompt.is_empty() { "\n" } else { prompt };
    let ids = match (codec.begin(), prompt.is_empty()) {
        (Some(id), true) => vec![id],
        _ => codec.encode(text)?,
    };
    if ids.is_empty() {
        return Err(Findings::of(
            Diagnostic::error("E0902", "the prompt holds no token").help("give some text: `--prompt \"Once\"`"),
        ));
    }
    Ok(ids)
}

fn one(
    sampler: &mut Sampler,
    codec: &dyn Codec,
    (prompt, ids): (&str, &[u32]),
    length: u64,
    number: u64,
    out: &mut Output,
) -> Result<(), crate::driver::findings::Stop> {
    out.text(prompt);
    let stop = sampler.recipe().stop.clone();
    // Special tokens have no text; one that is named as the stop ends the sample by its id.
    let last = stop.as_ref().and_then(|s| codec.special(s));
    let mut decoder = codec.decoder();
    // How a token is written may depend on the one before it: the first one follows the prompt.
    for &id in ids {
        decoder.push(id)?;
    }
    let mut text = String::new();
    sampler.generate(ids, length, number, &mut |id| -> Result<bool, RuntimeError> {
        if Some(id) == last {
            return Ok(false);
        }
        let new = decoder.push(id)?;
        text.push_str(&new);
        out.text(&new);
        Ok(out.open() && stop.as_ref().is_none_or(|s| !text.contains(s.as_str())))
    })?;
    out.text(&decoder.finish());
    Ok(())
}

fn arrays(sampler: &mut Sampler, how: &How, sources: &SourceMap, out: &mut Output) -> Outcome<Code> {
    let dir = how.out.clone().unwrap_or_else(|| PathBuf::from("samples"));
    std::fs::create_dir_all(&dir).map_err(|e| {
        RuntimeError::new("E0813", format!("cannot make the directory `{}`: {e}", dir.display()))
            .help("give another with `--out DIR`")
    })?;
    for number in 0..how.count {
        let found = sampler.whole(number).map_err(|stop| Findings::of_stop(stop, sources))?;
        for s in found {
            let name = if how.count > 1 { format!("{}-{number}.npy", s.name) } else { format!("{}.npy", s.name) };
            let path = dir.join(name);
            sample::write_npy(&path, &s)?;
            out.line(format!("{}: {} {:?}", path.display(), s.dtype, s.shape));
        }
    }
    if how.profile {
        profile::print(sampler.machine_mut(), WHOLE, "sample", out);
    }
    Ok(OK)
}
