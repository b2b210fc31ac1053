//! The golden models trained by machine code on many ranks: the same figures as on one device, within the same bounds.

use crate::golden::Golden;
use crate::{relative, run};

const TENSOR: &str = "shard heads, mlp, vocab by tp";
const SEQUENCE: &str = "shard heads, mlp, vocab by tp\n shard seq by tp in LayerNorm";
const NORMS: &str = "shard heads, mlp, vocab by tp\n shard seq by tp in RmsNorm";
const ULYSSES: &str = "shard seq by cp\n shard heads by cp in attention";
const EXPERTS: &str = "shard batch by ep\n shard experts by ep in Experts";

/// Trains a few steps by a mesh and lines of a plan. In f32 no more than a few roundings lie between.
fn follows(model: &str, variant: &str, precision: &str, mesh: &str, lines: &str) {
    let golden = Golden::load(model, variant);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = golden.write(folder.path(), 5);
    let text = std::fs::read_to_string(&path).expect("written");
    std::fs::write(&path, format!("{text}\nplan p {{\n mesh {mesh}\n {lines}\n}}\n")).expect("written");
    let path = path.to_string_lossy();
    let arguments = ["train", &path, "--preset", variant, "--precision", precision, "--plan", "p", "--steps", "5"];
    run::succeeds(folder.path(), &[&arguments[..], &["--no-save", "--metrics", "m.jsonl"]].concat());
    let metrics = folder.path().join("m.jsonl");
    let (losses, norms) = (run::metric(&metrics, "loss"), run::metric(&metrics, "grad_norm"));
    assert_eq!(losses.len(), 5);
    let (bound, of_norms) = if precision == "f64" { (1e-9, 1e-8) } else { (2e-4, 2e-3) };
    for (name, ours, theirs, bound) in
        [("loss", losses, golden.losses(), bound), ("gradient norm", norms, golden.grad_norms(), of_norms)]
    {
        for (step, (ours, theirs)) in ours.iter().zip(theirs).enumerate() {
            let what = format!("{model} {variant} in {precision} on {mesh}: {lines}");
            assert!(relative(*ours, theirs) < bound, "{what}\nstep {step}: {name} {ours}, not {theirs}");
        }
    }
}

fn in_both(model: &str, variant: &str, plans: &[(&str, &str)]) {
    for (mesh, lines) in plans {
        ["f64", "f32"].iter().for_each(|precision| follows(model, variant, precision, mesh, lines));
    }
}

/// Data parallelism, and ZeRO of each level.
fn on_ranks_that_cut_the_batch(model: &str, variant: &str) {
    let batch = "shard batch by dp";
    in_both(model, variant, &[("dp = 2", batch), ("dp = 4", batch), ("dp = 3", batch)]);
    for level in 1..=3 {
        let lines = format!("{batch}\n zero {level} by dp");
        in_both(model, variant, &[("dp = 2", &lines), ("dp = 4", &lines)]);
    }
}

#[test]
fn gpt_on_ranks_that_cut_the_batch() {
    on_ranks_that_cut_the_batch("gpt", "tiny");
}

#[test]
fn gpt_on_ranks_that_cut_heads_and_widths() {
    let (both, all) = (format!("shard batch by dp\n {TENSOR}"), format!("shard batch by dp\n {SEQUENCE}"));
    let plans =
        [("tp = 2", TENSOR), ("tp = 4", TENSOR), ("tp = 3", TENSOR), ("tp = 2", SEQUENCE), ("tp = 4", SEQUENCE)];
    in_both("gpt", "tiny", &plans);
    in_both("gpt", "tiny", &[("dp = 2, tp = 2", &both), ("dp = 2, tp = 2", &all)]);
}

#[test]
fn gpt_on_ranks_that_cut_the_sequence() {
    let plans = ["shard seq by cp", "shard seq by cp { order = zigzag }", ULYSSES];
    in_both("gpt", "tiny", &plans.map(|lines| ("cp = 2", lines)));
}

#[test]
fn llama_on_ranks_that_cut_the_batch() {
    on_ranks_that_cut_the_batch("llama", "tiny");
}

#[test]
fn llama_on_ranks() {
    let (both, all) = (format!("shard batch by dp\n {TENSOR}"), format!("shard batch by dp\n {NORMS}"));
    let plans = [
        ("tp = 2", TENSOR),
        ("tp = 4", TENSOR),
        ("tp = 3", "shard kv, mlp, vocab by tp"),
        ("tp = 2", NORMS),
        ("dp = 2, tp = 2", &both),
        ("dp = 2, tp = 2", &all),
        ("cp = 2", "shard seq by cp"),
        ("cp = 2", "shard seq by cp { order = zigzag }"),
        ("cp = 2", ULYSSES),
    ];
    in_both("llama", "tiny", &plans);
}

#[test]
fn experts_on_ranks_that_cut_the_batch() {
    on_ranks_that_cut_the_batch("moe", "tiny");
}

#[test]
fn experts_on_ranks() {
    let zero = "shard batch by dp, ep\n shard experts by ep in Experts\n zero 2 by dp";
    let within = "shard heads, mlp, vocab by tp\n shard seq by tp in LayerNorm\n replicate seq in Moe";
    let plans = [
        ("ep = 2", EXPERTS),
        ("ep = 4", EXPERTS),
        ("dp = 2, ep = 2", zero),
        ("tp = 2", TENSOR),
        ("tp = 4", TENSOR),
        ("tp = 2", SEQUENCE),
        ("tp = 2", within),
        ("cp = 2", "shard seq by cp"),
        ("cp = 2", ULYSSES),
    ];
    in_both("moe", "tiny", &plans);
    in_both("moe", "tiny_capacity", &plans[..3]);
}

#[test]
#[cfg_attr(debug_assertions, ignore = "long where the compiler is not optimised")]
fn larger_variants_on_ranks() {
    follows("gpt", "nano", "f32", "dp = 2, tp = 2", &format!("shard batch by dp\n {SEQUENCE}\n zero 1 by dp"));
    follows("llama", "nano", "f32", "dp = 2, tp = 2", &format!("shard batch by dp\n {NORMS}\n zero 3 by dp"));
    follows("moe", "nano", "f32", "ep = 4", EXPERTS);
}
