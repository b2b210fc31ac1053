//! Whole arrays of random numbers: the initial values of parameters. The compiler makes plain loops over `rng::draw` into
//! the widest vectors of the processor that this runs on; no operation is fused or reordered, so all give the same bits.

use super::super::pool::Pool;
use super::super::share::Shared;
use crate::types::rng::{self, Dist};

/// Elements that are worth a thread.
const LEAST: usize = 1 << 14;

/// out[i] = the draw at i.
pub fn fill(pool: &Pool, dist: Dist, key: u64, out: &mut [f32]) -> Result<(), String> {
    let start = Shared(out.as_mut_ptr());
    pool.split(out.len(), LEAST, &|begin, end| {
        // SAFETY: ranges of different calls do not overlap, and are inside of `out`.
        let part = unsafe { std::slice::from_raw_parts_mut(start.get().add(begin), end - begin) };
        draws(dist, key, begin as u64, part);
    })
}

#[cfg(target_arch = "x86_64")]
fn draws(dist: Dist, key: u64, first: u64, out: &mut [f32]) {
    #[target_feature(enable = "avx512f,avx512dq,avx512vl,avx512bw")]
    fn avx512(dist: Dist, key: u64, first: u64, out: &mut [f32]) {
        of_kind(dist, key, first, out);
    }
    #[target_feature(enable = "avx2")]
    fn avx2(dist: Dist, key: u64, first: u64, out: &mut [f32]) {
        of_kind(dist, key, first, out);
    }
    let wide = is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512bw");
    if wide {
        // SAFETY: the processor has these features (each implies avx512f).
        unsafe { avx512(dist, key, first, out) }
    } else if is_x86_feature_detected!("avx2") {
        // SAFETY: as above.
        unsafe { avx2(dist, key, first, out) }
    } else {
        of_kind(dist, key, first, out);
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn draws(dist: Dist, key: u64, first: u64, out: &mut [f32]) {
    of_kind(dist, key, first, out);
}

/// One loop for each distribution: a choice inside of the loop would keep it from becoming vectors.
#[inline(always)]
fn of_kind(dist: Dist, key: u64, first: u64, out: &mut [f32]) {
    match dist {
        Dist::Normal { std } => each(first, out, |i| rng::draw(Dist::Normal { std }, key, i)),
        Dist::TruncNormal { std } => each(first, out, |i| rng::draw(Dist::TruncNormal { std }, key, i)),
        Dist::Uniform { lo, hi } => each(first, out, |i| rng::draw(Dist::Uniform { lo, hi }, key, i)),
        other => each(first, out, |i| rng::draw(other, key, i)),
    }
}

#[inline(always)]
fn each(first: u64, out: &mut [f32], draw: impl Fn(u64) -> f32) {
    for (i, x) in out.iter_mut().enumerate() {
        *x = draw(first + i as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_element_is_the_draw_at_its_index() {
        let pool = Pool::new(2);
        for dist in [Dist::Normal { std: 0.02 }, Dist::TruncNormal { std: 1.5 }, Dist::Uniform { lo: -1.0, hi: 3.0 }] {
            for n in [0, 1, 15, 3 * LEAST + 7] {
                let mut out = vec![f32::NAN; n];
                fill(&pool, dist, 0x1234_5678_9ABC_DEF1, &mut out).unwrap();
                for (i, x) in out.iter().enumerate() {
                    let want = rng::draw(dist, 0x1234_5678_9ABC_DEF1, i as u64);
                    assert_eq!(x.to_bits(), want.to_bits(), "{dist:?} at {i} of {n}");
                }
            }
        }
    }
}
