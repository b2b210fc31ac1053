//! What each rank of a pipeline does in a step, communication included, as lists of events: the language in which a step is
//! certified.
//!
//! - A rank's list is the order in which its host issues events. Events of one **stream** run one after the other; streams
//!   wait for each other by `Signal` and `Wait` alone.
//! - An **exchange** holds sends and receives that begin together, go on independently, and end when all have ended. A send ends
//!   only when its receive has begun, and the other way round: nothing is buffered.
//! - Sends from one rank to another meet its receives from there in order, as they have no tags.
//! - A **collective** ends when all members of its communicator have begun it.
//! - A receive writes a **slot** of the rank, which must have been read by all who need what is in it.
//!
//! Data- and tensor-parallel copies of a pipeline run the same lists. Communicators between copies of a rank are of the kind
//! [`Members::Copies`], so that one copy stands for all.

mod build;

pub use build::{Sizes, build};

use super::Action;

/// What goes from stage to stage.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Message {
    /// The stage before the boundary: results of stage `s` and their gradients.
    pub boundary: usize,
    pub microbatch: usize,
    pub backward: bool,
    /// Which shape, by whatever numbers the caller gives.
    pub shape: u32,
    pub bytes: u64,
}

/// `F3 0>1`: the results of stage 0 for microbatch 3; `G3 1>0`: their gradients.
impl std::fmt::Display for Message {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (s, k) = (self.boundary, self.microbatch);
        if self.backward { write!(f, "G{k} {}>{s}", s + 1) } else { write!(f, "F{k} {s}>{}", s + 1) }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Transfer {
    Send { to: usize, message: Message },
    Receive { from: usize, message: Message, slot: usize },
}

impl Transfer {
    pub fn message(&self) -> &Message {
        match self {
            Transfer::Send { message, .. } | Transfer::Receive { message, .. } => message,
        }
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum What {
    /// Slots that it reads, with what it needs to find there.
    Compute {
        action: Action,
        reads: Vec<(usize, Message)>,
    },
    /// Not empty.
    Exchange(Vec<Transfer>),
    /// A member's part in a collective operation: kind and bytes must be the same for all members.
    Collective {
        communicator: usize,
        kind: u32,
        bytes: u64,
    },
    /// A mark that other streams of the rank can wait for, by a number that occurs once on the rank.
    Signal(usize),
    Wait(usize),
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Event {
    pub stream: usize,
    pub what: What,
}

impl std::fmt::Display for Event {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.what {
            What::Compute { action, .. } => write!(f, "{action}"),
            What::Exchange(all) => {
                for (k, t) in all.iter().enumerate() {
                    f.write_str(if k > 0 { " | " } else { "" })?;
                    match t {
                        Transfer::Send { to, message } => write!(f, "send {message} to {to}")?,
                        Transfer::Receive { from, message, .. } => write!(f, "receive {message} from {from}")?,
                    }
                }
                Ok(())
            }
            What::Collective { communicator, .. } => write!(f, "collective of communicator {communicator}"),
            What::Signal(n) => write!(f, "signal {n}"),
            What::Wait(n) => write!(f, "wait {n}"),
        }
    }
}

/// Who takes part in a communicator's operations.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Members {
    /// Ranks of this pipeline.
    Ranks(Vec<usize>),
    /// The same rank of so many copies of this pipeline.
    Copies(usize),
}

/// The step of a pipeline.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Program {
    pub ranks: Vec<Vec<Event>>,
    /// The shape of each slot, by rank.
    pub slots: Vec<Vec<u32>>,
    pub communicators: Vec<Members>,
}

impl Program {
    pub fn events(&self) -> usize {
        self.ranks.iter().map(Vec::len).sum()
    }
}
