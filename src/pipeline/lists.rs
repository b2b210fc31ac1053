//! What each rank does with the functions of a step.

use super::behind::Behind;
use super::cut::{Cutter, Key};
use super::draw::{Function, Var};
use crate::ir::ValueId;
use crate::schedule::certify::certify;
use crate::schedule::program::{Event, Message, Program, What};
use crate::schedule::{Action, Work};
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

    /// Lists without waits for what was sent.
    pub fn done(self) -> Vec<Vec<Item>> {
        self.lists
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

/// Adds the waits for what was sent: two calls later if that cannot stop the ranks, else at the end. Err: why the ranks may not come
/// to an end.
pub fn waits(
    lists: Vec<Vec<Item>>,
    functions: &[Function],
    bytes: &dyn Fn(&Var) -> usize,
) -> Result<Vec<Vec<Item>>, String> {
    let soon: Vec<Vec<Item>> = lists.iter().map(|l| with_waits(l, 2)).collect();
    if certify(&events(&soon, functions, bytes)).is_ok() {
        return Ok(soon);
    }
    let late: Vec<Vec<Item>> = lists.iter().map(|l| with_waits(l, usize::MAX)).collect();
    let step = events(&late, functions, bytes);
    certify(&step).map_err(|refusal| refusal.message(&step))?;
    Ok(late)
}

/// Lists in the language of certificates. Messages go from rank to rank here, and each has a slot of its own.
fn events(lists: &[Vec<Item>], functions: &[Function], bytes: &dyn Fn(&Var) -> usize) -> Program {
    let message = |var: &Var, microbatch: usize, number: usize, from: usize, to: usize| Message {
        from,
        to,
        microbatch,
        value: number as u32,
        shape: 0,
        bytes: bytes(var) as u64,
    };
    let of = |rank: usize, list: &Vec<Item>| -> (Vec<Event>, Vec<u32>) {
        let mut there: HashMap<(Var, usize), (usize, Message)> = HashMap::new();
        let mut events = Vec::with_capacity(list.len());
        for item in list {
            let what = match item {
                Item::Call { function, microbatch } => {
                    let action = Action::new(Work::F, *function, *microbatch);
                    let read = functions[*function].args.iter().filter(|a| a.reads).filter_map(|a| {
                        let each = if let Var::Each(_) = a.var { *microbatch } else { 0 };
                        there.get(&(a.var, each)).copied()
                    });
                    What::Compute { action, reads: read.collect() }
                }
                Item::Send { var, microbatch, to, number } => {
                    let message = message(var, *microbatch, *number, rank, *to);
                    What::Offer { to: *to, message, number: *number }
                }
                Item::Receive { var, microbatch, from, number } => {
                    let message = message(var, *microbatch, *number, *from, rank);
                    let slot = there.len();
                    there.insert((*var, *microbatch), (slot, message));
                    What::Take { from: *from, message, number: *number, slot }
                }
                Item::Sent { number, .. } => What::Taken { number: *number },
            };
            events.push(Event { stream: 0, what });
        }
        (events, vec![0; there.len()])
    };
    let (ranks, slots) = lists.iter().enumerate().map(|(rank, list)| of(rank, list)).unzip();
    Program { ranks, slots, communicators: Vec::new() }
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
