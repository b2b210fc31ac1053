//! The timeline as a trace that Perfetto and Chrome show.

use super::Timeline;
use crate::schedule::Work;
use serde_json::{Value as Json, json};

impl Timeline {
    /// Seconds are those of the trace; any other unit of time is a microsecond of it.
    pub fn trace(&self) -> String {
        let mut events: Vec<Json> = Vec::new();
        events.push(json!({"name": "process_name", "ph": "M", "pid": 0, "args": {"name": self.title()}}));
        let chunked = self.chunked();
        let micros = if self.machine.is_some() { 1e6 } else { 1.0 };
        for rank in 0..self.table.ranks.len() {
            let name = json!({"name": format!("rank {rank}")});
            events.push(json!({"name": "thread_name", "ph": "M", "pid": 0, "tid": rank, "args": name}));
            let mut live = 0usize;
            for ((a, [start, end]), (at, memory)) in self.actions(rank).zip(&self.simulation.memory[rank]) {
                events.push(json!({
                    "name": self.name(a, chunked),
                    "cat": a.op.name(),
                    "ph": "X",
                    "ts": start * micros,
                    "dur": (end - start) * micros,
                    "pid": 0,
                    "tid": rank,
                    "args": {"stage": a.stage, "microbatch": a.microbatch},
                }));
                match a.op {
                    Work::F => live += 1,
                    Work::W | Work::B => live -= 1,
                    Work::I => {}
                }
                events.push(json!({
                    "name": format!("memory of rank {rank}"),
                    "ph": "C",
                    "ts": at * micros,
                    "pid": 0,
                    "args": {"activations": live, "held": memory},
                }));
            }
        }
        format!("{}\n", json!({"displayTimeUnit": "ns", "traceEvents": events}))
    }
}
