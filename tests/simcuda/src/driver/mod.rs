//! The CUDA driver's interface over software devices: `device` and `stream` hold the state, `graph` what is captured,
//! `module` and `launch` kernels; `abi` has the exported functions and is where raw pointers end.

pub mod abi;
pub mod codes;
pub mod device;
pub mod graph;
pub mod launch;
pub mod module;
pub mod pinned;
pub mod stream;
pub mod table;
