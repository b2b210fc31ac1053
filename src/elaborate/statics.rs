//! What stands in brackets: dims, types and settings of a definition, and the instances of layers that they make.

use super::Elab;
use super::frame::{Body, Frame, Local};
use super::instance::{Instance, InstanceId};
use super::value::{Bound, DimSet, StaticVal, Val};
use crate::check::constant::Const;
use crate::diag::{Diagnostic, did_you_mean};
use crate::resolve::{Entity, ItemRef};
use crate::source::Span;
use crate::syntax::ast::{self, DefKind, Expr, ExprKind, IndexItem, IndexKind, StaticKind};
use crate::types::counted;

impl<'a> Elab<'a> {
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
                            Diagnostic::error("E0314", format!("`{name}` takes {}", counted(n, "dim")))
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
                    if bound.iter().any(|(n, v)| *n == set.text && matches!(v, StaticVal::Const(_))) {
                        self.twice_set(set);
                        good = false;
                    }
                    match param {
                        Some(p) if p.kind != StaticKind::Dim => match self.constant(value) {
                            Some(c) => match self.setting(p, c, value.span) {
                                Some(c) => bound.push((set.text.clone(), StaticVal::Const(c))),
                                None => good = false,
                            },
                            None => good = false,
                        },
                        Some(_) => {
                            self.dims_by_name(def, items, set);
                            return None;
                        }
                        None => {
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
                other => {
                    let d = Diagnostic::error("E0314", format!("brackets of `{name}` hold dims and settings"))
                        .at(item.span, "neither")
                        .and(def.head, "its signature");
                    let number = if let IndexKind::Other(e) = other { super::habits::literal(e) } else { None };
                    let free = def
                        .statics
                        .iter()
                        .find(|s| s.kind != StaticKind::Dim && !bound.iter().any(|(n, _)| *n == s.name.text));
                    self.error(match (number, positions.next(), free) {
                        (Some(n), Some(dim), _) => {
                            let dim = &dim.name.text;
                            d.help(format!("a dim is needed here: declare one, `dim {dim} = {n}`, and write its name"))
                        }
                        (Some(n), None, Some(s)) => {
                            let dims = if bound.is_empty() { "" } else { ".., " };
                            d.help(format!("settings are written by name: `{name}[{dims}{} = {n}]`", s.name.text))
                        }
                        _ => d.help("dims by position, then settings by name: `Norm[embed, eps = 1e-6]`"),
                    });
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

    /// `Linear[i = embed, o = mlp]`
    fn dims_by_name(&mut self, def: &ast::Def, items: &[IndexItem], first: &ast::Name) {
        let given = |dim: &str| {
            let value = items.iter().find_map(|item| match &item.kind {
                IndexKind::Equals { name, value, .. } if name.text == dim => Some(&*value.kind),
                _ => None,
            });
            match value {
                Some(ExprKind::Name(n)) => n.clone(),
                _ => "..".to_string(),
            }
        };
        let dims: Vec<String> = dim_params(def).into_iter().map(given).collect();
        self.error(
            Diagnostic::error("E0314", format!("`{}` is a dim of `{}`, no setting", first.text, def.name.text))
                .at(first.span, "dims are given by position")
                .and(def.head, "its signature")
                .help(format!("write `{}[{}]`", def.name.text, dims.join(", "))),
        );
    }

    /// A setting that brackets give a second time.
    pub(super) fn twice_set(&mut self, name: &ast::Name) {
        self.error(
            Diagnostic::error("E0314", format!("setting `{}` is given twice", name.text))
                .at(name.span, "a second time")
                .help("keep one"),
        );
    }

    /// A setting's value in its declared kind.
    pub(super) fn setting(&mut self, p: &'a ast::Static, c: Const, span: Span) -> Option<Const> {
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

    /// `Layer[..](x)`: an instance named after the layer; further ones of the same layer in a body get `_2`, `_3`.
    pub(super) fn anonymous(&mut self, bound: &Bound, site: Span) -> Option<InstanceId> {
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
        if self.frame().body == Body::Init {
            self.error(
                Diagnostic::error("E0401", "an initial value makes no layers")
                    .at(span, "a layer is used here")
                    .help("use constants, draws, `iota`, and functions of these"),
            );
            return None;
        }
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
        let def = self.program.def(bound.def).name.span;
        if !self.spend_call(def, span) {
            return None;
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
