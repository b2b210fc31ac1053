//! `partita build`: one executable that trains, evaluates and samples without source or compiler.

use super::args::BuildArgs;
use super::output::Output;
use super::{Code, OK, train};
use crate::driver::compile::{self, Compilation};
use crate::driver::findings::Outcome;
use crate::driver::gpu::Device;
use crate::driver::{Options, build, overwrite, show};
use crate::source::Disk;

pub fn run(args: &BuildArgs, threads: usize, out: &mut Output) -> Code {
    match build(args, threads, out) {
        Ok(code) => code,
        Err(findings) => out.findings(&findings),
    }
}

fn build(args: &BuildArgs, threads: usize, out: &mut Output) -> Outcome<Code> {
    let mut options: Options = args.compile.options(threads);
    // Its kernels are compiled here; the GPUs may be elsewhere.
    options.device = match args.device.as_str() {
        "cuda" => Device::Gpus(Vec::new()),
        other => Device::of(Some(other))?,
    };
    let Compilation { findings, recipe: mut bundle, mut program, timings } = compile::everything(&options, &Disk)?;
    train::warnings(&findings, out);
    if args.compile.timings {
        train::timings(&timings, out);
    }
    let mut read = bundle.read_paths();
    read.extend(std::env::current_exe());
    overwrite::refuse(&args.output, &findings.sources, &read)?;
    bundle.settle(&mut program)?;
    let size = build::write(&args.output, program, &bundle)?;
    out.line(format!("{}: {}", args.output.display(), show::bytes(size)));
    Ok(OK)
}
