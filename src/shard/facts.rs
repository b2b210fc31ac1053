//! What rules say of values: facts, the edges on which values enter a scope, and how parameters and states are stored.

use super::classes::Classes;
use super::nest::{Nest, nest};
use super::{Pin, Place, Regather, Rules, Strength, Zero};
use crate::ir::*;
use crate::mesh::{Atom, Cut, Entry, Mesh, Order, cut};
use indexmap::IndexMap;

/// How parameters and states lie between steps, by path; cuts in declared order of dims.
#[derive(Clone, Debug, Default)]
pub struct Storage {
    pub params: IndexMap<String, Stored>,
    pub states: IndexMap<String, Vec<Cut>>,
}

#[derive(Clone, PartialEq, Debug)]
pub struct Stored {
    /// As it is used, ZeRO apart.
    pub compute: Vec<Cut>,
    /// As it lies between steps.
    pub between: Vec<Cut>,
    /// As its optimizer works on it.
    pub update: Vec<Cut>,
    /// As its gradient is summed over microbatches.
    pub gradient: Vec<Cut>,
    pub regather: Regather,
}

/// Which scopes a place covers: the depth of the nearest of its bodies.
struct Reach {
    depth: Vec<Option<usize>>,
}

impl Reach {
    fn new(g: &Graph, place: Option<&Place>) -> Reach {
        let Some(place) = place else { return Reach { depth: vec![Some(0); g.scopes.len()] } };
        let mut depth: Vec<Option<usize>> = vec![None; g.scopes.len()];
        let mut level = vec![0usize; g.scopes.len()];
        for (k, s) in g.scopes.iter().enumerate() {
            let parent = s.parent.map(ScopeId::index).filter(|p| *p < k);
            level[k] = parent.map_or(0, |p| level[p] + 1);
            let own = place.roots.contains(&ScopeId(k as u32));
            depth[k] = if own { Some(level[k]) } else { parent.and_then(|p| depth[p]) };
        }
        Reach { depth }
    }
}

/// Pins as they bear on values.
struct Pins<'a> {
    rules: &'a Rules,
    reach: Vec<Reach>,
}

type Force = (Strength, bool, usize);

impl<'a> Pins<'a> {
    fn new(g: &Graph, rules: &'a Rules) -> Pins<'a> {
        Pins { rules, reach: rules.pins.iter().map(|p| Reach::new(g, p.place.as_ref())).collect() }
    }

    /// How strongly a pin speaks of a value of an operation.
    fn force(&self, k: usize, g: &Graph, op: &Operation, v: ValueId) -> Option<Force> {
        let pin: &Pin = &self.rules.pins[k];
        let Some(place) = &pin.place else { return Some((pin.strength, false, 0)) };
        if let Some(site) = place.site {
            let here = op.span == Some(site) && op.phase == Phase::Forward && place.roots.contains(&op.scope);
            return here.then_some((pin.strength, true, g.scopes.len()));
        }
        if let Some(name) = &place.named {
            let leaf = match &op.op {
                Op::Param(p) => place.params.contains(p),
                Op::State(s) => place.states.contains(s),
                _ => false,
            };
            let named =
                (place.roots.is_empty() || place.roots.contains(&op.scope)) && g.value(v).name.as_deref() == Some(name);
            return (leaf || named).then_some((pin.strength, true, g.scopes.len()));
        }
        self.reach[k].depth[op.scope.index()].map(|d| (pin.strength, false, d))
    }

    /// By dim of the value: what is said of it, and by which pin.
    fn facts(&self, g: &Graph, op: &Operation, v: ValueId) -> Vec<Option<(Cut, usize)>> {
        let dims = &g.value(v).dims;
        let mut found: Vec<Option<(usize, Force)>> = vec![None; dims.len()];
        for (k, pin) in self.rules.pins.iter().enumerate() {
            let Some(at) = dims.iter().position(|d| *d == pin.dim) else { continue };
            let Some(force) = self.force(k, g, op, v) else { continue };
            if found[at].is_none_or(|(_, f)| f < force) {
                found[at] = Some((k, force));
            }
        }
        // An atom that two dims claim goes to the stronger rule, or the dim that stands first in the value.
        let mut order: Vec<usize> = (0..dims.len()).filter(|i| found[*i].is_some()).collect();
        order.sort_by_key(|i| std::cmp::Reverse(found[*i].map(|f| f.1)));
        let mut used: Vec<Atom> = Vec::new();
        let mut out: Vec<Option<(Cut, usize)>> = vec![None; dims.len()];
        for i in order {
            let Some((k, _)) = found[i] else { continue };
            let entries = &self.rules.pins[k].entries;
            // A single element is dealt from no end.
            let single = g.size(dims[i]) < 2;
            let dealt = |e: &Entry| Entry { order: if single { Order::Block } else { e.order }, ..*e };
            let free = entries.iter().take_while(|e| !used.contains(&e.atom));
            let cut: Cut = free.map(dealt).collect();
            let displaced = !entries.is_empty() && cut.is_empty();
            used.extend(cut.iter().map(|e| e.atom));
            // A rule that has lost its atom says nothing.
            out[i] = (!displaced).then_some((cut, k));
        }
        out
    }
}

/// The graph with an operation on each edge by which a value enters a scope that rules speak of: what is pinned there is the edge and not
/// the value.
pub fn with_edges(g: &Graph, rules: &Rules) -> Graph {
    let mut out = g.clone();
    for pin in &rules.pins {
        let Some(place) = pin.place.as_ref().filter(|p| p.named.is_none() && p.site.is_none()) else { continue };
        let reach = Reach::new(&out, Some(place));
        for block in 0..out.blocks.len() {
            enter(&mut out, BlockId(block as u32), place, pin.dim, &reach.depth);
        }
    }
    out
}

fn enter(g: &mut Graph, block: BlockId, place: &Place, dim: DimId, depth: &[Option<usize>]) {
    let root_of = |g: &Graph, mut s: ScopeId| loop {
        if place.roots.contains(&s) {
            return s;
        }
        s = g.scopes[s.index()].parent.expect("a scope in reach has a root above");
    };
    let ops = std::mem::take(&mut g.blocks[block.index()].ops);
    let mut order = Vec::with_capacity(ops.len());
    // The backward pass reads the edges of the forward pass.
    let mut made: IndexMap<(ValueId, ScopeId), ValueId> = IndexMap::new();
    for id in ops {
        if g.op(id).phase != Phase::Update && depth[g.op(id).scope.index()].is_some() {
            let op = g.op(id).clone();
            for i in 0..op.args.len() {
                let a = op.args[i];
                let inside = g.def_op(a).is_some_and(|d| depth[d.scope.index()].is_some());
                // Leaves are what rules make of them.
                let leaf = g.def_op(a).is_none_or(|d| {
                    matches!(d.op, Op::Param(_) | Op::State(_) | Op::Constant(_) | Op::Iota(_)) || is_edge(d) && inside
                });
                if inside || leaf || !g.value(a).dims.contains(&dim) {
                    continue;
                }
                let value = g.value(a).clone();
                let root = root_of(g, op.scope);
                let edge = *made.entry((a, root)).or_insert_with(|| {
                    let (v, o) = (ValueId(g.values.len() as u32), OpId(g.ops.len() as u32));
                    g.values.push(Value { def: Def::Op(o, 0), name: None, ..value });
                    g.ops.push(Operation {
                        op: Op::Reshape { groups: Vec::new() },
                        args: vec![a],
                        results: vec![v],
                        block,
                        span: op.span,
                        scope: root,
                        phase: op.phase,
                        again: op.again,
                    });
                    order.push(o);
                    v
                });
                g.ops[id.index()].args[i] = edge;
            }
        }
        order.push(id);
    }
    g.blocks[block.index()].ops = order;
}

/// An operation that does nothing.
pub fn is_edge(op: &Operation) -> bool {
    matches!(&op.op, Op::Reshape { groups } if groups.is_empty())
}

/// The operation that reads each parameter and state: outside of updates, where there is one.
struct Reads {
    params: Vec<Option<OpId>>,
    states: Vec<Option<OpId>>,
}

impl Reads {
    fn new(g: &Graph) -> Reads {
        let mut out = Reads { params: vec![None; g.params.len()], states: vec![None; g.states.len()] };
        for (i, op) in g.ops.iter().enumerate() {
            let slot = match op.op {
                Op::Param(p) => &mut out.params[p.index()],
                Op::State(s) => &mut out.states[s.index()],
                _ => continue,
            };
            let better = slot.is_none_or(|o| g.op(o).phase == Phase::Update && op.phase != Phase::Update);
            if better {
                *slot = Some(OpId(i as u32));
            }
        }
        out
    }
}

/// The layouts of parameters and states that a training step has, by its rules.
pub fn storage(g: &Graph, rules: &Rules) -> Storage {
    let pins = Pins::new(g, rules);
    let mut out = Storage::default();
    let reads = Reads::new(g);
    let zero: Vec<(Reach, &Zero)> = rules.zero.iter().map(|z| (Reach::new(g, z.place.as_ref()), z)).collect();
    for (i, p) in g.params.iter().enumerate() {
        let id = ParamId(i as u32);
        let read = reads.params[i].map(|o| g.op(o));
        let compute: Vec<Cut> = match read {
            Some(op) => {
                pins.facts(g, op, op.results[0]).into_iter().map(|f| f.map(|f| f.0).unwrap_or_default()).collect()
            }
            None => vec![Cut::new(); p.dims.len()],
        };
        let shape: Vec<usize> = p.dims.iter().map(|d| g.size(*d)).collect();
        let own = zero.iter().find(|(reach, z)| match (&z.place, read) {
            (None, _) => true,
            (Some(place), Some(op)) => match place.named {
                Some(_) => place.params.contains(&id),
                None => reach.depth[op.scope.index()].is_some(),
            },
            (Some(_), None) => false,
        });
        let cut = own.map_or_else(|| compute.clone(), |(_, z)| with_zero(&rules.mesh, &shape, &compute, &z.atoms));
        let level = own.map_or(0, |(_, z)| z.level);
        let at = |least: u8| if level >= least { cut.clone() } else { compute.clone() };
        let stored = Stored {
            between: at(3),
            gradient: at(2),
            update: at(1),
            regather: own.map_or(Regather::Backward, |(_, z)| z.regather),
            compute,
        };
        out.params.insert(p.path.clone(), stored);
    }
    for (i, s) in g.states.iter().enumerate() {
        let of = s.path.split_once(':').map(|(_, param)| param);
        let owner = of.and_then(|path| out.params.get_index_of(path));
        let cuts: Vec<Cut> = match (s.kind, owner) {
            (StateKind::Model | StateKind::Scaling | StateKind::Cache | StateKind::Argument, _) | (_, None) => {
                match reads.states[i].map(|o| g.op(o)) {
                    Some(op) if op.phase != Phase::Update => {
                        let facts = pins.facts(g, op, op.results[0]);
                        facts.into_iter().map(|f| f.map(|f| f.0).unwrap_or_default()).collect()
                    }
                    _ => vec![Cut::new(); s.dims.len()],
                }
            }
            (StateKind::Latest, Some(p)) => out.params[p].between.clone(),
            (StateKind::Optimizer | StateKind::Average, Some(p)) => {
                let param = &g.params[p];
                let stored = &out.params[&param.path];
                // Dims that the parameter lacks lie as rules say of them everywhere; the others are not cut by the same again.
                let everywhere = |d: &DimId| rules.pins.iter().find(|p| p.dim == *d && p.place.is_none());
                let own = |d: &&DimId| !param.dims.contains(d);
                let taken: Vec<Entry> =
                    s.dims.iter().filter(own).filter_map(everywhere).flat_map(|p| p.entries.clone()).collect();
                let by_dim = |d: &DimId| match param.dims.iter().position(|x| x == d) {
                    Some(at) => stored.update[at].iter().filter(|e| !taken.contains(e)).copied().collect(),
                    None => everywhere(d).map_or_else(Cut::new, |p| p.entries.clone()),
                };
                s.dims.iter().map(by_dim).collect()
            }
        };
        out.states.insert(s.path.clone(), cuts);
    }
    out
}

/// The cuts with further atoms on the dim of which the parts get smallest; ties: the first dim. Atoms that have a role
/// already are left out.
fn with_zero(mesh: &Mesh, shape: &[usize], compute: &[Cut], atoms: &[Atom]) -> Vec<Cut> {
    let used = |a: &Atom| compute.iter().flatten().any(|e| e.atom == *a);
    let more: Vec<Entry> = atoms.iter().filter(|a| !used(a)).map(|a| Entry::new(*a)).collect();
    let with = |at: usize| {
        let mut cuts = compute.to_vec();
        cuts[at].extend(&more);
        cuts
    };
    let bytes = |cuts: &[Cut]| -> usize { cuts.iter().zip(shape).map(|(c, n)| cut::nominal(mesh, c, *n)).product() };
    // What is dealt from both ends is not cut further.
    let open = |at: &usize| compute[*at].last().is_none_or(|e| e.order == Order::Block);
    let best = (0..shape.len()).filter(open).map(with).min_by_key(|cuts| bytes(cuts));
    best.filter(|_| !more.is_empty()).unwrap_or_else(|| compute.to_vec())
}

/// Where a part of a layout comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Origin {
    /// Number of the pin.
    Fact(usize),
    /// The layout of a parameter, state or input, or of the gradient of one.
    Closed,
    /// From another value, through an operation.
    From(ValueId, OpId),
    /// Chosen for the operation's result.
    Chosen(OpId),
    Open,
}

/// Of a class of values: how each dim is cut.
#[derive(Clone, Debug)]
pub struct Held {
    pub cuts: Vec<Cut>,
    /// By dim: rules have spoken; it does not change.
    pub fixed: Vec<bool>,
    pub origin: Vec<Origin>,
}

/// An input, or one microbatch of it.
fn is_input(g: &Graph, op: &Operation) -> bool {
    match &op.op {
        Op::Input(_) => true,
        Op::Window { .. } => g.def_op(op.args[0]).is_some_and(|d| matches!(d.op, Op::Input(_))),
        _ => false,
    }
}

/// Parameters and states that loops read, outside and inside.
fn handed(g: &Graph) -> Vec<(ValueId, ValueId)> {
    let mut out = Vec::new();
    for op in &g.ops {
        let Op::Loop { body, carries, .. } = op.op else { continue };
        let read = op.args[carries as usize..].iter().zip(&g.block(body).params[1 + carries as usize..]);
        let leaf = |v: &ValueId| g.def_op(*v).is_some_and(|d| matches!(d.op, Op::Param(_) | Op::State(_)));
        out.extend(read.filter(|(outer, _)| leaf(outer)).map(|(outer, inner)| (*outer, *inner)));
    }
    out
}

/// Everything that is known of the program so far.
pub struct State<'a> {
    pub g: &'a Graph,
    pub mesh: &'a Mesh,
    pub storage: &'a Storage,
    /// See [`Rules::ring`].
    pub ring: &'a [Atom],
    pub classes: Classes,
    /// By class of values.
    pub held: Vec<Held>,
    /// Of a phase, by operation and level of propagation: how many entries cut its operands and results when it last was looked at.
    pub swept: (Phase, Vec<[u32; 4]>),
    /// By operation that speaks for its class; others have none.
    pub nests: Vec<Option<Nest>>,
    /// By class of operations: the cut of each loop.
    pub loops: Vec<Option<Vec<Cut>>>,
    /// By class of values: the atoms over which it is partial when it is made, and whether it stays so for its users.
    pub partial: Vec<Vec<super::reduce::Part>>,
    /// Classes of gradients that are summed over microbatches in parts, and by which atoms.
    pub scattered: Vec<(usize, Vec<Atom>)>,
    /// By class of values: whether what the losses differentiate by takes part.
    pub varies: Vec<bool>,
    /// By class of operation and atom: what was decided, to be told.
    pub choices: std::collections::HashMap<(u32, Atom), super::explain::Choice>,
    /// How often each block runs.
    pub trips: Vec<f64>,
    /// What is partial, by atom, to be told.
    pub regions: Vec<super::explain::Reduced>,
}

impl<'a> State<'a> {
    pub fn new(g: &'a Graph, rules: &'a Rules, storage: &'a Storage, classes: Classes) -> State<'a> {
        let pins = Pins::new(g, rules);
        let count = classes.first.len();
        let mut held: Vec<Held> = (classes.first.iter())
            .map(|v| {
                let n = if v.0 == u32::MAX { 0 } else { g.value(*v).dims.len() };
                Held { cuts: vec![Cut::new(); n], fixed: vec![false; n], origin: vec![Origin::Open; n] }
            })
            .collect();
        let close = |h: &mut Held, cuts: &[Cut]| {
            h.cuts = cuts.to_vec();
            h.fixed = vec![true; cuts.len()];
            h.origin = vec![Origin::Closed; cuts.len()];
        };
        for (c, v) in classes.first.iter().enumerate() {
            let Some(op) = (v.0 != u32::MAX).then(|| g.def_op(*v)).flatten() else { continue };
            match &op.op {
                Op::Param(p) => close(&mut held[c], &storage.params[&g.params[p.index()].path].compute),
                Op::State(s) => close(&mut held[c], &storage.states[&g.states[s.index()].path]),
                _ if op.phase == Phase::Update => {}
                _ => {
                    let input = is_input(g, op);
                    for (i, fact) in pins.facts(g, op, *v).into_iter().enumerate() {
                        match fact {
                            Some((cut, k)) => {
                                held[c].cuts[i] = cut;
                                held[c].fixed[i] = true;
                                held[c].origin[i] = Origin::Fact(k);
                            }
                            None if input => (held[c].fixed[i], held[c].origin[i]) = (true, Origin::Closed),
                            None => {}
                        }
                    }
                }
            }
        }
        // What a loop reads of parameters and states lies inside of it as outside.
        for (outer, inner) in handed(g) {
            let (from, to) = (classes.class(outer), classes.class(inner));
            held[to] = held[from].clone();
        }
        let mut nests: Vec<Option<Nest>> = vec![None; g.ops.len()];
        for id in &classes.speakers {
            nests[id.index()] = Some(nest(g, g.op(*id)));
        }
        let loops = vec![None; classes.of_op.iter().filter(|c| **c != u32::MAX).max().map_or(0, |m| *m as usize + 1)];
        let partial = vec![Vec::new(); count];
        let mut state = State {
            g,
            mesh: &rules.mesh,
            storage,
            ring: &rules.ring,
            classes,
            held,
            swept: (Phase::Update, Vec::new()),
            nests,
            loops,
            partial,
            scattered: Vec::new(),
            varies: vec![false; count],
            choices: Default::default(),
            trips: super::reduce::trips(g),
            regions: Vec::new(),
        };
        state.close_outputs();
        state.find_varying();
        state
    }

    pub fn held(&self, v: ValueId) -> &Held {
        &self.held[self.classes.class(v)]
    }

    /// New values of parameters and states are made as they are stored, and so is what makes them element by element:
    /// gradients and moments.
    fn close_outputs(&mut self) {
        let g = self.g;
        let mut open: Vec<(ValueId, Vec<Cut>, Vec<Atom>)> = Vec::new();
        for o in &g.outputs {
            let mut summed: Vec<Atom> = Vec::new();
            let dims = &g.value(o.value).dims;
            let (declared, cuts) = match o.kind {
                OutputKind::Param(p) | OutputKind::InitParam(p) => {
                    let p = &g.params[p.index()];
                    let stored = &self.storage.params[&p.path];
                    let cuts = if matches!(o.kind, OutputKind::Param(_)) { &stored.update } else { &stored.between };
                    let plain: Vec<Atom> = stored.compute.iter().flatten().map(|e| e.atom).collect();
                    summed = stored.gradient.iter().flatten().map(|e| e.atom).filter(|a| !plain.contains(a)).collect();
                    (&p.dims, cuts)
                }
                OutputKind::State(s) | OutputKind::InitState(s) => {
                    let s = &g.states[s.index()];
                    (&s.dims, &self.storage.states[&s.path])
                }
                OutputKind::Loss | OutputKind::Metric | OutputKind::Value => continue,
            };
            let at = |d: &DimId| declared.iter().position(|x| x == d).map(|i| cuts[i].clone()).unwrap_or_default();
            open.push((o.value, dims.iter().map(at).collect(), summed));
        }
        while let Some((v, cuts, summed)) = open.pop() {
            let class = self.classes.class(v);
            let Some(op) = g.def_op(v) else { continue };
            let leaf = matches!(op.op, Op::Param(_) | Op::State(_) | Op::Input(_));
            if leaf || self.held[class].origin.contains(&Origin::Closed) {
                continue;
            }
            let h = &mut self.held[class];
            (h.cuts, h.fixed) = (cuts.clone(), vec![true; cuts.len()]);
            h.origin = vec![Origin::Closed; cuts.len()];
            if !summed.is_empty() {
                self.scattered.push((class, summed.clone()));
            }
            let dims = &g.value(v).dims;
            if let (Op::Loop { body, carries, .. }, false) = (&op.op, summed.is_empty()) {
                // Microbatches add up parts of a gradient, not the whole.
                let block = g.block(*body);
                let k = op.results.iter().position(|r| *r == v).filter(|k| *k < *carries as usize);
                for inner in k.iter().flat_map(|k| [block.params[1 + k], block.results[*k]]) {
                    let by = |d: &DimId| dims.iter().position(|x| x == d).map_or_else(Cut::new, |i| cuts[i].clone());
                    let own: Vec<Cut> = g.value(inner).dims.iter().map(by).collect();
                    let class = self.classes.class(inner);
                    let h = &mut self.held[class];
                    (h.fixed, h.origin) = (vec![true; own.len()], vec![Origin::Closed; own.len()]);
                    h.cuts = own;
                    self.scattered.push((class, summed.clone()));
                }
            }
            let same = matches!(op.op, Op::Map(_) | Op::StopGradient);
            if op.phase != Phase::Update || !same {
                continue;
            }
            for a in &op.args {
                let own = &g.value(*a).dims;
                if own.len() == dims.len() && !dims.is_empty() {
                    let by = |d: &DimId| dims.iter().position(|x| x == d).map(|i| cuts[i].clone());
                    open.push((*a, own.iter().map(|d| by(d).unwrap_or_default()).collect(), summed.clone()));
                }
            }
        }
    }

    fn find_varying(&mut self) {
        let g = self.g;
        for block in super::classes::inner_first(g).into_iter().rev() {
            for id in &g.block(block).ops {
                let op = g.op(*id);
                let on = matches!(op.op, Op::Param(_)) || op.args.iter().any(|a| self.varies[self.classes.class(*a)]);
                for r in &op.results {
                    let class = self.classes.class(*r);
                    self.varies[class] |= on && g.value(*r).dtype.is_float();
                }
            }
        }
    }
}
