//! Rewrites a pruned graph before lowering: what has no kernel of its own is expressed by what has.
//!
//! - a loop's captures of constants and iotas become constants of its body;
//! - products that are no matrix products (a scalar on both sides) become multiplications and sums;
//! - a large reduction to few elements becomes two, so that the first has rows to spread over threads; so does a sum of many
//!   rows that is a parameter's gradient, so that each thread goes through memory that lies together.

use super::order::slot_orders;
use crate::ir::*;
use crate::types::{DType, MapOp, ReduceKind};
use std::collections::{HashMap, HashSet};

/// A reduction with fewer rows than this does not keep threads busy ..
const FEW_ROWS: usize = 32;
/// .. which matters from this number of elements on.
const MUCH_WORK: usize = 1 << 14;
/// A gradient of a parameter that sums over this many elements or more comes by such parts ..
const LONG_SUM: usize = 512;
/// .. which are at least so many, and so long.
const PARTS: usize = 8;
const LEAST_PART: usize = 64;

pub(super) fn prepare(graph: Graph) -> Graph {
    let values = graph.values.len();
    let mut pass = Prepare {
        become_: (0..values as u32).map(ValueId).collect(),
        slot_orders: slot_orders(&graph),
        params: graph.params.iter().map(|p| sorted(&p.dims)).collect(),
        graph,
    };
    pass.block(ENTRY, Vec::new());
    for i in 0..pass.graph.outputs.len() {
        pass.graph.outputs[i].value = pass.now(pass.graph.outputs[i].value);
    }
    pass.graph
}

struct Prepare {
    graph: Graph,
    become_: Vec<ValueId>,
    /// Orders in which gradients and new parameters are stored.
    slot_orders: HashMap<ValueId, Vec<DimId>>,
    /// Dims of parameters, in order of number.
    params: HashSet<Vec<DimId>>,
}

fn sorted(dims: &[DimId]) -> Vec<DimId> {
    let mut dims = dims.to_vec();
    dims.sort_unstable();
    dims
}

impl Prepare {
    fn now(&self, v: ValueId) -> ValueId {
        self.become_[v.index()]
    }

    fn new_value(&mut self, dtype: DType, dims: Vec<DimId>, block: BlockId, def: Def, name: Option<String>) -> ValueId {
        let id = ValueId(self.graph.values.len() as u32);
        self.graph.values.push(Value { dtype, dims, block, def, name });
        self.become_.push(id);
        id
    }

    /// A new operation like `model` but for operator, operands and result.
    fn new_op(&mut self, model: OpId, op: Op, args: Vec<ValueId>, dtype: DType, dims: Vec<DimId>) -> (OpId, ValueId) {
        let id = OpId(self.graph.ops.len() as u32);
        let Operation { block, span, scope, phase, again, .. } = *self.graph.op(model);
        let result = self.new_value(dtype, dims, block, Def::Op(id, 0), None);
        self.graph.ops.push(Operation { op, args, results: vec![result], block, span, scope, phase, again });
        (id, result)
    }

    /// Rewrites a block; `constants` are (parameter, defining operation outside) that become its own.
    fn block(&mut self, block: BlockId, constants: Vec<(ValueId, OpId)>) {
        let old = std::mem::take(&mut self.graph.blocks[block.index()].ops);
        let mut done: Vec<OpId> = Vec::with_capacity(old.len());
        for (param, outer) in constants {
            let Value { dtype, dims, .. } = self.graph.value(param).clone();
            let op = self.graph.op(outer).op.clone();
            let (id, result) = self.new_op(outer, op, vec![], dtype, dims);
            self.graph.ops[id.index()].block = block;
            self.graph.values[result.index()].block = block;
            self.become_[param.index()] = result;
            done.push(id);
        }
        for id in old {
            let args: Vec<ValueId> = self.graph.op(id).args.iter().map(|a| self.now(*a)).collect();
            self.graph.ops[id.index()].args = args.clone();
            let op = self.graph.op(id).op.clone();
            if matches!(op, Op::StopGradient) {
                let result = self.graph.op(id).results[0];
                self.become_[result.index()] = args[0];
                continue;
            }
            if let Op::Loop { body, carries, .. } = op {
                let inner = self.adopt_constants(id, body, carries as usize);
                self.block(body, inner);
                done.push(id);
                continue;
            }
            match op {
                Op::Dot { ref contract } if self.is_no_matrix_product(&args, contract) => {
                    self.multiply_and_sum(id, contract.clone(), &mut done);
                }
                Op::Reduce { kind, ref dims } => self.split_reduction(id, kind, dims.clone(), &mut done),
                _ => done.push(id),
            }
        }
        let results: Vec<ValueId> = self.graph.blocks[block.index()].results.iter().map(|v| self.now(*v)).collect();
        self.graph.blocks[block.index()].results = results;
        self.graph.blocks[block.index()].ops = done;
    }

    /// Takes captures that are constants out of a loop's operands; returns what its body has to define instead.
    fn adopt_constants(&mut self, id: OpId, body: BlockId, carries: usize) -> Vec<(ValueId, OpId)> {
        let args = self.graph.op(id).args.clone();
        let params = self.graph.block(body).params.clone();
        let (mut kept_args, mut kept_params) = (Vec::new(), vec![params[0]]);
        let mut constants = Vec::new();
        for (i, (arg, param)) in args.iter().zip(&params[1..]).enumerate() {
            match self.graph.value(*arg).def {
                Def::Op(def, _)
                    if i >= carries
                        && matches!(self.graph.op(def).op, Op::Constant(Constant::Splat(_)) | Op::Iota(_)) =>
                {
                    constants.push((*param, def));
                }
                _ => {
                    kept_args.push(*arg);
                    kept_params.push(*param);
                }
            }
        }
        self.graph.ops[id.index()].args = kept_args;
        self.graph.blocks[body.index()].params = kept_params;
        constants
    }

    /// One side has no dims of its own: a matrix times a vector, an inner product, a scaling.
    fn is_no_matrix_product(&self, args: &[ValueId], contract: &[DimId]) -> bool {
        let [a, b] = [args[0], args[1]].map(|v| &self.graph.value(v).dims);
        let own = |x: &[DimId], y: &[DimId]| -> usize {
            let dims: Vec<DimId> = x.iter().copied().filter(|d| !y.contains(d)).collect();
            self.graph.elements(&dims)
        };
        self.graph.elements(contract) == 1 || (own(a, b) == 1 && own(b, a) == 1)
    }

    fn multiply_and_sum(&mut self, id: OpId, contract: Vec<DimId>, done: &mut Vec<OpId>) {
        let Operation { args, results, .. } = self.graph.op(id).clone();
        let Value { dtype, dims, name, .. } = self.graph.value(results[0]).clone();
        let widened: Vec<ValueId> = args
            .iter()
            .map(|a| {
                let Value { dtype: from, dims, .. } = self.graph.value(*a).clone();
                if from == dtype {
                    return *a;
                }
                let (cast, value) = self.new_op(id, Op::Map(MapOp::Cast(dtype)), vec![*a], dtype, dims);
                done.push(cast);
                value
            })
            .collect();
        let mut all = self.graph.value(args[0]).dims.clone();
        all.extend(self.graph.value(args[1]).dims.iter().filter(|d| !all.contains(d)).copied().collect::<Vec<_>>());
        let (product_op, product) = self.new_op(id, Op::Map(MapOp::Mul), widened, dtype, all);
        done.push(product_op);
        let mut last = product;
        if !contract.is_empty() {
            let op = Op::Reduce { kind: ReduceKind::Sum, dims: contract.clone() };
            let (sum, value) = self.new_op(id, op, vec![product], dtype, dims);
            self.split_reduction(sum, ReduceKind::Sum, contract, done);
            last = self.now(value);
        }
        self.graph.values[last.index()].name = name;
        self.become_[results[0].index()] = last;
    }

    /// The dims of a value from major to minor as they are likely to lie in memory.
    fn stored_order(&self, v: ValueId) -> Vec<DimId> {
        let dims = &self.graph.value(v).dims;
        let operands = match self.graph.def_op(v) {
            Some(Operation { op: Op::Map(_), args, .. }) => args.as_slice(),
            _ => &[],
        };
        let known = std::iter::once(&v).chain(operands).find_map(|x| self.slot_orders.get(x));
        known.filter(|order| order.len() == dims.len()).unwrap_or(dims).clone()
    }

    /// Whether an operation sums so many elements each to the gradient of a parameter.
    fn is_long_sum(&self, id: OpId, kind: ReduceKind, each: usize) -> bool {
        let op = self.graph.op(id);
        let gradient = || self.params.contains(&sorted(&self.graph.value(op.results[0]).dims));
        kind == ReduceKind::Sum && op.phase == Phase::Backward && !op.again && each >= LONG_SUM && gradient()
    }

    fn split_reduction(&mut self, id: OpId, kind: ReduceKind, dims: Vec<DimId>, done: &mut Vec<OpId>) {
        let Operation { args, results, .. } = self.graph.op(id).clone();
        let source = self.graph.value(args[0]).clone();
        let rows = self.graph.elements(&self.graph.value(results[0]).dims);
        let total = self.graph.elements(&source.dims);
        let arg = matches!(kind, ReduceKind::ArgMax | ReduceKind::ArgMin);
        let few = rows < FEW_ROWS;
        if total < MUCH_WORK || arg || dims.len() < 2 || !(few || self.is_long_sum(id, kind, total / rows)) {
            done.push(id);
            return;
        }
        // Major dims stay for the second reduction, until they give enough rows, or parts.
        let order: Vec<DimId> = self.stored_order(args[0]).into_iter().filter(|d| dims.contains(d)).collect();
        let enough = |outer: &[DimId]| {
            let parts = self.graph.elements(outer);
            if few { rows * parts >= FEW_ROWS } else { parts >= PARTS }
        };
        let mut outer = 1;
        while outer < order.len() - 1 && !enough(&order[..outer]) {
            outer += 1;
        }
        if !few && (!enough(&order[..outer]) || self.graph.elements(&order[outer..]) < LEAST_PART) {
            done.push(id);
            return;
        }
        let inner = order[outer..].to_vec();
        let rest: Vec<DimId> = source.dims.iter().copied().filter(|d| !inner.contains(d)).collect();
        let dtype = self.graph.value(results[0]).dtype;
        // Partial sums of 16-bit floats stay wide.
        let wide = if dtype.bytes() == 2 { DType::F32 } else { dtype };
        let mut x = args[0];
        if wide != dtype {
            let (cast, value) = self.new_op(id, Op::Map(MapOp::Cast(wide)), vec![x], wide, source.dims.clone());
            done.push(cast);
            x = value;
        }
        let (first, partial) = self.new_op(id, Op::Reduce { kind, dims: inner }, vec![x], wide, rest);
        done.push(first);
        let out = self.graph.value(results[0]).dims.clone();
        let second = Op::Reduce { kind, dims: order[..outer].to_vec() };
        let (second, mut value) = self.new_op(id, second, vec![partial], wide, out.clone());
        done.push(second);
        if wide != dtype {
            let (cast, narrow) = self.new_op(id, Op::Map(MapOp::Cast(dtype)), vec![value], dtype, out);
            done.push(cast);
            value = narrow;
        }
        self.graph.values[value.index()].name = self.graph.value(results[0]).name.clone();
        self.become_[results[0].index()] = value;
    }
}
