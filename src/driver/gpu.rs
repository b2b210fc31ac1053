//! Which devices a program is compiled for, and its kernels as PTX.

use crate::program::Program;
use crate::runtime::RuntimeError;
use crate::runtime::device::cuda::{self, Context, nvrtc};
use crate::{codegen, kernel};

/// The oldest architecture that kernels are for: 8.0.
const OLDEST: u32 = 80;

/// What runs a program.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Device {
    #[default]
    Cpu,
    /// GPUs by their numbers, one for each rank; none: the first ones.
    Gpus(Vec<usize>),
}

impl Device {
    /// Of the word of `--device`; without it GPUs where there are some, and what compiles for them.
    pub fn of(word: Option<&str>) -> Result<Device, RuntimeError> {
        match word {
            Some("cpu") => Ok(Device::Cpu),
            None => Ok(match cuda::count().is_ok() && nvrtc::is_there() {
                true => Device::Gpus(Vec::new()),
                false => Device::Cpu,
            }),
            Some(word) => {
                let wrong = || {
                    RuntimeError::new("E0902", format!("`{word}` is no device"))
                        .help("write `cpu`, `cuda`, or `cuda:0,1` for the GPUs of these numbers")
                };
                let numbers = match word.strip_prefix("cuda") {
                    Some("") => Vec::new(),
                    Some(rest) => {
                        let list = rest.strip_prefix(':').ok_or_else(wrong)?;
                        list.split(',').map(|n| n.parse().map_err(|_| wrong())).collect::<Result<_, _>>()?
                    }
                    None => return Err(wrong()),
                };
                cuda::count()?;
                Ok(Device::Gpus(numbers))
            }
        }
    }
}

/// The architecture to compile for: that of the first device, or the oldest where there is none.
pub fn arch() -> Result<u32, RuntimeError> {
    let there = match cuda::count() {
        Ok(_) => Context::open(0)?.arch,
        Err(_) => OLDEST,
    };
    nvrtc::newest(there)
}

/// Kernels of a planned program.
pub fn compile(program: &mut Program, kernels: &[kernel::Kernel]) -> Result<(), RuntimeError> {
    let mut gpu = codegen::cuda::generate(program, kernels);
    gpu.arch = arch()?;
    gpu.ptx = nvrtc::compile(&gpu.text, gpu.arch)?;
    program.gpu = Some(gpu);
    Ok(())
}
