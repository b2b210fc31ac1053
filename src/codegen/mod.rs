//! Kernel IR to code.
//!
//! In: `kernel::Kernel`s. Out: machine code of the processor (`cpu`). A code generator decides nothing about what is
//! computed, only how.

pub mod cpu;
