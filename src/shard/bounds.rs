//! Bounds on ragged rows: with one, buffers of packed rows are as long as a factor of the even share, not as long as the worst case.
//!
//! Rows keep their places; one at or beyond the end of its buffer is an index out of range, so it stops the run and is never dropped.

use super::{Bound, Rules};
use crate::ir::*;

/// The slot dims of rows that are packed by a dim, with the most rows of an even share.
fn slots(g: &Graph, by: DimId) -> Vec<(DimId, usize)> {
    let mut out: Vec<(DimId, usize)> = Vec::new();
    for op in &g.ops {
        let Op::Scatter { targets, .. } = &op.op else { continue };
        let Some(slot) = targets.iter().position(|d| g.dim(*d).ragged).filter(|_| targets.contains(&by)) else {
            continue;
        };
        let Some(packed) = queued(g, op.args[1 + slot]) else { continue };
        let rows: usize = packed.iter().map(|d| g.size(*d)).product();
        let queues: usize = targets.iter().filter(|d| **d != targets[slot]).map(|d| g.size(*d)).product();
        let share = rows.div_ceil(queues.max(1));
        match out.iter_mut().find(|(d, _)| *d == targets[slot]) {
            Some((_, most)) => *most = share.max(*most),
            None => out.push((targets[slot], share)),
        }
    }
    out
}

/// The dims that are packed, of places in queues.
fn queued(g: &Graph, mut v: ValueId) -> Option<&[DimId]> {
    loop {
        let op = g.def_op(v)?;
        match &op.op {
            Op::PackPlace { packed, .. } => return Some(packed),
            Op::Map(_) | Op::Broadcast { .. } | Op::Reshape { .. } | Op::StopGradient => v = op.args[0],
            _ => return None,
        }
    }
}

/// Whether rows are packed by the dim into slots that a bound can make fewer.
pub fn bounds_some(g: &Graph, by: DimId) -> bool {
    !slots(g, by).is_empty()
}

/// The graph with slot dims as long as bounds say.
pub fn bounded(g: &Graph, rules: &Rules) -> Graph {
    let mut out = g.clone();
    for Bound { dim, factor } in &rules.bounds {
        for (slot, share) in slots(g, *dim) {
            let most = (share as f64 * factor).ceil() as usize;
            let size = &mut out.dims[slot.index()].size;
            *size = most.clamp(1, *size);
        }
    }
    out
}
