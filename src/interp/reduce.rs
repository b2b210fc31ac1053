//! Reductions, contractions and scatters.

use super::OutOfRange;
use super::walk::{Operand, offsets, sizes, stride, strides, walk};
use crate::ir::{DimId, Graph, Value};
use crate::types::{DType, ReduceKind};

/// What a reduction of nothing gives.
pub fn identity(kind: ReduceKind, dtype: DType) -> f64 {
    match kind {
        ReduceKind::Sum | ReduceKind::Any => 0.0,
        ReduceKind::Prod | ReduceKind::All => 1.0,
        ReduceKind::Max if dtype == DType::I32 => f64::from(i32::MIN),
        ReduceKind::Min if dtype == DType::I32 => f64::from(i32::MAX),
        ReduceKind::Max => f64::NEG_INFINITY,
        ReduceKind::Min => f64::INFINITY,
        ReduceKind::ArgMax | ReduceKind::ArgMin => 0.0,
    }
}

pub fn combine(kind: ReduceKind, dtype: DType, a: f64, x: f64) -> f64 {
    let larger = |a: f64, x: f64| if x > a || x.is_nan() { x } else { a };
    let smaller = |a: f64, x: f64| if x < a || x.is_nan() { x } else { a };
    match kind {
        ReduceKind::Sum if dtype == DType::I32 => f64::from((a as i32).wrapping_add(x as i32)),
        ReduceKind::Prod if dtype == DType::I32 => f64::from((a as i32).wrapping_mul(x as i32)),
        ReduceKind::Sum => a + x,
        ReduceKind::Prod => a * x,
        ReduceKind::Max | ReduceKind::ArgMax => larger(a, x),
        ReduceKind::Min | ReduceKind::ArgMin => smaller(a, x),
        ReduceKind::Any => f64::from(u8::from(a != 0.0 || x != 0.0)),
        ReduceKind::All => f64::from(u8::from(a != 0.0 && x != 0.0)),
    }
}

pub fn reduce(g: &Graph, kind: ReduceKind, dims: &[DimId], x: Operand<'_>, out: &Value) -> Vec<f64> {
    let inner = offsets(g, x.dims, dims);
    let mut result = Vec::with_capacity(g.elements(&out.dims));
    walk(&sizes(g, &out.dims), &[strides(g, x.dims, &out.dims)], |at, _| {
        if matches!(kind, ReduceKind::ArgMax | ReduceKind::ArgMin) {
            let mut best = 0;
            for j in 1..inner.len() {
                let (b, v) = (x.data[at[0] + inner[best]], x.data[at[0] + inner[j]]);
                let better = if kind == ReduceKind::ArgMax { v > b } else { v < b };
                if better || (v.is_nan() && !b.is_nan()) {
                    best = j;
                }
            }
            result.push(best as f64);
        } else {
            let mut acc = identity(kind, out.dtype);
            let mut j = 0;
            while j < inner.len() {
                acc = combine(kind, out.dtype, acc, x.data[at[0] + inner[j]]);
                j += 1;
            }
            result.push(acc);
        }
    });
    result
}

pub fn dot(g: &Graph, contract: &[DimId], a: Operand<'_>, b: Operand<'_>, out: &Value) -> Vec<f64> {
    let (ka, kb) = (offsets(g, a.dims, contract), offsets(g, b.dims, contract));
    let (sa, sb) = (strides(g, a.dims, &out.dims), strides(g, b.dims, &out.dims));
    let mut result = Vec::with_capacity(g.elements(&out.dims));
    walk(&sizes(g, &out.dims), &[sa, sb], |at, _| {
        if out.dtype == DType::I32 {
            let mut acc = 0i32;
            for (i, j) in ka.iter().zip(&kb) {
                acc = acc.wrapping_add((a.data[at[0] + i] as i32).wrapping_mul(b.data[at[1] + j] as i32));
            }
            result.push(f64::from(acc));
        } else {
            // A plain counting loop: this is the hot place of the interpreter and debug builds do not inline iterators.
            let mut acc = 0.0;
            let (mut k, n, i, j) = (0, ka.len(), at[0], at[1]);
            while k < n {
                acc += a.data[i + ka[k]] * b.data[j + kb[k]];
                k += 1;
            }
            result.push(acc);
        }
    });
    result
}

/// `operands`: x, then one index per target.
pub fn scatter(
    g: &Graph,
    kind: ReduceKind,
    removed: &[DimId],
    targets: &[DimId],
    operands: &[Operand<'_>],
    out: &Value,
) -> Result<Vec<f64>, OutOfRange> {
    let mut loops: Vec<DimId> = Vec::new();
    for d in operands.iter().flat_map(|o| o.dims) {
        if !loops.contains(d) {
            loops.push(*d);
        }
    }
    let mut all: Vec<Vec<usize>> = operands.iter().map(|o| strides(g, o.dims, &loops)).collect();
    // A removed dim may come back as a target: the loop over it does not move the place.
    all.push(loops.iter().map(|d| if removed.contains(d) { 0 } else { stride(g, &out.dims, *d) }).collect());
    let steps: Vec<usize> = targets.iter().map(|d| stride(g, &out.dims, *d)).collect();
    let mut result = vec![identity(kind, out.dtype); g.elements(&out.dims)];
    let mut error = None;
    walk(&sizes(g, &loops), &all, |at, _| {
        let mut place = at[operands.len()];
        for (t, target) in targets.iter().enumerate() {
            let i = operands[t + 1].data[at[t + 1]] as i64;
            if i < 0 {
                return;
            }
            if i as usize >= g.size(*target) {
                error.get_or_insert_with(|| OutOfRange::of(g, *target, i));
                return;
            }
            place += i as usize * steps[t];
        }
        result[place] = combine(kind, out.dtype, result[place], operands[0].data[at[0]]);
    });
    match error {
        Some(e) => Err(e),
        None => Ok(result),
    }
}
