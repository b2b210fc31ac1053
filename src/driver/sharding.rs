//! A plan's layouts in terms of graphs, and the programs of a rank.

use super::findings::Outcome;
use super::options::Options;
use super::passes::internal;
use super::pipeline::Graphs;
use super::recompute::{self, Asked};
use crate::check::plan::{self as form, Gather, Link, Order};
use crate::check::replicas::Rule;
use crate::diag::{Diagnostic, Sink};
use crate::elaborate::Elab;
use crate::elaborate::plan::{self, PlanScope, ResolvedPlan, RuleKind};
use crate::inspect::unasked;
use crate::ir::{DimId, Graph, Op};
use crate::memory::Offload;
use crate::mesh::{self, Atom, Axis, Cut, Entry, Mesh};
use crate::recompute::Policy;
use crate::resolve::Program;
use crate::schedule::Table;
use crate::shard::{self, Bound, Pin, Place, Regather, Rules, Sharded, Storage, Strength, Zero};
use crate::stage;

/// How a plan spreads the graphs of a training run over ranks.
#[derive(Debug)]
pub struct Sharding {
    pub plan: ResolvedPlan,
    pub train: Rules,
    pub eval: Rules,
    /// The loops of the evaluation step that the plan's pipeline cuts.
    pub eval_loops: Vec<DimId>,
    /// The table of the pipeline, if it has several ranks, and how many turns of the loops each stage has.
    pub table: Option<(Table, Vec<u64>)>,
    pub storage: Storage,
}

/// The programs of a rank.
pub struct Programs {
    pub train: Sharded,
    pub eval: Sharded,
    pub init: Sharded,
    pub outer: Option<Sharded>,
}

impl Sharding {
    /// With the layouts that parameters and states have in the training step.
    pub fn on(mut self, train: &Graph) -> Sharding {
        // What is said of samples is said of those of a microbatch: ranks cut inside it.
        let part = |p: &Pin| Some(Pin { dim: stage::part_of(train, p.dim)?, ..p.clone() });
        let more: Vec<Pin> = self.train.pins.iter().filter_map(part).collect();
        self.train.pins.extend(more);
        if let (Some(r), Some(dim)) = (&self.plan.replicas, stage::replicas::dim_of(train)) {
            let entries = self.mesh().atoms_of(r.axis).into_iter().filter(|a| self.mesh().size(*a) > 1);
            let entries = entries.map(Entry::new).collect();
            self.train.pins.push(Pin { dim, entries, place: None, strength: Strength::Inline, span: r.span });
        }
        Sharding { storage: shard::storage(train, &self.train), ..self }
    }

    pub fn mesh(&self) -> &Mesh {
        &self.train.mesh
    }
}

/// The plan of the options against both walks of the model, none where it leaves everything on one device; and what it has computed again.
pub fn resolve(
    options: &Options,
    program: &Program,
    train: &mut Elab<'_>,
    eval: &mut Elab<'_>,
    found: &mut Sink,
) -> (Option<Sharding>, Option<Asked>, Offload) {
    let Some(Ok(ast)) = options.plan.as_ref().map(|name| plan::find(program, name)) else {
        return (None, None, Offload::default());
    };
    let (plan, sink) = train.resolve_plan(ast, &options.mesh);
    found.extend(sink);
    let Some(plan) = plan else { return (None, None, Offload::default()) };
    let asked = recompute::asked(&plan, &train.b.graph);
    let to_host = |what| plan.offload.contains(&what);
    let offload = Offload {
        activations: to_host(plan::Offload::Activations),
        optimizer: to_host(plan::Offload::Optimizer),
        parameters: to_host(plan::Offload::Parameters),
    };
    let other = eval.resolve_plan_again(ast, &options.mesh);
    // Replicas have their share of the samples by a dim of their own, which comes later.
    let mut own = plan.clone();
    if let Some(r) = plan.replicas.as_ref().filter(|r| r.rule != Rule::Stale(0)) {
        own.rules.iter_mut().for_each(|rule| rule.axes.retain(|a| *a != r.axis));
    }
    let (rules, others) = match (rules(&own, &train.b.graph), self::rules(&other, &eval.b.graph)) {
        (Ok(a), Ok(b)) => (a, b),
        (Err(d), _) | (_, Err(d)) => {
            found.push(*d);
            return (None, None, Offload::default());
        }
    };
    let many = rules.mesh.ranks() > 1;
    let eval_loops = other.pipeline.map_or_else(Vec::new, |p| p.dims);
    (
        many.then(|| Sharding {
            plan,
            train: rules,
            eval: others,
            eval_loops,
            table: None,
            storage: Storage::default(),
        }),
        asked,
        offload,
    )
}

/// How the plan of the options spreads the graphs of a sampler.
#[derive(Clone, Debug)]
pub struct Spread {
    pub rules: Rules,
    pub storage: Storage,
}

/// The plan of the options against a walk of a sample item; none where it leaves everything on one device. What of the plan
/// is about training alone says nothing here.
pub fn of_sampler(options: &Options, program: &Program, walk: &mut Elab<'_>, found: &mut Sink) -> Option<Spread> {
    let ast = plan::find(program, options.plan.as_ref()?).ok()?;
    let (_, sink) = walk.resolve_plan(ast, &options.mesh);
    let missing = |d: &Diagnostic| matches!(d.code, "E0504" | "E0201");
    sink.sorted().into_iter().filter(|d| !missing(d)).for_each(|d| found.push(d));
    let plan = walk.resolve_plan_again(ast, &options.mesh);
    match rules(&plan, &walk.b.graph) {
        Ok(rules) => (rules.mesh.ranks() > 1).then(|| Spread { rules, storage: Storage::default() }),
        Err(d) => {
            found.push(*d);
            None
        }
    }
}

impl Spread {
    /// With the layouts that parameters and states have: those of the whole graph, and caches as the first routine that reads
    /// them has them.
    pub fn on<'g>(mut self, whole: &Graph, routines: impl Iterator<Item = &'g Graph>) -> Spread {
        self.storage = shard::storage(whole, &self.rules);
        for graph in routines {
            let mut reads = vec![false; graph.states.len()];
            for op in &graph.ops {
                if let Op::State(s) = op.op {
                    reads[s.index()] = true;
                }
            }
            let own = shard::storage(graph, &self.rules);
            for (s, _) in graph.states.iter().zip(reads).filter(|(_, read)| *read) {
                self.storage.states.entry(s.path.clone()).or_insert_with(|| own.states[&s.path].clone());
            }
        }
        self
    }

    /// As a training run stores what it has, too.
    pub fn beside(&self, training: &Storage) -> Spread {
        let mut storage = self.storage.clone();
        storage.params.extend(training.params.iter().map(|(path, s)| (path.clone(), s.clone())));
        storage.states.extend(training.states.iter().map(|(path, s)| (path.clone(), s.clone())));
        Spread { rules: self.rules.clone(), storage }
    }

    /// A routine of a rank, verified.
    pub fn routine(&self, graph: &Graph) -> Outcome<Graph> {
        let mut storage = self.storage.clone();
        // What no routine reads is whole on every rank.
        for s in &graph.states {
            storage.states.entry(s.path.clone()).or_insert_with(|| vec![Cut::new(); s.dims.len()]);
        }
        let out = shard::shard(graph, &self.rules, &storage).graph;
        shard::verify(&out).map_err(|why| internal("shard sampler", &why))?;
        Ok(out)
    }
}

/// The programs of a rank, verified.
pub fn programs(g: &Graphs) -> Outcome<Option<Programs>> {
    let Some(s) = &g.sharding else { return Ok(None) };
    let init = Rules { mesh: s.train.mesh.clone(), ..Rules::default() };
    Ok(Some(Programs {
        train: one("shard train", &g.train, &s.train, s, g, g.again.as_ref())?,
        eval: one("shard eval", &g.eval, &s.eval, s, g, None)?,
        init: one("shard init", &g.init, &init, s, g, None)?,
        outer: outer(g)?,
    }))
}

/// The training step of a rank; on one device, of the only one.
pub fn train(g: &Graphs) -> Outcome<Sharded> {
    match &g.sharding {
        Some(s) => one("shard train", &g.train, &s.train, s, g, g.again.as_ref()),
        None => {
            let rules = Rules::default();
            let storage = shard::storage(&g.train, &rules);
            Ok(shard::shard(&g.train, &rules, &storage))
        }
    }
}

/// What makes replicas one, on a rank; none on one device, and without replicas that train apart.
pub fn outer(g: &Graphs) -> Outcome<Option<Sharded>> {
    let (Some(s), Some((_, outer))) = (&g.sharding, &g.outer) else { return Ok(None) };
    one("shard outer", outer, &s.train, s, g, None).map(Some)
}

/// The evaluation step of a rank; none on one device.
pub fn eval(g: &Graphs) -> Outcome<Option<Sharded>> {
    g.sharding.as_ref().map(|s| one("shard eval", &g.eval, &s.eval, s, g, None)).transpose()
}

/// A graph of a rank, with what is computed again, verified.
fn one(name: &str, graph: &Graph, rules: &Rules, s: &Sharding, g: &Graphs, again: Option<&Policy>) -> Outcome<Sharded> {
    let mut out = of_rank(graph, rules, &s.storage, again);
    shard::verify(&out.graph).map_err(|why| internal(name, &why))?;
    out.warnings.extend(unasked::warnings(&out, rules, &g.findings.sources));
    Ok(out)
}

/// The program of a rank, with what is computed again.
pub fn of_rank(graph: &Graph, rules: &Rules, storage: &Storage, again: Option<&Policy>) -> Sharded {
    let mut out = shard::spread(graph, rules, storage);
    if let Some(policy) = again {
        let origins = crate::recompute::recompute(&mut out.graph, policy);
        out.repeated(&origins, policy.span);
        out.warnings.extend(recompute::notes(&out.graph, policy));
    }
    out.ordered()
}

/// What a byte along an axis costs, relative to the fastest links.
fn weight(link: Option<Link>) -> u32 {
    match link {
        None | Some(Link::NvLink) => 1,
        Some(Link::Pcie) => 8,
        Some(Link::InfiniBand) => 10,
        Some(Link::Ethernet) => 40,
    }
}

/// The rules of a plan.
fn rules(plan: &ResolvedPlan, g: &Graph) -> Result<Rules, Box<Diagnostic>> {
    let mut mesh = Mesh::default();
    for a in &plan.mesh {
        let axis = Axis { name: a.name.clone(), atoms: vec![a.size as usize], weight: weight(a.link) };
        mesh.axes.push(axis);
    }
    for r in &plan.rules {
        if let [axis] = r.axes[..] {
            match r.dims[..] {
                [dim] => {
                    let slices = stage::slices::dims_of(g, dim).map_or(1, |[slices, _]| g.size(slices));
                    divide_by(&mut mesh, axis, slices / plan.microbatches.max(1) as usize);
                }
                [first, ..] => divide_by(&mut mesh, axis, g.size(first)),
                [] => {}
            }
        }
    }
    let mut pins = Vec::new();
    for r in &plan.rules {
        let atoms: Vec<Atom> = r.axes.iter().flat_map(|a| mesh.atoms_of(*a)).filter(|a| mesh.size(*a) > 1).collect();
        let cuts = deal(&mesh, &atoms, &r.dims, g).ok_or_else(|| {
            let sizes: Vec<String> = r.dims.iter().map(|d| g.size(*d).to_string()).collect();
            let names: Vec<&str> = r.dims.iter().map(|d| g.dim(*d).name.as_str()).collect();
            Box::new(
                Diagnostic::error(
                    "E0505",
                    format!("{} ranks do not divide {} together", mesh.group(&atoms), names.join(", ")),
                )
                .at(r.dims_span, format!("of sizes {}", sizes.join(", ")))
                .help(format!(
                    "cut one of them: `shard {} by ..` or `shard {} by ..`",
                    names[0],
                    names[names.len() - 1]
                )),
            )
        })?;
        for (dim, mut entries) in r.dims.iter().zip(cuts) {
            if let (Order::Zigzag, Some(last)) = (r.order, entries.last_mut()) {
                last.order = mesh::Order::Zigzag;
            }
            // Its atoms went to the major dims of the group, or are of one rank each: this says nothing of the dim.
            if entries.is_empty() && !r.axes.is_empty() {
                continue;
            }
            let strength = match r.kind {
                RuleKind::Statement => Strength::Statement,
                RuleKind::Layout => Strength::Layout,
                RuleKind::Inline => Strength::Inline,
            };
            let place: Option<Place> =
                r.scope.as_ref().map(|s| if r.kind == RuleKind::Inline { expression(s, g) } else { place(s, g) });
            let pin = Pin { dim: *dim, entries, place, strength, span: r.span };
            pins.extend(in_slices(&mesh, &pin, plan.microbatches, g));
            pins.push(pin);
        }
    }
    let zero = plan.zero.iter().map(|z| Zero {
        level: z.level,
        atoms: z.axes.iter().flat_map(|a| mesh.atoms_of(*a)).filter(|a| mesh.size(*a) > 1).collect(),
        place: z.scope.as_ref().map(|s| place(s, g)),
        regather: match z.regather {
            form::Regather::Backward => Regather::Backward,
            form::Regather::Never => Regather::Never,
            form::Regather::Step => Regather::Step,
        },
        span: z.span,
    });
    let ring = plan.rules.iter().filter(|r| r.gather == Some(Gather::Ring));
    let mut ring: Vec<Atom> = ring.flat_map(|r| &r.axes).flat_map(|a| mesh.atoms_of(*a)).collect();
    ring.retain(|a| mesh.size(*a) > 1);
    Ok(Rules { zero: zero.collect(), mesh, pins, ring, bounds: bounds(plan, g)? })
}

/// How long the plan lets buffers of packed rows be.
fn bounds(plan: &ResolvedPlan, g: &Graph) -> Result<Vec<Bound>, Box<Diagnostic>> {
    let mut out = Vec::new();
    for r in &plan.rules {
        let Some(factor) = r.bound else { continue };
        let dims: Vec<DimId> = r.dims.iter().copied().filter(|d| shard::bounds_some(g, *d)).collect();
        if dims.is_empty() {
            let name = &g.dim(r.dims[0]).name;
            return Err(Box::new(
                Diagnostic::error("E0506", format!("`bound` speaks of rows that are packed by `{name}`, and none are"))
                    .at(r.span, "nothing is bounded by this")
                    .help("leave out `bound`, or pack rows by the dim into a `ragged` one, as experts do"),
            ));
        }
        out.extend(dims.into_iter().map(|dim| Bound { dim, factor }));
    }
    Ok(out)
}

/// What a line on samples says of slices of samples, where statistics are taken by slice.
fn in_slices(mesh: &Mesh, pin: &Pin, microbatches: u64, g: &Graph) -> Vec<Pin> {
    let Some([slices, slice]) = stage::slices::dims_of(g, pin.dim) else { return Vec::new() };
    let mut left = g.size(slices) / microbatches.max(1) as usize;
    let (mut major, mut minor) = (Cut::new(), Cut::new());
    for e in &pin.entries {
        let size = mesh.size(e.atom);
        if minor.is_empty() && left.is_multiple_of(size) && left >= size {
            left /= size;
            major.push(*e);
        } else if left == 1 {
            minor.push(*e);
        } else {
            return Vec::new();
        }
    }
    let of = |dim, entries| Pin { dim, entries, ..pin.clone() };
    // Cut further than into single slices, a line says both; otherwise nothing of the places in a slice.
    let mut pins = vec![of(slices, major)];
    pins.extend((!minor.is_empty()).then(|| of(slice, minor)));
    pins.retain(|p| !p.entries.is_empty() || pin.entries.is_empty());
    pins
}

/// Divides an axis into two atoms where the first of several dims that it cuts as if they were one, or the number of slices of samples, is smaller
/// than it.
fn divide_by(mesh: &mut Mesh, axis: usize, n: usize) {
    let size = mesh.axes[axis].size();
    let whole = mesh.axes[axis].atoms.len() == 1;
    if whole && n > 1 && n < size && size.is_multiple_of(n) {
        mesh.axes[axis].atoms = vec![n, size / n];
    }
}

/// The atoms that each of several dims gets, which are cut as if they were one: major dims first, as far as they divide. The last dim need
/// not divide.
fn deal(mesh: &Mesh, atoms: &[Atom], dims: &[DimId], g: &Graph) -> Option<Vec<Cut>> {
    let mut cuts = vec![Cut::new(); dims.len()];
    if dims.len() == 1 {
        cuts[0] = atoms.iter().map(|a| Entry::new(*a)).collect();
        return Some(cuts);
    }
    let (mut at, mut left) = (0, g.size(dims[0]));
    for a in atoms {
        let size = mesh.size(*a);
        while left == 1 && at + 1 < dims.len() {
            at += 1;
            left = g.size(dims[at]);
        }
        if left.is_multiple_of(size) {
            left /= size;
        } else if at + 1 == dims.len() {
            left = left.div_ceil(size);
        } else {
            return None;
        }
        cuts[at].push(Entry::new(*a));
    }
    Some(cuts)
}

/// The expression that a layout is written at.
fn expression(s: &PlanScope, g: &Graph) -> Place {
    let made = s.values.first().and_then(|v| g.def_op(*v));
    Place { roots: made.iter().map(|o| o.scope).collect(), site: made.and_then(|o| o.span), ..Place::default() }
}

fn place(s: &PlanScope, g: &Graph) -> Place {
    let name = s.values.first().and_then(|v| g.value(*v).name.clone());
    let named = s.named.then(|| name.or_else(|| s.text.rsplit('.').next().map(str::to_string))).flatten();
    let leaf = !s.params.is_empty() || !s.states.is_empty() || !s.values.is_empty();
    let (params, states) = (s.params.clone(), s.states.clone());
    Place { roots: s.roots.clone(), named: named.filter(|_| leaf), site: None, params, states }
}
