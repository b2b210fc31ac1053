//! GPUs by NVIDIA's driver, its compiler and its collectives, all found when they are first needed: nothing of CUDA is there when
//! Partita is built, nor need it be where it runs.
//!
//! Reading order: `load.rs` (finding libraries), `driver.rs` (the functions of `libcuda`), `context.rs` (a device, its memory, its
//! streams, its kernels), `nvrtc.rs` (text to PTX), `nccl.rs` (collectives). All raw calls are here; an address of a device is a plain
//! number outside, since the host never reads through it.

pub mod context;
mod driver;
mod load;
pub mod nccl;
pub mod nvrtc;

pub use context::{Context, Event, Function, Graph, Loaded, Room, Stream};
pub use load::Absent;

use crate::runtime::RuntimeError;

/// Where GPUs can be used, how many there are; else why not.
pub fn count() -> Result<usize, RuntimeError> {
    context::count()
}

/// What `partita doctor` tells of this machine's GPUs: names and values.
pub fn report() -> Vec<(&'static str, String)> {
    let mut facts = Vec::new();
    match context::count() {
        Ok(n) => {
            facts.push(("gpu driver", format!("{} ({})", context::driver_version(), context::driver_path())));
            for device in 0..n {
                let told = context::describe(device).unwrap_or_else(|e| e.message);
                facts.push(("gpu", format!("{device}: {told}")));
            }
        }
        Err(e) => facts.push(("gpu driver", e.message)),
    }
    facts.push(("nvrtc", nvrtc::told()));
    facts.push(("nccl", nccl::told()));
    facts
}
