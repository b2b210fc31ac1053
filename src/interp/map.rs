//! Elementwise functions: their reference values.

use crate::types::{DType, MapOp};
use half::{bf16, f16};

/// The nearest value of the type: floats half to even (16-bit ones by way of f32, as machines compute them), I32 wraps,
/// Bool is `!= 0`.
pub fn round(dtype: DType, x: f64) -> f64 {
    match dtype {
        DType::Bool => f64::from(u8::from(x != 0.0)),
        DType::I32 => f64::from(x as i64 as i32),
        DType::F16 => f16::from_f32(x as f32).to_f64(),
        DType::BF16 => bf16::from_f32(x as f32).to_f64(),
        DType::F32 => f64::from(x as f32),
        DType::F64 => x,
    }
}

/// The value of an elementwise function; `dtype` is that of the operands (of the last one: a condition is Bool). The result
/// is rounded to the type that the function gives for it.
pub fn eval_map(op: MapOp, dtype: DType, x: &[f64]) -> f64 {
    round(result_dtype(op, dtype), apply(op, dtype, x, false))
}

fn result_dtype(op: MapOp, dtype: DType) -> DType {
    use MapOp::*;
    match op {
        Cast(to) => to,
        IsFinite | Not | And | Or | Eq | Ne | Lt | Le | Gt | Ge => DType::Bool,
        Neg | Exp | Expm1 | Log | Log1p | Sqrt | Rsqrt | Square | Abs | Sign | Tanh | Sigmoid | Softplus | Erf
        | Sin | Cos | Floor | Ceil | Round | Add | Sub | Mul | Div | FloorDiv | Rem | Pow | Max | Min | Where => dtype,
    }
}

/// The value before rounding to the result's type. `exact` leaves out the inner rounding of composite functions.
pub(super) fn apply(op: MapOp, dtype: DType, x: &[f64], exact: bool) -> f64 {
    use MapOp::*;
    if dtype == DType::I32
        && let Some(y) = integer(op, x)
    {
        return f64::from(y);
    }
    let bit = |b: bool| f64::from(u8::from(b));
    let step = |y: f64| if exact { y } else { round(dtype, y) };
    match op {
        Neg => -x[0],
        Not => bit(x[0] == 0.0),
        Exp => x[0].exp(),
        Expm1 => x[0].exp_m1(),
        Log => x[0].ln(),
        Log1p => x[0].ln_1p(),
        Sqrt => x[0].sqrt(),
        Rsqrt => 1.0 / x[0].sqrt(),
        Square => x[0] * x[0],
        Abs => x[0].abs(),
        Sign => {
            if x[0] > 0.0 {
                1.0
            } else if x[0] < 0.0 {
                -1.0
            } else {
                x[0]
            }
        }
        Tanh => x[0].tanh(),
        Sigmoid => sigmoid(x[0]),
        Softplus => x[0].max(0.0) + (-x[0].abs()).exp().ln_1p() + if x[0].is_nan() { x[0] } else { 0.0 },
        Erf => erf(x[0]),
        Sin => x[0].sin(),
        Cos => x[0].cos(),
        Floor => x[0].floor(),
        Ceil => x[0].ceil(),
        Round => x[0].round_ties_even(),
        Cast(DType::Bool) => bit(x[0] != 0.0),
        Cast(DType::I32) => f64::from(x[0] as i32),
        Cast(DType::F16 | DType::BF16 | DType::F32 | DType::F64) => x[0],
        IsFinite => bit(x[0].is_finite()),
        Add => x[0] + x[1],
        Sub => x[0] - x[1],
        Mul => x[0] * x[1],
        Div => x[0] / x[1],
        FloorDiv => step(x[0] / x[1]).floor(),
        Rem => x[0] - step(x[1] * step(x[0] / x[1]).floor()),
        Pow => x[0].powf(x[1]),
        Max => {
            if x[0].is_nan() || x[1].is_nan() {
                f64::NAN
            } else {
                x[0].max(x[1])
            }
        }
        Min => {
            if x[0].is_nan() || x[1].is_nan() {
                f64::NAN
            } else {
                x[0].min(x[1])
            }
        }
        And => bit(x[0] != 0.0 && x[1] != 0.0),
        Or => bit(x[0] != 0.0 || x[1] != 0.0),
        Eq => bit(x[0] == x[1]),
        Ne => bit(x[0] != x[1]),
        Lt => bit(x[0] < x[1]),
        Le => bit(x[0] <= x[1]),
        Gt => bit(x[0] > x[1]),
        Ge => bit(x[0] >= x[1]),
        Where => {
            if x[0] != 0.0 {
                x[1]
            } else {
                x[2]
            }
        }
    }
}

/// Functions whose I32 form is not the float form: products may exceed what f64 holds exactly.
fn integer(op: MapOp, x: &[f64]) -> Option<i32> {
    use MapOp::*;
    let a = x[0] as i32;
    let b = x.get(1).map_or(0, |b| *b as i32);
    Some(match op {
        Neg => a.wrapping_neg(),
        Square => a.wrapping_mul(a),
        Abs => a.wrapping_abs(),
        Add => a.wrapping_add(b),
        Sub => a.wrapping_sub(b),
        Mul => a.wrapping_mul(b),
        FloorDiv => floor_div(a, b),
        Rem => {
            if b == 0 {
                0
            } else {
                a.wrapping_sub(b.wrapping_mul(floor_div(a, b)))
            }
        }
        Pow => match b {
            0.. => power(a, b as u32),
            _ if a == 1 => 1,
            _ if a == -1 => 1 - 2 * (b & 1),
            _ => 0,
        },
        _ => return None,
    })
}

/// By squaring; wraps.
fn power(mut a: i32, mut b: u32) -> i32 {
    let mut product = 1i32;
    while b > 0 {
        if b & 1 == 1 {
            product = product.wrapping_mul(a);
        }
        a = a.wrapping_mul(a);
        b >>= 1;
    }
    product
}

fn floor_div(a: i32, b: i32) -> i32 {
    if b == 0 {
        return 0;
    }
    let q = a.wrapping_div(b);
    if a.wrapping_rem(b) != 0 && ((a < 0) != (b < 0)) { q - 1 } else { q }
}

fn sigmoid(x: f64) -> f64 {
    if x >= 0.0 {
        1.0 / (1.0 + (-x).exp())
    } else {
        let e = x.exp();
        e / (1.0 + e)
    }
}

/// The error function to the precision of f64: the series with positive terms only (Abramowitz and Stegun 7.1.6) for
/// small arguments, the continued fraction of erfc (7.1.14) beyond.
pub(super) fn erf(x: f64) -> f64 {
    let z = x.abs();
    if x.is_nan() {
        return x;
    }
    let y = if z < 3.0 {
        let mut term = z;
        let mut sum = z;
        let mut n = 0.0;
        while term > sum * 1e-17 {
            n += 1.0;
            term *= 2.0 * z * z / (2.0 * n + 1.0);
            sum += term;
        }
        std::f64::consts::FRAC_2_SQRT_PI * (-z * z).exp() * sum
    } else if z < 6.0 {
        // erfc(z) sqrt(pi) e^(z^2) = 1 / (z + (1/2) / (z + 1 / (z + (3/2) / (z + ..)))), from the inside out.
        let mut f = z;
        for k in (1..=60).rev() {
            f = z + f64::from(k) / 2.0 / f;
        }
        1.0 - (-z * z).exp() * std::f64::consts::FRAC_2_SQRT_PI / 2.0 / f
    } else {
        1.0
    };
    if x < 0.0 { -y } else { y }
}
