//! What a plan's step sends.

use super::check;
use super::findings::{Findings, Outcome};
use super::options::Options;
use super::pipeline::{self, Graphs};
use super::{plan, sharding, stages};
use crate::diag::{Diagnostic, Sink};
use crate::inspect::comm::Entry;
use crate::inspect::sends::Sent;
use crate::inspect::why::{self, Explained};
use crate::inspect::{Comm, table};
use crate::ir::Graph;
use crate::pipeline::{Crossing, Holders};
use crate::shard::{self, Pin, Rules, Sharded};
use crate::source::{Span, World};

/// The collectives of a step, and what they were read from.
pub struct Shown {
    pub comm: Comm,
    pub graphs: Graphs,
    /// None on one device.
    pub sharded: Option<Sharded>,
    /// What follows each so many training steps.
    pub outer: Option<Sharded>,
}

/// The training step's collectives under the options' plan, or those of evaluation.
pub fn shown(options: &Options, eval: bool, world: &dyn World) -> Outcome<Shown> {
    let options = plan::spread(options, world)?;
    let mesh = plan::axes(&options, &check::load(&options.request, world).program, &mut Sink::default());
    let graphs = pipeline::graphs(&options, world)?;
    let sharded = match (&graphs.sharding, eval) {
        (None, _) => None,
        (Some(_), true) => sharding::eval(&graphs)?,
        (Some(_), false) => Some(sharding::train(&graphs)?),
    };
    let step = if eval { "eval" } else { "train" };
    let name = options.plan.as_deref().unwrap_or_default();
    let mut comm = Comm::of(name, mesh, step, sharded.as_ref().map(|s| (s, &graphs.findings.sources)));
    if let (Some(s), true) = (&sharded, graphs.sharding.as_ref().is_some_and(|s| s.table.is_some())) {
        let lowering = options.lowering();
        let also = match (eval, sharding::eval(&graphs)?) {
            (false, Some(e)) => stages::holders(&graphs, &e.graph, &lowering)?,
            _ => Holders::new(),
        };
        let cut = stages::step(&graphs, &s.graph, eval, &also, &lowering)?;
        if let (Some(p), Some(sharding)) = (cut, &graphs.sharding) {
            let axis = sharding.plan.pipeline.as_ref().map_or(0, |p| p.axis);
            comm.pipeline = Some((sharding.plan.mesh[axis].name.clone(), p.ranks.len() as u64));
            let sources = &graphs.findings.sources;
            let sent = |c: &Crossing| Sent::of(&p.graph, c.value, [c.from, c.to], c.count, sources);
            comm.sent = p.crossings().iter().map(sent).collect();
        }
    }
    let outer = if eval { None } else { sharding::outer(&graphs)? };
    if let (Some(o), Some((every, _))) = (&outer, &graphs.outer) {
        comm.with_outer(*every, Comm::of("", Vec::new(), "outer", Some((o, &graphs.findings.sources))));
    }
    Ok(Shown { comm, graphs, sharded, outer })
}

/// What is found when the training step's program of a rank is made under the options' plan.
pub fn found(options: &Options, world: &dyn World) -> Outcome<Findings> {
    let options = plan::spread(options, world)?;
    let graphs = pipeline::graphs(&options, world)?;
    let warnings = match &graphs.sharding {
        Some(_) => sharding::train(&graphs)?.warnings,
        None => Vec::new(),
    };
    let mut out = graphs.findings;
    graphs.short.into_iter().for_each(|d| out.sink.push(d));
    warnings.into_iter().for_each(|d| out.sink.push(d));
    Ok(out)
}

impl Shown {
    /// The collective of a number, explained.
    pub fn why(&self, id: usize) -> Result<String, Diagnostic> {
        let known = self.comm.collectives.len();
        let outer = self.comm.outer.iter().flat_map(|(_, o)| &o.collectives);
        let entry = self.comm.collectives.iter().chain(outer).find(|e| e.id == id);
        let of = if id > known { &self.outer } else { &self.sharded };
        let (Some(entry), Some(s), Some(rules)) = (entry, of, self.rules()) else {
            let d = Diagnostic::error("E0902", format!("there is no collective {id}"));
            return Err(match self.comm.collectives.len() {
                0 => d.help("nothing is exchanged"),
                n => d.help(format!("they are numbered from 1 to {n}, in the order of `partita comm`")),
            });
        };
        let told = why::explain(entry, s, rules, &self.graphs.findings.sources).unwrap_or_default();
        // No rule can be left out of an outer step but the statement that asks for it.
        Ok(match id > known {
            true => told.text(&entry.title("outer step"), &[]),
            false => told.text(&entry.title("step"), &self.removals(entry, &told, rules)),
        })
    }

    /// What rules can be left out such that a collective is gone, and what a step sends then: of each rule the least part.
    fn removals(&self, entry: &Entry, told: &Explained, rules: &Rules) -> Vec<String> {
        let sources = &self.graphs.findings.sources;
        let graph = self.graph();
        let mut all: Vec<(String, Edit)> = Vec::new();
        for k in &told.pins {
            let Pin { dim, span, .. } = &rules.pins[*k];
            let of_dim = Edit { span: *span, dim: Some(graph.dim(*dim).name.clone()) };
            all.push((why::left_out(rules, graph, *k, sources), of_dim));
            all.push((format!("leave out `{}`", sources.text(*span)), Edit { span: *span, dim: None }));
        }
        for k in &told.zero {
            let span = rules.zero[*k].span;
            all.push((format!("leave out `{}`", sources.text(span)), Edit { span, dim: None }));
        }
        let mut out: Vec<String> = Vec::new();
        let mut done: Vec<Span> = Vec::new();
        for (text, edit) in all {
            if done.contains(&edit.span) && edit.dim.is_none() {
                continue;
            }
            let Some(then) = self.without(&edit) else { continue };
            let alike = |e: &Entry| {
                (e.kind, &e.axes, &e.value, e.phase, &e.layer)
                    == (entry.kind, &entry.axes, &entry.value, entry.phase, &entry.layer)
            };
            if !then.collectives.iter().any(alike) {
                let [now, then] = [&self.comm, &then].map(|c| table::bytes(c.wire_bytes()));
                out.push(format!("{text}: a step sends {then} bytes then, not {now}"));
                done.push(edit.span);
            }
        }
        out
    }

    /// The step's collectives under the plan without a rule.
    fn without(&self, edit: &Edit) -> Option<Comm> {
        let s = self.graphs.sharding.as_ref()?;
        let train = edit.of(&s.train, &self.graphs.train);
        let storage = shard::storage(&self.graphs.train, &train);
        let rules = if self.comm.step == "eval" { edit.of(&s.eval, &self.graphs.eval) } else { train };
        let again = self.graphs.again.as_ref().filter(|_| self.comm.step != "eval");
        let sharded = sharding::of_rank(self.graph(), &rules, &storage, again);
        let sources = &self.graphs.findings.sources;
        Some(Comm::of("", self.comm.mesh.clone(), self.comm.step, Some((&sharded, sources))))
    }

    fn graph(&self) -> &Graph {
        if self.comm.step == "eval" { &self.graphs.eval } else { &self.graphs.train }
    }

    fn rules(&self) -> Option<&Rules> {
        let s = self.graphs.sharding.as_ref()?;
        Some(if self.comm.step == "eval" { &s.eval } else { &s.train })
    }

    /// Warnings and notes.
    pub fn findings(&self) -> Findings {
        let mut out = self.graphs.findings.clone();
        self.sharded.iter().flat_map(|s| &s.warnings).for_each(|d| out.sink.push(d.clone()));
        out
    }
}

/// A statement that is left out, or one dim of it.
struct Edit {
    span: Span,
    dim: Option<String>,
}

impl Edit {
    fn of(&self, rules: &Rules, g: &Graph) -> Rules {
        let mut out = rules.clone();
        out.pins.retain(|p| p.span != self.span || self.dim.as_ref().is_some_and(|d| g.dim(p.dim).name != *d));
        out.zero.retain(|z| z.span != self.span);
        out
    }
}
