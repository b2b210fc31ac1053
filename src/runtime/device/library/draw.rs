//! Draws of classes by their logits.

use super::{Element, ascending};
use crate::types::rng;

/// Who may be drawn, and the key of the draw.
#[derive(Clone, Copy, Debug)]
pub struct Draw {
    /// Only so many of the largest; 0: all.
    pub top_k: usize,
    /// Only the shortest beginning of these, by size, that holds this part of their probability.
    pub top_p: f64,
    pub key: u64,
}

/// Bytes of scratch for rows of n logits: a weight and an index each.
pub fn scratch_bytes(n: usize) -> usize {
    n * 16
}

/// logits [rows, n] -> out [rows]; row r uses counter r. `scratch` holds at least 2 n elements.
///
/// Weights are e^(logit - largest). Those kept are added up in class order, and the draw is the first class at which the
/// sum exceeds a uniform number times their total.
pub fn draw<T: Element>(logits: &[T], out: &mut [i32], n: usize, how: Draw, scratch: &mut [u64]) {
    let (order, weights) = scratch.split_at_mut(n);
    for (row, (logits, out)) in logits.chunks_exact(n).zip(out.iter_mut()).enumerate() {
        let logit = |i: usize| logits[i].value();
        let largest = (0..n).reduce(|a, b| if ascending(logit(a), logit(b)).is_lt() { b } else { a }).unwrap_or(0);
        if how.top_k == 1 {
            *out = largest as i32;
            continue;
        }
        let top = logit(largest);
        let weight = |i: usize| if logit(i) == top { 1.0 } else { (logit(i) - top).exp() };
        let first = if how.top_k == 0 { n } else { how.top_k.min(n) };
        let limited = first < n || how.top_p < 1.0;
        let mut mass = 0.0;
        if limited {
            for (i, slot) in order.iter_mut().enumerate() {
                *slot = i as u64;
            }
            let by_size = |a: &u64, b: &u64| ascending(logit(*b as usize), logit(*a as usize)).then(a.cmp(b));
            if first < n {
                order.select_nth_unstable_by(first, by_size);
            }
            let kept = &mut order[..first];
            kept.sort_unstable_by(by_size);
            let total: f64 = kept.iter().map(|i| weight(*i as usize)).sum();
            weights[..n].fill(0);
            for i in kept {
                if mass > 0.0 && mass >= how.top_p * total {
                    break;
                }
                let w = weight(*i as usize);
                mass += w;
                weights[*i as usize] = w.to_bits();
            }
        } else {
            for (i, slot) in weights[..n].iter_mut().enumerate() {
                let w = weight(i);
                mass += w;
                *slot = w.to_bits();
            }
        }
        let goal = f64::from(rng::unit(how.key, row as u64)) * mass;
        let (mut sum, mut chosen) = (0.0, largest);
        for (i, w) in weights[..n].iter().enumerate() {
            let w = f64::from_bits(*w);
            sum += w;
            if w > 0.0 {
                chosen = i;
            }
            if sum > goal {
                break;
            }
        }
        *out = chosen as i32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(logits: &[f32], top_k: usize, top_p: f64, draws: usize) -> Vec<f64> {
        let n = logits.len();
        let rows: Vec<f32> = logits.iter().copied().cycle().take(n * draws).collect();
        let mut out = vec![0; draws];
        draw(&rows, &mut out, n, Draw { top_k, top_p, key: 12345 }, &mut vec![0; 2 * n]);
        let mut counts = vec![0.0f64; n];
        out.iter().for_each(|i| counts[*i as usize] += 1.0);
        counts.iter().map(|c| c / draws as f64).collect()
    }

    #[test]
    fn frequencies_are_those_of_the_softmax() {
        let probabilities = [0.5f32, 0.05, 0.3, 0.15];
        let logits: Vec<f32> = probabilities.iter().map(|p| p.ln() + 3.0).collect();
        for (got, want) in counts(&logits, 0, 1.0, 20_000).iter().zip(probabilities) {
            assert!((got - f64::from(want)).abs() < 0.02, "{got} for {want}");
        }
        let two = counts(&logits, 2, 1.0, 20_000);
        assert!((two[0] - 0.625).abs() < 0.02 && two[1] == 0.0 && two[3] == 0.0, "{two:?}");
        // 0.5 + 0.3 reach 0.7, with the third 0.9.
        assert_eq!(counts(&logits, 0, 0.7, 500)[3], 0.0);
        assert!(counts(&logits, 0, 0.9, 500)[3] > 0.0);
        assert_eq!(counts(&logits, 1, 1.0, 50)[0], 1.0);
        assert_eq!(counts(&logits, 0, 0.0, 50)[0], 1.0);
    }

    #[test]
    fn impossible_classes_are_never_drawn() {
        let logits = [f32::NEG_INFINITY, 0.0, f32::NEG_INFINITY];
        assert_eq!(counts(&logits, 0, 1.0, 100)[1], 1.0);
        assert_eq!(counts(&logits, 2, 1.0, 100)[1], 1.0);
    }
}
