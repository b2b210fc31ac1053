//! A rank of a communicator.

use super::shared::{Shared, Word};
use crate::check::fault::{Fault, Kind};
use crate::config::Config;
use crate::driver::device::Device;
use crate::driver::stream::Stream;
use crate::report;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

/// `ncclResult_t` (nccl.h).
pub type Code = u32;
pub const SYSTEM: Code = 2;
pub const INVALID_ARGUMENT: Code = 4;
pub const INVALID_USAGE: Code = 5;
pub const REMOTE: Code = 6;

pub struct Comm {
    pub id: String,
    pub shared: Shared,
    pub rank: usize,
    pub ranks: usize,
    pub device: &'static Device,
    /// Numbers for what is put into streams, and whose turn it is to run.
    pub posted: AtomicU64,
    pub turn: AtomicU64,
    pub sends: Vec<(AtomicU64, AtomicU64)>,
    pub receives: Vec<(AtomicU64, AtomicU64)>,
    pub splits: AtomicU64,
    error: AtomicU32,
    aborted: AtomicBool,
    /// Work that is in streams: for streams that run late.
    waiting: Mutex<Vec<(Weak<Stream>, u64)>>,
    running: AtomicU64,
    said: Mutex<String>,
}

/// A communicator that a split makes, and a rank's place in it.
pub struct Part {
    pub id: String,
    pub rank: usize,
    pub ranks: usize,
}

/// Ranks in this process, by the id of their communicator.
static HERE: Mutex<Option<HashMap<String, Vec<Weak<Comm>>>>> = Mutex::new(None);

impl Comm {
    /// Takes part; other ranks may not have come yet.
    pub fn join(id: &str, rank: usize, ranks: usize, device: &'static Device) -> Result<Arc<Comm>, (Code, String)> {
        if ranks == 0 || rank >= ranks || ranks > 256 {
            return Err((INVALID_ARGUMENT, format!("there is no rank {rank} of {ranks}")));
        }
        let shared = Shared::open(id, ranks).map_err(|e| (SYSTEM, e))?;
        let pid = u64::from(std::process::id());
        if shared.of(rank, Word::Pid).compare_exchange(0, pid, Ordering::AcqRel, Ordering::Acquire).is_err() {
            return Err((INVALID_USAGE, format!("rank {rank} of {ranks} is there already")));
        }
        let pairs = || (0..ranks).map(|_| Default::default()).collect();
        let comm = Arc::new(Comm {
            id: id.to_string(),
            shared,
            rank,
            ranks,
            device,
            posted: AtomicU64::new(0),
            turn: AtomicU64::new(0),
            sends: pairs(),
            receives: pairs(),
            splits: AtomicU64::new(0),
            error: AtomicU32::new(0),
            aborted: AtomicBool::new(false),
            waiting: Mutex::default(),
            running: AtomicU64::new(0),
            said: Mutex::default(),
        });
        let mut here = HERE.lock().expect("no panic holds it");
        here.get_or_insert_default().entry(id.to_string()).or_default().push(Arc::downgrade(&comm));
        comm.shared.join();
        Ok(comm)
    }

    /// Waits on the host until `ready`, or says `what` did not come about.
    pub fn until(&self, what: &str, ready: impl Fn() -> bool) -> Result<(), (Code, String)> {
        let end = Instant::now() + Duration::from_secs_f64(Config::get().timeout);
        while !ready() {
            if let Some(rank) = (0..self.ranks).find(|r| self.shared.dead(*r)) {
                return Err((REMOTE, format!("{what}: the process of rank {rank} has ended")));
            }
            if Instant::now() > end {
                return Err((SYSTEM, format!("{what}: nothing for {} s", Config::get().timeout)));
            }
            std::thread::sleep(Duration::from_micros(100));
        }
        Ok(())
    }

    pub fn all_joined(&self) -> Result<(), (Code, String)> {
        self.until("waiting for all ranks of a communicator", || self.shared.joined() >= self.ranks)
            .map_err(|(c, e)| (c, format!("{e}; {} of {} ranks have come", self.shared.joined(), self.ranks)))
    }

    /// Says for a split to which part this rank goes.
    pub fn begin_split(&self, color: i32, key: i32) -> Result<u64, (Code, String)> {
        let number = self.splits.fetch_add(1, Ordering::Relaxed);
        // All have read the one before.
        self.until("a split of a communicator", || {
            (0..self.ranks).all(|r| self.shared.get(r, Word::SplitRead) >= number)
        })?;
        self.shared.set(self.rank, Word::Color, color as u64);
        self.shared.set(self.rank, Word::Key, key as u64);
        self.shared.set(self.rank, Word::Split, number + 1);
        Ok(number)
    }

    /// What this rank belongs to then; nothing for a negative color.
    pub fn end_split(&self, number: u64) -> Result<Option<Part>, (Code, String)> {
        self.until("a split of a communicator", || (0..self.ranks).all(|r| self.shared.get(r, Word::Split) > number))?;
        let of = |r: usize| (self.shared.get(r, Word::Color) as i32, self.shared.get(r, Word::Key) as i32);
        let (color, _) = of(self.rank);
        let mut members: Vec<usize> = (0..self.ranks).filter(|r| of(*r).0 == color).collect();
        members.sort_by_key(|r| (of(*r).1, *r));
        self.shared.set(self.rank, Word::SplitRead, number + 1);
        if color < 0 {
            return Ok(None);
        }
        let rank = members.iter().position(|r| *r == self.rank).expect("a rank is of its own color");
        Ok(Some(Part { id: format!("{}.{number}.{color}", self.id), rank, ranks: members.len() }))
    }

    /// The error that `ncclCommGetAsyncError` gives. Ranks that are gone are looked for.
    pub fn error(&self) -> Code {
        let own = self.error.load(Ordering::Acquire);
        if own != 0 {
            return own;
        }
        match self.shared.error() {
            0 => 0,
            _ => REMOTE,
        }
    }

    pub fn aborted(&self) -> bool {
        self.aborted.load(Ordering::Acquire)
    }

    /// A collective or a message cannot come about. Other ranks see an error too.
    pub fn fail(&self, code: Code, message: String) {
        if self.error.compare_exchange(0, code, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            *self.said.lock().expect("no panic holds it") = message.clone();
            report::fault(self.device.index, &Fault { kind: Kind::Collective, place: None, message });
        }
        self.shared.set_error(code);
    }

    pub fn said(&self) -> String {
        self.said.lock().expect("no panic holds it").clone()
    }

    pub fn abort(&self) {
        self.aborted.store(true, Ordering::Release);
        self.shared.set(self.rank, Word::State, 1);
    }

    /// What this rank has put into streams is done, or has failed.
    pub fn flush(&self) {
        for (stream, number) in self.waiting.lock().expect("no panic holds it").drain(..) {
            if let Some(stream) = stream.upgrade() {
                stream.demand(number);
            }
        }
        let over = || {
            let all = |l: &[(AtomicU64, AtomicU64)]| {
                l.iter().all(|(p, t)| p.load(Ordering::Acquire) == t.load(Ordering::Acquire))
            };
            self.turn.load(Ordering::Acquire) == self.posted.load(Ordering::Acquire)
                && all(&self.sends)
                && all(&self.receives)
        };
        while !over() && self.error() == 0 && !self.aborted() && self.device.check().is_ok() {
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    pub fn leave(&self) {
        let left = self.shared.of(self.rank, Word::State);
        let _ = left.compare_exchange(0, 2, Ordering::AcqRel, Ordering::Acquire);
    }

    /// Why a rank will never come, if so.
    pub fn gone(&self, rank: usize) -> Option<&'static str> {
        match self.shared.get(rank, Word::State) {
            1 => Some("has aborted the communicator"),
            2 => Some("has left the communicator"),
            _ if self.shared.dead(rank) => Some("has ended: its process is gone"),
            _ => None,
        }
    }

    fn others(&self) -> Vec<Arc<Comm>> {
        let here = HERE.lock().expect("no panic holds it");
        let list = here.as_ref().and_then(|h| h.get(&self.id));
        list.into_iter().flatten().filter_map(Weak::upgrade).filter(|c| c.rank != self.rank).collect()
    }

    /// Work of this rank stands in a stream. It may run at once if another rank waits for it.
    pub fn queued(&self, stream: &Arc<Stream>, number: u64) {
        if !Config::get().late {
            return;
        }
        self.waiting.lock().expect("no panic holds it").push((Arc::downgrade(stream), number));
        if self.others().iter().any(|c| c.running.load(Ordering::Acquire) > 0) {
            stream.demand(number);
        }
    }

    /// Runs while other ranks of this process are told that they are needed.
    pub fn begin(&self) {
        self.running.fetch_add(1, Ordering::AcqRel);
        if Config::get().late {
            for other in self.others() {
                for (stream, number) in other.waiting.lock().expect("no panic holds it").drain(..) {
                    if let Some(stream) = stream.upgrade() {
                        stream.demand(number);
                    }
                }
            }
        }
    }

    pub fn end(&self) {
        self.running.fetch_sub(1, Ordering::AcqRel);
    }
}
