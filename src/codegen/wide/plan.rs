//! Which loop fills the lanes of vectors: the one that takes the fewest instructions, roughly counted.

use crate::codegen::plan::{Facts, levels, small_power, stride};
use crate::kernel::{ExprId, Index, Kernel, LoopId, Node, Pass, Statement};
use crate::types::{DType, MapOp};

/// How lanes are filled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fill {
    /// By neighbouring rows: the innermost row loop.
    Rows,
    /// By the innermost loop of each pass that is worth it.
    Inner,
}

/// Whether every type and function of a kernel is known here.
pub fn is_supported(kernel: &Kernel) -> bool {
    let types = kernel.exprs.iter().map(|e| e.dtype).chain(kernel.buffers.iter().map(|b| b.dtype));
    let plain = types.chain(kernel.registers.iter().copied()).all(|t| t != DType::F64);
    let known = kernel.exprs.iter().all(|e| match &e.node {
        Node::Random { counter, .. } => counter.exprs.is_empty(),
        _ => true,
    });
    plain && known
}

pub fn fill(kernel: &Kernel, facts: &[Facts], lanes: usize) -> Fill {
    if kernel.rows == 0 || kernel.extents[kernel.rows - 1] < 2 {
        return Fill::Inner;
    }
    let last = LoopId(kernel.rows as u32 - 1);
    let extent = kernel.extents[last.index()];
    let by_rows = statements(kernel, &kernel.body, &mut |pass| cost(kernel, facts, lanes, pass, Some(last), false));
    let by_rows = by_rows * extent.div_ceil(lanes) as f64;
    let by_inner = statements(kernel, &kernel.body, &mut |pass| inner(kernel, facts, lanes, pass).1);
    if by_rows < by_inner * extent as f64 { Fill::Rows } else { Fill::Inner }
}

fn statements(kernel: &Kernel, body: &[Statement], cost: &mut dyn FnMut(&Pass) -> f64) -> f64 {
    body.iter()
        .map(|statement| match statement {
            Statement::For { index, body } => kernel.extents[index.index()] as f64 * statements(kernel, body, cost),
            Statement::Pass(pass) => cost(pass),
        })
        .sum()
}

/// Whether the innermost loop of a pass fills lanes, and the cost of the pass.
pub fn inner(kernel: &Kernel, facts: &[Facts], lanes: usize, pass: &Pass) -> (bool, f64) {
    let plain = cost(kernel, facts, lanes, pass, None, false);
    let Some(last) = pass.loops.last() else { return (false, plain) };
    if !pass.carries.is_empty() || kernel.extents[last.index()] < 2 {
        return (false, plain);
    }
    let filled = cost(kernel, facts, lanes, pass, Some(*last), true);
    (filled < plain, filled.min(plain))
}

/// Instructions of a pass, for one row, or for as many as fill a vector. `of`: the loop that fills lanes; `inner`: it is
/// the innermost of the pass.
fn cost(kernel: &Kernel, facts: &[Facts], lanes: usize, pass: &Pass, of: Option<LoopId>, inner: bool) -> f64 {
    let mut turns = vec![1.0];
    for (n, l) in pass.loops.iter().enumerate() {
        let extent = kernel.extents[l.index()];
        let extent = if inner && n + 1 == pass.loops.len() { extent.div_ceil(lanes) } else { extent };
        turns.push(turns[n] * extent as f64);
    }
    let all = *turns.last().expect("one at least");
    let access = |at: &Index, apart: f64| match of {
        None => 1.0,
        Some(of) if at.exprs.iter().any(|(e, _)| facts[e.index()].loops.contains(of.index())) => apart,
        Some(of) => match stride(at, of) {
            0 | 1 => 1.0,
            _ => apart,
        },
    };
    let apart = 1.2 * lanes as f64;
    let mut sum = 2.0 * all;
    for (e, level) in levels(kernel, facts, pass) {
        let one = match &kernel.expr(e).node {
            Node::Load { at, .. } => access(at, apart),
            Node::Map(op, _) => weight(kernel, e, *op),
            Node::Index(_) | Node::Check { .. } => 2.0,
            Node::Random { .. } => 40.0,
            Node::Const(_) | Node::Register(_) => 0.0,
        };
        sum += one * turns[level];
    }
    for store in &pass.stores {
        sum += all * access(&store.at, 2.0 * apart);
    }
    // What a reduction between lanes takes at the end.
    let ends = if inner { 16.0 } else { 0.0 };
    sum + pass.reductions.len() as f64 * (all + ends)
}

fn weight(kernel: &Kernel, e: ExprId, op: MapOp) -> f64 {
    use MapOp::*;
    match op {
        Pow if small_power(kernel, e).is_some() => 2.0,
        Exp | Expm1 | Log | Log1p | Tanh | Sigmoid | Softplus | Erf => 20.0,
        Sin | Cos | Pow => 300.0,
        Div | Sqrt | Rsqrt | FloorDiv | Rem => 10.0,
        _ => 1.0,
    }
}

/// Vectors that one iteration handles at once: several where iterations are short, so that sums do not wait for each
/// other.
pub fn groups(exprs: usize, reductions: usize) -> usize {
    let by_exprs = match exprs {
        0..=10 => 4,
        11..=24 => 2,
        _ => 1,
    };
    let by_reductions = match reductions {
        0..=4 => 4,
        5..=9 => 2,
        _ => 1,
    };
    by_exprs.min(by_reductions)
}
