//! Gathers that nobody asked for: a value that was in parts lies whole on every rank, though no rule says so.
//!
//! Rules ask for a gather where they pin the value, where they agree on another cut of the operation that needs it, and where
//! parameters are stored in parts. What blocks of a recurrence come to is no whole value. Optimizers work on what storage gives them, and outputs leave as a whole.

use super::comm::layout_of;
use super::names::{Names, stored, word};
use crate::diag::Diagnostic;
use crate::ir::*;
use crate::shard::{Link, Reason, Rules, Sharded, Story, Why};
use crate::source::SourceMap;
use crate::types::counted;

/// A warning for each place of the source.
pub fn warnings(s: &Sharded, rules: &Rules, sources: &SourceMap) -> Vec<Diagnostic> {
    let names = Names::new(&s.story.graph);
    let mut out: Vec<Diagnostic> = Vec::new();
    for (k, reason) in s.reasons.iter().enumerate() {
        let id = OpId(k as u32);
        let Some(reason) = reason.as_ref().filter(|r| unasked(s, id, r)) else { continue };
        let op = s.graph.op(id);
        let Some(span) = s.graph.called(id, sources).or(op.span) else { continue };
        // One of many alike is enough: those of other layers stand at the same place.
        if out.iter().any(|d| d.primary.as_ref().is_some_and(|p| p.span == span)) {
            continue;
        }
        out.push(warning(s, rules, &names, op, reason).at(span, "gathered for this"));
    }
    out
}

fn unasked(s: &Sharded, id: OpId, r: &Reason) -> bool {
    let op = s.graph.op(id);
    let Op::Collective(c) = &op.op else { return false };
    let whole = layout_of(&s.graph, &s.graph.value(op.results[0]).dims, Vec::new()).is_replicated();
    if c.kind != CollectiveKind::AllGather
        || !whole
        || op.phase == Phase::Update
        || matches!(r.why, Why::Output | Why::Reduction | Why::Chain)
    {
        return false;
    }
    let story = &s.story;
    if stored(story, r.value).is_some() {
        return false;
    }
    let before = layout_of(&s.graph, &s.graph.value(op.args[0]).dims, Vec::new());
    let agreed = |a: &crate::mesh::Atom| {
        story.loop_of(r.operation, *a).is_some() && story.choice(r.operation, *a).is_some_and(|c| c.priced.is_empty())
    };
    let pinned = |at: usize| {
        let own = story.is_replicated_by_rule(r.value, at);
        own || said_of_result(story, r, at)
    };
    let cut = before.dims.iter().enumerate().filter(|(_, cut)| !cut.is_empty());
    !cut.map(|(at, _)| at).all(pinned) && !c.atoms.iter().all(agreed)
}

/// Whether a rule says of the result of the operation that the dim is whole there.
fn said_of_result(story: &Story, r: &Reason, at: usize) -> bool {
    let op = story.graph.op(r.operation);
    let same = |v: &ValueId| Some((*v, story.same_dim(r.operation, r.value, at, *v)?));
    op.results.iter().filter_map(same).any(|(v, at)| story.is_replicated_by_rule(v, at))
}

fn warning(s: &Sharded, rules: &Rules, names: &Names<'_>, op: &Operation, r: &Reason) -> Diagnostic {
    let story = &s.story;
    let g = &s.graph;
    let dims = story.dims(r.value);
    let before = layout_of(g, &g.value(op.args[0]).dims, Vec::new());
    let value = format!("`{}{}`", names.of(r.value), before.show(&g.mesh, &dims));
    let mut d = Diagnostic::warning("W0013", format!("{value} is gathered whole on every rank")).with_note(format!(
        "{} sent per rank, for `{}`",
        counted(super::table::bytes(r.bytes), "byte"),
        word(story, r.operation)
    ));
    let cut = before.dims.iter().position(|c| !c.is_empty());
    let Some(at) = cut else { return d };
    let atom = before.dims[at][0].atom;
    // The rule that cut it, if the chain ends at one.
    let (mut v, mut place) = (r.value, at);
    for _ in 0..64 {
        match story.link(v, place, atom, rules) {
            Link::Rule(k) => {
                let span = rules.pins[k].span;
                d = d.and(span, format!("cuts `{}`", dims[at]));
                break;
            }
            Link::Spread { value, operation } => match story.same_dim(operation, v, place, value) {
                Some(next) => (v, place) = (value, next),
                None => break,
            },
            Link::Chosen { .. } | Link::Zero(_) | Link::Open => break,
        }
    }
    let layer = g.scopes.get(op.scope.index()).map_or("", |s| &s.definition);
    let scope = |layer: &str| if layer.is_empty() { String::new() } else { format!(" in {layer}") };
    let otherwise = format!("cut the work otherwise by a `shard` of another of its dims{}", scope(layer));
    d.help(match story.graph.said(story.graph.value(r.value).dims[at]) {
        Some((of, dim)) => format!("say so by `replicate {dim}{}`, or {otherwise}", scope(of.unwrap_or(layer))),
        None => otherwise,
    })
}
