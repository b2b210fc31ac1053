//! `partita train`: progress while it runs, the loss curve at the end.

use super::args::{EngineChoice, TrainArgs, TrainHow};
use super::output::Output;
use super::progress::{Progress, fitting};
use super::{Code, OK, profile};
use crate::diag::{Diagnostic, Severity};
use crate::driver::compile::{self, Compilation};
use crate::driver::engine::{Compiled, Engine, Interpreted};
use crate::driver::findings::{Findings, Outcome};
use crate::driver::recipe::Recipe;
use crate::driver::train::{self, Ended, Event, TrainRequest};
use crate::driver::{overwrite, pipeline, show};
use crate::runtime::stop::StopFlag;
use crate::source::{Disk, SourceMap};
use crate::types::counted;
use crate::types::grouped;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub fn run(args: &TrainArgs, threads: usize, out: &mut Output) -> Code {
    match train(args, threads, out) {
        Ok(code) => code,
        Err(findings) => out.findings(&findings),
    }
}

fn train(args: &TrainArgs, threads: usize, out: &mut Output) -> Outcome<Code> {
    let mut options = args.compile.options(threads);
    options.unfused = args.debug_nan;
    if args.engine == EngineChoice::Cpu {
        options.device = args.device.choose(args.alone())?;
    }
    let timed = args.compile.timings;
    match args.engine {
        EngineChoice::Interp => {
            let mut g = pipeline::checked_graphs(&options, &Disk)?;
            begin(args, &g.findings, &mut g.recipe, &g.timings, out)?;
            if args.dry_run {
                return rehearsed(&g.recipe, &g.findings, 1, out);
            }
            let mut engine = Interpreted::new(&g);
            introduce(&g.recipe, engine.place(), out);
            let request = args.how.request(&g.recipe, args.debug_nan);
            follow(&g.recipe, &mut engine, &request, &g.findings.sources, timed, out).map(|(code, _)| code)
        }
        EngineChoice::Cpu => {
            let Compilation { findings, mut recipe, program, timings } = compile::training(&options, &Disk)?;
            begin(args, &findings, &mut recipe, &timings, out)?;
            if args.dry_run {
                return rehearsed(&recipe, &findings, options.thread_count(), out);
            }
            let mut engine = Compiled::open(program, &recipe, args.how.execution(threads, args.debug_nan))?;
            introduce(&recipe, engine.place(), out);
            let request = args.how.request(&recipe, args.debug_nan);
            profiled(&recipe, &mut engine, &args.how, &request, &findings.sources, timed, out)
        }
    }
}

/// After compiling: what was found, and what the command line says over the recipe.
fn begin(
    args: &TrainArgs,
    findings: &Findings,
    recipe: &mut Recipe,
    passes: &[(&'static str, Duration)],
    out: &mut Output,
) -> Outcome<()> {
    warnings(findings, out);
    recipe.apply(&args.how.overrides())?;
    if args.compile.timings {
        timings(passes, out);
    }
    Ok(())
}

/// What the run would be, if it finds its data. Its memory is not taken.
fn rehearsed(recipe: &Recipe, findings: &Findings, threads: usize, out: &mut Output) -> Outcome<Code> {
    introduce(recipe, counted(threads, "thread"), out);
    train::rehearse(recipe).map_err(|stop| Findings::of_stop(stop, &findings.sources))?;
    out.line(format!("{}, not run", counted(grouped(recipe.steps), "step")));
    Ok(OK)
}

/// Trains a compiled program, and shows where the time went if that is asked for.
pub fn profiled(
    recipe: &Recipe,
    engine: &mut Compiled,
    how: &TrainHow,
    request: &TrainRequest,
    sources: &SourceMap,
    timed: bool,
    out: &mut Output,
) -> Outcome<Code> {
    if let Some(path) = &how.trace {
        overwrite::refuse(path, sources, &recipe.read_paths())?;
        if how.metrics.as_ref() == Some(path) {
            let d = Diagnostic::error("E0902", "`--metrics` and `--trace` name one file");
            return Err(Findings::of(d.help("name two")));
        }
        overwrite::writable(path)?;
    }
    let (code, ended) = follow(recipe, engine, request, sources, timed, out)?;
    if how.profile {
        profile::print(engine.machine_mut(), pipeline::TRAIN, "step", out);
        profile::beside(&ended.beside, out);
    }
    if let Some(path) = &how.trace {
        profile::write(engine, recipe, path)?;
    }
    Ok(code)
}

/// What is going to be trained.
pub fn introduce(recipe: &Recipe, place: String, out: &Output) {
    out.say(format!(
        "{}: {} in {}, {} a step, {}, {}",
        recipe.name,
        counted(grouped(recipe.parameters()), "parameter"),
        counted(recipe.params.len(), "tensor"),
        counted(grouped(recipe.units), recipe.unit.trim_end_matches('s')),
        recipe.precision,
        place
    ));
}

/// Where a recipe's checkpoints are, unless told otherwise.
pub fn directory(named: Option<&Path>, recipe: &Recipe) -> PathBuf {
    named.map_or_else(|| Path::new("runs").join(&recipe.name), Path::to_path_buf)
}

/// Trains, and shows how it goes; `timed`: and how long it took until the first step.
pub fn follow(
    recipe: &Recipe,
    engine: &mut dyn Engine,
    request: &TrainRequest,
    sources: &SourceMap,
    timed: bool,
    out: &mut Output,
) -> Outcome<(Code, Ended)> {
    if let Some(path) = &request.metrics {
        overwrite::refuse(path, sources, &recipe.read_paths())?;
    }
    let stop = StopFlag::install()?;
    stop.at_once(true);
    let mut progress = Progress::new(&recipe.unit);
    let ended = train::train(recipe, engine, request, &stop, &mut |event| {
        if let (true, Event::Begin { opening, .. }) = (timed, &event) {
            out.say(timing("initial values", *opening));
        }
        event_shown(event, &mut progress, out);
    });
    progress.finish();
    let ended = ended.map_err(|stop| Findings::of_stop(stop, sources))?;
    report(&ended, recipe, out);
    let code = match (ended.interrupted, stop.signal()) {
        (true, Some(signal)) => 128 + signal,
        _ => OK,
    };
    Ok((code, ended))
}

fn event_shown(event: Event, progress: &mut Progress, out: &mut Output) {
    match event {
        Event::Begin { first, steps, seed, .. } => {
            if first > 0 && first < steps {
                progress.say(out, &format!("going on at step {first} of {steps}, seed {seed}"));
            }
            progress.begin(first, steps);
        }
        Event::Step(p) => progress.step(&p, out),
        Event::Valid { step, result } => {
            let start = format!("step {step}: validation loss {}", show::number(result.loss));
            let figures = fitting(&result.figures, ", ", out.width().saturating_sub(start.len()));
            progress.line(out, &(start + &figures));
        }
        Event::Saved { .. } => {}
        Event::Note(text) => progress.say(out, &text),
        Event::Warning(d) => {
            let mut f = Findings::default();
            f.sink.push(d);
            progress.hidden(|| out.findings(&f));
        }
    }
}

fn report(ended: &Ended, recipe: &Recipe, out: &mut Output) {
    if ended.train.len() > 1 {
        let (width, height) = (out.width().min(100), 14);
        out.text(&show::curve(&ended.train, &ended.valid, width, height));
    }
    if let Some((step, loss)) = ended.train.last() {
        let mut line = format!("step {step} of {}: loss {}", recipe.steps, show::number(*loss));
        if let Some((_, v)) = ended.valid.last() {
            line += &format!(", validation loss {}", show::number(*v));
        }
        out.line(line);
    } else if let Some((step, v)) = ended.valid.last() {
        out.line(format!("step {step} of {}: validation loss {}", recipe.steps, show::number(*v)));
    } else if ended.interrupted {
        out.line("stopped before the first step");
    } else {
        out.line(format!("nothing to do: {} steps are wanted, {} were done before", recipe.steps, ended.step));
    }
    if let Some(path) = &ended.saved {
        let what = if ended.interrupted { "interrupted; go on with --resume; checkpoint" } else { "checkpoint" };
        out.line(format!("{what}: {}", path.display()));
    }
}

/// Warnings of a program that is run; notes are for `check`.
pub fn warnings(f: &Findings, out: &Output) {
    let mut kept = Findings { sources: f.sources.clone(), ..Findings::default() };
    f.sink.sorted().into_iter().filter(|d| d.severity == Severity::Warning).for_each(|d| kept.sink.push(d));
    out.findings(&kept);
}

pub fn timings(all: &[(&'static str, Duration)], out: &Output) {
    for (name, time) in all {
        out.say(timing(name, *time));
    }
    let total: Duration = all.iter().map(|t| t.1).sum();
    out.say(timing("total", total));
}

fn timing(name: &str, time: Duration) -> String {
    format!("{name:<16} {:>9.1} ms", time.as_secs_f64() * 1e3)
}
