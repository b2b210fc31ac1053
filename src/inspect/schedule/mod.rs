//! A pipeline's schedule in time: as text, JSON, a picture, a page and a trace; and beside a run of it.

pub mod compare;
mod html;
mod svg;
mod text;
mod trace;

use crate::schedule::certify::Certificate;
use crate::schedule::{Action, Simulation, Table, file};
use serde_json::{Map, Value as Json, json};

/// A table with its times and its certificate.
#[derive(Clone, Debug)]
pub struct Timeline {
    pub plan: String,
    /// As the plan writes it.
    pub schedule: String,
    /// The mesh axis that carries the pipeline.
    pub axis: String,
    /// Turns of the loops, by stage.
    pub turns: Vec<u64>,
    /// Whose seconds are counted.
    pub machine: Option<String>,
    /// What times and memory are counted in.
    pub unit: &'static str,
    pub held: &'static str,
    /// How many steps in a row it shows, and the time of one between others: more than one where steps go over into each other, with
    /// microbatches counted through.
    pub steps: usize,
    pub between: f64,
    pub table: Table,
    pub simulation: Simulation,
    pub certificate: Certificate,
    /// Of the program that the ranks run, if it was asked for.
    pub of_ranks: Option<Certificate>,
}

impl Timeline {
    /// `1f1b over pp: 4 ranks, 4 stages, 8 microbatches`
    pub fn title(&self) -> String {
        let (ranks, stages, m) = (self.table.ranks.len(), self.table.stages, self.table.microbatches / self.steps);
        let count = |n: usize, what: &str| format!("{n} {what}{}", if n == 1 { "" } else { "s" });
        let all = [count(ranks, "rank"), count(stages, "stage"), count(m, "microbatch")];
        let plural = all[2].replace("microbatchs", "microbatches");
        let row = if self.steps > 1 { format!(", {} steps in a row", self.steps) } else { String::new() };
        format!("{} over {}: {}, {}, {plural}{row}", self.schedule, self.axis, all[0], all[1])
    }

    /// The idle share of a step between others.
    pub fn bubble_between(&self) -> f64 {
        let busy = self.simulation.busy.iter().sum::<f64>() / self.steps as f64;
        1.0 - busy / (self.between * self.table.ranks.len() as f64)
    }

    /// As `partita schedule --json` prints it.
    pub fn json(&self) -> Json {
        let rank = |rank: usize| {
            let actions: Vec<Json> = self
                .actions(rank)
                .map(|(a, [start, end])| {
                    json!({
                        "op": a.op.name(),
                        "stage": a.stage,
                        "microbatch": a.microbatch,
                        "start": number(start),
                        "end": number(end),
                    })
                })
                .collect();
            json!({"rank": rank, "actions": actions})
        };
        let mut out = json!({
            "schedule": self.schedule,
            "ranks": (0..self.table.ranks.len()).map(rank).collect::<Vec<_>>(),
            "makespan": number(self.simulation.makespan),
            "bubble_fraction": self.simulation.bubble_fraction(),
            "unit": self.unit,
            "machine": self.machine,
            "turns": self.turns,
            "peak_activations": self.simulation.peak_activations,
            "certificate": certificate_json(&self.certificate),
        });
        if let Some(c) = &self.of_ranks {
            out["certificate_of_ranks"] = certificate_json(c);
        }
        if self.steps > 1 {
            out["steps"] = self.steps.into();
            out["step_between"] = json!({"makespan": number(self.between), "bubble_fraction": self.bubble_between()});
        }
        out
    }

    /// As `schedule = file(..)` reads it.
    pub fn csv(&self) -> String {
        file::print(&self.table)
    }

    /// A rank's actions with their times.
    fn actions(&self, rank: usize) -> impl Iterator<Item = (Action, [f64; 2])> + '_ {
        self.table.ranks[rank].iter().copied().zip(self.simulation.times[rank].iter().copied())
    }

    /// Which of its rank's stages an action belongs to.
    fn chunk(&self, rank: usize, a: Action) -> usize {
        self.table.stages_of(rank).iter().position(|s| *s == a.stage).unwrap_or(0)
    }

    /// Whether a rank holds several stages.
    fn chunked(&self) -> bool {
        (0..self.table.ranks.len()).any(|r| self.table.stages_of(r).len() > 1)
    }

    /// What an action is called: with its stage where its rank has several.
    fn name(&self, a: Action, chunked: bool) -> String {
        if chunked { a.to_string() } else { format!("{}{}", a.op.name(), a.microbatch) }
    }
}

fn certificate_json(c: &Certificate) -> Json {
    let mut out = Map::new();
    out.insert("obligations".into(), json!(c.obligations()));
    for (kind, n) in c.by_kind() {
        out.insert(kind.into(), json!(n));
    }
    Json::Object(out)
}

/// Whole numbers are written so.
fn number(x: f64) -> Json {
    if x.fract() == 0.0 && x.abs() < 9e15 { json!(x as i64) } else { json!(x) }
}

/// A time for people: whole, or with four digits.
fn time(x: f64) -> String {
    if (x - x.round()).abs() < 1e-9 * x.abs().max(1.0) {
        return format!("{}", x.round());
    }
    let digits = (3 - x.abs().log10().floor() as i32).clamp(0, 12) as usize;
    format!("{x:.digits$}")
}
