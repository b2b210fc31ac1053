//! Runs programs on GPUs made of software (`tests/simcuda`), with operands and results as the interpreter's tensors.

#[path = "bytes.rs"]
mod bytes;

use bytes::{pack, unpack};
use partita::codegen::cuda;
use partita::interp::{Env, Tensor};
use partita::ir::{Graph, OutputKind as Kind};
use partita::kernel::{Module, Options};
use partita::memory;
use partita::program::Program;
use partita::runtime::RuntimeError;
use partita::runtime::device::cuda::nvrtc;
use partita::runtime::exec::{Array, RunArgs};
use partita::runtime::gpu::Gpus;
use partita::source::SourceMap;
use std::sync::{Arc, OnceLock};

/// Has the process find the software GPU and NVRTC. False, and a line that says so, where there is no NVRTC.
pub fn is_there() -> bool {
    static THERE: OnceLock<bool> = OnceLock::new();
    let there = *THERE.get_or_init(|| {
        // For `scripts/gpu-check`: the driver that is there, whatever it drives.
        if std::env::var_os("PARTITA_REAL_GPU").is_some() {
            return nvrtc::is_there();
        }
        let folder = simcuda::place::folder();
        let all = [
            ("PARTITA_LIBCUDA", Some(folder.join("libcuda.so.1").into_os_string())),
            ("PARTITA_NCCL", Some(folder.join("libnccl.so.2").into_os_string())),
            ("PARTITA_NVRTC", std::env::var_os("SIMCUDA_NVRTC")),
            ("SIMCUDA_DEVICES", Some("4".into())),
        ];
        for (name, value) in all.into_iter().filter_map(|(n, v)| Some((n, v?))) {
            // SAFETY: every test of the binary begins here, and none reads variables before.
            unsafe { std::env::set_var(name, value) };
        }
        nvrtc::is_there()
    });
    if !there {
        eprintln!("skipped: NVRTC is not here; SIMCUDA_NVRTC names its folder");
    }
    there
}

/// A program with its kernels as PTX.
pub fn compile(graph: &Graph, options: &Options) -> Program {
    let texts = SourceMap::default();
    let mut module = Module::new(&texts);
    module.add("test", graph, options);
    let (mut program, kernels) = (module.program, module.kernels);
    program.routines.iter_mut().for_each(memory::plan);
    finish(&mut program, &kernels);
    program
}

/// The kernels of a planned program.
pub fn finish(program: &mut Program, kernels: &[partita::kernel::Kernel]) {
    let mut gpu = cuda::generate(program, kernels);
    gpu.arch = 80;
    gpu.ptx = nvrtc::compile(&gpu.text, 80).unwrap_or_else(|e| panic!("{e}\n{}", gpu.text));
    program.gpu = Some(gpu);
}

pub fn open(program: &Arc<Program>, env: &Env) -> Gpus {
    let mut gpus = Gpus::open(program.clone()).unwrap_or_else(|e| panic!("{e}"));
    let mut write = |array: Array, t: &Tensor| {
        let bytes = pack(array.slot(program).dtype, &t.data);
        gpus.scatter(array, &bytes).unwrap_or_else(|e| panic!("{e}"));
    };
    env.params.iter().enumerate().for_each(|(n, t)| write(Array::Param(n), t));
    env.states.iter().enumerate().for_each(|(n, t)| write(Array::State(n), t));
    env.inputs.iter().enumerate().for_each(|(n, t)| write(Array::Input(n), t));
    gpus
}

/// Runs the only routine; results in the order of the graph's outputs.
pub fn run(gpus: &mut Gpus, graph: &Graph, env: &Env) -> Result<Vec<Tensor>, RuntimeError> {
    gpus.run(0, RunArgs { seed: env.seed, step: env.step, position: env.position, ..RunArgs::default() })?;
    let program = gpus.program().clone();
    let slot = |array: Array| -> Result<Tensor, RuntimeError> {
        let s = array.slot(&program);
        let mut bytes = Vec::new();
        gpus.gather(array, &mut bytes)?;
        Ok(Tensor::new(s.dtype, s.whole_shape().collect(), unpack(s.dtype, &bytes)))
    };
    let mut values = 0..;
    let read = |o: &partita::ir::Output| match o.kind {
        Kind::Param(p) | Kind::InitParam(p) => slot(Array::Param(p.index())),
        Kind::State(s) | Kind::InitState(s) => slot(Array::State(s.index())),
        Kind::Loss | Kind::Metric | Kind::Value => {
            let n = values.next().expect("endless");
            let (shape, bytes) = gpus.output(0, n)?;
            let r = &program.routines[0];
            let dtype = r.buffer(r.outputs[n].buffer).dtype;
            Ok(Tensor::new(dtype, shape, unpack(dtype, &bytes)))
        }
    };
    graph.outputs.iter().map(read).collect()
}
