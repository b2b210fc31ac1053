//! What can be said of the plans of a file before layouts are derived: names, axes, numbers.

use crate::diag::{Diagnostic, Sink, did_you_mean};
use crate::resolve::{Entity, MAIN, Program};
use crate::source::Span;
use crate::syntax::ast::*;
use crate::syntax::visit::{self, Node};
use indexmap::IndexMap;

/// Schedules that the language knows by name, without their settings.
const SCHEDULES: &[&str] = &[
    "gpipe",
    "1f1b",
    "interleaved",
    "looped_bfs",
    "zb_h1",
    "zb_h2",
    "zb_v",
    "v_half",
    "v_min",
    "dualpipe",
    "dualpipe_v",
    "auto",
    "file",
];
const PRECISIONS: &[&str] = &["f64", "f32", "bf16", "f16"];

/// What of a program its models use, by name.
#[derive(Clone, Default, Debug)]
pub struct Used {
    /// Dims of values: `batch`, `Attention.key`.
    pub dims: indexmap::IndexSet<String>,
    /// Layers and functions that were called.
    pub definitions: indexmap::IndexSet<String>,
}

/// Looks through all plans of the main file.
pub fn check(program: &Program, used: &Used, sink: &mut Sink) {
    let inline = inline_axes(program);
    let plans = program.main_items(|item| match item {
        ItemKind::Plan(plan) => Some(plan),
        _ => None,
    });
    for plan in plans {
        let mut one = One { program, used, sink, axes: IndexMap::new(), misspelt: false };
        one.mesh(plan);
        for line in &plan.lines {
            one.line(line);
        }
        for (name, (span, seen)) in &one.axes {
            if !seen && !one.misspelt && !inline.contains(name) {
                one.sink.push(
                    Diagnostic::error("E0502", format!("mesh axis `{name}` is never used"))
                        .at(*span, "its ranks would all do the same")
                        .help(format!("write `shard .. by {name}`, or take the axis out of the mesh")),
                );
            }
        }
    }
}

/// Axes that bodies name in `x @ [seq: tp]`.
fn inline_axes(program: &Program) -> Vec<String> {
    let mut axes = Vec::new();
    for item in program.modules.iter().flat_map(|m| &m.ast.items) {
        let body = match &item.kind {
            ItemKind::Def(d) => &d.body,
            ItemKind::Model(m) => &m.body,
            _ => continue,
        };
        visit::walk_block(body, &mut |node| {
            if let Node::Expr(e) = node
                && let ExprKind::Layout { entries, .. } = &*e.kind
            {
                axes.extend(entries.iter().flat_map(|e| e.axes.iter().map(|a| a.text.clone())));
            }
        });
    }
    axes
}

/// The walk over one plan.
struct One<'a> {
    program: &'a Program,
    used: &'a Used,
    sink: &'a mut Sink,
    /// Place of each axis of the mesh, and whether a statement uses it.
    axes: IndexMap<String, (Span, bool)>,
    /// Whether a statement named an axis that the mesh lacks: another one may then be meant.
    misspelt: bool,
}

impl One<'_> {
    fn mesh(&mut self, plan: &Plan) {
        for line in &plan.lines {
            let PlanKind::Mesh(axes) = &line.kind else { continue };
            for axis in axes {
                if axis.size.0 == 0 {
                    self.malformed("an axis has at least one rank", axis.size.1, "not a size");
                }
                if let Some((first, _)) = self.axes.insert(axis.name.text.clone(), (axis.name.span, false)) {
                    self.sink.push(
                        Diagnostic::error("E0506", format!("the mesh has axis `{}` twice", axis.name.text))
                            .at(axis.name.span, "again here")
                            .and(first, "first here")
                            .help("choose another name"),
                    );
                }
            }
        }
    }

    fn line(&mut self, line: &PlanLine) {
        match &line.kind {
            PlanKind::Mesh(_) | PlanKind::Value(_) | PlanKind::Offload { .. } => {}
            PlanKind::Shard { dims, axes, scopes, .. } => {
                self.axes(axes);
                dims.iter().flat_map(|g| &g.parts).for_each(|p| self.dim(&p.name));
                scopes.iter().for_each(|s| self.scope(s));
            }
            PlanKind::Replicate { dims, scopes } => {
                dims.iter().flat_map(|g| &g.parts).for_each(|p| self.dim(&p.name));
                scopes.iter().for_each(|s| self.scope(s));
            }
            PlanKind::Layout { scope, entries } => {
                self.scope(scope);
                for entry in entries {
                    self.dim(&entry.dim);
                    self.axes(&entry.axes);
                }
            }
            PlanKind::Pipeline { dims, axis, opts } => {
                self.axes(std::slice::from_ref(axis));
                dims.iter().for_each(|d| self.known_dim(d));
                opts.iter().for_each(|o| self.pipeline_option(o));
            }
            PlanKind::Microbatches((n, span)) => {
                if *n == 0 {
                    self.malformed("a step has at least one microbatch", *span, "not a number of microbatches");
                }
            }
            PlanKind::Precision { name, .. } => {
                if !PRECISIONS.contains(&name.text.as_str()) {
                    self.sink.push(
                        Diagnostic::error("E0506", format!("`{}` is no precision", name.text))
                            .at(name.span, "unknown")
                            .help(format!("precisions are {}", PRECISIONS.join(", "))),
                    );
                }
            }
            PlanKind::Zero { level: (level, span), axes, scopes, .. } => {
                if *level > 3 {
                    self.malformed("the levels of `zero` are 0 to 3", *span, "not a level");
                }
                self.axes(axes);
                scopes.iter().for_each(|s| self.scope(s));
            }
            PlanKind::Recompute { values, .. } => values.iter().for_each(|v| self.recomputed(v)),
        }
    }

    fn pipeline_option(&mut self, option: &PlanOpt) {
        if option.name.text != "schedule" {
            return;
        }
        let name = match &option.value.kind {
            PlanValueKind::Word(path) if path.len() == 1 => &path[0],
            PlanValueKind::Call { name, .. } => name,
            _ => return self.malformed("a schedule has a name", option.value.span, "not a schedule"),
        };
        if !SCHEDULES.contains(&name.text.as_str()) {
            let d =
                Diagnostic::error("E0506", format!("there is no schedule `{}`", name.text)).at(name.span, "unknown");
            self.sink.push(match did_you_mean(&name.text, SCHEDULES.iter().copied()) {
                Some(near) => d.help(format!("did you mean `{near}`?")),
                None => d.help(format!("schedules are {}", SCHEDULES.join(", "))),
            });
        }
    }

    /// `full`, `none`, `auto(..)`, `gathers`, or layers and their values.
    fn recomputed(&mut self, value: &PlanValue) {
        let PlanValueKind::Word(path) = &value.kind else { return };
        if path.len() == 1 && matches!(path[0].text.as_str(), "full" | "none" | "auto" | "gathers") {
            return;
        }
        self.definition(&path[0]);
    }

    fn axes(&mut self, axes: &[Name]) {
        for axis in axes {
            if let Some((_, seen)) = self.axes.get_mut(&axis.text) {
                *seen = true;
                continue;
            }
            self.misspelt = true;
            let d = Diagnostic::error("E0501", format!("the mesh has no axis `{}`", axis.text))
                .at(axis.span, "unknown axis");
            let d = match did_you_mean(&axis.text, self.axes.keys().map(String::as_str)) {
                Some(near) => d.help(format!("did you mean `{near}`?")),
                None if self.axes.is_empty() => d.help(format!("begin the plan with `mesh {} = 2`", axis.text)),
                None => d.help(format!("its axes: {}", self.axes.keys().cloned().collect::<Vec<_>>().join(", "))),
            };
            self.sink.push(d);
        }
    }

    /// A dim that some value has, or a group.
    fn dim(&mut self, name: &Name) {
        if !self.is_dim(name) {
            return self.known_dim(name);
        }
        let used = |d: &String| d == &name.text || d.rsplit('.').next() == Some(&name.text);
        if !self.is_group(&name.text) && !self.used.dims.iter().any(used) {
            self.sink.push(
                Diagnostic::error("E0504", format!("no value has dim `{}`", name.text))
                    .at(name.span, "the statement has no effect")
                    .help("name a dim that the model's values have"),
            );
        }
    }

    fn known_dim(&mut self, name: &Name) {
        if self.is_dim(name) {
            return;
        }
        let d = Diagnostic::error("E0201", format!("unknown dim `{}`", name.text)).at(name.span, "not declared");
        let dims = self.program.module(MAIN).names.iter().filter(|(_, b)| matches!(b.entity, Entity::Dim(_)));
        self.sink.push(match did_you_mean(&name.text, dims.map(|(n, _)| n.as_str())) {
            Some(near) => d.help(format!("did you mean `{near}`?")),
            None => d.help("plans name the dims of the model"),
        });
    }

    fn is_dim(&self, name: &Name) -> bool {
        let declared = self.program.module(MAIN).names.get(&name.text);
        declared.is_some_and(|b| matches!(b.entity, Entity::Dim(_)))
            || self.used.dims.iter().any(|d| d.rsplit('.').next() == Some(&name.text))
    }

    fn is_group(&self, name: &str) -> bool {
        let binding = self.program.module(MAIN).names.get(name);
        let Some(Entity::Dim(at)) = binding.map(|b| b.entity) else { return false };
        matches!(self.program.dim(at).value, DimValue::Group(_))
    }

    fn scope(&mut self, scope: &Scope) {
        if let Some(first) = scope.path.first() {
            self.definition(first);
        }
    }

    /// A layer or function that the models use.
    fn definition(&mut self, name: &Name) {
        if self.used.definitions.contains(&name.text) {
            return;
        }
        let is_def = |m: &crate::resolve::Module| {
            m.names.get(&name.text).is_some_and(|b| matches!(b.entity, Entity::Def(_) | Entity::Model(_)))
        };
        if self.program.modules.iter().any(is_def) {
            self.sink.push(
                Diagnostic::error("E0504", format!("no value comes from `{}`", name.text))
                    .at(name.span, "the statement has no effect")
                    .help("name a layer or function that the model uses"),
            );
            return;
        }
        let d = Diagnostic::error("E0201", format!("unknown layer or function `{}`", name.text))
            .at(name.span, "not defined");
        self.sink.push(match did_you_mean(&name.text, self.used.definitions.iter().map(String::as_str)) {
            Some(near) => d.help(format!("did you mean `{near}`?")),
            None => d.help("plans name layers and functions of the program"),
        });
    }

    fn malformed(&mut self, message: &str, span: Span, label: &str) {
        self.sink.push(Diagnostic::error("E0506", message).at(span, label).help("see `partita explain E0506`"));
    }
}
