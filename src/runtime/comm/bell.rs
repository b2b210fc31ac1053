//! A number that others wait for.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How those who wait spend their time before they sleep.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// Turns of a spinning wait ..
    pub spins: u32,
    /// .. then so long offering the core to others.
    pub yielding: Duration,
    /// After that time waiting is in vain.
    pub limit: Duration,
}

impl Default for Patience {
    fn default() -> Patience {
        Patience { spins: 1000, yielding: Duration::from_millis(1), limit: Duration::from_secs(600) }
    }
}

/// How waiting ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Waited {
    Ready,
    /// Somebody has failed.
    Stopped,
    /// It took longer than the limit.
    Late,
}

#[derive(Default)]
pub struct Bell {
    count: AtomicU64,
    sleepers: AtomicU32,
    gate: Mutex<()>,
    wake: Condvar,
}

pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Bell {
    /// Adds one and returns the sum; wakes nobody.
    pub fn add(&self) -> u64 {
        self.count.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// Only while nobody waits.
    pub fn reset(&self) {
        self.count.store(0, Ordering::SeqCst);
    }

    /// Wakes all who sleep.
    pub fn ring(&self) {
        // Ordered after the addition: whoever goes to sleep later sees the new number.
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            let _gate = lock(&self.gate);
            self.wake.notify_all();
        }
    }

    /// Waits until the number is `goal` at least, or `stop` is set (whoever sets it rings).
    pub fn wait(&self, goal: u64, patience: Patience, stop: &AtomicBool) -> Waited {
        self.wait_for(|| self.count.load(Ordering::SeqCst) >= goal, patience, stop)
    }

    /// Waits until something is so (whoever makes it so rings), or `stop` is set.
    pub fn wait_for(&self, ready: impl Fn() -> bool, patience: Patience, stop: &AtomicBool) -> Waited {
        let state = || match ready() {
            true => Some(Waited::Ready),
            false => stop.load(Ordering::SeqCst).then_some(Waited::Stopped),
        };
        for _ in 0..patience.spins {
            if let Some(end) = state() {
                return end;
            }
            std::hint::spin_loop();
        }
        let start = Instant::now();
        while start.elapsed() < patience.yielding {
            if let Some(end) = state() {
                return end;
            }
            std::thread::yield_now();
        }
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        let mut gate = lock(&self.gate);
        let end = loop {
            if let Some(end) = state() {
                break end;
            }
            let Some(left) = patience.limit.checked_sub(start.elapsed()).filter(|d| !d.is_zero()) else {
                break Waited::Late;
            };
            gate = self.wake.wait_timeout(gate, left).unwrap_or_else(PoisonError::into_inner).0;
        };
        drop(gate);
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
        end
    }
}
