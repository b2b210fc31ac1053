//! Lowering: a graph becomes the steps of one routine.
//!
//! In order: `bands` has wide values made some rows at a time; `prepare` cleans the graph; `recompute` has the backward pass compute again what need not be kept for it; `scatters` and `sums` have sums added in place;
//! `assemble` has parts of stacks and concatenations written where they belong;
//! `values` decides for each block which values have a place in memory and which
//! are recomputed where they are used; `group` puts operations together into kernels; here the resulting nodes are put
//! in order and handed to `emit` (kernels), `dot` (matrix products), `library`, `attention` and `repeat` (loops), `ranks` (exchanges between ranks); `finish` writes new
//! parameters and states into their slots, in place where that is safe, and drops buffers that nothing uses; `strips` puts
//! products together with the kernel that reads their result; `reuse` has results take the place of operands; `waits` moves waits
//! for exchanges down.
//!
//! Arena offsets are not assigned here: every [`Place::Arena`] is `usize::MAX` until `memory` has planned the routine.

mod assemble;
mod attention;
mod bands;
mod dot;
mod emit;
mod finish;
mod group;
mod kernels;
mod library;
mod order;
mod pieces;
mod prepare;
pub(super) mod purpose;
pub(super) mod ranks;
mod recompute;
mod repeat;
mod reuse;
mod scatters;
mod strips;
mod sums;
mod values;
mod waits;
mod write;

use super::module::{Module, Slots};
use super::{Index, Options};
use crate::ir::*;
use crate::program::{self, Action, Buffer, BufferId, Category, Place, Routine, Step};
use crate::source::Span;
use crate::types::{DType, When};
use group::Node;
use indexmap::IndexMap;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet};

/// Where the elements of a value lie: element (i0, i1, ..) of its dims is at `offset + sum of i * stride` elements after
/// the start of the buffer of `root`.
#[derive(Clone, PartialEq, Debug)]
struct View {
    root: ValueId,
    /// The value whose computation puts them there: the root, or a part of it.
    made: ValueId,
    offset: i64,
    /// In the order of the value's dims.
    strides: Vec<i64>,
}

/// How a value comes to its users.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Status {
    /// Not met yet.
    Unknown,
    /// In memory, by a [`View`].
    Memory,
    /// Recomputed by each kernel that uses it.
    Inline,
    /// Computed by its operation's kernel; in memory (by a [`View`]) only if something outside of that kernel reads it.
    Member,
}

/// A value in memory or a member that an inline value is computed from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Source {
    value: ValueId,
    /// Element by element at the same place.
    aligned: bool,
}

struct Lowerer<'m, 's> {
    module: &'m mut Module<'s>,
    options: Options,
    graph: Graph,
    routine: Routine,
    slots: Slots,
    /// Declared orders of parameters, by their dims in order of number.
    param_orders: HashMap<Vec<DimId>, Vec<DimId>>,
    /// Orders of values that become new parameters and states.
    slot_orders: HashMap<ValueId, Vec<DimId>>,
    /// Orders that were chosen for results of products.
    dot_orders: HashMap<order::Choice, Vec<DimId>>,
    /// Who uses a value (operations of its block, each once).
    users: Vec<Vec<OpId>>,
    /// Whether something needs the value at an address.
    need: Vec<bool>,
    status: Vec<Status>,
    views: Vec<Option<View>>,
    /// Storage order, or for inline values the order in which they come most easily; major first.
    orders: Vec<Vec<DimId>>,
    /// Of roots of views, once they are asked for.
    buffers: Vec<Option<BufferId>>,
    /// Of inline values.
    inputs: Vec<Vec<Source>>,
    cost: Vec<u32>,
    /// The node that computes an operation; `u32::MAX` for those that need none.
    node_of: Vec<u32>,
    /// Of an operation within its block.
    position: Vec<u32>,
    nodes: Vec<Node>,
    /// The block being lowered.
    current: BlockId,
    /// Members that another kernel reads, or their own out of place.
    leaving: HashSet<ValueId>,
    /// Products that add to what their result holds.
    adds: HashSet<OpId>,
    /// Values that are written where they belong in a stack or concatenation.
    parts: HashMap<ValueId, assemble::Part>,
    /// The parts of each such stack or concatenation.
    wholes: HashMap<ValueId, Vec<ValueId>>,
    cells: IndexMap<Place, BufferId>,
    /// By value.
    purposes: Vec<Category>,
    /// Places of operations that were asked for.
    sources: HashMap<(Option<Span>, ScopeId), program::SourceId>,
}

/// Has the backward pass compute again what kernels would not keep for it, where the two passes will be lowered apart.
pub(super) fn keep_little(graph: Graph, options: &Options) -> Graph {
    let mut graph = prepare::prepare(graph);
    if options.fuse {
        recompute::recompute(&mut graph, options.recompute_from);
    }
    graph
}

/// `graph`: pruned.
pub(super) fn lower(module: &mut Module<'_>, name: &str, mut graph: Graph, options: &Options) -> Routine {
    if options.fuse {
        bands::cut_bands(&mut graph, &options.bands);
    }
    let mut graph = prepare::prepare(graph);
    if options.fuse {
        recompute::recompute(&mut graph, options.recompute_from);
        scatters::add_in_place(&mut graph);
        assemble::assemble(&mut graph, options.assemble_from);
    }
    let sums = if options.fuse { sums::take(&mut graph) } else { Vec::new() };
    let slots = module.slots(&graph);
    let n = graph.values.len();
    let mut param_orders: HashMap<Vec<DimId>, Vec<DimId>> = HashMap::new();
    for param in &graph.params {
        let mut key = param.dims.clone();
        key.sort_unstable();
        param_orders.entry(key).or_insert_with(|| param.dims.clone());
    }
    let mut low = Lowerer {
        module,
        options: *options,
        routine: Routine { name: name.to_string(), ..Routine::default() },
        slots,
        param_orders,
        slot_orders: order::slot_orders(&graph),
        dot_orders: HashMap::new(),
        users: vec![Vec::new(); n],
        need: vec![false; n],
        status: vec![Status::Unknown; n],
        views: vec![None; n],
        orders: graph.values.iter().map(|v| v.dims.clone()).collect(),
        buffers: vec![None; n],
        inputs: vec![Vec::new(); n],
        cost: vec![0; n],
        node_of: vec![u32::MAX; graph.ops.len()],
        position: vec![0; graph.ops.len()],
        nodes: Vec::new(),
        current: ENTRY,
        leaving: HashSet::new(),
        adds: HashSet::new(),
        parts: HashMap::new(),
        wholes: HashMap::new(),
        cells: IndexMap::new(),
        purposes: purpose::purposes(&graph),
        sources: HashMap::new(),
        graph,
    };
    low.routine.inputs = low.slots.inputs.clone();
    for i in 0..low.graph.outputs.len() {
        let v = low.graph.outputs[i].value;
        low.need[v.index()] = true;
    }
    low.add_to_arguments(&sums);
    let mut steps = low.block(ENTRY);
    low.outputs(&mut steps);
    low.finish_products(&mut steps);
    low.reuse_operands(&mut steps);
    low.routine.steps = low.join_waits(steps);
    low.drop_unused();
    low.routine
}

impl Lowerer<'_, '_> {
    /// The steps that compute a block.
    fn block(&mut self, block: BlockId) -> Vec<Step> {
        let nodes = std::mem::take(&mut self.nodes);
        let current = std::mem::replace(&mut self.current, block);
        for (i, op) in self.graph.block(block).ops.iter().enumerate() {
            self.position[op.index()] = i as u32;
        }
        self.find_users(block);
        self.find_needs(block);
        self.find_parts(block);
        self.place_values(block);
        self.group(block);
        let order = self.order(block);
        let mut steps = Vec::new();
        for node in order {
            let ops = self.nodes[node].ops.clone();
            self.emit_node(&ops, &mut steps);
        }
        self.nodes = nodes;
        self.current = current;
        steps
    }

    fn emit_node(&mut self, ops: &[OpId], steps: &mut Vec<Step>) {
        let first = ops[0];
        match self.graph.op(first).op {
            Op::Dot { .. } => self.emit_dot(first, steps),
            Op::Loop { .. } => self.emit_loop(first, steps),
            Op::Attention(_) | Op::AttentionGrad(_) => self.emit_attention(first, steps),
            Op::Collective(_) => self.emit_collective(first, steps),
            Op::ArgSort { .. } | Op::TopK { .. } | Op::PackPlace { .. } | Op::Draw { .. } | Op::Scatter { .. } => {
                self.emit_library(first, steps);
            }
            _ => self.emit_kernel(ops, steps),
        }
    }

    /// Nodes in an order that respects what they read from each other; otherwise as the program has them.
    fn order(&self, block: BlockId) -> Vec<usize> {
        let n = self.nodes.len();
        let mut waiting = vec![0usize; n];
        let mut next: Vec<Vec<usize>> = vec![Vec::new(); n];
        for (i, node) in self.nodes.iter().enumerate() {
            for p in &node.before {
                next[*p as usize].push(i);
                waiting[i] += 1;
            }
        }
        // Updates run as soon as they can: then gradients, and what they are sums of, need not be kept. The program of a rank has them
        // where they belong: not before what is exchanged meanwhile.
        let placed = self.graph.mesh.ranks() > 1;
        let last = |i: usize| {
            let not_update = |op: &&OpId| placed || self.graph.op(**op).phase != Phase::Update;
            self.nodes[i].ops.iter().rev().find(not_update).map_or(0, |op| self.position[op.index()] + 1)
        };
        let mut ready: BinaryHeap<Reverse<(u32, usize)>> = (0..n)
            .filter(|i| waiting[*i] == 0 && !self.nodes[*i].ops.is_empty())
            .map(|i| Reverse((last(i), i)))
            .collect();
        let mut order = Vec::with_capacity(n);
        while let Some(Reverse((_, i))) = ready.pop() {
            order.push(i);
            for &j in &next[i] {
                waiting[j] -= 1;
                if waiting[j] == 0 {
                    ready.push(Reverse((last(j), j)));
                }
            }
        }
        debug_assert_eq!(
            order.len(),
            self.nodes.iter().filter(|n| !n.ops.is_empty()).count(),
            "kernels of {block} wait for each other"
        );
        self.late_slices(order, &next)
    }

    /// Parts that are cut out of what lasts for the whole step are cut out where they are needed, not before.
    fn late_slices(&self, order: Vec<usize>, next: &[Vec<usize>]) -> Vec<usize> {
        let is_late = |i: usize| match &self.nodes[i].ops[..] {
            [id] => {
                let op = self.graph.op(*id);
                let slices = matches!(&op.op, Op::Collective(c) if c.kind == CollectiveKind::Slice);
                slices && matches!(self.buffer_place(op.args[0]), Some(Op::Param(_) | Op::State(_) | Op::Input(_)))
            }
            _ => false,
        };
        let mut waiting: Vec<Vec<usize>> = vec![Vec::new(); self.nodes.len()];
        let mut at = vec![usize::MAX; self.nodes.len()];
        order.iter().enumerate().for_each(|(k, i)| at[*i] = k);
        let mut out = Vec::with_capacity(order.len());
        for i in order.iter().copied() {
            let first = next[i].iter().copied().min_by_key(|j| at[*j]);
            match first.filter(|first| is_late(i) && !is_late(*first)) {
                Some(first) => waiting[first].push(i),
                None => {
                    out.append(&mut waiting[i]);
                    out.push(i);
                }
            }
        }
        out
    }

    /// The operation that makes what a value lies in.
    fn buffer_place(&self, v: ValueId) -> Option<&Op> {
        self.views[v.index()].as_ref().and_then(|view| self.graph.def_op(view.root)).map(|o| &o.op)
    }

    // ---- buffers

    fn add_buffer(&mut self, buffer: Buffer) -> BufferId {
        self.routine.buffers.push(buffer);
        BufferId(self.routine.buffers.len() as u32 - 1)
    }

    /// A temporary of this routine.
    fn temporary(&mut self, name: &str, dtype: DType, elements: usize, op: OpId) -> BufferId {
        let source = self.source(op);
        let category = Category::Workspace;
        let place = Place::Arena(usize::MAX);
        self.add_buffer(Buffer { place, dtype, elements, name: name.to_string(), category, microbatch: None, source })
    }

    /// A buffer for a persistent place, one for each.
    fn fixed(&mut self, place: Place, dtype: DType, elements: usize, name: &str, category: Category) -> BufferId {
        if let Some(b) = self.cells.get(&place) {
            return *b;
        }
        let source = match place {
            Place::Param(i) => self.module.program.params[i as usize].source,
            Place::State(i) => self.module.program.states[i as usize].source,
            Place::Input(i) => self.module.program.inputs[i as usize].source,
            _ => program::SourceId(0),
        };
        let id = self.add_buffer(Buffer {
            place,
            dtype,
            elements,
            name: name.to_string(),
            category,
            microbatch: None,
            source,
        });
        self.cells.insert(place, id);
        id
    }

    /// The buffer of a root, made when it is first asked for.
    fn buffer(&mut self, root: ValueId) -> BufferId {
        if let Some(b) = self.buffers[root.index()] {
            return b;
        }
        let Value { dtype, dims, name, def, .. } = self.graph.value(root).clone();
        let elements = self.graph.elements(&dims);
        let (source, label) = match def {
            Def::Op(op, _) => (self.source(op), op_word(&self.graph.op(op).op)),
            Def::BlockParam(_) => (program::SourceId(0), "carry"),
        };
        let category = self.purposes.get(root.index()).copied().unwrap_or(Category::Workspace);
        let name = name.unwrap_or_else(|| label.to_string());
        let place = Place::Arena(usize::MAX);
        let id = self.add_buffer(Buffer { place, dtype, elements, name, category, microbatch: None, source });
        self.buffers[root.index()] = Some(id);
        id
    }

    fn source(&mut self, op: OpId) -> program::SourceId {
        let Operation { span, scope, .. } = *self.graph.op(op);
        *self.sources.entry((span, scope)).or_insert_with(|| self.module.source_of(&self.graph, op))
    }

    fn step(&mut self, action: Action, op: OpId, label: String) -> Step {
        Step { action, source: self.source(op), label, when: When::Always }
    }

    // ---- views

    fn view(&self, v: ValueId) -> &View {
        self.views[v.index()].as_ref().expect("the value is in memory")
    }

    fn stride(&self, v: ValueId, dim: DimId) -> i64 {
        let at = self.graph.value(v).dims.iter().position(|d| *d == dim);
        at.map_or(0, |i| self.view(v).strides[i])
    }

    /// Strides of the given dims stored row-major in `order`.
    fn strides(&self, dims: &[DimId], order: &[DimId]) -> Vec<i64> {
        let mut stride = 1;
        let mut by_dim: Vec<(DimId, i64)> = Vec::with_capacity(order.len());
        for d in order.iter().rev() {
            by_dim.push((*d, stride));
            stride *= self.graph.size(*d) as i64;
        }
        dims.iter().map(|d| by_dim.iter().find(|(o, _)| o == d).map_or(0, |(_, s)| *s)).collect()
    }

    /// Whether two lists of strides address the same elements (strides of dims of size 1 do not matter).
    fn same_strides(&self, dims: &[DimId], a: &[i64], b: &[i64]) -> bool {
        dims.iter().zip(a.iter().zip(b)).all(|(d, (x, y))| x == y || self.graph.size(*d) == 1)
    }

    /// The value's whole buffer, if the value lies in it row-major in `order`.
    fn canonical(&mut self, v: ValueId, order: &[DimId]) -> Option<BufferId> {
        let dims = self.graph.value(v).dims.clone();
        let view = self.view(v).clone();
        let elements = self.graph.elements(&dims);
        let fits = view.offset == 0
            && order.iter().all(|d| dims.contains(d))
            && self.same_strides(&dims, &view.strides, &self.strides(&dims, order));
        if !fits {
            return None;
        }
        let buffer = self.buffer(view.root);
        (self.routine.buffer(buffer).elements == elements).then_some(buffer)
    }

    /// The value row-major in `order` (which may have dims that it lacks), copied where it does not lie so already.
    fn canonical_or_copy(&mut self, v: ValueId, order: &[DimId], op: OpId, steps: &mut Vec<Step>) -> BufferId {
        if let Some(b) = self.canonical(v, order) {
            return b;
        }
        let Value { dtype, name, .. } = self.graph.value(v).clone();
        let elements = self.graph.elements(order);
        let to = self.temporary(&name.unwrap_or_else(|| "copy".into()), dtype, elements, op);
        self.copy(v, order, to, op, steps);
        to
    }

    /// Index of the place that a view gives to coordinates.
    fn address(&self, v: ValueId, coordinate: impl Fn(DimId) -> Index) -> Index {
        let view = self.view(v);
        let mut at = Index::constant(view.offset);
        for (d, stride) in self.graph.value(v).dims.iter().zip(&view.strides) {
            if *stride != 0 {
                at.add(&coordinate(*d), *stride);
            }
        }
        at
    }
}

/// A word for an operation in labels.
pub(super) fn op_word(op: &Op) -> &'static str {
    match op {
        Op::Param(_) => "param",
        Op::State(_) => "state",
        Op::Input(_) => "input",
        Op::Constant(_) => "constant",
        Op::Iota(_) => "iota",
        Op::Step => "step",
        Op::Position => "position",
        Op::Random { .. } => "random",
        Op::Map(op) => op.name(),
        Op::Broadcast { .. } => "broadcast",
        Op::Reduce { kind, .. } => kind.name(),
        Op::Dot { .. } => "dot",
        Op::Reshape { .. } => "reshape",
        Op::Window { .. } => "window",
        Op::Fold { .. } => "fold",
        Op::Gather { .. } => "gather",
        Op::Scatter { .. } => "scatter",
        Op::Concat { .. } => "concat",
        Op::Stack { .. } => "stack",
        Op::Scan { kind, .. } => kind.name(),
        Op::LinearScan { .. } => "linear_scan",
        Op::ArgSort { .. } => "argsort",
        Op::TopK { .. } => "top_k",
        Op::PackPlace { .. } => "pack_place",
        Op::Draw { .. } => "draw",
        Op::Attention(_) => "attention",
        Op::AttentionGrad(_) => "attention_grad",
        Op::StopGradient => "stop_gradient",
        Op::Loop { .. } => "loop",
        Op::WriteAt { .. } => "write_at",
        Op::Coordinate(_) => "coordinate",
        Op::Collective(c) => c.kind.name(),
    }
}
