//! Pointers for the tasks of a pool.

/// A pointer that tasks may share: they write disjoint elements.
#[derive(Clone, Copy)]
pub struct Shared<T>(pub *mut T);

impl<T> Shared<T> {
    /// The pointer; a method, so that closures capture the whole.
    pub fn get(self) -> *mut T {
        self.0
    }
}

// SAFETY: only an address; those who dereference it see to disjointness.
unsafe impl<T> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Shared<T> {}
