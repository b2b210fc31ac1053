//! Attention layers with all that they can be asked for, against loops over heads, queries and keys.

use super::close;
use crate::eval::{Named, Setting, noise, run_at};
use std::collections::BTreeMap;

const BATCH: usize = 2;
const POS: usize = 5;
const D: usize = 4;
const HEADS: usize = 4;
const HD: usize = 2;

/// What a query may see, and how its scores are made.
#[derive(Clone, Copy)]
struct Rule {
    both_ways: bool,
    reach: usize,
    theta: f64,
    linear_bias: bool,
    cap: f64,
}

const PLAIN: Rule = Rule { both_ways: false, reach: usize::MAX, theta: 0.0, linear_bias: false, cap: 0.0 };

/// Element i turns with element i + HD / 2.
fn turned(x: &[f64], at: usize, theta: f64) -> Vec<f64> {
    let half = x.len() / 2;
    let angle = |i: usize| at as f64 * theta.powf(-2.0 * (i % half) as f64 / x.len() as f64);
    (0..x.len())
        .map(|i| {
            if i < half {
                x[i] * angle(i).cos() - x[i + half] * angle(i).sin()
            } else {
                x[i] * angle(i).cos() + x[i - half] * angle(i).sin()
            }
        })
        .collect()
}

/// One head over one row: queries, keys and values are by position.
fn attend(r: &Rule, head: usize, q: &[Vec<f64>], k: &[Vec<f64>], v: &[Vec<f64>], document: &[f64]) -> Vec<Vec<f64>> {
    let turn = |x: &[Vec<f64>]| -> Vec<Vec<f64>> {
        x.iter().enumerate().map(|(at, x)| if r.theta > 0.0 { turned(x, at, r.theta) } else { x.clone() }).collect()
    };
    let (q, k) = (turn(q), turn(k));
    let slope = 2f64.powf(-8.0 * (head + 1) as f64 / HEADS as f64);
    (0..POS)
        .map(|i| {
            let seen = |j: usize| document[i] == document[j] && (r.both_ways || j <= i && i - j < r.reach);
            let weight = |j: usize| {
                let raw = (0..HD).map(|d| q[i][d] * k[j][d]).sum::<f64>() / (HD as f64).sqrt();
                let score = if r.cap > 0.0 { r.cap * (raw / r.cap).tanh() } else { raw };
                let far = if r.linear_bias { slope * i.abs_diff(j) as f64 } else { 0.0 };
                if seen(j) { (score - far).exp() } else { 0.0 }
            };
            let total: f64 = (0..POS).map(weight).sum();
            (0..HD).map(|d| (0..POS).map(|j| weight(j) / total * v[j][d]).sum()).collect()
        })
        .collect()
}

type Outputs = BTreeMap<String, Named>;

fn run(text: &str, inputs: &[(&str, Vec<f64>)]) -> Outputs {
    run_at(text, &Setting { noisy: true, ..Setting::default() }, inputs)
}

fn check_multi_head(r: &Rule) {
    let Rule { both_ways, theta, linear_bias, cap, .. } = r;
    let reach = if r.reach == usize::MAX { "inf".to_string() } else { r.reach.to_string() };
    let parts = ["query", "keys", "values", "out"];
    let lines = parts.map(|p| format!("output w_{p} = many.{p}.weight\noutput b_{p} = many.{p}.shift\n")).concat();
    let text = format!(
        "use nn.{{MultiHeadAttention}}
         dim batch = {BATCH}, pos = {POS}, d = {D}, heads = {HEADS}, hd = {HD}
         model M(x: [batch, pos, d]) {{
             let many = MultiHeadAttention[
                 pos, d, heads, hd, both_ways = {both_ways}, reach = {reach}, theta = {theta:?},
                 linear_bias = {linear_bias}, cap = {cap:?}
             ]
             output y = many(x)
             {lines}
         }}"
    );
    let x = noise(80, BATCH * POS * D);
    let out = run(&text, &[("x", x.clone())]);
    let weight =
        |part: &str, d: usize, h: usize, e: usize| out[&format!("w_{part}")].at(&[("d", d), ("heads", h), ("hd", e)]);
    for (b, row) in x.chunks(POS * D).enumerate() {
        let mut y = [0.0; POS * D];
        for h in 0..HEADS {
            let project = |part: &str| -> Vec<Vec<f64>> {
                let element = |x: &[f64], e: usize| {
                    (0..D).map(|d| x[d] * weight(part, d, h, e)).sum::<f64>()
                        + out[&format!("b_{part}")].at(&[("heads", h), ("hd", e)])
                };
                row.chunks(D).map(|x| (0..HD).map(|e| element(x, e)).collect()).collect()
            };
            let said = attend(r, h, &project("query"), &project("keys"), &project("values"), &[0.0; POS]);
            for (n, y) in y.iter_mut().enumerate() {
                *y += (0..HD).map(|e| said[n / D][e] * weight("out", n % D, h, e)).sum::<f64>();
            }
        }
        for (n, y) in y.iter().enumerate() {
            close(out["y"].at(&[("batch", b), ("pos", n / D), ("d", n % D)]), y + out["b_out"].data[n % D]);
        }
    }
}

#[test]
fn multi_head_attention_with_linear_biases_and_a_soft_cap() {
    check_multi_head(&PLAIN);
    check_multi_head(&Rule { linear_bias: true, cap: 0.3, ..PLAIN });
    check_multi_head(&Rule { linear_bias: true, both_ways: true, ..PLAIN });
    check_multi_head(&Rule { theta: 100.0, reach: 3, cap: 0.5, ..PLAIN });
}

#[test]
fn grouped_attention_within_documents_and_a_window() {
    let r = Rule { theta: 50.0, reach: 2, cap: 0.4, ..PLAIN };
    let text = format!(
        "use nn.{{GroupedAttention}}
         dim batch = {BATCH}, pos = {POS}, d = {D}, kv = 2, group = 2, hd = {HD}
         model M(x: [batch, pos, d], document: int[batch, pos]) {{
             let few = GroupedAttention[pos, d, kv, group, hd, theta = 50.0, reach = 2, cap = 0.4]
             output y = few(x, document = document)
             output wq = few.wq
             output wk = few.wk
             output wv = few.wv
             output wo = few.wo
         }}"
    );
    let x = noise(81, BATCH * POS * D);
    let document = vec![0.0, 0.0, 1.0, 1.0, 1.0, 0.0, 1.0, 1.0, 2.0, 2.0];
    let out = run(&text, &[("x", x.clone()), ("document", document.clone())]);
    for (b, row) in x.chunks(POS * D).enumerate() {
        let mut y = [0.0; POS * D];
        for (kv, group) in (0..HEADS).map(|h| (h / 2, h % 2)) {
            let at =
                |name: &str, d: usize, e: usize| out[name].at(&[("d", d), ("kv", kv), ("group", group), ("hd", e)]);
            let project = |name: &str| -> Vec<Vec<f64>> {
                let element = |x: &[f64], e: usize| (0..D).map(|d| x[d] * at(name, d, e)).sum::<f64>();
                row.chunks(D).map(|x| (0..HD).map(|e| element(x, e)).collect()).collect()
            };
            let own = &document[b * POS..][..POS];
            let said = attend(&r, 2 * kv + group, &project("wq"), &project("wk"), &project("wv"), own);
            for (n, y) in y.iter_mut().enumerate() {
                *y += (0..HD).map(|e| said[n / D][e] * at("wo", n % D, e)).sum::<f64>();
            }
        }
        for (n, y) in y.iter().enumerate() {
            close(out["y"].at(&[("batch", b), ("pos", n / D), ("d", n % D)]), *y);
        }
    }
}
