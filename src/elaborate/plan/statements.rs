//! The lines of a plan, each resolved on its own; then what they must satisfy together.

use super::{Offload, Pipeline, PlanScope, Recompute, ResolvedPlan, Rule, RuleKind, Zero};
use crate::check::plan::{self as form, Order, malformed};
use crate::check::replicas;
use crate::diag::{Diagnostic, Sink, did_you_mean};
use crate::elaborate::Elab;
use crate::ir::DimId;
use crate::resolve::{Entity, MAIN};
use crate::schedule::{Fault, Problem, Schedule};
use crate::source::Span;
use crate::syntax::ast::{
    self, Group, ItemKind, LayoutEntry, Name, PlanKind, PlanOpt, PlanValue, PlanValueKind, Scope,
};
use crate::types::{DType, counted};

/// What can be offloaded.
const OFFLOADS: &[(&str, Offload)] =
    &[("activations", Offload::Activations), ("optimizer", Offload::Optimizer), ("parameters", Offload::Parameters)];

impl<'a> Elab<'a> {
    /// Resolves a plan against the walked model. `mesh`: sizes of axes that the command line gives instead. The findings
    /// are returned and not kept here; without an error the plan is there.
    pub fn resolve_plan(&mut self, plan: &ast::Plan, mesh: &[(String, u64)]) -> (Option<ResolvedPlan>, Sink) {
        let kept = std::mem::take(&mut self.sink);
        let out = self.lines(plan, mesh);
        let found = std::mem::replace(&mut self.sink, kept);
        ((!found.has_errors()).then_some(out), found)
    }

    /// A plan that was found sound, in another walk of the model: statements about what is not there are left out, such as
    /// those about dropout in evaluation.
    pub fn resolve_plan_again(&mut self, plan: &ast::Plan, mesh: &[(String, u64)]) -> ResolvedPlan {
        let kept = std::mem::take(&mut self.sink);
        let out = self.lines(plan, mesh);
        self.sink = kept;
        out
    }

    fn lines(&mut self, plan: &ast::Plan, sizes: &[(String, u64)]) -> ResolvedPlan {
        let mut out = ResolvedPlan {
            name: plan.name.text.clone(),
            span: plan.name.span,
            mesh: form::mesh(plan, sizes, &mut self.sink),
            rules: Vec::new(),
            pipeline: None,
            microbatches: 1,
            precision: DType::F32,
            gradients: DType::F32,
            zero: Vec::new(),
            recompute: Recompute::None,
            recompute_span: None,
            keep_collectives: false,
            offload: Vec::new(),
            replicas: None,
        };
        out.replicas = replicas::replicas(plan, &out.mesh, &mut self.sink);
        let mut batches: Option<Span> = None;
        let mut once: Vec<(&str, Span)> = Vec::new();
        for (statement, line) in plan.lines.iter().enumerate() {
            let single = match &line.kind {
                PlanKind::Pipeline { .. } => "pipeline",
                PlanKind::Microbatches(_) => "microbatches",
                PlanKind::Precision { .. } => "precision",
                PlanKind::Recompute { .. } => "recompute",
                _ => "",
            };
            if let Some((_, first)) = once.iter().find(|o| o.0 == single && !single.is_empty()) {
                self.error(
                    malformed(format!("`{single}` stands twice in the plan"), line.span, "second one")
                        .and(*first, "first one")
                        .help("keep one"),
                );
                continue;
            }
            once.push((single, line.span));
            match &line.kind {
                PlanKind::Mesh(_) => {}
                PlanKind::Shard { dims, axes, scopes, opts } => {
                    self.shard(statement, line.span, (dims, axes, scopes), opts, &mut out);
                }
                PlanKind::Replicate { dims, scopes } => {
                    let scopes = self.scopes(scopes);
                    let rule = blank(statement, RuleKind::Statement, line.span);
                    self.rules(dims, scopes, &rule, &mut out);
                }
                PlanKind::Layout { scope, entries } => self.layout(statement, line.span, scope, entries, &mut out),
                PlanKind::Pipeline { dims, axis, opts } => {
                    let own = opts.iter().find(|o| o.name.text == "microbatches").map(|o| o.value.span);
                    if let (Some(first), Some(own)) = (batches, own) {
                        self.error(twice(own, first));
                    }
                    batches = batches.or(own);
                    self.pipeline(dims, axis, opts, line.span, &mut out);
                }
                PlanKind::Microbatches((n, span)) => {
                    if *n == 0 {
                        self.error(malformed("no microbatches", *span, "not positive").help("write 1 or more"));
                    }
                    out.microbatches = (*n).max(1);
                    if let Some(first) = batches {
                        self.error(twice(*span, first));
                    }
                    batches = Some(*span);
                }
                PlanKind::Precision { name, opts } => self.precision(name, opts, &mut out),
                PlanKind::Zero { level, axes, scopes, opts } => {
                    self.zero(*level, axes, scopes, opts, line.span, &mut out);
                }
                PlanKind::Recompute { values, opts } => {
                    out.recompute_span = Some(line.span);
                    self.recompute(values, opts, &mut out);
                }
                PlanKind::Offload { what, to } => self.offload(what, to, &mut out),
                PlanKind::Statement { value, .. } => self.known(value),
            }
        }
        self.inline_rules(plan.lines.len(), &mut out);
        if !self.sink.has_errors() {
            self.check_rules(&out);
            self.unused_axes(&out);
            self.pipeline_alone(&out);
            self.replicas_apart(&out);
            self.divide_batch(&out, batches);
            if batches.is_none() {
                self.one_microbatch(&out);
            }
        }
        out
    }

    /// A pipeline of which nothing says how many microbatches it has.
    fn one_microbatch(&mut self, plan: &ResolvedPlan) {
        let Some(p) = plan.pipeline.as_ref().filter(|p| plan.mesh[p.axis].size > 1) else { return };
        let ranks = plan.mesh[p.axis].size;
        let d =
            Diagnostic::warning("W0018", "the pipeline has one microbatch: one stage computes while all others wait");
        self.sink.push(
            d.at(p.span, format!("{ranks} ranks take turns")).help(format!(
                "write `microbatches = {}` in its braces, or `microbatches = 1` if it is meant",
                4 * ranks
            )),
        );
    }

    // ---- layouts

    fn shard(
        &mut self,
        statement: usize,
        span: Span,
        (dims, axes, scopes): (&[Group], &[Name], &[Scope]),
        opts: &[PlanOpt],
        out: &mut ResolvedPlan,
    ) {
        let mut rule = blank(statement, RuleKind::Statement, span);
        for (name, v) in form::options(opts, &["order", "gather", "bound"], &mut self.sink) {
            match name {
                "order" => rule.order = form::order(v, &mut self.sink).unwrap_or_default(),
                "gather" => rule.gather = form::gather(v, &mut self.sink),
                _ => {
                    rule.bound = form::number(v, &mut self.sink);
                    if rule.bound.is_some_and(|b| b < 1.0) {
                        let d = malformed("a bound below the even share loses rows", v.span, "less than 1");
                        self.error(d.help("write a factor of at least 1.0"));
                    }
                }
            }
        }
        let axes = form::axes(axes, &out.mesh, &mut self.sink);
        let scopes = self.scopes(scopes);
        rule.axes = axes.unwrap_or_default();
        self.rules(dims, scopes, &rule, out);
    }

    /// A rule for each group, scope and size.
    fn rules(&mut self, dims: &[Group], scopes: Vec<Option<PlanScope>>, rule: &Rule, out: &mut ResolvedPlan) {
        for scope in scopes {
            for (group, g) in dims.iter().enumerate() {
                for dims in self.plan_dims(g, scope.as_ref()).unwrap_or_default() {
                    let scope = scope.clone();
                    out.rules.push(Rule { group, dims, scope, dims_span: g.span, ..rule.clone() });
                }
            }
        }
    }

    /// The scopes of a statement that are found; one None where it has none.
    fn scopes(&mut self, scopes: &[Scope]) -> Vec<Option<PlanScope>> {
        if scopes.is_empty() {
            return vec![None];
        }
        scopes.iter().map(|s| self.plan_scope(&s.path, &s.dims, s.span)).filter(Option::is_some).collect()
    }

    fn layout(&mut self, statement: usize, span: Span, at: &Scope, entries: &[LayoutEntry], out: &mut ResolvedPlan) {
        let Some(scope) = self.plan_scope(&at.path, &at.dims, at.span) else { return };
        if !scope.named {
            self.error(
                malformed("`layout` pins one value", at.span, "a whole layer")
                    .help("write `layout Layer.name @ [dim: axis]`, or `shard dim by axis in Layer`"),
            );
            return;
        }
        for (group, e) in entries.iter().enumerate() {
            let axes = form::axes(&e.axes, &out.mesh, &mut self.sink);
            let dims = self.plan_dim_names(&[&e.dim], Some(&scope), e.dim.span);
            for dims in dims.unwrap_or_default() {
                let rule = blank(statement, RuleKind::Layout, span);
                let (axes, scope) = (axes.clone().unwrap_or_default(), Some(scope.clone()));
                out.rules.push(Rule { group, dims, axes, scope, dims_span: e.dim.span, ..rule });
            }
        }
    }

    /// Layouts in expressions, where the plan has their axes.
    fn inline_rules(&mut self, first: usize, out: &mut ResolvedPlan) {
        for (k, layout) in self.inline_layouts.iter().enumerate() {
            for (group, (set, names)) in layout.entries.iter().enumerate() {
                let axes: Option<Vec<usize>> =
                    names.iter().map(|n| out.mesh.iter().position(|a| a.name == n.text)).collect();
                let Some(axes) = axes else { continue };
                let scope =
                    PlanScope { text: "@".into(), values: vec![layout.value], named: true, ..PlanScope::default() };
                out.rules.push(Rule {
                    group,
                    dims: set.ids.clone(),
                    axes,
                    scope: Some(scope),
                    dims_span: layout.span,
                    ..blank(first + k, RuleKind::Inline, layout.span)
                });
            }
        }
    }

    fn unused_axes(&mut self, plan: &ResolvedPlan) {
        for (k, a) in plan.mesh.iter().enumerate() {
            let used = plan.rules.iter().any(|r| r.axes.contains(&k))
                || plan.zero.iter().any(|z| z.axes.contains(&k))
                || plan.pipeline.as_ref().is_some_and(|p| p.axis == k)
                || plan.replicas.as_ref().is_some_and(|r| r.axis == k);
            if !used {
                self.error(
                    Diagnostic::error("E0502", format!("mesh axis `{}` divides nothing", a.name))
                        .at(a.span, "no statement uses it")
                        .help(format!("write `shard batch by {}`, or remove the axis", a.name)),
                );
            }
        }
    }

    /// Ranks along the pipeline's axis hold different stages, so nothing is cut along it.
    fn pipeline_alone(&mut self, plan: &ResolvedPlan) {
        let Some(p) = &plan.pipeline else { return };
        let cut = plan.rules.iter().filter(|r| r.axes.contains(&p.axis)).map(|r| r.span);
        let spans: Vec<Span> =
            cut.chain(plan.zero.iter().filter(|z| z.axes.contains(&p.axis)).map(|z| z.span)).collect();
        let name = plan.mesh[p.axis].name.clone();
        for s in spans {
            self.error(
                Diagnostic::error("E0508", format!("axis `{name}` carries the pipeline"))
                    .at(s, format!("would cut values by `{name}` as well"))
                    .and(p.span, "its ranks hold different stages")
                    .help("use another axis"),
            );
        }
    }

    // ---- pipelines and microbatches

    fn pipeline(&mut self, dims: &[Name], axis: &Name, opts: &[PlanOpt], span: Span, out: &mut ResolvedPlan) {
        let axis_number = form::axes(std::slice::from_ref(axis), &out.mesh, &mut self.sink);
        let (mut schedule, mut microbatches, mut stages) = (Schedule::OneFOneB, None, None);
        for (name, v) in form::options(opts, &["schedule", "microbatches", "stages"], &mut self.sink) {
            match name {
                "schedule" => schedule = form::schedule(v, &mut self.sink).unwrap_or(schedule),
                "microbatches" => microbatches = form::whole(v, &mut self.sink),
                _ => stages = form::stages(v, &mut self.sink).map(|s| (s, v.span)),
            }
        }
        let mut ids: Vec<DimId> = Vec::new();
        for d in dims {
            for found in self.plan_dim_names(&[d], None, d.span).unwrap_or_default() {
                for id in found {
                    if !self.loop_dims.contains_key(&id) {
                        let loops: Vec<String> = self.loop_dims.keys().map(|d| self.dim_name(*d)).collect();
                        let e = Diagnostic::error("E0504", format!("no `for` of the model goes over `{}`", d.text))
                            .at(d.span, "no loop to cut into stages");
                        self.error(match &loops[..] {
                            [] => e.help("write the model's layers as `for i in depth { .. }`"),
                            _ => e.help(format!("loops of the model: {}", loops.join(", "))),
                        });
                    } else if ids.contains(&id) {
                        let e = Diagnostic::error("E0202", format!("loop `{}` is named twice", d.text));
                        self.error(e.at(d.span, "a second time").help("name each loop once"));
                    } else {
                        ids.push(id);
                    }
                }
            }
        }
        let Some(axis_number) = axis_number.and_then(|a| a.first().copied()) else { return };
        if self.sink.has_errors() {
            return;
        }
        let ranks = out.mesh[axis_number].size;
        let turns: u64 = ids.iter().map(|d| self.b.graph.size(*d) as u64).sum();
        // How many stages a file's table has is seen when it is read.
        let given = stages.as_ref().map(|s| s.0.len()).filter(|n| *n > 0 && n.is_multiple_of(ranks as usize));
        if let Some(count) = schedule.stages(ranks as usize, turns as usize, given) {
            self.stages_add_up(turns, count as u64, stages.as_ref(), axis, span);
        }
        if let Some(m) = microbatches {
            out.microbatches = m;
        }
        let m = microbatches.unwrap_or(out.microbatches);
        let at = opts.iter().find(|o| o.name.text == "schedule").map_or(span, |o| o.value.span);
        if let Some(Problem { fault: Fault::Impossible { why, cure }, .. }) =
            schedule.refuses(ranks as usize, m as usize)
        {
            self.error(Diagnostic::error("E0603", why).at(at, format!("{ranks} ranks, {m} microbatches")).help(cure));
        }
        out.pipeline = Some(Pipeline {
            dims: ids,
            axis: axis_number,
            schedule,
            schedule_span: at,
            microbatches: m,
            turns,
            stages: stages.map(|s| s.0),
            span,
        });
    }

    fn stages_add_up(&mut self, turns: u64, count: u64, stages: Option<&(Vec<u64>, Span)>, axis: &Name, span: Span) {
        let error = |message: String| Diagnostic::error("E0602", message);
        let d = match stages {
            None if turns < count => error(format!("{count} stages for {turns} turns"))
                .at(span, "some stages would be empty")
                .help(format!("make `{}` or the stages a rank holds smaller", axis.text)),
            None => return,
            Some((s, at)) if s.len() as u64 != count => {
                error(format!("{} stages are listed, {count} are needed", s.len()))
                    .at(*at, format!("{} stages", s.len()))
                    .help("list the turns of every stage: ranks times stages a rank")
            }
            Some((s, at)) => {
                let sum: u64 = s.iter().fold(0, |a, b| a.saturating_add(*b));
                if sum == turns {
                    return;
                }
                error(format!("the stages have {sum} turns, the loops {turns}"))
                    .at(*at, format!("sums to {sum}"))
                    .help(format!("the numbers add up to {turns}"))
            }
        };
        self.error(d);
    }

    /// Microbatches are equal runs of samples.
    fn divide_batch(&mut self, plan: &ResolvedPlan, at: Option<Span>) {
        // Sampling and evaluation have none.
        let Some(span) = at.filter(|_| plan.microbatches > 1 && self.mode.training) else { return };
        for d in self.sample_dims() {
            let (n, size) = (self.dim_name(d), self.b.graph.size(d) as u64);
            if size % plan.microbatches != 0 {
                let m = plan.microbatches;
                let near = (1..=m).rev().find(|k| size % k == 0).unwrap_or(1);
                self.error(
                    Diagnostic::error(
                        "E0304",
                        format!("{m} microbatches do not divide `{n}`, which has {}", counted(size, "sample")),
                    )
                    .at(span, format!("{size} is no multiple of {m}"))
                    .help(format!("write {near} microbatches, or another size of `{n}`")),
                );
            }
        }
    }

    /// The sample dims of the train items of models that were walked.
    pub(super) fn sample_dims(&mut self) -> Vec<DimId> {
        let trains = self.program.main_items(|i| match i {
            ItemKind::Train(t) => Some(t),
            _ => None,
        });
        let kept = std::mem::take(&mut self.sink);
        let mut dims: Vec<DimId> = Vec::new();
        for t in trains {
            let model = self.entity(MAIN, &t.model.text);
            if let Some(Entity::Model(at)) = model
                && self.uses.contains_key(&at)
            {
                dims.extend(self.sample_dim(t));
            }
        }
        // What is wrong with a train item is said where it is compiled.
        self.sink = kept;
        dims.dedup();
        dims
    }

    // ---- memory and numbers

    fn precision(&mut self, name: &Name, opts: &[PlanOpt], out: &mut ResolvedPlan) {
        let found = form::precision(name, &mut self.sink);
        out.precision = found.unwrap_or(DType::F32);
        out.gradients = if out.precision == DType::F64 { DType::F64 } else { DType::F32 };
        for (_, v) in form::options(opts, &["gradients"], &mut self.sink) {
            if let Some(t) = form::precision_value(v, &mut self.sink) {
                out.gradients = t;
            }
        }
    }

    fn zero(
        &mut self,
        (level, at): (u64, Span),
        axes: &[Name],
        scopes: &[Scope],
        opts: &[PlanOpt],
        span: Span,
        out: &mut ResolvedPlan,
    ) {
        if level > 3 {
            self.error(
                malformed(format!("`zero` has levels 0 to 3, not {level}"), at, "no such level")
                    .help("1: optimizer state; 2: and gradients; 3: and parameters"),
            );
        }
        let mut regather = form::Regather::default();
        for (_, v) in form::options(opts, &["regather"], &mut self.sink) {
            regather = form::regather(v, &mut self.sink).unwrap_or_default();
            if level != 3 {
                let d = malformed("only `zero 3` gathers parameters", v.span, "has no effect here");
                self.error(d.help("remove `regather`, or write `zero 3`"));
            }
        }
        let axes = form::axes(axes, &out.mesh, &mut self.sink);
        let scopes = self.scopes(scopes);
        let Some(axes) = axes else { return };
        for scope in scopes {
            let twice = out.zero.iter().find(|z| z.scope == scope);
            if let Some(first) = twice {
                let d = malformed("two `zero` lines speak of the same parameters", span, "second one");
                self.error(d.and(first.span, "first one").help("keep one, or give one a scope"));
                return;
            }
            out.zero.push(Zero { level: level.min(3) as u8, axes: axes.clone(), scope, regather, span });
        }
    }

    fn recompute(&mut self, values: &[PlanValue], opts: &[PlanOpt], out: &mut ResolvedPlan) {
        for (_, v) in form::options(opts, &["keep"], &mut self.sink) {
            if form::word(v) == Some("collectives") {
                out.keep_collectives = true;
            } else {
                self.error(
                    malformed("`keep` keeps collectives", v.span, "unknown word").help("write `keep = collectives`"),
                );
            }
        }
        let mut scopes: Vec<PlanScope> = Vec::new();
        for v in values {
            let special = match &v.kind {
                PlanValueKind::Call { name, args } if name.text == "auto" => Some(Recompute::Auto(match &args[..] {
                    [] => None,
                    _ => {
                        let Some(m) = form::call_with(v, "auto", "memory", &mut self.sink) else { return };
                        form::bytes(m, &mut self.sink)
                    }
                })),
                _ => match form::word(v) {
                    Some("full") => Some(Recompute::Full),
                    Some("none") => Some(Recompute::None),
                    Some("gathers") => Some(Recompute::Gathers),
                    Some("auto") => Some(Recompute::Auto(None)),
                    _ => None,
                },
            };
            if let Some(s) = special {
                out.recompute = s;
                if values.len() > 1 {
                    self.error(
                        malformed("this word stands alone", v.span, "in a list")
                            .help("write `recompute full`, or list layers and values"),
                    );
                }
                continue;
            }
            match &v.kind {
                PlanValueKind::Word(path) => scopes.extend(self.plan_scope(path, &[], v.span)),
                _ => {
                    self.error(malformed("`recompute` lists layers and values", v.span, "neither").help(
                        "write `recompute Attention, Mla.q`, or one of full, none, gathers, auto(memory = 70 GiB)",
                    ))
                }
            }
        }
        if !scopes.is_empty() {
            out.recompute = Recompute::Scopes(scopes);
        }
    }

    fn offload(&mut self, what: &[Name], to: &Name, out: &mut ResolvedPlan) {
        for n in what {
            match OFFLOADS.iter().find(|o| o.0 == n.text) {
                Some((_, o)) => out.offload.push(*o),
                None => {
                    let names: Vec<&str> = OFFLOADS.iter().map(|o| o.0).collect();
                    let d = malformed(format!("`{}` cannot be offloaded", n.text), n.span, "unknown word");
                    self.error(match did_you_mean(&n.text, names.iter().copied()) {
                        Some(near) => d.help(format!("did you mean `{near}`?")),
                        None => d.help(format!("one of: {}", names.join(", "))),
                    });
                }
            }
        }
        if to.text != "host" {
            let d = malformed(format!("cannot offload to `{}`", to.text), to.span, "unknown place");
            self.error(d.help("write `to host`"));
        }
    }

    /// What replicas do is said by `async` and `local`; there are no other statements of this form.
    fn known(&mut self, v: &PlanValue) {
        match replicas::name(v) {
            Some("async" | "local") => {}
            other => {
                if let Some((word, form)) = STATEMENTS.iter().find(|s| Some(s.0) == other) {
                    let d = malformed(format!("`{word}` does not say what"), v.span, "more is needed");
                    return self.error(d.help(format!("write as in `{form}`")));
                }
                let known: Vec<&str> = STATEMENTS.iter().map(|s| s.0).collect();
                let d = malformed("this is no statement of a plan", v.span, "unknown statement");
                self.error(match other.and_then(|o| did_you_mean(o, known.iter().copied())) {
                    Some(n) => d.help(format!("did you mean `{n}`?")),
                    None => d.help(format!("statements: {}", known.join(", "))),
                });
            }
        }
    }
}

/// The statements of a plan, each with an example.
const STATEMENTS: [(&str, &str); 12] = [
    ("mesh", "mesh dp = 2"),
    ("shard", "shard batch by dp"),
    ("replicate", "replicate seq in Attention"),
    ("layout", "layout Net.w @ [out: tp]"),
    ("pipeline", "pipeline depth by pp { schedule = 1f1b, microbatches = 8 }"),
    ("microbatches", "microbatches 4"),
    ("precision", "precision bf16"),
    ("zero", "zero 1 by dp"),
    ("recompute", "recompute full"),
    ("offload", "offload optimizer to host"),
    ("async", "async(staleness = 1) by dp"),
    ("local", "local(steps = 100) by dp"),
];

fn twice(second: Span, first: Span) -> Diagnostic {
    malformed("microbatches are given twice", second, "here")
        .and(first, "and here")
        .help("with a pipeline they are its option")
}

fn blank(statement: usize, kind: RuleKind, span: Span) -> Rule {
    Rule {
        statement,
        group: 0,
        kind,
        dims: Vec::new(),
        axes: Vec::new(),
        scope: None,
        order: Order::Block,
        gather: None,
        bound: None,
        span,
        dims_span: span,
    }
}
