//! `local(steps = 100) by dp` and `async(staleness = 2) by dp`: which ranks are replicas of the model, and how they come together.

use super::plan::{MeshAxis, axes, malformed, number, options, whole, word};
use crate::diag::Sink;
use crate::source::Span;
use crate::syntax::ast::{self, Name, PlanKind, PlanOpt, PlanValue, PlanValueKind};

/// Steps that gradients may be late.
const MAX_STALENESS: u64 = 64;

/// Ranks along an axis that are replicas of the model, each with its share of the batch.
#[derive(Clone, PartialEq, Debug)]
pub struct Replicas {
    /// Number of the axis.
    pub axis: usize,
    pub count: u64,
    pub rule: Rule,
    pub span: Span,
}

/// How replicas come together.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Rule {
    /// Each has parameters and an optimizer of its own; each so many steps, an outer step makes them one again.
    Local { steps: u64, lr: f64, momentum: f64 },
    /// All have the same parameters, and apply gradients of so many steps before.
    Stale(u64),
}

/// The name of a statement, be it known or not.
pub fn name(value: &PlanValue) -> Option<&str> {
    match &value.kind {
        PlanValueKind::Call { name, .. } => Some(&name.text),
        _ => word(value),
    }
}

/// What a plan says of replicas; none without a statement, and where it is malformed.
pub fn replicas(plan: &ast::Plan, mesh: &[MeshAxis], sink: &mut Sink) -> Option<Replicas> {
    let mut found: Option<(Span, Option<Replicas>)> = None;
    for line in &plan.lines {
        let PlanKind::Statement { value, axis, opts } = &line.kind else { continue };
        let rule = match name(value) {
            Some("local") => local(value, opts, sink),
            Some("async") => stale(value, opts, sink),
            _ => continue,
        };
        if let Some((first, _)) = &found {
            let d = malformed("a plan says once how replicas come together", line.span, "second statement");
            sink.push(d.and(*first, "first one").help("keep one of them"));
            continue;
        }
        let along = along(value, axis.as_ref(), mesh, sink);
        let of = |(rule, axis): (Rule, usize)| Replicas { axis, count: mesh[axis].size, rule, span: line.span };
        found = Some((line.span, rule.zip(along).map(of)));
    }
    found?.1
}

/// The axis: the one that is named, else the mesh's only one.
fn along(value: &PlanValue, axis: Option<&Name>, mesh: &[MeshAxis], sink: &mut Sink) -> Option<usize> {
    let Some(named) = axis else {
        if mesh.len() == 1 {
            return Some(0);
        }
        let what = name(value).unwrap_or_default();
        let d = malformed(format!("`{what}` does not say which ranks are replicas"), value.span, "along which axis?");
        sink.push(match mesh.first() {
            Some(a) => d.help(format!("name a mesh axis: `{what}(..) by {}`", a.name)),
            None => d.help(format!("declare a mesh and name its axis: `mesh dp = 2` and `{what}(..) by dp`")),
        });
        return None;
    };
    axes(std::slice::from_ref(named), mesh, sink)?.first().copied()
}

fn local(value: &PlanValue, opts: &[PlanOpt], sink: &mut Sink) -> Option<Rule> {
    let steps = whole(super::plan::call_with(value, "local", "steps", sink)?, sink);
    let (mut lr, mut momentum) = (Some(1.0), Some(0.0));
    for (name, v) in options(opts, &["lr", "momentum"], sink) {
        let x = number(v, sink);
        match name {
            "lr" => {
                lr = x.filter(|x| *x > 0.0);
                if x.is_some() && lr.is_none() {
                    let d = malformed("the outer learning rate is above 0", v.span, "not positive");
                    sink.push(d.help("write `lr = 1` to take the replicas' mean, or less"));
                }
            }
            _ => {
                momentum = x.filter(|x| (0.0..1.0).contains(x));
                if x.is_some() && momentum.is_none() {
                    let d = malformed("the outer momentum is at least 0 and below 1", v.span, "out of range");
                    sink.push(d.help("write for example `momentum = 0.9`"));
                }
            }
        }
    }
    Some(Rule::Local { steps: steps?, lr: lr?, momentum: momentum? })
}

fn stale(value: &PlanValue, opts: &[PlanOpt], sink: &mut Sink) -> Option<Rule> {
    options(opts, &[], sink);
    let by = super::plan::call_with(value, "async", "staleness", sink)?;
    if let PlanValueKind::Number { text, unit: None } = &by.kind
        && text == "0"
    {
        return Some(Rule::Stale(0));
    }
    let steps = whole(by, sink)?;
    if steps > MAX_STALENESS {
        let d = malformed(
            format!("gradients that are {steps} steps late"),
            by.span,
            format!("the limit is {MAX_STALENESS}"),
        );
        sink.push(d.help("each step of lateness keeps one more copy of all gradients: write a small number"));
        return None;
    }
    Some(Rule::Stale(steps))
}
