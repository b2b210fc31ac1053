//! Loops at run time: carries keep one layout from turn to turn, and sums may stay in parts until the last one.

use super::super::Why;
use super::super::reduce::is_zero;
use super::{Emitter, Form};
use crate::ir::*;
use crate::mesh::{Cut, Entry, Layout};

impl Emitter<'_, '_> {
    pub(super) fn looped(
        &mut self,
        id: OpId,
        op: &Operation,
        body: BlockId,
        dim: DimId,
        reverse: bool,
        carries: usize,
    ) {
        let g = self.s.g;
        let block = g.block(body);
        let mut initial = Vec::with_capacity(carries);
        for c in 0..carries {
            let param = block.params[1 + c];
            let want = self.reordered(self.for_users(param), param, op.args[c]);
            initial.push(if is_zero(g, op.args[c]) {
                // Zeros are zeros in every layout, and parts of their own sum.
                let dims = self.dims(op.args[c], &want);
                self.b.splat_of(0.0, g.value(op.args[c]).dtype, &dims)
            } else {
                self.form(op.args[c], &want, id, Why::Operand)
            });
        }
        let (place, phase) = ((op.span, op.scope), op.phase);
        let frame = self.b.begin_loop(dim, reverse, &initial);
        let inner = self.b.block();
        self.depth += 1;
        self.add_form(block.params[0], Layout::replicated(0), frame.turn);
        for c in 0..carries {
            let param = block.params[1 + c];
            self.add_form(param, self.for_users(param), frame.carries[c]);
        }
        for (p, a) in block.params[1 + carries..].iter().zip(&op.args[carries..]) {
            let forms = self.forms[a].clone();
            let (own, outer) = (g.value(*p).dims.clone(), g.value(*a).dims.clone());
            let seen = forms.into_iter().map(|f| Form { layout: reorder(&f.layout, &outer, &own), ..f }).collect();
            self.forms.insert(*p, seen);
            self.captured.insert(*p, *a);
        }
        self.block(body);
        (self.b.span, self.b.scope) = place;
        self.b.phase = phase;
        let mut next = Vec::new();
        for c in 0..carries {
            let (param, end) = (block.params[1 + c], block.results[c]);
            let want = self.reordered(self.for_users(param), param, end);
            next.push(self.form(end, &want, id, Why::Result));
        }
        let (mut collected, mut stacked_as) = (Vec::new(), Vec::new());
        for (end, r) in block.results[carries..].iter().zip(&op.results[carries..]) {
            let want = self.reordered(self.for_users(*r), *r, *end);
            let want = Layout { dims: without(&want, &self.held_on(*r, dim)), ..want };
            collected.push(self.form(*end, &want, id, Why::Result));
            stacked_as.push(want);
        }
        let (finals, stacked) = self.b.end_loop(frame, &next, &collected);
        self.depth -= 1;
        self.local.close(inner);
        let depth = self.depth;
        self.forms.values_mut().for_each(|f| f.retain(|f| f.depth <= depth));
        for (c, v) in finals.into_iter().enumerate() {
            let layout = self.reordered(self.for_users(block.params[1 + c]), block.params[1 + c], op.results[c]);
            self.add_form(op.results[c], layout, v);
            self.settle(op.results[c], id);
        }
        for ((end, r), (v, layout)) in
            block.results[carries..].iter().zip(&op.results[carries..]).zip(stacked.into_iter().zip(stacked_as))
        {
            // Turns are not cut. The stacked array has its turns first; the result may have them elsewhere.
            let layout = self.reordered(layout, *end, *r);
            let dims = self.dims(*r, &layout);
            let v = self.in_order(v, dims);
            self.add_form(*r, layout, v);
        }
    }

    /// The entries that cut a dim of a value.
    fn held_on(&self, v: ValueId, dim: DimId) -> Cut {
        let at = self.s.g.value(v).dims.iter().position(|d| *d == dim);
        at.map(|at| self.s.held(v).cuts[at].clone()).unwrap_or_default()
    }

    /// A value with its dims in a wanted order.
    fn in_order(&mut self, v: ValueId, dims: Vec<DimId>) -> ValueId {
        if self.b.dims(v) == dims {
            return v;
        }
        let dtype = self.b.dtype(v);
        self.b.emit(Op::Reshape { groups: Vec::new() }, &[v], &[(dtype, dims)])[0]
    }

    /// The layout of one value's dims in the order of another's (which may lack some).
    fn reordered(&self, layout: Layout, of: ValueId, to: ValueId) -> Layout {
        let (own, wanted) = (&self.s.g.value(of).dims, &self.s.g.value(to).dims);
        reorder(&layout, own, wanted)
    }
}

/// The cuts of a layout, but for these entries.
fn without(layout: &Layout, entries: &[Entry]) -> Vec<Cut> {
    let keep = |c: &Cut| c.iter().filter(|e| !entries.iter().any(|x| x.atom == e.atom)).copied().collect();
    layout.dims.iter().map(keep).collect()
}

fn reorder(layout: &Layout, own: &[DimId], wanted: &[DimId]) -> Layout {
    let at = |d: &DimId| own.iter().position(|x| x == d).map(|i| layout.dims[i].clone()).unwrap_or_default();
    Layout { dims: wanted.iter().map(at).collect(), partial: layout.partial.clone() }
}
