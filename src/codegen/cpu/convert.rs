//! Loads, stores and conversions: how elements look in memory and in registers.
//!
//! In a register F16 and BF16 are an F32, Bool is a condition; in memory Bool is a byte, 0 or 1.

use super::ops::Ops;
use crate::types::DType;
use cranelift_codegen::ir::condcodes::{FloatCC, IntCC};
use cranelift_codegen::ir::types::{F32, F32X4, F64, I8, I8X16, I16, I16X8, I32, I32X4, I64, I64X2};
use cranelift_codegen::ir::{InstBuilder, MemFlagsData, Type, Value};

/// Memory of a kernel: valid, but vectors may begin at any element.
fn memory() -> MemFlagsData {
    MemFlagsData::new().with_notrap()
}

/// The register type of one element.
pub fn scalar_type(dtype: DType) -> Type {
    match dtype {
        DType::Bool => I8,
        DType::I32 => I32,
        DType::F16 | DType::BF16 | DType::F32 => F32,
        DType::F64 => F64,
    }
}

/// The register type of four elements; none for F64.
pub fn vector_type(dtype: DType) -> Option<Type> {
    match dtype {
        DType::Bool | DType::I32 => Some(I32X4),
        DType::F16 | DType::BF16 | DType::F32 => Some(F32X4),
        DType::F64 => None,
    }
}

impl<'f> Ops<'f> {
    /// One element, or with `vector` four adjacent ones, from `address + offset` bytes.
    pub fn load(&mut self, dtype: DType, vector: bool, address: Value, offset: i32) -> Value {
        let flags = memory();
        match (dtype, vector) {
            (DType::F32, false) => self.b.ins().load(F32, flags, address, offset),
            (DType::F32, true) => self.b.ins().load(F32X4, flags, address, offset),
            (DType::F64, _) => self.b.ins().load(F64, flags, address, offset),
            (DType::I32, false) => self.b.ins().load(I32, flags, address, offset),
            (DType::I32, true) => self.b.ins().load(I32X4, flags, address, offset),
            (DType::Bool, false) => self.b.ins().load(I8, flags, address, offset),
            (DType::Bool, true) => {
                let bytes = self.b.ins().load(I32, flags, address, offset);
                let bytes = self.b.ins().scalar_to_vector(I32X4, bytes);
                let bytes = self.cast_bits(I8X16, bytes);
                let words = self.b.ins().uwiden_low(bytes);
                let lanes = self.b.ins().uwiden_low(words);
                self.b.ins().ineg(lanes)
            }
            (DType::F16 | DType::BF16, false) => {
                let half = self.b.ins().load(I16, flags, address, offset);
                let bits = self.b.ins().uextend(I32, half);
                self.widen_half(dtype, bits)
            }
            (DType::F16 | DType::BF16, true) => {
                let bits = self.b.ins().uload16x4(flags, address, offset);
                self.widen_half(dtype, bits)
            }
        }
    }

    pub fn store(&mut self, dtype: DType, value: Value, address: Value, offset: i32) {
        let flags = memory();
        let vector = self.is_vector(value);
        let raw = match dtype {
            DType::F32 | DType::F64 | DType::I32 => value,
            DType::Bool if !vector => value,
            DType::Bool => {
                let ones = self.and_bits(value, 1);
                let words = self.b.ins().snarrow(ones, ones);
                let bytes = self.b.ins().unarrow(words, words);
                let bytes = self.cast_bits(I32X4, bytes);
                self.b.ins().extractlane(bytes, 0)
            }
            DType::F16 | DType::BF16 => {
                let bits = self.narrow_half(dtype, value);
                if vector {
                    let words = self.b.ins().unarrow(bits, bits);
                    debug_assert_eq!(self.ty(words), I16X8);
                    let words = self.cast_bits(I64X2, words);
                    self.b.ins().extractlane(words, 0)
                } else {
                    self.b.ins().ireduce(I16, bits)
                }
            }
        };
        self.b.ins().store(flags, raw, address, offset);
    }

    /// The bits of a 16-bit float (in the low half of an I32) as an F32.
    fn widen_half(&mut self, dtype: DType, bits: Value) -> Value {
        if dtype == DType::BF16 {
            let bits = self.shift_left(bits, 16);
            return self.of_bits(bits);
        }
        // The exponent is rebased by a multiplication, which also makes denormal numbers normal.
        let magnitude = self.and_bits(bits, 0x7FFF);
        let shifted = self.shift_left(magnitude, 13);
        let number = self.of_bits(shifted);
        let rebase = self.f32(number, 2f32.powi(112));
        let number = self.fmul(number, rebase);
        let number = self.bits(number);
        let top = self.i32(bits, 0x7C00);
        let special = self.icmp(IntCC::SignedGreaterThanOrEqual, magnitude, top);
        let exponent = self.i32(bits, 0x7F80_0000);
        let infinite = self.b.ins().bor(shifted, exponent);
        let number = self.pick(special, infinite, number);
        let sign = self.and_bits(bits, 0x8000);
        let sign = self.shift_left(sign, 16);
        let number = self.b.ins().bor(number, sign);
        self.of_bits(number)
    }

    /// An F32 rounded (half to even) to the bits of a 16-bit float.
    fn narrow_half(&mut self, dtype: DType, x: Value) -> Value {
        let bits = self.bits(x);
        let nan = self.is_nan(x);
        if dtype == DType::BF16 {
            let upper = self.shift_right(bits, 16);
            let odd = self.and_bits(upper, 1);
            let rounded = self.add_bits(bits, 0x7FFF);
            let rounded = self.b.ins().iadd(rounded, odd);
            let rounded = self.shift_right(rounded, 16);
            let quiet = self.i32(bits, 0x40);
            let quiet = self.b.ins().bor(upper, quiet);
            return self.pick(nan, quiet, rounded);
        }
        let magnitude = self.and_bits(bits, 0x7FFF_FFFF);
        // Below the least normal number an addition of 1/2 leaves the rounded result in the low bits (F. Giesen).
        let tiny = self.of_bits(magnitude);
        let half = self.f32(x, 0.5);
        let tiny = self.fadd(tiny, half);
        let tiny = self.bits(tiny);
        let tiny = self.add_bits(tiny, (0.5f32.to_bits() as i32).wrapping_neg());
        let odd = self.shift_right(magnitude, 13);
        let odd = self.and_bits(odd, 1);
        let normal = self.add_bits(magnitude, 0xFFF - (112 << 23));
        let normal = self.b.ins().iadd(normal, odd);
        let normal = self.shift_right(normal, 13);
        let least = self.i32(bits, 113 << 23);
        let denormal = self.icmp(IntCC::SignedLessThan, magnitude, least);
        let number = self.pick(denormal, tiny, normal);
        let limit = self.i32(bits, 0x4780_0000);
        let large = self.icmp(IntCC::SignedGreaterThanOrEqual, magnitude, limit);
        let infinity = self.i32(bits, 0x7C00);
        let number = self.pick(large, infinity, number);
        let quiet = self.i32(bits, 0x7E00);
        let number = self.pick(nan, quiet, number);
        let sign = self.shift_right(bits, 16);
        let sign = self.and_bits(sign, 0x8000);
        self.b.ins().bor(number, sign)
    }

    /// A value of one dtype as another, both in their register forms.
    pub fn cast(&mut self, from: DType, to: DType, x: Value) -> Value {
        if from == to {
            return x;
        }
        match to {
            DType::Bool => self.not_zero(from, x),
            DType::I32 => match from {
                DType::Bool => self.condition_to_int(x),
                _ => {
                    let ty = if self.is_vector(x) { I32X4 } else { I32 };
                    self.b.ins().fcvt_to_sint_sat(ty, x)
                }
            },
            DType::F64 => match from {
                DType::F16 | DType::BF16 | DType::F32 => self.b.ins().fpromote(F64, x),
                _ => {
                    let x = if from == DType::Bool { self.condition_to_int(x) } else { x };
                    self.b.ins().fcvt_from_sint(F64, x)
                }
            },
            DType::F16 | DType::BF16 | DType::F32 => {
                let x = match from {
                    DType::F64 => self.b.ins().fdemote(F32, x),
                    DType::F16 | DType::BF16 | DType::F32 => x,
                    DType::Bool | DType::I32 => {
                        let x = if from == DType::Bool { self.condition_to_int(x) } else { x };
                        let ty = if self.is_vector(x) { F32X4 } else { F32 };
                        self.b.ins().fcvt_from_sint(ty, x)
                    }
                };
                if to == DType::F32 { x } else { self.round_half(to, x) }
            }
        }
    }

    fn round_half(&mut self, dtype: DType, x: Value) -> Value {
        let bits = self.narrow_half(dtype, x);
        self.widen_half(dtype, bits)
    }

    fn condition_to_int(&mut self, x: Value) -> Value {
        if self.is_vector(x) { self.b.ins().ineg(x) } else { self.b.ins().uextend(I32, x) }
    }

    fn not_zero(&mut self, dtype: DType, x: Value) -> Value {
        if dtype == DType::I32 {
            let zero = self.i32(x, 0);
            return self.icmp(IntCC::NotEqual, x, zero);
        }
        let zero = self.float(x, 0.0);
        self.fcmp(FloatCC::NotEqual, x, zero)
    }

    /// A constant in its register form; of conditions as a scalar.
    pub fn constant(&mut self, dtype: DType, x: f64) -> Value {
        match dtype {
            DType::Bool => self.b.ins().iconst(I8, i64::from(x != 0.0)),
            DType::I32 => self.b.ins().iconst(I32, i64::from(x as i64 as i32 as u32)),
            DType::F16 => self.b.ins().f32const(half::f16::from_f32(x as f32).to_f32()),
            DType::BF16 => self.b.ins().f32const(half::bf16::from_f32(x as f32).to_f32()),
            DType::F32 => self.b.ins().f32const(x as f32),
            DType::F64 => self.b.ins().f64const(x),
        }
    }

    /// The same for four elements.
    pub fn vector_constant(&mut self, dtype: DType, x: f64) -> Value {
        let bits = match dtype {
            DType::Bool => u32::from(x == 0.0).wrapping_sub(1),
            DType::I32 => x as i64 as i32 as u32,
            DType::F16 => half::f16::from_f32(x as f32).to_f32().to_bits(),
            DType::BF16 => half::bf16::from_f32(x as f32).to_f32().to_bits(),
            DType::F32 => (x as f32).to_bits(),
            DType::F64 => unreachable!("f64 is computed one by one"),
        };
        let ty = if matches!(dtype, DType::Bool | DType::I32) { I32X4 } else { F32X4 };
        self.vector_const(ty, bits)
    }

    /// The low half of an I64.
    pub fn truncate(&mut self, x: Value) -> Value {
        if self.ty(x) == I64 { self.b.ins().ireduce(I32, x) } else { x }
    }
}
