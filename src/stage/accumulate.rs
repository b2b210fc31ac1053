//! Gradient accumulation: rewrites a training step so that it goes through the batch in microbatches.
//!
//! In: a step's graph on the whole batch, with its updates. Out: a graph with the same parameters, states, inputs and outputs (inputs
//! have two dims for the samples, the number of the microbatch and the place in it: the same elements in the same order),
//! which computes the same values (up to the grouping of sums). What belongs to samples moves into loops over microbatches, each of
//! which takes its run of every input; totals over samples (gradients, losses, counts) are carries of these loops,
//! in f32 where the step has them in 16 bits; everything else stands between and behind the loops, once.
//!
//! Totals that a backward pass needs before it starts (the count of a masked mean) are computed by an earlier loop, which contains no
//! more of the forward pass than they need. A pass that needs a total that depends on parameters is refused (E0601): it
//! would have to run once more for each such total. Totals of totals that only metrics or updates need get loops
//! of their own after the backward pass.
//!
//! Microbatch k holds samples k * size .. (k + 1) * size; draws and positions along the samples are those of the whole batch.

use super::samplewise::{Class, Combine, Samples, classify};
use crate::diag::Diagnostic;
use crate::ir::*;
use crate::types::{DType, MapOp, ReduceKind};
use std::collections::HashMap;

/// The step in `parts` microbatches along `sample`.
pub fn accumulate(graph: &Graph, sample: DimId, parts: usize) -> Result<Graph, Box<Diagnostic>> {
    cut(graph, sample, parts, Leaving::Stacked)
}

/// The same where stages may compute the microbatches in any order: all that leaves the loop is a sum over them.
pub fn accumulate_in_stages(graph: &Graph, sample: DimId, parts: usize) -> Result<Graph, Box<Diagnostic>> {
    cut(graph, sample, parts, Leaving::Summed)
}

/// How outputs that are of samples leave the loop.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Leaving {
    /// Microbatch by microbatch.
    Stacked,
    /// As sums of arrays that are 0 but for a microbatch's part.
    Summed,
}

fn cut(graph: &Graph, sample: DimId, parts: usize, leaving: Leaving) -> Result<Graph, Box<Diagnostic>> {
    let Dim { name, size, .. } = graph.dim(sample);
    if parts == 0 || !size.is_multiple_of(parts) {
        let why = format!("the size {size} of the sample dim `{name}` does not divide into {parts} microbatches");
        let cure = format!("choose a number of microbatches that divides {size}");
        return Err(Box::new(Diagnostic::error("E0304", why).help(cure)));
    }
    let graph = prune::prune(graph);
    if parts == 1 {
        return Ok(graph);
    }
    let samples = Samples::discover(&graph, sample, parts);
    persistent(&graph, &samples)?;
    let classes = classify(&graph, &samples)?;
    let mut facts = Facts::new(&graph, &classes);
    facts.check()?;
    let schedule = Schedule::new(&graph, &classes, &facts);
    let result = Emission::new(&graph, &samples, &classes, &schedule, (parts, leaving)).emit();
    Ok(prune::prune(&result))
}

/// Truth values are added up as numbers.
fn summed_in(dtype: DType) -> DType {
    if dtype == DType::Bool { DType::I32 } else { dtype }
}

/// The name of the dim of a sample dim's places in a microbatch.
fn part_name(dim: &str) -> String {
    format!("{dim}.part")
}

/// The dim of the places in a microbatch of a sample dim, in a graph in microbatches.
pub fn part_of(graph: &Graph, dim: DimId) -> Option<DimId> {
    let name = part_name(&graph.dim(dim).name);
    graph.dims.iter().position(|d| d.name == name).map(|i| DimId(i as u32))
}

/// Parameters and states outlive microbatches, so none may have an element a sample.
fn persistent(g: &Graph, samples: &Samples) -> Result<(), Box<Diagnostic>> {
    let params = g.params.iter().map(|p| ("parameter", &p.path, &p.dims, p.span));
    let states = g.states.iter().map(|s| ("state", &s.path, &s.dims, s.span));
    for (what, path, dims, span) in params.chain(states) {
        let Some(d) = dims.iter().find(|d| samples.contains(**d)) else { continue };
        let message = format!("{what} `{path}` has the sample dim `{}`, which microbatches cut", g.dim(*d).name);
        let d = Diagnostic::error("E0601", message).help("leave out `microbatches`, or give it another dim");
        return Err(Box::new(match span {
            Some(s) => d.at(s, "one element a sample"),
            None => d,
        }));
    }
    Ok(())
}

fn region(class: Class) -> bool {
    matches!(class, Class::Region(_))
}

/// Whether an operation belongs into the loops.
fn in_loops(op: &Operation, classes: &[Class]) -> bool {
    op.results.iter().any(|r| classes[r.index()] != Class::Outside)
}

/// What the values of the program's block depend on.
struct Facts<'a> {
    g: &'a Graph,
    classes: &'a [Class],
    /// How many totals stand one after another before a value.
    level: Vec<usize>,
    depends_on_params: Vec<bool>,
    /// The total by which a value depends on parameters by way of the whole batch.
    statistic: Vec<Option<OpId>>,
    /// The first operation that used such a total for samples.
    mixed: Vec<Option<OpId>>,
}

impl<'a> Facts<'a> {
    fn new(g: &'a Graph, classes: &'a [Class]) -> Facts<'a> {
        let n = g.values.len();
        let (level, depends_on_params) = (vec![0; n], vec![false; n]);
        let (statistic, mixed) = (vec![None; n], vec![None; n]);
        let mut f = Facts { g, classes, level, depends_on_params, statistic, mixed };
        for id in &g.block(ENTRY).ops {
            f.operation(*id);
        }
        f
    }

    fn operation(&mut self, id: OpId) {
        let op = self.g.op(id);
        let args = || op.args.iter().map(|a| a.index());
        let level = args().map(|a| self.level[a]).max().unwrap_or(0);
        let on_params = reads_params(self.g, op) || args().any(|a| self.depends_on_params[a]);
        let statistic = args().find_map(|a| self.statistic[a]);
        let mixed = args().find_map(|a| self.mixed[a]);
        for r in &op.results {
            let i = r.index();
            self.level[i] = level;
            self.depends_on_params[i] = on_params;
            match self.classes[i] {
                Class::Outside => self.statistic[i] = statistic,
                Class::Region(_) => {
                    self.statistic[i] = statistic;
                    self.mixed[i] = mixed.or(statistic.map(|_| id));
                }
                Class::Total(_) => {
                    self.level[i] = level + 1;
                    self.statistic[i] = statistic.or(on_params.then_some(id));
                }
            }
        }
    }

    /// No backward pass may need, for its samples, what depends on parameters by way of the whole batch.
    fn check(&mut self) -> Result<(), Box<Diagnostic>> {
        for id in &self.g.block(ENTRY).ops {
            let op = self.g.op(*id);
            if op.phase != Phase::Backward || !in_loops(op, self.classes) {
                continue;
            }
            if let Some(total) = op.args.iter().find_map(|a| self.statistic[a.index()]) {
                let mixed = op.args.iter().find_map(|a| self.mixed[a.index()]);
                return Err(self.complaint(total, mixed));
            }
        }
        Ok(())
    }

    fn complaint(&self, total: OpId, mixed: Option<OpId>) -> Box<Diagnostic> {
        let d = Diagnostic::error("E0601", "a value of the whole batch would be cut by microbatches");
        let span = |id: OpId| self.g.op(id).span;
        let forward = mixed.filter(|id| self.g.op(*id).phase == Phase::Forward).and_then(span);
        let d = match (forward, span(total)) {
            (Some(at), Some(t)) if t != at => {
                d.at(at, "each sample depends on the whole batch here").and(t, "the value of the whole batch")
            }
            (Some(at), _) => d.at(at, "each sample depends on the whole batch here"),
            (None, Some(t)) => d.at(t, "a loss depends on this value of the whole batch other than linearly"),
            (None, None) => d,
        };
        Box::new(d.help(
            "leave out `microbatches`, or write `samples NAME in N slices` in the train item, with a multiple of the microbatches: \
             then statistics are per slice",
        ))
    }
}

pub(super) fn reads_params(g: &Graph, op: &Operation) -> bool {
    match op.op {
        Op::Param(_) => true,
        Op::Loop { body, .. } => g.block(body).ops.iter().any(|id| reads_params(g, g.op(*id))),
        _ => false,
    }
}

/// Which loop computes what; the last one as much as it can, so that an earlier one repeats as little as possible.
struct Schedule {
    loops: usize,
    /// For values outside of samples and totals: the loop before which they must be there.
    due: Vec<usize>,
}

impl Schedule {
    fn new(g: &Graph, classes: &[Class], facts: &Facts<'_>) -> Schedule {
        let totals = (0..classes.len()).filter(|i| matches!(classes[*i], Class::Total(_)));
        let loops = totals.map(|i| facts.level[i]).max().unwrap_or(0).max(1);
        let mut due = vec![usize::MAX; classes.len()];
        // For values of samples: the first loop that computes them.
        let mut first = vec![usize::MAX; classes.len()];
        for o in &g.outputs {
            let i = o.value.index();
            if region(classes[i]) {
                first[i] = loops - 1;
            } else {
                due[i] = loops;
            }
        }
        for id in g.block(ENTRY).ops.iter().rev() {
            let op = g.op(*id);
            let time = |r: &ValueId| match classes[r.index()] {
                Class::Region(_) => first[r.index()],
                Class::Total(_) => due[r.index()].saturating_sub(1),
                Class::Outside => due[r.index()],
            };
            let Some(at) = op.results.iter().map(time).min() else { continue };
            for a in &op.args {
                let slot = if region(classes[a.index()]) { &mut first } else { &mut due };
                slot[a.index()] = slot[a.index()].min(at);
            }
        }
        Schedule { loops, due }
    }
}

/// What a carry adds up: the sum of some totals.
struct Joined {
    total: ValueId,
    combine: Combine,
    parts: Vec<ValueId>,
    /// Sums of some of the parts on the way to the total, which nothing else reads.
    between: Vec<ValueId>,
}

impl Joined {
    /// With another one, to which it is added.
    fn join(&mut self, other: Joined, sum: ValueId) {
        // A part is made in the loop; what was joined before is made nowhere.
        let made_before = [(self.parts.len(), self.total), (other.parts.len(), other.total)];
        self.between.extend(made_before.into_iter().filter(|(parts, _)| *parts > 1).map(|(_, total)| total));
        self.between.extend(other.between);
        self.parts.extend(other.parts);
        self.total = sum;
    }
}

struct Emission<'a> {
    g: &'a Graph,
    samples: &'a Samples,
    classes: &'a [Class],
    schedule: &'a Schedule,
    b: Builder,
    leaving: Leaving,
    /// The loops' dim.
    turns: DimId,
    /// The number of the microbatch in what is fed and drawn.
    which: DimId,
    /// In the loop under construction: the number of its microbatch.
    turn: Option<ValueId>,
    /// A sample dim -> the dim of a microbatch's part.
    local: HashMap<DimId, DimId>,
    /// New values for old ones: outside and totals.
    outer: HashMap<ValueId, ValueId>,
    /// In the loop under construction: values of samples, and the start of the microbatch along each sample dim.
    inner: HashMap<ValueId, ValueId>,
    starts: HashMap<DimId, ValueId>,
}

impl<'a> Emission<'a> {
    fn new(
        g: &'a Graph,
        samples: &'a Samples,
        classes: &'a [Class],
        schedule: &'a Schedule,
        (parts, leaving): (usize, Leaving),
    ) -> Emission<'a> {
        let mut b = Builder::new(Graph {
            dims: g.dims.clone(),
            params: g.params.clone(),
            states: g.states.clone(),
            inputs: g.inputs.clone(),
            scopes: g.scopes.clone(),
            blocks: vec![Block::default()],
            ..Graph::default()
        });
        let turns = b.add_dim("microbatches", parts, false);
        let which = b.add_dim("microbatch", parts, false);
        let mut local = HashMap::new();
        for (d, size) in &samples.dims {
            let Dim { name, ragged, .. } = g.dim(*d).clone();
            local.insert(*d, b.add_dim(&part_name(&name), *size, ragged));
        }
        let (outer, inner, starts) = (HashMap::new(), HashMap::new(), HashMap::new());
        let mut e = Emission {
            g,
            samples,
            classes,
            schedule,
            b,
            leaving,
            turns,
            which,
            turn: None,
            local,
            outer,
            inner,
            starts,
        };
        // Microbatches stand one after another in what is fed.
        for i in 0..g.inputs.len() {
            e.b.graph.inputs[i].dims = e.divided(&g.inputs[i].dims);
        }
        e
    }

    fn emit(mut self) -> Graph {
        for k in 0..self.schedule.loops {
            self.outside(k);
            self.microbatches(k);
        }
        self.outside(self.schedule.loops);
        for o in &self.g.outputs {
            self.b.span = o.span;
            let value = self.outer[&o.value];
            self.b.output(o.kind, &o.name, value);
        }
        self.b.finish()
    }

    fn stamp(&mut self, op: &Operation) {
        (self.b.span, self.b.scope, self.b.phase) = (op.span, op.scope, op.phase);
    }

    /// What must be there before loop `k` and belongs to no loop.
    fn outside(&mut self, k: usize) {
        for id in &self.g.block(ENTRY).ops {
            let op = self.g.op(*id);
            let due = |r: &ValueId| self.schedule.due[r.index()] <= k && !self.outer.contains_key(r);
            if in_loops(op, self.classes) || !op.results.iter().any(due) {
                continue;
            }
            let mut map = std::mem::take(&mut self.outer);
            self.copy(op, &mut map, false);
            self.outer = map;
        }
    }

    /// The loop that computes the totals due next, and with the last one the outputs that are of samples.
    fn microbatches(&mut self, k: usize) {
        let last = k + 1 == self.schedule.loops;
        let mut totals: Vec<(ValueId, Combine)> = Vec::new();
        for id in &self.g.block(ENTRY).ops {
            for r in &self.g.op(*id).results {
                if let Class::Total(c) = self.classes[r.index()]
                    && self.schedule.due[r.index()] == k + 1
                {
                    totals.push((*r, c));
                }
            }
        }
        let mut collected: Vec<(ValueId, DimId)> = Vec::new();
        for o in self.g.outputs.iter().filter(|_| last) {
            match self.classes[o.value.index()] {
                Class::Region(Some(d)) if !collected.contains(&(o.value, d)) => collected.push((o.value, d)),
                Class::Region(None) if !totals.iter().any(|t| t.0 == o.value) => totals.push((o.value, Combine::Same)),
                _ => {}
            }
        }
        if totals.is_empty() && collected.is_empty() {
            return;
        }
        let targets = totals.iter().map(|t| t.0).chain(collected.iter().map(|c| c.0));
        let needed = self.needed(targets.collect());
        let totals = self.joined(totals);

        let mut initial = Vec::new();
        for Joined { total: v, combine, .. } in &totals {
            self.stamp(self.g.def_op(*v).expect("totals are results"));
            let Value { dtype, dims, .. } = self.g.value(*v);
            let start = identity(*combine, *dtype);
            initial.push(self.b.splat_of(start, accumulated_in(*dtype), dims));
        }
        let summed = self.leaving == Leaving::Summed;
        for (v, _) in collected.iter().filter(|_| summed) {
            self.stamp(self.g.def_op(*v).expect("outputs of samples are results"));
            let Value { dtype, dims, .. } = self.g.value(*v);
            let own = dims.iter().map(|d| self.local.get(d).copied().unwrap_or(*d));
            let dims: Vec<DimId> = std::iter::once(self.turns).chain(own).collect();
            initial.push(self.b.splat_of(0.0, summed_in(*dtype), &dims));
        }
        let frame = self.b.begin_loop(self.turns, false, &initial);
        self.inner.clear();
        self.turn = Some(frame.turn);
        self.starts.clear();
        (self.b.span, self.b.scope, self.b.phase) = (None, ROOT, Phase::Forward);
        for (d, size) in &self.samples.dims {
            let start = self.b.map_scalar(MapOp::Mul, frame.turn, *size as f64);
            self.starts.insert(*d, start);
        }
        for id in needed {
            // Totals that are due earlier are there; their parts of this loop are its own.
            let mut map = std::mem::take(&mut self.inner);
            self.copy(self.g.op(id), &mut map, true);
            self.inner = map;
        }
        let mut next = Vec::new();
        for (i, Joined { total: v, combine, parts, .. }) in totals.iter().enumerate() {
            self.stamp(self.g.def_op(*v).expect("totals are results"));
            let so_far = frame.carries[i];
            let own: Vec<ValueId> = parts.iter().map(|p| self.inner[p]).collect();
            let part = own[1..].iter().fold(own[0], |sum, p| self.b.add(sum, *p));
            let part = self.b.cast(part, self.b.dtype(so_far));
            next.push(match combine {
                Combine::Same => part,
                Combine::Reduce(kind) => self.b.map(kind.combining(), &[so_far, part]),
            });
        }
        let mut pieces: Vec<ValueId> = collected.iter().map(|(v, _)| self.inner[v]).collect();
        if summed {
            for ((v, _), piece) in collected.iter().zip(std::mem::take(&mut pieces)) {
                self.stamp(self.g.def_op(*v).expect("outputs of samples are results"));
                let so_far = frame.carries[next.len()];
                let own = self.b.iota(self.turns);
                let own = self.b.map(MapOp::Eq, &[own, frame.turn]);
                let piece = self.b.cast(piece, summed_in(self.b.dtype(piece)));
                let piece = self.b.broadcast(piece, &[self.turns]);
                let none = self.b.scalar(0.0, self.b.dtype(piece));
                let part = self.b.select(own, piece, none);
                next.push(self.b.add(so_far, part));
            }
        }
        let (mut finals, mut stacked) = self.b.end_loop(frame, &next, &pieces);
        stacked.extend(finals.drain(totals.len()..));
        for (Joined { total: v, between, .. }, total) in totals.iter().zip(finals) {
            self.stamp(self.g.def_op(*v).expect("totals are results"));
            let dtype = self.g.value(*v).dtype;
            let total = self.b.cast(total, dtype);
            between.iter().chain([v]).for_each(|v| _ = self.outer.insert(*v, total));
        }
        for ((v, d), pieces) in collected.iter().zip(stacked) {
            self.stamp(self.g.def_op(*v).expect("outputs of samples are results"));
            let pieces = self.b.cast(pieces, self.g.value(*v).dtype);
            let whole = self.b.reshape(&[(vec![self.turns, self.local[d]], vec![*d])], pieces);
            self.outer.insert(*v, whole);
        }
    }

    /// Totals that are only added to one another are one total: a parameter that is used twice has one gradient.
    fn joined(&self, totals: Vec<(ValueId, Combine)>) -> Vec<Joined> {
        let g = self.g;
        let mut uses = vec![0u32; g.values.len()];
        let leaving = g.outputs.iter().map(|o| &o.value).chain(g.blocks.iter().flat_map(|b| &b.results));
        g.ops.iter().flat_map(|o| &o.args).chain(leaving).for_each(|v| uses[v.index()] += 1);
        let alone = |(total, combine)| Joined { total, combine, parts: vec![total], between: Vec::new() };
        let mut all: Vec<Joined> = totals.into_iter().map(alone).collect();
        for id in &g.block(ENTRY).ops {
            let op = g.op(*id);
            let (Op::Map(MapOp::Add), [a, b]) = (&op.op, &op.args[..]) else { continue };
            let sum = op.results[0];
            let at = |v: &ValueId| {
                let alike = g.value(*v).dims == g.value(sum).dims && g.value(*v).dtype == g.value(sum).dtype;
                let found = all.iter().position(|t| t.total == *v && t.combine == Combine::Reduce(ReduceKind::Sum));
                found.filter(|_| alike && uses[v.index()] == 1)
            };
            if let (Some(i), Some(j)) = (at(a), at(b)) {
                let other = std::mem::replace(&mut all[j], alone((sum, Combine::Same)));
                all[i].join(other, sum);
                all.remove(j);
            }
        }
        all
    }

    /// The operations of the loops that some values need, in order.
    fn needed(&self, targets: Vec<ValueId>) -> Vec<OpId> {
        let mut wanted = vec![false; self.g.values.len()];
        for v in targets {
            wanted[v.index()] = true;
        }
        let mut ops = Vec::new();
        for id in self.g.block(ENTRY).ops.iter().rev() {
            let op = self.g.op(*id);
            if op.results.iter().any(|r| wanted[r.index()]) && in_loops(op, self.classes) {
                ops.push(*id);
                for a in op.args.iter().filter(|a| region(self.classes[a.index()])) {
                    wanted[a.index()] = true;
                }
            }
        }
        ops.reverse();
        ops
    }

    /// What stands for an old value where operations are emitted now.
    fn find(&self, v: ValueId, map: &HashMap<ValueId, ValueId>, at_top: bool) -> ValueId {
        let known = if at_top && !region(self.classes[v.index()]) { self.outer.get(&v) } else { map.get(&v) };
        *known.or_else(|| map.get(&v)).expect("operands are emitted before their use")
    }

    /// Repeats an operation of the program's block, outside (`cut` false) or in the loop (`cut` true).
    fn copy(&mut self, op: &Operation, map: &mut HashMap<ValueId, ValueId>, cut: bool) {
        let args: Vec<ValueId> = op.args.iter().map(|a| self.find(*a, map, cut)).collect();
        self.repeat(op, &args, map, cut);
    }

    fn repeat(&mut self, op: &Operation, args: &[ValueId], map: &mut HashMap<ValueId, ValueId>, cut: bool) {
        self.stamp(op);
        let results = match op.op {
            Op::Loop { body, dim, reverse, carries } => {
                self.repeat_loop(op, args, map, cut, (body, dim, reverse, carries as usize))
            }
            Op::Param(_) | Op::State(_) | Op::Input(_) | Op::Constant(Constant::Elements(_)) | Op::Random { .. }
                if cut =>
            {
                // All of it, of which the microbatch takes its run.
                let Value { dtype, dims, .. } = self.g.value(op.results[0]);
                let (dtype, dims) = (*dtype, self.divided(dims));
                let whole = match &op.op {
                    Op::Random { dist, stream, dims } => {
                        Op::Random { dist: *dist, stream: *stream, dims: self.divided(dims) }
                    }
                    other => other.clone(),
                };
                let whole = self.b.emit(whole, args, &[(dtype, dims)])[0];
                vec![self.run_of(whole)]
            }
            Op::Iota(d) if cut && self.samples.contains(d) => {
                let place = self.b.iota(self.local[&d]);
                vec![self.b.add(place, self.starts[&d])]
            }
            _ => {
                let types = self.types(op, cut);
                let local = &self.local;
                let mapped = op.op.map_dims(&mut |d| if cut { local.get(&d).copied().unwrap_or(d) } else { d });
                self.b.emit(mapped, args, &types)
            }
        };
        for (old, new) in op.results.iter().zip(results) {
            if let Some(name) = &self.g.value(*old).name {
                self.b.name(new, name);
            }
            map.insert(*old, new);
        }
    }

    fn repeat_loop(
        &mut self,
        op: &Operation,
        args: &[ValueId],
        map: &mut HashMap<ValueId, ValueId>,
        cut: bool,
        (body, dim, reverse, carries): (BlockId, DimId, bool, usize),
    ) -> Vec<ValueId> {
        let block = self.g.block(body);
        let frame = self.b.begin_loop(dim, reverse, &args[..carries]);
        map.insert(block.params[0], frame.turn);
        map.extend(block.params[1..].iter().copied().zip(frame.carries.iter().chain(&args[carries..]).copied()));
        for id in &block.ops {
            let inner = self.g.op(*id);
            let args: Vec<ValueId> = inner.args.iter().map(|a| map[a]).collect();
            self.repeat(inner, &args, map, cut);
        }
        self.stamp(op);
        let all: Vec<ValueId> = block.results.iter().map(|r| map[r]).collect();
        let (finals, collected) = self.b.end_loop(frame, &all[..carries], &all[carries..]);
        [finals, collected].concat()
    }

    fn types(&self, op: &Operation, cut: bool) -> Vec<(DType, Vec<DimId>)> {
        let dim = |d: &DimId| if cut { self.local.get(d).copied().unwrap_or(*d) } else { *d };
        op.results
            .iter()
            .map(|r| {
                let v = self.g.value(*r);
                (v.dtype, v.dims.iter().map(dim).collect())
            })
            .collect()
    }

    /// Dims with the number of the microbatch and the place in it where the sample dim was: the same elements in the same order.
    fn divided(&self, dims: &[DimId]) -> Vec<DimId> {
        let parts = |d: &DimId| match self.local.get(d) {
            Some(local) => vec![self.which, *local],
            None => vec![*d],
        };
        dims.iter().flat_map(parts).collect()
    }

    /// The microbatch's run of a value that is divided into microbatches.
    fn run_of(&mut self, whole: ValueId) -> ValueId {
        if !self.b.dims(whole).contains(&self.which) {
            return whole;
        }
        let axis = WindowAxis { input: self.which, offset: 0, dynamic: true, terms: Vec::new() };
        let turn = self.turn.expect("a loop over microbatches is open");
        self.b.window(vec![axis], 0.0, whole, &[turn])
    }
}

fn accumulated_in(dtype: DType) -> DType {
    if dtype.bytes() == 2 { DType::F32 } else { dtype }
}

fn identity(combine: Combine, dtype: DType) -> f64 {
    match combine {
        Combine::Same => 0.0,
        Combine::Reduce(kind) => kind.neutral(dtype),
    }
}
