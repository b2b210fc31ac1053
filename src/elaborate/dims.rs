//! Dims and declared types: names of dims to graph dims, sizes, groups, local and generic dims.

use super::frame::Body;
use super::value::{Declared, DimSet, Val};
use super::{Elab, frame::Frame};
use crate::check::constant::Const;
use crate::diag::{Diagnostic, did_you_mean};
use crate::ir::DimId;
use crate::resolve::{Entity, ItemRef};
use crate::source::Span;
use crate::syntax::ast::{self, DimDef, DimValue, Name, TypeDim, TypeName};
use crate::types::DType;

/// Dims and constants whose values need one another.
const MAX_CHAIN: usize = 128;

/// What to do where a dim would occur twice.
pub(super) fn second_dim(name: &str) -> String {
    let name = last(name);
    format!(
        "declare a second dim of that size, `dim {name}2 = {name}`, and rename the result back: `y[{name}2 -> {name}]`"
    )
}

impl<'a> Elab<'a> {
    /// The dims that a name in a dim position stands for. Reports an unknown name.
    pub fn dim(&mut self, name: &Name) -> Option<DimSet> {
        if let Some(found) = self.dim_opt(&name.text) {
            return found;
        }
        let module = self.frame().module;
        if let Some(val) = self.frame().lookup(&name.text) {
            if val.is_error() {
                return None;
            }
            self.error(
                Diagnostic::error("E0206", format!("`{}` is a value, not a dim", name.text))
                    .at(name.span, "a dim is needed here")
                    .help("brackets hold dims and settings; parentheses hold values"),
            );
            return None;
        }
        // A loop over neither a dim nor a range has no name, which was reported.
        if name.text.is_empty() {
            self.lose();
            return None;
        }
        if self.is_lost(&name.text) {
            return None;
        }
        if self.sink.is_flooded() {
            let d = Diagnostic::error("E0201", format!("unknown dim `{}`", name.text)).at(name.span, "not declared");
            self.error(d.help(format!("declare it: `dim {} = ..`", name.text)));
            return None;
        }
        if let Some(later) = self.defined_later(&name.text, name.span) {
            self.error(super::expr::used_early(&name.text, name.span, later));
            return None;
        }
        let mut names: Vec<String> = self.frame().dims.keys().cloned().collect();
        names.extend(self.program.module(module).names.iter().filter_map(|(n, b)| match b.entity {
            Entity::Dim(_) => Some(n.clone()),
            _ => None,
        }));
        let other = self.program.module(module).names.contains_key(&name.text);
        let d = if other {
            Diagnostic::error("E0206", format!("`{}` is not a dim", name.text)).at(name.span, "a dim is needed here")
        } else {
            Diagnostic::error("E0201", format!("unknown dim `{}`", name.text)).at(name.span, "not declared")
        };
        let d = match did_you_mean(&name.text, names.iter().map(String::as_str)) {
            Some(n) => d.help(format!("did you mean `{n}`?")),
            None => d.help(format!("declare it: `dim {} = ..`", name.text)),
        };
        self.error(d);
        None
    }

    /// As [`Elab::dim`] without a report: None where the name is no dim, Some(None) where it is one with an error.
    pub fn dim_opt(&mut self, name: &str) -> Option<Option<DimSet>> {
        if let Some((set, _)) = self.frame().dims.get(name) {
            return Some(Some(set.clone()));
        }
        let module = self.frame().module;
        match self.program.module(module).names.get(name).map(|b| b.entity) {
            Some(Entity::Dim(at)) => {
                self.entity(module, name);
                Some(self.global_dim(at))
            }
            _ => None,
        }
    }

    pub fn dims_of(&mut self, names: &[Name]) -> Option<Vec<DimId>> {
        let mut out = Vec::new();
        let mut good = true;
        for n in names {
            match self.dim(n) {
                Some(set) => out.extend(set.ids),
                None => good = false,
            }
        }
        good.then_some(out)
    }

    fn cyclic(&mut self, at: ItemRef, name: &Name) -> bool {
        if self.evaluating.contains(&at) {
            self.error(
                Diagnostic::error("E0204", format!("the value of `{}` depends on itself", name.text))
                    .at(name.span, "defined by way of itself")
                    .help("give one of them a value of its own"),
            );
            return true;
        }
        self.too_deep(name.span)
    }

    /// Whether dims and constants hang on each other in too long a chain; reports it.
    pub(super) fn too_deep(&mut self, span: Span) -> bool {
        let deep = self.evaluating.len() >= MAX_CHAIN;
        if deep {
            self.error(
                Diagnostic::error("E0102", format!("dims and constants hang on each other more than {MAX_CHAIN} deep"))
                    .at(span, "the limit was passed here")
                    .help("give one of them a value of its own"),
            );
        }
        deep
    }

    pub fn global_dim(&mut self, at: ItemRef) -> Option<DimSet> {
        if let Some(done) = self.global_dims.get(&at) {
            return done.clone();
        }
        let def = self.program.dim(at);
        if self.cyclic(at, &def.name) {
            return None;
        }
        self.evaluating.push(at);
        let frame = self.open_frame(at.module, Body::File, "");
        let made = self.within(frame, |e| match &def.value {
            DimValue::Group(members) => e.dims_of(members).map(|ids| DimSet { ids, group: true }),
            DimValue::Size(expr) => {
                e.saw_ragged = false;
                let set = e.settings.values.get(&at).filter(|c| c.as_int().is_none_or(|n| n <= 0)).cloned();
                if let Some(c) = set.filter(|c| *c != Const::Unknown) {
                    let d =
                        Diagnostic::error("E0305", format!("a dim's size must be a positive whole number, not {c}"))
                            .at(def.name.span, format!("set by `--set` to {c}"));
                    e.error(d.help(format!("write `--set {}=N`, N a positive whole number", def.name.text)));
                    return None;
                }
                let size = match e.override_of(at) {
                    Some(c) => Some(c),
                    None => e.constant(expr),
                };
                let ragged = std::mem::take(&mut e.saw_ragged);
                size.and_then(|c| e.make_dim(&def.name.text, &c, ragged, expr.span)).map(DimSet::single)
            }
        });
        self.evaluating.pop();
        if let Some(set) = &made {
            for id in &set.ids {
                self.dim_spans.entry(*id).or_insert(def.name.span);
            }
        }
        self.global_dims.insert(at, made.clone());
        made
    }

    /// The value that a preset or `--set` gives to a dim or constant.
    pub fn override_of(&mut self, at: ItemRef) -> Option<Const> {
        if let Some(c) = self.settings.values.get(&at) {
            return Some(c.clone());
        }
        let expr = self.settings.preset(self.program, at)?;
        let frame = self.open_frame(crate::resolve::MAIN, Body::File, "");
        self.within(frame, |e| e.constant(expr))
    }

    /// A positive whole number that fits, or a report.
    pub fn size_of(&mut self, c: &Const, span: Span) -> Option<usize> {
        match c.as_int() {
            Some(n) if n > 0 && n <= i64::from(i32::MAX) => Some(n as usize),
            Some(n) if n > 0 => {
                self.error(
                    Diagnostic::error("E0305", format!("a dim's size is at most {}, not {n}", i32::MAX))
                        .at(span, "too large")
                        .help("make two dims of it; a group `dim both = (a, b)` stands for their product"),
                );
                None
            }
            None if c.as_f64().is_some_and(|x| x > f64::from(i32::MAX)) => {
                self.error(
                    Diagnostic::error("E0305", format!("a dim's size is a whole number of at most {}", i32::MAX))
                        .at(span, "too large")
                        .help("make two dims of it; a group `dim both = (a, b)` stands for their product"),
                );
                None
            }
            _ => {
                self.error(
                    Diagnostic::error("E0305", format!("a dim's size must be a positive whole number, not {c}"))
                        .at(span, format!("this is {c}"))
                        .help("sizes that do not divide need other numbers, or `ceil_div`, `floor`, `round_up`"),
                );
                None
            }
        }
    }

    fn make_dim(&mut self, name: &str, size: &Const, ragged: bool, span: Span) -> Option<DimId> {
        if *size == Const::Unknown {
            return Some(self.opaque_dim(name));
        }
        let n = self.size_of(size, span)?;
        Some(self.new_dim(name, n, ragged))
    }

    /// Dims are numbered alike in the program and in the graph of initial values.
    pub fn new_dim(&mut self, name: &str, size: usize, ragged: bool) -> DimId {
        let id = self.b.add_dim(name, size, ragged);
        self.init.graph.dims.push(self.b.graph.dims[id.index()].clone());
        id
    }

    /// A dim of unknown size, for a definition that nothing uses.
    pub fn opaque_dim(&mut self, name: &str) -> DimId {
        let id = self.new_dim(name, 4, false);
        self.opaque.insert(id);
        id
    }

    pub fn is_opaque(&self, dims: &[DimId]) -> bool {
        dims.iter().any(|d| self.opaque.contains(d))
    }

    /// `dim key = seq` inside a body: one dim per definition, name and size.
    pub fn local_dim(&mut self, def: &'a DimDef) {
        if let Some(first) = self.dim_place(&def.name.text) {
            self.error(
                Diagnostic::error("E0203", format!("`{}` hides a dim of the same name", def.name.text))
                    .at(def.name.span, "a dim's name means one thing")
                    .and(first, "the dim")
                    .help("choose another name"),
            );
            return;
        }
        let set = match &def.value {
            DimValue::Group(members) => self.dims_of(members).map(|ids| DimSet { ids, group: true }),
            DimValue::Size(expr) => {
                self.saw_ragged = false;
                let size = self.constant(expr);
                let ragged = std::mem::take(&mut self.saw_ragged);
                size.and_then(|c| self.sized_local(&def.name, &c, ragged, expr.span)).map(DimSet::single)
            }
        };
        let set = set.unwrap_or_else(|| DimSet::single(self.opaque_dim(&def.name.text)));
        for id in &set.ids {
            self.dim_spans.entry(*id).or_insert(def.name.span);
        }
        if let Some(id) = self.frame().instance {
            self.instance(id).dims.insert(def.name.text.clone(), (set.clone(), def.name.span));
        }
        if self.frame().body != Body::File && !self.in_initial {
            let scope = self.frame().scope;
            self.scope_dims.entry(scope).or_default().insert(def.name.text.clone(), set.clone());
        }
        self.frame().dims.insert(def.name.text.clone(), (set, def.name.span));
    }

    fn sized_local(&mut self, name: &Name, size: &Const, ragged: bool, span: Span) -> Option<DimId> {
        let (def, owner, body) = (self.frame().def, self.frame().name.clone(), self.frame().body);
        let full = match body {
            Body::Model | Body::Sample => name.text.clone(),
            _ => format!("{owner}.{}", name.text),
        };
        if *size == Const::Unknown {
            return Some(self.opaque_dim(&full));
        }
        let n = self.size_of(size, span)?;
        // A ragged dim and a plain one of the same size are different dims.
        let key = (def, if ragged { format!("{} ragged", name.text) } else { name.text.clone() }, n);
        if let Some(id) = self.local_dims.get(&key) {
            return Some(*id);
        }
        let id = self.new_dim(&full, n, ragged);
        self.local_dims.insert(key, id);
        Some(id)
    }

    /// Where a dim of this name that is visible here was declared.
    pub fn dim_place(&mut self, name: &str) -> Option<Span> {
        if let Some((_, span)) = self.frame().dims.get(name) {
            return Some(*span);
        }
        let module = self.frame().module;
        match self.program.module(module).names.get(name) {
            Some(b) if matches!(b.entity, Entity::Dim(_)) => Some(b.span),
            _ => None,
        }
    }

    // ---- types

    pub fn element(&self, name: TypeName) -> Option<DType> {
        Some(match name {
            TypeName::Bool => DType::Bool,
            TypeName::Int => DType::I32,
            TypeName::Float => return None,
            TypeName::F16 => DType::F16,
            TypeName::BF16 => DType::BF16,
            TypeName::F32 => self.single(),
            TypeName::F64 => DType::F64,
        })
    }

    /// Finds the dims of a written type. `..` stands for the frame's rest dims where they are known already.
    pub fn declared(&mut self, ty: &ast::Type) -> Option<Declared> {
        let dtype = ty.dtype.and_then(|(t, _)| self.element(t));
        let mut out = Declared { dtype, dims: Vec::new(), rest: false, map: None, span: ty.span };
        let (mut ins, mut outs) = (Vec::new(), Vec::new());
        let mut mapped = false;
        let mut good = true;
        for d in ty.dims.iter().flatten() {
            match d {
                TypeDim::Rest(_) => {
                    out.rest = true;
                    let rest = self.frame().rest.clone().unwrap_or_default();
                    out.dims.extend(&rest);
                    ins.extend(rest);
                }
                TypeDim::Dim(n) => match self.dim(n) {
                    Some(set) => {
                        out.dims.extend(&set.ids);
                        ins.extend(set.ids);
                    }
                    None => good = false,
                },
                TypeDim::Map(a, b) => {
                    let (a, b) = (self.dims_of(a), self.dims_of(b));
                    let (Some(a), Some(b)) = (a, b) else {
                        good = false;
                        continue;
                    };
                    out.dims.extend(a.iter().chain(&b));
                    out.map = Some((a, b));
                    mapped = true;
                }
            }
        }
        if let Some(names) = &ty.outs {
            match self.dims_of(names) {
                Some(o) => {
                    out.dims.extend(&o);
                    outs = o;
                }
                None => good = false,
            }
            if !mapped {
                out.map = Some((ins, outs));
            }
        }
        if let Some(d) = twice(&out.dims) {
            let name = self.dim_name(d);
            let d = Diagnostic::error("E0303", format!("dim `{name}` occurs twice in a type"));
            let here = format!("`{name}` stands here twice");
            // A definition of the library is sound: the brackets of its use are not.
            let library = self.program.module(self.frame().module).path.is_none();
            let d = match self.frame().called_from.filter(|_| library) {
                Some(site) => d.at(site, format!("takes `{name}` twice")).and(ty.span, here),
                None => d.at(ty.span, here),
            };
            self.error(d.help(second_dim(&name)));
            return None;
        }
        good.then_some(out)
    }

    /// A constant expression in the current frame; reports what is none.
    pub fn constant(&mut self, expr: &'a ast::Expr) -> Option<Const> {
        match self.eval(expr).val {
            Val::Const(c) => Some(c),
            Val::Error => None,
            other => {
                self.error(
                    Diagnostic::error("E0312", "a constant is needed here")
                        .at(expr.span, format!("this is {}", other.kind()))
                        .help("constants are literals, dims, consts, settings, `for` variables and operations on them"),
                );
                None
            }
        }
    }

    /// Puts dims that a signature binds in the frame under construction.
    pub fn bind_dim(frame: &mut Frame, name: &Name, set: DimSet) {
        frame.dims.insert(name.text.clone(), (set, name.span));
    }
}

/// A dim that occurs twice.
pub fn twice(dims: &[DimId]) -> Option<DimId> {
    dims.iter().enumerate().find(|(i, d)| dims[..*i].contains(d)).map(|(_, d)| *d)
}

/// `key` of `Attention.key`.
pub fn last(name: &str) -> &str {
    name.rsplit('.').next().unwrap_or(name)
}
