//! The collectives of a step in program order, with what each of them sends.
//!
//! Figures are per rank and step: of all turns of the loops around a collective.

use super::names::{Names, reduced, stored, word};
use super::sends::Sent;
use crate::ir::*;
use crate::mesh::{Cut, Layout, Partial, cut};
use crate::shard::{Reason, Sharded, Why, overlapped};
use crate::source::{SourceMap, Span};
use crate::types::{DType, ReduceKind};
use indexmap::IndexMap;
use serde_json::{Value as Json, json};

/// What a step sends.
#[derive(Clone, Debug)]
pub struct Comm {
    /// Of the plan; empty without one.
    pub plan: String,
    /// Names and sizes of the axes.
    pub mesh: Vec<(String, u64)>,
    /// `train` or `eval`.
    pub step: &'static str,
    pub collectives: Vec<Entry>,
    /// Under a pipeline: its axis and size, and what its ranks send to each other. `collectives` are those of all stages then.
    pub pipeline: Option<(String, u64)>,
    pub sent: Vec<Sent>,
    /// What follows each so many steps: figures are of one time then. Its numbers go on behind those of the step.
    pub outer: Option<(u64, Box<Comm>)>,
}

/// One collective.
#[derive(Clone, PartialEq, Debug)]
pub struct Entry {
    /// Its number in program order, from 1.
    pub id: usize,
    pub kind: CollectiveKind,
    /// Of the group, major first.
    pub axes: Vec<String>,
    pub group_size: usize,
    pub dtype: DType,
    pub reduce: Option<ReduceKind>,
    /// Of the buffer that the ranks of a group hold together.
    pub shape: Vec<usize>,
    /// Bytes of that buffer, of all executions.
    pub payload_bytes: u64,
    /// Sent per rank by all executions, mean over ranks.
    pub wire_bytes: f64,
    /// Executions a step.
    pub count: u64,
    pub phase: Phase,
    /// The path of the layer instance.
    pub layer: String,
    pub value: String,
    /// Of the value before and after, in the notation of layouts.
    pub layouts: [String; 2],
    pub source: Option<Place>,
    /// Why it is there, in a few words.
    pub reason: String,
    /// Whether others compute while it is under way.
    pub overlapped: bool,
    /// Those with the same number are waited for together.
    pub bucket: Option<u32>,
    /// Of the program of a rank.
    pub operation: OpId,
}

/// Where in the program's text.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Place {
    pub file: String,
    pub line: usize,
    pub column: usize,
}

impl Place {
    pub fn of(span: Span, sources: &SourceMap) -> Place {
        let file = sources.file(span.file);
        let (line, column) = file.line_column(span.start);
        Place { file: file.name.clone(), line, column }
    }
}

/// `gpt.pta:12:5`
impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}:{}", self.file, self.line, self.column)
    }
}

pub fn phase_name(phase: Phase) -> &'static str {
    match phase {
        Phase::Forward => "forward",
        Phase::Backward => "backward",
        Phase::Update => "update",
    }
}

impl Comm {
    /// Of the program of a rank; none where there is one rank.
    pub fn of(
        plan: &str,
        mesh: Vec<(String, u64)>,
        step: &'static str,
        sharded: Option<(&Sharded, &SourceMap)>,
    ) -> Comm {
        let mut out = Comm {
            plan: plan.to_string(),
            mesh,
            step,
            collectives: Vec::new(),
            pipeline: None,
            sent: Vec::new(),
            outer: None,
        };
        if let Some((s, sources)) = sharded {
            let names = Names::new(&s.story.graph);
            let mut reader = Reader { s, sources, names, overlapped: overlapped(&s.graph), out: Vec::new() };
            reader.block(ENTRY, 1);
            out.collectives = reader.out;
            let mut sizes: IndexMap<u32, usize> = IndexMap::new();
            out.collectives.iter().flat_map(|c| c.bucket).for_each(|b| *sizes.entry(b).or_default() += 1);
            out.collectives.iter_mut().for_each(|c| c.bucket = c.bucket.filter(|b| sizes[b] > 1));
        }
        out
    }

    /// With what follows each `every` steps.
    pub fn with_outer(&mut self, every: u64, mut outer: Comm) {
        let known = self.collectives.len();
        outer.collectives.iter_mut().for_each(|e| e.id += known);
        self.outer = Some((every, Box::new(outer)));
    }

    /// Sent per rank and step, over many steps.
    pub fn mean_bytes(&self) -> f64 {
        let outer = self.outer.as_ref().map_or(0.0, |(every, o)| o.wire_bytes() / *every as f64);
        self.wire_bytes() + outer
    }

    pub fn ranks(&self) -> u64 {
        self.mesh.iter().map(|a| a.1).product()
    }

    /// Sent per rank and step, by collectives and between stages.
    pub fn wire_bytes(&self) -> f64 {
        self.collective_bytes() + self.sent_bytes()
    }

    pub fn collective_bytes(&self) -> f64 {
        self.collectives.iter().map(|c| c.wire_bytes).sum()
    }

    /// Between stages; mean over the ranks along the pipeline.
    fn sent_bytes(&self) -> f64 {
        let ranks = self.pipeline.as_ref().map_or(1, |p| p.1);
        self.sent.iter().map(|s| s.bytes as f64).sum::<f64>() / ranks as f64
    }

    /// By coordinate along the pipeline: how many arrays are sent in a step, and how many bytes.
    pub fn by_stage(&self) -> Vec<(u64, u64)> {
        let mut all = vec![(0, 0); self.pipeline.as_ref().map_or(0, |p| p.1 as usize)];
        for s in &self.sent {
            all[s.from] = (all[s.from].0 + s.count, all[s.from].1 + s.bytes);
        }
        all
    }

    /// The number of the first thing that stages send: they go on behind those of all collectives.
    pub fn first_sent(&self) -> usize {
        self.collectives.len() + self.outer.as_ref().map_or(0, |o| o.1.collectives.len()) + 1
    }

    /// Totals by something of a collective, in order of appearance.
    pub fn totals(&self, key: impl Fn(&Entry) -> String) -> IndexMap<String, f64> {
        let mut out: IndexMap<String, f64> = IndexMap::new();
        for c in &self.collectives {
            *out.entry(key(c)).or_default() += c.wire_bytes;
        }
        out
    }

    pub fn by_kind(&self) -> IndexMap<String, f64> {
        let mut all = self.totals(|c| c.kind.name().to_string());
        if !self.sent.is_empty() {
            all.insert("send".into(), self.sent_bytes());
        }
        all
    }

    /// A group over several axes is an entry of its own, `dp,tp`.
    pub fn by_axis(&self) -> IndexMap<String, f64> {
        let mut all = self.totals(|c| c.axes.join(","));
        if let Some((axis, _)) = self.pipeline.as_ref().filter(|_| !self.sent.is_empty()) {
            *all.entry(axis.clone()).or_default() += self.sent_bytes();
        }
        all
    }

    /// As `partita comm --json` prints it.
    pub fn json(&self) -> Json {
        let mesh: serde_json::Map<String, Json> = self.mesh.iter().map(|(n, s)| (n.clone(), json!(s))).collect();
        let totals = |all: IndexMap<String, f64>| -> serde_json::Map<String, Json> {
            all.into_iter().map(|(k, x)| (k, number(x))).collect()
        };
        let stage =
            |(at, (sends, bytes)): (usize, &(u64, u64))| json!({"coordinate": at, "sends": sends, "bytes": bytes});
        let mut collectives: Vec<Json> = self.collectives.iter().map(Entry::json).collect();
        if let Some((axis, ranks)) = &self.pipeline {
            let entry = |(k, s): (usize, &Sent)| s.json(self.first_sent() + k, (axis, *ranks));
            collectives.extend(self.sent.iter().enumerate().map(entry));
        }
        let mut out = json!({
            "plan": self.plan,
            "mesh": mesh,
            "collectives": collectives,
            "totals": {
                "wire_bytes": number(self.wire_bytes()),
                "by_kind": totals(self.by_kind()),
                "by_axis": totals(self.by_axis()),
            },
        });
        if let Some((every, outer)) = &self.outer {
            out["outer"] = json!({
                "every": every,
                "collectives": outer.collectives.iter().map(Entry::json).collect::<Vec<_>>(),
                "wire_bytes": number(outer.wire_bytes()),
            });
            out["totals"]["mean_wire_bytes"] = number(self.mean_bytes());
        }
        if self.pipeline.is_some() {
            out["between_stages"] = self.by_stage().iter().enumerate().map(stage).collect();
        }
        out
    }
}

/// Bytes that are whole are written so.
pub(super) fn number(x: f64) -> Json {
    if x.fract() == 0.0 && x.abs() < 9e15 { json!(x as i64) } else { json!(x) }
}

impl Entry {
    fn json(&self) -> Json {
        let source = self.source.as_ref().map(|p| json!({"file": p.file, "line": p.line, "column": p.column}));
        json!({
            "id": self.id,
            "kind": self.kind.name(),
            "axes": self.axes,
            "group_size": self.group_size,
            "dtype": self.dtype.name(),
            "op": self.reduce.map(ReduceKind::name),
            "shape": self.shape,
            "payload_bytes": self.payload_bytes,
            "wire_bytes": number(self.wire_bytes),
            "count": self.count,
            "phase": phase_name(self.phase),
            "layer": self.layer,
            "value": self.value,
            "source": source,
            "overlapped": self.overlapped,
            "bucket": self.bucket,
            "reason": self.reason,
        })
    }
}

/// The layout of dims of a rank's program that stand for those of a value.
pub fn layout_of(g: &Graph, dims: &[DimId], partial: Vec<Partial>) -> Layout {
    let cut = |d: &DimId| g.dim(*d).cut.as_ref().map_or_else(Cut::new, |c| c.entries.clone());
    Layout { dims: dims.iter().map(cut).collect(), partial }
}

/// The operation that makes a value; of what leaves a loop, or is exchanged, the one that makes it in a turn or before.
pub fn made_in_turn(g: &Graph, v: ValueId) -> Option<OpId> {
    let mut v = v;
    while let Def::Op(made, k) = g.value(v).def {
        v = match g.op(made).op {
            Op::Loop { body, .. } => g.block(body).results[k as usize],
            Op::Collective(_) => g.op(made).args[0],
            _ => return Some(made),
        };
    }
    None
}

struct Reader<'a> {
    s: &'a Sharded,
    sources: &'a SourceMap,
    names: Names<'a>,
    /// By operation.
    overlapped: Vec<bool>,
    out: Vec<Entry>,
}

impl Reader<'_> {
    fn block(&mut self, block: BlockId, turns: u64) {
        let g = &self.s.graph;
        for id in &g.block(block).ops {
            let op = g.op(*id);
            match &op.op {
                Op::Loop { body, dim, .. } => self.block(*body, turns * g.size(*dim) as u64),
                Op::Collective(c) => {
                    if let Some(reason) = &self.s.reasons[id.index()] {
                        self.collective(*id, op, c, reason, turns);
                    }
                }
                _ => {}
            }
        }
    }

    fn collective(&mut self, id: OpId, op: &Operation, c: &Collective, reason: &Reason, turns: u64) {
        let (g, mesh) = (&self.s.graph, &self.s.graph.mesh);
        let x = g.value(op.args[0]);
        // What all ranks of the group hold together: cut by what lies outside of it.
        let whole = |d: &DimId| match &g.dim(*d).cut {
            None => g.size(*d),
            Some(cut) => {
                let outside: Cut = cut.entries.iter().filter(|e| !c.atoms.contains(&e.atom)).copied().collect();
                cut::nominal(mesh, &outside, cut.extent)
            }
        };
        let shape: Vec<usize> = x.dims.iter().map(whole).collect();
        let bytes = shape.iter().product::<usize>() as u64 * x.dtype.bytes() as u64;
        let ended = c.reduce.iter().flat_map(|(op, atoms)| atoms.iter().map(|a| Partial { atom: *a, op: *op }));
        let names = self.s.story.dims(reason.value);
        let before = layout_of(g, &x.dims, ended.collect());
        let after = layout_of(g, &g.value(op.results[0]).dims, Vec::new());
        let placed = self.placed(id, reason);
        let span = g.called(placed, self.sources).or(g.op(placed).span);
        let layer = g.scopes.get(g.op(placed).scope.index()).map_or(String::new(), |s| s.path.clone());
        self.out.push(Entry {
            id: self.out.len() + 1,
            kind: c.kind,
            axes: mesh.names(&c.atoms),
            group_size: mesh.group(&c.atoms),
            dtype: x.dtype,
            reduce: c.reduce.as_ref().map(|r| r.0),
            shape,
            payload_bytes: bytes * turns,
            wire_bytes: reason.bytes * turns as f64,
            count: turns,
            phase: op.phase,
            layer,
            value: self.names.of(reason.value),
            layouts: [before, after].map(|l| l.show(mesh, &names)),
            source: span.map(|s| Place::of(s, self.sources)),
            reason: match reason.again {
                Some(_) => format!("{}, again", self.reason(c, reason)),
                None => self.reason(c, reason),
            },
            overlapped: self.overlapped[id.index()],
            bucket: (c.bucket > 0).then_some(c.bucket),
            operation: id,
        });
    }

    /// The operation whose place a collective has: a loop over microbatches has none of its own, so what makes the value in a turn.
    fn placed(&self, id: OpId, reason: &Reason) -> OpId {
        let g = &self.s.graph;
        if !matches!(self.s.story.graph.op(reason.operation).op, Op::Loop { .. }) {
            return id;
        }
        made_in_turn(g, g.op(id).args[0]).unwrap_or(id)
    }

    fn reason(&self, c: &Collective, r: &Reason) -> String {
        let story = &self.s.story;
        match r.why {
            _ if stored(story, r.value).is_some() && r.why == Why::Operand => "stored in parts".into(),
            Why::Reduction if c.reduce.is_none() => "made in parts, kept whole".into(),
            Why::Reduction => reduced(story, r.value, &c.atoms),
            Why::Chain if matches!(story.graph.op(r.operation).op, Op::TopK { .. }) => {
                format!("the best of each block, for {}", word(story, r.operation))
            }
            Why::Chain => format!("blocks before this one, for {}", word(story, r.operation)),
            Why::Ring => format!("round the ring of {}", word(story, r.operation)),
            Why::Operand => format!("for {}", word(story, r.operation)),
            Why::Result if c.reduce.is_some() => format!("what {} adds across edges", word(story, r.operation)),
            Why::Result => format!("for the next turn of {}", word(story, r.operation)),
            Why::Output => match c.reduce {
                Some(_) => reduced(story, r.value, &c.atoms),
                None => "leaves as a whole".into(),
            },
        }
    }
}
