//! What a training loop needs to know beyond the compiled program: data, schedule, tensors. Serialisable, so that a
//! built program carries it; no source text is needed to use it.

use crate::program::Role;
use crate::runtime::checkpoint::TensorInfo;
use crate::runtime::data::{DataSpec, Input};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Recipe {
    /// Of the train item.
    pub name: String,
    pub model: String,
    pub steps: u64,
    pub seed: u64,
    pub save_every: Option<u64>,
    pub log_every: Option<u64>,
    pub data: Option<DataSpec>,
    pub valid: Option<Valid>,
    /// The inputs that data feeds.
    pub inputs: Vec<Input>,
    pub params: Vec<TensorInfo>,
    pub states: Vec<(TensorInfo, Role)>,
    /// Parameter and the state that holds its average, by number.
    pub averages: Vec<(usize, usize)>,
    pub loads: Vec<Load>,
    /// What is counted per second, and how many of it a step has.
    pub unit: String,
    pub units: u64,
    /// What the program was compiled with, for checkpoints and reports.
    pub precision: String,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Valid {
    pub data: DataSpec,
    pub every: Option<u64>,
    pub batches: Option<u64>,
}

/// Weights to begin with.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Load {
    pub path: PathBuf,
    /// Numbers of the parameters that it sets.
    pub params: Vec<usize>,
}

impl Recipe {
    /// Elements of all parameters.
    pub fn parameters(&self) -> u64 {
        self.params.iter().map(|p| p.shape.iter().product::<usize>() as u64).sum()
    }
}
