//! What a rank knows of the part that it holds: where its elements are in the whole, and which of them are real.

use crate::ir::*;
use crate::mesh::{Atom, Cut, Order, cut};
use crate::types::{DType, MapOp};
use std::collections::HashMap;

/// The dims of a rank's program and index arithmetic over them.
#[derive(Default)]
pub struct Local {
    dims: HashMap<(DimId, Cut), DimId>,
    /// By block: coordinates, indices and masks that were made.
    coordinates: HashMap<(BlockId, Atom), ValueId>,
    indices: HashMap<(BlockId, DimId), ValueId>,
    masks: HashMap<(BlockId, DimId), Option<ValueId>>,
}

impl Local {
    /// The dim of a part: of the dim itself where nothing cuts it.
    pub fn dim(&mut self, b: &mut Builder, dim: DimId, cut: &Cut) -> DimId {
        if cut.is_empty() {
            return dim;
        }
        if let Some(d) = self.dims.get(&(dim, cut.clone())) {
            return *d;
        }
        let Dim { name, size, ragged, .. } = b.graph.dim(dim).clone();
        let atoms: Vec<Atom> = cut.iter().map(|e| e.atom).collect();
        let passing = match cut[0].order {
            Order::Halo { .. } => ".halo",
            Order::Ring { .. } => ".ring",
            Order::Block | Order::Zigzag => "",
        };
        let name = format!("{name}.{}{passing}", b.graph.mesh.names(&atoms).join(".").replace(':', "."));
        let nominal = cut::nominal(&b.graph.mesh, cut, size).max(1);
        let d = b.add_dim(&name, nominal, ragged);
        b.graph.dims[d.index()].cut = Some(CutDim { extent: size, entries: cut.clone() });
        self.dims.insert((dim, cut.clone()), d);
        d
    }

    pub fn coordinate(&mut self, b: &mut Builder, atom: Atom) -> ValueId {
        let key = (b.block(), atom);
        if let Some(v) = self.coordinates.get(&key) {
            return *v;
        }
        let v = b.emit(Op::Coordinate(atom), &[], &[(DType::I32, vec![])])[0];
        self.coordinates.insert(key, v);
        v
    }

    fn int(b: &mut Builder, x: usize) -> ValueId {
        b.scalar(x as f64, DType::I32)
    }

    /// What a block closes with is not known outside of it.
    pub fn close(&mut self, block: BlockId) {
        self.coordinates.retain(|k, _| k.0 != block);
        self.indices.retain(|k, _| k.0 != block);
        self.masks.retain(|k, _| k.0 != block);
    }

    /// I32 over the dim: the index of each element in the whole.
    pub fn index(&mut self, b: &mut Builder, dim: DimId) -> ValueId {
        let key = (b.block(), dim);
        if let Some(v) = self.indices.get(&key) {
            return *v;
        }
        let at = b.iota(dim);
        let at = self.whole(b, at, dim);
        self.indices.insert(key, at);
        at
    }

    /// Indices into this rank's part of a dim as indices into the whole.
    pub fn whole(&mut self, b: &mut Builder, mut at: ValueId, dim: DimId) -> ValueId {
        if let Some(CutDim { extent, entries }) = b.graph.dim(dim).cut.clone() {
            let sizes = cut::extents(&b.graph.mesh, &entries, extent);
            for (k, e) in entries.iter().enumerate().rev() {
                let c = self.coordinate(b, e.atom);
                at = self.outwards(b, at, e, sizes[k + 1], c);
            }
        }
        at
    }

    /// I32 scalar: the index in the whole of the first element; of dims in blocks alone.
    pub fn first(&mut self, b: &mut Builder, dim: DimId) -> ValueId {
        let mut at = Self::int(b, 0);
        if let Some(CutDim { extent, entries }) = b.graph.dim(dim).cut.clone() {
            let sizes = cut::extents(&b.graph.mesh, &entries, extent);
            for (e, size) in entries.iter().zip(&sizes[1..]) {
                let (c, n) = (self.coordinate(b, e.atom), Self::int(b, *size));
                let offset = b.mul(c, n);
                at = b.add(at, offset);
            }
        }
        at
    }

    /// From places in the block that a coordinate has by an entry to places in what the entry cuts.
    pub fn outwards(
        &mut self,
        b: &mut Builder,
        at: ValueId,
        e: &crate::mesh::Entry,
        block: usize,
        c: ValueId,
    ) -> ValueId {
        match e.order {
            Order::Block => {
                let size = Self::int(b, block);
                let offset = b.mul(c, size);
                b.add(offset, at)
            }
            Order::Zigzag => {
                let (half, parts) = (Self::int(b, block / 2), b.graph.mesh.size(e.atom));
                let near = b.mul(c, half);
                let near = b.add(near, at);
                // Of block 2a - 1 - c, whose first place is half: (2a - 2 - c) * half further.
                let last = Self::int(b, 2 * parts - 2);
                let far = b.sub(last, c);
                let far = b.mul(far, half);
                let far = b.add(far, at);
                let first = b.map(MapOp::Lt, &[at, half]);
                b.select(first, near, far)
            }
            Order::Ring { .. } => unreachable!("whose block it is changes"),
            Order::Halo { step, lead, .. } => {
                let size = Self::int(b, step as usize);
                let offset = b.mul(c, size);
                let offset = b.map_scalar(MapOp::Sub, offset, f64::from(lead));
                b.add(offset, at)
            }
        }
    }

    /// Bool over the dim: which elements are real; none where all are, on every rank.
    pub fn real(&mut self, b: &mut Builder, dim: DimId) -> Option<ValueId> {
        let CutDim { extent, entries } = b.graph.dim(dim).cut.clone()?;
        if cut::even(&b.graph.mesh, &entries, extent) {
            return None;
        }
        let key = (b.block(), dim);
        if let Some(v) = self.masks.get(&key) {
            return *v;
        }
        let sizes = cut::extents(&b.graph.mesh, &entries, extent);
        let mut at = b.iota(dim);
        let mut mask: Option<ValueId> = None;
        for (k, e) in entries.iter().enumerate().rev() {
            let c = self.coordinate(b, e.atom);
            at = self.outwards(b, at, e, sizes[k + 1], c);
            let halo = matches!(e.order, Order::Halo { .. });
            if halo || sizes[k + 1] * b.graph.mesh.size(e.atom) != sizes[k] {
                let n = Self::int(b, sizes[k]);
                let zero = Self::int(b, 0);
                let inside = if halo { self.between(b, at, zero, n) } else { b.map(MapOp::Lt, &[at, n]) };
                mask = Some(match mask {
                    None => inside,
                    Some(m) => b.map(MapOp::And, &[m, inside]),
                });
            }
        }
        self.masks.insert(key, mask);
        mask
    }

    /// A value with something else where it is not real along some dims.
    pub fn masked(&mut self, b: &mut Builder, v: ValueId, dims: &[DimId], fill: f64) -> ValueId {
        let mut out = v;
        for d in dims {
            if !b.dims(v).contains(d) {
                continue;
            }
            if let Some(mask) = self.real(b, *d) {
                let fill = b.scalar(fill, b.dtype(v));
                let types = [(b.dtype(v), b.dims(v).to_vec())];
                out = b.emit(Op::Map(MapOp::Where), &[mask, out, fill], &types)[0];
            }
        }
        out
    }

    /// An index into a whole dim as an index into a rank's part of it; -1 where another rank has the element. One that nobody has stays as it
    /// is, beyond every part, so that it can be told. Negative ones are nobody's and move far beyond ([`cut::told`]), unless they
    /// are `allowed`: then they are -1.
    pub fn inwards(&mut self, b: &mut Builder, index: ValueId, dim: DimId, allowed: bool) -> ValueId {
        let Some(CutDim { extent, entries }) = b.graph.dim(dim).cut.clone() else { return index };
        let sizes = cut::extents(&b.graph.mesh, &entries, extent);
        let zero = Self::int(b, 0);
        let mut at = index;
        let mut mine: Option<ValueId> = None;
        for (k, e) in entries.iter().enumerate() {
            let c = self.coordinate(b, e.atom);
            let (near, inside) = match e.order {
                Order::Block => {
                    let size = Self::int(b, sizes[k + 1]);
                    let offset = b.mul(c, size);
                    let near = b.sub(at, offset);
                    (near, self.between(b, near, zero, size))
                }
                Order::Zigzag => {
                    let parts = b.graph.mesh.size(e.atom);
                    let (half, whole) = (Self::int(b, sizes[k + 1] / 2), Self::int(b, sizes[k + 1]));
                    let offset = b.mul(c, half);
                    let near = b.sub(at, offset);
                    let first = self.between(b, near, zero, half);
                    let last = Self::int(b, 2 * parts - 2);
                    let far = b.sub(last, c);
                    let far = b.mul(far, half);
                    let far = b.sub(at, far);
                    let second = self.between(b, far, half, whole);
                    let place = b.select(first, near, far);
                    (place, b.map(MapOp::Or, &[first, second]))
                }
                Order::Halo { .. } | Order::Ring { .. } => unreachable!("nothing is looked up in what passes"),
            };
            at = near;
            mine = Some(match mine {
                None => inside,
                Some(m) => b.map(MapOp::And, &[m, inside]),
            });
        }
        let mine = mine.expect("a cut has entries");
        let (n, other) = (Self::int(b, extent), b.scalar(-1.0, DType::I32));
        let below = b.map(MapOp::Lt, &[index, n]);
        // A part in large units may be longer than the whole.
        let beyond = Self::int(b, b.size(dim).max(extent));
        let nobody = b.map(MapOp::Max, &[index, beyond]);
        let mut elsewhere = b.select(below, other, nobody);
        if !allowed {
            let least = b.scalar(f64::from(i32::MIN), DType::I32);
            let (negative, beyond) = (b.map(MapOp::Lt, &[index, zero]), b.map(MapOp::Sub, &[index, least]));
            elsewhere = b.select(negative, beyond, elsewhere);
        }
        b.select(mine, at, elsewhere)
    }

    fn between(&mut self, b: &mut Builder, x: ValueId, lo: ValueId, hi: ValueId) -> ValueId {
        let above = b.map(MapOp::Ge, &[x, lo]);
        let below = b.map(MapOp::Lt, &[x, hi]);
        b.map(MapOp::And, &[above, below])
    }
}
