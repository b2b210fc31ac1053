//! Attention and its gradient as steps of the runtime, which take operands by strides: nothing is transposed or copied.

use super::Lowerer;
use crate::ir::*;
use crate::program::{self, Action, Library, Step, Strided};
use crate::types::DType;

impl Lowerer<'_, '_> {
    /// Storage orders of the results: each lies as the operand that it is like, with its features as the minor dim.
    pub(super) fn attention_orders(&self, id: OpId) -> Vec<Vec<DimId>> {
        let op = self.graph.op(id);
        let (like, minor) = match &op.op {
            Op::Attention(a) => (vec![op.args[0]; 2], vec![a.value; 2]),
            Op::AttentionGrad(a) => (op.args[..3].to_vec(), vec![a.feature, a.feature, a.value]),
            other => unreachable!("{other:?} is no attention"),
        };
        let order = |(i, r): (usize, &ValueId)| {
            let dims = &self.graph.value(*r).dims;
            if self.graph.block(self.current).results.contains(r) {
                return dims.clone();
            }
            let mut order: Vec<DimId> = self.order_of(like[i]);
            // Dims along which the operand is the same have no place of their own.
            order.sort_by_key(|d| self.stride(like[i], *d) != 0);
            order.retain(|d| dims.contains(d) && *d != minor[i]);
            order.extend(dims.iter().find(|d| **d == minor[i]));
            order
        };
        op.results.iter().enumerate().map(order).collect()
    }

    pub(super) fn emit_attention(&mut self, id: OpId, steps: &mut Vec<Step>) {
        let Operation { op, args, results, .. } = self.graph.op(id).clone();
        let action = match op {
            Op::Attention(a) => {
                let log = self.is_read(results[1]).then_some(results[1]);
                let call = self.attention(&a, &args, results[0], log);
                Library::Attention(Box::new(call))
            }
            Op::AttentionGrad(a) => {
                let n = a.operands();
                let of = self.attention(&a, &args, args[n], Some(args[n + 1]));
                let dims = self.attention_dims(&a, &args);
                let mut part = |i: usize| self.is_read(results[i]).then(|| self.strided(results[i], &dims));
                let [dq, dk, dv] = [0, 1, 2].map(&mut part);
                let in_place = of.dtype.bytes() >= 4 && self.stride(results[0], a.feature) == 1;
                let sums = if in_place || dq.is_none() { None } else { Some(self.sums(id, &a, &dims)) };
                let d_out = self.strided(args[n + 2], &dims);
                Library::AttentionGrad(Box::new(program::AttentionGrad { of, d_out, dq, dk, dv, sums }))
            }
            other => unreachable!("{other:?} is no attention"),
        };
        let label = super::op_word(&self.graph.op(id).op).to_string();
        let step = self.step(Action::Library(action), id, label);
        steps.push(step);
    }

    fn is_read(&self, v: ValueId) -> bool {
        self.need[v.index()] || !self.users[v.index()].is_empty()
    }

    /// Dims of an attention as the runtime lists them: shared ones, those of q alone, query, key, feature, value.
    fn attention_dims(&self, a: &Attention, args: &[ValueId]) -> [Vec<DimId>; 3] {
        let keys = &self.graph.value(args[1]).dims;
        let rest: Vec<DimId> =
            self.order_of(args[0]).into_iter().filter(|d| *d != a.feature && *d != a.query).collect();
        let (batch, group) = rest.into_iter().partition(|d| keys.contains(d));
        [batch, group, vec![a.query, a.key, a.feature, a.value]]
    }

    /// The buffer of a number that is there as one.
    fn scalar(&mut self, v: ValueId) -> program::BufferId {
        self.canonical(v, &[]).expect("operands of attention are in memory")
    }

    fn strided(&mut self, v: ValueId, dims: &[Vec<DimId>; 3]) -> Strided {
        let view = self.view(v).clone();
        let steps = dims.iter().flatten().map(|d| self.stride(v, *d) as isize).collect();
        Strided { buffer: self.buffer(view.root), offset: view.offset as usize, steps }
    }

    fn attention(&mut self, a: &Attention, args: &[ValueId], out: ValueId, log: Option<ValueId>) -> program::Attention {
        let dims = self.attention_dims(a, args);
        let (documents, mask, bias) = a.extras();
        let sizes = |low: &Self, dims: &[DimId]| dims.iter().map(|d| low.graph.size(*d)).collect();
        program::Attention {
            batch: sizes(self, &dims[0]),
            group: sizes(self, &dims[1]),
            queries: self.graph.size(a.query),
            keys: self.graph.size(a.key),
            features: self.graph.size(a.feature),
            width: self.graph.size(a.value),
            q: self.strided(args[0], &dims),
            k: self.strided(args[1], &dims),
            v: self.strided(args[2], &dims),
            out: self.strided(out, &dims),
            log: log.map(|v| self.strided(v, &dims)),
            documents: documents.map(|i| [args[i], args[i + 1]].map(|v| self.strided(v, &dims))),
            mask: mask.map(|i| self.strided(args[i], &dims)),
            bias: bias.map(|i| self.strided(args[i], &dims)),
            first: a.position().map(|i| self.scalar(args[i])),
            scale: a.scale,
            cap: a.cap,
            causal: a.causal,
            reach: a.reach,
            dtype: self.graph.value(args[0]).dtype,
        }
    }

    /// A place to sum dq in, with its features side by side.
    fn sums(&mut self, id: OpId, a: &Attention, dims: &[Vec<DimId>; 3]) -> Strided {
        let dq = self.graph.op(id).results[0];
        let own = self.graph.value(dq).dims.clone();
        let dtype = if self.graph.value(dq).dtype == DType::F64 { DType::F64 } else { DType::F32 };
        let mut order: Vec<DimId> = own.iter().copied().filter(|d| *d != a.feature).collect();
        order.push(a.feature);
        let buffer = self.temporary("attention_grad", dtype, self.graph.elements(&own), id);
        let all: Vec<DimId> = dims.iter().flatten().copied().collect();
        let steps = self.strides(&all, &order).into_iter().map(|s| s as isize).collect();
        Strided { buffer, offset: 0, steps }
    }
}
