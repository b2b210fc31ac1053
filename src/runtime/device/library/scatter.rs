//! Sums and extremes over the elements that an index sends to one place.

use super::Element;
use crate::runtime::device::pool::Pool;
use crate::runtime::device::share::Shared;
use crate::types::ReduceKind;

/// Shapes: x [batch, m / times, width], index [batch, m], out [batch, targets, width].
#[derive(Clone, Copy, Debug)]
pub struct Scatter {
    pub kind: ReduceKind,
    pub batch: usize,
    pub m: usize,
    pub targets: usize,
    pub width: usize,
    /// Every `each` rows of x stand for `times` repetitions of them, one after the other.
    pub times: usize,
    pub each: usize,
    /// Sums are added to what out holds.
    pub add: bool,
}

/// Elements of a row that are combined at a time, in registers or at least in the nearest cache.
const STRIP: usize = 128;
/// Elements of `out` that a thread takes at once.
const LEAST_ELEMENTS: usize = 1 << 13;

/// Bytes of scratch: where each target's list begins, and the lists.
pub fn scratch_bytes(m: usize, targets: usize) -> usize {
    (targets + 1 + m) * 8
}

impl Scatter {
    /// The row of x that element `i` of a batch is.
    fn row(&self, i: usize) -> usize {
        if self.times == 1 { i } else { i / (self.each * self.times) * self.each + i % self.each }
    }
}

/// out[b, t] = `kind` over all m with index[b, m] = t, in ascending order of m. Indices outside of the targets are left
/// out. With `add` out is the first term of each sum. `scratch` holds at least targets + 1 + m elements.
///
/// The elements are listed by target first (a counting sort, so each list ascends); then targets are independent.
pub fn scatter<T: Element>(
    pool: &Pool,
    shape: Scatter,
    x: &[T],
    index: &[i32],
    out: &mut [T],
    scratch: &mut [u64],
) -> Result<(), String> {
    let Scatter { kind, batch, m, targets, width, times, each, .. } = shape;
    assert!(times == 1 || m % (times * each) == 0, "whole repetitions");
    assert_eq!(x.len(), batch * m / times * width, "elements of x");
    assert_eq!(index.len(), batch * m, "indices");
    assert_eq!(out.len(), batch * targets * width, "elements of the result");
    // Each kind has code of its own, without a call for each element.
    match kind {
        ReduceKind::Sum => combined(pool, shape, x, index, out, scratch, T::zero(), T::add),
        ReduceKind::Max => combined(pool, shape, x, index, out, scratch, T::lowest(), T::larger),
        ReduceKind::Min => combined(pool, shape, x, index, out, scratch, T::highest(), T::smaller),
        other => Err(format!("no scatter by {}", other.name())),
    }
}

#[expect(clippy::too_many_arguments, reason = "those of `scatter`, and what its kind stands for")]
fn combined<T: Element>(
    pool: &Pool,
    shape: Scatter,
    x: &[T],
    index: &[i32],
    out: &mut [T],
    scratch: &mut [u64],
    start: T::Sum,
    combine: impl Fn(T::Sum, T::Sum) -> T::Sum + Sync,
) -> Result<(), String> {
    let Scatter { batch, m, targets, width, times, add, .. } = shape;
    let rows = m / times;
    if targets == 0 || width == 0 {
        return Ok(());
    }
    let (ends, list) = scratch.split_at_mut(targets + 1);
    for b in 0..batch {
        let index = &index[b * m..(b + 1) * m];
        let x = &x[b * rows * width..(b + 1) * rows * width];
        let place = |i: &i32| usize::try_from(*i).ok().filter(|t| *t < targets);
        // ends[t + 1] counts, then becomes the start of list t, then (filled) its end.
        ends.fill(0);
        index.iter().filter_map(place).for_each(|t| ends[t + 1] += 1);
        for t in 0..targets {
            ends[t + 1] += ends[t];
        }
        for t in (0..targets).rev() {
            ends[t + 1] = ends[t];
        }
        for (i, t) in index.iter().enumerate() {
            if let Some(t) = place(t) {
                list[ends[t + 1] as usize] = shape.row(i) as u64;
                ends[t + 1] += 1;
            }
        }
        let (ends, list) = (&*ends, &*list);
        let out = Shared(out[b * targets * width..].as_mut_ptr());
        pool.split(targets, LEAST_ELEMENTS.div_ceil(width), &|begin, end| {
            let mut sums = [start; STRIP];
            for t in begin..end {
                // SAFETY: target t belongs to this turn alone.
                let out = unsafe { std::slice::from_raw_parts_mut(out.get().add(t * width), width) };
                let members = &list[ends[t] as usize..ends[t + 1] as usize];
                if add && members.is_empty() {
                    continue;
                }
                for (strip, out) in out.chunks_mut(STRIP).enumerate() {
                    let sums = &mut sums[..out.len()];
                    match add {
                        true => sums.iter_mut().zip(&*out).for_each(|(sum, x)| *sum = x.widen()),
                        false => sums.fill(start),
                    }
                    for i in members {
                        let from = *i as usize * width + strip * STRIP;
                        for (sum, x) in sums.iter_mut().zip(&x[from..from + out.len()]) {
                            *sum = combine(*sum, x.widen());
                        }
                    }
                    for (out, sum) in out.iter_mut().zip(sums) {
                        *out = T::narrow(*sum);
                    }
                }
            }
        })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::rng;
    use half::bf16;

    fn check<T: Element>(kind: ReduceKind, make: fn(f32) -> T, tolerance: f64) {
        let shapes = [(1, 50, 7, 1), (3, 20, 33, 5), (1, 300, 40, 300), (2, 0, 3, 2)].map(|s| (s, 1, 1));
        let repeated = [((2, 24, 5, 3), 2, 12), ((2, 24, 5, 3), 4, 1), ((1, 24, 9, 200), 3, 2)];
        for ((batch, m, targets, width), times, each) in shapes.into_iter().chain(repeated) {
            let shape = Scatter { kind, batch, m, targets, width, times, each, add: false };
            let x: Vec<T> = (0..batch * m / times * width).map(|i| make(rng::unit(5, i as u64) * 8.0 - 4.0)).collect();
            let index: Vec<i32> = (0..batch * m).map(|i| rng::draw_int(targets as u32 + 1, 7, i as u64) - 1).collect();
            let none = match kind {
                ReduceKind::Max => T::narrow(T::lowest()).value(),
                ReduceKind::Min => T::narrow(T::highest()).value(),
                _ => 0.0,
            };
            let mut want = vec![none; batch * targets * width];
            for b in 0..batch {
                for i in 0..m {
                    let Ok(t) = usize::try_from(index[b * m + i]) else { continue };
                    for w in 0..width {
                        let row = b * m / times + i / (each * times) * each + i % each;
                        let v = x[row * width + w].value();
                        let slot = &mut want[(b * targets + t) * width + w];
                        *slot = match kind {
                            ReduceKind::Max => slot.max(v),
                            ReduceKind::Min => slot.min(v),
                            _ => *slot + v,
                        };
                    }
                }
            }
            let mut first: Option<Vec<f64>> = None;
            for threads in [1, 2, 3] {
                let mut out = vec![make(0.0); batch * targets * width];
                let mut scratch = vec![0; scratch_bytes(m, targets) / 8];
                scatter(&Pool::new(threads), shape, &x, &index, &mut out, &mut scratch).unwrap();
                let got: Vec<f64> = out.iter().map(|x| x.value()).collect();
                for (got, want) in got.iter().zip(&want) {
                    assert!(got == want || (got - want).abs() <= tolerance * want.abs().max(1.0), "{got} for {want}");
                }
                assert_eq!(*first.get_or_insert(got.clone()), got, "{threads} threads differ");
                if kind == ReduceKind::Sum {
                    // Once more on top of it.
                    let shape = Scatter { add: true, ..shape };
                    scatter(&Pool::new(threads), shape, &x, &index, &mut out, &mut scratch).unwrap();
                    let twice = out.iter().zip(&got).all(|(o, g)| {
                        let (o, g) = (o.value(), 2.0 * g);
                        (o - g).abs() <= 2.0 * tolerance * g.abs().max(1.0)
                    });
                    assert!(twice, "sums of {kind:?} are not added");
                }
            }
        }
    }

    #[test]
    fn scatters_agree_with_plain_loops_on_any_number_of_threads() {
        check::<f32>(ReduceKind::Sum, |x| x, 1e-5);
        check::<f64>(ReduceKind::Sum, f64::from, 1e-12);
        check::<bf16>(ReduceKind::Sum, bf16::from_f32, 1e-2);
        check::<i32>(ReduceKind::Sum, |x| x as i32, 0.0);
        check::<f32>(ReduceKind::Max, |x| x, 0.0);
        check::<i32>(ReduceKind::Min, |x| x as i32, 0.0);
    }
}
