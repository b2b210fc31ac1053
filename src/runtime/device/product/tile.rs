//! The register tile of a matrix product, written once over a small interface of vectors.
//!
//! A tile holds `V` vectors times `N` columns of c in registers while it walks along k: it loads the
//! vectors of a (neighbouring rows), broadcasts one element of b for each column, and adds. The loops over vectors and
//! columns have constant bounds and vanish.

/// One call of a tile. Steps are in bytes.
pub struct Tile {
    /// Packed elements along k.
    pub k: usize,
    /// Neighbouring rows, vector after vector.
    pub a: *const u8,
    pub a_step: isize,
    pub b: *const u8,
    pub b_columns: isize,
    pub b_step: isize,
    /// Neighbouring rows, in the type of the sum.
    pub c: *mut u8,
    pub c_columns: isize,
    /// Rows of the last vector, 1 to its lanes.
    pub last: usize,
    /// Adds to c instead of replacing it.
    pub add: bool,
    pub ahead: Ahead,
}

/// Steps along k in one turn of the loop of a tile.
pub const TURN: usize = 4;

/// Lines of the next columns that a turn asks for.
pub const NEAR: usize = 2;

/// What a tile asks for while it computes: two lines near the processor and two far from it in each turn, so that they are there
/// when other tiles want them. Any addresses may be given.
#[derive(Clone, Copy)]
pub struct Ahead {
    /// The lines of one operand of a coming tile: at offsets in bytes from here.
    pub near: *const u8,
    pub offsets: *const i32,
    /// Offsets that there are, but one; the last one is taken again and again.
    pub last: usize,
    /// Two neighbouring lines, and how far on the next two are.
    pub far: *const u8,
    pub far_step: isize,
    /// What it copies, or null.
    pub carry: *const Carry,
}

impl Ahead {
    /// Nothing but what is at hand.
    pub fn none(at: *const u8) -> Ahead {
        Ahead { near: at, offsets: &0, last: 0, far: at, far_step: 0, carry: std::ptr::null() }
    }
}

/// What a tile copies while it computes, since that costs it nearly nothing: [`PAIR`] bytes in each turn, out of runs that lie far apart,
/// so that an operand that does not stay in a cache is packed, or laid side by side, when other tiles want it.
#[derive(Clone, Copy)]
pub struct Carry {
    /// Where the present run begins, and the distance to the next one.
    pub from: *const u8,
    pub step: isize,
    /// Where its copy begins, and how far behind it that of the next one.
    pub to: *mut u8,
    pub to_step: isize,
    /// Pairs of a run, where the copy of each one lies, and the one that comes next.
    pub pairs: usize,
    pub offsets: *const u32,
    pub at: usize,
    /// Pairs that are copied in this tile; its turns are not fewer.
    pub left: usize,
}

/// Bytes that a turn copies: two lines of a cache.
pub const PAIR: usize = 128;
/// Runs that are asked for ahead of the present one.
const RUNS_AHEAD: isize = 4;

impl Carry {
    /// Copies one pair.
    #[inline(always)]
    unsafe fn one<S: Simd>(&mut self) {
        let vector = S::LANES * S::BYTES;
        // SAFETY: as promised to `tile`.
        unsafe {
            let from = self.from.add(self.at * PAIR);
            let to = self.to.add(*self.offsets.add(self.at) as usize);
            let ahead = from.wrapping_offset(RUNS_AHEAD * self.step);
            expect_far(ahead);
            expect_far(ahead.wrapping_add(64));
            for i in (0..PAIR).step_by(vector) {
                S::store(to.add(i), S::load(from.add(i)));
            }
            self.at += 1;
            self.left -= 1;
            if self.at == self.pairs {
                self.at = 0;
                self.from = self.from.wrapping_offset(self.step);
                self.to = self.to.wrapping_offset(self.to_step);
            }
        }
    }
}

/// A tile of some number of vectors and columns.
pub type TileFn = unsafe fn(&Tile);
/// Tiles by vectors - 1 and columns - 1.
pub type Tiles = &'static [&'static [TileFn]];

/// A vector unit. An element of a vector is a packed element (of a) or a sum (of c), both of [`Simd::BYTES`].
///
/// All functions must be called on a processor that has the unit, with pointers valid for what they access.
pub trait Simd {
    type Vector: Copy;
    type Mask: Copy;
    /// An element of a sum.
    type Sum: Copy + Default + std::ops::Add<Output = Self::Sum>;
    const LANES: usize;
    const BYTES: usize;
    /// Whether a mask lies in a register of vectors, which the sums of a full tile leave none of.
    const WIDE_MASKS: bool;
    unsafe fn zero() -> Self::Vector;
    /// Selects the first n lanes, 1 to all.
    unsafe fn mask(n: usize) -> Self::Mask;
    unsafe fn load(from: *const u8) -> Self::Vector;
    unsafe fn load_part(from: *const u8, mask: Self::Mask) -> Self::Vector;
    unsafe fn store(to: *mut u8, x: Self::Vector);
    unsafe fn store_part(to: *mut u8, mask: Self::Mask, x: Self::Vector);
    /// One element in all lanes.
    unsafe fn splat(from: *const u8) -> Self::Vector;
    /// x * y + sum
    unsafe fn multiply_add(x: Self::Vector, y: Self::Vector, sum: Self::Vector) -> Self::Vector;
    unsafe fn add(x: Self::Vector, y: Self::Vector) -> Self::Vector;
}

/// Asks for a cache line that will be needed soon. Any address may be given.
#[inline(always)]
pub fn expect(_at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the instruction is in every processor of this kind, and has no effect but on caches.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(_at.cast());
    }
}

/// The same, but into the second-level cache alone.
#[inline(always)]
pub fn expect_far(_at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: as above.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T1 }>(_at.cast());
    }
}

/// One step along k. `WHOLE`: the last vector has all of its lanes.
#[inline(always)]
#[expect(clippy::needless_range_loop, reason = "loops with constant bounds over arrays that are registers")]
unsafe fn step<S: Simd, const V: usize, const N: usize, const WHOLE: bool>(
    t: &Tile,
    mask: S::Mask,
    a: *const u8,
    b: *const u8,
    mut sums: [[S::Vector; V]; N],
) -> [[S::Vector; V]; N] {
    let bytes = S::LANES * S::BYTES;
    // SAFETY: as promised to `tile`.
    unsafe {
        let mut x = [S::zero(); V];
        for i in 0..V - 1 {
            x[i] = S::load(a.add(i * bytes));
        }
        let last = a.add((V - 1) * bytes);
        x[V - 1] = if WHOLE { S::load(last) } else { S::load_part(last, mask) };
        for j in 0..N {
            let y = S::splat(b.offset(j as isize * t.b_columns));
            for i in 0..V {
                sums[j][i] = S::multiply_add(x[i], y, sums[j][i]);
            }
        }
    }
    sums
}

/// All steps along k. Apart for those that copy and those that do not.
#[inline(always)]
unsafe fn along<S: Simd, const V: usize, const N: usize, const WHOLE: bool>(
    t: &Tile,
    mask: S::Mask,
    mut sums: [[S::Vector; V]; N],
    mut carry: Option<Carry>,
) -> [[S::Vector; V]; N] {
    // SAFETY: as promised to `tile`.
    unsafe {
        let (mut a, mut b) = (t.a, t.b);
        let Ahead { near, offsets, last, mut far, far_step, .. } = t.ahead;
        for turn in 0..t.k / TURN {
            for line in 0..NEAR {
                expect(near.wrapping_offset(*offsets.add((turn * NEAR + line).min(last)) as isize));
            }
            if let Some(carry) = &mut carry {
                if carry.left > 0 {
                    carry.one::<S>();
                }
            } else {
                expect_far(far);
                expect_far(far.wrapping_add(64));
                far = far.wrapping_offset(far_step);
            }
            for _ in 0..TURN {
                sums = step::<S, V, N, WHOLE>(t, mask, a, b, sums);
                (a, b) = (a.offset(t.a_step), b.offset(t.b_step));
            }
        }
        for _ in 0..t.k % TURN {
            sums = step::<S, V, N, WHOLE>(t, mask, a, b, sums);
            (a, b) = (a.offset(t.a_step), b.offset(t.b_step));
        }
    }
    sums
}

/// # Safety
/// All that the tile reaches must be valid, and the processor must have the unit.
#[inline(always)]
#[expect(clippy::needless_range_loop, reason = "loops with constant bounds over arrays that are registers")]
pub unsafe fn tile<S: Simd, const V: usize, const N: usize>(t: &Tile) {
    let bytes = S::LANES * S::BYTES;
    // SAFETY: as promised by the caller.
    unsafe {
        let mask = S::mask(t.last);
        let mut sums = [[S::zero(); V]; N];
        for j in 0..N {
            for i in 0..V {
                expect(t.c.offset(j as isize * t.c_columns).add(i * bytes));
            }
        }
        let whole = t.last == S::LANES;
        sums = match t.ahead.carry.as_ref() {
            None if S::WIDE_MASKS && whole => along::<S, V, N, true>(t, mask, sums, None),
            None => along::<S, V, N, false>(t, mask, sums, None),
            Some(carry) if S::WIDE_MASKS && whole => along::<S, V, N, true>(t, mask, sums, Some(*carry)),
            Some(carry) => along::<S, V, N, false>(t, mask, sums, Some(*carry)),
        };
        for j in 0..N {
            let c = t.c.offset(j as isize * t.c_columns);
            for i in 0..V {
                let (c, sum) = (c.add(i * bytes), sums[j][i]);
                if i + 1 < V || whole {
                    S::store(c, if t.add { S::add(S::load(c), sum) } else { sum });
                } else {
                    S::store_part(c, mask, if t.add { S::add(S::load_part(c, mask), sum) } else { sum });
                }
            }
        }
    }
}

/// The table of tiles of a unit: for each number of vectors those of 1, 2, .. columns, behind a function that switches
/// the unit's instructions on.
macro_rules! tiles {
    ($wrapper:ident, $simd:ty, [$($v:literal)*], $columns:tt) => {{
        const TILES: super::tile::Tiles =
            &[$(tiles!(@ $wrapper, $simd, $v, $columns)),*];
        TILES
    }};
    (@ $wrapper:ident, $simd:ty, $v:literal, [$($n:literal)*]) => {
        &[$($wrapper::<$simd, $v, $n>),*]
    };
}
pub(super) use tiles;
