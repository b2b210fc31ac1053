//! Calls: which definition is meant, its brackets, its arguments, its result; instances of layers.

use super::Elab;
use super::frame::{Body, Frame, Local};
use super::instance::InstanceId;
use super::ordinals;
use super::value::{Bound, Declared, Ev, StaticVal, Val};
use crate::diag::Diagnostic;
use crate::ir::{DimId, Scope};
use crate::resolve::{Entity, ItemRef};
use crate::source::Span;
use crate::syntax::ast::{self, CallArg, DefKind, Expr, ExprKind, IndexItem};
use std::rc::Rc;

/// What stands before the parentheses.
enum Callee<'a> {
    Def(ItemRef, &'a [IndexItem]),
    Builtin(&'a str, &'a [IndexItem]),
    Instance(InstanceId),
    Cast(ast::TypeName),
    Error,
}

/// An argument that was evaluated in the caller's frame.
pub struct GivenArg {
    pub name: Option<ast::Name>,
    pub val: Val,
    pub span: Span,
}

impl<'a> Elab<'a> {
    pub fn call(&mut self, e: &'a Expr, callee: &'a Expr, args: &'a [CallArg]) -> Ev {
        match self.callee(callee) {
            Callee::Error => {
                for a in args {
                    self.value(&a.value);
                }
                Ev::error(e.span)
            }
            Callee::Cast(t) => self.cast_call(t, args, e.span),
            Callee::Builtin(name, items) => self.builtin(name, items, args, e, callee.span),
            Callee::Instance(id) => {
                let (def, statics) = (self.instance(id).def, self.instance(id).statics.clone());
                let given = self.given(args);
                let bound = Bound { def, statics, span: callee.span };
                Ev::new(self.call_def(bound, given, Some(id), e.span), e.span)
            }
            Callee::Def(at, items) => {
                if self.dims_in_parentheses(at, items, args, callee.span) {
                    return Ev::error(e.span);
                }
                if args.is_empty() && self.instance_by_call(at, items, e.span) {
                    return Ev::error(e.span);
                }
                let given = self.given(args);
                if self.settings_in_parentheses(at, items, &given) {
                    return Ev::error(e.span);
                }
                let Some(bound) = self.bind_statics(at, items, callee.span) else { return Ev::error(e.span) };
                let def = self.program.def(at);
                let id = match def.kind {
                    DefKind::Layer => match self.anonymous(&bound, e.span) {
                        Some(id) => Some(id),
                        None => return Ev::error(e.span),
                    },
                    DefKind::Fn => None,
                    DefKind::Optimizer => {
                        self.error(
                            Diagnostic::error("E0206", format!("optimizer `{}` is called in a body", def.name.text))
                                .at(e.span, "optimizers stand in train items")
                                .help("write `optimizer name(..)` in a train item"),
                        );
                        return Ev::error(e.span);
                    }
                };
                Ev::new(self.call_def(bound, given, id, e.span), e.span)
            }
        }
    }

    fn callee(&mut self, callee: &'a Expr) -> Callee<'a> {
        match &*callee.kind {
            ExprKind::Type(t) => Callee::Cast(*t),
            ExprKind::Index { base, items } => match self.callee(base) {
                Callee::Def(at, []) => Callee::Def(at, items),
                Callee::Builtin(n, []) => Callee::Builtin(n, items),
                Callee::Instance(_) => {
                    self.error(
                        Diagnostic::error("E0314", "an instance has its brackets already")
                            .at(callee.span, "brackets were given where it was made")
                            .help("call it with parentheses alone"),
                    );
                    Callee::Error
                }
                _ => Callee::Error,
            },
            ExprKind::Name(n) => self.callee_name(n, callee.span),
            ExprKind::Member { base, name } => {
                if let Some(m) = self.module_of(base) {
                    return match self.entity(m, &name.text) {
                        Some(Entity::Def(at)) => Callee::Def(at, &[]),
                        Some(_) => self.no_definition(&name.text, name.span),
                        None => {
                            self.unknown_item(m, name);
                            Callee::Error
                        }
                    };
                }
                match self.value(callee) {
                    Val::Instance(id) => Callee::Instance(id),
                    Val::Error => Callee::Error,
                    other => self.not_callable(&other, callee.span),
                }
            }
            ExprKind::Paren(inner) => self.callee(inner),
            _ => match self.value(callee) {
                Val::Instance(id) => Callee::Instance(id),
                Val::Error => Callee::Error,
                other => self.not_callable(&other, callee.span),
            },
        }
    }

    fn callee_name(&mut self, n: &'a str, span: Span) -> Callee<'a> {
        if let Some(v) = self.frame().lookup(n) {
            return match v {
                Val::Instance(id) => Callee::Instance(id),
                Val::Error => Callee::Error,
                other => {
                    // A plain value may share a function's name: `max` stays callable beside a local `max`.
                    if super::builtin::NAMES.contains(&n) {
                        return Callee::Builtin(n, &[]);
                    }
                    let module = self.frame().module;
                    match self.entity(module, n) {
                        Some(Entity::Def(at)) => Callee::Def(at, &[]),
                        _ => self.not_callable(&other, span),
                    }
                }
            };
        }
        if let Some(Local { val: Val::Instance(_), span: place, .. }) = self.frame().outside(n) {
            let place = *place;
            self.not_initial(n, span, Some(place));
            return Callee::Error;
        }
        let module = self.frame().module;
        match self.entity(module, n) {
            Some(Entity::Def(at)) => Callee::Def(at, &[]),
            Some(Entity::Model(_)) => {
                self.error(
                    Diagnostic::error("E0206", format!("model `{n}` is called"))
                        .at(span, "a model is fed by data, not called")
                        .help("make what both need a `layer`"),
                );
                Callee::Error
            }
            Some(_) => self.no_definition(n, span),
            None if super::builtin::NAMES.contains(&n) => Callee::Builtin(n, &[]),
            None => {
                self.unknown_name(n, span);
                Callee::Error
            }
        }
    }

    fn no_definition(&mut self, n: &str, span: Span) -> Callee<'a> {
        self.error(
            Diagnostic::error("E0206", format!("`{n}` cannot be called"))
                .at(span, "neither a function nor a layer")
                .help("a dim's or constant's name is its value"),
        );
        Callee::Error
    }

    fn not_callable(&mut self, v: &Val, span: Span) -> Callee<'a> {
        self.error(
            Diagnostic::error("E0206", format!("{} cannot be called", v.kind()))
                .at(span, format!("this is {}", v.kind()))
                .help("functions, layers and instances are called; multiplication needs `*`"),
        );
        Callee::Error
    }

    /// `Linear(embed, mlp)`, whose dims belong into brackets; reports it.
    fn dims_in_parentheses(&mut self, at: ItemRef, items: &[IndexItem], args: &'a [CallArg], span: Span) -> bool {
        let def = self.program.def(at);
        let wanted = def.statics.iter().filter(|s| s.kind == ast::StaticKind::Dim).count();
        let names: Vec<&str> = (args.iter())
            .map_while(|a| match &*a.value.kind {
                ExprKind::Name(n) if a.name.is_none() => Some(n.as_str()),
                _ => None,
            })
            .collect();
        let fits = items.is_empty() && wanted > 0 && names.len() == wanted && names.len() == args.len();
        if !fits || !names.iter().all(|n| self.frame().lookup(n).is_none() && self.dim_opt(n).is_some()) {
            return false;
        }
        let name = &def.name.text;
        self.error(
            Diagnostic::error("E0314", format!("`{name}` takes its dims in brackets"))
                .at(args.first().map_or(span, |a| a.value.span).to(args.last().map_or(span, |a| a.value.span)), "dims")
                .and(def.head, "its signature")
                .help(format!("write `{name}[{}]`", names.join(", "))),
        );
        true
    }

    /// `Net()`, which is meant to make an instance; reports it.
    fn instance_by_call(&mut self, at: ItemRef, items: &[IndexItem], span: Span) -> bool {
        let def = self.program.def(at);
        let needed = def.args.iter().find(|a| a.default.is_none());
        let (DefKind::Layer, Some(needed)) = (def.kind, needed) else { return false };
        let name = &def.name.text;
        let made = if items.is_empty() { name.clone() } else { format!("{name}[..]") };
        let x = &needed.name.text;
        self.error(
            Diagnostic::error("E0314", format!("`{name}` needs its argument `{x}`"))
                .at(span, format!("no value for `{x}`"))
                .and(def.head, "its signature")
                .help(format!("an instance is made without parentheses, `let part = {made}`, and called: `part({x})`")),
        );
        true
    }

    /// Settings that are given like arguments; reports them.
    fn settings_in_parentheses(&mut self, at: ItemRef, items: &[IndexItem], given: &[GivenArg]) -> bool {
        let def = self.program.def(at);
        let (name, mut found) = (&def.name.text, false);
        for n in given.iter().filter_map(|g| g.name.as_ref()) {
            let setting = def.statics.iter().any(|s| s.kind != ast::StaticKind::Dim && s.name.text == n.text);
            if setting && !def.args.iter().any(|a| a.name.text == n.text) {
                found = true;
                self.error(
                    Diagnostic::error("E0201", format!("`{name}` has no argument `{}`", n.text))
                        .at(n.span, "unknown argument")
                        .and(def.head, "its signature")
                        .help(super::habits::setting(name, items, &n.text)),
                );
            }
        }
        found
    }

    pub fn given(&mut self, args: &'a [CallArg]) -> Vec<GivenArg> {
        args.iter().map(|a| GivenArg { name: a.name.clone(), val: self.value(&a.value), span: a.value.span }).collect()
    }

    // ---- the call itself

    /// Walks a definition's body with its arguments.
    pub fn call_def(&mut self, bound: Bound, given: Vec<GivenArg>, instance: Option<InstanceId>, site: Span) -> Val {
        let def = self.program.def(bound.def);
        self.used_defs.insert(bound.def);
        if self.too_large {
            return Val::Error;
        }
        if let Some(outer) = self.frames.iter().find(|f| f.def == Some(bound.def)) {
            let name = outer.name.clone();
            self.error(
                Diagnostic::error("E0403", format!("`{name}` calls itself"))
                    .at(site, "closes the circle")
                    .and(def.head, "the definition")
                    .help("use a loop: `for` or `scan`"),
            );
            return Val::Error;
        }
        if self.frames.len() >= super::MAX_CALL_DEPTH {
            self.error(
                Diagnostic::error("E0102", format!("calls nest deeper than {}", super::MAX_CALL_DEPTH))
                    .at(site, "the limit was passed here")
                    .help("write some of the functions that call each other as one"),
            );
            return Val::Error;
        }
        let Some(mut frame) = self.def_frame(&bound, instance, site) else { return Val::Error };
        let Some(()) = self.bind_settings(&mut frame, &bound) else { return Val::Error };
        let errors = self.sink.error_count();
        let Some(given) = self.match_args(def, given, site) else { return Val::Error };
        let loops = self.scans.clone();
        let out = self.within(frame, |e| {
            let Some(()) = e.bind_args(&def.args, given, &bound, site) else { return Val::Error };
            let results: Option<Vec<Declared>> = def.result.iter().map(|t| e.declared(t)).collect();
            let dims: Option<Vec<Vec<DimId>>> = results.as_ref().map(|r| r.iter().map(|d| d.dims.clone()).collect());
            let val = e.body(&def.body, dims.as_deref());
            let Some(results) = results else { return Val::Error };
            let val = e.result(val, &results, def);
            let whole = matches!(val, Val::Tensor(_)) && e.sink.error_count() == errors;
            match whole && e.is_attention(bound.def) {
                true => e.attention().map_or(val, Val::Tensor),
                false => val,
            }
        });
        debug_assert_eq!(loops.len(), self.scans.len());
        if self.sink.error_count() > errors && matches!(out, Val::Nothing) { Val::Error } else { out }
    }

    /// A frame for a definition with its dims bound; settings and arguments come later.
    pub fn def_frame(&mut self, bound: &Bound, instance: Option<InstanceId>, site: Span) -> Option<Frame> {
        let def = self.program.def(bound.def);
        if !self.spend_call(def.name.span, site) {
            return None;
        }
        let body = match def.kind {
            DefKind::Fn => Body::Fn,
            DefKind::Layer => Body::Layer,
            DefKind::Optimizer => Body::Optimizer,
        };
        let caller_stream = self.frame().stream.clone();
        let (name, n) = self.frame().ordinals.get(&site).cloned().unwrap_or((def.name.text.clone(), 1));
        let turns = self.frame().turns.join(".");
        let (parent, turns_at) = (self.frame().scope, self.frame().model_turns.clone());
        let mut frame = self.open_frame(bound.def.module, body, &def.name.text);
        frame.def = Some(bound.def);
        frame.ordinals = self.ordinals_of(&def.body);
        frame.called_from = Some(site);
        frame.instance = instance;
        let path = match instance {
            Some(id) => {
                let inst = self.instance(id);
                inst.calls += 1;
                let again = if inst.calls > 1 { format!("@{}", inst.calls) } else { String::new() };
                frame.stream = format!("{}{again}", inst.path);
                inst.path.clone()
            }
            None => {
                frame.stream = format!("{caller_stream}/{name}#{n}.{turns}");
                self.b.graph.scopes[parent.index()].path.clone()
            }
        };
        let definition = def.name.text.clone();
        let scope = Scope { path, definition, parent: Some(parent), site: Some(site), turns: turns_at };
        frame.scope = self.b.add_scope(scope);
        if !self.in_initial {
            self.uses.entry(bound.def).or_default().push(frame.scope);
        }
        let mut good = true;
        for (param, value) in &bound.statics {
            let StaticVal::Dim(set) = value else { continue };
            if !self.in_initial {
                self.scope_dims.entry(frame.scope).or_default().insert(param.clone(), set.clone());
            }
            let Some(s) = def.statics.iter().find(|s| s.name.text == *param) else { continue };
            Self::bind_dim(&mut frame, &s.name, set.clone());
            if let Some(other) = self.program.module(bound.def.module).names.get(param)
                && let Entity::Dim(_) = other.entity
            {
                let place = other.span;
                self.error(
                    Diagnostic::error("E0203", format!("dim parameter `{param}` hides a dim of the file"))
                        .at(s.name.span, "a dim's name means one thing")
                        .and(place, "the dim")
                        .help("choose another name for the parameter"),
                );
                good = false;
            }
        }
        good.then_some(frame)
    }

    pub fn ordinals_of(&mut self, block: &ast::Block) -> super::frame::Ordinals {
        self.ordinals.entry(block.span).or_insert_with(|| Rc::new(ordinals::number(block))).clone()
    }
}
