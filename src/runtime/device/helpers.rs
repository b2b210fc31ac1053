//! What generated code calls: functions that are too long to be inlined into kernels. All in f64; kernels in f32 round
//! the result, which is then nearly always the nearest f32.

use crate::program::{Helper, ZEROS};

#[repr(align(64))]
struct Zeros([u8; ZEROS]);

static NOTHING: Zeros = Zeros([0; ZEROS]);

/// Addresses in the order of [`Helper::ALL`].
pub fn table() -> [usize; Helper::ALL.len()] {
    Helper::ALL.map(|helper| match helper {
        Helper::Zeros => NOTHING.0.as_ptr() as usize,
        Helper::Exp => exp as *const () as usize,
        Helper::Expm1 => expm1 as *const () as usize,
        Helper::Log => log as *const () as usize,
        Helper::Log1p => log1p as *const () as usize,
        Helper::Tanh => tanh as *const () as usize,
        Helper::Sigmoid => sigmoid as *const () as usize,
        Helper::Softplus => softplus as *const () as usize,
        Helper::Erf => erf as *const () as usize,
        Helper::Sin => sin as *const () as usize,
        Helper::Cos => cos as *const () as usize,
        Helper::Pow => pow as *const () as usize,
        Helper::PowInt => pow_int as *const () as usize,
    })
}

extern "C" fn exp(x: f64) -> f64 {
    x.exp()
}

extern "C" fn expm1(x: f64) -> f64 {
    x.exp_m1()
}

extern "C" fn log(x: f64) -> f64 {
    x.ln()
}

extern "C" fn log1p(x: f64) -> f64 {
    x.ln_1p()
}

extern "C" fn tanh(x: f64) -> f64 {
    x.tanh()
}

extern "C" fn sigmoid(x: f64) -> f64 {
    let e = (-x.abs()).exp();
    (if x < 0.0 { e } else { 1.0 }) / (1.0 + e)
}

extern "C" fn softplus(x: f64) -> f64 {
    if x.is_nan() { x } else { x.max(0.0) + (-x.abs()).exp().ln_1p() }
}

extern "C" fn erf(x: f64) -> f64 {
    libm::erf(x)
}

extern "C" fn sin(x: f64) -> f64 {
    x.sin()
}

extern "C" fn cos(x: f64) -> f64 {
    x.cos()
}

extern "C" fn pow(x: f64, y: f64) -> f64 {
    x.powf(y)
}

extern "C" fn pow_int(x: i32, y: i32) -> i32 {
    match (u32::try_from(y), x) {
        (Ok(y), _) => x.wrapping_pow(y),
        // A fraction, towards zero; as a division by zero, 0.
        (Err(_), 1) => 1,
        (Err(_), -1) => 1 - 2 * (y & 1),
        (Err(_), _) => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_stand_at_their_numbers() {
        for (n, helper) in Helper::ALL.iter().enumerate() {
            assert_eq!(*helper as usize, n, "{helper:?}");
        }
        assert_eq!(table()[0] % 64, 0);
    }

    #[test]
    fn saturating_forms_neither_overflow_nor_cancel() {
        assert_eq!(softplus(1000.0), 1000.0);
        assert_eq!(softplus(-1000.0), 0.0);
        assert!((softplus(-30.0) / (-30.0f64).exp() - 1.0).abs() < 1e-12);
        assert!(softplus(f64::NAN).is_nan());
        assert_eq!((sigmoid(f64::INFINITY), sigmoid(f64::NEG_INFINITY)), (1.0, 0.0));
        assert!((sigmoid(-700.0) / (-700.0f64).exp() - 1.0).abs() < 1e-12);
        assert_eq!((pow_int(3, 4), pow_int(2, -1), pow_int(-1, -3), pow_int(7, 0)), (81, 0, -1, 1));
    }
}
