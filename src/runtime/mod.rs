//! What runs a compiled program: devices and the executor, data, checkpoints, metrics, tokenizers.
//!
//! Input: a `program` artefact and plain descriptions (data sources, checkpoint directories); output: trained weights,
//! metrics, text. It knows nothing of the compiler and could be another process: it uses `program`, `mesh` and `types` only.
//! Whatever a user or a file can get wrong is a `RuntimeError`, never a panic. Nothing here prints.
//!
//! Results depend on neither the number of threads nor their timing, and nothing is allocated in a step after the first
//! one.
//!
//! Reading order: `error`, `device` (what a step is made of), `comm` (exchanges between ranks), `exec`, `gpu` (programs on GPUs), `data`, `checkpoint`, `metrics`.

pub mod checkpoint;
pub mod comm;
pub mod data;
pub mod device;
pub mod error;
pub mod exec;
pub mod gpu;
pub mod metrics;
pub mod stop;
pub mod tokenizer;

pub use error::RuntimeError;
