//! The training loop: data, steps, evaluation, metrics, checkpoints. Tells what happens by events; prints nothing.

use super::engine::{Engine, Figure, Routine};
use super::evaluate::{Evaluation, Pass, named, total};
use super::findings::Stop;
use super::metrics::{self, Metrics};
use super::origin;
use super::recipe::Recipe;
use super::weights;
use crate::diag::Diagnostic;
use crate::runtime::RuntimeError;
use crate::runtime::checkpoint::{BEST, Checkpoint, DataPosition, SaveOptions, Saved, Saver, Snapshot, Weights};
use crate::runtime::data::{Batch, CharTable, Loader, Order, Prefetcher, pipes_once};
use crate::runtime::metrics::{EVENTS, Record};
use crate::runtime::stop::StopFlag;
use crate::types::counted;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How to run a recipe.
#[derive(Clone, Debug, Default)]
pub struct TrainRequest {
    /// Where checkpoints and event files go.
    pub out: PathBuf,
    /// Go on from the newest checkpoint there.
    pub resume: bool,
    /// Where metrics go as JSON lines.
    pub metrics: Option<PathBuf>,
    /// The seed, where the command line says one: that of a checkpoint cannot be changed.
    pub seed: Option<u64>,
    /// Write no checkpoint.
    pub no_save: bool,
    /// Whether the values of each step are watched, so that an error can say where it began.
    pub watched: bool,
}

/// What happens during training.
#[derive(Debug)]
pub enum Event {
    /// The first step is next; data and initial values (or a checkpoint's) took `opening`.
    Begin {
        first: u64,
        steps: u64,
        seed: u64,
        opening: Duration,
    },
    Step(Progress),
    Valid {
        step: u64,
        result: Evaluation,
    },
    Saved {
        step: u64,
        path: PathBuf,
    },
    Note(String),
    Warning(Diagnostic),
}

/// After a step.
#[derive(Clone, PartialEq, Debug)]
pub struct Progress {
    /// Steps done.
    pub step: u64,
    pub steps: u64,
    pub loss: f64,
    /// Tokens (samples) a second, lately.
    pub rate: f64,
    /// Seconds until the last step at this speed.
    pub left: f64,
    /// Whether this step is one of those to be logged.
    pub logged: bool,
    pub figures: Vec<(String, f64)>,
}

/// How training ended.
#[derive(Clone, PartialEq, Debug)]
pub struct Ended {
    pub step: u64,
    /// A signal ended it before the last step, or before its validation.
    pub interrupted: bool,
    pub train: Vec<(u64, f64)>,
    pub valid: Vec<(u64, f64)>,
    /// The last checkpoint.
    pub saved: Option<PathBuf>,
    pub beside: Beside,
}

/// The time of all steps but the first that is not theirs.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Beside {
    pub steps: u32,
    /// Waiting for batches.
    pub data: Duration,
    /// Metrics, validation, checkpoints.
    pub rest: Duration,
}

pub type Tell<'t> = &'t mut dyn FnMut(Event);

/// Steps that are logged where the item does not say how often.
const LOGGED: u64 = 20;
/// A loss scale below which gradients do not overflow f16 by its fault.
const LEAST_SCALE: f64 = 1.0 / 65536.0;
/// Batches that are prepared ahead.
const AHEAD: usize = 2;

/// Trains from the beginning, or from a checkpoint, to the last step or a signal.
pub fn train(
    recipe: &Recipe,
    engine: &mut dyn Engine,
    request: &TrainRequest,
    stop: &StopFlag,
    tell: Tell,
) -> Result<Ended, Stop> {
    let found = if request.resume { Some(Checkpoint::open(&request.out)?) } else { None };
    if let (Some(c), Some(seed)) = (&found, request.seed)
        && c.index.seed != seed
    {
        return Err(RuntimeError::new(
            "E0902",
            format!("the checkpoint was trained with seed {}, not {seed}", c.index.seed),
        )
        .help("leave `--seed` out to go on, or begin anew with another `--out DIR`")
        .into());
    }
    let start = Instant::now();
    let mut run = Run::open(recipe, engine, request, found.as_ref(), stop, tell)?;
    tell(Event::Begin { first: run.step, steps: recipe.steps, seed: run.seed, opening: start.elapsed() });
    let outcome = run.go(engine, stop, tell);
    // Whatever happened, a save that was begun is finished and reported.
    let last = run.saver.as_mut().and_then(Saver::finish);
    run.saved(last, tell);
    let interrupted = outcome?;
    if let Some(e) = run.failed_save.take() {
        return Err(e.into());
    }
    Ok(Ended {
        step: run.step,
        interrupted,
        train: run.train,
        valid: run.valid,
        saved: run.last_saved,
        beside: run.beside,
    })
}

/// Opens all that a run reads, without a run: the same errors where something is missing or does not fit.
pub fn rehearse(recipe: &Recipe) -> Result<(), Stop> {
    pipes_once(&recipe.data_paths())?;
    let loader = open_data(recipe, recipe.seed, None)?;
    if let Some(v) = &recipe.valid {
        Pass::open(recipe, (&v.data, &v.at), loader.as_ref().and_then(Loader::chars), v.batches)?;
    }
    recipe.loads.iter().try_for_each(|l| Weights::open(&l.path).map(|_| ()).map_err(|e| Stop::at(e, &l.at)))?;
    Ok(())
}

struct Run<'r> {
    recipe: &'r Recipe,
    watched: bool,
    /// Steps done.
    step: u64,
    seed: u64,
    /// None where the model has no inputs.
    data: Option<Prefetcher>,
    /// The batch of the next step, where the step before needed it.
    upcoming: Option<Result<Option<Batch>, RuntimeError>>,
    samples: u64,
    chars: Option<CharTable>,
    pass: Option<Pass>,
    /// None where nothing is saved.
    saver: Option<Saver>,
    last_saved: Option<PathBuf>,
    /// The step of the last snapshot.
    snapshot: Option<u64>,
    /// Of the last save, if it failed.
    failed_save: Option<RuntimeError>,
    metrics: Metrics,
    /// The record of the last step, if a signal cut its validation short: the next run does that first.
    unvalidated: Option<Record>,
    /// The lowest validation loss so far, of the checkpoint that is kept for it.
    best: Option<f64>,
    train: Vec<(u64, f64)>,
    valid: Vec<(u64, f64)>,
    skipped: u64,
    speed: Speed,
    beside: Beside,
}

impl<'r> Run<'r> {
    fn open(
        recipe: &'r Recipe,
        engine: &mut dyn Engine,
        request: &TrainRequest,
        from: Option<&Checkpoint>,
        stop: &StopFlag,
        tell: Tell,
    ) -> Result<Run<'r>, Stop> {
        let (step, seed) = from.map_or((0, recipe.seed), |c| (c.index.step, c.index.seed));
        let table = from.and_then(|c| c.index.chars.clone());
        pipes_once(&recipe.data_paths())?;
        let loader = open_data(recipe, seed, table.as_ref())?;
        let samples = loader.as_ref().map_or(0, Loader::samples);
        let chars = loader.as_ref().and_then(|l| l.chars().cloned());
        let pass = match &recipe.valid {
            Some(v) => {
                let pass = Pass::open(recipe, (&v.data, &v.at), chars.as_ref(), v.batches)?;
                pass.left_out(Some(&recipe.eval_command()))
                    .filter(|_| v.batches.is_none())
                    .into_iter()
                    .for_each(|d| tell(Event::Warning(d)));
                Some(pass)
            }
            None => None,
        };
        unfinished(recipe).into_iter().chain(too_late(recipe)).for_each(|d| tell(Event::Warning(d)));
        let mut options = SaveOptions::default();
        options.keep = recipe.keep.map_or(options.keep, |n| usize::try_from(n).unwrap_or(usize::MAX));
        let mut saver = (!request.no_save).then(|| Saver::open(&request.out, options)).transpose()?;
        match from {
            Some(c) => {
                weights::resume(recipe, engine, c).map_err(|e| origin::blamed(e, recipe, c))?;
                let warnings = [recipe.origin.author.warning(c), origin::warning(recipe, c)];
                warnings.into_iter().flatten().for_each(|d| tell(Event::Warning(d)));
                if c.index.data.samples != samples {
                    tell(Event::Warning(Diagnostic::warning(
                        "W0009",
                        format!("the data had {} before, now {samples}", counted(c.index.data.samples, "sample")),
                    )));
                }
            }
            None => weights::begin(recipe, engine, seed)?,
        }
        // From here on there is something that a signal must not tear.
        stop.at_once(false);
        let unvalidated = from
            .filter(|_| validation_due(recipe, step))
            .and_then(|c| metrics::restored(step, c.index.extra.get(UNVALIDATED)?));
        let recorded = from.map(|_| if unvalidated.is_some() { step - 1 } else { step });
        let mut metrics = Metrics::open(request.metrics.as_deref(), recorded, tell)?;
        let last = from.is_none().then(|| Checkpoint::open(&request.out).ok()).flatten();
        let other = last.as_ref().and_then(|c| recipe.origin.author.other(c));
        // A run that leaves nothing moves nothing away.
        if let Some(saver) = &mut saver
            && let Some(aside) = saver.set_aside(from.map(|c| c.index.step), &[EVENTS, BEST])?
        {
            let whose = other.map_or(String::new(), |file| {
                format!(", written by another program, {file}: runs are kept apart by `--out DIR`")
            });
            tell(Event::Note(format!("the run before is now in {}{whose}", aside.display())));
        }
        if !request.no_save {
            metrics.open_events(&request.out, tell);
        }
        let data = loader.map(|l| Prefetcher::start(l, step..recipe.steps, AHEAD)).transpose()?;
        Ok(Run {
            recipe,
            watched: request.watched,
            step,
            seed,
            data,
            upcoming: None,
            samples,
            chars,
            pass,
            saver,
            last_saved: from.map(|c| c.path().to_path_buf()),
            snapshot: from.map(|c| c.index.step),
            failed_save: None,
            metrics,
            unvalidated,
            best: from.and_then(|_| best_so_far(&request.out)),
            train: Vec::new(),
            valid: Vec::new(),
            skipped: 0,
            speed: Speed::default(),
            beside: Beside::default(),
        })
    }

    /// Whether a signal ended it.
    fn go(&mut self, engine: &mut dyn Engine, stop: &StopFlag, tell: Tell) -> Result<bool, Stop> {
        let empty = Batch::new(&[]);
        let first = self.step;
        if let Some(record) = self.unvalidated.take() {
            self.catch_up(record, engine, stop, tell)?;
        }
        while self.step < self.recipe.steps && !stop.requested() {
            let start = Instant::now();
            let next = match self.upcoming.take() {
                Some(known) => known,
                None => self.next_batch(),
            };
            let mut waited = start.elapsed();
            // Steps that are done are kept, although the data fails now.
            let batch = next.map_err(|e| {
                // What ends the run is the data.
                let _ = self.keep(engine, tell);
                self.settle(tell);
                let kept = self.last_saved.as_ref().map(|path| {
                    format!(
                        "the run is kept in `{}`: it goes on with `--resume` when the data is mended",
                        path.display()
                    )
                });
                Stop::of_data(kept.into_iter().fold(e, RuntimeError::note), &self.recipe.data_at)
            })?;
            if engine.goes_on() && self.step + 1 < self.recipe.steps {
                let start = Instant::now();
                let upcoming = self.next_batch();
                waited += start.elapsed();
                // Data that fails, or is no good, ends the run when its step comes.
                if let Ok(batch) = &upcoming {
                    let _ = engine.begin_next(batch.as_ref().unwrap_or(&empty));
                }
                self.upcoming = Some(upcoming);
            }
            let figures = engine.run(Routine::Train, self.seed, self.step, batch.as_ref().unwrap_or(&empty))?;
            if let (Some(data), Some(batch)) = (&self.data, batch) {
                data.recycle(batch);
            }
            self.step += 1;
            let done = start.elapsed();
            self.speed.step(done.as_secs_f64());
            let loss = total(&figures);
            self.train.push((self.step, loss));
            if !loss.is_finite() {
                self.settle(tell);
                return Err(self.not_finite(loss, &figures));
            }
            if self.bad_gradient(&figures).is_some() {
                self.settle(tell);
            }
            if let Some(e) = self.bad_gradient(&figures) {
                return Err(e);
            }
            let valid = self.validate(engine, stop, tell);
            let valid = valid.or_else(|e| self.keep(engine, tell).and(Err(e)))?;
            self.report(loss, &figures, valid, first, tell);
            if self.saver.is_some() && self.recipe.save_every.is_some_and(|n| self.step.is_multiple_of(n)) {
                self.save(engine, tell)?;
            }
            let outcome = self.saver.as_mut().and_then(Saver::poll);
            self.saved(outcome, tell);
            if self.step > first + 1 {
                self.beside.steps += 1;
                self.beside.data += waited;
                self.beside.rest += start.elapsed() - done;
            }
        }
        let interrupted = self.step < self.recipe.steps || self.unvalidated.is_some();
        self.keep(engine, tell)?;
        if self.skipped > 0 {
            let steps =
                if self.skipped == 1 { "1 step was".to_string() } else { format!("{} steps were", self.skipped) };
            tell(Event::Note(format!("{steps} skipped, since f16 gradients overflowed")));
        }
        Ok(interrupted)
    }

    fn next_batch(&mut self) -> Result<Option<Batch>, RuntimeError> {
        self.data.as_mut().map_or(Ok(None), Prefetcher::next_batch)
    }

    /// The loss on validation data where this step is one to measure it.
    fn validate(&mut self, engine: &mut dyn Engine, stop: &StopFlag, tell: Tell) -> Result<Validation, Stop> {
        let due = validation_due(self.recipe, self.step);
        let Some(pass) = self.pass.as_mut().filter(|_| due) else { return Ok(Validation::NotDue) };
        let Some(result) = pass.run(engine, self.seed, stop, &mut |_| {})? else { return Ok(Validation::CutShort) };
        let loss = result.loss;
        self.valid.push((self.step, loss));
        tell(Event::Valid { step: self.step, result });
        if self.recipe.save_best && self.saver.is_some() && loss.is_finite() && self.best.is_none_or(|best| loss < best)
        {
            let mut snapshot = self.snapshot(engine)?;
            snapshot.extra[BEST] = loss.to_bits().into();
            snapshot.extra["valid_loss"] = loss.into();
            let before = self.saver.as_mut().and_then(|s| s.save_best(snapshot));
            self.saved(before, tell);
            self.best = Some(loss);
        }
        Ok(Validation::Done(loss))
    }

    /// Does the validation that a signal cut short in the run before; its record then is what it would have been.
    fn catch_up(
        &mut self,
        mut record: Record,
        engine: &mut dyn Engine,
        stop: &StopFlag,
        tell: Tell,
    ) -> Result<(), Stop> {
        match self.validate(engine, stop, tell)? {
            Validation::Done(loss) => {
                record.valid_loss = Some(loss);
                let step = self.step;
                self.metrics.event(&Record { step, valid_loss: Some(loss), ..Record::default() }, tell);
                // Where no step follows, the checkpoint is written again, without what it lacks.
                self.snapshot = self.snapshot.filter(|_| step < self.recipe.steps);
            }
            _ => self.unvalidated = Some(record.clone()),
        }
        self.metrics.line(&record, tell);
        Ok(())
    }

    fn report(&mut self, loss: f64, figures: &[Figure], valid: Validation, first: u64, tell: Tell) {
        let steps = self.recipe.steps;
        let every = self.recipe.log_every.unwrap_or_else(|| (steps / LOGGED).max(1));
        let logged = self.step.is_multiple_of(every) || self.step == first + 1 || self.step == steps;
        let mut figures = named(figures);
        self.skipped += figures.iter().filter(|(n, x)| n == "skipped" && *x > 0.0).count() as u64;
        let rate = self.recipe.units as f64 / self.speed.seconds.max(1e-9);
        let grad_norm = figures.iter().find(|f| f.0 == "grad_norm").map(|f| f.1);
        let logged_too = logged || valid != Validation::NotDue;
        let recorded = self.recipe.log_every.is_none_or(|n| self.step.is_multiple_of(n)) || logged_too;
        if recorded {
            let others = figures.iter().filter(|f| f.0 != "grad_norm").cloned().collect();
            let record = Record {
                step: self.step,
                loss: Some(loss),
                valid_loss: if let Validation::Done(loss) = valid { Some(loss) } else { None },
                grad_norm,
                tokens_per_s: Some(rate),
                others,
            };
            self.metrics.line(&record, tell);
            if logged_too {
                self.metrics.event(&record, tell);
            }
            self.unvalidated = (valid == Validation::CutShort).then_some(record);
        }
        let left = self.speed.seconds * (steps - self.step) as f64;
        figures.retain(|f| f.0 != "skipped");
        tell(Event::Step(Progress { step: self.step, steps, loss, rate, left, logged, figures }));
    }

    /// Saves before the run ends, unless this step is saved already.
    fn keep(&mut self, engine: &dyn Engine, tell: Tell) -> Result<(), Stop> {
        if self.snapshot != Some(self.step) && self.step > 0 && self.saver.is_some() {
            self.save(engine, tell)
        } else {
            Ok(())
        }
    }

    /// All of the run's state. Weights that are not finite are not saved: what is there is better.
    fn snapshot(&mut self, engine: &dyn Engine) -> Result<Snapshot, Stop> {
        let mut extra = origin::kept(self.recipe);
        if let Some(record) = &self.unvalidated {
            extra[UNVALIDATED] = metrics::kept(record);
        }
        let spare = self.saver.as_mut().and_then(Saver::recycle).map_or(Vec::new(), |s| s.groups);
        let groups = weights::save(self.recipe, engine, spare)?;
        if let Some((name, value)) = weights::not_finite(self.recipe, &groups) {
            let what = format!("parameter `{name}` holds {value} after step {}", self.step);
            return Err(self.unstable(RuntimeError::new("E0810", what), "the optimizer's step"));
        }
        Ok(Snapshot {
            step: self.step,
            seed: self.seed,
            data: DataPosition { batch: self.step, samples: self.samples },
            chars: self.chars.clone(),
            extra,
            groups,
        })
    }

    fn save(&mut self, engine: &dyn Engine, tell: Tell) -> Result<(), Stop> {
        let snapshot = self.snapshot(engine)?;
        self.snapshot = Some(self.step);
        let before = self.saver.as_mut().and_then(|s| s.save(snapshot));
        self.saved(before, tell);
        Ok(())
    }

    /// A failed save harms nothing that is there: training goes on, and the run fails only if the last one failed.
    fn saved(&mut self, outcome: Option<Result<Saved, RuntimeError>>, tell: Tell) {
        match outcome {
            None => {}
            Some(Ok(saved)) => {
                self.failed_save = None;
                if !saved.path.ends_with(BEST) {
                    self.last_saved = Some(saved.path.clone());
                }
                tell(Event::Saved { step: saved.step, path: saved.path });
            }
            Some(Err(e)) => {
                if let Some(earlier) = self.failed_save.replace(e) {
                    let mut d = super::findings::diagnostic(earlier);
                    d.severity = crate::diag::Severity::Warning;
                    tell(Event::Warning(d));
                }
            }
        }
    }

    /// Waits for a save that is under way, so that it is known where the run can begin again.
    fn settle(&mut self, tell: Tell) {
        let outcome = self.saver.as_mut().and_then(Saver::finish);
        self.saved(outcome, tell);
    }

    fn not_finite(&self, loss: f64, figures: &[Figure]) -> Stop {
        let mut e = RuntimeError::new("E0810", format!("the loss of step {} is {loss}", self.step));
        for f in figures.iter().filter(|f| f.is_loss() && f.values.iter().any(|x| !x.is_finite())) {
            e = e.note(format!("loss term `{}` is {}", f.name, f.values[0]));
        }
        self.unstable(e, "the step before")
    }

    /// Gradients that are not finite have spoilt the parameters, unless the step was skipped (f16).
    fn bad_gradient(&self, figures: &[Figure]) -> Option<Stop> {
        let figure = |name: &str| figures.iter().find(|f| f.name == name).map(|f| f.values[0]);
        let step = self.step;
        if let Some(scale) = figure("loss_scale").filter(|s| *s < LEAST_SCALE) {
            let e = RuntimeError::new("E0810", format!("the loss scale has fallen to {scale:.3e} at step {step}"));
            let e = e.note("so small a loss overflows nowhere: the gradients are not finite for another reason");
            return Some(self.unstable(e, "the forward pass"));
        }
        let norm = figure("grad_norm").filter(|n| !n.is_finite() && figure("skipped").is_none())?;
        let e =
            RuntimeError::new("E0810", format!("the gradients of step {step} are not finite: their norm is {norm}"));
        Some(self.unstable(e, "the loss"))
    }

    /// Numbers went bad: where the run can begin again, and how to find out why; `sound` was finite.
    fn unstable(&self, e: RuntimeError, sound: &str) -> Stop {
        let e = match &self.last_saved {
            Some(path) => e.note(format!("the last checkpoint is {}", path.display())),
            None => e.note("there is no checkpoint yet"),
        };
        if self.watched {
            return e.help(format!("{sound} was finite: look at the learning rate")).into();
        }
        e.help("run again with `--debug-nan`, which names the first value that went bad; or lower the learning rate")
            .into()
    }
}

/// What became of a step's validation.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Validation {
    NotDue,
    Done(f64),
    /// By a signal.
    CutShort,
}

/// In a checkpoint's index: the record of its step, whose validation is still to be done.
const UNVALIDATED: &str = "unvalidated";

/// The validation loss of a run's best checkpoint.
fn best_so_far(run: &Path) -> Option<f64> {
    let best = run.join(BEST);
    let index = best.is_dir().then(|| Checkpoint::open(&best).ok()).flatten()?.index;
    index.extra[BEST].as_u64().map(f64::from_bits)
}

fn validation_due(recipe: &Recipe, step: u64) -> bool {
    let Some(valid) = &recipe.valid else { return false };
    valid.every.is_some_and(|n| step.is_multiple_of(n)) || step == recipe.steps
}

/// Steps after the last outer step, of which the model has nothing.
fn unfinished(recipe: &Recipe) -> Option<Diagnostic> {
    let every = recipe.outer?;
    let lost = recipe.steps % every;
    let (what, whole) = (counted(lost, "step"), recipe.steps.next_multiple_of(every));
    let message = format!("no outer step follows the last {what} of {}", recipe.steps);
    let d = Diagnostic::warning("W0016", message).with_note(format!(
        "an outer step comes after every {every} steps; what replicas learn after the last one is not in the model"
    ));
    (lost > 0).then(|| d.help(format!("train for a multiple of {every} steps: `--steps {whole}`")))
}

/// A run that ends before its first gradient is applied.
fn too_late(recipe: &Recipe) -> Option<Diagnostic> {
    let (late, steps) = (recipe.late, recipe.steps);
    let message = format!("nothing is learned in {}", counted(steps, "step"));
    let d = Diagnostic::warning("W0017", message)
        .with_note(format!("by `async` gradients are applied {} late", counted(late, "step")));
    (late > 0 && steps <= late).then(|| d.help(format!("train for more: `--steps {}`", (10 * late).max(100))))
}

/// The training data; none where the model has no inputs.
fn open_data(recipe: &Recipe, seed: u64, chars: Option<&CharTable>) -> Result<Option<Loader>, Stop> {
    if recipe.inputs.is_empty() {
        return Ok(None);
    }
    let Some(spec) = &recipe.data else {
        let names: Vec<&str> = recipe.inputs.iter().map(|i| i.name.as_str()).collect();
        return Err(RuntimeError::new("E0701", format!("nothing feeds the inputs {}", names.join(", ")))
            .help("add `data ..` to the train item")
            .into());
    };
    let loader = Loader::open(spec, &recipe.inputs, Order::Train { seed }, chars);
    loader.map(Some).map_err(|e| Stop::of_data(recipe.with_option(e), &recipe.data_at))
}

/// How long a step takes: a mean in which the past fades.
#[derive(Default)]
struct Speed {
    seconds: f64,
    steps: u64,
}

impl Speed {
    /// The first steps count little: they fill caches.
    fn step(&mut self, seconds: f64) {
        self.steps += 1;
        let weight = if self.steps <= 3 { 1.0 } else { 0.1 };
        self.seconds += weight * (seconds - self.seconds);
    }
}
