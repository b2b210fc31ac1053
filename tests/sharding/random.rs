//! Draws, norms over the batch and initial values are functions of where they are in the whole, on any mesh.

use super::same;
use super::spread::spread;
use partita::types::DType::F64;

fn text(body: &str, lines: &str) -> String {
    format!(
        "use nn.{{BatchNorm, Linear, dropout, gelu}}\nuse optim.{{adamw, sgd}}\ndim batch = 6, inner = 5, mlp = 7
model M(x: [batch, inner]) {{
{body}
}}
train M {{\n    optimizer adamw(lr = 0.1)\n{lines}    steps 2\n    seed 3\n}}\n"
    )
}

const PLANS: [&str; 9] = [
    "mesh dp = 2\nshard batch by dp",
    "mesh dp = 4\nshard batch by dp",
    "mesh dp = 2\nshard batch by dp\nmicrobatches 3\nzero 2 by dp",
    "mesh tp = 2\nshard mlp by tp",
    "mesh tp = 3\nshard mlp by tp { order = zigzag }",
    "mesh tp = 2\nshard inner by tp",
    "mesh dp = 2, tp = 2\nshard batch by dp\nshard mlp by tp",
    "mesh dp = 2\nshard batch by dp\nzero 3 by dp",
    "mesh dp = 2, tp = 2\nshard batch by dp\nshard mlp by tp\nrecompute full",
];

/// F1, F3: the same weights to begin with, and the same masks, computed again or not.
#[test]
fn f1_draws_depend_on_places_alone() {
    let body = "    param w: [inner -> mlp] = normal(1 / sqrt(fan_in))\n    param b: [mlp] = uniform(lo = -1, hi = 1)
    let h = dropout[p = 0.5](gelu(dot[inner](x, w) + b))\n    let noise = normal[batch, mlp](std = 0.1)
    loss mean[batch, mlp](square(h + noise) * f32(bernoulli[batch, mlp](0.7)) + f32(randint[batch, mlp](5)))";
    for plan in PLANS {
        same(&text(body, ""), plan);
    }
    let body = "    param w: [inner] = normal(1.0)\n    metric kept = f32(dropout[p = 0.5](x * w) != 0)\n    loss mean[batch, inner](x * w)";
    let x: Vec<f64> = (1..=30).map(f64::from).collect();
    let one = spread(&text(body, ""), PLANS[0], F64, &[("x", x.clone())]);
    let (kept, weights) = (one.alone()["kept"].clone(), one.before("w"));
    assert!(kept.contains(&0.0) && kept.contains(&1.0));
    for plan in [
        "mesh dp = 4\nshard batch by dp",
        "mesh tp = 2\nshard inner by tp",
        "mesh a = 2, b = 2\nshard batch by a\nshard inner by b",
    ] {
        let s = spread(&text(body, ""), plan, F64, &[("x", x.clone())]);
        s.expect("kept", &kept, 0.0);
        assert_eq!(s.held("w"), weights);
    }
}

/// Statistics of the batch are those of the whole batch, or of the slice that the program speaks of.
#[test]
fn norms_over_the_batch() {
    let body = "    let up = Linear[inner, mlp, std = 0.5]\n    let norm = BatchNorm[mlp]\n    loss mean[batch, mlp](square(gelu(norm(up(x))) - f32(iota[mlp])))";
    for plan in PLANS {
        // Microbatches would cut the statistics.
        if !plan.contains("microbatches") {
            same(&text(body, ""), plan);
        }
        let sliced = text(body, "    samples batch in 3 slices\n");
        same(&sliced, plan);
    }
}
