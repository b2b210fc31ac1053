//! What each rank does with the functions of a step.

use super::behind::Behind;
use super::cut::{Cutter, Key};
use super::draw::{Function, Var};
use crate::ir::ValueId;
use indexmap::IndexMap;
use std::collections::{HashMap, HashSet};

/// What a rank does.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Item {
    /// `microbatch`: of what there is for each.
    Call {
        function: usize,
        microbatch: usize,
    },
    Send {
        var: Var,
        microbatch: usize,
        to: usize,
        number: usize,
    },
    Receive {
        var: Var,
        microbatch: usize,
        from: usize,
        number: usize,
    },
    /// Until what was sent has been taken.
    Sent {
        var: Var,
        microbatch: usize,
        to: usize,
        number: usize,
    },
}
/// The lists under construction.
pub struct Lists<'a, 'b> {
    c: &'a Cutter<'b>,
    functions: &'a [Function],
    of: &'a IndexMap<Key, Option<usize>>,
    lists: Vec<Vec<Item>>,
    numbers: IndexMap<(Var, usize, usize, usize), usize>,
    /// By value: the stages whose functions read it.
    stages: HashMap<ValueId, Vec<usize>>,
}

impl<'a, 'b> Lists<'a, 'b> {
    pub fn new(c: &'a Cutter<'b>, functions: &'a [Function], of: &'a IndexMap<Key, Option<usize>>) -> Lists<'a, 'b> {
        let mut stages: HashMap<ValueId, Vec<usize>> = HashMap::new();
        for (key, f) in of {
            for arg in f.iter().flat_map(|f| &functions[*f].args).filter(|a| a.reads) {
                if let Var::Each(v) = arg.var {
                    let all = stages.entry(v).or_default();
                    if !all.contains(&key.1) {
                        all.push(key.1);
                    }
                }
            }
        }
        let lists = vec![Vec::new(); c.table.ranks.len()];
        Lists { c, functions, of, lists, numbers: IndexMap::new(), stages }
    }

    fn number(&mut self, var: Var, microbatch: usize, from: usize, to: usize) -> usize {
        let next = self.numbers.len();
        *self.numbers.entry((var, microbatch, from, to)).or_insert(next)
    }

    pub fn begin(&mut self, before: &[usize]) {
        for (rank, f) in before.iter().enumerate() {
            self.call(rank, *f, 0);
        }
    }

    /// Lists without waits for what was sent, and how many numbers transfers have.
    pub fn done(self) -> (Vec<Vec<Item>>, usize) {
        (self.lists, self.numbers.len())
    }

    fn call(&mut self, rank: usize, function: usize, microbatch: usize) {
        self.lists[rank].push(Item::Call { function, microbatch });
    }

    pub fn stages(&mut self) {
        for rank in 0..self.lists.len() {
            let mut there: HashSet<(Var, usize)> = HashSet::new();
            for a in &self.c.table.ranks[rank] {
                let Some(f) = self.of[&Key(a.op, a.stage)] else { continue };
                let microbatch = a.microbatch;
                let args = &self.functions[f].args;
                for arg in args.iter().filter(|a| a.reads) {
                    let Var::Each(v) = arg.var else { continue };
                    let stage = self.c.s.stage_of(v).expect("a value of a stage");
                    let from = self.c.rank[stage][microbatch];
                    if from != rank && there.insert((arg.var, microbatch)) {
                        let number = self.number(arg.var, microbatch, from, rank);
                        self.lists[rank].push(Item::Receive { var: arg.var, microbatch, from, number });
                    }
                }
                self.call(rank, f, microbatch);
                for arg in args.iter().filter(|a| a.writes) {
                    let Var::Each(v) = arg.var else { continue };
                    let stages = self.stages.get(&v).cloned().unwrap_or_default();
                    let mut to: Vec<usize> = stages.iter().map(|s| self.c.rank[*s][microbatch]).collect();
                    to.sort_unstable();
                    to.dedup();
                    for to in to.into_iter().filter(|to| *to != rank) {
                        let number = self.number(arg.var, microbatch, rank, to);
                        self.lists[rank].push(Item::Send { var: arg.var, microbatch, to, number });
                    }
                }
            }
        }
    }

    pub fn behind(&mut self, b: &Behind, levels: &[Vec<Function>], first: usize) {
        let mut next = first;
        for (rank, functions) in levels.iter().enumerate() {
            let level = |v: &ValueId| b.level[rank].get(v).copied().unwrap_or(0);
            let most = b.sends.iter().map(|(v, from, to)| match rank {
                r if r == *from => level(v) + 1,
                r if r == *to => level(v) + 1,
                _ => 0,
            });
            let most = most.max().unwrap_or(0).max(functions.len());
            for now in 0..most {
                for (v, from, to) in &b.sends {
                    if *to == rank && level(v) == now {
                        let var = Var::Once(*v);
                        let number = self.number(var, 0, *from, rank);
                        self.lists[rank].push(Item::Receive { var, microbatch: 0, from: *from, number });
                    }
                }
                if functions.get(now).is_some_and(|f| !f.graph.outputs.is_empty()) {
                    self.call(rank, next + now, 0);
                }
                for (v, from, to) in &b.sends {
                    if *from == rank && level(v) == now {
                        let number = self.number(Var::Once(*v), 0, rank, *to);
                        let var = self.c.var_behind(*v, rank, b);
                        self.lists[rank].push(Item::Send { var, microbatch: 0, to: *to, number });
                    }
                }
            }
            next += functions.len();
        }
    }
}

/// Adds the waits for what was sent: two calls later if that cannot stop the ranks, else at the end.
pub fn waits(lists: Vec<Vec<Item>>, numbers: usize) -> Result<Vec<Vec<Item>>, String> {
    let soon: Vec<Vec<Item>> = lists.iter().map(|l| with_waits(l, 2)).collect();
    match ends(&soon, numbers) {
        true => Ok(soon),
        false => {
            let late: Vec<Vec<Item>> = lists.iter().map(|l| with_waits(l, usize::MAX)).collect();
            ends(&late, numbers).then_some(late).ok_or_else(|| "its ranks would wait for each other".into())
        }
    }
}

fn with_waits(list: &[Item], calls: usize) -> Vec<Item> {
    let mut out = Vec::with_capacity(list.len());
    let mut open: Vec<(usize, Item)> = Vec::new();
    for item in list {
        if let Item::Call { .. } = item {
            open.iter_mut().for_each(|(age, _)| *age += 1);
            open.retain(|(age, sent)| {
                if *age > calls {
                    out.push(sent.clone());
                }
                *age <= calls
            });
        }
        if let Item::Send { var, microbatch, to, number } = *item {
            open.push((0, Item::Sent { var, microbatch, to, number }));
        }
        out.push(item.clone());
    }
    out.extend(open.into_iter().map(|o| o.1));
    out
}

/// Whether ranks that run these lists, each waiting for what it needs, come to the end.
pub fn ends(lists: &[Vec<Item>], numbers: usize) -> bool {
    let (mut sent, mut taken) = (vec![false; numbers], vec![false; numbers]);
    let mut at = vec![0; lists.len()];
    loop {
        let mut moved = false;
        for (rank, list) in lists.iter().enumerate() {
            while let Some(item) = list.get(at[rank]) {
                match item {
                    Item::Send { number, .. } => sent[*number] = true,
                    Item::Receive { number, .. } if sent[*number] => taken[*number] = true,
                    Item::Receive { .. } => break,
                    Item::Sent { number, .. } if !taken[*number] => break,
                    Item::Call { .. } | Item::Sent { .. } => {}
                }
                at[rank] += 1;
                moved = true;
            }
        }
        if lists.iter().zip(&at).all(|(l, a)| *a == l.len()) {
            return true;
        }
        if !moved {
            return false;
        }
    }
}
