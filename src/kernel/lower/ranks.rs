//! What the programs of many ranks have beside those of one: exchanges between ranks, and numbers that depend on the rank.

use super::Lowerer;
use super::emit::{Emitter, FrameId};
use crate::ir::*;
use crate::kernel::{Index, Node};
use crate::mesh::{Atom, Entry, Order, cut};
use crate::program::{self, Access, Action, Begun, Category, Exchanged, Part, Place, Scalar, Step};
use crate::types::{DType, MapOp};

/// For each dim the whole that it is a part of.
pub fn parts(graph: &Graph, dims: &[DimId]) -> Vec<Option<Part>> {
    let part = |c: &CutDim| Part { extent: c.extent, cut: c.entries.clone() };
    dims.iter().map(|d| graph.dim(*d).cut.as_ref().map(part)).collect()
}

impl Lowerer<'_, '_> {
    /// Storage order of a collective's result: that of what it reads, unless another one is wanted.
    pub(super) fn collective_order(&self, id: OpId) -> Vec<DimId> {
        let op = self.graph.op(id);
        let Op::Collective(c) = &op.op else { unreachable!("asked of a collective") };
        let becomes = |d: &DimId| c.dims.iter().find(|(from, _)| from == d).map_or(*d, |(_, to)| *to);
        self.wanted_order(op.results[0])
            .unwrap_or_else(|| self.orders[op.args[0].index()].iter().map(becomes).collect())
    }

    pub(super) fn emit_collective(&mut self, id: OpId, steps: &mut Vec<Step>) {
        let Operation { op, args, results, .. } = self.graph.op(id).clone();
        let Op::Collective(c) = op else { unreachable!("a node of a collective holds one") };
        let (x, v) = (args[0], results[0]);
        let order = self.orders[v.index()].clone();
        let was = |d: &DimId| c.dims.iter().find(|(_, to)| to == d).map_or(*d, |(from, _)| *from);
        let from_order: Vec<DimId> = order.iter().map(was).collect();
        let before = steps.len();
        let from = self.canonical_or_copy(x, &from_order, id, steps);
        if steps.len() > before {
            self.routine.buffers[from.index()].category = Category::Staging;
        }
        let to = self.buffer(v);
        let cut = |d: DimId| self.graph.dim(d).cut.as_ref().map_or_else(Vec::new, |c| c.entries.clone());
        let dims = from_order.iter().zip(&order);
        let dims = dims.map(|(f, t)| Exchanged { extent: self.graph.extent(*t), from: cut(*f), to: cut(*t) }).collect();
        let dtype = self.graph.value(v).dtype;
        let label = c.kind.name().to_string();
        // A number that is unique; `waits` gives those that stay, and the wait its place.
        let Collective { kind, atoms, reduce, hops, .. } = c;
        let number = id.0;
        let action = program::Collective { kind, atoms, reduce, dtype, from, to, dims, hops, number };
        let wait = vec![Begun { number, kind, from, to }];
        for action in [Action::Collective(Box::new(action)), Action::Wait(wait)] {
            let step = self.step(action, id, label.clone());
            steps.push(step);
        }
    }
}

impl Emitter<'_, '_, '_> {
    /// The index of an element row-major over `dims`, counted in the wholes that they are parts of, and the number of the scalar that
    /// is to be added to it.
    pub(super) fn logical_index(&mut self, dims: &[DimId], frame: FrameId) -> (Index, Option<u32>) {
        let (mut place, mut origin): (Index, Vec<(Atom, u64)>) = (Index::default(), Vec::new());
        let mut stride = 1i64;
        for d in dims.iter().rev() {
            let mut at = self.coordinate(frame, *d);
            if let Some(CutDim { extent, entries }) = self.low.graph.dim(*d).cut.clone() {
                let sizes = cut::extents(&self.low.graph.mesh, &entries, extent);
                for (entry, size) in entries.iter().zip(&sizes[1..]) {
                    match entry.order {
                        Order::Block => add(&mut origin, entry.atom, *size as u64 * stride as u64),
                        Order::Zigzag => at = self.zigzag(at, entry, *size as i64 / 2),
                        Order::Halo { .. } | Order::Ring { .. } => unreachable!("nothing is drawn for what passes"),
                    }
                }
            }
            place.add(&at, stride);
            stride *= self.low.graph.extent(*d) as i64;
        }
        let origin = (!origin.is_empty()).then(|| self.scalar(Scalar::Origin(origin)));
        (place, origin)
    }

    /// The place in the whole of what lies at `at` on this rank, in two blocks of `half` elements: numbers c and 2a - 1 - c of
    /// 2a, on coordinate c of a.
    fn zigzag(&mut self, at: Index, entry: &Entry, half: i64) -> Index {
        let ranks = self.low.graph.mesh.size(entry.atom) as f64;
        let name = format!("coordinate {}", self.low.graph.mesh.name(entry.atom));
        let cell = self.low.fixed(Place::Coordinate(entry.atom), DType::I32, 1, &name, Category::Data);
        let buffer = self.arg(cell, Access::Read);
        let load = Node::Load { buffer, at: Index::default(), when: None, fill: 0.0 };
        let own = self.push(load, DType::I32);
        // The second block lies one behind the first one already.
        let most = self.constant(2.0 * ranks - 2.0, DType::I32);
        let mirrored = self.map(MapOp::Sub, &[most, own], DType::I32);
        let first = self.compare(MapOp::Lt, &at, half);
        let skipped = self.map(MapOp::Where, &[first, own, mirrored], DType::I32);
        let mut place = at;
        place.add(&Index::of_expr(skipped), half);
        place
    }
}

fn add(origin: &mut Vec<(Atom, u64)>, atom: Atom, times: u64) {
    match origin.iter_mut().find(|(a, _)| *a == atom) {
        Some((_, n)) => *n += times,
        None => origin.push((atom, times)),
    }
}
