//! What a plan may not say beside `local` and `async`.

use super::ResolvedPlan;
use crate::check::replicas::Rule;
use crate::diag::Diagnostic;
use crate::elaborate::Elab;
use crate::source::Span;

impl<'a> Elab<'a> {
    /// Ranks along the axis of replicas differ in their share of the samples, and in nothing that the plan cuts.
    pub(super) fn replicas_apart(&mut self, plan: &ResolvedPlan) {
        let Some(r) = plan.replicas.as_ref().filter(|r| r.rule != Rule::Stale(0)) else { return };
        let name = plan.mesh[r.axis].name.clone();
        let samples = self.sample_dims();
        let mut found: Vec<(Span, String, String)> = Vec::new();
        if let Some(p) = plan.pipeline.as_ref().filter(|p| p.axis == r.axis) {
            let cure = "name another axis, or leave the pipeline out".to_string();
            found.push((p.span, format!("its ranks would be stages along `{name}`"), cure));
        }
        for rule in plan.rules.iter().filter(|rule| rule.axes.contains(&r.axis)) {
            let cut = self.show_dims(&rule.dims);
            if !samples.is_empty() && (rule.scope.is_some() || !rule.dims.iter().all(|d| samples.contains(d))) {
                found.push((rule.span, format!("would cut {cut} by `{name}` as well"), "use another axis".into()));
            } else if rule.axes[0] != r.axis {
                let cure = format!("name `{name}` first: a replica's share is cut by the other axes");
                found.push((rule.span, format!("cuts the replicas' shares by `{name}`"), cure));
            }
        }
        for z in plan.zero.iter().filter(|z| z.axes.contains(&r.axis) && matches!(r.rule, Rule::Local { .. })) {
            let why = format!("would share the state of optimizers along `{name}`");
            found.push((z.span, why, "leave it out, or use another axis".into()));
        }
        for (at, label, cure) in found {
            self.error(
                Diagnostic::error("E0508", format!("ranks along axis `{name}` are replicas"))
                    .at(at, label)
                    .and(r.span, "each has the whole model")
                    .help(cure),
            );
        }
    }
}
