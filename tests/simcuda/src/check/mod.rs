//! What is found wrong (`fault`), and how: states of bytes in device memory (`device`), races in shared memory
//! (`races`), conflicts of its banks (`banks`), counts of a launch (`counters`).

pub mod banks;
pub mod counters;
pub mod device;
pub mod fault;
pub mod races;
