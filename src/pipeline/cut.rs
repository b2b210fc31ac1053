//! The functions of a step: what a stage computes of a microbatch, what a rank does before the microbatches and behind them.

use super::behind::{Behind, Held, Homes, bit};
use super::draw::{Draw, Function, Var};
use super::flat::{Part, flatten};
use super::lists::{Does, Item, Lists, waits};
use super::stages::{Stages, Turns};
use super::touch::{missing, reads, reads_inputs, touched};
use crate::ir::*;
use crate::schedule::certify::Certificate;
use crate::schedule::{Action, Continued, Table, Work};
use crate::types::When;
use indexmap::{IndexMap, IndexSet};
use std::collections::{HashMap, HashSet};

/// A step in stages.
pub struct Pipelined {
    /// Types of all values.
    pub graph: Graph,
    pub functions: Vec<Function>,
    /// By rank along the axis.
    pub ranks: Vec<Vec<Item>>,
    /// The ranks that hold parameters and states, and that read inputs; none where the step has nothing to do with one.
    pub params: Vec<Homes>,
    pub states: Vec<Homes>,
    pub inputs: Vec<Homes>,
    /// Of outputs that are no new parameters or states: which it is, and by rank where it is found.
    pub outputs: Vec<(usize, Vec<Var>)>,
    /// The sums' totals, for their types.
    pub sums: Vec<ValueId>,
    /// By sum: the first value that is added, for where it comes from.
    pub grown: Vec<Option<ValueId>>,
    pub microbatches: usize,
    /// What was shown of the lists.
    pub certificate: Certificate,
    /// How steps go over into each other, if they do.
    pub onward: Option<Onward>,
}

/// What a run leaves to the next one, and what microbatches of the next step are computed with.
#[derive(Clone, Debug)]
pub struct Onward {
    /// By rank: values with their microbatch of the next run, and sums.
    pub carried: Vec<IndexSet<(Var, usize)>>,
    /// By parameter: the state that holds what it will be in the next step.
    pub latest: Vec<Option<StateId>>,
}

/// A pipeline that does not drain: a step begins when the one before is not done yet, with parameters that are known by then.
pub struct Endless<'a> {
    pub lists: &'a Continued,
    /// By parameter: see [`Onward::latest`].
    pub latest: Vec<Option<StateId>>,
}

impl Pipelined {
    /// The ranks that hold parameters and states.
    pub fn holders(&self) -> Holders {
        let params = self.graph.params.iter().map(|p| &p.path).zip(&self.params);
        let states = self.graph.states.iter().map(|s| &s.path).zip(&self.states);
        params.chain(states).map(|(path, homes)| (path.clone(), *homes)).collect()
    }

    /// What goes from rank to rank along the axis in a step, in the order of the ranks' lists.
    pub fn crossings(&self) -> Vec<Crossing> {
        let mut all: IndexMap<(Var, usize, usize), usize> = IndexMap::new();
        for (from, list) in self.ranks.iter().enumerate() {
            for item in list {
                // Of each step in the midst of others.
                if let Does::Send { var, to, .. } = &item.does
                    && item.when != When::Fresh
                {
                    *all.entry((*var, from, *to)).or_default() += 1;
                }
            }
        }
        let crossing = |((var, from, to), count): ((Var, usize, usize), usize)| Crossing {
            value: value_of(&self.sums, &var).expect("something that is sent"),
            from,
            to,
            count,
        };
        all.into_iter().map(crossing).collect()
    }
}

/// A value of the step that one rank along the pipeline's axis sends to another one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Crossing {
    pub value: ValueId,
    pub from: usize,
    pub to: usize,
    /// Messages a step.
    pub count: usize,
}

/// The value of which there is one, or one for each microbatch.
fn value_of(sums: &[ValueId], var: &Var) -> Option<ValueId> {
    match *var {
        Var::Microbatch => None,
        Var::Each(v) | Var::Once(v) => Some(v),
        Var::Sum(k) => Some(sums[k]),
    }
}

fn bytes(g: &Graph, sums: &[ValueId], var: &Var) -> usize {
    value_of(sums, var).map_or(0, |v| g.elements(&g.value(v).dims) * g.value(v).dtype.bytes())
}

/// What a function computes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Key(pub Work, pub usize);

/// A step that is being cut.
pub struct Cutter<'a> {
    pub s: Stages,
    pub table: &'a Table,
    /// By stage and microbatch, the rank.
    pub rank: Vec<Vec<usize>>,
    /// By operation of a stage's backward pass: whether what goes on to other stages needs it.
    goes_on: Vec<bool>,
    /// By value of a stage: the functions that read it.
    readers: HashMap<ValueId, Vec<Key>>,
    /// Values of stages that are read behind them all.
    read_behind: HashSet<ValueId>,
}

/// Ranks that hold parameters and states for other steps, by path.
pub type Holders = HashMap<String, Homes>;

/// Cuts a step. With `endless` its runs go over into each other, unless its microbatches read states. Err: why it cannot be cut.
pub fn pipelined(
    graph: &Graph,
    turns: &Turns,
    table: &Table,
    endless: Option<Endless<'_>>,
    also: &Holders,
) -> Result<Pipelined, String> {
    let ranks = table.ranks.len();
    if ranks > Homes::BITS as usize {
        return Err(format!("{ranks} ranks in a pipeline; {} are possible", Homes::BITS));
    }
    let s = Stages::new(flatten(graph, table.microbatches)?, turns)?;
    let forward_only = table.ranks.iter().flatten().all(|a| a.op == Work::F);
    let mut rank = vec![vec![0; table.microbatches]; table.stages];
    for (r, list) in table.ranks.iter().enumerate() {
        list.iter().filter(|a| a.op == Work::F).for_each(|a| rank[a.stage][a.microbatch] = r);
    }
    let n = s.of.len();
    let mut c =
        Cutter { s, table, rank, goes_on: vec![false; n], readers: HashMap::new(), read_behind: HashSet::new() };
    let back = |id: &OpId| c.s.flat.g.op(*id).phase == Phase::Backward && c.s.of[id.index()].is_some();
    if forward_only && c.s.flat.g.block(ENTRY).ops.iter().any(back) {
        return Err("a schedule without backward steps".into());
    }
    c.split_backward();
    c.find_readers();
    c.cut(endless, also)
}

impl Cutter<'_> {
    pub fn g(&self) -> &Graph {
        &self.s.flat.g
    }

    pub fn def(&self, v: ValueId) -> Option<OpId> {
        match self.g().value(v).def {
            Def::Op(op, _) => Some(op),
            Def::BlockParam(_) => None,
        }
    }

    fn is_back(&self, id: OpId) -> bool {
        self.g().op(id).phase == Phase::Backward
    }

    /// The functions that an operation of a stage is part of; `B` and one of `I` and `W`, or `F`.
    fn keys(&self, id: OpId) -> [Key; 2] {
        let stage = self.s.of[id.index()].expect("an operation of a stage");
        match (self.is_back(id), self.goes_on[id.index()]) {
            (false, _) => [Key(Work::F, stage); 2],
            (true, true) => [Key(Work::B, stage), Key(Work::I, stage)],
            (true, false) => [Key(Work::B, stage), Key(Work::W, stage)],
        }
    }

    /// The part of a stage's backward pass that other stages wait for; of the first stage, that which leads to its own input.
    fn split_backward(&mut self) {
        let ops = self.g().block(ENTRY).ops.clone();
        let mut wanted = vec![false; self.g().values.len()];
        for id in &ops {
            let Some(stage) = self.s.of[id.index()] else { continue };
            for a in &self.g().op(*id).args {
                let Some(d) = self.def(*a).filter(|d| self.s.of[d.index()].is_some() && self.is_back(*d)) else {
                    continue;
                };
                let own = self.s.of[d.index()] == Some(stage);
                let leaves_loop = stage == 0 && self.s.in_turn[d.index()] && !self.s.in_turn[id.index()];
                if !own || leaves_loop {
                    wanted[a.index()] = true;
                }
            }
        }
        for id in ops.iter().rev() {
            let stage = self.s.of[id.index()];
            let op = self.s.flat.g.op(*id);
            if stage.is_some() && op.phase == Phase::Backward && op.results.iter().any(|r| wanted[r.index()]) {
                self.goes_on[id.index()] = true;
                op.args.iter().for_each(|a| wanted[a.index()] = true);
            }
        }
    }

    fn find_readers(&mut self) {
        let mut readers: HashMap<ValueId, Vec<Key>> = HashMap::new();
        let mut behind = HashSet::new();
        for id in &self.g().block(ENTRY).ops {
            let staged = self.s.of[id.index()].is_some();
            for a in &self.g().op(*id).args {
                if self.s.stage_of(*a).is_none() || self.s.adds[id.index()] {
                    continue;
                }
                if staged {
                    let of = readers.entry(*a).or_default();
                    self.keys(*id).iter().for_each(|k| {
                        if !of.contains(k) {
                            of.push(*k);
                        }
                    });
                } else if self.s.flat.part[id.index()] == Part::After {
                    behind.insert(*a);
                }
            }
        }
        let leaving = self.g().outputs.iter().map(|o| o.value).filter(|v| self.s.stage_of(*v).is_some());
        behind.extend(leaving.collect::<Vec<_>>());
        (self.readers, self.read_behind) = (readers, behind);
    }

    /// Whether a value is made again where it is needed rather than kept.
    fn is_cheap(&self, id: OpId) -> bool {
        let op = self.g().op(id);
        let small = op.results.iter().all(|r| self.g().value(*r).dims.is_empty());
        match op.op {
            Op::Param(_) | Op::State(_) | Op::Input(_) | Op::Constant(_) | Op::Iota(_) | Op::Step => true,
            Op::Coordinate(_) | Op::Broadcast { .. } | Op::Reshape { .. } | Op::StopGradient => self.cheap_args(op),
            Op::Map(_) => small && self.cheap_args(op),
            _ => false,
        }
    }

    fn cheap_args(&self, op: &Operation) -> bool {
        op.args
            .iter()
            .all(|a| self.def(*a).is_some_and(|d| self.s.flat.part[d.index()] != Part::After && self.is_cheap(d)))
    }

    /// Whether a function of a stage repeats an operation that is no part of it.
    fn repeats(&self, id: OpId) -> bool {
        match self.s.flat.part[id.index()] {
            Part::Before => self.is_cheap(id),
            Part::Body => self.s.of[id.index()].is_none() && !self.s.adds[id.index()],
            Part::After => false,
        }
    }

    /// Operations in order, with all that `repeats` of what they and some values need.
    pub fn with_needs(
        &self,
        own: impl Fn(OpId) -> bool,
        values: &[ValueId],
        repeats: impl Fn(OpId) -> bool,
    ) -> Vec<OpId> {
        let mut wanted = vec![false; self.g().ops.len()];
        let want = |v: ValueId, wanted: &mut Vec<bool>| {
            if let Some(d) = self.def(v).filter(|d| repeats(*d)) {
                wanted[d.index()] = true;
            }
        };
        values.iter().for_each(|v| want(*v, &mut wanted));
        let mut out = Vec::new();
        for id in self.g().block(ENTRY).ops.iter().rev() {
            if own(*id) || wanted[id.index()] {
                self.g().op(*id).args.iter().for_each(|a| want(*a, &mut wanted));
                out.push(*id);
            }
        }
        out.reverse();
        out
    }

    /// The shares of sums that a function adds: the sum's number, and values.
    fn shares(&self, key: Key) -> Vec<(usize, Vec<ValueId>)> {
        let mut all = Vec::new();
        for (k, growth) in self.s.growth.iter().enumerate() {
            for share in growth.shares.iter().filter(|s| s.stage == key.1) {
                let own = |v: &&ValueId| match self.def(**v).filter(|d| self.s.of[d.index()].is_some()) {
                    Some(d) => self.keys(d).contains(&key),
                    None => key.0 == Work::F,
                };
                let values: Vec<ValueId> = share.values.iter().filter(own).copied().collect();
                if !values.is_empty() {
                    all.push((k, values));
                }
            }
        }
        all
    }

    fn function(&self, key: Key) -> Function {
        let g = self.g();
        let own = |id: OpId| self.s.of[id.index()].is_some() && self.keys(id).contains(&key);
        let shares = self.shares(key);
        let leaves: Vec<ValueId> = shares.iter().flat_map(|s| &s.1).copied().collect();
        let ops = self.with_needs(own, &leaves, |id| self.repeats(id));
        let var = |v: ValueId| self.var(v);
        let phase = if key.0 == Work::F { Phase::Forward } else { Phase::Backward };
        let mut d = Draw::new(g, phase, &var);
        ops.iter().for_each(|id| d.op(*id));
        for id in ops.iter().filter(|id| own(**id)) {
            for r in &g.op(*id).results {
                let others = self.readers.get(r).into_iter().flatten().any(|k| *k != key && self.is_run_with(*k, key));
                if others || self.read_behind.contains(r) {
                    let made = d.value(*r);
                    d.give(Var::Each(*r), *r, made);
                }
            }
        }
        for (k, values) in shares {
            let carry = self.s.flat.sums[k].carry;
            let total = match self.s.growth[k].combine {
                Some(combine) => {
                    let so_far = d.read(Var::Sum(k), carry);
                    values.iter().fold(so_far, |sum, v| d.combined(combine, sum, *v, carry))
                }
                None => d.value(values[0]),
            };
            d.give(Var::Sum(k), carry, total);
        }
        d.finish(format!("{}{}", key.0.name(), key.1))
    }

    /// Whether the table has both functions for some microbatch: not both `B` and one of its halves.
    fn is_run_with(&self, other: Key, own: Key) -> bool {
        let same = other.1 == own.1;
        !(same && (other.0 == Work::B) != (own.0 == Work::B) && other.0 != Work::F && own.0 != Work::F)
    }

    fn var(&self, v: ValueId) -> Var {
        match Some(v) == self.s.flat.turn {
            true => Var::Microbatch,
            false if self.s.stage_of(v).is_some() => Var::Each(v),
            false => Var::Once(v),
        }
    }

    fn cut(mut self, endless: Option<Endless<'_>>, also: &Holders) -> Result<Pipelined, String> {
        let ranks = self.table.ranks.len();
        let mut functions: Vec<Function> = Vec::new();
        let mut numbers: IndexMap<Key, Option<usize>> = IndexMap::new();
        for a in self.table.ranks.iter().flatten() {
            numbers.entry(Key(a.op, a.stage)).or_insert(None);
        }
        for (key, number) in &mut numbers {
            let f = self.function(*key);
            if !f.graph.outputs.is_empty() {
                *number = Some(functions.len());
                functions.push(f);
            }
        }
        let endless = endless.filter(|_| self.may_go_on(&functions));
        // Who holds and keeps what.
        let g = self.g();
        let mut held = Held {
            ranks,
            params: vec![0; g.params.len()],
            states: vec![0; g.states.len()],
            sums: vec![0; self.s.flat.sums.len()],
            values: HashMap::new(),
        };
        let mut inputs: Vec<Homes> = vec![0; g.inputs.len()];
        let mut kept: Vec<Vec<ValueId>> = vec![Vec::new(); ranks];
        for (rank, list) in self.table.ranks.iter().enumerate() {
            let mut seen = HashSet::new();
            for a in list {
                let Some(f) = numbers[&Key(a.op, a.stage)].filter(|f| seen.insert(*f)) else { continue };
                reads(&functions[f].graph, rank, &mut held, &mut inputs);
                for arg in &functions[f].args {
                    match arg.var {
                        Var::Once(v) if !kept[rank].contains(&v) => kept[rank].push(v),
                        Var::Sum(k) => held.sums[k] |= bit(rank),
                        _ => {}
                    }
                }
            }
        }
        for (k, growth) in self.s.growth.iter().enumerate() {
            let homes = &mut held.sums[k];
            if *homes == 0 {
                *homes = bit(0);
            }
            if growth.combine.is_none() {
                *homes = bit(homes.trailing_zeros() as usize);
            }
        }
        for v in &self.read_behind {
            let stage = self.s.stage_of(*v).expect("a value of a stage");
            held.values.insert(*v, self.rank[stage][0]);
        }
        let mut before = Vec::new();
        for (rank, kept) in kept.iter().enumerate() {
            let sums: Vec<usize> = (0..held.sums.len()).filter(|k| held.sums[*k] & bit(rank) != 0).collect();
            let f = self.before(format!("before.{rank}"), kept, &sums);
            reads(&f.graph, rank, &mut held, &mut inputs);
            functions.push(f);
            before.push(functions.len() - 1);
        }
        let ahead = endless.as_ref().map_or_else(Vec::new, |e| self.ahead(e, &numbers, &mut functions, &mut held));
        let known = |path: &str| also.get(path).copied().unwrap_or(0);
        g.params.iter().zip(&mut held.params).for_each(|(p, homes)| *homes |= known(&p.path));
        g.states.iter().zip(&mut held.states).for_each(|(s, homes)| *homes |= known(&s.path));
        // What no stage reads is held by the first rank.
        held.params.iter_mut().filter(|h| **h == 0).for_each(|h| *h = bit(0));
        let behind = Behind::new(&mut self.s, &mut held);
        let mut plan = Lists::new(&self, &functions, &numbers, endless.as_ref().map(|e| e.lists));
        plan.begin(&before, &ahead);
        plan.stages();
        let levels: Vec<Vec<Function>> =
            kept.iter().enumerate().map(|(rank, kept)| self.after(rank, &behind, kept)).collect();
        plan.behind(&behind, &levels, functions.len());
        let (lists, carried) = plan.done();
        functions.extend(levels.into_iter().flatten());
        for (rank, list) in lists.iter().enumerate() {
            for item in list {
                let Does::Call { function, .. } = &item.does else { continue };
                reads_inputs(&functions[*function].graph, rank, &mut inputs);
                if let Some(path) = missing(&functions[*function].graph, rank, &held) {
                    return Err(format!("`{path}` is read by a rank that does not hold it"));
                }
            }
        }
        let g = self.g();
        let sums: Vec<ValueId> = self.s.flat.sums.iter().map(|s| s.total).collect();
        let (lists, certificate) = waits(lists, &functions, &|var| bytes(g, &sums, var))?;
        let is_value = |o: &Output| matches!(o.kind, OutputKind::Loss | OutputKind::Metric | OutputKind::Value);
        let outputs = (0..g.outputs.len())
            .filter(|k| is_value(&g.outputs[*k]))
            .map(|k| (k, (0..ranks).map(|r| self.var_behind(g.outputs[k].value, r, &behind)).collect()))
            .collect();
        let grown = self.s.growth.iter().map(|g| g.shares.first()?.values.first().copied()).collect();
        let Held { mut params, mut states, .. } = held;
        // Of what this step does not touch it says nothing.
        let (mut param, mut state) = (vec![false; params.len()], vec![false; states.len()]);
        for f in &functions {
            touched(&f.graph, &mut param, &mut state);
        }
        params.iter_mut().zip(param).for_each(|(homes, there)| *homes *= Homes::from(there));
        states.iter_mut().zip(state).for_each(|(homes, there)| *homes *= Homes::from(there));
        Ok(Pipelined {
            functions,
            ranks: lists,
            params,
            states,
            inputs,
            outputs,
            sums,
            grown,
            microbatches: self.table.microbatches,
            certificate,
            onward: endless.map(|e| Onward { carried, latest: e.latest }),
            graph: self.s.flat.g,
        })
    }

    /// By rank: what the next step needs once, which is computed before it is begun, and the sums that it begins.
    fn ahead(
        &self,
        endless: &Endless<'_>,
        numbers: &IndexMap<Key, Option<usize>>,
        functions: &mut Vec<Function>,
        held: &mut Held,
    ) -> Vec<(usize, Vec<usize>)> {
        let of = |(rank, list): (usize, &Vec<Action>)| {
            let next = list.iter().filter(|a| a.microbatch >= self.table.microbatches);
            let called: IndexSet<usize> = next.filter_map(|a| numbers[&Key(a.op, a.stage)]).collect();
            let (mut kept, mut sums) = (IndexSet::new(), IndexSet::new());
            for arg in called.iter().flat_map(|f| &functions[*f].args) {
                match arg.var {
                    Var::Once(v) => _ = kept.insert(v),
                    Var::Sum(k) => _ = sums.insert(k),
                    _ => {}
                }
            }
            let (kept, sums): (Vec<_>, Vec<_>) = (kept.into_iter().collect(), sums.into_iter().collect());
            functions.push(self.before(format!("ahead.{rank}"), &kept, &sums));
            let before = functions.len() - 1;
            for op in called.into_iter().chain([before]).flat_map(|f| &functions[f].graph.ops) {
                if let Op::Param(p) = op.op
                    && let Some(s) = endless.latest[p.index()]
                {
                    held.states[s.index()] |= bit(rank);
                }
            }
            (before, sums)
        };
        endless.lists.steady.iter().enumerate().map(of).collect()
    }

    /// Whether nothing but parameters changes what microbatches compute from step to step, and nothing but sums is read behind them.
    fn may_go_on(&self, functions: &[Function]) -> bool {
        let before = |id: &&OpId| self.s.flat.part[id.index()] == Part::Before;
        let unstaged = self.g().block(ENTRY).ops.iter().filter(before).map(|id| self.g().op(*id));
        let reads_state = |op: &Operation| matches!(op.op, Op::State(s) if s.index() < self.g().states.len());
        let staged = functions.iter().flat_map(|f| &f.graph.ops);
        // What is read before and by updates alone is no matter.
        let kept = unstaged.filter(|op| op.phase != Phase::Update).chain(staged).any(reads_state);
        !kept && self.read_behind.is_empty()
    }

    /// Computes what functions of a rank need once, and what sums begin with.
    fn before(&self, name: String, kept: &[ValueId], sums: &[usize]) -> Function {
        let g = self.g();
        let mut values = kept.to_vec();
        values.extend(sums.iter().map(|k| self.s.flat.sums[*k].initial));
        let before = |id: OpId| self.s.flat.part[id.index()] == Part::Before;
        let ops = self.with_needs(|_| false, &values, before);
        let var = |v: ValueId| self.var(v);
        let mut d = Draw::new(g, Phase::Forward, &var);
        ops.iter().for_each(|id| d.op(*id));
        for v in kept {
            let made = d.value(*v);
            d.give(Var::Once(*v), *v, made);
        }
        for k in sums {
            let made = d.value(self.s.flat.sums[*k].initial);
            d.give(Var::Sum(*k), self.s.flat.sums[*k].carry, made);
        }
        d.finish(name)
    }

    pub fn var_behind(&self, v: ValueId, rank: usize, b: &Behind) -> Var {
        if let Some((k, home)) = b.parts.get(&v) {
            return if *home == rank { Var::Sum(*k) } else { Var::Once(v) };
        }
        if let Some(k) = self.s.flat.sums.iter().position(|s| s.total == v)
            && b.home[v.index()] & bit(rank) != 0
        {
            return Var::Sum(k);
        }
        match self.s.stage_of(v).is_some() && b.home[v.index()] & bit(rank) != 0 {
            true => Var::Each(v),
            false => Var::Once(v),
        }
    }
}
