//! Pipelines: the step of a group of ranks, cut into what the ranks of each stage run.
//!
//! In: a step as all ranks of the pipeline's axis would compute it (the program of a rank, with its collectives along other axes), which
//! turns of which loops make a stage, and a [`Table`]. Out: a [`Pipelined`]: *functions* (what a stage computes forward or backward
//! for one microbatch, what a rank does before and behind the microbatches) and, for each rank along the axis, the list of calls,
//! sends and receives. Parameters and states are held by the ranks whose functions read them.
//!
//! Invariants: every value is computed once, but for what needs no parameter or nothing that is fed; what a rank needs of another one is sent once for each
//! microbatch; nothing is sent between stages of one rank; a parameter of several ranks gets the sum of what all of them add to its
//! gradient, and the same update everywhere. Lists can be run by ranks that wait for each other (`lists.rs`).
//!
//! An [`Endless`] pipeline does not drain: a run also begins the step after its own, with functions that read the parameters' latest versions.
//! Items of lists say in which runs they are done; what one run leaves to the next is in [`Onward`], by the microbatches of the step
//! that it belongs to, so that both steps find it in one place.
//!
//! Reading order: `flat.rs` (one list of operations), `stages.rs` (which stage computes what), `again.rs` (what other
//! stages read of what is computed again), `draw.rs` (functions as graphs), `cut.rs`
//! (which functions there are), `behind.rs` (reductions and updates: where), `after.rs` (and when), `lists.rs`.

mod after;
mod again;
mod behind;
mod cut;
mod draw;
mod flat;
mod lists;
mod stages;
mod touch;

pub use behind::members;
pub use cut::{Crossing, Endless, Holders, Onward, Pipelined, pipelined};
pub use draw::{Arg, Function, Var};
pub use lists::{Does, Item};
pub use stages::Turns;
