//! The program of a rank: every operation on the parts that its loops are cut into, and moves where a value is needed in another
//! layout than it has.
//!
//! A value may exist in several forms. Each use takes the form from which the way is shortest; what it makes on that way is there for
//! later uses.

use super::facts::{State, is_edge};
use super::local::Local;
use super::nest::{Along, Nest, nest};
use super::reduce::{Linear, is_zero, linear};
use super::units::to_slot;
use super::{Reason, Sharded, Story, Why};
use crate::ir::*;
use crate::mesh::reshard::{self, Kind, Step};
use crate::mesh::{Atom, Cut, Layout, Order, Partial};
use crate::types::{DType, MapOp, ReduceKind};
use std::collections::HashMap;
use std::rc::Rc;

/// One array that holds a value.
#[derive(Clone, Debug)]
struct Form {
    layout: Layout,
    value: ValueId,
    phase: Phase,
    /// Nesting of the loop that it was made in.
    depth: usize,
}

struct Emitter<'s, 'a> {
    s: &'s State<'a>,
    b: Builder,
    local: Local,
    forms: HashMap<ValueId, Vec<Form>>,
    reasons: HashMap<OpId, Reason>,
    depth: usize,
    /// Nests of operations that do not speak for their class.
    nests: HashMap<u32, Rc<Nest>>,
}

pub fn emit(s: &State<'_>) -> Sharded {
    let g = s.g;
    let tables = Graph {
        dims: g.dims.clone(),
        scopes: g.scopes.clone(),
        mesh: s.mesh.clone(),
        blocks: vec![Block::default()],
        ..Graph::default()
    };
    let mut e = Emitter {
        s,
        b: Builder::new(tables),
        local: Local::default(),
        forms: HashMap::new(),
        reasons: HashMap::new(),
        depth: 0,
        nests: HashMap::new(),
    };
    e.tables();
    e.block(ENTRY);
    e.outputs();
    let Emitter { b, reasons, .. } = e;
    let graph = b.finish();
    let reasons = (0..graph.ops.len()).map(|i| reasons.get(&OpId(i as u32)).cloned()).collect();
    Sharded { graph, reasons, warnings: Vec::new(), story: Story::default() }
}

impl Emitter<'_, '_> {
    fn tables(&mut self) {
        let g = self.s.g;
        for p in &g.params {
            let cuts = &self.s.storage.params[&p.path].between;
            let dims: Vec<DimId> = p.dims.iter().zip(cuts).map(|(d, c)| self.local.dim(&mut self.b, *d, c)).collect();
            let of = |d: &DimId| dims[p.dims.iter().position(|x| x == d).expect("a dim of the parameter")];
            let map = p.map.as_ref().map(|(a, b)| (a.iter().map(of).collect(), b.iter().map(of).collect()));
            self.b.add_param(Param { dims, map, ..p.clone() });
        }
        for s in &g.states {
            let cuts = &self.s.storage.states[&s.path];
            let dims = s.dims.iter().zip(cuts).map(|(d, c)| self.local.dim(&mut self.b, *d, c)).collect();
            self.b.add_state(crate::ir::State { dims, ..s.clone() });
        }
        for (i, input) in g.inputs.iter().enumerate() {
            let read = g.ops.iter().find(|o| o.op == Op::Input(InputId(i as u32)));
            let cuts = match read {
                Some(op) => self.s.held(op.results[0]).cuts.clone(),
                None => vec![Cut::new(); input.dims.len()],
            };
            let dims = input.dims.iter().zip(&cuts).map(|(d, c)| self.local.dim(&mut self.b, *d, c)).collect();
            self.b.add_input(Input { dims, ..input.clone() });
        }
    }

    fn block(&mut self, block: BlockId) {
        let g = self.s.g;
        for id in &g.block(block).ops {
            let op = g.op(*id);
            (self.b.span, self.b.scope, self.b.phase) = (op.span, op.scope, op.phase);
            match op.op {
                Op::Loop { body, dim, reverse, carries } => {
                    self.looped(*id, op, body, dim, reverse, carries as usize);
                }
                _ => self.operation(*id, op),
            }
        }
    }

    fn add_form(&mut self, v: ValueId, layout: Layout, value: ValueId) {
        if let Some(name) = &self.s.g.value(v).name {
            self.b.name(value, name);
        }
        let form = Form { layout, value, phase: self.b.phase, depth: self.depth };
        self.forms.entry(v).or_default().push(form);
    }

    fn shape(&self, v: ValueId) -> Vec<usize> {
        self.s.g.value(v).dims.iter().map(|d| self.s.g.size(*d)).collect()
    }

    /// The dims of a form.
    fn dims(&mut self, v: ValueId, layout: &Layout) -> Vec<DimId> {
        let dims = self.s.g.value(v).dims.clone();
        dims.iter().zip(&layout.dims).map(|(d, c)| self.local.dim(&mut self.b, *d, c)).collect()
    }

    // ---- moves

    /// The value in a layout; made from the form from which that takes least.
    fn form(&mut self, v: ValueId, want: &Layout, operation: OpId, why: Why) -> ValueId {
        if let Some(f) = self.usable(v).find(|f| f.layout == *want) {
            return f.value;
        }
        let shape = self.shape(v);
        let bytes = self.s.g.value(v).dtype.bytes();
        let usable: Vec<Form> = self.usable(v).cloned().collect();
        let mesh = self.s.mesh;
        let mut best: Option<(reshard::Cost, &Form)> = None;
        for f in &usable {
            if let Some(c) = reshard::cost(mesh, &shape, bytes, &f.layout, want)
                && best.as_ref().is_none_or(|(b, _)| c.order(b).is_lt())
            {
                best = Some((c, f));
            }
        }
        let (_, from) = best.unwrap_or_else(|| panic!("no way to {want:?} from {usable:?}"));
        let steps = reshard::path(mesh, &shape, bytes, &from.layout, want).expect("a cost has a path");
        let mut at = from.value;
        for step in steps {
            at = self.step(v, at, &step, Reason { operation, why, value: v, bytes: step.bytes });
            self.add_form(v, step.to.clone(), at);
        }
        at
    }

    /// Forms that a use may take: parameters that are gathered again in the backward pass were not kept.
    fn usable(&self, v: ValueId) -> impl Iterator<Item = &Form> {
        let all = self.forms.get(&v).expect("a value is made before its use");
        let again = match self.s.g.def_op(v).map(|o| &o.op) {
            Some(Op::Param(p)) => {
                let stored = &self.s.storage.params[&self.s.g.params[p.index()].path];
                stored.regather && stored.between != stored.compute
            }
            _ => false,
        };
        let any = !again || self.b.phase == Phase::Forward;
        let first = &all[0].layout;
        all.iter().filter(move |f| any || f.layout == *first || f.phase != Phase::Forward)
    }

    fn step(&mut self, v: ValueId, x: ValueId, step: &Step, reason: Reason) -> ValueId {
        let kind = match step.kind {
            Kind::MakePartial => return self.make_partial(v, x, step),
            Kind::ShardToPartial => return self.spread(v, x, step),
            Kind::Slice => CollectiveKind::Slice,
            Kind::ReduceScatter => CollectiveKind::ReduceScatter,
            Kind::AllToAll => CollectiveKind::AllToAll,
            Kind::Permute => CollectiveKind::Permute,
            Kind::AllGather => CollectiveKind::AllGather,
            Kind::AllReduce => CollectiveKind::AllReduce,
        };
        let (from, to) = (self.dims(v, &step.from), self.dims(v, &step.to));
        let parts: Vec<Atom> = (step.from.partial.iter().map(|p| p.atom))
            .filter(|a| !step.to.partial.iter().any(|p| p.atom == *a))
            .collect();
        let reduce = step.reduce.filter(|_| !parts.is_empty()).map(|op| (op, parts));
        let dims = from.iter().zip(&to).filter(|(a, b)| a != b).map(|(a, b)| (*a, *b)).collect();
        let c = Collective { kind, atoms: step.atoms.clone(), reduce, dims };
        let dtype = self.b.dtype(x);
        if kind != CollectiveKind::Slice {
            self.reasons.insert(OpId(self.b.graph.ops.len() as u32), reason);
        }
        self.b.emit(Op::Collective(c), &[x], &[(dtype, to)])[0]
    }

    /// Kept where the coordinates are 0, and elsewhere what changes nothing.
    fn make_partial(&mut self, v: ValueId, x: ValueId, step: &Step) -> ValueId {
        let new: Vec<Partial> = step.to.partial.iter().filter(|p| !step.from.partial.contains(p)).copied().collect();
        let mut at = x;
        for p in new {
            let neutral = p.op.neutral(self.s.g.value(v).dtype);
            at = self.only_first(at, p.atom, neutral);
        }
        at
    }

    fn only_first(&mut self, x: ValueId, atom: Atom, neutral: f64) -> ValueId {
        let c = self.local.coordinate(&mut self.b, atom);
        let zero = self.b.scalar(0.0, DType::I32);
        let first = self.b.map(MapOp::Eq, &[c, zero]);
        let fill = self.b.scalar(neutral, self.b.dtype(x));
        let types = [(self.b.dtype(x), self.b.dims(x).to_vec())];
        self.b.emit(Op::Map(MapOp::Where), &[first, x, fill], &types)[0]
    }

    /// A rank's part at its place, and elsewhere what changes nothing.
    fn spread(&mut self, v: ValueId, x: ValueId, step: &Step) -> ValueId {
        let dtype = self.s.g.value(v).dtype;
        let op = step.to.partial.first().map_or(ReduceKind::Sum, |p| p.op);
        let (from, to) = (self.dims(v, &step.from), self.dims(v, &step.to));
        let mut at = x;
        for (a, b) in from.iter().zip(&to).filter(|(a, b)| a != b) {
            // Read by index: what another rank has is what changes nothing.
            let index = self.local.index(&mut self.b, *b);
            let index = self.local.inwards(&mut self.b, index, *a, true);
            let zero = self.b.scalar(0.0, DType::I32);
            let mine = self.b.map(MapOp::Ge, &[index, zero]);
            let dims: Vec<DimId> = self.b.dims(at).iter().map(|d| if d == a { *b } else { *d }).collect();
            let gather = Op::Gather { dims: vec![*a], mode: GatherMode::Zero };
            let read = self.b.emit(gather, &[at, index], &[(dtype, dims.clone())])[0];
            let fill = self.b.scalar(op.neutral(dtype), dtype);
            at = self.b.emit(Op::Map(MapOp::Where), &[mine, read, fill], &[(dtype, dims)])[0];
        }
        at
    }

    // ---- operations

    fn nest(&mut self, id: OpId) -> Rc<Nest> {
        let class = self.s.classes.of_op[id.index()];
        self.nests.entry(class).or_insert_with(|| Rc::new(nest(self.s.g, self.s.g.op(id)))).clone()
    }

    /// Atoms over which an operand stays partial for this use.
    fn rides(&self, v: ValueId) -> Vec<Partial> {
        let parts = &self.s.partial[self.s.classes.class(v)];
        parts.iter().filter(|p| p.rides).map(|p| Partial { atom: p.atom, op: p.kind }).collect()
    }

    fn operation(&mut self, id: OpId, op: &Operation) {
        let s = self.s;
        let nest = self.nest(id);
        let class = s.classes.of_op[id.index()] as usize;
        let mut cuts = s.loops[class].clone().unwrap_or_else(|| vec![Cut::new(); nest.loops.len()]);
        if let Op::Param(_) | Op::State(_) | Op::Input(_) = op.op {
            return self.leaf(op);
        }
        let whole = matches!(op.op, Op::Constant(Constant::Elements(_)));
        // What rides is not cut here.
        let mut riding: Vec<Partial> = Vec::new();
        for a in &op.args {
            for p in self.rides(*a) {
                if !riding.iter().any(|r| r.atom == p.atom) {
                    riding.push(p);
                }
            }
        }
        for cut in &mut cuts {
            cut.retain(|e| !whole && !riding.iter().any(|r| r.atom == e.atom));
        }
        if let Some(done) = self.cast_of_stored(op) {
            return done;
        }
        let mut args = Vec::with_capacity(op.args.len());
        for (i, a) in op.args.iter().enumerate() {
            let mut want = self.slot_layout(&nest, &cuts, i, s.g.value(*a).dims.len());
            let own = self.rides(*a);
            for r in &riding {
                let rides = own.iter().any(|p| p.atom == r.atom);
                // A summand that is whole counts once.
                if rides || (linear(s.g, op, i) == Linear::Sum && !self.is_condition(op, i)) {
                    want.partial.push(*r);
                }
            }
            want.partial.sort_unstable();
            args.push(self.form(*a, &want, id, Why::Operand));
        }
        let mut made: Vec<Layout> = Vec::new();
        for (k, r) in op.results.iter().enumerate() {
            let slot = nest.operands + k;
            let mut layout = self.slot_layout(&nest, &cuts, slot, s.g.value(*r).dims.len());
            for (l, cut) in nest.loops.iter().zip(&cuts) {
                if let (Along::Contract(kind), None) = (l.along, l.slots[slot]) {
                    layout.partial.extend(cut.iter().map(|e| Partial { atom: e.atom, op: kind }));
                }
            }
            layout.partial.extend(&riding);
            layout.partial.sort_unstable();
            made.push(layout);
        }
        let values = self.emit_local(op, &nest, &cuts, &args, &made);
        for ((r, layout), value) in op.results.iter().zip(made).zip(values) {
            self.add_form(*r, layout, value);
            self.settle(*r, id);
        }
    }

    fn is_condition(&self, op: &Operation, i: usize) -> bool {
        matches!(op.op, Op::Map(MapOp::Where)) && i == 0
    }

    /// A narrowing cast of a stored parameter is made of the stored part: less is gathered.
    fn cast_of_stored(&mut self, op: &Operation) -> Option<()> {
        let Op::Map(MapOp::Cast(to)) = op.op else { return None };
        let source = self.s.g.def_op(op.args[0])?;
        let Op::Param(p) = source.op else { return None };
        let param = &self.s.g.params[p.index()];
        let stored = &self.s.storage.params[&param.path];
        if op.phase == Phase::Update || stored.between == stored.compute || to.bytes() >= param.dtype.bytes() {
            return None;
        }
        let form = self.forms[&op.args[0]][0].clone();
        let dims = self.b.dims(form.value).to_vec();
        let value = self.b.emit(op.op.clone(), &[form.value], &[(to, dims)])[0];
        self.add_form(op.results[0], form.layout, value);
        Some(())
    }

    fn leaf(&mut self, op: &Operation) {
        let r = op.results[0];
        let dtype = self.s.g.value(r).dtype;
        let (declared, cuts): (&[DimId], Vec<Cut>) = match &op.op {
            Op::Param(p) => {
                let p = &self.s.g.params[p.index()];
                (&p.dims, self.s.storage.params[&p.path].between.clone())
            }
            Op::State(t) => {
                let t = &self.s.g.states[t.index()];
                (&t.dims, self.s.storage.states[&t.path].clone())
            }
            _ => (&self.s.g.value(r).dims, self.s.held(r).cuts.clone()),
        };
        let dims = &self.s.g.value(r).dims;
        let at = |d: &DimId| cuts[declared.iter().position(|x| x == d).expect("a leaf has its declared dims")].clone();
        let layout = Layout { dims: dims.iter().map(at).collect(), partial: Vec::new() };
        let local = self.dims(r, &layout);
        let value = self.b.emit(op.op.clone(), &[], &[(dtype, local)])[0];
        self.add_form(r, layout, value);
    }

    fn slot_layout(&self, nest: &Nest, cuts: &[Cut], slot: usize, dims: usize) -> Layout {
        let mut layout = Layout::replicated(dims);
        for (l, cut) in nest.loops.iter().zip(cuts) {
            if let Some(place) = l.slots[slot] {
                layout.dims[place.at] = to_slot(self.s.mesh, cut, l.extent, place.scale);
            }
        }
        layout
    }

    /// Brings a value that was just made to its layout, and reduces what is reduced here.
    fn settle(&mut self, v: ValueId, id: OpId) {
        let made = self.forms[&v].last().expect("just made").layout.clone();
        let riding = self.rides(v);
        let held = self.s.held(v);
        let reduced = made.partial.iter().any(|p| !riding.contains(p));
        let mut want = Layout { dims: held.cuts.clone(), partial: riding.clone() };
        for cut in &mut want.dims {
            cut.retain(|e| !riding.iter().any(|r| r.atom == e.atom));
        }
        want.partial.retain(|p| made.partial.contains(p));
        want.partial.sort_unstable();
        if !reduced {
            return;
        }
        self.form(v, &want, id, Why::Reduction);
        // Nobody is to take the partial form instead.
        let forms = self.forms.get_mut(&v).expect("just made");
        forms.retain(|f| f.layout.partial == want.partial);
    }

    /// A dim as a slot of the operation has it.
    fn dim_in(&mut self, layouts: &[(ValueId, Layout)], slots: &[usize], d: DimId) -> DimId {
        for i in slots {
            let (v, layout) = &layouts[*i];
            if let Some(at) = self.s.g.value(*v).dims.iter().position(|x| *x == d) {
                return self.local.dim(&mut self.b, d, &layout.dims[at].clone());
            }
        }
        d
    }

    fn emit_local(
        &mut self,
        op: &Operation,
        nest: &Nest,
        cuts: &[Cut],
        args: &[ValueId],
        made: &[Layout],
    ) -> Vec<ValueId> {
        let s = self.s;
        let mut layouts: Vec<(ValueId, Layout)> = Vec::new();
        for (i, a) in op.args.iter().enumerate() {
            layouts.push((*a, self.slot_layout(nest, cuts, i, s.g.value(*a).dims.len())));
        }
        let first_result = layouts.len();
        layouts.extend(op.results.iter().copied().zip(made.iter().cloned()));
        let operands: Vec<usize> = (0..first_result).collect();
        let results: Vec<usize> = (first_result..layouts.len()).collect();
        let all: Vec<usize> = operands.iter().chain(&results).copied().collect();
        let types: Vec<(DType, Vec<DimId>)> =
            (op.results.iter().zip(made)).map(|(r, layout)| (s.g.value(*r).dtype, self.dims(*r, layout))).collect();
        let mut args = args.to_vec();
        // Dims of contracted loops that are not all real, as operands have them.
        let mut dead: Vec<DimId> = Vec::new();
        for (l, cut) in nest.loops.iter().zip(cuts) {
            if cut.is_empty() || !matches!(l.along, Along::Contract(_)) {
                continue;
            }
            for i in &operands {
                if let Some(place) = l.slots[*i] {
                    let (v, layout) = &layouts[*i];
                    let d = s.g.value(*v).dims[place.at];
                    let d = self.local.dim(&mut self.b, d, &layout.dims[place.at].clone());
                    if !dead.contains(&d) {
                        dead.push(d);
                    }
                }
            }
        }
        match &op.op {
            Op::Iota(_) => return vec![self.local.index(&mut self.b, types[0].1[0])],
            Op::Reduce { kind, .. } => {
                let neutral = kind.neutral(self.b.dtype(args[0]));
                args[0] = self.local.masked(&mut self.b, args[0], &dead, neutral);
            }
            Op::Dot { .. } => {
                for a in &mut args {
                    *a = self.local.masked(&mut self.b, *a, &dead, 0.0);
                }
            }
            Op::AttentionGrad(a) => {
                let n = a.operands();
                for (i, fill) in [(0, 0.0), (n, 0.0), (n + 1, f64::INFINITY), (n + 2, 0.0)] {
                    args[i] = self.local.masked(&mut self.b, args[i], &dead, fill);
                }
            }
            Op::Gather { dims, mode } => {
                let mut local = Vec::new();
                let mut cut = false;
                for (k, d) in dims.iter().enumerate() {
                    let own = self.dim_in(&layouts, &[0], *d);
                    args[k + 1] = self.sound_index(args[k + 1]);
                    if own != *d {
                        args[k + 1] = self.local.inwards(&mut self.b, args[k + 1], own, *mode == GatherMode::Zero);
                        cut = true;
                    }
                    local.push(own);
                }
                let mode = if cut { GatherMode::Zero } else { *mode };
                return self.b.emit(Op::Gather { dims: local, mode }, &args, &types);
            }
            Op::Scatter { kind, removed, targets } => {
                let removed: Vec<DimId> = removed.iter().map(|d| self.dim_in(&layouts, &operands, *d)).collect();
                let mut local = Vec::new();
                for (k, d) in targets.iter().enumerate() {
                    let own = self.dim_in(&layouts, &[first_result], *d);
                    args[k + 1] = self.sound_index(args[k + 1]);
                    if own != *d {
                        args[k + 1] = self.local.inwards(&mut self.b, args[k + 1], own, true);
                    }
                    local.push(own);
                }
                // What is not real goes nowhere.
                if let Some(first) = args.get(1).copied()
                    && !targets.is_empty()
                {
                    let have: Vec<DimId> = dead.iter().copied().filter(|d| self.b.dims(first).contains(d)).collect();
                    args[1] = self.local.masked(&mut self.b, first, &have, -1.0);
                    let lack: Vec<DimId> = dead.iter().copied().filter(|d| !have.contains(d)).collect();
                    let neutral = kind.neutral(self.b.dtype(args[0]));
                    args[0] = self.local.masked(&mut self.b, args[0], &lack, neutral);
                }
                return self.b.emit(Op::Scatter { kind: *kind, removed, targets: local }, &args, &types);
            }
            _ => {}
        }
        if let Op::Reshape { groups } = &op.op {
            // Two dims may change places.
            let mut own = Vec::with_capacity(groups.len());
            for (from, to) in groups {
                let from = from.iter().map(|d| self.dim_in(&layouts, &operands, *d)).collect();
                own.push((from, to.iter().map(|d| self.dim_in(&layouts, &results, *d)).collect()));
            }
            if is_edge(op) {
                return vec![args[0]];
            }
            return self.b.emit(Op::Reshape { groups: own }, &args, &types);
        }
        let mut known = op.op.clone();
        if let Op::Attention(a) | Op::AttentionGrad(a) = &mut known {
            let query = self.dim_in(&layouts, &all, a.query);
            let key = self.dim_in(&layouts, &all, a.key);
            self.place_queries(a, query, key, &mut args);
        }
        let op = &Operation { op: known, ..op.clone() };
        let mut renamed = HashMap::new();
        op.op.map_dims(&mut |d| {
            renamed.insert(d, d);
            d
        });
        let mut names: Vec<DimId> = renamed.keys().copied().collect();
        names.sort_unstable();
        for d in names {
            // Splits and merges name their dims on one side only.
            let own = self.dim_in(&layouts, &all, d);
            renamed.insert(d, own);
        }
        let local = op.op.map_dims(&mut |d| renamed[&d]);
        self.b.emit(local, &args, &types)
    }

    /// Tells an attention which of all queries its own are, where it counts them.
    fn place_queries(&mut self, a: &mut Attention, query: DimId, key: DimId, args: &mut Vec<ValueId>) {
        let Some(cut) = self.b.graph.dim(query).cut.clone().filter(|_| a.causal || a.reach.is_some()) else { return };
        let all = a.operands();
        if cut.entries.iter().all(|e| e.order == Order::Block) {
            let first = self.local.first(&mut self.b, query);
            match a.position() {
                Some(at) => args[at] = self.b.add(args[at], first),
                None => args.insert(all, first),
            }
            a.first = true;
            return;
        }
        // Not one run: a mask says who sees whom.
        let (q, k) = (self.local.index(&mut self.b, query), self.b.iota(key));
        let mut seen: Option<ValueId> = a.extras().1.map(|at| args[at]);
        let mut join = |b: &mut Builder, m: ValueId| {
            seen = Some(match seen {
                None => m,
                Some(s) => b.map(MapOp::And, &[s, m]),
            });
        };
        if a.causal {
            let m = self.b.map(MapOp::Le, &[k, q]);
            join(&mut self.b, m);
        }
        if let Some(reach) = a.reach {
            let far = self.b.sub(q, k);
            let n = self.b.scalar(f64::from(reach), DType::I32);
            let m = self.b.map(MapOp::Lt, &[far, n]);
            join(&mut self.b, m);
        }
        let seen = seen.expect("queries are counted for one of the two");
        match a.extras().1 {
            Some(at) => args[at] = seen,
            None => args.insert(3 + 2 * usize::from(a.documents), seen),
        }
        (a.causal, a.reach, a.mask) = (false, None, true);
    }

    /// An index that is in range where it is not real, too.
    fn sound_index(&mut self, index: ValueId) -> ValueId {
        let dims = self.b.dims(index).to_vec();
        self.local.masked(&mut self.b, index, &dims, 0.0)
    }

    // ---- loops at run time and outputs

    fn looped(&mut self, id: OpId, op: &Operation, body: BlockId, dim: DimId, reverse: bool, carries: usize) {
        let g = self.s.g;
        let block = g.block(body);
        // Sums over turns may stay in parts until the last turn.
        let held = |s: &State<'_>, v: ValueId| {
            let parts = s.partial[s.classes.class(v)].iter().filter(|p| p.rides);
            let partial: Vec<Partial> = parts.map(|p| Partial { atom: p.atom, op: p.kind }).collect();
            let keep = |c: &Cut| c.iter().filter(|e| !partial.iter().any(|p| p.atom == e.atom)).copied().collect();
            Layout { dims: s.held(v).cuts.iter().map(keep).collect(), partial }
        };
        let mut initial = Vec::with_capacity(carries);
        for c in 0..carries {
            let param = block.params[1 + c];
            let want = self.reordered(held(self.s, param), param, op.args[c]);
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
            self.add_form(param, held(self.s, param), frame.carries[c]);
        }
        for (p, a) in block.params[1 + carries..].iter().zip(&op.args[carries..]) {
            let forms = self.forms[a].clone();
            let (own, outer) = (g.value(*p).dims.clone(), g.value(*a).dims.clone());
            let seen = forms.into_iter().map(|f| Form { layout: reorder(&f.layout, &outer, &own), ..f }).collect();
            self.forms.insert(*p, seen);
        }
        self.block(body);
        (self.b.span, self.b.scope) = place;
        self.b.phase = phase;
        let mut next = Vec::new();
        for c in 0..carries {
            let (param, end) = (block.params[1 + c], block.results[c]);
            let want = self.reordered(held(self.s, param), param, end);
            next.push(self.form(end, &want, id, Why::Result));
        }
        let (mut collected, mut stacked_as) = (Vec::new(), Vec::new());
        for (end, r) in block.results[carries..].iter().zip(&op.results[carries..]) {
            let want = self.reordered(held(self.s, *r), *r, *end);
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
            let layout = self.reordered(held(self.s, block.params[1 + c]), block.params[1 + c], op.results[c]);
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

    fn outputs(&mut self) {
        let g = self.s.g;
        for o in &g.outputs {
            self.b.span = o.span;
            self.b.phase = Phase::Update;
            self.b.scope = g.def_op(o.value).map_or(ROOT, |op| op.scope);
            let dims = &g.value(o.value).dims;
            let by = |declared: &[DimId], cuts: &[Cut]| -> Vec<Cut> {
                let at = |d: &DimId| declared.iter().position(|x| x == d).map(|i| cuts[i].clone());
                dims.iter().map(|d| at(d).unwrap_or_default()).collect()
            };
            let cuts = match o.kind {
                OutputKind::Param(p) | OutputKind::InitParam(p) => {
                    let p = &g.params[p.index()];
                    by(&p.dims, &self.s.storage.params[&p.path].between)
                }
                OutputKind::State(t) | OutputKind::InitState(t) => {
                    let t = &g.states[t.index()];
                    by(&t.dims, &self.s.storage.states[&t.path])
                }
                OutputKind::Loss | OutputKind::Metric | OutputKind::Value => vec![Cut::new(); dims.len()],
            };
            let def = match g.value(o.value).def {
                Def::Op(op, _) => op,
                Def::BlockParam(_) => OpId(0),
            };
            let value = self.form(o.value, &Layout { dims: cuts, partial: Vec::new() }, def, Why::Output);
            self.b.graph.outputs.push(Output { value, ..o.clone() });
        }
    }
}

/// The cuts of a layout, but for these entries.
fn without(layout: &Layout, entries: &[crate::mesh::Entry]) -> Vec<Cut> {
    let keep = |c: &Cut| c.iter().filter(|e| !entries.iter().any(|x| x.atom == e.atom)).copied().collect();
    layout.dims.iter().map(keep).collect()
}

fn reorder(layout: &Layout, own: &[DimId], wanted: &[DimId]) -> Layout {
    let at = |d: &DimId| own.iter().position(|x| x == d).map(|i| layout.dims[i].clone()).unwrap_or_default();
    Layout { dims: wanted.iter().map(at).collect(), partial: layout.partial.clone() }
}
