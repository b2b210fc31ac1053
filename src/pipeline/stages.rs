//! Which stage computes what.
//!
//! What depends on parameters and on what is fed (or drawn) belongs to a stage: operations of a turn of the pipelined loops to the turn's,
//! others of the forward pass to the last stage that they need something of (the first, if none), others of the backward pass to
//! the first one. What depends on one of the two alone (masks, positions, casts and gathered parameters) is computed wherever it is
//! needed.

use super::flat::{Flat, Part, Sum};
use crate::ir::*;
use crate::types::MapOp;

/// Cuts a loop's turns: the stage of each turn of the pipelined loops, one after another.
#[derive(Clone, Debug)]
pub struct Turns {
    /// The loops' dims with the number of their first turn.
    pub loops: Vec<(DimId, usize)>,
    pub stage: Vec<usize>,
}

impl Turns {
    fn of_scope(&self, g: &Graph, scope: ScopeId) -> Option<usize> {
        let mut at = Some(scope);
        while let Some(s) = at.and_then(|s| g.scopes.get(s.index())) {
            for (dim, turn) in &s.turns {
                if let Some((_, first)) = self.loops.iter().find(|(d, _)| d == dim) {
                    return self.stage.get(first + *turn as usize).copied();
                }
            }
            at = s.parent;
        }
        None
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
            in_turn[id.index()] = turn.is_some();
            let stage = turn.unwrap_or_else(|| match (back, among(true).min()) {
                (true, Some(first)) => first,
                _ => among(false).max().unwrap_or(0),
            });
            of[id.index()] = Some(stage);
            op.results.iter().for_each(|r| made[r.index()] = Some((stage, back)));
        }
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
        // Its parts, and what only joins them.
        let (mut leaves, mut inner, mut open) = (Vec::new(), Vec::new(), vec![part]);
        while let Some(v) = open.pop() {
            let joins = self.def(v).filter(|d| {
                let op = &self.flat.g.op(*d).op;
                uses[v.index()] == 1 && (*op == Op::Map(combine) || matches!(op, Op::Map(MapOp::Cast(_))))
            });
            match joins {
                Some(d) => {
                    inner.push(d);
                    open.extend(self.flat.g.op(d).args.iter().rev());
                }
                None => leaves.push(v),
            }
        }
        let mut shares: Vec<Share> = Vec::new();
        for v in leaves {
            let share = one(self, v);
            match shares.iter_mut().find(|s| s.stage == share.stage) {
                Some(s) => s.values.push(v),
                None => shares.push(share),
            }
        }
        if let [only] = &mut shares[..] {
            only.values = vec![part];
        } else {
            for d in inner {
                self.adds[d.index()] = true;
                self.of[d.index()] = None;
            }
        }
        shares.sort_by_key(|s| s.stage);
        Ok(Growth { combine: Some(combine), shares })
    }
}
