//! Optimizers, clipping, schedules and averages against plain formulas: whole train steps by the reference interpreter.

use partita::diag::render;
use partita::driver::findings::Findings;
use partita::driver::pipeline::{Graphs, graphs};
use partita::driver::{Options, Request};
use partita::interp::{self, Env, Tensor};
use partita::ir::{OutputKind, StateKind};
use partita::source::Memory;
use partita::types::DType;

const R: usize = 3;
const C: usize = 4;

/// A step whose gradient of `w` is the input `g`.
struct Run {
    graphs: Graphs,
    env: Env,
}

impl Run {
    /// `lines` are those of the train item.
    fn new(lines: &str, w: &[f64]) -> Run {
        let text = format!(
            "use optim.{{adafactor, adafactor_vector, adam, adamw, clip_value, ema, lion, momentum, muon, sgd, shampoo}}
             use schedule.{{constant, cosine, inverse_sqrt, linear, step_decay, warmup, warmup_cosine, warmup_linear, wsd}}
             dim batch = 1, r = {R}, c = {C}
             model M(g: [batch, r, c]) {{
                 param w: [r -> c] = 0
                 loss mean[batch](sum[r, c](w * g))
             }}
             train M {{
                 data {{ g = npy(\"g.npy\") }}
                 {lines}
                 steps 100
             }}"
        );
        let mut world = Memory::default();
        world.0.insert("m.pta".into(), text);
        let request = Request { path: "m.pta".into(), ..Request::default() };
        let options = Options { request, precision: Some(DType::F64), ..Options::default() };
        let graphs = graphs(&options, &world).unwrap_or_else(|f: Box<Findings>| {
            panic!("{}", render::text(&f.sink, &f.sources, false));
        });
        let sizes = |dims: &[partita::ir::DimId]| dims.iter().map(|d| graphs.train.dim(*d).size).collect::<Vec<_>>();
        let params = graphs.train.params.iter().map(|p| Tensor::new(p.dtype, sizes(&p.dims), w.to_vec())).collect();
        let states = graphs.train.states.iter().map(|s| {
            let shape = sizes(&s.dims);
            let values = if s.kind == StateKind::Average { w.to_vec() } else { vec![0.0; shape.iter().product()] };
            Tensor::new(s.dtype, shape, values)
        });
        let env = Env { params, states: states.collect(), seed: 1, exact: true, ..Env::default() };
        Run { graphs, env }
    }

    /// One step with this gradient; gives the new weight.
    fn step(&mut self, g: &[f64]) -> Vec<f64> {
        let graph = &self.graphs.train;
        self.env.inputs = vec![Tensor::new(DType::F64, vec![1, R, C], g.to_vec())];
        let values = interp::run(graph, &self.env).expect("a step can be evaluated");
        let mut next = self.env.clone();
        for (output, value) in graph.outputs.iter().zip(values) {
            match output.kind {
                OutputKind::Param(p) => next.params[p.0 as usize] = value,
                OutputKind::State(s) => next.states[s.0 as usize] = value,
                _ => {}
            }
        }
        next.step += 1;
        self.env = next;
        self.env.params[0].data.clone()
    }
}

fn noise(seed: u32) -> Vec<f64> {
    (0..(R * C) as u32)
        .map(|i| {
            let x = (i + 31 * seed + 7).wrapping_mul(0x9E37_79B9) ^ seed.wrapping_mul(0x85EB_CA6B);
            let x = (x ^ (x >> 15)).wrapping_mul(0x2C1B_3C6D);
            f64::from(x ^ (x >> 12)) / f64::from(1u32 << 31) - 1.0
        })
        .collect()
}

#[track_caller]
fn close(ours: &[f64], theirs: &[f64], bound: f64) {
    for (a, b) in ours.iter().zip(theirs) {
        assert!((a - b).abs() <= bound * (1.0 + b.abs()), "{ours:?}\nis not\n{theirs:?}");
    }
}

/// Compares five steps with a rule over (weight, gradient, step, memory of the rule), element by element.
fn elementwise(lines: &str, mut rule: impl FnMut(usize, f64, f64, i32) -> f64) {
    let mut w = noise(1);
    let mut run = Run::new(lines, &w);
    for step in 0..5 {
        let g = noise(10 + step as u32);
        let ours = run.step(&g);
        for i in 0..w.len() {
            w[i] = rule(i, w[i], g[i], step);
        }
        close(&ours, &w, 1e-12);
    }
}

#[test]
fn sgd_with_momentum_decay_and_nesterov() {
    elementwise("optimizer sgd(lr = 0.1)", |_, w, g, _| w - 0.1 * g);
    for nesterov in [0.0, 1.0] {
        let mut speed = [0.0; R * C];
        let lines = format!("optimizer sgd(lr = 0.1, momentum = 0.9, weight_decay = 0.01, nesterov = {nesterov:.1})");
        elementwise(&lines, |i, w, g, _| {
            let d = g + 0.01 * w;
            speed[i] = 0.9 * speed[i] + d;
            w - 0.1 * if nesterov == 1.0 { d + 0.9 * speed[i] } else { speed[i] }
        });
    }
    let mut speed = [0.0; R * C];
    elementwise("optimizer momentum(lr = 0.1, beta = 0.8)", |i, w, g, _| {
        speed[i] = 0.8 * speed[i] + g;
        w - 0.1 * speed[i]
    });
}

#[test]
fn adam_and_adamw_correct_their_bias() {
    for (lines, coupled, decoupled, beta2) in [
        ("optimizer adam(lr = 0.01, weight_decay = 0.1)", 0.1, 0.0, 0.999),
        ("optimizer adamw(lr = 0.01, weight_decay = 0.1)", 0.0, 0.1, 0.95),
    ] {
        let (mut m, mut v) = (vec![0.0; R * C], vec![0.0; R * C]);
        elementwise(lines, |i, w, g, step| {
            let g = g + coupled * w;
            m[i] = 0.9 * m[i] + 0.1 * g;
            v[i] = beta2 * v[i] + (1.0 - beta2) * g * g;
            let mhat = m[i] / (1.0 - 0.9f64.powi(step + 1));
            let vhat = v[i] / (1.0 - beta2.powi(step + 1));
            w - 0.01 * (mhat / (vhat.sqrt() + 1e-8) + decoupled * w)
        });
    }
}

#[test]
fn lion_goes_by_signs() {
    let mut m = [0.0; R * C];
    elementwise("optimizer lion(lr = 0.01, weight_decay = 0.1)", |i, w, g, _| {
        let u: f64 = 0.9 * m[i] + (1.0 - 0.9) * g;
        m[i] = 0.99 * m[i] + (1.0 - 0.99) * g;
        w - 0.01 * (u.signum() + 0.1 * w)
    });
}

#[test]
fn adafactor_keeps_a_row_and_a_column() {
    let mut w = noise(1);
    let mut run = Run::new("optimizer adafactor(lr = 0.01)", &w);
    assert_eq!(run.graphs.train.states.iter().map(|s| s.dims.len()).collect::<Vec<_>>(), [1, 1]);
    let (mut row, mut col) = (vec![0.0; R], vec![0.0; C]);
    for step in 0..4 {
        let g = noise(20 + step);
        let ours = run.step(&g);
        let decay = 1.0 - f64::from(step + 1).powf(-0.8);
        let g2 = |i: usize, j: usize| g[i * C + j] * g[i * C + j] + 1e-30;
        for (i, row) in row.iter_mut().enumerate() {
            *row = decay * *row + (1.0 - decay) * (0..C).map(|j| g2(i, j)).sum::<f64>() / C as f64;
        }
        for (j, col) in col.iter_mut().enumerate() {
            *col = decay * *col + (1.0 - decay) * (0..R).map(|i| g2(i, j)).sum::<f64>() / R as f64;
        }
        let mean = row.iter().sum::<f64>() / R as f64;
        let u: Vec<f64> = (0..R * C).map(|n| g[n] / (row[n / C] * col[n % C] / mean).sqrt()).collect();
        let rms = |x: &[f64]| (x.iter().map(|v| v * v).sum::<f64>() / x.len() as f64).sqrt();
        let scale = 0.01 * rms(&w).max(1e-3) / rms(&u).max(1.0);
        for n in 0..R * C {
            w[n] -= scale * u[n];
        }
        close(&ours, &w, 1e-11);
    }
}

#[test]
fn adafactor_of_vectors_keeps_all_second_moments() {
    for clip in [1.0, 0.3] {
        let mut w = noise(1);
        let mut run = Run::new(&format!("optimizer adafactor_vector(lr = 0.01, clip = {clip:?})"), &w);
        let mut v = [0.0; R * C];
        for step in 0..4 {
            let g: Vec<f64> = noise(20 + step).iter().map(|g| g * f64::from(1 + step)).collect();
            let ours = run.step(&g);
            let decay = 1.0 - f64::from(step + 1).powf(-0.8);
            (0..R * C).for_each(|n| v[n] = decay * v[n] + (1.0 - decay) * (g[n] * g[n] + 1e-30));
            let u: Vec<f64> = (0..R * C).map(|n| g[n] / v[n].sqrt()).collect();
            let rms = |x: &[f64]| (x.iter().map(|v| v * v).sum::<f64>() / x.len() as f64).sqrt();
            let scale = 0.01 * rms(&w).max(1e-3) / (rms(&u) / clip).max(1.0);
            (0..R * C).for_each(|n| w[n] -= scale * u[n]);
            close(&ours, &w, 1e-11);
        }
    }
}

/// The product of a matrix [R, C] with its transpose.
fn square(a: &[f64]) -> Vec<f64> {
    let entry = |i: usize, j: usize| (0..C).map(|k| a[i * C + k] * a[j * C + k]).sum();
    (0..R * R).map(|n| entry(n / R, n % R)).collect()
}

#[test]
fn muon_steps_by_a_nearly_orthogonal_matrix() {
    let w = noise(1);
    let mut run = Run::new("optimizer muon(lr = 1.0)", &w);
    let new = run.step(&noise(2));
    // Rows are the shorter side; C > R scales the step by sqrt(C / R).
    let scale = (C as f64 / R as f64).sqrt();
    let step: Vec<f64> = w.iter().zip(&new).map(|(a, b)| (a - b) / scale).collect();
    let near = square(&step);
    for i in 0..R {
        for j in 0..R {
            let entry = near[i * R + j];
            if i == j {
                assert!((0.4..1.6).contains(&entry), "{near:?}");
            } else {
                assert!(entry.abs() < 0.4, "{near:?}");
            }
        }
    }
}

/// Five turns of x -> a x + (b A + c A^2) x with A = x x^T, from x / |x|.
fn newton_schulz(m: &[f64]) -> Vec<f64> {
    let norm = m.iter().map(|x| x * x).sum::<f64>().sqrt() + 1e-7;
    let mut x: Vec<f64> = m.iter().map(|m| m / norm).collect();
    for _ in 0..5 {
        let a = square(&x);
        let entry = |i: usize, j: usize| {
            let twice: f64 = (0..R).map(|k| a[i * R + k] * a[k * R + j]).sum();
            -4.7750 * a[i * R + j] + 2.0315 * twice
        };
        x = (0..R * C)
            .map(|n| 3.4445 * x[n] + (0..R).map(|k| entry(n / C, k) * x[k * C + n % C]).sum::<f64>())
            .collect();
    }
    x
}

#[test]
fn muon_looks_ahead_along_its_momentum() {
    let mut w = noise(1);
    let mut run = Run::new("optimizer muon(lr = 0.1, momentum = 0.9, weight_decay = 0.2)", &w);
    let mut m = [0.0; R * C];
    for step in 0..3 {
        let g = noise(40 + step);
        let ours = run.step(&g);
        (0..R * C).for_each(|n| m[n] = 0.9 * m[n] + g[n]);
        let look: Vec<f64> = (0..R * C).map(|n| g[n] + 0.9 * m[n]).collect();
        let o = newton_schulz(&look);
        let scale = (C as f64 / R as f64).sqrt();
        (0..R * C).for_each(|n| w[n] -= 0.1 * (scale * o[n] + 0.2 * w[n]));
        close(&ours, &w, 1e-11);
    }
}

#[test]
fn shampoo_whitens_both_sides() {
    // For a first gradient u v^T s the preconditioned one has norm near 1 (up to eps), whatever s is.
    let (u, v) = ([0.6, 0.0, 0.8], [0.5, 0.5, -0.5, 0.5]);
    let g: Vec<f64> = (0..R * C).map(|n| 3.0 * u[n / C] * v[n % C]).collect();
    let w = vec![0.0; R * C];
    let new = Run::new("optimizer shampoo(lr = 1.0, eps = 0.01)", &w).step(&g);
    let expected: Vec<f64> = (0..R * C).map(|n| -u[n / C] * v[n % C]).collect();
    close(&new, &expected, 2e-2);
}

#[test]
fn clipping_scales_by_the_norm_of_all_parameters() {
    let g = noise(3);
    let norm = g.iter().map(|x| x * x).sum::<f64>().sqrt();
    let w = vec![0.0; R * C];
    let new = Run::new("optimizer sgd(lr = 1.0)\nclip 0.5", &w).step(&g);
    close(&new, &g.iter().map(|x| -x * 0.5 / (norm + 1e-6)).collect::<Vec<_>>(), 1e-12);
    let new = Run::new("optimizer sgd(lr = 1.0)\nclip 100.0", &w).step(&g);
    close(&new, &g.iter().map(|x| -x).collect::<Vec<_>>(), 1e-12);
    let new = Run::new("optimizer sgd(lr = 1.0)\ngradient clip_value(g, 0.25)", &w).step(&g);
    close(&new, &g.iter().map(|x| -x.clamp(-0.25, 0.25)).collect::<Vec<_>>(), 1e-12);
}

#[test]
fn averages_follow_the_weights() {
    let w = noise(1);
    let mut run = Run::new("optimizer sgd(lr = 0.1)\naverage ema(decay = 0.9)", &w);
    let mut average = w.clone();
    for step in 0..3 {
        let new = run.step(&noise(30 + step));
        for i in 0..w.len() {
            average[i] = 0.9 * average[i] + (1.0 - 0.9) * new[i];
        }
    }
    let at = run.graphs.train.states.iter().position(|s| s.kind == StateKind::Average).expect("an average is kept");
    close(&run.env.states[at].data, &average, 1e-12);
}

#[test]
fn schedules_are_their_formulas() {
    use std::f64::consts::PI;
    let cosine = |x: f64, from: f64, to: f64| to + 0.5 * (from - to) * (1.0 + (PI * x.clamp(0.0, 1.0)).cos());
    type Rate = Box<dyn Fn(f64) -> f64>;
    let all: Vec<(&str, Rate)> = vec![
        ("constant(0.1, warmup = 3)", Box::new(|s| if s < 3.0 { 0.1 * (s + 1.0) / 3.0 } else { 0.1 })),
        ("warmup(0.1, steps = 4)", Box::new(|s| 0.1 * ((s + 1.0) / 4.0).min(1.0))),
        ("cosine(0.1, steps = 6, end = 0.02)", Box::new(move |s| cosine(s / 6.0, 0.1, 0.02))),
        (
            "warmup_cosine(0.1, warmup = 2, steps = 6, end = 0.01)",
            Box::new(move |s| if s < 2.0 { 0.1 * (s + 1.0) / 2.0 } else { cosine((s - 2.0) / 4.0, 0.1, 0.01) }),
        ),
        ("linear(0.1, steps = 5, end = 0.05)", Box::new(|s| 0.1 - 0.05 * (s / 5.0).min(1.0))),
        (
            "warmup_linear(0.1, warmup = 2, steps = 6)",
            Box::new(|s| (0.1 * (s + 1.0) / 2.0).min(0.1 * ((6.0 - s) / 4.0).clamp(0.0, 1.0))),
        ),
        ("inverse_sqrt(0.1, warmup = 3)", Box::new(|s| 0.1 * ((s + 1.0) / 3.0).min((3.0 / (s + 1.0)).sqrt()))),
        (
            "wsd(0.1, warmup = 2, steps = 7, tail = 3)",
            Box::new(|s| 0.1 * ((s + 1.0) / 2.0).min(1.0).min(((7.0 - s) / 3.0).clamp(0.0, 1.0))),
        ),
        ("step_decay(0.1, every = 3, factor = 0.5)", Box::new(|s| 0.1 * 0.5f64.powf((s / 3.0).floor()))),
    ];
    for (text, rate) in all {
        let mut run = Run::new(&format!("optimizer sgd(lr = {text})"), &[0.0; R * C]);
        let mut w = 0.0;
        for step in 0..9 {
            w -= rate(f64::from(step));
            let ours = run.step(&[1.0; R * C]);
            assert!((ours[0] - w).abs() < 1e-6, "{text} at step {step}: {} is not {w}", ours[0]);
        }
    }
}

/// Rates where one piece of a schedule ends and the next begins, worked out by hand.
#[test]
fn schedules_at_their_corners() {
    let all: [(&str, &[(u64, f64)]); 9] = [
        ("constant(0.8)", &[(0, 0.8), (999, 0.8)]),
        ("constant(0.8, warmup = 4)", &[(0, 0.2), (2, 0.6), (3, 0.8), (4, 0.8)]),
        ("warmup(0.8, steps = 4)", &[(0, 0.2), (3, 0.8), (4, 0.8), (99, 0.8)]),
        ("cosine(0.8, steps = 10, end = 0.2)", &[(0, 0.8), (5, 0.5), (10, 0.2), (11, 0.2), (999, 0.2)]),
        (
            "warmup_cosine(0.8, warmup = 4, steps = 14, end = 0.2)",
            &[(0, 0.2), (3, 0.8), (4, 0.8), (9, 0.5), (14, 0.2), (15, 0.2)],
        ),
        ("linear(0.8, steps = 10, end = 0.2)", &[(0, 0.8), (5, 0.5), (9, 0.26), (10, 0.2), (11, 0.2)]),
        (
            "warmup_linear(0.8, warmup = 4, steps = 12)",
            &[(0, 0.2), (3, 0.8), (4, 0.8), (8, 0.4), (11, 0.1), (12, 0.0), (13, 0.0)],
        ),
        (
            "wsd(0.8, warmup = 4, steps = 20, tail = 8)",
            &[(0, 0.2), (3, 0.8), (4, 0.8), (11, 0.8), (12, 0.8), (13, 0.7), (19, 0.1), (20, 0.0), (21, 0.0)],
        ),
        ("wsd(0.8, warmup = 0, steps = 4, tail = 1)", &[(0, 0.8), (3, 0.8), (4, 0.0)]),
    ];
    for (text, corners) in all {
        let mut run = Run::new(&format!("optimizer sgd(lr = {text})"), &[0.0; R * C]);
        for (step, rate) in corners {
            run.env.step = *step;
            let before = run.env.params[0].data[0];
            let after = run.step(&[1.0; R * C])[0];
            assert!((before - after - rate).abs() < 1e-6, "{text} at step {step}: {} is not {rate}", before - after);
        }
    }
}
