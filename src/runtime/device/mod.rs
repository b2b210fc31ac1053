//! The CPU as a device, and the raw calls of GPUs (`cuda/`): threads, memory, machine code, matrix products, and the kernels that are no fused loop nests.
//!
//! Reading order: `pool.rs` (threads), `arena.rs` (memory), `code.rs` and `helpers.rs` (generated code and what it may
//! call), `product/`, `attention/`, `library/`. This is the rim where raw memory is touched: the rest of the runtime sees checked calls.

pub mod arena;
pub mod attention;
pub mod code;
pub mod cpu;
pub mod cuda;
pub mod helpers;
pub mod library;
pub mod pool;
pub mod product;
pub mod roof;
pub mod share;
