//! Expressions of one kernel: values become expressions over the kernel's loops.
//!
//! A *frame* says at which coordinates values are wanted: frame 0 is the kernel's own loops, each dim at its loop; going
//! through a rearrangement (reshape, window, gather ..) leads to another frame. A frame may carry a guard: where it is false, the
//! coordinates may be out of range and the value is not used.

use super::{Lowerer, Status, View};
use crate::ir::*;
use crate::kernel::{ArgId, Expr, ExprId, Index, Kernel, KernelBuffer, LoopId, Node, RegisterId};
use crate::program::{Access, BufferId, Key, Scalar};
use crate::types::{DType, MapOp};
use indexmap::IndexMap;
use std::collections::HashMap;

pub(super) type FrameId = usize;

pub(super) struct Frame {
    coordinates: Vec<(DimId, Index)>,
    guard: Option<ExprId>,
}

pub(super) struct Emitter<'a, 'm, 's> {
    pub low: &'a mut Lowerer<'m, 's>,
    pub kernel: Kernel,
    /// What the launch passes, in the order of the kernel's buffers.
    pub args: Vec<BufferId>,
    pub scalars: Vec<Scalar>,
    pub loops: IndexMap<DimId, LoopId>,
    /// Results that this kernel computes itself.
    pub registers: HashMap<ValueId, RegisterId>,
    pub own: Vec<ValueId>,
    frames: Vec<Frame>,
    memo: HashMap<(ValueId, FrameId), ExprId>,
    constants: HashMap<(u64, DType), ExprId>,
    places: HashMap<Index, ExprId>,
    /// The operation that the kernel is made for, for places in the text.
    pub at: OpId,
}

/// The loops' own coordinates.
pub(super) const HERE: FrameId = 0;

impl<'a, 'm, 's> Emitter<'a, 'm, 's> {
    /// A kernel whose first `rows` loops, of `dims`, are its rows.
    pub fn new(low: &'a mut Lowerer<'m, 's>, dims: &[DimId], rows: usize, own: Vec<ValueId>, at: OpId) -> Self {
        let extents = dims.iter().map(|d| low.graph.size(*d)).collect();
        let loops: IndexMap<DimId, LoopId> = dims.iter().enumerate().map(|(i, d)| (*d, LoopId(i as u32))).collect();
        let coordinates = loops.iter().map(|(d, l)| (*d, Index::of_loop(*l))).collect();
        Emitter {
            low,
            kernel: Kernel { extents, rows, ..Kernel::default() },
            args: Vec::new(),
            scalars: Vec::new(),
            loops,
            registers: HashMap::new(),
            own,
            frames: vec![Frame { coordinates, guard: None }],
            memo: HashMap::new(),
            constants: HashMap::new(),
            places: HashMap::new(),
            at,
        }
    }

    // ---- nodes

    pub fn push(&mut self, node: Node, dtype: DType) -> ExprId {
        self.kernel.exprs.push(Expr { node, dtype });
        ExprId(self.kernel.exprs.len() as u32 - 1)
    }

    pub fn constant(&mut self, x: f64, dtype: DType) -> ExprId {
        if let Some(e) = self.constants.get(&(x.to_bits(), dtype)) {
            return *e;
        }
        let e = self.push(Node::Const(x), dtype);
        self.constants.insert((x.to_bits(), dtype), e);
        e
    }

    pub fn map(&mut self, op: MapOp, args: &[ExprId], dtype: DType) -> ExprId {
        self.push(Node::Map(op, args.to_vec()), dtype)
    }

    /// An index as an I32 value.
    pub fn index(&mut self, index: Index) -> ExprId {
        if let Some(x) = index.as_constant() {
            return self.constant(x as f64, DType::I32);
        }
        if let (0, [], [(e, 1)]) = (index.base, index.loops.as_slice(), index.exprs.as_slice()) {
            return *e;
        }
        if let Some(e) = self.places.get(&index) {
            return *e;
        }
        let e = self.push(Node::Index(index.clone()), DType::I32);
        self.places.insert(index, e);
        e
    }

    pub(super) fn compare(&mut self, op: MapOp, index: &Index, bound: i64) -> ExprId {
        let a = self.index(index.clone());
        let b = self.constant(bound as f64, DType::I32);
        self.map(op, &[a, b], DType::Bool)
    }

    fn both(&mut self, a: Option<ExprId>, b: Option<ExprId>) -> Option<ExprId> {
        match (a, b) {
            (Some(a), Some(b)) if a != b => Some(self.map(MapOp::And, &[a, b], DType::Bool)),
            (a, b) => a.or(b),
        }
    }

    /// The number of a buffer among the kernel's arguments; one that is both read and written is passed twice.
    pub fn arg(&mut self, buffer: BufferId, access: Access) -> ArgId {
        let dtype = self.low.routine.buffer(buffer).dtype;
        let known = self.args.iter().zip(&self.kernel.buffers).position(|(b, k)| *b == buffer && k.access == access);
        let at = known.unwrap_or_else(|| {
            self.args.push(buffer);
            self.kernel.buffers.push(KernelBuffer { dtype, access });
            self.args.len() - 1
        });
        ArgId(at as u32)
    }

    // ---- frames

    pub fn frame(&mut self, coordinates: Vec<(DimId, Index)>, guard: Option<ExprId>) -> FrameId {
        self.frames.push(Frame { coordinates, guard });
        self.frames.len() - 1
    }

    pub fn coordinate(&self, frame: FrameId, dim: DimId) -> Index {
        let found = self.frames[frame].coordinates.iter().find(|(d, _)| *d == dim);
        found.map(|(_, i)| i.clone()).unwrap_or_else(|| panic!("{dim} has no coordinate in this kernel"))
    }

    /// Coordinates of x's dims: those of a frame but for some that are replaced.
    fn moved(&self, frame: FrameId, x: ValueId, replaced: &[(DimId, Index)]) -> Vec<(DimId, Index)> {
        let dims = &self.low.graph.value(x).dims;
        dims.iter()
            .map(|d| match replaced.iter().find(|(r, _)| r == d) {
                Some((_, i)) => (*d, i.clone()),
                None => (*d, self.coordinate(frame, *d)),
            })
            .collect()
    }

    // ---- values

    /// The value at a frame's coordinates.
    pub fn value(&mut self, v: ValueId, frame: FrameId) -> ExprId {
        if let Some(e) = self.memo.get(&(v, frame)) {
            return *e;
        }
        let e = if let Some(r) = self.registers.get(&v) {
            debug_assert_eq!(frame, HERE);
            let (r, dtype) = (*r, self.low.graph.value(v).dtype);
            self.push(Node::Register(r), dtype)
        } else if self.low.status[v.index()] == Status::Inline || self.own.contains(&v) {
            self.compute(v, frame)
        } else {
            self.load(v, frame, 0.0)
        };
        self.memo.insert((v, frame), e);
        e
    }

    fn load(&mut self, v: ValueId, frame: FrameId, fill: f64) -> ExprId {
        let at = self.low.address(v, |d| self.coordinate(frame, d));
        let root = self.low.view(v).root;
        let buffer = self.low.buffer(root);
        let buffer = self.arg(buffer, Access::Read);
        let when = self.frames[frame].guard;
        let dtype = self.low.graph.value(v).dtype;
        self.push(Node::Load { buffer, at, when, fill }, dtype)
    }

    /// x at a frame whose guard may be false, `fill` there.
    fn guarded(&mut self, x: ValueId, frame: FrameId, fill: f64) -> ExprId {
        let Some(guard) = self.frames[frame].guard else { return self.value(x, frame) };
        let in_memory = self.low.status[x.index()] != Status::Inline && !self.own.contains(&x);
        if in_memory {
            return self.load(x, frame, fill);
        }
        let dtype = self.low.graph.value(x).dtype;
        let value = self.value(x, frame);
        let fill = self.constant(fill, dtype);
        self.map(MapOp::Where, &[guard, value, fill], dtype)
    }

    fn compute(&mut self, v: ValueId, frame: FrameId) -> ExprId {
        let dtype = self.low.graph.value(v).dtype;
        let Operation { op, args, .. } = self.low.graph.def_op(v).expect("inline values are results").clone();
        match op {
            Op::Constant(Constant::Splat(x)) => self.constant(x, dtype),
            Op::Iota(d) => {
                let at = self.coordinate(frame, d);
                self.index(at)
            }
            Op::Map(op) => {
                let xs: Vec<ExprId> = args.iter().map(|a| self.value(*a, frame)).collect();
                self.map(op, &xs, dtype)
            }
            Op::Broadcast { .. } | Op::StopGradient => self.value(args[0], frame),
            Op::Random { dist, stream, dims } => {
                let key = self.key(stream, &args);
                let (counter, origin) = self.logical_index(&dims, frame);
                self.push(Node::Random { dist, key, counter, origin }, dtype)
            }
            Op::Reshape { groups } => {
                let mut replaced = Vec::new();
                for (from, to) in &groups {
                    let mut flat = Index::default();
                    for d in to {
                        let mut next = Index::default();
                        next.add(&flat, self.low.graph.size(*d) as i64);
                        next.add(&self.coordinate(frame, *d), 1);
                        flat = next;
                    }
                    self.split(flat, from, &mut replaced);
                }
                let guard = self.frames[frame].guard;
                let inner = self.moved(frame, args[0], &replaced);
                let inner = self.frame(inner, guard);
                self.value(args[0], inner)
            }
            Op::Window { axes, fill } => self.window(&axes, fill, &args, frame),
            Op::Fold { axes } => {
                debug_assert!(fold_loops(&self.low.graph, &axes).is_empty());
                self.fold(&axes, args[0], frame)
            }
            Op::Gather { dims, mode } => self.gather(v, &dims, mode, &args, frame),
            Op::Concat { parts, to } => {
                let at = self.coordinate(frame, to);
                let mut end = self.low.graph.size(to) as i64;
                let mut out: Option<ExprId> = None;
                for (x, part) in args.iter().zip(&parts).rev() {
                    let start = end - self.low.graph.size(*part) as i64;
                    let lower = (start > 0).then(|| self.compare(MapOp::Ge, &at, start));
                    let upper = out.map(|_| self.compare(MapOp::Lt, &at, end));
                    let mut inner = at.clone();
                    inner.base -= start;
                    out = Some(self.part(*x, &[(*part, inner)], frame, lower, upper, out));
                    end = start;
                }
                out.expect("a concatenation has parts")
            }
            Op::Stack { dim } => {
                let at = self.coordinate(frame, dim);
                if let Some(k) = at.as_constant() {
                    return self.value(args[k as usize], frame);
                }
                let mut out: Option<ExprId> = None;
                for (k, x) in args.iter().enumerate().rev() {
                    let here = out.map(|_| self.compare(MapOp::Eq, &at, k as i64));
                    out = Some(self.part(*x, &[], frame, None, here, out));
                }
                out.expect("a stack has parts")
            }
            Op::WriteAt { dim, part } => {
                let start = self.value(args[2], frame);
                let mut at = self.coordinate(frame, dim);
                at.add(&Index::of_expr(start), -1);
                let lower = Some(self.compare(MapOp::Ge, &at, 0));
                let upper = Some(self.compare(MapOp::Lt, &at, self.low.graph.size(part) as i64));
                let old = self.value(args[0], frame);
                self.part(args[1], &[(part, at)], frame, lower, upper, Some(old))
            }
            other => unreachable!("{other:?} is never computed inline"),
        }
    }

    /// x at replaced coordinates where the conditions hold, else `otherwise`.
    fn part(
        &mut self,
        x: ValueId,
        replaced: &[(DimId, Index)],
        frame: FrameId,
        lower: Option<ExprId>,
        upper: Option<ExprId>,
        otherwise: Option<ExprId>,
    ) -> ExprId {
        let inside = self.both(lower, upper);
        let guard = self.both(self.frames[frame].guard, inside);
        let coordinates = self.moved(frame, x, replaced);
        let inner = self.frame(coordinates, guard);
        let value = self.value(x, inner);
        match (inside, otherwise) {
            (Some(inside), Some(otherwise)) => {
                let dtype = self.low.graph.value(x).dtype;
                self.map(MapOp::Where, &[inside, value, otherwise], dtype)
            }
            _ => value,
        }
    }

    /// The coordinates of `dims` that a flat index over them stands for.
    fn split(&mut self, flat: Index, dims: &[DimId], out: &mut Vec<(DimId, Index)>) {
        let mut rest = flat;
        for (i, d) in dims.iter().enumerate().rev() {
            if i == 0 {
                out.push((*d, rest));
                return;
            }
            let size = self.low.graph.size(*d) as i64;
            let (quotient, remainder) = match self.divide(&rest, size) {
                Some(exact) => exact,
                None => {
                    let n = self.constant(size as f64, DType::I32);
                    let x = self.index(rest);
                    let q = self.map(MapOp::FloorDiv, &[x, n], DType::I32);
                    let r = self.map(MapOp::Rem, &[x, n], DType::I32);
                    (Index::of_expr(q), Index::of_expr(r))
                }
            };
            out.push((*d, remainder));
            rest = quotient;
        }
    }

    /// Quotient and remainder of an index, where they follow from its terms alone.
    fn divide(&self, index: &Index, by: i64) -> Option<(Index, Index)> {
        if !index.exprs.is_empty() && by != 1 {
            return None;
        }
        let (mut quotient, mut remainder) = (Index::default(), Index::default());
        quotient.base = index.base.div_euclid(by);
        remainder.base = index.base.rem_euclid(by);
        let mut most = remainder.base;
        quotient.exprs.clone_from(&index.exprs);
        for (l, k) in &index.loops {
            if k % by == 0 {
                quotient.add_loop(*l, k / by);
            } else if *k > 0 {
                remainder.add_loop(*l, *k);
                most += k * (self.kernel.extents[l.index()] as i64 - 1);
            } else {
                return None;
            }
        }
        (most < by).then_some((quotient, remainder))
    }

    fn window(&mut self, axes: &[WindowAxis], fill: f64, args: &[ValueId], frame: FrameId) -> ExprId {
        let mut guard = self.frames[frame].guard;
        let mut replaced = Vec::new();
        let mut offsets = args[1..].iter();
        for a in axes {
            let size = self.low.graph.size(a.input) as i64;
            let (lo, hi) = self.low.window_range(a);
            let mut at = Index::constant(a.offset);
            for (d, k) in &a.terms {
                at.add(&self.coordinate(frame, *d), *k);
            }
            if a.dynamic {
                // The window as a whole stays inside: its offset is clamped.
                let by = self.value(*offsets.next().expect("an operand for each dynamic axis"), frame);
                let (least, most) = (-lo, size - 1 - hi);
                let least = self.constant(least as f64, DType::I32);
                let most = self.constant(most as f64, DType::I32);
                let by = self.map(MapOp::Min, &[by, most], DType::I32);
                let by = self.map(MapOp::Max, &[by, least], DType::I32);
                at.add(&Index::of_expr(by), 1);
            } else {
                if lo < 0 {
                    let inside = self.compare(MapOp::Ge, &at, 0);
                    guard = self.both(guard, Some(inside));
                }
                if hi >= size {
                    let inside = self.compare(MapOp::Lt, &at, size);
                    guard = self.both(guard, Some(inside));
                }
            }
            replaced.push((a.input, at));
        }
        let changed = guard != self.frames[frame].guard;
        let coordinates = self.moved(frame, args[0], &replaced);
        let inner = self.frame(coordinates, guard);
        if changed { self.guarded(args[0], inner, fill) } else { self.value(args[0], inner) }
    }

    fn gather(&mut self, v: ValueId, dims: &[DimId], mode: GatherMode, args: &[ValueId], frame: FrameId) -> ExprId {
        let outer = self.frames[frame].guard;
        let mut guard = outer;
        let mut replaced = Vec::new();
        for (d, index) in dims.iter().zip(&args[1..]) {
            let mut at = self.value(*index, frame);
            if mode == GatherMode::Zero {
                let zero = self.constant(0.0, DType::I32);
                let inside = self.map(MapOp::Ge, &[at, zero], DType::Bool);
                guard = self.both(guard, Some(inside));
                at = self.map(MapOp::Max, &[at, zero], DType::I32);
            }
            let checked = self.check(at, *d, v, outer);
            replaced.push((*d, Index::of_expr(checked)));
        }
        let changed = guard != outer;
        let coordinates = self.moved(frame, args[0], &replaced);
        let inner = self.frame(coordinates, guard);
        if changed { self.guarded(args[0], inner, 0.0) } else { self.value(args[0], inner) }
    }

    /// An index of `dim` that is in range, or else reported (where the guard holds).
    pub fn check(&mut self, mut index: ExprId, dim: DimId, v: ValueId, guard: Option<ExprId>) -> ExprId {
        if let Some(guard) = guard {
            let zero = self.constant(0.0, DType::I32);
            index = self.map(MapOp::Where, &[guard, index, zero], DType::I32);
        }
        let op = match self.low.graph.value(v).def {
            Def::Op(op, _) => op,
            Def::BlockParam(_) => self.at,
        };
        let source = self.low.source(op);
        let g = &self.low.graph;
        let (size, name, whole) = (g.size(dim), g.whole_name(dim).to_string(), g.extent(dim));
        let site = self.low.module.site(source, &name, whole, g.dim(dim).ragged);
        self.push(Node::Check { index, size, site }, DType::I32)
    }

    /// The summand of a fold at coordinates of its result and of its loops (in `frame`).
    pub fn fold(&mut self, axes: &[WindowAxis], x: ValueId, frame: FrameId) -> ExprId {
        let mut known: Vec<(DimId, Index)> = Vec::new();
        for d in fold_loops(&self.low.graph, axes) {
            known.push((d, self.coordinate(frame, d)));
        }
        let mut guard = self.frames[frame].guard;
        for a in axes {
            // place = offset + sum of k * o: what is left after the known ones belongs to the one that is solved for.
            let mut rest = self.coordinate(frame, a.input);
            rest.base -= a.offset;
            let mut solve: Option<(DimId, i64)> = None;
            for (d, k) in &a.terms {
                match known.iter().find(|(o, _)| o == d) {
                    Some((_, at)) => rest.add(at, -k),
                    None => solve = Some((*d, *k)),
                }
            }
            let Some((d, k)) = solve else {
                if rest.as_constant() != Some(0) {
                    let here = self.compare(MapOp::Eq, &rest, 0);
                    guard = self.both(guard, Some(here));
                }
                continue;
            };
            if k < 0 {
                let mut negated = Index::default();
                negated.add(&rest, -1);
                rest = negated;
            }
            let step = k.abs();
            let size = self.low.graph.size(d) as i64;
            let mut at = rest.clone();
            if step > 1 {
                let n = self.constant(step as f64, DType::I32);
                let place = self.index(rest.clone());
                let r = self.map(MapOp::Rem, &[place, n], DType::I32);
                let whole = self.compare(MapOp::Eq, &Index::of_expr(r), 0);
                guard = self.both(guard, Some(whole));
                let q = self.map(MapOp::FloorDiv, &[place, n], DType::I32);
                at = Index::of_expr(q);
            }
            let lower = self.compare(MapOp::Ge, &at, 0);
            let upper = self.compare(MapOp::Lt, &at, size);
            let inside = self.both(Some(lower), Some(upper));
            guard = self.both(guard, inside);
            known.push((d, at));
        }
        let coordinates = self.moved(frame, x, &known);
        let inner = self.frame(coordinates, guard);
        self.guarded(x, inner, 0.0)
    }

    fn key(&mut self, stream: u64, turns: &[ValueId]) -> u32 {
        let turns: Vec<BufferId> = turns
            .iter()
            .map(|t| {
                let View { root, offset, .. } = self.low.view(*t).clone();
                debug_assert_eq!(offset, 0, "turns are cells of their own");
                self.low.buffer(root)
            })
            .collect();
        self.scalar(Scalar::Key(Key { stream, turns }))
    }

    /// The number of a scalar that the kernel is called with.
    pub(super) fn scalar(&mut self, scalar: Scalar) -> u32 {
        let at = self.scalars.iter().position(|s| *s == scalar).unwrap_or_else(|| {
            self.scalars.push(scalar);
            self.scalars.len() - 1
        });
        self.kernel.scalars = self.scalars.len();
        at as u32
    }
}

/// The dims of a fold's operand that it sums over: of each axis all but the longest, which follows from
/// the place.
pub(super) fn fold_loops(graph: &Graph, axes: &[WindowAxis]) -> Vec<DimId> {
    let mut solved: Vec<DimId> = Vec::new();
    let mut loops: Vec<DimId> = Vec::new();
    for a in axes {
        let free: Vec<(DimId, i64)> =
            a.terms.iter().copied().filter(|(d, _)| !solved.contains(d) && !loops.contains(d)).collect();
        // A dim that the result has, too, cannot be a loop; else solving for the longest leaves the fewest turns.
        let in_result = |d: DimId| axes.iter().any(|a| a.input == d);
        let Some(best) = free.iter().max_by_key(|(d, k)| (in_result(*d), graph.size(*d), -k.abs())) else { continue };
        solved.push(best.0);
        loops.extend(free.iter().map(|(d, _)| *d).filter(|d| *d != best.0));
    }
    loops
}
