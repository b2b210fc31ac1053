//! What stands behind the microbatches: gradients are reduced, measured and applied where parameters are.
//!
//! A value is at *home* on the ranks that can compute it of what they have: totals where they were added up, what reads a parameter where
//! that is held, what needs neither everywhere. What joins things of different homes is computed by all who need it, from what they are sent. Sums
//! of many such things are taken home by home first, so that a norm of all gradients sends one number from rank to rank.

use super::flat::Part;
use super::stages::Stages;
use crate::ir::*;
use crate::types::MapOp;
use std::collections::HashMap;

/// Ranks along the pipeline.
pub type Homes = u128;

pub fn bit(rank: usize) -> Homes {
    1 << rank
}

pub fn members(homes: Homes) -> impl Iterator<Item = usize> {
    (0..Homes::BITS as usize).filter(move |r| homes & bit(*r) != 0)
}

/// Where things are.
pub struct Held {
    pub ranks: usize,
    pub params: Vec<Homes>,
    pub states: Vec<Homes>,
    /// By sum.
    pub sums: Vec<Homes>,
    /// Of values of stages; without microbatches they may be read behind.
    pub values: HashMap<ValueId, usize>,
}

pub struct Behind {
    /// All operations, in order, and the place of each; the loop over microbatches, which was taken apart, has none.
    ops: Vec<OpId>,
    pub position: Vec<u32>,
    pub home: Vec<Homes>,
    /// By rank and value: how many times something had to be sent before it.
    pub level: Vec<HashMap<ValueId, usize>>,
    /// By rank: the operations that it computes, in order.
    pub computes: Vec<Vec<OpId>>,
    /// Value, from, to; in order.
    pub sends: Vec<(ValueId, usize, usize)>,
    /// By rank: outputs of the step, by number.
    pub outputs: Vec<Vec<usize>>,
    /// What a rank has added up, where several ranks have added to a sum: the value, its sum, the rank.
    pub parts: HashMap<ValueId, (usize, usize)>,
}

impl Behind {
    pub fn new(s: &mut Stages, held: &mut Held) -> Behind {
        let parts = split_totals(s, held);
        let all: Homes = if held.ranks >= 128 { Homes::MAX } else { bit(held.ranks) - 1 };
        hold_states(s, held, &parts, all);
        let mut b = Behind {
            ops: Vec::new(),
            position: Vec::new(),
            home: vec![all; s.flat.g.values.len()],
            level: vec![HashMap::new(); held.ranks],
            computes: vec![Vec::new(); held.ranks],
            sends: Vec::new(),
            outputs: vec![Vec::new(); held.ranks],
            parts,
        };
        b.find_homes(s, held, all);
        b.find_needs(s, held, all);
        b
    }

    fn find_homes(&mut self, s: &mut Stages, held: &Held, all: Homes) {
        for (v, (_, rank)) in &self.parts {
            self.home[v.index()] = bit(*rank);
        }
        for (k, sum) in s.flat.sums.iter().enumerate() {
            if let Some(rank) = members(held.sums[k]).next().filter(|_| held.sums[k].count_ones() == 1) {
                self.home[sum.total.index()] = bit(rank);
            }
        }
        for (v, rank) in &held.values {
            self.home[v.index()] = bit(*rank);
        }
        let inner = summands(&s.flat.g);
        let order = s.flat.g.block(ENTRY).ops.clone();
        let mut out = Vec::with_capacity(order.len());
        for id in order {
            let staged = s.of[id.index()].is_some() || s.adds[id.index()];
            if !staged && s.flat.part[id.index()] != Part::Body {
                // Of a sum of many the last addition, which knows all of them.
                let op = s.flat.g.op(id);
                if op.op == Op::Map(MapOp::Add) && !inner[op.results[0].index()] {
                    self.regroup(s, id, &inner, all, &mut out);
                }
                // What joins things is as good everywhere.
                let home = match self.home_of(&s.flat.g, held, id, all) {
                    0 => all,
                    h => h,
                };
                for r in s.flat.g.op(id).results.clone() {
                    self.home[r.index()] = home;
                }
            }
            out.push(id);
        }
        s.flat.g.blocks[ENTRY.index()].ops = out;
    }

    fn home_of(&self, g: &Graph, held: &Held, id: OpId, all: Homes) -> Homes {
        fn own(g: &Graph, held: &Held, op: &Operation) -> Homes {
            match &op.op {
                Op::Param(p) => held.params[p.index()],
                Op::State(s) => held.states[s.index()],
                Op::Loop { body, .. } => {
                    g.block(*body).ops.iter().fold(Homes::MAX, |h, id| h & own(g, held, g.op(*id)))
                }
                _ => Homes::MAX,
            }
        }
        let op = g.op(id);
        op.args.iter().fold(own(g, held, op) & all, |h, a| h & self.home[a.index()])
    }

    /// Has the parts of a sum that are at home on one rank added there first, where no rank has all of them. What comes of it is then
    /// everywhere, and so is what is made of it.
    fn regroup(&mut self, s: &mut Stages, root: OpId, inner: &[bool], all: Homes, out: &mut Vec<OpId>) {
        let g = &mut s.flat.g;
        let like = g.value(g.op(root).results[0]).clone();
        let (mut leaves, mut open) = (Vec::new(), g.op(root).args.clone());
        // What stages compute is there as it is.
        let behind =
            |op: OpId| s.of[op.index()].is_none() && !s.adds[op.index()] && s.flat.part[op.index()] == Part::After;
        open.reverse();
        while let Some(v) = open.pop() {
            match g.value(v).def {
                Def::Op(op, _) if inner.get(v.index()) == Some(&true) && behind(op) => {
                    open.extend(g.op(op).args.iter().rev())
                }
                _ => leaves.push(v),
            }
        }
        let alike = |v: &ValueId| g.value(*v).dims == like.dims && g.value(*v).dtype == like.dtype;
        if !leaves.iter().all(alike) {
            return;
        }
        let mut groups: Vec<(Homes, Vec<ValueId>)> = Vec::new();
        for v in leaves {
            let home = self.home[v.index()];
            match groups.iter_mut().find(|(h, _)| *h == home) {
                Some((_, of)) => of.push(v),
                None => groups.push((home, vec![v])),
            }
        }
        if groups.iter().fold(all, |h, (home, _)| h & home) != 0 {
            return;
        }
        groups.sort_by_key(|(h, _)| (*h == all, h.trailing_zeros(), *h));
        let mut add = |this: &mut Behind, a: ValueId, b: ValueId, home: Homes| -> ValueId {
            let (op, made) = (OpId(g.ops.len() as u32), ValueId(g.values.len() as u32));
            g.values.push(Value { def: Def::Op(op, 0), name: None, ..like.clone() });
            let model = g.op(root).clone();
            g.ops.push(Operation { args: vec![a, b], results: vec![made], ..model });
            this.home.push(home);
            s.of.push(None);
            s.adds.push(false);
            s.flat.part.push(Part::After);
            out.push(op);
            made
        };
        let mut sums = Vec::new();
        for (home, of) in &groups {
            sums.push(of[1..].iter().fold(of[0], |sum, v| add(self, sum, *v, *home)));
        }
        let count = sums.len();
        let first = sums[1..count - 1].iter().fold(sums[0], |sum, v| add(self, sum, *v, all));
        s.flat.g.ops[root.index()].args = vec![first, sums[count - 1]];
    }

    fn find_needs(&mut self, s: &Stages, held: &Held, all: Homes) {
        let g = &s.flat.g;
        let mut need: Vec<Homes> = vec![0; g.values.len()];
        for (k, o) in g.outputs.iter().enumerate() {
            let homes = match o.kind {
                OutputKind::Param(p) | OutputKind::InitParam(p) => held.params[p.index()],
                OutputKind::State(s) | OutputKind::InitState(s) => held.states[s.index()],
                _ => all,
            };
            need[o.value.index()] |= homes;
            members(homes).filter(|r| *r < held.ranks).for_each(|r| self.outputs[r].push(k));
        }
        self.ops = g.block(ENTRY).ops.clone();
        self.position = vec![u32::MAX; g.ops.len()];
        self.ops.iter().enumerate().for_each(|(k, id)| self.position[id.index()] = k as u32);
        let mut sends: Vec<(ValueId, usize, usize)> = Vec::new();
        let mut leave = |v: ValueId, need: Homes, home: Homes| {
            let from = members(home).next().unwrap_or(0);
            members(need & !home).for_each(|to| sends.push((v, from, to)));
        };
        for id in self.ops.iter().rev() {
            let op = g.op(*id);
            if s.flat.part[id.index()] == Part::Body {
                continue;
            }
            let wanted = op.results.iter().fold(0, |n, r| n | need[r.index()]);
            if wanted == 0 {
                continue;
            }
            let home = op.results.iter().fold(Homes::MAX, |h, r| h & self.home[r.index()]);
            let mut at = wanted & home;
            if wanted & !home != 0 {
                at |= bit(members(home).next().unwrap_or(0));
                op.results.iter().for_each(|r| leave(*r, need[r.index()], home));
            }
            members(at).for_each(|r| self.computes[r].push(*id));
            op.args.iter().for_each(|a| need[a.index()] |= at);
        }
        // What is there before all this: totals, shares of them, values of stages.
        let totals = s.flat.sums.iter().map(|sum| sum.total);
        let mut made: Vec<ValueId> =
            totals.chain(self.parts.keys().copied()).chain(held.values.keys().copied()).collect();
        made.sort_unstable();
        for v in made {
            leave(v, need[v.index()], self.home[v.index()]);
        }
        sends.sort_unstable();
        self.sends = sends;
        self.computes.iter_mut().for_each(|c| c.reverse());
        self.find_levels(g);
    }

    fn find_levels(&mut self, g: &Graph) {
        let mut at: HashMap<OpId, Vec<usize>> = HashMap::new();
        for (rank, ops) in self.computes.iter().enumerate() {
            ops.iter().for_each(|op| at.entry(*op).or_default().push(rank));
        }
        let mut arrives: HashMap<ValueId, Vec<(usize, usize)>> = HashMap::new();
        self.sends.iter().for_each(|(v, from, to)| arrives.entry(*v).or_default().push((*from, *to)));
        let sent = |level: &mut Vec<HashMap<ValueId, usize>>, v: ValueId| {
            for (from, to) in arrives.get(&v).into_iter().flatten() {
                let there = level[*from].get(&v).copied().unwrap_or(0) + 1;
                level[*to].insert(v, there);
            }
        };
        // What is there from the beginning.
        for (v, _, _) in &self.sends {
            if !matches!(g.value(*v).def, Def::Op(op, _) if at.contains_key(&op)) {
                sent(&mut self.level, *v);
            }
        }
        for id in &self.ops {
            let Some(ranks) = at.get(id) else { continue };
            let op = g.op(*id);
            for rank in ranks {
                let of = |a: &ValueId| self.level[*rank].get(a).copied().unwrap_or(0);
                let level = op.args.iter().map(of).max().unwrap_or(0);
                op.results.iter().for_each(|r| {
                    self.level[*rank].insert(*r, level);
                });
            }
            op.results.iter().for_each(|r| sent(&mut self.level, *r));
        }
    }
}

/// By value: whether it is a sum that only another addition of the same dims reads, so that its summands are that one's.
fn summands(g: &Graph) -> Vec<bool> {
    let add = |op: &Operation| op.op == Op::Map(MapOp::Add);
    let mut uses = vec![0u32; g.values.len()];
    let mut inner = vec![false; g.values.len()];
    for op in g.block(ENTRY).ops.iter().map(|id| g.op(*id)) {
        for a in &op.args {
            uses[a.index()] += 1;
            let sum = g.def_op(*a).is_some_and(add);
            inner[a.index()] = sum && add(op) && g.value(*a).dims == g.value(op.results[0]).dims;
        }
    }
    g.outputs.iter().for_each(|o| uses[o.value.index()] += 1);
    inner.iter_mut().zip(uses).for_each(|(inner, uses)| *inner &= uses == 1);
    inner
}

/// Where several ranks add to a sum, its total is the sum of theirs.
fn split_totals(s: &mut Stages, held: &Held) -> HashMap<ValueId, (usize, usize)> {
    let mut parts = HashMap::new();
    let mut joined: HashMap<ValueId, ValueId> = HashMap::new();
    let mut first = Vec::new();
    for (k, sum) in s.flat.sums.clone().into_iter().enumerate() {
        let homes: Vec<usize> = members(held.sums[k]).collect();
        let (Some(combine), true) = (s.growth[k].combine, homes.len() > 1) else { continue };
        let g = &mut s.flat.g;
        let like = g.value(sum.total).clone();
        let mut own = Vec::new();
        for rank in homes {
            let v = ValueId(g.values.len() as u32);
            g.values.push(Value { def: Def::BlockParam(u32::MAX), ..like.clone() });
            parts.insert(v, (k, rank));
            own.push(v);
        }
        let mut total = own[0];
        for v in &own[1..] {
            let (op, made) = (OpId(g.ops.len() as u32), ValueId(g.values.len() as u32));
            g.values.push(Value { def: Def::Op(op, 0), ..like.clone() });
            g.ops.push(Operation {
                op: Op::Map(combine),
                args: vec![total, *v],
                results: vec![made],
                block: ENTRY,
                span: None,
                scope: ROOT,
                phase: Phase::Update,
                again: false,
            });
            s.of.push(None);
            s.adds.push(false);
            s.flat.part.push(Part::After);
            first.push(op);
            total = made;
        }
        joined.insert(sum.total, total);
    }
    let g = &mut s.flat.g;
    let new = |v: &mut ValueId| *v = joined.get(v).copied().unwrap_or(*v);
    for id in g.block(ENTRY).ops.clone() {
        g.ops[id.index()].args.iter_mut().for_each(new);
    }
    g.outputs.iter_mut().for_each(|o| new(&mut o.value));
    // Before all that reads them.
    g.blocks[ENTRY.index()].ops.splice(0..0, first);
    parts
}

/// States are where the parameters are whose updates read them; others where their own update is at home.
fn hold_states(s: &Stages, held: &mut Held, parts: &HashMap<ValueId, (usize, usize)>, all: Homes) {
    let g = &s.flat.g;
    let mut new: Vec<Option<ParamId>> = vec![None; g.values.len()];
    for o in &g.outputs {
        if let OutputKind::Param(p) = o.kind {
            new[o.value.index()] = Some(p);
        }
    }
    // The ranks that need a value for parameters that they hold. A new parameter is where the parameter is.
    let mut wanted: Vec<Homes> = vec![0; g.values.len()];
    for id in g.block(ENTRY).ops.iter().rev() {
        let op = g.op(*id);
        let of = |v: &ValueId| match new[v.index()] {
            Some(p) => held.params[p.index()],
            None => wanted[v.index()],
        };
        let homes = op.results.iter().filter(|r| !held.values.contains_key(r)).fold(0, |h, r| h | of(r));
        if let Op::State(state) = op.op {
            held.states[state.index()] |= homes;
        }
        op.args.iter().for_each(|a| wanted[a.index()] |= homes);
    }
    // The ranks that have all that a value is made of.
    let totals: HashMap<ValueId, usize> = s.flat.sums.iter().enumerate().map(|(k, sum)| (sum.total, k)).collect();
    let fixed = |v: ValueId, held: &Held| {
        let part = parts.get(&v).map(|(_, rank)| bit(*rank));
        let value = held.values.get(&v).map(|rank| bit(*rank));
        part.or(value).or_else(|| totals.get(&v).map(|k| held.sums[*k]))
    };
    let mut made: Vec<Homes> = vec![all; g.values.len()];
    for id in &g.block(ENTRY).ops {
        let op = g.op(*id);
        let has = |a: &ValueId| match (new[a.index()], fixed(*a, held)) {
            (Some(p), _) => held.params[p.index()],
            (None, Some(homes)) => homes,
            (None, None) => made[a.index()],
        };
        let own = if let Op::Param(p) = op.op { held.params[p.index()] } else { all };
        let homes = op.args.iter().fold(own, |h, a| h & has(a));
        op.results.iter().for_each(|r| made[r.index()] = homes);
    }
    for o in &g.outputs {
        if let OutputKind::State(state) = o.kind
            && held.states[state.index()] == 0
        {
            let homes = fixed(o.value, held).unwrap_or(made[o.value.index()]);
            held.states[state.index()] = if homes == 0 { all } else { homes };
        }
    }
    held.states.iter_mut().filter(|h| **h == 0).for_each(|h| *h = all);
}
