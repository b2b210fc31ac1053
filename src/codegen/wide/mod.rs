//! Machine code of kernels for x86-64 with vectors of 512 or 256 bits.
//!
//! In: a kernel. Out: the bytes of its function, which run wherever they are put at a multiple of 64, or nothing, if the
//! kernel needs what is not here (64-bit floats, or a very large frame); then `cpu` makes its code. Functions are called as those of `cpu` are.
//!
//! Invariants: a row is computed in the same way, bit for bit, whatever rows are computed by the same call; nothing outside
//! of the buffers is touched, since the lanes that are too many are masked off.
//!
//! Reading order: `ir.rs` (the vector IR), `plan.rs` (which loop fills lanes), `nest.rs` (loops and statements), `expr.rs`
//! (expressions, addresses), `map.rs`, `math.rs`, `random.rs` (functions); then the machine: `allocate.rs` (registers),
//! `emit.rs`, `masks.rs`, `memory.rs`, `call.rs` (instructions), `asm.rs` (their bytes).

mod allocate;
mod asm;
mod call;
mod convert;
mod emit;
mod expr;
mod ir;
mod map;
mod masks;
mod math;
mod memory;
mod nest;
mod plan;
mod print;
mod random;

use crate::kernel::Kernel;
use crate::types::cpu::Vectors;

/// The width of vectors.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Width {
    /// 256 bits: AVX2.
    W256,
    /// 512 bits: AVX-512.
    W512,
}

impl Width {
    pub const ALL: [Width; 2] = [Width::W512, Width::W256];

    /// The widest that the processor that this runs on has, and that is allowed.
    pub fn host() -> Option<Width> {
        let allowed = |width: &Width| match width {
            Width::W256 => Vectors::Avx2.allowed(),
            Width::W512 => Vectors::Avx512.allowed(),
        };
        Width::ALL.into_iter().filter(allowed).find(|w| w.is_here())
    }

    /// Whether the processor that this runs on can run its code.
    #[cfg(all(target_arch = "x86_64", unix))]
    pub fn is_here(self) -> bool {
        use std::is_x86_feature_detected as has;
        let base = has!("avx2") && has!("fma") && has!("f16c") && has!("bmi2");
        match self {
            Width::W256 => base,
            Width::W512 => base && has!("avx512f") && has!("avx512bw") && has!("avx512dq") && has!("avx512vl"),
        }
    }

    #[cfg(not(all(target_arch = "x86_64", unix)))]
    pub fn is_here(self) -> bool {
        false
    }

    /// What its code needs, by the names of `program::Code::target`.
    pub fn features(self) -> &'static [&'static str] {
        match self {
            Width::W256 => &["avx2", "fma", "f16c", "bmi2"],
            Width::W512 => &["avx2", "fma", "f16c", "bmi2", "avx512f", "avx512bw", "avx512dq", "avx512vl"],
        }
    }

    fn lanes(self) -> usize {
        match self {
            Width::W256 => 8,
            Width::W512 => 16,
        }
    }

    /// The code of a kernel, if this code generator knows everything that it needs.
    pub fn compile(self, kernel: &Kernel) -> Option<Vec<u8>> {
        emit::emit(&nest::build(kernel, self.lanes())?)
    }

    /// The text of a kernel's vector IR.
    pub fn text(self, kernel: &Kernel) -> Option<String> {
        Some(print::print(&nest::build(kernel, self.lanes())?))
    }
}
