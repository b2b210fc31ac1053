//! Decisions before code: which loop becomes the lanes of vectors.

use super::ops::LANES;
use crate::codegen::plan::{Facts, small_power, stride};
use crate::kernel::{ExprId, Index, Kernel, LoopId, Node, Pass, Statement};
use crate::types::{DType, MapOp};

/// How the lanes of vectors are filled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lanes {
    /// By neighbouring rows: the innermost row loop.
    Rows,
    /// By the innermost loop of each pass that is worth it.
    Inner,
}

/// Least number of turns that are worth vectors.
const LEAST: usize = LANES;

pub fn lanes(kernel: &Kernel, facts: &[Facts]) -> Lanes {
    let has_f64 =
        kernel.exprs.iter().any(|e| e.dtype == DType::F64) || kernel.buffers.iter().any(|b| b.dtype == DType::F64);
    if kernel.rows == 0 || has_f64 || kernel.extents[kernel.rows - 1] < LEAST {
        return Lanes::Inner;
    }
    let rows = LoopId(kernel.rows as u32 - 1);
    let (mut by_rows, mut by_inner) = (0.0, 0.0);
    weigh(
        &kernel.body,
        1.0,
        &mut |pass, turns| {
            let turns = turns * pass.loops.iter().map(|l| kernel.extents[l.index()] as f64).product::<f64>();
            by_rows += turns * gain(kernel, facts, pass, rows);
            by_inner += turns * inner_loop(kernel, facts, pass).map_or(0.0, |(_, gain)| gain);
        },
        &kernel.extents,
    );
    if by_rows > 0.0 && by_rows > by_inner { Lanes::Rows } else { Lanes::Inner }
}

/// Visits passes with the number of turns of the loops around them.
fn weigh(body: &[Statement], turns: f64, visit: &mut dyn FnMut(&Pass, f64), extents: &[usize]) {
    for statement in body {
        match statement {
            Statement::For { index, body } => weigh(body, turns * extents[index.index()] as f64, visit, extents),
            Statement::Pass(pass) => visit(pass, turns),
        }
    }
}

/// The loop of a pass whose turns fill lanes, if that is possible and worth it, and how much it is.
pub fn inner_loop(kernel: &Kernel, facts: &[Facts], pass: &Pass) -> Option<(LoopId, f64)> {
    let last = *pass.loops.last()?;
    let no_f64 = kernel.needed(pass).iter().all(|e| {
        let expr = kernel.expr(*e);
        let loaded = match &expr.node {
            Node::Load { buffer, .. } => kernel.buffers[buffer.index()].dtype,
            _ => expr.dtype,
        };
        expr.dtype != DType::F64 && loaded != DType::F64
    }) && pass.stores.iter().all(|s| kernel.buffers[s.buffer.index()].dtype != DType::F64);
    if !pass.carries.is_empty() || !no_f64 || kernel.extents[last.index()] < LEAST {
        return None;
    }
    let gain = gain(kernel, facts, pass, last);
    (gain > 0.0).then_some((last, gain))
}

/// What four lanes save on one iteration of a pass, in rough units of one instruction.
fn gain(kernel: &Kernel, facts: &[Facts], pass: &Pass, of: LoopId) -> f64 {
    let varies = |e: ExprId| facts[e.index()].loops.contains(of.index());
    let access = |at: &Index| -> f64 {
        let scattered = at.exprs.iter().any(|(e, _)| varies(*e));
        match stride(at, of) {
            _ if scattered => -1.0,
            1 => 1.0,
            0 => 0.0,
            _ => -1.0,
        }
    };
    let mut sum = 0.0;
    for e in kernel.needed(pass) {
        let expr = kernel.expr(e);
        sum += match &expr.node {
            Node::Load { at, when, .. } if varies(e) => {
                if when.is_some_and(varies) {
                    access(at).min(-0.5)
                } else {
                    access(at)
                }
            }
            Node::Map(op, args) if varies(e) => {
                let dtype = args.last().map_or(expr.dtype, |a| kernel.expr(*a).dtype);
                if super::map::has_vector_form(*op, dtype) || small_power(kernel, e).is_some() {
                    weight(*op)
                } else {
                    -0.2
                }
            }
            _ => 0.0,
        };
    }
    for store in &pass.stores {
        sum += if store.when.is_some() { -1.0 } else { access(&store.at) };
    }
    sum + pass.reductions.len() as f64
}

fn weight(op: MapOp) -> f64 {
    use MapOp::*;
    match op {
        Exp | Expm1 | Log | Log1p | Tanh | Sigmoid | Softplus | Erf => 10.0,
        _ => 0.5,
    }
}

/// Vectors that an iteration handles at once: more for short bodies, and such that little remains at the end.
pub fn groups(extent: usize, exprs: usize) -> usize {
    let most = if exprs <= 10 {
        4
    } else if exprs <= 24 {
        2
    } else {
        1
    };
    [4, 2, 1]
        .into_iter()
        .find(|g| *g <= most && (*g == 1 || (extent >= g * LANES && extent % (g * LANES) < LANES)))
        .unwrap_or(1)
}
