//! Operations along one dim: scans, sorting, places in queues, draws.

use super::reduce::{combine, identity};
use super::walk::{Operand, offsets, sizes, stride, strides, walk};
use crate::ir::{DimId, Graph, Value};
use crate::types::rng;
use crate::types::{DType, ReduceKind, ScanKind};
use std::cmp::Ordering;

/// Calls `f` with the base offsets of every line along `dim` in arrays over the given dims.
fn lines(g: &Graph, dim: DimId, loops: &[DimId], arrays: &[&[DimId]], mut f: impl FnMut(&[usize])) {
    let others: Vec<DimId> = loops.iter().copied().filter(|d| *d != dim).collect();
    let all: Vec<Vec<usize>> = arrays.iter().map(|a| strides(g, a, &others)).collect();
    walk(&sizes(g, &others), &all, |at, _| f(at));
}

fn order(n: usize, reverse: bool) -> Vec<usize> {
    if reverse { (0..n).rev().collect() } else { (0..n).collect() }
}

pub fn scan(
    g: &Graph,
    kind: ScanKind,
    dim: DimId,
    exclusive: bool,
    reverse: bool,
    x: Operand<'_>,
    out: &Value,
) -> Vec<f64> {
    let (sx, so) = (stride(g, x.dims, dim), stride(g, &out.dims, dim));
    let order = order(g.size(dim), reverse);
    let mut result = vec![0.0; g.elements(&out.dims)];
    lines(g, dim, &out.dims, &[x.dims, &out.dims], |at| {
        if kind == ScanKind::ArgMax {
            let mut best: Option<usize> = None;
            for i in &order {
                let before = best;
                let v = x.data[at[0] + i * sx];
                let better = best.is_none_or(|b| {
                    let m = x.data[at[0] + b * sx];
                    v > m || (v.is_nan() && !m.is_nan())
                });
                if better {
                    best = Some(*i);
                }
                let shown = if exclusive { before } else { best };
                result[at[1] + i * so] = shown.map_or(-1.0, |b| b as f64);
            }
            return;
        }
        let reduce = match kind {
            ScanKind::Sum => ReduceKind::Sum,
            ScanKind::Prod => ReduceKind::Prod,
            ScanKind::Max | ScanKind::ArgMax => ReduceKind::Max,
        };
        let mut acc = identity(reduce, out.dtype);
        for i in &order {
            let next = combine(reduce, out.dtype, acc, x.data[at[0] + i * sx]);
            result[at[1] + i * so] = if exclusive { acc } else { next };
            acc = next;
        }
    });
    result
}

pub fn linear_scan(g: &Graph, dim: DimId, reverse: bool, gate: Operand<'_>, x: Operand<'_>, out: &Value) -> Vec<f64> {
    let (sg, sx, so) = (stride(g, gate.dims, dim), stride(g, x.dims, dim), stride(g, &out.dims, dim));
    let order = order(g.size(dim), reverse);
    let mut result = vec![0.0; g.elements(&out.dims)];
    lines(g, dim, &out.dims, &[gate.dims, x.dims, &out.dims], |at| {
        let mut h = 0.0;
        for i in &order {
            h = gate.data[at[0] + i * sg] * h + x.data[at[1] + i * sx];
            result[at[2] + i * so] = h;
        }
    });
    result
}

/// Numbers by size, NaN after all of them.
fn ascending(a: f64, b: f64) -> Ordering {
    a.partial_cmp(&b).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()))
}

pub fn arg_sort(g: &Graph, dim: DimId, x: Operand<'_>, out: &Value) -> Vec<f64> {
    let (sx, so) = (stride(g, x.dims, dim), stride(g, &out.dims, dim));
    let mut result = vec![0.0; g.elements(&out.dims)];
    lines(g, dim, &out.dims, &[x.dims, &out.dims], |at| {
        let mut index = order(g.size(dim), false);
        index.sort_by(|i, j| ascending(x.data[at[0] + i * sx], x.data[at[0] + j * sx]));
        for (place, i) in index.iter().enumerate() {
            result[at[1] + place * so] = *i as f64;
        }
    });
    result
}

pub fn top_k(g: &Graph, dim: DimId, k: DimId, x: Operand<'_>, out: &Value) -> Vec<f64> {
    let (sx, so) = (stride(g, x.dims, dim), stride(g, &out.dims, k));
    let mut result = vec![0.0; g.elements(&out.dims)];
    lines(g, k, &out.dims, &[x.dims, &out.dims], |at| {
        for (place, i) in largest_first(g.size(dim), |i| x.data[at[0] + i * sx]).iter().take(g.size(k)).enumerate() {
            result[at[1] + place * so] = *i as f64;
        }
    });
    result
}

/// Indices by value, largest first, ties by lowest index.
fn largest_first(n: usize, value: impl Fn(usize) -> f64) -> Vec<usize> {
    let mut index = order(n, false);
    index.sort_by(|i, j| ascending(value(*j), value(*i)));
    index
}

pub fn pack_place(g: &Graph, packed: &[DimId], limit: usize, index: Operand<'_>, out: &Value) -> Vec<f64> {
    let groups: Vec<DimId> = out.dims.iter().copied().filter(|d| !packed.contains(d)).collect();
    let (inner_x, inner_o) = (offsets(g, index.dims, packed), offsets(g, &out.dims, packed));
    let mut result = vec![0.0; g.elements(&out.dims)];
    walk(&sizes(g, &groups), &[strides(g, index.dims, &groups), strides(g, &out.dims, &groups)], |at, _| {
        let mut queues = std::collections::BTreeMap::new();
        for (i, o) in inner_x.iter().zip(&inner_o) {
            let expert = index.data[at[0] + i] as i64;
            let queue = queues.entry(expert).or_insert(0usize);
            // A negative index belongs to no queue.
            let full = expert < 0 || *queue >= limit;
            result[at[1] + o] = if full { -1.0 } else { *queue as f64 };
            *queue += 1;
        }
    });
    result
}

#[expect(clippy::too_many_arguments, reason = "the fields of the operation")]
pub fn draw(
    g: &Graph,
    dim: DimId,
    k: usize,
    p: f64,
    key: u64,
    logical: &[DimId],
    logits: Operand<'_>,
    out: &Value,
) -> Vec<f64> {
    let n = g.size(dim);
    let s = stride(g, logits.dims, dim);
    let mut result = vec![0.0; g.elements(&out.dims)];
    let own = strides(g, &out.dims, &out.dims);
    let all = [strides(g, logits.dims, &out.dims), own, strides(g, logical, &out.dims)];
    walk(&sizes(g, &out.dims), &all, |at, _| {
        let logit = |i: usize| logits.data[at[0] + i * s];
        let sorted = largest_first(n, logit);
        let top = logit(sorted[0]);
        let weight = |i: usize| if logit(i) == top { 1.0 } else { (logit(i) - top).exp() };
        let first = if k == 0 { n } else { k.min(n) };
        let total: f64 = sorted[..first].iter().map(|i| weight(*i)).sum();
        let mut kept = vec![false; n];
        let mut mass = 0.0;
        for i in &sorted[..first] {
            if mass > 0.0 && mass >= p * total {
                break;
            }
            mass += weight(*i);
            kept[*i] = true;
        }
        // In order of classes, so that without limits no sorting is needed.
        let goal = f64::from(rng::unit(key, at[2] as u64)) * mass;
        let mut sum = 0.0;
        let mut chosen = sorted[0];
        for i in (0..n).filter(|i| kept[*i]) {
            sum += weight(i);
            if weight(i) > 0.0 {
                chosen = i;
            }
            if sum > goal {
                break;
            }
        }
        result[at[1]] = chosen as f64;
    });
    debug_assert!(out.dtype == DType::I32);
    result
}
