//! The index of the largest or smallest element of a dim that is cut: that of the rank which has it, the lowest of several.

use super::super::{Reason, Why};
use super::Emitter;
use crate::ir::*;
use crate::mesh::{Layout, Partial, reshard};
use crate::types::{DType, MapOp, ReduceKind};

impl Emitter<'_, '_> {
    /// Over `local` dims, those of a rank: partial by the minimum, which takes one exchange of the extremes before.
    pub(super) fn arg_extreme(
        &mut self,
        (id, op): (OpId, &Operation),
        kind: ReduceKind,
        local: &[DimId],
        x: ValueId,
        made: &Layout,
    ) -> ValueId {
        let r = op.results[0];
        let dims = self.dims(r, made);
        let (dtype, extreme) = match kind {
            ReduceKind::ArgMax => (self.b.dtype(x), ReduceKind::Max),
            _ => (self.b.dtype(x), ReduceKind::Min),
        };
        let reduce = |kind| Op::Reduce { kind, dims: local.to_vec() };
        let own = self.b.emit(reduce(extreme), &[x], &[(dtype, dims.clone())])[0];
        let best = self.everywhere((id, op), own, extreme, made);
        let at = self.b.emit(reduce(kind), &[x], &[(DType::I32, dims)])[0];
        let place = self.place_in_whole(at, local);
        // NaN is larger than all, and not equal to itself.
        let here = self.b.map(MapOp::Eq, &[own, best]);
        let hit = if dtype.is_float() {
            let nan = self.b.map(MapOp::Ne, &[own, own]);
            self.b.map(MapOp::Or, &[here, nan])
        } else {
            here
        };
        let none = self.b.scalar(ReduceKind::Min.neutral(DType::I32), DType::I32);
        self.b.select(hit, place, none)
    }

    /// The extremes of all ranks.
    fn everywhere(&mut self, (id, op): (OpId, &Operation), own: ValueId, kind: ReduceKind, made: &Layout) -> ValueId {
        let r = op.results[0];
        let shape = self.shape(r);
        let parts = made.partial.iter().map(|p| Partial { op: kind, ..*p });
        let from = Layout { partial: parts.collect(), ..made.clone() };
        let to = Layout { partial: Vec::new(), ..made.clone() };
        let bytes = self.b.dtype(own).bytes();
        let steps = reshard::path(self.s.mesh, &shape, bytes, &from, &to).expect("parts of an extreme can be reduced");
        let reason = |bytes| Reason { operation: id, why: Why::Operand, value: op.args[0], bytes, again: None };
        steps.iter().fold(own, |at, step| self.step(r, at, step, reason(step.bytes)))
    }

    /// An index row-major over the dims of a part as one over those of the whole.
    fn place_in_whole(&mut self, at: ValueId, local: &[DimId]) -> ValueId {
        let (mut left, mut stride) = (at, 1.0);
        let mut whole: Option<ValueId> = None;
        for (k, d) in local.iter().enumerate().rev() {
            let size = self.b.size(*d) as f64;
            let own = if k == 0 { left } else { self.b.map_scalar(MapOp::Rem, left, size) };
            left = self.b.map_scalar(MapOp::FloorDiv, left, size);
            let place = self.local.whole(&mut self.b, own, *d);
            let far = self.b.map_scalar(MapOp::Mul, place, stride);
            whole = Some(whole.map_or(far, |w| self.b.add(w, far)));
            stride *= self.b.graph.extent(*d) as f64;
        }
        whole.unwrap_or(at)
    }
}
