//! What is done around each pass: time is taken, results are verified, and written as text on demand.

use super::findings::{Findings, Outcome};
use super::options::Options;
use crate::diag::Diagnostic;
use crate::ir::{Graph, print, verify};
use crate::source::SourceMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Watches over the passes of one compilation.
pub struct Passes {
    dump: Option<PathBuf>,
    pub timings: Vec<(&'static str, Duration)>,
}

impl Passes {
    pub fn new(options: &Options) -> Passes {
        Passes { dump: options.dump.clone(), timings: Vec::new() }
    }

    pub fn run<T>(&mut self, name: &'static str, pass: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let out = pass();
        self.timings.push((name, start.elapsed()));
        out
    }

    /// A graph that a pass has left: verified in debug builds and whenever it is written down.
    pub fn graph(&mut self, name: &str, graph: &Graph, sources: &SourceMap) -> Outcome<()> {
        if cfg!(debug_assertions) || self.dump.is_some() {
            verify::verify(graph).map_err(|why| internal(name, &why))?;
        }
        self.text(name, || print::print_with_places(graph, &|span| Some(sources.place(span))))
    }

    /// Writes down what a pass has left, if that is wanted.
    pub fn text(&mut self, name: &str, text: impl FnOnce() -> String) -> Outcome<()> {
        let Some(dir) = &self.dump else { return Ok(()) };
        let path = dir.join(format!("{:02}-{name}.txt", self.timings.len()));
        let written = std::fs::create_dir_all(dir).and_then(|()| std::fs::write(&path, text()));
        written.map_err(|e| {
            Findings::of(
                Diagnostic::error("E0813", format!("cannot write `{}`: {e}", path.display()))
                    .help("choose another directory with `--dump DIR`"),
            )
        })
    }
}

/// A broken invariant of the compiler, found after a pass.
pub fn internal(pass: &str, why: &str) -> Box<Findings> {
    Findings::of(
        Diagnostic::error("E0901", format!("the compiler broke an invariant in pass {pass}: {why}"))
            .help("this is a mistake in partita: please report it with the program"),
    )
}
