//! Arguments of a function that grow by a product: the product adds to them in place. A gradient that microbatches sum up is read and
//! written once for each of them, not made on its own first.

use super::Lowerer;
use crate::ir::*;
use crate::types::{DType, MapOp};
use std::collections::HashMap;

/// A product that is all that is added to an argument.
pub(super) struct Sum {
    argument: StateId,
    product: ValueId,
    op: OpId,
}

/// Takes the sums out of the program: the products are what becomes of the arguments then.
pub(super) fn take(graph: &mut Graph) -> Vec<Sum> {
    let mut uses = vec![0u32; graph.values.len()];
    let mut reads: HashMap<StateId, u32> = HashMap::new();
    for block in &graph.blocks {
        for op in block.ops.iter().map(|id| graph.op(*id)) {
            op.args.iter().for_each(|a| uses[a.index()] += 1);
            if let Op::State(s) = op.op {
                *reads.entry(s).or_default() += 1;
            }
        }
        block.results.iter().for_each(|v| uses[v.index()] += 1);
    }
    graph.outputs.iter().for_each(|o| uses[o.value.index()] += 1);
    let mut sums = Vec::new();
    for k in 0..graph.outputs.len() {
        let Some((sum, read, found)) = sum_of(graph, k, &uses, &reads) else { continue };
        graph.blocks[ENTRY.index()].ops.retain(|id| *id != sum && *id != read);
        graph.values[found.product.index()].dims = graph.states[found.argument.index()].dims.clone();
        graph.outputs[k].value = found.product;
        sums.push(found);
    }
    sums
}

/// Of an output that is an argument and a product: the sum, the reading of the argument, and both.
fn sum_of(graph: &Graph, output: usize, uses: &[u32], reads: &HashMap<StateId, u32>) -> Option<(OpId, OpId, Sum)> {
    let Output { kind: OutputKind::State(argument), value, .. } = graph.outputs[output] else { return None };
    let state = &graph.states[argument.index()];
    let once = |v: ValueId| uses[v.index()] == 1;
    let made = |v: ValueId| match graph.value(v).def {
        Def::Op(id, _) if once(v) && graph.op(id).block == ENTRY => Some(id),
        _ => None,
    };
    let sum = made(value).filter(|_| state.kind == StateKind::Argument && reads.get(&argument) == Some(&1))?;
    let Operation { op: Op::Map(MapOp::Add), args, .. } = graph.op(sum) else { return None };
    let is_read = |v: &&ValueId| made(**v).is_some_and(|id| graph.op(id).op == Op::State(argument));
    let read = *args.iter().find(is_read)?;
    let product = *args.iter().find(|a| **a != read)?;
    let op = made(product).filter(|id| matches!(graph.op(*id).op, Op::Dot { .. }))?;
    let Value { dtype, dims, .. } = graph.value(product);
    let like = *dtype == state.dtype && dims.len() == state.dims.len() && dims.iter().all(|d| state.dims.contains(d));
    let wide = matches!(dtype, DType::F32 | DType::F64);
    (like && wide).then_some((sum, made(read)?, Sum { argument, product, op }))
}

impl Lowerer<'_, '_> {
    /// Has the products write to the arguments.
    pub(super) fn add_to_arguments(&mut self, sums: &[Sum]) {
        for Sum { argument, product, op } in sums {
            let Value { dtype, dims, .. } = self.graph.value(*product).clone();
            let elements = self.graph.elements(&dims);
            let buffer = self.slot_buffer(self.slots.states[argument.index()], dtype, elements);
            self.buffers[product.index()] = Some(buffer);
            self.adds.insert(*op);
        }
    }
}
