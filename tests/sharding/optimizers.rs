//! Optimizers, clipping, averages and loss scaling on parameters that ranks hold in parts: the same as on one device.

use super::spread::spread;
use super::{same, verified};
use partita::types::DType::{F16, F64};

/// Two maps whose sizes neither 2 nor 3 divide everywhere; wide and tall matrices.
fn net(lines: &str) -> String {
    format!(
        "use nn.{{Linear, gelu}}
use optim.{{adafactor, adafactor_vector, adam, adamw, ema, lion, momentum, muon, sgd, shampoo}}
use schedule.{{warmup_cosine}}
dim batch = 5, inner = 6, mlp = 9, out = 4
model Net(x: [batch, inner], y: [batch, out]) {{
    let up = Linear[inner, mlp, std = 0.5]
    let down = Linear[mlp, out, std = 0.5]
    loss mean[batch, out](square(down(gelu(up(x))) - y))
}}
train Net {{
{lines}
    steps 2
    seed 3
}}
"
    )
}

const PLANS: [&str; 7] = [
    "mesh dp = 2\nshard batch by dp",
    "mesh dp = 3\nshard batch by dp\nzero 1 by dp",
    "mesh dp = 2\nshard batch by dp\nmicrobatches 5\nzero 2 by dp",
    "mesh dp = 4\nshard batch by dp\nzero 3 by dp",
    "mesh tp = 2\nshard mlp by tp",
    "mesh tp = 4\nshard mlp by tp",
    "mesh dp = 2, tp = 2\nshard batch by dp\nshard mlp by tp\nzero 1 by dp",
];

const BOTH: &str = "mesh a = 2, b = 2\nshard inner by a\nshard mlp by b";

#[test]
fn elementwise_optimizers_keep_their_state_in_parts() {
    for optimizer in [
        "sgd(lr = 0.1)",
        "sgd(lr = 0.1, momentum = 0.9, weight_decay = 0.1, nesterov = 1.0)",
        "momentum(lr = 0.1)",
        "adam(lr = 0.1)",
        "adamw(lr = warmup_cosine(0.1, warmup = 1, steps = 3))",
        "lion(lr = 0.1)",
    ] {
        for plan in [PLANS[1], PLANS[3], PLANS[6], BOTH] {
            same(&net(&format!("    optimizer {optimizer}")), plan);
        }
    }
}

/// L1: statistics of rows and columns and products of whole matrices, of matrices that no rank has whole.
#[test]
fn matrix_optimizers_see_whole_matrices() {
    for optimizer in ["adafactor(lr = 0.1)", "muon(lr = 0.1, weight_decay = 0.1)", "shampoo(lr = 0.1)"] {
        let lines = format!("    optimizer {optimizer} on matrix\n    optimizer adafactor_vector(lr = 0.1) on rest");
        for plan in PLANS.iter().chain(&[BOTH]) {
            same(&net(&lines), plan);
        }
    }
}

/// L1: one step on a matrix of 4 by 2 whose rows are cut, against figures that were worked out by hand.
#[test]
fn l1_one_step_of_adafactor_and_muon() {
    let text = |optimizer: &str| {
        format!(
            "use optim.{{adafactor, muon}}\ndim batch = 2, wide = 4, out = 2
model M(x: [batch, wide, out]) {{
    param w: [wide -> out] = 0.5
    loss mean[batch](sum[wide, out](x * w))
}}
train M {{ optimizer {optimizer}; steps 1 }}\n"
        )
    };
    let g = [1.0, -2.0, 3.0, 0.5, 2.0, 2.0, -1.0, 4.0];
    // At the first step row and column statistics are those of this gradient.
    let mean = |of: Vec<f64>| of.iter().sum::<f64>() / of.len() as f64;
    let row = |i: usize| mean((0..2).map(|j| g[2 * i + j] * g[2 * i + j]).collect());
    let column = |j: usize| mean((0..4).map(|i| g[2 * i + j] * g[2 * i + j]).collect());
    let rows = mean((0..4).map(row).collect());
    let u: Vec<f64> = (0..8).map(|k| g[k] / (row(k / 2) * column(k % 2) / rows).sqrt()).collect();
    let rms = mean(u.iter().map(|x| x * x).collect()).sqrt();
    let factored: Vec<f64> = u.iter().map(|x| 0.5 - 0.1 * 0.5 * x / rms.max(1.0)).collect();
    for plan in
        ["mesh dp = 2\nshard wide by dp", "mesh dp = 2\nshard batch by dp\nzero 1 by dp", "mesh a = 3\nshard wide by a"]
    {
        let data = [("x", [g, g].concat())];
        spread(&text("adafactor(lr = 0.1)"), plan, F64, &data).expect("param w", &factored, 1e-9);
        let s = spread(&text("muon(lr = 0.1, momentum = 0.0)"), plan, F64, &data);
        s.as_alone(1e-9);
        // Nearly orthonormal columns: singular values between 0.7 and 1.2, all of them of one matrix.
        let new = s.interpreted();
        let o: Vec<f64> = new["param w"].iter().map(|w| (0.5 - w) / 0.1).collect();
        let product = |a: usize, b: usize| (0..4).map(|i| o[2 * i + a] * o[2 * i + b]).sum::<f64>();
        assert!(product(0, 0) > 0.4 && product(0, 0) < 1.5 && product(0, 1).abs() < 0.4, "{o:?}");
    }
}

#[test]
fn clipping_and_averages_are_those_of_one_device() {
    for lines in [
        "    optimizer adamw(lr = 0.1)\n    clip 0.01",
        "    optimizer adamw(lr = 0.1)\n    average ema(decay = 0.9)",
        "    optimizer adamw(lr = 0.1) on matrix\n    optimizer sgd(lr = 0.2) on rest\n    clip 0.01\n    average ema(decay = 0.5)",
        "    optimizer sgd(lr = 0.1) on \"up.*\"\n    freeze \"down.*\"\n    clip 0.01",
    ] {
        for plan in PLANS.iter().chain(&[BOTH]) {
            let report = verified(&net(lines), plan);
            assert_eq!(report.differs, None, "{lines}\n{plan}");
        }
    }
}

/// B5: where one rank alone meets a number that is too large, all skip the step and halve the scale, and the next step is taken.
#[test]
fn b5_an_overflow_on_one_rank_is_everybodys() {
    let text = "use optim.{adamw, ema}
dim batch = 4, inner = 2, mlp = 4
model M(x: [batch, inner], y: [batch, mlp]) {
    param w: [inner -> mlp] = 0.5
    param v: [mlp] = 1
    let h = dot[inner](x, w) * v
    loss mean[batch, mlp](square(h + y))
}
train M {
    optimizer adamw(lr = 0.1)
    clip 1.0
    average ema(decay = 0.5)
    steps 3
}
";
    for plan in [
        "mesh dp = 2\nshard batch by dp",
        "mesh tp = 2\nshard mlp by tp",
        "mesh tp = 4\nshard mlp by tp",
        "mesh dp = 2, tp = 2\nshard batch by dp\nshard mlp by tp\nzero 1 by dp",
        "mesh dp = 2\nshard batch by dp\nzero 3 by dp",
        "mesh dp = 2\nshard batch by dp\nmicrobatches 2\nzero 2 by dp",
    ] {
        // One number of one sample, on one rank alone, is infinite in f16.
        let x = vec![0.5, 1.0, -0.5, 0.25, 1.0, 0.5, 0.75, -1.0];
        let good = [0.0; 16];
        let mut bad = good;
        bad[15] = 1e30;
        let mut s = spread(text, plan, F16, &[("x", x), ("y", bad.to_vec())]);
        let scale = s.state("loss_scale")[0];
        s.as_alone(2e-3);
        s.expect("state loss_scale", &[scale / 2.0], 0.0);
        s.expect("param w", &[0.5; 8], 0.0);
        s.expect("param v", &[1.0; 4], 0.0);
        s.advance();
        s.feed("y", &good);
        s.as_alone(2e-3);
        s.expect("state loss_scale", &[scale / 2.0], 0.0);
        let new = s.interpreted();
        assert!(new["param w"].iter().all(|w| (0.3..0.5).contains(w)), "{plan}: {new:?}");
    }
}
