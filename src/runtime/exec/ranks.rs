//! All ranks of a mesh in this process: an executor for each, on a thread of its own (the first one on the caller's).
//!
//! A run is the same routine on all ranks. If one fails or panics, those that wait for it are woken and the run ends; the
//! error is that of the lowest rank that failed by itself. A rank that never comes back is given up after a time, with
//! its memory and all that it may still read.

use super::exchange::{FOLLOWS, Joined, collectives, rank_name, sets, transfers};
use super::{ExecOptions, Executor, RunArgs};
use crate::program::Program;
use crate::runtime::RuntimeError;
use crate::runtime::comm::{Bell, Hub, Patience, Waited, lock};
use crate::runtime::device::pool::default_threads;
use crate::runtime::error::no_thread;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

/// How to execute on many ranks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RankOptions {
    /// Threads are those of all ranks together: each has its share, one at least.
    pub exec: ExecOptions,
    /// How long ranks wait for one another before they give up.
    pub limit: Duration,
    /// Whether a thread beside each rank moves what it exchanges; None: where there are cores for it.
    pub behind: Option<bool>,
}

impl Default for RankOptions {
    fn default() -> RankOptions {
        RankOptions { exec: ExecOptions::default(), limit: Patience::default().limit, behind: None }
    }
}

pub struct Ranks {
    program: Arc<Program>,
    shared: Arc<Shared>,
    seats: Vec<Arc<Seat>>,
    threads: Vec<JoinHandle<()>>,
    /// Since a rank did not come back.
    dead: bool,
}

/// One rank.
struct Seat {
    exec: Mutex<Executor>,
    result: Mutex<Option<Result<(), RuntimeError>>>,
}

struct Shared {
    hub: Arc<Hub>,
    job: Mutex<(usize, RunArgs)>,
    /// Runs begun.
    begun: Bell,
    /// Runs ended, of all threads together.
    ended: Bell,
    /// No rank stops in the middle of waiting for the next run.
    never: AtomicBool,
    leave: AtomicBool,
    patience: Patience,
}

/// Where the ranks of a program meet.
pub(super) fn hub(program: &Program, patience: Patience) -> Hub {
    let sets = sets(program).into_iter().collect::<Vec<_>>();
    Hub::new(&program.mesh, &sets, collectives(program), transfers(program), patience)
}

impl Ranks {
    pub fn new(program: Arc<Program>, options: RankOptions) -> Result<Ranks, RuntimeError> {
        let ranks = program.mesh.ranks();
        let wanted = if options.exec.threads == 0 { default_threads() } else { options.exec.threads };
        let each = ExecOptions { threads: (wanted / ranks).max(1), ..options.exec };
        // Who spins keeps a core from the rank that it waits for, where there are fewer cores than threads.
        let cores = default_threads();
        let spare = ranks > 1 && ranks * (each.threads + 1) <= cores;
        let behind = options.behind.unwrap_or(spare);
        let crowded = ranks * (each.threads + usize::from(behind)) > cores;
        let usual = Patience { limit: options.limit, ..Patience::default() };
        let patience = if crowded { Patience { spins: 50, yielding: Duration::ZERO, ..usual } } else { usual };
        let hub = Arc::new(hub(&program, patience));
        let code = Executor::load(&program)?;
        let joined = Joined { hub: hub.clone(), behind };
        let seat = |rank| {
            let exec = Mutex::new(Executor::of_rank(program.clone(), each, code.clone(), (joined.clone(), rank))?);
            Ok(Arc::new(Seat { exec, result: Mutex::new(None) }))
        };
        let seats: Vec<Arc<Seat>> = (0..ranks).map(seat).collect::<Result<_, RuntimeError>>()?;
        let shared = Arc::new(Shared {
            hub,
            job: Mutex::new((0, RunArgs::default())),
            begun: Bell::default(),
            ended: Bell::default(),
            never: AtomicBool::new(false),
            leave: AtomicBool::new(false),
            patience,
        });
        let mut all = Ranks { program, shared, seats, threads: Vec::new(), dead: false };
        for rank in 1..ranks {
            let (shared, seat) = (all.shared.clone(), all.seats[rank].clone());
            let name = format!("partita-rank-{rank}");
            let thread = std::thread::Builder::new().name(name.clone()).spawn(move || work(&shared, &seat, rank));
            all.threads.push(thread.map_err(|e| no_thread(&name, &e))?);
        }
        Ok(all)
    }

    pub fn program(&self) -> &Arc<Program> {
        &self.program
    }

    pub fn ranks(&self) -> usize {
        self.seats.len()
    }

    /// Of all ranks together.
    pub fn threads(&self) -> usize {
        self.seats.len() * self.executor(0).threads()
    }

    /// The executor of a rank, between runs.
    pub fn executor(&self, rank: usize) -> MutexGuard<'_, Executor> {
        lock(&self.seats[rank].exec)
    }

    /// The number of a routine.
    pub fn routine(&self, name: &str) -> Option<usize> {
        self.program.routines.iter().position(|r| r.name == name)
    }

    /// Runs a routine once on all ranks.
    pub fn run(&mut self, routine: usize, args: RunArgs) -> Result<(), RuntimeError> {
        if self.dead {
            return Err(RuntimeError::internal("ranks run again after one did not come back"));
        }
        let Shared { hub, job, begun, ended, patience, .. } = &*self.shared;
        hub.reset();
        *lock(job) = (routine, args);
        let run = begun.add();
        begun.ring();
        self.shared.run(&self.seats[0], 0);
        let others = self.threads.len() as u64;
        let never = &self.shared.never;
        if ended.wait(run * others, *patience, never) != Waited::Ready {
            hub.fail(0, "a rank does not come back");
            // Those that wait for it come now.
            let brief = Patience { limit: Duration::from_secs(1), ..*patience };
            self.dead = ended.wait(run * others, brief, never) != Waited::Ready;
        }
        let results = self.seats.iter().map(|s| lock(&s.result).take()).collect();
        verdict(&self.program, results, patience.limit)
    }
}

/// One error for all ranks: the lowest one's of those that failed by themselves.
fn verdict(
    program: &Program,
    results: Vec<Option<Result<(), RuntimeError>>>,
    limit: Duration,
) -> Result<(), RuntimeError> {
    let absent = results.iter().position(Option::is_none);
    let errors = results.into_iter().enumerate().filter_map(|(rank, r)| Some((rank, r?.err()?)));
    let (follow, own): (Vec<_>, Vec<_>) = errors.partition(|(_, e)| e.code == FOLLOWS);
    let waited = follow.into_iter().next();
    if let Some((rank, e)) = own.into_iter().next() {
        let e = if program.mesh.ranks() > 1 { e.note(format!("on {}", rank_name(program, rank))) } else { e };
        return Err(match waited {
            Some((other, w)) => e.note(format!("on {}: {}", rank_name(program, other), w.message)),
            None => e,
        });
    }
    if let Some(rank) = absent {
        let name = rank_name(program, rank);
        return Err(RuntimeError::new("E0815", format!("{name} has not come back after {} s", limit.as_secs())));
    }
    waited.map_or(Ok(()), |(_, e)| Err(e))
}

impl Drop for Ranks {
    fn drop(&mut self) {
        self.shared.leave.store(true, Ordering::SeqCst);
        self.shared.begun.add();
        self.shared.begun.ring();
        if self.dead {
            // The rank that is missing may read the others' arrays yet.
            self.seats.drain(..).for_each(std::mem::forget);
            return;
        }
        for thread in self.threads.drain(..) {
            // It cannot panic: runs are caught.
            let _ = thread.join();
        }
    }
}

impl Shared {
    /// One run on one rank, and what became of it.
    fn run(&self, seat: &Seat, rank: usize) {
        let (routine, args) = *lock(&self.job);
        let run = || lock(&seat.exec).run(routine, args);
        let result = catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| Err(panicked(&*panic)));
        if let Err(e) = &result {
            self.hub.fail(rank, &e.message);
        }
        lock(&seat.exec).settle();
        *lock(&seat.result) = Some(result);
    }
}

/// What the thread of a rank does.
fn work(shared: &Shared, seat: &Seat, rank: usize) {
    let forever = Patience { limit: Duration::MAX, ..shared.patience };
    for run in 1.. {
        shared.begun.wait(run, forever, &shared.never);
        if shared.leave.load(Ordering::SeqCst) {
            return;
        }
        shared.run(seat, rank);
        shared.ended.add();
        shared.ended.ring();
    }
}

fn panicked(panic: &(dyn Any + Send)) -> RuntimeError {
    let text = panic.downcast_ref::<&str>().map(|s| s.to_string());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    RuntimeError::internal(format!("a rank panicked: {}", text.unwrap_or_else(|| "no message".into())))
}

#[cfg(test)]
mod tests;
