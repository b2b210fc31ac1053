//! Exchanges between ranks.
//!
//! In: the collectives of a program. What a rank has to move in each is found when the program is loaded (`plan.rs`); a
//! [`Communicator`] then runs it, in two parts: a rank *posts* where its array is and goes on; when it needs the result it moves what
//! is to be moved. The only one so far serves ranks that are threads of one process ([`Local`]): they read
//! each other's arrays between two meetings of their group, of which the first is over when all have posted. Reading order: this file,
//! `plan.rs` (blocks), `transfer.rs` (copies and reductions), `bell.rs` (waiting), `local.rs`.
//!
//! Invariants: results do not depend on timing and are the same, bit for bit, on all ranks that get the same; no element is
//! moved more than twice, and nothing is allocated; a rank that fails, or does not come, never makes the others wait forever.

mod bell;
mod local;
pub mod plan;
mod transfer;

pub use bell::{Bell, Patience, Waited, lock};
pub use local::{Hub, Local};
pub use plan::Exchange;

use crate::runtime::device::pool::Pool;

/// Why an exchange did not happen.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CommError {
    /// Another rank had failed.
    Failed { rank: usize, why: String },
    /// These ranks did not come in time.
    Missing { ranks: Vec<usize>, seconds: u64 },
    /// A broken invariant: ranks run different programs, say.
    Broken(String),
}

/// An exchange that was posted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Posted {
    /// Which of the rank's exchanges.
    pub exchange: usize,
    /// Its number in the routine; the same on all ranks.
    pub number: usize,
}

/// A rank's end of what joins it with the others.
pub trait Communicator: Send {
    /// A run of a routine begins, on all ranks.
    fn begin(&mut self);

    /// Says where the rank's part of an exchange is, and where its result will be. Waits for nobody.
    fn post(&mut self, e: &Exchange, number: usize, from: *const u8, to: *mut u8);

    /// Moves what is to be moved in exchanges that were posted, all of the same set of groups; waits for the others.
    ///
    /// # Safety
    /// Buffers hold all that the exchanges reach, with elements of their types; from when they were posted until this returns nobody
    /// else writes them, and they are apart but where an exchange reduces in place.
    unsafe fn finish(&mut self, exchanges: &[Exchange], all: &[Posted], pool: &Pool) -> Result<(), CommError>;
}
