//! What a rank does behind the microbatches: a function for each time that it has to wait for others.

use super::behind::{Behind, bit};
use super::cut::Cutter;
use super::draw::{Draw, Function, Var};
use super::flat::Part;
use crate::ir::*;
use std::collections::HashSet;

/// The functions of a rank under construction.
struct After<'a, 'b> {
    c: &'a Cutter<'b>,
    b: &'a Behind,
    rank: usize,
    /// By value of the step: whether it is kept for the functions of stages.
    kept: Vec<bool>,
    /// By function: the operations behind the microbatches that are its own, in order.
    own: Vec<Vec<OpId>>,
    /// Outputs that are new parameters and states, each with the function that writes it; and the others.
    slots: Vec<(&'a Output, usize)>,
    leaving: Vec<&'a Output>,
}

impl Cutter<'_> {
    /// In their order; what they need of each other is handed on.
    pub fn after(&self, rank: usize, b: &Behind, kept: &[ValueId]) -> Vec<Function> {
        let all = b.outputs[rank].iter().map(|k| &self.g().outputs[*k]);
        let (slots, leaving): (Vec<&Output>, Vec<&Output>) = all.partition(|o| is_slot(o));
        let mut is_kept = vec![false; self.g().values.len()];
        kept.iter().for_each(|v| is_kept[v.index()] = true);
        let mut a = After { c: self, b, rank, kept: is_kept, own: Vec::new(), slots: Vec::new(), leaving };
        a.slots = slots.into_iter().map(|o| (o, a.level(o.value))).collect();
        let made = b.computes[rank].iter().map(|id| a.level_of(*id));
        let left = a.leaving.iter().map(|o| a.level(o.value));
        let last = made.chain(left).chain(a.slots.iter().map(|s| s.1)).max().unwrap_or(0);
        let mut own = vec![Vec::new(); last + 1];
        for id in b.computes[rank].iter().filter(|id| a.is_after(**id)) {
            own[a.level_of(*id)].push(*id);
        }
        a.own = own;
        a.write_late(last);
        (0..=last).map(|now| a.function(now)).collect()
    }
}

impl After<'_, '_> {
    fn level(&self, v: ValueId) -> usize {
        self.b.level[self.rank].get(&v).copied().unwrap_or(0)
    }

    fn level_of(&self, id: OpId) -> usize {
        self.c.g().op(id).results.first().map_or(0, |r| self.level(*r))
    }

    fn is_after(&self, id: OpId) -> bool {
        self.c.s.flat.part[id.index()] == Part::After
    }

    /// What the rank can compute of what is always there is made where it is needed.
    fn repeats(&self, id: OpId) -> bool {
        let results = &self.c.g().op(id).results;
        let is_kept = results.iter().any(|r| self.kept[r.index()]);
        let is_here = results.iter().all(|r| self.b.home[r.index()] & bit(self.rank) != 0);
        let stands = self.b.position[id.index()] != u32::MAX;
        stands
            && !self.is_after(id)
            && self.c.s.of[id.index()].is_none()
            && !self.c.s.adds[id.index()]
            && !is_kept
            && is_here
    }

    fn ops(&self, now: usize) -> Vec<OpId> {
        let mut values = self.others(now);
        values.extend(self.slots.iter().filter(|s| s.1 == now).map(|s| s.0.value));
        // In order, with all that is repeated for them.
        let made = |v: &ValueId| self.c.def(*v).filter(|id| self.repeats(*id));
        let mut open: Vec<OpId> = values.iter().filter_map(made).collect();
        self.own[now].iter().for_each(|id| open.extend(self.c.g().op(*id).args.iter().filter_map(made)));
        let mut again = HashSet::new();
        while let Some(id) = open.pop() {
            if again.insert(id) {
                open.extend(self.c.g().op(id).args.iter().filter_map(made));
            }
        }
        let mut ops: Vec<OpId> = self.own[now].iter().copied().chain(again).collect();
        ops.sort_unstable_by_key(|id| self.b.position[id.index()]);
        ops
    }

    /// Outputs, and what others need, that nothing behind computes.
    fn others(&self, now: usize) -> Vec<ValueId> {
        let sent = self.b.sends.iter().filter(|(_, from, _)| *from == self.rank).map(|(v, _, _)| *v);
        let all = self.leaving.iter().map(|o| o.value).chain(sent);
        all.filter(|v| self.level(*v) == now && self.c.def(*v).is_some_and(|id| self.repeats(id))).collect()
    }

    /// A parameter or state gets its new value when no later function reads the old one. Writing later may read later, too.
    fn write_late(&mut self, last: usize) {
        loop {
            let mut moved = false;
            for now in 0..=last {
                let mut read = HashSet::new();
                self.ops(now).iter().for_each(|id| Slot::add_read(self.c.g(), *id, &mut read));
                for (o, at) in &mut self.slots {
                    if *at < now && Slot::written(o).is_some_and(|s| read.contains(&s)) {
                        (*at, moved) = (now, true);
                    }
                }
            }
            if !moved {
                return;
            }
        }
    }

    /// What is needed when a function has ended.
    fn read_later(&self, now: usize) -> HashSet<ValueId> {
        let g = self.c.g();
        let sent = self.b.sends.iter().filter(|(_, from, _)| *from == self.rank).map(|(v, _, _)| *v);
        let slots = self.slots.iter().filter(|s| s.1 > now).map(|s| s.0.value);
        let later = self.b.computes[self.rank].iter().filter(|id| self.level_of(**id) > now);
        let read = later.flat_map(|id| g.op(*id).args.iter().copied());
        sent.chain(slots).chain(self.leaving.iter().map(|o| o.value)).chain(read).collect()
    }

    fn function(&self, now: usize) -> Function {
        let g = self.c.g();
        let var = |v: ValueId| self.c.var_behind(v, self.rank, self.b);
        let ops = self.ops(now);
        let mut d = Draw::new(g, Phase::Update, &var);
        ops.iter().for_each(|id| d.op(*id));
        self.slots.iter().filter(|s| s.1 == now).for_each(|(o, _)| d.output(o));
        let later = self.read_later(now);
        for id in &self.own[now] {
            for r in g.op(*id).results.iter().filter(|r| later.contains(r)) {
                let made = d.value(*r);
                d.give(var(*r), *r, made);
            }
        }
        for v in self.others(now) {
            if !d.is_given(v) {
                let made = d.value(v);
                d.give(Var::Once(v), v, made);
            }
        }
        d.finish(format!("after.{}.{now}", self.rank))
    }
}

fn is_slot(o: &Output) -> bool {
    !matches!(o.kind, OutputKind::Loss | OutputKind::Metric | OutputKind::Value)
}

/// What is read and written in place.
#[derive(PartialEq, Eq, Hash)]
enum Slot {
    Param(ParamId),
    State(StateId),
}

impl Slot {
    fn add_read(g: &Graph, id: OpId, read: &mut HashSet<Slot>) {
        match g.op(id).op {
            Op::Param(p) => _ = read.insert(Slot::Param(p)),
            Op::State(s) => _ = read.insert(Slot::State(s)),
            Op::Loop { body, .. } => g.block(body).ops.iter().for_each(|id| Slot::add_read(g, *id, read)),
            _ => {}
        }
    }

    fn written(o: &Output) -> Option<Slot> {
        match o.kind {
            OutputKind::Param(p) => Some(Slot::Param(p)),
            OutputKind::State(s) => Some(Slot::State(s)),
            _ => None,
        }
    }
}
