//! `partita comm`: what the ranks of a plan send.

use super::args::CommArgs;
use super::output::Output;
use super::{Code, OK};
use crate::driver::comm;
use crate::source::Disk;

pub fn run(args: &CommArgs, threads: usize, out: &mut Output) -> Code {
    let shown = match comm::shown(&args.compile.options(threads), args.eval, &Disk) {
        Ok(s) => s,
        Err(findings) => return out.findings(&findings),
    };
    out.findings(&shown.findings());
    if args.json {
        out.line(format!("{:#}", shown.comm.json()));
    } else {
        out.text(&shown.comm.text());
    }
    OK
}
