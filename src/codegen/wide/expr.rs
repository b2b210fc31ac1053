//! Expressions in the vector IR, and the addresses of what they load and stores write.

use super::ir::*;
use super::nest::Build;
use crate::codegen::plan::small_power;
use crate::kernel::{ArgId, ExprId, Index, LoopId, Node, Store};
use crate::types::DType;

impl Build<'_> {
    pub fn compute(&mut self, e: ExprId) -> Reg {
        let kernel = self.kernel;
        let expr = kernel.expr(e);
        match &expr.node {
            Node::Const(x) => self.constant(expr.dtype, *x),
            Node::Index(index) => self.index_value(index),
            Node::Load { buffer, at, when, fill } => self.load(*buffer, at, *when, *fill),
            Node::Map(_, args) if small_power(kernel, e).is_some() => {
                let n = small_power(kernel, e).unwrap_or_default();
                let x = self.eval(args[0]);
                self.f.small_power(x, n)
            }
            Node::Map(op, args) => {
                let dtype = args.last().map_or(expr.dtype, |a| kernel.expr(*a).dtype);
                let operands: Vec<Reg> = args.iter().map(|a| self.eval(*a)).collect();
                self.f.uniform = !self.varies(e);
                let value = self.map(*op, dtype, &operands);
                self.f.uniform = false;
                value
            }
            Node::Register(r) => {
                let variables = &self.registers[r.index()];
                variables[self.group.min(variables.len() - 1)]
            }
            Node::Random { dist, key, counter, origin } => {
                let stride = self.lane_stride(counter);
                let base = self.sum_of(&counter.loops, &counter.exprs);
                let constant = counter.base + (self.group * self.f.lanes) as i64 * stride;
                let base = match base {
                    Some(base) if constant == 0 => base,
                    Some(base) => self.f.op(Op::AddConst(constant), &[base]),
                    None => self.f.op(Op::WordConst(constant), &[]),
                };
                let base = match origin {
                    Some(n) => {
                        let origin = self.f.op(Op::Scalar(*n), &[]);
                        self.f.op(Op::AddWord, &[base, origin])
                    }
                    None => base,
                };
                let key = self.f.op(Op::Scalar(*key), &[]);
                self.f.random(*dist, key, base, stride)
            }
            Node::Check { index, size, site } => {
                let x = self.eval(*index);
                // No array has more elements than an I32 counts.
                let (zero, size) = (self.f.i32(0), self.f.i32(i32::try_from(*size).unwrap_or(i32::MAX)));
                let below = self.f.op(Op::CompareInt(Relation::Less), &[x, zero]);
                let above = self.f.op(Op::CompareInt(Relation::GreaterEqual), &[x, size]);
                let bad = self.f.op(Op::MaskOr, &[below, above]);
                let bad = self.f.both(Some(bad), self.active).unwrap_or(bad);
                self.f.effect(Op::Report(*site), &[bad, x]);
                self.f.select(bad, zero, x)
            }
        }
    }

    pub fn constant(&mut self, dtype: DType, x: f64) -> Reg {
        match dtype {
            DType::Bool => self.f.mask(if x != 0.0 { self.f.lanes } else { 0 }),
            DType::I32 => self.f.i32(x as i64 as i32),
            DType::F16 => self.f.f32(half::f16::from_f32(x as f32).to_f32()),
            DType::BF16 => self.f.f32(half::bf16::from_f32(x as f32).to_f32()),
            DType::F32 => self.f.f32(x as f32),
            DType::F64 => unreachable!("kernels with f64 are not built"),
        }
    }

    // ---- indices

    /// The sum of those terms that are the same in all lanes (the loop that fills them counts as in the first lane); none:
    /// there are none.
    pub fn sum_of(&mut self, loops: &[(LoopId, i64)], exprs: &[(ExprId, i64)]) -> Option<Reg> {
        let loops: Vec<(LoopId, i64)> =
            loops.iter().filter(|(l, _)| self.counters[l.index()].is_some()).copied().collect();
        let exprs: Vec<(ExprId, i64)> = exprs.iter().filter(|(e, _)| !self.varies(*e)).copied().collect();
        if loops.is_empty() && exprs.is_empty() {
            return None;
        }
        let key = (loops, exprs);
        if let Some((_, known)) = self.words.iter().rev().find(|(k, _)| *k == key) {
            return Some(*known);
        }
        let mut sum = None;
        if !key.0.is_empty() && !key.1.is_empty() {
            sum = self.sum_of(&key.0, &[]);
        } else {
            for (l, factor) in &key.0 {
                let counter = self.counters[l.index()].expect("filtered above");
                sum = Some(self.add_scaled(sum, counter, *factor));
            }
        }
        for (e, factor) in &key.1 {
            let value = self.eval(*e);
            let word = self.f.op(Op::FirstWord, &[value]);
            sum = Some(self.add_scaled(sum, word, *factor));
        }
        let sum = sum.expect("there is a term");
        self.words.push((key, sum));
        Some(sum)
    }

    fn add_scaled(&mut self, sum: Option<Reg>, x: Reg, factor: i64) -> Reg {
        let term = if factor == 1 { x } else { self.f.op(Op::MulConst(factor), &[x]) };
        match sum {
            Some(sum) => self.f.op(Op::AddWord, &[sum, term]),
            None => term,
        }
    }

    /// An index as I32.
    fn index_value(&mut self, index: &Index) -> Reg {
        let stride = self.lane_stride(index);
        let first = index.base + (self.group * self.f.lanes) as i64 * stride;
        let mut value = self.lane_steps(stride, first);
        if let Some(word) = self.sum_of(&index.loops, &index.exprs) {
            let start = self.f.op(Op::Splat, &[word]);
            value = if stride == 0 && first == 0 { start } else { self.f.op(Op::AddInt, &[start, value]) };
        }
        self.add_varying(Some(value), index).expect("a value was given")
    }

    /// start, start + stride, .. in the lanes.
    fn lane_steps(&mut self, stride: i64, start: i64) -> Reg {
        if stride == 0 {
            return self.f.i32(start as i32);
        }
        let lanes = (0..self.f.lanes as i64).map(|l| (start + l * stride) as u32).collect();
        self.f.constant(Constant::Lanes(lanes))
    }

    /// Adds those terms that differ by lanes.
    fn add_varying(&mut self, mut sum: Option<Reg>, index: &Index) -> Option<Reg> {
        for (e, factor) in &index.exprs {
            if !self.varies(*e) {
                continue;
            }
            let x = self.eval(*e);
            let term = if *factor == 1 {
                x
            } else {
                let factor = self.f.i32(*factor as i32);
                self.f.op(Op::MulInt, &[x, factor])
            };
            sum = Some(match sum {
                Some(sum) => self.f.op(Op::AddInt, &[sum, term]),
                None => term,
            });
        }
        sum
    }

    /// The address of the first lane, without terms that differ by lanes otherwise than by the loop.
    fn address(&mut self, buffer: ArgId, at: &Index) -> Address {
        let bytes = self.kernel.buffers[buffer.index()].dtype.bytes();
        let mut index = self.sum_of(&at.loops, &at.exprs);
        let first = at.base + (self.group * self.f.lanes) as i64 * self.lane_stride(at);
        let disp = match i32::try_from(first * bytes as i64) {
            Ok(disp) => disp,
            Err(_) => {
                index = Some(match index {
                    Some(index) => self.f.op(Op::AddConst(first), &[index]),
                    None => self.f.op(Op::WordConst(first), &[]),
                });
                0
            }
        };
        let base = self.pointers[buffer.index()];
        Address { base, index: index.unwrap_or(Reg::NONE), bytes: bytes as u8, disp }
    }

    /// Where lanes lie apart: how many elements each is after the address.
    fn lane_indices(&mut self, at: &Index) -> Option<Reg> {
        let stride = self.lane_stride(at);
        let differs = at.exprs.iter().any(|(e, _)| self.varies(*e));
        if stride == 1 && !differs {
            return None;
        }
        let steps = (stride != 0 || !differs).then(|| self.lane_steps(stride, 0));
        self.add_varying(steps, at)
    }

    // ---- loads and stores

    fn load(&mut self, buffer: ArgId, at: &Index, when: Option<ExprId>, fill: f64) -> Reg {
        let dtype = self.kernel.buffers[buffer.index()].dtype;
        let condition = when.map(|w| self.eval(w));
        let apart = at.exprs.iter().any(|(e, _)| self.varies(*e));
        let stride = self.lane_stride(at);
        let address = self.address(buffer, at);
        let value = if stride == 0 && !apart {
            self.f.read(Op::LoadSplat(dtype), &[], address, condition)
        } else {
            let mask = self.f.both(condition, self.active);
            match self.lane_indices(at) {
                None => self.f.read(Op::Load(dtype), &[], address, mask),
                Some(indices) => self.f.read(Op::Gather(dtype), &[indices], address, mask),
            }
        };
        match condition {
            Some(condition) if fill.to_bits() != 0 => {
                let other = self.constant(dtype, fill);
                self.pick(condition, value, other)
            }
            _ => value,
        }
    }

    /// Stores a value that has been evaluated.
    pub fn store(&mut self, store: &Store) {
        let dtype = self.kernel.buffers[store.buffer.index()].dtype;
        let value = self.eval(store.value);
        let condition = store.when.map(|w| self.eval(w));
        let address = self.address(store.buffer, &store.at);
        if self.lanes.is_none() {
            self.f.write(Op::StoreFirst(dtype), &[value], address, condition);
            return;
        }
        let mask = self.f.both(condition, self.active);
        match self.lane_indices(&store.at) {
            None => self.f.write(Op::Store(dtype), &[value], address, mask),
            Some(indices) => self.f.write(Op::Scatter(dtype), &[value, indices], address, mask),
        }
    }
}
