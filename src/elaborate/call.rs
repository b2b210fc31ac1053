//! Calls: which definition is meant, its brackets, its arguments, its result; instances of layers.

use super::Elab;
use super::dims::last;
use super::frame::{Body, Frame, Local};
use super::instance::{Instance, InstanceId};
use super::ordinals;
use super::value::{Bound, Declared, DimSet, Ev, StaticVal, Val};
use crate::check::constant::Const;
use crate::diag::{Diagnostic, did_you_mean};
use crate::ir::{DimId, Scope, ValueId};
use crate::resolve::{Entity, ItemRef};
use crate::source::Span;
use crate::syntax::ast::{self, Arg, CallArg, DefKind, Expr, ExprKind, IndexItem, IndexKind, StaticKind};
use crate::types::DType;
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
                let given = self.given(args);
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
                        _ => {
                            self.unknown_name(&name.text, name.span);
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
            Some(_) => {
                self.error(
                    Diagnostic::error("E0206", format!("`{n}` cannot be called"))
                        .at(span, "neither a function nor a layer")
                        .help("a dim's or constant's name is its value"),
                );
                Callee::Error
            }
            None if super::builtin::NAMES.contains(&n) => Callee::Builtin(n, &[]),
            None => {
                self.unknown_name(n, span);
                Callee::Error
            }
        }
    }

    fn not_callable(&mut self, v: &Val, span: Span) -> Callee<'a> {
        self.error(
            Diagnostic::error("E0206", format!("{} cannot be called", v.kind()))
                .at(span, format!("this is {}", v.kind()))
                .help("functions, layers and instances are called; multiplication needs `*`"),
        );
        Callee::Error
    }

    pub fn given(&mut self, args: &'a [CallArg]) -> Vec<GivenArg> {
        args.iter().map(|a| GivenArg { name: a.name.clone(), val: self.value(&a.value), span: a.value.span }).collect()
    }

    // ---- brackets

    /// Matches brackets with a definition's dim parameters and settings.
    pub fn bind_statics(&mut self, at: ItemRef, items: &'a [IndexItem], span: Span) -> Option<Bound> {
        let def = self.program.def(at);
        let name = &def.name.text;
        let mut bound: Vec<(String, StaticVal)> = Vec::new();
        let mut positions = def.statics.iter().filter(|s| s.kind == StaticKind::Dim);
        let mut good = true;
        for item in items {
            match &item.kind {
                IndexKind::Group { from, to: None } => {
                    let dims = self.group_dims(from);
                    let Some(param) = positions.next() else {
                        let n = def.statics.iter().filter(|s| s.kind == StaticKind::Dim).count();
                        self.error(
                            Diagnostic::error("E0314", format!("`{name}` takes {n} dims"))
                                .at(item.span, "one too many")
                                .and(def.head, "its signature")
                                .help("settings are written by name: `eps = 1e-6`"),
                        );
                        good = false;
                        continue;
                    };
                    match dims {
                        Some(ids) => {
                            let group = ids.len() != 1;
                            bound.push((param.name.text.clone(), StaticVal::Dim(DimSet { ids, group })));
                        }
                        None => good = false,
                    }
                }
                IndexKind::Equals { name: set, value, slice: false, to: None } => {
                    let param = def.statics.iter().find(|s| s.name.text == set.text);
                    match param {
                        Some(p) if p.kind != StaticKind::Dim => match self.constant(value) {
                            Some(c) => match self.setting(p, c, value.span) {
                                Some(c) => bound.push((set.text.clone(), StaticVal::Const(c))),
                                None => good = false,
                            },
                            None => good = false,
                        },
                        _ => {
                            let names: Vec<&str> = (def.statics.iter())
                                .filter(|s| s.kind != StaticKind::Dim)
                                .map(|s| s.name.text.as_str())
                                .collect();
                            let d = Diagnostic::error("E0201", format!("`{name}` has no setting `{}`", set.text))
                                .at(set.span, "unknown setting")
                                .and(def.head, "its signature");
                            let d = match (did_you_mean(&set.text, names.iter().copied()), names.is_empty()) {
                                (Some(n), _) => d.help(format!("did you mean `{n}`?")),
                                (None, true) => d.help("it has no settings; dims are given by position"),
                                (None, false) => d.help(format!("its settings: {}", names.join(", "))),
                            };
                            self.error(d);
                            good = false;
                        }
                    }
                }
                _ => {
                    self.error(
                        Diagnostic::error("E0314", format!("brackets of `{name}` hold dims and settings"))
                            .at(item.span, "neither")
                            .and(def.head, "its signature")
                            .help("dims by position, then settings by name: `Norm[embed, eps = 1e-6]`"),
                    );
                    good = false;
                }
            }
        }
        let missing: Vec<&str> = positions.map(|s| s.name.text.as_str()).collect();
        if !missing.is_empty() && good {
            self.error(
                Diagnostic::error("E0314", format!("`{name}` needs dims for {}", missing.join(", ")))
                    .at(span, "too few dims in brackets")
                    .and(def.head, "its signature")
                    .help(format!("write `{name}[{}]`", dim_params(def).join(", "))),
            );
            good = false;
        }
        for s in def.statics.iter().filter(|s| s.kind != StaticKind::Dim && s.default.is_none()) {
            if good && !bound.iter().any(|(n, _)| *n == s.name.text) {
                self.error(
                    Diagnostic::error("E0314", format!("`{name}` needs its setting `{}`", s.name.text))
                        .at(span, "setting without a value")
                        .and(s.name.span, "it has no default")
                        .help(format!("write `{name}[.., {} = ..]`", s.name.text)),
                );
                good = false;
            }
        }
        good.then_some(Bound { def: at, statics: bound, span })
    }

    /// A setting's value in its declared kind.
    fn setting(&mut self, p: &'a ast::Static, c: Const, span: Span) -> Option<Const> {
        let fits = match p.kind {
            _ if c == Const::Unknown => true,
            StaticKind::Int => c.as_int().is_some(),
            StaticKind::Float => c.is_number(),
            StaticKind::Bool => c.as_bool().is_some(),
            StaticKind::Str => matches!(c, Const::Str(_)),
            StaticKind::OfDefault => match p.default.as_ref().map(|d| &*d.kind) {
                Some(ExprKind::Bool(_)) => c.as_bool().is_some(),
                Some(ExprKind::Str(_)) => matches!(c, Const::Str(_)),
                Some(ExprKind::Int(_) | ExprKind::Float(_)) => c.is_number(),
                _ => true,
            },
            StaticKind::Dim => false,
        };
        if fits {
            return Some(c);
        }
        self.error(
            Diagnostic::error("E0309", format!("setting `{}` is of another kind", p.name.text))
                .at(span, format!("this is {}", c.kind()))
                .and(p.name.span, "declared here")
                .help("give a constant of its kind"),
        );
        None
    }

    // ---- instances

    /// `Layer[..](x)`: an instance named after the layer; further ones of the same layer in a body get `_2`, `_3`.
    fn anonymous(&mut self, bound: &Bound, site: Span) -> Option<InstanceId> {
        let def = self.program.def(bound.def);
        let n = self.frame().ordinals.get(&site).map_or(1, |o| o.1);
        let mut name = snake(&def.name.text);
        if n > 1 {
            name.push_str(&format!("_{n}"));
            if self.frame().instance.is_some() {
                let owner = self.frame().name.clone();
                self.sink.push(
                    Diagnostic::warning(
                        "W0002",
                        format!("`{owner}` makes several unnamed instances of `{}`", def.name.text),
                    )
                    .at(site, format!("this one is called `{name}`"))
                    .help(format!("name it: `let name = {}[..]`; checkpoints depend on the name", def.name.text)),
                );
            }
        }
        self.make_instance(bound, &name, site)
    }

    /// Makes (or finds, when a body is walked again) the instance `name` of the body's own instance.
    pub fn make_instance(&mut self, bound: &Bound, name: &str, span: Span) -> Option<InstanceId> {
        let Some(parent) = self.frame().instance else {
            let f = self.frame();
            let (what, body) = (f.name.clone(), f.body);
            let d = if body == Body::Fn || body == Body::Optimizer {
                Diagnostic::error("E0401", format!("`{what}` is a function and has no layers of its own"))
                    .at(span, "a layer is used here")
                    .help(format!("make `{what}` a `layer`"))
            } else {
                Diagnostic::error("E0401", "a layer cannot be made here").at(span, "a layer is used here")
            };
            self.error(d);
            return None;
        };
        if self.frame().body == Body::Sample {
            self.error(
                Diagnostic::error("E0401", "a sample item uses the model's instances and makes none")
                    .at(span, "a new layer")
                    .help("make it in the model by `let`"),
            );
            return None;
        }
        let key = self.frame().with_turns(name);
        if let Some(id) = self.instance(parent).children.get(&key).copied() {
            if !same_statics(&self.instance(id).statics, &bound.statics) || self.instance(id).def != bound.def {
                let first = self.instance(id).span;
                self.error(
                    Diagnostic::error("E0402", format!("instance `{key}` is used at different dims"))
                        .at(span, "other dims here")
                        .and(first, "first made here")
                        .help("give each its own name"),
                );
                return None;
            }
            return Some(id);
        }
        let path = self.instance(parent).join(&key);
        self.instances.push(Instance::new(path, bound.def, bound.statics.clone(), span));
        let id = InstanceId(self.instances.len() as u32 - 1);
        self.instance(parent).children.insert(key, id);
        Some(id)
    }

    /// A layer named without parentheses: what `let` makes instances of.
    pub fn instance_form(&mut self, e: &'a Expr) -> Option<(ItemRef, &'a [IndexItem], Span)> {
        let (base, items): (&Expr, &[IndexItem]) = match &*e.kind {
            ExprKind::Index { base, items } => (base, items),
            ExprKind::Paren(inner) => return self.instance_form(inner),
            _ => (e, &[]),
        };
        let at = match &*base.kind {
            ExprKind::Name(n) => {
                if self.frame().find(n).is_some() {
                    return None;
                }
                let module = self.frame().module;
                match self.entity(module, n) {
                    Some(Entity::Def(at)) => at,
                    _ => return None,
                }
            }
            ExprKind::Member { base, name } => {
                let m = self.module_of(base)?;
                match self.entity(m, &name.text) {
                    Some(Entity::Def(at)) => at,
                    _ => return None,
                }
            }
            _ => return None,
        };
        (self.program.def(at).kind == DefKind::Layer).then_some((at, items, base.span))
    }

    // ---- the call itself

    /// Walks a definition's body with its arguments.
    pub fn call_def(&mut self, bound: Bound, given: Vec<GivenArg>, instance: Option<InstanceId>, site: Span) -> Val {
        let def = self.program.def(bound.def);
        self.used_defs.insert(bound.def);
        if self.check_limit(site) {
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
                    .at(site, "the limit was passed here"),
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
            e.result(val, &results, def)
        });
        debug_assert_eq!(loops.len(), self.scans.len());
        if self.sink.error_count() > errors && matches!(out, Val::Nothing) { Val::Error } else { out }
    }

    /// A frame for a definition with its dims bound; settings and arguments come later.
    pub fn def_frame(&mut self, bound: &Bound, instance: Option<InstanceId>, site: Span) -> Option<Frame> {
        let def = self.program.def(bound.def);
        let body = match def.kind {
            DefKind::Fn => Body::Fn,
            DefKind::Layer => Body::Layer,
            DefKind::Optimizer => Body::Optimizer,
        };
        let caller_stream = self.frame().stream.clone();
        let (name, n) = self.frame().ordinals.get(&site).cloned().unwrap_or((def.name.text.clone(), 1));
        let turns = self.frame().turns.join(".");
        let parent = self.frame().scope;
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
        let scope = Scope { path, definition: def.name.text.clone(), parent: Some(parent) };
        frame.scope = self.b.add_scope(scope);
        self.uses.entry(bound.def).or_default().push(frame.scope);
        let mut good = true;
        for (param, value) in &bound.statics {
            let StaticVal::Dim(set) = value else { continue };
            self.scope_dims.entry(frame.scope).or_default().insert(param.clone(), set.clone());
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

    /// Settings become constants in the frame; defaults are evaluated in the definition.
    pub fn bind_settings(&mut self, frame: &mut Frame, bound: &Bound) -> Option<()> {
        let def = self.program.def(bound.def);
        let mut good = true;
        for s in def.statics.iter().filter(|s| s.kind != StaticKind::Dim) {
            let given = bound.statics.iter().find_map(|(n, v)| match v {
                StaticVal::Const(c) if *n == s.name.text => Some(c.clone()),
                _ => None,
            });
            let c = match (given, &s.default) {
                (Some(c), _) => Some(c),
                (None, Some(d)) => {
                    let temp = std::mem::replace(frame, self.open_frame(bound.def.module, Body::File, ""));
                    self.frames.push(temp);
                    let c = self.constant(d);
                    *frame = self.frames.pop().expect("pushed above");
                    c
                }
                (None, None) => Some(Const::Unknown),
            };
            match c {
                Some(c) => {
                    let local = Local { val: Val::Const(c), span: s.name.span, used: true, scan_depth: 0 };
                    frame.scopes[0].insert(s.name.text.clone(), local);
                }
                None => good = false,
            }
        }
        good.then_some(())
    }

    /// Arguments in the order of the signature; None where the default holds.
    fn match_args(&mut self, def: &'a ast::Def, given: Vec<GivenArg>, site: Span) -> Option<Vec<Option<GivenArg>>> {
        self.match_arg_list(&def.args, given, site, &def.name.text, def.head)
    }

    pub fn match_arg_list(
        &mut self,
        args: &'a [Arg],
        given: Vec<GivenArg>,
        site: Span,
        name: &str,
        head: Span,
    ) -> Option<Vec<Option<GivenArg>>> {
        let mut out: Vec<Option<GivenArg>> = args.iter().map(|_| None).collect();
        let mut next = 0;
        let mut good = true;
        for g in given {
            let slot = match &g.name {
                None => {
                    next += 1;
                    if next > args.len() {
                        self.error(
                            Diagnostic::error("E0314", format!("`{name}` takes {} arguments", args.len()))
                                .at(g.span, "one too many")
                                .and(head, "its signature"),
                        );
                        good = false;
                        continue;
                    }
                    next - 1
                }
                Some(n) => match args.iter().position(|a| a.name.text == n.text) {
                    Some(i) => i,
                    None => {
                        let near = did_you_mean(&n.text, args.iter().map(|a| a.name.text.as_str()));
                        let d = Diagnostic::error("E0201", format!("`{name}` has no argument `{}`", n.text))
                            .at(n.span, "unknown argument")
                            .and(head, "its signature");
                        self.error(match near {
                            Some(x) => d.help(format!("did you mean `{x}`?")),
                            None => d.help("settings stand in brackets, values in parentheses"),
                        });
                        good = false;
                        continue;
                    }
                },
            };
            if out[slot].is_some() {
                let n = args[slot].name.text.clone();
                self.error(
                    Diagnostic::error("E0314", format!("argument `{n}` is given twice")).at(g.span, "a second time"),
                );
                good = false;
                continue;
            }
            out[slot] = Some(g);
        }
        for (a, o) in args.iter().zip(&out) {
            if o.is_none() && a.default.is_none() && good {
                self.error(
                    Diagnostic::error("E0314", format!("`{name}` needs its argument `{}`", a.name.text))
                        .at(site, format!("no value for `{}`", a.name.text))
                        .and(head, "its signature"),
                );
                good = false;
            }
        }
        good.then_some(out)
    }

    /// Checks and converts arguments, finds what `..` and the signature's float type stand for, and binds the names.
    pub fn bind_args(
        &mut self,
        args: &'a [Arg],
        given: Vec<Option<GivenArg>>,
        bound: &Bound,
        site: Span,
    ) -> Option<()> {
        let own: Vec<DimId> = (bound.statics.iter())
            .filter_map(|(_, v)| match v {
                StaticVal::Dim(s) => Some(s.ids.clone()),
                _ => None,
            })
            .flatten()
            .collect();
        let mut good = true;
        let mut types: Vec<Option<Declared>> = Vec::new();
        for a in args {
            let t = self.declared(&a.ty);
            good &= t.is_some();
            types.push(t);
        }
        if !good {
            return None;
        }
        // First the dims: what is missing, what `..` takes.
        let mut rest: Vec<DimId> = Vec::new();
        let mut floats: Vec<DType> = Vec::new();
        for ((a, g), t) in args.iter().zip(&given).zip(types.iter().flatten()) {
            let Some(g) = g else { continue };
            match &g.val {
                Val::Tensor(v) => {
                    let dims = self.b.dims(*v).to_vec();
                    good &= self.argument_dims(a, t, &dims, g.span).is_some();
                    if t.rest {
                        for d in dims.iter().filter(|d| !t.dims.contains(d) && !own.contains(d)) {
                            if !rest.contains(d) {
                                rest.push(*d);
                            }
                        }
                    }
                    if t.dtype.is_none() && a.ty.dtype.is_none() && self.b.dtype(*v).is_float() {
                        floats.push(self.b.dtype(*v));
                    }
                }
                Val::Const(_) => {}
                Val::Error => good = false,
                other => {
                    let what = other.kind();
                    self.error(
                        Diagnostic::error("E0206", format!("argument `{}` is a value", a.name.text))
                            .at(g.span, format!("this is {what}"))
                            .help("call the instance, or take the tuple apart by `let (a, b) = ..`"),
                    );
                    good = false;
                }
            }
        }
        if !good {
            return None;
        }
        let float = floats.into_iter().max().unwrap_or(self.precision);
        self.frame().float = float;
        self.frame().rest = Some(rest);
        for ((a, g), t) in args.iter().zip(given).zip(types.into_iter().flatten()) {
            let (val, span) = match g {
                Some(g) => (g.val, g.span),
                None => match &a.default {
                    Some(d) => (self.value(d), d.span),
                    None => (Val::Error, site),
                },
            };
            let val = self.convert_argument(a, &t, val, span)?;
            self.define(&a.name, val, true);
        }
        Some(())
    }

    fn argument_dims(&mut self, a: &Arg, t: &Declared, dims: &[DimId], span: Span) -> Option<()> {
        let missing: Vec<DimId> = t.dims.iter().copied().filter(|d| !dims.contains(d)).collect();
        let mapped = self.frame().mapped.clone();
        let extra: Vec<DimId> = dims.iter().copied().filter(|d| !t.dims.contains(d) && !mapped.contains(d)).collect();
        if (missing.is_empty() || dims.is_empty()) && (t.rest || extra.is_empty()) {
            return Some(());
        }
        let has = self.show_dims(dims);
        let d = if !missing.is_empty() && !dims.is_empty() {
            let m = self.show_dims(&missing);
            Diagnostic::error("E0307", format!("argument `{}` lacks {m}", a.name.text))
        } else {
            let x = self.show_dims(&extra);
            Diagnostic::error("E0307", format!("argument `{}` has {x} beyond the declared dims", a.name.text))
        };
        let cure = match (missing.as_slice(), extra.as_slice()) {
            ([m], [x]) => format!(
                "rename the dim where you call: `value[{} -> {}]`",
                last(&self.dim_name(*x)),
                last(&self.dim_name(*m))
            ),
            _ => "rename or reduce dims so that they match the signature".to_string(),
        };
        self.error(d.at(span, format!("this has {has}")).and(t.span, "declared here").help(cure));
        None
    }

    /// The argument in its declared type. Scalar constants stay constants, so that neutral defaults fold away.
    fn convert_argument(&mut self, a: &Arg, t: &Declared, val: Val, span: Span) -> Option<Val> {
        let target = match (t.dtype, a.ty.dtype) {
            (Some(d), _) => d,
            (None, _) => self.frame().float,
        };
        match val {
            Val::Const(c) => {
                let c = self.constant_as(c, target, span)?;
                if t.dims.is_empty() {
                    return Some(Val::Const(c));
                }
                let v = self.as_tensor(&Val::Const(c), target)?;
                self.b.span = Some(span);
                Some(Val::Tensor(self.b.broadcast(v, &t.dims)))
            }
            Val::Tensor(v) => {
                self.b.span = Some(span);
                let v = self.convert(v, target, span)?;
                Some(Val::Tensor(self.b.broadcast(v, &t.dims)))
            }
            _ => None,
        }
    }

    /// A constant as a value of a declared element type.
    pub fn constant_as(&mut self, c: Const, target: DType, span: Span) -> Option<Const> {
        let ok = match (&c, target) {
            (Const::Unknown, _) => Some(Const::Unknown),
            (Const::Bool(_), DType::Bool) => Some(c.clone()),
            (_, DType::Bool) => None,
            (Const::Bool(b), DType::I32) => Some(Const::int(i64::from(*b))),
            (_, DType::I32) => c.as_int().filter(|n| i32::try_from(*n).is_ok()).map(Const::int),
            (Const::Bool(b), _) => Some(Const::Float(f64::from(u8::from(*b)))),
            _ => c.as_f64().map(Const::Float),
        };
        if ok.is_none() {
            self.error(
                Diagnostic::error("E0309", format!("{} where {target} is declared", c.kind()))
                    .at(span, format!("this is {c}"))
                    .help("write a constant of the declared type"),
            );
        }
        ok
    }

    /// Conversion to a declared element type: int and bool to a float, float to another float, bool to int; never a float
    /// to int or bool.
    pub fn convert(&mut self, v: ValueId, target: DType, span: Span) -> Option<ValueId> {
        let own = self.b.dtype(v);
        let fine = own == target || target.is_float() || (own == DType::Bool && target == DType::I32);
        if fine {
            return Some(self.b.cast(v, target));
        }
        let cure = match target {
            DType::I32 => "convert towards zero: `int(x)`",
            _ => "compare it: `x != 0`",
        };
        self.error(
            Diagnostic::error("E0309", format!("{own} where {target} is declared"))
                .at(span, format!("this is {own}"))
                .help(cure),
        );
        None
    }

    // ---- results

    /// The body's value in the declared result type.
    pub fn result(&mut self, val: Val, declared: &[Declared], def: &'a ast::Def) -> Val {
        let span = def.body.stmts.last().map_or(def.body.span, |s| s.span);
        if val.is_error() {
            return Val::Error;
        }
        if !def.tuple {
            return self.one_result(val, &declared[0], span);
        }
        match val {
            Val::Tuple(vals) if vals.len() == declared.len() => {
                let out: Vec<Val> = vals.into_iter().zip(declared).map(|(v, d)| self.one_result(v, d, span)).collect();
                if out.iter().any(Val::is_error) { Val::Error } else { Val::Tuple(out) }
            }
            Val::Tuple(vals) => {
                self.not_as_declared(&format!("a tuple of {}", vals.len()), span, def.head);
                Val::Error
            }
            other => {
                let what = other.kind();
                self.not_as_declared(what, span, def.head);
                Val::Error
            }
        }
    }

    fn not_as_declared(&mut self, what: &str, span: Span, head: Span) {
        self.error(
            Diagnostic::error("E0308", "the result is not as declared")
                .at(span, format!("this gives {what}"))
                .and(head, "declared here")
                .help("the last statement of a body is its value"),
        );
    }

    pub fn one_result(&mut self, val: Val, d: &Declared, span: Span) -> Val {
        let target = d.dtype.unwrap_or(self.frame().float);
        self.b.span = Some(span);
        match val {
            Val::Const(c) => match self.constant_as(c, target, span) {
                Some(c) if d.dims.is_empty() => Val::Const(c),
                Some(c) => match self.as_tensor(&Val::Const(c), target) {
                    Some(v) => Val::Tensor(self.b.broadcast(v, &d.dims)),
                    None => Val::Error,
                },
                None => Val::Error,
            },
            Val::Tensor(v) => {
                let dims = self.b.dims(v).to_vec();
                let mapped = self.frame().mapped.clone();
                let same = d.dims.iter().all(|x| dims.contains(x))
                    && dims.iter().all(|x| d.dims.contains(x) || mapped.contains(x));
                if !same && !dims.is_empty() {
                    let (has, want) = (self.show_dims(&dims), self.show_dims(&d.dims));
                    self.error(
                        Diagnostic::error("E0308", "the result is not as declared")
                            .at(span, format!("this has {has}"))
                            .and(d.span, format!("declared as {want}"))
                            .help("a body's value has exactly the declared dims"),
                    );
                    return Val::Error;
                }
                match self.convert(v, target, span) {
                    Some(v) => Val::Tensor(self.b.broadcast(v, &d.dims)),
                    None => Val::Error,
                }
            }
            Val::Error => Val::Error,
            other => {
                let what = other.kind();
                self.not_as_declared(what, span, d.span);
                Val::Error
            }
        }
    }
}

fn dim_params(def: &ast::Def) -> Vec<&str> {
    def.statics.iter().filter(|s| s.kind == StaticKind::Dim).map(|s| s.name.text.as_str()).collect()
}

fn same_statics(a: &[(String, StaticVal)], b: &[(String, StaticVal)]) -> bool {
    a.len() == b.len()
        && a.iter().zip(b).all(|((n, x), (m, y))| {
            n == m
                && match (x, y) {
                    (StaticVal::Dim(p), StaticVal::Dim(q)) => p.ids == q.ids,
                    (StaticVal::Const(p), StaticVal::Const(q)) => p == q,
                    _ => false,
                }
        })
}

/// `SwiGlu` -> `swi_glu`.
pub fn snake(name: &str) -> String {
    let mut out = String::new();
    let chars: Vec<char> = name.chars().collect();
    for (i, c) in chars.iter().enumerate() {
        if c.is_ascii_uppercase() {
            let after_lower = i > 0 && !chars[i - 1].is_ascii_uppercase() && chars[i - 1] != '_';
            let before_lower = i > 0 && chars.get(i + 1).is_some_and(|n| n.is_ascii_lowercase()) && chars[i - 1] != '_';
            if after_lower || before_lower {
                out.push('_');
            }
            out.push(c.to_ascii_lowercase());
        } else {
            out.push(*c);
        }
    }
    out
}
