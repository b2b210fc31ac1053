//! `partita train --profile` and `--trace`, `partita sample --profile`: where the time went.

use super::output::Output;
use crate::driver::engine::{Compiled, Machine};
use crate::driver::findings::Outcome;
use crate::driver::overwrite;
use crate::driver::profile::{Line, Report, trace};
use crate::driver::recipe::Recipe;
use crate::driver::train::Beside;
use crate::types::counted;
use std::fmt::Write;
use std::path::Path;
use std::time::Duration;

/// Rows of a table; what is left is added up.
const ROWS: usize = 25;

/// Prints where the time of the runs of a routine went, each of which is a `unit`.
pub fn print(machine: &mut Machine, routine: &str, unit: &str, out: &mut Output) {
    let Some(r) = Report::of(machine, routine) else { return out.line(format!("no {unit} was profiled")) };
    let mut text = String::new();
    let share = |x: f64| 100.0 * x / r.seconds.max(1e-12);
    let runs = if r.runs == 1 { format!("one {unit}") } else { format!("{} {unit}s after the first", r.runs) };
    let _ = writeln!(text, "profile of {runs}: {} each, median {}", milliseconds(r.seconds), milliseconds(r.median));
    if let Some(many) = &r.ranks {
        let _ = writeln!(
            text,
            "figures are means of {}; without collectives a {unit} takes {} on average, {} on rank {}",
            counted(many.count, "rank"),
            milliseconds(many.own),
            milliseconds(many.slowest.1),
            many.slowest.0
        );
    }
    let _ = writeln!(
        text,
        "this machine at best: {:.0} GFLOP/s (f32), {:.1} GB/s (reads), with these threads",
        r.roof.flops / 1e9,
        r.roof.bytes / 1e9
    );
    let flops: f64 = r.kinds.iter().map(|k| k.flops).sum();
    let least: f64 = r.kinds.iter().map(|k| k.least).sum();
    let _ = writeln!(
        text,
        "{:.1} GFLOP a {unit}, {:.1} GFLOP/s; the roofline of its kernels is {} ({:.0} %)",
        flops / 1e9,
        flops / r.seconds.max(1e-12) / 1e9,
        milliseconds(least),
        share(least)
    );
    text.push('\n');
    for kind in &r.kinds {
        let _ = writeln!(text, "  {:<10} {:>12} {:>5.1} %", kind.kind, milliseconds(kind.seconds), share(kind.seconds));
    }
    let _ = writeln!(text, "  {:<10} {:>12} {:>5.1} %", "dispatch", milliseconds(r.dispatch()), share(r.dispatch()));
    let _ = writeln!(text, "of these, waiting for another thread {:.1} %", share(r.waited));
    table(&mut text, ("by kernel", unit), &r.steps, r.seconds, |l| format!("{} {}", l.what, l.place));
    table(&mut text, ("by line", unit), &r.places, r.seconds, |l| l.place.clone());
    out.text(&text);
}

/// Prints what the time between the steps of a run went to.
pub fn beside(beside: &Beside, out: &mut Output) {
    if beside.steps > 0 {
        let each = |time: Duration| milliseconds((time / beside.steps).as_secs_f64());
        out.line(format!(
            "\nbeside a step: {} for data, {} for metrics, validation and checkpoints",
            each(beside.data),
            each(beside.rest)
        ));
    }
}

fn table(text: &mut String, (title, unit): (&str, &str), lines: &[Line], all: f64, name: impl Fn(&Line) -> String) {
    let _ = writeln!(text, "\n{title}");
    let time = format!("time/{unit}");
    let _ = writeln!(text, "  {time:>12}   share  calls  GFLOP/s    GB/s  of roof");
    let mut row = |l: &Line, name: &str| {
        let t = l.seconds.max(1e-12);
        let _ = writeln!(
            text,
            "  {:>12} {:>5.1} % {:>6} {:>8.1} {:>7.1} {:>6.0} %  {name}",
            milliseconds(l.seconds),
            100.0 * l.seconds / all.max(1e-12),
            calls(l.calls),
            l.flops / t / 1e9,
            l.bytes / t / 1e9,
            100.0 * l.least / t,
        );
    };
    for line in &lines[..lines.len().min(ROWS)] {
        row(line, &name(line));
    }
    if lines.len() > ROWS {
        let mut rest = Line::default();
        for l in &lines[ROWS..] {
            rest.calls += l.calls;
            rest.seconds += l.seconds;
            rest.flops += l.flops;
            rest.bytes += l.bytes;
            rest.least += l.least;
        }
        row(&rest, &format!(".. and {} more", lines.len() - ROWS));
    }
}

fn calls(n: f64) -> String {
    if n.fract() == 0.0 { format!("{n:.0}") } else { format!("{n:.1}") }
}

fn milliseconds(seconds: f64) -> String {
    format!("{:.3} ms", seconds * 1e3)
}

/// Writes the trace of a run to a file.
pub fn write(engine: &mut Compiled, recipe: &Recipe, path: &Path) -> Outcome<()> {
    let text = trace(engine.machine_mut(), recipe).to_string();
    std::fs::write(path, text).map_err(|e| overwrite::unwritten(path, &e))
}
