//! `partita ir`: intermediate forms as text.

use super::args::{IrArgs, Stage};
use super::output::Output;
use super::{Code, OK};
use crate::driver::inspect;
use crate::source::Disk;

pub fn run(args: &IrArgs, threads: usize, out: &mut Output) -> Code {
    let options = args.compile.options(threads);
    let stage = match args.stage {
        Stage::Ast => inspect::Stage::Ast,
        Stage::Check => inspect::Stage::Check,
        Stage::Graph => inspect::Stage::Graph,
        Stage::Backward => inspect::Stage::Backward,
        Stage::Kernel => inspect::Stage::Kernel,
        Stage::Clif => inspect::Stage::Clif,
        Stage::Vector => inspect::Stage::Vector,
        Stage::Cuda => inspect::Stage::Cuda,
        Stage::Ptx => inspect::Stage::Ptx,
        Stage::Layouts => inspect::Stage::Layouts,
        Stage::Spmd => inspect::Stage::Spmd,
        Stage::Schedule => inspect::Stage::Schedule,
    };
    match inspect::text(stage, args.model.as_deref(), &options, &Disk) {
        Ok(text) => {
            out.text(&text);
            OK
        }
        Err(findings) => out.findings(&findings),
    }
}
