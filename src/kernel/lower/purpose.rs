//! What the memory of a value is for, as reports tell it.
//!
//! - **Gathered parameters**: parameters as a step uses them, gathered from the ranks or in another type.
//! - **Gradients** of parameters, in the form in which they wait for their update: what updates read of the backward pass, and what
//!   only sums, exchanges between ranks and loops stand between. Of what a loop sums up it is the sum, not what each turn adds.
//! - **Staging**: what waits to be exchanged between ranks and is not needed in that form, as whole gradients of which a rank keeps
//!   a part.
//! - **Activations**: everything else that the forward pass makes. What the backward pass computes again is no activation.
//! - **Workspace**: the rest.

use crate::ir::*;
use crate::program::Category;
use crate::types::MapOp;

/// For each value.
pub(in crate::kernel) fn purposes(g: &Graph) -> Vec<Category> {
    let mut out: Vec<Option<Category>> = vec![None; g.values.len()];
    mark_gradients(g, &mut out);
    let category = |(i, known): (usize, Option<Category>)| {
        let v = ValueId(i as u32);
        known.unwrap_or_else(|| match g.def_op(v).map_or(Phase::Forward, |o| o.phase) {
            _ if of_parameter(g, v) => Category::GatheredParameters,
            Phase::Forward => Category::Activations,
            Phase::Backward | Phase::Update => Category::Workspace,
        })
    };
    out.into_iter().enumerate().map(category).collect()
}

fn mark_gradients(g: &Graph, marked: &mut [Option<Category>]) {
    for id in g.block(ENTRY).ops.iter().rev() {
        let op = g.op(*id);
        let is_gradient = |v: &ValueId| marked[v.index()] == Some(Category::Gradients);
        let made = |v: &ValueId| g.def_op(*v).is_some_and(|o| o.phase == Phase::Backward);
        let looped = |v: &ValueId| g.def_op(*v).is_some_and(|o| matches!(o.op, Op::Loop { .. }));
        let mut found: Vec<(ValueId, Category)> = Vec::new();
        match &op.op {
            Op::Loop { body, carries, .. } => {
                let sums = (0..*carries as usize).filter(|c| is_gradient(&op.results[*c]));
                found.extend(sums.map(|c| (g.block(*body).params[1 + c], Category::Gradients)));
            }
            _ if op.phase == Phase::Update => {
                found.extend(op.args.iter().filter(|a| made(a)).map(|a| (*a, Category::Gradients)));
            }
            Op::Collective(c) if op.results.iter().any(is_gradient) => {
                let whole = c.kind == CollectiveKind::ReduceScatter && !looped(&op.args[0]);
                found.push((op.args[0], if whole { Category::Staging } else { Category::Gradients }));
            }
            Op::Reshape { .. } | Op::Map(MapOp::Cast(_) | MapOp::Add) if op.results.iter().any(is_gradient) => {
                found.extend(op.args.iter().filter(|a| made(a)).map(|a| (*a, Category::Gradients)));
            }
            _ => {}
        }
        for (v, category) in found {
            marked[v.index()].get_or_insert(category);
        }
    }
}

/// Whether a value of a pass is a parameter in another form.
fn of_parameter(g: &Graph, mut v: ValueId) -> bool {
    let mut changed = false;
    loop {
        let Some(op) = g.def_op(v).filter(|o| o.phase != Phase::Update) else { return false };
        match op.op {
            Op::Param(_) => return changed,
            Op::Collective(_) | Op::Map(MapOp::Cast(_)) | Op::Reshape { .. } => (v, changed) = (op.args[0], true),
            _ => return false,
        }
    }
}
