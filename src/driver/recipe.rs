//! What a training loop needs to know beyond the compiled program: data, schedule, tensors. Serialisable, so that a
//! built program carries it; no source text is needed to use it.

use super::files;
use super::findings::DataPlaces;
use super::origin::Origin;
use crate::elaborate::weights::WeightsMap;
use crate::program::{Role, Source};
use crate::runtime::RuntimeError;
use crate::runtime::checkpoint::TensorInfo;
use crate::runtime::data::{self, DataSpec, Input};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Recipe {
    /// Of the train item.
    pub name: String,
    pub model: String,
    pub steps: u64,
    pub seed: u64,
    pub save_every: Option<u64>,
    /// Checkpoints that stay, where the item says so; 0: all.
    pub keep: Option<u64>,
    /// Whether the checkpoint with the lowest validation loss stays beside them.
    #[serde(default)]
    pub save_best: bool,
    pub log_every: Option<u64>,
    pub data: Option<DataSpec>,
    /// Where the program names its data; nowhere if the command line does.
    pub data_at: DataPlaces,
    pub valid: Option<Valid>,
    /// The inputs that data feeds.
    pub inputs: Vec<Input>,
    pub params: Vec<TensorInfo>,
    pub states: Vec<(TensorInfo, Role)>,
    /// Parameter and the state that holds its average, by number.
    pub averages: Vec<(usize, usize)>,
    /// Parameters that are copies of the model's.
    #[serde(default)]
    pub copied: Vec<Copied>,
    /// After how many steps each the routine runs that makes replicas one.
    #[serde(default)]
    pub outer: Option<u64>,
    /// By how many steps gradients are late.
    #[serde(default)]
    pub late: u64,
    pub loads: Vec<Load>,
    /// What is counted per second, and how many of it a step has.
    pub unit: String,
    pub units: u64,
    /// What the program was compiled with, for checkpoints and reports.
    pub precision: String,
    /// The program and its settings, for checkpoints.
    pub origin: Origin,
}

/// A parameter of the program that holds copies of the model's (of replicas, or an earlier one), which a state holds.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Copied {
    /// Numbers of the two in the recipe.
    pub param: usize,
    pub model: usize,
    /// Of the copies; the recipe's parameter is the model's.
    pub info: TensorInfo,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Valid {
    pub data: DataSpec,
    /// As [`Recipe::data_at`].
    pub at: DataPlaces,
    pub every: Option<u64>,
    pub batches: Option<u64>,
}

/// Weights to begin with.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Load {
    pub path: PathBuf,
    /// Where the program says so.
    pub at: Source,
    /// How the file's tensors lie in the parameters.
    pub map: WeightsMap,
    /// Numbers of the parameters that it sets.
    pub params: Vec<usize>,
    /// Numbers of the states that it sets.
    pub states: Vec<usize>,
}

/// What the command line says over the train item.
#[derive(Clone, Debug, Default)]
pub struct Overrides {
    pub steps: Option<u64>,
    pub seed: Option<u64>,
    /// Files or `NAME=FILE`s, in the place of files of `data`, and of the same files in `valid`.
    pub data: Vec<PathBuf>,
    /// The same for `valid` alone.
    pub valid: Vec<PathBuf>,
}

impl Overrides {
    /// For evaluation: what is given as data is what is to be evaluated on.
    pub fn evaluated(self, recipe: &Recipe) -> Overrides {
        match recipe.valid.is_some() && self.valid.is_empty() {
            true => Overrides { valid: self.data, data: Vec::new(), ..self },
            false => self,
        }
    }
}

impl Recipe {
    /// Parameters of the model, and elements of its inputs.
    pub fn sizes(&self) -> [u64; 2] {
        let product = |shape: &mut dyn Iterator<Item = usize>| shape.map(|n| n as u64).product::<u64>();
        [
            self.params.iter().map(|p| product(&mut p.shape.iter().copied())).sum(),
            self.inputs.iter().map(|i| product(&mut i.dims.iter().map(|d| d.size))).sum(),
        ]
    }

    /// The command that evaluates a checkpoint.
    pub fn eval_command(&self) -> String {
        let file = Path::new(&self.origin.author.file).file_name().unwrap_or_default();
        format!("partita eval {}", file.to_string_lossy())
    }

    pub fn apply(&mut self, o: &Overrides) -> Result<(), RuntimeError> {
        self.steps = o.steps.unwrap_or(self.steps);
        self.seed = o.seed.unwrap_or(self.seed);
        let given = |what: &str, spec: Option<&DataSpec>, files: &[PathBuf]| match spec {
            Some(spec) => files::replacements(spec, &self.inputs, what, files),
            None if files.is_empty() => Ok(Vec::new()),
            None => Err(RuntimeError::new("E0902", format!("the train item has no `{what}`"))
                .help(format!("leave out `--{what}`, or add `{what} ..` to the item"))),
        };
        let data = given("data", self.data.as_ref(), &o.data)?;
        let valid = given("valid", self.valid.as_ref().map(|v| &v.data), &o.valid)?;
        if let Some(spec) = &mut self.data
            && files::replace(spec, &[&data])
        {
            self.data_at = DataPlaces::default();
        }
        if let Some(v) = &mut self.valid
            && files::replace(&mut v.data, &[&valid, &data])
        {
            v.at = DataPlaces::default();
        }
        Ok(())
    }

    /// An error of opening data, with the option that gives another file.
    pub fn with_option(&self, mut error: RuntimeError) -> RuntimeError {
        let place = error.place.as_deref().map(Path::new);
        let argument = |spec: Option<&DataSpec>| files::argument(spec?, place?);
        let option = match argument(self.data.as_ref()) {
            Some(argument) => format!("`--data {argument}`"),
            None => match argument(self.valid.as_ref().map(|v| &v.data)) {
                Some(argument) => format!("`--valid {argument}`"),
                None => return error,
            },
        };
        error.help = error.help.map(|h| h.replace("`--data FILE`", &option));
        error
    }

    /// Every data file, as often as it is named.
    pub fn data_paths(&self) -> Vec<PathBuf> {
        self.data.iter().chain(self.valid.as_ref().map(|v| &v.data)).flat_map(DataSpec::paths).collect()
    }

    /// The same with what each is for: `data`, or `data.label`.
    pub fn data_files(&self) -> Vec<(String, PathBuf)> {
        let of = |what: &'static str, spec: &DataSpec| {
            let named = |(input, path): (String, PathBuf)| match input.is_empty() {
                true => (what.to_string(), path),
                false => (format!("{what}.{input}"), path),
            };
            spec.files().into_iter().map(named).collect::<Vec<_>>()
        };
        let data = self.data.iter().flat_map(|d| of("data", d));
        data.chain(self.valid.iter().flat_map(|v| of("valid", &v.data))).collect()
    }

    /// Every file that a run reads.
    pub fn read_paths(&self) -> Vec<PathBuf> {
        let mut own = self.clone();
        let tokenizers = own.sources_mut().into_iter().filter_map(|s| s.tokenizer_mut().map(|t| t.path.clone()));
        self.data_paths().into_iter().chain(tokenizers).chain(self.load_paths()).collect()
    }

    /// Every file of weights to begin with.
    pub fn load_paths(&self) -> Vec<PathBuf> {
        self.loads.iter().map(|l| l.path.clone()).collect()
    }

    /// The sources of `data`, then those of `valid`.
    pub fn sources_mut(&mut self) -> Vec<&mut data::Source> {
        let valid = self.valid.as_mut().map(|v| &mut v.data);
        self.data.iter_mut().chain(valid).flat_map(DataSpec::sources_mut).collect()
    }

    /// Elements of all parameters.
    pub fn parameters(&self) -> u64 {
        self.params.iter().map(|p| p.shape.iter().product::<usize>() as u64).sum()
    }
}
