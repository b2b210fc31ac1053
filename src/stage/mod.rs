//! Cuts a step's work over the batch. So far: gradient accumulation over microbatches on one device.
//!
//! In: a whole training step as one graph (forward, backward, update). Out: a graph that computes the same outputs with at most a
//! microbatch's activations alive. Reading order: `samplewise.rs` (what each value is to the batch), `accumulate.rs`
//! (which loop computes what; emission).

pub mod accumulate;
mod samplewise;

pub use accumulate::accumulate;
