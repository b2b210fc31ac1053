//! The standard library against plain formulas, evaluated by the reference interpreter.

#[path = "stdlib/dropout.rs"]
mod dropout;
#[path = "common/eval.rs"]
mod eval;
#[path = "stdlib/experts.rs"]
mod experts;
#[path = "stdlib/heads.rs"]
mod heads;
#[path = "stdlib/layers.rs"]
mod layers;
#[path = "support/step.rs"]
mod step;

use eval::{Named, Setting, noise, run, run_at};
use partita::elaborate::Mode;

#[track_caller]
fn close(a: f64, b: f64) {
    assert!((a - b).abs() <= 1e-9 * (1.0 + b.abs()), "{a} is not {b}");
}

fn only(text: &str, mode: Mode, inputs: &[(&str, Vec<f64>)], name: &str) -> Named {
    run(text, mode, inputs).remove(name).unwrap_or_else(|| panic!("no output `{name}`"))
}

#[test]
fn powers_of_ints_are_ints() {
    let text = "
        dim row = 6
        model M(x: int[row], n: int[row]) {
            output square = x ** 2
            output power = x ** n
            output inverse = x ** -1
        }";
    let x = vec![16_777_217.0, -3.0, 0.0, -1.0, 2.0, 1.0];
    let out = run(text, Mode::EVAL, &[("x", x), ("n", vec![3.0, 5.0, -2.0, -3.0, -1.0, -7.0])]);
    let wrapped = |n: u32| f64::from(16_777_217i32.wrapping_pow(n));
    assert_eq!(out["square"].data, [wrapped(2), 9.0, 0.0, 1.0, 4.0, 1.0]);
    assert_eq!(out["power"].data, [wrapped(3), -243.0, 0.0, -1.0, 0.0, 1.0]);
    close(out["inverse"].data[1], -1.0 / 3.0);
}

#[test]
fn softmax_leaves_out_what_is_masked_and_is_never_nan() {
    let text = "
        use nn.{softmax}
        dim row = 2, c = 4
        model M(x: [row, c], on: bool[row, c]) { output y = softmax[c](x, mask = on) }";
    let x = vec![0.0, 1.0, 2.0, 3.0, 5.0, 6.0, 7.0, 8.0];
    let y = only(text, Mode::EVAL, &[("x", x.clone()), ("on", vec![1.0, 1.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0])], "y");
    let total = 1.0 + 1f64.exp() + 3f64.exp();
    close(y.at(&[("row", 0), ("c", 1)]), 1f64.exp() / total);
    assert_eq!(y.at(&[("row", 0), ("c", 2)]), 0.0);
    for c in 0..4 {
        assert_eq!(y.at(&[("row", 1), ("c", c)]), 0.0);
    }
    let y = only(text, Mode::EVAL, &[("x", x), ("on", vec![1.0; 8])], "y");
    for (c, expected) in [0.0320586, 0.0871443, 0.2368828, 0.6439143].iter().enumerate() {
        assert!((y.at(&[("row", 0), ("c", c)]) - expected).abs() < 1e-7);
    }
}

#[test]
fn cross_entropy_of_four_classes_is_the_textbook_value() {
    let text = "
        use losses.{cross_entropy}
        dim batch = 2, c = 4
        model M(x: [batch, c], label: int[batch]) {
            output plain = cross_entropy[c](x, label)
            output smooth = cross_entropy[c, smoothing = 0.1](x, label)
            output steady = cross_entropy[c, z = 0.5](x, label)
        }";
    let x = vec![0.0, 1.0, 2.0, 3.0, 0.0, 1.0, 2.0, 3.0];
    let out = run(text, Mode::EVAL, &[("x", x), ("label", vec![1.0, -100.0])]);
    let total = (0..4).map(|i| f64::from(i).exp()).sum::<f64>().ln();
    close(out["plain"].data[0], total - 1.0);
    assert!((out["plain"].data[0] - 2.4401897).abs() < 1e-7);
    close(out["smooth"].data[0], total - 0.9 * 1.0 - 0.1 * 1.5);
    close(out["steady"].data[0], total - 1.0 + 0.5 * total * total);
    assert!(out.values().all(|v| v.data[1] == 0.0));
}

#[test]
fn cross_entropy_with_smoothing_and_z_is_the_sum_of_its_parts() {
    let text = "
        use losses.{cross_entropy}
        dim batch = 5, c = 4
        model M(x: [batch, c], label: int[batch]) {
            output y = cross_entropy[c, ignore = 3, smoothing = 0.2, z = 0.3](x, label)
        }";
    let x = noise(13, 20);
    let labels = [0, 3, 2, 1, 0];
    let given = [("x", x.clone()), ("label", labels.iter().map(|l| *l as f64).collect())];
    let y = only(text, Mode::EVAL, &given, "y");
    for (b, label) in labels.into_iter().enumerate() {
        let row = &x[b * 4..b * 4 + 4];
        let total = row.iter().map(|x| x.exp()).sum::<f64>().ln();
        // The target distribution: 0.8 for the label, and 0.2 / 4 for each class.
        let target = |c: usize| 0.05 + if c == label { 0.8 } else { 0.0 };
        let entropy: f64 = (0..4).map(|c| -target(c) * (row[c] - total)).sum();
        close(y.data[b], if label == 3 { 0.0 } else { entropy + 0.3 * total * total });
    }
}

#[test]
fn losses_of_numbers_are_their_formulas() {
    let text = "
        use losses.{absolute_error, bce, kl_unit, mse, square_error}
        dim batch = 3, d = 4
        model M(a: [batch, d], b: [batch, d]) {
            output squares = square_error(a, b)
            output mean_square = mse(a, b)
            output distance = absolute_error(a, b)
            output divergence = kl_unit(a, b)
            output binary = bce(4 * a, 0.5 + 0.5 * b)
        }";
    let (a, b) = (noise(14, 12), noise(15, 12));
    let out = run(text, Mode::EVAL, &[("a", a.clone()), ("b", b.clone())]);
    for i in 0..12 {
        let (a, b) = (a[i], b[i]);
        close(out["squares"].data[i], (a - b) * (a - b));
        close(out["distance"].data[i], if a > b { a - b } else { b - a });
        close(out["divergence"].data[i], 0.5 * (a * a + b.exp() - 1.0 - b));
        // -(t ln p + (1 - t) ln(1 - p)) for the probability p and the target t.
        let (p, t) = (1.0 / (1.0 + (-4.0 * a).exp()), 0.5 + 0.5 * b);
        close(out["binary"].data[i], -(t * p.ln() + (1.0 - t) * (1.0 - p).ln()));
    }
    close(out["mean_square"].data[0], a.iter().zip(&b).map(|(a, b)| (a - b).powi(2)).sum::<f64>() / 12.0);
    assert!(out["mean_square"].dims.is_empty());
}

#[test]
fn binary_cross_entropy_holds_far_from_zero() {
    let text = "
        use losses.{bce}
        dim batch = 4
        model M(x: [batch], t: [batch]) { output y = bce(x, t) }";
    let y = only(text, Mode::EVAL, &[("x", vec![0.0, 2.0, -800.0, 800.0]), ("t", vec![1.0, 0.0, 0.0, 0.0])], "y");
    close(y.data[0], 2f64.ln());
    close(y.data[1], (1.0 + 2f64.exp()).ln());
    close(y.data[2], 0.0);
    close(y.data[3], 800.0);
}

#[test]
fn norms_have_the_variance_of_the_whole_dim() {
    let text = "
        use nn.{LayerNorm, RmsNorm}
        dim batch = 3, d = 4
        model M(x: [batch, d]) {
            let layer1 = LayerNorm[d, eps = 0.0]
            let rms = RmsNorm[d, eps = 0.0]
            output y = layer1(x)
            output z = rms(x)
        }";
    let x = vec![1.0, 2.0, 3.0, 6.0, 1e4, 1e4 + 1.0, 1e4 + 2.0, 1e4 + 3.0, 0.0, 0.0, 0.0, 4.0];
    let out = run(text, Mode::EVAL, &[("x", x)]);
    let y = &out["y"];
    for (d, v) in [1.0, 2.0, 3.0, 6.0].iter().enumerate() {
        close(y.at(&[("batch", 0), ("d", d)]), (v - 3.0) / 3.5f64.sqrt());
        close(out["z"].at(&[("batch", 0), ("d", d)]), v / 12.5f64.sqrt());
    }
    for d in 0..4 {
        let got = y.at(&[("batch", 1), ("d", d)]);
        assert!((got - (d as f64 - 1.5) / 1.25f64.sqrt()).abs() < 1e-6, "{got}");
    }
    close(y.at(&[("batch", 2), ("d", 3)]), 3.0 / 3f64.sqrt());
}

#[test]
fn batch_norm_keeps_unbiased_running_statistics() {
    let text = "
        use nn.{BatchNorm}
        dim batch = 4, c = 1
        model M(x: [batch, c]) {
            let norm = BatchNorm[c, eps = 0.0]
            output y = norm(x)
        }";
    let x = vec![0.0, 0.0, 0.0, 4.0];
    let out = run(text, Mode::TRAIN, &[("x", x.clone())]);
    close(out["y"].at(&[("batch", 3), ("c", 0)]), 3.0 / 3f64.sqrt());
    let mean = out.iter().find(|(k, _)| k.ends_with("running_mean")).expect("an update").1;
    let var = out.iter().find(|(k, _)| k.ends_with("running_var")).expect("an update").1;
    close(mean.data[0], 0.1);
    close(var.data[0], 0.9 + 0.1 * 3.0 * 4.0 / 3.0);
    let y = only(text, Mode::EVAL, &[("x", x)], "y");
    close(y.at(&[("batch", 3), ("c", 0)]), 4.0);
}

#[test]
fn rope_turns_pairs_by_their_position() {
    let text = "
        use nn.{rope}
        dim pos = 3, d = 4
        model M(x: [pos, d]) { output y = rope[pos, d](x) }";
    let x = noise(1, 12);
    let y = only(text, Mode::EVAL, &[("x", x.clone())], "y");
    for pos in 0..3 {
        for i in 0..2 {
            let angle = pos as f64 * 10000f64.powf(-2.0 * i as f64 / 4.0);
            let (a, b) = (x[pos * 4 + i], x[pos * 4 + i + 2]);
            close(y.at(&[("pos", pos), ("d", i)]), a * angle.cos() - b * angle.sin());
            close(y.at(&[("pos", pos), ("d", i + 2)]), b * angle.cos() + a * angle.sin());
        }
    }
}

#[test]
fn alibi_loses_by_distance() {
    let text = "
        use nn.{alibi}
        dim heads = 4, q = 3, k = 3
        model M(x: [q]) { output y = alibi[heads, q, k]() + 0 * sum[q](x) }";
    let y = only(text, Mode::EVAL, &[("x", vec![0.0; 3])], "y");
    close(y.at(&[("heads", 0), ("q", 2), ("k", 0)]), -2.0 * 0.25);
    close(y.at(&[("heads", 3), ("q", 2), ("k", 1)]), -(2f64.powi(-8)));
}

#[test]
fn attention_of_documents_and_windows_sees_only_its_own() {
    // Values are one-hot in position, so the result shows the weights.
    let text = "
        use nn.{attention, causal, same_document}
        dim batch = 1, pos = 4, key = pos, d = 2, e = 4
        model M(q: [batch, pos, d], doc: int[batch, pos]) {
            let k = q[pos -> key]
            let v: [batch, key, e] = iota[key] == iota[e]
            output near = attention[key, d, e, scale = 1.0](q, k, v, mask = causal[pos, key, reach = 2]())
            let own = same_document[pos, key](doc)
            output apart = attention[key, d, e, scale = 1.0](q, k, v, mask = own and causal[pos, key]())
            output capped = attention[key, d, e, scale = 1.0, cap = 0.5](q, k, v)
        }";
    let q = noise(2, 8);
    let out = run(text, Mode::EVAL, &[("q", q.clone()), ("doc", vec![0.0, 0.0, 1.0, 1.0])]);
    let score = |i: usize, j: usize| q[i * 2] * q[j * 2] + q[i * 2 + 1] * q[j * 2 + 1];
    let weight = |i: usize, keys: &[usize], j: usize| {
        if !keys.contains(&j) { 0.0 } else { score(i, j).exp() / keys.iter().map(|k| score(i, *k).exp()).sum::<f64>() }
    };
    for j in 0..4 {
        let at = |pos| [("batch", 0), ("pos", pos), ("e", j)];
        close(out["near"].at(&at(3)), weight(3, &[2, 3], j));
        close(out["near"].at(&at(0)), weight(0, &[0], j));
        close(out["apart"].at(&at(2)), weight(2, &[2], j));
        close(out["apart"].at(&at(1)), weight(1, &[0, 1], j));
        let capped = |k: usize| (0.5 * (score(3, k) / 0.5).tanh()).exp();
        close(out["capped"].at(&at(3)), capped(j) / (0..4).map(capped).sum::<f64>());
    }
}

#[test]
fn convolutions_match_sums_over_taps() {
    let text = "
        use nn.{Conv1d, Conv2d, ConvTranspose1d, max_pool2d, mean_pool2d}
        dim batch = 1, pos = 8, i = 1, o = 1, half = 4, row = 4, col = 4, row2 = 2, col2 = 2
        model M(x: [batch, pos, i], y: [batch, row, col, i]) {
            let conv = Conv1d[pos, i, pos, o, bias = false]
            let step2 = Conv1d[pos, i, half, o, stride = 2, bias = false]
            let back = ConvTranspose1d[pos, i, double, o]
            let flat = Conv2d[row, col, i, row, col, o]
            output a = conv(x)
            output ka = conv.weight
            output b = step2(x)
            output kb = step2.weight
            output c = back(x)
            output kc = back.weight
            output d = flat(y)
            output kd = flat.weight
            output most = max_pool2d[row, col, row2, col2](y)
            output middle = mean_pool2d[row, col, row2, col2](y)
        }
        dim double = 2 * pos";
    let (x, y) = (noise(3, 8), noise(4, 16));
    let out = run(text, Mode::EVAL, &[("x", x.clone()), ("y", y.clone())]);
    let tap = |name: &str, t: usize| out[name].at(&[("tap", t), ("i", 0), ("o", 0)]);
    let read = |p: isize| if (0..8).contains(&p) { x[p as usize] } else { 0.0 };
    for p in 0..8 {
        let expected = (0..3).map(|t| read(p as isize + t - 1) * tap("ka", t as usize)).sum();
        close(out["a"].at(&[("batch", 0), ("pos", p), ("o", 0)]), expected);
    }
    for p in 0..4 {
        let expected = (0..3).map(|t| read(2 * p as isize + t - 1) * tap("kb", t as usize)).sum();
        close(out["b"].at(&[("batch", 0), ("half", p), ("o", 0)]), expected);
    }
    for p in 0..16isize {
        let expected = (0..8).flat_map(|q| (0..4).map(move |t| (q, t)));
        let expected =
            expected.filter(|(q, t)| 2 * q + t - 1 == p).map(|(q, t)| read(q) * tap("kc", t as usize)).sum::<f64>();
        close(out["c"].at(&[("batch", 0), ("double", p as usize), ("o", 0)]), expected);
    }
    let pixel = |r: isize, c: isize| {
        if (0..4).contains(&r) && (0..4).contains(&c) { y[(r * 4 + c) as usize] } else { 0.0 }
    };
    for (r, c) in [(0, 0), (1, 2), (3, 3)] {
        let mut expected = 0.0;
        for (a, b) in (0..3).flat_map(|a| (0..3).map(move |b| (a, b))) {
            let weight = out["kd"].at(&[("kh", a as usize), ("kw", b as usize), ("i", 0), ("o", 0)]);
            expected += pixel(r + a - 1, c + b - 1) * weight;
        }
        close(out["d"].at(&[("batch", 0), ("row", r as usize), ("col", c as usize), ("o", 0)]), expected);
    }
    let square = [y[2], y[3], y[6], y[7]];
    let at = [("batch", 0), ("row2", 0), ("col2", 1), ("i", 0)];
    close(out["most"].at(&at), square.iter().copied().fold(f64::MIN, f64::max));
    close(out["middle"].at(&at), square.iter().sum::<f64>() / 4.0);
}

#[test]
fn a_convolution_with_padding_sees_zeros_outside() {
    let text = "
        dim batch = 1, pos = 8, tap = 3
        const kernel: [tap] = [1.0, 0.0, -1.0]
        model M(x: [batch, pos]) { output y = dot[tap](window[pos -> (pos, tap), pad = 1](x), kernel) }";
    let y = only(text, Mode::EVAL, &[("x", (1..=8).map(f64::from).collect())], "y");
    assert_eq!(y.data, [-2.0, -2.0, -2.0, -2.0, -2.0, -2.0, -2.0, 7.0]);
}

#[test]
fn the_selective_scan_is_its_recurrence() {
    let text = "
        use nn.{selective_scan}
        dim batch = 1, pos = 5, c = 2, n = 3
        model M(x: [batch, pos, c], dt: [batch, pos, c], a: [c, n], b: [batch, pos, n], e: [batch, pos, n]) {
            output y = selective_scan[pos, n](x, dt, a, b, e)
        }";
    let (x, dt, a, b, e) = (noise(5, 10), noise(6, 10), noise(7, 6), noise(8, 15), noise(9, 15));
    let inputs = [("x", x.clone()), ("dt", dt.clone()), ("a", a.clone()), ("b", b.clone()), ("e", e.clone())];
    let y = only(text, Mode::EVAL, &inputs, "y");
    for c in 0..2 {
        let mut h = [0.0; 3];
        for t in 0..5 {
            let mut out = 0.0;
            for n in 0..3 {
                let d = dt[t * 2 + c];
                h[n] = (d * a[c * 3 + n]).exp() * h[n] + d * b[t * 3 + n] * x[t * 2 + c];
                out += e[t * 3 + n] * h[n];
            }
            close(y.at(&[("batch", 0), ("pos", t), ("c", c)]), out);
        }
    }
}

#[test]
fn the_lstm_is_its_recurrence() {
    let text = "
        use nn.{Lstm}
        dim batch = 2, pos = 4, i = 3, h = 2
        model M(x: [batch, pos, i]) {
            let lstm = Lstm[pos, i, h]
            output y = lstm(x)
            output wx = lstm.wx
            output wh = lstm.wh
            output bias = lstm.bias
        }";
    let x = noise(10, 24);
    let out = run_at(text, &Setting { noisy: true, ..Setting::default() }, &[("x", x.clone())]);
    let sigmoid = |v: f64| 1.0 / (1.0 + (-v).exp());
    for batch in 0..2 {
        let (mut h, mut c) = ([0.0; 2], [0.0; 2]);
        for t in 0..4 {
            let gate = |g: usize, j: usize| {
                let wx = |i| out["wx"].at(&[("i", i), ("gate", g), ("hidden", j), ("h", j)]);
                let wh = |k| out["wh"].at(&[("prev", k), ("gate", g), ("hidden", j), ("h", j)]);
                out["bias"].at(&[("gate", g), ("hidden", j), ("h", j)])
                    + (0..3).map(|i| x[(batch * 4 + t) * 3 + i] * wx(i)).sum::<f64>()
                    + (0..2).map(|k| h[k] * wh(k)).sum::<f64>()
            };
            let gates: Vec<[f64; 4]> = (0..2).map(|j| [gate(0, j), gate(1, j), gate(2, j), gate(3, j)]).collect();
            for j in 0..2 {
                c[j] = sigmoid(gates[j][1]) * c[j] + sigmoid(gates[j][0]) * gates[j][2].tanh();
                h[j] = sigmoid(gates[j][3]) * c[j].tanh();
                close(out["y"].at(&[("batch", batch), ("pos", t), ("h", j)]), h[j]);
            }
        }
    }
}

#[test]
fn the_forget_gate_of_an_lstm_may_begin_open() {
    let text = "
        use nn.{Lstm}
        dim batch = 2, pos = 4, i = 3, h = 2
        model M(x: [batch, pos, i]) {
            let shut = Lstm[pos, i, h]
            let open = Lstm[pos, i, h, forget_bias = 1.5]
            output y = shut(x) + open(x)
            output a = shut.bias
            output b = open.bias
        }";
    let out = run_at(text, &Setting::default(), &[("x", noise(10, 24))]);
    for gate in 0..4 {
        for j in 0..2 {
            let place = [("gate", gate), ("hidden", j), ("h", j)];
            close(out["a"].at(&place), 0.0);
            close(out["b"].at(&place), if gate == 1 { 1.5 } else { 0.0 });
        }
    }
}

#[test]
fn dropless_experts_add_up_what_each_chosen_one_says() {
    let text = "
        use nn.{Moe}
        dim batch = 2, pos = 4, d = 3, e = 4, ff = 5, pick = 2
        model M(x: [batch, pos, d]) {
            let moe = Moe[pos, d, e, ff, pick, std = 0.7]
            output y = moe(x)
            output router = moe.router.weight
            output gate = moe.ffn.gate
            output up = moe.ffn.up
            output down = moe.ffn.down
        }";
    let x = noise(11, 24);
    let out = run(text, Mode::TRAIN, &[("x", x.clone())]);
    let silu = |v: f64| v / (1.0 + (-v).exp());
    for row in 0..8 {
        let own = &x[row * 3..row * 3 + 3];
        let logit: Vec<f64> =
            (0..4).map(|e| (0..3).map(|d| own[d] * out["router"].at(&[("d", d), ("e", e)])).sum()).collect();
        let mut order: Vec<usize> = (0..4).collect();
        order.sort_by(|a, b| logit[*b].total_cmp(&logit[*a]));
        let weights = [logit[order[0]].exp(), logit[order[1]].exp()];
        for d in 0..3 {
            let mut expected = 0.0;
            for (e, weight) in order.iter().take(2).zip(weights) {
                let inner = |name: &str, f: usize| {
                    (0..3).map(|d| own[d] * out[name].at(&[("e", *e), ("d", d), ("ff", f)])).sum::<f64>()
                };
                let said: f64 = (0..5)
                    .map(|f| {
                        silu(inner("gate", f)) * inner("up", f) * out["down"].at(&[("e", *e), ("ff", f), ("d", d)])
                    })
                    .sum();
                expected += weight / (weights[0] + weights[1]) * said;
            }
            let got = out["y"].at(&[("batch", row / 4), ("pos", row % 4), ("d", d)]);
            assert!((got - expected).abs() < 1e-9, "row {row}: {got} is not {expected}");
        }
    }
    assert_eq!(out.iter().find(|(k, _)| k.ends_with("dropped")).expect("a metric").1.data[0], 0.0);
}

#[test]
fn every_remaining_layer_can_be_used() {
    let text = "
        use nn.{GeGlu, GroupedAttention, Mlp, Moe, MultiHeadAttention, SelectiveScan, ShortConv, SwiGlu,
            dropout, leaky_relu, log_softmax, max_pool1d, mean_pool1d, modulate, quick_gelu, silu, sinusoidal, softcap}
        use losses.{absolute_error, kl_unit, mse}
        dim batch = 2, pos = 8, half = 4, d = 8, kv = 2, group = 2, heads = 4, hd = 2, hd4 = 4, ff = 6, n = 3, r = 2
        dim e = 4, pick = 2
        model M(x: [batch, pos, d], doc: int[batch, pos]) {
            let many = MultiHeadAttention[pos, d, heads, hd, theta = 1e4, linear_bias = true, cap = 20.0]
            let open = MultiHeadAttention[pos, d, heads, hd, both_ways = true]
            let few = GroupedAttention[pos, d, kv, group, hd4, reach = 4]
            let alone = GroupedAttention[pos, d, kv, group, hd4]
            let plain = Mlp[d, ff]
            let swi = SwiGlu[d, ff]
            let ge = GeGlu[d, ff]
            let short = ShortConv[pos, d]
            let scanned = SelectiveScan[pos, d, n, r]
            let steered = Moe[pos, d, e, ff, pick, capacity = 1.0, shared = 1, independent = true, steer = 1e-3, z = 1e-3]
            let h1 = x + many(x) + open(x) + few(x, document = doc) + alone(x)
            let h2 = h1 + plain(h1) + swi(h1) + ge(h1) + short(h1) + scanned(h1) + steered(h1)
            let h3 = dropout[p = 0.5](modulate(h2, h1, x) + sinusoidal[pos, d]())
            let h4 = leaky_relu(quick_gelu(softcap(silu(h3))))
            output pooled = max_pool1d[pos, half](h4) + mean_pool1d[pos, half](h4)
            loss fit = mse(h4, x)
            loss more = mean[batch, pos, d](absolute_error(h4, x) + kl_unit(h4, x) - log_softmax[d](h4))
        }";
    for mode in [Mode::TRAIN, Mode::EVAL] {
        let doc = (0..16).map(|i| f64::from(i % 8 / 4)).collect();
        let out = run(text, mode, &[("x", noise(12, 128)), ("doc", doc)]);
        assert_eq!(out["pooled"].sizes.iter().product::<usize>(), 64);
        assert!(out.values().all(|v| v.data.iter().all(|x| x.is_finite())));
    }
}
