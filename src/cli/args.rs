//! The arguments of every subcommand.

use crate::driver::{Options, Request, plan};
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
    #[arg(long, global = true, default_value_t = 0, value_name = "N")]
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
    /// Format programs
    Fmt(FmtArgs),
    /// Show a program in one of its intermediate forms
    Ir(IrArgs),
    /// Explain an error code
    Explain {
        /// A code such as E0301
        code: String,
    },
    /// Report what this machine offers
    Doctor,
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
    /// The plan to use; without it, one device
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

#[derive(Args, Debug)]
pub struct CheckArgs {
    #[command(flatten)]
    pub source: SourceArgs,
    /// Report as JSON, one object a line
    #[arg(long)]
    pub json: bool,
}

/// How to train. The names of overrides are those of the train item.
#[derive(Args, Debug)]
pub struct TrainArgs {
    #[command(flatten)]
    pub compile: CompileArgs,
    /// Steps to train, over what the item says
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub steps: Option<u64>,
    /// Seed of initial weights, data order and random draws
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// Data in the place of the item's file
    #[arg(long, value_name = "FILE")]
    pub data: Option<PathBuf>,
    /// Where checkpoints go [default: runs/NAME]
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Go on from the newest checkpoint
    #[arg(long)]
    pub resume: bool,
    /// Write the figures of each step to a file, as JSON lines
    #[arg(long, value_name = "FILE")]
    pub metrics: Option<PathBuf>,
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
}

impl SourceArgs {
    pub fn request(&self) -> Request {
        Request { path: self.file.clone(), presets: self.preset.clone(), sets: self.set.clone() }
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
            unfused: false,
        }
    }
}

fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.trim().is_empty() => Ok((name.trim().to_string(), value.trim().to_string())),
        _ => Err("expected NAME=VALUE".to_string()),
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
