//! What a case's stages print, and the light cases whose lines carry `//~ E0301 text` marks.

use crate::cases::Case;
use partita::diag::{Diagnostic, Sink, render};
use partita::driver::comm::Shown;
use partita::driver::inspect::{self, Stage};
use partita::driver::{self, Checked, Findings, Options, Request};
use partita::source::{Memory, SourceMap};
use partita::syntax;
use partita::syntax::format::format_source;
use std::fmt::Write;

/// The name of a case's main file in messages.
const MAIN: &str = "case.pta";

/// What one stage prints for a case.
pub fn run(stage: &str, case: &Case) -> Result<String, String> {
    match stage {
        "ast" => Ok(ast(case)),
        "check" => Ok(check(case)),
        "marks" => marks(case).map(|()| String::new()),
        "fmt" => Ok(fmt(case)),
        "graph" => Ok(form(Stage::Graph, case)),
        "backward" => Ok(form(Stage::Backward, case)),
        "kernel" => Ok(form(Stage::Kernel, case)),
        "vector" => Ok(form(Stage::Vector, case)),
        "layouts" => Ok(form(Stage::Layouts, case)),
        "spmd" => Ok(form(Stage::Spmd, case)),
        "comm" => Ok(comm(case, |s| s.comm.text())),
        // A line for each collective.
        "json" => Ok(comm(case, |s| s.comm.json().to_string().replace("{\"id\"", "\n{\"id\"") + "\n")),
        "why" => Ok(comm(case, |s| why(case, s))),
        _ => Err(format!("no stage is named `{stage}`")),
    }
}

/// Stages whose expectation is in the source itself, not in a fence.
pub fn is_silent(stage: &str) -> bool {
    stage == "marks"
}

fn ast(case: &Case) -> String {
    let (sources, mut sink) = (&mut SourceMap::default(), Sink::default());
    let file = sources.add(MAIN, case.source.as_str());
    let tree = syntax::parse_file(&case.source, file, &mut sink);
    format!("{}{}", render::text(&sink, sources, false), syntax::print::ast(&tree))
}

/// The findings; where there are none, what the models hold.
fn check(case: &Case) -> String {
    let checked = checked(case);
    let mut out = render::text(&checked.sink, &checked.sources, false);
    if !checked.sink.has_errors() {
        for m in &checked.models {
            let _ = writeln!(out, "model {}: {} parameters, {} state values", m.name, m.parameters, m.states);
        }
    }
    if out.is_empty() { "no findings\n".to_string() } else { out }
}

/// Every mark is met by a finding of its code whose place is that line, and every finding has a mark.
fn marks(case: &Case) -> Result<(), String> {
    let (sources, sink) = diagnose(case);
    let mut found: Vec<(usize, Diagnostic)> = Vec::new();
    for finding in sink.sorted() {
        let line = finding.primary.as_ref().map_or(0, |p| sources.file(p.span.file).line_column(p.span.start).0);
        found.push((line, finding));
    }
    let mut wrong = String::new();
    let mut marked = 0;
    for (number, line) in case.source.lines().enumerate() {
        for mark in line.split("//~ ").skip(1) {
            marked += 1;
            let (code, text) = mark.trim().split_once(' ').unwrap_or((mark.trim(), ""));
            let meets = |(at, d): &(usize, Diagnostic)| *at == number + 1 && d.code == code && says(d, text);
            match found.iter().position(meets) {
                Some(at) => drop(found.remove(at)),
                None => drop(writeln!(wrong, "line {}: expected {code} {text}", number + 1)),
            }
        }
    }
    for (line, d) in &found {
        let _ = writeln!(wrong, "line {line}: unexpected {}: {}", d.code, d.message);
    }
    if marked == 0 {
        wrong.push_str("the case has no marks\n");
    }
    if wrong.is_empty() { Ok(()) } else { Err(format!("{wrong}\n{}", render::text(&sink, &sources, false))) }
}

fn says(d: &Diagnostic, text: &str) -> bool {
    d.message.contains(text) || d.primary.as_ref().is_some_and(|p| p.message.contains(text))
}

fn diagnose(case: &Case) -> (SourceMap, Sink) {
    let checked = checked(case);
    (checked.sources, checked.sink)
}

/// The formatted text, which formatting must leave as it is.
fn fmt(case: &Case) -> String {
    let once = formatted(&case.source);
    let twice = formatted(&once);
    if once == twice { once } else { format!("formatting is not idempotent:\n{once}\nthen:\n{twice}") }
}

fn formatted(text: &str) -> String {
    format_source(text).unwrap_or_else(|sink| {
        let mut sources = SourceMap::default();
        sources.add(MAIN, text);
        render::text(&sink, &sources, false)
    })
}

/// An intermediate form, or why there is none.
fn form(stage: Stage, case: &Case) -> String {
    let plan = case.options.get("plan").cloned();
    let options = Options { request: request(case), plan, ..Options::default() };
    match inspect::text(stage, None, &options, &world(case)) {
        Ok(text) => text,
        Err(findings) => render::text(&findings.sink, &findings.sources, false),
    }
}

/// What the ranks of the case's plan send, and what is found of that; or why there is nothing.
fn comm(case: &Case, text: impl Fn(&Shown) -> String) -> String {
    let plan = case.options.get("plan").cloned();
    let options = Options { request: request(case), plan, ..Options::default() };
    match driver::comm::shown(&options, false, &world(case)) {
        Ok(shown) => {
            let Findings { sources, sink } = shown.findings();
            render::text(&sink, &sources, false) + &text(&shown)
        }
        Err(findings) => render::text(&findings.sink, &findings.sources, false),
    }
}

/// The collectives of the option `why`, explained.
fn why(case: &Case, shown: &Shown) -> String {
    let ids = case.options.get("why").map_or("", String::as_str).split(',').filter_map(|k| k.parse().ok());
    let one = |id| shown.why(id).unwrap_or_else(|d| d.message + "\n");
    ids.map(one).collect::<Vec<_>>().join("\n")
}

fn checked(case: &Case) -> Checked {
    driver::check::check(&request(case), &world(case))
}

fn world(case: &Case) -> Memory {
    let mut world = Memory::default();
    world.0.insert(MAIN.into(), case.source.clone());
    world.0.extend(case.files.iter().map(|(name, text)| (name.into(), text.clone())));
    world
}

fn request(case: &Case) -> Request {
    let list = |key: &str| case.options.get(key).map_or(Vec::new(), |v| v.split(',').map(str::to_string).collect());
    let sets = list("set").iter().filter_map(|s| s.split_once(':').map(|(k, v)| (k.into(), v.into()))).collect();
    Request { path: MAIN.into(), presets: list("preset"), sets }
}
