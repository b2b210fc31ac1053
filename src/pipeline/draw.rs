//! Functions: parts of a step as graphs of their own. What they need of others, and give to others, are states of the kind
//! [`StateKind::Argument`].

use crate::ir::*;
use crate::types::{DType, MapOp};
use std::collections::HashMap;

/// What functions hand to each other, on a rank.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Var {
    /// The number of the microbatch.
    Microbatch,
    /// A value of the step, one for each microbatch.
    Each(ValueId),
    /// A value of the step that there is once.
    Once(ValueId),
    /// A sum over microbatches, by number.
    Sum(usize),
}

/// An argument of a function.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Arg {
    pub var: Var,
    pub reads: bool,
    pub writes: bool,
}

#[derive(Clone, Debug)]
pub struct Function {
    pub name: String,
    /// Its states of the kind `Argument` are the arguments, in their order.
    pub graph: Graph,
    pub args: Vec<Arg>,
}

/// A function under construction.
pub struct Draw<'a> {
    from: &'a Graph,
    /// What stands for a value that is not made here.
    var: &'a dyn Fn(ValueId) -> Var,
    g: Graph,
    map: HashMap<ValueId, ValueId>,
    args: Vec<Arg>,
    states: HashMap<Var, StateId>,
    phase: Phase,
}

impl<'a> Draw<'a> {
    pub fn new(from: &'a Graph, phase: Phase, var: &'a dyn Fn(ValueId) -> Var) -> Draw<'a> {
        let g = Graph {
            dims: from.dims.clone(),
            params: from.params.clone(),
            states: from.states.clone(),
            inputs: from.inputs.clone(),
            scopes: from.scopes.clone(),
            mesh: from.mesh.clone(),
            blocks: vec![Block::default()],
            ..Graph::default()
        };
        Draw { from, var, g, map: HashMap::new(), args: Vec::new(), states: HashMap::new(), phase }
    }

    /// Repeats an operation of the step.
    pub fn op(&mut self, id: OpId) {
        let op = self.from.op(id);
        let args = op.args.iter().map(|a| self.value(*a)).collect();
        self.copy(id, args, ENTRY);
    }

    fn copy(&mut self, id: OpId, args: Vec<ValueId>, block: BlockId) {
        let op = self.from.op(id);
        let new = OpId(self.g.ops.len() as u32);
        self.g.ops.push(Operation { args, results: Vec::new(), block, ..op.clone() });
        if let Op::Loop { body, dim, reverse, carries } = op.op {
            let body = self.body(body);
            self.g.ops[new.index()].op = Op::Loop { body, dim, reverse, carries };
        }
        for (k, r) in op.results.iter().enumerate() {
            let made = self.add_value(*r, block, Def::Op(new, k as u32));
            self.g.ops[new.index()].results.push(made);
        }
        self.g.blocks[block.index()].ops.push(new);
    }

    fn body(&mut self, old: BlockId) -> BlockId {
        let new = BlockId(self.g.blocks.len() as u32);
        self.g.blocks.push(Block::default());
        let Block { params, ops, results } = self.from.block(old);
        for (k, p) in params.iter().enumerate() {
            let made = self.add_value(*p, new, Def::BlockParam(k as u32));
            self.g.blocks[new.index()].params.push(made);
        }
        for id in ops {
            let args = self.from.op(*id).args.iter().map(|a| self.map[a]).collect();
            self.copy(*id, args, new);
        }
        self.g.blocks[new.index()].results = results.iter().map(|r| self.map[r]).collect();
        new
    }

    fn add_value(&mut self, old: ValueId, block: BlockId, def: Def) -> ValueId {
        let value = Value { block, def, ..self.from.value(old).clone() };
        self.g.values.push(value);
        let new = ValueId(self.g.values.len() as u32 - 1);
        self.map.insert(old, new);
        new
    }

    /// What stands for a value; an argument, if it is not made here.
    pub fn value(&mut self, v: ValueId) -> ValueId {
        if let Some(known) = self.map.get(&v) {
            return *known;
        }
        let read = self.read((self.var)(v), v);
        self.map.insert(v, read);
        read
    }

    /// Reads an argument with the type of a value.
    pub fn read(&mut self, var: Var, like: ValueId) -> ValueId {
        let state = self.state(var, like);
        let arg = self.args.iter_mut().find(|a| a.var == var).expect("made with its state");
        arg.reads = true;
        let Value { dtype, dims, name, .. } = self.from.value(like).clone();
        self.emit(Op::State(state), vec![], dtype, dims, name)
    }

    fn emit(&mut self, op: Op, args: Vec<ValueId>, dtype: DType, dims: Vec<DimId>, name: Option<String>) -> ValueId {
        let id = OpId(self.g.ops.len() as u32);
        let made = ValueId(self.g.values.len() as u32);
        self.g.values.push(Value { dtype, dims, block: ENTRY, def: Def::Op(id, 0), name });
        let (span, scope, phase) = (None, ROOT, self.phase);
        self.g.ops.push(Operation { op, args, results: vec![made], block: ENTRY, span, scope, phase, again: false });
        self.g.blocks[ENTRY.index()].ops.push(id);
        made
    }

    fn state(&mut self, var: Var, like: ValueId) -> StateId {
        if let Some(known) = self.states.get(&var) {
            return *known;
        }
        let Value { dtype, dims, name, .. } = self.from.value(like).clone();
        let path = format!("{}{}", name.unwrap_or_else(|| "value".into()), like);
        let id = StateId(self.g.states.len() as u32);
        self.g.states.push(State { path, dtype, dims, kind: StateKind::Argument, span: None });
        self.args.push(Arg { var, reads: false, writes: false });
        self.states.insert(var, id);
        id
    }

    /// Gives a value (of this graph) the place of an argument.
    pub fn give(&mut self, var: Var, like: ValueId, made: ValueId) {
        let state = self.state(var, like);
        self.args.iter_mut().find(|a| a.var == var).expect("made with its state").writes = true;
        let name = self.g.states[state.index()].path.clone();
        self.g.outputs.push(Output { kind: OutputKind::State(state), name, value: made, span: None });
    }

    /// An output of the step itself.
    pub fn output(&mut self, output: &Output) {
        let value = self.value(output.value);
        self.g.outputs.push(Output { value, ..output.clone() });
    }

    /// Adds a value of the step to something of this graph.
    pub fn combined(&mut self, combine: MapOp, so_far: ValueId, part: ValueId, like: ValueId) -> ValueId {
        let Value { dtype, dims, .. } = self.from.value(like).clone();
        let mut part = self.value(part);
        if self.g.value(part).dtype != dtype {
            let of = self.g.value(part).dims.clone();
            part = self.emit(Op::Map(MapOp::Cast(dtype)), vec![part], dtype, of, None);
        }
        self.emit(Op::Map(combine), vec![so_far, part], dtype, dims, None)
    }

    /// Whether a value that there is once was given already.
    pub fn is_given(&self, v: ValueId) -> bool {
        self.args.iter().any(|a| a.var == Var::Once(v) && a.writes)
    }

    pub fn finish(self, name: String) -> Function {
        Function { name, graph: prune::prune(&self.g), args: self.args }
    }
}
