//! What was decided on the way, kept so that it can be told: where layouts come from, what was weighed, and what stands beside
//! each reduction.
//!
//! Values here are those of [`Story::graph`]: the whole program, with the edges on which values enter scopes.

use super::facts::{Held, Origin, State};
use super::nest::{Along, Nest, nest};
use super::reduce::Part;
use super::{Rules, Storage};
use crate::ir::*;
use crate::mesh::{Atom, Cut, Layout, Mesh, Partial};
use crate::types::ReduceKind;
use std::collections::{HashMap, HashSet, VecDeque};

/// The whole program with its layouts.
#[derive(Debug, Default)]
pub struct Story {
    pub graph: Graph,
    pub mesh: Mesh,
    pub storage: Storage,
    /// By value: its class.
    class_of: Vec<u32>,
    /// By class: the first value.
    first: Vec<ValueId>,
    held: Vec<Held>,
    partial: Vec<Vec<Part>>,
    /// By operation: its class.
    class_of_op: Vec<u32>,
    /// By class of operations.
    loops: Vec<Option<Vec<Cut>>>,
    choices: HashMap<(u32, Atom), Choice>,
    regions: Vec<Reduced>,
}

/// Where the work of an operation was cut by an atom.
#[derive(Clone, PartialEq, Debug)]
pub struct Choice {
    pub operation: OpId,
    pub atom: Atom,
    /// The number of the loop.
    pub taken: Option<usize>,
    /// What was weighed; nothing where rules agree on the loop.
    pub priced: Vec<Priced>,
}

/// What a choice takes: bytes sent per rank, times the weight of their axes, and counted twice where a gradient goes the same way back.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Priced {
    pub at: Option<usize>,
    pub bytes: f64,
    pub collectives: usize,
}

/// What is partial over an atom, by classes of values.
#[derive(Clone, Debug)]
pub struct Reduced {
    pub atom: Atom,
    pub sources: Vec<usize>,
    /// From a value to one that is made of it.
    pub edges: Vec<(usize, usize)>,
    /// Where it is reduced at the latest.
    pub sinks: Vec<usize>,
    /// What each would take to reduce: bytes sent per rank.
    pub bytes: HashMap<usize, f64>,
}

/// A step from a value to what it has its layout from.
#[derive(Clone, PartialEq, Debug)]
pub enum Link {
    /// A dim of the value is cut like that of another one, by an operation.
    Spread { value: ValueId, operation: OpId },
    /// The operation's work was cut so, which made its result so.
    Chosen { operation: OpId },
    /// A rule says so: its number.
    Rule(usize),
    /// How a parameter or state is stored: the number of the rule, of `Rules::zero`.
    Zero(usize),
    /// Nothing is known of it.
    Open,
}

impl Story {
    /// Everything but the graph.
    pub(super) fn of(s: State<'_>) -> Story {
        Story {
            graph: Graph::default(),
            mesh: s.mesh.clone(),
            storage: s.storage.clone(),
            class_of: s.classes.of_value,
            first: s.classes.first,
            held: s.held,
            partial: s.partial,
            class_of_op: s.classes.of_op,
            loops: s.loops,
            choices: s.choices,
            regions: s.regions,
        }
    }

    fn class(&self, v: ValueId) -> Option<usize> {
        self.class_of.get(v.index()).map(|c| *c as usize).filter(|c| *c < self.held.len())
    }

    /// The layout in which a value's users find it.
    pub fn layout(&self, v: ValueId) -> Layout {
        let Some(class) = self.class(v) else { return Layout::replicated(self.graph.value(v).dims.len()) };
        let riding: Vec<&Part> = self.partial[class].iter().filter(|p| p.rides).collect();
        let mut dims = self.held[class].cuts.clone();
        for cut in &mut dims {
            cut.retain(|e| !riding.iter().any(|p| p.atom == e.atom));
        }
        let mut partial: Vec<Partial> = riding.iter().map(|p| Partial { atom: p.atom, op: p.kind }).collect();
        partial.sort_unstable();
        Layout { dims, partial }
    }

    /// The names of a value's dims.
    pub fn dims(&self, v: ValueId) -> Vec<&str> {
        self.graph.value(v).dims.iter().map(|d| self.graph.dim(*d).name.as_str()).collect()
    }

    pub fn nest(&self, operation: OpId) -> Nest {
        nest(&self.graph, self.graph.op(operation))
    }

    /// How the loops of an operation are cut.
    pub fn loops(&self, operation: OpId) -> Vec<Cut> {
        let class = self.class_of_op.get(operation.index()).copied().unwrap_or(u32::MAX);
        self.loops.get(class as usize).cloned().flatten().unwrap_or_default()
    }

    /// The loop of an operation that an atom cuts.
    pub fn loop_of(&self, operation: OpId, atom: Atom) -> Option<usize> {
        self.loops(operation).iter().position(|c| c.iter().any(|e| e.atom == atom))
    }

    pub fn choice(&self, operation: OpId, atom: Atom) -> Option<&Choice> {
        self.choices.get(&(*self.class_of_op.get(operation.index())?, atom))
    }

    /// The name of a loop: of the dim that an operand or result has there.
    pub fn loop_name(&self, operation: OpId, n: &Nest, l: usize) -> String {
        let op = self.graph.op(operation);
        let slots = op.args.iter().chain(&op.results).zip(&n.loops[l].slots);
        let dim = slots.filter_map(|(v, place)| Some(self.graph.value(*v).dims[(*place)?.at])).next();
        dim.map_or_else(String::new, |d| self.graph.known_as(d).to_string())
    }

    /// The names of the dims over which an operation makes its results partial along some atoms.
    pub fn contracted(&self, operation: OpId, atoms: &[Atom]) -> Vec<String> {
        let (n, cuts) = (self.nest(operation), self.loops(operation));
        let cut = |k: usize| cuts.get(k).is_some_and(|c| c.iter().any(|e| atoms.contains(&e.atom)));
        let all = (0..n.loops.len()).filter(|k| cut(*k) && matches!(n.loops[*k].along, Along::Contract(_)));
        let mut names: Vec<String> = all.map(|k| self.loop_name(operation, &n, k)).collect();
        // Of samples that are dealt out, several dims have one name.
        names.dedup();
        names
    }

    /// How a value is reduced over an atom.
    pub fn reduction(&self, v: ValueId, atom: Atom) -> Option<ReduceKind> {
        self.partial[self.class(v)?].iter().find(|p| p.atom == atom).map(|p| p.kind)
    }

    fn region(&self, atom: Atom) -> Option<&Reduced> {
        self.regions.iter().find(|r| r.atom == atom)
    }

    /// The operations that make a value partial over an atom, by way of what it is made of.
    pub fn sources(&self, v: ValueId, atom: Atom) -> Vec<OpId> {
        let (Some(r), Some(class)) = (self.region(atom), self.class(v)) else { return Vec::new() };
        let back = |c: usize| r.edges.iter().filter(move |e| e.1 == c).map(|e| e.0).collect();
        let reached = walk(class, &back);
        let mut out: Vec<OpId> = (r.sources.iter().filter(|s| reached.contains(s)))
            .filter_map(|s| match self.graph.value(self.first[*s]).def {
                Def::Op(op, _) => Some(op),
                Def::BlockParam(_) => None,
            })
            .collect();
        out.sort_unstable();
        out.dedup();
        out
    }

    /// What it would take to reduce what a value is made of where it is made, and what is made of it where that must be: bytes
    /// sent per rank, and how many reductions.
    pub fn earliest_and_latest(&self, v: ValueId, atom: Atom) -> Option<[(f64, usize); 2]> {
        let (r, class) = (self.region(atom)?, self.class(v)?);
        let total = |classes: Vec<&usize>| {
            let bytes = classes.iter().map(|c| r.bytes.get(*c).copied().unwrap_or(0.0)).sum();
            (bytes, classes.len())
        };
        let back = |c: usize| r.edges.iter().filter(move |e| e.1 == c).map(|e| e.0).collect();
        let on = |c: usize| r.edges.iter().filter(move |e| e.0 == c).map(|e| e.1).collect();
        let (before, after) = (walk(class, &back), walk(class, &on));
        let sources = r.sources.iter().filter(|s| before.contains(s)).collect();
        let sinks = r.sinks.iter().filter(|s| after.contains(s)).collect();
        Some([total(sources), total(sinks)])
    }

    /// What a value has an atom on one of its dims from.
    pub fn link(&self, v: ValueId, at: usize, atom: Atom, rules: &Rules) -> Link {
        let Some(class) = self.class(v) else { return Link::Open };
        match self.held[class].origin[at] {
            Origin::Fact(k) => Link::Rule(k),
            Origin::Closed => self.closed(v, at, atom, rules),
            Origin::From(value, operation) => Link::Spread { value, operation },
            Origin::Chosen(operation) => Link::Chosen { operation },
            Origin::Open => Link::Open,
        }
    }

    fn closed(&self, v: ValueId, at: usize, atom: Atom, rules: &Rules) -> Link {
        let dim = self.graph.value(v).dims[at];
        let says = |k: &usize| {
            let pin = &rules.pins[*k];
            pin.dim == dim && pin.entries.iter().any(|e| e.atom == atom)
        };
        let general = |k: &usize| says(k) && rules.pins[*k].place.is_none();
        let all = || 0..rules.pins.len();
        if let Some(k) = all().find(general).or_else(|| all().find(says)) {
            return Link::Rule(k);
        }
        match rules.zero.iter().position(|z| z.atoms.contains(&atom)) {
            Some(k) => Link::Zero(k),
            None => Link::Open,
        }
    }

    /// The dim of another value that an operation ties to a dim of this one.
    pub fn same_dim(&self, operation: OpId, v: ValueId, at: usize, other: ValueId) -> Option<usize> {
        let op = self.graph.op(operation);
        let all: Vec<ValueId> = op.args.iter().chain(&op.results).copied().collect();
        let n = self.nest(operation);
        let is = |a: ValueId, b: ValueId| a == b || self.class(a) == self.class(b);
        for l in &n.loops {
            let has = |w: ValueId, place: Option<usize>| {
                let slots = all.iter().zip(&l.slots).filter(|(x, _)| is(**x, w));
                slots.filter_map(|(_, p)| Some((*p)?.at)).find(|a| place.is_none_or(|p| p == *a))
            };
            if has(v, Some(at)).is_some() {
                return has(other, None);
            }
        }
        let d = self.graph.value(v).dims[at];
        self.graph.value(other).dims.iter().position(|x| *x == d)
    }

    /// Whether a rule says that a dim of a value is not cut.
    pub fn is_replicated_by_rule(&self, v: ValueId, at: usize) -> bool {
        let Some(class) = self.class(v) else { return false };
        let h = &self.held[class];
        h.cuts[at].is_empty() && matches!(h.origin[at], Origin::Fact(_))
    }
}

fn walk(from: usize, next: &dyn Fn(usize) -> Vec<usize>) -> HashSet<usize> {
    let mut reached = HashSet::from([from]);
    let mut open = VecDeque::from([from]);
    while let Some(c) = open.pop_front() {
        for n in next(c) {
            if reached.insert(n) {
                open.push_back(n);
            }
        }
    }
    reached
}
