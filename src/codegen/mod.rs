//! Kernel IR to code.
//!
//! In: `kernel::Kernel`s. Out: machine code of the processor: `cpu` writes it for every kernel on every processor, by
//! Cranelift, with vectors of 128 bits; `wide` writes it for most kernels on x86-64 with vectors of 256 or 512 bits. `cuda` writes
//! CUDA C, for GPUs, of kernels and of all other steps. A code
//! generator decides nothing about what is computed, only how. `plan.rs` is what all know of a kernel,
//! `coefficients.rs` what the first two's functions share.

mod coefficients;
pub mod cpu;
pub mod cuda;
mod plan;
pub mod wide;
