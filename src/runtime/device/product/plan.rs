//! What a product packs and how its work is cut.

use super::kernel::Kernel;
use super::tile::PAIR;
use super::{Extent, Product};
use std::ops::Range;

/// Steps along k in a chunk, by bytes of a packed element. A chunk of eight columns of b takes a quarter of a first-level
/// cache.
const fn chunk_steps(packed: usize) -> usize {
    if packed == 4 { 384 } else { 256 }
}

/// The same where a group has so many columns that it takes half of that cache.
const CHUNK_OF_MANY: usize = 192;

/// Tiles in a block of rows: with a chunk of k, what the second-level cache holds beside what passes through.
const ROW_TILES: usize = 6;

/// Columns up to which packing the rows is a good part of the work, so that tiles do it while they compute.
const FEW_TO_CARRY: usize = 256;

// Parts of a thread's scratch memory. The largest tile has 64 rows of four bytes.
pub const A_BYTES: usize = ROW_TILES * 64 * chunk_steps(4) * 4;
pub const B_BYTES: usize = 512 * chunk_steps(4) * 4;
pub const C_BYTES: usize = ROW_TILES * 64 * 512 * 4;
/// What one thread brings into the memory for an operand that all threads share. Little in tests, so that operands of their
/// sizes come in several windows.
pub const SHARED_BYTES: usize = if cfg!(test) { 128 << 10 } else { 2 << 20 };
/// Bytes that a thread uses alone.
pub const OWN: usize = A_BYTES + B_BYTES + C_BYTES;
/// Bytes of scratch for each thread, with room to begin at a cache line.
pub const SCRATCH: usize = OWN + SHARED_BYTES + 64;

/// Columns up to which it does not pay to pack rows that lie side by side already.
const FEW_COLUMNS: usize = 24;
/// Columns up to which a passes through once without tiles.
const FEW: usize = 3;
/// Most and least tiles of a part then: rows are read in long runs.
const TILES_OF_FEW: (usize, usize) = (32, 4);
/// Bytes of an operand that stay in the first-level cache, packed or not.
const SMALL: usize = 32 << 10;
/// Bytes of an operand that do not stay in the second-level cache.
const LARGE: usize = 512 << 10;
/// Bytes from step to step along k up to which rows that lie side by side are as good as packed.
const CLOSE: isize = 1024;
/// Columns that a part must have to be worth the packing of its rows.
const FEW_TO_SHARE: usize = 192;
/// Least parts for each thread where b is shared and there is work enough.
const PARTS: usize = 4;
/// Multiply-adds below which one product is not worth two threads.
pub const SPLIT_WORK: usize = 1 << 19;

/// A product in terms of tiles: rows are what vectors run along, and all steps are in bytes.
pub struct Task<'a> {
    pub product: &'a Product<'a>,
    pub kernel: Kernel,
    /// Whether a, the operand with the rows, is the product's b.
    pub turned: bool,
    pub rows: usize,
    pub columns: usize,
    pub k: usize,
    pub a_row: isize,
    pub a_k: isize,
    pub b_column: isize,
    pub b_k: isize,
    pub c_row: isize,
    pub c_column: isize,
    pub pack_a: bool,
    pub pack_b: bool,
    /// Whether sums are made in scratch memory and then go to their place.
    pub own_c: bool,
    /// Whether there are so few columns that no tiles are needed: both operands run along k, or the rows do.
    pub few: bool,
}

/// Where the parts of a thread's own scratch memory begin.
pub struct Own {
    /// Two halves, of which one is packed while the other one is used, or one whole.
    pub a: [*mut u8; 2],
    pub b: *mut u8,
    pub c: *mut u8,
}

impl Own {
    /// # Safety
    /// `at` must be the beginning of [`OWN`] bytes.
    pub unsafe fn at(at: *mut u8) -> Own {
        // SAFETY: inside, by the sum that makes `OWN`.
        unsafe { Own { a: [at, at.add(A_BYTES / 2)], b: at.add(A_BYTES), c: at.add(A_BYTES + B_BYTES) } }
    }
}

impl<'a> Task<'a> {
    pub fn new(product: &'a Product<'a>, kernel: Kernel) -> Task<'a> {
        let (ways, turned) = ([false, true].map(|turned| Task::way(product, kernel, turned)), true);
        let [straight, across] = ways;
        if across.cost() < straight.cost() { Task { turned, ..across } } else { straight }
    }

    pub fn way(product: &'a Product<'a>, kernel: Kernel, turned: bool) -> Task<'a> {
        let (m, n, k) = (product.m, product.n, product.k);
        let (read, written) = (product.dtype.bytes() as isize, product.out.bytes() as isize);
        let (rows, columns) = if turned { (n, m) } else { (m, n) };
        let (a_row, a_k) = if turned { (n.b, k.b) } else { (m.a, k.a) };
        let (b_column, b_k) = if turned { (m.a, k.a) } else { (n.b, k.b) };
        // A step along a size of one may be any.
        let step = |size: usize, step: isize, bytes: isize| if size == 1 { bytes } else { step * bytes };
        let mut task = Task {
            product,
            kernel,
            turned,
            rows: rows.size,
            columns: columns.size,
            k: k.size,
            a_row: step(rows.size, a_row, read),
            a_k: step(k.size, a_k, read),
            b_column: step(columns.size, b_column, read),
            b_k: step(k.size, b_k, read),
            c_row: step(rows.size, rows.c, written),
            c_column: columns.c * written,
            pack_a: true,
            pack_b: true,
            own_c: product.out != kernel.sum,
            few: false,
        };
        let along = |step: isize| step == read;
        let dense = task.own_c || task.c_row == written;
        let rows_run = along(task.a_row) && dense;
        let terms_run = along(task.a_k) && along(task.b_k) && !along(task.a_row);
        task.few = kernel.few.is_some() && task.columns <= FEW && (rows_run || terms_run);
        if task.few {
            (task.pack_a, task.pack_b) = (false, false);
        } else {
            task.own_c |= task.c_row != written;
            task.choose_packing();
        }
        task
    }

    fn choose_packing(&mut self) {
        let Kernel { same, packed, group, .. } = self.kernel;
        let tile = self.kernel.rows();
        if same && self.a_row == packed as isize {
            let near = self.a_k.abs() <= CLOSE || self.a_k.abs() <= 2 * CLOSE && self.columns <= 256;
            self.pack_a = self.columns > FEW_COLUMNS && self.rows * self.k * packed > SMALL && !near;
        }
        // Pairs along k are there where k runs through neighbours.
        let whole = self.k.is_multiple_of(group * self.kernel.pad);
        let usable = same || (group == 2 && whole && self.b_k * 2 == packed as isize);
        if usable {
            // Along k each column is a stream of its own, unless they all fall on the same lines of the cache.
            let streams = self.b_k == (packed / group) as isize && self.b_column % 4096 != 0;
            self.pack_b = self.rows > 2 * tile && self.columns * self.k * packed > SMALL && !streams;
        }
    }

    /// Cycles, roughly.
    fn cost(&self) -> f64 {
        let (lanes, columns) = (self.kernel.lanes, self.kernel.columns());
        if self.few && self.a_row == self.product.dtype.bytes() as isize {
            return (self.rows.div_ceil(lanes) * self.columns * self.k) as f64 * 0.6;
        }
        if self.few {
            return (self.rows * self.columns) as f64 * (self.k as f64 / lanes as f64 + 8.0);
        }
        let vectors = self.rows.div_ceil(lanes);
        let (v, n) = (vectors.clamp(1, self.kernel.tiles.len()) as f64, self.columns.clamp(1, columns) as f64);
        // Two multiply-adds or two loads at a time.
        let tiles = vectors as f64 * self.columns as f64 * self.k as f64 * f64::max(0.5, 0.5 / v + 0.5 / n);
        let element = self.product.dtype.bytes() as isize;
        let pack = |packed: bool, size: usize, step: isize, along: isize| {
            let each = match () {
                // Short runs far apart come into the cache more than once.
                () if !packed && along != element => {
                    if size * self.k * self.kernel.packed > LARGE {
                        0.5
                    } else {
                        0.1
                    }
                }
                () if !packed => 0.0,
                () if step == element => 0.15,
                () if along == element => 0.4,
                () => 1.5,
            };
            size as f64 * self.k as f64 * each
        };
        let finish = if !self.own_c {
            0.0
        } else if self.c_row == self.product.out.bytes() as isize {
            0.2
        } else {
            1.5
        };
        tiles
            + if self.pack_a { pack(true, self.rows, self.a_row, self.a_k) } else { 0.0 }
            + if self.pack_b && self.kernel.pack_apart.is_some() {
                let each = if self.b_k == element { 0.1 } else { 1.5 };
                (self.columns * self.k) as f64 * each
            } else {
                pack(self.pack_b, self.columns, self.b_column, self.b_k)
            }
            + finish * self.rows as f64 * self.columns as f64
    }

    /// Packed elements along k.
    pub fn steps(&self) -> usize {
        self.kernel.steps(self.k)
    }

    /// Packed elements along k in each chunk but the last: even shares, by k alone.
    pub fn chunk(&self) -> usize {
        let most = if self.kernel.columns() < 16 { chunk_steps(self.kernel.packed) } else { CHUNK_OF_MANY };
        let steps = self.steps().max(1);
        if self.few {
            return steps;
        }
        steps.div_ceil(steps.div_ceil(most)).next_multiple_of(self.kernel.pad.max(8))
    }

    /// Chunks of one k.
    pub fn chunks(&self) -> usize {
        self.steps().div_ceil(self.chunk())
    }

    /// Rows that are packed together.
    pub fn row_block(&self) -> usize {
        if self.carries() { ROW_TILES / 2 * self.kernel.rows() } else { ROW_TILES * self.kernel.rows() }
    }

    /// Whether tiles pack the rows of coming ones.
    pub fn carries(&self) -> bool {
        let Kernel { same, packed, .. } = self.kernel;
        let panel = self.kernel.rows() * packed;
        same && self.pack_a
            && self.a_row == packed as isize
            && self.columns <= FEW_TO_CARRY
            && panel.is_multiple_of(PAIR)
    }

    /// Most columns that one thread packs, or sums in its own memory, at a time.
    pub fn column_block(&self) -> usize {
        let width = self.kernel.columns();
        let packed = B_BYTES / (self.kernel.packed * self.chunk());
        let summed = C_BYTES / (self.row_block() * self.kernel.sum.bytes());
        (if self.own_c { packed.min(summed) } else { packed }) / width * width
    }

    /// Offsets in bytes of a, b and c at one index of the given extents.
    pub fn offsets(&self, extents: &[Extent], index: usize) -> [isize; 3] {
        let [a, b, c] = Product::offsets(extents, index);
        let (read, written) = (self.product.dtype.bytes() as isize, self.product.out.bytes() as isize);
        if self.turned { [b * read, a * read, c * written] } else { [a * read, b * read, c * written] }
    }

    /// Chunks of all sums.
    pub fn all_chunks(&self) -> usize {
        self.product.sum_count() * self.chunks()
    }

    /// How many chunks of the sum all threads work on together, with b in place or packed for all of them; none where each
    /// thread does whole parts of the result with what it packs for itself.
    pub fn shared_chunks(&self, threads: usize) -> usize {
        let all = self.all_chunks();
        let fit = if self.pack_b {
            let columns = self.columns.next_multiple_of(self.kernel.columns());
            (SHARED_BYTES * threads / (columns * self.chunk() * self.kernel.packed)).min(all)
        } else {
            all
        };
        let alone = threads == 1 && (!self.pack_b || self.columns <= self.column_block());
        // Sums in scratch memory do not wait there for the next chunks.
        let whole = fit == all || !self.own_c;
        if self.product.batches() == 1 && self.work() >= 4 * SPLIT_WORK && !alone && whole { fit } else { 0 }
    }

    /// Parts of the result where b is shared.
    pub fn parts(&self, threads: usize) -> Parts {
        let unit = self.kernel.rows();
        let fit = if self.own_c { self.columns.div_ceil(self.column_block()) } else { 1 };
        // Few rows are cut along the columns, too.
        let wanted = if threads == 1 { 1 } else { (PARTS * threads).div_ceil(self.rows.div_ceil(unit)) };
        let column_parts = wanted.min(self.columns / FEW_TO_SHARE).max(fit);
        let (most, least) = if self.few { TILES_OF_FEW } else { (ROW_TILES, 1) };
        Parts {
            rows: self.rows,
            unit,
            most,
            least,
            threads,
            columns: self.columns,
            column_parts,
            width: self.kernel.columns(),
        }
    }

    /// Multiply-adds of one product of the batch.
    pub fn work(&self) -> usize {
        self.rows.saturating_mul(self.columns).saturating_mul(self.k)
    }

    /// Into how many parts rows and columns are cut where every part packs what it needs.
    pub fn grid(&self, threads: usize) -> Grid {
        let columns_each = if self.pack_b || self.own_c { self.column_block() } else { self.columns.max(1) };
        let rows_each = if self.own_c { self.row_block() } else { self.rows.max(1) };
        let mut grid = Grid {
            rows: self.rows,
            columns: self.columns,
            row_parts: self.rows.div_ceil(rows_each),
            column_parts: self.columns.div_ceil(columns_each),
            row_unit: self.kernel.rows(),
            column_unit: self.kernel.columns(),
        };
        if threads == 1 || self.work() < SPLIT_WORK {
            return grid;
        }
        // A few parts for each thread, cut where they are longest; smaller ones would mostly pack.
        let wanted = 3 * threads;
        let batches = self.product.batches().max(1);
        while batches * grid.row_parts * grid.column_parts < wanted {
            let (rows, columns) = (self.rows / grid.row_parts, self.columns / grid.column_parts);
            let work = rows.saturating_mul(columns).saturating_mul(self.k);
            if work < SPLIT_WORK / 2 {
                break;
            }
            if rows >= columns && rows >= 2 * grid.row_unit {
                grid.row_parts += 1;
            } else if columns >= 4 * grid.column_unit {
                grid.column_parts += 1;
            } else {
                break;
            }
        }
        grid
    }
}

/// Parts of a result, whose rows get fewer towards the end, so that all threads end at about the same time.
#[derive(Clone, Copy, Debug)]
pub struct Parts {
    rows: usize,
    /// Rows of a tile.
    unit: usize,
    /// Tiles of the longest part, and of the shortest one but the last.
    most: usize,
    least: usize,
    threads: usize,
    columns: usize,
    column_parts: usize,
    /// Columns of a panel.
    width: usize,
}

impl Parts {
    /// Tiles along the rows of the next part where so many are left.
    fn next(&self, left: usize) -> usize {
        let wanted = if self.threads == 1 { left } else { left.div_ceil(2 * self.threads).max(self.least) };
        wanted.min(self.most).min(left)
    }

    fn units(&self) -> usize {
        self.rows.div_ceil(self.unit)
    }

    pub fn count(&self) -> usize {
        let (mut left, mut parts) = (self.units(), 0);
        while left > 0 {
            left -= self.next(left);
            parts += 1;
        }
        parts * self.column_parts
    }

    /// Rows and columns of part n.
    pub fn part(&self, n: usize) -> (Range<usize>, Range<usize>) {
        let mut left = self.units();
        (0..n / self.column_parts).for_each(|_| left -= self.next(left));
        let begin = self.units() - left;
        let rows = begin * self.unit..((begin + self.next(left)) * self.unit).min(self.rows);
        (rows, cut(self.columns, self.column_parts, self.width, n % self.column_parts))
    }
}

/// Parts of the rows and columns of a product.
#[derive(Clone, Copy, Debug)]
pub struct Grid {
    pub rows: usize,
    pub columns: usize,
    pub row_parts: usize,
    pub column_parts: usize,
    row_unit: usize,
    column_unit: usize,
}

impl Grid {
    pub fn parts(&self) -> usize {
        self.row_parts * self.column_parts
    }

    pub fn part(&self, n: usize) -> (Range<usize>, Range<usize>) {
        let (row, column) = (n / self.column_parts, n % self.column_parts);
        (
            cut(self.rows, self.row_parts, self.row_unit, row),
            cut(self.columns, self.column_parts, self.column_unit, column),
        )
    }
}

/// Part n of `parts` of 0..size; parts begin at multiples of `unit`, and none is longer than an even share rounded up.
pub fn cut(size: usize, parts: usize, unit: usize, n: usize) -> Range<usize> {
    let units = size.div_ceil(unit);
    let at = |n: usize| (units * n / parts * unit).min(size);
    at(n)..at(n + 1)
}
