//! The memory that the ranks of a communicator share: a mapped file, whether the ranks are threads or processes. All words
//! are atomic; bytes of data are written and read between changes of a counter that says whose turn it is.

use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

/// Words of the header and of each rank.
const HEADER: usize = 64;
const SLOT: usize = 64;
/// Words of a channel before its data.
const CHANNEL: usize = 8;
/// Bytes that a rank shows the others at once, and that a channel holds.
pub const SHOWN: usize = 256 << 10;
pub const HELD: usize = 32 << 10;

/// Words of the header.
const RANKS: usize = 0;
const JOINED: usize = 1;
const ERROR: usize = 2;

/// Words of a rank.
#[derive(Clone, Copy)]
#[repr(usize)]
pub enum Word {
    Pid = 0,
    /// 1: aborted, 2: left.
    State = 1,
    /// The number of its collective, plus one.
    Posted = 2,
    Kind = 3,
    Count = 4,
    Type = 5,
    Operation = 6,
    Root = 7,
    /// Parts shown and seen, counted through.
    Shown = 8,
    Seen = 9,
    /// `comm_split`: number plus one, color, key; how many it has read of.
    Split = 10,
    Color = 11,
    Key = 12,
    SplitRead = 13,
    /// Whether it waits, and steps that it has made.
    Waiting = 14,
    Progress = 15,
    /// The message that it waits with: 1 send or 2 receive, peer, bytes.
    Message = 16,
    Peer = 17,
    Bytes = 18,
}

/// Words of a channel: parts written and read, and the message that the part belongs to.
#[derive(Clone, Copy)]
#[repr(usize)]
pub enum Channel {
    Written = 0,
    Read = 1,
    Bytes = 2,
    Type = 3,
    Part = 4,
}

pub struct Shared {
    base: *mut u8,
    size: usize,
    pub ranks: usize,
    path: PathBuf,
}

// SAFETY: words are atomic; data is handed over by them.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

/// Where the file of an id lies.
fn path(id: &str) -> PathBuf {
    let memory = PathBuf::from("/dev/shm");
    let folder = if memory.is_dir() { memory } else { std::env::temp_dir() };
    folder.join(format!("simcuda-{id}"))
}

impl Shared {
    /// Maps the memory of an id, which the first rank to come makes.
    pub fn open(id: &str, ranks: usize) -> Result<Shared, String> {
        let path = path(id);
        let says = |e: std::io::Error| format!("{}: {e}", path.display());
        let words = HEADER + ranks * SLOT + ranks * ranks * CHANNEL;
        let size = words * 8 + ranks * SHOWN + ranks * ranks * HELD;
        let file: File =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path).map_err(says)?;
        if file.metadata().map_err(says)?.len() < size as u64 {
            file.set_len(size as u64).map_err(says)?;
        }
        // SAFETY: a fresh shared mapping of a file that is at least this long.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                size,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(says(std::io::Error::last_os_error()));
        }
        let shared = Shared { base: base.cast(), size, ranks, path: path.clone() };
        match shared.word(RANKS).compare_exchange(0, ranks as u64, Ordering::AcqRel, Ordering::Acquire) {
            Err(others) if others != ranks as u64 => {
                Err(format!("this rank counts {ranks} ranks, another one {others}"))
            }
            _ => Ok(shared),
        }
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        debug_assert!((at + 1) * 8 <= self.size);
        // SAFETY: within the mapping, aligned, and accessed as atomic words alone.
        unsafe { &*self.base.cast::<AtomicU64>().add(at) }
    }

    pub fn of(&self, rank: usize, word: Word) -> &AtomicU64 {
        debug_assert!(rank < self.ranks);
        self.word(HEADER + rank * SLOT + word as usize)
    }

    pub fn get(&self, rank: usize, word: Word) -> u64 {
        self.of(rank, word).load(Ordering::Acquire)
    }

    pub fn set(&self, rank: usize, word: Word, value: u64) {
        self.of(rank, word).store(value, Ordering::Release);
    }

    pub fn channel(&self, from: usize, to: usize, word: Channel) -> &AtomicU64 {
        self.word(HEADER + self.ranks * SLOT + (from * self.ranks + to) * CHANNEL + word as usize)
    }

    /// A rank comes; the last one takes the file's name away.
    pub fn join(&self) {
        if self.word(JOINED).fetch_add(1, Ordering::AcqRel) + 1 == self.ranks as u64 {
            let _ = std::fs::remove_file(&self.path);
        }
    }

    pub fn joined(&self) -> usize {
        self.word(JOINED).load(Ordering::Acquire) as usize
    }

    /// The error that all ranks see; 0 for none.
    pub fn error(&self) -> u32 {
        self.word(ERROR).load(Ordering::Acquire) as u32
    }

    pub fn set_error(&self, code: u32) {
        let _ = self.word(ERROR).compare_exchange(0, u64::from(code), Ordering::AcqRel, Ordering::Acquire);
    }

    fn data(&self) -> usize {
        (HEADER + self.ranks * SLOT + self.ranks * self.ranks * CHANNEL) * 8
    }

    fn put(&self, at: usize, bytes: &[u8]) {
        debug_assert!(at + bytes.len() <= self.size);
        // SAFETY: within the mapping; the counters give this rank the turn.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.base.add(at), bytes.len()) };
    }

    fn take(&self, at: usize, into: &mut [u8]) {
        debug_assert!(at + into.len() <= self.size);
        // SAFETY: as above.
        unsafe { std::ptr::copy_nonoverlapping(self.base.add(at), into.as_mut_ptr(), into.len()) };
    }

    /// What a rank shows, from byte `at` on.
    pub fn show(&self, rank: usize, at: usize, bytes: &[u8]) {
        self.put(self.data() + rank * SHOWN + at, bytes);
    }

    pub fn see(&self, rank: usize, at: usize, into: &mut [u8]) {
        self.take(self.data() + rank * SHOWN + at, into);
    }

    pub fn send(&self, from: usize, to: usize, bytes: &[u8]) {
        self.put(self.data() + self.ranks * SHOWN + (from * self.ranks + to) * HELD, bytes);
    }

    pub fn receive(&self, from: usize, to: usize, into: &mut [u8]) {
        self.take(self.data() + self.ranks * SHOWN + (from * self.ranks + to) * HELD, into);
    }

    /// Whether the process of a rank has ended.
    pub fn dead(&self, rank: usize) -> bool {
        let pid = self.get(rank, Word::Pid) as i32;
        if pid == 0 || pid == std::process::id() as i32 {
            return false;
        }
        // A process that ended stays listed, as a zombie, until its parent has asked.
        match std::fs::read_to_string(format!("/proc/{pid}/stat")) {
            Ok(stat) => stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with(['Z', 'X'])),
            // SAFETY: signal 0 only asks whether the process is there.
            Err(_) => unsafe { libc::kill(pid, 0) != 0 },
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: mapped in `open` with this size.
        unsafe { libc::munmap(self.base.cast(), self.size) };
    }
}
