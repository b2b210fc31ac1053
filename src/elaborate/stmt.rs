//! Statements: names, parameters, states, losses, outputs, and the value of a block.

use super::Elab;
use super::frame::{Body, Local};
use super::instance::InstanceId;
use super::value::{Declared, Val};
use super::{Loss, ReadKey};
use crate::check::constant::Const;
use crate::diag::{Diagnostic, did_you_mean};
use crate::ir::{DimId, OutputKind, Param, ParamId, State, StateId, StateKind, ValueId};
use crate::source::Span;
use crate::syntax::ast::{self, Block, DimDef, Expr, ExprKind, Name, Stmt, StmtKind};
use crate::types::DType;
use indexmap::IndexMap;

impl<'a> Elab<'a> {
    /// The body of a definition: its last statement is its value.
    pub fn body(&mut self, block: &'a Block, declared: Option<&[Vec<DimId>]>) -> Val {
        self.scoped_block(block, declared)
    }

    /// A block with names of its own.
    pub fn scoped_block(&mut self, block: &'a Block, declared: Option<&[Vec<DimId>]>) -> Val {
        self.frame().scopes.push(IndexMap::new());
        let dims_before = self.frame().dims.len();
        let val = self.statements(block, declared);
        self.end_scope();
        // Dims declared in the block end with it.
        self.frame().dims.truncate(dims_before);
        val
    }

    fn end_scope(&mut self) {
        let Some(scope) = self.frame().scopes.pop() else { return };
        let library = self.program.module(self.frame().module).path.is_none();
        for (name, local) in scope {
            if !local.used && !name.starts_with('_') && !library && !local.val.is_error() {
                self.sink.push(
                    Diagnostic::warning("W0001", format!("`{name}` is never used"))
                        .at(local.span, "defined here")
                        .help("remove it, or call it `_`"),
                );
            }
        }
    }

    /// Names that a branch not taken mentions count as used.
    pub fn mark_used(&mut self, block: &'a Block) {
        let mut names: Vec<&str> = Vec::new();
        super::ordinals::walk_block(block, &mut |n| collect_name(n, &mut names));
        self.look_up_all(&names);
    }

    pub fn mark_used_expr(&mut self, e: &'a Expr) {
        let mut names: Vec<&str> = Vec::new();
        super::ordinals::walk(e, &mut |n| collect_name(n, &mut names));
        self.look_up_all(&names);
    }

    fn look_up_all(&mut self, names: &[&str]) {
        let module = self.frame().module;
        for n in names {
            if self.frame().lookup(n).is_none() {
                self.entity(module, n);
            }
        }
    }

    pub fn statements(&mut self, block: &'a Block, declared: Option<&[Vec<DimId>]>) -> Val {
        let mut val = Val::Nothing;
        for (i, s) in block.stmts.iter().enumerate() {
            let last = i + 1 == block.stmts.len();
            val = self.statement(s, last, declared);
            if self.too_large {
                return Val::Error;
            }
        }
        val
    }

    pub(super) fn statement(&mut self, s: &'a Stmt, last: bool, declared: Option<&[Vec<DimId>]>) -> Val {
        match &s.kind {
            StmtKind::Expr(e) => return self.expression(e, last, declared),
            StmtKind::Let { names, tuple, ty, value } => self.let_stmt(names, *tuple, ty.as_ref(), value),
            StmtKind::Rebind { name, value } => self.rebind(name, value),
            StmtKind::Dims(dims) => dims.iter().for_each(|d: &'a DimDef| self.local_dim(d)),
            StmtKind::Param { names, ty, init } => {
                for n in names {
                    let val = match self.declare_param(n, ty, init) {
                        Some((id, dtype)) => Val::Tensor(self.read(ReadKey::Param(id), dtype)),
                        None => Val::Error,
                    };
                    self.define(n, val, false);
                }
            }
            StmtKind::State { names, ty, init } => {
                for n in names {
                    let val = match self.declare_state(n, ty, init) {
                        Some((id, dtype)) => Val::Tensor(self.read(ReadKey::State(id), dtype)),
                        None => Val::Error,
                    };
                    self.define(n, val, true);
                }
            }
            StmtKind::Update { name, value } => self.update(name, value),
            StmtKind::Loss { name, value } => self.loss(name.as_ref(), value, s.span),
            StmtKind::Metric { name, value } => self.metric(name, value, s.span),
            StmtKind::Output { name, value } => self.output(name, value, s.span),
            StmtKind::Feed { .. } | StmtKind::Setting { .. } => {
                if self.frame().body != Body::Sample {
                    self.not_here(s.span, "this statement belongs in a sample item");
                }
            }
        }
        Val::Nothing
    }

    pub fn not_here(&mut self, span: Span, what: &str) {
        let body = self.frame().name.clone();
        let d = Diagnostic::error("E0409", what.to_string()).at(span, "not allowed here");
        self.error(d.with_note(format!("in `{body}`")).help("move it to a layer or model"));
    }

    fn expression(&mut self, e: &'a Expr, last: bool, declared: Option<&[Vec<DimId>]>) -> Val {
        let val = match &*e.kind {
            ExprKind::For { .. } => self.run_loop(e, last),
            _ if last => self.value_as(e, declared),
            _ => self.value(e),
        };
        if !last && !matches!(val, Val::Nothing | Val::Error) {
            self.error(
                Diagnostic::error("E0406", "this value is computed and dropped")
                    .at(e.span, format!("{} that nothing uses", val.kind()))
                    .help("name it by `let`, or remove it; a line cannot go on with `(`, `[` or `-`"),
            );
        }
        val
    }

    // ---- names

    /// Binds a name in the current block. `quiet`: it need not be used.
    pub fn define(&mut self, name: &Name, val: Val, quiet: bool) {
        if name.text == "_" {
            return;
        }
        if let Some(place) = self.dim_place(&name.text) {
            self.error(
                Diagnostic::error("E0203", format!("`{}` hides a dim of the same name", name.text))
                    .at(name.span, "a dim's name means one thing")
                    .and(place, "the dim")
                    .help("choose another name"),
            );
        }
        let module = self.frame().module;
        if let Some(b) = self.program.module(module).names.get(&name.text)
            && let crate::resolve::Entity::Def(_) = b.entity
            && self.program.module(module).path.is_some()
            && !matches!(val, Val::Instance(_))
        {
            let place = b.span;
            self.sink.push(
                Diagnostic::note("W0005", format!("`{}` hides a function of the same name", name.text))
                    .at(name.span, "this name")
                    .and(place, "the function"),
            );
        }
        if let Val::Tensor(v) = val {
            self.b.name(v, &name.text);
            self.remember(v, &name.text);
        }
        let depth = self.scans.len();
        let scope = self.frame().scopes.last_mut().expect("a block is open");
        if let Some(first) = scope.get(&name.text) {
            let first = first.span;
            self.error(
                Diagnostic::error("E0202", format!("`{}` is defined twice in this block", name.text))
                    .at(name.span, "second definition")
                    .and(first, "first definition")
                    .help(format!("to change its value, write `{} = ..` without `let`", name.text)),
            );
            return;
        }
        scope.insert(name.text.clone(), Local { val, span: name.span, used: quiet, scan_depth: depth });
    }

    /// For plans, which name values as `Layer.name`.
    fn remember(&mut self, v: ValueId, name: &str) {
        if self.frame().body != Body::Init {
            let scope = self.frame().scope;
            self.named.push((scope, name.to_string(), v));
        }
    }

    fn let_stmt(&mut self, names: &'a [Name], tuple: bool, ty: Option<&'a ast::Type>, value: &'a Expr) {
        if !tuple && let Some((at, items, span)) = self.instance_form(value) {
            let bound = self.bind_statics(at, items, span);
            for n in names {
                let val = match &bound {
                    Some(b) => self.make_instance(b, &n.text, n.span).map_or(Val::Error, Val::Instance),
                    None => Val::Error,
                };
                self.define(n, val, false);
            }
            return;
        }
        if tuple {
            let val = self.value(value);
            self.let_tuple(names, val, value.span);
            return;
        }
        if names.len() > 1 {
            self.value(value);
            self.error(
                Diagnostic::error("E0314", "several names without parentheses are instances of a layer")
                    .at(names[0].span.to(names[names.len() - 1].span), "not a layer on the right")
                    .help("take a tuple apart by `let (a, b) = ..`"),
            );
            names.iter().for_each(|n| self.define(n, Val::Error, true));
            return;
        }
        let val = match ty {
            None => self.value(value),
            Some(ty) => match self.declared(ty) {
                None => Val::Error,
                Some(d) => {
                    let dims = [d.dims.clone()];
                    let val = self.value_as(value, Some(&dims));
                    self.widen(val, &d, value.span)
                }
            },
        };
        let val = match val {
            Val::Array(_) => {
                self.error(
                    Diagnostic::error("E0312", "a list of constants stands in a `const` with a declared type")
                        .at(value.span, "a list"),
                );
                Val::Error
            }
            Val::Nothing => {
                self.error(
                    Diagnostic::error("E0406", "the right side has no value")
                        .at(value.span, "its block ends without a value")
                        .help("end the block with an expression"),
                );
                Val::Error
            }
            v => v,
        };
        self.define(&names[0], val, false);
    }

    fn let_tuple(&mut self, names: &'a [Name], val: Val, span: Span) {
        match val {
            Val::Tuple(vals) if vals.len() == names.len() => {
                names.iter().zip(vals).for_each(|(n, v)| self.define(n, v, false));
            }
            Val::Error => names.iter().for_each(|n| self.define(n, Val::Error, true)),
            other => {
                let what = match &other {
                    Val::Tuple(v) => format!("a tuple of {}", v.len()),
                    o => o.kind().to_string(),
                };
                self.error(
                    Diagnostic::error("E0314", format!("{} names for {what}", names.len()))
                        .at(span, format!("this is {what}"))
                        .help("one name a value; `_` drops one"),
                );
                names.iter().for_each(|n| self.define(n, Val::Error, true));
            }
        }
    }

    /// A value in the type of a `let` (or a state): missing dims are added, more dims are an error.
    pub fn widen(&mut self, val: Val, d: &Declared, span: Span) -> Val {
        let own_float = |e: &mut Self, v: ValueId| {
            let t = e.b.dtype(v);
            if t.is_float() { t } else { e.frame().float }
        };
        self.b.span = Some(span);
        match val {
            Val::Const(c) => {
                let target = d.dtype.unwrap_or(self.frame().float);
                match self.constant_as(c, target, span) {
                    Some(c) if d.dims.is_empty() => Val::Const(c),
                    Some(c) => match self.as_tensor(&Val::Const(c), target) {
                        Some(v) => Val::Tensor(self.b.broadcast(v, &d.dims)),
                        None => Val::Error,
                    },
                    None => Val::Error,
                }
            }
            Val::Tensor(v) => {
                let dims = self.b.dims(v).to_vec();
                let mapped = self.frame().mapped.clone();
                if let Some(x) = dims.iter().find(|x| !d.dims.contains(x) && !mapped.contains(x)) {
                    let (name, want) = (self.dim_name(*x), self.show_dims(&d.dims));
                    self.error(
                        Diagnostic::error("E0308", format!("the value has dim `{name}` beyond the declared ones"))
                            .at(span, format!("this has {}", self.show_dims(&dims)))
                            .and(d.span, format!("declared as {want}"))
                            .help("reduce the dim, or declare it"),
                    );
                    return Val::Error;
                }
                let target = d.dtype.unwrap_or_else(|| own_float(self, v));
                match self.convert(v, target, span) {
                    Some(v) => Val::Tensor(self.b.broadcast(v, &d.dims)),
                    None => Val::Error,
                }
            }
            Val::Error => Val::Error,
            other => {
                self.error(
                    Diagnostic::error("E0206", format!("{} where a value is declared", other.kind()))
                        .at(span, format!("this is {}", other.kind())),
                );
                Val::Error
            }
        }
    }

    fn rebind(&mut self, name: &'a Name, value: &'a Expr) {
        let val = self.value(value);
        let Some(local) = self.frame().find(&name.text) else {
            let d =
                Diagnostic::error("E0201", format!("`{}` is not defined", name.text)).at(name.span, "rebinds nothing");
            let names = self.frame().names();
            let d = match did_you_mean(&name.text, names.iter().map(String::as_str)) {
                Some(n) => d.help(format!("did you mean `{n}`?")),
                None => d.help(format!("define it first: `let {} = ..`", name.text)),
            };
            self.error(d);
            return;
        };
        let (old, first) = (local.val.clone(), local.span);
        let val = match (&old, val) {
            (Val::Tensor(a), Val::Tensor(b)) => self.carried(*a, b, name, first, value.span),
            (Val::Tensor(a), Val::Const(c)) => {
                let (dims, dtype) = (self.b.dims(*a).to_vec(), self.b.dtype(*a));
                match self.as_tensor(&Val::Const(c), dtype) {
                    Some(v) => Val::Tensor(self.b.broadcast(v, &dims)),
                    None => Val::Error,
                }
            }
            (_, Val::Instance(_) | Val::Nothing | Val::Array(_)) => {
                self.error(Diagnostic::error("E0206", "only values can be rebound").at(value.span, "not a value"));
                Val::Error
            }
            (_, v) => v,
        };
        if let Val::Tensor(v) = val {
            self.remember(v, &name.text);
        }
        if let Some(local) = self.frame().find(&name.text) {
            local.val = val;
        }
    }

    /// The new value of a rebound variable: dims stay, and the wider float type.
    fn carried(&mut self, old: ValueId, new: ValueId, name: &Name, first: Span, span: Span) -> Val {
        let (a, b) = (self.b.dims(old).to_vec(), self.b.dims(new).to_vec());
        let same = a.len() == b.len() && a.iter().all(|d| b.contains(d));
        if !same {
            let (sa, sb) = (self.show_dims(&a), self.show_dims(&b));
            self.error(
                Diagnostic::error("E0405", format!("rebinding `{}` changes its dims", name.text))
                    .at(span, format!("this has {sb}"))
                    .and(first, format!("first has {sa}"))
                    .help("a variable keeps its dims; rename the new value's dims, or use a new name"),
            );
            return Val::Error;
        }
        let (ta, tb) = (self.b.dtype(old), self.b.dtype(new));
        if ta.is_float() && !tb.is_float() || (ta.is_float() && tb.is_float() && tb < ta) {
            self.b.span = Some(span);
            return Val::Tensor(self.b.cast(new, ta));
        }
        Val::Tensor(new)
    }

    // ---- parameters and states

    fn owner(&mut self, span: Span, what: &str) -> Option<InstanceId> {
        if let Some(id) = self.frame().instance {
            return Some(id);
        }
        let name = self.frame().name.clone();
        self.error(
            Diagnostic::error("E0401", format!("`{name}` is a function and has no {what} of its own"))
                .at(span, format!("{what} in a function"))
                .help(format!("make `{name}` a `layer`")),
        );
        None
    }

    /// Finds or makes a parameter of the current instance; returns the type that it is read in.
    pub fn declare_param(&mut self, name: &'a Name, ty: &'a ast::Type, init: &'a Expr) -> Option<(ParamId, DType)> {
        let owner = self.owner(name.span, "parameters")?;
        if matches!(self.frame().body, Body::Sample | Body::Optimizer) {
            self.not_here(name.span, "parameters belong to layers and models");
            return None;
        }
        let d = self.declared(ty)?;
        let read = d.dtype.unwrap_or(self.precision);
        if !read.is_float() {
            self.error(
                Diagnostic::error("E0309", "a parameter is trained, so its elements are floats")
                    .at(ty.span, format!("this is {read}"))
                    .help("use `state` for what is not trained"),
            );
            return None;
        }
        let key = self.frame().with_turns(&name.text);
        if let Some(id) = self.instance(owner).params.get(&key).copied() {
            let known = self.b.graph.params[id.index()].dims.clone();
            if known != d.dims {
                let (a, b) = (self.show_dims(&known), self.show_dims(&d.dims));
                self.error(
                    Diagnostic::error("E0402", format!("parameter `{key}` is used at different dims"))
                        .at(name.span, format!("{a} in one call, {b} in another"))
                        .help("make an instance for each"),
                );
                return None;
            }
            return Some((id, read));
        }
        let param = Param {
            path: self.instance(owner).join(&key),
            dtype: if d.dtype == Some(DType::F64) { DType::F64 } else { self.single() },
            dims: d.dims.clone(),
            map: d.map.clone(),
            span: Some(name.span),
        };
        let (path, dtype) = (param.path.clone(), param.dtype);
        let id = self.b.add_param(param.clone());
        self.init.add_param(param);
        self.instance(owner).params.insert(key, id);
        let fans = d.map.as_ref().map(|(i, o)| (self.size_const(i), self.size_const(o)));
        self.initial(init, &d, dtype, &path, fans, OutputKind::InitParam(id));
        Some((id, read))
    }

    pub fn declare_state(&mut self, name: &'a Name, ty: &'a ast::Type, init: &'a Expr) -> Option<(StateId, DType)> {
        let owner = self.owner(name.span, "states")?;
        let body = self.frame().body;
        if body == Body::Sample {
            self.not_here(name.span, "states belong to layers, models and optimizers");
            return None;
        }
        let mut d = self.declared(ty)?;
        let dtype = d.dtype.unwrap_or(self.single());
        let key = self.frame().with_turns(&name.text);
        if let Some(id) = self.instance(owner).states.get(&key).copied() {
            return Some((id, dtype));
        }
        let (path, kind) = if body == Body::Optimizer {
            let mapped: Vec<DimId> = self.frame().mapped.clone();
            d.dims.splice(0..0, mapped.into_iter().filter(|m| !d.dims.contains(m)).collect::<Vec<_>>());
            let optimizer = self.frame().name.clone();
            (format!("{optimizer}.{key}:{}", self.instance(owner).path), StateKind::Optimizer)
        } else {
            (self.instance(owner).join(&key), StateKind::Model)
        };
        let state = State { path: path.clone(), dtype, dims: d.dims.clone(), kind, span: Some(name.span) };
        let id = self.b.add_state(state.clone());
        self.init.add_state(state);
        self.instance(owner).states.insert(key, id);
        self.initial(init, &d, dtype, &path, None, OutputKind::InitState(id));
        Some((id, dtype))
    }

    /// Evaluates an initial value in the graph of initial values; its random stream is the parameter's path.
    fn initial(
        &mut self,
        init: &'a Expr,
        d: &Declared,
        dtype: DType,
        path: &str,
        fans: Option<(Const, Const)>,
        kind: OutputKind,
    ) {
        let single = self.single();
        let precision = std::mem::replace(&mut self.precision, single);
        std::mem::swap(&mut self.b, &mut self.init);
        let reads = std::mem::take(&mut self.reads);
        let scans = std::mem::take(&mut self.scans);
        let frame = self.frame();
        let saved = (frame.body, frame.float, std::mem::replace(&mut frame.stream, path.to_string()));
        let turns = std::mem::take(&mut frame.turns);
        let rest = frame.rest.replace(d.dims.clone());
        frame.body = Body::Init;
        frame.float = single;
        let mut names = IndexMap::new();
        for (n, c) in ["fan_in", "fan_out"].iter().zip(fans.map(|(a, b)| [a, b]).into_iter().flatten()) {
            let local = Local { val: Val::Const(c), span: init.span, used: true, scan_depth: 0 };
            names.insert(n.to_string(), local);
        }
        frame.scopes.push(names);

        let dims = [d.dims.clone()];
        let val = self.value_as(init, Some(&dims));
        let typed = Declared { dtype: Some(dtype), ..d.clone() };
        let val = self.widen(val, &typed, init.span);
        let val = match val {
            Val::Const(c) => self.as_tensor(&Val::Const(c), dtype).map_or(Val::Error, Val::Tensor),
            v => v,
        };
        if let Val::Tensor(v) = val {
            self.b.output(kind, path, v);
        }

        let frame = self.frame();
        frame.scopes.pop();
        (frame.body, frame.float, frame.stream) = saved;
        frame.turns = turns;
        frame.rest = rest;
        self.reads = reads;
        self.scans = scans;
        std::mem::swap(&mut self.b, &mut self.init);
        self.precision = precision;
        // Dims may have been added while the graphs were swapped.
        let (a, b) = (self.b.graph.dims.len(), self.init.graph.dims.len());
        debug_assert_eq!(a, b);
    }

    fn update(&mut self, name: &'a Name, value: &'a Expr) {
        let Some(owner) = self.frame().instance else {
            self.not_here(name.span, "`update` belongs to the layer that has the state");
            return;
        };
        if !self.scans.is_empty() {
            self.not_here(name.span, "`update` inside a `scan` has no single value for the step");
            return;
        }
        let key = self.frame().with_turns(&name.text);
        let Some(id) = self.instance(owner).states.get(&key).copied() else {
            let names: Vec<String> = self.instance(owner).states.keys().cloned().collect();
            let d = Diagnostic::error("E0404", format!("`{}` is no state of this layer", name.text))
                .at(name.span, "nothing to update");
            self.error(match did_you_mean(&name.text, names.iter().map(String::as_str)) {
                Some(n) => d.help(format!("did you mean `{n}`?")),
                None => d.help(format!(
                    "declare it: `state {}: .. = ..`; a variable is rebound without `update`",
                    name.text
                )),
            });
            return;
        };
        if !self.mode.training {
            self.mark_used_expr(value);
            return;
        }
        if let Some(first) = self.instance(owner).updates.get(&key).copied() {
            self.error(
                Diagnostic::error("E0404", format!("state `{}` is updated twice in a step", name.text))
                    .at(name.span, "updated again here")
                    .and(first, "first updated here")
                    .help("an instance with an `update` is called once a step; make two instances"),
            );
            return;
        }
        self.instance(owner).updates.insert(key, name.span);
        let state = self.b.graph.states[id.index()].clone();
        let dims = [state.dims.clone()];
        let val = self.value_as(value, Some(&dims));
        let d =
            Declared { dtype: Some(state.dtype), dims: state.dims.clone(), rest: false, map: None, span: name.span };
        let val = match self.widen(val, &d, value.span) {
            Val::Const(c) => self.as_tensor(&Val::Const(c), state.dtype).map_or(Val::Error, Val::Tensor),
            v => v,
        };
        if let Val::Tensor(v) = val {
            self.b.span = Some(name.span);
            self.b.output(OutputKind::State(id), &state.path, v);
        }
    }

    // ---- what leaves the model

    fn path_of(&mut self, name: &str) -> String {
        let key = self.frame().with_turns(name);
        match self.frame().instance {
            Some(id) => self.instance(id).join(&key),
            None => key,
        }
    }

    fn in_model(&mut self, span: Span, what: &str) -> bool {
        let fine = matches!(self.frame().body, Body::Layer | Body::Model) && self.scans.is_empty();
        if !fine {
            self.not_here(span, &format!("`{what}` belongs to a layer or model, outside `scan`"));
        }
        fine
    }

    fn loss(&mut self, name: Option<&'a Name>, value: &'a Expr, span: Span) {
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
                        .at(value.span, format!("this is {}", other.kind())),
                );
                None
            }
        };
        let Some(v) = v else { return };
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
        self.losses.push(Loss { path: path.clone(), value: v, span });
        self.b.output(OutputKind::Loss, &path, v);
    }

    fn metric(&mut self, name: &'a Name, value: &'a Expr, span: Span) {
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
        self.b.output(OutputKind::Metric, &path, v);
    }

    fn output(&mut self, name: &'a Name, value: &'a Expr, span: Span) {
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
        if let Val::Tensor(v) = val {
            self.b.span = Some(span);
            self.b.output(OutputKind::Value, &name.text, v);
            self.outputs.insert(name.text.clone(), (v, span));
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

    fn outside_read(&mut self, id: InstanceId, s: &'a Stmt, name: &'a Name) -> Val {
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
    fn inside<T>(
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

fn collect_name<'a>(node: super::ordinals::Node<'a>, names: &mut Vec<&'a str>) {
    if let super::ordinals::Node::Expr(e) = node
        && let ExprKind::Name(n) = &*e.kind
    {
        names.push(n);
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
