//! Operations as loop nests: which dims of its operands and results belong together, and what it does along each.
//!
//! The whole of what sharding knows of an operation; propagation, assignment and emission are the same for all.

use super::halo;
use crate::ir::*;
use crate::types::{ReduceKind, ScanKind};

/// What happens along a loop.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Along {
    /// Turns are independent, and the result has the dim.
    Parallel,
    /// Turns are independent and the result has the dim, but a turn reads, or adds to, elements around its own.
    Shifted,
    /// Each turn goes on from the one before it; blocks of turns are joined by what each comes to.
    Chained,
    /// The result lacks the dim: what turns give is combined.
    Contract(ReduceKind),
    /// The result lacks the dim: the best of each block are gathered, and the best of these are taken.
    Picked,
    /// Turns need each other: it cannot be cut.
    Whole,
}

/// A dim of an operand or result that a loop goes along.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// Which of the slot's dims.
    pub at: usize,
    /// How many of its elements a turn covers: more than one of a dim that is split or merged with others minor to it.
    pub scale: u32,
    /// How many blocks of its dim loops major to this one make: what is left of a block is this one's only if it is cut into so many.
    pub skip: u32,
}

#[derive(Clone, PartialEq, Debug)]
pub struct Loop {
    pub along: Along,
    /// Number of turns.
    pub extent: usize,
    /// By slot: operands, then results.
    pub slots: Vec<Option<Place>>,
}

/// How strongly an operation ties its dims together: the level of propagation on which it takes part.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Tie {
    /// Elementwise, renamed, cast.
    Same,
    /// Split, merged, sliced, padded, joined.
    Moved,
    /// Contracted, reduced, gathered.
    Nest,
}

#[derive(Clone, PartialEq, Debug)]
pub struct Nest {
    pub loops: Vec<Loop>,
    pub tie: Tie,
    /// Number of operands: the slots before results.
    pub operands: usize,
}

/// The value of a slot.
pub fn slot_value(op: &Operation, slot: usize) -> ValueId {
    if slot < op.args.len() { op.args[slot] } else { op.results[slot - op.args.len()] }
}

struct Maker<'a> {
    g: &'a Graph,
    op: &'a Operation,
    nest: Nest,
}

/// The nest of an operation; loops at run time have none.
pub fn nest(g: &Graph, op: &Operation) -> Nest {
    let tie = match &op.op {
        Op::Map(_) | Op::Broadcast { .. } | Op::StopGradient => Tie::Same,
        Op::Reshape { groups } if groups.iter().all(|(a, b)| a.len() == 1 && b.len() == 1) => Tie::Same,
        Op::Reshape { .. } | Op::Window { .. } | Op::Fold { .. } | Op::Concat { .. } | Op::Stack { .. } => Tie::Moved,
        _ => Tie::Nest,
    };
    let mut m = Maker { g, op, nest: Nest { loops: Vec::new(), tie, operands: op.args.len() } };
    m.build();
    m.nest
}

impl Maker<'_> {
    fn build(&mut self) {
        use Along::{Chained, Contract, Parallel, Picked, Whole};
        match &self.op.op {
            Op::Param(_)
            | Op::State(_)
            | Op::Input(_)
            | Op::Constant(_)
            | Op::Iota(_)
            | Op::Random { .. }
            | Op::Step
            | Op::Position
            | Op::Coordinate(_)
            | Op::Map(_)
            | Op::Broadcast { .. }
            | Op::StopGradient => {
                self.rest(Parallel);
            }
            Op::Reduce { kind, dims } => {
                // Of the places that ranks find the first one counts.
                let along = match kind {
                    ReduceKind::ArgMax | ReduceKind::ArgMin => Contract(ReduceKind::Min),
                    kind => Contract(*kind),
                };
                dims.iter().for_each(|d| self.by_name(*d, along));
                self.rest(Parallel);
            }
            Op::Dot { contract } => {
                contract.iter().for_each(|d| self.by_name(*d, Contract(ReduceKind::Sum)));
                self.rest(Parallel);
            }
            Op::Reshape { groups } => self.reshape(groups),
            Op::Window { axes, .. } => self.windows(axes, 0, self.op.args.len()),
            Op::Fold { axes } => self.windows(axes, 1, 0),
            Op::Gather { dims, .. } => {
                // A contraction with a one-hot of the index.
                for d in dims {
                    self.only(&[0], *d, Contract(ReduceKind::Sum));
                }
                self.rest_but(Parallel, &[(0, dims)]);
            }
            Op::Scatter { kind, removed, targets } => {
                // A dim may be summed over and be that of the targets, too: these are two loops.
                let result = self.op.args.len();
                let operands: Vec<usize> = (0..result).collect();
                for d in removed {
                    self.only(&operands, *d, Contract(*kind));
                }
                for d in targets {
                    self.only(&[result], *d, Parallel);
                }
                self.rest_but(Parallel, &[(result, targets)]);
            }
            Op::Concat { parts, to } => {
                parts.iter().for_each(|d| self.by_name(*d, Whole));
                self.by_name(*to, Whole);
                self.rest(Parallel);
            }
            Op::Scan { kind: ScanKind::ArgMax, dim, .. } | Op::Stack { dim } | Op::ArgSort { dim } => {
                self.by_name(*dim, Whole);
                self.rest(Parallel);
            }
            Op::Scan { dim, .. } | Op::LinearScan { dim, .. } => {
                self.by_name(*dim, Chained);
                self.rest(Parallel);
            }
            Op::TopK { dim, k } => {
                self.only(&[0], *dim, Picked);
                self.only(&[1], *k, Whole);
                self.rest(Parallel);
            }
            Op::PackPlace { packed, .. } => {
                packed.iter().for_each(|d| self.by_name(*d, Whole));
                self.rest(Parallel);
            }
            // What is drawn depends on the place among all rows.
            Op::Draw { .. } => self.rest(Whole),
            Op::Attention(a) => {
                self.whole_of_attention(a);
                self.rest(Parallel);
            }
            Op::AttentionGrad(a) => {
                self.whole_of_attention(a);
                // Queries and rows add to the cotangents of keys and values that they share.
                let shared: Vec<DimId> = {
                    let keys = &self.g.value(self.op.args[1]).dims;
                    let q = &self.g.value(self.op.args[0]).dims;
                    q.iter().copied().filter(|d| !keys.contains(d) && *d != a.feature && *d != a.key).collect()
                };
                shared.iter().for_each(|d| self.by_name(*d, Contract(ReduceKind::Sum)));
                self.rest(Parallel);
            }
            Op::WriteAt { dim, part } => {
                self.by_name(*dim, Whole);
                self.by_name(*part, Whole);
                self.rest(Parallel);
            }
            Op::Collective(_) | Op::Loop { .. } => {}
        }
    }

    /// A window's input goes with that dim of the places which goes along it.
    fn windows(&mut self, axes: &[WindowAxis], input: usize, places: usize) {
        for a in axes {
            let Some(main) = halo::along(self.g, a) else {
                self.only(&[input], a.input, Along::Whole);
                a.terms.iter().for_each(|(d, _)| self.only(&[places], *d, Along::Whole));
                continue;
            };
            let d = a.terms[main].0;
            let mut slots = vec![None; self.values().count()];
            slots[input] = self.find(self.values().nth(input).expect("a slot"), a.input);
            slots[places] = self.find(self.values().nth(places).expect("a slot"), d);
            self.nest.loops.push(Loop { along: Along::Shifted, extent: self.g.size(d), slots });
            a.terms.iter().for_each(|(d, _)| self.only(&[places], *d, Along::Whole));
        }
        self.rest(Along::Parallel);
    }

    fn whole_of_attention(&mut self, a: &Attention) {
        for d in [a.key, a.feature, a.value] {
            self.by_name(d, Along::Whole);
        }
    }

    fn values(&self) -> impl Iterator<Item = &Vec<DimId>> {
        self.op.args.iter().chain(&self.op.results).map(|v| &self.g.value(*v).dims)
    }

    fn find(&self, slot: &[DimId], d: DimId) -> Option<Place> {
        slot.iter().position(|x| *x == d).map(|at| Place { at, scale: 1, skip: 1 })
    }

    /// A loop over all slots that have the dim, unless there is one.
    fn by_name(&mut self, d: DimId, along: Along) {
        let slots: Vec<Option<Place>> = self.values().map(|dims| self.find(dims, d)).collect();
        self.add(d, along, slots);
    }

    /// A loop over the dim in some slots alone.
    fn only(&mut self, which: &[usize], d: DimId, along: Along) {
        let slots = self.values().enumerate();
        let slots = slots.map(|(i, dims)| if which.contains(&i) { self.find(dims, d) } else { None }).collect();
        self.add(d, along, slots);
    }

    fn add(&mut self, d: DimId, along: Along, slots: Vec<Option<Place>>) {
        let taken = |i: usize, p: &Place| self.nest.loops.iter().any(|l| l.slots[i].is_some_and(|q| q.at == p.at));
        let fresh = slots.iter().enumerate().any(|(i, p)| p.as_ref().is_some_and(|p| !taken(i, p)));
        if fresh {
            self.nest.loops.push(Loop { along, extent: self.g.size(d), slots });
        }
    }

    /// Loops over all dims that have none yet.
    fn rest(&mut self, along: Along) {
        self.rest_but(along, &[]);
    }

    /// The same; dims in `but` of a slot belong to other loops.
    fn rest_but(&mut self, along: Along, but: &[(usize, &[DimId])]) {
        let mut all: Vec<DimId> = Vec::new();
        for (i, dims) in self.values().enumerate() {
            for d in dims {
                let held = but.iter().any(|(slot, held)| *slot == i && held.contains(d));
                if !held && !all.contains(d) {
                    all.push(*d);
                }
            }
        }
        for d in all {
            let slots = self.values().enumerate().map(|(i, dims)| {
                let held = but.iter().any(|(slot, held)| *slot == i && held.contains(&d));
                if held { None } else { self.find(dims, d) }
            });
            let slots = slots.collect();
            self.add(d, along, slots);
        }
    }

    /// The major dims of each group go together; those minor to them, where one dim becomes or was several, as far as the major ones are cut
    /// into single elements.
    fn reshape(&mut self, groups: &[(Vec<DimId>, Vec<DimId>)]) {
        let (x, y) = (self.g.value(self.op.args[0]).dims.clone(), self.g.value(self.op.results[0]).dims.clone());
        for (from, to) in groups {
            let (Some(a), Some(b)) = (from.first(), to.first()) else {
                from.iter().chain(to).for_each(|d| self.by_name(*d, Along::Whole));
                continue;
            };
            let rest = |dims: &[DimId]| dims[1..].iter().map(|d| self.g.size(*d)).product::<usize>();
            let (under_a, under_b) = (rest(from), rest(to));
            // A turn covers as much as both can be cut by.
            let step = lcm(under_a, under_b);
            let total = self.g.size(*a) * under_a;
            let place = |dims: &[DimId], d: DimId, under: usize| {
                let at = dims.iter().position(|x| *x == d)?;
                Some(Place { at, scale: (step / under) as u32, skip: 1 })
            };
            if step <= total && total.is_multiple_of(step) {
                let slots = vec![place(&x, *a, under_a), place(&y, *b, under_b)];
                self.nest.loops.push(Loop { along: Along::Parallel, extent: total / step, slots });
            } else {
                self.by_name(*a, Along::Whole);
                self.by_name(*b, Along::Whole);
            }
            match (&from[..], &to[..]) {
                ([_], many) => self.minor((0, &x, *a), (1, &y, many)),
                (many, [_]) => self.minor((1, &y, *b), (0, &x, many)),
                _ => from[1..].iter().chain(&to[1..]).for_each(|d| self.by_name(*d, Along::Whole)),
            }
        }
        self.rest(Along::Parallel);
    }
}

impl Maker<'_> {
    /// Loops along the dims but the first that one dim is split into or merged of.
    fn minor(&mut self, (one, whole, d): (usize, &[DimId], DimId), (other, dims, many): (usize, &[DimId], &[DimId])) {
        let mut skip = 1;
        for k in 1..many.len() {
            skip *= self.g.size(many[k - 1]);
            let under: usize = many[k + 1..].iter().map(|d| self.g.size(*d)).product();
            let mut slots = vec![None; 2];
            let place = self.find(whole, d);
            slots[one] = place.map(|p| Place { scale: under as u32, skip: skip as u32, ..p });
            slots[other] = self.find(dims, many[k]);
            self.nest.loops.push(Loop { along: Along::Parallel, extent: self.g.size(many[k]), slots });
        }
    }
}

fn lcm(a: usize, b: usize) -> usize {
    let (mut x, mut y) = (a.max(1), b.max(1));
    while y != 0 {
        (x, y) = (y, x % y);
    }
    a.max(1) / x * b.max(1)
}
