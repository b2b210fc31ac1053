//! Kernels that are no loop nests of independent rows (orders, queues, draws of classes, scatters), and arrays of random
//! numbers, which plain code can fill faster.
//!
//! All work on row-major arrays. Results never depend on the number of threads. What needs memory beside its operands
//! takes it from a scratch that the caller owns; [`scratch_bytes`] says how much.

mod draw;
mod order;
mod pack;
mod random;
mod scatter;

pub use draw::{Draw, draw};
pub use order::{arg_sort, top_k};
pub use pack::pack_place;
pub use random::fill;
pub use scatter::{Scatter, scatter};

use crate::program::Library;
use crate::types::DType;
use half::{bf16, f16};

/// Bytes that a call needs beside its operands; 8-byte aligned.
pub fn scratch_bytes(call: &Library) -> usize {
    match call {
        Library::ArgSort { .. } | Library::TopK { .. } | Library::Random { .. } => 0,
        // The length of each queue.
        Library::PackPlace { n, .. } => pack::scratch_bytes(*n),
        Library::Draw { n, .. } => draw::scratch_bytes(*n),
        Library::Scatter { m, targets, .. } => scatter::scratch_bytes(*m, *targets),
        // By the thread: see there.
        Library::Attention(_) | Library::AttentionGrad(_) => 0,
    }
}

/// An element type as the library computes with it.
pub trait Element: Copy + Send + Sync + 'static {
    /// What sums accumulate in.
    type Sum: Copy + Send + Sync + 'static;
    const DTYPE: DType;
    fn widen(self) -> Self::Sum;
    fn narrow(sum: Self::Sum) -> Self;
    fn zero() -> Self::Sum;
    fn lowest() -> Self::Sum;
    fn highest() -> Self::Sum;
    fn add(a: Self::Sum, b: Self::Sum) -> Self::Sum;
    fn times(a: Self::Sum, b: Self::Sum) -> Self::Sum;
    /// The larger; NaN if either is.
    fn larger(a: Self::Sum, b: Self::Sum) -> Self::Sum;
    /// The smaller; NaN if either is.
    fn smaller(a: Self::Sum, b: Self::Sum) -> Self::Sum;
    /// Exact.
    fn value(self) -> f64;
    fn to_f32(self) -> f32;
    /// Rounded half to even.
    fn of_f32(x: f32) -> Self;
    fn of_f64(x: f64) -> Self;
}

macro_rules! float_element {
    ($type:ty, $sum:ty, $dtype:ident, $widen:expr, $narrow:expr, $value:expr, $to:expr, $of:expr, $of64:expr) => {
        impl Element for $type {
            type Sum = $sum;
            const DTYPE: DType = DType::$dtype;
            fn widen(self) -> $sum {
                $widen(self)
            }
            fn narrow(sum: $sum) -> $type {
                $narrow(sum)
            }
            fn zero() -> $sum {
                0.0
            }
            fn lowest() -> $sum {
                <$sum>::NEG_INFINITY
            }
            fn highest() -> $sum {
                <$sum>::INFINITY
            }
            fn add(a: $sum, b: $sum) -> $sum {
                a + b
            }
            fn times(a: $sum, b: $sum) -> $sum {
                a * b
            }
            fn larger(a: $sum, b: $sum) -> $sum {
                if b > a || b.is_nan() { b } else { a }
            }
            fn smaller(a: $sum, b: $sum) -> $sum {
                if b < a || b.is_nan() { b } else { a }
            }
            fn value(self) -> f64 {
                $value(self)
            }
            fn to_f32(self) -> f32 {
                $to(self)
            }
            fn of_f32(x: f32) -> $type {
                $of(x)
            }
            fn of_f64(x: f64) -> $type {
                $of64(x)
            }
        }
    };
}

float_element!(f32, f32, F32, |x| x, |x| x, f64::from, |x| x, |x| x, |x| x as f32);
float_element!(f64, f64, F64, |x| x, |x| x, |x| x, |x| x as f32, f64::from, |x| x);
float_element!(f16, f32, F16, f16::to_f32, f16::from_f32, f16::to_f64, f16::to_f32, f16::from_f32, |x| f16::from_f32(
    x as f32
));
float_element!(bf16, f32, BF16, widen_bf16, bf16::from_f32, bf16::to_f64, widen_bf16, bf16::from_f32, |x| {
    bf16::from_f32(x as f32)
});

/// Without the branch of the library's function, so that loops over it become vectors.
fn widen_bf16(x: bf16) -> f32 {
    f32::from_bits(u32::from(x.to_bits()) << 16)
}

impl Element for i32 {
    type Sum = i32;
    const DTYPE: DType = DType::I32;
    fn widen(self) -> i32 {
        self
    }
    fn narrow(sum: i32) -> i32 {
        sum
    }
    fn zero() -> i32 {
        0
    }
    fn lowest() -> i32 {
        i32::MIN
    }
    fn highest() -> i32 {
        i32::MAX
    }
    fn add(a: i32, b: i32) -> i32 {
        a.wrapping_add(b)
    }
    fn times(a: i32, b: i32) -> i32 {
        a.wrapping_mul(b)
    }
    fn larger(a: i32, b: i32) -> i32 {
        a.max(b)
    }
    fn smaller(a: i32, b: i32) -> i32 {
        a.min(b)
    }
    fn value(self) -> f64 {
        f64::from(self)
    }
    fn to_f32(self) -> f32 {
        self as f32
    }
    fn of_f32(x: f32) -> i32 {
        x as i32
    }
    fn of_f64(x: f64) -> i32 {
        x as i32
    }
}

/// Calls a generic function with the type of elements of a dtype (`bool` as its bytes).
#[macro_export]
macro_rules! with_element {
    ($dtype:expr, $name:ident => $call:expr) => {
        match $dtype {
            $crate::types::DType::F32 => {
                type $name = f32;
                $call
            }
            $crate::types::DType::F64 => {
                type $name = f64;
                $call
            }
            $crate::types::DType::F16 => {
                type $name = half::f16;
                $call
            }
            $crate::types::DType::BF16 => {
                type $name = half::bf16;
                $call
            }
            $crate::types::DType::I32 => {
                type $name = i32;
                $call
            }
            $crate::types::DType::Bool => {
                type $name = $crate::runtime::device::library::Flag;
                $call
            }
        }
    };
}

/// A Bool in memory: false is less than true.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Flag(pub u8);

impl Element for Flag {
    type Sum = u8;
    const DTYPE: DType = DType::Bool;
    fn widen(self) -> u8 {
        self.0
    }
    fn narrow(sum: u8) -> Flag {
        Flag(sum)
    }
    fn zero() -> u8 {
        0
    }
    fn lowest() -> u8 {
        0
    }
    fn highest() -> u8 {
        1
    }
    fn add(a: u8, b: u8) -> u8 {
        a | b
    }
    fn times(a: u8, b: u8) -> u8 {
        a & b
    }
    fn larger(a: u8, b: u8) -> u8 {
        a.max(b)
    }
    fn smaller(a: u8, b: u8) -> u8 {
        a.min(b)
    }
    fn value(self) -> f64 {
        f64::from(self.0)
    }
    fn to_f32(self) -> f32 {
        f32::from(self.0)
    }
    fn of_f32(x: f32) -> Flag {
        Flag(u8::from(x != 0.0))
    }
    fn of_f64(x: f64) -> Flag {
        Flag(u8::from(x != 0.0))
    }
}

/// Ascending, NaN last.
fn ascending(a: f64, b: f64) -> std::cmp::Ordering {
    a.partial_cmp(&b).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()))
}
