//! Memory that a task will need is asked for while it computes: between tiles, a row at a time, so that neither waits for
//! the other. The lines come into the second cache.

use super::block::Matrix;
use std::cell::Cell;

const LINE: usize = 64;
/// Lists of rows that can be asked for.
const MOST: usize = 10;
/// How much earlier than with the last tile the last row is asked for: 5/4.
const EARLY: u64 = 5;

/// Rows of an array.
#[derive(Clone, Copy)]
struct Rows {
    at: *const u8,
    step: isize,
    rows: usize,
    bytes: usize,
}

/// What is to be asked for, and how far it has come.
pub struct Ahead {
    all: [Rows; MOST],
    count: usize,
    rows: u64,
    /// Multiplications and additions that the task will do.
    work: u64,
    done: Cell<u64>,
    /// Numbers of the list and of the row in it that come next.
    list: Cell<usize>,
    row: Cell<usize>,
}

impl Ahead {
    pub fn new(work: u64) -> Ahead {
        let none = Rows { at: std::ptr::null(), step: 0, rows: 0, bytes: 0 };
        Ahead {
            all: [none; MOST],
            count: 0,
            rows: 0,
            work: work.max(1),
            done: Cell::new(0),
            list: Cell::new(0),
            row: Cell::new(0),
        }
    }

    /// Some rows of a matrix of elements of `stored` bytes. Where elements do not lie side by side it is left out.
    pub fn add(&mut self, from: Matrix, rows: usize, columns: usize, stored: isize) {
        if from.column == stored && rows > 0 && self.count < MOST {
            let bytes = columns * stored as usize;
            self.all[self.count] = Rows { at: from.at, step: from.row, rows, bytes };
            self.count += 1;
            self.rows += rows as u64;
        }
    }

    /// To be called with each part of the task's work.
    #[inline(always)]
    pub fn work(&self, work: usize) {
        let mut due = self.done.get() + self.rows * work as u64 * EARLY / 4;
        while due >= self.work && self.list.get() < self.count {
            due -= self.work;
            self.ask();
        }
        self.done.set(due);
    }

    #[inline(always)]
    fn ask(&self) {
        let (list, row) = (self.list.get(), self.row.get());
        let rows = &self.all[list];
        let at = rows.at.wrapping_offset(row as isize * rows.step);
        for byte in (0..rows.bytes).step_by(LINE) {
            ask(at.wrapping_add(byte));
        }
        if row + 1 < rows.rows {
            self.row.set(row + 1);
        } else {
            self.list.set(list + 1);
            self.row.set(0);
        }
    }
}

/// Any address may be given.
#[inline(always)]
fn ask(_at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the instruction is in every processor of this kind, and has no effect but on caches.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T1 }>(_at.cast());
    }
}
