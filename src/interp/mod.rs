//! The reference interpreter: evaluates a graph slowly and plainly. The oracle of every backend; shares no code with them.
//!
//! In: a verified [`Graph`] and an [`Env`] (parameters, states, inputs, step, seed, position). Out: one [`Tensor`] per
//! output of the graph. Reading order: this file, `map.rs` (elementwise functions, [`eval_map`]), `walk.rs` (loops over
//! named dims), then `reduce.rs`, `movement.rs`, `along.rs`, `attention.rs` (families of operations).
//!
//! Arithmetic: every element is held as f64. Each operation computes in f64 and rounds its result to the value's
//! element type (f32 as f32, 16-bit floats half to even by way of f32, I32 wraps); sums and products of many elements
//! accumulate in f64 and are rounded once. With [`Env::exact`] floats are never rounded, whatever their type: for checks of
//! derivatives. Choices where `ir::Op` leaves one: NaN is larger than every number in argmax, top_k and sort; a running
//! argmax keeps what it met first and is -1 where nothing precedes; `Draw` is spelled out at its operation.
//!
//! Order of axes: parameters, states and inputs in declared order; an output that is the new (or initial) value of a parameter
//! or state in that parameter's declared order, so that it can be fed again; any other output in its value's order.

mod along;
mod attention;
mod collective;
mod map;
mod movement;
mod reduce;
mod walk;

pub use map::{eval_map, round};

use crate::ir::*;
use crate::types::DType;
use crate::types::rng::{self, Dist};
use std::rc::Rc;
use walk::{permute, sizes};

/// An array; row-major. Bool elements are 0 or 1.
#[derive(Clone, PartialEq, Debug)]
pub struct Tensor {
    pub dtype: DType,
    pub shape: Vec<usize>,
    pub data: Vec<f64>,
}

impl Tensor {
    /// The data are rounded to the type.
    pub fn new(dtype: DType, shape: Vec<usize>, data: Vec<f64>) -> Tensor {
        assert_eq!(shape.iter().product::<usize>(), data.len(), "shape {shape:?}");
        Tensor { dtype, shape, data: data.into_iter().map(|x| round(dtype, x)).collect() }
    }

    pub fn scalar(dtype: DType, x: f64) -> Tensor {
        Tensor::new(dtype, vec![], vec![x])
    }

    pub fn filled(dtype: DType, shape: Vec<usize>, x: f64) -> Tensor {
        let n = shape.iter().product();
        Tensor::new(dtype, shape, vec![x; n])
    }

    /// The element of a scalar (the first one of anything else).
    pub fn item(&self) -> f64 {
        self.data[0]
    }
}

/// What a graph is evaluated on. Lists are in the order of the graph's tables, axes in declared order.
#[derive(Clone, Default, Debug)]
pub struct Env {
    pub params: Vec<Tensor>,
    pub states: Vec<Tensor>,
    pub inputs: Vec<Tensor>,
    pub step: u64,
    pub seed: u64,
    pub position: i32,
    /// Which rank of the graph's mesh runs it.
    pub rank: usize,
    /// No rounding of floats: f32 and 16-bit values are held as f64.
    pub exact: bool,
}

/// What stops an evaluation.
#[derive(Clone, PartialEq, Debug)]
pub enum InterpError {
    /// The graph is given something else than it takes.
    Env(String),
    /// An operation has an index that its dim does not have.
    Range(OpId, OutOfRange),
}

/// An index that a dim does not have.
#[derive(Clone, PartialEq, Debug)]
pub struct OutOfRange {
    pub index: i64,
    pub dim: String,
    pub size: usize,
    /// Of rows of which there may be fewer than their buffer has room for.
    pub ragged: bool,
}

impl OutOfRange {
    fn of(g: &Graph, dim: DimId, index: i64) -> OutOfRange {
        let index = if g.dim(dim).cut.is_some() { crate::mesh::cut::told(index) } else { index };
        OutOfRange { index, dim: g.whole_name(dim).to_string(), size: g.extent(dim), ragged: g.dim(dim).ragged }
    }
}

impl std::fmt::Display for InterpError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            InterpError::Env(message) => f.write_str(message),
            InterpError::Range(op, OutOfRange { index, dim, size, .. }) => {
                write!(f, "index {index} is out of range for dim `{dim}` of size {size} (at {op})")
            }
        }
    }
}

impl std::error::Error for InterpError {}

/// The outputs of the graph, in order.
pub fn run(graph: &Graph, env: &Env) -> Result<Vec<Tensor>, InterpError> {
    run_observed(graph, env, &mut |_, _| {})
}

/// As [`run`]; `observe` sees each value of each operation as it is computed (those of loop bodies at every turn), in
/// the value's own order of dims.
pub fn run_observed(
    graph: &Graph,
    env: &Env,
    observe: &mut dyn FnMut(ValueId, &Tensor),
) -> Result<Vec<Tensor>, InterpError> {
    let all = run_all(graph, std::slice::from_ref(env), &mut |_, v, t| observe(v, t))?;
    Ok(all.into_iter().next().expect("one environment, one result"))
}

/// The outputs of the graph on each rank of its mesh, given the environments of all of them in order.
pub fn run_ranks(graph: &Graph, envs: &[Env]) -> Result<Vec<Vec<Tensor>>, InterpError> {
    if envs.len() != graph.mesh.ranks() || envs.iter().enumerate().any(|(i, e)| e.rank != i) {
        return Err(InterpError::Env(format!("environments of {} ranks are needed, in order", graph.mesh.ranks())));
    }
    run_all(graph, envs, &mut |_, _, _| {})
}

/// As [`run_ranks`]; `observe` sees the rank, too.
pub fn run_all(
    graph: &Graph,
    envs: &[Env],
    observe: &mut dyn FnMut(usize, ValueId, &Tensor),
) -> Result<Vec<Vec<Tensor>>, InterpError> {
    for env in envs {
        check_env(graph, env)?;
    }
    let machines = envs.iter().map(|env| Machine { graph, env, values: vec![None; graph.values.len()] }).collect();
    let mut fleet = Fleet { graph, machines, observe };
    fleet.block(ENTRY)?;
    Ok(fleet.machines.iter().map(Machine::outputs).collect())
}

fn check_env(graph: &Graph, env: &Env) -> Result<(), InterpError> {
    let fail = |message: String| Err(InterpError::Env(message));
    let params =
        graph.params.iter().map(|p| (&p.path, p.dtype, &p.dims)).zip(env.params.iter().map(Some).chain(none()));
    let states =
        graph.states.iter().map(|s| (&s.path, s.dtype, &s.dims)).zip(env.states.iter().map(Some).chain(none()));
    let inputs =
        graph.inputs.iter().map(|i| (&i.name, i.dtype, &i.dims)).zip(env.inputs.iter().map(Some).chain(none()));
    for ((name, dtype, dims), given) in params.chain(states).chain(inputs) {
        let Some(given) = given else {
            return fail(format!("`{name}` is not given"));
        };
        let shape = sizes(graph, dims);
        if given.shape != shape || given.dtype != dtype {
            return fail(format!("`{name}` is given as {}{:?}, expected {dtype}{shape:?}", given.dtype, given.shape));
        }
    }
    Ok(())
}

/// What a list that is too short is continued with.
fn none<'a>() -> impl Iterator<Item = Option<&'a Tensor>> {
    std::iter::repeat_with(|| None)
}

type Shared = Rc<Tensor>;

/// All ranks, operation by operation: they run one program.
struct Fleet<'a> {
    graph: &'a Graph,
    machines: Vec<Machine<'a>>,
    observe: &'a mut dyn FnMut(usize, ValueId, &Tensor),
}

impl Fleet<'_> {
    fn block(&mut self, block: BlockId) -> Result<(), InterpError> {
        let graph = self.graph;
        for id in &graph.block(block).ops {
            let op = graph.op(*id);
            let results: Vec<Vec<Shared>> = match &op.op {
                Op::Loop { body, dim, reverse, carries } => {
                    self.run_loop(op, *body, *dim, *reverse, *carries as usize)?
                }
                Op::Collective(c) => {
                    let parts: Vec<Shared> = self.machines.iter().map(|m| m.get(op.args[0])).collect();
                    let moved = collective::run(graph, c, op, &parts);
                    let stored = self.machines.iter().zip(moved).map(|(m, data)| vec![m.tensor(op.results[0], data)]);
                    stored.collect()
                }
                _ => self.machines.iter().map(|m| m.operation(*id)).collect::<Result<_, _>>()?,
            };
            for (rank, (machine, results)) in self.machines.iter_mut().zip(results).enumerate() {
                for (v, tensor) in op.results.iter().zip(results) {
                    (self.observe)(rank, *v, &tensor);
                    machine.values[v.index()] = Some(tensor);
                }
            }
        }
        Ok(())
    }

    fn run_loop(
        &mut self,
        op: &Operation,
        body: BlockId,
        dim: DimId,
        reverse: bool,
        carries: usize,
    ) -> Result<Vec<Vec<Shared>>, InterpError> {
        let trip = self.graph.size(dim);
        let mut turns: Vec<Turns> = self.machines.iter_mut().map(|m| m.enter(op, body, carries)).collect();
        for i in 0..trip {
            let turn = if reverse { trip - 1 - i } else { i };
            self.machines.iter_mut().zip(&turns).for_each(|(m, t)| m.begin_turn(body, turn, t));
            self.block(body)?;
            self.machines.iter().zip(&mut turns).for_each(|(m, t)| m.end_turn(op, body, dim, turn, t));
        }
        Ok(self.machines.iter().zip(turns).map(|(m, t)| m.leave(op, body, t)).collect())
    }
}

/// Where the turns of a loop stand on a rank.
struct Turns {
    carried: Vec<Shared>,
    collected: Vec<Tensor>,
}

struct Machine<'a> {
    graph: &'a Graph,
    env: &'a Env,
    values: Vec<Option<Shared>>,
}

impl Machine<'_> {
    fn get(&self, v: ValueId) -> Shared {
        self.values[v.index()].clone().expect("operands are computed before their use")
    }

    /// A value with its axes in the order of another one: nothing demands that a loop's carries and captures be stored
    /// alike inside and outside.
    fn reorder(&self, from: ValueId, to: ValueId) -> Shared {
        let (own, wanted) = (&self.graph.value(from).dims, &self.graph.value(to).dims);
        if own == wanted { self.get(from) } else { Rc::new(permute(self.graph, &self.get(from), own, wanted)) }
    }

    /// Rounds to the type, unless floats are held exactly.
    fn store(&self, dtype: DType, mut data: Vec<f64>) -> Vec<f64> {
        if dtype == DType::F64 || (self.env.exact && dtype.is_float()) {
            return data;
        }
        let mut i = 0;
        while i < data.len() {
            data[i] = round(dtype, data[i]);
            i += 1;
        }
        data
    }

    fn outputs(&self) -> Vec<Tensor> {
        let graph = self.graph;
        let read = |output: &Output| {
            let value = self.get(output.value);
            let own = &graph.value(output.value).dims;
            let declared = match output.kind {
                OutputKind::Param(p) | OutputKind::InitParam(p) => &graph.params[p.index()].dims,
                OutputKind::State(s) | OutputKind::InitState(s) => &graph.states[s.index()].dims,
                OutputKind::Loss | OutputKind::Metric | OutputKind::Value => own,
            };
            permute(graph, &value, own, declared)
        };
        graph.outputs.iter().map(read).collect()
    }

    fn tensor(&self, v: ValueId, data: Vec<f64>) -> Shared {
        let Value { dtype, dims, .. } = self.graph.value(v);
        Rc::new(Tensor { dtype: *dtype, shape: sizes(self.graph, dims), data: self.store(*dtype, data) })
    }

    fn operation(&self, id: OpId) -> Result<Vec<Shared>, InterpError> {
        let op = self.graph.op(id);
        let args: Vec<Shared> = op.args.iter().map(|a| self.get(*a)).collect();
        let out = self.graph.value(op.results[0]);
        let all = match &op.op {
            Op::Attention(a) => attention::attention(self.graph, a, op, &args).into(),
            Op::AttentionGrad(a) => attention::gradient(self.graph, a, op, &args).into(),
            _ => vec![self.evaluate(op, &args, out).map_err(|e| InterpError::Range(id, e))?],
        };
        Ok(op.results.iter().zip(all).map(|(v, data)| self.tensor(*v, data)).collect())
    }

    /// The elements of an operation's only result, not yet rounded.
    fn evaluate(&self, op: &Operation, args: &[Shared], out: &Value) -> Result<Vec<f64>, OutOfRange> {
        let g = self.graph;
        let dims_of = |i: usize| g.value(op.args[i]).dims.as_slice();
        let operand = |i: usize| walk::Operand { dims: dims_of(i), data: &args[i].data };
        let all = || (0..args.len()).map(operand).collect::<Vec<_>>();
        let count = g.elements(&out.dims);
        Ok(match &op.op {
            Op::Param(p) => self.env.params[p.index()].data.clone(),
            Op::State(s) => self.env.states[s.index()].data.clone(),
            Op::Input(i) => self.env.inputs[i.index()].data.clone(),
            Op::Constant(Constant::Splat(x)) => vec![*x; count],
            Op::Constant(Constant::Elements(data)) => data.clone(),
            Op::Iota(_) => (0..count).map(|i| i as f64).collect(),
            Op::Step => vec![self.env.step as f64],
            Op::Position => vec![f64::from(self.env.position)],
            Op::Coordinate(atom) => vec![g.mesh.coordinate(self.env.rank, *atom) as f64],
            Op::Random { dist, stream, dims } => {
                let key = self.draw_key(*stream, args);
                let logical = collective::logical_index(g, self.env.rank, dims, &out.dims);
                logical
                    .into_iter()
                    .map(|i| match *dist {
                        Dist::RandInt { n } => f64::from(rng::draw_int(n, key, i as u64)),
                        dist => f64::from(rng::draw(dist, key, i as u64)),
                    })
                    .collect()
            }
            Op::Map(m) => {
                let dtype = args.last().map_or(out.dtype, |a| a.dtype);
                walk::elementwise(g, &out.dims, &all(), |x| map::apply(*m, dtype, x, self.env.exact))
            }
            Op::Broadcast { .. } => walk::elementwise(g, &out.dims, &all(), |x| x[0]),
            Op::StopGradient => args[0].data.clone(),
            Op::Reduce { kind, dims } => reduce::reduce(g, *kind, dims, operand(0), out),
            Op::Dot { contract } => reduce::dot(g, contract, operand(0), operand(1), out),
            Op::Reshape { groups } => movement::reshape(g, groups, operand(0), out),
            Op::Window { axes, fill } => {
                let offsets: Vec<i64> = args[1..].iter().map(|a| a.item() as i64).collect();
                movement::window(g, axes, *fill, &offsets, operand(0), out)
            }
            Op::Fold { axes } => movement::fold(g, axes, operand(0), out),
            Op::Gather { dims, mode } => movement::gather(g, dims, *mode, &all(), out)?,
            Op::Scatter { kind, removed, targets } => reduce::scatter(g, *kind, removed, targets, &all(), out)?,
            Op::Concat { parts, to } => movement::concat(g, parts, *to, &all(), out),
            Op::Stack { dim } => movement::stack(g, *dim, &all(), out),
            Op::Scan { kind, dim, exclusive, reverse } => {
                along::scan(g, *kind, *dim, *exclusive, *reverse, operand(0), out)
            }
            Op::LinearScan { dim, reverse } => along::linear_scan(g, *dim, *reverse, operand(0), operand(1), out),
            Op::ArgSort { dim } => along::arg_sort(g, *dim, operand(0), out),
            Op::TopK { dim, k } => along::top_k(g, *dim, *k, operand(0), out),
            Op::PackPlace { packed, limit } => along::pack_place(g, packed, *limit, operand(0), out),
            Op::Draw { dim, top_k, top_p, stream, dims } => {
                let key = self.draw_key(*stream, &args[1..]);
                along::draw(g, *dim, *top_k as usize, *top_p, key, dims, operand(0), out)
            }
            Op::WriteAt { dim, part } => movement::write_at(g, *dim, *part, &all(), out)?,
            Op::Loop { .. } | Op::Collective(_) | Op::Attention(_) | Op::AttentionGrad(_) => {
                unreachable!("these have their own paths")
            }
        })
    }

    fn draw_key(&self, stream: u64, turns: &[Shared]) -> u64 {
        let turns: Vec<i32> = turns.iter().map(|t| t.item() as i32).collect();
        rng::key(self.env.seed, self.env.step, stream, rng::turns(&turns))
    }

    fn enter(&mut self, op: &Operation, body: BlockId, carries: usize) -> Turns {
        let graph = self.graph;
        let block = graph.block(body);
        let entering = op.args[..carries].iter().zip(&block.params[1..]);
        let carried = entering.map(|(a, p)| self.reorder(*a, *p)).collect();
        for (param, capture) in block.params[1 + carries..].iter().zip(&op.args[carries..]) {
            self.values[param.index()] = Some(self.reorder(*capture, *param));
        }
        let empty = |v: &ValueId| {
            let Value { dtype, dims, .. } = graph.value(*v);
            Tensor { dtype: *dtype, shape: sizes(graph, dims), data: vec![0.0; graph.elements(dims)] }
        };
        Turns { carried, collected: op.results[carries..].iter().map(empty).collect() }
    }

    fn begin_turn(&mut self, body: BlockId, turn: usize, turns: &Turns) {
        let params = &self.graph.block(body).params;
        self.values[params[0].index()] = Some(Rc::new(Tensor::scalar(DType::I32, turn as f64)));
        for (param, value) in params[1..].iter().zip(&turns.carried) {
            self.values[param.index()] = Some(value.clone());
        }
    }

    fn end_turn(&self, op: &Operation, body: BlockId, dim: DimId, turn: usize, turns: &mut Turns) {
        let graph = self.graph;
        let block = graph.block(body);
        let carries = turns.carried.len();
        turns.carried = (0..carries).map(|c| self.reorder(block.results[c], block.params[1 + c])).collect();
        for (k, out) in turns.collected.iter_mut().enumerate() {
            let inner = block.results[carries + k];
            let value = self.get(inner);
            let result = &graph.value(op.results[carries + k]).dims;
            movement::place_turn(graph, dim, turn, &graph.value(inner).dims, &value.data, result, &mut out.data);
        }
    }

    fn leave(&self, op: &Operation, body: BlockId, turns: Turns) -> Vec<Shared> {
        let graph = self.graph;
        let finals = turns.carried.iter().enumerate().map(|(c, value)| {
            let (from, to) = (graph.block(body).params[1 + c], op.results[c]);
            Rc::new(permute(graph, value, &graph.value(from).dims, &graph.value(to).dims))
        });
        finals.chain(turns.collected.into_iter().map(Rc::new)).collect()
    }
}

#[cfg(test)]
mod tests;
