//! One node becomes one kernel: its loops, its passes, its launch.

use super::emit::{Emitter, HERE, fold_loops};
use super::group::is_reducing;
use super::values::is_heavy;
use super::{Lowerer, Status, op_word};
use crate::ir::*;
use crate::kernel::module::{Launching, Module};
use crate::kernel::simplify::simplify;
use crate::kernel::{Carry, ExprId, Index, Kernel, LoopId, Node, Pass, Reduction, RegisterId, Statement, Store};
use crate::program::{Access, Action, Arg, BufferId, Key, Launch, Library, Scalar, Step};
use crate::types::rng::Dist;
use crate::types::{DType, MapOp, ReduceKind, ScanKind};
use indexmap::IndexMap;
use std::collections::HashMap;

/// Elements that are worth a thread's while.
const GRAIN: usize = 1 << 14;
/// Rows may be handled together in the lanes of a vector; threads split between such groups.
const LANES: usize = 16;

impl Lowerer<'_, '_> {
    pub(super) fn emit_kernel(&mut self, ops: &[OpId], steps: &mut Vec<Step>) {
        match self.graph.op(ops[0]).op.clone() {
            Op::Scan { kind, dim, exclusive, reverse } => self.emit_scan(ops[0], kind, dim, exclusive, reverse, steps),
            Op::LinearScan { dim, reverse } => self.emit_linear_scan(ops[0], dim, reverse, steps),
            Op::WriteAt { .. } if self.writes_in_slot(ops[0]) => self.emit_write(ops[0], steps),
            _ => self.emit_fused(ops, steps),
        }
    }

    fn emit_fused(&mut self, ops: &[OpId], steps: &mut Vec<Step>) {
        let result = |low: &Self, id: OpId| low.graph.op(id).results[0];
        let stored: Vec<ValueId> = ops.iter().map(|id| result(self, *id)).filter(|v| self.leaves_node(*v)).collect();
        let (dims, rows) = self.loop_dims(ops, &stored);
        let own: Vec<ValueId> =
            ops.iter().filter(|id| !is_reducing(&self.graph, **id)).map(|id| result(self, *id)).collect();
        let label = self.label(ops);
        let mut emit = Emitter::new(self, &dims, rows, own, *ops.last().expect("a node has members"));

        // The level of a value is the number of reductions of this kernel that lie before it.
        let mut levels: HashMap<ValueId, usize> = HashMap::new();
        let mut passes: IndexMap<(usize, bool, Vec<LoopId>, Option<OpId>), Pass> = IndexMap::new();
        for id in ops {
            let v = result(emit.low, *id);
            let level =
                emit.low.inputs[v.index()].iter().filter_map(|s| levels.get(&s.value)).max().copied().unwrap_or(0);
            let inner = |emit: &Emitter, dims: &[DimId]| -> Vec<LoopId> {
                let mut loops: Vec<LoopId> = dims.iter().map(|d| emit.loops[d]).filter(|l| l.index() >= rows).collect();
                loops.sort_unstable();
                loops
            };
            let is_stored = stored.contains(&v);
            if is_reducing(&emit.low.graph, *id) {
                levels.insert(v, level + 1);
                let (loops, own_pass) = emit.reduce_loops(*id, rows);
                let pass = passes.entry((level, true, loops.clone(), own_pass)).or_default();
                let mut pass = std::mem::take(pass);
                emit.reduction(*id, &mut pass);
                pass.loops.clone_from(&loops);
                passes.insert((level, true, loops, own_pass), pass);
                if is_stored {
                    let store = emit.store(v);
                    passes.entry((level + 1, false, vec![], None)).or_default().stores.push(store);
                }
            } else {
                levels.insert(v, level);
                if is_stored {
                    let dims = emit.low.graph.value(v).dims.clone();
                    let loops = inner(&emit, &dims);
                    let store = emit.store(v);
                    let pass = passes.entry((level, !loops.is_empty(), loops.clone(), None)).or_default();
                    pass.loops = loops;
                    pass.stores.push(store);
                }
            }
        }
        let mut order: Vec<_> = passes.into_iter().collect();
        order.sort_by_key(|((level, ..), _)| *level);
        let mut body: Vec<Pass> = order.into_iter().map(|(_, pass)| pass).collect();
        store_last(&emit.kernel, &mut body);
        body.retain(|p| !(p.stores.is_empty() && p.reductions.is_empty() && p.carries.is_empty()));
        emit.finish(body.into_iter().map(Statement::Pass).collect(), label, steps);
    }

    /// The kernel's loops: rows first, each part in the order in which memory is gone through.
    fn loop_dims(&self, ops: &[OpId], stored: &[ValueId]) -> (Vec<DimId>, usize) {
        let mut all: Vec<DimId> = Vec::new();
        let mut reducing = false;
        for id in ops {
            let op = self.graph.op(*id);
            let mut dims = self.graph.value(op.results[0]).dims.clone();
            match &op.op {
                Op::Reduce { dims: gone, .. } => {
                    reducing = true;
                    dims.extend(gone);
                }
                Op::Fold { axes } => {
                    let loops = fold_loops(&self.graph, axes);
                    reducing |= !loops.is_empty();
                    dims.extend(loops);
                }
                _ => {}
            }
            for d in dims {
                if !all.contains(&d) {
                    all.push(d);
                }
            }
        }
        // The array with most elements among those touched decides the order.
        let mut touched: Vec<ValueId> = stored.to_vec();
        for id in ops {
            let v = self.graph.op(*id).results[0];
            touched.extend(self.inputs[v.index()].iter().filter(|s| s.aligned).map(|s| s.value));
        }
        let covers = |v: &ValueId| {
            let dims = &self.graph.value(*v).dims;
            let inside: Vec<DimId> = dims.iter().copied().filter(|d| all.contains(d)).collect();
            self.graph.elements(&inside)
        };
        let mut main: Option<ValueId> = None;
        for v in touched.into_iter().filter(|v| self.views[v.index()].is_some()) {
            if main.is_none_or(|m| covers(&v) > covers(&m)) {
                main = Some(v);
            }
        }
        if let Some(main) = main {
            all.sort_by_key(|d| {
                std::cmp::Reverse(match self.stride(main, *d).abs() {
                    0 => i64::MAX,
                    s => s,
                })
            });
        }
        let mut rows = self.rows(ops);
        if !reducing && rows.len() == all.len() {
            // Purely elementwise: the last dim is the inner loop.
            rows.retain(|d| Some(d) != all.last());
        }
        let n = rows.len();
        all.sort_by_key(|d| !rows.contains(d));
        (all, n)
    }

    fn label(&self, ops: &[OpId]) -> String {
        let mut words: Vec<&'static str> = Vec::new();
        for id in ops {
            let word = op_word(&self.graph.op(*id).op);
            if !words.contains(&word) {
                words.push(word);
            }
        }
        const SHOWN: usize = 4;
        if words.len() > SHOWN {
            let last = words[words.len() - 1];
            words.truncate(SHOWN - 1);
            words.push(last);
        }
        words.join("+")
    }

    /// Copies a value into a buffer, row-major in `order`; dims of `order` that it lacks repeat it.
    pub(super) fn copy(&mut self, v: ValueId, order: &[DimId], to: BufferId, op: OpId, steps: &mut Vec<Step>) {
        let rows = order.len().saturating_sub(1);
        let mut emit = Emitter::new(self, order, rows, vec![], op);
        let value = emit.value(v, HERE);
        let store = emit.store_to(to, order, value);
        let loops = (rows..order.len()).map(|l| LoopId(l as u32)).collect();
        let body = vec![Statement::Pass(Pass { loops, stores: vec![store], ..Pass::default() })];
        emit.finish(body, "copy".to_string(), steps);
    }

    /// The loops of a kernel that goes along one dim with registers: the others are rows.
    fn along(&self, v: ValueId, dim: DimId) -> Vec<DimId> {
        let mut dims: Vec<DimId> = self.graph.value(v).dims.iter().copied().filter(|d| *d != dim).collect();
        dims.push(dim);
        dims
    }

    fn emit_scan(
        &mut self,
        id: OpId,
        kind: ScanKind,
        dim: DimId,
        exclusive: bool,
        reverse: bool,
        steps: &mut Vec<Step>,
    ) {
        let Operation { args, results, .. } = self.graph.op(id).clone();
        let dtype = self.graph.value(args[0]).dtype;
        let dims = self.along(results[0], dim);
        let mut emit = Emitter::new(self, &dims, dims.len() - 1, vec![], id);
        let frame = emit.reversible(&dims, dim, reverse);
        let x = emit.value(args[0], frame);
        let mut pass = Pass { loops: vec![LoopId(dims.len() as u32 - 1)], ..Pass::default() };
        let (combine, neutral) = match kind {
            ScanKind::Sum => (MapOp::Add, 0.0),
            ScanKind::Prod => (MapOp::Mul, 1.0),
            ScanKind::Max | ScanKind::ArgMax => (MapOp::Max, least(dtype)),
        };
        let best = emit.register(dtype);
        let old = emit.push(Node::Register(best), dtype);
        let initial = emit.constant(neutral, dtype);
        let next = emit.map(combine, &[old, x], dtype);
        pass.carries.push(Carry { register: best, initial, next });
        let mut shown = if exclusive { old } else { next };
        if kind == ScanKind::ArgMax {
            let place = emit.register(DType::I32);
            let old_place = emit.push(Node::Register(place), DType::I32);
            let here = emit.coordinate(frame, dim);
            let here = emit.index(here);
            let greater = emit.better(MapOp::Gt, x, old, dtype);
            // The first element is the largest so far, whatever it is.
            let initial = emit.constant(-1.0, DType::I32);
            let zero = emit.constant(0.0, DType::I32);
            let first = emit.map(MapOp::Lt, &[old_place, zero], DType::Bool);
            let greater = emit.map(MapOp::Or, &[greater, first], DType::Bool);
            let next = emit.map(MapOp::Where, &[greater, here, old_place], DType::I32);
            pass.carries.push(Carry { register: place, initial, next });
            shown = if exclusive { old_place } else { next };
        }
        let store = emit.store_value(results[0], frame, shown);
        pass.stores.push(store);
        let label = self_label(&emit.low.graph, id);
        emit.finish(vec![Statement::Pass(pass)], label, steps);
    }

    fn emit_linear_scan(&mut self, id: OpId, dim: DimId, reverse: bool, steps: &mut Vec<Step>) {
        let Operation { args, results, .. } = self.graph.op(id).clone();
        let dtype = self.graph.value(results[0]).dtype;
        let dims = self.along(results[0], dim);
        let mut emit = Emitter::new(self, &dims, dims.len() - 1, vec![], id);
        let frame = emit.reversible(&dims, dim, reverse);
        let g = emit.value(args[0], frame);
        let x = emit.value(args[1], frame);
        let h = emit.register(dtype);
        let old = emit.push(Node::Register(h), dtype);
        let initial = emit.constant(0.0, dtype);
        let scaled = emit.map(MapOp::Mul, &[g, old], dtype);
        let next = emit.map(MapOp::Add, &[scaled, x], dtype);
        let store = emit.store_value(results[0], frame, next);
        let pass = Pass {
            loops: vec![LoopId(dims.len() as u32 - 1)],
            carries: vec![Carry { register: h, initial, next }],
            stores: vec![store],
            ..Pass::default()
        };
        let label = self_label(&emit.low.graph, id);
        emit.finish(vec![Statement::Pass(pass)], label, steps);
    }
}

/// Has values stored by the last pass over the same loops that goes through the same memory anyway: a result may then take
/// the place of an operand.
fn store_last(kernel: &Kernel, body: &mut [Pass]) {
    for i in 0..body.len() {
        let last = (i + 1..body.len()).rev().find(|j| body[*j].loops == body[i].loops && !body[i].loops.is_empty());
        let Some(last) = last.filter(|j| body[*j].carries.is_empty() && body[i].carries.is_empty()) else { continue };
        let there = kernel.needed(&body[last]);
        let (late, early) = std::mem::take(&mut body[i].stores).into_iter().partition(|s| {
            let one = Pass { loops: body[i].loops.clone(), stores: vec![s.clone()], ..Pass::default() };
            kernel.needed(&one).iter().all(|e| there.contains(e) || is_light(kernel, &kernel.expr(*e).node))
        });
        body[i].stores = early;
        body[last].stores.splice(0..0, Vec::<Store>::from_iter(late));
    }
}

/// Whether it costs little to evaluate a node once more: not what is heavy, nor what each row loads for itself.
fn is_light(kernel: &Kernel, node: &Node) -> bool {
    match node {
        Node::Map(op, _) => !is_heavy(*op),
        Node::Load { at, .. } => at.exprs.is_empty() && at.loops.iter().all(|(l, _)| l.index() >= kernel.rows),
        Node::Random { .. } | Node::Check { .. } => false,
        Node::Const(_) | Node::Index(_) | Node::Register(_) => true,
    }
}

fn self_label(graph: &Graph, id: OpId) -> String {
    op_word(&graph.op(id).op).to_string()
}

/// The neutral element of the maximum.
pub(super) fn least(dtype: DType) -> f64 {
    match dtype {
        DType::I32 => i32::MIN as f64,
        DType::Bool => 0.0,
        _ => f64::NEG_INFINITY,
    }
}

fn greatest(dtype: DType) -> f64 {
    match dtype {
        DType::I32 => i32::MAX as f64,
        DType::Bool => 1.0,
        _ => f64::INFINITY,
    }
}

impl Emitter<'_, '_, '_> {
    pub fn register(&mut self, dtype: DType) -> RegisterId {
        self.kernel.registers.push(dtype);
        RegisterId(self.kernel.registers.len() as u32 - 1)
    }

    /// The kernel's own coordinates, with one dim from its end where `reverse`.
    fn reversible(&mut self, dims: &[DimId], dim: DimId, reverse: bool) -> usize {
        if !reverse {
            return HERE;
        }
        let coordinates = dims
            .iter()
            .map(|d| {
                let mut at = self.coordinate(HERE, *d);
                if *d == dim {
                    let mut from_end = Index::constant(self.low.graph.size(dim) as i64 - 1);
                    from_end.add(&at, -1);
                    at = from_end;
                }
                (*d, at)
            })
            .collect();
        self.frame(coordinates, None)
    }

    fn store(&mut self, v: ValueId) -> Store {
        debug_assert!(self.low.status[v.index()] == Status::Member);
        let value = self.value(v, HERE);
        self.store_value(v, HERE, value)
    }

    pub fn store_value(&mut self, v: ValueId, frame: usize, value: ExprId) -> Store {
        let at = self.low.address(v, |d| self.coordinate(frame, d));
        let root = self.low.view(v).root;
        let buffer = self.low.buffer(root);
        let buffer = self.arg(buffer, Access::Write);
        Store { buffer, at, value, when: None }
    }

    pub fn store_to(&mut self, to: BufferId, order: &[DimId], value: ExprId) -> Store {
        let mut at = Index::default();
        for (d, stride) in order.iter().zip(self.low.strides(order, order)) {
            at.add(&self.coordinate(HERE, *d), stride);
        }
        let buffer = self.arg(to, Access::Write);
        Store { buffer, at, value, when: None }
    }

    /// The loops that a reduction goes over, and whether it needs a pass for itself.
    fn reduce_loops(&self, id: OpId, rows: usize) -> (Vec<LoopId>, Option<OpId>) {
        let op = self.low.graph.op(id);
        let (dims, ordered) = match &op.op {
            Op::Reduce { kind, dims } => (dims.clone(), matches!(kind, ReduceKind::ArgMax | ReduceKind::ArgMin)),
            Op::Fold { axes } => (fold_loops(&self.low.graph, axes), false),
            other => unreachable!("{other:?} reduces nothing"),
        };
        let mut loops: Vec<LoopId> = dims.iter().map(|d| self.loops[d]).collect();
        debug_assert!(loops.iter().all(|l| l.index() >= rows));
        if !ordered {
            // Dims of the result that are no rows would need a loop around; `may_share` keeps them out.
            loops.sort_unstable();
        }
        (loops, ordered.then_some(id))
    }

    fn reduction(&mut self, id: OpId, pass: &mut Pass) {
        let Operation { op, args, results, .. } = self.low.graph.op(id).clone();
        let v = results[0];
        let from = self.low.graph.value(args[0]).dtype;
        let dtype = self.low.graph.value(v).dtype;
        match op {
            Op::Reduce { kind: kind @ (ReduceKind::ArgMax | ReduceKind::ArgMin), dims } => {
                let x = self.value(args[0], HERE);
                let (compare, initial) = match kind {
                    ReduceKind::ArgMax => (MapOp::Gt, least(from)),
                    _ => (MapOp::Lt, greatest(from)),
                };
                let best = self.register(from);
                let place = self.register(DType::I32);
                let old = self.push(Node::Register(best), from);
                let old_place = self.push(Node::Register(place), DType::I32);
                let mut here = Index::default();
                for (d, stride) in dims.iter().zip(self.low.strides(&dims, &dims)) {
                    here.add(&self.coordinate(HERE, *d), stride);
                }
                let here = self.index(here);
                let better = self.better(compare, x, old, from);
                let next = self.map(MapOp::Where, &[better, x, old], from);
                let next_place = self.map(MapOp::Where, &[better, here, old_place], DType::I32);
                let initial = self.constant(initial, from);
                let zero = self.constant(0.0, DType::I32);
                pass.carries.push(Carry { register: best, initial, next });
                pass.carries.push(Carry { register: place, initial: zero, next: next_place });
                self.registers.insert(v, place);
            }
            Op::Reduce { kind, .. } => {
                let value = self.value(args[0], HERE);
                let register = self.register(dtype);
                pass.reductions.push(Reduction { register, kind, value });
                self.registers.insert(v, register);
            }
            Op::Fold { axes } => {
                let value = self.fold(&axes, args[0], HERE);
                let register = self.register(dtype);
                pass.reductions.push(Reduction { register, kind: ReduceKind::Sum, value });
                self.registers.insert(v, register);
            }
            other => unreachable!("{other:?} reduces nothing"),
        }
    }

    /// Whether x takes the place of the best so far: NaN counts as better than every number.
    fn better(&mut self, compare: MapOp, x: ExprId, best: ExprId, dtype: DType) -> ExprId {
        let better = self.map(compare, &[x, best], DType::Bool);
        if !dtype.is_float() {
            return better;
        }
        let nan = self.map(MapOp::Ne, &[x, x], DType::Bool);
        let number = self.map(MapOp::Eq, &[best, best], DType::Bool);
        let first_nan = self.map(MapOp::And, &[nan, number], DType::Bool);
        self.map(MapOp::Or, &[better, first_nan], DType::Bool)
    }

    /// Simplifies the kernel, shares it with its like and adds its launch.
    pub fn finish(self, body: Vec<Statement>, name: String, steps: &mut Vec<Step>) {
        let Emitter { low, mut kernel, args, scalars, at, .. } = self;
        kernel.body = body;
        kernel.name.clone_from(&name);
        let elements: Vec<usize> = args.iter().map(|b| low.routine.buffer(*b).elements).collect();
        let action = match low.module.launching(kernel, &elements, |module, k| launching(module, k, &elements)) {
            Launching::Fill(dist) => {
                let [Scalar::Key(key)] = &scalars[..] else { unreachable!("a fill has one key") };
                Action::Library(Library::Random { out: args[0], dist, key: key.clone() })
            }
            Launching::Kernel { function, accesses, rows, grain, work } => {
                let args = args.iter().zip(accesses).map(|(buffer, access)| Arg { buffer: *buffer, access }).collect();
                Action::Launch(Launch { function, args, scalars, rows, grain, work })
            }
        };
        let step = low.step(action, at, name);
        steps.push(step);
    }
}

/// Takes a kernel into a program.
fn launching(module: &mut Module, kernel: Kernel, elements: &[usize]) -> Launching {
    let kernel = simplify(kernel);
    if let (1, [elements]) = (kernel.scalars, elements)
        && let Some(dist) = fills(&kernel, *elements)
    {
        return Launching::Fill(dist);
    }
    Launching::Kernel {
        accesses: kernel.buffers.iter().map(|b| b.access).collect(),
        rows: kernel.row_count(),
        grain: grain(&kernel),
        work: kernel.work(elements),
        function: module.kernel(kernel),
    }
}

/// The distribution of floats of a kernel that does nothing but fill its buffer with draws, each at its own index.
fn fills(kernel: &Kernel, elements: usize) -> Option<Dist> {
    let [Statement::Pass(pass)] = &kernel.body[..] else { return None };
    let [Store { at, value, when: None, .. }] = &pass.stores[..] else { return None };
    let Node::Random { dist, counter, .. } = &kernel.expr(*value).node else { return None };
    let dense = at.base == 0 && at.exprs.is_empty() && {
        let mut loops = at.loops.clone();
        loops.sort_by_key(|(_, step)| *step);
        let mut size = 1;
        let fits = loops.iter().all(|(l, step)| {
            let fits = *step == size;
            size *= kernel.extents[l.index()] as i64;
            fits
        });
        fits && size == elements as i64
    };
    let floats = kernel.buffers[0].dtype == DType::F32
        && matches!(dist, Dist::Normal { .. } | Dist::TruncNormal { .. } | Dist::Uniform { .. });
    (dense && floats && at == counter).then_some(*dist)
}

/// Rows for a thread: enough work, whole vectors.
pub(super) fn grain(kernel: &Kernel) -> usize {
    let mut per_row = 0;
    let mut work: Vec<&Statement> = kernel.body.iter().collect();
    while let Some(statement) = work.pop() {
        match statement {
            Statement::Pass(pass) => {
                per_row += pass.loops.iter().map(|l| kernel.extents[l.index()]).product::<usize>();
            }
            Statement::For { body, .. } => work.extend(body),
        }
    }
    let rows = GRAIN.div_ceil(per_row.max(1));
    if rows > 1 || kernel.rows > 0 && per_row <= LANES { rows.next_multiple_of(LANES) } else { 1 }
}

impl Lowerer<'_, '_> {
    /// A kernel's keys name cells; so do a library call's.
    pub(super) fn turn_key(&mut self, stream: u64, turns: &[ValueId]) -> Key {
        let turns = turns
            .iter()
            .map(|t| {
                let root = self.view(*t).root;
                self.buffer(root)
            })
            .collect();
        Key { stream, turns }
    }
}
