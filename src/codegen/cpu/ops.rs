//! Arithmetic on either one element or four: every emitter of this room works on both and gives the same bits for each
//! lane, so it does not matter which rows of a kernel are computed one by one and which in a vector.
//!
//! A condition is an I8 (0 or 1) beside scalars and an I32X4 mask beside vectors.

use cranelift_codegen::ir::condcodes::{FloatCC, IntCC};
use cranelift_codegen::ir::types::{F32, F32X4, F64, I8, I32, I32X4, I64};
use cranelift_codegen::ir::{
    AbiParam, ConstantData, Endianness, InstBuilder, MemFlagsData, SigRef, Signature, Type, Value,
};
use cranelift_codegen::isa::CallConv;
use cranelift_frontend::FunctionBuilder;

use crate::program::Helper;

/// Lanes of a vector.
pub const LANES: usize = 4;

/// A function under construction with what its arithmetic needs to know.
pub struct Ops<'f> {
    pub b: FunctionBuilder<'f>,
    /// Whether the processor fuses multiplication and addition.
    pub fused: bool,
    /// Start of the table of helpers.
    pub helpers: Value,
    call_conv: CallConv,
    signatures: Vec<(Vec<Type>, SigRef)>,
}

impl<'f> Ops<'f> {
    pub fn new(b: FunctionBuilder<'f>, fused: bool, helpers: Value, call_conv: CallConv) -> Ops<'f> {
        Ops { b, fused, helpers, call_conv, signatures: Vec::new() }
    }

    pub fn ty(&self, v: Value) -> Type {
        self.b.func.dfg.value_type(v)
    }

    pub fn is_vector(&self, v: Value) -> bool {
        self.ty(v).is_vector()
    }

    // ---- constants

    pub fn f32(&mut self, like: Value, x: f32) -> Value {
        if self.is_vector(like) { self.vector_const(F32X4, x.to_bits()) } else { self.b.ins().f32const(x) }
    }

    /// A float of the type of `like`: F32, F32X4 or F64.
    pub fn float(&mut self, like: Value, x: f64) -> Value {
        if self.ty(like) == F64 { self.b.ins().f64const(x) } else { self.f32(like, x as f32) }
    }

    pub fn i32(&mut self, like: Value, x: i32) -> Value {
        if self.is_vector(like) {
            self.vector_const(I32X4, x as u32)
        } else {
            // The bits of a constant are those below its type's width.
            self.b.ins().iconst(I32, i64::from(x as u32))
        }
    }

    pub fn i64(&mut self, x: i64) -> Value {
        self.b.ins().iconst(I64, x)
    }

    pub fn vector_const(&mut self, ty: Type, bits: u32) -> Value {
        let bytes: Vec<u8> = std::iter::repeat_n(bits.to_le_bytes(), LANES).flatten().collect();
        let constant = self.b.func.dfg.constants.insert(ConstantData::from(bytes));
        self.b.ins().vconst(ty, constant)
    }

    // ---- bits

    pub fn bits(&mut self, x: Value) -> Value {
        let ty = if self.is_vector(x) { I32X4 } else { I32 };
        self.cast_bits(ty, x)
    }

    pub fn of_bits(&mut self, x: Value) -> Value {
        let ty = if self.is_vector(x) { F32X4 } else { F32 };
        self.cast_bits(ty, x)
    }

    pub fn cast_bits(&mut self, ty: Type, x: Value) -> Value {
        if self.ty(x) == ty {
            return x;
        }
        let flags = MemFlagsData::new().with_endianness(Endianness::Little);
        self.b.ins().bitcast(ty, flags, x)
    }

    pub fn shift_left(&mut self, x: Value, by: i64) -> Value {
        let by = self.b.ins().iconst(I32, by);
        self.b.ins().ishl(x, by)
    }

    pub fn shift_right(&mut self, x: Value, by: i64) -> Value {
        let by = self.b.ins().iconst(I32, by);
        self.b.ins().ushr(x, by)
    }

    pub fn shift_right_signed(&mut self, x: Value, by: i64) -> Value {
        let by = self.b.ins().iconst(I32, by);
        self.b.ins().sshr(x, by)
    }

    pub fn and_bits(&mut self, x: Value, mask: i32) -> Value {
        let mask = self.i32(x, mask);
        self.b.ins().band(x, mask)
    }

    pub fn add_bits(&mut self, x: Value, y: i32) -> Value {
        let y = self.i32(x, y);
        self.b.ins().iadd(x, y)
    }

    // ---- arithmetic

    /// x * y + z; rounded once where the processor can.
    pub fn mul_add(&mut self, x: Value, y: Value, z: Value) -> Value {
        if self.fused {
            self.b.ins().fma(x, y, z)
        } else {
            let product = self.b.ins().fmul(x, y);
            self.b.ins().fadd(product, z)
        }
    }

    /// A polynomial, highest power first.
    pub fn polynomial(&mut self, x: Value, coefficients: &[f32]) -> Value {
        let (first, rest) = coefficients.split_first().expect("a polynomial has coefficients");
        let mut p = self.f32(x, *first);
        for c in rest {
            let c = self.f32(x, *c);
            p = self.mul_add(p, x, c);
        }
        p
    }

    pub fn fadd(&mut self, x: Value, y: Value) -> Value {
        self.b.ins().fadd(x, y)
    }

    pub fn fsub(&mut self, x: Value, y: Value) -> Value {
        self.b.ins().fsub(x, y)
    }

    pub fn fmul(&mut self, x: Value, y: Value) -> Value {
        self.b.ins().fmul(x, y)
    }

    pub fn fdiv(&mut self, x: Value, y: Value) -> Value {
        self.b.ins().fdiv(x, y)
    }

    pub fn fcmp(&mut self, cc: FloatCC, x: Value, y: Value) -> Value {
        self.b.ins().fcmp(cc, x, y)
    }

    pub fn icmp(&mut self, cc: IntCC, x: Value, y: Value) -> Value {
        self.b.ins().icmp(cc, x, y)
    }

    pub fn is_nan(&mut self, x: Value) -> Value {
        // Not `Unordered`: some processors do not have it for vectors.
        self.fcmp(FloatCC::NotEqual, x, x)
    }

    /// `condition ? x : y`, in each lane.
    pub fn pick(&mut self, condition: Value, x: Value, y: Value) -> Value {
        if self.is_vector(condition) {
            let mask = self.cast_bits(self.ty(x), condition);
            self.b.ins().bitselect(mask, x, y)
        } else {
            self.b.ins().select(condition, x, y)
        }
    }

    pub fn not(&mut self, condition: Value) -> Value {
        if self.is_vector(condition) { self.b.ins().bnot(condition) } else { self.b.ins().bxor_imm_s(condition, 1) }
    }

    /// The larger; NaN if either is NaN.
    pub fn fmax(&mut self, x: Value, y: Value) -> Value {
        let larger = self.fcmp(FloatCC::GreaterThan, x, y);
        self.or_nan(larger, x, y)
    }

    pub fn fmin(&mut self, x: Value, y: Value) -> Value {
        let smaller = self.fcmp(FloatCC::LessThan, x, y);
        self.or_nan(smaller, x, y)
    }

    /// `condition ? x : y` for a comparison of x and y, but x if that is NaN (where y is, the comparison is false).
    fn or_nan(&mut self, condition: Value, x: Value, y: Value) -> Value {
        let ordered = self.pick(condition, x, y);
        let nan = self.is_nan(x);
        self.pick(nan, x, ordered)
    }

    // ---- lanes

    pub fn splat(&mut self, x: Value) -> Value {
        match self.ty(x) {
            F32 => self.b.ins().splat(F32X4, x),
            I32 => self.b.ins().splat(I32X4, x),
            // A condition becomes a mask.
            I8 => {
                let wide = self.b.ins().uextend(I32, x);
                let all = self.b.ins().ineg(wide);
                self.b.ins().splat(I32X4, all)
            }
            other => unreachable!("no vectors of {other}"),
        }
    }

    /// One lane; of a mask, as a condition if `condition`.
    pub fn lane(&mut self, x: Value, n: usize, condition: bool) -> Value {
        let lane = self.b.ins().extractlane(x, n as u8);
        if condition {
            let bit = self.b.ins().band_imm_s(lane, 1);
            self.b.ins().ireduce(I8, bit)
        } else {
            lane
        }
    }

    /// A vector of four scalars (conditions become a mask).
    pub fn gather_lanes(&mut self, lanes: [Value; LANES]) -> Value {
        let lanes = lanes.map(|x| {
            if self.ty(x) == I8 {
                let wide = self.b.ins().uextend(I32, x);
                self.b.ins().ineg(wide)
            } else {
                x
            }
        });
        let ty = if self.ty(lanes[0]) == F32 { F32X4 } else { I32X4 };
        let mut v = self.b.ins().scalar_to_vector(ty, lanes[0]);
        for (n, x) in lanes.iter().enumerate().skip(1) {
            v = self.b.ins().insertlane(v, *x, n as u8);
        }
        v
    }

    /// Applies a scalar emitter to each lane of vectors, or once to scalars. `conditions` says which operands are
    /// conditions.
    pub fn each_lane(
        &mut self,
        operands: &[(Value, bool)],
        mut scalar: impl FnMut(&mut Ops<'f>, &[Value]) -> Value,
    ) -> Value {
        if !self.is_vector(operands[0].0) {
            let plain: Vec<Value> = operands.iter().map(|o| o.0).collect();
            return scalar(self, &plain);
        }
        let lanes = std::array::from_fn(|n| {
            let plain: Vec<Value> = operands.iter().map(|(x, condition)| self.lane(*x, n, *condition)).collect();
            scalar(self, &plain)
        });
        self.gather_lanes(lanes)
    }

    // ---- helpers

    /// Address of an entry of the table of helpers.
    pub fn helper(&mut self, helper: Helper) -> Value {
        let flags = MemFlagsData::trusted().with_readonly().with_can_move();
        self.b.ins().load(I64, flags, self.helpers, (helper as usize * 8) as i32)
    }

    /// Calls a helper that takes and returns values of the operands' type.
    pub fn call(&mut self, helper: Helper, operands: &[Value]) -> Value {
        let types: Vec<Type> = operands.iter().map(|x| self.ty(*x)).collect();
        let signature = match self.signatures.iter().find(|(known, _)| *known == types) {
            Some((_, signature)) => *signature,
            None => {
                let mut signature = Signature::new(self.call_conv);
                signature.params.extend(types.iter().map(|t| AbiParam::new(*t)));
                signature.returns.push(AbiParam::new(types[0]));
                let signature = self.b.import_signature(signature);
                self.signatures.push((types, signature));
                signature
            }
        };
        let address = self.helper(helper);
        let call = self.b.ins().call_indirect(signature, address, operands);
        self.b.inst_results(call)[0]
    }
}
