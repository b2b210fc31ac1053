//! Runs graphs on the CPU backend, with operands and results as the interpreter's tensors.

#[path = "bytes.rs"]
mod bytes;

pub use bytes::{pack, unpack};
use partita::codegen::cpu::Target;
use partita::interp::{Env, Tensor};
use partita::ir::{Graph, OutputKind as Kind};
use partita::kernel::{Module, Options};
use partita::memory;
use partita::program::Program;
use partita::runtime::RuntimeError;
use partita::runtime::exec::{ExecOptions, Executor, RunArgs};
use partita::source::SourceMap;
use std::sync::Arc;

/// A program of one routine.
pub fn compile(graph: &Graph, options: &Options) -> Program {
    compile_of(graph, options, &SourceMap::default())
}

/// A program that knows its source text.
pub fn compile_of(graph: &Graph, options: &Options, texts: &SourceMap) -> Program {
    let mut module = Module::new(texts);
    module.add("test", graph, options);
    let (mut program, kernels) = (module.program, module.kernels);
    program.routines.iter_mut().for_each(memory::plan);
    program.code = Target::host().expect("a supported processor").compile(&kernels, 2).expect("compiles");
    program
}

pub fn executor(program: &Arc<Program>, env: &Env, options: ExecOptions) -> Executor {
    let mut exec = Executor::new(program.clone(), options).expect("an executor");
    for (n, t) in env.params.iter().enumerate() {
        exec.param_mut(n).copy_from_slice(&pack(program.params[n].dtype, &t.data));
    }
    for (n, t) in env.states.iter().enumerate() {
        exec.state_mut(n).copy_from_slice(&pack(program.states[n].dtype, &t.data));
    }
    for (n, t) in env.inputs.iter().enumerate() {
        exec.input_mut(n).copy_from_slice(&pack(program.inputs[n].dtype, &t.data));
    }
    exec
}

/// Runs the only routine; results in the order of the graph's outputs.
pub fn run(exec: &mut Executor, graph: &Graph, env: &Env) -> Result<Vec<Tensor>, RuntimeError> {
    // A huge number of any type; what is touched is found by looking.
    exec.paint(0xfe);
    exec.run(0, RunArgs { seed: env.seed, step: env.step, position: env.position, ..RunArgs::default() })?;
    let planned = exec.program().routines[0].arena;
    assert_eq!((exec.high_water(0), exec.touched(0xfe)[0]), (planned, planned), "high-water marks against the plan");
    let program = exec.program().clone();
    let mut values = 0..;
    Ok(graph
        .outputs
        .iter()
        .map(|o| match o.kind {
            Kind::Param(p) | Kind::InitParam(p) => {
                let slot = &program.params[p.index()];
                Tensor::new(slot.dtype, slot.shape.clone(), unpack(slot.dtype, exec.param(p.index())))
            }
            Kind::State(s) | Kind::InitState(s) => {
                let slot = &program.states[s.index()];
                Tensor::new(slot.dtype, slot.shape.clone(), unpack(slot.dtype, exec.state(s.index())))
            }
            Kind::Loss | Kind::Metric | Kind::Value => {
                let n = values.next().expect("endless");
                let out = &program.routines[0].outputs[n];
                let dtype = program.routines[0].buffer(out.buffer).dtype;
                Tensor::new(dtype, out.shape.clone(), unpack(dtype, exec.output(0, n)))
            }
        })
        .collect())
}
