//! Zeros at the end of a chunk of k are left out of a tile's sum, where a product says that they are worth looking for: of the rows
//! of experts to which few tokens go, most are not there.

use super::block::Columns;
use super::plan::{ROW_TILES, Task};

/// Vectors of a block of rows.
const MOST: usize = 4 * ROW_TILES;

/// How much of a chunk the tiles of a block need.
pub struct Zeros<'t> {
    task: &'t Task<'t>,
    b: Columns,
    steps: usize,
    /// By the first vector of a tile in the block, once it is known: steps up to the last one that is not zero.
    rows: [Option<usize>; MOST],
    /// The same of the group of columns at hand, and which it is.
    columns: (usize, usize),
}

impl<'t> Zeros<'t> {
    pub fn new(task: &'t Task<'t>, b: &Columns, steps: usize) -> Zeros<'t> {
        Zeros { task, b: *b, steps, rows: [None; MOST], columns: (usize::MAX, 0) }
    }

    /// Steps that a tile has to sum over: that of packed rows at `a`, `width` bytes for each step, the first of which is vector
    /// `at` of the block, and of `n` columns from `j`.
    ///
    /// # Safety
    /// The panels of rows and columns must be there.
    pub unsafe fn used(&mut self, a: *const u8, width: usize, at: usize, j: usize, n: usize) -> usize {
        if !self.task.product.ragged {
            return self.steps;
        }
        let kernel = &self.task.kernel;
        // SAFETY: as promised by the caller.
        unsafe {
            let look = || {
                let step = |s: usize| std::slice::from_raw_parts(a.add(s * width), width);
                up_to_last(self.steps, |s| step(s).iter().any(|x| *x != 0))
            };
            let rows = match self.rows.get_mut(at) {
                Some(known) => *known.get_or_insert_with(look),
                None => look(),
            };
            if rows == 0 {
                return 0;
            }
            if self.columns.0 != j {
                let group = self.b.at.offset((j / kernel.columns()) as isize * self.b.panel);
                let element = |s: usize, c: usize| {
                    let at = group.offset(s as isize * self.b.step + c as isize * self.b.column);
                    std::slice::from_raw_parts(at, kernel.packed).iter().any(|x| *x != 0)
                };
                self.columns = (j, up_to_last(self.steps, |s| (0..n).any(|c| element(s, c))));
            }
            let used = rows.min(self.columns.1);
            used.next_multiple_of(kernel.pad).min(self.steps)
        }
    }
}

/// The number of steps without those at the end of which nothing is there.
fn up_to_last(steps: usize, there: impl Fn(usize) -> bool) -> usize {
    (0..steps).rev().find(|s| there(*s)).map_or(0, |s| s + 1)
}
