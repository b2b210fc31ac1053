//! Programs of many ranks: graphs in text form, arrays cut into parts, and the executor of all ranks beside the interpreter.

// Its executor of one rank is not needed here.
#[allow(dead_code)]
#[path = "backend.rs"]
mod backend;

pub use backend::{compile, pack, unpack};
use partita::interp::{self, Env, Tensor};
use partita::ir::{Graph, OutputKind, parse, verify};
use partita::kernel::Options;
use partita::memory;
use partita::mesh::{Cut, Mesh, cut};
use partita::runtime::RuntimeError;
use partita::runtime::exec::{Array, RankOptions, Ranks, RunArgs};
use partita::types::DType;
use std::sync::Arc;

pub fn graph(text: &str) -> Graph {
    let graph = parse::parse(text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    verify::verify(&graph).unwrap_or_else(|e| panic!("{e}\n{text}"));
    graph
}

/// What a rank holds of an array whose elements are given by their places in the whole; `dead` where nothing is real.
pub fn part(
    mesh: &Mesh,
    rank: usize,
    dtype: DType,
    dims: &[(usize, Cut)],
    dead: f64,
    element: &dyn Fn(&[usize]) -> f64,
) -> Tensor {
    let shape: Vec<usize> = dims.iter().map(|(n, c)| cut::nominal(mesh, c, *n).max(1)).collect();
    let mut data = vec![dead; shape.iter().product()];
    let spans: Vec<Vec<cut::Span>> = dims.iter().map(|(n, c)| cut::spans_of(mesh, c, *n, rank)).collect();
    let mut all: Vec<(usize, Vec<usize>)> = vec![(0, vec![])];
    for (spans, n) in spans.iter().zip(&shape) {
        all = all
            .iter()
            .flat_map(|(at, index)| {
                spans.iter().flat_map(move |s| {
                    (0..s.len).map(move |i| {
                        let index: Vec<usize> = index.iter().copied().chain([s.global + i]).collect();
                        (at * n + s.local + i, index)
                    })
                })
            })
            .collect();
    }
    for (at, index) in all {
        data[at] = element(&index);
    }
    Tensor::new(dtype, shape, data)
}

pub fn ranks(graph: &Graph, threads: usize) -> Ranks {
    let program = Arc::new(compile(graph, &Options::default()));
    let mut options = RankOptions::default();
    options.exec.threads = threads;
    Ranks::new(program, options).unwrap_or_else(|e| panic!("{e}"))
}

/// Gives every rank its own arrays.
pub fn feed(ranks: &Ranks, envs: &[Env]) {
    let program = ranks.program().clone();
    for (rank, env) in envs.iter().enumerate() {
        let mut exec = ranks.executor(rank);
        for (n, t) in env.params.iter().enumerate() {
            exec.param_mut(n).copy_from_slice(&pack(program.params[n].dtype, &t.data));
        }
        for (n, t) in env.states.iter().enumerate() {
            exec.state_mut(n).copy_from_slice(&pack(program.states[n].dtype, &t.data));
        }
        for (n, t) in env.inputs.iter().enumerate() {
            exec.input_mut(n).copy_from_slice(&pack(program.inputs[n].dtype, &t.data));
        }
    }
}

/// The outputs of the only routine on each rank, in the order of the graph's outputs.
pub fn results(ranks: &Ranks, graph: &Graph) -> Vec<Vec<Tensor>> {
    let program = ranks.program().clone();
    let of_rank = |rank: usize| -> Vec<Tensor> {
        let exec = ranks.executor(rank);
        let mut values = 0..;
        let read = |kind: OutputKind| match kind {
            OutputKind::Param(p) | OutputKind::InitParam(p) => {
                let slot = &program.params[p.index()];
                Tensor::new(slot.dtype, slot.shape.clone(), unpack(slot.dtype, exec.param(p.index())))
            }
            OutputKind::State(s) | OutputKind::InitState(s) => {
                let slot = &program.states[s.index()];
                Tensor::new(slot.dtype, slot.shape.clone(), unpack(slot.dtype, exec.state(s.index())))
            }
            _ => {
                let n = values.next().expect("endless");
                let out = &program.routines[0].outputs[n];
                let dtype = program.routines[0].buffer(out.buffer).dtype;
                Tensor::new(dtype, out.shape.clone(), unpack(dtype, exec.output(0, n)))
            }
        };
        graph.outputs.iter().map(|o| o.kind).map(read).collect()
    };
    (0..ranks.ranks()).map(of_rank).collect()
}

/// What temporaries are before a run that is measured: a huge number of any type, that no result has.
pub const PAINT: u8 = 0xfe;
/// What is written over bytes that nothing needs: NaN of any type.
const SPOIL: u8 = 0xff;

/// Runs a routine over painted temporaries: what a rank has touched then is what was planned for it, to the byte. Or, `spoiled`, all that
/// is said to be free at a step is overwritten before it.
pub fn measured_run(ranks: &mut Ranks, routine: usize, args: RunArgs, spoiled: bool) -> Result<(), RuntimeError> {
    let program = ranks.program().clone();
    let spoils = spoiled.then(|| (Arc::new(memory::free(&program)), SPOIL));
    for rank in 0..ranks.ranks() {
        ranks.executor(rank).paint(PAINT);
        ranks.executor(rank).spoil(spoils.clone());
    }
    ranks.run(routine, args)?;
    for rank in 0..ranks.ranks() {
        let (exec, stage) = (ranks.executor(rank), program.stage(rank));
        let own = &program.routines[program.variant(routine, stage)];
        // Other runs than these leave out some of the steps.
        let all = own.onward.is_none() || !args.begun && args.ahead;
        if spoils.is_none() && all {
            let touched = exec.touched(PAINT);
            assert_eq!(touched, [own.arena, own.host], "rank {rank}: touched by `{}`, against the plan", own.name);
        }
        if all {
            assert_eq!(exec.high_water(routine), own.arena, "rank {rank}: high-water mark of `{}`", own.name);
        }
        assert_eq!(exec.persistent_bytes(), program.persistent_bytes(stage), "rank {rank}: what stays");
    }
    Ok(())
}

/// Both sides' results; those of the executor are checked to be the same on a second run.
pub fn both(graph: &Graph, envs: &[Env]) -> (Vec<Vec<Tensor>>, Vec<Vec<Tensor>>) {
    let wanted = interp::run_ranks(graph, envs).unwrap_or_else(|e| panic!("{e}"));
    let mut all = ranks(graph, 2);
    let args = RunArgs { seed: envs[0].seed, step: envs[0].step, position: 0, ..RunArgs::default() };
    let mut run = |spoiled: bool| {
        feed(&all, envs);
        measured_run(&mut all, 0, args, spoiled).unwrap_or_else(|e| panic!("{e}"));
        results(&all, graph)
    };
    let (first, second) = (run(false), run(true));
    assert_eq!(first, second, "from run to run");
    (wanted, first)
}

/// The whole of a persistent array.
pub fn gathered(ranks: &Ranks, array: Array) -> Vec<f64> {
    let mut bytes = Vec::new();
    ranks.gather(array, &mut bytes);
    unpack(array.slot(ranks.program()).dtype, &bytes)
}
