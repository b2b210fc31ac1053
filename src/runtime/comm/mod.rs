//! Exchanges between ranks.
//!
//! In: the collectives of a program. What a rank has to move in each is found when the program is loaded (`plan.rs`); a
//! [`Communicator`] then runs it. The only one so far serves ranks that are threads of one process ([`Local`]): they read
//! each other's arrays between two meetings of their group. Reading order: this file, `plan.rs` (blocks), `transfer.rs` (copies and
//! reductions), `bell.rs` (waiting), `local.rs`.
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

/// A rank's end of what joins it with the others.
pub trait Communicator: Send {
    /// A run of a routine begins, on all ranks.
    fn begin(&mut self);

    /// Runs the rank's part of a collective; `number` is that of its step and the same on all ranks.
    ///
    /// # Safety
    /// Buffers hold all that the exchange reaches, with elements of its type; until this returns nobody else writes them.
    unsafe fn exchange(
        &mut self,
        e: &Exchange,
        number: usize,
        from: *const u8,
        to: *mut u8,
        pool: &Pool,
    ) -> Result<(), CommError>;
}
