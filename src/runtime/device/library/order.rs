//! Sorting and the largest elements of rows.

use super::{Element, ascending};
use crate::runtime::device::pool::Pool;
use crate::runtime::device::share::Shared;
use std::cmp::Ordering;

/// Rows of work that a thread takes at once, at least so many elements.
const LEAST_ELEMENTS: usize = 1 << 12;

/// x [rows, n] -> out [rows, n]: the indices that sort each row, ascending, stable, NaN last.
pub fn arg_sort<T: Element>(pool: &Pool, x: &[T], out: &mut [i32], n: usize) -> Result<(), String> {
    each_row(pool, x, n, out, n, |x, out| {
        for (i, place) in out.iter_mut().enumerate() {
            *place = i as i32;
        }
        // With the index as a last resort no two are equal, so the order is the stable one and nothing is allocated.
        out.sort_unstable_by(|a, b| ascending(x[*a as usize].value(), x[*b as usize].value()).then(a.cmp(b)));
    })
}

/// x [rows, n] -> out [rows, k]: indices of the largest of each row, largest first, ties by lowest index; NaN is larger
/// than any number.
pub fn top_k<T: Element>(pool: &Pool, x: &[T], out: &mut [i32], n: usize, k: usize) -> Result<(), String> {
    each_row(pool, x, n, out, k, |x, out| {
        // Largest so far, sorted. A later element comes after those that it equals.
        let mut count = 0;
        for (i, value) in x.iter().enumerate() {
            let value = value.value();
            let beats = |j: i32| ascending(x[j as usize].value(), value) == Ordering::Less;
            if count == out.len() && !beats(out[count - 1]) {
                continue;
            }
            let place = out[..count].partition_point(|j| !beats(*j));
            count = (count + 1).min(out.len());
            out.copy_within(place..count - 1, place + 1);
            out[place] = i as i32;
        }
    })
}

fn each_row<T: Element>(
    pool: &Pool,
    x: &[T],
    n: usize,
    out: &mut [i32],
    k: usize,
    row: impl Fn(&[T], &mut [i32]) + Sync,
) -> Result<(), String> {
    if k == 0 || n == 0 {
        return Ok(());
    }
    let rows = out.len() / k;
    assert_eq!((x.len(), out.len()), (rows * n, rows * k), "operands of one number of rows");
    let out = Shared(out.as_mut_ptr());
    pool.split(rows, LEAST_ELEMENTS.div_ceil(n), &|begin, end| {
        for r in begin..end {
            // SAFETY: row r of `out` belongs to this turn alone.
            let out = unsafe { std::slice::from_raw_parts_mut(out.get().add(r * k), k) };
            row(&x[r * n..(r + 1) * n], out);
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::rng;

    fn numbers(n: usize) -> Vec<f32> {
        // Many ties, some NaN.
        (0..n)
            .map(|i| match rng::draw_int(12, 99, i as u64) {
                11 => f32::NAN,
                x => x as f32 - 5.0,
            })
            .collect()
    }

    #[test]
    fn orders_agree_with_a_stable_sort() {
        for threads in [1, 3] {
            let pool = Pool::new(threads);
            for (rows, n) in [(1, 1), (5, 33), (700, 40)] {
                let x = numbers(rows * n);
                let mut out = vec![-1; rows * n];
                arg_sort(&pool, &x, &mut out, n).unwrap();
                for k in [1, n.min(4), n] {
                    let mut top = vec![-1; rows * k];
                    top_k(&pool, &x, &mut top, n, k).unwrap();
                    for r in 0..rows {
                        let row = &x[r * n..(r + 1) * n];
                        let rank = |i: &usize| if row[*i].is_nan() { 1000.0 } else { row[*i] };
                        let mut up: Vec<usize> = (0..n).collect();
                        up.sort_by(|a, b| rank(a).total_cmp(&rank(b)));
                        let mut down: Vec<usize> = (0..n).collect();
                        down.sort_by(|a, b| rank(b).total_cmp(&rank(a)));
                        let as_usize = |v: &[i32]| v.iter().map(|i| *i as usize).collect::<Vec<_>>();
                        assert_eq!(as_usize(&out[r * n..(r + 1) * n]), up);
                        assert_eq!(as_usize(&top[r * k..(r + 1) * k]), &down[..k]);
                    }
                }
            }
        }
    }
}
