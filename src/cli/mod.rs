//! The command line: parses arguments, asks the driver, prints. The only room that prints and that decides exit codes.
//!
//! In: arguments. Out: results on standard output, findings and progress on standard error, and an exit code: 0 where
//! all is well, 1 for an error in the program, its data or its surroundings, 2 for a wrong command line, 130 or 143 for a
//! run that a signal ended. Reading order: `args.rs`, `output.rs`, then one file for each subcommand.

mod args;
mod build;
mod cache;
mod calibrate;
mod carried;
mod check;
mod comm;
mod doctor;
mod eval;
mod explain;
mod export;
mod fmt;
mod ir;
mod library;
mod memory;
mod output;
mod profile;
mod progress;
mod sample;
mod schedule;
mod train;
mod vectors;
mod verify;

use crate::driver::Findings;
use crate::driver::build::carried_program;
use crate::runtime::stop::survive_file_limit;
use args::{Cli, ColorChoice, Command};
use clap::{CommandFactory, Parser};
use output::Output;

/// An exit code.
pub type Code = u8;
pub const OK: Code = 0;
pub const ERROR: Code = 1;
pub const USAGE: Code = 2;

/// Runs the command of this process's arguments.
pub fn main() -> std::process::ExitCode {
    if let Err(e) = survive_file_limit() {
        return Output::new(ColorChoice::Auto).findings(&Box::<Findings>::from(e)).into();
    }
    if let Err(e) = vectors::allow() {
        return Output::new(ColorChoice::Auto).findings(&e).into();
    }
    match carried_program() {
        Ok(None) => {}
        Ok(Some((program, bundle))) => return carried::main(program, bundle).into(),
        Err(e) => return Output::new(ColorChoice::Auto).findings(&Box::<Findings>::from(e)).into(),
    }
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(e) => {
            let code = if e.use_stderr() { USAGE } else { OK };
            return usage(&e, code).into();
        }
    };
    let mut out = Output::new(cli.color);
    let printed = !matches!(cli.command, Command::Train(_));
    let code = dispatch(cli, &mut out);
    out.end(code, printed).into()
}

/// Prints help, or what is wrong with the command line; a reader that has gone away is no reason to fail.
fn usage(e: &clap::Error, code: Code) -> Code {
    match e.print() {
        Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => code.max(ERROR),
        _ => code,
    }
}

fn dispatch(cli: Cli, out: &mut Output) -> Code {
    let threads = cli.threads;
    match cli.command {
        Command::Check(a) => check::run(&a, out),
        Command::Train(a) => train::run(&a, threads, out),
        Command::Sample(a) => sample::run(&a, threads, out),
        Command::Eval(a) => eval::run(&a, threads, out),
        Command::Memory(a) => memory::run(&a, threads, out),
        Command::Comm(a) => comm::run(&a, threads, out),
        Command::Schedule(a) => schedule::run(&a, threads, out),
        Command::Verify(a) => verify::run(&a, threads, out),
        Command::Build(a) => build::run(&a, threads, out),
        Command::Export(a) => export::run(&a, threads, out),
        Command::Fmt(a) => fmt::run(&a, out),
        Command::Ir(a) => ir::run(&a, threads, out),
        Command::Explain { code } => explain::run(&code, out),
        Command::Std { module, source } => library::run(module.as_deref(), source, out),
        Command::Doctor => doctor::run(threads, out),
        Command::Calibrate(a) => calibrate::run(&a, threads, out),
        Command::Completions { shell } => {
            let mut text = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "partita", &mut text);
            out.bytes(&text);
            OK
        }
    }
}
