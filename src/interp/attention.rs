//! Attention with all scores written down, and its derivative by the textbook.

use super::walk::{Operand, sizes, strides, walk};
use super::{Shared, walk};
use crate::ir::{Attention, DimId, Graph, Operation};

/// The operands as arrays, with what each loop needs of them.
struct Setting<'a> {
    g: &'a Graph,
    a: &'a Attention,
    op: &'a Operation,
    args: &'a [Shared],
    /// Dims of q but the features: one row of scores each.
    rows: Vec<DimId>,
}

/// A row of scores: -inf where a key is not seen, and where on the way to tanh it was.
struct Scores {
    score: Vec<f64>,
    /// The derivative by the product of query and key.
    slope: Vec<f64>,
}

impl<'a> Setting<'a> {
    fn new(g: &'a Graph, a: &'a Attention, op: &'a Operation, args: &'a [Shared]) -> Setting<'a> {
        let rows = g.value(op.args[0]).dims.iter().copied().filter(|d| *d != a.feature).collect();
        Setting { g, a, op, args, rows }
    }

    fn operand(&self, i: usize) -> Operand<'_> {
        Operand { dims: &self.g.value(self.op.args[i]).dims, data: &self.args[i].data }
    }

    fn stride(&self, i: usize, d: DimId) -> usize {
        walk::stride(self.g, self.operand(i).dims, d)
    }

    /// Calls `f` for each row with the offsets of all operands and then of arrays over `more`, and the query's number.
    fn each_row(&self, more: &[&[DimId]], mut f: impl FnMut(&[usize], i64)) {
        let own = (0..self.args.len()).map(|i| self.operand(i).dims);
        let all: Vec<Vec<usize>> = own.chain(more.iter().copied()).map(|d| strides(self.g, d, &self.rows)).collect();
        let query = self.rows.iter().position(|d| *d == self.a.query).expect("q has a position");
        let first = self.a.position().map_or(0, |i| self.args[i].data[0] as i64);
        walk(&sizes(self.g, &self.rows), &all, |at, index| f(at, first + index[query] as i64));
    }

    fn scores(&self, at: &[usize], query: i64) -> Scores {
        let (a, g) = (self.a, self.g);
        let (q, keys) = (self.operand(0), self.operand(1));
        let (features, n) = (g.size(a.feature), g.size(a.key));
        let (sq, sk, s_key) = (self.stride(0, a.feature), self.stride(1, a.feature), self.stride(1, a.key));
        let (documents, mask, bias) = a.extras();
        let along_keys = |i: usize, k: usize| self.args[i].data[at[i] + k * self.stride(i, a.key)];
        let (mut score, mut slope) = (Vec::with_capacity(n), Vec::with_capacity(n));
        for k in 0..n {
            let mut sum = 0.0;
            let mut f = 0;
            while f < features {
                sum += q.data[at[0] + f * sq] * keys.data[at[1] + k * s_key + f * sk];
                f += 1;
            }
            let mut s = sum * a.scale;
            let mut by = a.scale;
            if a.cap > 0.0 {
                let t = (s / a.cap).tanh();
                s = a.cap * t;
                by *= 1.0 - t * t;
            }
            s += bias.map_or(0.0, |i| along_keys(i, k));
            let seen = (!a.causal || k as i64 <= query)
                && a.reach.is_none_or(|r| (query - k as i64) < i64::from(r))
                && documents.is_none_or(|i| self.args[i].data[at[i]] == along_keys(i + 1, k))
                && mask.is_none_or(|i| along_keys(i, k) != 0.0);
            score.push(if seen { s } else { f64::NEG_INFINITY });
            slope.push(by);
        }
        Scores { score, slope }
    }
}

/// The result and the logsumexp.
pub fn attention(g: &Graph, a: &Attention, op: &Operation, args: &[Shared]) -> [Vec<f64>; 2] {
    let s = Setting::new(g, a, op, args);
    let (out, log) = (&g.value(op.results[0]).dims, &g.value(op.results[1]).dims);
    let mut results = [vec![0.0; g.elements(out)], vec![0.0; g.elements(log)]];
    let width = g.size(a.value);
    let (s_key, s_value, s_out) = (s.stride(2, a.key), s.stride(2, a.value), walk::stride(g, out, a.value));
    s.each_row(&[out, log], |at, query| {
        let score = s.scores(at, query).score;
        let top = score.iter().copied().fold(f64::NEG_INFINITY, |m, x| if x > m || x.is_nan() { x } else { m });
        let (to, to_log) = (at[args.len()], at[args.len() + 1]);
        if top == f64::NEG_INFINITY {
            results[1][to_log] = f64::INFINITY;
            return;
        }
        let total: f64 = score.iter().map(|x| (x - top).exp()).sum();
        results[1][to_log] = top + total.ln();
        for e in 0..width {
            let mut sum = 0.0;
            for (k, x) in score.iter().enumerate() {
                sum += (x - top).exp() / total * args[2].data[at[2] + k * s_key + e * s_value];
            }
            results[0][to + e * s_out] = sum;
        }
    });
    results
}

/// The cotangents of q, keys and values.
pub fn gradient(g: &Graph, a: &Attention, op: &Operation, args: &[Shared]) -> [Vec<f64>; 3] {
    let s = Setting::new(g, a, op, args);
    let out: [&[DimId]; 3] = [0, 1, 2].map(|i| g.value(op.results[i]).dims.as_slice());
    let mut results = out.map(|d| vec![0.0; g.elements(d)]);
    let (n, features, width) = (g.size(a.key), g.size(a.feature), g.size(a.value));
    let (y, log, dy) = (a.operands(), a.operands() + 1, a.operands() + 2);
    let feature = |i: usize| (s.stride(i, a.feature), walk::stride(g, out[i], a.feature));
    let ((q_feature, dq_feature), (k_feature, dk_feature)) = (feature(0), feature(1));
    let key = |i: usize| (s.stride(i, a.key), walk::stride(g, out[i], a.key));
    let ((k_key, dk_key), (v_key, dv_key)) = (key(1), key(2));
    let (v_value, dv_value) = (s.stride(2, a.value), walk::stride(g, out[2], a.value));
    let (y_value, dy_value) = (s.stride(y, a.value), s.stride(dy, a.value));
    s.each_row(&out, |at, query| {
        let Scores { score, slope } = s.scores(at, query);
        let [dq, dk, dv] = [0, 1, 2].map(|i| at[args.len() + i]);
        let dy_at = |e: usize| args[dy].data[at[dy] + e * dy_value];
        let level: f64 = (0..width).map(|e| dy_at(e) * args[y].data[at[y] + e * y_value]).sum();
        for k in 0..n {
            let weight = if score[k] == f64::NEG_INFINITY { 0.0 } else { (score[k] - args[log].data[at[log]]).exp() };
            let mut by_weight = 0.0;
            for e in 0..width {
                by_weight += dy_at(e) * args[2].data[at[2] + k * v_key + e * v_value];
                results[2][dv + k * dv_key + e * dv_value] += weight * dy_at(e);
            }
            if score[k] == f64::NEG_INFINITY {
                continue;
            }
            let by_product = weight * (by_weight - level) * slope[k];
            for f in 0..features {
                results[0][dq + f * dq_feature] += by_product * args[1].data[at[1] + k * k_key + f * k_feature];
                results[1][dk + k * dk_key + f * dk_feature] += by_product * args[0].data[at[0] + f * q_feature];
            }
        }
    });
    results
}
