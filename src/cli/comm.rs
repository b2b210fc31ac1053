//! `partita comm`: what the ranks of a plan send.

use super::args::CommArgs;
use super::output::Output;
use super::{Code, OK};
use crate::driver::{Findings, comm};
use crate::source::Disk;

pub fn run(args: &CommArgs, threads: usize, out: &mut Output) -> Code {
    let shown = match comm::shown(&args.compile.options(threads), args.eval, &Disk) {
        Ok(s) => s,
        Err(findings) => return out.findings(&findings),
    };
    out.findings(&shown.findings());
    if let Some(id) = args.why {
        return match shown.why(id) {
            Ok(text) => {
                out.text(&text);
                OK
            }
            Err(d) => out.findings(&Findings::of(d)),
        };
    }
    if args.html {
        out.text(&shown.comm.html());
    } else if args.json {
        out.line(format!("{:#}", shown.comm.json()));
    } else {
        out.text(&shown.comm.text());
    }
    OK
}
