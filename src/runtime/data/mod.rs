//! Training and validation data: from files to the values of a step's inputs.
//!
//! In: a `DataSpec` (what the train item says) and the `Input`s to be fed. Out: `Batch`es, one a step.
//! Invariants: the batch of a step depends on the files, the seed and the step alone, so resuming at step k means asking
//! for step k; in training every epoch visits every sample once and batches run on over epoch ends; whatever bytes a file
//! has, the answer is a batch or an error of code E0801 to E0804.
//!
//! How to use it:
//! - `Loader::open(&spec, &inputs, Order::Train { seed }, None)`, then `Prefetcher::start(loader, first..steps, 2)`, and per step
//!   `next_batch()`, copy `field.bytes()` of each of `batch.fields` to its input, `recycle(batch)`. `loader.chars()` is the
//!   table of characters to save with checkpoints (clone it before the loader moves into the prefetcher).
//! - Validation: `Loader::open(&spec, &inputs, Order::Pass, chars)` with the training table, then `fill(i, &mut batch)` for
//!   `i in 0..loader.batches()`; report `left_out()` once if it is not 0.
//! - Hand those inputs to `open` that the data feeds. Steps count from 0. Paths are opened as they are: resolve relative
//!   ones first.
//!
//! Choices: a stream's epoch has the windows that exist at every offset, `(n - seq) / seq` of them (a part that holds a
//! single window moves it as far as there is room). Ids are `int`s, so below 2^31. The bytes beyond a line of `lines` are
//! line ends with targets of -100, and belong to document 1. `.npy` files may be of either byte order; elements are
//! computed in f64 and rounded once. CSV columns count as ints while all picked values are whole.
//!
//! Reading order: `spec`, `loader`, `stream`, `array`, `order`.

mod array;
mod batch;
mod chars;
mod csv;
mod expr;
mod file;
mod given;
mod idx;
mod lines;
mod loader;
mod npy;
mod order;
mod prefetch;
mod spec;
mod stream;

pub use batch::{Batch, Field};
pub use chars::CharTable;
pub use file::{pipes_once, reason};
pub use given::given;
pub use loader::{Loader, Order};
pub use prefetch::Prefetcher;
pub use spec::{Bound, DataSpec, Dim, Expr, IdWidth, Input, STREAM_FIELDS, Source, SourceKind};

#[cfg(test)]
mod tests;
