//! A GPU made of software. The library takes the place of `libcuda.so.1` and of `libnccl.so.2`: `driver` has the entries of
//! the CUDA driver, `nccl` those of NCCL, `ptx` and `exec` read and run the PTX that the real NVRTC emits, `check` finds
//! what a device would not tell. It proves what programs do, not how fast.

pub mod check;
pub mod config;

pub mod driver;
pub mod exec;
pub mod nccl;
pub mod place;
pub mod ptx;
pub mod report;
