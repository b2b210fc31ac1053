//! Calls of optimizers: which one owns a parameter, and its code over the gradient.

use super::call::GivenArg;
use super::frame::Frame;
use super::instance::{Instance, InstanceId};
use super::value::{Bound, DimSet, StaticVal, Val};
use super::{Elab, ReadKey};
use crate::diag::{Diagnostic, did_you_mean};
use crate::ir::{DimId, ParamId, ValueId};
use crate::resolve::{Entity, ItemRef};
use crate::source::Span;
use crate::syntax::ast::{self, DefKind, Expr, ExprKind, IndexItem, Select, StaticKind, TrainKind, TypeDim};

/// An optimizer of a train item and the parameters that it updates.
pub(super) struct Owner<'a> {
    pub call: &'a Expr,
    /// None: it is unknown, which was reported.
    pub def: Option<ItemRef>,
    pub args: &'a [ast::CallArg],
    pub items: &'a [IndexItem],
    pub on: Option<&'a Select>,
    /// Indices into `losses`.
    pub losses: Vec<usize>,
    pub span: Span,
    pub params: Vec<ParamId>,
    /// A mistake in an earlier selector, which was reported, may be why it has some of these.
    pub unsure: bool,
}

impl<'a> Elab<'a> {
    pub(super) fn owners(&mut self, item: &'a ast::Train, frozen: &[ParamId]) -> Vec<Owner<'a>> {
        let mut out = Vec::new();
        for line in &item.lines {
            let TrainKind::Optimizer { call, on, minimizes } = &line.kind else { continue };
            let (def, args, items) = match self.optimizer_def(call) {
                Some((def, args, items)) => (Some(def), args, items),
                None => (None, Default::default(), Default::default()),
            };
            let mut losses = Vec::new();
            for n in minimizes {
                let found: Vec<usize> = (self.losses.iter().enumerate())
                    .filter(|(_, l)| l.path == n.text || l.path.ends_with(&format!(".{}", n.text)))
                    .map(|(i, _)| i)
                    .collect();
                if found.is_empty() {
                    let names: Vec<String> = self.losses.iter().map(|l| l.path.clone()).collect();
                    let d =
                        Diagnostic::error("E0201", format!("there is no loss `{}`", n.text)).at(n.span, "unknown loss");
                    self.error(match did_you_mean(&n.text, names.iter().map(String::as_str)) {
                        Some(near) => d.help(format!("did you mean `{near}`?")),
                        None if names.is_empty() => d.help("the model has no losses: add `loss name = ..` to it"),
                        None => d.help(format!("the model's losses: {}", names.join(", "))),
                    });
                }
                losses.extend(found);
            }
            if minimizes.is_empty() {
                losses = (0..self.losses.len()).collect();
            }
            losses.sort_unstable();
            losses.dedup();
            let (on, span) = (on.as_ref(), line.span);
            out.push(Owner { call, def, args, items, on, losses, span, params: vec![], unsure: false });
        }
        if out.is_empty()
            && !item.lines.iter().any(|l| matches!(l.kind, TrainKind::Optimizer { .. }))
            && frozen.len() < self.b.graph.params.len()
        {
            self.error(
                Diagnostic::error("E0702", "the train item has no optimizer")
                    .at(item.head, "nothing updates the parameters")
                    .help("write `optimizer adamw(lr = 1e-3)`"),
            );
        }
        out
    }

    pub(super) fn optimizer_def(&mut self, call: &'a Expr) -> Option<(ItemRef, &'a [ast::CallArg], &'a [IndexItem])> {
        let (callee, args): (&Expr, &[ast::CallArg]) = match &*call.kind {
            ExprKind::Call { callee, args } => (callee, args),
            _ => (call, &[]),
        };
        let (base, items): (&Expr, &[IndexItem]) = match &*callee.kind {
            ExprKind::Index { base, items } => (base, items),
            _ => (callee, &[]),
        };
        let found = match &*base.kind {
            ExprKind::Name(n) => {
                let e = self.entity(crate::resolve::MAIN, n);
                if e.is_none() {
                    self.unknown_name(n, base.span);
                    return None;
                }
                e
            }
            ExprKind::Member { base: m, name } => match self.module_of(m) {
                Some(m) => {
                    let e = self.entity(m, &name.text);
                    if e.is_none() {
                        self.unknown_item(m, name);
                        return None;
                    }
                    e
                }
                None => None,
            },
            _ => None,
        };
        match found {
            Some(Entity::Def(at)) if self.program.def(at).kind == DefKind::Optimizer => Some((at, args, items)),
            _ => {
                self.error(
                    Diagnostic::error("E0206", "an optimizer is needed here")
                        .at(base.span, "not an `optimizer`")
                        .help("import one: `use optim.{adamw}`"),
                );
                None
            }
        }
    }

    /// The first optimizer that selects a parameter owns it.
    pub(super) fn assign(&mut self, item: &'a ast::Train, owners: &mut [Owner<'a>], frozen: &[ParamId]) {
        let all: Vec<ParamId> = self.param_ids().into_iter().filter(|p| !frozen.contains(p)).collect();
        let mut taken: Vec<ParamId> = Vec::new();
        let mistakes = self.mistakes;
        for o in owners.iter_mut() {
            let others = o.on.is_none_or(|s| s.terms.iter().any(|t| t.kind == ast::SelectKind::Rest));
            o.unsure = others && self.mistakes > mistakes;
            let found = match o.on {
                Some(s) => self.select(s, &all, &taken),
                None => all.clone(),
            };
            o.params = found.into_iter().filter(|p| !taken.contains(p)).collect();
            taken.extend(&o.params);
        }
        let free: Vec<ParamId> = all.into_iter().filter(|p| !taken.contains(p)).collect();
        if let (Some(p), false) = (free.first(), owners.is_empty() || self.mistakes > mistakes) {
            let param = self.b.graph.params[p.index()].clone();
            let mut d = Diagnostic::error(
                "E0702",
                format!("{} without an optimizer, such as `{}`", count(free.len(), "parameter"), param.path),
            )
            .at(item.head, "not selected by any optimizer and not frozen");
            if let Some(s) = param.span {
                d = d.and(s, "this parameter");
            }
            self.error(d.help("add `optimizer .. on rest`, or `freeze` them"));
        }
    }

    /// The new value of one parameter.
    pub(super) fn optimizer_call(&mut self, o: &Owner<'a>, number: usize, p: ParamId, g: ValueId) -> Option<ValueId> {
        let at = o.def?;
        let def = self.program.def(at);
        let param = self.b.graph.params[p.index()].clone();
        let single = self.single();
        let w = self.read(ReadKey::Param(p), single);
        let bound = self.bind_matrix(o, at, &param, p);
        let settings = self.optimizer_settings(o, at);
        let mut given = vec![
            GivenArg { name: None, val: Val::Tensor(w), span: o.span },
            GivenArg { name: None, val: Val::Tensor(g), span: o.span },
        ];
        given.extend(self.given(o.args));
        let given = self.match_arg_list(&def.args, given, o.call.span, &def.name.text, def.head);
        let (mut bound, given) = (bound?, given?);
        bound.statics.extend(settings?);
        let id = self.optimizer_instance(at, &param.path, o.span);
        let mut frame: Frame = self.def_frame(&bound, Some(id), o.call.span)?;
        frame.stream = format!("optimizer/{number}/{}", param.path);
        let used: Vec<DimId> = (bound.statics.iter())
            .filter_map(|(_, v)| match v {
                StaticVal::Dim(d) => Some(d.ids.clone()),
                _ => None,
            })
            .flatten()
            .collect();
        if !used.is_empty() {
            frame.mapped = param.dims.iter().copied().filter(|d| !used.contains(d)).collect();
        }
        self.bind_settings(&mut frame, &bound)?;
        self.used_defs.insert(at);
        self.within(frame, |e| {
            e.bind_args(&def.args, given, &bound, o.call.span)?;
            let result = e.declared(&def.result[0])?;
            let dims = [result.dims.clone()];
            let val = e.body(&def.body, Some(&dims));
            match e.one_result(val, &result, def.body.span) {
                Val::Tensor(v) => {
                    let missing = param.dims.clone();
                    let v = e.b.broadcast(v, &missing);
                    Some(e.b.cast(v, param.dtype))
                }
                Val::Const(c) => {
                    let v = e.as_tensor(&Val::Const(c), param.dtype)?;
                    Some(e.b.broadcast(v, &param.dims))
                }
                _ => None,
            }
        })
    }

    /// Binds the dim parameters of an optimizer by the type of its first argument: `[r -> c]`.
    fn bind_matrix(&mut self, o: &Owner<'a>, at: ItemRef, param: &crate::ir::Param, p: ParamId) -> Option<Bound> {
        let def = self.program.def(at);
        let mut statics: Vec<(String, StaticVal)> = Vec::new();
        let first = def.args.first().map(|a| &a.ty);
        let maps = first.is_some_and(|t| t.outs.is_some());
        if maps {
            let Some((ins, outs)) = &param.map else {
                if o.unsure {
                    return None;
                }
                let mut d = Diagnostic::error(
                    "E0704",
                    format!("`{}` updates matrices, `{}` is a vector", def.name.text, param.path),
                )
                .at(o.call.span, "a matrix optimizer");
                if let Some(s) = self.b.graph.params[p.index()].span {
                    d = d.and(s, "declared without `->`");
                }
                self.error(d.help(format!(
                    "write `optimizer {}(..) on matrix` and another optimizer `on rest`",
                    def.name.text
                )));
                return None;
            };
            let ty = first.expect("checked above");
            let sides = [(ty.dims.clone().unwrap_or_default(), ins), (outs_as_dims(ty), outs)];
            for (names, dims) in sides {
                if let [TypeDim::Dim(n)] = &names[..] {
                    let set = DimSet { ids: dims.clone(), group: dims.len() != 1 };
                    statics.push((n.text.clone(), StaticVal::Dim(set)));
                }
            }
        }
        let unbound =
            def.statics.iter().find(|s| s.kind == StaticKind::Dim && !statics.iter().any(|(n, _)| *n == s.name.text));
        if let Some(s) = unbound {
            self.error(
                Diagnostic::error("E0314", format!("dim parameter `{}` of the optimizer is not bound", s.name.text))
                    .at(o.call.span, "used here")
                    .and(def.head, "its signature")
                    .help("an optimizer's dims are bound by the type of its first argument: `w: [r -> c]`"),
            );
            return None;
        }
        Some(Bound { def: at, statics, span: o.call.span })
    }

    fn optimizer_settings(&mut self, o: &Owner<'a>, at: ItemRef) -> Option<Vec<(String, StaticVal)>> {
        if o.items.is_empty() {
            return Some(Vec::new());
        }
        let site = super::builtin::Site {
            name: &self.program.def(at).name.text,
            items: o.items,
            span: o.call.span,
            head: o.call.span,
        };
        let known: Vec<&str> = self.program.def(at).statics.iter().map(|s| s.name.text.as_str()).collect();
        let found = self.bracket_settings(site, &known)?;
        Some(found.into_iter().map(|(n, c, _)| (n, StaticVal::Const(c))).collect())
    }

    pub(super) fn optimizer_instance(&mut self, def: ItemRef, path: &str, span: Span) -> InstanceId {
        self.instances.push(Instance::new(path.to_string(), def, Vec::new(), span));
        InstanceId(self.instances.len() as u32 - 1)
    }
}

fn outs_as_dims(ty: &ast::Type) -> Vec<TypeDim> {
    ty.outs.iter().flatten().map(|n| TypeDim::Dim(n.clone())).collect()
}

fn count(n: usize, what: &str) -> String {
    if n == 1 { format!("1 {what}") } else { format!("{n} {what}s") }
}
