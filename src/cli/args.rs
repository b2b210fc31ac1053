//! The arguments of every subcommand.

use crate::driver::gpu::Device;
use crate::driver::recipe::{Overrides, Recipe};
use crate::driver::train::TrainRequest;
use crate::driver::{Options, Request, plan};
use crate::runtime::RuntimeError;
use crate::runtime::exec::ExecOptions;
use crate::types::DType;
use clap::{Args, Parser, Subcommand, ValueEnum};
use std::path::PathBuf;

#[derive(Parser, Debug)]
#[command(name = "partita", version, about = "A language for neural networks, and its compiler", max_term_width = 100)]
pub struct Cli {
    /// When to use colours
    #[arg(long, global = true, value_enum, default_value_t = ColorChoice::Auto, value_name = "WHEN")]
    pub color: ColorChoice,
    /// Threads to use; 0 means as many as there are processors
    #[arg(long, global = true, default_value_t = 0, value_name = "N", value_parser = threads)]
    pub threads: usize,
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum ColorChoice {
    Auto,
    Always,
    Never,
}

#[derive(Subcommand, Debug)]
pub enum Command {
    /// Check a program and count its parameters
    Check(CheckArgs),
    /// Train a model
    Train(TrainArgs),
    /// Sample from a trained model
    Sample(super::sample::SampleArgs),
    /// Evaluate a checkpoint on validation data
    Eval(EvalArgs),
    /// Say how much memory a program needs, exactly
    Memory(MemoryArgs),
    /// Show what the ranks of a plan send: every collective of a step
    Comm(CommArgs),
    /// Show the schedule of a plan's pipeline: its timeline, idle time, memory and certificate
    Schedule(ScheduleArgs),
    /// Run a plan on emulated ranks in f64 and compare with one device
    Verify(VerifyArgs),
    /// Write one executable that trains, evaluates and samples by itself
    Build(BuildArgs),
    /// Write the weights of a checkpoint to a safetensors file
    Export(ExportArgs),
    /// Format programs
    Fmt(FmtArgs),
    /// Show a program in one of its intermediate forms
    Ir(IrArgs),
    /// Explain an error code
    Explain {
        /// A code such as E0301
        code: String,
    },
    /// Print the reference of a module of the standard library
    Std {
        /// A module such as nn; without it, the names of all
        module: Option<String>,
        /// Print the module's source
        #[arg(long)]
        source: bool,
    },
    /// Report what this machine offers
    Doctor,
    /// Measure this machine for modelled times: what `schedule --machine` reads
    Calibrate(CalibrateArgs),
    /// Print a completion script for a shell
    Completions { shell: clap_complete::Shell },
}

/// Which program, and with what settings.
#[derive(Args, Debug, Clone)]
pub struct SourceArgs {
    /// The program, a `.pta` file
    pub file: PathBuf,
    /// Apply a preset of the file (may be given several times)
    #[arg(long, value_name = "NAME")]
    pub preset: Vec<String>,
    /// Set a dim, a constant, or train.steps, train.seed, train.clip (may be given several times)
    #[arg(long, value_name = "NAME=VALUE", value_parser = pair)]
    pub set: Vec<(String, String)>,
}

/// How to compile it.
#[derive(Args, Debug, Clone)]
pub struct CompileArgs {
    #[command(flatten)]
    pub source: SourceArgs,
    /// The train item to use, where the file has several
    #[arg(long, value_name = "NAME")]
    pub item: Option<String>,
    /// The plan to use; without it, one device (of `comm`, `schedule`, `verify`, `ir --stage layouts|spmd|schedule`: the file's only plan)
    #[arg(long, value_name = "NAME")]
    pub plan: Option<String>,
    /// Sizes of the plan's mesh axes, such as dp=2,tp=4
    #[arg(long, value_name = "AXIS=N,..", value_parser = axis, value_delimiter = ',')]
    pub mesh: Vec<(String, u64)>,
    /// Working precision: f64, f32, bf16 or f16
    #[arg(long, value_name = "TYPE", value_parser = precision)]
    pub precision: Option<DType>,
    /// Write what each pass leaves to files in a directory
    #[arg(long, value_name = "DIR")]
    pub dump: Option<PathBuf>,
    /// Say how long each pass took
    #[arg(long)]
    pub timings: bool,
}

/// What runs it.
#[derive(Args, Debug, Clone)]
pub struct DeviceArgs {
    /// What runs it: cpu, cuda, or cuda:0,1 for the GPUs of these numbers, one for each rank [default: GPUs where there are enough]
    #[arg(long, value_name = "DEVICE")]
    pub device: Option<String>,
}

#[derive(Args, Debug)]
pub struct CheckArgs {
    #[command(flatten)]
    pub source: SourceArgs,
    /// Judge the layouts of a plan, too
    #[arg(long, value_name = "NAME")]
    pub plan: Option<String>,
    /// The same with other sizes of its mesh axes, such as dp=2,tp=4; without `--plan`, of the file's only plan
    #[arg(long, value_name = "AXIS=N,..", value_parser = axis, value_delimiter = ',')]
    pub mesh: Vec<(String, u64)>,
    /// Report as JSON, one object a line
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub struct TrainArgs {
    #[command(flatten)]
    pub compile: CompileArgs,
    #[command(flatten)]
    pub device: DeviceArgs,
    #[command(flatten)]
    pub how: TrainHow,
    /// Compile, but do not run
    #[arg(long)]
    pub dry_run: bool,
    /// Stop at the first value that is not finite, and name its line (slow)
    #[arg(long)]
    pub debug_nan: bool,
    /// What runs the steps
    #[arg(long, value_enum, default_value_t = EngineChoice::Cpu, hide = true)]
    pub engine: EngineChoice,
}

/// What of training does not depend on the program's text.
#[derive(Args, Debug)]
pub struct TrainHow {
    /// Steps to train, over what the item says
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub steps: Option<u64>,
    /// Seed of initial weights, data order and random draws
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// Data in the place of the item's first file; NAME=FILE: of that of an input, or of the file of that name (may be
    /// given several times)
    #[arg(long, value_name = "[NAME=]FILE")]
    pub data: Vec<PathBuf>,
    /// The same for files of `valid` alone
    #[arg(long, value_name = "[NAME=]FILE")]
    pub valid: Vec<PathBuf>,
    /// Where checkpoints go [default: runs/NAME, by the train item]
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Go on from the newest checkpoint
    #[arg(long)]
    pub resume: bool,
    /// Write the figures of each step to a file, as JSON lines
    #[arg(long, value_name = "FILE")]
    pub metrics: Option<PathBuf>,
    /// Write no checkpoint, not even at the end
    #[arg(long, conflicts_with = "resume")]
    pub no_save: bool,
    /// Say at the end where the time of a step goes, kernel by kernel and line by line
    #[arg(long)]
    pub profile: bool,
    /// Write when each kernel ran to a file, as JSON for Perfetto (ui.perfetto.dev)
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub struct EvalArgs {
    #[command(flatten)]
    pub compile: CompileArgs,
    #[command(flatten)]
    pub device: DeviceArgs,
    #[command(flatten)]
    pub how: EvalHow,
    /// Write an `output` of the model, for all batches, to an .npy file (may be given several times)
    #[arg(long, value_name = "NAME=FILE", value_parser = output)]
    pub output: Vec<(String, PathBuf)>,
}

#[derive(Args, Debug)]
pub struct EvalHow {
    /// The run or checkpoint to evaluate [default: runs/NAME, by the train item]
    #[arg(long, value_name = "DIR", conflicts_with = "initial")]
    pub checkpoint: Option<PathBuf>,
    /// Evaluate the weights that training begins with
    #[arg(long)]
    pub initial: bool,
    /// Data to evaluate on, in the place of the item's first file; NAME=FILE: of that of an input, or of the file of that
    /// name (may be given several times)
    #[arg(long, value_name = "[NAME=]FILE")]
    pub data: Vec<PathBuf>,
    /// The same for files of `valid` alone
    #[arg(long, value_name = "[NAME=]FILE")]
    pub valid: Vec<PathBuf>,
    /// At most so many batches
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub batches: Option<u64>,
    /// Report as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub struct MemoryArgs {
    #[command(flatten)]
    pub compile: CompileArgs,
    /// Report as JSON
    #[arg(long, group = "form")]
    pub json: bool,
    /// One page with everything on it: memory over time, and what is there at the peak
    #[arg(long, group = "form", conflicts_with_all = ["at", "timeline"])]
    pub html: bool,
    /// List what is alive at an instant: `peak`, a number of `--timeline`, or what runs, such as B0.3
    #[arg(long, value_name = "INSTANT")]
    pub at: Option<String>,
    /// Show every instant of a step
    #[arg(long)]
    pub timeline: bool,
    /// Of this rank; without it, of those that need most
    #[arg(long, value_name = "N")]
    pub rank: Option<usize>,
    /// Of this routine (train, eval, init, outer); without it, of the one that needs most
    #[arg(long, value_name = "NAME")]
    pub routine: Option<String>,
    /// Show all places of the source, or all that is alive
    #[arg(long)]
    pub all: bool,
    /// Fail if a rank needs more, such as 24GiB
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub limit: Option<u64>,
    /// Write to a file
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub struct ScheduleArgs {
    #[command(flatten)]
    pub compile: CompileArgs,
    /// Times in units: each of F, I and W of a stage takes one, B two, sending none
    #[arg(long)]
    pub unit: bool,
    /// Times in turns of the loop, sending none
    #[arg(long, conflicts_with = "unit")]
    pub turns: bool,
    /// Times in seconds on this machine: h100, a100, or a file of `partita calibrate` [default: h100]
    #[arg(long, value_name = "NAME|FILE", conflicts_with_all = ["unit", "turns"])]
    pub machine: Option<String>,
    /// Beside a run: a trace that `partita train --trace` has written with this plan
    #[arg(long, value_name = "TRACE", conflicts_with_all = ["unit", "turns", "certify", "svg", "html", "csv", "trace"])]
    pub compare: Option<PathBuf>,
    /// Say what was shown so that no rank waits forever
    #[arg(long)]
    pub certify: bool,
    /// Report as one JSON object
    #[arg(long, group = "form")]
    pub json: bool,
    /// A picture
    #[arg(long, group = "form")]
    pub svg: bool,
    /// One page with everything on it: zooms, and tells what is under the pointer
    #[arg(long, group = "form")]
    pub html: bool,
    /// A table that `schedule = file(..)` reads
    #[arg(long, group = "form")]
    pub csv: bool,
    /// A trace for Perfetto (ui.perfetto.dev) or Chrome, to a file or to where `-o` says
    #[arg(long, group = "form", value_name = "FILE", num_args = 0..=1)]
    pub trace: Option<Option<PathBuf>>,
    /// Write to a file
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub struct CalibrateArgs {
    /// Ranks that share the machine; `--threads` says how many threads each has
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub ranks: u16,
    /// Write to a file
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub struct CommArgs {
    #[command(flatten)]
    pub compile: CompileArgs,
    /// The step of evaluation, not that of training
    #[arg(long)]
    pub eval: bool,
    /// Report as JSON
    #[arg(long, conflicts_with_all = ["html", "why"])]
    pub json: bool,
    /// Report as one HTML page
    #[arg(long, conflicts_with = "why")]
    pub html: bool,
    /// Explain one collective: where it comes from, what was weighed, and how to be without it
    #[arg(long, value_name = "ID")]
    pub why: Option<usize>,
}

#[derive(Args, Debug)]
pub struct VerifyArgs {
    #[command(flatten)]
    pub compile: CompileArgs,
    /// Steps to run
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..))]
    pub steps: u64,
    /// Run the program as it is, however large
    #[arg(long)]
    pub full: bool,
}

#[derive(Args, Debug)]
pub struct ExportArgs {
    #[command(flatten)]
    pub compile: CompileArgs,
    /// The run or checkpoint [default: runs/NAME, by the train item]
    #[arg(long, value_name = "DIR")]
    pub checkpoint: Option<PathBuf>,
    /// The `weights` item whose names and order of axes to use; without it, Partita's own
    #[arg(long = "with", value_name = "NAME")]
    pub map: Option<String>,
    /// The file to write
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
    /// The type to write: f64, f32, bf16 or f16; without it, that of the parameters
    #[arg(long, value_name = "TYPE", value_parser = precision)]
    pub dtype: Option<DType>,
    /// The weights themselves, even where the train item keeps averages
    #[arg(long)]
    pub raw: bool,
}

#[derive(Args, Debug)]
pub struct BuildArgs {
    #[command(flatten)]
    pub compile: CompileArgs,
    /// What it runs on: cpu, or cuda with kernels for the GPUs that are here (without one, for compute capability 8.0)
    #[arg(long, value_name = "DEVICE", default_value = "cpu")]
    pub device: String,
    /// The executable to write
    #[arg(short, long, value_name = "PROG")]
    pub output: PathBuf,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum EngineChoice {
    /// Machine code
    Cpu,
    /// The reference interpreter
    Interp,
}

#[derive(Args, Debug)]
pub struct FmtArgs {
    /// Files, or - for standard input
    #[arg(required = true)]
    pub files: Vec<PathBuf>,
    /// Change nothing; say which files are not formatted
    #[arg(long)]
    pub check: bool,
}

#[derive(Args, Debug)]
pub struct IrArgs {
    #[command(flatten)]
    pub compile: CompileArgs,
    /// The form to show
    #[arg(long, value_enum, default_value_t = Stage::Graph)]
    pub stage: Stage,
    /// The model to show, where the file has several
    #[arg(long, value_name = "NAME")]
    pub model: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Stage {
    /// The syntax tree
    Ast,
    /// The program as checked: models with their parameters, items
    Check,
    /// The forward program as a graph
    Graph,
    /// The train step with gradients and updates
    Backward,
    /// Fused kernels and the steps that call them
    Kernel,
    /// The code generator's input
    Clif,
    /// Kernels as code over vectors of 512 bits
    Vector,
    /// CUDA C of all kernels, with launches of products and library steps
    Cuda,
    /// The same as NVRTC compiles it
    Ptx,
    /// The train step, every value with its layout under the plan
    Layouts,
    /// The train step of a rank, with its collectives
    Spmd,
    /// What the ranks of a pipeline do and send
    Schedule,
}

impl SourceArgs {
    pub fn request(&self) -> Request {
        Request { path: self.file.clone(), presets: self.preset.clone(), sets: self.set.clone() }
    }
}

impl TrainHow {
    pub fn overrides(&self) -> Overrides {
        Overrides { steps: self.steps, seed: self.seed, data: self.data.clone(), valid: self.valid.clone() }
    }

    /// How the executor runs; `watched`: it looks for values that are not finite.
    pub fn execution(&self, threads: usize, watched: bool) -> ExecOptions {
        ExecOptions { threads, check_finite: watched, timing: self.profile || self.trace.is_some() }
    }

    /// `watched`: see [`TrainRequest`].
    pub fn request(&self, recipe: &Recipe, watched: bool) -> TrainRequest {
        TrainRequest {
            out: super::train::directory(self.out.as_deref(), recipe),
            resume: self.resume,
            metrics: self.metrics.clone(),
            seed: self.seed,
            no_save: self.no_save,
            watched,
        }
    }
}

impl DeviceArgs {
    /// The device, where `alone` names nothing that the processor does alone.
    pub fn choose(&self, alone: Option<&str>) -> Result<Device, RuntimeError> {
        Device::of(self.device.as_deref())?.without_gpus(alone)
    }
}

impl TrainArgs {
    /// What of its flags only the processor does.
    pub fn alone(&self) -> Option<&'static str> {
        match (self.debug_nan, self.how.profile, self.how.trace.is_some()) {
            (true, ..) => Some("--debug-nan"),
            (_, true, _) => Some("--profile"),
            (.., true) => Some("--trace"),
            _ => None,
        }
    }
}

impl EvalHow {
    pub fn overrides(&self, recipe: &Recipe) -> Overrides {
        Overrides { data: self.data.clone(), valid: self.valid.clone(), ..Overrides::default() }.evaluated(recipe)
    }
}

impl CompileArgs {
    pub fn options(&self, threads: usize) -> Options {
        Options {
            request: self.source.request(),
            item: self.item.clone(),
            plan: self.plan.clone(),
            mesh: self.mesh.clone(),
            precision: self.precision,
            threads,
            dump: self.dump.clone(),
            outputs: Vec::new(),
            unfused: false,
            bands: Default::default(),
            device: Device::Cpu,
            cache: super::cache::cache(),
        }
    }
}

fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.trim().is_empty() => Ok((name.trim().to_string(), value.trim().to_string())),
        _ => Err("expected NAME=VALUE".to_string()),
    }
}

fn output(text: &str) -> Result<(String, PathBuf), String> {
    match text.split_once('=') {
        Some((name, path)) if !name.is_empty() && !path.is_empty() => Ok((name.to_string(), path.into())),
        _ => Err("expected NAME=FILE".to_string()),
    }
}

/// More threads than this help nowhere, and their stacks alone may be more than the system gives.
const MOST_THREADS: usize = 1024;

/// A number of threads.
pub fn threads(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(n) if n <= MOST_THREADS => Ok(n),
        _ => Err(format!("expected a whole number from 0 to {MOST_THREADS}")),
    }
}

/// Bytes: a number with a unit or without.
fn size(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_alphabetic() || c == ' ');
    let unit: u64 = match text[digits.len()..].trim() {
        "" | "B" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        "TiB" => 1 << 40,
        other => return Err(format!("`{other}` is no unit: B, KiB, MiB, GiB, TiB")),
    };
    match digits.parse::<f64>() {
        Ok(n) if n > 0.0 && n.is_finite() => Ok((n * unit as f64) as u64),
        _ => Err(format!("`{text}` is no size: write 24GiB")),
    }
}

fn axis(text: &str) -> Result<(String, u64), String> {
    let (name, value) = pair(text).map_err(|_| "expected AXIS=N")?;
    match value.parse() {
        Ok(n) if n > 0 => Ok((name, n)),
        _ => Err(format!("`{value}` is not a positive whole number")),
    }
}

fn precision(text: &str) -> Result<DType, String> {
    plan::precision(text).ok_or_else(|| "expected f64, f32, bf16 or f16".to_string())
}
