//! A schedule beside a run of it: what was modelled, what the simulation makes of the times that actions took, and what was measured.

use super::{Timeline, time};
use crate::schedule::{Action, Costs, StageCost, Work, simulate};
use serde_json::{Value as Json, json};
use std::collections::HashMap;
use std::fmt::Write;

/// One run of an action, in seconds since the trace began.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Run {
    /// Of all ranks of the run.
    process: u64,
    /// Along the pipeline's axis.
    rank: usize,
    action: Action,
    /// Which step of the run, from 0.
    step: usize,
    time: [f64; 2],
}

/// What a trace of `partita train --trace` says of the actions of a pipeline.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    runs: Vec<Run>,
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
    /// When each action ran in that step, by rank and place in the table; none where the trace does not have it.
    pub times: Vec<Vec<Option<[f64; 2]>>>,
    /// By stage and kind of work: modelled and measured seconds.
    pub work: Vec<(usize, Work, f64, f64)>,
}

impl Measured {
    /// Err: why the text is no such trace.
    pub fn parse(text: &str) -> Result<Measured, String> {
        let all: Json = serde_json::from_str(text).map_err(|e| e.to_string())?;
        let events = all["traceEvents"].as_array().ok_or("it has no `traceEvents`")?;
        let mut ranks: HashMap<u64, usize> = HashMap::new();
        for e in events.iter().filter(|e| e["ph"] == "M") {
            if let (Some(pid), Some(rank)) = (e["pid"].as_u64(), e["args"]["pipeline_rank"].as_u64()) {
                ranks.insert(pid, rank as usize);
            }
        }
        let mut seen: HashMap<(u64, Action), usize> = HashMap::new();
        let mut runs = Vec::new();
        for e in events.iter().filter(|e| e["ph"] == "X" && e["cat"] == "call") {
            let routine = e["args"]["routine"].as_str().unwrap_or("");
            let action = e["name"].as_str().and_then(action).filter(|_| routine.split('.').next() == Some("train"));
            let (Some(action), Some(pid), Some(start), Some(length)) =
                (action, e["pid"].as_u64(), e["ts"].as_f64(), e["dur"].as_f64())
            else {
                continue;
            };
            let Some(rank) = ranks.get(&pid) else { continue };
            let step = seen.entry((pid, action)).or_default();
            runs.push(Run {
                process: pid,
                rank: *rank,
                action,
                step: *step,
                time: [start / 1e6, (start + length) / 1e6],
            });
            *step += 1;
        }
        if runs.is_empty() {
            return Err("no action of a pipeline ran in it".into());
        }
        // The first step fills caches and maps memory. The last one may have been cut off.
        if runs.iter().any(|r| r.step > 0) {
            runs.retain(|r| r.step > 0);
            runs.iter_mut().for_each(|r| r.step -= 1);
        }
        Ok(Measured { runs })
    }

    /// Beside a timeline in seconds. Err: why the trace is not one of this schedule.
    pub fn beside(&self, modelled: &Timeline, costs: &Costs) -> Result<Comparison, String> {
        let table = &modelled.table;
        let place: HashMap<(usize, Action), usize> = table
            .ranks
            .iter()
            .enumerate()
            .flat_map(|(r, l)| l.iter().enumerate().map(move |(k, a)| ((r, *a), k)))
            .collect();
        if let Some(r) = self.runs.iter().find(|r| !place.contains_key(&(r.rank, r.action))) {
            return Err(format!("it has `{}` on rank {}, which this schedule has not", r.action, r.rank));
        }
        let mut work: Vec<(usize, Work, f64, f64)> = Vec::new();
        let mut stages: Vec<StageCost> = costs.stages.clone();
        for (stage, cost) in stages.iter_mut().enumerate() {
            for op in Work::ALL {
                let own = self.runs.iter().filter(|r| r.action.stage == stage && r.action.op == op);
                let Some(t) = median(own.map(|r| r.time[1] - r.time[0]).collect()) else { continue };
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
        // Whole steps of whole pipelines, by length.
        let steps = self.runs.iter().map(|r| r.step + 1).max().unwrap_or(0);
        let actions: usize = table.ranks.iter().map(Vec::len).sum();
        let mut all: Vec<(f64, f64, Vec<&Run>)> = Vec::new();
        for step in 0..steps {
            let own: Vec<&Run> = self.runs.iter().filter(|r| r.step == step).collect();
            if own.len() < actions {
                continue;
            }
            let first = own.iter().map(|r| r.time[0]).fold(f64::INFINITY, f64::min);
            let last = own.iter().map(|r| r.time[1]).fold(0.0, f64::max);
            all.push((last - first, first, own));
        }
        all.sort_by(|a, b| a.0.total_cmp(&b.0));
        let Some((makespan, first, runs)) = all.get(all.len() / 2) else {
            return Err("it has no whole step".into());
        };
        let one = runs.iter().map(|r| r.process).collect::<std::collections::BTreeSet<u64>>().len();
        let busy: f64 = runs.iter().map(|r| r.time[1] - r.time[0]).sum();
        let mut times: Vec<Vec<Option<[f64; 2]>>> = table.ranks.iter().map(|l| vec![None; l.len()]).collect();
        for r in runs {
            // Of copies of the pipeline the first one counts.
            let at = &mut times[r.rank][place[&(r.rank, r.action)]];
            *at = at.or(Some(r.time.map(|t| t - first)));
        }
        Ok(Comparison {
            modelled: modelled.clone(),
            simulated: Timeline { simulation, ..modelled.clone() },
            makespan: *makespan,
            bubble: 1.0 - busy / (makespan * one as f64),
            steps: all.len(),
            times,
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
        let steps = if self.steps == 1 { "the only step".to_string() } else { format!("{} steps", self.steps) };
        line(&mut out, &format!("measured, the median of {steps}"), self.makespan, self.bubble);
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
