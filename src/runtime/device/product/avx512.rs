//! Tiles of 512-bit vectors: 48 rows of f32 or 24 of f64 by 8 columns; and of bf16 pairs.
//!
//! `vdpbf16ps` multiplies pairs of bf16 and adds both products to an f32. It takes numbers below the normal range of f32
//! for zero and rounds in its own order, so its results differ from those of other units in the last bits.

use super::few::{Few, Operand, Same, few, halves};
use super::kernel::Kernel;
use super::pack::{Blocks, Brain, Double, Form, Pack, PackFn, Pairs, Single, Small, Wide, pack};
use super::tile::{Simd, Tile, tile, tiles};
use crate::types::DType;
use half::{bf16, f16};
use std::arch::x86_64::*;

struct F32;
struct F64;
/// A packed element is a pair of bf16, a sum an f32. As an operand, single ones.
struct Bf16;

macro_rules! single {
    ($name:ty, $multiply_add:expr) => {
        // SAFETY (of all functions): as the trait demands; lanes that a mask leaves out are not accessed.
        impl Simd for $name {
            type Vector = __m512;
            type Mask = __mmask16;
            type Sum = f32;
            const LANES: usize = 16;
            const BYTES: usize = 4;
            const WIDE_MASKS: bool = false;
            #[inline(always)]
            unsafe fn zero() -> __m512 {
                unsafe { _mm512_setzero_ps() }
            }
            #[inline(always)]
            unsafe fn mask(n: usize) -> __mmask16 {
                (u32::MAX >> (32 - n)) as u16
            }
            #[inline(always)]
            unsafe fn load(from: *const u8) -> __m512 {
                unsafe { _mm512_loadu_ps(from.cast()) }
            }
            #[inline(always)]
            unsafe fn load_part(from: *const u8, mask: __mmask16) -> __m512 {
                unsafe { _mm512_maskz_loadu_ps(mask, from.cast()) }
            }
            #[inline(always)]
            unsafe fn store(to: *mut u8, x: __m512) {
                unsafe { _mm512_storeu_ps(to.cast(), x) }
            }
            #[inline(always)]
            unsafe fn store_part(to: *mut u8, mask: __mmask16, x: __m512) {
                unsafe { _mm512_mask_storeu_ps(to.cast(), mask, x) }
            }
            #[inline(always)]
            unsafe fn splat(from: *const u8) -> __m512 {
                unsafe { _mm512_set1_ps(from.cast::<f32>().read_unaligned()) }
            }
            #[inline(always)]
            unsafe fn multiply_add(x: __m512, y: __m512, sum: __m512) -> __m512 {
                unsafe { $multiply_add(x, y, sum) }
            }
            #[inline(always)]
            unsafe fn add(x: __m512, y: __m512) -> __m512 {
                unsafe { _mm512_add_ps(x, y) }
            }
        }
    };
}

single!(F32, |x, y, sum| _mm512_fmadd_ps(x, y, sum));
single!(Bf16, |x, y, sum| _mm512_dpbf16_ps(
    sum,
    std::mem::transmute::<__m512, __m512bh>(x),
    std::mem::transmute::<__m512, __m512bh>(y)
));

// SAFETY (of all functions): as the trait demands; lanes that a mask leaves out are not accessed.
impl Simd for F64 {
    type Vector = __m512d;
    type Mask = __mmask8;
    type Sum = f64;
    const LANES: usize = 8;
    const BYTES: usize = 8;
    const WIDE_MASKS: bool = false;
    #[inline(always)]
    unsafe fn zero() -> __m512d {
        unsafe { _mm512_setzero_pd() }
    }
    #[inline(always)]
    unsafe fn mask(n: usize) -> __mmask8 {
        (u32::MAX >> (32 - n)) as u8
    }
    #[inline(always)]
    unsafe fn load(from: *const u8) -> __m512d {
        unsafe { _mm512_loadu_pd(from.cast()) }
    }
    #[inline(always)]
    unsafe fn load_part(from: *const u8, mask: __mmask8) -> __m512d {
        unsafe { _mm512_maskz_loadu_pd(mask, from.cast()) }
    }
    #[inline(always)]
    unsafe fn store(to: *mut u8, x: __m512d) {
        unsafe { _mm512_storeu_pd(to.cast(), x) }
    }
    #[inline(always)]
    unsafe fn store_part(to: *mut u8, mask: __mmask8, x: __m512d) {
        unsafe { _mm512_mask_storeu_pd(to.cast(), mask, x) }
    }
    #[inline(always)]
    unsafe fn splat(from: *const u8) -> __m512d {
        unsafe { _mm512_set1_pd(from.cast::<f64>().read_unaligned()) }
    }
    #[inline(always)]
    unsafe fn multiply_add(x: __m512d, y: __m512d, sum: __m512d) -> __m512d {
        unsafe { _mm512_fmadd_pd(x, y, sum) }
    }
    #[inline(always)]
    unsafe fn add(x: __m512d, y: __m512d) -> __m512d {
        unsafe { _mm512_add_pd(x, y) }
    }
}

/// An operand of f16.
struct Half;

// SAFETY (of all functions): as the trait demands.
impl Operand<F32> for Bf16 {
    const BYTES: usize = 2;
    #[inline(always)]
    unsafe fn load(from: *const u8) -> __m512 {
        unsafe {
            let x = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(x))
        }
    }
    #[inline(always)]
    unsafe fn load_part(from: *const u8, n: usize) -> __m512 {
        unsafe { <Bf16 as Operand<F32>>::load(halves::<16>(from, n).as_ptr().cast()) }
    }
    #[inline(always)]
    unsafe fn splat(from: *const u8) -> __m512 {
        unsafe { _mm512_set1_ps(f32::from_bits(u32::from(from.cast::<u16>().read_unaligned()) << 16)) }
    }
}

// SAFETY (of all functions): as the trait demands.
impl Operand<F32> for Half {
    const BYTES: usize = 2;
    #[inline(always)]
    unsafe fn load(from: *const u8) -> __m512 {
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())) }
    }
    #[inline(always)]
    unsafe fn load_part(from: *const u8, n: usize) -> __m512 {
        unsafe { <Half as Operand<F32>>::load(halves::<16>(from, n).as_ptr().cast()) }
    }
    #[inline(always)]
    unsafe fn splat(from: *const u8) -> __m512 {
        unsafe { _mm512_cvtph_ps(_mm256_set1_epi16(from.cast::<i16>().read_unaligned())) }
    }
}

#[target_feature(enable = "avx512f")]
unsafe fn tile_512<S: Simd, const V: usize, const N: usize>(t: &Tile) {
    // SAFETY: as promised by the caller.
    unsafe { tile::<S, V, N>(t) }
}

#[target_feature(enable = "avx512f")]
unsafe fn few_512<S: Simd, O: Operand<S>>(f: &Few) {
    // SAFETY: as promised by the caller.
    unsafe { few::<S, O>(f) }
}

#[target_feature(enable = "avx512f,avx512bf16")]
unsafe fn tile_bf16<S: Simd, const V: usize, const N: usize>(t: &Tile) {
    // SAFETY: as promised by the caller.
    unsafe { tile::<S, V, N>(t) }
}

#[target_feature(enable = "avx512f,avx2,fma,f16c")]
unsafe fn pack_512<F: Form>(p: &Pack) {
    // SAFETY: as promised by the caller.
    unsafe { pack::<F>(p) }
}

pub fn kernel(dtype: DType, wide: bool, pairs: bool) -> Kernel {
    if wide {
        let pack: PackFn = match dtype {
            DType::F16 => pack_512::<Wide<f16>>,
            DType::BF16 => pack_512::<Wide<bf16>>,
            DType::F32 => pack_512::<Wide<f32>>,
            _ => pack_512::<Double>,
        };
        let (tiles, same) = (tiles!(tile_512, F64, [1 2 3 4], [1 2 3 4 5 6]), dtype == DType::F64);
        return Kernel::of_numbers(DType::F64, 8, tiles, few_512::<F64, Same>, pack, same);
    }
    let tiles = tiles!(tile_512, F32, [1 2 3 4], [1 2 3 4 5 6]);
    let kernel = Kernel::of_numbers(DType::F32, 16, tiles, few_512::<F32, Same>, pack_512::<Single>, false);
    match dtype {
        DType::BF16 if pairs => Kernel {
            tiles: tiles!(tile_bf16, Bf16, [1 2 3 4], [1 2 3 4 5 6]),
            pack: pack_512::<Pairs>,
            group: 2,
            few: Some(few_512::<F32, Bf16>),
            ..kernel
        },
        DType::BF16 => Kernel { pack: pack_512::<Brain>, few: Some(few_512::<F32, Bf16>), ..kernel },
        DType::F16 => Kernel { pack: pack_512::<Small<true>>, few: Some(few_512::<F32, Half>), ..kernel },
        _ => Kernel { same: true, few: Some(few_512::<F32, Same>), ..kernel },
    }
}

/// Products of bf16 by the matrix unit, which must be available.
pub fn matrix_kernel() -> Kernel {
    super::amx::kernel(kernel(DType::BF16, false, false), pack_512::<Blocks>)
}
