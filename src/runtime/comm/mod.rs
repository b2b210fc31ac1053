//! Exchanges between ranks.
//!
//! In: the collectives of a program. What a rank has to move in each is found when the program is loaded (`plan.rs`); a
//! [`Communicator`] then runs it, in two parts: a rank *posts* where its array is and goes on, and waits when it needs the result. Those
//! here serve ranks that are threads of one process: they read each other's arrays between two meetings of their group, of
//! which the first is over when all have posted. What is to be moved is moved by the rank's own threads when it waits
//! ([`Local`]), or before, by a thread beside them where cores are spare ([`Behind`]). Reading order: this file,
//! `plan.rs` (blocks), `transfer.rs` (copies and reductions), `bell.rs` (waiting), `local.rs`, `behind.rs`.
//!
//! Invariants: results do not depend on timing and are the same, bit for bit, on all ranks that get the same; no element is
//! moved more than twice, and nothing is allocated; a rank that fails, or does not come, never makes the others wait forever.

mod behind;
mod bell;
mod local;
pub mod plan;
mod transfer;

pub use behind::Behind;
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
    /// Its number among those of all routines; the same on all ranks of its group.
    pub number: usize,
}

/// Exchanges that are waited for together: the number of the routine, and of the wait in it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Deal {
    pub routine: usize,
    pub wait: usize,
}

/// All exchanges of a program, as one rank sees them.
#[derive(Default)]
pub struct Deals {
    pub exchanges: Vec<Exchange>,
    /// By routine, and by number of a wait.
    pub waits: Vec<Vec<Vec<Posted>>>,
}

impl Deals {
    pub fn of(&self, deal: Deal) -> &[Posted] {
        &self.waits[deal.routine][deal.wait]
    }
}

/// A rank's end of what joins it with the others.
pub trait Communicator: Send {
    /// A run of a routine begins, on all ranks.
    fn begin(&mut self);

    /// Says where the rank's part of an exchange is, and where its result will be. Waits for nobody.
    fn post(&mut self, posted: Posted, from: *const u8, to: *mut u8);

    /// The last exchange of a wait was posted.
    ///
    /// # Safety
    /// Buffers hold all that the exchanges reach, with elements of their types; until they are finished (or the run has ended) nobody
    /// else writes them, and they are apart but where an exchange reduces in place.
    unsafe fn posted(&mut self, deal: Deal);

    /// Returns when the results of exchanges that were posted are there. All are of the same set of groups.
    ///
    /// # Safety
    /// As for [`Communicator::posted`].
    unsafe fn finish(&mut self, deal: Deal, pool: &Pool) -> Result<(), CommError>;

    /// Says where something lies that another rank takes. A number is used once in a run. Waits for nobody.
    fn send(&mut self, number: usize, from: *const u8);

    /// Takes what a rank sends under a number, once it is there.
    ///
    /// # Safety
    /// Both places have so many bytes, and nobody writes them until this returns.
    unsafe fn receive(
        &mut self,
        number: usize,
        from: usize,
        to: *mut u8,
        bytes: usize,
        pool: &Pool,
    ) -> Result<(), CommError>;

    /// Waits until a rank has taken what was sent to it.
    fn sent(&mut self, number: usize, to: usize) -> Result<(), CommError>;

    /// The run is over, maybe before its end: nothing is moved any more when this returns.
    fn end(&mut self);
}
