//! Plans resolved against a walked model: names become axes, dims, scopes and values. Nothing is laid out here.
//!
//! In: a `plan` item and an [`Elab`] whose model was walked (in any mode; the ids of the result are those of its graph).
//! Out: a [`ResolvedPlan`] of plain data, for what lays values out, cuts stages and schedules them. Diagnostics: E05xx
//! and E06xx where they can be decided without propagation; a conflict that only propagation can find is not looked for.
//! Invariants: every axis number is below `mesh.len()`; every rule matches at least one value, parameter or input.
//! For users: [`Elab::resolve_plan`] resolves one plan, [`find`] finds it by name,
//! [`precision_of`](crate::check::plan::precision_of) tells the precision that the model must be walked in.
//! Reading order: this file (types), `statements.rs`, `scope.rs` (scopes and dims), `conflict.rs` (equal strength), `replicas.rs`.

mod conflict;
mod replicas;
mod scope;
mod statements;
#[cfg(test)]
mod tests;

use super::{Elab, Mode, Settings};
use crate::check::plan::{Gather, MeshAxis, Order, Regather};
use crate::check::replicas::Replicas;
use crate::diag::{Diagnostic, Sink, did_you_mean};
use crate::ir::{DimId, ParamId, ScopeId, StateId, ValueId};
use crate::resolve::Program;
use crate::schedule::Schedule;
use crate::source::Span;
use crate::syntax::ast::{self, ItemKind};
use crate::types::DType;

/// A plan for one model.
#[derive(Clone, PartialEq, Debug)]
pub struct ResolvedPlan {
    pub name: String,
    pub span: Span,
    /// The last axis is innermost.
    pub mesh: Vec<MeshAxis>,
    pub rules: Vec<Rule>,
    pub pipeline: Option<Pipeline>,
    /// Of a step; 1 without a line.
    pub microbatches: u64,
    pub precision: DType,
    pub gradients: DType,
    pub zero: Vec<Zero>,
    pub recompute: Recompute,
    /// Where it is said.
    pub recompute_span: Option<Span>,
    /// `{ keep = collectives }`: recomputation repeats no communication.
    pub keep_collectives: bool,
    pub offload: Vec<Offload>,
    /// `local(..) by axis`, `async(..) by axis`
    pub replicas: Option<Replicas>,
}

impl ResolvedPlan {
    /// The number of ranks.
    pub fn ranks(&self) -> u64 {
        self.mesh.iter().map(|a| a.size).product()
    }
}

/// What `shard`, `replicate`, `layout` and `@ [..]` pin: one rule a dim or group of dims. A local dim that exists in
/// several sizes has a rule each, with the same `statement` and `group`.
#[derive(Clone, PartialEq, Debug)]
pub struct Rule {
    /// Number of the plan's line; lines of inline layouts count on behind them.
    pub statement: usize,
    /// Number of the dim or group in the statement.
    pub group: usize,
    pub kind: RuleKind,
    /// Major first; several are cut as if merged.
    pub dims: Vec<DimId>,
    /// Major first; empty for `replicate`.
    pub axes: Vec<usize>,
    /// None: the whole model and its inputs.
    pub scope: Option<PlanScope>,
    pub order: Order,
    pub gather: Option<Gather>,
    /// Bound of ragged rows, as a factor of the even share.
    pub bound: Option<f64>,
    pub span: Span,
    /// Of the dim or group in the statement.
    pub dims_span: Span,
}

/// Weakest first; within `Scope` a deeper one is stronger.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum RuleKind {
    /// `shard` or `replicate`; in a scope or in none.
    Statement,
    /// `layout Layer.name @ [..]`
    Layout,
    /// In an expression of the model.
    Inline,
}

/// `Layer`, `fn`, `Layer[dims]`, `Layer.name`.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct PlanScope {
    /// As written.
    pub text: String,
    /// Bodies; all that is called from inside belongs to them.
    pub roots: Vec<ScopeId>,
    /// For a scope with a name after the point: the values of that name.
    pub values: Vec<ValueId>,
    pub params: Vec<ParamId>,
    pub states: Vec<StateId>,
    /// Whether it ends in `.name`.
    pub named: bool,
}

#[derive(Clone, PartialEq, Debug)]
pub struct Pipeline {
    /// Loops of the model, in sequence.
    pub dims: Vec<DimId>,
    pub axis: usize,
    pub schedule: Schedule,
    /// Where the schedule is named, or the statement.
    pub schedule_span: Span,
    pub microbatches: u64,
    /// Of all its loops.
    pub turns: u64,
    /// Turns a stage, as given; None: to be divided evenly.
    pub stages: Option<Vec<u64>>,
    pub span: Span,
}

#[derive(Clone, PartialEq, Debug)]
pub struct Zero {
    /// 1: optimizer state; 2: gradients too; 3: parameters too.
    pub level: u8,
    pub axes: Vec<usize>,
    pub scope: Option<PlanScope>,
    pub regather: Regather,
    pub span: Span,
}

#[derive(Clone, PartialEq, Debug, Default)]
pub enum Recompute {
    /// Nothing is recomputed: no line, or `none`.
    #[default]
    None,
    /// Everything between the loops' turns.
    Full,
    /// Gathered forms only.
    Gathers,
    /// As needed to stay below so many bytes a rank (None: what the device has).
    Auto(Option<u64>),
    Scopes(Vec<PlanScope>),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Offload {
    Activations,
    Optimizer,
    Parameters,
}

/// A plan of the main file by name, for `--plan`.
pub fn find<'a>(program: &'a Program, name: &str) -> Result<&'a ast::Plan, Diagnostic> {
    let plans = all(program);
    if let Some(p) = plans.iter().find(|p| p.name.text == name) {
        return Ok(p);
    }
    let names: Vec<&str> = plans.iter().map(|p| p.name.text.as_str()).collect();
    let d = Diagnostic::error("E0509", format!("the file has no plan `{name}`"));
    Err(match did_you_mean(name, names.iter().copied()) {
        Some(n) => d.help(format!("did you mean `{n}`?")),
        None if names.is_empty() => d.help("it has no plans: leave `--plan` out"),
        None => d.help(format!("its plans: {}", names.join(", "))),
    })
}

/// The plans of the main file.
pub fn all(program: &Program) -> Vec<&ast::Plan> {
    program.main_items(|i| match i {
        ItemKind::Plan(p) => Some(p),
        _ => None,
    })
}

/// Resolves plans of the main file for `check`. A plan must fit one of the models; where the file has presets, it may
/// be meant for the sizes of one of them, so sizes that do not fit are reported only when the plan is used.
pub fn check_all<'a>(program: &'a Program, plans: &[&'a ast::Plan], models: &mut [Elab<'a>], sink: &mut Sink) {
    let presets = program.main_items(|i| matches!(i, ItemKind::Preset(_)).then_some(()));
    let sizes = |d: &Diagnostic| !presets.is_empty() && ["E0304", "E0602", "E0603"].contains(&d.code);
    for plan in plans {
        let mut best: Option<Sink> = None;
        for e in models.iter_mut() {
            let (_, found) = e.resolve_plan(plan, &[]);
            if best.as_ref().is_none_or(|b| found.error_count() < b.error_count()) {
                best = Some(found);
            }
        }
        match best {
            Some(found) => found.sorted().into_iter().filter(|d| !sizes(d)).for_each(|d| sink.push(d)),
            // Without a model only the form of statements can be judged.
            None => {
                let (_, found) =
                    Elab::new(program, Settings::default(), Mode::TRAIN, DType::F32).resolve_plan(plan, &[]);
                let form = |d: &Diagnostic| ["E0202", "E0501", "E0505", "E0506"].contains(&d.code);
                found.sorted().into_iter().filter(form).for_each(|d| sink.push(d));
            }
        }
    }
    for e in models.iter() {
        unplanned(program, e, sink);
    }
}

/// Inline layouts whose axis no plan has: they do nothing.
fn unplanned(program: &Program, e: &Elab, sink: &mut Sink) {
    let plans = all(program);
    let axes: Vec<&str> = (plans.iter().flat_map(|p| &p.lines))
        .filter_map(|l| match &l.kind {
            ast::PlanKind::Mesh(axes) => Some(axes.iter().map(|a| a.name.text.as_str())),
            _ => None,
        })
        .flatten()
        .collect();
    for n in e.inline_layouts.iter().flat_map(|l| &l.entries).flat_map(|(_, names)| names) {
        if axes.contains(&n.text.as_str()) {
            continue;
        }
        let d = Diagnostic::note("W0010", format!("no plan of the file has the axis `{}`", n.text))
            .at(n.span, "does nothing");
        sink.push(match did_you_mean(&n.text, axes.iter().copied()) {
            Some(near) => d.help(format!("did you mean `{near}`?")),
            None => d.help("a layout in an expression applies in plans that have its axes"),
        });
    }
}
