//! What the tests share: running a kernel without a driver, and finding NVRTC.
#![allow(dead_code)]

use simcuda::check::counters::Counters;
use simcuda::check::device::Memory;
use simcuda::check::fault::Fault;
use simcuda::config::Config;
use simcuda::exec::decode::decode;
use simcuda::exec::launch::{Launch, run};
use simcuda::ptx::link::{Globals, initial, link};
use simcuda::ptx::parse::parse;
use simcuda::ptx::tree::{Space, Variable};
use std::sync::Arc;

/// A device of a test's own.
pub struct Gpu {
    pub memory: Memory,
    pub config: Config,
}

pub enum Arg {
    Pointer(u64),
    U32(u32),
    F32(f32),
}

impl Gpu {
    /// With settings as variables would give them.
    pub fn with(settings: &[(&str, &str)]) -> Gpu {
        let find = |name: &str| settings.iter().find(|s| s.0 == name).map(|s| s.1.to_string());
        let config = Config::read(find);
        let memory = Memory::new(64 << 20, config.uninitialised).expect("there is room");
        Gpu { memory, config }
    }

    pub fn new() -> Gpu {
        Gpu::with(&[])
    }

    pub fn room(&self, bytes: usize) -> u64 {
        self.memory.allocate(bytes).expect("there is room")
    }

    pub fn put<T: bytemuck::Pod>(&self, values: &[T]) -> u64 {
        let at = self.room(std::mem::size_of_val(values));
        self.memory.copy_in(at, bytemuck::cast_slice(values)).expect("it was allocated");
        at
    }

    pub fn get<T: bytemuck::Pod>(&self, at: u64, count: usize) -> Vec<T> {
        let mut values = vec![T::zeroed(); count];
        self.memory.copy_out(at, bytemuck::cast_slice_mut(&mut values)).expect("it was allocated");
        values
    }

    /// Launches a kernel of a PTX text.
    pub fn launch(
        &self,
        text: &str,
        name: &str,
        grid: [u32; 3],
        threads: [u32; 3],
        dynamic: usize,
        args: &[Arg],
    ) -> Result<Counters, Fault> {
        let module = parse(text).unwrap_or_else(|e| panic!("{e}"));
        let mut globals = Globals::new();
        let placed = |v: &&Variable| v.space != Space::Shared && v.count.is_some();
        for v in module.variables.iter().filter(placed) {
            globals.insert(v.name.clone(), self.room(v.bytes().max(1)));
        }
        for v in module.variables.iter().filter(placed) {
            self.memory.copy_in(globals[&v.name], &initial(v, &globals).expect("a value")).expect("it was allocated");
        }
        let linked = link(&module, name, &globals).unwrap_or_else(|e| panic!("{e}"));
        let kernel = Arc::new(decode(&linked).unwrap_or_else(|e| panic!("{e}")));
        let mut params = vec![0u8; kernel.param_bytes];
        assert_eq!(args.len(), kernel.params.len(), "arguments of `{name}`");
        for (arg, (at, bytes)) in args.iter().zip(&kernel.params) {
            let raw = match arg {
                Arg::Pointer(p) => p.to_le_bytes().to_vec(),
                Arg::U32(x) => x.to_le_bytes().to_vec(),
                Arg::F32(x) => x.to_le_bytes().to_vec(),
            };
            assert_eq!(raw.len(), *bytes);
            params[*at..at + bytes].copy_from_slice(&raw);
        }
        let launch = Launch { kernel, grid, threads, dynamic, params };
        let (counters, fault) = run(&launch, &self.memory, &self.config);
        fault.map_or(Ok(counters), Err)
    }
}

/// A kernel of one body, with `p0`, `p1`.. as 64-bit parameters already in `%rd0`, `%rd1`.., the thread's number in `%r0`.
pub fn kernel(params: usize, body: &str) -> String {
    let list: Vec<String> = (0..params).map(|i| format!(".param .u64 p{i}")).collect();
    let loads: String = (0..params).map(|i| format!("ld.param.u64 %rd{i}, [p{i}];\n")).collect();
    format!(
        ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k({})\n{{\n.reg .pred %p<16>;\n.reg .b16 %h<32>;\n\
         .reg .b32 %r<64>;\n.reg .f32 %f<64>;\n.reg .b64 %rd<32>;\n.reg .f64 %d<16>;\n{loads}mov.u32 %r0, %tid.x;\n{body}\nret;\n}}\n",
        list.join(", ")
    )
}

pub fn pseudo(seed: u32) -> impl FnMut() -> u32 {
    let mut x = seed.wrapping_mul(2_654_435_761).max(1);
    move || {
        x ^= x << 13;
        x ^= x >> 17;
        x ^= x << 5;
        x
    }
}

/// Numbers between -1 and 1.
pub fn floats(seed: u32, count: usize) -> Vec<f32> {
    let mut next = pseudo(seed);
    (0..count).map(|_| next() as f32 / u32::MAX as f32 * 2.0 - 1.0).collect()
}

pub fn bf16s(seed: u32, count: usize) -> Vec<u16> {
    floats(seed, count).iter().map(|x| half::bf16::from_f32(*x).to_bits()).collect()
}

pub fn of_bf16(x: u16) -> f32 {
    half::bf16::from_bits(x).to_f32()
}

/// The largest difference, relative to the largest wanted magnitude.
pub fn difference(got: &[f32], want: &[f64]) -> f64 {
    assert_eq!(got.len(), want.len());
    let most = want.iter().fold(1e-30f64, |m, w| m.max(w.abs()));
    got.iter()
        .zip(want)
        .map(|(g, w)| (f64::from(*g) - w).abs() / most)
        .fold(0.0, |m, d| if d.is_nan() { f64::NAN } else { m.max(d) })
}
