//! What a plan's step sends.

use super::check;
use super::findings::{Findings, Outcome};
use super::options::Options;
use super::pipeline::{self, Graphs};
use super::{plan, recompute, sharding, stages};
use crate::diag::{Diagnostic, Sink};
use crate::inspect::comm::Entry;
use crate::inspect::names::Names;
use crate::inspect::sends::Sent;
use crate::inspect::why::{self, Explained};
use crate::inspect::{Comm, table};
use crate::ir::{Graph, Op, ROOT, Scope, ScopeId};
use crate::kernel;
use crate::pipeline::{Crossing, Holders};
use crate::shard::{self, Pin, Place, Rules, Sharded, Strength};
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
            let whole = kernel::keep_little(s.graph.clone(), &lowering);
            let (before, after, sources) = (Names::new(&whole), Names::new(&p.graph), &graphs.findings.sources);
            let sent = |c: &Crossing| Sent::of([&before, &after], c.value, [c.from, c.to], c.count, sources);
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
        Some(s) => {
            let train = sharding::train(&graphs)?;
            // A step that cannot be cut into stages is no step.
            if s.table.is_some() {
                stages::step(&graphs, &train.graph, false, &Holders::new(), &options.lowering())?;
            }
            train.warnings
        }
        None => Vec::new(),
    };
    let mut out = graphs.findings;
    recompute::besides(&warnings, graphs.short.as_ref()).for_each(|d| out.sink.push(d.clone()));
    graphs.short.into_iter().for_each(|d| out.sink.push(d));
    Ok(out)
}

impl Shown {
    /// What has a number, explained: a collective, or what stages send.
    pub fn why(&self, id: usize) -> Result<String, Diagnostic> {
        let known = self.comm.collectives.len();
        if let (Some(at), Some((axis, _))) = (id.checked_sub(self.comm.first_sent()), &self.comm.pipeline)
            && let Some(sent) = self.comm.sent.get(at)
        {
            return Ok(self.between_stages(sent).text(&sent.title(id, axis), &[]));
        }
        let outer = self.comm.outer.iter().flat_map(|(_, o)| &o.collectives);
        let entry = self.comm.collectives.iter().chain(outer).find(|e| e.id == id);
        let of = if id > known { &self.outer } else { &self.sharded };
        let (Some(entry), Some(s), Some(rules)) = (entry, of, self.rules()) else {
            let d = Diagnostic::error("E0902", format!("there is no collective {id}"));
            return Err(match self.comm.first_sent() - 1 + self.comm.sent.len() {
                0 => d.help("nothing is exchanged"),
                n => d.help(format!("they are numbered from 1 to {n}, in the order of `partita comm`")),
            });
        };
        let told = why::explain(entry, s, rules, &self.graphs.findings.sources).unwrap_or_default();
        // No rule can be left out of an outer step but the statement that asks for it.
        Ok(match id > known {
            true => told.text(&entry.title("outer step"), &[]),
            false => {
                let mut removals = self.removals(entry, &told, rules);
                removals.extend(self.kept_whole(entry, s, rules));
                told.text(&entry.title("step"), &removals)
            }
        })
    }

    /// Why stages send something.
    fn between_stages(&self, sent: &Sent) -> Explained {
        let sources = &self.graphs.findings.sources;
        let plan = self.graphs.sharding.as_ref().map(|s| &s.plan);
        let Some((plan, p)) = plan.and_then(|plan| Some((plan, plan.pipeline.as_ref()?))) else {
            return Explained::default();
        };
        let axis = &plan.mesh[p.axis].name;
        let stages = self.graphs.sharding.as_ref().and_then(|s| s.table.as_ref()).map_or(0, |t| t.0.stages as u64);
        sent.explained((axis, plan.mesh[p.axis].size), stages, (p.span, sources))
    }

    /// What rules can be left out such that a collective is gone, and what a step sends then: of each rule the least part.
    fn removals(&self, entry: &Entry, told: &Explained, rules: &Rules) -> Vec<String> {
        let sources = &self.graphs.findings.sources;
        let graph = self.graph();
        let mut all: Vec<(String, Edit)> = Vec::new();
        for k in &told.pins {
            let Pin { dim, span, .. } = &rules.pins[*k];
            let of_dim = Edit { span: *span, dim: Some(graph.known_as(*dim).to_string()) };
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
            let Some(then) = self.under(&|rules, g| edit.of(rules, g)) else { continue };
            if !has(&then, entry) {
                out.push(format!("{text}: {}", self.sends(&then)));
                done.push(edit.span);
            }
        }
        out
    }

    /// A dim that a layer around a collective had better keep whole, where what the layer does with parts of it costs more than to gather
    /// it once: the line that says so with which a step sends least, if that is less than it sends now.
    fn kept_whole(&self, entry: &Entry, s: &Sharded, rules: &Rules) -> Option<String> {
        let Op::Collective(c) = &s.graph.op(entry.operation).op else { return None };
        let operation = s.reasons.get(entry.operation.index())?.as_ref()?.operation;
        let g = self.graph();
        // A rule of the whole model is meant everywhere.
        let cuts = |p: &&Pin| p.place.is_some() && p.entries.iter().any(|e| c.atoms.contains(&e.atom));
        let mut dims: Vec<&str> = rules.pins.iter().filter(cuts).map(|p| g.known_as(p.dim)).collect();
        dims.sort_unstable();
        dims.dedup();
        let mut best: Option<(Comm, String)> = None;
        for scope in g.outwards(s.story.graph.op(operation).scope) {
            let Scope { definition, parent, .. } = &g.scopes[scope.index()];
            // Of layers, not of the model itself.
            if definition.is_empty() || parent.is_none_or(|p| p == ROOT) {
                continue;
            }
            for dim in &dims {
                let whole = Whole { dim, definition };
                let Some(then) =
                    whole.of(rules, g).and_then(|_| self.under(&|r, g| whole.of(r, g).unwrap_or_else(|| r.clone())))
                else {
                    continue;
                };
                let least = best.as_ref().map_or(self.comm.collective_bytes(), |(b, _)| b.collective_bytes());
                if then.collective_bytes() < least {
                    best = Some((then, format!("`replicate {dim} in {definition}`")));
                }
            }
        }
        let (then, line) = best?;
        let stays = if has(&then, entry) { "this stays, but " } else { "" };
        Some(format!("add {line}: {stays}{}", self.sends(&then)))
    }

    /// What a step sends under other rules, and now.
    fn sends(&self, then: &Comm) -> String {
        let [now, then] = [&self.comm, then].map(|c| table::bytes(c.collective_bytes()));
        let what = if self.comm.sent.is_empty() { "" } else { " in collectives" };
        format!("a step sends {then} bytes{what} then, not {now}")
    }

    /// The step's collectives under the plan with other rules.
    fn under(&self, change: &dyn Fn(&Rules, &Graph) -> Rules) -> Option<Comm> {
        let s = self.graphs.sharding.as_ref()?;
        let train = change(&s.train, &self.graphs.train);
        let storage = shard::storage(&self.graphs.train, &train);
        let rules = if self.comm.step == "eval" { change(&s.eval, &self.graphs.eval) } else { train };
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
        self.graphs.short.iter().for_each(|d| out.sink.push(recompute::unmet(d)));
        let found = self.sharded.iter().flat_map(|s| recompute::besides(&s.warnings, self.graphs.short.as_ref()));
        found.for_each(|d| out.sink.push(d.clone()));
        out
    }
}

/// Whether a step has a collective like another one.
fn has(comm: &Comm, like: &Entry) -> bool {
    let key = |e: &Entry| (e.kind, e.axes.clone(), e.value.clone(), e.phase, e.layer.clone());
    comm.collectives.iter().any(|e| key(e) == key(like))
}

/// `replicate DIM in LAYER`
struct Whole<'a> {
    dim: &'a str,
    definition: &'a str,
}

impl Whole<'_> {
    /// Rules with it; none where there is one of this dim and layer.
    fn of(&self, rules: &Rules, g: &Graph) -> Option<Rules> {
        let here = |s: &ScopeId| g.scopes[s.index()].definition == self.definition;
        let roots: Vec<ScopeId> = (0..g.scopes.len()).map(|k| ScopeId(k as u32)).filter(here).collect();
        let mut out = rules.clone();
        for pin in rules.pins.iter().filter(|p| g.known_as(p.dim) == self.dim) {
            if pin.place.as_ref().is_some_and(|p| p.roots.iter().any(here)) {
                return None;
            }
            let place = Some(Place { roots: roots.clone(), ..Place::default() });
            out.pins.push(Pin { entries: Vec::new(), place, strength: Strength::Statement, ..pin.clone() });
        }
        Some(out)
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
        out.pins.retain(|p| p.span != self.span || self.dim.as_ref().is_some_and(|d| g.known_as(p.dim) != d));
        out.zero.retain(|z| z.span != self.span);
        out
    }
}
