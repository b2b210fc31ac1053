//! A scatter whose sums are added to a product, to what a loop has summed, or to an argument that it grows, adds to it in place: of a table that is both an
//! embedding and a head, the gradients of its two uses are one array, of which the embedding's touches the rows that occur.
//!
//! Such a scatter has one operand more, which is what it adds to; nothing else reads that.

use crate::ir::*;
use crate::types::{DType, MapOp, ReduceKind};
use std::collections::HashMap;

pub(super) fn add_in_place(graph: &mut Graph) {
    let mut uses = vec![0u32; graph.values.len()];
    let outputs = graph.outputs.iter().map(|o| o.value);
    let results = graph.blocks.iter().flat_map(|b| b.ops.iter().flat_map(|id| &graph.op(*id).args).chain(&b.results));
    outputs.chain(results.copied()).for_each(|v| uses[v.index()] += 1);
    for block in 0..graph.blocks.len() {
        in_block(graph, BlockId(block as u32), &uses);
    }
}

fn in_block(graph: &mut Graph, block: BlockId, uses: &[u32]) {
    // Sums by operation: the scatter and what it adds to.
    let mut sums: HashMap<OpId, (OpId, ValueId)> = HashMap::new();
    let mut moved: Vec<OpId> = Vec::new();
    for id in &graph.block(block).ops {
        if let Some(found) = sum_of(graph, *id, uses) {
            sums.insert(*id, found);
            moved.push(found.0);
        }
    }
    if sums.is_empty() {
        return;
    }
    let mut replaced: HashMap<ValueId, ValueId> = HashMap::new();
    let old = std::mem::take(&mut graph.blocks[block.index()].ops);
    let mut ops = Vec::with_capacity(old.len());
    for id in old {
        if let Some((scatter, to)) = sums.get(&id) {
            graph.ops[scatter.index()].args.push(*to);
            let (sum, result) = (graph.op(id).results[0], graph.op(*scatter).results[0]);
            let Value { dims, name, .. } = graph.value(sum).clone();
            let named = &mut graph.values[result.index()];
            (named.dims, named.name) = (dims, name.or(named.name.take()));
            replaced.insert(sum, result);
            ops.push(*scatter);
        } else if !moved.contains(&id) {
            ops.push(id);
        }
    }
    let now = |v: &mut ValueId| *v = replaced.get(v).copied().unwrap_or(*v);
    ops.iter().for_each(|id| graph.ops[id.index()].args.iter_mut().for_each(now));
    graph.blocks[block.index()].ops = ops;
    graph.blocks[block.index()].results.iter_mut().for_each(now);
    graph.outputs.iter_mut().for_each(|o| now(&mut o.value));
}

/// Of a sum of a scatter's result and another array: the scatter, and the other.
fn sum_of(graph: &Graph, id: OpId, uses: &[u32]) -> Option<(OpId, ValueId)> {
    let Operation { op: Op::Map(MapOp::Add), args, results, block, .. } = graph.op(id) else { return None };
    let Value { dtype: DType::F32 | DType::F64, dims, .. } = graph.value(results[0]) else { return None };
    let maker = |v: ValueId| match graph.value(v).def {
        Def::Op(id, _) if graph.op(id).block == *block && uses[v.index()] == 1 => Some(id),
        _ => None,
    };
    let whole = |v: ValueId| graph.value(v).dims.len() == dims.len();
    let sum = |v: ValueId| {
        let scatter = |id: &OpId| matches!(graph.op(*id).op, Op::Scatter { kind: ReduceKind::Sum, .. });
        maker(v).filter(scatter)
    };
    let grows = |s: StateId| {
        let state = &graph.states[s.index()];
        let becomes = |o: &Output| o.kind == OutputKind::State(s) && o.value == results[0];
        state.kind == StateKind::Argument && state.dims == *dims && graph.outputs.iter().any(becomes)
    };
    let array = |v: ValueId| {
        maker(v).is_some_and(|id| match graph.op(id).op {
            Op::Dot { .. } | Op::Loop { .. } => true,
            Op::State(s) => grows(s),
            _ => false,
        })
    };
    let pairs = [(args[0], args[1]), (args[1], args[0])];
    let (scatter, to) = pairs.into_iter().find(|(s, to)| sum(*s).is_some() && array(*to) && whole(*s) && whole(*to))?;
    Some((sum(scatter)?, to))
}
