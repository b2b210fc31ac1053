//! How much operations compute, about: for choices, not for profiles.

use super::*;

/// Operations on floats of a block, of all turns of its loops.
pub fn flops(g: &Graph, block: BlockId) -> f64 {
    g.block(block).ops.iter().map(|id| flops_of(g, g.op(*id))).sum()
}

/// Those of one operation. Multiplications and additions count one each; what goes over elements counts one for each.
pub fn flops_of(g: &Graph, op: &Operation) -> f64 {
    let size = |dims: &[DimId]| dims.iter().map(|d| g.size(*d) as f64).product::<f64>();
    let results: f64 = op.results.iter().map(|r| size(&g.value(*r).dims)).sum();
    match &op.op {
        Op::Loop { body, dim, .. } => g.size(*dim) as f64 * flops(g, *body),
        Op::Dot { contract } => 2.0 * results * size(contract),
        Op::Attention(a) | Op::AttentionGrad(a) => {
            let work = 2.0 * size(&g.value(op.args[0]).dims) * g.size(a.key) as f64;
            if matches!(op.op, Op::Attention(_)) { 2.0 * work } else { 5.0 * work }
        }
        _ => op.args.iter().map(|a| size(&g.value(*a).dims)).fold(results, f64::max),
    }
}
