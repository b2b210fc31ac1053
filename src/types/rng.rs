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
pub fn bits(key: u64, counter: u64) -> u32 {
    let y = counter.wrapping_mul(key);
    let z = y.wrapping_add(key);
    let mut x = y;
    x = x.wrapping_mul(x).wrapping_add(y).rotate_left(32);
    x = x.wrapping_mul(x).wrapping_add(z).rotate_left(32);
    x = x.wrapping_mul(x).wrapping_add(y).rotate_left(32);
    (x.wrapping_mul(x).wrapping_add(z) >> 32) as u32
}

/// In (0, 1): the middle of one of 2^24 equal cells, so never 0 or 1.
pub fn unit(key: u64, counter: u64) -> f32 {
    ((bits(key, counter) >> 8) as f32 + 0.5) * (1.0 / 16_777_216.0)
}

/// The inverse of the error function on (-1, 1), in f32 (the two-branch polynomial of M. Giles, "Approximating the
/// erfinv function", GPU Computing Gems 2011).
pub fn erfinv(x: f32) -> f32 {
    let w = -((1.0 - x) * (1.0 + x)).ln();
    if w < 5.0 {
        let w = w - 2.5;
        let mut p = 2.810_226_4e-8f32;
        for c in [
            3.432_739_4e-7,
            -3.523_387_7e-6,
            -4.391_506_5e-6,
            0.000_218_580_87,
            -0.001_253_725,
            -0.004_177_681_6,
            0.246_640_73,
            1.501_409_4,
        ] {
            p = p * w + c;
        }
        p * x
    } else {
        let w = w.sqrt() - 3.0;
        let mut p = -0.000_200_214_26f32;
        for c in [
            0.000_100_950_56,
            0.001_349_343_2,
            -0.003_673_428_4,
            0.005_739_507_7,
            -0.007_622_461_3,
            0.009_438_87,
            1.001_674_1,
            2.832_976_8,
        ] {
            p = p * w + c;
        }
        p * x
    }
}

/// The value of a float distribution at one logical index.
pub fn draw(dist: Dist, key: u64, index: u64) -> f32 {
    let u = unit(key, index);
    match dist {
        Dist::Uniform { lo, hi } => lo as f32 + u * (hi - lo) as f32,
        Dist::Normal { std } => std as f32 * std::f32::consts::SQRT_2 * erfinv(2.0 * u - 1.0),
        Dist::TruncNormal { std } => {
            // 2 Phi(2) - 1: the mass within two standard deviations.
            const MASS: f32 = 0.954_499_7;
            std as f32 * std::f32::consts::SQRT_2 * erfinv(MASS * (2.0 * u - 1.0))
        }
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
