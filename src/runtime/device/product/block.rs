//! The loops of a product: tasks of the pool, chunks of k, blocks of rows, panels of columns, tiles.

use super::super::pool::{Pool, worker};
use super::super::share::Shared;
use super::ahead::Coming;
use super::few::Few;
use super::finish::Finish;
use super::pack::Pack;
use super::plan::{OWN, Own, SPLIT_WORK, Task, cut};
use super::tile::{Ahead, NEAR, TURN, Tile};
use std::ops::Range;

/// Where operands begin.
#[derive(Clone, Copy)]
pub struct Base {
    pub a: *const u8,
    pub b: *const u8,
    pub c: *mut u8,
}

// SAFETY: only addresses; tasks write disjoint parts of c.
unsafe impl Sync for Base {}

/// Panels of packed columns of b, or columns in place. Steps are in bytes.
#[derive(Clone, Copy)]
pub struct Columns {
    pub at: *const u8,
    pub count: usize,
    pub column: isize,
    pub step: isize,
    /// From one group of columns to the next.
    pub panel: isize,
}

/// Chunks of b that all threads have packed.
struct Panels {
    at: Shared<u8>,
    /// The chunk that lies there first.
    first: usize,
}

/// # Safety
/// All elements of the product must be valid; c overlaps neither itself nor the operands.
pub unsafe fn run(task: &Task, pool: &Pool, base: Base, scratch: &mut [u64]) -> Result<(), String> {
    let lines = scratch.as_mut_ptr().cast::<u8>();
    let lines = Shared(lines.wrapping_add(lines.align_offset(64)));
    // SAFETY: the caller of the product gave scratch for all threads; each takes a part of its own.
    let own = || unsafe { Own::at(lines.get().add(worker() * OWN)) };
    let base = &base;
    if task.in_pieces() {
        // SAFETY: after the parts of all threads there is room for what they share.
        return unsafe { task.run_in_pieces(pool, base, Shared(lines.get().add(pool.threads() * OWN))) };
    }
    let (at_a_time, all) = (task.shared_chunks(pool.threads()), task.all_chunks());
    if at_a_time > 0 {
        // SAFETY: after the parts of all threads there is room for what they share, as `shared_chunks` has checked.
        let shared = Shared(unsafe { lines.get().add(pool.threads() * OWN) });
        let panels = task.columns.div_ceil(task.kernel.columns());
        let (packs, parts) = (panels.min(pool.threads() * 4), task.parts(pool.threads()));
        for first in (0..all).step_by(at_a_time) {
            let chunks = first..(first + at_a_time).min(all);
            let panels = task.pack_b.then_some(Panels { at: shared, first });
            if let Some(panels) = &panels {
                pool.run(packs * chunks.len(), &|n| {
                    let columns = cut(task.columns, packs, task.kernel.columns(), n % packs);
                    // SAFETY: every part of the panels is packed once.
                    unsafe { task.share_columns(base, first + n / packs, columns, panels) }
                })?;
            }
            pool.run(parts.count(), &|n| {
                let (rows, columns) = parts.part(n);
                // SAFETY: parts of c are disjoint, and all operands valid.
                unsafe { task.block(base, rows, columns, chunks.clone(), &own(), panels.as_ref()) }
            })?;
        }
        return Ok(());
    }
    let grid = task.grid(pool.threads());
    let one = |n: usize| {
        let (rows, columns) = grid.part(n % grid.parts());
        let [a, b, c] = task.offsets(task.product.batch, n / grid.parts());
        // SAFETY: parts of c are disjoint, and all operands valid.
        unsafe {
            let base = Base { a: base.a.offset(a), b: base.b.offset(b), c: base.c.offset(c) };
            task.block(&base, rows, columns, 0..all, &own(), None);
        }
    };
    let tasks = task.product.batches() * grid.parts();
    if grid.parts() == 1 {
        let least = (SPLIT_WORK / 8 / task.work().max(1)).max(1);
        pool.split(tasks, least, &|begin, end| (begin..end).for_each(one))
    } else {
        pool.run(tasks, &one)
    }
}

impl Task<'_> {
    /// Where chunk `number` begins in a and b, and its terms.
    fn chunk_at(&self, number: usize) -> (isize, isize, usize) {
        let per = self.chunks().max(1);
        let (s, i) = (number / per, number % per);
        let [a, b, _] = self.offsets(self.product.sums, s);
        let from = i * self.chunk() * self.kernel.group;
        let terms = (self.chunk() * self.kernel.group).min(self.k - from);
        (a + from as isize * self.a_k, b + from as isize * self.b_k, terms)
    }

    /// Packs a part of a chunk of b to its place in the shared memory.
    ///
    /// # Safety
    /// All of b must be valid, and the memory hold all of b packed.
    unsafe fn share_columns(&self, base: &Base, number: usize, columns: Range<usize>, panels: &Panels) {
        let (_, b, terms) = self.chunk_at(number);
        // SAFETY: as promised by the caller.
        unsafe {
            let to = self.shared_at(panels, number, terms, columns.start);
            self.pack_columns(base.b.offset(b), terms, columns, to);
        }
    }

    /// Where a panel of a chunk lies in the shared memory.
    unsafe fn shared_at(&self, panels: &Panels, number: usize, terms: usize, column: usize) -> *mut u8 {
        let columns = self.columns.next_multiple_of(self.kernel.columns());
        let before = (number - panels.first) * self.chunk() * columns;
        // SAFETY: as promised by the callers.
        unsafe { panels.at.get().add((before + column * self.kernel.steps(terms)) * self.kernel.packed) }
    }

    pub unsafe fn pack_columns(&self, b: *const u8, terms: usize, columns: Range<usize>, to: *mut u8) {
        let pack = Pack {
            // SAFETY: a column of b, as the caller of `run` promises.
            from: unsafe { b.offset(columns.start as isize * self.b_column) },
            rows: columns.len(),
            row_step: self.b_column,
            terms,
            term_step: self.b_k,
            width: self.kernel.columns(),
            to,
        };
        // SAFETY: as above; the callers have room for whole panels of these columns.
        unsafe { (self.kernel.pack_apart.unwrap_or(self.kernel.pack))(&pack) }
    }

    /// Packs rows, the first of which is at `a`, into panels of tiles. Those of the same width go together, so that long runs of the source
    /// are read.
    ///
    /// # Safety
    /// Rows and terms must be valid, and `to` hold them packed.
    pub unsafe fn pack_rows(&self, a: *const u8, rows: usize, terms: usize, to: *mut u8) {
        let kernel = &self.kernel;
        let vectors = rows.div_ceil(kernel.lanes);
        let mut at = 0;
        while at < vectors {
            let taken = kernel.vectors(vectors - at);
            let alike = (1..).find(|n| kernel.vectors(vectors - at - n * taken) != taken).unwrap_or(1);
            let row = at * kernel.lanes;
            // SAFETY: as promised by the caller.
            unsafe {
                (kernel.pack)(&Pack {
                    from: a.offset(row as isize * self.a_row),
                    rows: (alike * taken * kernel.lanes).min(rows - row),
                    row_step: self.a_row,
                    terms,
                    term_step: self.a_k,
                    width: taken * kernel.lanes,
                    to: to.add(row * kernel.packed * kernel.steps(terms)),
                });
            }
            at += alike * taken;
        }
    }

    /// Some chunks of the sum for some rows and columns. Columns begin at a whole panel.
    ///
    /// # Safety
    /// All operands must be valid. Where a block is packed or summed in scratch memory, it must fit there; what is summed there
    /// must be all chunks.
    unsafe fn block(
        &self,
        base: &Base,
        rows: Range<usize>,
        columns: Range<usize>,
        mut chunks: Range<usize>,
        own: &Own,
        shared: Option<&Panels>,
    ) {
        if rows.is_empty() || columns.is_empty() {
            return;
        }
        let kernel = &self.kernel;
        let sum = kernel.sum.bytes();
        // SAFETY: as promised by the caller; all places are of the block's rows, columns and terms.
        unsafe {
            let place = base.c.offset(rows.start as isize * self.c_row + columns.start as isize * self.c_column);
            let own_column = rows.len().next_multiple_of(kernel.lanes) * sum;
            let (c, c_column) = if self.own_c { (own.c, own_column as isize) } else { (place, self.c_column) };
            let empty = chunks.is_empty();
            if empty {
                // An empty sum still clears the result.
                chunks = 0..1;
            }
            let end = chunks.end;
            let [mut here, mut there] = own.a;
            let mut packed = false;
            for number in chunks {
                let (a, b, terms) = if empty { (0, 0, 0) } else { self.chunk_at(number) };
                let (a, b) = (base.a.offset(a + rows.start as isize * self.a_row), base.b.offset(b));
                let steps = kernel.steps(terms);
                let panel = (kernel.columns() * steps * kernel.packed) as isize;
                let (beside, along) = if kernel.pack_apart.is_some() { (steps, 1) } else { (1, kernel.columns()) };
                let own_columns = Columns {
                    at: own.b,
                    count: columns.len(),
                    column: (beside * kernel.packed) as isize,
                    step: (along * kernel.packed) as isize,
                    panel,
                };
                let b = if let Some(panels) = shared {
                    Columns { at: self.shared_at(panels, number, terms, columns.start), ..own_columns }
                } else if self.pack_b {
                    self.pack_columns(b, terms, columns.clone(), own.b);
                    own_columns
                } else {
                    Columns {
                        at: b.offset(columns.start as isize * self.b_column),
                        count: columns.len(),
                        column: self.b_column,
                        step: self.b_k * kernel.group as isize,
                        panel: self.b_column * kernel.columns() as isize,
                    }
                };
                let add = number > 0 || (self.product.accumulate && !self.own_c);
                if self.few {
                    let few = kernel.few.expect("what few columns need");
                    few(&Few {
                        rows: rows.len(),
                        columns: columns.len(),
                        k: terms,
                        a,
                        a_row: self.a_row,
                        a_k: self.a_k,
                        b: b.at,
                        b_column: self.b_column,
                        b_k: self.b_k,
                        c,
                        c_row: if self.own_c { sum as isize } else { self.c_row },
                        c_column,
                        add,
                    });
                    continue;
                }
                for first in (0..rows.len()).step_by(self.row_block()) {
                    let count = self.row_block().min(rows.len() - first);
                    let (a, c) = (a.offset(first as isize * self.a_row), c.add(first * sum));
                    // Rows behind these, or the same ones in the next chunk.
                    let next = if first + count < rows.len() {
                        let next = self.row_block().min(rows.len() - first - count);
                        Some((a.wrapping_offset(count as isize * self.a_row), next, terms))
                    } else if number + 1 < end {
                        let (a, _, terms) = self.chunk_at(number + 1);
                        let at = base.a.wrapping_offset(a + rows.start as isize * self.a_row);
                        Some((at, self.row_block().min(rows.len()), terms))
                    } else {
                        None
                    };
                    let next = next
                        .map(|(a, rows, terms)| self.coming(a, rows, terms, there, self.turns(count, b.count, steps)));
                    self.rows_by_columns((a, count, terms), packed, b, (c, c_column, add), next.as_ref(), here);
                    packed = next.is_some_and(|next| next.carried());
                    if packed {
                        (here, there) = (there, here);
                    }
                }
            }
            if let Some(done) = kernel.done {
                done();
            }
            if self.own_c {
                let finish = Finish {
                    from: own.c,
                    from_column: own_column,
                    sum: kernel.sum,
                    to: place,
                    rows: rows.len(),
                    row_step: self.c_row,
                    columns: columns.len(),
                    column_step: self.c_column,
                    out: self.product.out,
                    add: self.product.accumulate,
                };
                finish.run();
            }
        }
    }

    /// One block of rows, one chunk of k. Rows that are packed lie, or are `packed` already, at `here`.
    unsafe fn rows_by_columns(
        &self,
        (a, rows, terms): (*const u8, usize, usize),
        packed: bool,
        b: Columns,
        (c, c_column, add): (*mut u8, isize, bool),
        next: Option<&Coming>,
        here: *mut u8,
    ) {
        let columns = b.count;
        let kernel = &self.kernel;
        let steps = kernel.steps(terms);
        let vectors = rows.div_ceil(kernel.lanes);
        let vector = kernel.lanes * kernel.packed;
        // SAFETY: as `block` promises.
        unsafe {
            if self.pack_a && !packed {
                self.pack_rows(a, rows, terms, here);
            }
            let (offsets, lines) = self.column_lines(&b, terms);
            let turns = (steps / TURN).max(1);
            let (mut tiles, mut carry) = (0, None);
            // What the coming tiles want is asked for while the last ones before them compute.
            let all_tiles = columns.div_ceil(kernel.columns()) * vectors.div_ceil(kernel.tiles.len());
            let mut ahead = |at: usize, j: usize| {
                let tile = tiles;
                tiles += 1;
                let group = b.at.wrapping_offset((j / kernel.columns()) as isize * b.panel);
                // Those of this group of columns come one after the other.
                let done = (at / kernel.tiles.len() * turns * NEAR).min(lines - 1);
                let near = Ahead {
                    near: group.wrapping_offset(b.panel),
                    offsets: offsets.as_ptr().add(done),
                    last: lines - 1 - done,
                    ..Ahead::none(group)
                };
                next.map_or(near, |next| next.during(tile, all_tiles, turns, near, &mut carry))
            };
            let mut tile = |at: usize, taken: usize, j: usize| {
                let n = kernel.columns().min(columns - j);
                let (a, a_step) = if self.pack_a {
                    (here.cast_const().add(at * vector * steps), (taken * vector) as isize)
                } else {
                    (a.add(at * vector), self.a_k)
                };
                let last = if at + taken == vectors { rows - (vectors - 1) * kernel.lanes } else { kernel.lanes };
                kernel.tiles[taken - 1][n - 1](&Tile {
                    k: steps,
                    a,
                    a_step,
                    b: b.at.offset((j / kernel.columns()) as isize * b.panel),
                    b_columns: b.column,
                    b_step: b.step,
                    c: c.offset(j as isize * c_column).add(at * kernel.lanes * kernel.sum.bytes()),
                    c_columns: c_column,
                    last,
                    add,
                    ahead: ahead(at, j),
                });
            };
            for j in (0..columns).step_by(kernel.columns()) {
                let mut at = 0;
                while at < vectors {
                    let taken = kernel.vectors(vectors - at);
                    tile(at, taken, j);
                    at += taken;
                }
            }
        }
    }
}
