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
    let arrays = strides.len();
    let mut here = vec![0usize; arrays];
    rows(shape, strides, |row| {
        let last = row.index.len().wrapping_sub(1);
        here.copy_from_slice(row.at);
        let mut i = 0;
        while i < row.count {
            f(&here, row.index);
            i += 1;
            if last < row.index.len() {
                row.index[last] = i;
            }
            let mut k = 0;
            while k < arrays {
                here[k] += row.steps[k];
                k += 1;
            }
        }
    });
}

/// A line along the last dim of a box.
pub struct Row<'a> {
    /// Offsets of its first point.
    pub at: &'a [usize],
    /// What each offset grows by from point to point.
    pub steps: &'a [usize],
    pub count: usize,
    /// The index of its first point.
    pub index: &'a mut [usize],
}

/// Calls `f` for every line of the box along its last dim, in row-major order. Loops count by hand: debug builds, in which
/// the interpreter mostly runs, do not inline iterators.
pub fn rows(shape: &[usize], strides: &[Vec<usize>], mut f: impl FnMut(Row<'_>)) {
    let mut index = vec![0usize; shape.len()];
    let mut at = vec![0usize; strides.len()];
    let Some((&count, outer)) = shape.split_last() else {
        let steps = vec![0; strides.len()];
        return f(Row { at: &at, steps: &steps, count: 1, index: &mut index });
    };
    let steps: Vec<usize> = strides.iter().map(|s| s[outer.len()]).collect();
    let total: usize = outer.iter().product();
    for _ in 0..total {
        index[outer.len()] = 0;
        f(Row { at: &at, steps: &steps, count, index: &mut index });
        let mut d = outer.len();
        while d > 0 {
            d -= 1;
            index[d] += 1;
            let mut k = 0;
            if index[d] < outer[d] {
                while k < at.len() {
                    at[k] += strides[k][d];
                    k += 1;
                }
                break;
            }
            index[d] = 0;
            while k < at.len() {
                at[k] -= strides[k][d] * (outer[d] - 1);
                k += 1;
            }
        }
    }
}

/// The offsets that a walk over `loops` visits in an array over `dims`, in order.
pub fn offsets(graph: &Graph, dims: &[DimId], loops: &[DimId]) -> Vec<usize> {
    let mut out = Vec::with_capacity(graph.elements(loops));
    rows(&sizes(graph, loops), &[strides(graph, dims, loops)], |row| {
        let mut i = 0;
        while i < row.count {
            out.push(row.at[0] + i * row.steps[0]);
            i += 1;
        }
    });
    out
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
    rows(&sizes(graph, out), &strides, |row| {
        let mut i = 0;
        while i < row.count {
            let mut k = 0;
            while k < operands.len() {
                x[k] = operands[k].data[row.at[k] + i * row.steps[k]];
                k += 1;
            }
            result.push(f(&x));
            i += 1;
        }
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
