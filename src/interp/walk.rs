//! Loops over named dims: strides of an array as seen from a list of loop dims, and an odometer over them.

use super::Tensor;
use crate::ir::{DimId, Graph};

/// An array with its dims in storage order.
#[derive(Clone, Copy)]
pub struct Operand<'a> {
    pub dims: &'a [DimId],
    pub data: &'a [f64],
}

pub fn sizes(graph: &Graph, dims: &[DimId]) -> Vec<usize> {
    dims.iter().map(|d| graph.size(*d)).collect()
}

/// The distance in an array over `dims` (row-major) of neighbours along `dim`; 0 if it lacks the dim.
pub fn stride(graph: &Graph, dims: &[DimId], dim: DimId) -> usize {
    match dims.iter().position(|d| *d == dim) {
        Some(i) => graph.elements(&dims[i + 1..]),
        None => 0,
    }
}

/// The strides of an array over `dims` for each of the loop dims.
pub fn strides(graph: &Graph, dims: &[DimId], loops: &[DimId]) -> Vec<usize> {
    loops.iter().map(|d| stride(graph, dims, *d)).collect()
}

/// Calls `f` at every point of the box `shape` in row-major order, with the offsets of arrays of the given strides and
/// with the index.
pub fn walk(shape: &[usize], strides: &[Vec<usize>], mut f: impl FnMut(&[usize], &[usize])) {
    let rank = shape.len();
    let count: usize = shape.iter().product();
    let mut index = vec![0usize; rank];
    let mut at = vec![0usize; strides.len()];
    for _ in 0..count {
        f(&at, &index);
        let mut d = rank;
        while d > 0 {
            d -= 1;
            index[d] += 1;
            if index[d] < shape[d] {
                for (a, s) in at.iter_mut().zip(strides) {
                    *a += s[d];
                }
                break;
            }
            index[d] = 0;
            for (a, s) in at.iter_mut().zip(strides) {
                *a -= s[d] * (shape[d] - 1);
            }
        }
    }
}

/// The offsets that a walk over `loops` visits in an array over `dims`, in order.
pub fn offsets(graph: &Graph, dims: &[DimId], loops: &[DimId]) -> Vec<usize> {
    let mut out = Vec::with_capacity(graph.elements(loops));
    walk(&sizes(graph, loops), &[strides(graph, dims, loops)], |at, _| out.push(at[0]));
    out
}

/// For each element of an array stored over `stored`: its row-major index over `logical` (the same dims).
pub fn logical_index(graph: &Graph, logical: &[DimId], stored: &[DimId]) -> Vec<usize> {
    offsets(graph, logical, stored)
}

pub fn elementwise(
    graph: &Graph,
    out: &[DimId],
    operands: &[Operand<'_>],
    mut f: impl FnMut(&[f64]) -> f64,
) -> Vec<f64> {
    let strides: Vec<Vec<usize>> = operands.iter().map(|o| strides(graph, o.dims, out)).collect();
    let mut result = Vec::with_capacity(graph.elements(out));
    let mut x = vec![0.0; operands.len()];
    walk(&sizes(graph, out), &strides, |at, _| {
        for i in 0..x.len() {
            x[i] = operands[i].data[at[i]];
        }
        result.push(f(&x));
    });
    result
}

/// The same array with its axes in another order.
pub fn permute(graph: &Graph, tensor: &Tensor, from: &[DimId], to: &[DimId]) -> Tensor {
    if from == to {
        return tensor.clone();
    }
    let data = offsets(graph, from, to).into_iter().map(|i| tensor.data[i]).collect();
    Tensor { dtype: tensor.dtype, shape: sizes(graph, to), data }
}
