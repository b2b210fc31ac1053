//! Expressions: evaluated once where they are first needed, for one iteration or for the lanes of several.

use super::convert::scalar_type;
use super::map::has_vector_form;
use super::nest::{Emitter, MAX_GROUPS};
use super::ops::LANES;
use crate::codegen::plan::{small_power, stride};
use crate::kernel::{ArgId, ExprId, Index, Node};
use crate::program::Helper;
use crate::types::DType;
use cranelift_codegen::ir::types::{I32X4, I64};
use cranelift_codegen::ir::{InstBuilder, MemFlagsData, Value};

/// The value of an expression.
#[derive(Clone, Copy)]
pub enum Val {
    /// The same for all lanes (or there are none).
    One(Value),
    /// One vector for each group of lanes.
    Many([Value; MAX_GROUPS]),
}

impl<'f> Emitter<'f, '_> {
    pub fn groups(&self) -> usize {
        self.vector.map_or(1, |v| v.groups)
    }

    pub fn eval(&mut self, id: ExprId) -> Val {
        if let Some(known) = self.memo[id.index()] {
            return known;
        }
        let value = self.compute(id);
        self.memo[id.index()] = Some(value);
        self.log.push(id);
        value
    }

    fn compute(&mut self, id: ExprId) -> Val {
        let kernel = self.kernel;
        let expr = kernel.expr(id);
        match &expr.node {
            Node::Const(x) => Val::One(self.ops.constant(expr.dtype, *x)),
            Node::Index(index) => self.index_value(index),
            Node::Load { buffer, at, when, fill } => self.load(*buffer, at, *when, *fill),
            Node::Map(_, args) if small_power(kernel, id).is_some() => {
                let n = small_power(kernel, id).unwrap_or_default();
                match self.eval(args[0]) {
                    Val::One(x) => Val::One(self.power(x, n)),
                    Val::Many(x) => self.per_group(|s, g| s.power(x[g], n)),
                }
            }
            Node::Map(op, args) => {
                let dtypes: Vec<DType> = args.iter().map(|a| kernel.expr(*a).dtype).collect();
                let dtype = *dtypes.last().unwrap_or(&expr.dtype);
                let operands: Vec<Val> = args.iter().map(|a| self.eval(*a)).collect();
                if operands.iter().all(|v| matches!(v, Val::One(_))) {
                    let x: Vec<Value> = operands.iter().map(|v| self.one(*v)).collect();
                    return Val::One(self.ops.map(*op, dtype, &x));
                }
                let vector_form = has_vector_form(*op, dtype);
                self.per_group(|s, g| {
                    let x: Vec<Value> = args.iter().map(|a| s.vector_of(*a, g)).collect();
                    if vector_form {
                        return s.ops.map(*op, dtype, &x);
                    }
                    let x: Vec<(Value, bool)> =
                        x.into_iter().zip(&dtypes).map(|(x, d)| (x, *d == DType::Bool)).collect();
                    s.ops.each_lane(&x, |ops, x| ops.map(*op, dtype, x))
                })
            }
            Node::Register(r) => {
                let variables = self.registers[r.index()].clone();
                match variables.as_slice() {
                    [one] if !self.vector_registers => Val::One(self.ops.b.use_var(*one)),
                    many => {
                        let values: Vec<Value> = many.iter().map(|v| self.ops.b.use_var(*v)).collect();
                        self.per_group(|_, g| values[g])
                    }
                }
            }
            Node::Random { dist, key, counter, origin } => {
                let flags = MemFlagsData::trusted().with_readonly().with_can_move();
                let key = self.ops.b.ins().load(I64, flags, self.scalars, (*key * 8) as i32);
                let mut base = self.offset(counter, 1);
                if let Some(n) = origin {
                    let origin = self.ops.b.ins().load(I64, flags, self.scalars, (*n * 8) as i32);
                    base = self.ops.b.ins().iadd(base, origin);
                }
                let Some(step) = self.lane_step(counter) else {
                    return Val::One(self.ops.random(*dist, key, &[base]));
                };
                let counter = counter.clone();
                self.per_group(|s, g| {
                    let counters: Vec<Value> =
                        (0..LANES).map(|lane| s.lane_offset(base, &counter, step, 1, g, lane)).collect();
                    s.ops.random(*dist, key, &counters)
                })
            }
            Node::Check { index, size, site } => {
                let value = self.eval(*index);
                match value {
                    Val::One(x) => Val::One(self.check(x, *size, *site)),
                    Val::Many(x) => self.per_group(|s, g| s.check(x[g], *size, *site)),
                }
            }
        }
    }

    fn power(&mut self, x: Value, n: f64) -> Value {
        self.ops.small_power(x, n).expect("an exponent of `plan::small_power`")
    }

    /// One vector for each group.
    fn per_group(&mut self, mut f: impl FnMut(&mut Self, usize) -> Value) -> Val {
        let first = f(self, 0);
        let mut all = [first; MAX_GROUPS];
        for (g, slot) in all.iter_mut().enumerate().take(self.groups()).skip(1) {
            *slot = f(self, g);
        }
        Val::Many(all)
    }

    /// A value that is known to be the same for all lanes.
    pub fn one(&self, value: Val) -> Value {
        match value {
            Val::One(x) => x,
            Val::Many(_) => unreachable!("a value of several lanes where one is asked for"),
        }
    }

    /// The lanes of a group.
    pub fn vector_of(&mut self, id: ExprId, group: usize) -> Value {
        match self.eval(id) {
            Val::Many(all) => all[group],
            Val::One(x) => match self.kernel.expr(id).node {
                Node::Const(c) => self.ops.vector_constant(self.kernel.expr(id).dtype, c),
                _ => self.ops.splat(x),
            },
        }
    }

    /// One lane of an expression, as a scalar.
    pub fn lane_of(&mut self, id: ExprId, group: usize, lane: usize) -> Value {
        match self.eval(id) {
            Val::One(x) => x,
            Val::Many(all) => self.ops.lane(all[group], lane, self.kernel.expr(id).dtype == DType::Bool),
        }
    }

    fn varies(&mut self, id: ExprId) -> bool {
        matches!(self.eval(id), Val::Many(_))
    }

    // ---- indices

    /// How far an index moves from lane to lane by its loops, or None where it is the same in all lanes.
    pub fn lane_step(&mut self, index: &Index) -> Option<i64> {
        let step = stride(index, self.vector?.index);
        (step != 0 || index.exprs.iter().any(|(e, _)| self.varies(*e))).then_some(step)
    }

    /// The index at lane 0 times `scale`, without what differs by lanes other than by the loop: I64.
    fn offset(&mut self, index: &Index, scale: i64) -> Value {
        let zero = self.ops.i64(index.base * scale);
        self.add_terms(zero, index, scale)
    }

    fn add_terms(&mut self, mut sum: Value, index: &Index, scale: i64) -> Value {
        for (e, factor) in &index.exprs {
            if let Val::One(x) = self.eval(*e) {
                let wide = self.ops.b.ins().sextend(I64, x);
                sum = self.add_scaled(sum, wide, factor * scale);
            }
        }
        for (l, factor) in &index.loops {
            let i = self.index[l.index()].expect("a loop is used inside of it");
            sum = self.add_scaled(sum, i, factor * scale);
        }
        sum
    }

    fn add_scaled(&mut self, sum: Value, x: Value, factor: i64) -> Value {
        let term = if factor == 1 { x } else { self.ops.b.ins().imul_imm_s(x, factor) };
        self.ops.b.ins().iadd(sum, term)
    }

    /// The index of one lane: `base` plus the steps to it plus what differs by lanes.
    fn lane_offset(&mut self, base: Value, index: &Index, step: i64, scale: i64, group: usize, lane: usize) -> Value {
        let n = (group * LANES + lane) as i64;
        let mut sum = if n * step == 0 { base } else { self.ops.b.ins().iadd_imm_s(base, n * step * scale) };
        for (e, factor) in &index.exprs {
            if self.varies(*e) {
                let x = self.lane_of(*e, group, lane);
                let wide = self.ops.b.ins().sextend(I64, x);
                sum = self.add_scaled(sum, wide, factor * scale);
            }
        }
        sum
    }

    /// An index as I32.
    fn index_value(&mut self, index: &Index) -> Val {
        let base = self.offset(index, 1);
        let base = self.ops.truncate(base);
        let Some(step) = self.lane_step(index) else { return Val::One(base) };
        let index = index.clone();
        self.per_group(|s, g| {
            let steps: Vec<u8> =
                (0..LANES).flat_map(|l| (((g * LANES + l) as i64 * step) as i32).to_le_bytes()).collect();
            let constant = s.ops.b.func.dfg.constants.insert(steps.into());
            let steps = s.ops.b.ins().vconst(I32X4, constant);
            let start = s.ops.splat(base);
            let mut sum = s.ops.b.ins().iadd(start, steps);
            for (e, factor) in &index.exprs {
                if s.varies(*e) {
                    let x = s.vector_of(*e, g);
                    let factor = s.ops.i32(x, *factor as i32);
                    let term = s.ops.b.ins().imul(x, factor);
                    sum = s.ops.b.ins().iadd(sum, term);
                }
            }
            sum
        })
    }

    /// The address of lane 0 of the first group, without what differs by lanes other than by the loop.
    pub fn address(&mut self, buffer: ArgId, at: &Index) -> Value {
        let size = self.kernel.buffers[buffer.index()].dtype.bytes() as i64;
        let mut start = self.pointers[buffer.index()];
        if at.base != 0 {
            start = self.ops.b.ins().iadd_imm_s(start, at.base * size);
        }
        self.add_terms(start, at, size)
    }

    /// The address of one lane.
    pub fn lane_address(&mut self, start: Value, buffer: ArgId, at: &Index, group: usize, lane: usize) -> Value {
        let size = self.kernel.buffers[buffer.index()].dtype.bytes() as i64;
        let step = self.vector.map_or(0, |v| stride(at, v.index));
        self.lane_offset(start, at, step, size, group, lane)
    }

    /// Whether the lanes of an address lie side by side.
    pub fn is_contiguous(&mut self, at: &Index) -> bool {
        self.lane_step(at) == Some(1) && !at.exprs.iter().any(|(e, _)| self.varies(*e))
    }

    // ---- loads

    fn load(&mut self, buffer: ArgId, at: &Index, when: Option<ExprId>, fill: f64) -> Val {
        let dtype = self.kernel.buffers[buffer.index()].dtype;
        let start = self.address(buffer, at);
        let when_varies = when.is_some_and(|w| self.varies(w));
        if self.lane_step(at).is_none() && !when_varies {
            let condition = when.map(|w| self.lane_of(w, 0, 0));
            return Val::One(self.guarded_load(dtype, start, condition, fill));
        }
        let at = at.clone();
        if self.is_contiguous(&at) && !when_varies {
            let condition = when.map(|w| self.lane_of(w, 0, 0));
            return self.per_group(|s, g| {
                let bytes = (g * LANES * dtype.bytes()) as i32;
                let Some(condition) = condition else { return s.ops.load(dtype, true, start, bytes) };
                let address = s.ops.b.ins().iadd_imm_s(start, i64::from(bytes));
                let zeros = s.ops.helper(Helper::Zeros);
                let address = s.ops.b.ins().select(condition, address, zeros);
                let loaded = s.ops.load(dtype, true, address, 0);
                let other = s.ops.vector_constant(dtype, fill);
                let mask = s.ops.splat(condition);
                s.ops.pick(mask, loaded, other)
            });
        }
        self.per_group(|s, g| {
            let lanes = std::array::from_fn(|lane| {
                let address = s.lane_address(start, buffer, &at, g, lane);
                let condition = when.map(|w| s.lane_of(w, g, lane));
                s.guarded_load(dtype, address, condition, fill)
            });
            s.ops.gather_lanes(lanes)
        })
    }

    /// One element, or `fill` where the condition is false; the address is not touched then.
    fn guarded_load(&mut self, dtype: DType, address: Value, condition: Option<Value>, fill: f64) -> Value {
        let Some(condition) = condition else { return self.ops.load(dtype, false, address, 0) };
        let zeros = self.ops.helper(Helper::Zeros);
        let address = self.ops.b.ins().select(condition, address, zeros);
        let loaded = self.ops.load(dtype, false, address, 0);
        let other = self.ops.constant(dtype, fill);
        debug_assert_eq!(self.ops.ty(other), scalar_type(dtype));
        self.ops.b.ins().select(condition, loaded, other)
    }

    // ---- checks

    /// The index, or 0 where it is out of range, which is then noted in the status cell.
    fn check(&mut self, index: Value, size: usize, site: u32) -> Value {
        let good = self.ops.in_range(index, size);
        let all = if self.ops.is_vector(good) { self.ops.b.ins().vall_true(good) } else { good };
        let (report, join) = (self.ops.b.create_block(), self.ops.b.create_block());
        self.ops.b.set_cold_block(report);
        self.ops.b.ins().brif(all, join, &[], report, &[]);
        self.ops.b.switch_to_block(report);
        self.ops.b.seal_block(report);
        let bad = if self.ops.is_vector(good) {
            // The first lane that is out of range.
            let mut bad = self.ops.lane(index, LANES - 1, false);
            for lane in (0..LANES - 1).rev() {
                let (x, fine) = (self.ops.lane(index, lane, false), self.ops.lane(good, lane, true));
                bad = self.ops.b.ins().select(fine, bad, x);
            }
            bad
        } else {
            index
        };
        let flags = MemFlagsData::trusted();
        let low = self.ops.b.ins().uextend(I64, bad);
        let number = self.ops.i64((i64::from(site) + 1) << 32);
        let report = self.ops.b.ins().bor(low, number);
        let before = self.ops.b.ins().load(I64, flags, self.status, 0);
        let first = self.ops.b.ins().icmp_imm_s(cranelift_codegen::ir::condcodes::IntCC::Equal, before, 0);
        let entry = self.ops.b.ins().select(first, report, before);
        self.ops.b.ins().store(flags, entry, self.status, 0);
        self.ops.b.ins().jump(join, &[]);
        self.ops.b.switch_to_block(join);
        self.ops.b.seal_block(join);
        let zero = self.ops.i32(index, 0);
        self.ops.pick(good, index, zero)
    }
}
