//! Which devices a program is compiled for, and its kernels as PTX.

use crate::program::Program;
use crate::runtime::RuntimeError;
use crate::runtime::device::cuda::{self, context, nvrtc};
use crate::{codegen, kernel};

/// The oldest architecture that kernels are for: 8.0.
const OLDEST: u32 = 80;

/// What runs a program.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Device {
    #[default]
    Cpu,
    /// GPUs, if there is one for each rank.
    Some,
    /// GPUs by their numbers, one for each rank; none: the first ones.
    Gpus(Vec<usize>),
}

impl Device {
    /// Of the word of `--device`; without it GPUs where there are some, and what compiles for them.
    pub fn of(word: Option<&str>) -> Result<Device, RuntimeError> {
        match word {
            Some("cpu") => Ok(Device::Cpu),
            None => Ok(if cuda::count().is_ok() && nvrtc::is_there() { Device::Some } else { Device::Cpu }),
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

impl Device {
    /// Whether a program of so many ranks is for GPUs.
    pub fn has_gpus(&self, ranks: usize) -> bool {
        match self {
            Device::Cpu => false,
            Device::Some => cuda::count().is_ok_and(|n| n >= ranks),
            Device::Gpus(_) => true,
        }
    }

    /// What compiled programs depend on.
    pub fn key(&self) -> Option<(bool, u32, usize)> {
        let required = matches!(self, Device::Gpus(_));
        (*self != Device::Cpu).then(|| (required, arch().unwrap_or(OLDEST), cuda::count().unwrap_or(0)))
    }

    pub fn numbers(&self) -> Vec<usize> {
        if let Device::Gpus(numbers) = self { numbers.clone() } else { Vec::new() }
    }

    /// The same for what only the processor does; `what` is how that is asked for.
    pub fn without_gpus(self, what: Option<&str>) -> Result<Device, RuntimeError> {
        match (what, self) {
            (None, device) => Ok(device),
            (Some(what), Device::Gpus(_)) => {
                Err(RuntimeError::new("E0902", format!("`{what}` works on the processor alone"))
                    .help("leave `--device` out, or write `--device cpu`"))
            }
            (Some(_), _) => Ok(Device::Cpu),
        }
    }
}

/// The architecture to compile for: that of the first device, or the oldest where there is none.
pub fn arch() -> Result<u32, RuntimeError> {
    let there = match cuda::count() {
        Ok(_) => context::capability(0)?,
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
