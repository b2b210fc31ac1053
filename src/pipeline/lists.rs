//! What each rank does with the functions of a step.

use super::behind::Behind;
use super::cut::{Cutter, Key};
use super::draw::{Function, Var};
use crate::ir::{BlockId, ENTRY, Graph, Op, Phase, ValueId};
use crate::mesh::Atom;
use crate::schedule::certify::{Certificate, certify};
use crate::schedule::program::{Event, Members, Message, Program, What};
use crate::schedule::{Action, Continued, Work};
use crate::types::When;
use indexmap::{IndexMap, IndexSet};
use std::collections::{HashMap, HashSet};

/// What a rank does, and in which runs. Where steps go over into each other, microbatches from the number that a step has on are those of the
/// next one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Item {
    pub when: When,
    pub does: Does,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Does {
    /// `microbatch`: of what there is for each.
    Call {
        function: usize,
        microbatch: usize,
    },
    /// Goes on with a sum that the run before has begun.
    Resume {
        var: Var,
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

/// What one run leaves to the next, with its microbatch of the next run.
type Carried = IndexSet<(Var, usize)>;

/// The lists under construction.
pub struct Lists<'a, 'b> {
    c: &'a Cutter<'b>,
    functions: &'a [Function],
    of: &'a IndexMap<Key, Option<usize>>,
    lists: Vec<Vec<Item>>,
    numbers: IndexMap<(Var, usize, usize, usize), usize>,
    /// By value: the stages whose functions read it.
    stages: HashMap<ValueId, Vec<usize>>,
    /// How steps go over into each other, if they do.
    continued: Option<&'a Continued>,
    /// By rank, where they do.
    pub carried: Vec<Carried>,
}

impl<'a, 'b> Lists<'a, 'b> {
    pub fn new(
        c: &'a Cutter<'b>,
        functions: &'a [Function],
        of: &'a IndexMap<Key, Option<usize>>,
        continued: Option<&'a Continued>,
    ) -> Lists<'a, 'b> {
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
        let ranks = c.table.ranks.len();
        let (lists, carried) = (vec![Vec::new(); ranks], vec![IndexSet::new(); ranks]);
        Lists { c, functions, of, lists, numbers: IndexMap::new(), stages, continued, carried }
    }

    fn number(&mut self, var: Var, microbatch: usize, from: usize, to: usize) -> usize {
        let next = self.numbers.len();
        *self.numbers.entry((var, microbatch, from, to)).or_insert(next)
    }

    /// `ahead`: by rank, the same for the next step, and the sums that it begins.
    pub fn begin(&mut self, before: &[usize], ahead: &[(usize, Vec<usize>)]) {
        for (rank, f) in before.iter().enumerate() {
            self.call(rank, When::Always, *f, 0);
        }
        for (rank, (f, sums)) in ahead.iter().enumerate() {
            for k in sums {
                self.carried[rank].insert((Var::Sum(*k), 0));
                self.add(rank, When::Begun, Does::Resume { var: Var::Sum(*k) });
            }
            self.call(rank, When::Ahead, *f, self.c.table.microbatches);
        }
    }

    /// Lists without waits for what was sent; and what runs leave to each other.
    pub fn done(self) -> (Vec<Vec<Item>>, Vec<Carried>) {
        (self.lists, self.carried)
    }

    fn add(&mut self, rank: usize, when: When, does: Does) {
        self.lists[rank].push(Item { when, does });
    }

    fn call(&mut self, rank: usize, when: When, function: usize, microbatch: usize) {
        self.add(rank, when, Does::Call { function, microbatch });
    }

    /// What a rank computes, in order.
    fn actions(&self, rank: usize) -> Vec<(When, Action)> {
        let m = self.c.table.microbatches;
        match self.continued {
            None => self.c.table.ranks[rank].iter().map(|a| (When::Always, *a)).collect(),
            Some(c) => {
                let early = c.early[rank].iter().map(|a| (When::Fresh, *a));
                let when = |a: &Action| if a.microbatch < m { When::Always } else { When::Ahead };
                early.chain(c.steady[rank].iter().map(|a| (when(a), *a))).collect()
            }
        }
    }

    /// Whether the run before computes what a stage gives for a microbatch, where there was one.
    fn is_early(&self, v: ValueId, rank: usize, microbatch: usize) -> bool {
        let back = self.c.def(v).is_some_and(|id| self.c.g().op(id).phase == Phase::Backward);
        self.continued.is_some_and(|c| c.is_early(rank, if back { Work::B } else { Work::F }, microbatch))
    }

    pub fn stages(&mut self) {
        let m = self.c.table.microbatches;
        for rank in 0..self.lists.len() {
            let mut there: HashSet<(Var, usize)> = HashSet::new();
            // What comes before the next run needs it.
            let mut later = Vec::new();
            for (when, a) in self.actions(rank) {
                let Some(f) = self.of[&Key(a.op, a.stage)] else { continue };
                let microbatch = a.microbatch;
                let args = &self.functions[f].args;
                for arg in args.iter().filter(|a| a.reads) {
                    let Var::Each(v) = arg.var else { continue };
                    let stage = self.c.s.stage_of(v).expect("a value of a stage");
                    let from = self.c.rank[stage][microbatch % m];
                    let carried = when == When::Always && self.is_early(v, from, microbatch);
                    if carried {
                        self.carried[rank].insert((arg.var, microbatch));
                    }
                    if from == rank || !there.insert((arg.var, microbatch)) {
                        continue;
                    }
                    let when = if carried { When::Fresh } else { when };
                    let number = self.number(arg.var, microbatch, from, rank);
                    self.add(rank, when, Does::Receive { var: arg.var, microbatch, from, number });
                    if carried {
                        let microbatch = microbatch + m;
                        let number = self.number(arg.var, microbatch, from, rank);
                        later.push(Does::Receive { var: arg.var, microbatch, from, number });
                    }
                }
                self.call(rank, when, f, microbatch);
                for arg in args.iter().filter(|a| a.writes) {
                    let Var::Each(v) = arg.var else { continue };
                    let stages = self.stages.get(&v).cloned().unwrap_or_default();
                    let mut to: Vec<usize> = stages.iter().map(|s| self.c.rank[*s][microbatch % m]).collect();
                    to.sort_unstable();
                    to.dedup();
                    for to in to.into_iter().filter(|to| *to != rank) {
                        let number = self.number(arg.var, microbatch, rank, to);
                        self.add(rank, when, Does::Send { var: arg.var, microbatch, to, number });
                    }
                }
            }
            later.into_iter().for_each(|does| self.add(rank, When::Ahead, does));
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
                        self.add(rank, When::Always, Does::Receive { var, microbatch: 0, from: *from, number });
                    }
                }
                if functions.get(now).is_some_and(|f| !f.graph.outputs.is_empty()) {
                    self.call(rank, When::Always, next + now, 0);
                }
                for (v, from, to) in &b.sends {
                    if *from == rank && level(v) == now {
                        let number = self.number(Var::Once(*v), 0, rank, *to);
                        let var = self.c.var_behind(*v, rank, b);
                        self.add(rank, When::Always, Does::Send { var, microbatch: 0, to: *to, number });
                    }
                }
            }
            next += functions.len();
        }
    }
}

/// Adds the waits for what was sent: two calls later if that cannot stop the ranks, else at the end; with what was shown of all kinds of
/// runs. Err: why the ranks may not come to an end.
pub fn waits(
    lists: Vec<Vec<Item>>,
    functions: &[Function],
    bytes: &dyn Fn(&Var) -> usize,
) -> Result<(Vec<Vec<Item>>, Certificate), String> {
    let judged = |lists: &[Vec<Item>]| {
        runs(lists).iter().try_fold(Certificate::default(), |shown, lists| {
            let step = events(lists, functions, bytes);
            let more = certify(&step).map_err(|refusal| refusal.message(&step))?;
            Ok(shown.and(&more))
        })
    };
    let soon: Vec<Vec<Item>> = lists.iter().map(|l| with_waits(l, 2)).collect();
    if let Ok(shown) = judged(&soon) {
        return Ok((soon, shown));
    }
    let late: Vec<Vec<Item>> = lists.iter().map(|l| with_waits(l, usize::MAX)).collect();
    judged(&late).map(|shown| (late, shown))
}

/// The lists of all kinds of runs that there are.
fn runs(lists: &[Vec<Item>]) -> Vec<Vec<Vec<&Does>>> {
    let plain = lists.iter().flatten().all(|i| i.when == When::Always);
    let of = |begun, ahead| {
        let list = lists.iter().map(|l| l.iter().filter(|i| i.when.holds(begun, ahead)).map(|i| &i.does));
        list.map(Iterator::collect).collect()
    };
    match plain {
        true => vec![of(false, false)],
        false => vec![of(false, false), of(false, true), of(true, true), of(true, false)],
    }
}

/// Collectives of a function in their order, those of loops once: communicator, kind and bytes.
fn collectives(f: &Function, known: &mut IndexMap<Vec<Atom>, Members>) -> Vec<What> {
    fn add(g: &Graph, block: BlockId, known: &mut IndexMap<Vec<Atom>, Members>, out: &mut Vec<What>) {
        for id in &g.block(block).ops {
            match &g.op(*id).op {
                Op::Loop { body, .. } => add(g, *body, known, out),
                Op::Collective(c) if !c.atoms.is_empty() => {
                    let copies = c.atoms.iter().map(|a| g.mesh.size(*a)).product();
                    let entry = known.entry(c.atoms.clone());
                    let communicator = entry.index();
                    entry.or_insert(Members::Copies(copies));
                    let bytes = g.bytes(g.op(*id).args[0]) as u64;
                    out.push(What::Collective { communicator, kind: c.kind as u32, bytes });
                }
                _ => {}
            }
        }
    }
    let mut out = Vec::new();
    add(&f.graph, ENTRY, known, &mut out);
    out
}

/// Lists in the language of certificates. Messages go from rank to rank here, and each has a slot of its own; collectives go along other axes,
/// between ranks that run the same list.
fn events(lists: &[Vec<&Does>], functions: &[Function], bytes: &dyn Fn(&Var) -> usize) -> Program {
    let message = |var: &Var, microbatch: usize, number: usize, from: usize, to: usize| Message {
        from,
        to,
        microbatch,
        value: number as u32,
        shape: 0,
        bytes: bytes(var) as u64,
    };
    let mut communicators = IndexMap::new();
    let exchanges: Vec<Vec<What>> = functions.iter().map(|f| collectives(f, &mut communicators)).collect();
    let of = |rank: usize, list: &Vec<&Does>| -> (Vec<Event>, Vec<u32>) {
        let mut there: HashMap<(Var, usize), (usize, Message)> = HashMap::new();
        let mut events = Vec::with_capacity(list.len());
        for item in list {
            let what = match item {
                Does::Resume { .. } => continue,
                Does::Call { function, microbatch } => {
                    let exchanged = exchanges[*function].iter().map(|what| Event { stream: 0, what: what.clone() });
                    events.extend(exchanged);
                    let action = Action::new(Work::F, *function, *microbatch);
                    let read = functions[*function].args.iter().filter(|a| a.reads).filter_map(|a| {
                        let each = if let Var::Each(_) = a.var { *microbatch } else { 0 };
                        there.get(&(a.var, each)).copied()
                    });
                    What::Compute { action, reads: read.collect() }
                }
                Does::Send { var, microbatch, to, number } => {
                    let message = message(var, *microbatch, *number, rank, *to);
                    What::Offer { to: *to, message, number: *number }
                }
                Does::Receive { var, microbatch, from, number } => {
                    let message = message(var, *microbatch, *number, *from, rank);
                    let slot = there.len();
                    there.insert((*var, *microbatch), (slot, message));
                    What::Take { from: *from, message, number: *number, slot }
                }
                Does::Sent { number, .. } => What::Taken { number: *number },
            };
            events.push(Event { stream: 0, what });
        }
        (events, vec![0; there.len()])
    };
    let (ranks, slots) = lists.iter().enumerate().map(|(rank, list)| of(rank, list)).unzip();
    Program { ranks, slots, communicators: communicators.into_values().collect() }
}

fn with_waits(list: &[Item], calls: usize) -> Vec<Item> {
    let mut out = Vec::with_capacity(list.len());
    let mut open: Vec<(usize, Item)> = Vec::new();
    for item in list {
        if let Does::Call { .. } = item.does {
            open.iter_mut().for_each(|(age, _)| *age += 1);
            open.retain(|(age, sent)| {
                if *age > calls {
                    out.push(sent.clone());
                }
                *age <= calls
            });
        }
        if let Does::Send { var, microbatch, to, number } = item.does {
            let does = Does::Sent { var, microbatch, to, number };
            open.push((0, Item { when: item.when, does }));
        }
        out.push(item.clone());
    }
    out.extend(open.into_iter().map(|o| o.1));
    out
}
