//! Train items: which optimizer owns which parameter, gradients, clipping, updates, averages, loss scaling.
//!
//! The derivative itself comes from outside ([`Differentiate`]), since this room does not know `autodiff`.

use super::average::FIRST_SCALE;
use super::feed::{Feed, Valid};
use super::frame::{Body, Local};
use super::optimizer::Owner;
use super::slices::Slices;
use super::value::Val;
use super::{Elab, ReadKey};
use crate::check::select::glob;
use crate::diag::{Diagnostic, did_you_mean};
use crate::ir::{Builder, DimId, OutputKind, ParamId, Phase, StateId, StateKind, ValueId};
use crate::resolve::{Entity, ItemRef};
use crate::source::Span;
use crate::syntax::ast::{self, Expr, Keep, Name, Select, SelectKind, TrainKind};
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
    /// Checkpoints that stay, where the item says so; 0: all.
    pub keep: Option<u64>,
    /// Whether the checkpoint with the lowest validation loss stays.
    pub save_best: bool,
    pub log_every: Option<u64>,
    pub loads: Vec<Load>,
    /// Average states by parameter, where the item has `average`.
    pub averages: Vec<(ParamId, crate::ir::StateId)>,
    pub frozen: Vec<ParamId>,
    /// The values that updates begin with, by parameter.
    pub gradients: Vec<(ParamId, ValueId)>,
}

/// `load "path" with map on selector`
#[derive(Clone, Debug)]
pub struct Load {
    pub path: String,
    pub span: Span,
    pub with: Option<(String, Span)>,
    pub params: Vec<ParamId>,
    /// Model states: where there is a selector, those whose paths its globs match.
    pub states: Vec<StateId>,
}

impl<'a> Elab<'a> {
    /// Walks the model of a train item and adds gradients and updates.
    pub fn train(&mut self, item: &'a ast::Train, slices: Slices<'_>, differentiate: Differentiate<'_>) -> TrainFacts {
        let mut facts = self.train_facts(item);
        let Some(at) = self.model_of(&item.model) else { return facts };
        self.fed = facts.data.as_ref().map(Feed::names);
        let mistakes = self.mistakes;
        self.model(at);
        if self.mistakes > mistakes {
            return facts;
        }
        // One mistake of the item does not hide the next: lines are judged as far as they do not hang on each other.
        facts.sample_dim = self.sample_dim(item);
        self.check_feeds(&facts, item);
        if let (Some((count, span)), Some(dim), false) = (facts.slices, facts.sample_dim, self.failed()) {
            self.in_slices(at, dim, count, span, slices);
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
                    TrainKind::Save { .. } => "save",
                    TrainKind::SaveBest => "save best",
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
                        // Of a share it is a share of the slices; whether they divide is asked of the whole.
                        let shares = e.settings.shares.unwrap_or(1);
                        facts.slices = count.map(|(n, at)| (n / shares, at)).filter(|(n, _)| *n > 1);
                    }
                    TrainKind::Steps(x) => facts.steps = e.positive(x),
                    TrainKind::Seed(x) => {
                        let seed = e.constant(x).map(|c| c.as_int().and_then(|n| u64::try_from(n).ok()));
                        if seed == Some(None) {
                            e.error(
                                Diagnostic::error("E0710", "a seed is a whole number, 0 or more")
                                    .at(x.span, "not one")
                                    .help("write for example `seed 1`"),
                            );
                        }
                        facts.seed = seed.flatten().unwrap_or(0);
                    }
                    TrainKind::Save { every, keep } => {
                        facts.save_every = e.positive(every);
                        facts.keep = match keep {
                            None => None,
                            Some(Keep::All) => Some(0),
                            Some(Keep::Newest(count)) => e.positive(count),
                        };
                    }
                    TrainKind::SaveBest => {
                        facts.save_best = true;
                        if !item.lines.iter().any(|l| matches!(l.kind, TrainKind::Data { valid: true, .. })) {
                            e.error(
                                Diagnostic::error("E0710", "`save best` in a train item without `valid`")
                                    .at(line.span, "the best by which loss?")
                                    .help("add `valid .. every N`"),
                            );
                        }
                    }
                    TrainKind::Log(x) => facts.log_every = e.positive(x),
                    _ => {}
                }
            }
        });
        for (name, c) in &self.settings.train.clone() {
            // `clip` is read where gradients are clipped; what does not fit was reported when the settings were read.
            match (name.as_str(), c.as_int()) {
                ("steps", Some(n)) => facts.steps = Some(n as u64),
                ("seed", Some(n)) => facts.seed = n as u64,
                _ => {}
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
                let states = self.states_of(on.as_ref());
                facts.loads.push(Load { path: path.0.clone(), span: path.1, with, params, states });
            }
        }
        let mut owners = self.owners(item, &frozen);
        self.assign(item, &mut owners, &frozen);
        facts.frozen = frozen;
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
        facts.gradients.clone_from(&pairs);
        let norm = self.global_norm(&pairs);
        let clips = item.lines.iter().any(|l| matches!(l.kind, TrainKind::Clip(_)));
        if !clips && self.settings.train.iter().any(|(n, _)| n == "clip") {
            self.error(
                Diagnostic::error("E0902", "`--set train.clip` changes a limit, and this train item has none")
                    .at(item.head, "without `clip`")
                    .help("add `clip 1.0` to it"),
            );
        }
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
                let g = self.shaped_gradient(item, p, *g, norm).unwrap_or(*g);
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

    pub(super) fn param_ids(&self) -> Vec<ParamId> {
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

    /// Model states that a selector of paths takes along with parameters.
    fn states_of(&self, on: Option<&Select>) -> Vec<StateId> {
        let matches = |terms: &[ast::SelectTerm], path: &str| {
            terms.iter().any(|t| matches!(&t.kind, SelectKind::Glob(g) if glob(g, path)))
        };
        let own = self.b.graph.states.iter().enumerate().filter(|(_, s)| s.kind == StateKind::Model);
        let wanted = own.filter(|(_, s)| on.is_none_or(|o| matches(&o.terms, &s.path) && !matches(&o.except, &s.path)));
        wanted.map(|(n, _)| StateId(n as u32)).collect()
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

    /// sqrt of the sum of squares over all parameters; added in pairs, so that a model of many layers has no long chain.
    fn global_norm(&mut self, pairs: &[(ParamId, ValueId)]) -> ValueId {
        let squares = pairs.iter().map(|(p, g)| {
            self.b.span = self.b.graph.params[p.index()].span;
            let sq = self.b.map(MapOp::Square, &[*g]);
            let dims = self.b.dims(sq).to_vec();
            self.b.sum(&dims, sq)
        });
        let mut sums: Vec<ValueId> = squares.collect();
        while sums.len() > 1 {
            sums = sums
                .chunks(2)
                .map(|pair| pair.iter().copied().reduce(|a, b| self.b.add(a, b)).expect("a pair"))
                .collect();
        }
        let total = sums.first().copied().unwrap_or_else(|| {
            let single = self.single();
            self.b.scalar(0.0, single)
        });
        self.b.map(MapOp::Sqrt, &[total])
    }

    /// A constant limit is a positive number.
    fn clip_limit(&mut self, val: &Val, span: Span) -> Option<()> {
        let Val::Const(c) = val else { return Some(()) };
        if c.as_f64().is_some_and(|x| x > 0.0 && x.is_finite()) {
            return Some(());
        }
        self.error(
            Diagnostic::error("E0710", "the norm that `clip` allows is a positive, finite number")
                .at(span, format!("this is {c}"))
                .help("write for example `clip 1.0`, or leave `clip` out"),
        );
        None
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
                    self.clip_limit(&val, limit.span)?;
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
}
