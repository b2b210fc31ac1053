//! The command line of a built program: what it carries is trained, evaluated, sampled from.

use super::args::{ColorChoice, EvalHow, TrainHow, threads};
use super::output::Output;
use super::sample::How;
use super::{Code, ERROR, OK, USAGE, eval, sample, train, usage};
use crate::diag::Diagnostic;
use crate::driver::build::Bundle;
use crate::driver::engine::{Compiled, Engine};
use crate::driver::findings::{Findings, Outcome};
use crate::driver::show;
use crate::program::Program;
use crate::runtime::exec::ExecOptions;
use crate::source::SourceMap;
use crate::types::grouped;
use clap::{Parser, Subcommand};

#[derive(Parser, Debug)]
#[command(about = "A program built by partita: trains, evaluates and samples", version, max_term_width = 100)]
struct Cli {
    /// When to use colours
    #[arg(long, global = true, value_enum, default_value_t = ColorChoice::Auto, value_name = "WHEN")]
    color: ColorChoice,
    /// Threads to use; 0 means as many as there are processors
    #[arg(long, global = true, default_value_t = 0, value_name = "N", value_parser = threads)]
    threads: usize,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Train the model
    Train(TrainHow),
    /// Evaluate a checkpoint on validation data
    Eval(EvalHow),
    /// Sample from a checkpoint
    Sample(How),
    /// Say what this program is
    Info,
}

pub fn main(program: Program, bundle: Bundle) -> Code {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(e) => {
            let code = if e.use_stderr() { USAGE } else { OK };
            return usage(&e, code);
        }
    };
    let mut out = Output::new(cli.color);
    let printed = !matches!(cli.command, Command::Train(_));
    let code = dispatch(cli, program, bundle, &mut out).unwrap_or_else(|findings| out.findings(&findings));
    out.end(code, printed)
}

fn dispatch(cli: Cli, program: Program, bundle: Bundle, out: &mut Output) -> Outcome<Code> {
    let Bundle { mut recipe, sample } = bundle;
    let texts = SourceMap::default();
    match cli.command {
        Command::Train(how) => {
            recipe.apply(&how.overrides())?;
            let mut engine = Compiled::open(program, &recipe, how.execution(cli.threads, false))?;
            train::introduce(&recipe, engine.place(), out);
            let request = how.request(&recipe, false);
            train::profiled(&recipe, &mut engine, &how, &request, &texts, false, out)
        }
        Command::Eval(how) => {
            recipe.apply(&how.overrides(&recipe))?;
            let mut engine =
                Compiled::open(program, &recipe, ExecOptions { threads: cli.threads, ..ExecOptions::default() })?;
            eval::evaluate(&recipe, &mut engine, &how, &[], (&texts, None), out)
        }
        Command::Sample(how) => match sample {
            Some(mut sampling) => {
                // What the file's other train items made is no concern of this program.
                let own = sampling.model == recipe.model;
                if own {
                    sampling.trained_by = vec![recipe.name.clone()];
                } else if how.initial {
                    let message =
                        format!("this program trains `{}`, and samples from `{}`", recipe.model, sampling.model);
                    let d = Diagnostic::error("E0711", message).help("give `--checkpoint DIR`, a run of the model");
                    return Err(Findings::of(d));
                }
                sample::sampled(program, sampling, Some(&recipe), &how, cli.threads, &texts, out)
            }
            None => {
                let d = Diagnostic::error("E0711", "this program was built from a file without a sample item");
                out.findings(&Findings::of(d.help("add `sample Model { .. }` to the file and build it again")));
                Ok(ERROR)
            }
        },
        Command::Info => {
            out.line(format!("model        {}", recipe.model));
            out.line(format!("train item   {}", recipe.name));
            out.line(format!("parameters   {}", grouped(recipe.parameters())));
            out.line(format!("precision    {}", recipe.precision));
            out.line(format!("steps        {}", grouped(recipe.steps)));
            for (name, file) in recipe.data_files() {
                out.line(format!("{name:<12} {}", file.display()));
            }
            out.line(format!("samples      {}", if sample.is_some() { "yes" } else { "no" }));
            out.line(format!("code         {}", show::bytes(program.code.bytes.len() as u64)));
            if program.mesh.ranks() > 1 {
                out.line(format!("ranks        {}: {}", program.mesh.ranks(), program.mesh));
            }
            out.line(format!("target       {}", program.code.target));
            Ok(OK)
        }
    }
}
