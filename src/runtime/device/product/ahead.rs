//! What tiles do for coming ones: they ask for the lines of the next columns and of the rows that are packed next, which come in
//! runs too short for a processor to look ahead by itself; and where few columns use each row, they pack the next rows, too.

use super::block::Columns;
use super::plan::Task;
use super::tile::{Ahead, Carry, PAIR, TURN};

/// Lines of a group of columns that are asked for ahead, at most.
const LINES: usize = 512;

/// Pairs of lines of a run that tiles carry, at most.
const PAIRS: usize = 64;

/// A block of rows that is wanted when the present one is done: `count` runs of so many lines, `step` bytes apart.
pub struct Coming {
    from: *const u8,
    lines: usize,
    count: usize,
    step: isize,
    carried: Option<Carried>,
}

/// Where the tiles of the present block pack the runs.
struct Carried {
    to: *mut u8,
    to_step: isize,
    pairs: usize,
    offsets: [u32; PAIRS],
}

impl Coming {
    /// Whether the tiles of the present block pack all of it.
    pub fn carried(&self) -> bool {
        self.carried.is_some()
    }

    /// What tile `n` of `all` does for it beside what it asks for already.
    pub fn during(&self, n: usize, all: usize, turns: usize, near: Ahead, carry: &mut Option<Carry>) -> Ahead {
        if let Some(carried) = &self.carried {
            let pair = n * turns;
            let (run, at) = (pair / carried.pairs, pair % carried.pairs);
            let carry = carry.insert(Carry {
                from: self.from.wrapping_offset(run as isize * self.step),
                step: self.step,
                to: carried.to.wrapping_offset(run as isize * carried.to_step),
                to_step: carried.to_step,
                pairs: carried.pairs,
                offsets: carried.offsets.as_ptr(),
                at,
                left: (self.count * carried.pairs).saturating_sub(pair).min(turns),
            });
            Ahead { carry, ..near }
        } else if let Some((far, far_step)) = self.part(n, all, turns) {
            Ahead { far, far_step, ..near }
        } else {
            near
        }
    }

    /// Where tile `n` of `all` finds two neighbouring lines to ask for in each of its turns, and the step from turn to turn.
    fn part(&self, n: usize, all: usize, turns: usize) -> Option<(*const u8, isize)> {
        let pairs = self.lines.div_ceil(2);
        let wanted = pairs * self.count.div_ceil(turns);
        let n = n.checked_sub(all.saturating_sub(wanted))?;
        let (pair, from) = (n % pairs, n / pairs * turns);
        (from < self.count)
            .then(|| (self.from.wrapping_offset(from as isize * self.step).wrapping_add(pair * PAIR), self.step))
    }
}

impl Task<'_> {
    /// A block of rows of a chunk that is packed to `to` later, or during so many turns of tiles.
    pub fn coming(&self, from: *const u8, rows: usize, terms: usize, to: *mut u8, turns: usize) -> Coming {
        let runs_along_rows = self.a_row < self.a_k;
        let ((run, step), (count, far)) = if runs_along_rows {
            ((rows, self.a_row), (terms, self.a_k))
        } else {
            ((terms, self.a_k), (rows, self.a_row))
        };
        let carried = self.carried(rows, terms, to).filter(|carried| carried.pairs * count <= turns);
        Coming { from, lines: (run * step.unsigned_abs()).div_ceil(64), count, step: far, carried }
    }

    /// Turns of the tiles of a block.
    pub fn turns(&self, rows: usize, columns: usize, steps: usize) -> usize {
        rows.div_ceil(self.kernel.rows()) * columns.div_ceil(self.kernel.columns()) * (steps / TURN)
    }

    /// How tiles pack rows of whole tiles.
    fn carried(&self, rows: usize, terms: usize, to: *mut u8) -> Option<Carried> {
        let packed = self.kernel.packed;
        let (panel, run) = (self.kernel.rows() * packed, rows * packed);
        if !self.carries() || !rows.is_multiple_of(self.kernel.rows()) || run > PAIRS * PAIR {
            return None;
        }
        let mut offsets = [0; PAIRS];
        for (pair, offset) in offsets.iter_mut().enumerate().take(run / PAIR) {
            let at = pair * PAIR;
            *offset = (at / panel * panel * terms + at % panel) as u32;
        }
        Some(Carried { to, to_step: panel as isize, pairs: run / PAIR, offsets })
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
        (offsets, lines.max(1))
    }
}
