//! A pool of threads for loops whose turns write disjoint memory.
//!
//! A job is a number of tasks, fixed by the caller and never by the pool, so what a task computes cannot depend on how
//! many threads there are. Threads take task numbers from a counter; the caller takes part. A thread without work spins
//! for some microseconds, offers its core to others for about a millisecond, then sleeps: waking it again may take longer
//! than a small job, while a core that others want is theirs at once. The caller never waits for a thread that has not
//! joined the job, so short jobs do not pay for waking sleepers.

use std::any::Any;
use std::cell::{Cell, UnsafeCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Turns of a spinning wait of a worker before it offers its core to others; some tens of microseconds.
const IDLE_SPINS: u32 = 1000;
/// How long it does that before it sleeps.
const IDLE: Duration = Duration::from_millis(1);
/// Turns of a spinning wait for the last tasks of others before the caller offers its core to others.
const FINISH_SPINS: u32 = 1000;

/// Set in `state` while a job accepts threads.
const OPEN: u64 = 1 << 31;
const JOINED: u64 = OPEN - 1;
const EPOCH: u64 = 1 << 32;

type Task<'a> = dyn Fn(usize) + Sync + 'a;

#[derive(Clone, Copy)]
struct Job {
    task: *const Task<'static>,
    tasks: usize,
}

struct Shared {
    /// Epoch in the upper half, `OPEN`, and the number of workers now in the job.
    state: AtomicU64,
    job: UnsafeCell<Option<Job>>,
    next: AtomicUsize,
    failed: AtomicBool,
    failure: Mutex<Option<String>>,
    sleepers: AtomicUsize,
    stop: AtomicBool,
    gate: Mutex<()>,
    wake: Condvar,
}

// SAFETY: `job` is written by the caller while no worker is joined and the job is closed, and read by workers between
// joining and leaving an open job; `state` orders both.
unsafe impl Sync for Shared {}
// SAFETY: the raw pointer in `job` refers to a `Sync` closure that outlives the job: `run` does not return before.
unsafe impl Send for Shared {}

thread_local! {
    /// Whether this thread is inside a task: an inner loop then runs on this thread alone.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
    static WORKER: Cell<usize> = const { Cell::new(0) };
}

/// The number of the current thread in its pool: 0 for the caller of a job, then the workers.
pub fn worker() -> usize {
    WORKER.get()
}

pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    /// One job at a time.
    turn: Mutex<()>,
    /// Nanoseconds that callers have waited for the last tasks of others.
    waited: AtomicU64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Threads to use where the user names no number.
pub fn default_threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

impl Pool {
    /// A pool of `threads` threads, the caller included; fewer if the system refuses to start them.
    pub fn new(threads: usize) -> Pool {
        let shared = Arc::new(Shared {
            state: AtomicU64::new(0),
            job: UnsafeCell::new(None),
            next: AtomicUsize::new(0),
            failed: AtomicBool::new(false),
            failure: Mutex::new(None),
            sleepers: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
            gate: Mutex::new(()),
            wake: Condvar::new(),
        });
        let workers = (1..threads.max(1))
            .map_while(|n| {
                let shared = shared.clone();
                std::thread::Builder::new().name(format!("partita-{n}")).spawn(move || work(&shared, n)).ok()
            })
            .collect();
        Pool { shared, workers, turn: Mutex::new(()), waited: AtomicU64::new(0) }
    }

    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Time that callers have spent waiting for others to end what they had begun.
    pub fn waited(&self) -> Duration {
        Duration::from_nanos(self.waited.load(Ordering::Relaxed))
    }

    /// Calls `task` once for every number below `tasks`. A panic in a task becomes an error; the other tasks may or may
    /// not have run then.
    pub fn run(&self, tasks: usize, task: &Task<'_>) -> Result<(), String> {
        if tasks <= 1 || self.workers.is_empty() || INSIDE.get() {
            return catch_unwind(AssertUnwindSafe(|| (0..tasks).for_each(task))).map_err(message);
        }
        let turn = lock(&self.turn);
        let shared = &*self.shared;
        // SAFETY: the lifetime is forgotten, not exceeded: all threads have left the job when this function returns.
        let erased = unsafe { std::mem::transmute::<*const Task<'_>, *const Task<'static>>(task) };
        let job = Job { task: erased, tasks };
        // SAFETY: the last job is closed and no worker is joined (see the end of this function).
        unsafe { *shared.job.get() = Some(job) };
        shared.next.store(0, Ordering::Relaxed);
        shared.failed.store(false, Ordering::Relaxed);
        let epoch = (shared.state.load(Ordering::Relaxed) / EPOCH + 1) & (u32::MAX as u64);
        shared.state.store((epoch * EPOCH) | OPEN, Ordering::SeqCst);
        if shared.sleepers.load(Ordering::SeqCst) > 0 {
            let _gate = lock(&shared.gate);
            shared.wake.notify_all();
        }
        shared.take_tasks(job);
        shared.state.fetch_and(!OPEN, Ordering::SeqCst);
        let mut turns = 0;
        let start = Instant::now();
        while shared.state.load(Ordering::Acquire) & JOINED != 0 {
            turns += 1;
            if turns < FINISH_SPINS {
                std::hint::spin_loop();
            } else if start.elapsed() < IDLE {
                std::thread::yield_now();
            } else {
                std::thread::sleep(Duration::from_micros(20));
            }
        }
        if turns > 0 {
            self.waited.fetch_add(start.elapsed().as_nanos() as u64, Ordering::Relaxed);
        }
        let failure = if shared.failed.load(Ordering::Acquire) { lock(&shared.failure).take() } else { None };
        drop(turn);
        failure.map_or(Ok(()), Err)
    }

    /// Calls `body(begin, end)` over pieces of `0..n`. The pieces are of `grain` turns (the last one may be shorter)
    /// whatever the number of threads.
    pub fn chunks(&self, n: usize, grain: usize, body: &(dyn Fn(usize, usize) + Sync)) -> Result<(), String> {
        let grain = grain.max(1);
        self.run(n.div_ceil(grain), &|task| body(task * grain, ((task + 1) * grain).min(n)))
    }

    /// Calls `body(begin, end)` over pieces of `0..n` that are cut for this pool's number of threads: only for bodies
    /// whose turns are independent of one another. A piece holds at least `least` turns, and pieces begin at multiples
    /// of 16 where they are long, so that vectors are full.
    pub fn split(&self, n: usize, least: usize, body: &(dyn Fn(usize, usize) + Sync)) -> Result<(), String> {
        if n == 0 {
            return Ok(());
        }
        // A few pieces a thread even out cores that are busy elsewhere.
        let pieces = if self.threads() == 1 { 1 } else { (n / least.max(1)).clamp(1, self.threads() * 3) };
        let round = if n >= pieces * 64 { 16 } else { 1 };
        let cut = |piece: usize| if piece == pieces { n } else { n * piece / pieces / round * round };
        self.run(pieces, &|piece| body(cut(piece), cut(piece + 1)))
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        {
            let _gate = lock(&self.shared.gate);
            self.shared.wake.notify_all();
        }
        for worker in self.workers.drain(..) {
            // A worker cannot panic: every task is caught.
            let _ = worker.join();
        }
    }
}

impl Shared {
    fn take_tasks(&self, job: Job) {
        // SAFETY: the closure lives until `run` returns, which waits for everyone who is here.
        let task = unsafe { &*job.task };
        let outer = INSIDE.replace(true);
        let result = catch_unwind(AssertUnwindSafe(|| {
            loop {
                let n = self.next.fetch_add(1, Ordering::Relaxed);
                if n >= job.tasks {
                    break;
                }
                task(n);
            }
        }));
        INSIDE.set(outer);
        if let Err(panic) = result {
            // No further task is begun.
            self.next.store(job.tasks, Ordering::Relaxed);
            lock(&self.failure).get_or_insert(message(panic));
            self.failed.store(true, Ordering::Release);
        }
    }

    /// Joins the open job, if it is not that of `epoch`.
    fn join(&self, epoch: u64) -> Option<u64> {
        let mut state = self.state.load(Ordering::SeqCst);
        while state & OPEN != 0 && state / EPOCH != epoch {
            match self.state.compare_exchange_weak(state, state + 1, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => return Some(state / EPOCH),
                Err(now) => state = now,
            }
        }
        None
    }
}

fn work(shared: &Shared, number: usize) {
    WORKER.set(number);
    let mut epoch = 0;
    let (mut idle, mut since) = (0, Instant::now());
    while !shared.stop.load(Ordering::Relaxed) {
        if let Some(joined) = shared.join(epoch) {
            epoch = joined;
            idle = 0;
            // SAFETY: joined, so the caller keeps the job in place.
            if let Some(job) = unsafe { *shared.job.get() } {
                shared.take_tasks(job);
            }
            shared.state.fetch_sub(1, Ordering::Release);
        } else if idle < IDLE_SPINS {
            idle += 1;
            std::hint::spin_loop();
            if idle == IDLE_SPINS {
                since = Instant::now();
            }
        } else if since.elapsed() < IDLE {
            std::thread::yield_now();
        } else {
            let mut gate = lock(&shared.gate);
            shared.sleepers.fetch_add(1, Ordering::SeqCst);
            // The caller publishes the job before it looks for sleepers, so either it sees this one or this one sees the job.
            while !shared.stop.load(Ordering::SeqCst) {
                let state = shared.state.load(Ordering::SeqCst);
                if state & OPEN != 0 && state / EPOCH != epoch {
                    break;
                }
                gate = shared.wake.wait(gate).unwrap_or_else(PoisonError::into_inner);
            }
            shared.sleepers.fetch_sub(1, Ordering::SeqCst);
            idle = 0;
        }
    }
}

fn message(panic: Box<dyn Any + Send>) -> String {
    match panic.downcast::<String>() {
        Ok(text) => *text,
        Err(panic) => panic.downcast_ref::<&str>().unwrap_or(&"a task failed").to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU32;

    #[test]
    fn every_task_runs_exactly_once() {
        for threads in [1, 2, 3, 7] {
            let pool = Pool::new(threads);
            for tasks in [0, 1, 2, 5, 1000] {
                let counts: Vec<AtomicU32> = (0..tasks).map(|_| AtomicU32::new(0)).collect();
                pool.run(tasks, &|n| {
                    counts[n].fetch_add(1, Ordering::Relaxed);
                })
                .unwrap();
                assert!(counts.iter().all(|c| c.load(Ordering::Relaxed) == 1), "{threads} threads, {tasks} tasks");
            }
        }
    }

    #[test]
    fn jobs_follow_one_another_quickly_and_after_sleep() {
        let pool = Pool::new(3);
        let total = AtomicU64::new(0);
        for round in 0..2000 {
            if round % 500 == 0 {
                std::thread::sleep(Duration::from_millis(2));
            }
            pool.split(64, 1, &|begin, end| {
                total.fetch_add((begin..end).sum::<usize>() as u64, Ordering::Relaxed);
            })
            .unwrap();
        }
        assert_eq!(total.load(Ordering::Relaxed), 2000 * (63 * 64 / 2));
    }

    #[test]
    fn a_panic_is_an_error_and_the_pool_lives_on() {
        let pool = Pool::new(2);
        let failed = pool.run(16, &|n| assert!(n != 9, "task {n} broke"));
        assert_eq!(failed, Err("task 9 broke".to_string()));
        let sum = AtomicUsize::new(0);
        pool.run(16, &|n| {
            sum.fetch_add(n, Ordering::Relaxed);
        })
        .unwrap();
        assert_eq!(sum.into_inner(), 120);
    }

    #[test]
    fn an_inner_loop_runs_on_its_own_thread() {
        let pool = Pool::new(2);
        let sum = AtomicUsize::new(0);
        pool.run(4, &|_| {
            pool.run(10, &|n| {
                sum.fetch_add(n, Ordering::Relaxed);
            })
            .unwrap();
        })
        .unwrap();
        assert_eq!(sum.into_inner(), 4 * 45);
    }

    #[test]
    fn chunks_do_not_depend_on_threads() {
        let pieces = |threads| {
            let seen = Mutex::new(Vec::new());
            Pool::new(threads).chunks(103, 10, &|b, e| lock(&seen).push((b, e))).unwrap();
            let mut seen = seen.into_inner().unwrap();
            seen.sort_unstable();
            seen
        };
        let one = pieces(1);
        assert_eq!(one.len(), 11);
        assert_eq!(one[10], (100, 103));
        assert_eq!(one, pieces(3));
    }
}
