//! What runs the steps of a recipe: the executor of compiled programs, or the reference interpreter.

use super::findings::{Stop, diagnostic};
use super::pipeline::{EVAL, Graphs, INIT, OUTER, TRAIN};
use super::recipe::Recipe;
use crate::interp::{self, InterpError, OutOfRange};
use crate::ir::{self, Graph};
use crate::program::{self, OutputKind, Program, Source};
use crate::runtime::RuntimeError;
use crate::runtime::data::Batch;
use crate::runtime::exec::{Array, ExecOptions, Executor, RankOptions, Ranks, RunArgs};
use crate::runtime::gpu::Gpus;
use crate::source::SourceMap;
use crate::types::{DType, counted};
use std::sync::Arc;

/// An array that lives from step to step, by its number in the recipe.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Slot {
    Param(usize),
    State(usize),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Routine {
    Train,
    Eval,
}

/// What a step has computed: a loss term, a metric, or an output that was asked for.
#[derive(Clone, PartialEq, Debug)]
pub struct Figure {
    pub kind: OutputKind,
    pub name: String,
    pub dtype: DType,
    /// Names of its dims.
    pub dims: Vec<String>,
    pub shape: Vec<usize>,
    /// More than one where it has dims.
    pub values: Vec<f64>,
}

impl Figure {
    pub fn is_loss(&self) -> bool {
        self.kind == OutputKind::Loss
    }
}

/// Runs steps. Parameters and states are bytes in native order, row-major in declared order.
pub trait Engine {
    /// Sets parameters and states to their initial values; to be called at most once, before all else.
    fn init(&mut self, seed: u64) -> Result<(), Stop>;

    /// Runs one step on a batch; `number` counts steps of training, or batches of evaluation.
    fn run(&mut self, routine: Routine, seed: u64, number: u64, batch: &Batch) -> Result<Vec<Figure>, Stop>;

    /// Whether a training step may begin the one after it.
    fn goes_on(&self) -> bool {
        false
    }

    /// Has the next training step begin the one after it, whose batch this is, and which must be the one that is run then.
    fn begin_next(&mut self, _batch: &Batch) -> Result<(), Stop> {
        Ok(())
    }

    fn read(&self, slot: Slot, to: &mut Vec<u8>) -> Result<(), RuntimeError>;

    fn write(&mut self, slot: Slot, bytes: &[u8]) -> Result<(), RuntimeError>;

    fn threads(&self) -> usize;

    /// What it runs on, for people.
    fn place(&self) -> String {
        counted(self.threads(), "thread")
    }

    fn ranks(&self) -> usize {
        1
    }
}

/// What executes a program: all of its ranks are in this process.
pub enum Machine {
    One(Box<Executor>),
    Many(Ranks),
    /// Each rank on a GPU.
    Gpus(Gpus),
}

impl Machine {
    pub fn open(program: Program, options: ExecOptions) -> Result<Machine, RuntimeError> {
        let ranks = program.mesh.ranks();
        if ranks > MOST_RANKS {
            let why = format!("the plan has {ranks} ranks, of which one process runs {MOST_RANKS} at most");
            return Err(RuntimeError::new("E0505", why)
                .help("make the mesh smaller, as in `--mesh dp=2`; `comm` and `verify` take any size"));
        }
        let program = Arc::new(program);
        if program.gpu.is_some() {
            return Ok(Machine::Gpus(Gpus::open(program)?));
        }
        Ok(match ranks {
            1 => Machine::One(Box::new(Executor::new(program, options)?)),
            _ => Machine::Many(Ranks::new(program, RankOptions { exec: options, ..RankOptions::default() })?),
        })
    }

    /// What runs each rank on the processor, in their order.
    pub fn each<T>(&mut self, mut f: impl FnMut(&mut Executor) -> T) -> Vec<T> {
        match self {
            Machine::One(exec) => vec![f(exec)],
            Machine::Many(ranks) => (0..ranks.ranks()).map(|rank| f(&mut ranks.executor(rank))).collect(),
            Machine::Gpus(_) => Vec::new(),
        }
    }

    pub fn program(&self) -> Arc<Program> {
        match self {
            Machine::One(exec) => exec.program().clone(),
            Machine::Many(ranks) => ranks.program().clone(),
            Machine::Gpus(gpus) => gpus.program().clone(),
        }
    }

    pub fn run(&mut self, routine: usize, args: RunArgs) -> Result<(), RuntimeError> {
        match self {
            Machine::One(exec) => exec.run(routine, args),
            Machine::Many(ranks) => ranks.run(routine, args),
            Machine::Gpus(gpus) => gpus.run(routine, args),
        }
    }

    /// Every rank takes its part.
    pub fn write(&mut self, array: Array, bytes: &[u8]) -> Result<(), RuntimeError> {
        match self {
            Machine::Gpus(gpus) => return gpus.scatter(array, bytes),
            Machine::Many(ranks) => ranks.scatter(array, bytes),
            Machine::One(exec) => match array {
                Array::Param(n) => exec.param_mut(n).copy_from_slice(bytes),
                Array::State(n) => exec.state_mut(n).copy_from_slice(bytes),
                Array::Input(n) => exec.input_mut(n).copy_from_slice(bytes),
            },
        }
        Ok(())
    }

    fn read(&self, array: Array, to: &mut Vec<u8>) -> Result<(), RuntimeError> {
        to.clear();
        match self {
            Machine::Gpus(gpus) => return gpus.gather(array, to),
            Machine::Many(ranks) => ranks.gather(array, to),
            Machine::One(exec) => to.extend_from_slice(match array {
                Array::Param(n) => exec.param(n),
                Array::State(n) => exec.state(n),
                Array::Input(n) => exec.input(n),
            }),
        }
        Ok(())
    }

    /// Shape and bytes of an output.
    pub fn output(&self, routine: usize, n: usize) -> Result<(Vec<usize>, Vec<u8>), RuntimeError> {
        match self {
            Machine::One(exec) => {
                Ok((exec.program().routines[routine].outputs[n].shape.clone(), exec.output(routine, n).to_vec()))
            }
            Machine::Many(ranks) => {
                let mut bytes = Vec::new();
                let shape = ranks.output(routine, n, &mut bytes);
                Ok((shape, bytes))
            }
            Machine::Gpus(gpus) => gpus.output(routine, n),
        }
    }
}

/// Most ranks of one process, each of which is a thread with an arena.
const MOST_RANKS: usize = 1024;

/// A compiled program in this process.
pub struct Compiled {
    machine: Machine,
    /// Numbers of the recipe's parameters and states in the program; one for evaluation alone lacks some.
    params: Vec<Option<usize>>,
    states: Vec<Option<usize>>,
    watched: bool,
    /// See [`Recipe::outer`].
    outer: Option<u64>,
    /// Whether the run before has begun this step, and whether this one is to begin the next.
    begun: bool,
    ahead: bool,
}

impl Compiled {
    /// With `check_finite` the program should be compiled unfused.
    pub fn open(program: Program, recipe: &Recipe, options: ExecOptions) -> Result<Compiled, RuntimeError> {
        let find = |slots: &[program::Slot], path: &str| slots.iter().position(|s| s.path == path);
        let params = recipe.params.iter().map(|p| find(&program.params, &p.name)).collect();
        let states = recipe.states.iter().map(|(s, _)| find(&program.states, &s.name)).collect();
        let watched = options.check_finite;
        let machine = Machine::open(program, options)?;
        Ok(Compiled { machine, params, states, watched, outer: recipe.outer, begun: false, ahead: false })
    }

    pub fn machine_mut(&mut self) -> &mut Machine {
        &mut self.machine
    }

    pub fn into_machine(self) -> Machine {
        self.machine
    }

    fn routine(&self, name: &str) -> Result<usize, RuntimeError> {
        self.machine.program().routines.iter().position(|r| r.name == name).ok_or_else(|| {
            RuntimeError::new("E0812", format!("the program has no routine `{name}`")).help("build it again")
        })
    }

    /// Gives inputs of the program what a batch has for them.
    fn feed(&mut self, inputs: impl Iterator<Item = (u32, u32)>, batch: &Batch) -> Result<(), Stop> {
        let program = self.machine.program();
        for (input, of) in inputs {
            let wanted = &program.inputs[of as usize];
            let field = batch.field(&wanted.path).filter(|f| f.bytes().len() == wanted.whole_bytes());
            let Some(field) = field else { return Err(not_fed(&wanted.path).into()) };
            if self.watched
                && let Some(at) = field.values().iter().position(|x| !x.is_finite())
            {
                return Err(not_finite(&wanted.path, field.values()[at], at).into());
            }
            self.machine.write(Array::Input(input as usize), field.bytes())?;
        }
        Ok(())
    }

    /// The number of an array in the program.
    fn slot(&self, slot: Slot) -> Option<Array> {
        match slot {
            Slot::Param(n) => self.params[n].map(Array::Param),
            Slot::State(n) => self.states[n].map(Array::State),
        }
    }
}

impl Engine for Compiled {
    fn init(&mut self, seed: u64) -> Result<(), Stop> {
        let n = self.routine(INIT)?;
        self.machine.run(n, RunArgs { seed, ..RunArgs::default() }).map_err(stop)
    }

    fn run(&mut self, routine: Routine, seed: u64, number: u64, batch: &Batch) -> Result<Vec<Figure>, Stop> {
        let n = self.routine(match routine {
            Routine::Train => TRAIN,
            Routine::Eval => EVAL,
        })?;
        let program = self.machine.program();
        let r = &program.routines[n];
        self.feed(r.inputs.iter().map(|i| (*i, *i)), batch)?;
        let trains = routine == Routine::Train;
        let (begun, ahead) = (trains && self.begun, trains && self.ahead);
        self.machine.run(n, RunArgs { seed, step: number, begun, ahead, ..RunArgs::default() }).map_err(stop)?;
        if trains {
            (self.begun, self.ahead) = (ahead, false);
        }
        let read = r.outputs.iter().enumerate().map(|(k, o)| {
            let dtype = r.buffer(o.buffer).dtype;
            let (shape, bytes) = self.machine.output(n, k)?;
            let values = numbers(dtype, &bytes);
            Ok(Figure { kind: o.kind, name: o.name.clone(), dtype, dims: o.dims.clone(), shape, values })
        });
        let figures = read.collect::<Result<_, RuntimeError>>()?;
        if trains && self.outer.is_some_and(|every| (number + 1).is_multiple_of(every)) {
            let n = self.routine(OUTER)?;
            self.machine.run(n, RunArgs { seed, step: number, ..RunArgs::default() }).map_err(stop)?;
        }
        Ok(figures)
    }

    fn goes_on(&self) -> bool {
        self.routine(TRAIN).is_ok_and(|n| self.machine.program().routines[n].onward.is_some())
    }

    fn begin_next(&mut self, batch: &Batch) -> Result<(), Stop> {
        let n = self.routine(TRAIN)?;
        let program = self.machine.program();
        if let Some(inputs) = &program.routines[n].onward {
            self.feed(inputs.iter().map(|i| (i.next, i.of)), batch)?;
            self.ahead = true;
        }
        Ok(())
    }

    fn read(&self, slot: Slot, to: &mut Vec<u8>) -> Result<(), RuntimeError> {
        to.clear();
        self.slot(slot).map_or(Ok(()), |array| self.machine.read(array, to))
    }

    fn write(&mut self, slot: Slot, bytes: &[u8]) -> Result<(), RuntimeError> {
        let Some(array) = self.slot(slot) else { return Ok(()) };
        // What was begun was begun with other values.
        self.begun = false;
        self.machine.write(array, bytes)
    }

    fn place(&self) -> String {
        match &self.machine {
            Machine::Gpus(gpus) => gpus.told(),
            _ => counted(self.threads(), "thread"),
        }
    }

    fn threads(&self) -> usize {
        match &self.machine {
            Machine::One(exec) => exec.threads(),
            Machine::Many(ranks) => ranks.threads(),
            Machine::Gpus(_) => self.ranks(),
        }
    }

    fn ranks(&self) -> usize {
        self.machine.program().mesh.ranks()
    }
}

fn not_finite(name: &str, value: f64, at: usize) -> RuntimeError {
    RuntimeError::new("E0810", format!("the data of input `{name}` holds {value}, at element {at} of its batch"))
        .help("mend the file, or leave such elements out in the model: `where(x == x, x, 0)`")
}

fn not_fed(name: &str) -> RuntimeError {
    RuntimeError::new("E0803", format!("no data for input `{name}`"))
        .help(format!("feed it: `data {{ {name} = .. }}`, or give the input a default"))
}

/// An error whose place is a line of the program.
pub(super) fn stop(mut error: RuntimeError) -> Stop {
    let parse = |place: Option<&str>| {
        let mut parts = place?.rsplitn(3, ':');
        let (column, line) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        Some(Source { file: parts.next()?.to_string(), line, column, ..Source::default() })
    };
    let (at, within) = (parse(error.place.as_deref()), parse(error.within.as_deref()));
    if at.is_some() {
        error.place = None;
    }
    Stop { at, within, ..Stop::from(error) }
}

/// Elements as numbers.
pub fn numbers(dtype: DType, bytes: &[u8]) -> Vec<f64> {
    let each = |read: fn(&[u8]) -> f64| bytes.chunks_exact(dtype.bytes()).map(read).collect();
    match dtype {
        DType::Bool => each(|b| f64::from(b[0])),
        DType::I32 => each(|b| f64::from(bytemuck::pod_read_unaligned::<i32>(b))),
        DType::F16 => each(|b| bytemuck::pod_read_unaligned::<half::f16>(b).to_f64()),
        DType::BF16 => each(|b| bytemuck::pod_read_unaligned::<half::bf16>(b).to_f64()),
        DType::F32 => each(|b| f64::from(bytemuck::pod_read_unaligned::<f32>(b))),
        DType::F64 => each(bytemuck::pod_read_unaligned::<f64>),
    }
}

/// Numbers as elements.
pub fn elements(dtype: DType, values: &[f64], to: &mut Vec<u8>) {
    to.clear();
    for x in values {
        match dtype {
            DType::Bool => to.push(u8::from(*x != 0.0)),
            DType::I32 => to.extend((*x as i32).to_ne_bytes()),
            DType::F16 => to.extend(half::f16::from_f64(*x).to_ne_bytes()),
            DType::BF16 => to.extend(half::bf16::from_f64(*x).to_ne_bytes()),
            DType::F32 => to.extend((*x as f32).to_ne_bytes()),
            DType::F64 => to.extend(x.to_ne_bytes()),
        }
    }
}

/// The reference interpreter: slow, and right by construction.
pub struct Interpreted {
    train: Graph,
    eval: Graph,
    init: Graph,
    outer: Option<(u64, Graph)>,
    params: Vec<interp::Tensor>,
    states: Vec<interp::Tensor>,
    texts: SourceMap,
}

impl Interpreted {
    pub fn new(g: &Graphs) -> Interpreted {
        let zeros = |dtype, dims: &[ir::DimId]| {
            interp::Tensor::filled(dtype, dims.iter().map(|d| g.train.size(*d)).collect(), 0.0)
        };
        Interpreted {
            params: g.train.params.iter().map(|p| zeros(p.dtype, &p.dims)).collect(),
            states: g.train.states.iter().map(|s| zeros(s.dtype, &s.dims)).collect(),
            train: g.train.clone(),
            eval: g.eval.clone(),
            init: g.init.clone(),
            outer: g.outer.clone(),
            texts: g.findings.sources.clone(),
        }
    }

    /// What a graph reads, by path.
    fn environment(&self, graph: &Graph, seed: u64, step: u64, batch: Option<&Batch>) -> Result<interp::Env, Stop> {
        let mut env = interp::Env { seed, step, ..interp::Env::default() };
        for p in &graph.params {
            let at = self.train.params.iter().position(|q| q.path == p.path);
            env.params.extend(at.map(|i| self.params[i].clone()));
        }
        for s in &graph.states {
            let at = self.train.states.iter().position(|t| t.path == s.path);
            env.states.extend(at.map(|i| self.states[i].clone()));
        }
        for i in &graph.inputs {
            let Some(field) = batch.and_then(|b| b.field(&i.name)) else { return Err(not_fed(&i.name).into()) };
            let shape: Vec<usize> = i.dims.iter().map(|d| graph.size(*d)).collect();
            if shape.iter().product::<usize>() != field.sizes.iter().product::<usize>() {
                return Err(not_fed(&i.name).into());
            }
            env.inputs.push(interp::Tensor::new(field.dtype, shape, field.values()));
        }
        Ok(env)
    }

    fn store(&mut self, graph: &Graph, values: Vec<interp::Tensor>) -> Vec<Figure> {
        let mut figures = Vec::new();
        for (o, value) in graph.outputs.iter().zip(values) {
            match o.kind {
                ir::OutputKind::Param(p) | ir::OutputKind::InitParam(p) => self.params[p.index()] = value,
                ir::OutputKind::State(s) | ir::OutputKind::InitState(s) => self.states[s.index()] = value,
                ir::OutputKind::Loss => figures.push(figure(OutputKind::Loss, graph, o, value)),
                ir::OutputKind::Metric => figures.push(figure(OutputKind::Metric, graph, o, value)),
                ir::OutputKind::Value => figures.push(figure(OutputKind::Value, graph, o, value)),
            }
        }
        figures
    }

    fn evaluate(&self, graph: &Graph, env: &interp::Env) -> Result<Vec<interp::Tensor>, Stop> {
        interp::run(graph, env).map_err(|e| match e {
            InterpError::Env(message) => RuntimeError::internal(message).into(),
            InterpError::Range(op, OutOfRange { index, dim, size, .. }) => {
                let d = diagnostic(RuntimeError::out_of_range(index, &dim, size));
                let found = match (graph.called(op, &self.texts), graph.op(op).span) {
                    (Some(site), Some(span)) => d.at(site, "in this call").and(span, "here"),
                    (_, Some(span)) => d.at(span, "here"),
                    (_, None) => d,
                };
                Stop { found: vec![found], at: None, within: None }
            }
        })
    }
}

fn figure(kind: OutputKind, graph: &Graph, output: &ir::Output, value: interp::Tensor) -> Figure {
    let dims = graph.value(output.value).dims.iter().map(|d| graph.dim(*d).name.clone()).collect();
    Figure { kind, name: output.name.clone(), dtype: value.dtype, dims, shape: value.shape, values: value.data }
}

impl Engine for Interpreted {
    fn init(&mut self, seed: u64) -> Result<(), Stop> {
        let graph = std::mem::take(&mut self.init);
        let env = interp::Env { seed, params: self.params.clone(), states: self.states.clone(), ..Default::default() };
        let values = self.evaluate(&graph, &env)?;
        self.store(&graph, values);
        self.init = graph;
        Ok(())
    }

    fn run(&mut self, routine: Routine, seed: u64, number: u64, batch: &Batch) -> Result<Vec<Figure>, Stop> {
        let graph = match routine {
            Routine::Train => self.train.clone(),
            Routine::Eval => self.eval.clone(),
        };
        let env = self.environment(&graph, seed, number, Some(batch))?;
        let values = self.evaluate(&graph, &env)?;
        let figures = self.store(&graph, values);
        if let Some((every, outer)) = self.outer.clone()
            && routine == Routine::Train
            && (number + 1).is_multiple_of(every)
        {
            let env = self.environment(&outer, seed, number, None)?;
            let values = self.evaluate(&outer, &env)?;
            self.store(&outer, values);
        }
        Ok(figures)
    }

    fn read(&self, slot: Slot, to: &mut Vec<u8>) -> Result<(), RuntimeError> {
        let tensor = match slot {
            Slot::Param(n) => &self.params[n],
            Slot::State(n) => &self.states[n],
        };
        elements(tensor.dtype, &tensor.data, to);
        Ok(())
    }

    fn write(&mut self, slot: Slot, bytes: &[u8]) -> Result<(), RuntimeError> {
        let tensor = match slot {
            Slot::Param(n) => &mut self.params[n],
            Slot::State(n) => &mut self.states[n],
        };
        tensor.data = numbers(tensor.dtype, bytes);
        Ok(())
    }

    fn threads(&self) -> usize {
        1
    }
}
