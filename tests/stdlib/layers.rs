//! Layers and pointwise functions against loops over elements; parameters are noise, so that biases and gains show.

use super::close;
use crate::eval::{Named, Setting, noise, run_at};
use std::collections::BTreeMap;
use std::f64::consts::PI;

type Outputs = BTreeMap<String, Named>;

/// Evaluates a text whose inputs are noise of these sizes.
fn evaluate(text: &str, inputs: &[(&str, usize)]) -> (Outputs, BTreeMap<String, Vec<f64>>) {
    let given: Vec<(&str, Vec<f64>)> =
        inputs.iter().enumerate().map(|(seed, (name, n))| (*name, noise(60 + seed as u32, *n))).collect();
    let out = run_at(text, &Setting { noisy: true, ..Setting::default() }, &given);
    (out, given.into_iter().map(|(name, data)| (name.to_string(), data)).collect())
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

fn gelu_tanh(x: f64) -> f64 {
    0.5 * x * (1.0 + ((2.0 / PI).sqrt() * (x + 0.044715 * x * x * x)).tanh())
}

/// The error function by its power series, for small x.
fn erf(x: f64) -> f64 {
    let (mut term, mut sum) = (x, x);
    for n in 1..60 {
        term *= -x * x / f64::from(n);
        sum += term / f64::from(2 * n + 1);
    }
    2.0 / PI.sqrt() * sum
}

#[test]
fn pointwise_functions_are_their_formulas() {
    let names = [
        "relu",
        "leaky_relu",
        "leaky_relu[slope = 0.5]",
        "silu",
        "gelu",
        "gelu_tanh",
        "quick_gelu",
        "softcap[limit = 0.7]",
    ];
    let formulas: [fn(f64) -> f64; 8] = [
        |x| if x > 0.0 { x } else { 0.0 },
        |x| if x > 0.0 { x } else { 0.2 * x },
        |x| if x > 0.0 { x } else { 0.5 * x },
        |x| x * sigmoid(x),
        |x| 0.5 * x * (1.0 + erf(x / 2f64.sqrt())),
        gelu_tanh,
        |x| x * sigmoid(1.702 * x),
        |x| 0.7 * (x / 0.7).tanh(),
    ];
    let lines: Vec<String> = names.iter().enumerate().map(|(n, f)| format!("output y{n} = {f}(3 * x)\n")).collect();
    let text = format!(
        "use nn.{{gelu, gelu_tanh, leaky_relu, log_softmax, modulate, one_hot, outer, quick_gelu, relu, silu, softcap}}
         dim n = 16, m = 3
         model M(x: [n], y: [m]) {{
             {}
             output product = outer(x, y)
             output logs = log_softmax[n](x)
             output moved = modulate(x, square(x), 2 * x)
             output hot = one_hot[n](int(8 * y + 8))
         }}",
        lines.concat()
    );
    let (out, given) = evaluate(&text, &[("x", 16), ("y", 3)]);
    let (x, y) = (&given["x"], &given["y"]);
    for (n, formula) in formulas.iter().enumerate() {
        (0..16).for_each(|i| close(out[&format!("y{n}")].data[i], formula(3.0 * x[i])));
    }
    let total = x.iter().map(|x| x.exp()).sum::<f64>().ln();
    for (i, x) in x.iter().enumerate() {
        close(out["logs"].data[i], x - total);
        close(out["moved"].data[i], x * (1.0 + 2.0 * x) + x * x);
        (0..3).for_each(|j| close(out["product"].at(&[("n", i), ("m", j)]), x * y[j]));
    }
    let hot = |m: usize| (0..16).filter(|n| out["hot"].at(&[("n", *n), ("m", m)]) != 0.0).collect::<Vec<_>>();
    (0..3).for_each(|m| assert_eq!(hot(m), [(8.0 * y[m] + 8.0) as usize]));
}

#[test]
fn norms_apply_their_gain_and_bias() {
    let text = "
        use nn.{LayerNorm, RmsNorm}
        dim batch = 3, d = 4
        model M(x: [batch, d]) {
            let layer1 = LayerNorm[d, eps = 0.1]
            let rms = RmsNorm[d, eps = 0.1]
            let near = RmsNorm[d, eps = 0.1, unit = true]
            output y = layer1(x)
            output scale = layer1.scale
            output bias = layer1.bias
            output z = rms(x)
            output gain = rms.scale
            output u = near(x)
            output distance = near.scale
        }";
    let (out, given) = evaluate(text, &[("x", 12)]);
    for (b, x) in given["x"].chunks(4).enumerate() {
        let mean = x.iter().sum::<f64>() / 4.0;
        let variance = x.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / 4.0;
        let power = x.iter().map(|x| x * x).sum::<f64>() / 4.0;
        for (d, x) in x.iter().enumerate() {
            let at = [("batch", b), ("d", d)];
            let own = |name: &str| out[name].data[d];
            close(out["y"].at(&at), (x - mean) / (variance + 0.1).sqrt() * own("scale") + own("bias"));
            close(out["z"].at(&at), x / (power + 0.1).sqrt() * own("gain"));
            close(out["u"].at(&at), x / (power + 0.1).sqrt() * (1.0 + own("distance")));
        }
    }
}

#[test]
fn gated_and_plain_feed_forward_layers() {
    let text = "
        use nn.{GeGlu, Mlp, SwiGlu}
        dim batch = 3, d = 4, ff = 5
        model M(x: [batch, d]) {
            let ge = GeGlu[d, ff]
            let swi = SwiGlu[d, ff]
            let mlp = Mlp[d, ff]
            output y_ge = ge(x)
            output y_swi = swi(x)
            output y_mlp = mlp(x)
            output ge_gate = ge.gate
            output ge_up = ge.up
            output ge_down = ge.down
            output swi_gate = swi.gate
            output swi_up = swi.up
            output swi_down = swi.down
            output mlp_up = mlp.up.weight
            output mlp_shift = mlp.up.shift
            output mlp_down = mlp.down.weight
            output mlp_out = mlp.down.shift
        }";
    let (out, given) = evaluate(text, &[("x", 12)]);
    // Parameters of an inner map are named by its own dims: `i` and `o` stand for the dims that it was given.
    let at = |name: &str, d: usize, ff: usize| out[name].at(&[("d", d), ("ff", ff)]);
    for (b, x) in given["x"].chunks(4).enumerate() {
        let into = |name: &str, f: usize| (0..4).map(|d| x[d] * at(name, d, f)).sum::<f64>();
        for d in 0..4 {
            let gated = |kind: &str, act: fn(f64) -> f64| {
                let [gate, up, down] = ["gate", "up", "down"].map(|part| format!("{kind}_{part}"));
                (0..5).map(|f| act(into(&gate, f)) * into(&up, f) * at(&down, d, f)).sum::<f64>()
            };
            let place = [("batch", b), ("d", d)];
            close(out["y_ge"].at(&place), gated("ge", gelu_tanh));
            close(out["y_swi"].at(&place), gated("swi", |x| x * sigmoid(x)));
            let hidden = |f: usize| gelu_tanh(into("mlp_up", f) + out["mlp_shift"].data[f]);
            let plain: f64 = (0..5).map(|f| hidden(f) * at("mlp_down", d, f)).sum();
            close(out["y_mlp"].at(&place), plain + out["mlp_out"].data[d]);
        }
    }
}

#[test]
fn convolutions_with_channels_strides_dilation_and_biases() {
    let text = "
        use nn.{Conv1d, Conv2d}
        dim batch = 2, pos = 9, i = 2, o = 3, short = 5, row = 5, col = 4, row2 = 3, col2 = 2
        model M(x: [batch, pos, i], y: [batch, row, col, i]) {
            let wide = Conv1d[pos, i, short, o, stride = 2, dilation = 2, pad = 2]
            let flat = Conv2d[row, col, i, row2, col2, o, stride = 2, bias = true]
            output a = wide(x)
            output ka = wide.weight
            output sa = wide.shift
            output b = flat(y)
            output kb = flat.weight
            output sb = flat.shift
        }";
    let (out, given) = evaluate(text, &[("x", 36), ("y", 80)]);
    let x = |b: usize, p: isize, i: usize| {
        if (0..9).contains(&p) { given["x"][(b * 9 + p as usize) * 2 + i] } else { 0.0 }
    };
    let y = |b: usize, r: isize, c: isize, i: usize| {
        if !(0..5).contains(&r) || !(0..4).contains(&c) {
            return 0.0;
        }
        given["y"][((b * 5 + r as usize) * 4 + c as usize) * 2 + i]
    };
    for (b, o) in (0..2).flat_map(|b| (0..3).map(move |o| (b, o))) {
        for p in 0..5 {
            let mut sum = out["sa"].data[o];
            for (tap, i) in (0..3).flat_map(|tap| (0..2).map(move |i| (tap, i))) {
                let from = (2 * p + 2 * tap) as isize - 2;
                sum += x(b, from, i) * out["ka"].at(&[("tap", tap), ("i", i), ("o", o)]);
            }
            close(out["a"].at(&[("batch", b), ("short", p), ("o", o)]), sum);
        }
        for (r, c) in (0..3).flat_map(|r| (0..2).map(move |c| (r, c))) {
            let mut sum = out["sb"].data[o];
            for (kh, kw) in (0..3).flat_map(|kh| (0..3).map(move |kw| (kh, kw))) {
                for i in 0..2 {
                    let from = y(b, (2 * r + kh) as isize - 1, (2 * c + kw) as isize - 1, i);
                    sum += from * out["kb"].at(&[("kh", kh), ("kw", kw), ("i", i), ("o", o)]);
                }
            }
            close(out["b"].at(&[("batch", b), ("row2", r), ("col2", c), ("o", o)]), sum);
        }
    }
}

/// Each input element adds its piece, `weight` times itself, to where it belongs.
#[test]
fn transposed_convolutions_scatter_their_pieces() {
    let text = "
        use nn.{ConvTranspose2d}
        dim batch = 2, row = 3, col = 2, i = 2, o = 3, tall = 6, wide = 4, tall3 = 5, wide3 = 4
        model M(x: [batch, row, col, i]) {
            let twice = ConvTranspose2d[row, col, i, tall, wide, o]
            let edge = ConvTranspose2d[row, col, i, tall3, wide3, o, side = 3, stride = 1, pad = 0]
            output a = twice(x)
            output ka = twice.weight
            output b = edge(x)
            output kb = edge.weight
        }";
    let (out, given) = evaluate(text, &[("x", 24)]);
    for (y, k, names, sizes, side, stride, pad) in
        [("a", "ka", ["tall", "wide"], [6, 4], 4, 2, 1), ("b", "kb", ["tall3", "wide3"], [5, 4], 3, 1, 0)]
    {
        let mut expected = vec![0.0; 2 * sizes[0] * sizes[1] * 3];
        for (n, x) in given["x"].iter().enumerate() {
            let (b, r, c, i) = (n / 12, n / 4 % 3, n / 2 % 2, n % 2);
            for (kh, kw) in (0..side).flat_map(|kh| (0..side).map(move |kw| (kh, kw))) {
                let (p, q) = ((r * stride + kh).wrapping_sub(pad), (c * stride + kw).wrapping_sub(pad));
                if p < sizes[0] && q < sizes[1] {
                    for o in 0..3 {
                        expected[((b * sizes[0] + p) * sizes[1] + q) * 3 + o] +=
                            x * out[k].at(&[("i", i), ("kh", kh), ("kw", kw), ("o", o)]);
                    }
                }
            }
        }
        for (n, want) in expected.iter().enumerate() {
            let (b, p, q) = (n / 3 / sizes[1] / sizes[0], n / 3 / sizes[1] % sizes[0], n / 3 % sizes[1]);
            close(out[y].at(&[("batch", b), (names[0], p), (names[1], q), ("o", n % 3)]), *want);
        }
    }
}

/// Padding is no element for max, and a zero for mean. All elements are below zero, where the difference shows.
#[test]
fn pools_at_their_borders() {
    let text = "
        use nn.{max_pool1d, max_pool2d, mean_pool1d, mean_pool2d}
        dim batch = 2, pos = 7, pos2 = 4, row = 5, col = 4, row2 = 3, col2 = 2
        model M(x: [batch, pos], y: [batch, row, col]) {
            let a = x - 2
            let b = y - 2
            output most = max_pool1d[pos, pos2, side = 3, pad = 1](a)
            output middle = mean_pool1d[pos, pos2, side = 3, pad = 1](a)
            output most2 = max_pool2d[row, col, row2, col2, side = 3, pad = 1](b)
            output middle2 = mean_pool2d[row, col, row2, col2, side = 3, pad = 1](b)
        }";
    let (out, given) = evaluate(text, &[("x", 14), ("y", 40)]);
    // The elements that a window of 3 reads at stride 2 from one place before the start.
    let seen = |p: usize, n: usize| (0..3).map(move |k| 2 * p + k).filter(move |q| (1..=n).contains(q)).map(|q| q - 1);
    for b in 0..2 {
        for p in 0..4 {
            let own: Vec<f64> = seen(p, 7).map(|q| given["x"][b * 7 + q] - 2.0).collect();
            let at = [("batch", b), ("pos2", p)];
            close(out["most"].at(&at), own.iter().copied().fold(f64::MIN, f64::max));
            close(out["middle"].at(&at), own.iter().sum::<f64>() / 3.0);
        }
        for (r, c) in (0..3).flat_map(|r| (0..2).map(move |c| (r, c))) {
            let cells = seen(r, 5).flat_map(|p| seen(c, 4).map(move |q| (p, q)));
            let own: Vec<f64> = cells.map(|(p, q)| given["y"][(b * 5 + p) * 4 + q] - 2.0).collect();
            let at = [("batch", b), ("row2", r), ("col2", c)];
            close(out["most2"].at(&at), own.iter().copied().fold(f64::MIN, f64::max));
            close(out["middle2"].at(&at), own.iter().sum::<f64>() / 9.0);
        }
    }
}

#[test]
fn positions_as_features() {
    let text = "
        use nn.{Embedding, LearnedPosition, sinusoidal}
        dim pos = 5, d = 6, v = 4
        model M(x: [pos]) {
            let table = Embedding[v, d]
            let place = LearnedPosition[pos, d]
            output waves = sinusoidal[pos, d]()
            output y = table(int(2 * x + 2)) + place()
            output rows = table.table
            output places = place.table
        }";
    let (out, given) = evaluate(text, &[("x", 5)]);
    for (pos, d) in (0..5).flat_map(|pos| (0..6).map(move |d| (pos, d))) {
        let angle = pos as f64 * 10000f64.powf(-2.0 * (d % 3) as f64 / 6.0);
        let at = [("pos", pos), ("d", d)];
        close(out["waves"].at(&at), if d < 3 { angle.sin() } else { angle.cos() });
        let row = (2.0 * given["x"][pos] + 2.0) as usize;
        close(out["y"].at(&at), out["rows"].at(&[("v", row), ("d", d)]) + out["places"].at(&at));
    }
}

#[test]
fn a_short_convolution_sees_nothing_later() {
    let text = "
        use nn.{ShortConv}
        dim batch = 2, pos = 6, c = 3
        model M(x: [batch, pos, c]) {
            let conv = ShortConv[pos, c]
            output y = conv(x)
            output weight = conv.weight
            output shift = conv.shift
        }";
    let (out, given) = evaluate(text, &[("x", 36)]);
    for (b, p, c) in (0..36).map(|n| (n / 18, n / 3 % 6, n % 3)) {
        let past = (0..4usize).filter(|tap| p + tap >= 3);
        let sum: f64 = past
            .map(|tap| given["x"][(b * 6 + p + tap - 3) * 3 + c] * out["weight"].at(&[("tap", tap), ("c", c)]))
            .sum();
        close(out["y"].at(&[("batch", b), ("pos", p), ("c", c)]), sum + out["shift"].data[c]);
    }
}

#[test]
fn a_selective_state_space_is_its_recurrence() {
    let text = "
        use nn.{SelectiveScan}
        dim batch = 2, pos = 5, c = 3, n = 4, r = 2
        model M(x: [batch, pos, c]) {
            let scan1 = SelectiveScan[pos, c, n, r]
            output y = scan1(x)
            output w_b = scan1.w_b
            output w_c = scan1.w_c
            output dt_down = scan1.dt_down
            output dt_up = scan1.dt_up
            output dt_bias = scan1.dt_bias
            output a_log = scan1.a_log
            output skip = scan1.skip
        }";
    let (out, given) = evaluate(text, &[("x", 30)]);
    let at = |name: &str, place: &[(&str, usize)]| out[name].at(place);
    for b in 0..2 {
        let mut h = [[0.0; 4]; 3];
        for t in 0..5 {
            let x = &given["x"][(b * 5 + t) * 3..][..3];
            let project = |w: &str, n: usize| (0..3).map(|c| x[c] * at(w, &[("c", c), ("n", n)])).sum::<f64>();
            let low: Vec<f64> =
                (0..2).map(|r| (0..3).map(|c| x[c] * at("dt_down", &[("c", c), ("r", r)])).sum()).collect();
            for c in 0..3 {
                let raw: f64 = (0..2).map(|r| low[r] * at("dt_up", &[("r", r), ("c", c)])).sum();
                let dt = (1.0 + (raw + out["dt_bias"].data[c]).exp()).ln();
                let mut y = out["skip"].data[c] * x[c];
                for (n, h) in h[c].iter_mut().enumerate() {
                    let a = -at("a_log", &[("c", c), ("n", n)]).exp();
                    *h = (dt * a).exp() * *h + dt * project("w_b", n) * x[c];
                    y += project("w_c", n) * *h;
                }
                close(out["y"].at(&[("batch", b), ("pos", t), ("c", c)]), y);
            }
        }
    }
}
