//! `partita schedule`: the pipeline of a plan in time.

use super::args::ScheduleArgs;
use super::output::Output;
use super::{Code, OK};
use crate::driver::schedule::{self, Clock};
use crate::driver::{Findings, Outcome, overwrite};
use crate::source::{Disk, SourceMap};
use std::path::Path;

pub fn run(args: &ScheduleArgs, threads: usize, out: &mut Output) -> Code {
    let clock = match (args.unit, args.turns) {
        (true, _) => Clock::Units,
        (_, true) => Clock::Turns,
        _ => match schedule::machine(args.machine.as_deref()) {
            Ok(machine) => Clock::Seconds(machine),
            Err(d) => return out.findings(&Findings::of(d)),
        },
    };
    let mut shown = match schedule::shown(&args.compile.options(threads), &clock, &Disk) {
        Ok(s) => s,
        Err(findings) => return out.findings(&findings),
    };
    out.findings(&shown.findings);
    if args.certify {
        match schedule::of_ranks(&args.compile.options(threads), &Disk) {
            Ok(certificate) => shown.timeline.of_ranks = certificate,
            Err(findings) => return out.findings(&findings),
        }
    }
    let t = &shown.timeline;
    let beside = match args.compare.as_ref().map(|trace| shown.beside(trace)) {
        Some(Err(d)) => return out.findings(&Findings::of(d)),
        Some(Ok(c)) => Some(c),
        None => None,
    };
    let text = if let Some(c) = &beside {
        if args.json { format!("{:#}\n", c.json()) } else { c.text() }
    } else if args.json {
        format!("{:#}\n", t.json())
    } else if args.svg {
        t.svg()
    } else if args.html {
        t.html()
    } else if args.csv {
        t.csv()
    } else if args.trace.is_some() {
        t.trace()
    } else if args.certify {
        format!("{}{}", t.text(), t.certificate_text())
    } else {
        t.text()
    };
    let files: Vec<&Path> =
        [args.output.as_deref(), args.trace.as_ref().and_then(|f| f.as_deref())].into_iter().flatten().collect();
    if files.is_empty() {
        out.text(&text);
    }
    match files.iter().try_for_each(|path| write(path, &text, &shown.findings.sources)) {
        Ok(()) => OK,
        Err(findings) => out.findings(&findings),
    }
}

pub fn write(path: &Path, text: &str, sources: &SourceMap) -> Outcome<()> {
    overwrite::refuse(path, sources, &[])?;
    std::fs::write(path, text).map_err(|e| overwrite::unwritten(path, &e))
}
