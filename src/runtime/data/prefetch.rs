//! A thread that prepares the next batches while the current one is used.

use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread::JoinHandle;

use super::batch::Batch;
use super::loader::Loader;
use crate::runtime::error::{Result, RuntimeError, no_thread};

/// Hands out the batches of steps `first..last` in order.
#[derive(Debug)]
pub struct Prefetcher {
    /// Both gone once dropped, which ends the thread.
    ready: Option<Receiver<Result<Batch>>>,
    empty: Option<Sender<Batch>>,
    thread: Option<JoinHandle<()>>,
}

impl Prefetcher {
    /// Keeps up to `depth` batches ready.
    pub fn start(loader: Loader, steps: std::ops::Range<u64>, depth: usize) -> Result<Prefetcher> {
        let depth = depth.max(1);
        let (ready_tx, ready) = sync_channel(depth);
        let (empty, empty_rx) = channel();
        // One more than fit the channel: the one that is being used.
        for _ in 0..=depth {
            let _ = empty.send(loader.new_batch());
        }
        let thread = std::thread::Builder::new()
            .name("partita-data".into())
            .spawn(move || run(loader, steps, &ready_tx, &empty_rx))
            .map_err(|e| no_thread("data", &e))?;
        Ok(Prefetcher { ready: Some(ready), empty: Some(empty), thread: Some(thread) })
    }

    /// The next batch; waits for it. Past the last step, none.
    pub fn next_batch(&mut self) -> Result<Option<Batch>> {
        let Some(ready) = &self.ready else { return Ok(None) };
        match ready.recv() {
            Ok(result) => result.map(Some),
            Err(_) => {
                self.ready = None;
                match self.thread.take().map(JoinHandle::join) {
                    Some(Err(_)) => Err(RuntimeError::internal("the data thread panicked")),
                    _ => Ok(None),
                }
            }
        }
    }

    /// Gives buffers back for a later batch.
    pub fn recycle(&self, batch: Batch) {
        if let Some(empty) = &self.empty {
            // the thread may have ended already
            let _ = empty.send(batch);
        }
    }
}

impl Drop for Prefetcher {
    fn drop(&mut self) {
        self.ready = None;
        self.empty = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn run(mut loader: Loader, steps: std::ops::Range<u64>, ready: &SyncSender<Result<Batch>>, empty: &Receiver<Batch>) {
    for step in steps {
        let Ok(mut batch) = empty.recv() else { return };
        let result = loader.fill(step, &mut batch).map(|()| batch);
        let failed = result.is_err();
        if ready.send(result).is_err() || failed {
            return;
        }
    }
}
