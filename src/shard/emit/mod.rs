//! The program of a rank: every operation on the parts that its loops are cut into, and moves where a value is needed in another
//! layout than it has.
//!
//! A value may exist in several forms. Each use takes the form from which the way is shortest; what it makes on that way is there for
//! later uses.
//!
//! Reading order: this file (operations, forms, outputs), `moves.rs` (from layout to layout), `parts.rs` (an operation on parts), `halo.rs` (windows on parts),
//! `ring.rs` (attention whose keys go round), `arg.rs` (argmax over parts), `best.rs` (the k largest over parts), `scan.rs` (running sums over parts), `turns.rs` (loops at run time).

mod arg;
mod best;
mod halo;
mod moves;
mod parts;
mod ring;
mod scan;
mod turns;

use super::facts::State;
use super::local::Local;
use super::nest::{Along, Nest, nest};
use super::reduce::{Linear, linear};
use super::units::to_slot;
use super::{Reason, Sharded, Story, Why};
use crate::ir::*;
use crate::mesh::{Cut, Layout, Partial};
use crate::types::MapOp;
use std::collections::HashMap;
use std::rc::Rc;

/// One array that holds a value.
#[derive(Clone, Debug)]
struct Form {
    layout: Layout,
    value: ValueId,
    phase: Phase,
    /// Of parts that other ranks hold.
    gathered: bool,
    /// Nesting of the loop that it was made in.
    depth: usize,
}

struct Emitter<'s, 'a> {
    s: &'s State<'a>,
    b: Builder,
    local: Local,
    forms: HashMap<ValueId, Vec<Form>>,
    /// What loops capture: of the values inside those outside.
    captured: HashMap<ValueId, ValueId>,
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
        captured: HashMap::new(),
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
            (self.b.span, self.b.scope) = (op.span, op.scope);
            (self.b.phase, self.b.again) = (op.phase, op.again);
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
        let form = Form { layout, value, phase: self.b.phase, gathered: false, depth: self.depth };
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

    // ---- operations

    fn nest(&mut self, id: OpId) -> Rc<Nest> {
        let class = self.s.classes.of_op[id.index()];
        self.nests.entry(class).or_insert_with(|| Rc::new(nest(self.s.g, self.s.g.op(id)))).clone()
    }

    /// Atoms over which an operand stays partial for this use.
    fn rides(&self, v: ValueId) -> Vec<Partial> {
        let parts = self.s.partial[self.s.classes.class(v)].iter().filter(|p| p.rides);
        let mut all: Vec<Partial> = parts.map(|p| Partial { atom: p.atom, op: p.kind }).collect();
        all.sort_unstable();
        all
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
        if let Op::Attention(a) | Op::AttentionGrad(a) = &op.op
            && let Some(entry) = super::ring::entry(s, op, &nest, &cuts)
        {
            return self.ring((id, op), a, (&nest, &cuts), entry);
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
            if let (Op::Window { .. }, 0) = (&op.op, i) {
                want = self.window_operand(&nest, &cuts, *a, want);
            }
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
        let values = self.emit_local(id, op, &nest, &cuts, &args, &made);
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
                // Minor loops come after the major ones.
                layout.dims[place.at].extend(to_slot(self.s.mesh, cut, l.extent, place.scale));
            }
        }
        layout
    }

    /// The layout in which a value's users find it: what stays partial over an atom is not cut by it.
    fn for_users(&self, v: ValueId) -> Layout {
        let partial = self.rides(v);
        let keep = |c: &Cut| c.iter().filter(|e| !partial.iter().any(|p| p.atom == e.atom)).copied().collect();
        Layout { dims: self.s.held(v).cuts.iter().map(keep).collect(), partial }
    }

    /// Reduces a value that was just made, where that is to be done here.
    fn settle(&mut self, v: ValueId, id: OpId) {
        let made = &self.forms[&v].last().expect("just made").layout.partial;
        let mut want = self.for_users(v);
        if made.iter().all(|p| want.partial.contains(p)) {
            return;
        }
        want.partial.retain(|p| made.contains(p));
        self.form(v, &want, id, Why::Reduction);
        // Nobody is to take the partial form instead.
        let forms = self.forms.get_mut(&v).expect("just made");
        forms.retain(|f| f.layout.partial == want.partial);
    }

    // ---- outputs

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
