//! Statements: names, parameters, states, losses, outputs, and the value of a block.

use super::Elab;
use super::ReadKey;
use super::frame::{Body, Local};
use super::value::{Declared, Val};
use crate::diag::{Diagnostic, did_you_mean};
use crate::ir::{DimId, ValueId};
use crate::source::Span;
use crate::syntax::ast::{self, Block, DimDef, Expr, ExprKind, Name, Stmt, StmtKind};
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
        let mistakes = self.mistakes;
        let val = self.statements(block, declared);
        self.end_scope(self.mistakes > mistakes);
        // Dims declared in the block end with it.
        self.frame().dims.truncate(dims_before);
        val
    }

    /// Warns of names that nothing used. In a failed block their uses may stand where nothing was looked up.
    fn end_scope(&mut self, failed: bool) {
        let Some(scope) = self.frame().scopes.pop() else { return };
        if self.too_large || failed {
            return;
        }
        let library = self.program.module(self.frame().module).path.is_none();
        for (name, local) in scope {
            if !local.used && !name.starts_with('_') && !library && !local.val.is_error() {
                let d = Diagnostic::warning("W0001", format!("`{name}` is never used")).at(local.span, "defined here");
                let outer = self.frame().find(&name).map(|outer| outer.span);
                self.sink.push(match outer {
                    Some(outer) => d
                        .and(outer, "another one, which keeps its value")
                        .help(format!("to change the outer one, write `{name} = ..` without `let`")),
                    None => d.help("remove it, or call it `_`"),
                });
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
        // `step` stays free for what counts steps, such as an argument of a schedule.
        if name.text != "step" && super::expr::PREDEFINED.contains(&name.text.as_str()) {
            self.predefined_twice(&name.text, name.span);
        }
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
        if !self.in_initial {
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
                        .at(value.span, "a list")
                        .help("write `const name: [dim] = [..]` at the top of the file"),
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
                self.filled(c, target, d, span)
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
                        .at(span, format!("this is {}", other.kind()))
                        .help("give a value of the declared type"),
                );
                Val::Error
            }
        }
    }

    fn rebind(&mut self, name: &'a Name, value: &'a Expr) {
        let val = self.value(value);
        if let Some(local) = self.frame().outside(&name.text) {
            let place = local.span;
            self.error(
                Diagnostic::error("E0409", format!("an initial value rebinds `{}` of the body around it", name.text))
                    .at(name.span, "not allowed here")
                    .and(place, "defined here")
                    .help("use a name of its own"),
            );
            return;
        }
        let Some(local) = self.frame().find(&name.text) else {
            let d =
                Diagnostic::error("E0201", format!("`{}` is not defined", name.text)).at(name.span, "rebinds nothing");
            let names = if self.sink.is_flooded() { Vec::new() } else { self.frame().names() };
            let d = match did_you_mean(&name.text, names.iter().map(String::as_str)) {
                Some(n) => d.help(format!("did you mean `{n}`?")),
                None if self.frame().body == Body::Sample
                    && ["text", "stop", "length"].contains(&name.text.as_str()) =>
                {
                    d.help(format!("write `{} ..`, without `=`", name.text))
                }
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
                self.error(
                    Diagnostic::error("E0206", "only values can be rebound")
                        .at(value.span, "not a value")
                        .help("define it under a name of its own, with `let`"),
                );
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
}

fn collect_name<'a>(node: super::ordinals::Node<'a>, names: &mut Vec<&'a str>) {
    if let super::ordinals::Node::Expr(e) = node
        && let ExprKind::Name(n) = &*e.kind
    {
        names.push(n);
    }
}
