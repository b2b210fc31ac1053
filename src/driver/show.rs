//! Numbers and curves for people.

pub use crate::runtime::metrics::{bytes, duration, loss_curve as curve, rate};

/// Five digits, as short as they get: `4.1589`, `0.000012346`, `1234.5`.
pub fn number(x: f64) -> String {
    if x == 0.0 || !x.is_finite() {
        return format!("{x}");
    }
    let exponent = x.abs().log10().floor() as i32;
    if !(-5..=9).contains(&exponent) {
        return format!("{x:.4e}");
    }
    let digits = (4 - exponent).clamp(0, 12) as usize;
    format!("{x:.digits$}")
}

#[cfg(test)]
mod tests {
    use super::number;

    #[test]
    fn five_digits() {
        let all = [4.158_88, 0.000_012_345_6, 1_234.5, 123_456.7, 0.0, -0.5, 1e-9, f64::NAN].map(number);
        assert_eq!(all, ["4.1589", "0.000012346", "1234.5", "123457", "0", "-0.50000", "1.0000e-9", "NaN"]);
    }
}
