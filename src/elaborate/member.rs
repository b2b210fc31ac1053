//! What leaves a model (losses, metrics, outputs), and what is read of an instance from outside.

use super::Elab;
use super::frame::Body;
use super::instance::InstanceId;
use super::value::Val;
use super::{Loss, ReadKey};
use crate::diag::{Diagnostic, did_you_mean};
use crate::ir::OutputKind;
use crate::source::Span;
use crate::syntax::ast::{Block, Expr, Name, Stmt, StmtKind};
use crate::types::DType;

/// Figures of a run itself, in metrics files and in what `eval` prints.
const REPORTED: [&str; 7] = ["step", "loss", "valid_loss", "grad_norm", "tokens_per_s", "skipped", "batches"];

impl<'a> Elab<'a> {
    pub(super) fn path_of(&mut self, name: &str) -> String {
        let key = self.frame().with_turns(name);
        match self.frame().instance {
            Some(id) => self.instance(id).join(&key),
            None => key,
        }
    }

    pub(super) fn in_model(&mut self, span: Span, what: &str) -> bool {
        let fine = matches!(self.frame().body, Body::Layer | Body::Model) && self.scans.is_empty();
        if !fine {
            self.not_here(span, &format!("`{what}` belongs to a layer or model, outside `scan`"));
        }
        fine
    }

    pub(super) fn loss(&mut self, name: Option<&'a Name>, value: &'a Expr, span: Span) {
        if !self.in_model(span, "loss") {
            return;
        }
        let val = self.value(value);
        let single = self.single();
        let v = match &val {
            Val::Const(_) => self.as_tensor(&val, single),
            Val::Tensor(v) => Some(*v),
            Val::Error => None,
            other => {
                self.error(
                    Diagnostic::error("E0705", "a loss is a scalar")
                        .at(value.span, format!("this is {}", other.kind()))
                        .help("give a value without dims, such as `mean[batch](x)`"),
                );
                None
            }
        };
        let Some(v) = v else { return };
        if self.b.dtype(v) == DType::Bool {
            self.error(
                Diagnostic::error("E0705", "a loss is a number")
                    .at(value.span, "this is bool, which has no derivative")
                    .help("use a value that changes smoothly; a `metric` may be bool"),
            );
            return;
        }
        if !self.b.dims(v).is_empty() {
            let shown = self.show_dims(self.b.dims(v));
            let names: Vec<String> =
                self.b.dims(v).iter().map(|d| super::dims::last(&self.dim_name(*d)).to_string()).collect();
            self.error(
                Diagnostic::error("E0705", "a loss is a scalar")
                    .at(value.span, format!("this has dims {shown}"))
                    .help(format!("take the mean: `mean[{}](..)`", names.join(", "))),
            );
            return;
        }
        self.b.span = Some(span);
        let v = self.b.cast(v, single);
        let path = self.path_of(name.map_or("loss", |n| &n.text));
        if let Some(name) = name {
            self.reported_once(name, &path, span);
        }
        self.losses.push(Loss { path: path.clone(), value: v, span });
        self.b.output(OutputKind::Loss, &path, v);
    }

    pub(super) fn metric(&mut self, name: &'a Name, value: &'a Expr, span: Span) {
        if !self.in_model(span, "metric") {
            return;
        }
        let val = self.value(value);
        let single = self.single();
        let v = match &val {
            Val::Const(_) => self.as_tensor(&val, single),
            Val::Tensor(v) => Some(self.b.cast(*v, single)),
            _ => None,
        };
        let Some(v) = v else { return };
        self.b.span = Some(span);
        let path = self.path_of(&name.text);
        self.reported_once(name, &path, span);
        self.b.output(OutputKind::Metric, &path, v);
    }

    /// Reports know figures by their paths: what a run reports itself, and another statement's figure, would be lost.
    fn reported_once(&mut self, name: &Name, path: &str, span: Span) {
        if REPORTED.contains(&path) {
            self.error(
                Diagnostic::error("E0202", format!("`{path}` is a figure that every run reports"))
                    .at(name.span, "would take its place")
                    .help("choose another name"),
            );
        }
        let kinds = [OutputKind::Loss, OutputKind::Metric];
        let same =
            self.b.graph.outputs.iter().find(|o| kinds.contains(&o.kind) && o.name == path && o.span != Some(span));
        if let Some(first) = same.and_then(|o| o.span) {
            self.error(
                Diagnostic::error("E0202", format!("`{path}` is reported twice"))
                    .at(name.span, "a second time")
                    .and(first, "first here")
                    .help("rename one"),
            );
        }
    }

    pub(super) fn output(&mut self, name: &'a Name, value: &'a Expr, span: Span) {
        if !matches!(self.frame().body, Body::Model | Body::Sample) || !self.scans.is_empty() {
            self.not_here(span, "`output` belongs to a model or a sample item");
            return;
        }
        let val = self.value(value);
        let val = match val {
            Val::Const(c) => {
                let t = if c.is_int() { DType::I32 } else { self.single() };
                self.as_tensor(&Val::Const(c), t).map_or(Val::Error, Val::Tensor)
            }
            v => v,
        };
        match &val {
            Val::Tensor(v) => {
                self.b.span = Some(span);
                self.b.output(OutputKind::Value, &name.text, *v);
                self.outputs.insert(name.text.clone(), (*v, span));
            }
            Val::Error => {}
            other => {
                let what = other.kind();
                self.error(
                    Diagnostic::error("E0206", "an output is one value")
                        .at(value.span, format!("this is {what}"))
                        .help("take a tuple apart by `let (a, b) = ..`; give an `if` an `else`"),
                );
            }
        }
        self.define(name, val, true);
    }

    /// `wte.table`: a parameter, state or part of an instance, also before the instance's first call.
    pub fn instance_member(&mut self, id: InstanceId, name: &'a Name) -> Option<Val> {
        if let Some(child) = self.instance(id).children.get(&name.text).copied() {
            return Some(Val::Instance(child));
        }
        let def = self.program.def(self.instance(id).def);
        let declared = find_declaration(&def.body, &name.text);
        if let Some(s) = declared {
            return Some(self.outside_read(id, s, name));
        }
        // A part that the body makes by `let`.
        if let Some((form_name, value)) = find_instance(&def.body, &name.text) {
            let at = self.instance(id).def;
            let statics = self.instance(id).statics.clone();
            return self.inside(id, at, statics, name.span, |e| {
                let (at, items, span) = e.instance_form(value)?;
                let bound = e.bind_statics(at, items, span)?;
                e.make_instance(&bound, &form_name.text, form_name.span).map(Val::Instance)
            });
        }
        let mut names: Vec<String> = self.instance(id).params.keys().cloned().collect();
        names.extend(self.instance(id).states.keys().cloned());
        names.extend(self.instance(id).children.keys().cloned());
        let layer = def.name.text.clone();
        let d = Diagnostic::error("E0201", format!("`{layer}` has no parameter, state or part `{}`", name.text))
            .at(name.span, "unknown");
        let d = match did_you_mean(&name.text, names.iter().map(String::as_str)) {
            Some(n) => d.help(format!("did you mean `{n}`?")),
            None => d.and(def.head, "the layer").help("see its `param`, `state` and `let` statements"),
        };
        self.error(d);
        None
    }

    pub(super) fn outside_read(&mut self, id: InstanceId, s: &'a Stmt, name: &'a Name) -> Val {
        let at = self.instance(id).def;
        let statics = self.instance(id).statics.clone();
        let read = self.inside(id, at, statics, name.span, |e| match &s.kind {
            StmtKind::Param { names, ty, init } => {
                let n = names.iter().find(|n| n.text == name.text)?;
                e.declare_param(n, ty, init).map(|(p, t)| Val::Tensor(e.read(ReadKey::Param(p), t)))
            }
            StmtKind::State { names, ty, init } => {
                let n = names.iter().find(|n| n.text == name.text)?;
                e.declare_state(n, ty, init).map(|(p, t)| Val::Tensor(e.read(ReadKey::State(p), t)))
            }
            _ => None,
        });
        read.unwrap_or(Val::Error)
    }

    /// Runs `f` in the frame of an instance's body with its local dims declared, without walking the body.
    pub(super) fn inside<T>(
        &mut self,
        id: InstanceId,
        def: crate::resolve::ItemRef,
        statics: Vec<(String, super::value::StaticVal)>,
        site: Span,
        f: impl FnOnce(&mut Self) -> Option<T>,
    ) -> Option<T> {
        let bound = super::value::Bound { def, statics, span: site };
        let calls = self.instance(id).calls;
        let mut frame = self.def_frame(&bound, Some(id), site)?;
        self.instance(id).calls = calls;
        self.bind_settings(&mut frame, &bound)?;
        let body = &self.program.def(def).body;
        self.within(frame, |e| {
            for s in &body.stmts {
                if let StmtKind::Dims(dims) = &s.kind {
                    dims.iter().for_each(|d| e.local_dim(d));
                }
            }
            f(e)
        })
    }
}

/// The `param` or `state` statement of a body that declares a name, in blocks of `if` too.
fn find_declaration<'a>(block: &'a Block, name: &str) -> Option<&'a Stmt> {
    let mut found = None;
    super::ordinals::walk_block(block, &mut |node| {
        if let super::ordinals::Node::Stmt(s) = node
            && let StmtKind::Param { names, .. } | StmtKind::State { names, .. } = &s.kind
            && names.iter().any(|n| n.text == name)
            && found.is_none()
        {
            found = Some(s);
        }
    });
    found
}

fn find_instance<'a>(block: &'a Block, name: &str) -> Option<(&'a Name, &'a Expr)> {
    block.stmts.iter().find_map(|s| match &s.kind {
        StmtKind::Let { names, tuple: false, value, .. } => names.iter().find(|n| n.text == name).map(|n| (n, value)),
        _ => None,
    })
}
