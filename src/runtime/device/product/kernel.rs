//! Which instructions compute a product: the kinds of processors that tiles are written for, found out at run time.

use super::few::FewFn;
use super::pack::PackFn;
use super::tile::Tiles;
use crate::types::DType;
use crate::types::cpu::Vectors;

/// A set of instructions that products are computed with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unit {
    /// As `Avx512`, with bf16 by the matrix unit.
    Amx,
    /// 512-bit vectors, with products of bf16 pairs where `bf16`.
    Avx512 {
        bf16: bool,
    },
    Avx2,
    Neon,
    /// Whatever the compiler makes of plain loops.
    Plain,
}

/// How products of one type are computed.
#[derive(Clone, Copy)]
pub struct Kernel {
    /// Sums in one vector.
    pub lanes: usize,
    pub tiles: Tiles,
    /// For few columns, of operands as they lie in memory.
    pub few: Option<FewFn>,
    pub pack: PackFn,
    /// Bytes of a packed element.
    pub packed: usize,
    /// How columns of b are packed that lie one after the other, each along k, instead of side by side.
    pub pack_apart: Option<PackFn>,
    /// Terms in one packed element.
    pub group: usize,
    /// Packed elements along k come in multiples of this.
    pub pad: usize,
    /// Called by each thread behind its last tile of a part.
    pub done: Option<fn()>,
    /// F32 or F64.
    pub sum: DType,
    /// Whether operands are made of packed elements already.
    pub same: bool,
}

impl Kernel {
    /// Of operands whose packed elements are numbers of the sum's type; `same` where they are that already, which `few` needs.
    pub fn of_numbers(sum: DType, lanes: usize, tiles: Tiles, few: FewFn, pack: PackFn, same: bool) -> Kernel {
        let (packed, few) = (sum.bytes(), same.then_some(few));
        Kernel { lanes, tiles, few, pack, packed, pack_apart: None, group: 1, pad: 1, done: None, sum, same }
    }

    /// Rows of a full tile.
    pub fn rows(&self) -> usize {
        self.lanes * self.tiles.len()
    }

    /// Packed elements of so many terms.
    pub fn steps(&self, terms: usize) -> usize {
        terms.div_ceil(self.group).next_multiple_of(self.pad)
    }

    /// Columns of a full tile.
    pub fn columns(&self) -> usize {
        self.tiles[0].len()
    }

    /// Vectors of the next tile where so many are left: as many as there can be, but no single one behind a full tile.
    pub fn vectors(&self, left: usize) -> usize {
        let most = self.tiles.len();
        if left == most + 1 { left.div_ceil(2) } else { left.min(most) }
    }
}

impl Unit {
    /// Those of this processor, the best one first.
    pub fn available() -> Vec<Unit> {
        let best = Unit::best();
        let mut all = vec![best];
        match best {
            Unit::Amx | Unit::Avx512 { .. } => {
                let kinds = [false, true].map(|bf16| Unit::Avx512 { bf16 });
                all.extend(kinds.into_iter().take(1 + usize::from(has_pairs())).filter(|unit| *unit != best));
                all.extend([Unit::Avx2, Unit::Plain]);
            }
            Unit::Avx2 | Unit::Neon => all.push(Unit::Plain),
            Unit::Plain => {}
        }
        all
    }

    /// The best one of this processor that is allowed. Cheap: the standard library keeps the answers.
    #[cfg(target_arch = "x86_64")]
    pub fn best() -> Unit {
        use std::is_x86_feature_detected as has;
        if !(has!("avx2") && has!("fma") && has!("f16c") && Vectors::Avx2.allowed()) {
            Unit::Plain
        } else if !(has!("avx512f") && Vectors::Avx512.allowed()) {
            Unit::Avx2
        } else if Vectors::All.allowed() && super::amx::available() {
            Unit::Amx
        } else {
            Unit::Avx512 { bf16: has_pairs() && pairs_are_fast() }
        }
    }

    #[cfg(target_arch = "aarch64")]
    pub fn best() -> Unit {
        if Vectors::All.allowed() { Unit::Neon } else { Unit::Plain }
    }

    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    pub fn best() -> Unit {
        Unit::Plain
    }

    /// What it is called, for people.
    pub fn name(self) -> &'static str {
        match self {
            Unit::Amx => "AVX-512, bf16 by AMX",
            Unit::Avx512 { bf16: true } => "AVX-512, bf16 in pairs",
            Unit::Avx512 { bf16: false } => "AVX-512",
            Unit::Avx2 => "AVX2",
            Unit::Neon => "NEON",
            Unit::Plain => "plain loops",
        }
    }

    /// For operands of `dtype` and results of type `out`. The unit must be one of this processor.
    pub fn kernel(self, dtype: DType, out: DType) -> Kernel {
        let wide = dtype == DType::F64 || out == DType::F64;
        match self {
            #[cfg(target_arch = "x86_64")]
            Unit::Avx512 { bf16 } => super::avx512::kernel(dtype, wide, bf16),
            #[cfg(target_arch = "x86_64")]
            Unit::Amx if dtype == DType::BF16 && !wide => super::avx512::matrix_kernel(),
            #[cfg(target_arch = "x86_64")]
            Unit::Amx => super::avx512::kernel(dtype, wide, false),
            #[cfg(target_arch = "x86_64")]
            Unit::Avx2 => super::avx2::kernel(dtype, wide),
            #[cfg(target_arch = "aarch64")]
            Unit::Neon => super::neon::kernel(dtype, wide),
            _ => super::plain::kernel(dtype, wide),
        }
    }
}

#[cfg(target_arch = "x86_64")]
fn has_pairs() -> bool {
    std::is_x86_feature_detected!("avx512f") && std::is_x86_feature_detected!("avx512bf16")
}

#[cfg(not(target_arch = "x86_64"))]
fn has_pairs() -> bool {
    false
}

/// Whether products of bf16 pairs are faster than f32: twice as fast on AMD's processors, while Intel's (measured on
/// one of the fourth generation) take longer for a pair than for two products of f32. By the maker and not by a
/// measurement, so that a machine always gives the same results.
#[cfg(target_arch = "x86_64")]
fn pairs_are_fast() -> bool {
    use std::sync::OnceLock;
    static FAST: OnceLock<bool> = OnceLock::new();
    *FAST.get_or_init(|| {
        let maker = std::arch::x86_64::__cpuid(0);
        [maker.ebx, maker.edx, maker.ecx] == [*b"Auth", *b"enti", *b"cAMD"].map(u32::from_le_bytes)
    })
}
