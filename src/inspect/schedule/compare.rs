//! A schedule beside a run of it: what was modelled, what the simulation makes of the times that actions took, and what was measured.

use super::{Timeline, time};
use crate::schedule::{Action, Costs, StageCost, Table, Work, simulate};
use crate::types::grouped;
use indexmap::IndexMap;
use serde_json::{Value as Json, json};
use std::collections::{HashMap, HashSet};
use std::fmt::Write;

/// The field of a trace with how many parameters the program has, and how many elements its inputs.
pub const SIZES: &str = "sizes";

/// Microseconds; of more than this no trace is.
const LONGEST: f64 = 1e15;

/// One run of an action.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Run {
    action: Action,
    /// Its beginning and end, in seconds since the trace began.
    time: [f64; 2],
}

/// What one of the ranks of a run did.
#[derive(Clone, Debug, PartialEq)]
struct Track {
    /// Its rank along the pipeline's axis.
    rank: usize,
    /// In order of time.
    runs: Vec<Run>,
}

/// What a trace of `partita train --trace` says of the actions of a pipeline.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    tracks: Vec<Track>,
    /// See [`SIZES`].
    sizes: Option<[u64; 2]>,
}

/// A schedule and a run of it.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// By modelled times.
    pub modelled: Timeline,
    /// By the median times of the actions of each stage.
    pub simulated: Timeline,
    /// Seconds, of the step in the middle by length.
    pub makespan: f64,
    pub bubble: f64,
    /// Steps that were looked at.
    pub steps: usize,
    /// When each action ran in that step, by rank and place in the table; none of one that had nothing to compute.
    pub times: Vec<Vec<Option<[f64; 2]>>>,
    /// By stage and kind of work: modelled and measured seconds.
    pub work: Vec<(usize, Work, f64, f64)>,
}

impl Measured {
    /// Err: why the text is no such trace.
    pub fn parse(text: &str) -> Result<Measured, String> {
        let all: Json = serde_json::from_str(text).map_err(|e| e.to_string())?;
        let events = all["traceEvents"].as_array().ok_or("it has no `traceEvents`")?;
        let mut tracks: IndexMap<u64, Track> = IndexMap::new();
        for e in events.iter().filter(|e| e["ph"] == "M") {
            if let (Some(pid), Some(rank)) = (e["pid"].as_u64(), e["args"]["pipeline_rank"].as_u64()) {
                tracks.insert(pid, Track { rank: rank as usize, runs: Vec::new() });
            }
        }
        for e in events.iter().filter(|e| e["ph"] == "X" && e["cat"] == "call") {
            let routine = e["args"]["routine"].as_str().unwrap_or("");
            let action = e["name"].as_str().and_then(action).filter(|_| routine.split('.').next() == Some("train"));
            let track = e["pid"].as_u64().and_then(|pid| tracks.get_mut(&pid));
            let (Some(action), Some(track)) = (action, track) else { continue };
            let (Some(start), Some(length)) = (e["ts"].as_f64(), e["dur"].as_f64()) else { continue };
            if !(start.abs() <= LONGEST && (0.0..=LONGEST).contains(&length)) {
                return Err(format!("`{action}` runs at {start:e} for {length:e} microseconds in it"));
            }
            track.runs.push(Run { action, time: [start / 1e6, (start + length) / 1e6] });
        }
        let mut tracks: Vec<Track> = tracks.into_values().collect();
        if tracks.iter().all(|t| t.runs.is_empty()) {
            return Err("no action of a pipeline ran in it".into());
        }
        tracks.iter_mut().for_each(|t| t.runs.sort_by(|a, b| a.time[0].total_cmp(&b.time[0])));
        let size = |n: usize| all[SIZES][n].as_u64();
        Ok(Measured { tracks, sizes: size(0).zip(size(1)).map(|(a, b)| [a, b]) })
    }

    /// Err: what the program that ran has instead of these sizes.
    pub fn of_sizes(self, own: [u64; 2]) -> Result<Measured, String> {
        let [own, ran] = [Some(own), self.sizes].map(|sizes| {
            sizes.map(|[params, inputs]| {
                format!("{} parameters and inputs of {} elements", grouped(params), grouped(inputs))
            })
        });
        match (own, ran) {
            (Some(own), Some(ran)) if own != ran => Err(format!("the program has {own}, the one that ran {ran}")),
            _ => Ok(self),
        }
    }

    /// How many microbatches a rank has had.
    pub fn microbatches(&self) -> usize {
        let forward = |t: &Track| t.runs.iter().filter(|r| r.action.op == Work::F).count();
        self.tracks.first().map_or(0, forward)
    }

    /// The same with microbatches counted through all steps, which have `m` each.
    pub fn counted_through(mut self, m: usize) -> Measured {
        for t in &mut self.tracks {
            let mut seen: HashMap<(usize, Work), usize> = HashMap::new();
            for r in &mut t.runs {
                let count = seen.entry((r.action.stage, r.action.op)).or_default();
                // Another one than is expected stays what it is.
                if r.action.microbatch % m == *count % m {
                    r.action.microbatch = *count;
                }
                *count += 1;
            }
        }
        self
    }

    /// By rank of a table, the places of the actions that ran at all: where nothing is to be computed, nothing is called.
    fn places(&self, table: &Table) -> Vec<Vec<usize>> {
        let ran: HashSet<(usize, Work)> =
            self.tracks.iter().flat_map(|t| &t.runs).map(|r| (r.action.stage, r.action.op)).collect();
        let of =
            |list: &Vec<Action>| (0..list.len()).filter(|k| ran.contains(&(list[*k].stage, list[*k].op))).collect();
        table.ranks.iter().map(of).collect()
    }

    /// How many whole steps of a table there are, if ranks did what their lists say again and again, `copies` ranks for each.
    fn whole_steps(&self, table: &Table, places: &[Vec<usize>], copies: usize) -> Result<usize, String> {
        for rank in 0..table.ranks.len() {
            let found = self.tracks.iter().filter(|t| t.rank == rank).count();
            if found != copies {
                return Err(format!(
                    "{found} of its ranks are at place {rank} of the pipeline, where the plan has {copies}"
                ));
            }
        }
        let mut steps = usize::MAX;
        for t in &self.tracks {
            let list = places.get(t.rank).ok_or("it has more ranks along the pipeline")?;
            for (k, run) in t.runs.iter().enumerate() {
                let expected = list.get(k % list.len().max(1)).map(|at| table.ranks[t.rank][*at]);
                if expected != Some(run.action) {
                    let (rank, done) = (t.rank, run.action);
                    return Err(match expected {
                        Some(e) => {
                            format!("rank {rank} of the pipeline did `{done}` in it where its schedule has `{e}`")
                        }
                        None => format!("rank {rank} of the pipeline did `{done}` in it, and has nothing to do here"),
                    });
                }
            }
            steps = steps.min(t.runs.len().checked_div(list.len()).unwrap_or(usize::MAX));
        }
        match steps {
            0 => Err("it has no whole step".into()),
            steps => Ok(steps),
        }
    }

    /// Beside a timeline in seconds, of a plan that has the pipeline so many times. Err: why the trace is not one of this schedule.
    pub fn beside(&self, modelled: &Timeline, costs: &Costs, copies: usize) -> Result<Comparison, String> {
        let table = &modelled.table;
        let places = self.places(table);
        let all = self.whole_steps(table, &places, copies)?;
        // The first step fills caches and maps memory.
        let steps = if all > 1 { 1..all } else { 0..all };
        let of = |t: &Track, step: usize| -> Vec<Run> {
            let n = places[t.rank].len();
            t.runs[step * n..(step + 1) * n].to_vec()
        };
        let mut taken: HashMap<(usize, Work), Vec<f64>> = HashMap::new();
        // Of each step when it begins, and how long it takes.
        let mut lengths: Vec<(f64, f64, usize)> = Vec::new();
        for step in steps.clone() {
            let runs: Vec<Run> = self.tracks.iter().flat_map(|t| of(t, step)).collect();
            for r in &runs {
                taken.entry((r.action.stage, r.action.op)).or_default().push(r.time[1] - r.time[0]);
            }
            let first = runs.iter().map(|r| r.time[0]).fold(f64::INFINITY, f64::min);
            let last = runs.iter().map(|r| r.time[1]).fold(f64::NEG_INFINITY, f64::max);
            lengths.push((last - first, first, step));
        }
        let mut work: Vec<(usize, Work, f64, f64)> = Vec::new();
        let mut stages: Vec<StageCost> = costs.stages.clone();
        for (stage, cost) in stages.iter_mut().enumerate() {
            for op in Work::ALL {
                if !table.ranks.iter().flatten().any(|a| (a.stage, a.op) == (stage, op)) {
                    continue;
                }
                let t = taken.remove(&(stage, op)).and_then(median).unwrap_or(0.0);
                work.push((stage, op, costs.of(op, stage), t));
                match op {
                    Work::F => cost.forward = t,
                    Work::I => cost.input = t,
                    Work::W => cost.weight = t,
                    Work::B => (cost.input, cost.weight) = (t / 2.0, t / 2.0),
                }
            }
        }
        let measured = Costs { stages, ..costs.clone() };
        let simulation = simulate(table, &measured).map_err(|e| e.message(table))?;
        lengths.sort_by(|a, b| a.0.total_cmp(&b.0));
        let (makespan, first, step) = lengths[lengths.len() / 2];
        let busy: f64 = self.tracks.iter().flat_map(|t| of(t, step)).map(|r| r.time[1] - r.time[0]).sum();
        // Of copies of the pipeline the first one counts.
        let shown = |rank: usize| self.tracks.iter().find(|t| t.rank == rank).map_or_else(Vec::new, |t| of(t, step));
        let times = |rank: usize| {
            let mut all = vec![None; table.ranks[rank].len()];
            for (at, r) in places[rank].iter().zip(shown(rank)) {
                all[*at] = Some(r.time.map(|t| t - first));
            }
            all
        };
        Ok(Comparison {
            modelled: modelled.clone(),
            simulated: Timeline { simulation, ..modelled.clone() },
            makespan,
            bubble: 1.0 - busy / (makespan * self.tracks.len() as f64),
            steps: steps.len(),
            times: (0..table.ranks.len()).map(times).collect(),
            work,
        })
    }
}

/// `F0.3`: the forward computation of stage 0 for microbatch 3.
fn action(name: &str) -> Option<Action> {
    let op = Work::ALL.into_iter().find(|w| name.starts_with(w.name()))?;
    let (stage, microbatch) = name[op.name().len()..].split_once('.')?;
    Some(Action::new(op, stage.parse().ok()?, microbatch.parse().ok()?))
}

fn median(mut all: Vec<f64>) -> Option<f64> {
    all.sort_by(f64::total_cmp);
    all.get(all.len() / 2).copied()
}

impl Comparison {
    pub fn text(&self) -> String {
        let machine = self.modelled.machine.as_deref().unwrap_or("a machine");
        let mut out = format!("{}\n\n", self.modelled.title());
        let _ = writeln!(out, "stage  work  modelled for {machine}  measured");
        let wide = "modelled for ".len() + machine.len();
        for (stage, op, modelled, measured) in &self.work {
            let _ = writeln!(
                out,
                "{stage:>5}  {:<4}  {:>wide$}  {:>8}",
                op.name(),
                format!("{} s", time(*modelled)),
                format!("{} s", time(*measured)),
            );
        }
        let s = &self.simulated.simulation;
        let line = |out: &mut String, what: &str, makespan: f64, bubble: f64| {
            let _ = writeln!(out, "{what:<46} {:>10} s, bubble {:.2} %", time(makespan), 100.0 * bubble);
        };
        let m = &self.modelled.simulation;
        out.push('\n');
        line(&mut out, &format!("modelled for {machine}"), m.makespan, m.bubble_fraction());
        line(&mut out, "simulated from what actions took", s.makespan, s.bubble_fraction());
        let measured = match (self.modelled.steps, self.steps) {
            (1, 1) => "measured, the median of the only step".into(),
            (1, n) => format!("measured, the median of {n} steps"),
            (n, _) => format!("measured, {n} steps in a row"),
        };
        line(&mut out, &measured, self.makespan, self.bubble);
        let _ = writeln!(out, "measured / simulated {:.3}", self.makespan / s.makespan);
        out
    }

    pub fn json(&self) -> Json {
        let of = |t: &Timeline| json!({"makespan": t.simulation.makespan, "bubble_fraction": t.simulation.bubble_fraction()});
        let table = &self.modelled.table;
        let ranks: Vec<Json> = (0..table.ranks.len())
            .map(|rank| {
                let actions: Vec<Json> = self
                    .simulated
                    .actions(rank)
                    .zip(&self.times[rank])
                    .map(|((a, [start, end]), at)| {
                        json!({
                            "op": a.op.name(), "stage": a.stage, "microbatch": a.microbatch,
                            "simulated": {"start": start, "end": end},
                            "measured": at.map(|[start, end]| json!({"start": start, "end": end})),
                        })
                    })
                    .collect();
                json!({"rank": rank, "actions": actions})
            })
            .collect();
        let work: Vec<Json> = self
            .work
            .iter()
            .map(|(stage, op, modelled, measured)| {
                json!({"stage": stage, "op": op.name(), "modelled": modelled, "measured": measured})
            })
            .collect();
        json!({
            "schedule": self.modelled.schedule,
            "machine": self.modelled.machine,
            "modelled": of(&self.modelled),
            "simulated": of(&self.simulated),
            "measured": {"makespan": self.makespan, "bubble_fraction": self.bubble, "steps": self.steps},
            "work": work,
            "ranks": ranks,
        })
    }
}
