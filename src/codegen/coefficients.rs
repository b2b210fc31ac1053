//! Numbers of the polynomials by which functions of f32 are computed, highest power first, mostly those of the Cephes
//! library (S. L. Moshier).

/// 1.5 * 2^23: adding it rounds a small float to an integer, held in the low bits of the sum.
pub const ROUNDER: f32 = 12_582_912.0;
/// (e^r - 1 - r) / r^2 for |r| <= ln(2) / 2.
pub const EXP: [f32; 6] = [1.987_569_1e-4, 1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_6e-1, 0.5];
/// (tanh(x) - x) / x^3 over x^2, for |x| < 0.625.
pub const TANH: [f32; 5] = [-5.704_988_7e-3, 2.063_909e-2, -5.373_971_5e-2, 1.333_144_2e-1, -3.333_328e-1];
/// erf(x) / x - 1 over x^2, for |x| < 1 (a Chebyshev fit, error below 4e-11).
pub const ERF_NEAR: [f32; 8] = [
    -9.667_045e-6,
    1.126_595_9e-4,
    -8.484_080_3e-4,
    5.221_031_6e-3,
    -2.686_543e-2,
    1.128_378_2e-1,
    -3.761_263_8e-1,
    1.283_791_7e-1,
];
/// ln(1 - erf(x)) over x, for x from 1 to 4 (a Chebyshev fit, error below 2e-8).
pub const ERF_FAR: [f32; 9] = [
    1.637_151_4e-6,
    -4.605_804e-5,
    5.968_056_5e-4,
    -4.759_596e-3,
    2.642_113_5e-2,
    -1.100_800_8e-1,
    -6.318_260_4e-1,
    -1.130_233_4,
    3.201_380_6e-4,
];
