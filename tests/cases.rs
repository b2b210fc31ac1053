//! Faults that users of other systems reported, as small programs with the right answer; those that one device shows.
//! Each runs in the interpreter and on the CPU backend.

#[path = "support/step.rs"]
mod step;

use partita::driver::{Options, pipeline};
use partita::runtime::exec::ExecOptions;
use partita::source::Disk;
use partita::types::DType;
use std::sync::Arc;
use step::{backend, named, step};

/// A7: a mean over counted tokens is over those of the whole batch, however it is cut; a microbatch that counts nothing is no NaN.
#[test]
fn a7_mean_over_uneven_tokens() {
    let source = "
use optim.{sgd}
dim batch = 4, seq = 4
model M(x: [batch, seq], counted: int[batch, seq]) {
    param w: f32[] = 1
    loss mean[batch, seq](x * w, mask = counted != 0)
}
train M { optimizer sgd(lr = 1.0); steps 1 }
";
    let x: Vec<f64> = (0..16).map(|i| f64::from(i) + 1.0).collect();
    // Rows count 0, 1, 2 and 4 elements.
    let counted = vec![0., 0., 0., 0., 1., 0., 0., 0., 1., 1., 0., 0., 1., 1., 1., 1.];
    let total: f64 = x.iter().zip(&counted).map(|(a, b)| a * b).sum();
    let mean = total / 7.0;
    for n in [1, 2, 4] {
        let s = step(source, n, DType::F64, &[("x", x.clone()), ("counted", counted.clone())]);
        s.expect("loss", &[mean], 1e-12);
        s.expect("grad_norm", &[mean], 1e-12);
        s.expect("param w", &[1.0 - mean], 1e-12);
    }
}

/// A9: the gradient of a sum is a sum, of a mean a mean, in any number of microbatches.
#[test]
fn a9_sum_and_mean_losses_in_microbatches() {
    for (reduction, gradient) in [("sum", 10.0), ("mean", 2.5)] {
        let source = format!(
            "
use optim.{{sgd}}
dim batch = 4
model M(x: [batch]) {{
    param w: f32[] = 0.5
    loss {reduction}[batch](x * w)
}}
train M {{ optimizer sgd(lr = 1.0); steps 1 }}
"
        );
        for n in [1, 2, 4] {
            let s = step(&source, n, DType::F32, &[("x", vec![1., 2., 3., 4.])]);
            s.expect("grad_norm", &[gradient], 1e-6);
            s.expect("param w", &[0.5 - gradient], 1e-6);
        }
    }
}

/// A18: gradients of microbatches are summed in f32, though the work is in bf16 (which stalls at 256); the next step begins
/// from nothing.
#[test]
fn a18_bf16_accumulates_in_f32() {
    let source = "
use optim.{sgd}
dim batch = 512
model M(x: [batch]) {
    param w: [] = 1
    loss sum[batch](x * w)
}
train M { optimizer sgd(lr = 0.0); steps 2 }
";
    let mut s = step(source, 512, DType::BF16, &[("x", vec![1.0; 512])]);
    s.expect("grad_norm", &[512.0], 0.0);
    s.env.step = 1;
    s.expect("grad_norm", &[512.0], 0.0);
    let program = Arc::new(backend::compile(&s.graph, &partita::kernel::Options::default()));
    let mut exec = backend::executor(&program, &s.env, ExecOptions { threads: 2, ..ExecOptions::default() });
    for _ in 0..3 {
        let found = named(&s.graph, backend::run(&mut exec, &s.graph, &s.env).unwrap());
        assert_eq!(found["grad_norm"], [512.0]);
    }
}

/// D3: softmax and cross entropy over all classes.
#[test]
fn d3_softmax_and_cross_entropy() {
    let source = "
use nn.{softmax}
use losses.{cross_entropy}
use optim.{sgd}
dim batch = 1, classes = 4
model M(target: int[batch]) {
    param z: [classes] = 0
    let logits: [batch, classes] = z + f32(iota[classes])
    metric prob = softmax[classes](logits)
    loss sum[batch](cross_entropy[classes](logits, target))
}
train M { optimizer sgd(lr = 1.0); steps 1 }
";
    let s = step(source, 1, DType::F64, &[("target", vec![1.0])]);
    let prob = [0.032_058_603_280_084_99, 0.087_144_318_742_032_57, 0.236_882_818_089_910_13, 0.643_914_259_887_972_2];
    s.expect("prob", &prob, 1e-12);
    s.expect("loss", &[2.440_189_698_561_195_6], 1e-12);
    // The gradient of the logits: probabilities, minus one at the target.
    let new: Vec<f64> = prob.iter().enumerate().map(|(i, p)| -(p - f64::from(u8::from(i == 1)))).collect();
    s.expect("param z", &new, 1e-12);
}

/// D6: a variance is that of all elements, and large means do not eat it.
#[test]
fn d6_variance() {
    let source = "
use optim.{sgd}
dim batch = 4
model M(x: f32[batch]) {
    param w: f32[] = 1
    metric m = mean[batch](x)
    metric v = var[batch](x)
    loss w
}
train M { optimizer sgd(lr = 1.0); steps 1 }
";
    for (x, mean, var) in [
        ([1.0, 2.0, 3.0, 6.0], 3.0, 3.5),
        ([0.0, 0.0, 0.0, 4.0], 1.0, 3.0),
        ([1e4, 1e4 + 1.0, 1e4 + 2.0, 1e4 + 3.0], 1e4 + 1.5, 1.25),
    ] {
        let s = step(source, 1, DType::F32, &[("x", x.to_vec())]);
        s.expect("m", &[mean], 1e-6);
        s.expect("v", &[var], 1e-6);
    }
}

/// E5: a row with nothing to attend to gives 0, and its NaN does not reach the weights.
#[test]
fn e5_fully_masked_rows() {
    let source = "
use nn.{attention}
use optim.{sgd}
dim batch = 2, query = 2, key = 3, width = 2
model M(q: [batch, query, width], k: [batch, key, width], seen: int[batch, query, key]) {
    param w: [width] = 1
    let y = attention[key, width, width, scale = 1.0](q * w, k, k, mask = seen != 0)
    metric rows = y
    let counted = any[key](seen != 0)
    loss mean[batch, query](sum[width](y), mask = counted)
}
train M { optimizer sgd(lr = 1.0); steps 1 }
";
    let data = |n: usize| (0..n).map(|i| ((i * 5 + 3) % 7) as f64 / 7.0 - 0.4).collect::<Vec<f64>>();
    let masked = vec![1., 1., 0., 0., 0., 0., 1., 1., 1., 1., 0., 1.];
    let s = step(source, 1, DType::F64, &[("q", data(8)), ("k", data(12)), ("seen", masked.clone())]);
    for results in [s.interpreted(), s.compiled()] {
        let rows = &results["rows"];
        assert_eq!(&rows[2..4], &[0.0, 0.0], "the masked row");
        assert!(results.values().flatten().all(|x| x.is_finite()), "{results:?}");
    }
    // What stands in the masked row changes nothing.
    let mut other = data(8);
    other[2] = 1e6;
    other[3] = -1e6;
    let t = step(source, 1, DType::F64, &[("q", other), ("k", data(12)), ("seen", masked)]);
    for name in ["loss", "param w", "grad_norm"] {
        s.expect(name, &t.interpreted()[name], 1e-12);
    }
}

/// F1: what is drawn depends on the seed, the step and the place alone: the same in any number of microbatches.
#[test]
fn f1_draws_do_not_depend_on_the_cut() {
    let source = "
use nn.{dropout}
use optim.{sgd}
dim batch = 8, width = 16
model M(x: [batch, width]) {
    param w: [width] = normal(1.0)
    let y = dropout[p = 0.5](x * w)
    loss mean[batch, width](square(y))
}
train M { optimizer sgd(lr = 1.0); steps 1 }
";
    let x: Vec<f64> = (0..128).map(|i| f64::from(i % 13) - 6.0).collect();
    let whole = step(source, 1, DType::F64, &[("x", x.clone())]);
    let want = whole.interpreted();
    for n in [1, 2, 4, 8] {
        let s = step(source, n, DType::F64, &[("x", x.clone())]);
        assert_eq!(s.env.params, whole.env.params, "initial weights");
        for name in ["loss", "param w", "grad_norm"] {
            s.expect(name, &want[name], 1e-12);
        }
    }
    // Another step draws another mask.
    let mut next = whole;
    next.env.step = 1;
    assert_ne!(next.interpreted()["loss"], want["loss"]);
}

/// L1: optimizers of matrices see the whole matrix: one step of adafactor and of muon against their formulas.
#[test]
fn l1_matrix_optimizers() {
    let model = "
dim batch = 2, wide = 4, out = 2
model M(x: [batch, wide, out]) {
    param w: [wide -> out] = 0.5
    loss mean[batch](sum[wide, out](x * w))
}
";
    let g = [1.0, -2.0, 3.0, 0.5, 2.0, 2.0, -1.0, 4.0];
    // Adafactor: at the first step the decay is 0, so row and column statistics are those of this gradient.
    let source = format!("use optim.{{adafactor}}\n{model}\ntrain M {{ optimizer adafactor(lr = 0.1); steps 1 }}");
    let sq: Vec<f64> = g.iter().map(|x| x * x + 1e-30).collect();
    let row: Vec<f64> = (0..4).map(|i| (sq[2 * i] + sq[2 * i + 1]) / 2.0).collect();
    let col: Vec<f64> = (0..2).map(|j| (0..4).map(|i| sq[2 * i + j]).sum::<f64>() / 4.0).collect();
    let mean_row = row.iter().sum::<f64>() / 4.0;
    let u: Vec<f64> = (0..8).map(|k| g[k] / (row[k / 2] * col[k % 2] / mean_row).sqrt()).collect();
    let rms = (u.iter().map(|x| x * x).sum::<f64>() / 8.0).sqrt();
    let want: Vec<f64> = u.iter().map(|x| 0.5 - 0.1 * 0.5 * x / rms.max(1.0)).collect();
    for n in [1, 2] {
        step(&source, n, DType::F64, &[("x", [g, g].concat())]).expect("param w", &want, 1e-9);
    }
    // Muon: five Newton-Schulz turns on the transposed matrix (2 by 4), since it has more rows than columns.
    let source =
        format!("use optim.{{muon}}\n{model}\ntrain M {{ optimizer muon(lr = 0.1, momentum = 0.0); steps 1 }}");
    let norm = g.iter().map(|x| x * x).sum::<f64>().sqrt() + 1e-7;
    let mut x: Vec<Vec<f64>> = (0..2).map(|j| (0..4).map(|i| g[2 * i + j] / norm).collect()).collect();
    let product = |a: &[Vec<f64>], b: &[Vec<f64>]| -> Vec<Vec<f64>> {
        a.iter().map(|r| (0..b[0].len()).map(|j| r.iter().zip(b).map(|(p, q)| p * q[j]).sum()).collect()).collect()
    };
    for _ in 0..5 {
        let t: Vec<Vec<f64>> = (0..4).map(|i| vec![x[0][i], x[1][i]]).collect();
        let a = product(&x, &t);
        let aa = product(&a, &a);
        let m: Vec<Vec<f64>> =
            (0..2).map(|i| (0..2).map(|j| -4.7750 * a[i][j] + 2.0315 * aa[i][j]).collect()).collect();
        let mx = product(&m, &x);
        for i in 0..2 {
            for j in 0..4 {
                x[i][j] = 3.4445 * x[i][j] + mx[i][j];
            }
        }
    }
    let want: Vec<f64> = (0..8).map(|k| 0.5 - 0.1 * x[k % 2][k / 2]).collect();
    for n in [1, 2] {
        step(&source, n, DType::F64, &[("x", [g, g].concat())]).expect("param w", &want, 1e-9);
    }
}

/// A parameter with an element a sample cannot be cut, and says so.
#[test]
fn parameters_of_the_sample_dim_are_refused_in_microbatches() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("case.pta");
    let source = "use optim.{sgd}
dim batch = 4
model M(x: [batch]) {
    param w: [batch] = 0.5
    loss sum[batch](x * w)
}
train M { optimizer sgd(lr = 0.1); steps 1 }
plan micro { microbatches 2 }
";
    std::fs::write(&path, source).unwrap();
    let mut options = Options::of(&path);
    options.plan = Some("micro".into());
    let found = pipeline::graphs(&options, &Disk).err().expect("refused");
    let first = &found.sink.sorted()[0];
    assert_eq!((first.code, first.primary.is_some()), ("E0601", true));
}
