//! Strings the rooms together: from a path and options to diagnostics, graphs, programs and runs.
//!
//! In: [`Request`]s of the command line or an editor. Out: values and diagnostics; nothing is printed here.
//! Reading order: `check.rs` (the front end), then the pipeline of passes.

pub mod check;

pub use check::{Checked, ModelFacts, Request, check_source};
