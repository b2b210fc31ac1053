//! NCCL's interface between ranks that are threads or processes of one host. `shared` is the memory that the ranks of a
//! communicator have in common, `comm` a rank's side of it, `exchange` a collective or a message as steps that never
//! block, `group` what streams run, `reduce` the arithmetic, `abi` the exported functions.
//!
//! As with NCCL, a call only puts work into a stream, and that work waits for the other ranks. Unlike NCCL, what can
//! never go on is said: calls that do not match, ranks that are gone, ranks that all wait.

pub mod abi;
pub mod comm;
pub mod exchange;
pub mod group;
pub mod reduce;
pub mod shared;
