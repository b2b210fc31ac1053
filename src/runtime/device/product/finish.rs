//! Results that were summed in scratch memory go to their place: rounded, and to any strides.

use super::super::library::Element;
use crate::types::DType;
use crate::with_element;
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

/// A block of sums, columns one after another, and where it goes. Steps are in bytes.
pub struct Finish {
    pub from: *const u8,
    pub from_column: usize,
    /// F32 or F64.
    pub sum: DType,
    pub to: *mut u8,
    pub rows: usize,
    pub row_step: isize,
    pub columns: usize,
    pub column_step: isize,
    pub out: DType,
    pub add: bool,
}

/// Rows that are finished together where the result runs along its columns, so that its lines are in the cache.
const ROWS: usize = 16;

impl Finish {
    /// # Safety
    /// All elements named must be valid.
    pub unsafe fn run(&self) {
        // SAFETY: as promised by the caller; types as named.
        unsafe {
            match self.sum {
                DType::F64 => with_element!(self.out, C => self.all::<f64, C>(|x, add| C::of_f64(x + add.value()))),
                _ if self.row_step == self.out.bytes() as isize && !self.add && self.out != DType::F32 => self.runs(),
                _ => with_element!(self.out, C => self.all::<f32, C>(|x, add| C::of_f32(x + add.to_f32()))),
            }
        }
    }

    unsafe fn all<T: Element, C: Element>(&self, round: impl Fn(T, C) -> C) {
        // SAFETY: as promised by the caller.
        unsafe {
            let nothing = C::of_f32(0.0);
            let place = |i: usize, j: usize| {
                let to = self.to.offset(i as isize * self.row_step + j as isize * self.column_step);
                (self.from.add(i * size_of::<T>() + j * self.from_column).cast::<T>(), to.cast::<C>())
            };
            for first in (0..self.rows).step_by(ROWS) {
                for j in 0..self.columns {
                    for i in first..self.rows.min(first + ROWS) {
                        let (from, to) = place(i, j);
                        *to = round(*from, if self.add { *to } else { nothing });
                    }
                }
            }
        }
    }

    /// Columns of 16-bit results that are runs in memory.
    unsafe fn runs(&self) {
        for j in 0..self.columns {
            // SAFETY: as promised by the caller; source and target are different memory.
            unsafe {
                let from = std::slice::from_raw_parts(self.from.add(j * self.from_column).cast::<f32>(), self.rows);
                let to = self.to.offset(j as isize * self.column_step);
                if self.out == DType::F16 {
                    std::slice::from_raw_parts_mut(to.cast::<f16>(), self.rows).convert_from_f32_slice(from);
                } else {
                    let to = std::slice::from_raw_parts_mut(to.cast::<bf16>(), self.rows);
                    for (to, x) in to.iter_mut().zip(from) {
                        *to = bf16::from_bits(round_bf16(*x));
                    }
                }
            }
        }
    }
}

/// Rounded half to even. Without branches, so that loops over it become vectors.
fn round_bf16(x: f32) -> u16 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7FFF + (bits >> 16 & 1)) >> 16;
    // A NaN keeps its upper bits and stays one.
    (if x.is_nan() { bits >> 16 | 0x40 } else { rounded }) as u16
}
