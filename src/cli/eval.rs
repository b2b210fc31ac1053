//! `partita eval`: the loss of a checkpoint over validation data.

use super::args::{EvalArgs, EvalHow};
use super::output::Output;
use super::{Code, OK, train};
use crate::diag::Diagnostic;
use crate::driver::compile::{self, Compilation};
use crate::driver::engine::{Compiled, Engine, Figure, elements};
use crate::driver::evaluate::Pass;
use crate::driver::findings::{Findings, Outcome};
use crate::driver::recipe::Recipe;
use crate::driver::sample::write_npy;
use crate::driver::sampler::Sampled;
use crate::driver::{origin, overwrite, show, weights};
use crate::runtime::checkpoint::Checkpoint;
use crate::runtime::exec::ExecOptions;
use crate::runtime::stop::StopFlag;
use crate::source::{Disk, SourceMap};
use crate::types::counted;
use std::path::PathBuf;

pub fn run(args: &EvalArgs, threads: usize, out: &mut Output) -> Code {
    match compiled(args, threads, out) {
        Ok(code) => code,
        Err(findings) => out.findings(&findings),
    }
}

fn compiled(args: &EvalArgs, threads: usize, out: &mut Output) -> Outcome<Code> {
    let mut options = args.compile.options(threads);
    options.device = args.device.choose(None)?;
    options.outputs = args.output.iter().map(|(name, _)| name.clone()).collect();
    let Compilation { findings, mut recipe, program, timings } =
        compile::evaluation(&options, args.how.initial, &Disk)?;
    train::warnings(&findings, out);
    recipe.apply(&args.how.overrides(&recipe))?;
    if args.compile.timings {
        train::timings(&timings, out);
    }
    let mut engine = Compiled::open(program, &recipe, ExecOptions { threads, ..ExecOptions::default() })?;
    // As it was given: what comes later on the line counts.
    let words = std::env::args().skip(1).map(|w| if w.contains([' ', '\'']) { format!("{w:?}") } else { w });
    let command = ["partita".to_string()].into_iter().chain(words).collect::<Vec<_>>().join(" ");
    evaluate(&recipe, &mut engine, &args.how, &args.output, (&findings.sources, Some(&command)), out)
}

/// Evaluates a checkpoint, or the initial weights. `command`: the one that was given, where it can be given in another way.
pub fn evaluate(
    recipe: &Recipe,
    engine: &mut dyn Engine,
    how: &EvalHow,
    outputs: &[(String, PathBuf)],
    (sources, command): (&SourceMap, Option<&str>),
    out: &mut Output,
) -> Outcome<Code> {
    for (_, path) in outputs {
        overwrite::refuse(path, sources, &recipe.read_paths())?;
    }
    let (step, seed, chars) = if how.initial {
        weights::begin(recipe, engine, recipe.seed).map_err(|stop| Findings::of_stop(stop, sources))?;
        (0, recipe.seed, None)
    } else {
        let from = Checkpoint::open(&train::directory(how.checkpoint.as_deref(), recipe))?;
        weights::restore(recipe, engine, &from, &weights::groups_of_use(recipe))
            .map_err(|e| origin::blamed(e, recipe, &from))?;
        if let Some(d) = recipe.origin.author.warning(&from) {
            out.findings(&Findings::of(d));
        }
        (from.index.step, from.index.seed, from.index.chars)
    };
    let data = match (&recipe.valid, &recipe.data) {
        (Some(v), _) => (&v.data, &v.at),
        (None, Some(data)) => {
            out.say("the train item has no `valid`: evaluating on its `data`");
            (data, &recipe.data_at)
        }
        (None, None) => return without_data(),
    };
    let pass = Pass::open(recipe, data, chars.as_ref(), how.batches);
    let mut pass = pass.map_err(|stop| Findings::of_stop(stop, sources))?;
    if let Some(d) = pass.left_out(command).filter(|_| how.batches.is_none()) {
        out.findings(&Findings::of(d));
    }
    let stop = StopFlag::install()?;
    let found = pass.run(engine, seed, &stop, &mut |_| {}).map_err(|stop| Findings::of_stop(stop, sources))?;
    let Some(found) = found else { return Ok(128 + stop.signal().unwrap_or(2)) };
    for (name, path) in outputs {
        if let Some(value) = found.outputs.iter().find(|o| o.name == *name) {
            write_npy(path, &array(value))?;
            let axes: Vec<String> = value.dims.iter().zip(&value.shape).map(|(d, n)| format!("{d} {n}")).collect();
            out.say(format!("{}: {} [{}]", path.display(), value.dtype, axes.join(", ")));
        }
    }
    if how.json {
        let mut line = serde_json::json!({"step": step, "loss": found.loss, "batches": found.batches});
        for (name, x) in &found.figures {
            line[name] = serde_json::json!(x);
        }
        out.line(line.to_string());
    } else {
        let figures: Vec<String> = found.figures.iter().map(|(n, x)| format!(", {n} {}", show::number(*x))).collect();
        let what = if how.initial { "initial weights".to_string() } else { format!("step {step}") };
        let loss = show::number(found.loss);
        let batches = counted(found.batches, "batch");
        out.line(format!("{what}: loss {loss}{} over {batches}", figures.concat()));
    }
    Ok(OK)
}

fn without_data() -> Outcome<Code> {
    Err(Findings::of(
        Diagnostic::error("E0710", "the train item has neither `valid` nor `data`")
            .help("add `valid ..` to the train item"),
    ))
}

fn array(value: &Figure) -> Sampled {
    let mut bytes = Vec::new();
    elements(value.dtype, &value.values, &mut bytes);
    Sampled { name: value.name.clone(), dtype: value.dtype, shape: value.shape.clone(), bytes }
}
