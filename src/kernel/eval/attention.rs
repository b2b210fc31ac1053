//! Attention step by step, by its strides.

use super::Machine;
use crate::program::{Attention, AttentionGrad, Strided};

/// Indices of batch and group dims, query, key, feature, value.
struct At<'a> {
    outer: &'a [usize],
    inner: [usize; 4],
}

fn place(s: &Strided, at: &At) -> i64 {
    let index = at.outer.iter().chain(&at.inner);
    s.offset as i64 + index.zip(&s.steps).map(|(i, step)| *i as i64 * *step as i64).sum::<i64>()
}

impl Machine<'_> {
    fn array(&self, s: &Strided, at: &At) -> f64 {
        self.get(s.buffer, place(s, at))
    }

    /// Calls `f` for each query, with its score of each key and the score's slope by the product.
    fn each_query(&mut self, a: &Attention, mut f: impl FnMut(&mut Self, &[usize], usize, &[(f64, f64)])) {
        let first = a.first.map_or(0, |b| self.get(b, 0) as i64);
        let extents: Vec<usize> = a.batch.iter().chain(&a.group).copied().collect();
        for n in 0..extents.iter().product() {
            let mut outer = vec![0; extents.len()];
            let mut rest = n;
            for (i, extent) in extents.iter().enumerate().rev() {
                (outer[i], rest) = (rest % extent, rest / extent);
            }
            for q in 0..a.queries {
                let score = |k: usize| {
                    let at = |d: usize, e: usize| At { outer: &outer, inner: [q, k, d, e] };
                    let sum: f64 =
                        (0..a.features).map(|d| self.array(&a.q, &at(d, 0)) * self.array(&a.k, &at(d, 0))).sum();
                    let (mut s, mut slope) = (sum * a.scale, a.scale);
                    if a.cap > 0.0 {
                        let t = (s / a.cap).tanh();
                        (s, slope) = (a.cap * t, slope * (1.0 - t * t));
                    }
                    let at = at(0, 0);
                    let documents = a.documents.as_ref().is_none_or(|[x, y]| self.array(x, &at) == self.array(y, &at));
                    let mask = a.mask.as_ref().is_none_or(|m| self.array(m, &at) != 0.0);
                    let bias = a.bias.as_ref().map_or(0.0, |b| self.array(b, &at));
                    let seen = a.seen(first + q as i64).contains(&k) && documents && mask;
                    (if seen { s + bias } else { f64::NEG_INFINITY }, slope)
                };
                let scores: Vec<(f64, f64)> = (0..a.keys).map(score).collect();
                f(self, &outer, q, &scores);
            }
        }
    }

    pub(super) fn attention(&mut self, a: &Attention) {
        self.each_query(a, |m, outer, q, scores| {
            let top = scores.iter().fold(f64::NEG_INFINITY, |t, s| t.max(s.0));
            let weight = |s: f64| if top == f64::NEG_INFINITY { 0.0 } else { (s - top).exp() };
            let total: f64 = scores.iter().map(|s| weight(s.0)).sum();
            let at = |k: usize, e: usize| At { outer, inner: [q, k, 0, e] };
            for e in 0..a.width {
                let sum: f64 = (0..a.keys).map(|k| weight(scores[k].0) * m.array(&a.v, &at(k, e))).sum();
                m.set(a.out.buffer, place(&a.out, &at(0, e)), if total == 0.0 { 0.0 } else { sum / total });
            }
            if let Some(log) = &a.log {
                let value = if total == 0.0 { f64::INFINITY } else { top + total.ln() };
                m.set(log.buffer, place(log, &at(0, 0)), value);
            }
        });
    }

    pub(super) fn attention_grad(&mut self, g: &AttentionGrad) {
        let a = &g.of;
        let log = a.log.as_ref().expect("the gradient reads the logsumexp");
        let mut sums: Vec<(&Strided, std::collections::BTreeMap<i64, f64>)> = Vec::new();
        for s in g.dq.iter().chain(&g.dk).chain(&g.dv) {
            sums.push((s, Default::default()));
        }
        let number = |s: &Option<Strided>| s.is_some() as usize;
        let (dq, dk, dv) = (0, number(&g.dq), number(&g.dq) + number(&g.dk));
        self.each_query(a, |m, outer, q, scores| {
            let mut add = |to: &Option<Strided>, n: usize, at: &At, x: f64| {
                if let Some(s) = to {
                    *sums[n].1.entry(place(s, at)).or_default() += x;
                }
            };
            let at = |k: usize, d: usize, e: usize| At { outer, inner: [q, k, d, e] };
            let by = |e: usize| m.array(&g.d_out, &at(0, 0, e));
            let level: f64 = (0..a.width).map(|e| by(e) * m.array(&a.out, &at(0, 0, e))).sum();
            for (k, (score, slope)) in scores.iter().enumerate() {
                let weight = (score - m.array(log, &at(0, 0, 0))).exp();
                let by_weight: f64 = (0..a.width).map(|e| by(e) * m.array(&a.v, &at(k, 0, e))).sum();
                for e in 0..a.width {
                    add(&g.dv, dv, &at(k, 0, e), weight * by(e));
                }
                let by_product = weight * (by_weight - level) * slope;
                for d in 0..a.features {
                    let at = at(k, d, 0);
                    add(&g.dq, dq, &at, by_product * m.array(&a.k, &at));
                    add(&g.dk, dk, &at, by_product * m.array(&a.q, &at));
                }
            }
        });
        for (s, values) in sums {
            for (at, x) in values {
                self.set(s.buffer, at, x);
            }
        }
    }
}
