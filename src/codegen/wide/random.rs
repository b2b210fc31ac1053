//! Draws of random numbers: `types::rng` in the vector IR, bit for bit.

use super::ir::*;
use crate::types::rng::{self, Dist};

impl Function {
    /// The draws at counters base, base + stride, ..
    pub fn random(&mut self, dist: Dist, key: Reg, base: Reg, stride: i64) -> Reg {
        let half = self.lanes as i64 / 2;
        let (base, key) = (self.op(Op::SplatLong, &[base]), self.op(Op::SplatLong, &[key]));
        let bits = [0, half].map(|first| {
            let steps = (first..first + half).map(|l| (l * stride) as u64).collect();
            let steps = self.constant(Constant::Longs(steps));
            let counter = self.op(Op::AddLong, &[base, steps]);
            self.random_bits(key, counter)
        });
        if let Dist::RandInt { n } = dist {
            // The upper half of a 32-bit draw times n.
            let n = self.constant(Constant::Longs(vec![u64::from(n); self.lanes / 2]));
            let [low, high] = bits.map(|x| {
                let draw = self.upper_halves(x);
                self.op(Op::MulLong, &[draw, n])
            });
            return self.op(Op::UpperHalves, &[low, high]);
        }
        // As in `rng::unit`.
        let cells = self.op(Op::UpperHalves, &bits);
        let cells = self.op(Op::ShiftRight(9), &[cells]);
        let u = self.op(Op::ToFloat, &[cells]);
        let (half, width) = (self.f32(0.5), self.f32(1.0 / 8_388_608.0));
        let u = self.op(Op::Add, &[u, half]);
        let u = self.op(Op::Mul, &[u, width]);
        match dist {
            Dist::Uniform { lo, hi } => {
                let (lo, range) = (self.f32(lo as f32), self.f32((hi - lo) as f32));
                let x = self.op(Op::Mul, &[u, range]);
                self.op(Op::Add, &[lo, x])
            }
            Dist::Normal { std } => self.normal(u, std, 1.0),
            Dist::TruncNormal { std } => self.normal(u, std, rng::TWO_SIGMA_MASS),
            Dist::Bernoulli { p } => {
                // u < p in f64 is u < the least f32 that is not below p.
                let mut bound = p as f32;
                if f64::from(bound) < p {
                    bound = bound.next_up();
                }
                let bound = self.f32(bound);
                self.op(Op::Compare(Relation::Less), &[u, bound])
            }
            Dist::RandInt { .. } => unreachable!("drawn above"),
        }
    }

    /// The upper halves of 64-bit lanes in their lower halves.
    fn upper_halves(&mut self, x: Reg) -> Reg {
        let swapped = self.op(Op::SwapHalves, &[x]);
        let low = self.constant(Constant::Longs(vec![0xFFFF_FFFF; self.lanes / 2]));
        self.op(Op::And, &[swapped, low])
    }

    /// `rng::bits` in the upper halves of 64-bit lanes.
    fn random_bits(&mut self, key: Reg, counter: Reg) -> Reg {
        let y = self.op(Op::MulLong, &[counter, key]);
        let z = self.op(Op::AddLong, &[y, key]);
        let mut x = y;
        for (round, addend) in [y, z, y, z].into_iter().enumerate() {
            let square = self.op(Op::MulLong, &[x, x]);
            x = self.op(Op::AddLong, &[square, addend]);
            if round < 3 {
                x = self.op(Op::SwapHalves, &[x]);
            }
        }
        x
    }

    /// std * sqrt(2) * erfinv(mass * (2 u - 1)), every product and sum rounded as `rng` does.
    fn normal(&mut self, u: Reg, std: f64, mass: f32) -> Reg {
        let fused = std::mem::replace(&mut self.fused, false);
        let (two, one, mass) = (self.f32(2.0), self.f32(1.0), self.f32(mass));
        let x = self.op(Op::Mul, &[two, u]);
        let x = self.op(Op::Sub, &[x, one]);
        let x = self.op(Op::Mul, &[mass, x]);
        let below = self.op(Op::Sub, &[one, x]);
        let above = self.op(Op::Add, &[one, x]);
        let product = self.op(Op::Mul, &[below, above]);
        let log = self.log_normal(product, None);
        let sign = self.i32(i32::MIN);
        let w = self.op(Op::Xor, &[log, sign]);
        let (offset, far_offset, bound) = (self.f32(2.5), self.f32(3.0), self.f32(5.0));
        let near = self.op(Op::Sub, &[w, offset]);
        let near = self.polynomial(near, &rng::ERFINV_NEAR);
        let root = self.op(Op::Sqrt, &[w]);
        let far = self.op(Op::Sub, &[root, far_offset]);
        let far = self.polynomial(far, &rng::ERFINV_FAR);
        let central = self.op(Op::Compare(Relation::Less), &[w, bound]);
        let p = self.select(central, near, far);
        let p = self.op(Op::Mul, &[p, x]);
        let scale = self.f32(std as f32 * std::f32::consts::SQRT_2);
        let draw = self.op(Op::Mul, &[scale, p]);
        self.fused = fused;
        draw
    }
}
