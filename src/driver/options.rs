//! What to compile and how: the only options of the compiler. Passes get it first and read nothing else.

use super::cache::Cache;
use super::check::Request;
use super::gpu::Device;
use crate::kernel::{self, Bands};
use crate::types::DType;
use std::path::PathBuf;

#[derive(Clone, Debug, Default)]
pub struct Options {
    pub request: Request,
    /// Name of the train item; without it the only one, or the first one named like its model.
    pub item: Option<String>,
    /// Name of the plan; without it one device.
    pub plan: Option<String>,
    /// `--mesh axis=size`
    pub mesh: Vec<(String, u64)>,
    /// Replaces the plan's precision.
    pub precision: Option<DType>,
    /// Threads that generate code; 0 means as many as there are processors.
    pub threads: usize,
    /// Where each pass leaves its result as text.
    pub dump: Option<PathBuf>,
    /// Names of `output`s that evaluation computes.
    pub outputs: Vec<String>,
    /// Leave every value in memory where it can be looked at.
    pub unfused: bool,
    /// When wide values are made some rows at a time.
    pub bands: Bands,
    /// What it is compiled for.
    pub device: Device,
    /// Where compiled programs are kept from run to run; nowhere without it.
    pub cache: Option<Cache>,
}

impl Options {
    pub fn of(path: impl Into<PathBuf>) -> Options {
        Options { request: Request { path: path.into(), ..Request::default() }, ..Options::default() }
    }

    /// What lowering may do.
    pub fn lowering(&self) -> kernel::Options {
        kernel::Options { fuse: !self.unfused, bands: self.bands, ..kernel::Options::default() }
    }

    pub fn thread_count(&self) -> usize {
        if self.threads > 0 { self.threads } else { processors() }
    }
}

/// Processors that this process may use.
pub fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}
