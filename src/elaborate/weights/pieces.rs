//! Index maps: which element of which parameter stands where in a value that is only rearranged.
//!
//! A value is tiled by parts. In a part an element's place along each axis of the value is `start` plus a sum over digits
//! (mixed radix), and each digit moves the place in the parameter by its stride. Rename, split, merge, slice, index and
//! concatenation keep this form; a digit that a split cuts unevenly is taken apart into one part an element.

use super::{Factor, Piece, Target};
use crate::ir::DimId;

/// A rearrangement of more parts than this is refused.
pub const MAX_PARTS: usize = 1 << 16;

/// An axis of a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Axis {
    pub dim: DimId,
    pub size: usize,
}

#[derive(Clone, PartialEq, Debug)]
pub struct Value {
    pub axes: Vec<Axis>,
    parts: Vec<Part>,
}

#[derive(Clone, PartialEq, Debug)]
struct Part {
    target: Target,
    offset: usize,
    /// In the order of the value's axes.
    places: Vec<Place>,
}

/// How a part lies along one axis of the value.
#[derive(Clone, PartialEq, Debug, Default)]
struct Place {
    start: usize,
    digits: Vec<Digit>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Digit {
    size: usize,
    /// Step along the value's axis.
    step: usize,
    /// Step in the parameter.
    stride: usize,
}

impl Value {
    /// A whole parameter or state, row-major over its dims.
    pub fn whole(target: Target, axes: Vec<Axis>) -> Value {
        let mut stride = 1;
        let mut places: Vec<Place> = Vec::new();
        for a in axes.iter().rev() {
            places.push(Place { start: 0, digits: vec![Digit { size: a.size, step: 1, stride }] });
            stride *= a.size;
        }
        places.reverse();
        Value { axes, parts: vec![Part { target, offset: 0, places }] }
    }

    pub fn axis(&self, dim: DimId) -> Option<usize> {
        self.axes.iter().position(|a| a.dim == dim)
    }

    /// Replaces each group of axes by others of the same number of elements, all at once. Every group's axes exist and no
    /// axis is in two groups. None: too many parts.
    pub fn reshape(self, items: &[(Vec<usize>, Vec<Axis>)]) -> Option<Value> {
        let kept: Vec<usize> = (0..self.axes.len()).filter(|k| !items.iter().any(|(f, _)| f.contains(k))).collect();
        let mut axes: Vec<Axis> = kept.iter().map(|k| self.axes[*k]).collect();
        axes.extend(items.iter().flat_map(|(_, to)| to));
        let mut parts = Vec::new();
        for part in &self.parts {
            let places = kept.iter().map(|k| part.places[*k].clone()).collect();
            let mut open = vec![Part { target: part.target, offset: part.offset, places }];
            for (from, to) in items {
                let merged = merge(from.iter().map(|k| (&part.places[*k], self.axes[*k].size)));
                let sizes: Vec<usize> = to.iter().map(|a| a.size).collect();
                let ways = split(merged, &sizes)?;
                if open.len() * ways.len() + parts.len() > MAX_PARTS {
                    return None;
                }
                open = (open.iter())
                    .flat_map(|p| {
                        ways.iter().map(|(delta, places)| {
                            let mut p = p.clone();
                            p.offset += delta;
                            p.places.extend(places.iter().cloned());
                            p
                        })
                    })
                    .collect();
            }
            parts.extend(open);
        }
        Some(Value { axes, parts })
    }

    /// The elements `lo .. lo + to.size` along an axis, which becomes `to`.
    pub fn slice(mut self, axis: usize, lo: usize, to: Axis) -> Option<Value> {
        let mut parts = Vec::new();
        for part in self.parts {
            for (delta, place) in restrict(part.places[axis].clone(), lo, lo + to.size)? {
                let mut p = part.clone();
                p.offset += delta;
                p.places[axis] = place;
                parts.push(p);
            }
            if parts.len() > MAX_PARTS {
                return None;
            }
        }
        self.axes[axis] = to;
        Some(Value { axes: self.axes, parts })
    }

    /// One element along an axis, which goes away.
    pub fn index(self, axis: usize, at: usize) -> Option<Value> {
        let one = Axis { dim: self.axes[axis].dim, size: 1 };
        let mut v = self.slice(axis, at, one)?;
        v.axes.remove(axis);
        for p in &mut v.parts {
            p.places.remove(axis);
        }
        Some(v)
    }

    /// Values one after the other along `to`: the k-th along its own axis `along[k]`. All other axes are the same.
    pub fn concat(values: Vec<(Value, usize)>, to: Axis) -> Option<Value> {
        let mut axes: Vec<Axis> = Vec::new();
        let mut parts: Vec<Part> = Vec::new();
        let mut start = 0;
        for (n, (v, along)) in values.into_iter().enumerate() {
            if n == 0 {
                axes = v.axes.clone();
                axes.remove(along);
                axes.push(to);
            }
            let order: Vec<usize> = axes[..axes.len() - 1].iter().map(|a| v.axis(a.dim)).collect::<Option<_>>()?;
            for p in v.parts {
                let mut places: Vec<Place> = order.iter().map(|k| p.places[*k].clone()).collect();
                let mut last = p.places[along].clone();
                last.start += start;
                places.push(last);
                parts.push(Part { places, ..p });
            }
            start += v.axes[along].size;
        }
        (parts.len() <= MAX_PARTS).then_some(Value { axes, parts })
    }

    /// Copies between the parameters and a row-major file whose stride along each of the value's axes is given.
    pub fn pieces(&self, strides: &[usize]) -> Vec<Piece> {
        let piece = |p: &Part| {
            let mut file_offset = 0;
            let mut factors: Vec<Factor> = Vec::new();
            for (place, stride) in p.places.iter().zip(strides) {
                file_offset += place.start * stride;
                factors.extend(place.digits.iter().map(|d| Factor {
                    size: d.size,
                    target_stride: d.stride,
                    file_stride: d.step * stride,
                }));
            }
            Piece { target: p.target, target_offset: p.offset, file_offset, factors: tidy(factors) }
        };
        self.parts.iter().map(piece).collect()
    }
}

/// Major in the file first, runs that continue each other as one.
fn tidy(mut factors: Vec<Factor>) -> Vec<Factor> {
    factors.retain(|f| f.size != 1);
    factors.sort_by_key(|f| std::cmp::Reverse(f.file_stride));
    let mut out: Vec<Factor> = Vec::new();
    for f in factors {
        match out.last_mut() {
            Some(o) if o.file_stride == f.size * f.file_stride && o.target_stride == f.size * f.target_stride => {
                *o = Factor { size: o.size * f.size, ..f };
            }
            _ => out.push(f),
        }
    }
    out
}

/// Axes side by side as one, major first.
fn merge<'p>(axes: impl Iterator<Item = (&'p Place, usize)>) -> Place {
    let mut out = Place::default();
    for (place, size) in axes {
        out.start = out.start * size + place.start;
        out.digits.iter_mut().for_each(|d| d.step *= size);
        out.digits.extend(&place.digits);
    }
    out
}

/// A place along an axis of `sizes` elements as places along axes of these sizes, with the offset in the parameter.
fn split(place: Place, sizes: &[usize]) -> Option<Vec<(usize, Vec<Place>)>> {
    let Some((minor, rest)) = sizes.split_last() else { return Some(vec![(0, vec![])]) };
    if rest.is_empty() {
        return Some(vec![(0, vec![place])]);
    }
    let mut pairs = Vec::new();
    split_pair(place, *minor, 0, &mut pairs)?;
    let mut out = Vec::new();
    for (delta, major, minor) in pairs {
        for (more, mut places) in split(major, rest)? {
            places.push(minor.clone());
            out.push((delta + more, places));
        }
        if out.len() > MAX_PARTS {
            return None;
        }
    }
    Some(out)
}

/// Divides places by `size`: quotient and remainder.
fn split_pair(place: Place, size: usize, delta: usize, out: &mut Vec<(usize, Place, Place)>) -> Option<()> {
    let mut major = Place { start: place.start / size, digits: vec![] };
    let mut minor = Place { start: place.start % size, digits: vec![] };
    for (k, d) in place.digits.iter().enumerate() {
        if d.size == 1 {
        } else if d.step % size == 0 {
            major.digits.push(Digit { step: d.step / size, ..*d });
        } else if (d.size - 1) * d.step < size {
            minor.digits.push(*d);
        } else if size.is_multiple_of(d.step) && d.size % (size / d.step) == 0 {
            let inner = size / d.step;
            major.digits.push(Digit { size: d.size / inner, step: 1, stride: d.stride * inner });
            minor.digits.push(Digit { size: inner, ..*d });
        } else {
            return explode(&place, k, size, delta, out);
        }
    }
    // A carry from the remainder into the quotient breaks the form.
    let reach: usize = minor.start + minor.digits.iter().map(|d| (d.size - 1) * d.step).sum::<usize>();
    if reach >= size {
        let widest = (0..place.digits.len())
            .filter(|k| place.digits[*k].size > 1 && !place.digits[*k].step.is_multiple_of(size))
            .max_by_key(|k| place.digits[*k].step)?;
        return explode(&place, widest, size, delta, out);
    }
    if out.len() >= MAX_PARTS {
        return None;
    }
    out.push((delta, major, minor));
    Some(())
}

fn explode(place: &Place, k: usize, size: usize, delta: usize, out: &mut Vec<(usize, Place, Place)>) -> Option<()> {
    let d = place.digits[k];
    for turn in 0..d.size {
        let mut one = place.clone();
        one.digits.remove(k);
        one.start += turn * d.step;
        split_pair(one, size, delta + turn * d.stride, out)?;
    }
    Some(())
}

/// What of a place lies in `lo .. hi`, counted from `lo`.
fn restrict(place: Place, lo: usize, hi: usize) -> Option<Vec<(usize, Place)>> {
    let reach: usize = place.digits.iter().map(|d| (d.size - 1) * d.step).sum();
    let (first, last) = (place.start, place.start + reach);
    if last < lo || first >= hi {
        return Some(vec![]);
    }
    if first >= lo && last < hi {
        return Some(vec![(0, Place { start: place.start - lo, ..place })]);
    }
    let k = (0..place.digits.len()).max_by_key(|k| place.digits[*k].step)?;
    let d = place.digits[k];
    let inner = reach - (d.size - 1) * d.step;
    let inside = |turn: usize| {
        let a = place.start + turn * d.step;
        a >= lo && a + inner < hi
    };
    let mut out: Vec<(usize, Place)> = Vec::new();
    // Only these turns reach into the range.
    let mut turn = lo.saturating_sub(place.start + inner).div_ceil(d.step);
    let end = d.size.min((hi - 1 - place.start) / d.step + 1);
    while turn < end {
        let run = (turn..end).take_while(|t| inside(*t)).count();
        let mut p = place.clone();
        if run > 0 {
            p.start = place.start + turn * d.step - lo;
            p.digits[k].size = run;
            out.push((turn * d.stride, p));
            turn += run;
            continue;
        }
        p.start += turn * d.step;
        p.digits.remove(k);
        out.extend(restrict(p, lo, hi)?.into_iter().map(|(o, p)| (o + turn * d.stride, p)));
        turn += 1;
        if out.len() > MAX_PARTS {
            return None;
        }
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::ParamId;

    fn axis(d: u32, size: usize) -> Axis {
        Axis { dim: DimId(d), size }
    }

    /// Elements of the value in row-major order of its axes, as indices into the parameter.
    fn elements(v: &Value) -> Vec<usize> {
        let mut strides = vec![1; v.axes.len()];
        for k in (0..v.axes.len().saturating_sub(1)).rev() {
            strides[k] = strides[k + 1] * v.axes[k + 1].size;
        }
        let n = v.axes.iter().map(|a| a.size).product();
        let mut out = vec![usize::MAX; n];
        for p in v.pieces(&strides) {
            super::super::transfer::walk(&p, &mut |t, f| {
                assert_eq!(out[f], usize::MAX, "a place is filled twice");
                out[f] = t;
            });
        }
        assert!(out.iter().all(|e| *e != usize::MAX), "a place is not filled");
        out
    }

    fn one(axes: &[Axis]) -> Value {
        Value::whole(Target::Param(ParamId(0)), axes.to_vec())
    }

    #[test]
    fn halves_become_pairs() {
        // head_dim of 6 in the order of halves, read as pairs.
        let v = one(&[axis(0, 6)]);
        let v = v.reshape(&[(vec![0], vec![axis(1, 2), axis(2, 3)])]).unwrap();
        let v = v.reshape(&[(vec![1, 0], vec![axis(0, 6)])]).unwrap();
        assert_eq!(elements(&v), [0, 3, 1, 4, 2, 5]);
        assert_eq!(v.parts.len(), 1);
    }

    #[test]
    fn splits_that_do_not_fit_the_digits_are_taken_apart() {
        let v = one(&[axis(0, 3), axis(1, 4)]);
        let v = v.reshape(&[(vec![1, 0], vec![axis(2, 2), axis(3, 6)])]).unwrap();
        let expect: Vec<usize> = (0..12).map(|i| (i % 3) * 4 + i / 3).collect();
        assert_eq!(elements(&v), expect);
        let v = v.reshape(&[(vec![0, 1], vec![axis(4, 4), axis(0, 3)])]).unwrap();
        assert_eq!(elements(&v), expect);
        let v = one(&[axis(0, 12)]).reshape(&[(vec![0], vec![axis(1, 4), axis(2, 3)])]).unwrap();
        let v = v.reshape(&[(vec![1, 0], vec![axis(3, 6), axis(4, 2)])]).unwrap();
        let expect: Vec<usize> = (0..12).map(|i| (i % 4) * 3 + i / 4).collect();
        assert_eq!(elements(&v), expect);
    }

    #[test]
    fn slices_cut_merged_axes_anywhere() {
        for lo in 0..10 {
            for len in 1..=(12 - lo) {
                let v = one(&[axis(0, 4), axis(1, 3)]);
                let v = v.reshape(&[(vec![1, 0], vec![axis(2, 12)])]).unwrap();
                let v = v.slice(0, lo, axis(3, len)).unwrap();
                let expect: Vec<usize> = (lo..lo + len).map(|i| (i % 4) * 3 + i / 4).collect();
                assert_eq!(elements(&v), expect, "{lo} {len}");
            }
        }
        let v = one(&[axis(0, 4), axis(1, 3)]).index(0, 2).unwrap();
        assert_eq!(elements(&v), [6, 7, 8]);
    }

    #[test]
    fn parts_of_a_concatenation_merge_with_other_axes() {
        // [h = 2, a = 2] and [h = 2, b = 3] along c = 5, then (h, c) flattened.
        let a = Value::whole(Target::Param(ParamId(0)), vec![axis(0, 2), axis(1, 2)]);
        let b = Value::whole(Target::Param(ParamId(1)), vec![axis(2, 3), axis(0, 2)]);
        let v = Value::concat(vec![(a, 1), (b, 0)], axis(3, 5)).unwrap();
        let v = v.reshape(&[(vec![0, 1], vec![axis(4, 10)])]).unwrap();
        let mut out = vec![(9, 9); 10];
        for p in v.pieces(&[1]) {
            let Target::Param(id) = p.target else { panic!() };
            super::super::transfer::walk(&p, &mut |t, f| out[f] = (id.0, t));
        }
        let expect = [(0, 0), (0, 1), (1, 0), (1, 2), (1, 4), (0, 2), (0, 3), (1, 1), (1, 3), (1, 5)]
            .map(|(p, t)| (p, t as usize));
        assert_eq!(out, expect);
    }
}
