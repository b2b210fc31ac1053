//! What code generators know of a kernel before they begin: which neighbouring loops are one, and what each expression
//! depends on.

use crate::kernel::{Carry, ExprId, Index, Kernel, LoopId, Node, Pass, Statement};
use crate::types::MapOp;

/// A small set of numbers.
#[derive(Clone, Default, Debug, PartialEq)]
pub struct Set(Vec<u64>);

impl Set {
    pub fn insert(&mut self, n: usize) {
        if self.0.len() <= n / 64 {
            self.0.resize(n / 64 + 1, 0);
        }
        self.0[n / 64] |= 1 << (n % 64);
    }

    pub fn contains(&self, n: usize) -> bool {
        self.0.get(n / 64).is_some_and(|word| word >> (n % 64) & 1 != 0)
    }

    pub fn unite(&mut self, other: &Set) {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        for (a, b) in self.0.iter_mut().zip(&other.0) {
            *a |= b;
        }
    }

    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }

    pub fn meets(&self, other: &Set) -> bool {
        self.0.iter().zip(&other.0).any(|(a, b)| a & b != 0)
    }
}

/// What an expression depends on, with all its operands.
#[derive(Clone, Default)]
pub struct Facts {
    pub loops: Set,
    pub registers: Set,
    pub loads: Set,
}

/// The facts of every expression, by [`ExprId`].
pub fn facts(kernel: &Kernel) -> Vec<Facts> {
    let mut all: Vec<Facts> = Vec::with_capacity(kernel.exprs.len());
    for expr in &kernel.exprs {
        let mut facts = Facts::default();
        expr.operands(&mut |e| {
            facts.loops.unite(&all[e.index()].loops);
            facts.registers.unite(&all[e.index()].registers);
            facts.loads.unite(&all[e.index()].loads);
        });
        if let Some(index) = expr.node.index() {
            index.loops.iter().for_each(|(l, _)| facts.loops.insert(l.index()));
        }
        match &expr.node {
            Node::Load { buffer, .. } => facts.loads.insert(buffer.index()),
            Node::Register(r) => facts.registers.insert(r.index()),
            _ => {}
        }
        all.push(facts);
    }
    all
}

/// The factor of a loop in an address.
pub fn stride(index: &Index, of: LoopId) -> i64 {
    index.loops.iter().find(|(l, _)| *l == of).map_or(0, |(_, c)| *c)
}

/// The exponent of a float's power by a constant that is worth multiplications.
pub fn small_power(kernel: &Kernel, e: ExprId) -> Option<f64> {
    let Node::Map(MapOp::Pow, args) = &kernel.expr(e).node else { return None };
    match kernel.expr(args[1]).node {
        Node::Const(n) if kernel.expr(e).dtype.is_float() && [-2.0, -1.0, 1.0, 2.0, 3.0, 4.0].contains(&n) => Some(n),
        _ => None,
    }
}

/// Merges neighbouring loops that every address walks as one. A merged-away loop keeps its number and has extent 1.
pub fn merge_loops(kernel: &Kernel) -> Kernel {
    let mut kernel = kernel.clone();
    for i in (1..kernel.rows).rev() {
        merge(&mut kernel, LoopId(i as u32 - 1), LoopId(i as u32));
    }
    let mut pairs = Vec::new();
    neighbours(&kernel.body, &mut pairs);
    for (outer, inner) in pairs.into_iter().rev() {
        if always_adjacent(&kernel.body, outer, inner) && merge(&mut kernel, outer, inner) {
            drop_loop(&mut kernel.body, outer);
        }
    }
    kernel
}

/// Makes `inner` stand for both loops, if all addresses allow it.
fn merge(kernel: &mut Kernel, outer: LoopId, inner: LoopId) -> bool {
    let size = kernel.extents[inner.index()];
    let mut fits = true;
    for_indices(kernel, &mut |index| fits &= stride(index, outer) == stride(index, inner) * size as i64);
    let Some(both) = kernel.extents[outer.index()].checked_mul(size).filter(|_| fits) else { return false };
    for_indices(kernel, &mut |index| index.loops.retain(|(l, _)| *l != outer));
    kernel.extents[outer.index()] = 1;
    kernel.extents[inner.index()] = both;
    true
}

fn for_indices(kernel: &mut Kernel, visit: &mut dyn FnMut(&mut Index)) {
    for expr in &mut kernel.exprs {
        match &mut expr.node {
            Node::Index(index) | Node::Load { at: index, .. } | Node::Random { counter: index, .. } => visit(index),
            Node::Const(_) | Node::Map(..) | Node::Register(_) | Node::Check { .. } => {}
        }
    }
    for_passes(&mut kernel.body, &mut |pass| pass.stores.iter_mut().for_each(|s| visit(&mut s.at)));
}

fn for_passes(body: &mut [Statement], visit: &mut dyn FnMut(&mut Pass)) {
    for statement in body {
        match statement {
            Statement::For { body, .. } => for_passes(body, visit),
            Statement::Pass(pass) => visit(pass),
        }
    }
}

fn drop_loop(body: &mut [Statement], gone: LoopId) {
    for_passes(body, &mut |pass| pass.loops.retain(|l| *l != gone));
}

fn neighbours(body: &[Statement], pairs: &mut Vec<(LoopId, LoopId)>) {
    for statement in body {
        match statement {
            Statement::For { body, .. } => neighbours(body, pairs),
            Statement::Pass(pass) => {
                for pair in pass.loops.windows(2) {
                    if !pairs.contains(&(pair[0], pair[1])) {
                        pairs.push((pair[0], pair[1]));
                    }
                }
            }
        }
    }
}

/// Whether the two loops occur only in passes, and there only one right inside of the other.
fn always_adjacent(body: &[Statement], outer: LoopId, inner: LoopId) -> bool {
    body.iter().all(|statement| match statement {
        Statement::For { index, body } => *index != outer && *index != inner && always_adjacent(body, outer, inner),
        Statement::Pass(pass) => {
            let at = |l: LoopId| pass.loops.iter().position(|x| *x == l);
            match (at(outer), at(inner)) {
                (None, None) => true,
                (Some(o), Some(i)) => o + 1 == i,
                _ => false,
            }
        }
    })
}

/// For each expression that a pass needs: after how many of its loops have been entered it can be evaluated.
pub fn levels(kernel: &Kernel, facts: &[Facts], pass: &Pass) -> Vec<(ExprId, usize)> {
    let innermost = pass.loops.len();
    let mut changing = Set::default();
    pass.carries.iter().for_each(|Carry { register, .. }| changing.insert(register.index()));
    pass.reductions.iter().for_each(|r| changing.insert(r.register.index()));
    let mut stored = Set::default();
    pass.stores.iter().for_each(|s| stored.insert(s.buffer.index()));
    kernel
        .needed(pass)
        .into_iter()
        .map(|e| {
            let f = &facts[e.index()];
            if f.registers.meets(&changing) || f.loads.meets(&stored) {
                return (e, innermost);
            }
            let level = (0..innermost).rev().find(|n| f.loops.contains(pass.loops[*n].index())).map_or(0, |n| n + 1);
            (e, level)
        })
        .collect()
}
