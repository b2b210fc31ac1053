//! Moves reads of parameters out of loop bodies, where a gradient could not leave the loop.

use crate::ir::*;

/// Afterwards every `Op::Param` is in the program's block; loops capture what they read.
pub fn hoist_params(graph: &mut Graph) {
    // Inner loops first: what leaves one may have to leave the next.
    while let Some((owner, body)) = find(graph) {
        let reads: Vec<OpId> = graph.block(body).ops.iter().copied().filter(|id| is_read(graph, *id)).collect();
        for read in reads {
            lift(graph, owner, body, read);
        }
    }
}

fn is_read(graph: &Graph, id: OpId) -> bool {
    matches!(graph.op(id).op, Op::Param(_))
}

/// A loop whose body reads a parameter itself, the innermost first (bodies are numbered from the outside in).
fn find(graph: &Graph) -> Option<(OpId, BlockId)> {
    let mut found = None;
    for (i, op) in graph.ops.iter().enumerate() {
        if let Op::Loop { body, .. } = op.op
            && graph.block(body).ops.iter().any(|id| is_read(graph, *id))
        {
            found = found.max(Some((body, OpId(i as u32))));
        }
    }
    found.map(|(body, owner)| (owner, body))
}

/// Moves one read in front of the loop; the value inside becomes a capture.
fn lift(graph: &mut Graph, owner: OpId, body: BlockId, read: OpId) {
    let outside = graph.op(owner).block;
    let inner = graph.op(read).results[0];
    let position = graph.block(body).params.len() as u32;
    graph.blocks[body.index()].ops.retain(|id| *id != read);
    graph.blocks[body.index()].params.push(inner);
    graph.values[inner.index()].def = Def::BlockParam(position);

    let mut value = graph.value(inner).clone();
    (value.block, value.def) = (outside, Def::Op(read, 0));
    let outer = ValueId(graph.values.len() as u32);
    graph.values.push(value);
    graph.ops[read.index()].results = vec![outer];
    graph.ops[read.index()].block = outside;
    let ops = &mut graph.blocks[outside.index()].ops;
    let at = ops.iter().position(|id| *id == owner).expect("a loop stands in its block");
    ops.insert(at, read);
    graph.ops[owner.index()].args.push(outer);
}
