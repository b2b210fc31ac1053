//! What each rank of a pipeline does in a step, communication included, as lists of events: the language in which a step is
//! certified.
//!
//! - A rank's list is the order in which its host issues events. Events of one **stream** run one after the other; streams
//!   wait for each other by `Signal` and `Wait` alone.
//! - An **exchange** holds sends and receives that begin together, go on independently, and end when all have ended. A send ends
//!   only when its receive has begun, and the other way round: nothing is buffered.
//! - Sends from one rank to another meet its receives from there in order, as they have no tags.
//! - An **offer** is a send that ends at once: the message lies in the sender's memory until it is **taken**, which waits for the offer. The
//!   sender may wait until that has happened. The three are told apart by a number, whatever their order.
//! - A **collective** ends when all members of its communicator have begun it.
//! - A receive writes a **slot** of the rank, which must have been read by all who need what is in it.
//!
//! Data- and tensor-parallel copies of a pipeline run the same lists. Communicators between copies of a rank are of the kind
//! [`Members::Copies`], so that one copy stands for all.

mod build;

pub use build::{Crossing, Sizes, build, crossings, lay_out};

use super::Action;

/// What goes from stage to stage.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Message {
    /// The stage that makes it, and one that needs it: gradients go to a lower number.
    pub from: usize,
    pub to: usize,
    pub microbatch: usize,
    /// Which of what goes between the two, by whatever numbers the caller gives.
    pub value: u32,
    /// Which shape, likewise.
    pub shape: u32,
    pub bytes: u64,
}

/// `F3 0>1`: what stage 0 has made for microbatch 3, for stage 1; `G3 1>0`: a gradient.
impl std::fmt::Display for Message {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let word = if self.to < self.from { "G" } else { "F" };
        write!(f, "{word}{} {}>{}", self.microbatch, self.from, self.to)?;
        if self.value > 0 { write!(f, " ({})", self.value) } else { Ok(()) }
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
    Offer {
        to: usize,
        message: Message,
        number: usize,
    },
    Take {
        from: usize,
        message: Message,
        number: usize,
        slot: usize,
    },
    /// Waits on the rank that offers.
    Taken {
        number: usize,
    },
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
            What::Offer { to, message, .. } => write!(f, "offer {message} to {to}"),
            What::Take { from, message, .. } => write!(f, "take {message} from {from}"),
            What::Taken { number } => write!(f, "until {number} is taken"),
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

    /// Rank by rank, an event a line; behind the arrow what it reads or writes of the rank's slots.
    pub fn text(&self) -> String {
        let mut out = String::new();
        for (rank, list) in self.ranks.iter().enumerate() {
            out += &format!("rank {rank}: {} slots\n", self.slots[rank].len());
            for e in list {
                let mut slots: Vec<String> = Vec::new();
                match &e.what {
                    What::Compute { reads, .. } => slots.extend(reads.iter().map(|(s, _)| format!("reads slot {s}"))),
                    What::Exchange(all) => slots.extend(all.iter().filter_map(|t| match t {
                        Transfer::Receive { slot, .. } => Some(format!("fills slot {slot}")),
                        Transfer::Send { .. } => None,
                    })),
                    What::Take { slot, .. } => slots.push(format!("fills slot {slot}")),
                    What::Offer { .. } | What::Taken { .. } => {}
                    What::Collective { .. } | What::Signal(_) | What::Wait(_) => {}
                }
                let stream = if e.stream > 0 { format!("stream {}: ", e.stream) } else { String::new() };
                let arrow = if slots.is_empty() { "" } else { "  -> " };
                out += &format!("  {stream}{e}{arrow}{}\n", slots.join(", "));
            }
        }
        out
    }
}
