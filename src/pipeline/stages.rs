//! Which stage computes what.
//!
//! What depends on parameters and on what is fed (or drawn) belongs to a stage: operations of a turn of the pipelined loops to the turn's,
//! others of the forward pass to the last stage that they need something of (the first, if none), others of the backward pass to
//! the first one. What depends on one of the two alone (masks, positions, casts and gathered parameters) is computed wherever it is
//! needed.

use super::flat::{Flat, Part, Sum};
use crate::ir::*;
use crate::types::{MapOp, ReduceKind};
use indexmap::IndexMap;

/// Cuts a loop's turns: the stage of each turn of the pipelined loops, one after another.
#[derive(Clone, Debug)]
pub struct Turns {
    /// The loops' dims with the number of their first turn.
    pub loops: Vec<(DimId, usize)>,
    pub stage: Vec<usize>,
}

impl Turns {
    /// What `stage` says of the turn that a scope belongs to.
    pub fn of_scope(&self, g: &Graph, scope: ScopeId) -> Option<usize> {
        let of = |(dim, turn): &(DimId, u32)| {
            let (_, first) = self.loops.iter().find(|(d, _)| d == dim)?;
            Some(first + *turn as usize)
        };
        let turn = g.outwards(scope).find_map(|s| g.scopes[s.index()].turns.iter().find_map(of))?;
        self.stage.get(turn).copied()
    }
}

/// What is added to a sum at one stage.
#[derive(Clone, Debug)]
pub struct Share {
    pub stage: usize,
    pub values: Vec<ValueId>,
}

/// How a sum grows.
#[derive(Clone, Debug)]
pub struct Growth {
    /// None: the last value counts alone.
    pub combine: Option<MapOp>,
    pub shares: Vec<Share>,
}

pub struct Stages {
    pub flat: Flat,
    /// By operation: its stage; None for what is computed where it is needed, and for what sums do.
    pub of: Vec<Option<usize>>,
    /// By operation of a stage: whether it belongs to a turn.
    pub in_turn: Vec<bool>,
    /// By operation: whether it does nothing but add to sums.
    pub adds: Vec<bool>,
    /// By sum.
    pub growth: Vec<Growth>,
}

const PARAM: u8 = 1;
const DATA: u8 = 2;

/// The kinds of things that each value depends on.
fn depends(g: &Graph) -> Vec<u8> {
    fn own(g: &Graph, op: &Operation) -> u8 {
        match &op.op {
            Op::Param(_) | Op::State(_) => PARAM,
            Op::Input(_) | Op::Random { .. } | Op::Draw { .. } => DATA,
            Op::Loop { body, .. } => g.block(*body).ops.iter().fold(0, |d, id| d | own(g, g.op(*id))),
            _ => 0,
        }
    }
    let mut all = vec![0u8; g.values.len()];
    for id in &g.block(ENTRY).ops {
        let op = g.op(*id);
        let d = op.args.iter().fold(own(g, op), |d, a| d | all[a.index()]);
        op.results.iter().for_each(|r| all[r.index()] = d);
    }
    all
}

/// By value: the last stage whose turns read it in the backward pass, be it by way of operations that belong to no turn.
fn highest_readers(g: &Graph, turns: &Turns) -> Vec<Option<usize>> {
    let mut highest: Vec<Option<usize>> = vec![None; g.values.len()];
    for op in g.block(ENTRY).ops.iter().rev().map(|id| g.op(*id)).filter(|op| op.phase == Phase::Backward) {
        let stage = turns.of_scope(g, op.scope).or_else(|| op.results.iter().filter_map(|r| highest[r.index()]).max());
        op.args.iter().for_each(|a| highest[a.index()] = highest[a.index()].max(stage));
    }
    highest
}

impl Stages {
    pub fn new(mut flat: Flat, turns: &Turns) -> Result<Stages, String> {
        let depends = depends(&flat.g);
        let ops = flat.g.block(ENTRY).ops.clone();
        // Without a loop, parameters alone are as good as before it.
        for id in &ops {
            let free = flat.g.op(*id).results.iter().all(|r| depends[r.index()] & DATA == 0);
            if flat.turn.is_none() && flat.part[id.index()] == Part::Body && free {
                flat.part[id.index()] = Part::Before;
            }
        }
        let g = &flat.g;
        let last = turns.stage.iter().copied().max().unwrap_or(0);
        let mut of: Vec<Option<usize>> = vec![None; g.ops.len()];
        let mut in_turn = vec![false; g.ops.len()];
        let highest = highest_readers(g, turns);
        let mut read_behind = vec![false; g.values.len()];
        let after = ops.iter().filter(|id| flat.part[id.index()] == Part::After).flat_map(|id| &g.op(*id).args);
        after.chain(g.outputs.iter().map(|o| &o.value)).for_each(|v| read_behind[v.index()] = true);
        // By value: the stage, and whether the backward pass makes it.
        let mut made: Vec<Option<(usize, bool)>> = vec![None; g.values.len()];
        for id in &ops {
            let op = g.op(*id);
            let staged = op.results.iter().any(|r| depends[r.index()] == PARAM | DATA);
            if flat.part[id.index()] != Part::Body || !(staged || op.args.iter().any(|a| made[a.index()].is_some())) {
                continue;
            }
            let back = op.phase == Phase::Backward;
            let among = |backward: bool| {
                op.args.iter().filter_map(|a| made[a.index()]).filter(move |(_, b)| *b == backward).map(|(s, _)| s)
            };
            let turn = turns.of_scope(g, op.scope);
            // A cotangent that begins with a scale and with what is fed belongs to whoever reads it.
            let alone = op.args.iter().all(|a| made[a.index()].is_none());
            if back && turn.is_none() && alone && !op.results.iter().any(|r| read_behind[r.index()]) {
                continue;
            }
            in_turn[id.index()] = turn.is_some();
            let stage = turn.unwrap_or_else(|| match (back, among(true).min()) {
                (true, Some(first)) => first,
                // What the backward pass begins with is made before all stages that need it.
                (true, None) => {
                    let readers = op.results.iter().filter_map(|r| highest[r.index()]);
                    readers.chain(among(false)).max().unwrap_or(0)
                }
                _ => among(false).max().unwrap_or(0),
            });
            if let (Some(own), Some(later), false) = (turn, among(false).max(), back)
                && later > own
            {
                let names: Vec<&str> = turns.loops.iter().map(|(d, _)| g.dim(*d).name.as_str()).collect();
                return Err(format!(
                    "stage {own} needs what stage {later} computes: the model goes through its loops in another order than `{}`",
                    names.join(", ")
                ));
            }
            of[id.index()] = Some(stage);
            op.results.iter().for_each(|r| made[r.index()] = Some((stage, back)));
        }
        super::again::first_made(&mut flat, &of);
        let mut s = Stages { adds: vec![false; of.len()], growth: Vec::new(), of, in_turn, flat };
        let uses = s.uses();
        for sum in s.flat.sums.clone() {
            let growth = s.growth(&sum, &uses, last)?;
            s.growth.push(growth);
        }
        Ok(s)
    }

    fn uses(&self) -> Vec<u32> {
        let g = &self.flat.g;
        let mut uses = vec![0; g.values.len()];
        let args = g.block(ENTRY).ops.iter().flat_map(|id| &g.op(*id).args);
        let next = self.flat.sums.iter().map(|s| &s.next);
        args.chain(next).chain(g.outputs.iter().map(|o| &o.value)).for_each(|v| uses[v.index()] += 1);
        uses
    }

    fn def(&self, v: ValueId) -> Option<OpId> {
        match self.flat.g.value(v).def {
            Def::Op(op, _) => Some(op),
            Def::BlockParam(_) => None,
        }
    }

    pub fn stage_of(&self, v: ValueId) -> Option<usize> {
        self.def(v).and_then(|op| self.of[op.index()])
    }

    /// How a sum grows; its additions are no operations any more.
    fn growth(&mut self, sum: &Sum, uses: &[u32], last: usize) -> Result<Growth, String> {
        let g = &self.flat.g;
        let one = |s: &Stages, v: ValueId| Share { stage: s.stage_of(v).unwrap_or(last), values: vec![v] };
        if sum.next == sum.carry {
            return Ok(Growth { combine: None, shares: Vec::new() });
        }
        let Some(id) = self.def(sum.next) else {
            return Ok(Growth { combine: None, shares: vec![one(self, sum.next)] });
        };
        let op = g.op(id);
        let carried = op.args.contains(&sum.carry);
        if !carried {
            if uses[sum.carry.index()] > 0 {
                return Err("a sum over microbatches that is more than a sum".into());
            }
            return Ok(Growth { combine: None, shares: vec![one(self, sum.next)] });
        }
        let (&Op::Map(combine), &[a, b]) = (&op.op, &op.args[..]) else {
            return Err("a sum over microbatches that is more than a sum".into());
        };
        let part = if a == sum.carry { b } else { a };
        let simple = matches!(combine, MapOp::Add | MapOp::Mul | MapOp::Max | MapOp::Min | MapOp::And | MapOp::Or);
        if !simple || part == sum.carry || uses[sum.carry.index()] != 1 || uses[sum.next.index()] != 1 {
            return Err("a sum over microbatches that is more than a sum".into());
        }
        self.adds[id.index()] = true;
        self.of[id.index()] = None;
        let mut leaves = Vec::new();
        self.leaves(part, combine, uses, &mut Vec::new(), &mut leaves);
        let stage = |s: &Stages, v: ValueId| s.stage_of(v).unwrap_or(last);
        let first = stage(self, leaves[0].value);
        if leaves.iter().all(|l| stage(self, l.value) == first) {
            return Ok(Growth { combine: Some(combine), shares: vec![one(self, part)] });
        }
        // What belongs to one stage is added up there, and goes the same way to the sum.
        let mut groups: IndexMap<(usize, Vec<OpId>), Vec<ValueId>> = IndexMap::new();
        for l in leaves {
            l.joins.iter().chain(&l.way).for_each(|d| {
                self.adds[d.index()] = true;
                self.of[d.index()] = None;
            });
            groups.entry((stage(self, l.value), l.way)).or_default().push(l.value);
        }
        let mut shares: Vec<Share> = Vec::new();
        let mut new = Vec::new();
        for ((stage, way), of) in groups {
            let mut v = of[0];
            for other in &of[1..] {
                v = self.again(id, Op::Map(combine), vec![v, *other], self.flat.g.value(v).clone(), stage, &mut new);
            }
            for d in way {
                let Operation { op, results, .. } = self.flat.g.op(d).clone();
                v = self.again(d, op, vec![v], self.flat.g.value(results[0]).clone(), stage, &mut new);
            }
            match shares.iter_mut().find(|s| s.stage == stage) {
                Some(s) => s.values.push(v),
                None => shares.push(Share { stage, values: vec![v] }),
            }
        }
        let ops = &mut self.flat.g.blocks[ENTRY.index()].ops;
        let at = ops.iter().position(|o| *o == id).unwrap_or(ops.len());
        ops.splice(at..at, new);
        shares.sort_by_key(|s| s.stage);
        Ok(Growth { combine: Some(combine), shares })
    }

    /// The summands of a value that nothing else reads, with what is applied to each on its way.
    fn leaves(&self, v: ValueId, combine: MapOp, uses: &[u32], outer: &mut Vec<OpId>, all: &mut Vec<Summand>) {
        let g = &self.flat.g;
        let alone = self.def(v).filter(|d| uses[v.index()] == 1 && g.op(*d).results.len() == 1);
        let Some(d) = alone else { return all.push(Summand::of(v, outer, g)) };
        let op = g.op(d);
        let applied = match &op.op {
            Op::Map(m) if *m == combine && op.args[0] != op.args[1] => true,
            Op::Map(MapOp::Cast(_)) | Op::Reshape { .. } => true,
            Op::Collective(c) => c.reduce.as_ref().is_none_or(|(kind, _)| *kind == ReduceKind::Sum),
            _ => false,
        };
        if !applied || (combine != MapOp::Add && op.args.len() == 1) {
            return all.push(Summand::of(v, outer, g));
        }
        outer.push(d);
        for a in &op.args {
            self.leaves(*a, combine, uses, outer, all);
        }
        outer.pop();
    }

    /// One more operation of a stage, like another one.
    fn again(
        &mut self,
        model: OpId,
        op: Op,
        args: Vec<ValueId>,
        like: Value,
        stage: usize,
        new: &mut Vec<OpId>,
    ) -> ValueId {
        let g = &mut self.flat.g;
        let (id, made) = (OpId(g.ops.len() as u32), ValueId(g.values.len() as u32));
        g.values.push(Value { def: Def::Op(id, 0), ..like });
        let Operation { span, scope, phase, again, .. } = *g.op(model);
        g.ops.push(Operation { op, args, results: vec![made], block: ENTRY, span, scope, phase, again });
        self.of.push(Some(stage));
        self.in_turn.push(false);
        self.adds.push(false);
        self.flat.part.push(Part::Body);
        new.push(id);
        made
    }
}

/// What is added to a sum.
struct Summand {
    value: ValueId,
    /// What is applied to it before it is added, the first first.
    way: Vec<OpId>,
    /// What it is added by.
    joins: Vec<OpId>,
}

impl Summand {
    fn of(value: ValueId, outer: &[OpId], g: &Graph) -> Summand {
        let (way, joins) = outer.iter().rev().partition(|d| g.op(**d).args.len() == 1);
        Summand { value, way, joins }
    }
}
