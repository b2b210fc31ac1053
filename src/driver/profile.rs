//! Where the time of a training step, or of one new token, goes: by kernel against the machine's roofline (Williams, Waterman and
//! Patterson, 2009), by place in the text, and what is no kernel at all.

use super::engine::Machine;
use super::recipe::Recipe;
use crate::inspect::schedule::compare::SIZES;
use crate::program::{Program, Source, SourceId, Work};
use crate::runtime::exec::{Executor, Profile, Roof, Timing};
use indexmap::IndexMap;
use std::time::Duration;

/// A group of steps of one run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Line {
    pub what: String,
    pub kind: &'static str,
    /// Where in the text; empty: nowhere.
    pub place: String,
    /// Of one run.
    pub calls: f64,
    pub seconds: f64,
    /// Of one run.
    pub flops: f64,
    pub bytes: f64,
    /// Seconds that the roofline allows for it.
    pub least: f64,
}

/// All of it, for one run of a routine.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    pub runs: u64,
    pub seconds: f64,
    /// The same of the run in the middle.
    pub median: f64,
    /// Of the calling thread, for others.
    pub waited: f64,
    pub roof: Roof,
    /// Longest first.
    pub steps: Vec<Line>,
    /// The same by line of the text, longest first.
    pub places: Vec<Line>,
    /// The same by kind of step, longest first.
    pub kinds: Vec<Line>,
    /// Where there are several ranks; everything else is a mean over them then.
    pub ranks: Option<ManyRanks>,
}

/// How the time of a run differs between ranks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ManyRanks {
    pub count: usize,
    /// Seconds of a run that are no exchange with others, on average.
    pub own: f64,
    /// The rank on which they are most.
    pub slowest: (usize, f64),
}

impl Report {
    /// Of a routine whose runs were measured; None if there were none. Also measures the machine, which takes some tenths of a
    /// second.
    pub fn of(machine: &mut Machine, routine: &str) -> Option<Report> {
        let program = machine.program();
        let n = program.routines.iter().position(|r| r.name == routine)?;
        let profiles: Option<Vec<Profile>> =
            machine.each(|exec| exec.profile(n).filter(|p| p.runs > 0)).into_iter().collect();
        let profiles = profiles?;
        // Of the first rank, while the others rest.
        let mut roof = None;
        machine.each(|exec| roof = roof.or_else(|| Some(exec.roof())));
        let mut report = Report::new(&program, &mean(&profiles), roof?);
        if profiles.len() > 1 {
            let own: Vec<f64> = profiles.iter().map(own).collect();
            let slowest = own.iter().copied().enumerate().max_by(|a, b| a.1.total_cmp(&b.1))?;
            let average = own.iter().sum::<f64>() / own.len() as f64;
            report.ranks = Some(ManyRanks { count: own.len(), own: average, slowest });
        }
        Some(report)
    }

    fn new(program: &Program, profile: &Profile, roof: Roof) -> Report {
        let each = |t: Duration| t.as_secs_f64() / profile.runs as f64;
        let place = |source: SourceId| program.sources.get(source.0 as usize).map_or(String::new(), place);
        let group = |key: &dyn Fn(&Timing) -> (String, &'static str, String)| {
            let mut lines: IndexMap<(String, &'static str, String), Line> = IndexMap::new();
            for t in profile.steps.iter().filter(|t| t.runs > 0) {
                let key = key(t);
                let line = lines.entry(key.clone()).or_insert_with(|| Line {
                    what: key.0,
                    kind: key.1,
                    place: key.2,
                    ..Line::default()
                });
                line.add(t, profile.runs, &roof);
            }
            let mut lines: Vec<Line> = lines.into_values().collect();
            lines.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
            lines
        };
        Report {
            runs: profile.runs,
            seconds: each(profile.time),
            median: profile.median.as_secs_f64(),
            waited: each(profile.waited),
            roof,
            steps: group(&|t| (t.label.clone(), t.kind, place(t.source))),
            places: group(&|t| (String::new(), "", line_of(program.sources.get(t.source.0 as usize)))),
            kinds: group(&|t| (String::new(), t.kind, String::new())),
            ranks: None,
        }
    }

    /// Seconds of a run that no kernel takes: preparing calls.
    pub fn dispatch(&self) -> f64 {
        (self.seconds - self.kinds.iter().map(|k| k.seconds).sum::<f64>()).max(0.0)
    }
}

impl Line {
    fn add(&mut self, t: &Timing, runs: u64, roof: &Roof) {
        let calls = t.runs as f64 / runs as f64;
        let Work { flops, bytes } = t.work;
        self.calls += calls;
        self.seconds += t.time.as_secs_f64() / runs as f64;
        self.flops += calls * flops as f64;
        self.bytes += calls * bytes as f64;
        self.least += calls * roof.least(t.work);
    }
}

/// What a run takes on a rank without its exchanges.
fn own(p: &Profile) -> f64 {
    let exchanges: Duration = p.steps.iter().filter(|t| t.kind == COLLECTIVE).map(|t| t.time).sum();
    p.time.saturating_sub(exchanges).as_secs_f64() / p.runs as f64
}

/// Kind of the steps that exchange with other ranks.
const COLLECTIVE: &str = "collective";

/// The mean of what ranks have measured, which run the same steps.
fn mean(profiles: &[Profile]) -> Profile {
    let n = profiles.len() as u32;
    let over = |f: &dyn Fn(&Profile) -> Duration| profiles.iter().map(f).sum::<Duration>() / n;
    let step = |(k, t): (usize, &Timing)| Timing { time: over(&|p| p.steps[k].time), ..t.clone() };
    let first = &profiles[0];
    let names = |p: &Profile| p.steps.iter().map(|s| (s.label.clone(), s.source)).collect::<Vec<_>>();
    // Ranks of different stages do different things, of which each has its share.
    let share = |t: &Timing| Timing {
        time: t.time / n,
        work: Work { flops: t.work.flops / u64::from(n), bytes: t.work.bytes / u64::from(n) },
        ..t.clone()
    };
    let steps = match profiles.iter().all(|p| names(p) == names(first)) {
        true => first.steps.iter().enumerate().map(step).collect(),
        false => profiles.iter().flat_map(|p| &p.steps).map(share).collect(),
    };
    Profile {
        runs: first.runs,
        time: over(&|p| p.time),
        median: over(&|p| p.median),
        waited: over(&|p| p.waited),
        steps,
    }
}

/// `file:line`, in the library with the program's own call.
fn place(source: &Source) -> String {
    match (source.file.is_empty(), source.called.is_empty()) {
        (true, _) => String::new(),
        (_, true) => format!("{}:{}", source.file, source.line),
        _ => format!("{}:{} from {}", source.file, source.line, source.called),
    }
}

/// The line of the program itself: of library code that of the call.
fn line_of(source: Option<&Source>) -> String {
    let Some(source) = source.filter(|s| !s.file.is_empty()) else { return "elsewhere".to_string() };
    if source.called.is_empty() {
        return format!("{}:{}", source.file, source.line);
    }
    source.called.rsplit_once(':').map_or(source.called.as_str(), |(line, _)| line).to_string()
}

/// The single runs of steps in the JSON format of Chrome's trace events, which Perfetto reads: times in microseconds, a track
/// for each rank; with the sizes of the program, so that it is not taken for a run of another one.
pub fn trace(machine: &mut Machine, recipe: &Recipe) -> serde_json::Value {
    let program = machine.program();
    let begun = machine.each(|exec| exec.timed_since());
    let first = begun.iter().flatten().min().copied();
    let (mut events, mut rank) = (Vec::new(), 0);
    machine.each(|exec| {
        let ahead = exec.timed_since().zip(first).map_or(Duration::ZERO, |(own, first)| own - first);
        track(&program, exec, (rank, ahead), &mut events);
        rank += 1;
    });
    serde_json::json!({"displayTimeUnit": "ms", SIZES: recipe.sizes(), "traceEvents": events})
}

fn track(program: &Program, exec: &Executor, (rank, ahead): (usize, Duration), events: &mut Vec<serde_json::Value>) {
    let steps: Vec<Vec<Timing>> =
        (0..program.routines.len()).map(|n| exec.profile(n).map_or(Vec::new(), |p| p.steps)).collect();
    let micros = |t: Duration| t.as_nanos() as f64 / 1e3;
    events.push(serde_json::json!({
        "ph": "M", "pid": rank, "tid": 0, "name": "process_name", "args": {"name": format!("rank {rank}"), "pipeline_rank": program.stage(rank)},
    }));
    for span in exec.spans() {
        let Some(step) = steps.get(span.routine as usize).and_then(|s| s.get(span.step as usize)) else { continue };
        let source = program.sources.get(step.source.0 as usize);
        events.push(serde_json::json!({
            "ph": "X", "pid": rank, "tid": 0, "name": step.label, "cat": step.kind,
            "ts": micros(span.start + ahead), "dur": micros(span.time),
            "args": {
                "routine": program.routines[span.routine as usize].name,
                "source": source.map_or(String::new(), place),
                "scope": source.map_or("", |s| s.scope.as_str()),
                "flops": step.work.flops,
                "bytes": step.work.bytes,
            },
        }));
    }
}
