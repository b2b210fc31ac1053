//! Where partial values are reduced: on a minimum cut of what depends on them linearly.
//!
//! Per atom, over the forward and backward program together (one graph of classes, so once for all turns of a loop in the source). Sources: operations that
//! make a value partial. A partial value may be handed on by an operation that is linear in it and whose other operands can be
//! had whole along the atom. Sinks: all other uses, outputs, and values that go from one turn of a loop to another (all turns
//! run one program). The price of reducing at a value is the bytes from partial to its layout. The cheapest cut is taken; of several one at
//! a value that is reduced over an earlier atom too, else the one nearest to the sources.

use super::explain::Reduced;
use super::facts::State;
use super::nest::Along;
use crate::ir::*;
use crate::mesh::Atom;
use crate::types::{MapOp, ReduceKind};
use indexmap::IndexMap;
use std::collections::{HashMap, HashSet, VecDeque};

/// A value is partial over an atom when it is made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Part {
    pub atom: Atom,
    pub kind: ReduceKind,
    /// Its users have it partial, too; otherwise it is reduced where it is made.
    pub rides: bool,
}

pub fn place_reductions(s: &mut State<'_>) {
    let atoms: Vec<Atom> = s.mesh.atoms().collect();
    let uses = Uses::new(s);
    for a in atoms {
        let mut region = Region::new(s, &uses, a);
        let riding = region.settled(s, &uses);
        for (class, kind) in &region.sources {
            s.partial[*class].push(Part { atom: a, kind: *kind, rides: riding.contains(class) });
        }
        // Made partial by what they are made of.
        let reached = region.edges.iter().filter(|(from, _)| riding.contains(from)).map(|(_, to)| *to);
        let reached: HashSet<usize> = reached.collect();
        for class in &region.members {
            if reached.contains(class) && !region.sources.contains_key(class) {
                s.partial[*class].push(Part { atom: a, kind: ReduceKind::Sum, rides: riding.contains(class) });
            }
        }
        let told = region.told(s);
        s.regions.push(told);
    }
}

/// By class of values: the operations that use it, with the number of the operand; and whether it leaves the program.
struct Uses {
    of: Vec<Vec<(OpId, usize)>>,
    /// How often values of the class leave the program or a turn.
    leaves: Vec<u32>,
    /// By class of the sum at the end of a turn: classes of the carry and of the loop's result, which are partial like it.
    sums: HashMap<usize, Vec<[usize; 2]>>,
}

impl Uses {
    fn new(s: &State<'_>) -> Uses {
        let count = s.classes.first.len();
        let mut u = Uses { of: vec![Vec::new(); count], leaves: vec![0; count], sums: HashMap::new() };
        for id in &s.classes.speakers {
            for (i, a) in s.g.op(*id).args.iter().enumerate() {
                u.of[s.classes.class(*a)].push((*id, i));
            }
        }
        let results = s.g.blocks.iter().flat_map(|b| &b.results);
        for v in s.g.outputs.iter().map(|o| &o.value).chain(results) {
            u.leaves[s.classes.class(*v)] += 1;
        }
        for id in &s.classes.speakers {
            u.accumulators(s, s.g.op(*id));
        }
        u
    }

    /// Carries from 0 to which each turn adds, and that nothing else reads.
    fn accumulators(&mut self, s: &State<'_>, op: &Operation) {
        let Op::Loop { body, carries, .. } = op.op else { return };
        let block = s.g.block(body);
        for c in 0..carries as usize {
            let (carry, end) = (s.classes.class(block.params[1 + c]), s.classes.class(block.results[c]));
            let adds = s.g.def_op(block.results[c]).is_some_and(|o| {
                o.op == Op::Map(MapOp::Add) && o.args.iter().filter(|a| **a == block.params[1 + c]).count() == 1
            });
            let twice = block.results.iter().filter(|v| **v == block.results[c]).count() > 1;
            if adds && !twice && self.of[carry].len() == 1 && self.of[end].is_empty() && is_zero(s.g, op.args[c]) {
                self.leaves[end] -= 1;
                self.sums.entry(end).or_default().push([carry, s.classes.class(op.results[c])]);
            }
        }
    }
}

/// Whether a value is 0 everywhere.
pub fn is_zero(g: &Graph, v: ValueId) -> bool {
    match g.def_op(v) {
        Some(Operation { op: Op::Broadcast { .. }, args, .. }) => is_zero(g, args[0]),
        Some(Operation { op: Op::Constant(Constant::Splat(x)), .. }) => *x == 0.0,
        _ => false,
    }
}

/// What an operation is to one partial operand.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Linear {
    No,
    /// Other operands are coefficients.
    Product,
    /// Other operands are summands.
    Sum,
}

/// Whether an operation is linear in an operand.
pub fn linear(g: &Graph, op: &Operation, i: usize) -> Linear {
    use Linear::{No, Product, Sum};
    match &op.op {
        Op::Map(m) => match m {
            MapOp::Add | MapOp::Sub => Sum,
            MapOp::Neg | MapOp::Mul => Product,
            MapOp::Div if i == 0 => Product,
            MapOp::Where if i > 0 => Sum,
            MapOp::Cast(t) => {
                let from = g.value(op.args[0]).dtype;
                if from.is_float() && t.is_float() && t.bytes() >= from.bytes() { Product } else { No }
            }
            _ => No,
        },
        Op::Broadcast { .. } | Op::Reshape { .. } | Op::StopGradient | Op::Dot { .. } => Product,
        Op::Reduce { kind: ReduceKind::Sum, .. } => Product,
        Op::Window { fill, .. } if i == 0 && *fill == 0.0 => Product,
        Op::Fold { .. } => Product,
        Op::Gather { .. } | Op::Scatter { kind: ReduceKind::Sum, .. } if i == 0 => Product,
        Op::Concat { .. } | Op::Stack { .. } => Sum,
        Op::Scan { kind: crate::types::ScanKind::Sum, .. } => Product,
        Op::LinearScan { .. } if i == 1 => Product,
        _ => No,
    }
}

/// What depends linearly on values that are partial over an atom.
struct Region {
    atom: Atom,
    sources: IndexMap<usize, ReduceKind>,
    /// In the order in which they were reached.
    members: Vec<usize>,
    /// From a value to one that is made of it.
    edges: Vec<(usize, usize)>,
    sinks: Vec<usize>,
}

impl Region {
    fn new(s: &State<'_>, uses: &Uses, atom: Atom) -> Region {
        let mut r =
            Region { atom, sources: IndexMap::new(), members: Vec::new(), edges: Vec::new(), sinks: Vec::new() };
        let mut open: VecDeque<usize> = VecDeque::new();
        let mut known = vec![false; s.classes.first.len()];
        for id in &s.classes.speakers {
            let (Some(nest), Some(cuts)) = (&s.nests[id.index()], &s.loops[s.classes.of_op[id.index()] as usize])
            else {
                continue;
            };
            for (l, cut) in nest.loops.iter().zip(cuts) {
                let Along::Contract(kind) = l.along else { continue };
                // What goes round comes back as a whole.
                let op = s.g.op(*id);
                let round = || super::ring::entry(s, op, nest, cuts).is_some_and(|e| e.atom == atom);
                if !cut.iter().any(|e| e.atom == atom) || round() {
                    continue;
                }
                for (k, v) in s.g.op(*id).results.iter().enumerate() {
                    if l.slots[nest.operands + k].is_none() {
                        let class = s.classes.class(*v);
                        r.sources.insert(class, kind);
                        if !std::mem::replace(&mut known[class], true) {
                            open.push_back(class);
                        }
                    }
                }
            }
        }
        while let Some(class) = open.pop_front() {
            r.members.push(class);
            let sums = r.sources.get(&class).is_none_or(|k| *k == ReduceKind::Sum);
            let stays = |(c, atoms): &(usize, Vec<Atom>)| {
                let totals = uses.sums.get(&class).into_iter().flatten();
                totals.clone().any(|[_, total]| total == c) && atoms.contains(&atom)
            };
            let mut sink = uses.leaves[class] > 0 || !sums || s.scattered.iter().any(stays);
            if let (false, Some(more)) = (sink, uses.sums.get(&class)) {
                for to in more.iter().flatten() {
                    r.edges.push((class, *to));
                    if !std::mem::replace(&mut known[*to], true) {
                        open.push_back(*to);
                    }
                }
            }
            for (id, i) in &uses.of[class] {
                let op = s.g.op(*id);
                if sink || s.classes.is_carried(*id, *i) || linear(s.g, op, *i) == Linear::No {
                    sink = true;
                    break;
                }
                for v in &op.results {
                    let to = s.classes.class(*v);
                    r.edges.push((class, to));
                    if !std::mem::replace(&mut known[to], true) {
                        open.push_back(to);
                    }
                }
            }
            if sink {
                r.sinks.push(class);
            }
        }
        // What stands beside a value is known only now.
        let sinks: HashSet<usize> = r.sinks.iter().copied().collect();
        for class in &r.members {
            let stuck = |(id, i): &(OpId, usize)| !carries(s, s.g.op(*id), *i, atom, &known);
            if !sinks.contains(class) && uses.of[*class].iter().any(stuck) {
                r.sinks.push(*class);
            }
        }
        r
    }

    /// The values whose users have them partial: of a cut after which no sum has one operand in parts and another one scattered.
    fn settled(&mut self, s: &State<'_>, uses: &Uses) -> HashSet<usize> {
        loop {
            let riding = self.cut(s);
            let scattered = |v: &ValueId| {
                let class = s.classes.class(*v);
                !riding.contains(&class) && s.held[class].cuts.iter().flatten().any(|e| e.atom == self.atom)
            };
            let torn = |class: &usize| uses.of[*class].iter().any(|(id, _)| s.g.op(*id).args.iter().any(scattered));
            let more: Vec<usize> = riding.iter().copied().filter(torn).collect();
            if more.is_empty() {
                return riding;
            }
            self.sinks.extend(more);
        }
    }

    /// What there is to tell of it.
    fn told(self, s: &State<'_>) -> Reduced {
        let n = s.mesh.size(self.atom) as f64;
        // Prices are in sixteenths of bytes and one more.
        let bytes = |c: &usize| (*c, doubled(s, *c, self.atom) * (n - 1.0) / n);
        let (bytes, sources) = (self.members.iter().map(bytes).collect(), self.sources.keys());
        let mut sources: Vec<usize> = sources.copied().collect();
        sources.sort_unstable();
        Reduced { atom: self.atom, sources, edges: self.edges, sinks: self.sinks, bytes }
    }

    /// The values whose users have them partial.
    fn cut(&self, s: &State<'_>) -> HashSet<usize> {
        let number: HashMap<usize, usize> = self.members.iter().enumerate().map(|(i, c)| (*c, i)).collect();
        let n = self.members.len();
        let mut net = Network::new(2 * n + 2);
        let (source, sink) = (2 * n, 2 * n + 1);
        for (i, class) in self.members.iter().enumerate() {
            net.edge(2 * i, 2 * i + 1, price(s, *class, self.atom));
        }
        for class in self.sources.keys() {
            net.edge(source, 2 * number[class], u64::MAX);
        }
        for (from, to) in &self.edges {
            net.edge(2 * number[from] + 1, 2 * number[to], u64::MAX);
        }
        for class in &self.sinks {
            net.edge(2 * number[class] + 1, sink, u64::MAX);
        }
        net.saturate(source, sink);
        let reached = net.reached(source);
        self.members.iter().enumerate().filter(|(i, _)| reached[2 * i + 1]).map(|(_, c)| *c).collect()
    }
}

/// Whether an operation can hand on a partial operand.
fn carries(s: &State<'_>, op: &Operation, i: usize, atom: Atom, known: &[bool]) -> bool {
    let form = linear(s.g, op, i);
    if form == Linear::No {
        return false;
    }
    (op.args.iter().enumerate()).filter(|(j, _)| *j != i).all(|(_, a)| {
        let class = s.classes.class(*a);
        let cut = s.held[class].cuts.iter().flatten().any(|e| e.atom == atom);
        match form {
            Linear::Product => !known[class] && !cut,
            _ => known[class] || !cut,
        }
    })
}

/// Twice the bytes, of one value of a class, that reducing it over an atom takes in all microbatches: a scatter takes half of a
/// whole reduction.
fn doubled(s: &State<'_>, class: usize, atom: Atom) -> f64 {
    let v = s.classes.first[class];
    let held = &s.held[class];
    let others = held.cuts.iter().flatten().filter(|e| e.atom != atom);
    let whole = s.g.bytes(v) as f64 / others.map(|e| s.mesh.size(e.atom) as f64).product::<f64>();
    let scattered = held.cuts.iter().flatten().any(|e| e.atom == atom);
    (if scattered { whole } else { 2.0 * whole }) * s.trips[s.g.value(v).block.index()]
}

/// What it costs to reduce a class of values over an atom.
fn price(s: &State<'_>, class: usize, atom: Atom) -> u64 {
    let bytes = doubled(s, class, atom) * f64::from(s.classes.count[class]);
    // Of equal values one that is reduced over another atom anyway: the two are one collective.
    let joint = s.partial[class].iter().any(|p| !p.rides);
    bytes as u64 * 64 + if joint { 1 } else { 2 }
}

/// How often each block runs.
pub fn trips(g: &Graph) -> Vec<f64> {
    let mut trips = vec![1.0; g.blocks.len()];
    let mut open = vec![ENTRY];
    while let Some(block) = open.pop() {
        for id in &g.block(block).ops {
            if let Op::Loop { body, dim, .. } = g.op(*id).op {
                trips[body.index()] = trips[block.index()] * g.size(dim) as f64;
                open.push(body);
            }
        }
    }
    trips
}

/// A flow network.
struct Network {
    to: Vec<usize>,
    left: Vec<u64>,
    from: Vec<Vec<usize>>,
}

impl Network {
    fn new(nodes: usize) -> Network {
        Network { to: Vec::new(), left: Vec::new(), from: vec![Vec::new(); nodes] }
    }

    /// An edge and, next to it, its reverse.
    fn edge(&mut self, a: usize, b: usize, capacity: u64) {
        for (x, y, c) in [(a, b, capacity), (b, a, 0)] {
            self.from[x].push(self.to.len());
            self.to.push(y);
            self.left.push(c);
        }
    }

    fn saturate(&mut self, source: usize, sink: usize) {
        while let Some(path) = self.path(source, sink) {
            let least = path.iter().map(|e| self.left[*e]).min().unwrap_or(0);
            for e in path {
                if self.left[e] != u64::MAX {
                    self.left[e] -= least;
                }
                let back = &mut self.left[e ^ 1];
                *back = back.saturating_add(least);
            }
        }
    }

    /// A shortest path along which something can flow.
    fn path(&self, source: usize, sink: usize) -> Option<Vec<usize>> {
        let mut by: Vec<Option<usize>> = vec![None; self.from.len()];
        let mut open = VecDeque::from([source]);
        let mut seen = vec![false; self.from.len()];
        seen[source] = true;
        while let Some(x) = open.pop_front() {
            if x == sink {
                let mut path = Vec::new();
                let mut at = sink;
                while let Some(e) = by[at] {
                    path.push(e);
                    at = self.to[e ^ 1];
                }
                path.reverse();
                return Some(path);
            }
            for e in &self.from[x] {
                let y = self.to[*e];
                if self.left[*e] > 0 && !std::mem::replace(&mut seen[y], true) {
                    by[y] = Some(*e);
                    open.push_back(y);
                }
            }
        }
        None
    }

    fn reached(&self, source: usize) -> Vec<bool> {
        let mut seen = vec![false; self.from.len()];
        seen[source] = true;
        let mut open = vec![source];
        while let Some(x) = open.pop() {
            for e in &self.from[x] {
                if self.left[*e] > 0 && !std::mem::replace(&mut seen[self.to[*e]], true) {
                    open.push(self.to[*e]);
                }
            }
        }
        seen
    }
}
