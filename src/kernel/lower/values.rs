//! Decides how each value of a block comes to its users: by memory, recomputed, or from within a kernel.

use super::{Lowerer, Source, Status, View};
use crate::ir::*;
use crate::program::{Category, Place};
use crate::types::rng::Dist;
use crate::types::{DType, MapOp};

/// Limits of what each user recomputes for itself instead of reading it: operations, and values that they start from.
const INLINE_COST: u32 = 24;
const INLINE_SOURCES: usize = 8;
/// The same for a value with one user, where nothing is computed twice.
const CHAIN_COST: u32 = 160;
const CHAIN_SOURCES: usize = 24;
/// Of an elementwise function that takes more than a few instructions.
const HEAVY: u32 = 8;
/// Of a gather, whose loads go anywhere: not to be done twice.
const GATHER: u32 = INLINE_COST + 1;
/// Further parts make an inline concatenation slower than a copy.
pub(super) const INLINE_PARTS: usize = 4;

impl Lowerer<'_, '_> {
    pub(super) fn find_users(&mut self, block: BlockId) {
        for id in &self.graph.block(block).ops {
            for a in &self.graph.op(*id).args {
                let users = &mut self.users[a.index()];
                if users.last() != Some(id) {
                    users.push(*id);
                }
            }
        }
    }

    /// Marks what must have an address: operands of everything that is no kernel of ours, through views.
    pub(super) fn find_needs(&mut self, block: BlockId) {
        for r in &self.graph.block(block).results {
            self.need[r.index()] = true;
        }
        for id in self.graph.block(block).ops.iter().rev() {
            let op = self.graph.op(*id);
            match &op.op {
                Op::Dot { .. }
                | Op::Loop { .. }
                | Op::Random { .. }
                | Op::ArgSort { .. }
                | Op::TopK { .. }
                | Op::PackPlace { .. }
                | Op::Draw { .. }
                | Op::Collective(_)
                | Op::Attention(_)
                | Op::AttentionGrad(_) => op.args.iter().for_each(|a| self.need[a.index()] = true),
                Op::Scatter { targets, .. } => {
                    let indices = 1..=targets.len();
                    let addressed = op.args.iter().enumerate().filter(|(i, _)| !indices.contains(i));
                    addressed.for_each(|(_, a)| self.need[a.index()] = true);
                }
                Op::Reshape { .. } | Op::Broadcast { .. } | Op::Window { .. } if self.need[op.results[0].index()] => {
                    let inside = match &op.op {
                        Op::Window { axes, .. } => self.stays_inside(axes),
                        _ => true,
                    };
                    // What is the same everywhere is written out at once.
                    let leaf = self.graph.def_op(op.args[0]).map(|o| &o.op);
                    let made = matches!(leaf, Some(Op::Constant(Constant::Splat(_)) | Op::Iota(_)));
                    if inside && !made {
                        self.need[op.args[0].index()] = true;
                    }
                }
                _ => {}
            }
        }
    }

    /// Whether a window reads nothing outside of x and moves with nothing.
    fn stays_inside(&self, axes: &[WindowAxis]) -> bool {
        axes.iter().all(|a| {
            let (lo, hi) = self.window_range(a);
            !a.dynamic && lo >= 0 && hi < self.graph.size(a.input) as i64
        })
    }

    /// Least and largest coordinate of x that an axis reads, its dynamic offset left out.
    pub(super) fn window_range(&self, axis: &WindowAxis) -> (i64, i64) {
        axis.terms.iter().fold((axis.offset, axis.offset), |(lo, hi), (d, k)| {
            let reach = k * (self.graph.size(*d) as i64 - 1);
            (lo + reach.min(0), hi + reach.max(0))
        })
    }

    pub(super) fn place_values(&mut self, block: BlockId) {
        for id in self.graph.block(block).ops.clone() {
            self.place(id);
        }
    }

    fn place(&mut self, id: OpId) {
        let op = self.graph.op(id).clone();
        let v = op.results.first().copied().unwrap_or(ValueId(0));
        match &op.op {
            Op::Param(p) => {
                let (slot, dims) = (self.slots.params[p.index()], self.graph.params[p.index()].dims.clone());
                self.place_fixed(v, Place::Param(slot), &dims, Category::Parameters);
            }
            Op::State(s) => {
                let state = &self.graph.states[s.index()];
                let category = match state.kind {
                    StateKind::Optimizer => Category::OptimizerState,
                    _ => Category::State,
                };
                let (place, dims) = (self.slots.states[s.index()], state.dims.clone());
                self.place_fixed(v, place, &dims, category);
            }
            Op::Input(i) => {
                let (slot, dims) = (self.slots.inputs[i.index()], self.graph.inputs[i.index()].dims.clone());
                self.place_fixed(v, Place::Input(slot), &dims, Category::Data);
            }
            Op::Step => self.place_fixed(v, Place::Step, &[], Category::Data),
            Op::Position => self.place_fixed(v, Place::Position, &[], Category::Data),
            Op::Coordinate(atom) => self.place_fixed(v, Place::Coordinate(*atom), &[], Category::Data),
            Op::Collective(_) => {
                let order = self.collective_order(id);
                self.place_root(v, &order, Status::Memory);
            }
            Op::Constant(Constant::Elements(data)) => {
                let bytes = constant_bytes(data, self.graph.value(v).dtype);
                let at = self.module.constant(bytes);
                let dims = self.graph.value(v).dims.clone();
                self.place_fixed(v, Place::Constant(at), &dims, Category::Data);
            }
            Op::Constant(Constant::Splat(_)) | Op::Iota(_) => self.inline_or_member(v, 1, Vec::new()),
            Op::Random { dist, .. } => {
                let cost = if matches!(dist, Dist::Normal { .. } | Dist::TruncNormal { .. }) { 40 } else { 10 };
                self.inline_or_member(v, cost, Vec::new());
            }
            Op::Map(_) | Op::StopGradient => {
                let own = if matches!(op.op, Op::Map(f) if is_heavy(f)) { HEAVY } else { 1 };
                let cost = self.args_cost(&op.args) + own;
                let inputs = self.sources(&op.args, true);
                self.inline_or_member(v, cost, inputs);
            }
            Op::Broadcast { .. } | Op::Reshape { .. } | Op::Window { .. } => self.place_view(&op, v),
            Op::Gather { .. } => {
                let mut inputs = self.sources(&op.args[1..], true);
                join(&mut inputs, self.sources(&op.args[..1], false));
                let cost = self.args_cost(&op.args) + GATHER;
                self.inline_or_member(v, cost, inputs);
            }
            // Placed with the first of its parts.
            Op::Concat { .. } | Op::Stack { .. } if self.wholes.contains_key(&v) => {}
            Op::Concat { .. } | Op::Stack { .. } => {
                let inputs = self.sources(&op.args, false);
                let cost = self.args_cost(&op.args) + 3 * op.args.len() as u32;
                if op.args.len() <= INLINE_PARTS {
                    self.inline_or_member(v, cost, inputs);
                } else {
                    self.member(v, cost, inputs);
                }
            }
            Op::WriteAt { .. } if let Some(s) = self.written_state(id) => {
                let (place, dims) = (self.slots.states[s.index()], self.graph.states[s.index()].dims.clone());
                self.place_fixed(v, place, &dims, Category::State);
                self.status[v.index()] = Status::Member;
                self.inputs[v.index()] = self.sources(&op.args[1..], false);
                self.cost[v.index()] = self.args_cost(&op.args[1..]) + 4;
            }
            Op::WriteAt { .. } => {
                let mut inputs = self.sources(&[op.args[0], op.args[2]], true);
                join(&mut inputs, self.sources(&op.args[1..2], false));
                let cost = self.args_cost(&op.args) + 4;
                self.inline_or_member(v, cost, inputs);
            }
            Op::Fold { axes } => {
                let inputs = self.sources(&op.args, false);
                let cost = self.args_cost(&op.args) + 6;
                if super::emit::fold_loops(&self.graph, axes).is_empty() {
                    self.inline_or_member(v, cost, inputs);
                } else {
                    self.member(v, cost, inputs);
                }
            }
            Op::Reduce { .. } => {
                let inputs = self.sources(&op.args, true);
                self.member(v, self.args_cost(&op.args) + 1, inputs);
            }
            Op::Scan { .. } | Op::LinearScan { .. } => {
                let inputs = self.sources(&op.args, false);
                self.member(v, self.args_cost(&op.args) + 1, inputs);
            }
            Op::Dot { .. } => {
                let order = self.dot_order(id);
                self.place_root(v, &order, Status::Memory);
            }
            Op::ArgSort { .. } | Op::TopK { .. } | Op::PackPlace { .. } | Op::Draw { .. } | Op::Scatter { .. } => {
                let order = self.library_order(id);
                self.place_root(v, &order, Status::Memory);
            }
            Op::Attention(_) | Op::AttentionGrad(_) => {
                for (r, order) in op.results.iter().zip(self.attention_orders(id)) {
                    self.place_root(*r, &order, Status::Memory);
                }
            }
            Op::Loop { .. } => {
                for r in &op.results {
                    let order = self.graph.value(*r).dims.clone();
                    self.place_root(*r, &order, Status::Memory);
                }
            }
        }
    }

    /// A value that is its own root, stored row-major in `order`; but a part of a whole is stored there.
    pub(super) fn place_root(&mut self, v: ValueId, order: &[DimId], status: Status) {
        if let Some(part) = self.parts.get(&v).cloned() {
            return self.place_part(v, &part, order, status);
        }
        let strides = self.strides(&self.graph.value(v).dims, order);
        self.views[v.index()] = Some(View { root: v, made: v, offset: 0, strides });
        self.orders[v.index()] = order.to_vec();
        self.status[v.index()] = status;
    }

    fn place_fixed(&mut self, v: ValueId, place: Place, order: &[DimId], category: Category) {
        let dtype = self.graph.value(v).dtype;
        let elements = self.graph.elements(order);
        let name = match place {
            Place::Param(i) => self.module.program.params[i as usize].path.clone(),
            Place::State(i) => self.module.program.states[i as usize].path.clone(),
            Place::Input(i) => self.module.program.inputs[i as usize].path.clone(),
            Place::Step => "step".to_string(),
            Place::Position => "position".to_string(),
            Place::Argument(n) => format!("argument {n}"),
            Place::Coordinate(atom) => format!("coordinate {}", self.graph.mesh.name(atom)),
            _ => "constant".to_string(),
        };
        let buffer = self.fixed(place, dtype, elements, &name, category);
        self.buffers[v.index()] = Some(buffer);
        self.place_root(v, order, Status::Memory);
    }

    /// An alias of its operand where strides can express it, else a rearrangement like any other.
    fn place_view(&mut self, op: &Operation, v: ValueId) {
        let x = op.args[0];
        let aligned = matches!(op.op, Op::Broadcast { .. });
        let in_memory = self.status[x.index()] != Status::Inline;
        if in_memory
            && (!aligned || self.need[v.index()])
            && let Some(view) = self.alias(op, x, v)
        {
            self.views[v.index()] = Some(view);
            self.orders[v.index()] = self.order_of(v);
            self.status[v.index()] = Status::Memory;
            return;
        }
        let mut inputs = self.sources(&[x], aligned);
        join(&mut inputs, self.sources(&op.args[1..], true));
        let cost = self.args_cost(&op.args) + if aligned { 0 } else { 3 };
        self.inline_or_member(v, cost, inputs);
    }

    fn alias(&self, op: &Operation, x: ValueId, v: ValueId) -> Option<View> {
        let from = self.view(x).clone();
        let dims = &self.graph.value(v).dims;
        let size = |d: DimId| self.graph.size(d) as i64;
        match &op.op {
            Op::Broadcast { .. } => {
                let strides = dims.iter().map(|d| self.stride(x, *d)).collect();
                Some(View { strides, ..from })
            }
            Op::Reshape { groups } => {
                let mut strides: Vec<i64> = dims.iter().map(|d| self.stride(x, *d)).collect();
                for (olds, news) in groups {
                    // The old dims as one run of elements; its stride is that of the last.
                    let real: Vec<DimId> = olds.iter().copied().filter(|d| size(*d) > 1).collect();
                    let fits = real.windows(2).all(|w| self.stride(x, w[0]) == self.stride(x, w[1]) * size(w[1]));
                    if !fits {
                        return None;
                    }
                    let mut stride = real.last().map_or(1, |d| self.stride(x, *d));
                    for d in news.iter().rev() {
                        strides[dims.iter().position(|o| o == d)?] = stride;
                        stride *= size(*d);
                    }
                }
                Some(View { strides, ..from })
            }
            Op::Window { axes, .. } => {
                if !self.stays_inside(axes) {
                    return None;
                }
                let mut offset = from.offset;
                let mut strides: Vec<i64> = dims
                    .iter()
                    .map(|d| if axes.iter().any(|a| a.input == *d) { 0 } else { self.stride(x, *d) })
                    .collect();
                for a in axes {
                    let stride = self.stride(x, a.input);
                    offset += a.offset * stride;
                    for (d, k) in &a.terms {
                        strides[dims.iter().position(|o| o == d)?] += k * stride;
                    }
                }
                Some(View { offset, strides, ..from })
            }
            _ => None,
        }
    }

    fn member(&mut self, v: ValueId, cost: u32, inputs: Vec<Source>) {
        let order = self.member_order(v);
        self.place_root(v, &order, Status::Member);
        self.inputs[v.index()] = inputs;
        self.cost[v.index()] = cost;
    }

    fn inline_or_member(&mut self, v: ValueId, cost: u32, inputs: Vec<Source>) {
        let users = self.users[v.index()].len();
        let elements = self.graph.elements(&self.graph.value(v).dims);
        let leaf = inputs.is_empty() && cost <= 2;
        let large = inputs.iter().filter(|s| self.is_large(s.value, elements)).count();
        let cheap = cost <= INLINE_COST && inputs.len() <= INLINE_SOURCES && large <= 1;
        let chain = users <= 1 && cost <= CHAIN_COST && inputs.len() <= CHAIN_SOURCES;
        let widened = self.users[v.index()].iter().any(|u| self.work(*u) >= 4 * elements.max(1));
        let repeated = widened && (cost >= HEAVY || (elements == 1 && cost > 2 && !inputs.is_empty()));
        let view = self.graph.def_op(v).is_some_and(|o| !matches!(o.op, Op::Map(_)));
        let fuse = self.options.fuse || view || leaf;
        if !self.need[v.index()] && fuse && (chain || cheap) && !repeated {
            self.status[v.index()] = Status::Inline;
            self.orders[v.index()] = self.natural_order(v);
            self.inputs[v.index()] = inputs;
            self.cost[v.index()] = cost;
        } else {
            self.member(v, cost, inputs);
        }
    }

    /// Whether keeping a value for recomputation is worth as much memory as the result itself. What lives anyway does not count.
    fn is_large(&self, v: ValueId, elements: usize) -> bool {
        let lives = match self.graph.def_op(v).map(|o| &o.op) {
            Some(Op::Param(_) | Op::State(_) | Op::Input(_) | Op::Constant(_)) => true,
            Some(_) => false,
            None => true,
        };
        !lives && 2 * self.graph.elements(&self.graph.value(v).dims) >= elements
    }

    /// Elements that an operation goes over.
    fn work(&self, id: OpId) -> usize {
        let op = self.graph.op(id);
        let all = op.args.iter().chain(&op.results);
        all.map(|v| self.graph.elements(&self.graph.value(*v).dims)).max().unwrap_or(1)
    }

    fn args_cost(&self, args: &[ValueId]) -> u32 {
        let cost = |a: &ValueId| if self.status[a.index()] == Status::Inline { self.cost[a.index()] } else { 0 };
        args.iter().map(cost).fold(0, u32::saturating_add)
    }

    /// What operands are computed from, through inline values.
    pub(super) fn sources(&self, args: &[ValueId], aligned: bool) -> Vec<Source> {
        let mut all = Vec::new();
        for a in args {
            match self.status[a.index()] {
                Status::Inline => join(
                    &mut all,
                    self.inputs[a.index()]
                        .iter()
                        .map(|s| Source { value: s.value, aligned: s.aligned && aligned })
                        .collect(),
                ),
                Status::Member => join(&mut all, vec![Source { value: *a, aligned }]),
                _ => {
                    let value = self.view(*a).made;
                    join(&mut all, vec![Source { value, aligned: aligned && value == *a }]);
                }
            }
        }
        all
    }
}

fn join(all: &mut Vec<Source>, more: Vec<Source>) {
    for s in more {
        if !all.contains(&s) {
            all.push(s);
        }
    }
}

fn constant_bytes(data: &[f64], dtype: DType) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(data.len() * dtype.bytes());
    for x in data {
        match dtype {
            DType::Bool => bytes.push(u8::from(*x != 0.0)),
            DType::I32 => bytes.extend((*x as i32).to_le_bytes()),
            DType::F16 => bytes.extend(half::f16::from_f64(*x).to_le_bytes()),
            DType::BF16 => bytes.extend(half::bf16::from_f64(*x).to_le_bytes()),
            DType::F32 => bytes.extend((*x as f32).to_le_bytes()),
            DType::F64 => bytes.extend(x.to_le_bytes()),
        }
    }
    bytes
}

/// Elementwise functions that take more than a few instructions.
pub(super) fn is_heavy(op: MapOp) -> bool {
    use MapOp::*;
    matches!(op, Exp | Expm1 | Log | Log1p | Tanh | Sigmoid | Softplus | Erf | Sin | Cos | Pow)
}
