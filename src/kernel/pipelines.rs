//! The routines of a step in stages: its functions, and for each rank along the pipeline the calls of them.

use super::lower::ranks::parts;
use super::module::Module;
use super::{Options, lower};
use crate::ir::{self, Graph, OutputKind, ValueId, prune::prune};
use crate::pipeline::{Arg, Item, Pipelined, Var, members};
use crate::program::{
    self, Access, Action, Buffer, BufferId, Call, Category, Place, Routine, SourceId, Step, Transfer,
};
use crate::types::DType;
use indexmap::IndexMap;

/// A variable of a rank and, for those of which there is one for each, a microbatch.
type Key = (Var, usize);

impl Module<'_> {
    /// Lowers a step in stages as one more routine with a variant for each rank along the pipeline.
    pub fn add_pipelined(&mut self, name: &str, p: &Pipelined, options: &Options) -> usize {
        if !p.graph.mesh.axes.is_empty() {
            self.program.mesh = p.graph.mesh.clone();
        }
        let function = |module: &mut Self, f: &crate::pipeline::Function| {
            let routine = lower::lower(module, &format!("{name}.{}", f.name), f.graph.clone(), options);
            module.program.routines.push(routine);
            module.program.routines.len() as u32 - 1
        };
        let mut called = vec![false; p.functions.len()];
        for item in p.ranks.iter().flatten() {
            if let Item::Call { function, .. } = item {
                called[*function] = true;
            }
        }
        let functions: Vec<Option<u32>> =
            p.functions.iter().zip(called).map(|(f, called)| called.then(|| function(self, f))).collect();
        let slots = self.slots(&p.graph);
        let held = |homes: u128| -> Vec<u32> { members(homes).map(|r| r as u32).collect() };
        for (slot, homes) in slots.params.iter().zip(&p.params) {
            join(&mut self.program.params[*slot as usize].on, held(*homes));
        }
        for ((place, homes), state) in slots.states.iter().zip(&p.states).zip(&p.graph.states) {
            // What belongs to a parameter is with it, where the step does not touch it.
            let owner = state.path.split_once(':').filter(|_| *homes == 0);
            let owner = owner.and_then(|(_, path)| p.graph.params.iter().position(|q| q.path == path));
            if let Place::State(slot) = place {
                join(&mut self.program.states[*slot as usize].on, held(owner.map_or(*homes, |o| p.params[o])));
            }
        }
        let first = self.program.routines.len();
        let purposes = lower::purpose::purposes(&p.graph);
        for rank in 0..p.ranks.len() {
            let routine = Caller::new(self, p, &purposes, &functions, rank).routine(name);
            self.program.routines.push(Routine { inputs: slots.inputs.clone(), ..routine });
        }
        let variants: Vec<u32> = (first..self.program.routines.len()).map(|r| r as u32).collect();
        self.program.routines[first].variants = variants;
        first
    }

    /// Has all ranks along the pipeline keep copies of what these routines read, which are not cut into stages.
    pub fn keep_copies(&mut self, routines: std::ops::Range<usize>) {
        let program = &mut self.program;
        for buffer in program.routines[routines].iter().flat_map(|r| &r.buffers) {
            match buffer.place {
                Place::Param(n) => program.params[n as usize].copied = true,
                Place::State(n) => program.states[n as usize].copied = true,
                Place::Input(n) => program.inputs[n as usize].copied = true,
                _ => {}
            }
        }
    }

    /// Lowers a computation of parameters and states, such as their initial values: each rank along the pipeline computes those that it holds.
    pub fn add_by_stage(&mut self, name: &str, graph: &Graph, ranks: usize, options: &Options) -> usize {
        let slots = self.slots(graph);
        let first = self.program.routines.len();
        for rank in 0..ranks {
            let mut own = graph.clone();
            own.outputs.retain(|o| match o.kind {
                OutputKind::InitParam(p) | OutputKind::Param(p) => {
                    self.program.params[slots.params[p.index()] as usize].is_on(rank)
                }
                OutputKind::InitState(s) | OutputKind::State(s) => match slots.states[s.index()] {
                    Place::State(slot) => self.program.states[slot as usize].is_on(rank),
                    _ => false,
                },
                _ => true,
            });
            let named = if rank == 0 { name.to_string() } else { format!("{name}.{rank}") };
            let routine = lower::lower(self, &named, prune(&own), options);
            self.program.routines.push(routine);
        }
        self.program.routines[first].variants = (first..first + ranks).map(|r| r as u32).collect();
        first
    }
}

/// More ranks hold a slot.
fn join(on: &mut Vec<u32>, more: Vec<u32>) {
    on.extend(more);
    on.sort_unstable();
    on.dedup();
}

/// The routine of a rank under construction.
struct Caller<'m, 's, 'p> {
    module: &'m mut Module<'s>,
    p: &'p Pipelined,
    /// Of the values of the step.
    purposes: &'p [Category],
    /// By function: the number of its routine, if it is called.
    functions: &'p [Option<u32>],
    rank: usize,
    routine: Routine,
    buffers: IndexMap<Key, BufferId>,
}

impl<'m, 's, 'p> Caller<'m, 's, 'p> {
    fn new(
        module: &'m mut Module<'s>,
        p: &'p Pipelined,
        purposes: &'p [Category],
        functions: &'p [Option<u32>],
        rank: usize,
    ) -> Self {
        Caller { module, p, purposes, functions, rank, routine: Routine::default(), buffers: IndexMap::new() }
    }

    fn routine(mut self, name: &str) -> Routine {
        self.routine.name = if self.rank == 0 { name.to_string() } else { format!("{name}.{}", self.rank) };
        for item in &self.p.ranks[self.rank] {
            let (action, label) = self.action(item);
            self.routine.steps.push(Step { action, source: SourceId(0), label });
        }
        for (number, vars) in &self.p.outputs {
            let o = &self.p.graph.outputs[*number];
            let buffer = self.buffer(vars[self.rank], 0);
            let dims = self.p.graph.value(o.value).dims.clone();
            let kind = match o.kind {
                OutputKind::Loss => program::OutputKind::Loss,
                OutputKind::Metric => program::OutputKind::Metric,
                _ => program::OutputKind::Value,
            };
            let source = self.module.source(o.span, "", None);
            self.routine.outputs.push(program::Output {
                kind,
                name: o.name.clone(),
                buffer,
                dims: dims.iter().map(|d| self.p.graph.dim(*d).name.clone()).collect(),
                shape: dims.iter().map(|d| self.p.graph.size(*d)).collect(),
                cut: parts(&self.p.graph, &dims),
                source,
            });
        }
        self.find_staging();
        self.routine
    }

    /// What is only sent, or taken for a single call, waits to be exchanged, whatever it is for.
    fn find_staging(&mut self) {
        let n = self.routine.buffers.len();
        let (mut crosses, mut calls) = (vec![false; n], vec![0; n]);
        for step in &self.routine.steps {
            match &step.action {
                Action::Send(t) | Action::Receive(t) => crosses[t.buffer.index()] = true,
                Action::Call(c) => c.args.iter().for_each(|a| calls[a.buffer.index()] += 1),
                _ => {}
            }
        }
        for (k, buffer) in self.routine.buffers.iter_mut().enumerate() {
            if crosses[k] && calls[k] <= 1 {
                buffer.category = Category::Staging;
            }
        }
    }

    fn action(&mut self, item: &Item) -> (Action, String) {
        match *item {
            Item::Call { function, microbatch } => {
                let f = &self.p.functions[function];
                let args: Vec<program::Arg> = f.args.iter().map(|a| self.arg(a, microbatch)).collect();
                // As large as the callee's arena, once that is planned.
                let workspace = self.add(Place::Arena(usize::MAX), DType::I32, 0, "workspace", Category::Workspace);
                let label = if f.name.contains('.') { f.name.clone() } else { format!("{}.{microbatch}", f.name) };
                let routine = self.functions[function].expect("lowered, for it is called");
                (Action::Call(Call { routine, args, workspace }), label)
            }
            Item::Send { var, microbatch, to, number } => {
                let buffer = self.buffer(var, microbatch);
                (Action::Send(transfer(to, buffer, number)), "send".into())
            }
            Item::Receive { var, microbatch, from, number } => {
                let buffer = self.buffer(var, microbatch);
                (Action::Receive(transfer(from, buffer, number)), "receive".into())
            }
            Item::Sent { var, microbatch, to, number } => {
                let buffer = self.buffer(var, microbatch);
                (Action::Sent(transfer(to, buffer, number)), "send".into())
            }
        }
    }

    fn arg(&mut self, a: &Arg, microbatch: usize) -> program::Arg {
        let access = match (a.reads, a.writes) {
            (true, true) => Access::ReadWrite,
            (false, true) => Access::Write,
            _ => Access::Read,
        };
        program::Arg { buffer: self.buffer(a.var, microbatch), access }
    }

    /// Where a variable lies.
    fn buffer(&mut self, var: Var, microbatch: usize) -> BufferId {
        let each = matches!(var, Var::Microbatch | Var::Each(_));
        let key = (var, if each { microbatch } else { 0 });
        let of = each.then_some(microbatch as u32);
        if let Some(known) = self.buffers.get(&key) {
            return *known;
        }
        let like: ValueId = match var {
            Var::Microbatch => {
                let at = self.module.constant((microbatch as i32).to_ne_bytes().to_vec());
                let made = self.add(Place::Constant(at), DType::I32, 1, "microbatch", Category::Data);
                self.routine.buffers[made.index()].microbatch = of;
                self.buffers.insert(key, made);
                return made;
            }
            Var::Each(v) | Var::Once(v) => v,
            Var::Sum(k) => self.p.sums[k],
        };
        let value = self.p.graph.value(like);
        let dtype = value.dtype;
        let elements = self.p.graph.elements(&value.dims);
        // A sum comes from what is added.
        let maker = match var {
            Var::Sum(k) => self.p.grown[k].unwrap_or(like),
            _ => like,
        };
        let maker = self.p.graph.value(maker);
        let (word, source) = match maker.def {
            ir::Def::Op(op, _) => (lower::op_word(&self.p.graph.op(op).op), self.module.source_of(&self.p.graph, op)),
            ir::Def::BlockParam(_) => ("sum", SourceId(0)),
        };
        // What the backward pass adds up are gradients, also where several ranks have a part of the sum.
        let backward = matches!(maker.def, ir::Def::Op(op, _) if self.p.graph.op(op).phase == ir::Phase::Backward);
        let category = match var {
            Var::Sum(_) if backward => Category::Gradients,
            _ => self.purposes[like.index()],
        };
        let name = maker.name.clone().unwrap_or_else(|| word.to_string());
        let made = self.add(Place::Arena(usize::MAX), dtype, elements, &name, category);
        let buffer = &mut self.routine.buffers[made.index()];
        (buffer.source, buffer.microbatch) = (source, of);
        self.buffers.insert(key, made);
        made
    }

    fn add(&mut self, place: Place, dtype: DType, elements: usize, name: &str, category: Category) -> BufferId {
        let source = SourceId(0);
        self.routine.buffers.push(Buffer {
            place,
            dtype,
            elements,
            name: name.to_string(),
            category,
            microbatch: None,
            source,
        });
        BufferId(self.routine.buffers.len() as u32 - 1)
    }
}

fn transfer(peer: usize, buffer: BufferId, number: usize) -> Transfer {
    Transfer { peer: peer as u32, buffer, number: number as u32 }
}
