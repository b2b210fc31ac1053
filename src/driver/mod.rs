//! Strings the rooms together: from a path and options to diagnostics, graphs, programs and runs.
//!
//! In: [`Options`] of the command line or an editor. Out: values, [`Findings`] and events; nothing is printed here.
//! Invariant: a program with errors yields no graphs, and nothing is run that the verifier has not seen in debug builds.
//! Reading order: `check.rs` (the front end), `pipeline.rs` (the passes in order), `recipe.rs` (what a run needs to know),
//! `compile.rs` with `cache.rs` (what was compiled before), `engine.rs` (what runs a step), `train.rs`.

mod average;
pub mod build;
pub mod cache;
pub mod calibrate;
pub mod check;
pub mod comm;
pub mod compile;
mod costs;
mod data;
pub mod doctor;
pub mod emulate;
pub mod engine;
pub mod evaluate;
pub mod export;
mod files;
pub mod findings;
pub mod format;
pub mod gpu;
pub mod inspect;
pub mod library;
pub mod memory;
mod metrics;
mod noise;
pub mod options;
pub mod origin;
pub mod overwrite;
mod passes;
pub mod pipeline;
pub mod plan;
pub mod profile;
pub mod recipe;
pub mod recompute;
mod replicas;
pub mod sample;
pub mod sampler;
pub mod scale;
pub mod schedule;
pub mod sharding;
pub mod show;
mod size;
pub mod stages;
mod summary;
pub mod train;
pub mod verify;
pub mod weights;

pub use check::{Checked, ModelFacts, Request, check_source};
pub use findings::{Findings, Outcome};
pub use options::Options;
pub use recipe::Recipe;
