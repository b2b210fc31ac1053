//! Train items: which optimizer owns which parameter, gradients, clipping, updates, averages, loss scaling.
//!
//! The derivative itself comes from outside ([`Differentiate`]), since this room does not know `autodiff`.

use super::call::GivenArg;
use super::feed::{Feed, Valid};
use super::frame::{Body, Frame, Local};
use super::instance::{Instance, InstanceId};
use super::slices::Slices;
use super::value::{Bound, DimSet, StaticVal, Val};
use super::{Elab, ReadKey};
use crate::check::select::glob;
use crate::diag::{Diagnostic, did_you_mean};
use crate::ir::{Builder, DimId, OutputKind, ParamId, Phase, State, StateKind, ValueId};
use crate::resolve::{Entity, ItemRef};
use crate::source::Span;
use crate::syntax::ast::{
    self, DefKind, Expr, ExprKind, IndexItem, Name, Select, SelectKind, StaticKind, TrainKind, TypeDim,
};
use crate::types::{DType, MapOp};

/// Gradients of the sum of `losses` with respect to parameters, as operations appended to the graph.
pub type Differentiate<'f> = &'f dyn Fn(&mut Builder, &[ValueId], &[ParamId]) -> Vec<ValueId>;

/// What the runtime needs to know of a train item.
#[derive(Clone, Debug, Default)]
pub struct TrainFacts {
    pub name: String,
    pub sample_dim: Option<DimId>,
    /// Of the batch, where the item asks for more than one.
    pub slices: Option<(usize, Span)>,
    pub data: Option<Feed>,
    pub valid: Option<Valid>,
    pub steps: Option<u64>,
    pub seed: u64,
    pub save_every: Option<u64>,
    pub log_every: Option<u64>,
    pub loads: Vec<Load>,
    /// Average states by parameter, where the item has `average`.
    pub averages: Vec<(ParamId, crate::ir::StateId)>,
    pub frozen: Vec<ParamId>,
}

/// `load "path" with map on selector`
#[derive(Clone, Debug)]
pub struct Load {
    pub path: String,
    pub span: Span,
    pub with: Option<(String, Span)>,
    pub params: Vec<ParamId>,
}

/// Loss scaling of `precision f16`: first scale, factor up after so many good steps, factor down at an overflow
/// (Micikevicius et al., "Mixed Precision Training", 2018).
const FIRST_SCALE: f64 = 65536.0;
const GROWTH_STEPS: f64 = 2000.0;

struct Owner<'a> {
    call: &'a Expr,
    def: ItemRef,
    args: &'a [ast::CallArg],
    items: &'a [IndexItem],
    on: Option<&'a Select>,
    /// Indices into `losses`.
    losses: Vec<usize>,
    span: Span,
    params: Vec<ParamId>,
}

impl<'a> Elab<'a> {
    /// Walks the model of a train item and adds gradients and updates.
    pub fn train(&mut self, item: &'a ast::Train, slices: Slices<'_>, differentiate: Differentiate<'_>) -> TrainFacts {
        let mut facts = self.train_facts(item);
        let Some(at) = self.model_of(&item.model) else { return facts };
        self.fed = facts.data.as_ref().map(Feed::names);
        self.model(at);
        if self.failed() {
            return facts;
        }
        facts.sample_dim = self.sample_dim(item);
        self.check_feeds(&facts, item);
        if let (Some((count, span)), Some(dim)) = (facts.slices, facts.sample_dim) {
            self.in_slices(at, dim, count, span, slices);
        }
        if self.failed() {
            return facts;
        }
        let mut frame = self.open_frame(crate::resolve::MAIN, Body::File, &facts.name);
        frame.float = self.single();
        // Optimizer arithmetic is f32 (f64) whatever the working precision.
        let precision = self.precision;
        self.within(frame, |e| e.updates(item, &mut facts, precision, differentiate));
        self.precision = precision;
        facts
    }

    pub fn model_of(&mut self, name: &Name) -> Option<ItemRef> {
        match self.entity(crate::resolve::MAIN, &name.text) {
            Some(Entity::Model(at)) => Some(at),
            _ => {
                let models: Vec<&str> =
                    self.program.models().iter().map(|m| self.program.model(*m).name.text.as_str()).collect();
                let d = Diagnostic::error("E0711", format!("there is no model `{}`", name.text))
                    .at(name.span, "unknown model");
                self.error(match did_you_mean(&name.text, models.iter().copied()) {
                    Some(n) => d.help(format!("did you mean `{n}`?")),
                    None => d.help("name a `model` of this file"),
                });
                None
            }
        }
    }

    /// `samples NAME`, or `batch`, or the first dim of the first input; none where nothing is fed.
    pub fn sample_dim(&mut self, item: &'a ast::Train) -> Option<DimId> {
        if self.b.graph.inputs.is_empty() {
            return None;
        }
        let named = item.lines.iter().find_map(|l| match &l.kind {
            TrainKind::Samples { dim, .. } => Some(dim),
            _ => None,
        });
        let frame = self.open_frame(crate::resolve::MAIN, Body::File, "");
        let dim = match named {
            Some(n) => self.within(frame, |e| e.dim(n))?.ids.first().copied(),
            None => match self.within(frame, |e| e.dim_opt("batch")) {
                Some(set) => set?.ids.first().copied(),
                None => self.b.graph.inputs.first().and_then(|i| i.dims.first().copied()),
            },
        }?;
        if !self.b.graph.inputs.iter().any(|i| i.dims.contains(&dim)) {
            let span = named.map_or(item.head, |n| n.span);
            let name = self.dim_name(dim);
            self.error(
                Diagnostic::error("E0710", format!("no input has the sample dim `{name}`"))
                    .at(span, "samples are counted along it")
                    .help("name the dim of the inputs that counts samples: `samples NAME`"),
            );
            return None;
        }
        Some(dim)
    }

    fn train_facts(&mut self, item: &'a ast::Train) -> TrainFacts {
        let mut facts =
            TrainFacts { name: item.name.as_ref().unwrap_or(&item.model).text.clone(), ..TrainFacts::default() };
        let mut seen: Vec<(&str, Span)> = Vec::new();
        let frame = self.open_frame(crate::resolve::MAIN, Body::File, &facts.name);
        self.within(frame, |e| {
            for line in &item.lines {
                let once = match &line.kind {
                    TrainKind::Data { valid: false, .. } => "data",
                    TrainKind::Data { valid: true, .. } => "valid",
                    TrainKind::Samples { .. } => "samples",
                    TrainKind::Clip(_) => "clip",
                    TrainKind::Average(_) => "average",
                    TrainKind::Steps(_) => "steps",
                    TrainKind::Seed(_) => "seed",
                    TrainKind::Save(_) => "save",
                    TrainKind::Log(_) => "log",
                    _ => "",
                };
                if let Some((_, first)) = seen.iter().find(|s| s.0 == once && !once.is_empty()) {
                    e.error(
                        Diagnostic::error("E0710", format!("`{once}` stands twice in the train item"))
                            .at(line.span, "second one")
                            .and(*first, "first one")
                            .help("keep one"),
                    );
                }
                seen.push((once, line.span));
                match &line.kind {
                    TrainKind::Data { valid, source, every, batches } => {
                        let feed = e.feed(source);
                        let every = every.as_ref().and_then(|x| e.positive(x));
                        let batches = batches.as_ref().and_then(|x| e.positive(x));
                        match (valid, feed) {
                            (true, Some(feed)) => facts.valid = Some(Valid { feed, every, batches }),
                            (false, feed) => facts.data = feed,
                            (true, None) => {}
                        }
                    }
                    TrainKind::Samples { slices, .. } => {
                        let count = slices.as_ref().and_then(|s| Some((e.positive(s)? as usize, s.span)));
                        facts.slices = count.filter(|(n, _)| *n > 1);
                    }
                    TrainKind::Steps(x) => facts.steps = e.positive(x),
                    TrainKind::Seed(x) => {
                        facts.seed = e.constant(x).and_then(|c| c.as_int()).map_or_else(
                            || {
                                e.bad_number(x.span);
                                0
                            },
                            |n| n as u64,
                        );
                    }
                    TrainKind::Save(x) => facts.save_every = e.positive(x),
                    TrainKind::Log(x) => facts.log_every = e.positive(x),
                    _ => {}
                }
            }
        });
        for (name, c) in &self.settings.train.clone() {
            match (name.as_str(), c.as_int()) {
                ("steps", Some(n)) if n > 0 => facts.steps = Some(n as u64),
                ("seed", Some(n)) => facts.seed = n as u64,
                ("clip", _) => {}
                _ => self.error(
                    Diagnostic::error("E0902", format!("`--set train.{name}={c}` is not a positive whole number"))
                        .help("write a positive whole number"),
                ),
            }
        }
        facts
    }

    fn bad_number(&mut self, span: Span) {
        self.error(
            Diagnostic::error("E0710", "a positive whole constant is needed here")
                .at(span, "not one")
                .help("write a number, for example 1000"),
        );
    }

    pub(super) fn positive(&mut self, e: &'a Expr) -> Option<u64> {
        let c = self.constant(e)?;
        match c.as_int() {
            Some(n) if n > 0 => Some(n as u64),
            _ => {
                self.bad_number(e.span);
                None
            }
        }
    }

    // ---- gradients and updates

    fn updates(
        &mut self,
        item: &'a ast::Train,
        facts: &mut TrainFacts,
        precision: DType,
        differentiate: Differentiate<'_>,
    ) {
        self.precision = self.single();
        let frozen = self.frozen(item);
        for line in &item.lines {
            if let TrainKind::Load { path, with, on } = &line.kind {
                let all: Vec<ParamId> = self.param_ids();
                let params = match on {
                    Some(s) => self.select(s, &all, &[]),
                    None => all,
                };
                let with = with.as_ref().map(|n| (n.text.clone(), n.span));
                facts.loads.push(Load { path: path.0.clone(), span: path.1, with, params });
            }
        }
        let mut owners = self.owners(item, &frozen);
        self.assign(item, &mut owners, &frozen);
        facts.frozen = frozen;
        if self.failed() {
            return;
        }
        if self.losses.is_empty() {
            let model = &item.model;
            self.error(
                Diagnostic::error("E0710", format!("model `{}` has no loss", model.text))
                    .at(model.span, "nothing to train for")
                    .help("add `loss ..` to the model"),
            );
            return;
        }
        self.b.phase = Phase::Backward;
        let scale = (precision == DType::F16).then(|| self.scale_state("loss_scale", FIRST_SCALE, self.single()));
        let grads = self.gradients(&owners, scale.map(|s| s.1), differentiate);

        self.b.phase = Phase::Update;
        let mut pairs: Vec<(ParamId, ValueId)> = Vec::new();
        let single = self.single();
        for (p, g) in grads {
            let mut g = self.b.cast(g, single);
            if let Some((_, s)) = scale {
                g = self.b.div(g, s);
            }
            pairs.push((p, g));
        }
        let norm = self.global_norm(&pairs);
        let metric_span = self.b.span;
        self.b.span = Some(item.head);
        self.b.output(OutputKind::Metric, "grad_norm", norm);
        self.b.span = metric_span;
        let finite = scale.map(|_| self.b.map(MapOp::IsFinite, &[norm]));
        let before = self.b.graph.outputs.len();
        for line in &item.lines {
            if let TrainKind::Let { name, value } = &line.kind {
                let val = self.value(value);
                self.define(name, val, true);
            }
        }
        let average = item.lines.iter().find_map(|l| match &l.kind {
            TrainKind::Average(e) => Some(e),
            _ => None,
        });
        for (k, o) in owners.iter().enumerate() {
            for p in o.params.clone() {
                let Some((_, g)) = pairs.iter().find(|x| x.0 == p) else { continue };
                let Some(g) = self.shaped_gradient(item, p, *g, norm) else { continue };
                let Some(new) = self.optimizer_call(o, k, p, g) else { continue };
                let path = self.b.graph.params[p.index()].path.clone();
                self.b.span = Some(o.span);
                self.b.output(OutputKind::Param(p), &path, new);
                if let Some(a) = average {
                    facts.averages.extend(self.average(a, p, new));
                }
            }
        }
        if let (Some(finite), Some((id, s))) = (finite, scale) {
            self.guard_updates(before, finite);
            self.next_scale(id, s, finite);
        }
    }

    fn param_ids(&self) -> Vec<ParamId> {
        (0..self.b.graph.params.len() as u32).map(ParamId).collect()
    }

    fn frozen(&mut self, item: &'a ast::Train) -> Vec<ParamId> {
        let all = self.param_ids();
        let mut out = Vec::new();
        for line in &item.lines {
            if let TrainKind::Freeze(s) = &line.kind {
                out.extend(self.select(s, &all, &[]));
            }
        }
        out.sort_unstable();
        out.dedup();
        out
    }

    /// Parameters that a selector names; `taken` are those that earlier optimizers own.
    pub fn select(&mut self, s: &'a Select, all: &[ParamId], taken: &[ParamId]) -> Vec<ParamId> {
        let mut out: Vec<ParamId> = Vec::new();
        for t in &s.terms {
            let found: Vec<ParamId> = all.iter().copied().filter(|p| self.matches(&t.kind, *p, taken)).collect();
            if found.is_empty() && t.kind != SelectKind::Rest {
                self.nothing_selected(&t.kind, t.span);
            }
            out.extend(found);
        }
        for t in &s.except {
            let before = out.len();
            let kept: Vec<ParamId> = out.iter().copied().filter(|p| !self.matches(&t.kind, *p, taken)).collect();
            out = kept;
            if out.len() == before && before > 0 {
                self.nothing_selected(&t.kind, t.span);
            }
        }
        out.sort_unstable();
        out.dedup();
        out
    }

    fn nothing_selected(&mut self, kind: &SelectKind, span: Span) {
        let what = match kind {
            SelectKind::Matrix => "`matrix`".to_string(),
            SelectKind::Vector => "`vector`".to_string(),
            SelectKind::Rest => "`rest`".to_string(),
            SelectKind::Glob(g) => format!("`{g}`"),
        };
        let paths: Vec<String> = self.b.graph.params.iter().take(6).map(|p| p.path.clone()).collect();
        self.error(
            Diagnostic::error("E0703", format!("the selector {what} matches no parameter"))
                .at(span, "matches nothing")
                .with_note(format!("parameters are named like {}", paths.join(", ")))
                .help("`*` stands for one element of a path or a part of it, `**` for any number of elements"),
        );
    }

    fn matches(&self, kind: &SelectKind, p: ParamId, taken: &[ParamId]) -> bool {
        let param = &self.b.graph.params[p.index()];
        match kind {
            SelectKind::Matrix => param.map.is_some(),
            SelectKind::Vector => param.map.is_none(),
            SelectKind::Rest => !taken.contains(&p),
            SelectKind::Glob(g) => glob(g, &param.path),
        }
    }

    fn owners(&mut self, item: &'a ast::Train, frozen: &[ParamId]) -> Vec<Owner<'a>> {
        let mut out = Vec::new();
        for line in &item.lines {
            let TrainKind::Optimizer { call, on, minimizes } = &line.kind else { continue };
            let Some((def, args, items)) = self.optimizer_def(call) else { continue };
            let mut losses = Vec::new();
            for n in minimizes {
                let found: Vec<usize> = (self.losses.iter().enumerate())
                    .filter(|(_, l)| l.path == n.text || l.path.ends_with(&format!(".{}", n.text)))
                    .map(|(i, _)| i)
                    .collect();
                if found.is_empty() {
                    let names: Vec<String> = self.losses.iter().map(|l| l.path.clone()).collect();
                    self.error(
                        Diagnostic::error("E0201", format!("there is no loss `{}`", n.text))
                            .at(n.span, "unknown loss")
                            .help(format!("the model's losses: {}", names.join(", "))),
                    );
                }
                losses.extend(found);
            }
            if minimizes.is_empty() {
                losses = (0..self.losses.len()).collect();
            }
            losses.sort_unstable();
            losses.dedup();
            out.push(Owner { call, def, args, items, on: on.as_ref(), losses, span: line.span, params: vec![] });
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

    fn optimizer_def(&mut self, call: &'a Expr) -> Option<(ItemRef, &'a [ast::CallArg], &'a [IndexItem])> {
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
                Some(m) => self.entity(m, &name.text),
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
    fn assign(&mut self, item: &'a ast::Train, owners: &mut [Owner<'a>], frozen: &[ParamId]) {
        let all: Vec<ParamId> = self.param_ids().into_iter().filter(|p| !frozen.contains(p)).collect();
        let mut taken: Vec<ParamId> = Vec::new();
        for o in owners.iter_mut() {
            let found = match o.on {
                Some(s) => self.select(s, &all, &taken),
                None => all.clone(),
            };
            o.params = found.into_iter().filter(|p| !taken.contains(p)).collect();
            taken.extend(&o.params);
        }
        let free: Vec<ParamId> = all.into_iter().filter(|p| !taken.contains(p)).collect();
        if let (Some(p), false) = (free.first(), owners.is_empty()) {
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

    fn gradients(
        &mut self,
        owners: &[Owner<'a>],
        scale: Option<ValueId>,
        differentiate: Differentiate<'_>,
    ) -> Vec<(ParamId, ValueId)> {
        let mut out: Vec<(ParamId, ValueId)> = Vec::new();
        let mut done: Vec<usize> = Vec::new();
        for (i, o) in owners.iter().enumerate() {
            if done.contains(&i) {
                continue;
            }
            // One backward pass for all optimizers that minimise the same terms.
            let same: Vec<usize> = (i..owners.len()).filter(|j| owners[*j].losses == o.losses).collect();
            let params: Vec<ParamId> = same.iter().flat_map(|j| owners[*j].params.iter().copied()).collect();
            done.extend(same);
            let mut losses: Vec<ValueId> = o.losses.iter().map(|l| self.losses[*l].value).collect();
            if let Some(s) = scale {
                losses = losses.into_iter().map(|l| self.b.mul(l, s)).collect();
            }
            let grads = differentiate(&mut self.b, &losses, &params);
            out.extend(params.into_iter().zip(grads));
        }
        out.sort_by_key(|x| x.0);
        out
    }

    /// sqrt of the sum of squares over all parameters.
    fn global_norm(&mut self, pairs: &[(ParamId, ValueId)]) -> ValueId {
        let single = self.single();
        let mut total = self.b.scalar(0.0, single);
        for (p, g) in pairs {
            self.b.span = self.b.graph.params[p.index()].span;
            let sq = self.b.map(MapOp::Square, &[*g]);
            let dims = self.b.dims(sq).to_vec();
            let s = self.b.sum(&dims, sq);
            total = self.b.add(total, s);
        }
        self.b.map(MapOp::Sqrt, &[total])
    }

    /// `clip` and `gradient` statements, in order.
    fn shaped_gradient(&mut self, item: &'a ast::Train, p: ParamId, g: ValueId, norm: ValueId) -> Option<ValueId> {
        let single = self.single();
        let mut g = g;
        let replaced = self.settings.train.iter().find(|(n, _)| n == "clip").map(|(_, c)| Val::Const(c.clone()));
        for line in &item.lines {
            match &line.kind {
                TrainKind::Clip(limit) => {
                    let val = match &replaced {
                        Some(v) => v.clone(),
                        None => self.value(limit),
                    };
                    let limit = self.as_tensor(&val, single)?;
                    self.b.span = Some(line.span);
                    let room = self.b.map_scalar(MapOp::Add, norm, 1e-6);
                    let ratio = self.b.div(limit, room);
                    let factor = self.b.map_scalar(MapOp::Min, ratio, 1.0);
                    g = self.b.mul(g, factor);
                }
                TrainKind::Gradient(e) => {
                    let w = self.read(ReadKey::Param(p), single);
                    let mut names = indexmap::IndexMap::new();
                    for (n, v) in [("g", g), ("w", w), ("grad_norm", norm)] {
                        let local = Local { val: Val::Tensor(v), span: e.span, used: true, scan_depth: 0 };
                        names.insert(n.to_string(), local);
                    }
                    self.frame().scopes.push(names);
                    let val = self.value(e);
                    self.frame().scopes.pop();
                    let v = self.as_tensor(&val, single)?;
                    let dims = self.b.dims(w).to_vec();
                    if self.b.dims(v).iter().any(|d| !dims.contains(d)) {
                        let (a, b) = (self.show_dims(self.b.dims(v)), self.show_dims(&dims));
                        self.error(
                            Diagnostic::error("E0308", "a `gradient` statement keeps the gradient's dims")
                                .at(e.span, format!("this has {a}"))
                                .help(format!("the parameter has {b}")),
                        );
                        return None;
                    }
                    g = self.b.broadcast(v, &dims);
                }
                _ => {}
            }
        }
        Some(g)
    }

    /// The new value of one parameter.
    fn optimizer_call(&mut self, o: &Owner<'a>, number: usize, p: ParamId, g: ValueId) -> Option<ValueId> {
        let def = self.program.def(o.def);
        let param = self.b.graph.params[p.index()].clone();
        let single = self.single();
        let w = self.read(ReadKey::Param(p), single);
        let mut bound = self.bind_matrix(o, &param, p)?;
        for s in self.optimizer_settings(o)? {
            bound.statics.push(s);
        }
        let mut given = vec![
            GivenArg { name: None, val: Val::Tensor(w), span: o.span },
            GivenArg { name: None, val: Val::Tensor(g), span: o.span },
        ];
        given.extend(self.given(o.args));
        let id = self.optimizer_instance(o.def, &param.path, o.span);
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
        self.used_defs.insert(o.def);
        let given = self.match_arg_list(&def.args, given, o.call.span, &def.name.text, def.head)?;
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
    fn bind_matrix(&mut self, o: &Owner<'a>, param: &crate::ir::Param, p: ParamId) -> Option<Bound> {
        let def = self.program.def(o.def);
        let mut statics: Vec<(String, StaticVal)> = Vec::new();
        let first = def.args.first().map(|a| &a.ty);
        let maps = first.is_some_and(|t| t.outs.is_some());
        if maps {
            let Some((ins, outs)) = &param.map else {
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
        Some(Bound { def: o.def, statics, span: o.call.span })
    }

    fn optimizer_settings(&mut self, o: &Owner<'a>) -> Option<Vec<(String, StaticVal)>> {
        if o.items.is_empty() {
            return Some(Vec::new());
        }
        let site = super::builtin::Site {
            name: &self.program.def(o.def).name.text,
            items: o.items,
            span: o.call.span,
            head: o.call.span,
        };
        let known: Vec<&str> = self.program.def(o.def).statics.iter().map(|s| s.name.text.as_str()).collect();
        let found = self.bracket_settings(site, &known)?;
        Some(found.into_iter().map(|(n, c, _)| (n, StaticVal::Const(c))).collect())
    }

    fn optimizer_instance(&mut self, def: ItemRef, path: &str, span: Span) -> InstanceId {
        self.instances.push(Instance::new(path.to_string(), def, Vec::new(), span));
        InstanceId(self.instances.len() as u32 - 1)
    }

    // ---- averages and loss scaling

    /// A second set of weights: state, from the initial weight on.
    fn average(&mut self, call: &'a Expr, p: ParamId, new: ValueId) -> Option<(ParamId, crate::ir::StateId)> {
        let param = self.b.graph.params[p.index()].clone();
        let state = State {
            path: format!("average:{}", param.path),
            dtype: param.dtype,
            dims: param.dims.clone(),
            kind: StateKind::Average,
            span: Some(call.span),
        };
        let id = self.b.add_state(state.clone());
        self.init.add_state(state.clone());
        let first = self.init.graph.outputs.iter().find(|o| o.kind == OutputKind::InitParam(p)).map(|o| o.value)?;
        self.init.output(OutputKind::InitState(id), &state.path, first);
        let ExprKind::Call { callee, args } = &*call.kind else {
            self.error(
                Diagnostic::error("E0710", "`average` needs a call")
                    .at(call.span, "not a call")
                    .help("write `average ema(decay = 0.999)`"),
            );
            return None;
        };
        let def = match &*callee.kind {
            ExprKind::Name(n) => match self.entity(crate::resolve::MAIN, n) {
                Some(Entity::Def(at)) if self.program.def(at).kind == DefKind::Fn => at,
                _ => {
                    self.unknown_name(n, callee.span);
                    return None;
                }
            },
            _ => return None,
        };
        let old = self.read(ReadKey::State(id), param.dtype);
        let mut given = vec![
            GivenArg { name: None, val: Val::Tensor(old), span: call.span },
            GivenArg { name: None, val: Val::Tensor(new), span: call.span },
        ];
        given.extend(self.given(args));
        let bound = Bound { def, statics: Vec::new(), span: callee.span };
        match self.call_def(bound, given, None, call.span) {
            Val::Tensor(v) => {
                let v = self.b.cast(v, param.dtype);
                self.b.output(OutputKind::State(id), &state.path, v);
                Some((p, id))
            }
            _ => None,
        }
    }

    fn scale_state(&mut self, name: &str, first: f64, dtype: DType) -> (crate::ir::StateId, ValueId) {
        let state = State { path: name.to_string(), dtype, dims: vec![], kind: StateKind::Scaling, span: None };
        let id = self.b.add_state(state.clone());
        self.init.add_state(state);
        let v = self.init.scalar(first, dtype);
        self.init.output(OutputKind::InitState(id), name, v);
        (id, self.read(ReadKey::State(id), dtype))
    }

    /// A step with an infinite or NaN gradient changes nothing.
    fn guard_updates(&mut self, from: usize, finite: ValueId) {
        for k in 0..self.b.graph.outputs.len() {
            let out = self.b.graph.outputs[k].clone();
            let old = match out.kind {
                OutputKind::Param(p) if k >= from => {
                    let t = self.b.graph.params[p.index()].dtype;
                    self.read(ReadKey::Param(p), t)
                }
                OutputKind::State(s) => {
                    let t = self.b.graph.states[s.index()].dtype;
                    self.read(ReadKey::State(s), t)
                }
                _ => continue,
            };
            let kept = self.b.select(finite, out.value, old);
            self.b.graph.outputs[k].value = kept;
        }
    }

    fn next_scale(&mut self, id: crate::ir::StateId, scale: ValueId, finite: ValueId) {
        let single = self.single();
        let (good_id, good) = self.scale_state("good_steps", 0.0, single);
        let counted = self.b.map_scalar(MapOp::Add, good, 1.0);
        let limit = self.b.scalar(GROWTH_STEPS, single);
        let grow = self.b.map(MapOp::Ge, &[counted, limit]);
        let zero = self.b.scalar(0.0, single);
        let up = self.b.map_scalar(MapOp::Mul, scale, 2.0);
        let grown = self.b.select(grow, up, scale);
        let down = self.b.map_scalar(MapOp::Mul, scale, 0.5);
        let next = self.b.select(finite, grown, down);
        let restart = self.b.select(grow, zero, counted);
        let good_next = self.b.select(finite, restart, zero);
        self.b.output(OutputKind::State(id), "loss_scale", next);
        self.b.output(OutputKind::State(good_id), "good_steps", good_next);
        self.b.output(OutputKind::Metric, "loss_scale", scale);
        let one = self.b.scalar(1.0, single);
        let skipped = self.b.select(finite, zero, one);
        self.b.output(OutputKind::Metric, "skipped", skipped);
    }
}

fn outs_as_dims(ty: &ast::Type) -> Vec<TypeDim> {
    ty.outs.iter().flatten().map(|n| TypeDim::Dim(n.clone())).collect()
}

fn count(n: usize, what: &str) -> String {
    if n == 1 { format!("1 {what}") } else { format!("{n} {what}s") }
}
