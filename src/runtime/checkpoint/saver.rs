//! Saving in the background: a thread that owns the directory while training goes on.

use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::load::{aside_name, list};
use super::save::{BEST, REPLACED, SaveOptions, Snapshot, TEMPORARY, cannot_write, directory_name, save_as};
use crate::runtime::error::{Result, RuntimeError, no_thread};

/// A checkpoint that was written.
#[derive(Clone, Debug)]
pub struct Saved {
    pub step: u64,
    pub path: PathBuf,
    pub took: Duration,
}

/// Writes snapshots into one directory, one at a time.
#[derive(Debug)]
pub struct Saver {
    dir: PathBuf,
    /// Held for as long as this lives; the system frees it when the process dies.
    _lock: Option<File>,
    /// Each with the name of its directory.
    jobs: Option<Sender<(String, Snapshot)>>,
    done: Receiver<(Snapshot, Result<Saved>)>,
    thread: Option<JoinHandle<()>>,
    busy: bool,
    spare: Option<Snapshot>,
}

impl Saver {
    /// Makes the directory, takes it for this process, and removes what an interrupted save left.
    pub fn open(dir: &Path, options: SaveOptions) -> Result<Saver> {
        let fail = |e: std::io::Error| cannot_write(dir, &e);
        std::fs::create_dir_all(dir).map_err(fail)?;
        let lock = lock(dir)?;
        tidy(dir).map_err(fail)?;
        let (jobs, jobs_rx) = channel::<(String, Snapshot)>();
        let (done_tx, done) = channel();
        let target = dir.to_path_buf();
        let thread = std::thread::Builder::new()
            .name("partita-save".into())
            .spawn(move || {
                for (name, snapshot) in jobs_rx {
                    let start = Instant::now();
                    let saved = save_as(&target, name, &snapshot, &options, &mut |_| Ok(()));
                    let result = saved.map(|path| Saved { step: snapshot.step, path, took: start.elapsed() });
                    if done_tx.send((snapshot, result)).is_err() {
                        return;
                    }
                }
            })
            .map_err(|e| no_thread("saving", &e))?;
        Ok(Saver {
            dir: dir.to_path_buf(),
            _lock: lock,
            jobs: Some(jobs),
            done,
            thread: Some(thread),
            busy: false,
            spare: None,
        })
    }

    /// Moves checkpoints of more than `after` steps (all without it, and the files beside them whose names begin with one of
    /// `files`) to a directory of their own, so that a new run, or one resumed from an earlier step, does not mix with them.
    /// Says where they are.
    pub fn set_aside(&mut self, after: Option<u64>, files: &[&str]) -> Result<Option<PathBuf>> {
        let checkpoints = list(&self.dir)?.into_iter().filter(|f| after.is_none_or(|a| f.step > a));
        let mut stale: Vec<PathBuf> = checkpoints.map(|f| f.path).collect();
        if after.is_none() {
            let entries = std::fs::read_dir(&self.dir).map_err(|e| cannot_write(&self.dir, &e))?;
            let names = entries.flatten().map(|e| e.file_name().to_string_lossy().into_owned());
            let ours = names.filter(|n| files.iter().any(|f| n.starts_with(f)));
            stale.extend(ours.map(|n| self.dir.join(n)));
        }
        if stale.is_empty() {
            return Ok(None);
        }
        let aside = (1..)
            .map(|i: u32| self.dir.join(aside_name(i)))
            .find(|p| !p.exists())
            .ok_or_else(|| RuntimeError::internal("no free name for old checkpoints"))?;
        let fail = |e: std::io::Error| cannot_write(&aside, &e);
        std::fs::create_dir(&aside).map_err(fail)?;
        for path in stale {
            std::fs::rename(&path, aside.join(path.file_name().unwrap_or_default())).map_err(fail)?;
        }
        Ok(Some(aside))
    }

    /// Starts to write; waits for the save before, whose outcome is returned.
    pub fn save(&mut self, snapshot: Snapshot) -> Option<Result<Saved>> {
        self.save_as(directory_name(snapshot.step), snapshot)
    }

    /// The same for the best checkpoint, which takes the place of the one before.
    pub fn save_best(&mut self, snapshot: Snapshot) -> Option<Result<Saved>> {
        self.save_as(BEST.to_string(), snapshot)
    }

    fn save_as(&mut self, name: String, snapshot: Snapshot) -> Option<Result<Saved>> {
        let before = self.finish();
        self.busy = self.jobs.as_ref().is_some_and(|jobs| jobs.send((name, snapshot)).is_ok());
        if self.busy {
            return before;
        }
        before.or(Some(Err(RuntimeError::internal("the saving thread has ended"))))
    }

    /// The outcome of a save that has ended since it was last asked for.
    pub fn poll(&mut self) -> Option<Result<Saved>> {
        let (snapshot, result) = self.done.try_recv().ok()?;
        self.busy = false;
        self.spare = Some(snapshot);
        Some(result)
    }

    /// Waits for the save that is going on, if any.
    pub fn finish(&mut self) -> Option<Result<Saved>> {
        if !self.busy {
            return None;
        }
        self.busy = false;
        Some(match self.done.recv() {
            Ok((snapshot, result)) => {
                self.spare = Some(snapshot);
                result
            }
            Err(_) => Err(RuntimeError::internal("the saving thread panicked")),
        })
    }

    /// The buffers of a snapshot that has been written, to be filled again.
    pub fn recycle(&mut self) -> Option<Snapshot> {
        self.spare.take()
    }
}

impl Drop for Saver {
    /// A save that was started is completed.
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn lock(dir: &Path) -> Result<Option<File>> {
    let path = dir.join(".lock");
    let file = File::create(&path).map_err(|e| cannot_write(dir, &e))?;
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => {
            Err(RuntimeError::new("E0808", format!("another run is writing checkpoints to `{}`", dir.display()))
                .place(dir.display())
                .help("wait for it, or choose another directory with `--out DIR`"))
        }
        // some network file systems have no locks; then there is nothing to ask
        Err(TryLockError::Error(_)) => Ok(None),
    }
}

fn tidy(dir: &Path) -> std::io::Result<()> {
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if let Some(step) = name.strip_prefix(REPLACED) {
            let target = dir.join(step);
            if target.exists() {
                std::fs::remove_dir_all(entry.path())?;
            } else {
                std::fs::rename(entry.path(), target)?;
            }
        } else if name.starts_with(TEMPORARY) {
            std::fs::remove_dir_all(entry.path())?;
        }
    }
    Ok(())
}
