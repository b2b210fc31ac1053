//! Figures of a run: JSON lines and TensorBoard event files for tools, a loss curve and readable numbers for people.
//!
//! How to use it: per logged step make a `Record` and give it to each `JsonLines` and `EventFile` that is open; keep `(step, loss)`
//! pairs for `loss_curve(&points, &valid_points, width, height)` at the end, a string of at most `width` columns with a line end after every line.
//! `JsonLines::create(path)` begins a file anew; `JsonLines::resume(path, step)` keeps the records up to the step that
//! training goes on from, so that steps done twice appear once. `EventFile::create(dir)` makes a new file in a directory, as TensorBoard
//! expects of resumed runs too. Values that are not finite are `null` in JSON, since JSON has no other word, and as
//! they are in event files. Errors are E0813.

mod curve;
mod events;
mod format;
mod jsonl;

pub use curve::loss_curve;
pub use events::{EVENTS, EventFile};
pub use format::{bytes, duration, rate};
pub use jsonl::JsonLines;

use super::error::RuntimeError;

/// What is known of one step.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Record {
    pub step: u64,
    pub loss: Option<f64>,
    pub valid_loss: Option<f64>,
    pub grad_norm: Option<f64>,
    pub tokens_per_s: Option<f64>,
    /// Metrics of the model, by path.
    pub others: Vec<(String, f64)>,
}

impl Record {
    /// Names and values that are present, in a fixed order.
    pub fn values(&self) -> impl Iterator<Item = (&str, f64)> {
        let own = [
            ("loss", self.loss),
            ("valid_loss", self.valid_loss),
            ("grad_norm", self.grad_norm),
            ("tokens_per_s", self.tokens_per_s),
        ];
        let others = self.others.iter().map(|(name, value)| (name.as_str(), *value));
        own.into_iter().filter_map(|(name, value)| value.map(|v| (name, v))).chain(others)
    }
}

fn cannot_write(path: &std::path::Path, e: &std::io::Error) -> RuntimeError {
    RuntimeError::new("E0813", format!("cannot write `{}`: {}", path.display(), super::data::reason(e)))
        .place(path.display())
        .help("see that the directory is there, writable, and has space")
}
