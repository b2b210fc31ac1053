//! Tiles of the matrix unit AMX: products of bf16 with sums in f32, 32 rows by 32 columns.
//!
//! `tdpbf16ps` adds to 16 by 16 sums the products of 16 columns of b, 32 terms of each, with 16 rows of a in pairs of terms. It
//! takes numbers below the normal range for zero and rounds in its own order, like `vdpbf16ps`. Panels of a are those of the pairs;
//! columns of b lie one after the other, each along k. (Intel, "Architecture Instruction Set Extensions Programming Reference",
//! chapter 3.)

use super::kernel::Kernel;
use super::pack::{Blocks, PackFn, pack_apart};
use super::tile::{TURN, Tile, Tiles};
use std::arch::asm;
use std::arch::x86_64::{__cpuid, __cpuid_count};
use std::cell::Cell;
use std::sync::OnceLock;

/// Rows and columns of one register, and pairs of terms in it.
const SIDE: usize = 16;

/// Whether the processor has the unit and the system lets this process use it.
pub fn available() -> bool {
    static THERE: OnceLock<bool> = OnceLock::new();
    *THERE.get_or_init(|| {
        // The processor knows AMX-TILE and AMX-BF16 and the system saves the registers.
        let known = __cpuid(0).eax >= 7 && {
            let features = __cpuid_count(7, 0);
            features.edx & (1 << 22) != 0 && features.edx & (1 << 24) != 0
        };
        let saves = __cpuid(1).ecx & (1 << 27) != 0;
        known && saves && saved() && permitted()
    })
}

/// Whether the system saves the configuration and the data of tiles (bits 17 and 18 of XCR0).
fn saved() -> bool {
    let (low, _high): (u32, u32);
    // SAFETY: the system has switched `xgetbv` on, as the caller has looked up.
    unsafe { asm!("xgetbv", in("ecx") 0, out("eax") low, out("edx") _high, options(nomem, nostack)) };
    low & (0b11 << 17) == 0b11 << 17
}

/// Asks the system for the registers: Linux gives them to processes that ask (`ARCH_REQ_XCOMP_PERM` for component 18).
#[cfg(target_os = "linux")]
fn permitted() -> bool {
    // SAFETY: a request by number, which the system refuses where it does not know it.
    unsafe { libc::syscall(libc::SYS_arch_prctl, 0x1023, 18) == 0 }
}

#[cfg(not(target_os = "linux"))]
fn permitted() -> bool {
    false
}

/// Rows and bytes of each register.
#[repr(C, align(64))]
struct Shape {
    palette: u8,
    start: u8,
    zero: [u8; 14],
    bytes: [u16; 16],
    rows: [u8; 16],
}

thread_local! {
    /// The columns that this thread's registers are shaped for; 0 for none.
    static SHAPED: Cell<usize> = const { Cell::new(0) };
}

/// Shapes the registers: sums 0 to 3 and columns 4 and 5 have a row for each column, rows of a are in 6 and 7.
///
/// # Safety
/// The unit must be available.
unsafe fn shape(columns: usize) {
    if SHAPED.get() == columns {
        return;
    }
    let (first, second) = (columns.min(SIDE) as u8, columns.saturating_sub(SIDE) as u8);
    let rows = [first, first, second, second, first, second, SIDE as u8, SIDE as u8];
    let mut shape = Shape { palette: 1, start: 0, zero: [0; 14], bytes: [0; 16], rows: [0; 16] };
    for (i, rows) in rows.into_iter().enumerate() {
        (shape.bytes[i], shape.rows[i]) = if rows > 0 { (64, rows) } else { (0, 0) };
    }
    // SAFETY: a valid configuration.
    unsafe { asm!("ldtilecfg [{}]", in(reg) &shape, options(nostack, readonly)) };
    SHAPED.set(columns);
}

/// Gives the registers back, so that switches between threads need not save them.
fn release() {
    if SHAPED.get() != 0 {
        // SAFETY: the thread has used the unit.
        unsafe { asm!("tilerelease", options(nostack, nomem)) };
        SHAPED.set(0);
    }
}

/// # Safety
/// As for other tiles; the unit must be available, and k a whole number of registers.
unsafe fn tile_amx<const V: usize, const N: usize>(t: &Tile) {
    // SAFETY: as promised by the caller.
    unsafe {
        shape(N);
        let whole = t.last == SIDE;
        // The last rows go by way of memory here, and so do sums that are not neighbours.
        let mut own = [0f32; 2 * SIDE * 2 * SIDE];
        let row = V * SIDE;
        let (c, step) = if whole { (t.c, t.c_columns) } else { (own.as_mut_ptr().cast::<u8>(), (row * 4) as isize) };
        let add = t.add && whole;
        sums::<V, N>(t, c, step, add);
        if !whole {
            let rows = row - SIDE + t.last;
            for j in 0..N {
                let to = t.c.offset(j as isize * t.c_columns).cast::<f32>();
                for (i, sum) in own[j * row..j * row + rows].iter().enumerate() {
                    let to = to.add(i);
                    *to = if t.add { *to + sum } else { *sum };
                }
            }
        }
    }
}

macro_rules! load {
    ($register:literal, $from:expr, $step:expr) => {
        asm!(concat!("tileloadd ", $register, ", [{} + {}]"), in(reg) $from, in(reg) $step, options(nostack, readonly))
    };
}

macro_rules! store {
    ($register:literal, $to:expr, $step:expr) => {
        asm!(concat!("tilestored [{} + {}], ", $register), in(reg) $to, in(reg) $step, options(nostack))
    };
}

macro_rules! zero {
    ($register:literal) => {
        asm!(concat!("tilezero ", $register), options(nostack, nomem))
    };
}

macro_rules! multiply {
    ($sum:literal, $columns:literal, $rows:literal) => {
        asm!(concat!("tdpbf16ps ", $sum, ", ", $columns, ", ", $rows), options(nostack, nomem))
    };
}

/// # Safety
/// As for [`tile_amx`]; c has room for whole registers of rows.
#[inline(always)]
unsafe fn sums<const V: usize, const N: usize>(t: &Tile, c: *mut u8, step: isize, add: bool) {
    // SAFETY: as promised by the caller. The compiler knows nothing of these registers and uses none of them.
    unsafe {
        let second = c.wrapping_offset(SIDE as isize * step);
        if add {
            load!("tmm0", c, step);
            if V > 1 {
                load!("tmm1", c.add(64), step);
            }
            if N > SIDE {
                load!("tmm2", second, step);
            }
            if V > 1 && N > SIDE {
                load!("tmm3", second.add(64), step);
            }
        } else {
            zero!("tmm0");
            zero!("tmm1");
            if N > SIDE {
                zero!("tmm2");
                zero!("tmm3");
            }
        }
        let (mut a, mut b) = (t.a, t.b);
        let between = SIDE as isize * t.b_columns;
        let mut ahead = t.ahead.far;
        for turn in 0..t.k / SIDE {
            for i in turn * (SIDE / TURN)..(turn + 1) * (SIDE / TURN) {
                super::tile::expect(t.ahead.near.wrapping_offset(*t.ahead.offsets.add(i.min(t.ahead.last)) as isize));
                super::tile::expect_far(ahead);
                super::tile::expect_far(ahead.wrapping_add(64));
                ahead = ahead.wrapping_offset(t.ahead.far_step);
            }
            load!("tmm6", a, t.a_step);
            load!("tmm4", b, t.b_columns);
            multiply!("tmm0", "tmm4", "tmm6");
            if V > 1 {
                load!("tmm7", a.add(64), t.a_step);
                multiply!("tmm1", "tmm4", "tmm7");
            }
            if N > SIDE {
                load!("tmm5", b.offset(between), t.b_columns);
                multiply!("tmm2", "tmm5", "tmm6");
            }
            if V > 1 && N > SIDE {
                multiply!("tmm3", "tmm5", "tmm7");
            }
            a = a.offset(SIDE as isize * t.a_step);
            b = b.offset(SIDE as isize * t.b_step);
        }
        store!("tmm0", c, step);
        if V > 1 {
            store!("tmm1", c.add(64), step);
        }
        if N > SIDE {
            store!("tmm2", second, step);
        }
        if V > 1 && N > SIDE {
            store!("tmm3", second.add(64), step);
        }
    }
}

macro_rules! tiles {
    ($($n:literal)*) => {
        &[&[$(tile_amx::<1, $n>),*], &[$(tile_amx::<2, $n>),*]]
    };
}

const TILES: Tiles = tiles!(1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32);

/// For operands of bf16; `plain` is what the processor does without the unit.
pub fn kernel(plain: Kernel, pack: PackFn) -> Kernel {
    Kernel {
        tiles: TILES,
        pack,
        pack_apart: Some(pack_apart::<Blocks>),
        packed: 4,
        group: 2,
        pad: SIDE,
        done: Some(release),
        same: false,
        ..plain
    }
}
