//! Conversions between types, in the forms that registers have.

use super::ir::*;
use crate::types::DType;

impl Function {
    /// A value of one dtype as another.
    pub fn cast(&mut self, from: DType, to: DType, x: Reg) -> Reg {
        if from == to {
            return x;
        }
        match (from, to) {
            (DType::I32, DType::Bool) => {
                let zero = self.i32(0);
                self.op(Op::CompareInt(Relation::NotEqual), &[x, zero])
            }
            (_, DType::Bool) => {
                let zero = self.f32(0.0);
                self.op(Op::Compare(Relation::NotEqual), &[x, zero])
            }
            (DType::Bool, DType::I32) => {
                let (zero, one) = (self.i32(0), self.i32(1));
                self.select(x, one, zero)
            }
            (_, DType::I32) => self.saturated(x),
            (DType::Bool, _) => {
                let (zero, one) = (self.f32(0.0), self.f32(1.0));
                self.select(x, one, zero)
            }
            _ => {
                let x = if from == DType::I32 { self.op(Op::ToFloat, &[x]) } else { x };
                match to {
                    DType::F16 => self.op(Op::RoundHalf, &[x]),
                    DType::BF16 => self.round_bf16(x),
                    _ => x,
                }
            }
        }
    }

    /// Towards zero; saturates, and NaN gives 0.
    fn saturated(&mut self, x: Reg) -> Reg {
        let whole = self.op(Op::ToInt, &[x]);
        let (limit, most, zero) = (self.f32(2_147_483_648.0), self.i32(i32::MAX), self.i32(0));
        let large = self.op(Op::Compare(Relation::GreaterEqual), &[x, limit]);
        let whole = self.select(large, most, whole);
        let number = self.op(Op::Compare(Relation::Equal), &[x, x]);
        self.select(number, whole, zero)
    }

    /// Rounds (half to even) to the upper half of the bits.
    fn round_bf16(&mut self, x: Reg) -> Reg {
        let upper = self.op(Op::ShiftRight(16), &[x]);
        let (one, below, mask, quiet) = (self.i32(1), self.i32(0x7FFF), self.i32(!0xFFFF), self.i32(0x40_0000));
        let odd = self.op(Op::And, &[upper, one]);
        let sum = self.op(Op::AddInt, &[x, below]);
        let sum = self.op(Op::AddInt, &[sum, odd]);
        let rounded = self.op(Op::And, &[sum, mask]);
        let nan = self.op(Op::And, &[x, mask]);
        let nan = self.op(Op::Or, &[nan, quiet]);
        let number = self.op(Op::Compare(Relation::Equal), &[x, x]);
        self.select(number, rounded, nan)
    }
}
