//! What a plan has computed again, in terms of graphs.

use crate::diag::Diagnostic;
use crate::elaborate::plan::{PlanScope, Recompute, ResolvedPlan};
use crate::ir::{Graph, ScopeId};
use crate::recompute::{Part, Policy, What};
use indexmap::IndexMap;

/// What is asked for.
pub enum Asked {
    Policy(Policy),
}

/// What a plan asks for that was resolved against a graph; none where it asks for nothing.
pub fn asked(plan: &ResolvedPlan, g: &Graph) -> Option<Asked> {
    let span = plan.recompute_span?;
    let what = match &plan.recompute {
        Recompute::None => return None,
        Recompute::Auto(_) => return None,
        Recompute::Gathers => What::Gathers,
        Recompute::Full => What::Full,
        Recompute::Scopes(scopes) => What::Parts(scopes.iter().flat_map(|s| parts(s, g)).collect()),
    };
    Some(Asked::Policy(Policy { what, keep_collectives: plan.keep_collectives, span }))
}

fn parts(s: &PlanScope, g: &Graph) -> Vec<Part> {
    let mut named: IndexMap<&str, Vec<ScopeId>> = IndexMap::new();
    for v in &s.values {
        let name = g.value(*v).name.as_deref().or_else(|| s.text.rsplit('.').next());
        let (Some(name), Some(op)) = (name, g.def_op(*v)) else { continue };
        named.entry(name).or_default().push(op.scope);
    }
    let inside = (!s.roots.is_empty()).then(|| Part::Inside(s.roots.clone()));
    inside.into_iter().chain(named.into_iter().map(|(n, scopes)| Part::Named(n.to_string(), scopes))).collect()
}

/// The note that a statement has changed nothing of a program.
pub fn without_effect(g: &Graph, policy: &Policy) -> Option<Diagnostic> {
    if g.ops.iter().any(|op| op.again) {
        return None;
    }
    let help = match policy.what {
        What::Gathers => "ranks gather no activations under this plan: leave the line out",
        What::Full => "the model repeats no layer by `for`: name layers or values, as in `recompute Attention`",
        What::Parts(_) => {
            "the backward pass needs nothing that they make: leave the line out, or name other layers or values"
        }
    };
    Some(Diagnostic::note("W0014", "nothing is computed again").at(policy.span, "has no effect").help(help))
}
