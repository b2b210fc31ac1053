//! Host memory that copies may touch after the call that asked for them has returned.

use std::collections::BTreeMap;
use std::sync::Mutex;

/// Begin, bytes, and whether it was allocated here.
static RANGES: Mutex<BTreeMap<usize, (usize, bool)>> = Mutex::new(BTreeMap::new());

/// Alignment of pinned allocations.
const PAGE: usize = 4096;

fn layout(bytes: usize) -> Option<std::alloc::Layout> {
    std::alloc::Layout::from_size_align(bytes.max(1), PAGE).ok()
}

pub fn allocate(bytes: usize) -> Option<usize> {
    let layout = layout(bytes)?;
    // SAFETY: the layout has a size above zero.
    let at = unsafe { std::alloc::alloc_zeroed(layout) } as usize;
    if at == 0 {
        return None;
    }
    RANGES.lock().expect("no panic holds it").insert(at, (bytes, true));
    Some(at)
}

pub fn free(at: usize) -> bool {
    let mut ranges = RANGES.lock().expect("no panic holds it");
    let Some((bytes, true)) = ranges.get(&at).copied() else { return false };
    ranges.remove(&at);
    let layout = layout(bytes).expect("it was a layout when it was allocated");
    // SAFETY: allocated by `allocate` with this layout, and taken off the list just now.
    unsafe { std::alloc::dealloc(at as *mut u8, layout) };
    true
}

pub fn register(at: usize, bytes: usize) {
    RANGES.lock().expect("no panic holds it").insert(at, (bytes, false));
}

pub fn unregister(at: usize) -> bool {
    let mut ranges = RANGES.lock().expect("no panic holds it");
    let registered = ranges.get(&at).is_some_and(|r| !r.1);
    if registered {
        ranges.remove(&at);
    }
    registered
}

pub fn contains(at: usize, bytes: usize) -> bool {
    let ranges = RANGES.lock().expect("no panic holds it");
    ranges.range(..=at).next_back().is_some_and(|(begin, (n, _))| at + bytes <= begin + n)
}
