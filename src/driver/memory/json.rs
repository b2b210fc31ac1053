//! As `partita memory --json` prints it; `docs/memory.md` lists the fields.

use super::instants::{Instants, Shown};
use super::{Needed, Stage};
use crate::memory::Moment;
use crate::program::Category;
use serde_json::{Map, Value, json};

/// What of a rank is told beside its peak.
#[derive(Clone, Copy, Default)]
pub struct More<'a> {
    /// None but the ranks of this stage.
    pub only: Option<&'a Stage>,
    /// What is alive at an instant of a stage.
    pub alive: Option<(&'a Stage, &'a Shown)>,
    /// All instants.
    pub timeline: bool,
}

impl Needed {
    pub fn json(&self, more: More<'_>) -> Value {
        let ranks: Vec<Value> = match more.only {
            Some(stage) => vec![self.rank(stage, more)],
            None => self.stages.iter().map(|s| self.rank(s, more)).collect(),
        };
        let mesh: Map<String, Value> = self.mesh.iter().map(|(name, size)| (name.clone(), json!(size))).collect();
        let mut out = json!({"plan": self.plan, "mesh": mesh, "ranks": ranks});
        if let Some(bytes) = self.one_device {
            out["one_device"] = json!({"peak_bytes": bytes});
            out["uneven"] = json!(self.uneven);
        }
        if let Some(again) = &self.again {
            let one = |(value, times): &(String, usize)| json!({"value": value, "times": times});
            let values: Vec<Value> = again.values.iter().map(one).collect();
            out["recomputed"] = json!({"more_flops": again.share, "values": values});
        }
        out
    }

    fn rank(&self, stage: &Stage, more: More<'_>) -> Value {
        let number = if self.ranks == 1 { json!(0) } else { json!(stage.ranks) };
        let mut rank = json!({"rank": number, "stage": stage.coordinate, "scratch_bytes": self.scratch_bytes,
            "checkpoint_bytes": self.checkpoint_bytes});
        if let (Some(all), Ok(Value::Object(report))) = (rank.as_object_mut(), serde_json::to_value(&stage.report)) {
            all.extend(report);
        }
        if let Some((_, shown)) = more.alive.filter(|(s, _)| s.coordinate == stage.coordinate) {
            let m = &shown.moment;
            rank["at"] = json!({"instant": m.number, "action": m.action, "microbatch": m.microbatch,
                "value": m.value, "bytes": shown.bytes, "in_use": shown.in_use});
            rank["alive"] = json!(shown.alive);
        }
        if more.timeline {
            let all = self.instants(stage);
            rank["timeline"] = all.moments.iter().map(|m| all.json(m)).collect();
        }
        rank
    }
}

impl Instants {
    fn json(&self, m: &Moment) -> Value {
        let by_category = self.by_category(m);
        let names: Map<String, Value> =
            Category::ALL.iter().zip(by_category).map(|(c, bytes)| (c.name().to_string(), json!(bytes))).collect();
        let in_flight: Vec<Value> =
            m.in_flight.iter().map(|(m, bytes)| json!({"microbatch": m, "bytes": bytes})).collect();
        json!({"instant": m.number, "action": m.action, "microbatch": m.microbatch, "value": m.value,
            "bytes": by_category.iter().sum::<usize>(), "by_category": names, "in_flight": in_flight})
    }
}
