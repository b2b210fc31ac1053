//! What the stages of a pipeline send to each other in a step.

use super::comm::{Place, phase_name};
use crate::ir::*;
use crate::source::SourceMap;
use crate::types::DType;
use serde_json::{Value as Json, json};

/// A value that the ranks of one place along a pipeline send to those of another one. The receives are its other end.
#[derive(Clone, PartialEq, Debug)]
pub struct Sent {
    /// Coordinates along the pipeline's axis.
    pub from: usize,
    pub to: usize,
    pub dtype: DType,
    /// Of a rank's part.
    pub shape: Vec<usize>,
    /// Of all messages of a step.
    pub bytes: u64,
    /// Messages a step.
    pub count: u64,
    pub phase: Phase,
    /// The path of the layer instance.
    pub layer: String,
    /// Its name, or what makes it.
    pub value: String,
    pub source: Option<Place>,
}

impl Sent {
    /// A value of the program of a rank that crosses so often.
    pub fn of(g: &Graph, v: ValueId, [from, to]: [usize; 2], count: usize, sources: &SourceMap) -> Sent {
        let Value { dtype, dims, name, def, .. } = g.value(v);
        let made = match def {
            Def::Op(id, _) => Some(*id),
            Def::BlockParam(_) => None,
        };
        let op = made.map(|id| g.op(id));
        let span = made.and_then(|id| g.called(id, sources).or(g.op(id).span));
        let bytes = (g.elements(dims) * dtype.bytes() * count) as u64;
        let scope = op.and_then(|op| g.scopes.get(op.scope.index()));
        Sent {
            from,
            to,
            dtype: *dtype,
            shape: dims.iter().map(|d| g.size(*d)).collect(),
            bytes,
            count: count as u64,
            phase: op.map_or(Phase::Update, |op| op.phase),
            layer: scope.map_or(String::new(), |s| s.path.clone()),
            value: name.clone().or_else(|| op.map(|op| print::op_name(g, &op.op))).unwrap_or_else(|| "sum".into()),
            source: span.map(|s| Place::of(s, sources)),
        }
    }

    /// An entry beside those of collectives; `wire_bytes`: mean over the ranks along the axis.
    pub(super) fn json(&self, id: usize, (axis, ranks): (&str, u64)) -> Json {
        let source = self.source.as_ref().map(|p| json!({"file": p.file, "line": p.line, "column": p.column}));
        json!({
            "id": id,
            "kind": "send",
            "axes": [axis],
            "group_size": 2,
            "from": self.from,
            "to": self.to,
            "dtype": self.dtype.name(),
            "op": null,
            "shape": self.shape,
            "payload_bytes": self.bytes,
            "wire_bytes": super::comm::number(self.bytes as f64 / ranks as f64),
            "count": self.count,
            "phase": phase_name(self.phase),
            "layer": self.layer,
            "value": self.value,
            "source": source,
            "overlapped": true,
            "bucket": null,
            "reason": format!("made by stages of rank {}, needed by those of rank {}", self.from, self.to),
        })
    }
}
