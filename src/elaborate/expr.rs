//! Expressions: names, operators, conditions, members. Calls are in `call.rs`, brackets on values in `index.rs`.

use super::Elab;
use super::frame::Body;
use super::value::{Ev, Tree, Val};
use crate::check::constant::{self, Const};
use crate::diag::{Diagnostic, did_you_mean};
use crate::ir::DimId;
use crate::resolve::{Entity, ItemRef};
use crate::source::Span;
use crate::syntax::ast::{self, Else, Expr, ExprKind, ItemKind, Name, StmtKind};
use crate::syntax::visit::{self, Node};
use crate::types::counted;

/// The cure for a name that is like no other one.
const BEFORE_USE: &str = "statements refer to earlier ones only; items of other files need a `use`";

/// Names that exist everywhere.
pub(super) const PREDEFINED: &[&str] = &["inf", "nan", "pi", "step", "training", "streaming"];

/// A name that is defined further down.
pub(super) fn used_early(n: &str, span: Span, later: Span) -> Diagnostic {
    Diagnostic::error("E0205", format!("`{n}` is used before it is defined"))
        .at(span, "used here")
        .and(later, "defined here")
        .help("move the definition up; statements refer to earlier ones only")
}

impl<'a> Elab<'a> {
    /// Evaluates an expression; an elementwise tree stays open.
    pub fn eval(&mut self, e: &'a Expr) -> Ev {
        if self.too_large || !self.spend(1, e.span) {
            return Ev::error(e.span);
        }
        match &*e.kind {
            ExprKind::Int(t) | ExprKind::Float(t) => match constant::literal(t) {
                Const::Float(x) if x.is_infinite() => {
                    self.constant_problem(constant::Problem::Overflow, e.span);
                    Ev::error(e.span)
                }
                c => Ev::new(Val::Const(c), e.span),
            },
            ExprKind::Str(s) => Ev::new(Val::Const(Const::Str(s.clone())), e.span),
            ExprKind::Bool(b) => Ev::new(Val::Const(Const::Bool(*b)), e.span),
            ExprKind::Name(n) => self.name(n, e.span),
            ExprKind::Type(_) => self.misplaced(e.span, "a type is no value", "call it to convert: `f32(x)`"),
            ExprKind::Paren(inner) => {
                let v = self.eval(inner);
                Ev { span: e.span, ..v }
            }
            // Stands for an expression that is nested too deeply, which was reported.
            ExprKind::Tuple(es) if es.is_empty() => {
                self.lose();
                Ev::error(e.span)
            }
            ExprKind::Tuple(es) => {
                let vals = es.iter().map(|x| self.value(x)).collect();
                Ev::new(Val::Tuple(vals), e.span)
            }
            ExprKind::Array(es) => self.array(es, e.span),
            ExprKind::Unary { op, value } => {
                let v = self.eval(value);
                if v.val.is_error() { Ev::error(e.span) } else { self.unary(*op, e.span, v) }
            }
            ExprKind::Binary { op, op_span, left, right } => {
                let a = self.eval(left);
                let b = self.eval(right);
                self.binary(*op, *op_span, e.span, a, b)
            }
            ExprKind::If { .. } => Ev::new(self.choose(e, None), e.span),
            ExprKind::For { .. } => Ev::new(self.run_loop(e, true), e.span),
            ExprKind::Call { callee, args } => self.call(e, callee, args),
            ExprKind::Index { base, items } => self.brackets(e.span, base, items),
            ExprKind::Member { base, name } => self.member(e.span, base, name),
            ExprKind::Turn { .. } => self.misplaced(
                e.span,
                "`.{i}` names a turn of a loop in weights items alone",
                "use the loop's own variable",
            ),
            ExprKind::Layout { base, entries } => {
                let ev = self.eval(base);
                Ev { val: self.inline_layout(&ev.val, entries, e.span), ..ev }
            }
        }
    }

    /// Evaluates and ends the elementwise tree.
    pub fn value(&mut self, e: &'a Expr) -> Val {
        let ev = self.eval(e);
        self.close(ev, None)
    }

    /// Evaluates under declared types (a result or a `let` with a type), which license outer products.
    pub fn value_as(&mut self, e: &'a Expr, declared: Option<&[Vec<DimId>]>) -> Val {
        match (&*e.kind, declared) {
            (ExprKind::Tuple(es), Some(d)) if es.len() == d.len() => Val::Tuple(
                es.iter().zip(d).map(|(x, dims)| self.value_as(x, Some(std::slice::from_ref(dims)))).collect(),
            ),
            (ExprKind::Paren(inner), _) => self.value_as(inner, declared),
            (ExprKind::If { .. }, _) => self.choose(e, declared),
            (_, Some([dims])) => {
                let ev = self.eval(e);
                self.close(ev, Some(dims))
            }
            _ => self.value(e),
        }
    }

    fn misplaced(&mut self, span: Span, message: &str, help: &str) -> Ev {
        self.error(Diagnostic::error("E0206", message).at(span, "here").help(help));
        Ev::error(span)
    }

    fn array(&mut self, es: &'a [Expr], span: Span) -> Ev {
        let mut out = Vec::new();
        for x in es {
            if self.instance_form(x).is_some() {
                let cure = "layers in a row are made by a loop: `for i in depth { h = Block[..](h) }`";
                return self.misplaced(x.span, "a list holds numbers, no layers", cure);
            }
            match self.constant(x) {
                Some(c) => match c.as_f64() {
                    Some(v) => out.push(v),
                    None => return self.misplaced(x.span, "a list holds numbers", "write constants"),
                },
                None => return Ev::error(span),
            }
        }
        Ev::new(Val::Array(out), span)
    }

    fn name(&mut self, n: &str, span: Span) -> Ev {
        if let Some(v) = self.frame().lookup(n) {
            return Ev::new(v, span);
        }
        if let Some(local) = self.frame().outside(n) {
            let place = local.span;
            self.not_initial(n, span, Some(place));
            return Ev::error(span);
        }
        if let Some(set) = self.dim_opt(n) {
            let c = set.map_or(Const::Unknown, |s| self.size_const(&s.ids));
            return Ev::new(Val::Const(c), span);
        }
        let module = self.frame().module;
        match self.entity(module, n) {
            Some(Entity::Const(at)) => return Ev::new(self.global_const(at), span),
            Some(Entity::Def(at)) => {
                let d = self.program.def(at);
                let what = if d.kind == ast::DefKind::Layer { "layer" } else { "function" };
                return self.misplaced(
                    span,
                    &format!("{what} `{n}` is used as a value"),
                    &format!("call it: `{n}(..)`"),
                );
            }
            Some(Entity::Model(_) | Entity::Module(_)) => {
                return self.misplaced(span, &format!("`{n}` is no value"), "name one of its items");
            }
            Some(Entity::Dim(_)) | None => {}
        }
        if let Some(ev) = self.predefined(n, span) {
            return ev;
        }
        self.unknown_name(n, span);
        Ev::error(span)
    }

    fn predefined(&mut self, n: &str, span: Span) -> Option<Ev> {
        let c = match n {
            "inf" => Const::Float(f64::INFINITY),
            "nan" => Const::Float(f64::NAN),
            "pi" => Const::Float(std::f64::consts::PI),
            "training" => Const::Bool(self.mode.training),
            "streaming" => Const::Bool(self.mode.streaming),
            "step" if self.in_initial => {
                self.not_initial(n, span, None);
                return Some(Ev::error(span));
            }
            "step" => {
                let v = self.read(super::ReadKey::Step, crate::types::DType::I32);
                return Some(Ev::new(Val::Tensor(v), span));
            }
            _ => return None,
        };
        Some(Ev::new(Val::Const(c), span))
    }

    /// A name that has a value only when running, in an initial value.
    pub(super) fn not_initial(&mut self, n: &str, span: Span, place: Option<Span>) {
        let d = Diagnostic::error("E0312", format!("`{n}` has no value yet where initial values are computed"))
            .at(span, "known only when running");
        let d = match place {
            Some(place) => d.and(place, "defined here"),
            None => d,
        };
        self.error(
            d.with_note("parameters and states get their initial values once, before the first step")
                .help("use constants, draws, `iota`, and functions of these"),
        );
    }

    pub fn unknown_name(&mut self, n: &str, span: Span) {
        if self.is_lost(n) {
            return;
        }
        if self.sink.is_flooded() {
            let d = Diagnostic::error("E0201", format!("unknown name `{n}`")).at(span, "not defined here");
            return self.error(d.help(BEFORE_USE));
        }
        if let Some(later) = self.defined_later(n, span) {
            return self.error(used_early(n, span, later));
        }
        let module = self.frame().module;
        let mut names = self.frame().names();
        names.extend(self.frame().dims.keys().cloned());
        names.extend(self.program.module(module).names.keys().cloned());
        names.extend(PREDEFINED.iter().chain(super::builtin::NAMES).map(|s| s.to_string()));
        let d = Diagnostic::error("E0201", format!("unknown name `{n}`")).at(span, "not defined here");
        let library = crate::resolve::stdlib::home(n);
        if let Some(cure) = super::habits::name(n) {
            return self.error(d.help(cure));
        }
        let d = match (library, did_you_mean(n, names.iter().map(String::as_str))) {
            (Some(m), _) => d.help(format!("import it: `use {m}.{{{n}}}`")),
            (None, _) if crate::resolve::stdlib::text(n).is_some() => d.help(format!("import the module: `use {n}`")),
            (None, Some(near)) => d.help(format!("did you mean `{near}`?")),
            (None, None) => d.help(BEFORE_USE),
        };
        self.error(d);
    }

    /// A name that a module lacks.
    pub(super) fn unknown_item(&mut self, module: crate::resolve::ModuleId, name: &Name) {
        match self.program.unknown_item(module, name, self.sink.is_flooded()) {
            Some(d) => self.error(d),
            None => self.lose(),
        }
    }

    /// The place of a `let` or `dim` of this name further down in the body.
    pub(super) fn defined_later(&mut self, n: &str, span: Span) -> Option<Span> {
        let body = match &self.program.item(self.frame().def?).kind {
            ItemKind::Def(def) => &def.body,
            ItemKind::Model(model) => &model.body,
            _ => return None,
        };
        let mut later = None;
        visit::walk_block(body, &mut |node| {
            let Node::Stmt(stmt) = node else { return };
            let found = match &stmt.kind {
                StmtKind::Let { names, .. } => names.iter().find(|name| name.text == n),
                StmtKind::Dims(dims) => dims.iter().map(|d| &d.name).find(|name| name.text == n),
                _ => None,
            };
            if let Some(name) = found
                && name.span.file == span.file
                && name.span.start > span.start
            {
                later.get_or_insert(name.span);
            }
        });
        later
    }

    pub fn global_const(&mut self, at: ItemRef) -> Val {
        if let Some(v) = self.constants.get(&at) {
            // A constant list was made in the graph that was current then; lists are rare, so they are made anew.
            if !matches!(v, Val::Tensor(_)) {
                return v.clone();
            }
        }
        let def = self.program.constant(at);
        if self.evaluating.contains(&at) {
            self.error(
                Diagnostic::error("E0204", format!("the value of `{}` depends on itself", def.name.text))
                    .at(def.name.span, "defined by way of itself")
                    .help("give one of them a value of its own"),
            );
            return Val::Error;
        }
        if self.too_deep(def.name.span) {
            return Val::Error;
        }
        self.evaluating.push(at);
        let replaced = self.override_of(at);
        let given = replaced.is_some();
        let frame = self.open_frame(at.module, Body::File, "");
        let val = self.within(frame, |e| {
            let val = match replaced {
                Some(c) => Val::Const(c),
                None => e.value(&def.value),
            };
            match (&def.ty, val) {
                (Some(ty), Val::Array(xs)) => e.const_array(ty, xs, def.value.span),
                (None, Val::Array(_)) => {
                    e.error(
                        Diagnostic::error("E0312", "a list of constants needs a declared type")
                            .at(def.value.span, "its dim is not known")
                            .help(format!("write `const {}: [dim] = ..`", def.name.text)),
                    );
                    Val::Error
                }
                (_, Val::Const(c)) => e.const_kind(at, c, given.then_some(def.name.span)),
                (_, Val::Error) => Val::Error,
                (_, other) => {
                    e.error(
                        Diagnostic::error("E0312", "a constant is needed here")
                            .at(def.value.span, format!("this is {}", other.kind()))
                            .help("a `const` is of numbers, other constants and sizes of dims"),
                    );
                    Val::Error
                }
            }
        });
        self.evaluating.pop();
        self.constants.insert(at, val.clone());
        val
    }

    fn const_array(&mut self, ty: &ast::Type, xs: Vec<f64>, span: Span) -> Val {
        let Some(d) = self.declared(ty) else { return Val::Error };
        let n = self.b.graph.elements(&d.dims);
        if n != xs.len() {
            let shown = self.show_dims(&d.dims);
            self.error(
                Diagnostic::error("E0304", format!("the list has {}, the type {n}", counted(xs.len(), "element")))
                    .at(span, counted(xs.len(), "element"))
                    .and(ty.span, format!("{shown} has {n}"))
                    .help("give one number an element"),
            );
            return Val::Error;
        }
        let dtype = d.dtype.unwrap_or(self.precision);
        self.b.span = Some(span);
        Val::Tensor(self.b.hoisted(|b| b.elements(xs, dtype, d.dims)))
    }

    // ---- conditions

    /// `if c {..} else {..}`: the branch that a constant condition takes.
    pub fn choose(&mut self, e: &'a Expr, declared: Option<&[Vec<DimId>]>) -> Val {
        let ExprKind::If { cond, then, other } = &*e.kind else { return Val::Error };
        let c = self.eval(cond);
        match self.close(c, None) {
            Val::Const(Const::Bool(true)) => {
                match other {
                    None => {}
                    Some(Else::Block(b)) => self.mark_used(b),
                    Some(Else::If(e)) => self.mark_used_expr(e),
                }
                self.scoped_block(then, declared)
            }
            Val::Const(Const::Bool(false)) => {
                self.mark_used(then);
                match other {
                    None => Val::Nothing,
                    Some(Else::Block(b)) => self.scoped_block(b, declared),
                    Some(Else::If(e)) => self.choose(e, declared),
                }
            }
            Val::Const(Const::Unknown) => {
                // A definition checked without a use: look at both branches.
                let a = self.scoped_block(then, declared);
                match other {
                    None => {}
                    Some(Else::Block(b)) => {
                        self.scoped_block(b, declared);
                    }
                    Some(Else::If(e)) => {
                        self.choose(e, declared);
                    }
                }
                a
            }
            Val::Error => Val::Error,
            Val::Const(c) => {
                self.error(
                    Diagnostic::error("E0309", "a condition is a bool")
                        .at(cond.span, format!("this is {}", c.kind()))
                        .help("compare it: `x != 0`"),
                );
                Val::Error
            }
            other => {
                self.error(
                    Diagnostic::error("E0312", "`if` needs a constant condition")
                        .at(cond.span, format!("this is {}, known only when running", other.kind()))
                        .help("choose between values with `where(condition, a, b)`"),
                );
                Val::Error
            }
        }
    }

    // ---- members

    /// `wte.table`, `net.block`, a constant of a module.
    fn member(&mut self, span: Span, base: &'a Expr, name: &'a Name) -> Ev {
        if let Some(module) = self.module_of(base) {
            return match self.program.module(module).names.get(&name.text).map(|b| b.entity) {
                Some(Entity::Const(at)) => Ev::new(self.global_const(at), span),
                Some(Entity::Dim(at)) => {
                    let c = self.global_dim(at).map_or(Const::Unknown, |s| self.size_const(&s.ids));
                    Ev::new(Val::Const(c), span)
                }
                Some(_) => self.misplaced(span, &format!("`{}` is no value", name.text), "call it: `name(..)`"),
                None => {
                    self.unknown_item(module, name);
                    Ev::error(span)
                }
            };
        }
        match self.value(base) {
            Val::Instance(id) => match self.instance_member(id, name) {
                Some(v) => Ev::new(v, span),
                None => Ev::error(span),
            },
            Val::Error => Ev::error(span),
            other => {
                let what = other.kind();
                let cure = super::habits::method(base, &name.text);
                let cure = cure.as_deref().unwrap_or("only instances have parameters and parts");
                self.misplaced(span, &format!("{what} has no members"), cure)
            }
        }
    }

    /// The module that a name stands for (`use nn`).
    pub fn module_of(&mut self, e: &Expr) -> Option<crate::resolve::ModuleId> {
        let ExprKind::Name(n) = &*e.kind else { return None };
        if self.frame().find(n).is_some() {
            return None;
        }
        let module = self.frame().module;
        match self.program.module(module).names.get(n).map(|b| b.entity) {
            Some(Entity::Module(m)) => {
                self.entity(module, n);
                Some(m)
            }
            _ => None,
        }
    }

    /// `iota[dims]` counts towards every leaf of its tree.
    pub fn iota(&mut self, dims: &[DimId], span: Span) -> Ev {
        self.b.span = Some(span);
        let v = self.b.flat_iota(dims);
        Ev { val: Val::Tensor(v), span, tree: Some(Tree::iota(dims)) }
    }
}
