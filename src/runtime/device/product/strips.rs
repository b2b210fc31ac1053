//! Products whose result is used at once: each thread makes blocks of c that stay in its cache and hands each over before it makes
//! the next.
//!
//! Here c is *lines* of elements that are neighbours in memory; a block is some lines of a part of the width. The operand with
//! the width is packed once for many blocks.

use super::super::pool::{Pool, worker};
use super::super::share::Shared;
use super::Product;
use super::finish::Finish;
use super::kernel::Unit;
use super::plan::{A_BYTES, B_BYTES, C_BYTES, OWN, Own, SCRATCH, Task};
use super::tile::{Ahead, PAIR, TURN, Tile};
use std::ops::Range;

/// Bytes of a block, about, where the user does not ask for more: a part of the second-level cache.
const BLOCK_BYTES: usize = 384 << 10;
/// Longest part of a line in a block.
const ACROSS: usize = 1024;
/// Most blocks that the packed operand is used for, and tasks for each thread that there should be.
const BLOCKS: usize = 16;
const TASKS: usize = 8;
/// Bytes of one panel up to which it stays in the first-level cache while all lines pass by.
const PANEL: usize = 16 << 10;

/// Blocks must be whole multiples of these, but at the end of c.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Units {
    pub lines: usize,
    pub across: usize,
}

/// An array of elements as those of c, at the same places, that is read when a block is finished: it is asked for while the block is
/// made.
#[derive(Clone, Copy, Debug)]
pub struct Beside {
    pub at: *const u8,
    /// Of an element.
    pub bytes: usize,
}

// SAFETY: only an address, which nobody dereferences.
unsafe impl Sync for Beside {}

/// A finished block.
#[derive(Clone, Debug)]
pub struct Block {
    pub lines: Range<usize>,
    pub across: Range<usize>,
    pub at: *mut u8,
    /// Bytes from line to line.
    pub step: usize,
}

/// What is done with finished blocks, by the threads that made them.
pub type Then<'t> = dyn Fn(&Block) + Sync + 't;

/// Sizes of blocks.
struct Sizes {
    lines: usize,
    across: usize,
    /// Part of a line that is packed at a time.
    packed: usize,
    /// Bytes from line to line where a block is in scratch memory.
    step: usize,
}

impl Product<'_> {
    /// Whether lines of c are along n, one for each m; else the other way round.
    fn lines_by_m(&self) -> bool {
        self.n.c == 1 && self.m.c == self.n.size as isize
    }

    fn task_of_blocks(&self, unit: Unit) -> Task<'_> {
        let mut task = Task::way(self, unit.kernel(self.dtype, self.out), self.lines_by_m());
        (task.pack_a, task.pack_b, task.few) = (true, true, false);
        task
    }

    /// Bytes of scratch memory for each thread where a unit computes blocks.
    pub fn scratch_of_blocks(&self, unit: Unit, units: Units) -> usize {
        let sizes = self.task_of_blocks(unit).sizes(units);
        SCRATCH + (sizes.lines * sizes.step).next_multiple_of(64)
    }

    /// Computes a product of floats without batch and further sums block by block, in memory of each thread, by a unit of this processor,
    /// and calls `then` with each block. Every element is made once, and as by [`Product::run`].
    ///
    /// # Safety
    /// As for [`Product::run_on`], but for c.
    pub unsafe fn run_in_blocks(
        &self,
        unit: Unit,
        pool: &Pool,
        (a, b): (*const u8, *const u8),
        (units, beside): (Units, &[Option<Beside>]),
        scratch: &mut [u64],
        then: &Then,
    ) -> Result<(), String> {
        let task = self.task_of_blocks(unit);
        let sizes = task.sizes(units);
        let each = (sizes.lines * sizes.step).next_multiple_of(64);
        assert!(scratch.len() * 8 >= (SCRATCH + each) * pool.threads(), "scratch for blocks");
        let memory = scratch.as_mut_ptr().cast::<u8>();
        let memory = Shared(memory.wrapping_add(memory.align_offset(64)));
        let (a, b) = if task.turned { (b, a) } else { (a, b) };
        let (a, b) = (Shared(a.cast_mut()), Shared(b.cast_mut()));
        let parts = task.rows.div_ceil(sizes.across);
        let blocks = task.columns.div_ceil(sizes.lines);
        let wanted = (TASKS * pool.threads()).div_ceil(parts).max(blocks.div_ceil(BLOCKS)).min(blocks);
        pool.run(parts * wanted, &|n| {
            let (part, group) = (n % parts, n / parts);
            let first = part * sizes.across;
            let across = first..(first + sizes.across).min(task.rows);
            let at = |g: usize| (blocks * g / wanted * sizes.lines).min(task.columns);
            // SAFETY: inside of the scratch memory, as checked above; parts of this thread's own.
            let (own, room) = unsafe {
                let own = Own::at(memory.get().add(worker() * OWN));
                (own, memory.get().add(OWN * pool.threads() + worker() * each))
            };
            let maker = Maker { task: &task, sizes: &sizes, a: a.get(), b: b.get(), own, beside };
            let mut packed = None;
            for line in (at(group)..at(group + 1)).step_by(sizes.lines) {
                let lines = line..(line + sizes.lines).min(task.columns);
                let block = Block { lines, across: across.clone(), at: room, step: sizes.step };
                // SAFETY: operands as the caller promises; the block has room for all of its lines.
                unsafe { maker.make(&block, &mut packed) };
                then(&block);
            }
        })
    }
}

impl Task<'_> {
    /// Bytes of one packed row or column over all chunks.
    fn packed_line(&self) -> usize {
        self.chunks().max(1) * self.chunk() * self.kernel.packed
    }

    fn sizes(&self, units: Units) -> Sizes {
        let (kernel, out) = (&self.kernel, self.product.out.bytes());
        let each = self.packed_line();
        let (tile, width) = (kernel.rows(), self.rows.max(1));
        let room = (A_BYTES / each).saturating_sub(kernel.lanes) / tile * tile;
        let most = room.min(ACROSS.next_multiple_of(units.across)).max(tile);
        let across = if units.across <= most { most / units.across * units.across } else { units.across };
        let across = across.min(width);
        let packed = across.min(most);
        let mut lines = BLOCK_BYTES / (across * out).max(1);
        lines = lines.min(B_BYTES / each);
        if self.own_c {
            lines = lines.min(C_BYTES / (packed.next_multiple_of(kernel.lanes) * kernel.sum.bytes()));
        }
        // Whole tiles, where there can be.
        let unit = units.lines * kernel.columns();
        let unit = if lines >= unit { unit } else { units.lines };
        let lines = (lines / unit * unit).max(units.lines).min(self.columns.max(1));
        // Lines of a power of two would fall on the same places of the cache.
        let step = if across == width { across * out } else { (across * out).next_multiple_of(64) + 64 };
        Sizes { lines, across, packed, step }
    }
}

/// What one thread makes blocks with.
struct Maker<'t> {
    task: &'t Task<'t>,
    sizes: &'t Sizes,
    a: *const u8,
    b: *const u8,
    own: Own,
    beside: &'t [Option<Beside>],
}

impl Maker<'_> {
    fn terms(&self, chunk: usize) -> usize {
        let each = self.task.chunk() * self.task.kernel.group;
        each.min(self.task.k - chunk * each)
    }

    /// `packed`: the beginning of the part of the width that lies packed.
    unsafe fn make(&self, block: &Block, packed: &mut Option<usize>) {
        let (task, kernel) = (self.task, &self.task.kernel);
        let lines = block.lines.len();
        let sum = kernel.sum.bytes();
        // SAFETY: as promised by the caller; `sizes` has seen to it that all that is packed or summed here has room.
        unsafe {
            for chunk in 0..task.chunks() {
                let from = self.b.offset((chunk * task.chunk() * kernel.group) as isize * task.b_k);
                task.pack_columns(from, self.terms(chunk), block.lines.clone(), self.lines_at(chunk, lines));
            }
            for first in block.across.clone().step_by(self.sizes.packed) {
                let across = first..(first + self.sizes.packed).min(block.across.end);
                if *packed != Some(first) {
                    (0..task.chunks()).for_each(|chunk| self.pack(chunk, &across));
                    *packed = Some(first);
                }
                let place = block.at.add((first - block.across.start) * task.product.out.bytes());
                let own_step = across.len().next_multiple_of(kernel.lanes) * sum;
                let (c, step) = if task.own_c { (self.own.c, own_step) } else { (place, block.step) };
                for chunk in 0..task.chunks().max(1) {
                    self.tiles(chunk, &across, &block.lines, c, step);
                }
                if let Some(done) = kernel.done {
                    done();
                }
                if task.own_c {
                    let out = task.product.out;
                    let finish = Finish {
                        from: self.own.c,
                        from_column: own_step,
                        sum: kernel.sum,
                        to: place,
                        rows: across.len(),
                        row_step: out.bytes() as isize,
                        columns: lines,
                        column_step: block.step as isize,
                        out,
                        add: false,
                    };
                    finish.run();
                }
            }
        }
    }

    /// Where a chunk of packed lines begins.
    unsafe fn lines_at(&self, chunk: usize, lines: usize) -> *mut u8 {
        let kernel = &self.task.kernel;
        let all = lines.next_multiple_of(kernel.columns());
        // SAFETY: as promised by the caller of `make`.
        unsafe { self.own.b.add(chunk * self.task.chunk() * all * kernel.packed) }
    }

    /// Where a chunk of the packed width begins.
    unsafe fn across_at(&self, chunk: usize, across: &Range<usize>) -> *mut u8 {
        let kernel = &self.task.kernel;
        let all = across.len().next_multiple_of(kernel.lanes);
        // SAFETY: as promised by the caller of `make`.
        unsafe { self.own.a[0].add(chunk * self.task.chunk() * all * kernel.packed) }
    }

    unsafe fn pack(&self, chunk: usize, across: &Range<usize>) {
        let task = self.task;
        let term = (chunk * task.chunk() * task.kernel.group) as isize;
        // SAFETY: as promised by the caller of `make`.
        unsafe {
            let from = self.a.offset(across.start as isize * task.a_row + term * task.a_k);
            task.pack_rows(from, across.len(), self.terms(chunk), self.across_at(chunk, across));
        }
    }

    /// What the tiles of the first chunk ask for.
    fn requests(&self, chunk: usize, across: &Range<usize>, lines: &Range<usize>, turns: usize) -> Requests<'_> {
        let width = self.task.rows;
        Requests {
            arrays: if chunk == 0 && turns > 0 { self.beside } else { &[] },
            first: lines.start * width + across.start,
            across: across.len(),
            width,
            lines: lines.len(),
            turns,
            at: (0, 0, 0),
        }
    }

    /// Adds one chunk of the sum.
    unsafe fn tiles(&self, chunk: usize, across: &Range<usize>, lines: &Range<usize>, c: *mut u8, c_step: usize) {
        let (task, kernel) = (self.task, &self.task.kernel);
        let terms = if task.k == 0 { 0 } else { self.terms(chunk) };
        let steps = kernel.steps(terms);
        let vectors = across.len().div_ceil(kernel.lanes);
        let vector = kernel.lanes * kernel.packed;
        let mut requests = self.requests(chunk, across, lines, steps / TURN);
        let lines = lines.len();
        let (beside, along) = if kernel.pack_apart.is_some() { (steps, 1) } else { (1, kernel.columns()) };
        // SAFETY: as promised by the caller of `make`.
        unsafe {
            let (a, b) = (self.across_at(chunk, across).cast_const(), self.lines_at(chunk, lines).cast_const());
            let mut tile = |at: usize, taken: usize, line: usize| {
                let n = kernel.columns().min(lines - line);
                let a = a.add(at * vector * steps);
                let last =
                    if at + taken == vectors { across.len() - (vectors - 1) * kernel.lanes } else { kernel.lanes };
                kernel.tiles[taken - 1][n - 1](&Tile {
                    k: steps,
                    a,
                    a_step: (taken * vector) as isize,
                    b: b.add(line * steps * kernel.packed),
                    b_columns: (beside * kernel.packed) as isize,
                    b_step: (along * kernel.packed) as isize,
                    c: c.add(line * c_step + at * kernel.lanes * kernel.sum.bytes()),
                    c_columns: c_step as isize,
                    last,
                    add: chunk > 0,
                    ahead: requests.next(a),
                });
            };
            let mut panels = |line: Range<usize>| {
                let mut at = 0;
                while at < vectors {
                    let taken = kernel.vectors(vectors - at);
                    line.clone().step_by(kernel.columns()).for_each(|line| tile(at, taken, line));
                    at += taken;
                }
            };
            if kernel.rows() * steps * kernel.packed <= PANEL {
                panels(0..lines);
            } else {
                for line in (0..lines).step_by(kernel.columns()) {
                    panels(line..(line + kernel.columns()).min(lines));
                }
            }
        }
    }
}

/// What tiles ask for, two neighbouring cache lines in each of their turns: one run of an array after the other.
struct Requests<'t> {
    arrays: &'t [Option<Beside>],
    /// First element of a line, elements of the part of it, elements from line to line.
    first: usize,
    across: usize,
    width: usize,
    lines: usize,
    turns: usize,
    /// The present array, line and byte of it.
    at: (usize, usize, usize),
}

impl Requests<'_> {
    fn next(&mut self, none: *const u8) -> Ahead {
        let (array, line, byte) = self.at;
        let Some(Beside { at, bytes }) = self.arrays.get(array).copied().flatten() else { return Ahead::none(none) };
        let far = at.wrapping_add((self.first + line * self.width) * bytes + byte);
        self.at.2 += self.turns * PAIR;
        if self.at.2 >= self.across * bytes {
            self.at = if line + 1 < self.lines { (array, line + 1, 0) } else { (array + 1, 0, 0) };
        }
        Ahead { far, far_step: PAIR as isize, ..Ahead::none(none) }
    }
}
