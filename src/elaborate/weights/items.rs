//! Weights items: lines, loops, prefixes, names of the file, paths of parameters, and what the whole must satisfy.

use super::cover::{self, Fault};
use super::names::Found;
use super::pieces::Axis;
use super::{Entry, Target, WeightsMap};
use crate::check::constant::Const;
use crate::diag::{Diagnostic, did_you_mean};
use crate::elaborate::Elab;
use crate::elaborate::frame::{Body, Frame};
use crate::elaborate::instance::InstanceId;
use crate::elaborate::value::{Bound, StaticVal, Val};
use crate::ir::{DimId, StateKind};
use crate::resolve::{Entity, ItemRef, MAIN, ModuleId};
use crate::source::Span;
use crate::syntax::ast::{
    DefKind, Expr, Group, ItemKind, LoopRange, TrainKind, Weights, WeightsBlock, WeightsKind, WeightsLine,
};
use crate::types::counted;
use indexmap::{IndexMap, IndexSet};

/// At most so many entries in one map.
const MAX_ENTRIES: usize = 1_000_000;

/// The walk over one item and those that its prefixes lead to.
pub(super) struct Walk<'a> {
    /// Of the items: `huggingface`.
    name: &'a str,
    entries: Vec<Entry>,
    /// Where a file name was given.
    files: IndexMap<String, Span>,
    /// The instance whose names hold, and the prefix of its file names.
    pub(super) here: InstanceId,
    prefix: String,
}

impl<'a> Elab<'a> {
    /// Checks all `weights` items of a walked model, and the names in its `load`s. Returns the maps.
    pub fn check_weights(&mut self, model: ItemRef, root: InstanceId) -> Vec<WeightsMap> {
        let names: Vec<(&'a str, Span)> = (self.items_of(model).into_iter())
            .map(|at| (&*self.weights_item(at).name.text, self.weights_item(at).name.span))
            .collect();
        self.unknown_owners();
        let mut required = self.loads(model, &names);
        let mut out = Vec::new();
        for (name, span) in names {
            let Some(map) = self.weights_named(model, root, name, None) else { continue };
            let needed = required.swap_remove(name).flatten();
            self.check_cover(&map, needed.as_ref(), span);
            out.push(map);
        }
        out
    }

    /// The map of one item of a walked model, without the check that nothing is missing.
    pub fn weights_named(
        &mut self,
        model: ItemRef,
        root: InstanceId,
        name: &str,
        at: Option<Span>,
    ) -> Option<WeightsMap> {
        let all = self.items_of(model);
        let Some(item) = all.iter().copied().find(|i| self.weights_item(*i).name.text == name) else {
            let names: Vec<&str> = all.iter().map(|i| &*self.weights_item(*i).name.text).collect();
            self.no_map(model, name, &names, at);
            return None;
        };
        let errors = self.sink.error_count();
        let w = self.weights_item(item);
        let mut walk =
            Walk { name: &w.name.text, entries: Vec::new(), files: IndexMap::new(), here: root, prefix: String::new() };
        let frame = self.weights_frame(root, item, None)?;
        self.within(frame, |e| e.weights_block(&w.body, &mut walk));
        let map = WeightsMap { name: name.to_string(), entries: walk.entries, slots: super::slots(&self.b.graph) };
        (self.sink.error_count() == errors).then_some(map)
    }

    fn weights_item(&self, at: ItemRef) -> &'a Weights {
        match &self.program.item(at).kind {
            ItemKind::Weights(w) => w,
            other => unreachable!("not a weights item: {other:?}"),
        }
    }

    fn all_items(&self, module: ModuleId) -> Vec<ItemRef> {
        let items = &self.program.module(module).ast.items;
        let found = items.iter().enumerate().filter(|(_, i)| matches!(i.kind, ItemKind::Weights(_)));
        found.map(|(i, _)| ItemRef { module, item: i as u32, sub: 0 }).collect()
    }

    /// The items of the main file that are written for a model.
    fn items_of(&mut self, model: ItemRef) -> Vec<ItemRef> {
        let mut all = self.all_items(MAIN);
        all.retain(|i| {
            let of = &self.weights_item(*i).of.text;
            self.entity(MAIN, of) == Some(Entity::Model(model))
        });
        all
    }

    /// The item `name` for a layer: of the main file, else of the layer's own.
    fn item_of_layer(&mut self, name: &str, def: ItemRef) -> Option<ItemRef> {
        [MAIN, def.module].into_iter().find_map(|m| {
            self.all_items(m).into_iter().find(|i| {
                let w = self.weights_item(*i);
                w.name.text == name && self.entity(m, &w.of.text) == Some(Entity::Def(def))
            })
        })
    }

    fn unknown_owners(&mut self) {
        for at in self.all_items(MAIN) {
            let of = &self.weights_item(at).of;
            let names = &self.program.module(MAIN).names;
            let layer = |at: ItemRef| self.program.def(at).kind == DefKind::Layer;
            match names.get(&of.text).map(|b| b.entity) {
                Some(Entity::Model(_)) => {}
                Some(Entity::Def(d)) if layer(d) => {}
                Some(_) => self.error(
                    Diagnostic::error("E0206", format!("`{}` is neither a model nor a layer", of.text))
                        .at(of.span, "has no parameters of its own")
                        .help("write `weights name of Model { .. }`, or of a layer"),
                ),
                None if self.program.is_lost(MAIN, &of.text) => {}
                None => {
                    let near = did_you_mean(&of.text, names.keys().map(String::as_str));
                    let d = Diagnostic::error("E0201", format!("unknown model or layer `{}`", of.text))
                        .at(of.span, "not defined here");
                    self.error(match near {
                        Some(n) => d.help(format!("did you mean `{n}`?")),
                        None => d.help("define the model in this file; layers may be imported"),
                    });
                }
            }
        }
    }

    fn no_map(&mut self, model: ItemRef, name: &str, names: &[&str], at: Option<Span>) {
        let model = self.program.model(model).name.text.clone();
        let mut d = Diagnostic::error("E0201", format!("model `{model}` has no weights item `{name}`"));
        if let Some(span) = at {
            d = d.at(span, "unknown weights item");
        }
        self.error(match did_you_mean(name, names.iter().copied()) {
            Some(n) => d.help(format!("did you mean `{n}`?")),
            None if names.is_empty() => d.help(format!("write `weights {name} of {model} {{ .. }}`")),
            None => d.help(format!("its weights items: {}", names.join(", "))),
        });
    }

    /// What the model's `load`s need of each map: parameters that they select (None: all).
    #[allow(clippy::type_complexity)]
    fn loads(&mut self, model: ItemRef, names: &[(&'a str, Span)]) -> IndexMap<String, Option<IndexSet<Target>>> {
        let mut out: IndexMap<String, Option<IndexSet<Target>>> = IndexMap::new();
        let known: Vec<&str> = names.iter().map(|n| n.0).collect();
        let all: Vec<_> = (0..self.b.graph.params.len() as u32).map(crate::ir::ParamId).collect();
        let trains = self.program.main_items(|i| match i {
            ItemKind::Train(t) => Some(t),
            _ => None,
        });
        for t in trains {
            if self.entity(MAIN, &t.model.text) != Some(Entity::Model(model)) {
                continue;
            }
            for line in &t.lines {
                let TrainKind::Load { with: Some(name), on, .. } = &line.kind else { continue };
                if !known.contains(&&*name.text) {
                    self.no_map(model, &name.text, &known, Some(name.span));
                    continue;
                }
                let selected = on.as_ref().map(|s| self.select(s, &all, &[]));
                let before = out.entry(name.text.clone()).or_insert_with(|| Some(IndexSet::new()));
                match (selected, before) {
                    (Some(params), Some(set)) => set.extend(params.into_iter().map(Target::Param)),
                    (None, before) => *before = None,
                    (Some(_), None) => {}
                }
            }
        }
        out
    }

    /// Every parameter and state exactly once. `needed`: what the file's `load`s select; None: all.
    fn check_cover(&mut self, map: &WeightsMap, needed: Option<&IndexSet<Target>>, span: Span) {
        let faults = cover::faults(map, &|t| needed.is_none_or(|n| n.contains(&t)));
        let mut lacking: Vec<String> = Vec::new();
        let mut first: Option<Span> = None;
        for (k, fault) in faults {
            let slot = &map.slots[k];
            let declared = match slot.target {
                Target::Param(p) => self.b.graph.params[p.index()].span,
                Target::State(s) => self.b.graph.states[s.index()].span,
            };
            match fault {
                Fault::Missing => lacking.push(slot.path.clone()),
                Fault::Partly(n) => lacking.push(format!("{} (in part: {n} elements)", slot.path)),
                Fault::Twice(a, b) => {
                    let (a, b) = (&map.entries[a], &map.entries[b]);
                    let d = Diagnostic::error("E0707", format!("`{}` is written twice", slot.path))
                        .at(b.span, format!("by `{}` here", b.file_name));
                    let d = if a.span == b.span {
                        d.with_note(format!("and by `{}` of the same line", a.file_name))
                    } else {
                        d.and(a.span, format!("and by `{}` here", a.file_name))
                    };
                    self.error(d.help("every element of a parameter stands in one entry"));
                    continue;
                }
            }
            first = first.or(declared);
        }
        let Some(path) = lacking.first() else { return };
        let others = match lacking.len() - 1 {
            0 => String::new(),
            1 => " and one other".to_string(),
            n => format!(" and {n} others"),
        };
        let mut d = Diagnostic::error("E0706", format!("`{}` has no entry for `{path}`{others}", map.name))
            .at(span, "does not cover the model");
        if let Some(s) = first {
            d = d.and(s, "declared here");
        }
        if lacking.len() > 1 {
            let more: Vec<&str> = lacking.iter().skip(1).take(8).map(String::as_str).collect();
            d = d.with_note(format!("also without an entry: {}", more.join(", ")));
        }
        self.error(d.help("add entries, or load fewer parameters: `load \"..\" with .. on \"glob\"`"));
    }

    // ---- frames

    /// The names of an instance's layer: dims, local dims, settings; then those of the item's file.
    fn weights_frame(&mut self, id: InstanceId, item: ItemRef, from: Option<Span>) -> Option<Frame> {
        let of = &self.weights_item(item).of;
        let mut frame = self.open_frame(item.module, Body::File, &of.text);
        // Dims of the item belong to it, as local dims belong to a definition.
        frame.def = Some(item);
        frame.called_from = from;
        let instance = self.instance(id).clone();
        for (name, value) in &instance.statics {
            if let StaticVal::Dim(set) = value {
                frame.dims.insert(name.clone(), (set.clone(), instance.span));
            }
        }
        for (name, (set, span)) in &instance.dims {
            frame.dims.insert(name.clone(), (set.clone(), *span));
        }
        if matches!(self.program.item(instance.def).kind, ItemKind::Def(_)) {
            let bound = Bound { def: instance.def, statics: instance.statics, span: instance.span };
            self.bind_settings(&mut frame, &bound)?;
        }
        Some(frame)
    }

    // ---- lines

    fn weights_block(&mut self, block: &'a WeightsBlock, walk: &mut Walk<'a>) {
        self.frame().scopes.push(IndexMap::new());
        let dims = self.frame().dims.len();
        for line in &block.lines {
            self.weights_line(line, walk);
        }
        self.frame().dims.truncate(dims);
        self.frame().scopes.pop();
    }

    fn weights_line(&mut self, line: &'a WeightsLine, walk: &mut Walk<'a>) {
        match &line.kind {
            WeightsKind::Dims(dims) => dims.iter().for_each(|d| self.local_dim(d)),
            WeightsKind::If { cond, then, other } => match self.constant(cond) {
                Some(Const::Bool(true)) => self.weights_block(then, walk),
                Some(Const::Bool(false)) => {
                    if let Some(b) = other {
                        self.weights_block(b, walk);
                    }
                }
                Some(c) => self.error(
                    Diagnostic::error("E0309", "a condition is a bool")
                        .at(cond.span, format!("this is {}", c.kind()))
                        .help("compare it: `x != 0`"),
                ),
                None => {}
            },
            WeightsKind::For { var, over, body } => {
                let Some((lo, hi)) = self.weights_range(over) else { return };
                if !self.few_turns(lo, hi, line.span) {
                    return;
                }
                for turn in lo..hi {
                    if !self.spend_turn(line.span) {
                        return;
                    }
                    let errors = self.sink.error_count();
                    self.frame().scopes.push(IndexMap::new());
                    self.define(var, Val::Const(Const::int(turn)), true);
                    self.weights_block(body, walk);
                    self.frame().scopes.pop();
                    // Further turns would only repeat the errors of this one.
                    if self.sink.error_count() > errors {
                        return;
                    }
                }
            }
            WeightsKind::Prefix { prefix, instance } => self.weights_prefix(prefix, instance, line.span, walk),
            WeightsKind::Entry { file_name, axes, value } => {
                self.weights_entry(file_name, axes, value, line.span, walk);
            }
        }
    }

    fn weights_range(&mut self, over: &'a LoopRange) -> Option<(i64, i64)> {
        match over {
            LoopRange::Dim(name) => {
                let set = self.dim(name)?;
                Some((0, self.b.graph.elements(&set.ids) as i64))
            }
            LoopRange::Range(lo, hi) => {
                let (a, b) = (self.constant(lo)?, self.constant(hi)?);
                match (a.as_int(), b.as_int()) {
                    (Some(a), Some(b)) => Some((a, b)),
                    _ => {
                        self.error(
                            Diagnostic::error("E0312", "a range goes over whole numbers")
                                .at(lo.span.to(hi.span), "not whole")
                                .help("write whole numbers: `0..4`"),
                        );
                        None
                    }
                }
            }
        }
    }

    fn weights_prefix(&mut self, prefix: &'a (String, Span), instance: &'a Expr, span: Span, walk: &mut Walk<'a>) {
        let Some(text) = self.file_name(&prefix.0, prefix.1) else { return };
        let id = match self.weights_path(instance, walk) {
            Some(Found::Instance(id)) => id,
            Some(Found::Leaf(_)) => {
                self.error(
                    Diagnostic::error("E0206", "a prefix stands for an instance of a layer")
                        .at(instance.span, "this is a parameter")
                        .and(prefix.1, "the prefix")
                        .help("give the order of axes: `\"name\": [dims] = parameter`"),
                );
                return;
            }
            None => return,
        };
        let def = self.instance(id).def;
        let layer = self.program.def(def).name.text.clone();
        let Some(item) = self.item_of_layer(walk.name, def) else {
            self.error(
                Diagnostic::error("E0201", format!("layer `{layer}` has no weights item `{}`", walk.name))
                    .at(instance.span, format!("an instance of `{layer}`"))
                    .help(format!("write `weights {} of {layer} {{ .. }}`, or its entries here", walk.name)),
            );
            return;
        };
        let Some(frame) = self.weights_frame(id, item, Some(span)) else { return };
        let before = (walk.here, walk.prefix.len());
        walk.here = id;
        walk.prefix.push_str(&text);
        let body = &self.weights_item(item).body;
        // Instances nest and do not recur, so this ends.
        self.within(frame, |e| e.weights_block(body, walk));
        walk.here = before.0;
        walk.prefix.truncate(before.1);
    }

    fn weights_entry(
        &mut self,
        name: &'a (String, Span),
        axes: &'a [Group],
        value: &'a Expr,
        span: Span,
        walk: &mut Walk<'a>,
    ) {
        let text = self.file_name(&name.0, name.1);
        let v = self.weights_value(value, walk);
        let mut order: Option<Vec<Vec<DimId>>> = Some(Vec::new());
        for g in axes {
            match (self.group_dims(g), &mut order) {
                (Some(d), Some(o)) => o.push(d),
                _ => order = None,
            }
        }
        let (Some(text), Some(v), Some(order)) = (text, v, order) else { return };
        let file_name = format!("{}{text}", walk.prefix);
        if walk.entries.len() >= MAX_ENTRIES {
            self.error(
                Diagnostic::error("E0410", format!("a weights map of more than {MAX_ENTRIES} entries"))
                    .at(span, "the limit was passed here")
                    .help("stack the tensors of a loop in the file, or map a part of the model"),
            );
            return;
        }
        if let Some(first) = walk.files.insert(file_name.clone(), span) {
            let d = Diagnostic::error("E0707", format!("the file's tensor `{file_name}` is named twice"))
                .at(name.1, "named a second time");
            let d = if first == span { d.with_note("in another turn of the loop") } else { d.and(first, "first here") };
            self.error(d.help("use the loop's variable in the name: `{i}`"));
            return;
        }
        let Some((shape, strides)) = self.axis_strides(&v.axes, &order, axes, value.span) else { return };
        walk.entries.push(Entry { file_name, shape, pieces: v.pieces(&strides), span });
    }

    /// The file's shape, and its stride along each of the value's axes.
    fn axis_strides(
        &mut self,
        own: &[Axis],
        order: &[Vec<DimId>],
        written: &[Group],
        value: Span,
    ) -> Option<(Vec<usize>, Vec<usize>)> {
        let listed: Vec<DimId> = order.iter().flatten().copied().collect();
        let has: Vec<DimId> = own.iter().map(|a| a.dim).collect();
        for (group, dims) in written.iter().zip(order) {
            let extra = dims.iter().find(|d| !has.contains(d) && self.b.graph.size(**d) != 1);
            if let Some(d) = extra {
                let (n, shown) = (self.dim_name(*d), self.show_dims(&has));
                let size = self.b.graph.size(*d);
                let same: Vec<DimId> =
                    has.iter().copied().filter(|h| !listed.contains(h) && self.b.graph.size(*h) == size).collect();
                let mut e = Diagnostic::error("E0708", format!("the value has no axis `{n}`"))
                    .at(group.span, format!("`{n}` has {}", counted(size, "element")))
                    .and(value, format!("the value has {shown}"));
                e = match &same[..] {
                    [one] => e.help(format!("write `{}`, the value's dim of that size", self.dim_name(*one))),
                    _ => e.help("list the value's dims in the order of the file's axes"),
                };
                self.error(e);
                return None;
            }
        }
        let span = written.iter().map(|g| g.span).reduce(|a, b| a.to(b)).unwrap_or(value);
        if let Some(d) = crate::elaborate::dims::twice(&listed) {
            let n = self.dim_name(d);
            self.error(
                Diagnostic::error("E0708", format!("axis `{n}` is listed twice"))
                    .at(span, "every axis once")
                    .help("remove one"),
            );
            return None;
        }
        let missing: Vec<DimId> = has.iter().copied().filter(|d| !listed.contains(d)).collect();
        if !missing.is_empty() {
            let (m, shown) = (self.show_dims(&missing), self.show_dims(&has));
            self.error(
                Diagnostic::error("E0708", format!("the file's axes lack {m}"))
                    .at(span, "the order of axes in the file")
                    .and(value, format!("the value has {shown}"))
                    .help("list all of the value's dims; parentheses flatten several into one axis"),
            );
            return None;
        }
        let size = |d: &DimId| self.b.graph.size(*d);
        let shape = order.iter().map(|g| g.iter().map(size).product()).collect();
        let stride_of = |d: &DimId| {
            let place = listed.iter().position(|l| l == d).map_or(0, |p| p + 1);
            listed[place..].iter().map(size).product()
        };
        Some((shape, has.iter().map(stride_of).collect()))
    }

    /// A parameter's or state's dims.
    pub(super) fn target_axes(&self, t: Target) -> Vec<Axis> {
        let graph = &self.b.graph;
        let dims = match t {
            Target::Param(p) => &graph.params[p.index()].dims,
            Target::State(s) => {
                debug_assert_eq!(graph.states[s.index()].kind, StateKind::Model);
                &graph.states[s.index()].dims
            }
        };
        dims.iter().map(|d| Axis { dim: *d, size: graph.size(*d) }).collect()
    }
}
