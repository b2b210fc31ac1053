//! `partita export`: the weights of a checkpoint for other programs.

use super::args::ExportArgs;
use super::output::Output;
use super::{Code, OK};
use crate::driver::export::{self, ExportRequest};
use crate::driver::findings::Findings;
use crate::source::Disk;

pub fn run(args: &ExportArgs, threads: usize, out: &mut Output) -> Code {
    let request = ExportRequest {
        checkpoint: args.checkpoint.clone(),
        map: args.map.clone(),
        to: args.output.clone(),
        dtype: args.dtype,
        raw: args.raw,
    };
    match export::export(&args.compile.options(threads), &request, &Disk) {
        Ok(done) => {
            if let Some(d) = done.warning {
                out.findings(&Findings::of(d));
            }
            for file in done.files {
                out.line(file.display().to_string());
            }
            OK
        }
        Err(findings) => out.findings(&findings),
    }
}
