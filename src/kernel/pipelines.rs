//! The routines of a step in stages: its functions, and for each rank along the pipeline the calls of them.

use super::lower::ranks::parts;
use super::module::{Module, Slots};
use super::{Options, lower};
use crate::ir::{self, Graph, OutputKind, ValueId, prune::prune};
use crate::pipeline::{self, Arg, Does, Pipelined, Var, members};
use crate::program::{
    self, Access, Action, Buffer, BufferId, Call, Category, NextInput, Place, Role, Routine, Slot, SourceId, Step,
    Transfer,
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
        let slots = self.slots(&p.graph);
        let onward = p.onward.as_ref().map(|onward| self.onward(&slots, &onward.latest));
        // Whether it is called for this step, and for the next one.
        let mut called = vec![[false; 2]; p.functions.len()];
        for item in p.ranks.iter().flatten() {
            if let Does::Call { function, microbatch } = item.does {
                called[function][usize::from(microbatch >= p.microbatches)] = true;
            }
        }
        let mut functions: [Vec<Option<u32>>; 2] = Default::default();
        for (f, [now, next]) in p.functions.iter().zip(called) {
            let named = format!("{name}.{}", f.name);
            let routine = (now || next).then(|| lower::lower(self, &named, f.graph.clone(), options));
            let mut add = |routine: Routine| {
                self.program.routines.push(routine);
                self.program.routines.len() as u32 - 1
            };
            let ahead = onward.as_ref().filter(|_| next).zip(routine.as_ref()).map(|(o, r)| o.of(r));
            functions[0].push(routine.filter(|_| now).map(&mut add));
            functions[1].push(ahead.map(add));
        }
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
            let onward = onward.as_ref().map(|o| o.inputs.clone());
            self.program.routines.push(Routine { inputs: slots.inputs.clone(), onward, ..routine });
        }
        let variants: Vec<u32> = (first..self.program.routines.len()).map(|r| r as u32).collect();
        self.program.routines[first].variants = variants;
        first
    }

    /// Where the next step finds what it reads.
    fn onward(&mut self, slots: &Slots, latest: &[Option<ir::StateId>]) -> Onward {
        let params = slots.params.iter().zip(latest);
        let params = params.filter_map(|(p, s)| Some((Place::Param(*p), slots.states[(*s)?.index()])));
        let mut places: Vec<(Place, Place)> = params.collect();
        let mut inputs = Vec::new();
        for of in &slots.inputs {
            let slot = self.program.inputs[*of as usize].clone();
            self.program.inputs.push(Slot { path: format!("next {}", slot.path), ..slot });
            let next = self.program.inputs.len() as u32 - 1;
            places.push((Place::Input(*of), Place::Input(next)));
            inputs.push(NextInput { next, of: *of });
        }
        Onward { places, inputs }
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

/// What takes the place of parameters and inputs in the next step.
struct Onward {
    places: Vec<(Place, Place)>,
    inputs: Vec<NextInput>,
}

impl Onward {
    /// A function as it is called for the next step: the same on other arrays.
    fn of(&self, routine: &Routine) -> Routine {
        let mut out = Routine { name: format!("{}.next", routine.name), ..routine.clone() };
        for buffer in &mut out.buffers {
            if let Some((_, next)) = self.places.iter().find(|(own, _)| *own == buffer.place) {
                buffer.place = *next;
            }
        }
        out
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
    /// By function: the number of its routine, if it is called; and of that for the next step.
    functions: &'p [Vec<Option<u32>>; 2],
    rank: usize,
    routine: Routine,
    buffers: IndexMap<Key, BufferId>,
}

impl<'m, 's, 'p> Caller<'m, 's, 'p> {
    fn new(
        module: &'m mut Module<'s>,
        p: &'p Pipelined,
        purposes: &'p [Category],
        functions: &'p [Vec<Option<u32>>; 2],
        rank: usize,
    ) -> Self {
        Caller { module, p, purposes, functions, rank, routine: Routine::default(), buffers: IndexMap::new() }
    }

    fn routine(mut self, name: &str) -> Routine {
        self.routine.name = if self.rank == 0 { name.to_string() } else { format!("{name}.{}", self.rank) };
        for item in &self.p.ranks[self.rank] {
            let (action, label) = self.action(&item.does);
            self.routine.steps.push(Step { action, source: SourceId(0), label, when: item.when });
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

    fn action(&mut self, does: &Does) -> (Action, String) {
        match *does {
            Does::Call { function, microbatch } => {
                let f = &self.p.functions[function];
                let args: Vec<program::Arg> = f.args.iter().map(|a| self.arg(a, microbatch)).collect();
                // As large as the callee's arena, once that is planned.
                let workspace = self.add(Place::Arena(usize::MAX), DType::I32, 0, "workspace", Category::Workspace);
                let label = if f.name.contains('.') { f.name.clone() } else { format!("{}.{microbatch}", f.name) };
                let ahead = microbatch >= self.p.microbatches;
                let routine = self.functions[usize::from(ahead)][function].expect("lowered, for it is called");
                (Action::Call(Call { routine, args, workspace, ahead }), label)
            }
            Does::Resume { var } => {
                let from = self.buffer(var, self.p.microbatches);
                (Action::Copy { from, to: self.buffer(var, 0) }, "resume".into())
            }
            Does::Send { var, microbatch, to, number } => {
                let buffer = self.buffer(var, microbatch);
                (Action::Send(transfer(to, buffer, number)), "send".into())
            }
            Does::Receive { var, microbatch, from, number } => {
                let buffer = self.buffer(var, microbatch);
                (Action::Receive(transfer(from, buffer, number)), "receive".into())
            }
            Does::Sent { var, microbatch, to, number } => {
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
        let (next, own) = (microbatch >= self.p.microbatches, microbatch % self.p.microbatches);
        let of = each.then_some(microbatch as u32);
        let carried = |o: &pipeline::Onward| o.carried[self.rank].contains(&(var, if each { own } else { 0 }));
        let carried = self.p.onward.as_ref().is_some_and(carried);
        let key = match (each, carried) {
            // The same in both steps.
            (true, true) => (var, own),
            (true, false) => (var, microbatch),
            (false, _) => (var, usize::from(next)),
        };
        if let Some(known) = self.buffers.get(&key) {
            return *known;
        }
        let like: ValueId = match var {
            Var::Microbatch => {
                let at = self.module.constant((own as i32).to_ne_bytes().to_vec());
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
        let place = match carried && (each || next) {
            true => self.carry(value, &name, each, source),
            false => Place::Arena(usize::MAX),
        };
        let made = self.add(place, dtype, elements, &name, category);
        let buffer = &mut self.routine.buffers[made.index()];
        (buffer.source, buffer.microbatch) = (source, of);
        self.buffers.insert(key, made);
        made
    }

    /// Room that lasts from run to run.
    fn carry(&mut self, value: &ir::Value, name: &str, each: bool, source: SourceId) -> Place {
        let g = &self.p.graph;
        let states = &mut self.module.program.states;
        states.push(Slot {
            path: format!("next {name} {}", states.len()),
            dtype: value.dtype,
            dims: value.dims.iter().map(|d| g.dim(*d).name.clone()).collect(),
            shape: value.dims.iter().map(|d| g.size(*d)).collect(),
            cut: vec![None; value.dims.len()],
            role: if each { Role::InFlight } else { Role::Sum },
            source,
            host: false,
            on: vec![self.rank as u32],
            copied: false,
        });
        Place::State(states.len() as u32 - 1)
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
