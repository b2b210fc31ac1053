//! A flag that SIGINT, SIGTERM and SIGHUP set, so that a training loop can save before it ends.

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::error::{Result, RuntimeError};

/// Asked for between steps.
#[derive(Clone, Debug, Default)]
pub struct StopFlag {
    asked: Arc<AtomicBool>,
    /// Whether a signal ends the process without being asked about.
    at_once: Arc<AtomicBool>,
    /// The signal that did, or 0.
    signal: Arc<AtomicUsize>,
}

impl StopFlag {
    /// Catches the signals from now on. A second one ends the process at once, with the exit status 128 and its
    /// number.
    pub fn install() -> Result<StopFlag> {
        let flag = StopFlag::default();
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            // in this order: the shutdown looks at the flag before this signal sets it
            signal_hook::flag::register_conditional_shutdown(signal, 128 + signal, flag.at_once.clone())
                .and_then(|_| {
                    signal_hook::flag::register_conditional_shutdown(signal, 128 + signal, flag.asked.clone())
                })
                .and_then(|_| signal_hook::flag::register_usize(signal, flag.signal.clone(), signal as usize))
                .and_then(|_| signal_hook::flag::register(signal, flag.asked.clone()))
                .map_err(|e| RuntimeError::internal(format!("cannot catch signal {signal}: {e}")))?;
        }
        Ok(flag)
    }

    /// Whether the next signal ends the process where it stands: while data is opened, which may wait for ever (a pipe
    /// without a writer), and nothing would be lost.
    pub fn at_once(&self, now: bool) {
        self.at_once.store(now, Ordering::Relaxed);
    }

    pub fn requested(&self) -> bool {
        self.asked.load(Ordering::Relaxed)
    }

    /// The number of the signal, if one came.
    pub fn signal(&self) -> Option<u8> {
        u8::try_from(self.signal.load(Ordering::Relaxed)).ok().filter(|n| *n > 0)
    }

    /// As a signal would.
    pub fn request(&self) {
        self.asked.store(true, Ordering::Relaxed);
    }
}

/// A write past the limit of file sizes (`ulimit -f`) gives an error from now on, where its signal would end the process.
pub fn survive_file_limit() -> Result<()> {
    let ignored = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(signal_hook::consts::SIGXFSZ, ignored)
        .map(|_| ())
        .map_err(|e| RuntimeError::internal(format!("cannot catch the signal of file sizes: {e}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_sets_the_flag() {
        let flag = StopFlag::install().unwrap();
        assert!(!flag.requested());
        signal_hook::low_level::raise(signal_hook::consts::SIGTERM).unwrap();
        let start = std::time::Instant::now();
        while !flag.requested() && start.elapsed().as_secs() < 5 {
            std::thread::yield_now();
        }
        assert!(flag.requested());
        assert_eq!(flag.signal(), Some(15));
    }
}
