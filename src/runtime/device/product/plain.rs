//! Tiles of plain loops over four lanes, for processors without a unit of their own here.

use super::few::{Few, Same, few};
use super::kernel::Kernel;
use super::pack::{Brain, Double, Form, Pack, PackFn, Single, Small, Wide, pack};
use super::tile::{Simd, Tile, tile, tiles};
use crate::types::DType;
use half::{bf16, f16};

struct F32;
struct F64;

const LANES: usize = 4;

macro_rules! unit {
    ($name:ty, $element:ty) => {
        // SAFETY (of all functions): as the trait demands; a part is the first lanes alone.
        impl Simd for $name {
            type Vector = [$element; LANES];
            type Mask = usize;
            type Sum = $element;
            const LANES: usize = LANES;
            const BYTES: usize = size_of::<$element>();
            const WIDE_MASKS: bool = false;
            #[inline(always)]
            unsafe fn zero() -> Self::Vector {
                [0.0; LANES]
            }
            #[inline(always)]
            unsafe fn mask(n: usize) -> usize {
                n
            }
            #[inline(always)]
            unsafe fn load(from: *const u8) -> Self::Vector {
                unsafe { from.cast::<Self::Vector>().read_unaligned() }
            }
            #[inline(always)]
            unsafe fn load_part(from: *const u8, n: usize) -> Self::Vector {
                if n == LANES {
                    return unsafe { Self::load(from) };
                }
                let mut x = [0.0; LANES];
                for (i, x) in x[..n].iter_mut().enumerate() {
                    *x = unsafe { from.cast::<$element>().add(i).read_unaligned() };
                }
                x
            }
            #[inline(always)]
            unsafe fn store(to: *mut u8, x: Self::Vector) {
                unsafe { to.cast::<Self::Vector>().write_unaligned(x) }
            }
            #[inline(always)]
            unsafe fn store_part(to: *mut u8, n: usize, x: Self::Vector) {
                for (i, x) in x[..n].iter().enumerate() {
                    unsafe { to.cast::<$element>().add(i).write_unaligned(*x) }
                }
            }
            #[inline(always)]
            unsafe fn splat(from: *const u8) -> Self::Vector {
                [unsafe { from.cast::<$element>().read_unaligned() }; LANES]
            }
            #[inline(always)]
            unsafe fn multiply_add(x: Self::Vector, y: Self::Vector, sum: Self::Vector) -> Self::Vector {
                std::array::from_fn(|i| x[i] * y[i] + sum[i])
            }
            #[inline(always)]
            unsafe fn add(x: Self::Vector, y: Self::Vector) -> Self::Vector {
                std::array::from_fn(|i| x[i] + y[i])
            }
        }
    };
}

unit!(F32, f32);
unit!(F64, f64);

unsafe fn tile_plain<S: Simd, const V: usize, const N: usize>(t: &Tile) {
    // SAFETY: as promised by the caller.
    unsafe { tile::<S, V, N>(t) }
}

unsafe fn few_plain<S: Simd>(f: &Few) {
    // SAFETY: as promised by the caller.
    unsafe { few::<S, Same>(f) }
}

/// # Safety
/// As of [`pack`].
pub unsafe fn pack_plain<F: Form>(p: &Pack) {
    // SAFETY: as promised by the caller.
    unsafe { pack::<F>(p) }
}

/// Without vectors of 16-bit floats.
pub fn packing(dtype: DType, wide: bool) -> PackFn {
    match (dtype, wide) {
        (DType::F16, true) => pack_plain::<Wide<f16>>,
        (DType::BF16, true) => pack_plain::<Wide<bf16>>,
        (DType::F32, true) => pack_plain::<Wide<f32>>,
        (_, true) => pack_plain::<Double>,
        (DType::F16, false) => pack_plain::<Small<false>>,
        (DType::BF16, false) => pack_plain::<Brain>,
        (_, false) => pack_plain::<Single>,
    }
}

pub fn kernel(dtype: DType, wide: bool) -> Kernel {
    let pack = packing(dtype, wide);
    if wide {
        let (tiles, same) = (tiles!(tile_plain, F64, [1 2 3], [1 2 3 4]), dtype == DType::F64);
        return Kernel::of_numbers(DType::F64, LANES, tiles, few_plain::<F64>, pack, same);
    }
    let (tiles, same) = (tiles!(tile_plain, F32, [1 2 3], [1 2 3 4]), dtype == DType::F32);
    Kernel::of_numbers(DType::F32, LANES, tiles, few_plain::<F32>, pack, same)
}
