//! Routers and layers of experts against loops over positions, choices and experts.

use super::close;
use crate::eval::{Named, Setting, noise, run_at};
use partita::elaborate::Mode;
use std::collections::BTreeMap;

const BATCH: usize = 2;
const POS: usize = 6;
const D: usize = 3;
const E: usize = 4;
const FF: usize = 5;
const PICK: usize = 2;

/// The settings of a layer of experts, and how it is run.
#[derive(Clone, Copy)]
struct Layer {
    independent: bool,
    capacity: f64,
    shared: usize,
    even: f64,
    z: f64,
    steer: f64,
    bias: [f64; E],
    training: bool,
}

const PLAIN: Layer = Layer {
    independent: false,
    capacity: 0.0,
    shared: 0,
    even: 0.01,
    z: 0.0,
    steer: 0.0,
    bias: [0.0; E],
    training: true,
};

type Outputs = BTreeMap<String, Named>;

impl Layer {
    fn run(&self, x: &[f64]) -> Outputs {
        let Layer { independent, capacity, shared, even, z, steer, .. } = self;
        let common = ["gate", "up", "down"].map(|w| format!("output common_{w} = moe.common.{w}\n")).concat();
        let text = format!(
            "use nn.{{Moe}}
             dim batch = {BATCH}, pos = {POS}, d = {D}, e = {E}, ff = {FF}, pick = {PICK}
             model M(x: [batch, pos, d]) {{
                 let moe = Moe[
                     pos, d, e, ff, pick, independent = {independent}, capacity = {capacity:?}, shared = {shared},
                     even = {even:?}, z = {z:?}, steer = {steer:?}
                 ]
                 output y = moe(x)
                 output router = moe.router.weight
                 output gate = moe.ffn.gate
                 output up = moe.ffn.up
                 output down = moe.ffn.down
                 {}
             }}",
            if *shared > 0 { common } else { String::new() }
        );
        let states = [("bias", self.bias.to_vec())];
        let setting = Setting {
            mode: if self.training { Mode::TRAIN } else { Mode::EVAL },
            noisy: true,
            states: if *steer > 0.0 { &states } else { &[] },
            ..Setting::default()
        };
        run_at(&text, &setting, &[("x", x.to_vec())])
    }
}

/// What a layer must give.
struct Expected {
    /// [batch, pos, d]
    y: Vec<f64>,
    balance: f64,
    size: f64,
    busiest: f64,
    /// Choices without room, and positions that lost all of theirs.
    dropped: usize,
    lost: usize,
    bias: [f64; E],
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// down(silu(gate x) * up x), with weights read by `at(name, in, out)`.
fn swiglu(x: &[f64], width: usize, at: impl Fn(&str, usize, usize) -> f64) -> Vec<f64> {
    let inner = |name: &str, f: usize| x.iter().enumerate().map(|(d, x)| x * at(name, d, f)).sum::<f64>();
    let hidden: Vec<f64> = (0..width).map(|f| inner("gate", f) * sigmoid(inner("gate", f)) * inner("up", f)).collect();
    (0..x.len()).map(|d| (0..width).map(|f| hidden[f] * at("down", f, d)).sum()).collect()
}

fn expert(out: &Outputs, e: usize, x: &[f64]) -> Vec<f64> {
    swiglu(x, FF, |name, i, o| {
        let (d, ff) = if name == "down" { (o, i) } else { (i, o) };
        out[name].at(&[("e", e), ("d", d), ("ff", ff)])
    })
}

fn expect(s: &Layer, x: &[f64], out: &Outputs) -> Expected {
    let mut found =
        Expected { y: Vec::new(), balance: 0.0, size: 0.0, busiest: 0.0, dropped: 0, lost: 0, bias: s.bias };
    let room = (s.capacity * (PICK * POS) as f64 / E as f64).ceil() as usize;
    let (mut shares, mut load) = ([0.0; E], [0.0; E]);
    for sequence in x.chunks(POS * D) {
        let rows: Vec<&[f64]> = sequence.chunks(D).collect();
        let router = |row: &[f64], e| (0..D).map(|d| row[d] * out["router"].at(&[("d", d), ("e", e)])).sum::<f64>();
        let logits: Vec<[f64; E]> = rows.iter().map(|row| [0, 1, 2, 3].map(|e| router(row, e))).collect();
        let scores: Vec<[f64; E]> = logits
            .iter()
            .map(|l| {
                let total: f64 = l.iter().map(|v| v.exp()).sum();
                l.map(|v| if s.independent { sigmoid(v) } else { v.exp() / total })
            })
            .collect();
        let chosen: Vec<Vec<usize>> = scores
            .iter()
            .map(|score| {
                let mut order: Vec<usize> = (0..E).collect();
                order.sort_by(|a, b| (score[*b] + s.bias[*b]).total_cmp(&(score[*a] + s.bias[*a])));
                order.truncate(PICK);
                order
            })
            .collect();
        // Queues: the first choices of all positions in order, then the second ones.
        let mut queued = [0; E];
        let mut kept = [[true; PICK]; POS];
        for choice in 0..PICK {
            for at in 0..POS {
                let e = chosen[at][choice];
                kept[at][choice] = s.capacity == 0.0 || !s.training || queued[e] < room;
                queued[e] += 1;
            }
        }
        for e in 0..E {
            let share = queued[e] as f64 / (PICK * POS) as f64;
            let prob = scores.iter().map(|score| score[e] / score.iter().sum::<f64>()).sum::<f64>() / POS as f64;
            found.balance += s.even * E as f64 * share * prob / BATCH as f64;
            shares[e] += share / BATCH as f64;
            load[e] += queued[e] as f64;
        }
        for l in &logits {
            let total = l.iter().map(|v| v.exp()).sum::<f64>().ln();
            found.size += s.z * total * total / (BATCH * POS) as f64;
        }
        for at in 0..POS {
            let mut y = vec![0.0; D];
            // Weights are shares of both choices, also where one of them was dropped.
            let total: f64 = chosen[at].iter().map(|e| scores[at][*e]).sum();
            for e in (0..PICK).filter(|c| kept[at][*c]).map(|c| chosen[at][c]) {
                let said = expert(out, e, rows[at]);
                (0..D).for_each(|d| y[d] += scores[at][e] / total * said[d]);
            }
            if s.shared > 0 {
                let said = swiglu(rows[at], s.shared * FF, |name, i, o| {
                    let (d, wide) = if name == "down" { (o, i) } else { (i, o) };
                    out[&format!("common_{name}")].at(&[("d", d), ("wide", wide), ("ff", wide)])
                });
                (0..D).for_each(|d| y[d] += said[d]);
            }
            found.y.extend(y);
            found.dropped += kept[at].iter().filter(|k| !**k).count();
            found.lost += usize::from(kept[at] == [false; PICK]);
        }
    }
    found.busiest = shares.iter().copied().fold(0.0, f64::max) * E as f64;
    let mean = load.iter().sum::<f64>() / E as f64;
    for (bias, load) in found.bias.iter_mut().zip(load) {
        *bias += s.steer * if load == mean { 0.0 } else { (mean - load).signum() };
    }
    found
}

/// Runs a layer and compares all that it gives; what was expected is for further checks.
fn check(s: Layer, seed: u32) -> Expected {
    let x: Vec<f64> = noise(seed, BATCH * POS * D).iter().map(|x| 2.0 * x).collect();
    let out = s.run(&x);
    let expected = expect(&s, &x, &out);
    for (n, y) in expected.y.iter().enumerate() {
        close(out["y"].at(&[("batch", n / D / POS), ("pos", n / D % POS), ("d", n % D)]), *y);
    }
    let figure = |name: &str| out.iter().find(|(k, _)| k.ends_with(name)).map(|(_, v)| v.data.clone());
    close(figure("balance").expect("a loss")[0], expected.balance);
    close(figure("busiest").expect("a metric")[0], expected.busiest);
    close(figure("dropped").expect("a metric")[0], expected.dropped as f64 / (BATCH * POS * PICK) as f64);
    assert_eq!(figure("size").is_some(), s.z > 0.0);
    figure("size").into_iter().for_each(|size| close(size[0], expected.size));
    if s.steer > 0.0 && s.training {
        let bias = figure("bias").expect("an update");
        (0..E).for_each(|e| close(bias[e], expected.bias[e]));
    }
    expected
}

#[test]
fn a_softmax_router_weighs_what_it_chose() {
    assert!(check(PLAIN, 40).balance > 0.0);
}

#[test]
fn a_sigmoid_router_divides_by_what_it_chose() {
    check(Layer { independent: true, ..PLAIN }, 41);
}

#[test]
fn router_losses_are_those_of_the_papers() {
    assert!(check(Layer { even: 0.3, z: 0.2, ..PLAIN }, 42).size > 0.0);
    assert!(check(Layer { even: 0.3, z: 0.2, independent: true, ..PLAIN }, 43).size > 0.0);
}

#[test]
fn shared_experts_see_every_position() {
    check(Layer { shared: 1, ..PLAIN }, 44);
    check(Layer { shared: 2, capacity: 0.5, ..PLAIN }, 45);
}

#[test]
fn full_experts_drop_the_last_in_their_queues() {
    let tight = check(Layer { capacity: 0.4, ..PLAIN }, 46);
    assert!(tight.dropped > 0 && tight.lost > 0, "{} dropped, {} lost", tight.dropped, tight.lost);
    assert!(check(Layer { capacity: 0.9, independent: true, ..PLAIN }, 46).dropped < tight.dropped);
    assert_eq!(check(Layer { capacity: E as f64, ..PLAIN }, 46).dropped, 0, "room for all");
    assert_eq!(check(Layer { capacity: 0.4, training: false, ..PLAIN }, 46).dropped, 0, "evaluation drops nothing");
}

#[test]
fn a_steered_router_chooses_by_the_bias_and_weighs_without_it() {
    let steered = Layer { steer: 0.05, independent: true, ..PLAIN };
    check(steered, 47);
    let bias = [0.3, -0.9, 0.2, 0.6];
    let moved = check(Layer { bias, ..steered }, 47);
    assert_ne!(moved.y, check(steered, 47).y, "the bias changes choices");
    assert_ne!(moved.bias, bias);
    check(Layer { bias, training: false, ..steered }, 47);
}
