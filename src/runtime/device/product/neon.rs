//! Tiles of the 128-bit vectors of aarch64: 12 rows of f32 or 6 of f64 by 8 columns.

use super::few::{Few, Same, few};
use super::kernel::Kernel;
use super::plain::packing;
use super::tile::{Simd, Tile, tile, tiles};
use crate::types::DType;
use std::arch::aarch64::*;

struct F32;
struct F64;

macro_rules! unit {
    ($name:ty, $element:ty, $vector:ty, $load:ident, $store:ident, $splat:ident, $multiply_add:ident, $add:ident) => {
        // SAFETY (of all functions): as the trait demands; a part is the first lanes alone.
        impl Simd for $name {
            type Vector = $vector;
            type Mask = usize;
            type Sum = $element;
            const LANES: usize = 16 / size_of::<$element>();
            const BYTES: usize = size_of::<$element>();
            const WIDE_MASKS: bool = false;
            #[inline(always)]
            unsafe fn zero() -> $vector {
                unsafe { std::mem::zeroed() }
            }
            #[inline(always)]
            unsafe fn mask(n: usize) -> usize {
                n
            }
            #[inline(always)]
            unsafe fn load(from: *const u8) -> $vector {
                unsafe { $load(from.cast()) }
            }
            #[inline(always)]
            unsafe fn load_part(from: *const u8, n: usize) -> $vector {
                if n == Self::LANES {
                    return unsafe { Self::load(from) };
                }
                let mut x: [$element; 4] = [0.0; 4];
                for (i, x) in x[..n].iter_mut().enumerate() {
                    *x = unsafe { from.cast::<$element>().add(i).read_unaligned() };
                }
                unsafe { $load(x.as_ptr()) }
            }
            #[inline(always)]
            unsafe fn store(to: *mut u8, x: $vector) {
                unsafe { $store(to.cast(), x) }
            }
            #[inline(always)]
            unsafe fn store_part(to: *mut u8, n: usize, x: $vector) {
                let mut all: [$element; 4] = [0.0; 4];
                unsafe { $store(all.as_mut_ptr(), x) }
                for (i, x) in all[..n].iter().enumerate() {
                    unsafe { to.cast::<$element>().add(i).write_unaligned(*x) }
                }
            }
            #[inline(always)]
            unsafe fn splat(from: *const u8) -> $vector {
                unsafe { $splat(from.cast()) }
            }
            #[inline(always)]
            unsafe fn multiply_add(x: $vector, y: $vector, sum: $vector) -> $vector {
                unsafe { $multiply_add(sum, x, y) }
            }
            #[inline(always)]
            unsafe fn add(x: $vector, y: $vector) -> $vector {
                unsafe { $add(x, y) }
            }
        }
    };
}

unit!(F32, f32, float32x4_t, vld1q_f32, vst1q_f32, vld1q_dup_f32, vfmaq_f32, vaddq_f32);
unit!(F64, f64, float64x2_t, vld1q_f64, vst1q_f64, vld1q_dup_f64, vfmaq_f64, vaddq_f64);

#[target_feature(enable = "neon")]
unsafe fn tile_128<S: Simd, const V: usize, const N: usize>(t: &Tile) {
    // SAFETY: as promised by the caller.
    unsafe { tile::<S, V, N>(t) }
}

#[target_feature(enable = "neon")]
unsafe fn few_128<S: Simd>(f: &Few) {
    // SAFETY: as promised by the caller.
    unsafe { few::<S, Same>(f) }
}

pub fn kernel(dtype: DType, wide: bool) -> Kernel {
    let pack = packing(dtype, wide);
    if wide {
        let (tiles, same) = (tiles!(tile_128, F64, [1 2 3], [1 2 3 4 5 6 7 8]), dtype == DType::F64);
        return Kernel::of_numbers(DType::F64, 2, tiles, few_128::<F64>, pack, same);
    }
    let (tiles, same) = (tiles!(tile_128, F32, [1 2 3], [1 2 3 4 5 6 7 8]), dtype == DType::F32);
    Kernel::of_numbers(DType::F32, 4, tiles, few_128::<F32>, pack, same)
}
