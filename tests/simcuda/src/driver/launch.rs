//! Launches: what a driver refuses, and the work that a stream does.

use super::codes::{Code, INVALID_HANDLE, INVALID_VALUE, LAUNCH_OUT_OF_RESOURCES};
use super::device::Device;
use super::module::Function;
use super::stream::{Stream, Work};
use crate::check::fault::Fault;
use crate::config::Config;
use crate::exec::launch::Launch;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Bytes of shared memory that a block has without asking.
pub const SHARED: usize = 48 << 10;

/// The most that a block can ask for (CUDA C++ Programming Guide, table of compute capabilities).
pub fn shared_opt_in(arch: u32) -> usize {
    match arch {
        80 | 87 => 163 << 10,
        86 | 89 | 120.. => 99 << 10,
        90..=119 => 227 << 10,
        75..=79 => 64 << 10,
        _ => 96 << 10,
    }
}

struct Task {
    launch: Launch,
    /// Keeps the module's variables.
    _function: Arc<Function>,
}

impl Work for Task {
    fn run(&self, device: &'static Device) -> Result<(), Fault> {
        device.run(&self.launch)
    }
}

/// Checks a launch as a driver does and hands it over.
pub fn launch(
    function: &Arc<Function>,
    grid: [u32; 3],
    threads: [u32; 3],
    dynamic: usize,
    params: Vec<u8>,
    stream: &Arc<Stream>,
) -> Result<(), Code> {
    if stream.device.index != function.module.device.index {
        return Err(INVALID_HANDLE);
    }
    let kernel = &function.kernel;
    let count: u64 = threads.iter().map(|t| u64::from(*t)).product();
    let wrong = grid.contains(&0)
        || threads.contains(&0)
        || grid[0] > i32::MAX as u32
        || grid[1] > 65535
        || grid[2] > 65535
        || threads[0] > 1024
        || threads[1] > 1024
        || threads[2] > 64
        || count > 1024;
    if wrong {
        return Err(INVALID_VALUE);
    }
    if kernel.max_threads > 0 && count > u64::from(kernel.max_threads) {
        return Err(LAUNCH_OUT_OF_RESOURCES);
    }
    let asked = function.max_dynamic.load(Ordering::Relaxed).max(0) as usize;
    let allowed = asked.max(SHARED.saturating_sub(kernel.shared_bytes));
    if dynamic > allowed || kernel.shared_bytes + dynamic > shared_opt_in(Config::get().arch) {
        return Err(INVALID_VALUE);
    }
    let launch = Launch { kernel: kernel.clone(), grid, threads, dynamic, params };
    stream.push(Arc::new(Task { launch, _function: function.clone() }))
}
