//! Machine code of a program, mapped executable.

use std::ptr::NonNull;

/// What every kernel is: rows `begin..end` of its flattened parallel loops. `buffers` are the starts of its operands,
/// `scalars` its run-time numbers, `helpers` the table of [`super::helpers::table`].
pub type Kernel =
    unsafe extern "C" fn(buffers: *const *mut u8, scalars: *const u64, helpers: *const usize, begin: u64, end: u64);

/// Position-independent code without relocations: the bytes alone are enough.
pub struct Code {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: read-only after `new`.
unsafe impl Send for Code {}
// SAFETY: as above.
unsafe impl Sync for Code {}

impl Code {
    /// None where the system refuses executable memory.
    #[cfg(unix)]
    pub fn new(bytes: &[u8]) -> Option<Code> {
        let len = bytes.len().max(1);
        // SAFETY: a new private mapping, filled before it becomes executable and never written again.
        unsafe {
            let start = libc::mmap(
                std::ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            );
            if start == libc::MAP_FAILED {
                return None;
            }
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), start.cast(), bytes.len());
            let code = Code { base: NonNull::new(start.cast())?, len };
            if libc::mprotect(start, len, libc::PROT_READ | libc::PROT_EXEC) != 0 {
                return None;
            }
            flush(start.cast(), len);
            Some(code)
        }
    }

    #[cfg(not(unix))]
    pub fn new(_bytes: &[u8]) -> Option<Code> {
        None
    }

    /// The kernel that begins at a byte offset.
    ///
    /// # Safety
    /// `offset` must be the entry of a kernel compiled for this machine.
    pub unsafe fn kernel(&self, offset: usize) -> Kernel {
        assert!(offset < self.len, "entry {offset} is outside of {} bytes of code", self.len);
        // SAFETY: inside the mapping; the caller vouches for what is there.
        unsafe { std::mem::transmute::<*mut u8, Kernel>(self.base.as_ptr().add(offset)) }
    }
}

impl Drop for Code {
    fn drop(&mut self) {
        #[cfg(unix)]
        // SAFETY: exactly what `new` mapped.
        unsafe {
            libc::munmap(self.base.as_ptr().cast(), self.len);
        }
    }
}

/// Makes new code visible to instruction fetch where the machine does not do so by itself.
#[cfg(all(unix, target_arch = "aarch64"))]
unsafe fn flush(start: *mut u8, len: usize) {
    unsafe extern "C" {
        /// Of the compiler's support library, which every Rust program links.
        fn __clear_cache(start: *mut u8, end: *mut u8);
    }
    // SAFETY: the range was just mapped.
    unsafe { __clear_cache(start, start.add(len)) };
}

#[cfg(all(unix, not(target_arch = "aarch64")))]
unsafe fn flush(_start: *mut u8, _len: usize) {}
