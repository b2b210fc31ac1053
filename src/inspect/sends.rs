//! What the stages of a pipeline send to each other in a step.

use super::comm::{Place, layout_of, made_in_turn, number, phase_name};
use super::names::Names;
use super::table::{bytes, without_turns};
use super::why::{Explained, Line};
use crate::ir::*;
use crate::source::{SourceMap, Span};
use crate::types::{DType, counted};
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
    /// In the notation of layouts.
    pub layout: String,
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
    /// A value of the program of a rank that crosses so often; `names`: of that program before and after it was cut into stages, which
    /// adds values to it.
    pub fn of(names: [&Names<'_>; 2], v: ValueId, [from, to]: [usize; 2], count: usize, sources: &SourceMap) -> Sent {
        let [before, after] = names;
        let g = after.graph();
        let names = if v.index() < before.graph().values.len() { before } else { after };
        let Value { dtype, dims, def, .. } = g.value(v);
        let made = made_in_turn(g, v);
        let place = made.and_then(|id| g.called(id, sources).or(g.op(id).span));
        let scope = made.and_then(|id| g.scopes.get(g.op(id).scope.index()));
        let phase = match def {
            Def::Op(id, _) => g.op(*id).phase,
            Def::BlockParam(_) => Phase::Update,
        };
        let whole: Vec<&str> = dims.iter().map(|d| g.whole_name(*d)).collect();
        Sent {
            from,
            to,
            dtype: *dtype,
            shape: dims.iter().map(|d| g.size(*d)).collect(),
            layout: layout_of(g, dims, Vec::new()).show(&g.mesh, &whole),
            bytes: (g.elements(dims) * dtype.bytes() * count) as u64,
            count: count as u64,
            phase,
            layer: scope.map_or(String::new(), |s| s.path.clone()),
            value: names.of(v),
            source: place.map(|s| Place::of(s, sources)),
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
            "wire_bytes": number(self.bytes as f64 / ranks as f64),
            "count": self.count,
            "phase": phase_name(self.phase),
            "layer": self.layer,
            "value": self.value,
            "source": source,
            "overlapped": true,
            "bucket": null,
            "reason": self.reason(),
        })
    }

    pub(super) fn reason(&self) -> String {
        format!("made by stages of rank {}, needed by those of rank {}", self.from, self.to)
    }

    /// `38: send from rank 0 to rank 1 of pp of h[batch, seq, embed]: 2,048 bytes sent in a step, in 4 messages, forward, block.0`
    pub fn title(&self, id: usize, axis: &str) -> String {
        let layer = if self.layer.is_empty() { String::new() } else { format!(", {}", self.layer) };
        format!(
            "{id}: send from rank {} to rank {} of {axis} of {}{}: {} bytes sent in a step, in {}, {}{layer}",
            self.from,
            self.to,
            self.value,
            self.layout,
            bytes(self.bytes as f64),
            counted(self.count, "message"),
            phase_name(self.phase),
        )
    }

    /// `stages`: of all ranks along the axis; `said`: the statement of the pipeline.
    pub fn explained(&self, (axis, ranks): (&str, u64), stages: u64, said: (Span, &SourceMap)) -> Explained {
        let Sent { from, to, value, .. } = self;
        let line = |text: String, place: Option<Place>| Line { text, place };
        let within = if self.layer.is_empty() { String::new() } else { format!(" in {}", self.layer) };
        let mut out = Explained::default();
        out.need
            .push(line(format!("`{value}`{within} is made by stages of rank {from} of `{axis}`"), self.source.clone()));
        out.need.push(line(format!("stages of rank {to} need it, and have not made it"), None));
        let (span, sources) = said;
        out.rules.push(line(sources.text(span).to_string(), Some(Place::of(span, sources))));
        if stages > ranks {
            out.edits.push(format!(
                "{stages} stages on {ranks} ranks send more than {ranks}: a schedule with one stage a rank, as `1f1b`, sends less"
            ));
        }
        out.edits.push(format!("`--mesh {axis}=1`: one rank has all stages, and sends nothing"));
        out
    }

    /// Whether another one differs in the ranks and the turn of a loop alone.
    fn like(&self, o: &Sent) -> bool {
        (self.dtype, self.bytes, self.count, self.phase, &self.layout, &self.source)
            == (o.dtype, o.bytes, o.count, o.phase, &o.layout, &o.source)
            && without_turns(&self.layer) == without_turns(&o.layer)
            && without_turns(&self.value) == without_turns(&o.value)
    }
}

/// Lines of a table for what is sent, numbered from `first`; what differs in the ranks alone shares one. Bytes are means over the `ranks`
/// along the axis.
pub(super) fn cells(sent: &[Sent], first: usize, (axis, ranks): (&str, u64)) -> Vec<[String; 9]> {
    let mut rows: Vec<(usize, Vec<&Sent>)> = Vec::new();
    for (k, s) in sent.iter().enumerate() {
        match rows.iter_mut().find(|(_, alike)| alike[0].like(s)) {
            Some((_, alike)) => alike.push(s),
            None => rows.push((first + k, vec![s])),
        }
    }
    let line = |(id, alike): (usize, Vec<&Sent>)| {
        let (s, n) = (alike[0], alike.len());
        let total: u64 = alike.iter().map(|s| s.bytes).sum();
        let layer = if n > 1 { without_turns(&s.layer) } else { s.layer.clone() };
        let times = if n > 1 { format!(" x{n}") } else { String::new() };
        let messages = if s.count > 1 { format!(" ({} messages)", s.count) } else { String::new() };
        [
            id.to_string(),
            "send".to_string(),
            axis.to_string(),
            bytes(total as f64 / ranks as f64),
            phase_name(s.phase).to_string(),
            format!("{layer}{times}{messages}").trim_start().to_string(),
            format!("{}{}", s.value, if s.shape.is_empty() { "" } else { &s.layout }),
            s.source.as_ref().map_or_else(String::new, |p| format!("{}:{}", p.file, p.line)),
            if n > 1 { "from rank to rank".to_string() } else { format!("rank {} to rank {}", s.from, s.to) },
        ]
    };
    rows.into_iter().map(line).collect()
}
