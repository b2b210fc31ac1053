//! A grid: its blocks one after the other, in the order of their numbers or against it.

use super::block;
use super::decode::Kernel;
use super::env::{Env, Shared};
use crate::check::counters::Counters;
use crate::check::device::Memory;
use crate::check::fault::Fault;
use crate::check::races::Races;
use crate::config::Config;
use std::sync::Arc;
use std::time::Instant;

/// One launch of a kernel.
pub struct Launch {
    pub kernel: Arc<Kernel>,
    pub grid: [u32; 3],
    pub threads: [u32; 3],
    /// Bytes of shared memory that the launch asks for.
    pub dynamic: usize,
    pub params: Vec<u8>,
}

/// Runs a launch. A fault ends it.
pub fn run(launch: &Launch, memory: &Memory, config: &Config) -> (Counters, Option<Fault>) {
    let begin = Instant::now();
    let kernel = &launch.kernel;
    let bytes = kernel.shared_bytes + launch.dynamic;
    let threads: u32 = launch.threads.iter().product();
    let mut warps = block::warps(kernel, launch.threads, launch.grid, launch.dynamic);
    let races = (config.races && bytes > 0).then(|| Races::new(bytes, warps.len(), config.warp_races));
    let shared = Shared {
        data: vec![0xcd; bytes],
        written: vec![0; bytes],
        races,
        find_uninitialised: config.uninitialised,
        count_banks: config.counters,
    };
    let mut env = Env {
        launch,
        memory,
        shared,
        block: [0; 3],
        warp: 0,
        counters: Counters { launches: 1, ..Counters::default() },
        fault: None,
        budget: config.budget,
    };
    let [gx, gy, gz] = launch.grid;
    let blocks = u64::from(gx) * u64::from(gy) * u64::from(gz);
    for i in 0..blocks {
        let i = if config.backwards { blocks - 1 - i } else { i };
        env.block = [
            (i % u64::from(gx)) as u32,
            (i / u64::from(gx) % u64::from(gy)) as u32,
            (i / (u64::from(gx) * u64::from(gy))) as u32,
        ];
        block::run(kernel, &mut warps, &mut env, threads, config.backwards);
        for w in &mut warps {
            env.counters.instructions += std::mem::take(&mut w.instructions);
            env.counters.lane_instructions += std::mem::take(&mut w.lane_instructions);
        }
        if env.fault.is_some() {
            break;
        }
    }
    memory.end_launch();
    env.counters.nanoseconds = begin.elapsed().as_nanos() as u64;
    (env.counters, env.fault)
}
