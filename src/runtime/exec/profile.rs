//! Where the time of a routine goes: every step measured, against what the machine can do.

use super::Executor;
use super::run::count;
use super::watch::Watch;
use crate::program::{Action, Program, SourceId, Step, Work};
use crate::runtime::device::pool::Pool;
use crate::runtime::device::roof;
use std::time::{Duration, Instant};

/// Most spans that are kept of a run; later ones are left out.
const MOST_SPANS: usize = 1 << 18;

/// Most runs of a routine whose times are kept.
const MOST_RUNS: usize = 1 << 14;

/// Time spent in one step so far, without what is inside of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Timing {
    pub label: String,
    pub kind: &'static str,
    pub source: SourceId,
    pub runs: u64,
    pub time: Duration,
    /// Of one run.
    pub work: Work,
}

/// The time of a routine's runs, the first one left out where there were more.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    pub runs: u64,
    /// Of all runs.
    pub time: Duration,
    /// Of one run, in the middle of them all.
    pub median: Duration,
    /// Part of it in which the calling thread waited for others to finish their share.
    pub waited: Duration,
    /// In order; those of loop bodies after their loop.
    pub steps: Vec<Timing>,
}

/// One run of one step.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Span {
    pub routine: u32,
    /// Its number in the routine, loop bodies counted.
    pub step: u32,
    /// Since the executor was made.
    pub start: Duration,
    pub time: Duration,
}

/// What the machine does at best.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Roof {
    /// f32 operations a second, of all threads.
    pub flops: f64,
    /// Bytes a second that all threads read from memory.
    pub bytes: f64,
}

impl Roof {
    /// The least time that work takes.
    pub fn least(&self, work: Work) -> f64 {
        (work.flops as f64 / self.flops).max(work.bytes as f64 / self.bytes)
    }
}

/// Times of all routines.
pub struct Times {
    origin: Instant,
    routines: Vec<Routine>,
    spans: Vec<Span>,
}

#[derive(Clone, Default)]
struct Routine {
    runs: u64,
    time: Duration,
    /// Of each run, up to the capacity.
    each: Vec<Duration>,
    waited: Duration,
    /// Runs and time of each step.
    steps: Vec<(u64, Duration)>,
}

impl Times {
    pub fn new(program: &Program) -> Times {
        let routine = |r: &crate::program::Routine| Routine {
            steps: vec![(0, Duration::ZERO); count(&r.steps)],
            each: Vec::with_capacity(MOST_RUNS),
            ..Routine::default()
        };
        Times {
            origin: Instant::now(),
            routines: program.routines.iter().map(routine).collect(),
            spans: Vec::with_capacity(MOST_SPANS),
        }
    }

    /// A run begins. The first one fills caches and maps memory: it is forgotten once there is another.
    pub fn begin(&mut self, routine: usize) {
        if self.routines[routine].runs == 1 {
            // Those that it calls never begin by themselves.
            for r in self.routines.iter_mut().filter(|r| r.runs == 0) {
                r.steps.fill((0, Duration::ZERO));
            }
            let r = &mut self.routines[routine];
            (r.time, r.waited) = (Duration::ZERO, Duration::ZERO);
            r.each.clear();
            r.steps.fill((0, Duration::ZERO));
        }
        self.routines[routine].runs += 1;
    }

    pub fn end(&mut self, routine: usize, time: Duration, waited: Duration) {
        let r = &mut self.routines[routine];
        r.time += time;
        r.waited += waited;
        if r.each.len() < r.each.capacity() {
            r.each.push(time);
        }
    }

    pub fn step(&mut self, routine: usize, step: usize, start: Instant) {
        let time = start.elapsed();
        let (runs, total) = &mut self.routines[routine].steps[step];
        *runs += 1;
        *total += time;
        if self.spans.len() < self.spans.capacity() {
            let start = start - self.origin;
            self.spans.push(Span { routine: routine as u32, step: step as u32, start, time });
        }
    }
}

impl Executor {
    /// What the runs of a routine took, if it was measured.
    pub fn profile(&self, routine: usize) -> Option<Profile> {
        let routine = self.own(routine);
        let all = &self.watch.times.as_ref()?.routines;
        let times = &all[routine];
        let r = &self.program.routines[routine];
        let mut steps = Vec::new();
        collect(r, &r.steps, &mut times.steps.iter(), &mut steps);
        for (callee, calls) in calls(r) {
            let inner = &self.program.routines[callee];
            let inside = collect(inner, &inner.steps, &mut all[callee].steps.iter(), &mut steps);
            // What is left of the calls is their own.
            let mut left = inside;
            for call in calls {
                let taken = left.min(steps[call].time);
                steps[call].time -= taken;
                left -= taken;
            }
        }
        let runs = if times.runs > 1 { times.runs - 1 } else { times.runs };
        let mut each = times.each.clone();
        each.sort_unstable();
        let median = each.get(each.len() / 2).copied().unwrap_or_default();
        Some(Profile { runs, time: times.time, median, waited: times.waited, steps })
    }

    /// When spans begin to count, if runs are measured.
    pub fn timed_since(&self) -> Option<Instant> {
        self.watch.times.as_ref().map(|t| t.origin)
    }

    /// The single runs of steps, oldest first.
    pub fn spans(&self) -> &[Span] {
        self.watch.times.as_ref().map_or(&[], |t| &t.spans)
    }

    /// Measures what this machine does at best with the executor's threads; takes some tenths of a second.
    pub fn roof(&mut self) -> Roof {
        let (flops, bytes) = roof::measure(&self.pool);
        Roof { flops, bytes }
    }
}

/// The routines that a routine without loops calls, each with the numbers of the steps that do.
fn calls(routine: &crate::program::Routine) -> Vec<(usize, Vec<usize>)> {
    let mut all: Vec<(usize, Vec<usize>)> = Vec::new();
    for (i, step) in routine.steps.iter().enumerate() {
        let Action::Call(c) = &step.action else { continue };
        match all.iter_mut().find(|(callee, _)| *callee == c.routine as usize) {
            Some((_, of)) => of.push(i),
            None => all.push((c.routine as usize, vec![i])),
        }
    }
    all
}

/// Appends the timings of steps and of what is inside of them; returns the time of these steps.
fn collect(
    routine: &crate::program::Routine,
    steps: &[Step],
    times: &mut std::slice::Iter<(u64, Duration)>,
    all: &mut Vec<Timing>,
) -> Duration {
    let mut total = Duration::ZERO;
    for step in steps {
        let Some((runs, time)) = times.next().copied() else { break };
        total += time;
        let at = all.len();
        let Step { action, source, label, .. } = step;
        let (label, kind, work) = (label.clone(), action.kind(), action.work(routine));
        all.push(Timing { label, kind, source: *source, runs, time, work });
        if let Action::Loop(l) = action {
            let inside = collect(routine, &l.body, times, all);
            all[at].time = time.saturating_sub(inside);
        }
    }
    total
}

impl Watch {
    /// Notes what a run of a routine took.
    pub fn run_ended(&mut self, routine: usize, start: Option<(Instant, Duration)>, pool: &Pool) {
        if let (Some(times), Some((start, waited))) = (&mut self.times, start) {
            times.end(routine, start.elapsed(), pool.waited().saturating_sub(waited));
        }
    }
}
