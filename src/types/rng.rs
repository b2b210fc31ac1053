//! Random numbers as a pure function of (seed, step, stream, logical index): any plan, mesh, microbatch or
//! recomputation draws the same bits. Shared by the interpreter and the runtime, which must agree bit for bit.
//!
//! Counter-based: the "squares" generator of B. Widynski (arXiv 2004.06278), four rounds, 32 bits a call; keys are made
//! by the SplitMix64 finaliser (Steele, Lea, Flood 2014).

/// A distribution. All are f32; `RandInt` and `Bernoulli` are cast by the operation that draws them.
#[derive(Clone, Copy, PartialEq, Debug, serde::Serialize, serde::Deserialize)]
pub enum Dist {
    /// [lo, hi)
    Uniform {
        lo: f64,
        hi: f64,
    },
    Normal {
        std: f64,
    },
    /// Normal, redrawn by inverse distribution within two standard deviations.
    TruncNormal {
        std: f64,
    },
    /// I32 in 0..n.
    RandInt {
        n: u32,
    },
    /// Bool, true with probability p.
    Bernoulli {
        p: f64,
    },
}

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// The key of one draw: `stream` is the hash of the call site's path, `turn` from [`turns`].
pub fn key(seed: u64, step: u64, stream: u64, turn: u64) -> u64 {
    let a = mix(seed.wrapping_add(0x9E37_79B9_7F4A_7C15));
    let b = mix(a ^ step.wrapping_mul(0xD1B5_4A32_D192_ED03));
    let c = mix(b ^ stream);
    mix(c ^ turn.wrapping_mul(0x8CB9_2BA7_2F3D_8DD7)) | 1
}

/// One number for the turns of enclosing loops, outermost first; 0 outside of loops. The `turn` of [`key`].
pub fn turns(turns: &[i32]) -> u64 {
    turns.iter().fold(0, |all, t| (all ^ (*t as u64).wrapping_add(1)).wrapping_mul(0x9E37_79B9_7F4A_7C15))
}

/// 32 random bits for a counter.
#[inline(always)]
pub fn bits(key: u64, counter: u64) -> u32 {
    let y = counter.wrapping_mul(key);
    let z = y.wrapping_add(key);
    let mut x = y;
    x = x.wrapping_mul(x).wrapping_add(y).rotate_left(32);
    x = x.wrapping_mul(x).wrapping_add(z).rotate_left(32);
    x = x.wrapping_mul(x).wrapping_add(y).rotate_left(32);
    (x.wrapping_mul(x).wrapping_add(z) >> 32) as u32
}

/// In (0, 1): the middle of one of 2^23 equal cells, so never 0 or 1 (with 2^24 the last middle would round to 1).
#[inline(always)]
pub fn unit(key: u64, counter: u64) -> f32 {
    ((bits(key, counter) >> 9) as f32 + 0.5) * (1.0 / 8_388_608.0)
}

/// ln 2 in two parts; the first has few bits, so its products with small integers are exact.
pub const LN2_HIGH: f32 = 0.693_359_4;
pub const LN2_LOW: f32 = -2.121_944_4e-4;

/// (ln(1 + f) - f + f^2 / 2) / f^3 for 1 + f between sqrt(1/2) and sqrt(2), highest power first (the Cephes library,
/// S. L. Moshier).
pub const LN: [f32; 9] = [
    7.037_683_6e-2,
    -1.151_461e-1,
    1.167_699_9e-1,
    -1.242_014_1e-1,
    1.424_932_3e-1,
    -1.666_805_7e-1,
    2.000_071_6e-1,
    -2.499_999_4e-1,
    3.333_333e-1,
];

/// The natural logarithm of a positive normal number, in operations that every machine rounds alike; a library's is not
/// the same everywhere.
#[inline(always)]
pub fn ln(x: f32) -> f32 {
    let root = std::f32::consts::FRAC_1_SQRT_2.to_bits() as i32;
    let relative = (x.to_bits() as i32).wrapping_sub(root);
    let e = (relative >> 23) as f32;
    let f = f32::from_bits(((relative & 0x007F_FFFF) + root) as u32) - 1.0;
    let square = f * f;
    let y = polynomial(f, &LN) * (square * f);
    let y = e * LN2_LOW + y;
    let y = square * -0.5 + y;
    e * LN2_HIGH + (f + y)
}

#[inline(always)]
fn polynomial(x: f32, coefficients: &[f32; 9]) -> f32 {
    coefficients[1..].iter().fold(coefficients[0], |p, c| p * x + c)
}

/// erfinv(x) / x over w - 5/2, where w = -ln(1 - x^2) < 5.
pub const ERFINV_NEAR: [f32; 9] = [
    2.810_226_4e-8,
    3.432_739_4e-7,
    -3.523_387_7e-6,
    -4.391_506_5e-6,
    0.000_218_580_87,
    -0.001_253_725,
    -0.004_177_681_6,
    0.246_640_73,
    1.501_409_4,
];
/// erfinv(x) / x over sqrt(w) - 3, where w >= 5.
pub const ERFINV_FAR: [f32; 9] = [
    -0.000_200_214_26,
    0.000_100_950_56,
    0.001_349_343_2,
    -0.003_673_428_4,
    0.005_739_507_7,
    -0.007_622_461_3,
    0.009_438_87,
    1.001_674,
    2.832_976_8,
];

/// The inverse of the error function on (-1, 1), in f32 (the two-branch polynomial of M. Giles, "Approximating the
/// erfinv function", GPU Computing Gems 2011).
#[inline(always)]
pub fn erfinv(x: f32) -> f32 {
    let w = -ln((1.0 - x) * (1.0 + x));
    // Both, so that loops over draws become vectors.
    let (near, far) = (polynomial(w - 2.5, &ERFINV_NEAR), polynomial(w.sqrt() - 3.0, &ERFINV_FAR));
    (if w < 5.0 { near } else { far }) * x
}

/// 2 Phi(2) - 1: the mass of a normal distribution within two standard deviations.
pub const TWO_SIGMA_MASS: f32 = 0.954_499_7;

/// The value of a float distribution at one logical index.
#[inline(always)]
pub fn draw(dist: Dist, key: u64, index: u64) -> f32 {
    let u = unit(key, index);
    match dist {
        Dist::Uniform { lo, hi } => lo as f32 + u * (hi - lo) as f32,
        Dist::Normal { std } => std as f32 * std::f32::consts::SQRT_2 * erfinv(2.0 * u - 1.0),
        Dist::TruncNormal { std } => std as f32 * std::f32::consts::SQRT_2 * erfinv(TWO_SIGMA_MASS * (2.0 * u - 1.0)),
        Dist::RandInt { n } => ((bits(key, index) as u64 * n as u64) >> 32) as f32,
        Dist::Bernoulli { p } => f32::from((u as f64) < p),
    }
}

/// The integer of `RandInt`, exact for every n (an f32 is not).
pub fn draw_int(n: u32, key: u64, index: u64) -> i32 {
    ((bits(key, index) as u64 * n as u64) >> 32) as i32
}

/// A stable 64-bit hash of a stream's path (FNV-1a, then mixed).
pub fn stream(path: &str) -> u64 {
    let mut h = 0xCBF2_9CE4_8422_2325u64;
    for b in path.bytes() {
        h = (h ^ b as u64).wrapping_mul(0x0000_0100_0000_01B3);
    }
    mix(h)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_extreme_cells_are_inside_of_the_unit_interval() {
        let middle = |cell: u32| (cell as f32 + 0.5) * (1.0 / 8_388_608.0);
        assert!(middle(0) > 0.0);
        assert!(middle((1 << 23) - 1) < 1.0);
        for u in [middle(0), middle((1 << 23) - 1)] {
            assert!(erfinv(2.0 * u - 1.0).is_finite());
        }
    }

    #[test]
    fn ln_is_within_two_units_of_the_last_place() {
        let mut x = 1e-7f32;
        while x <= 2.0 {
            let want = f64::from(x).ln();
            let unit = f64::from((want.abs() as f32).max(f32::MIN_POSITIVE).next_up() - want.abs() as f32);
            assert!((f64::from(ln(x)) - want).abs() <= 2.0 * unit, "ln({x}) = {} for {want}", ln(x));
            x *= 1.0001;
        }
        assert_eq!(ln(1.0), 0.0);
    }

    #[test]
    fn erfinv_inverts_the_error_function() {
        // erf(0.5) and erf(2), from tables.
        assert!((erfinv(0.520_499_9) - 0.5).abs() < 1e-6);
        assert!((erfinv(0.995_322_3) - 2.0).abs() < 1e-5);
        assert_eq!(erfinv(-0.3), -erfinv(0.3));
    }

    #[test]
    fn normal_draws_have_the_moments_of_the_distribution() {
        let n = 100_000u64;
        let key = key(1, 2, stream("w"), 0);
        let draws: Vec<f64> = (0..n).map(|i| f64::from(draw(Dist::Normal { std: 2.0 }, key, i))).collect();
        let mean = draws.iter().sum::<f64>() / n as f64;
        let variance = draws.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n as f64;
        assert!(mean.abs() < 0.03 && (variance - 4.0).abs() < 0.06, "mean {mean}, variance {variance}");
    }
}
