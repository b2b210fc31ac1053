//! Runs kernels: `decode` turns a linked kernel into operations (a function and its rows), `warp` steps 32 lanes through
//! them, `block` runs the warps of a block from barrier to barrier, `launch` the blocks of a grid.
//!
//! Always holds: an operation computes all 32 lanes and writes those that are active; nothing is written after a fault.

pub mod asynccopy;
pub mod atomics;
pub mod barrier;
pub mod block;
pub mod compare;
pub mod convert;
pub mod decode;
mod decode_memory;
pub mod env;
pub mod float;
pub mod half;
pub mod int;
pub mod lanes;
pub mod launch;
pub mod math;
pub mod memory;
pub mod mma;
pub mod shuffle;
pub mod special;
pub mod warp;
