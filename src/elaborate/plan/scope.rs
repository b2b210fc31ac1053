//! Scopes and dims of plans: what `in Attention[embed]`, `Mla.q` and `heads` mean in a walked model.

use super::PlanScope;
use crate::check::plan::malformed;
use crate::diag::{Diagnostic, did_you_mean, some_of};
use crate::elaborate::Elab;
use crate::elaborate::InlineLayout;
use crate::elaborate::frame::Body;
use crate::elaborate::ordinals::{self, Node};
use crate::elaborate::value::Val;
use crate::ir::{DimId, ParamId, ScopeId, StateId};
use crate::resolve::{Entity, ItemRef, MAIN};
use crate::source::Span;
use crate::syntax::ast::{self, Block, DefKind, Group, ItemKind, LayoutEntry, Name, StmtKind};
use std::collections::HashSet;

impl<'a> Elab<'a> {
    /// `x @ [seq: tp]`: the dims must be the value's; axes are a plan's matter.
    ///
    /// A value that an expression has laid out already goes on from there: the result is the same in another layout.
    pub fn inline_layout(&mut self, val: &Val, entries: &'a [LayoutEntry], span: Span) -> Val {
        let mut v = match val {
            Val::Tensor(v) => *v,
            Val::Error => return Val::Error,
            other => {
                let what = other.kind();
                self.error(
                    Diagnostic::error("E0206", format!("{what} has no layout"))
                        .at(span, "`@` pins the layout of a value")
                        .help("remove `@ [..]`; a matrix product is written `dot[dim](x, w)`"),
                );
                return Val::Error;
            }
        };
        let mut found = Vec::new();
        for e in entries {
            let Some(set) = self.dim(&e.dim) else { continue };
            if self.has_dims(v, &set.ids, e.dim.span).is_some() {
                found.push((set, e.axes.clone()));
            }
        }
        if !self.in_initial {
            let of = self.inline_layouts.iter().find(|l| l.value == v).map_or(v, |l| l.of);
            if let Some(last) = self.inline_layouts.iter().rfind(|l| l.of == of) {
                self.b.span = Some(span);
                v = self.b.reshape(&[], last.value);
            }
            self.inline_layouts.push(InlineLayout { value: v, of, entries: found, span });
        }
        Val::Tensor(v)
    }

    /// Finds a scope of a plan. Reports unknown names (E0201) and what the model does not use (E0504).
    pub(super) fn plan_scope(&mut self, path: &[Name], dims: &[Name], span: Span) -> Option<PlanScope> {
        let (at, used) = self.scope_definition(path)?;
        let (first, rest) = (&path[used - 1], &path[used..]);
        let mut roots: Vec<ScopeId> = self.uses.get(&at).cloned().unwrap_or_default();
        if roots.is_empty() {
            self.error(
                Diagnostic::error("E0504", format!("the model does not use `{}`", first.text))
                    .at(span, "matches no value")
                    .help("name a layer or function that the model calls"),
            );
            return None;
        }
        if !dims.is_empty() {
            roots = self.scopes_at_dims(at, roots, dims, span)?;
        }
        let mut text = path.iter().map(|n| n.text.as_str()).collect::<Vec<_>>().join(".");
        if !dims.is_empty() {
            let names: Vec<&str> = dims.iter().map(|d| d.text.as_str()).collect();
            text.push_str(&format!("[{}]", names.join(", ")));
        }
        let mut scope = PlanScope { text, roots, named: !rest.is_empty(), ..PlanScope::default() };
        let mut owner = Some(at);
        for (k, name) in rest.iter().enumerate() {
            let last = k + 1 == rest.len();
            scope = self.step(scope, owner, name, last, span)?;
            owner = None;
        }
        Some(scope)
    }

    /// The layer, function or model that a scope begins with, and how many names lead to it.
    fn scope_definition(&mut self, path: &[Name]) -> Option<(ItemRef, usize)> {
        let first = &path[0];
        let (found, used, name) = match (self.entity(MAIN, &first.text), path.get(1)) {
            (Some(Entity::Module(m)), Some(second)) => (self.entity(m, &second.text), 2, second),
            (found, _) => (found, 1, first),
        };
        match found {
            Some(Entity::Model(at)) => return Some((at, used)),
            Some(Entity::Def(at)) if self.program.def(at).kind != DefKind::Optimizer => return Some((at, used)),
            Some(_) => {
                self.error(
                    Diagnostic::error("E0206", format!("`{}` is no layer or function", name.text))
                        .at(name.span, "a scope is a layer, a function or a value in one")
                        .help("write `in Layer`, `in Layer[dims]` or `in Layer.name`"),
                );
                return None;
            }
            None => {}
        }
        // What the model uses by way of others need not be imported here.
        let inner = |at: &&ItemRef| match &self.program.item(**at).kind {
            ItemKind::Def(d) => d.name.text == name.text,
            _ => false,
        };
        if let Some(at) = self.uses.keys().find(inner) {
            return Some((*at, used));
        }
        let mut names: Vec<&str> = Vec::new();
        for at in self.uses.keys() {
            names.push(match &self.program.item(*at).kind {
                ItemKind::Def(d) => &d.name.text,
                ItemKind::Model(m) => &m.name.text,
                _ => continue,
            });
        }
        let d = Diagnostic::error("E0201", format!("unknown layer or function `{}`", name.text))
            .at(name.span, "not used by the model");
        let d = match did_you_mean(&name.text, names.iter().copied()) {
            Some(n) => d.help(format!("did you mean `{n}`?")),
            None => d.help(format!("the model uses {}", some_of(names.iter().copied()))),
        };
        self.error(d);
        None
    }

    /// `Layer[embed]`: the uses at these dims.
    fn scopes_at_dims(&mut self, at: ItemRef, roots: Vec<ScopeId>, dims: &[Name], span: Span) -> Option<Vec<ScopeId>> {
        let frame = self.open_frame(MAIN, Body::File, "");
        let wanted = self.within(frame, |e| e.dims_of(dims))?;
        let ItemKind::Def(def) = &self.program.item(at).kind else {
            self.error(malformed("a model has no dims in brackets", span, "brackets").help("name the model alone"));
            return None;
        };
        let params: Vec<&str> =
            def.statics.iter().filter(|s| s.kind == ast::StaticKind::Dim).map(|s| s.name.text.as_str()).collect();
        let at_use = |s: &ScopeId| -> Vec<DimId> {
            let known = self.scope_dims.get(s);
            params.iter().filter_map(|p| Some(&known?.get(*p)?.ids)).flatten().copied().collect()
        };
        let kept: Vec<ScopeId> = roots.iter().copied().filter(|s| at_use(s) == wanted).collect();
        if kept.is_empty() {
            let mut others: Vec<String> = roots.iter().map(|s| self.show_dims(&at_use(s))).collect();
            others.dedup();
            let d = Diagnostic::error("E0504", format!("`{}` is not used at these dims", def.name.text))
                .at(span, "matches no value")
                .with_note(format!("it is used at {}", some_of(others.iter().map(String::as_str))));
            self.error(d.help("name dims that an instance has, in the order of its brackets"));
            return None;
        }
        Some(kept)
    }

    /// One `.name` of a scope: a value, a parameter, or an instance.
    fn step(
        &mut self,
        from: PlanScope,
        owner: Option<ItemRef>,
        name: &Name,
        last: bool,
        span: Span,
    ) -> Option<PlanScope> {
        let roots: HashSet<ScopeId> = from.roots.iter().copied().collect();
        let graph = &self.b.graph;
        // `block`, or `block.3` in a loop: the turns belong to the name.
        let turns = |path: &str, root: &str| -> bool {
            let rest = match root {
                "" => Some(path),
                _ => path.strip_prefix(root).and_then(|r| r.strip_prefix('.')),
            };
            let Some(rest) = rest.and_then(|r| r.strip_prefix(&*name.text)) else { return false };
            rest.split('.').all(|t| t.is_empty() || t.bytes().all(|b| b.is_ascii_digit()))
                && (rest.is_empty() || rest.starts_with('.'))
        };
        let mut paths: Vec<&str> = from.roots.iter().map(|r| &*graph.scopes[r.index()].path).collect();
        paths.dedup();
        let mut out = PlanScope { text: from.text.clone(), named: true, ..PlanScope::default() };
        for (k, s) in graph.scopes.iter().enumerate() {
            if let Some(p) = s.parent
                && roots.contains(&p)
                && turns(&s.path, &graph.scopes[p.index()].path)
            {
                out.roots.push(ScopeId(k as u32));
            }
        }
        if last {
            out.values = self.named.iter().filter(|n| n.1 == name.text && roots.contains(&n.0)).map(|n| n.2).collect();
            out.values.sort_unstable();
            out.values.dedup();
            // Functions have no parameters, though their scopes carry the caller's path.
            let layers = owner.is_none_or(|o| match &self.program.item(o).kind {
                ItemKind::Def(d) => d.kind == DefKind::Layer,
                _ => true,
            });
            if layers {
                let has = |path: &str| paths.iter().any(|root| turns(path, root));
                let params = graph.params.iter().enumerate().filter(|(_, p)| has(&p.path));
                out.params = params.map(|(i, _)| ParamId(i as u32)).collect();
                let states = graph.states.iter().enumerate().filter(|(_, s)| has(&s.path));
                out.states = states.map(|(i, _)| StateId(i as u32)).collect();
            }
        }
        let empty = out.roots.is_empty() && out.values.is_empty() && out.params.is_empty() && out.states.is_empty();
        if !empty {
            return Some(out);
        }
        let mut names: Vec<String> = Vec::new();
        match owner.map(|o| &self.program.item(o).kind) {
            Some(ItemKind::Def(d)) => {
                names.extend(d.args.iter().map(|a| a.name.text.clone()));
                collect(&d.body, &mut names);
            }
            Some(ItemKind::Model(m)) => {
                names.extend(m.args.iter().map(|a| a.name.text.clone()));
                collect(&m.body, &mut names);
            }
            _ => names.extend(self.named.iter().filter(|n| roots.contains(&n.0)).map(|n| n.1.clone())),
        }
        if names.contains(&name.text) {
            self.error(
                Diagnostic::error("E0504", format!("`{}` of `{}` is no value of the model", name.text, from.text))
                    .at(span, "matches no value")
                    .help("name a value that depends on the model's inputs or parameters"),
            );
            return None;
        }
        names.sort();
        names.dedup();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let d = Diagnostic::error("E0201", format!("`{}` names no `{}`", from.text, name.text))
            .at(name.span, "unknown name");
        let d = match did_you_mean(&name.text, names.iter().copied()) {
            Some(n) => d.help(format!("did you mean `{n}`?")),
            None => d.help(format!("it names {}", some_of(names.iter().copied()))),
        };
        self.error(d);
        None
    }

    /// The dims of a group in a statement: as the file knows them, else as the scope does (one answer for each different
    /// use of it).
    pub(super) fn plan_dims(&mut self, group: &Group, scope: Option<&PlanScope>) -> Option<Vec<Vec<DimId>>> {
        if let Some(v) = group.parts.iter().find_map(|p| p.value.as_ref()) {
            self.error(malformed("a list of dims holds names", v.span, "a value").help("write `(a, b)`"));
            return None;
        }
        let names: Vec<&Name> = group.parts.iter().map(|p| &p.name).collect();
        self.plan_dim_names(&names, scope, group.span)
    }

    pub(super) fn plan_dim_names(
        &mut self,
        names: &[&Name],
        scope: Option<&PlanScope>,
        span: Span,
    ) -> Option<Vec<Vec<DimId>>> {
        let frame = self.open_frame(MAIN, Body::File, "");
        let mut global = Vec::new();
        let mut failed = false;
        self.within(frame, |e| {
            for n in names {
                let set = e.dim_opt(&n.text);
                failed |= matches!(set, Some(None));
                global.push(set.flatten());
            }
        });
        if failed {
            return None;
        }
        let roots: Vec<ScopeId> = match scope {
            Some(s) => s.roots.clone(),
            // The model's own local dims belong to no scope.
            None => (self.uses.iter())
                .filter(|(at, _)| matches!(self.program.item(**at).kind, ItemKind::Model(_)))
                .flat_map(|(_, s)| s.iter().copied())
                .collect(),
        };
        let mut out: Vec<Vec<DimId>> = Vec::new();
        if global.iter().all(Option::is_some) {
            out.push(global.iter().flatten().flat_map(|s| s.ids.iter().copied()).collect());
        } else {
            for r in &roots {
                let known = self.scope_dims.get(r);
                let one: Option<Vec<DimId>> = (names.iter().zip(&global))
                    .map(|(n, g)| g.as_ref().or(known.and_then(|k| k.get(&n.text))).map(|s| s.ids.clone()))
                    .collect::<Option<Vec<_>>>()
                    .map(|v| v.concat());
                out.extend(one.filter(|o| !out.contains(o)));
            }
        }
        if out.is_empty() {
            let k = global.iter().position(Option::is_none)?;
            let mut frame = self.open_frame(MAIN, Body::File, "");
            for known in roots.iter().filter_map(|r| self.scope_dims.get(r)) {
                frame.dims.extend(known.iter().map(|(n, s)| (n.clone(), (s.clone(), span))));
            }
            let in_frame = frame.dims.contains_key(&names[k].text);
            if in_frame {
                self.error(malformed("these dims never occur together", span, "of different uses"));
            } else {
                self.within(frame, |e| e.dim(names[k]));
            }
            return None;
        }
        for dims in &out {
            self.no_twice(dims, span)?;
        }
        Some(out)
    }
}

/// Names that a body defines.
fn collect(block: &Block, names: &mut Vec<String>) {
    ordinals::walk_block(block, &mut |n| {
        if let Node::Stmt(s) = n
            && let StmtKind::Let { names: n, .. } | StmtKind::Param { names: n, .. } | StmtKind::State { names: n, .. } =
                &s.kind
        {
            names.extend(n.iter().map(|n| n.text.clone()));
        }
    });
}
