//! A step as one list of operations: those before the microbatches, those of each microbatch, those behind.

use crate::ir::*;
use std::collections::HashMap;

/// Where an operation stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    Before,
    /// Once for each microbatch.
    Body,
    After,
}

/// What microbatches add up.
#[derive(Clone, Copy, Debug)]
pub struct Sum {
    /// Before the first microbatch.
    pub initial: ValueId,
    /// Before and after one of them.
    pub carry: ValueId,
    pub next: ValueId,
    /// After the last one.
    pub total: ValueId,
}

/// The program's block holds all operations, those of the loop over microbatches too.
pub struct Flat {
    pub g: Graph,
    /// By operation.
    pub part: Vec<Part>,
    /// The number of the microbatch.
    pub turn: Option<ValueId>,
    pub sums: Vec<Sum>,
}

/// Takes the loop over so many microbatches apart; without one, all that is no update is done once. Err: why it cannot be.
pub fn flatten(graph: &Graph, microbatches: usize) -> Result<Flat, String> {
    let main = main_loop(graph, microbatches);
    if microbatches > 1 && main.is_none() {
        let none = graph.inputs.is_empty().then_some("nothing is fed, so there are no samples for");
        return Err(format!("{} {microbatches} microbatches", none.unwrap_or("no loop over")));
    }
    let mut g = graph.clone();
    let mut part = vec![Part::Before; g.ops.len()];
    let entry = std::mem::take(&mut g.blocks[ENTRY.index()].ops);
    let mut all = Vec::with_capacity(g.ops.len());
    let mut late = vec![false; g.values.len()];
    let (mut turn, mut sums) = (None, Vec::new());
    for id in entry {
        if Some(id) == main {
            let Op::Loop { body, carries, .. } = g.op(id).op else { unreachable!("the loop over microbatches") };
            let carries = carries as usize;
            let (op, block) = (g.op(id).clone(), g.block(body).clone());
            if block.results.len() > carries {
                return Err("what each sample gives leaves the step, and not as a sum".into());
            }
            turn = Some(block.params[0]);
            for k in 0..carries {
                let (carry, next) = (block.params[1 + k], block.results[k]);
                sums.push(Sum { initial: op.args[k], carry, next, total: op.results[k] });
                late[op.results[k].index()] = true;
            }
            let captured: HashMap<ValueId, ValueId> =
                block.params[1 + carries..].iter().copied().zip(op.args[carries..].iter().copied()).collect();
            for inner in block.ops {
                let op = &mut g.ops[inner.index()];
                op.block = ENTRY;
                op.args.iter_mut().for_each(|a| *a = captured.get(a).copied().unwrap_or(*a));
                for r in op.results.clone() {
                    g.values[r.index()].block = ENTRY;
                }
                part[inner.index()] = Part::Body;
                all.push(inner);
            }
            // What a turn hands on may be something from outside.
            for sum in sums.iter_mut() {
                sum.next = captured.get(&sum.next).copied().unwrap_or(sum.next);
            }
            continue;
        }
        let op = g.op(id);
        let behind = op.args.iter().any(|a| late[a.index()]) || (main.is_none() && op.phase == Phase::Update);
        part[id.index()] = match (behind, main) {
            (true, _) => Part::After,
            (false, None) => Part::Body,
            (false, Some(_)) => Part::Before,
        };
        if behind {
            op.results.iter().for_each(|r| late[r.index()] = true);
        }
        all.push(id);
    }
    g.blocks[ENTRY.index()].ops = all;
    Ok(Flat { g, part, turn, sums })
}

/// The loop that does most of the work.
fn main_loop(g: &Graph, microbatches: usize) -> Option<OpId> {
    let over = |id: &&OpId| match g.op(**id).op {
        Op::Loop { dim, .. } => g.dim(dim).name == "microbatches" && g.size(dim) == microbatches,
        _ => false,
    };
    let size = |id: &&OpId| match g.op(**id).op {
        Op::Loop { body, .. } => g.block(body).ops.len(),
        _ => 0,
    };
    g.block(ENTRY).ops.iter().filter(over).max_by_key(size).copied()
}
