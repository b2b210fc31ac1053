//! The one allocation that holds every temporary of a program, at offsets planned by the compiler.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Start of every buffer; a cache line, and wide enough for any vector.
pub const ALIGN: usize = 64;
/// Size of a large page: arenas start at such a boundary and ask for them.
const LARGE_PAGE: usize = 2 << 20;

/// Bytes of all arenas that there are, in memory and in files, each to the end of its last cache line.
static HELD: [AtomicUsize; 2] = [AtomicUsize::new(0), AtomicUsize::new(0)];

/// Bytes of memory and of files that the arenas of this process have now.
pub fn held() -> [usize; 2] {
    HELD.each_ref().map(|n| n.load(Ordering::SeqCst))
}

/// Zeroed memory of a fixed size.
pub struct Arena {
    base: NonNull<u8>,
    len: usize,
    mapped: usize,
    file: bool,
}

// SAFETY: plain memory; who writes where is decided by the executor, which hands out disjoint ranges.
unsafe impl Send for Arena {}
// SAFETY: as above.
unsafe impl Sync for Arena {}

impl Arena {
    /// None where the system has no such memory.
    pub fn new(len: usize) -> Option<Arena> {
        let (base, mapped) = map(len)?;
        Some(Arena::counted(base, len, mapped, false))
    }

    /// The same in a file of the system's folder for such, which nobody else sees: what is not used for long need not stay in memory.
    pub fn in_file(len: usize) -> std::io::Result<Arena> {
        let (base, mapped) = map_file(len)?;
        Ok(Arena::counted(base, len, mapped, true))
    }

    fn counted(base: NonNull<u8>, len: usize, mapped: usize, file: bool) -> Arena {
        HELD[usize::from(file)].fetch_add(len.next_multiple_of(ALIGN), Ordering::SeqCst);
        Arena { base, len, mapped, file }
    }

    fn uncount(&self) {
        HELD[usize::from(self.file)].fetch_sub(self.len.next_multiple_of(ALIGN), Ordering::SeqCst);
    }

    pub fn is_file(&self) -> bool {
        self.file
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Start of a range. Panics where the plan and the arena disagree, before any memory is touched.
    pub fn claim(&self, offset: usize, bytes: usize) -> *mut u8 {
        let end = offset.checked_add(bytes).expect("range of a plan");
        assert!(end <= self.len, "range {offset}..{end} is outside of an arena of {} bytes", self.len);
        // SAFETY: inside the mapping, as just checked.
        unsafe { self.base().add(offset) }
    }
}

#[cfg(unix)]
fn map(len: usize) -> Option<(NonNull<u8>, usize)> {
    if len == 0 {
        return Some((NonNull::<u64>::dangling().cast(), 0));
    }
    let large = len >= LARGE_PAGE;
    // Room to move the start to a large page's boundary; untouched pages cost nothing.
    let mapped = if large { len.checked_next_multiple_of(LARGE_PAGE)?.checked_add(LARGE_PAGE)? } else { len };
    // SAFETY: a new private mapping; the result is checked.
    let start = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            mapped,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    if start == libc::MAP_FAILED {
        return None;
    }
    let base = start.cast::<u8>();
    if !large {
        return Some((NonNull::new(base)?, mapped));
    }
    let skip = base.align_offset(LARGE_PAGE);
    let rest = mapped - skip;
    // SAFETY: the skipped start is inside the new mapping and nobody has it; `rest` begins at a page boundary.
    unsafe {
        if skip > 0 {
            libc::munmap(start, skip);
        }
        let base = base.add(skip);
        // A wish only: without large pages the arena works as well, a little slower.
        #[cfg(target_os = "linux")]
        libc::madvise(base.cast(), rest, libc::MADV_HUGEPAGE);
        Some((NonNull::new(base)?, rest))
    }
}

/// A file that has no name any more, with room for all of it, mapped.
#[cfg(unix)]
fn map_file(len: usize) -> std::io::Result<(NonNull<u8>, usize)> {
    use std::os::fd::AsRawFd;
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(0);
    if len == 0 {
        return Ok((NonNull::<u64>::dangling().cast(), 0));
    }
    let name = format!("partita-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let path = std::env::temp_dir().join(name);
    let file = std::fs::OpenOptions::new().read(true).write(true).create_new(true).open(&path)?;
    std::fs::remove_file(&path)?;
    file.set_len(len as u64)?;
    // Without its blocks, a full disk would be met in the middle of a kernel.
    #[cfg(target_os = "linux")]
    {
        // SAFETY: a call on an open file.
        let failed = unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, len as libc::off_t) };
        if failed != 0 {
            return Err(std::io::Error::from_raw_os_error(failed));
        }
    }
    // SAFETY: a new mapping of a file that nobody else can open; the result is checked.
    let start = unsafe {
        libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED, file.as_raw_fd(), 0)
    };
    match NonNull::new(start.cast::<u8>()) {
        Some(base) if start != libc::MAP_FAILED => Ok((base, len)),
        _ => Err(std::io::Error::last_os_error()),
    }
}

#[cfg(not(unix))]
fn map_file(_: usize) -> std::io::Result<(NonNull<u8>, usize)> {
    Err(std::io::Error::other("not on this system"))
}

#[cfg(unix)]
impl Drop for Arena {
    fn drop(&mut self) {
        self.uncount();
        if self.mapped > 0 {
            // SAFETY: exactly what `map` returned; no pointer into it outlives the executor.
            unsafe { libc::munmap(self.base().cast(), self.mapped) };
        }
    }
}

#[cfg(not(unix))]
fn map(len: usize) -> Option<(NonNull<u8>, usize)> {
    if len == 0 {
        return Some((NonNull::<u64>::dangling().cast(), 0));
    }
    let layout = std::alloc::Layout::from_size_align(len, LARGE_PAGE).ok()?;
    // SAFETY: the size is not zero.
    Some((NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) })?, len))
}

#[cfg(not(unix))]
impl Drop for Arena {
    fn drop(&mut self) {
        self.uncount();
        if let (true, Ok(layout)) = (self.mapped > 0, std::alloc::Layout::from_size_align(self.mapped, LARGE_PAGE)) {
            // SAFETY: allocated in `map` with this layout.
            unsafe { std::alloc::dealloc(self.base(), layout) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_zero_aligned_and_writable_to_the_end() {
        for len in [0, 1, 4096, LARGE_PAGE, 5 * LARGE_PAGE + 12] {
            let arena = Arena::new(len).unwrap();
            if len == 0 {
                continue;
            }
            assert_eq!(arena.base() as usize % ALIGN, 0);
            let last = arena.claim(len - 1, 1);
            // SAFETY: inside the arena.
            unsafe {
                assert_eq!(*last, 0);
                *last = 7;
            }
            // SAFETY: as above.
            assert_eq!(unsafe { *arena.claim(len - 1, 1) }, 7);
        }
    }

    #[test]
    #[cfg(unix)]
    fn memory_of_a_file_is_like_other_memory() {
        for len in [0, 1, 5000, 3 << 20] {
            let arena = Arena::in_file(len).unwrap();
            assert!(arena.is_file() && arena.len() == len);
            if len > 0 {
                assert_eq!(arena.base() as usize % ALIGN, 0);
                let last = arena.claim(len - 1, 1);
                // SAFETY: inside the arena.
                unsafe {
                    assert_eq!(*last, 0);
                    *last = 7;
                    assert_eq!(*arena.claim(len - 1, 1), 7);
                }
            }
        }
        assert!(Arena::in_file(1 << 60).is_err());
    }

    #[test]
    #[should_panic(expected = "outside of an arena")]
    fn a_range_outside_is_refused() {
        Arena::new(64).unwrap().claim(60, 8);
    }

    #[test]
    fn too_much_memory_is_no_arena() {
        assert!(Arena::new(usize::MAX - 5).is_none());
        assert!(Arena::new(1 << 62).is_none());
    }
}
