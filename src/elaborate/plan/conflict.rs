//! What rules claim of each value: matches, and contradictions of equal strength.
//!
//! A value is pinned where it has the dim and is defined in the scope. Per value and dim the strongest rule speaks; then an
//! axis that two dims claim goes to the stronger one. Equal strength is an error.

use super::{PlanScope, ResolvedPlan, Rule, RuleKind};
use crate::diag::Diagnostic;
use crate::elaborate::Elab;
use crate::ir::{DimId, Graph, Op, Operation, ValueId};

/// How strongly a rule speaks for a value: kind, whether a name is given, depth of the scope.
type Strength = (RuleKind, bool, usize);

/// Where a rule holds: depth of the nearest of its bodies, by scope of the graph.
struct Reach {
    depth: Vec<Option<usize>>,
}

impl Reach {
    fn new(graph: &Graph, scope: Option<&PlanScope>) -> Reach {
        let mut depth = vec![None; graph.scopes.len()];
        let Some(scope) = scope else { return Reach { depth: vec![Some(0); graph.scopes.len()] } };
        let mut own = vec![false; graph.scopes.len()];
        scope.roots.iter().for_each(|r| own[r.index()] = true);
        let mut level = vec![0usize; graph.scopes.len()];
        // Parents stand before their children.
        for (k, s) in graph.scopes.iter().enumerate() {
            let parent = s.parent.map(|p| p.index()).filter(|p| *p < k);
            level[k] = parent.map_or(0, |p| level[p] + 1);
            depth[k] = if own[k] { Some(level[k]) } else { parent.and_then(|p| depth[p]) };
        }
        Reach { depth }
    }

    fn of(&self, rule: &Rule, graph: &Graph, op: &Operation, v: ValueId) -> Option<Strength> {
        let scope = rule.scope.as_ref();
        let named = scope.is_some_and(|s| s.named);
        if let Some(s) = scope.filter(|s| s.named) {
            let leaf = match &op.op {
                Op::Param(p) => s.params.contains(p),
                Op::State(t) => s.states.contains(t),
                _ => false,
            };
            if leaf || s.values.binary_search(&v).is_ok() {
                return Some((rule.kind, true, graph.scopes.len()));
            }
        }
        self.depth[op.scope.index()].map(|d| (rule.kind, named, d))
    }
}

impl<'a> Elab<'a> {
    /// Reports rules that match nothing, and rules that contradict each other.
    pub(super) fn check_rules(&mut self, plan: &ResolvedPlan) {
        let graph = &self.b.graph;
        let reach: Vec<Reach> = plan.rules.iter().map(|r| Reach::new(graph, r.scope.as_ref())).collect();
        let mut matched = vec![false; plan.rules.len()];
        let mut found: Vec<Diagnostic> = Vec::new();
        for op in &graph.ops {
            for v in &op.results {
                let dims = &graph.values[v.index()].dims;
                let mut claims: Vec<(usize, Strength, Vec<DimId>)> = Vec::new();
                for (k, rule) in plan.rules.iter().enumerate() {
                    let has: Vec<DimId> = rule.dims.iter().copied().filter(|d| dims.contains(d)).collect();
                    if has.is_empty() {
                        continue;
                    }
                    if let Some(s) = reach[k].of(rule, graph, op, *v) {
                        matched[k] = true;
                        claims.push((k, s, has));
                    }
                }
                if claims.len() > 1 {
                    found.extend(self.contradiction(plan, &claims, op, *v));
                }
            }
            // A scope also sees the values that enter it.
            for a in &op.args {
                let dims = &graph.values[a.index()].dims;
                for (k, rule) in plan.rules.iter().enumerate() {
                    if !matched[k] && reach[k].depth[op.scope.index()].is_some() {
                        matched[k] = rule.dims.iter().any(|d| dims.contains(d));
                    }
                }
            }
        }
        for (k, rule) in plan.rules.iter().enumerate() {
            // Of a local dim with several sizes one match is enough.
            let same = |r: &Rule| (r.statement, r.group) == (rule.statement, rule.group);
            if matched[k] || plan.rules.iter().zip(&matched).any(|(r, m)| *m && same(r)) {
                continue;
            }
            let dims = self.show_dims(&rule.dims);
            let place = rule.scope.as_ref().map_or("the model".to_string(), |s| format!("`{}`", s.text));
            found.push(
                Diagnostic::error("E0504", format!("no value of {place} has {dims}"))
                    .at(rule.dims_span, "matches no value")
                    .help("correct the dim or the scope, or remove the statement"),
            );
        }
        found.into_iter().for_each(|d| self.error(d));
    }

    fn contradiction(
        &self,
        plan: &ResolvedPlan,
        claims: &[(usize, Strength, Vec<DimId>)],
        op: &Operation,
        v: ValueId,
    ) -> Option<Diagnostic> {
        // Per dim the strongest rule.
        let mut kept: Vec<(DimId, usize, Strength)> = Vec::new();
        for (k, s, dims) in claims {
            for d in dims {
                match kept.iter_mut().find(|x| x.0 == *d) {
                    None => kept.push((*d, *k, *s)),
                    Some(x) if x.2 < *s => *x = (*d, *k, *s),
                    Some(x) if x.2 == *s && x.1 != *k => {
                        let (a, b) = (&plan.rules[x.1], &plan.rules[*k]);
                        if (a.statement, a.group) == (b.statement, b.group) {
                            continue;
                        }
                        let n = self.dim_name(*d);
                        let what = self.value_name(op, v);
                        let e = Diagnostic::error("E0508", format!("two statements speak of `{n}` of {what}"))
                            .at(b.dims_span, "second statement")
                            .and(a.dims_span, "first statement, equally strong");
                        return Some(self.with_place(e, op).help("keep one, or give one a narrower scope"));
                    }
                    Some(_) => {}
                }
            }
        }
        // Per axis the strongest dim.
        for axis in 0..plan.mesh.len() {
            let mut own: Vec<&(DimId, usize, Strength)> =
                kept.iter().filter(|x| plan.rules[x.1].axes.contains(&axis)).collect();
            own.sort_by_key(|x| std::cmp::Reverse(x.2));
            let [a, b, ..] = own[..] else { continue };
            if a.2 != b.2 || a.1 == b.1 {
                continue;
            }
            let (x, y) = if plan.rules[a.1].statement <= plan.rules[b.1].statement { (a, b) } else { (b, a) };
            let (first, second) = (&plan.rules[x.1], &plan.rules[y.1]);
            let (n, m) = (self.dim_name(x.0), self.dim_name(y.0));
            let name = &plan.mesh[axis].name;
            let what = self.value_name(op, v);
            let e = Diagnostic::error("E0503", format!("axis `{name}` would cut both `{n}` and `{m}` of {what}"))
                .at(second.dims_span, format!("cuts `{m}` by `{name}`"))
                .and(first.dims_span, format!("cuts `{n}` by `{name}`, equally strong"));
            return Some(self.with_place(e, op).help(self.cure(op, v, (x.0, first), name)));
        }
        None
    }

    /// What a plan can say so that the axis goes to the first of two dims: something stronger than the rules that claim it.
    fn cure(&self, op: &Operation, v: ValueId, (dim, rule): (DimId, &Rule), axis: &str) -> String {
        let graph = &self.b.graph;
        let other = "leave one of them out, or cut one dim by another axis".to_string();
        let Some((local, dim)) = graph.said(dim).filter(|_| rule.kind == RuleKind::Statement) else { return other };
        let scope = &graph.scopes[op.scope.index()];
        let own = scope.definition.as_str();
        if own.is_empty() {
            return other;
        }
        // A rule for the body itself is as strong as another one for it.
        let within = rule.scope.as_ref().and_then(|s| s.text.split(['.', '[']).next());
        if scope.parent.is_some() && within != Some(own) && local.is_none_or(|l| l == own) {
            return format!("say which of them holds there: `shard {dim} by {axis} in {own}`");
        }
        let value = match &op.op {
            Op::Param(p) => graph.params[p.index()].path.rsplit('.').next().map(str::to_string),
            _ => graph.value(v).name.clone(),
        };
        match value.filter(|_| rule.scope.as_ref().is_none_or(|s| !s.named)) {
            Some(value) => format!("say which of them holds there: `layout {own}.{value} @ [{dim}: {axis}]`"),
            None => other,
        }
    }

    fn value_name(&self, op: &Operation, v: ValueId) -> String {
        let value = &self.b.graph.values[v.index()];
        let dims = self.show_dims(&value.dims);
        match (&op.op, &value.name) {
            (Op::Param(p), _) => format!("`{}{dims}`", self.b.graph.params[p.index()].path),
            (_, Some(n)) => format!("`{n}{dims}`"),
            (_, None) => format!("a value {dims}"),
        }
    }

    fn with_place(&self, d: Diagnostic, op: &Operation) -> Diagnostic {
        let span = match &op.op {
            Op::Param(p) => self.b.graph.params[p.index()].span,
            _ => op.span,
        };
        let d = match span {
            Some(s) => d.and(s, "the value"),
            None => d,
        };
        let path = &self.b.graph.scopes[op.scope.index()].path;
        if path.is_empty() { d } else { d.with_note(format!("in `{path}`")) }
    }
}
