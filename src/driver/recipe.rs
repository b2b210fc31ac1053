//! What a training loop needs to know beyond the compiled program: data, schedule, tensors. Serialisable, so that a
//! built program carries it; no source text is needed to use it.

use crate::elaborate::weights::WeightsMap;
use crate::program::{Role, Source};
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
    /// Where the program names its data; nowhere if the command line does.
    pub data_at: Source,
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
    /// As [`Recipe::data_at`].
    pub at: Source,
    pub every: Option<u64>,
    pub batches: Option<u64>,
}

/// Weights to begin with.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Load {
    pub path: PathBuf,
    /// How the file's tensors lie in the parameters.
    pub map: WeightsMap,
    /// Numbers of the parameters that it sets.
    pub params: Vec<usize>,
    /// Whether it sets the model's states, too.
    pub states: bool,
}

/// What the command line says over the train item.
#[derive(Clone, Debug, Default)]
pub struct Overrides {
    pub steps: Option<u64>,
    pub seed: Option<u64>,
    /// In the place of the first file of `data`, and of the same file in `valid`.
    pub data: Option<PathBuf>,
}

impl Recipe {
    pub fn apply(&mut self, o: &Overrides) {
        self.steps = o.steps.unwrap_or(self.steps);
        self.seed = o.seed.unwrap_or(self.seed);
        let (Some(path), Some(data)) = (&o.data, &mut self.data) else { return };
        let Some(before) = data.paths().into_iter().next() else { return };
        data.replace_path(&before, path);
        self.data_at = Source::default();
        if let Some(valid) = &mut self.valid {
            valid.data.replace_path(&before, path);
            valid.at = Source::default();
        }
    }

    /// Every data file, as often as it is named.
    pub fn data_paths(&self) -> Vec<PathBuf> {
        self.data.iter().chain(self.valid.as_ref().map(|v| &v.data)).flat_map(DataSpec::paths).collect()
    }

    /// Every file that a run reads.
    pub fn read_paths(&self) -> Vec<PathBuf> {
        self.data_paths().into_iter().chain(self.loads.iter().map(|l| l.path.clone())).collect()
    }

    /// Elements of all parameters.
    pub fn parameters(&self) -> u64 {
        self.params.iter().map(|p| p.shape.iter().product::<usize>() as u64).sum()
    }
}
