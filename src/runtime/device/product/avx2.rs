//! Tiles of 256-bit vectors: 16 rows of f32 or 8 of f64 by 6 columns. Twelve sums, two vectors of rows and one element of a
//! column leave the compiler one of 16 registers; with 24 rows by 4 columns it kept some of the sums in memory.

use super::few::{Few, FewFn, Operand, Same, few, halves};
use super::kernel::Kernel;
use super::pack::{Brain, Double, Form, Pack, PackFn, Single, Small, Wide, pack};
use super::tile::{Simd, Tile, tile, tiles};
use crate::types::DType;
use half::{bf16, f16};
use std::arch::x86_64::*;

struct F32;
struct F64;
/// Operands of 16 bits.
struct Bf16;
struct Half;

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
            const WIDE_MASKS: bool = true;
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

// SAFETY (of all functions): as the trait demands.
impl Operand<F32> for Bf16 {
    const BYTES: usize = 2;
    #[inline(always)]
    unsafe fn load(from: *const u8) -> __m256 {
        unsafe {
            let x = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast()));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(x))
        }
    }
    #[inline(always)]
    unsafe fn load_part(from: *const u8, n: usize) -> __m256 {
        unsafe { Self::load(halves::<8>(from, n).as_ptr().cast()) }
    }
    #[inline(always)]
    unsafe fn splat(from: *const u8) -> __m256 {
        unsafe { _mm256_set1_ps(f32::from_bits(u32::from(from.cast::<u16>().read_unaligned()) << 16)) }
    }
}

// SAFETY (of all functions): as the trait demands.
impl Operand<F32> for Half {
    const BYTES: usize = 2;
    #[inline(always)]
    unsafe fn load(from: *const u8) -> __m256 {
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(from.cast())) }
    }
    #[inline(always)]
    unsafe fn load_part(from: *const u8, n: usize) -> __m256 {
        unsafe { Self::load(halves::<8>(from, n).as_ptr().cast()) }
    }
    #[inline(always)]
    unsafe fn splat(from: *const u8) -> __m256 {
        unsafe { _mm256_cvtph_ps(_mm_set1_epi16(from.cast::<i16>().read_unaligned())) }
    }
}

#[target_feature(enable = "avx2,fma")]
unsafe fn tile_256<S: Simd, const V: usize, const N: usize>(t: &Tile) {
    // SAFETY: as promised by the caller.
    unsafe { tile::<S, V, N>(t) }
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn few_256<S: Simd, O: Operand<S>>(f: &Few) {
    // SAFETY: as promised by the caller.
    unsafe { few::<S, O>(f) }
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
        let (tiles, same) = (tiles!(tile_256, F64, [1 2], [1 2 3 4 5 6]), dtype == DType::F64);
        return Kernel::of_numbers(DType::F64, 4, tiles, few_256::<F64, Same>, pack, same);
    }
    let pack: PackFn = match dtype {
        DType::F16 => pack_256::<Small<true>>,
        DType::BF16 => pack_256::<Brain>,
        _ => pack_256::<Single>,
    };
    let few: FewFn = match dtype {
        DType::F16 => few_256::<F32, Half>,
        DType::BF16 => few_256::<F32, Bf16>,
        _ => few_256::<F32, Same>,
    };
    let (tiles, same) = (tiles!(tile_256, F32, [1 2], [1 2 3 4 5 6]), dtype == DType::F32);
    Kernel { few: Some(few), ..Kernel::of_numbers(DType::F32, 8, tiles, few, pack, same) }
}
