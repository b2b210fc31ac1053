//! Windows on parts: a rank gets the run of elements that its places read, and gives back what it adds to elements of others.

use super::super::halo::{self, Reach};
use super::super::nest::{Along, Nest};
use super::super::{Reason, Why};
use super::Emitter;
use crate::ir::*;
use crate::mesh::{Cut, Layout, Order};
use crate::types::{DType, ReduceKind};

/// A window axis along which an operation is cut.
struct Shift {
    /// Which axis and which of its terms.
    axis: usize,
    term: usize,
    /// The dims of x and of the places, as a rank has them: x with the run it needs.
    run: DimId,
    /// Whether that is its block.
    local: bool,
    places: DimId,
    /// Of x's dims.
    at: usize,
}

impl Emitter<'_, '_> {
    /// What a window reads; as it is whole, if it is there so: then its runs are there, too.
    pub(super) fn window_operand(&self, nest: &Nest, cuts: &[Cut], v: ValueId, mut want: Layout) -> Layout {
        for (l, cut) in nest.loops.iter().zip(cuts) {
            if let (Along::Shifted, Some(place), false) = (l.along, l.slots[0], cut.is_empty()) {
                let mut bare = want.clone();
                bare.dims[place.at].clear();
                if self.usable(v).any(|f| f.layout == bare) {
                    want = bare;
                }
            }
        }
        want
    }

    fn shifts(&mut self, op: &Operation, nest: &Nest, cuts: &[Cut]) -> Vec<Shift> {
        let g = self.s.g;
        let mut out = Vec::new();
        for (l, cut) in nest.loops.iter().zip(cuts) {
            let (Some(r), [entry]) = (Reach::of(g, op, l), &cut[..]) else { continue };
            let at = l.slots[r.input].expect("x has the axis").at;
            let run = halo::runs(g, self.s.mesh, r.axis, r.term, entry);
            let local = halo::local(self.s.mesh, g.size(r.axis.input), entry, run);
            let run = self.local.dim(&mut self.b, r.axis.input, &vec![if local { *entry } else { run }]);
            let places = self.local.dim(&mut self.b, r.axis.terms[r.term].0, cut);
            out.push(Shift { axis: r.number, term: r.term, run, local, places, at });
        }
        out
    }

    /// The axes as they are on a rank.
    fn local_axes(&self, axes: &[WindowAxis], shifts: &[Shift]) -> Vec<WindowAxis> {
        let mut own = axes.to_vec();
        for s in shifts {
            let a = &mut own[s.axis];
            if !s.local {
                a.offset = halo::offset(self.s.g, &axes[s.axis], s.term);
            }
            a.input = s.run;
            a.terms[s.term].0 = s.places;
        }
        own
    }

    pub(super) fn window(
        &mut self,
        (id, op): (OpId, &Operation),
        (axes, fill): (&[WindowAxis], f64),
        (nest, cuts): (&Nest, &[Cut]),
        args: &[ValueId],
        types: &[(DType, Vec<DimId>)],
    ) -> Vec<ValueId> {
        let shifts = self.shifts(op, nest, cuts);
        let mut args = args.to_vec();
        for s in &shifts {
            let have = self.b.dims(args[0])[s.at];
            if have != s.run {
                args[0] = self.runs((id, op.args[0]), args[0], (have, s.run));
            }
            if fill != 0.0 || s.local {
                args[0] = self.local.masked(&mut self.b, args[0], &[s.run], fill);
            }
        }
        let axes = self.local_axes(axes, &shifts);
        self.b.emit(Op::Window { axes, fill }, &args, types)
    }

    pub(super) fn fold(
        &mut self,
        (id, op): (OpId, &Operation),
        axes: &[WindowAxis],
        (nest, cuts): (&Nest, &[Cut]),
        args: &[ValueId],
        types: &[(DType, Vec<DimId>)],
    ) -> Vec<ValueId> {
        let shifts = self.shifts(op, nest, cuts);
        let (dtype, wanted) = types[0].clone();
        let mut dims = wanted.clone();
        let mut x = args[0];
        for s in &shifts {
            dims[s.at] = s.run;
            // What is not real adds nothing.
            x = self.local.masked(&mut self.b, x, &[s.places], 0.0);
        }
        let axes = self.local_axes(axes, &shifts);
        let mut y = self.b.emit(Op::Fold { axes }, &[x], &[(dtype, dims)])[0];
        for s in shifts.iter().filter(|s| !s.local) {
            y = self.runs((id, op.results[0]), y, (s.run, wanted[s.at]));
        }
        vec![y]
    }

    /// Between blocks, or all, of a dim and the runs that ranks need of it; from runs the elements that several have are added up.
    fn runs(&mut self, (id, v): (OpId, ValueId), x: ValueId, (from, to): (DimId, DimId)) -> ValueId {
        let g = &self.b.graph;
        let entries = |d: DimId| g.dim(d).cut.as_ref().map_or_else(Cut::new, |c| c.entries.clone());
        let is_run = |c: &Cut| c.iter().any(|e| matches!(e.order, Order::Halo { .. }));
        let (before, after) = (entries(from), entries(to));
        let back = is_run(&before);
        let (block, run) = if back { (&after, before[0]) } else { (&before, after[0]) };
        let extent = g.extent(from);
        let mut dims = self.b.dims(x).to_vec();
        let rest = dims.iter().filter(|d| **d != from).map(|d| self.b.size(*d)).product::<usize>();
        dims.iter_mut().filter(|d| **d == from).for_each(|d| *d = to);
        let dtype = self.b.dtype(x);
        // What a rank has of all is there.
        let moved = if block.is_empty() { 0.0 } else { halo::foreign(self.s.mesh, extent, block, run) };
        let changes = vec![(from, to)];
        let (kind, atoms) = (CollectiveKind::Slice, Vec::new());
        let mut c = Collective { kind, atoms, reduce: None, dims: changes, hops: 0, bucket: 0 };
        if back || moved > 0.0 {
            let why = if back { Why::Result } else { Why::Operand };
            let bytes = moved * (rest * dtype.bytes()) as f64;
            (c.kind, c.atoms) = (CollectiveKind::Permute, vec![run.atom]);
            c.reduce = back.then(|| (ReduceKind::Sum, vec![run.atom]));
            self.reasons.insert(
                OpId(self.b.graph.ops.len() as u32),
                Reason { operation: id, why, value: v, bytes, again: None },
            );
        }
        self.b.emit(Op::Collective(c), &[x], &[(dtype, dims)])[0]
    }
}
