//! `partita build`: one executable that trains, evaluates and samples without source or compiler.

use super::args::BuildArgs;
use super::output::Output;
use super::{Code, OK, train};
use crate::driver::build::{self, Bundle};
use crate::driver::findings::Outcome;
use crate::driver::{Options, overwrite, pipeline, sample, show};
use crate::source::Disk;

pub fn run(args: &BuildArgs, threads: usize, out: &mut Output) -> Code {
    match build(args, threads, out) {
        Ok(code) => code,
        Err(findings) => out.findings(&findings),
    }
}

fn build(args: &BuildArgs, threads: usize, out: &mut Output) -> Outcome<Code> {
    let options: Options = args.compile.options(threads);
    let mut g = pipeline::checked_graphs(&options, &Disk)?;
    train::warnings(&g.findings, out);
    let sampling = match sample::has_item(&options, &Disk)? {
        true => Some(sample::graphs(&options, None, &Disk)?),
        false => None,
    };
    let mut program = pipeline::program(&mut g, pipeline::ALL, sampling.as_ref(), &options)?;
    if args.compile.timings {
        train::timings(&g.timings, out);
    }
    let mut bundle = Bundle { recipe: g.recipe, sample: sampling.map(|s| s.recipe) };
    let mut read = bundle.read_paths();
    read.extend(std::env::current_exe());
    overwrite::refuse(&args.output, &g.findings.sources, &read)?;
    bundle.settle(&mut program)?;
    let size = build::write(&args.output, program, &bundle)?;
    out.line(format!("{}: {}", args.output.display(), show::bytes(size)));
    Ok(OK)
}
