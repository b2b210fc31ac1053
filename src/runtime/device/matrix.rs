//! One dense product by the `gemm` crate, on the calling thread.

use super::library::Element;
use gemm::Parallelism;

/// An element type that matrix products are computed in.
pub trait Scalar: Element {
    const ZERO: Self;
    const ONE: Self;
    fn of<E: Element>(x: E) -> Self;
    fn round_to<E: Element>(self) -> E;
}

impl Scalar for f32 {
    const ZERO: f32 = 0.0;
    const ONE: f32 = 1.0;
    fn of<E: Element>(x: E) -> f32 {
        x.to_f32()
    }
    fn round_to<E: Element>(self) -> E {
        E::of_f32(self)
    }
}

impl Scalar for f64 {
    const ZERO: f64 = 0.0;
    const ONE: f64 = 1.0;
    fn of<E: Element>(x: E) -> f64 {
        x.value()
    }
    fn round_to<E: Element>(self) -> E {
        E::of_f64(self)
    }
}

/// c[m, n] = sum over k of a[m, k] * b[k, n], or that added to c. Operands with their row and column strides.
///
/// # Safety
/// All elements must be valid, and those of c overlap neither one another nor the operands.
pub unsafe fn multiply<T: Scalar>(
    (m, n, k): (usize, usize, usize),
    (a, a_rows, a_cols): (*const T, isize, isize),
    (b, b_rows, b_cols): (*const T, isize, isize),
    (c, c_rows, c_cols): (*mut T, isize, isize),
    accumulate: bool,
) {
    // SAFETY: the caller's promise.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            c,
            c_cols,
            c_rows,
            accumulate,
            a,
            a_cols,
            a_rows,
            b,
            b_cols,
            b_rows,
            T::ONE,
            T::ONE,
            false,
            false,
            false,
            Parallelism::None,
        );
    }
}
