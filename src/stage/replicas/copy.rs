//! The step of one replica as that of all of them.

use super::{REPLICA, Step, refused};
use crate::diag::Diagnostic;
use crate::ir::*;
use crate::stage::samplewise::Samples;
use crate::types::{DType, MapOp};
use std::collections::HashMap;

type Outcome<T> = Result<T, Box<Diagnostic>>;

/// What is each replica's own, and what stands for values of the step in its updates.
pub trait Own {
    fn param(&self, p: ParamId) -> bool;
    fn state(&self, s: StateId) -> bool;

    /// Whether updates read something else in the place of a value, that is the same for all replicas.
    fn waits(&self, v: ValueId) -> bool;

    /// What that is, where the value differs from replica to replica.
    fn instead(&mut self, b: &mut Builder, replica: DimId, old: ValueId, new: ValueId) -> ValueId;
}

pub struct Copied {
    pub b: Builder,
    /// By output of the old graph its value; losses, metrics and shared states are means.
    pub outputs: Vec<ValueId>,
    pub replica: DimId,
}

struct Copying<'a, O> {
    g: &'a Graph,
    own: &'a mut O,
    count: usize,
    b: Builder,
    replica: DimId,
    samples: Samples,
    /// By old value: whether it differs from replica to replica.
    differs: Vec<bool>,
    map: HashMap<ValueId, ValueId>,
    /// For operations of updates.
    instead: HashMap<ValueId, ValueId>,
}

pub fn copied(step: Step<'_>, own: &mut impl Own) -> Outcome<Copied> {
    let g = step.graph;
    let mut b = Builder::new(Graph {
        dims: g.dims.clone(),
        params: g.params.clone(),
        states: g.states.clone(),
        inputs: g.inputs.clone(),
        scopes: g.scopes.clone(),
        blocks: vec![Block::default()],
        ..Graph::default()
    });
    let replica = b.add_dim(REPLICA, step.count, false);
    let samples = Samples::discover(g, step.sample, 1);
    let differs = vec![false; g.values.len()];
    let (map, instead) = (HashMap::new(), HashMap::new());
    let mut c = Copying { g, own, count: step.count, b, replica, samples, differs, map, instead };
    c.tables()?;
    c.find(ENTRY);
    for id in &g.block(ENTRY).ops {
        c.operation(*id, g.op(*id))?;
    }
    let outputs = g.outputs.iter().map(|o| c.output(o)).collect::<Outcome<Vec<_>>>()?;
    Ok(Copied { b: c.b, outputs, replica })
}

impl<O: Own> Copying<'_, O> {
    fn tables(&mut self) -> Outcome<()> {
        let (g, replica) = (self.g, self.replica);
        let params = g.params.iter().map(|p| ("parameter", &p.path, &p.dims, p.span));
        let states = g.states.iter().map(|s| ("state", &s.path, &s.dims, s.span));
        for (what, path, dims, span) in params.chain(states) {
            let Some(d) = dims.iter().find(|d| self.samples.contains(**d)) else { continue };
            let name = &g.dim(*d).name;
            let d = Diagnostic::error("E0606", format!("{what} `{path}` has the sample dim `{name}`"));
            let d = d.help("replicas have a share of the samples each: give it another dim");
            return Err(Box::new(match span {
                Some(s) => d.at(s, "one element a sample"),
                None => d,
            }));
        }
        for (i, p) in self.b.graph.params.iter_mut().enumerate() {
            if self.own.param(ParamId(i as u32)) {
                p.dims.insert(0, replica);
            }
        }
        for (i, s) in self.b.graph.states.iter_mut().enumerate() {
            if self.own.state(StateId(i as u32)) {
                s.dims.insert(0, replica);
            }
        }
        for i in 0..g.inputs.len() {
            self.b.graph.inputs[i].dims = self.dealt(&g.inputs[i].dims);
        }
        Ok(())
    }

    fn of_samples(&self, dims: &[DimId]) -> bool {
        dims.iter().any(|d| self.samples.contains(*d))
    }

    /// Dims with the replica in front of the sample dim: the samples in their order.
    fn dealt(&self, dims: &[DimId]) -> Vec<DimId> {
        let mut out = dims.to_vec();
        if let Some(at) = dims.iter().position(|d| self.samples.contains(*d)) {
            out.insert(at, self.replica);
        }
        out
    }

    // ---- what differs

    fn find(&mut self, block: BlockId) {
        let g = self.g;
        for id in &g.block(block).ops {
            let op = g.op(*id);
            if let Op::Loop { body, carries, .. } = op.op {
                self.find_in_loop(op, body, carries as usize);
                continue;
            }
            let updates = op.phase == Phase::Update;
            let differs = match &op.op {
                Op::Param(p) => self.own.param(*p),
                Op::State(s) => self.own.state(*s),
                Op::Input(i) => self.of_samples(&g.inputs[i.index()].dims),
                Op::Random { dims, .. } => self.of_samples(dims),
                _ => op.args.iter().any(|a| self.differs[a.index()] && !(updates && self.own.waits(*a))),
            };
            op.results.iter().for_each(|r| self.differs[r.index()] = differs);
        }
    }

    fn find_in_loop(&mut self, op: &Operation, body: BlockId, carries: usize) {
        let block = self.g.block(body);
        for (p, a) in block.params[1..].iter().zip(&op.args) {
            self.differs[p.index()] = self.differs[a.index()];
        }
        loop {
            self.find(body);
            let mut grown = false;
            for c in 0..carries {
                let (before, after) = (block.params[1 + c].index(), block.results[c].index());
                grown |= self.differs[after] && !self.differs[before];
                self.differs[before] |= self.differs[after];
            }
            if !grown {
                break;
            }
        }
        for (k, (r, inner)) in op.results.iter().zip(&block.results).enumerate() {
            let carried = k < carries && self.differs[block.params[1 + k].index()];
            self.differs[r.index()] = carried || self.differs[inner.index()];
        }
    }

    // ---- operations

    fn operation(&mut self, id: OpId, op: &Operation) -> Outcome<()> {
        (self.b.span, self.b.scope) = (op.span, op.scope);
        (self.b.phase, self.b.again) = (op.phase, op.again);
        let updates = op.phase == Phase::Update;
        let get = |a: &ValueId| self.instead.get(a).filter(|_| updates).unwrap_or(&self.map[a]);
        let args: Vec<ValueId> = op.args.iter().map(|a| *get(a)).collect();
        let results = match op.op {
            Op::Loop { body, dim, reverse, carries } => {
                self.looped(op, &args, (body, dim, reverse, carries as usize))?
            }
            _ => self.plain(op, args)?,
        };
        debug_assert_eq!(results.len(), op.results.len(), "operation {id}");
        for (old, new) in op.results.iter().zip(results) {
            if let Some(name) = &self.g.value(*old).name {
                self.b.name(new, name);
            }
            self.map.insert(*old, new);
            if self.differs[old.index()] && self.own.waits(*old) {
                let v = self.own.instead(&mut self.b, self.replica, *old, new);
                self.instead.insert(*old, v);
            }
        }
        Ok(())
    }

    fn plain(&mut self, op: &Operation, mut args: Vec<ValueId>) -> Outcome<Vec<ValueId>> {
        let differs = args.iter().any(|a| self.b.dims(*a).contains(&self.replica));
        let mut kind = op.op.clone();
        let mut wide = 0..0;
        match &mut kind {
            Op::Random { dims, .. } => *dims = self.dealt(dims),
            Op::Draw { dims, .. } if differs => {
                let own = self.dealt(dims);
                let lacks = own.len() == dims.len();
                *dims = own;
                if lacks {
                    dims.insert(0, self.replica);
                }
            }
            // Places that windows begin at, which are scalars.
            Op::Window { .. } if args[1..].iter().any(|a| self.b.dims(*a).contains(&self.replica)) => {
                return Err(refused(op, "a place in an array depends on the samples as a whole"));
            }
            // What is put together has the same dims; queries have every dim of keys and values, and these the same ones.
            Op::Concat { .. } | Op::Stack { .. } => wide = 0..args.len(),
            Op::Attention(_) => wide = 0..3,
            Op::AttentionGrad(a) => {
                let n = a.operands();
                args[n..].iter_mut().for_each(|x| *x = self.widened(*x, differs));
                wide = 0..3;
            }
            Op::WriteAt { .. } | Op::Position | Op::Coordinate(_) | Op::Collective(_) => {
                return Err(refused(op, "this is no part of a training step"));
            }
            _ => {}
        }
        args[wide].iter_mut().for_each(|x| *x = self.widened(*x, differs));
        let mut types = Vec::new();
        for r in &op.results {
            let Value { dtype, dims, .. } = self.g.value(*r);
            let dims = match op.op {
                Op::Input(_) | Op::Random { .. } => self.dealt(dims),
                _ if self.differs[r.index()] => [&[self.replica], dims.as_slice()].concat(),
                _ => dims.clone(),
            };
            types.push((*dtype, dims));
        }
        Ok(self.b.emit(kind, &args, &types))
    }

    fn widened(&mut self, v: ValueId, differs: bool) -> ValueId {
        if differs { self.b.broadcast(v, &[self.replica]) } else { v }
    }

    fn looped(
        &mut self,
        op: &Operation,
        args: &[ValueId],
        (body, dim, reverse, carries): (BlockId, DimId, bool, usize),
    ) -> Outcome<Vec<ValueId>> {
        let block = self.g.block(body);
        let mut initial = args[..carries].to_vec();
        for (v, p) in initial.iter_mut().zip(&block.params[1..]) {
            *v = self.widened(*v, self.differs[p.index()]);
        }
        let frame = self.b.begin_loop(dim, reverse, &initial);
        let inside = frame.carries.iter().chain(&args[carries..]).copied();
        let bound: Vec<ValueId> = std::iter::once(frame.turn).chain(inside).collect();
        self.map.extend(block.params.iter().copied().zip(bound));
        for id in &block.ops {
            self.operation(*id, self.g.op(*id))?;
        }
        (self.b.span, self.b.scope) = (op.span, op.scope);
        (self.b.phase, self.b.again) = (op.phase, op.again);
        let mut results: Vec<ValueId> = block.results.iter().map(|r| self.map[r]).collect();
        for (v, p) in results[..carries].iter_mut().zip(&block.params[1..]) {
            *v = self.widened(*v, self.differs[p.index()]);
        }
        let (finals, collected) = self.b.end_loop(frame, &results[..carries], &results[carries..]);
        Ok([finals, collected].concat())
    }

    // ---- outputs

    fn output(&mut self, o: &Output) -> Outcome<ValueId> {
        (self.b.span, self.b.scope, self.b.phase) = (o.span, ROOT, Phase::Update);
        let v = *self.instead.get(&o.value).unwrap_or(&self.map[&o.value]);
        let own = match o.kind {
            OutputKind::Param(p) => self.own.param(p),
            OutputKind::State(s) => self.own.state(s),
            _ => false,
        };
        if own {
            return Ok(self.widened(v, true));
        }
        if !self.b.dims(v).contains(&self.replica) {
            return Ok(v);
        }
        let dtype = self.b.dtype(v);
        if !dtype.is_float() {
            let d = Diagnostic::error("E0606", format!("`{}` is no float, so replicas have no mean of it", o.name));
            let d = match o.span {
                Some(span) => d.at(span, "differs from replica to replica"),
                None => d,
            };
            return Err(Box::new(d.help("make it a float, or leave out `local` or `async`")));
        }
        Ok(mean(&mut self.b, self.replica, self.count, (v, &o.name)))
    }
}

/// The mean over replicas, in the type of the value; the name is what is added up for it.
pub fn mean(b: &mut Builder, replica: DimId, count: usize, (v, name): (ValueId, &str)) -> ValueId {
    let dtype = b.dtype(v);
    let wide = if dtype.bytes() == 2 { DType::F32 } else { dtype };
    let v = b.cast(v, wide);
    let sum = b.sum(&[replica], v);
    b.name(sum, name);
    let mean = b.map_scalar(MapOp::Div, sum, count as f64);
    b.cast(mean, dtype)
}
