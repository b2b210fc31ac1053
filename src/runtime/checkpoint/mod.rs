//! Saving and loading the state of training, and weights of other programs.
//!
//! In: a `Snapshot` (copied out of the arena between steps). Out: a directory
//! `DIR/step-00000200/{model.safetensors, optimizer.safetensors, .., index.json}`, and from it the same bytes again.
//! Invariants: at every instant, whatever is killed or fails, `DIR` holds only complete checkpoints under names `step-..`, and none
//! is removed before a newer one is complete; every byte that is loaded has been checked against `index.json`, which has a
//! checksum of its own. Tensor names are parameter paths; files of over `shard_bytes` are cut in Hugging Face's manner.
//!
//! How to use it:
//! - Training: `Saver::open(dir, SaveOptions { keep, .. })` (takes the directory: a second run there is refused). A new run calls
//!   `saver.set_aside(None, ..)` first, one resumed at step k `set_aside(Some(k), ..)`, and tells where old checkpoints went. Every N steps:
//!   `saver.save(snapshot)`, which returns at once unless the save before is still going on, and gives the outcome of that one;
//!   `poll()` between steps reports it sooner. `recycle()` gives a written snapshot's buffers back. Before the end: `finish()`.
//!   A failed save (E0808) harms nothing: warn and go on, and fail at the end if the last one failed.
//! - Resuming, eval, sample: `Checkpoint::open(path)` (a directory of checkpoints means its newest), `expect(group, &infos)` for each
//!   group (E0807 names the first tensors that differ), then `read_each(group, sink)` or `read(group)`; step, seed, data position,
//!   characters and the caller's own JSON are in `checkpoint.index`. Go on with step `index.step`, counted from 0.
//! - `Weights::open(path)` and `export(path, ..)` are for `load .. with map` and its inverse.
//!
//! Reading order: `save`, `index`, `load`, `saver`.

mod index;
mod load;
mod safefile;
mod save;
mod saver;
mod tensor;
mod weights;

pub use index::{DataPosition, Index};
pub use load::{Checkpoint, Found, list, locate};
pub use safetensors::Dtype as StoredType;
pub use save::{BEST, Group, SaveOptions, Snapshot, directory_name, save};
pub use saver::{Saved, Saver};
pub use tensor::{Tensor, TensorInfo, TensorView, bytes_fingerprint, convert, fingerprint, text_fingerprint};
pub use weights::{Weights, export};

#[cfg(test)]
mod tests;
