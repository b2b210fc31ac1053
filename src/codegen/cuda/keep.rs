//! What a thread keeps in registers from pass to pass: elements that several passes of a row load, so that they come from memory once.

use super::team::Team;
use crate::codegen::plan::Facts;
use crate::kernel::{ExprId, Kernel, LoopId, Node, Pass, Statement};

/// Elements of one load, and of all, that a thread keeps.
const MOST_TURNS: usize = 16;
const MOST: usize = 64;

/// Loads that are kept.
#[derive(Default)]
pub struct Kept {
    pub loads: Vec<ExprId>,
    /// The loops of the passes that share them, and how many turns of these a thread has.
    pub loops: Vec<LoopId>,
    pub turns: usize,
}

impl Kept {
    /// Of the first loops that several passes have, where the turns of a thread are few enough.
    pub fn of(kernel: &Kernel, facts: &[Facts], team: Team) -> Kept {
        let threads = match team {
            Team::One | Team::Column(_) => return Kept::default(),
            Team::Warp => 32,
            Team::Block(threads) => threads as usize,
        };
        let mut passes: Vec<&Pass> = Vec::new();
        for statement in &kernel.body {
            let Statement::Pass(p) = statement else { return Kept::default() };
            passes.push(p);
        }
        let shared = |p: &&&Pass| !p.loops.is_empty() && passes.iter().filter(|q| q.loops == p.loops).count() > 1;
        let Some(first) = passes.iter().find(shared) else { return Kept::default() };
        let loops = first.loops.clone();
        let total: usize = loops.iter().map(|l| kernel.extents[l.index()]).product();
        let turns = total.div_ceil(threads);
        let of_loops: Vec<Vec<ExprId>> = passes.iter().filter(|p| p.loops == loops).map(|p| kernel.needed(p)).collect();
        let mut loads = Vec::new();
        for (n, expr) in kernel.exprs.iter().enumerate() {
            let e = ExprId(n as u32);
            let Node::Load { buffer, .. } = &expr.node else { continue };
            let f = &facts[n];
            let varies = f.registers.is_empty() && loops.iter().any(|l| f.loops.contains(l.index()));
            let read = !kernel.buffers[buffer.index()].access.writes();
            if varies && read && of_loops.iter().filter(|p| p.contains(&e)).count() > 1 {
                loads.push(e);
            }
        }
        loads.truncate(MOST / turns.max(1));
        if loads.is_empty() || turns > MOST_TURNS {
            return Kept::default();
        }
        Kept { loads, loops, turns }
    }

    /// Whether a pass has some of them.
    pub fn is_in(&self, pass: &Pass) -> bool {
        !self.loads.is_empty() && pass.loops == self.loops
    }
}
