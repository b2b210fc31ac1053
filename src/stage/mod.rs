//! Cuts a step's work over the batch: statistics by slices, replicas that train apart, and gradient accumulation over microbatches on one device.
//!
//! `accumulate` takes a whole training step as one graph (forward, backward, update) and gives a graph that computes the same outputs
//! with at most a microbatch's activations alive. `slices` takes a model before gradients are taken, and changes what it means: see
//! its door, as does `replicas` with a whole step. Reading order: `samplewise.rs` (what each value is to the batch), `accumulate.rs` (which loop computes what;
//! emission), `slices/`, `replicas/`.

pub mod accumulate;
pub mod replicas;
mod samplewise;
pub mod slices;

pub use accumulate::{accumulate, accumulate_in_stages, part_of};
pub use slices::slices;
