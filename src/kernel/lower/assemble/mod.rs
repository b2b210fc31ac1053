//! Stacks and concatenations in memory: each part is written where it belongs in the whole, so that nobody copies it there.
//!
//! First the graph: sums of pieces that fill a dim (gradients of what was split) become stacks and concatenations, and a
//! part that cannot be written anywhere gets a copy that can. Then, for each whole that must have an address, the values
//! that are its parts are noted; when the first of them is placed, so is the whole, and the parts become views of it.

use super::values::INLINE_PARTS;
use super::{Lowerer, Status, View};
use crate::ir::*;
use crate::types::MapOp;

/// Operations between a part and its whole: of a part that is made long before, the whole would be there as long.
const MOST_APART: u32 = 64;

/// Where a value lies in a stack or concatenation.
#[derive(Clone, Debug)]
pub(super) struct Part {
    pub whole: ValueId,
    /// The dim along which the parts lie, of the whole; and where the part begins there.
    along: DimId,
    start: usize,
    /// Dims of the value by those of the whole.
    dims: Vec<(DimId, DimId)>,
}

/// Rewrites all blocks of a graph, for wholes of at least so many elements.
pub(super) fn assemble(graph: &mut Graph, least: usize) {
    let mut uses = vec![0u32; graph.values.len()];
    let outputs = graph.outputs.iter().map(|o| o.value);
    let all = graph.blocks.iter().flat_map(|b| b.ops.iter().flat_map(|id| &graph.op(*id).args).chain(&b.results));
    outputs.chain(all.copied()).for_each(|v| uses[v.index()] += 1);
    for block in 0..graph.blocks.len() as u32 {
        for id in graph.block(BlockId(block)).ops.clone() {
            if let Some((op, parts)) = pieces(graph, id, &uses) {
                let (old, new) = (std::mem::take(&mut graph.ops[id.index()].args), parts);
                new.iter().for_each(|v| uses[v.index()] += 1);
                graph.ops[id.index()].op = op;
                graph.ops[id.index()].args = new;
                old.iter().for_each(|v| uses[v.index()] -= 1);
            }
        }
        drop_unused(graph, BlockId(block), &mut uses);
        copy_parts(graph, BlockId(block), least);
    }
}

/// Drops elementwise operations and windows that nothing uses any more.
fn drop_unused(graph: &mut Graph, block: BlockId, uses: &mut [u32]) {
    let mut ops = std::mem::take(&mut graph.blocks[block.index()].ops);
    let mut kept = Vec::with_capacity(ops.len());
    while let Some(id) = ops.pop() {
        let op = graph.op(id);
        let light = matches!(op.op, Op::Map(_) | Op::Window { .. } | Op::Iota(_) | Op::Constant(_));
        if light && op.results.iter().all(|r| uses[r.index()] == 0) {
            op.args.iter().for_each(|a| uses[a.index()] -= 1);
        } else {
            kept.push(id);
        }
    }
    kept.reverse();
    graph.blocks[block.index()].ops = kept;
}

/// A value that is somewhere along a dim, with zeros everywhere else.
struct Piece {
    dim: DimId,
    start: usize,
    /// Its own dim there; none if it lacks it.
    own: Option<DimId>,
    value: ValueId,
}

/// The stack or concatenation that a sum of pieces is.
fn pieces(graph: &Graph, id: OpId, uses: &[u32]) -> Option<(Op, Vec<ValueId>)> {
    let op = graph.op(id);
    let Op::Map(MapOp::Add) = op.op else { return None };
    let dims = &graph.value(op.results[0]).dims;
    let mut found: Vec<Piece> = Vec::new();
    let mut work = op.args.clone();
    while let Some(v) = work.pop() {
        let maker = graph.def_op(v)?;
        match maker.op {
            Op::Map(MapOp::Add) if uses[v.index()] == 1 => work.extend(&maker.args),
            _ => {
                let piece = piece(graph, maker)?;
                let same = found.first().is_none_or(|f| f.dim == piece.dim && f.own.is_some() == piece.own.is_some());
                if !same || graph.value(v).dims.len() != dims.len() {
                    return None;
                }
                found.push(piece);
            }
        }
    }
    found.sort_by_key(|p| p.start);
    let mut end = 0;
    for p in &found {
        if p.start != end {
            return None;
        }
        end += p.own.map_or(1, |d| graph.size(d));
    }
    let dim = found.first()?.dim;
    let parts: Option<Vec<DimId>> = found.iter().map(|p| p.own).collect();
    let op = match parts {
        Some(parts) => Op::Concat { parts, to: dim },
        None => Op::Stack { dim },
    };
    (end == graph.size(dim)).then(|| (op, found.iter().map(|p| p.value).collect()))
}

fn piece(graph: &Graph, op: &Operation) -> Option<Piece> {
    let constant = |v: ValueId| match graph.def_op(v)?.op {
        Op::Constant(Constant::Splat(x)) => Some(x),
        _ => None,
    };
    let dims = |v: ValueId| &graph.value(v).dims;
    match &op.op {
        Op::Map(MapOp::Where) => {
            let &[here, value, nothing] = op.args.as_slice() else { return None };
            let Operation { op: Op::Map(MapOp::Eq), args: places, .. } = graph.def_op(here)? else { return None };
            let &Op::Iota(dim) = &graph.def_op(places[0])?.op else { return None };
            let at = constant(places[1])?;
            let lacks = dims(value).len() + 1 == dims(op.results[0]).len() && !dims(value).contains(&dim);
            let inside = at >= 0.0 && at < graph.size(dim) as f64;
            (constant(nothing)? == 0.0 && lacks && inside).then_some(Piece {
                dim,
                start: at as usize,
                own: None,
                value,
            })
        }
        Op::Window { axes, fill } => {
            let [WindowAxis { input, offset, dynamic: false, terms }] = axes.as_slice() else { return None };
            let &[(dim, 1)] = terms.as_slice() else { return None };
            let start = usize::try_from(-offset).ok()?;
            let inside = start + graph.size(*input) <= graph.size(dim);
            (*fill == 0.0 && inside).then_some(Piece { dim, start, own: Some(*input), value: op.args[0] })
        }
        _ => None,
    }
}

/// The value that a part is another name of, if that can be written anywhere, and which of its dims are which of the part's.
fn writable(graph: &Graph, part: ValueId, whole: &Operation) -> Option<(ValueId, Vec<(DimId, DimId)>)> {
    let mut names: Vec<(DimId, DimId)> = graph.value(part).dims.iter().map(|d| (*d, *d)).collect();
    let mut v = part;
    loop {
        let op = graph.def_op(v)?;
        let leaves = graph.outputs.iter().any(|o| o.value == v) || graph.block(op.block).results.contains(&v);
        if op.block != whole.block || op.phase != whole.phase || leaves {
            return None;
        }
        match &op.op {
            Op::Reshape { groups } => {
                for (from, to) in groups {
                    let (&[from], &[to]) = (from.as_slice(), to.as_slice()) else { return None };
                    names.iter_mut().filter(|(own, _)| *own == to).for_each(|(own, _)| *own = from);
                }
                v = op.args[0];
            }
            Op::Map(_)
            | Op::StopGradient
            | Op::Dot { .. }
            | Op::Attention(_)
            | Op::AttentionGrad(_)
            | Op::Gather { .. }
            | Op::Reduce { .. }
            | Op::Scan { .. }
            | Op::LinearScan { .. } => return Some((v, names)),
            _ => return None,
        }
    }
}

/// Gives parts that cannot be written anywhere, or not there, copies.
fn copy_parts(graph: &mut Graph, block: BlockId, least: usize) {
    let mut taken = vec![false; graph.values.len()];
    let mut place = vec![0u32; graph.ops.len()];
    let old = std::mem::take(&mut graph.blocks[block.index()].ops);
    old.iter().enumerate().for_each(|(i, id)| place[id.index()] = i as u32);
    let mut ops = Vec::with_capacity(old.len());
    for id in old {
        if is_assembled(graph, id, least) {
            for i in 0..graph.op(id).args.len() {
                let v = graph.op(id).args[i];
                let near = |v: ValueId| match graph.value(v).def {
                    Def::Op(maker, _) => place[id.index()] - place[maker.index()] <= MOST_APART,
                    Def::BlockParam(_) => false,
                };
                match writable(graph, v, graph.op(id)).filter(|(v, _)| !taken[v.index()] && near(*v)) {
                    Some((v, _)) => taken[v.index()] = true,
                    None => {
                        let copy = copy_of(graph, v, id);
                        ops.push(copy);
                        graph.ops[id.index()].args[i] = graph.op(copy).results[0];
                    }
                }
            }
        }
        ops.push(id);
    }
    graph.blocks[block.index()].ops = ops;
}

fn is_assembled(graph: &Graph, id: OpId, least: usize) -> bool {
    let op = graph.op(id);
    matches!(op.op, Op::Stack { .. } | Op::Concat { .. }) && graph.elements(&graph.value(op.results[0]).dims) >= least
}

/// A new operation that copies a value, for another operation.
fn copy_of(graph: &mut Graph, v: ValueId, like: OpId) -> OpId {
    let id = OpId(graph.ops.len() as u32);
    let Operation { block, span, scope, phase, again, .. } = *graph.op(like);
    let Value { dtype, dims, .. } = graph.value(v).clone();
    let result = ValueId(graph.values.len() as u32);
    graph.values.push(Value { dtype, dims, block, def: Def::Op(id, 0), name: None });
    let (op, args, results) = (Op::StopGradient, vec![v], vec![result]);
    graph.ops.push(Operation { op, args, results, block, span, scope, phase, again });
    id
}

impl Lowerer<'_, '_> {
    /// Notes the parts of the stacks and concatenations of a block that must be in memory.
    pub(super) fn find_parts(&mut self, block: BlockId) {
        if !self.options.fuse {
            return;
        }
        for id in self.graph.block(block).ops.clone() {
            let Operation { op, args, results, .. } = self.graph.op(id);
            let v = results[0];
            if !is_assembled(&self.graph, id, self.options.assemble_from)
                || !(self.need[v.index()] || args.len() > INLINE_PARTS)
            {
                continue;
            }
            let mut parts: Vec<(ValueId, Part)> = Vec::new();
            let mut start = 0;
            for (i, part) in args.iter().enumerate() {
                let Some((value, mut dims)) = writable(&self.graph, *part, self.graph.op(id)) else { break };
                let along = match op {
                    Op::Concat { parts, to } => {
                        dims.iter_mut().filter(|(_, d)| *d == parts[i]).for_each(|(_, d)| *d = *to);
                        *to
                    }
                    Op::Stack { dim } => *dim,
                    other => unreachable!("{other:?} has no parts"),
                };
                let taken = self.parts.contains_key(&value) || parts.iter().any(|(v, _)| *v == value);
                if taken {
                    break;
                }
                parts.push((value, Part { whole: v, along, start, dims }));
                start += match op {
                    Op::Concat { parts, .. } => self.graph.size(parts[i]),
                    _ => 1,
                };
            }
            if parts.len() < args.len() {
                continue;
            }
            self.wholes.insert(v, parts.iter().map(|(v, _)| *v).collect());
            for (value, part) in parts {
                self.need[value.index()] = true;
                self.parts.insert(value, part);
            }
        }
    }

    /// A part, which would like to be stored in `order`: its whole is placed, if no other part has been placed yet.
    pub(super) fn place_part(&mut self, v: ValueId, part: &Part, order: &[DimId], status: Status) {
        let Part { whole, along, start, dims } = part;
        let name = |d: DimId| dims.iter().find(|(own, _)| *own == d).map_or(d, |(_, name)| *name);
        if self.views[whole.index()].is_none() {
            let order: Vec<DimId> = order.iter().map(|d| name(*d)).collect();
            let order = self.whole_order(*whole, *along, order);
            self.place_root(*whole, &order, Status::Memory);
        }
        let strides = self.graph.value(v).dims.iter().map(|d| self.stride(*whole, name(*d))).collect();
        let offset = *start as i64 * self.stride(*whole, *along);
        self.views[v.index()] = Some(View { root: *whole, made: v, offset, strides });
        self.orders[v.index()] = self.order_of(v);
        self.status[v.index()] = status;
    }

    /// Storage order of a whole, a part of which would like to be stored in `order`.
    fn whole_order(&self, whole: ValueId, along: DimId, order: Vec<DimId>) -> Vec<DimId> {
        if let Some(order) = self.wanted_order(whole) {
            return order;
        }
        if order.contains(&along) { order } else { self.stack_order(whole, &order, along) }
    }

    /// The values by which a value is made: its parts, or itself.
    pub(super) fn makers(&self, v: ValueId) -> Vec<ValueId> {
        self.wholes.get(&v).cloned().unwrap_or_else(|| vec![v])
    }
}

#[cfg(test)]
mod tests;
