//! What tiles ask for ahead: the lines of the next columns, and the rows that are packed next. Both come in runs too short for a
//! processor to look ahead by itself.

use super::block::Columns;
use super::plan::Task;

/// Lines of a group of columns that are asked for ahead, at most.
const LINES: usize = 512;

/// A block of rows that is packed when the present one is done: `count` runs of so many lines, `step` bytes apart.
pub struct Coming {
    from: *const u8,
    lines: usize,
    count: usize,
    step: isize,
}

impl Coming {
    /// Where tile `n` of `all` finds two neighbouring lines to ask for in each of its turns, and the step from turn to turn.
    pub fn part(&self, n: usize, all: usize, turns: usize) -> Option<(*const u8, isize)> {
        let pairs = self.lines.div_ceil(2);
        let wanted = pairs * self.count.div_ceil(turns);
        let n = n.checked_sub(all.saturating_sub(wanted))?;
        let (pair, from) = (n % pairs, n / pairs * turns);
        (from < self.count)
            .then(|| (self.from.wrapping_offset(from as isize * self.step).wrapping_add(pair * 128), self.step))
    }
}

impl Task<'_> {
    /// A block of rows of a chunk that is packed later.
    pub fn coming(&self, from: *const u8, rows: usize, terms: usize) -> Coming {
        let runs_along_rows = self.a_row < self.a_k;
        let ((run, step), (count, far)) = if runs_along_rows {
            ((rows, self.a_row), (terms, self.a_k))
        } else {
            ((terms, self.a_k), (rows, self.a_row))
        };
        Coming { from, lines: (run * step.unsigned_abs()).div_ceil(64), count, step: far }
    }

    /// Offsets of the lines of a group of columns, as many as the tiles of a block may ask for, and how many there are.
    pub fn column_lines(&self, b: &Columns, terms: usize) -> ([i32; LINES], usize) {
        let mut offsets = [0; LINES];
        let steps = self.kernel.steps(terms);
        let mut lines = 0;
        let mut put = |offset: isize| {
            if lines < LINES {
                offsets[lines] = offset as i32;
                lines += 1;
            }
        };
        let (columns, step, column) = (self.kernel.columns(), b.step.abs(), b.column.abs());
        if step <= column {
            // Along k, each column by itself.
            let each = (steps as isize * step) / 64 + 1;
            (0..columns as isize).for_each(|j| (0..each).for_each(|line| put(j * b.column + line * 64)));
        } else {
            let (each, per) = if step < 64 { ((steps as isize * step) / 64 + 1, 64) } else { (steps as isize, b.step) };
            (0..each).for_each(|line| put(line * per));
        }
        (offsets, lines)
    }
}
