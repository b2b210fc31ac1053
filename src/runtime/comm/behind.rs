//! A thread beside a rank's own ones, which moves elements while they compute.
//!
//! The rank hands over the exchanges of a wait as soon as the last of them is posted, and finds them done when it comes to the
//! wait, if the others were quick enough. All ranks hand over in the same order, that of their program.

use super::bell::{Bell, Patience, Waited, lock};
use super::local::{Hub, Mover, Poster};
use super::{CommError, Communicator, Deal, Deals, Posted};
use crate::runtime::device::pool::Pool;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

pub struct Behind {
    deals: Arc<Deals>,
    poster: Poster,
    shared: Arc<Shared>,
    /// By routine, and by number of a wait: which of all that were handed over it was, from 1.
    turns: Vec<Vec<u64>>,
    handed: u64,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    /// What was handed over, in turn: more than is ever under way.
    ring: Vec<AtomicU64>,
    handed: Bell,
    done: Bell,
    /// Why the run goes no further.
    failure: Mutex<Option<CommError>>,
    leave: AtomicBool,
    /// Nobody stops in the middle of waiting for these bells: whoever moves elements is stopped where it waits for others.
    never: AtomicBool,
    patience: Patience,
}

impl Behind {
    /// None if the system refuses the thread.
    pub fn new(hub: Arc<Hub>, rank: usize, deals: Arc<Deals>) -> Option<Behind> {
        let most = deals.waits.iter().map(Vec::len).max().unwrap_or(0);
        let shared = Arc::new(Shared {
            ring: (0..=most).map(|_| AtomicU64::new(0)).collect(),
            handed: Bell::default(),
            done: Bell::default(),
            failure: Mutex::new(None),
            leave: AtomicBool::new(false),
            never: AtomicBool::new(false),
            patience: Patience { limit: Duration::MAX, ..hub.patience() },
        });
        let mover = Mover::new(hub.clone(), rank);
        let (theirs, known) = (shared.clone(), deals.clone());
        let name = format!("partita-exchange-{rank}");
        let thread = std::thread::Builder::new().name(name).spawn(move || work(&theirs, &known, mover)).ok()?;
        let turns = deals.waits.iter().map(|w| vec![0; w.len()]).collect();
        Some(Behind { deals, poster: Poster::new(hub, rank), shared, turns, handed: 0, thread: Some(thread) })
    }

    /// Waits until so many of all that were handed over are done.
    fn done(&self, turn: u64) {
        let Shared { done, patience, never, .. } = &*self.shared;
        let how = done.wait(turn, *patience, never);
        debug_assert_eq!(how, Waited::Ready, "there is no limit");
    }

    fn hand(&mut self, what: u64) {
        let Shared { ring, handed, .. } = &*self.shared;
        ring[self.handed as usize % ring.len()].store(what, Ordering::SeqCst);
        self.handed += 1;
        handed.add();
        handed.ring();
    }
}

/// Stands for the beginning of a run.
const BEGIN: u64 = u64::MAX;

fn packed(deal: Deal) -> u64 {
    (deal.routine as u64) << 32 | deal.wait as u64
}

fn unpacked(what: u64) -> Deal {
    Deal { routine: (what >> 32) as usize, wait: what as u32 as usize }
}

impl Communicator for Behind {
    fn begin(&mut self) {
        *lock(&self.shared.failure) = None;
        self.hand(BEGIN);
    }

    fn post(&mut self, p: Posted, from: *const u8, to: *mut u8) {
        self.poster.post(&self.deals.exchanges[p.exchange], p.number, from, to);
    }

    unsafe fn posted(&mut self, deal: Deal) {
        self.hand(packed(deal));
        self.turns[deal.routine][deal.wait] = self.handed;
    }

    unsafe fn finish(&mut self, deal: Deal, _: &Pool) -> Result<(), CommError> {
        self.done(self.turns[deal.routine][deal.wait]);
        lock(&self.shared.failure).clone().map_or(Ok(()), Err)
    }

    fn send(&mut self, number: usize, from: *const u8) {
        self.poster.send(number, from);
    }

    unsafe fn receive(
        &mut self,
        number: usize,
        from: usize,
        to: *mut u8,
        bytes: usize,
        pool: &Pool,
    ) -> Result<(), CommError> {
        // SAFETY: as the caller has seen to.
        unsafe { self.poster.receive(number, from, to, bytes, pool) }
    }

    fn sent(&mut self, number: usize, to: usize) -> Result<(), CommError> {
        self.poster.sent(number, to)
    }

    fn end(&mut self) {
        self.done(self.handed);
    }
}

impl Drop for Behind {
    fn drop(&mut self) {
        self.shared.leave.store(true, Ordering::SeqCst);
        self.shared.handed.add();
        self.shared.handed.ring();
        if let Some(thread) = self.thread.take() {
            // Its panics are caught.
            let _ = thread.join();
        }
    }
}

fn work(shared: &Shared, deals: &Deals, mut mover: Mover) {
    let Shared { ring, handed, done, failure, leave, never, patience } = shared;
    // The rank's own pool is at work.
    let alone = Pool::new(1);
    for turn in 0.. {
        handed.wait(turn + 1, *patience, never);
        if leave.load(Ordering::SeqCst) {
            return;
        }
        match ring[turn as usize % ring.len()].load(Ordering::SeqCst) {
            BEGIN => mover.begin(),
            _ if lock(failure).is_some() => {}
            what => {
                // SAFETY: whoever has handed them over has seen to it.
                let run = || unsafe { mover.finish(&deals.exchanges, deals.of(unpacked(what)), &alone) };
                let result = catch_unwind(AssertUnwindSafe(run));
                let result = result.unwrap_or_else(|_| Err(CommError::Broken("a thread of exchanges panicked".into())));
                if let Err(why) = result {
                    lock(failure).get_or_insert(why);
                }
            }
        }
        done.add();
        done.ring();
    }
}
