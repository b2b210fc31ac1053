//! Draws of random numbers: `types::rng` in machine code, bit for bit.

use super::ops::{LANES, Ops};
use crate::types::rng::{self, Dist};
use cranelift_codegen::ir::condcodes::{FloatCC, IntCC};
use cranelift_codegen::ir::types::{F32, F32X4, I32, I64};
use cranelift_codegen::ir::{InstBuilder, Value};

impl<'f> Ops<'f> {
    /// The draw at one counter (I64), or those at four.
    pub fn random(&mut self, dist: Dist, key: Value, counters: &[Value]) -> Value {
        if let Dist::RandInt { n } = dist {
            let draws: Vec<Value> = counters
                .iter()
                .map(|c| {
                    let bits = self.random_bits(key, *c);
                    let scaled = self.b.ins().imul_imm_s(bits, i64::from(n));
                    let shifted = self.b.ins().ushr_imm_s(scaled, 32);
                    self.b.ins().ireduce(I32, shifted)
                })
                .collect();
            return self.one_or_four(&draws);
        }
        // As in `rng::unit`.
        let cells: Vec<Value> = counters
            .iter()
            .map(|c| {
                let bits = self.random_bits(key, *c);
                let cell = self.b.ins().ushr_imm_s(bits, 9);
                self.b.ins().ireduce(I32, cell)
            })
            .collect();
        let cells = self.one_or_four(&cells);
        let ty = if self.is_vector(cells) { F32X4 } else { F32 };
        let u = self.b.ins().fcvt_from_sint(ty, cells);
        let (half, width) = (self.f32(u, 0.5), self.f32(u, 1.0 / 8_388_608.0));
        let u = self.fadd(u, half);
        let u = self.fmul(u, width);
        match dist {
            Dist::Uniform { lo, hi } => {
                let (lo, range) = (self.f32(u, lo as f32), self.f32(u, (hi - lo) as f32));
                let x = self.fmul(u, range);
                self.fadd(lo, x)
            }
            Dist::Normal { std } => self.normal(u, std, 1.0),
            Dist::TruncNormal { std } => self.normal(u, std, rng::TWO_SIGMA_MASS),
            Dist::Bernoulli { p } => {
                // u < p in f64 is u < the least f32 that is not below p.
                let mut bound = p as f32;
                if f64::from(bound) < p {
                    bound = bound.next_up();
                }
                let bound = self.f32(u, bound);
                self.fcmp(FloatCC::LessThan, u, bound)
            }
            Dist::RandInt { .. } => unreachable!("drawn above"),
        }
    }

    fn one_or_four(&mut self, values: &[Value]) -> Value {
        match <[Value; LANES]>::try_from(values) {
            Ok(lanes) => self.gather_lanes(lanes),
            Err(_) => values[0],
        }
    }

    /// `rng::bits` in the low half of an I64.
    fn random_bits(&mut self, key: Value, counter: Value) -> Value {
        let y = self.b.ins().imul(counter, key);
        let z = self.b.ins().iadd(y, key);
        let mut x = y;
        for (round, addend) in [y, z, y, z].into_iter().enumerate() {
            let square = self.b.ins().imul(x, x);
            x = self.b.ins().iadd(square, addend);
            x = if round < 3 { self.b.ins().rotl_imm_s(x, 32) } else { self.b.ins().ushr_imm_s(x, 32) };
        }
        debug_assert_eq!(self.ty(x), I64);
        x
    }

    /// std * sqrt(2) * erfinv(mass * (2 u - 1)), every product and sum rounded as `rng` does.
    fn normal(&mut self, u: Value, std: f64, mass: f32) -> Value {
        let fused = std::mem::replace(&mut self.fused, false);
        let (two, one) = (self.f32(u, 2.0), self.f32(u, 1.0));
        let x = self.fmul(two, u);
        let x = self.fsub(x, one);
        let mass = self.f32(u, mass);
        let x = self.fmul(mass, x);
        let below = self.fsub(one, x);
        let above = self.fadd(one, x);
        let product = self.fmul(below, above);
        let log = self.log_normal(product, None);
        let w = self.b.ins().fneg(log);
        let near = {
            let offset = self.f32(u, 2.5);
            let w = self.fsub(w, offset);
            self.polynomial(w, &rng::ERFINV_NEAR)
        };
        let far = {
            let root = self.b.ins().sqrt(w);
            let offset = self.f32(u, 3.0);
            let w = self.fsub(root, offset);
            self.polynomial(w, &rng::ERFINV_FAR)
        };
        let bound = self.f32(u, 5.0);
        let central = self.fcmp(FloatCC::LessThan, w, bound);
        let p = self.pick(central, near, far);
        let p = self.fmul(p, x);
        let scale = self.f32(u, std as f32 * std::f32::consts::SQRT_2);
        let draw = self.fmul(scale, p);
        self.fused = fused;
        draw
    }

    /// 0 <= index < size, for I32.
    pub fn in_range(&mut self, index: Value, size: usize) -> Value {
        // No array has more elements than an I32 counts.
        let size = self.i32(index, i32::try_from(size).unwrap_or(i32::MAX));
        self.icmp(IntCC::UnsignedLessThan, index, size)
    }
}
