//! One query of each head, as where a text is written token by token: its scores are a product with one column, and so is its
//! result. Keys and values pass through once.

use super::head::{Array, Dim, Head};
use super::real::{Real, Stored};
use super::{Parts, Sizes, scratch_bytes};
use crate::runtime::device::pool::{Pool, worker};
use crate::runtime::device::product::{Few, Unit};
use crate::runtime::device::share::Shared;

/// Multiply-adds that are worth a thread.
const LEAST: usize = 1 << 15;

/// Runs the forward pass if it is of this form.
///
/// # Safety
/// As for [`super::forward`].
pub unsafe fn run<E: Stored>(
    unit: Unit,
    pool: &Pool,
    head: &Head<'_>,
    scratch: &mut [u64],
) -> Option<Result<(), String>> {
    let a = head.a;
    let (dtype, bytes) = (<E::Sum as Real>::DTYPE, size_of::<E::Sum>() as isize);
    let few = unit.kernel(dtype, dtype).few?;
    let run = |x: &Array<'_>, along: Dim| x.step(along) == bytes;
    let plain = E::DTYPE == dtype && a.cap == 0.0 && a.scale > 0.0 && !head.adds() && head.log.is_none();
    let runs = run(&head.q, Dim::Feature) && run(&head.k, Dim::Feature);
    let runs = runs && run(&head.v, Dim::Value) && run(&head.out, Dim::Value);
    if a.queries != 1 || !plain || !runs || a.keys > Sizes::of(a).elements() {
        return None;
    }
    let (batches, groups): (usize, usize) = (a.batch.iter().product(), a.group.iter().product());
    let seen = head.seen(0);
    let work = seen.len() * (a.features + a.width);
    let each = scratch_bytes(a);
    assert!(scratch.len() * 8 >= each * pool.threads(), "scratch for {} threads", pool.threads());
    let scratch = Shared(scratch.as_mut_ptr().cast::<u8>());
    let one = |n: usize| {
        let head = head.of_batch(n / groups).of_group(n % groups);
        // SAFETY: all within the arrays, by their extents, and scratch memory of this thread alone.
        unsafe {
            let scores = Parts::<E::Sum>::of_thread(scratch.get(), each, worker()).take(a.keys);
            few(&Few {
                rows: seen.len(),
                columns: 1,
                k: a.features,
                a: head.k.place(Dim::Key, seen.start),
                a_row: head.k.step(Dim::Key),
                a_k: bytes,
                b: head.q.place(Dim::Query, 0),
                b_column: 0,
                b_k: bytes,
                c: scores.cast(),
                c_row: bytes,
                c_column: 0,
                add: false,
            });
            let total = softmax(std::slice::from_raw_parts_mut(scores, seen.len()), a.scale);
            let out = head.out.place(Dim::Query, 0);
            few(&Few {
                rows: a.width,
                columns: 1,
                k: seen.len(),
                a: head.v.place(Dim::Key, seen.start),
                a_row: bytes,
                a_k: head.v.step(Dim::Key),
                b: scores.cast(),
                b_column: 0,
                b_k: bytes,
                c: out,
                c_row: bytes,
                c_column: 0,
                add: false,
            });
            if !seen.is_empty() {
                let by = E::Sum::ONE / total;
                let out = std::slice::from_raw_parts_mut(out.cast::<E::Sum>(), a.width);
                out.iter_mut().for_each(|x| *x = *x * by);
            }
        }
    };
    Some(pool.split(batches * groups, LEAST / work.max(1) + 1, &|begin, end| (begin..end).for_each(one)))
}

/// Replaces products by weights, of which the largest is 1; returns their sum.
fn softmax<R: Real>(scores: &mut [R], scale: f64) -> R {
    let top = scores.iter().fold(R::LOWEST, |top, x| if *x > top { *x } else { top });
    let by = R::of(scale * std::f64::consts::LOG2_E);
    scores.iter_mut().for_each(|x| *x = (*x - top).power_inline::<false>(by));
    // Several sums, so that one addition need not wait for the other.
    let mut sums = [R::default(); 8];
    for (i, x) in scores.iter().enumerate() {
        sums[i % 8] = sums[i % 8] + *x;
    }
    sums.into_iter().fold(R::default(), |all, x| all + x)
}
