//! Operations that move elements without computing: reshape, window, fold, gather, concat, stack, write.

use super::OutOfRange;
use super::walk::{Operand, offsets, sizes, stride, strides, walk};
use crate::ir::{DimId, GatherMode, Graph, Value, WindowAxis};

pub fn reshape(g: &Graph, groups: &[(Vec<DimId>, Vec<DimId>)], x: Operand<'_>, out: &Value) -> Vec<f64> {
    // Both sides walk one common order: all groups (major first), then the dims that stay.
    let mut from: Vec<DimId> = groups.iter().flat_map(|(f, _)| f.iter().copied()).collect();
    let mut to: Vec<DimId> = groups.iter().flat_map(|(_, t)| t.iter().copied()).collect();
    let rest: Vec<DimId> = x.dims.iter().copied().filter(|d| !from.contains(d)).collect();
    from.extend(&rest);
    to.extend(&rest);
    let mut result = vec![0.0; g.elements(&out.dims)];
    for (i, o) in offsets(g, x.dims, &from).into_iter().zip(offsets(g, &out.dims, &to)) {
        result[o] = x.data[i];
    }
    result
}

/// How an index of the loop dims addresses an array through window axes.
struct Address<'a> {
    axes: &'a [WindowAxis],
    start: Vec<i64>,
    size: Vec<i64>,
    step: Vec<usize>,
    /// Per axis: (position among the loop dims, coefficient).
    terms: Vec<Vec<(usize, i64)>>,
}

impl<'a> Address<'a> {
    fn new(g: &Graph, axes: &'a [WindowAxis], dynamic: &[i64], array: &[DimId], loops: &[DimId]) -> Address<'a> {
        let mut dynamic = dynamic.iter();
        let mut start = Vec::new();
        for axis in axes {
            let mut offset = axis.offset;
            if axis.dynamic {
                offset += dynamic.next().expect("one operand a dynamic axis");
                let reach = |f: fn(i64, i64) -> i64| -> i64 {
                    axis.terms.iter().map(|(d, c)| f(0, c * (g.size(*d) as i64 - 1))).sum()
                };
                let (below, above) = (reach(i64::min), reach(i64::max));
                let last = g.size(axis.input) as i64 - 1;
                offset = offset.min(last - above).max(-below);
            }
            start.push(offset);
        }
        Address {
            axes,
            start,
            size: axes.iter().map(|a| g.size(a.input) as i64).collect(),
            step: axes.iter().map(|a| stride(g, array, a.input)).collect(),
            terms: axes
                .iter()
                .map(|a| {
                    let place = |d: &DimId| loops.iter().position(|l| l == d).expect("terms are loop dims");
                    a.terms.iter().map(|(d, c)| (place(d), *c)).collect()
                })
                .collect(),
        }
    }

    /// The offset that the axes add, unless one is outside.
    fn at(&self, index: &[usize]) -> Option<usize> {
        let mut offset = 0;
        for k in 0..self.axes.len() {
            let mut i = self.start[k];
            for (place, c) in &self.terms[k] {
                i += c * index[*place] as i64;
            }
            if i < 0 || i >= self.size[k] {
                return None;
            }
            offset += i as usize * self.step[k];
        }
        Some(offset)
    }
}

/// Strides of an array for loop dims, where the dims that window axes address do not count.
fn plain_strides(g: &Graph, axes: &[WindowAxis], dims: &[DimId], loops: &[DimId]) -> Vec<usize> {
    let windowed = |d: &DimId| axes.iter().any(|a| a.input == *d);
    loops.iter().map(|d| if windowed(d) { 0 } else { stride(g, dims, *d) }).collect()
}

pub fn window(g: &Graph, axes: &[WindowAxis], fill: f64, dynamic: &[i64], x: Operand<'_>, out: &Value) -> Vec<f64> {
    let address = Address::new(g, axes, dynamic, x.dims, &out.dims);
    let mut result = Vec::with_capacity(g.elements(&out.dims));
    walk(&sizes(g, &out.dims), &[plain_strides(g, axes, x.dims, &out.dims)], |at, index| {
        result.push(address.at(index).map_or(fill, |o| x.data[at[0] + o]));
    });
    result
}

pub fn fold(g: &Graph, axes: &[WindowAxis], x: Operand<'_>, out: &Value) -> Vec<f64> {
    let address = Address::new(g, axes, &[], &out.dims, x.dims);
    let mut result = vec![0.0; g.elements(&out.dims)];
    let own = strides(g, x.dims, x.dims);
    walk(&sizes(g, x.dims), &[own, plain_strides(g, axes, &out.dims, x.dims)], |at, index| {
        if let Some(o) = address.at(index) {
            result[at[1] + o] += x.data[at[0]];
        }
    });
    result
}

/// `operands`: x, then one index per gathered dim.
pub fn gather(
    g: &Graph,
    dims: &[DimId],
    mode: GatherMode,
    operands: &[Operand<'_>],
    out: &Value,
) -> Result<Vec<f64>, OutOfRange> {
    let x = operands[0];
    let mut all: Vec<Vec<usize>> = operands.iter().map(|o| strides(g, o.dims, &out.dims)).collect();
    all[0] = out.dims.iter().map(|d| if dims.contains(d) { 0 } else { stride(g, x.dims, *d) }).collect();
    let steps: Vec<usize> = dims.iter().map(|d| stride(g, x.dims, *d)).collect();
    let mut result = Vec::with_capacity(g.elements(&out.dims));
    let mut error = None;
    walk(&sizes(g, &out.dims), &all, |at, _| {
        let mut place = at[0];
        for (k, dim) in dims.iter().enumerate() {
            let i = operands[k + 1].data[at[k + 1]] as i64;
            if i < 0 && mode == GatherMode::Zero {
                result.push(0.0);
                return;
            }
            if i < 0 || i as usize >= g.size(*dim) {
                error.get_or_insert_with(|| OutOfRange::of(g, *dim, i));
                return;
            }
            place += i as usize * steps[k];
        }
        result.push(x.data[place]);
    });
    match error {
        Some(e) => Err(e),
        None => Ok(result),
    }
}

pub fn concat(g: &Graph, parts: &[DimId], to: DimId, operands: &[Operand<'_>], out: &Value) -> Vec<f64> {
    let step = stride(g, &out.dims, to);
    let mut result = vec![0.0; g.elements(&out.dims)];
    let mut start = 0;
    for (part, x) in parts.iter().zip(operands) {
        let loops: Vec<DimId> = out.dims.iter().map(|d| if *d == to { *part } else { *d }).collect();
        let own = strides(g, &out.dims, &out.dims);
        walk(&sizes(g, &loops), &[strides(g, x.dims, &loops), own], |at, _| {
            result[at[1] + start * step] = x.data[at[0]];
        });
        start += g.size(*part);
    }
    result
}

pub fn stack(g: &Graph, dim: DimId, operands: &[Operand<'_>], out: &Value) -> Vec<f64> {
    let mut result = vec![0.0; g.elements(&out.dims)];
    for (k, x) in operands.iter().enumerate() {
        place_turn(g, dim, k, x.dims, x.data, &out.dims, &mut result);
    }
    result
}

/// Writes an array as element `turn` along `dim` of the result; dims that it lacks are filled.
pub fn place_turn(
    g: &Graph,
    dim: DimId,
    turn: usize,
    dims: &[DimId],
    data: &[f64],
    result_dims: &[DimId],
    result: &mut [f64],
) {
    let loops: Vec<DimId> = result_dims.iter().copied().filter(|d| *d != dim).collect();
    let start = turn * stride(g, result_dims, dim);
    walk(&sizes(g, &loops), &[strides(g, dims, &loops), strides(g, result_dims, &loops)], |at, _| {
        result[start + at[1]] = data[at[0]];
    });
}

/// `operands`: cache, x, start.
pub fn write_at(
    g: &Graph,
    dim: DimId,
    part: DimId,
    operands: &[Operand<'_>],
    out: &Value,
) -> Result<Vec<f64>, OutOfRange> {
    let [cache, x, start] = operands else { unreachable!("the verifier counts operands") };
    let start = start.data[0] as i64;
    let last = start + g.size(part) as i64 - 1;
    if start < 0 || last >= g.size(dim) as i64 {
        return Err(OutOfRange::of(g, dim, if start < 0 { start } else { last }));
    }
    let mut result: Vec<f64> = offsets(g, cache.dims, &out.dims).into_iter().map(|i| cache.data[i]).collect();
    let step = stride(g, &out.dims, dim);
    let place: Vec<usize> = x.dims.iter().map(|d| if *d == part { step } else { stride(g, &out.dims, *d) }).collect();
    walk(&sizes(g, x.dims), &[strides(g, x.dims, x.dims), place], |at, _| {
        result[at[1] + start as usize * step] = x.data[at[0]];
    });
    Ok(result)
}
