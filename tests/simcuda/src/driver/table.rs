//! Handles that programs hold: numbers that look like pointers, each for one value.

use super::codes::{Code, INVALID_HANDLE};
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

pub struct Table<T: ?Sized>(Mutex<Option<HashMap<usize, Arc<T>>>>);

/// Above the small numbers that have a meaning as streams.
static NEXT: AtomicUsize = AtomicUsize::new(0x5100_0000);

impl<T: ?Sized> Table<T> {
    pub const fn new() -> Table<T> {
        Table(Mutex::new(None))
    }

    pub fn insert(&self, value: Arc<T>) -> usize {
        let handle = NEXT.fetch_add(16, Ordering::Relaxed);
        self.0.lock().expect("no panic holds it").get_or_insert_default().insert(handle, value);
        handle
    }

    pub fn get(&self, handle: usize) -> Result<Arc<T>, Code> {
        let table = self.0.lock().expect("no panic holds it");
        table.as_ref().and_then(|t| t.get(&handle)).cloned().ok_or(INVALID_HANDLE)
    }

    pub fn remove(&self, handle: usize) -> Result<Arc<T>, Code> {
        let mut table = self.0.lock().expect("no panic holds it");
        table.as_mut().and_then(|t| t.remove(&handle)).ok_or(INVALID_HANDLE)
    }
}

impl<T: ?Sized> Default for Table<T> {
    fn default() -> Table<T> {
        Table::new()
    }
}
