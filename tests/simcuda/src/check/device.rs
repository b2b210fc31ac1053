//! Device memory: a range of the host's address space, with a state for each byte. Device addresses are addresses of
//! that range, so a kernel's access is a check of states and a copy.

use super::fault::Kind;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// States of a byte.
const ALLOCATED: u8 = 1;
const WRITTEN: u8 = 2;
const FREED: u8 = 4;
/// Read, written by the launch that runs.
const READ_NOW: u8 = 8;
const WROTE_NOW: u8 = 16;

/// Allocations begin at multiples of this, as on devices, and at least this much lies free between two.
const GRAIN: usize = 256;
/// Bytes of a page, for which the launch notes that it was touched.
const PAGE: usize = 1 << 16;

pub struct Memory {
    base: *mut u8,
    states: *mut u8,
    size: usize,
    touched: Vec<AtomicU64>,
    space: Mutex<Space>,
    /// Whether reads of bytes that were never written are faults.
    pub find_uninitialised: bool,
}

// SAFETY: the range lives as long as the value; bytes that two streams touch at once are a race of the program under
// test, as on a device, and kernels of one device run one after the other.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

#[derive(Default)]
struct Space {
    /// Begin and bytes of what is allocated.
    live: BTreeMap<usize, usize>,
    freed: BTreeMap<usize, usize>,
    used: usize,
    /// Where the search for room begins: after the last allocation, so that freed memory is reused late.
    cursor: usize,
}

/// Sets a bit in states. Gives what all of them had, and how many had the bit. At most 8 KiB of states, whose counts fit into
/// bytes.
#[inline(always)]
fn mark(states: &mut [u8], bit: u8) -> (u8, u32) {
    const N: usize = 32;
    let (mut all, mut seen) = ([0xffu8; N], [0u8; N]);
    let shift = bit.trailing_zeros();
    let mut chunks = states.chunks_exact_mut(N);
    for chunk in &mut chunks {
        for i in 0..N {
            all[i] &= chunk[i];
            seen[i] += chunk[i] >> shift & 1;
            chunk[i] |= bit;
        }
    }
    let (mut every, mut count) = (0xff, 0u32);
    for i in 0..N {
        every &= all[i];
        count += u32::from(seen[i]);
    }
    for s in chunks.into_remainder() {
        every &= *s;
        count += u32::from(*s >> shift & 1);
        *s |= bit;
    }
    (every, count)
}

/// What is free for allocations of `bytes`, with the gap to the next one.
fn room(bytes: usize) -> usize {
    bytes.max(1).next_multiple_of(GRAIN) + GRAIN
}

impl Memory {
    /// Reserves `size` bytes. Nothing is taken from the host until it is touched. `None`: the host gives no room.
    pub fn new(size: usize, find_uninitialised: bool) -> Option<Memory> {
        let map = || {
            // SAFETY: a fresh private mapping without a file.
            let at = unsafe {
                libc::mmap(
                    std::ptr::null_mut(),
                    size,
                    libc::PROT_READ | libc::PROT_WRITE,
                    libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                    -1,
                    0,
                )
            };
            (at != libc::MAP_FAILED).then_some(at.cast::<u8>())
        };
        let (base, states) = (map()?, map()?);
        let touched = (0..size.div_ceil(PAGE).div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
        Some(Memory { base, states, size, touched, space: Mutex::default(), find_uninitialised })
    }

    pub fn size(&self) -> usize {
        self.size
    }

    pub fn free_bytes(&self) -> usize {
        self.size - self.space.lock().expect("no panic holds it").used
    }

    pub fn contains(&self, address: u64) -> bool {
        (address as usize).wrapping_sub(self.base as usize) < self.size
    }

    /// A new allocation, or `None` where there is no room.
    pub fn allocate(&self, bytes: usize) -> Option<u64> {
        let mut space = self.space.lock().expect("no panic holds it");
        let wanted = room(bytes);
        if space.used + wanted > self.size || bytes == 0 {
            return None;
        }
        let at = self.find(&space, space.cursor, wanted).or_else(|| self.find(&space, 0, wanted))?;
        space.cursor = at + wanted;
        space.live.insert(at, bytes);
        space.used += wanted;
        let over: Vec<usize> = space.freed.range(..at + wanted).rev().take(64).map(|f| *f.0).collect();
        for f in over {
            if space.freed.get(&f).is_some_and(|n| f + n > at) {
                space.freed.remove(&f);
            }
        }
        // SAFETY: within the mapping, which nobody else uses here: the range was free.
        unsafe {
            std::ptr::write_bytes(self.states.add(at), ALLOCATED, bytes);
            std::ptr::write_bytes(self.states.add(at + bytes), 0, wanted - bytes);
        }
        Some(self.base as u64 + at as u64)
    }

    fn find(&self, space: &Space, from: usize, wanted: usize) -> Option<usize> {
        let mut at = from;
        if let Some((begin, bytes)) = space.live.range(..from).next_back() {
            at = at.max(begin + room(*bytes));
        }
        for (begin, bytes) in space.live.range(at..) {
            if begin - at >= wanted {
                return Some(at);
            }
            at = begin + room(*bytes);
        }
        (at + wanted <= self.size).then_some(at)
    }

    /// Frees an allocation; `false` where none begins at the address.
    pub fn free(&self, address: u64) -> bool {
        let mut space = self.space.lock().expect("no panic holds it");
        let at = (address as usize).wrapping_sub(self.base as usize);
        let Some(bytes) = space.live.remove(&at) else { return false };
        space.freed.insert(at, bytes);
        space.used -= room(bytes);
        // SAFETY: the allocation lies within the mapping.
        unsafe { std::ptr::write_bytes(self.states.add(at), FREED, bytes) };
        true
    }

    /// Begin and bytes of the allocation around an address.
    pub fn allocation(&self, address: u64) -> Option<(u64, usize)> {
        let space = self.space.lock().expect("no panic holds it");
        let at = (address as usize).wrapping_sub(self.base as usize);
        let (begin, bytes) = space.live.range(..=at).next_back()?;
        (at < begin + bytes).then_some((self.base as u64 + *begin as u64, *bytes))
    }

    /// Begins and bytes of all that is allocated.
    pub fn allocations(&self) -> Vec<(u64, usize)> {
        let space = self.space.lock().expect("no panic holds it");
        space.live.iter().map(|(at, bytes)| (self.base as u64 + *at as u64, *bytes)).collect()
    }

    /// What to say of an address that may not be touched.
    pub fn describe(&self, address: u64, bytes: usize) -> String {
        let space = self.space.lock().expect("no panic holds it");
        let at = (address as usize).wrapping_sub(self.base as usize);
        if at >= self.size {
            return format!("{bytes} bytes at {address:#x}, which is no memory of this device");
        }
        if let Some((begin, n)) = space.freed.range(..=at).next_back().filter(|(b, n)| at < **b + **n) {
            return format!("{bytes} bytes at byte {} of an allocation of {n} bytes that was freed", at - begin);
        }
        match space.live.range(..=at).next_back() {
            Some((begin, n)) if at < begin + n && at + bytes <= begin + n => {
                format!("{bytes} bytes at byte {} of an allocation of {n} bytes", at - begin)
            }
            Some((begin, n)) if at < begin + n => {
                format!("{bytes} bytes at byte {}, across the end of an allocation of {n} bytes", at - begin)
            }
            Some((begin, n)) => {
                format!("{bytes} bytes at {} past the end of an allocation of {n} bytes", at - begin - n)
            }
            None => format!("{bytes} bytes at {address:#x}, where nothing is allocated"),
        }
    }

    #[inline(always)]
    fn at(&self, address: u64, bytes: usize) -> Result<usize, Kind> {
        let at = (address as usize).wrapping_sub(self.base as usize);
        if at < self.size && self.size - at >= bytes { Ok(at) } else { Err(Kind::OutOfBounds) }
    }

    #[inline(always)]
    fn touch(&self, at: usize, bytes: usize) {
        for page in at / PAGE..=(at + bytes - 1) / PAGE {
            let word = &self.touched[page / 64];
            let seen = word.load(Ordering::Relaxed);
            if seen >> (page % 64) & 1 == 0 {
                word.store(seen | 1 << (page % 64), Ordering::Relaxed);
            }
        }
    }

    fn refusal(states: &[u8]) -> Kind {
        if states.iter().any(|s| s & ALLOCATED == 0) {
            let freed = states.iter().find(|s| *s & ALLOCATED == 0).is_some_and(|s| s & FREED != 0);
            if freed { Kind::UseAfterFree } else { Kind::OutOfBounds }
        } else {
            Kind::Uninitialised
        }
    }

    /// States of a range, as a kernel marks them.
    ///
    /// The states of a device are changed by one kernel or copy at a time, but for copies of several streams to ranges
    /// that do not meet.
    #[inline(always)]
    #[allow(clippy::mut_from_ref)]
    fn states(&self, at: usize, bytes: usize) -> &mut [u8] {
        debug_assert!(at + bytes <= self.size);
        // SAFETY: callers have checked the range with `at`.
        unsafe { std::slice::from_raw_parts_mut(self.states.add(at), bytes) }
    }

    /// A kernel reads `into.len()` bytes. Gives how many of them this launch had not read before.
    #[inline(always)]
    pub fn read(&self, address: u64, into: &mut [u8]) -> Result<u32, Kind> {
        let at = self.at(address, into.len())?;
        self.touch(at, into.len());
        let states = self.states(at, into.len());
        let (all, seen) = mark(states, READ_NOW);
        if all & ALLOCATED == 0 || (all & WRITTEN == 0 && self.find_uninitialised) {
            return Err(Self::refusal(states));
        }
        // SAFETY: `at` has checked the range; the source is the mapping, the target a slice of the caller.
        unsafe { std::ptr::copy_nonoverlapping(self.base.add(at), into.as_mut_ptr(), into.len()) };
        Ok(into.len() as u32 - seen)
    }

    /// A kernel writes. Gives how many of the bytes this launch had not written before.
    #[inline(always)]
    pub fn write(&self, address: u64, from: &[u8]) -> Result<u32, Kind> {
        let at = self.at(address, from.len())?;
        let states = self.states(at, from.len());
        if states.iter().fold(ALLOCATED, |all, s| all & s) == 0 {
            return Err(Self::refusal(states));
        }
        self.touch(at, from.len());
        let (_, seen) = mark(states, WROTE_NOW);
        states.iter_mut().for_each(|s| *s |= WRITTEN);
        // SAFETY: `at` has checked the range.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), self.base.add(at), from.len()) };
        Ok(from.len() as u32 - seen)
    }

    /// Forgets what the launch that ended has read and written.
    pub fn end_launch(&self) {
        for (i, word) in self.touched.iter().enumerate() {
            let mut bits = word.swap(0, Ordering::Relaxed);
            while bits != 0 {
                let page = i * 64 + bits.trailing_zeros() as usize;
                bits &= bits - 1;
                let at = page * PAGE;
                let states = self.states(at, PAGE.min(self.size - at));
                states.iter_mut().for_each(|s| *s &= !(READ_NOW | WROTE_NOW));
            }
        }
    }

    /// A copy or a fill from outside of kernels: within one allocation, as the driver requires.
    pub fn check(&self, address: u64, bytes: usize) -> Result<(), Kind> {
        let at = self.at(address, bytes)?;
        let states = self.states(at, bytes);
        if states.iter().all(|s| s & ALLOCATED != 0) { Ok(()) } else { Err(Self::refusal(states)) }
    }

    /// Whether each byte of a range has been written.
    pub fn written(&self, address: u64, bytes: usize) -> bool {
        self.at(address, bytes).is_ok_and(|at| self.states(at, bytes).iter().all(|s| s & WRITTEN != 0))
    }

    pub fn copy_in(&self, address: u64, from: &[u8]) -> Result<(), Kind> {
        self.check(address, from.len())?;
        let at = self.at(address, from.len())?;
        self.states(at, from.len()).iter_mut().for_each(|s| *s |= WRITTEN);
        // SAFETY: `check` has found the range.
        unsafe { std::ptr::copy(from.as_ptr(), self.base.add(at), from.len()) };
        Ok(())
    }

    pub fn copy_out(&self, address: u64, into: &mut [u8]) -> Result<(), Kind> {
        self.check(address, into.len())?;
        let at = self.at(address, into.len())?;
        // SAFETY: `check` has found the range.
        unsafe { std::ptr::copy(self.base.add(at), into.as_mut_ptr(), into.len()) };
        Ok(())
    }

    pub fn fill(&self, address: u64, pattern: &[u8], count: usize) -> Result<(), Kind> {
        let bytes = pattern.len() * count;
        self.check(address, bytes)?;
        let at = self.at(address, bytes)?;
        self.states(at, bytes).iter_mut().for_each(|s| *s |= WRITTEN);
        // SAFETY: `check` has found the range.
        let into = unsafe { std::slice::from_raw_parts_mut(self.base.add(at), bytes) };
        into.chunks_exact_mut(pattern.len()).for_each(|c| c.copy_from_slice(pattern));
        Ok(())
    }

    /// A copy between two places, of this device or another; what was never written stays so.
    pub fn copy_from(&self, address: u64, source: &Memory, from: u64, bytes: usize) -> Result<(), Kind> {
        source.check(from, bytes)?;
        self.check(address, bytes)?;
        let (to, at) = (self.at(address, bytes)?, source.at(from, bytes)?);
        // SAFETY: both ranges have been checked; they may overlap, so `copy`.
        unsafe {
            std::ptr::copy(source.base.add(at), self.base.add(to), bytes);
            std::ptr::copy(source.states.add(at), self.states.add(to), bytes);
        }
        Ok(())
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: both mappings were made in `new` with this size.
        unsafe {
            libc::munmap(self.base.cast(), self.size);
            libc::munmap(self.states.cast(), self.size);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_tell_what_may_be_touched() {
        let m = Memory::new(1 << 20, true).expect("room");
        let a = m.allocate(10).expect("room");
        let mut two = [0u8; 2];
        assert_eq!(m.read(a, &mut two), Err(Kind::Uninitialised));
        m.end_launch();
        assert_eq!(m.write(a, &[1, 2, 3, 4]), Ok(4));
        assert_eq!(m.write(a + 2, &[5, 6, 7]), Ok(1));
        assert_eq!(m.read(a + 1, &mut two), Ok(2));
        assert_eq!(two, [2, 5]);
        m.end_launch();
        assert_eq!(m.read(a + 1, &mut two), Ok(2));
        assert_eq!(m.write(a + 9, &[0, 0]), Err(Kind::OutOfBounds));
        assert!(m.describe(a + 9, 2).contains("across the end of an allocation of 10 bytes"));
        assert!(m.free(a) && !m.free(a));
        assert_eq!(m.read(a, &mut two), Err(Kind::UseAfterFree));
        assert_eq!(m.free_bytes(), 1 << 20);
    }

    #[test]
    fn room_is_found_until_there_is_none() {
        let m = Memory::new(8192, true).expect("room");
        let all: Vec<u64> = (0..8).map(|_| m.allocate(700).expect("room")).collect();
        assert!(m.allocate(700).is_none());
        assert!(m.free(all[3]));
        assert_eq!(m.allocate(700), Some(all[3]));
    }
}
