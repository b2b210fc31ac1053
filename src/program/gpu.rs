//! What GPUs run: the text of all kernels, and for each step the kernels that it launches.
//!
//! The runtime compiles the text, finds out where buffers lie and launches; it knows nothing of tiles and teams.

use super::{BufferId, Scalar};
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Gpu {
    /// CUDA C that needs no header.
    pub text: String,
    /// What NVRTC made of it, for GPUs of an architecture (as 90 for 9.0) or later; empty where it was not compiled yet.
    pub ptx: String,
    pub arch: u32,
    /// Numbers of the devices to run on, one for each rank; none: the first ones.
    pub devices: Vec<usize>,
    /// Names of the kernels in it.
    pub kernels: Vec<String>,
    /// By routine, then by the number of a step, those of a loop's body counted after the loop.
    pub steps: Vec<Vec<Vec<GpuLaunch>>>,
    /// Bytes that the kernels of a step hand to each other.
    pub scratch: usize,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GpuLaunch {
    /// Index into [`Gpu::kernels`].
    pub kernel: u32,
    /// Blocks.
    pub blocks: u32,
    /// Threads of a block.
    pub threads: u32,
    /// Bytes of shared memory beside what the text declares.
    pub shared: u32,
    pub args: Vec<GpuArg>,
    /// What [`GpuArg::Scalars`] points to; for draws of classes the runtime adds `top_k` and the bits of `top_p`.
    pub scalars: Vec<Scalar>,
}

/// All of them are addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum GpuArg {
    /// So many bytes behind the start of a buffer.
    Buffer(BufferId, u64),
    /// So many bytes behind the start of the scratch memory.
    Scratch(u64),
    /// The launch's scalars (u64), computed by the runtime for this run.
    Scalars,
    /// The status cell: see [`super::Failure`].
    Status,
}
