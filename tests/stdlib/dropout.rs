//! Dropout: how much it keeps, what the rest becomes, and that a backward pass uses the mask of its forward pass.

use super::close;
use crate::eval::{Setting, noise, run_at};
use crate::step::step;
use partita::elaborate::Mode;
use partita::types::DType;

const ROWS: usize = 64;
const COLUMNS: usize = 512;
const ALL: usize = ROWS * COLUMNS;

/// Two calls on one input, at a step: what they give.
fn drawn(mode: Mode, step: u64) -> (Vec<f64>, Vec<f64>) {
    let text = format!(
        "use nn.{{dropout}}
         dim batch = {ROWS}, width = {COLUMNS}
         model M(x: [batch, width]) {{
             output a = dropout[p = 0.3](x)
             output b = dropout[p = 0.3](x)
         }}"
    );
    let setting = Setting { mode, step, ..Setting::default() };
    let mut out = run_at(&text, &setting, &[("x", input())]);
    let mut take = |name: &str| out.remove(name).expect("an output").data;
    (take("a"), take("b"))
}

/// No element is 0, so that what was dropped shows.
fn input() -> Vec<f64> {
    noise(90, ALL).iter().map(|x| x + 2.0).collect()
}

/// The share of elements for which it holds is this one, give or take 4.5 standard deviations.
#[track_caller]
fn share(holds: impl Iterator<Item = bool>, expected: f64) {
    let found = holds.filter(|h| *h).count() as f64 / ALL as f64;
    let bound = 4.5 * (expected * (1.0 - expected) / ALL as f64).sqrt();
    assert!((found - expected).abs() < bound, "{found} is not {expected}");
}

#[test]
fn dropout_keeps_its_share_and_scales_it() {
    let (a, b) = drawn(Mode::TRAIN, 0);
    for (y, x) in a.iter().zip(input()) {
        if *y != 0.0 {
            close(*y, x / 0.7);
        }
    }
    share(a.iter().map(|y| *y != 0.0), 0.7);
    // Neighbours along each dim, two calls, and two steps are independent.
    share((0..ALL).map(|i| a[i] != 0.0 && a[(i + 1) % ALL] != 0.0), 0.49);
    share((0..ALL).map(|i| a[i] != 0.0 && a[(i + COLUMNS) % ALL] != 0.0), 0.49);
    share(a.iter().zip(&b).map(|(a, b)| *a != 0.0 && *b != 0.0), 0.49);
    let (next, _) = drawn(Mode::TRAIN, 1);
    share(a.iter().zip(&next).map(|(a, b)| *a != 0.0 && *b != 0.0), 0.49);
    assert_eq!(drawn(Mode::TRAIN, 0), (a, b), "a step draws the same again");
}

#[test]
fn dropout_does_nothing_in_evaluation() {
    for step in [0, 7] {
        assert_eq!(drawn(Mode::EVAL, step), (input(), input()));
    }
}

/// The gradient of each turn's weight is that of the elements that its forward pass kept: kernels may draw the mask anew
/// in the backward pass, which must give the same one.
#[test]
fn the_backward_pass_drops_what_the_forward_pass_dropped() {
    const DEPTH: usize = 3;
    const BATCH: usize = 4;
    const WIDTH: usize = 6;
    let source = format!(
        "
use nn.{{dropout}}
use optim.{{sgd}}
dim batch = {BATCH}, width = {WIDTH}, depth = {DEPTH}
layer Part(x: [batch, width]) -> [batch, width] {{
    param w: [width] = 0.5
    dropout[p = 0.25](x * w)
}}
model M(x: [batch, width]) {{
    let total: [batch, width] = 0
    let each = for i in depth {{
        let y = Part(x)
        total = total + square(y)
        y
    }}
    metric kept = each
    loss sum[batch, width](total)
}}
train M {{ optimizer sgd(lr = 1.0); steps 1 }}
"
    );
    let x: Vec<f64> = noise(91, BATCH * WIDTH).iter().map(|x| x + 2.0).collect();
    let mut s = step(&source, 1, DType::F64, &[("x", x.clone())]);
    let mut masks = Vec::new();
    for step in 0..3 {
        s.env.step = step;
        let interpreted = s.interpreted();
        let kept = &interpreted["kept"];
        for results in [&interpreted, &s.compiled()] {
            assert_eq!(&results["kept"], kept);
            let weights = results.iter().find(|(name, _)| name.starts_with("param")).expect("new weights").1;
            for (n, new) in weights.iter().enumerate() {
                let (turn, column) = (n / WIDTH, n % WIDTH);
                let gradient = |row: usize| {
                    let at = row * WIDTH + column;
                    let y = kept[turn * BATCH * WIDTH + at];
                    if y == 0.0 { 0.0 } else { 2.0 * y * x[at] / 0.75 }
                };
                close(*new, 0.5 - (0..BATCH).map(gradient).sum::<f64>());
            }
        }
        // Turns are independent, and so are steps.
        masks.extend(kept.chunks(BATCH * WIDTH).map(|turn| turn.iter().map(|y| *y == 0.0).collect::<Vec<_>>()));
    }
    let count = masks.len();
    masks.sort();
    masks.dedup();
    assert_eq!((count, masks.len()), (9, 9));
}
