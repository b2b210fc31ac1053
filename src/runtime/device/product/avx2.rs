//! Tiles of 256-bit vectors: 24 rows of f32 or 12 of f64 by 4 columns, which is what 16 registers hold.

use super::few::{Few, few};
use super::kernel::Kernel;
use super::pack::{Brain, Double, Form, Pack, PackFn, Single, Small, Wide, pack};
use super::tile::{Simd, Tile, tile, tiles};
use crate::types::DType;
use half::{bf16, f16};
use std::arch::x86_64::*;

struct F32;
struct F64;

/// Windows of this array are masks.
static LANES: [i64; 16] = [-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0];

macro_rules! unit {
    ($name:ty, $element:ty, $lanes:literal, $vector:ty, $bytes:literal, $zero:ident, $load:ident, $load_part:ident,
     $store:ident, $store_part:ident, $splat:ident, $multiply_add:ident, $add:ident) => {
        // SAFETY (of all functions): as the trait demands; lanes that a mask leaves out are not accessed.
        impl Simd for $name {
            type Vector = $vector;
            type Mask = __m256i;
            type Sum = $element;
            const LANES: usize = $lanes;
            const BYTES: usize = $bytes;
            #[inline(always)]
            unsafe fn zero() -> $vector {
                unsafe { $zero() }
            }
            #[inline(always)]
            unsafe fn mask(n: usize) -> __m256i {
                // SAFETY: 32 bytes from a multiple of the element's size that is at most 64 bytes in.
                unsafe { _mm256_loadu_si256(LANES.as_ptr().cast::<u8>().add(64 - n * $bytes).cast()) }
            }
            #[inline(always)]
            unsafe fn load(from: *const u8) -> $vector {
                unsafe { $load(from.cast()) }
            }
            #[inline(always)]
            unsafe fn load_part(from: *const u8, mask: __m256i) -> $vector {
                unsafe { $load_part(from.cast(), mask) }
            }
            #[inline(always)]
            unsafe fn store(to: *mut u8, x: $vector) {
                unsafe { $store(to.cast(), x) }
            }
            #[inline(always)]
            unsafe fn store_part(to: *mut u8, mask: __m256i, x: $vector) {
                unsafe { $store_part(to.cast(), mask, x) }
            }
            #[inline(always)]
            unsafe fn splat(from: *const u8) -> $vector {
                unsafe { $splat(from.cast::<$element>().read_unaligned()) }
            }
            #[inline(always)]
            unsafe fn multiply_add(x: $vector, y: $vector, sum: $vector) -> $vector {
                unsafe { $multiply_add(x, y, sum) }
            }
            #[inline(always)]
            unsafe fn add(x: $vector, y: $vector) -> $vector {
                unsafe { $add(x, y) }
            }
        }
    };
}

unit!(
    F32,
    f32,
    8,
    __m256,
    4,
    _mm256_setzero_ps,
    _mm256_loadu_ps,
    _mm256_maskload_ps,
    _mm256_storeu_ps,
    _mm256_maskstore_ps,
    _mm256_set1_ps,
    _mm256_fmadd_ps,
    _mm256_add_ps
);
unit!(
    F64,
    f64,
    4,
    __m256d,
    8,
    _mm256_setzero_pd,
    _mm256_loadu_pd,
    _mm256_maskload_pd,
    _mm256_storeu_pd,
    _mm256_maskstore_pd,
    _mm256_set1_pd,
    _mm256_fmadd_pd,
    _mm256_add_pd
);

#[target_feature(enable = "avx2,fma")]
unsafe fn tile_256<S: Simd, const V: usize, const N: usize>(t: &Tile) {
    // SAFETY: as promised by the caller.
    unsafe { tile::<S, V, N>(t) }
}

#[target_feature(enable = "avx2,fma")]
unsafe fn few_256<S: Simd>(f: &Few) {
    // SAFETY: as promised by the caller.
    unsafe { few::<S>(f) }
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn pack_256<F: Form>(p: &Pack) {
    // SAFETY: as promised by the caller.
    unsafe { pack::<F>(p) }
}

pub fn kernel(dtype: DType, wide: bool) -> Kernel {
    if wide {
        let pack: PackFn = match dtype {
            DType::F16 => pack_256::<Wide<f16>>,
            DType::BF16 => pack_256::<Wide<bf16>>,
            DType::F32 => pack_256::<Wide<f32>>,
            _ => pack_256::<Double>,
        };
        let (tiles, same) = (tiles!(tile_256, F64, [1 2 3], [1 2 3 4]), dtype == DType::F64);
        return Kernel::of_numbers(DType::F64, 4, tiles, few_256::<F64>, pack, same);
    }
    let pack: PackFn = match dtype {
        DType::F16 => pack_256::<Small<true>>,
        DType::BF16 => pack_256::<Brain>,
        _ => pack_256::<Single>,
    };
    let (tiles, same) = (tiles!(tile_256, F32, [1 2 3], [1 2 3 4]), dtype == DType::F32);
    Kernel::of_numbers(DType::F32, 8, tiles, few_256::<F32>, pack, same)
}
