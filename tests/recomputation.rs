//! What a plan has computed again: the same numbers, less memory, and the exchanges that it takes.

#[path = "support/plans.rs"]
#[allow(dead_code)]
mod plans;
#[path = "support/spread.rs"]
#[allow(dead_code)]
mod spread;
#[path = "support/ranks.rs"]
#[allow(dead_code)]
mod support;

use partita::driver::memory::{Needed, needed};
use partita::driver::{Options, pipeline};
use partita::ir::{Operation, Phase};
use partita::types::DType::{self, F32, F64};
use spread::{Results, Spread, spread};

/// Attention by hand, with dropout of its weights, of its result and of the embedding.
const MODEL: &str = "
use nn.{Embedding, LayerNorm, Linear, dropout, gelu_tanh, softmax}
use losses.{cross_entropy}
use optim.{sgd}
dim batch = 4, seq = 6, vocab = 10, embed = 8, heads = 2, head_dim = embed / heads, mlp = 16, depth = 3
layer Core[key](q: [batch, seq, heads, head_dim], k: [batch, key, heads, head_dim], v: [batch, key, heads, head_dim])
    -> [batch, seq, heads, head_dim] {
    let scores = dot[head_dim](q, k) / sqrt(head_dim)
    let weights = dropout(softmax[key](where(iota[key] <= iota[seq], scores, -1e9)))
    dot[key](weights, v)
}
layer Attention(x: [batch, seq, embed]) -> [batch, seq, embed] {
    dim key = seq
    let query, keys, values = Linear[embed, (heads, head_dim)]
    let out = Linear[(heads, head_dim), embed]
    let q = query(x)
    let k = keys(x)[seq -> key]
    let v = values(x)[seq -> key]
    out(Core[key](q, k, v))
}
layer Block(x: [batch, seq, embed]) -> [batch, seq, embed] {
    let norm1, norm2 = LayerNorm[embed]
    let up = Linear[embed, mlp]
    let down = Linear[mlp, embed]
    let h = x + dropout(Attention(norm1(x)))
    let wide = up(norm2(h))
    h + dropout(down(gelu_tanh(wide)))
}
model Gpt(tokens: int[batch, seq], targets: int[batch, seq]) {
    let wte = Embedding[vocab, embed]
    let norm = LayerNorm[embed]
    let h = dropout(wte(tokens))
    for i in depth { h = Block(h) }
    loss mean[batch, seq](cross_entropy[vocab](dot[embed](norm(h), wte.table), targets))
}
train Gpt { optimizer sgd(lr = 0.1, momentum = 0.9)\n steps 2\n seed 3 }
";

const POLICIES: [&str; 8] = [
    "full",
    "full { keep = collectives }",
    "Attention",
    "Core",
    "Attention { keep = collectives }",
    "Block.wide, Attention.q, LayerNorm",
    "Attention.v, Core.weights",
    "gathers",
];

fn tokens() -> [(&'static str, Vec<f64>); 2] {
    let of = |k: usize| (0..24).map(|i| ((i * k + 3) % 10) as f64).collect();
    [("tokens", of(7)), ("targets", of(3))]
}

fn model(plan: &str, precision: DType) -> Spread {
    spread(MODEL, plan, precision, &tokens())
}

fn repeated(s: &Spread) -> usize {
    let ops = s.graph.blocks.iter().flat_map(|b| &b.ops).map(|id| s.graph.op(*id));
    ops.filter(|o: &&Operation| o.again && o.phase == Phase::Backward).count()
}

/// `tolerance`: relative to the largest number of an array.
#[track_caller]
fn near(what: &str, a: &Results, b: &Results, tolerance: f64) {
    assert_eq!(a.keys().collect::<Vec<_>>(), b.keys().collect::<Vec<_>>());
    for (name, x) in a {
        let scale = x.iter().fold(1e-2f64, |m, x| m.max(x.abs()));
        for (i, (x, y)) in x.iter().zip(&b[name]).enumerate() {
            let same = x.to_bits() == y.to_bits() || (x - y).abs() <= tolerance * scale;
            assert!(same, "{what}: {name} at {i} is {x}, not {y}");
        }
    }
}

fn same_numbers(plan: &str, policies: &[&str]) {
    let (plain, fast) = (model(plan, F64), model(plan, F32));
    let (exact, quick) = (plain.interpreted(), fast.compiled());
    assert_eq!(repeated(&plain), 0);
    for policy in policies {
        let with = format!("{plan}\nrecompute {policy}");
        let s = model(&with, F64);
        assert!(repeated(&s) > 0 || *policy == "gathers", "{with}");
        near(&with, &s.interpreted(), &exact, 0.0);
        near(&with, &model(&with, F32).compiled(), &quick, 1e-6);
    }
}

/// Draws are the same draws.
#[test]
fn f3_repeated_masks_are_the_same_masks() {
    same_numbers("", &POLICIES);
    same_numbers("microbatches 2", &POLICIES);
}

#[test]
fn f3_on_many_ranks() {
    for (k, plan) in [
        "mesh dp = 2\nshard batch by dp\nmicrobatches 2\nzero 3 by dp",
        "mesh tp = 2\nshard heads, mlp, vocab by tp",
        "mesh tp = 2\nshard heads, mlp, vocab by tp\nshard seq by tp in LayerNorm, dropout",
        "mesh dp = 2, tp = 2\nshard batch by dp\nshard heads, mlp by tp\nzero 1 by dp",
        "mesh cp = 2\nshard seq by cp\nmicrobatches 2",
    ]
    .into_iter()
    .enumerate()
    {
        // Each plan with some of them, each of them with some plans.
        let some = [POLICIES[k], POLICIES[(k + 3) % POLICIES.len()]];
        same_numbers(plan, &some);
    }
}

/// Larger, so that what is kept matters.
fn needs(plan: &str) -> Needed {
    let sizes = "batch = 16, seq = 128, vocab = 32, embed = 64, heads = 4, depth = 6";
    let (world, options) = plans::planned(&plans::gpt(sizes, "adamw(lr = 1e-3)"), plan);
    plans::sound(plan, needed(&Options { threads: 1, ..options }, &world))
}

#[test]
fn peaks_fall_as_more_is_computed_again() {
    for mesh in ["", "mesh dp = 2\nshard batch by dp\nzero 2 by dp\n", "mesh tp = 2\nshard heads, mlp by tp\n"] {
        let policies = ["none", "Attention", "full"];
        let found = policies.map(|p| needs(&format!("{mesh}recompute {p}")));
        let peaks = found.each_ref().map(|n| n.report().peak_bytes);
        assert!(peaks[0] > peaks[1] && peaks[1] > peaks[2], "{mesh}: {peaks:?}");
        let shares = found.each_ref().map(|n| n.again.as_ref().map_or(0.0, |a| a.share));
        assert!(shares[0] == 0.0 && shares[0] < shares[1] && shares[1] < shares[2], "{mesh}: {shares:?}");
    }
}

/// The limit holds, nothing is computed again where it need not be, and less memory takes more work.
#[test]
fn auto_fits_into_the_memory_that_it_is_given() {
    let stages = "mesh pp = 2\npipeline depth by pp { schedule = 1f1b, microbatches = 8 }\n";
    for mesh in ["", "mesh tp = 2\nshard heads, mlp by tp\nmicrobatches 2\n", stages] {
        let auto = |bytes: usize| needs(&format!("{mesh}recompute auto(memory = {} KiB)", bytes / 1024));
        let [most, least] = ["none", "full"].map(|p| needs(&format!("{mesh}recompute {p}")).report().peak_bytes);
        assert!(auto(most + 1024).again.is_none());
        let mut last = 0.0;
        for k in [1, 4] {
            let limit = most - (most - least) * k / 5;
            let found = auto(limit);
            let share = found.again.as_ref().map_or(0.0, |a| a.share);
            assert!(found.report().peak_bytes <= limit && found.short().is_none(), "{mesh}{limit}");
            assert!(share >= last && share > 0.0, "{mesh}{limit}: {share} after {last}");
            last = share;
        }
        // No more than all of it.
        let full = needs(&format!("{mesh}recompute full")).again.map_or(0.0, |a| a.share);
        assert!(last <= full, "{last} {full}");
        let short = auto(least / 2).short().expect("nothing fits into that");
        assert_eq!(short.sink.sorted()[0].code, "E0604");
    }
}

#[test]
fn what_does_not_fit_is_not_run() {
    let sizes = "batch = 2, seq = 8, vocab = 16, embed = 16, heads = 2, depth = 2";
    let (world, options) = plans::planned(&plans::gpt(sizes, "sgd(lr = 0.1)"), "recompute auto(memory = 8 KiB)");
    let mut g = plans::graphs(&(world, options.clone()), "");
    let Err(found) = pipeline::program(&mut g, pipeline::ALL, None, &options) else { panic!("it does not fit") };
    assert_eq!(found.sink.sorted()[0].code, "E0604");
}

/// The choice is one of policies like the others: it changes no number.
#[test]
fn auto_changes_no_number() {
    for plan in ["microbatches 2", "mesh tp = 2\nshard heads, mlp, vocab by tp"] {
        let peak = |policy: &str| {
            let (world, options) = plans::planned(MODEL, &format!("{plan}\nrecompute {policy}"));
            plans::sound(plan, needed(&Options { threads: 1, ..options }, &world)).report().peak_bytes
        };
        let middle = (peak("none") + peak("full")) / 2;
        same_numbers(plan, &[&format!("auto(memory = {} KiB)", middle.div_ceil(1024))]);
    }
}
