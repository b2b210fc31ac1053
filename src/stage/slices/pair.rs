//! The same model with the sizes of the batch and of one slice, operation by operation.
//!
//! Both graphs come from one walk over one source with two sizes of the sample dim, so they differ in sizes and constants
//! alone. Plain constants are shared by value while a graph is built, so they count for nothing here.

use crate::ir::*;
use crate::types::MapOp;

/// For each operation of `whole` its counterpart in `part`: none for constants, and where its constant operand is neutral in
/// `part` (a division by 1), so that there its result is its other operand. None where the graphs have different forms.
pub fn pair(whole: &Graph, part: &Graph) -> Option<Vec<Option<OpId>>> {
    let names = |g: &Graph| g.dims.iter().map(|d| d.name.clone()).collect::<Vec<_>>();
    if names(whole) != names(part) {
        return None;
    }
    let (pairs, twins) = (vec![None; whole.ops.len()], vec![None; whole.values.len()]);
    let mut p = Pairing { whole, part, pairs, twins };
    p.block(ENTRY, ENTRY)?;
    Some(p.pairs)
}

struct Pairing<'a> {
    whole: &'a Graph,
    part: &'a Graph,
    pairs: Vec<Option<OpId>>,
    /// Values of `part` by those of `whole`.
    twins: Vec<Option<ValueId>>,
}

impl Pairing<'_> {
    fn block(&mut self, a: BlockId, b: BlockId) -> Option<()> {
        let mut others = counted(self.part, b).into_iter().peekable();
        for x in counted(self.whole, a) {
            let p = self.whole.op(x);
            let Some(y) = others.next_if(|y| self.alike(p, self.part.op(*y))) else {
                self.twins[p.results[0].index()] = self.twins[kept_operand(self.whole, p)?.index()];
                continue;
            };
            let q = self.part.op(y);
            if let (Op::Loop { body, .. }, Op::Loop { body: other, .. }) = (&p.op, &q.op) {
                let (mine, theirs) = (self.whole.block(*body), self.part.block(*other));
                for (v, w) in mine.params.iter().zip(&theirs.params) {
                    self.twins[v.index()] = Some(*w);
                }
                self.block(*body, *other)?;
            }
            for (v, w) in p.results.iter().zip(&q.results) {
                self.twins[v.index()] = Some(*w);
            }
            self.pairs[x.index()] = Some(y);
        }
        others.next().is_none().then_some(())
    }

    fn alike(&self, p: &Operation, q: &Operation) -> bool {
        let kind = match (&p.op, &q.op) {
            (Op::Map(x), Op::Map(y)) => x == y,
            (Op::Reduce { kind: x, .. }, Op::Reduce { kind: y, .. }) => x == y,
            (Op::Random { stream: x, .. }, Op::Random { stream: y, .. }) => x == y,
            (x, y) => std::mem::discriminant(x) == std::mem::discriminant(y),
        };
        let operand = |(x, y): (&ValueId, &ValueId)| match (splat(self.whole, *x), splat(self.part, *y)) {
            (Some(_), Some(_)) => true,
            (None, None) => self.twins[x.index()] == Some(*y),
            _ => false,
        };
        let result = |(x, y): (&ValueId, &ValueId)| {
            let (v, w) = (self.whole.value(*x), self.part.value(*y));
            v.dtype == w.dtype && v.dims == w.dims
        };
        kind && p.args.len() == q.args.len()
            && p.results.len() == q.results.len()
            && p.args.iter().zip(&q.args).all(operand)
            && p.results.iter().zip(&q.results).all(result)
    }
}

/// What an operation gives if its constant operand is neutral.
pub fn kept_operand(g: &Graph, op: &Operation) -> Option<ValueId> {
    let (Op::Map(MapOp::Add | MapOp::Sub | MapOp::Mul | MapOp::Div), [a, b]) = (&op.op, op.args.as_slice()) else {
        return None;
    };
    match (splat(g, *a), splat(g, *b)) {
        (None, Some(_)) => Some(*a),
        (Some(_), None) => Some(*b),
        _ => None,
    }
}

/// A constant that is the same everywhere, in the value's own block.
pub fn splat(g: &Graph, v: ValueId) -> Option<f64> {
    match g.def_op(v)?.op {
        Op::Constant(Constant::Splat(x)) => Some(x),
        _ => None,
    }
}

fn counted(g: &Graph, block: BlockId) -> Vec<OpId> {
    let plain = |id: &OpId| matches!(g.op(*id).op, Op::Constant(Constant::Splat(_)));
    g.block(block).ops.iter().copied().filter(|id| !plain(id)).collect()
}
