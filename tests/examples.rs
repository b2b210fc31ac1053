//! The examples that can run with the data beside them train for a few steps: the loss is finite and falls, and samplers
//! give something.

#[path = "common/run.rs"]
mod run;

use std::path::Path;

fn example(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples").join(name).to_string_lossy().into_owned()
}

/// Trains an example; gives the losses of its steps. What it saved stays in `folder/run`.
fn train(folder: &Path, name: &str, steps: usize, more: &[&str]) -> Vec<f64> {
    let (path, count) = (example(name), steps.to_string());
    let mut arguments =
        vec!["train", &path, "--steps", &count, "--metrics", "metrics.jsonl", "--out", "run", "--color", "never"];
    arguments.extend(more);
    run::succeeds(folder, &arguments);
    let losses = run::metric(&folder.join("metrics.jsonl"), "loss");
    assert_eq!(losses.len(), steps, "one line a step");
    assert!(losses.iter().all(|l| l.is_finite()), "{losses:?}");
    losses
}

/// Trains, and asks that the mean of the last losses lies below that of the first by a factor.
fn learns(name: &str, steps: usize, factor: f64, more: &[&str]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let losses = train(folder.path(), name, steps, more);
    let window = (steps / 4).clamp(1, 5);
    let mean = |l: &[f64]| l.iter().sum::<f64>() / l.len() as f64;
    let (first, last) = (mean(&losses[..window]), mean(&losses[steps - window..]));
    assert!(last < factor * first, "{name}: from {first} to {last}");
    folder
}

fn sample(folder: &Path, name: &str, more: &[&str]) -> String {
    let path = example(name);
    let mut arguments = vec!["sample", &path, "--checkpoint", "run", "--color", "never"];
    arguments.extend(more);
    run::succeeds(folder, &arguments)
}

#[test]
fn quickstart() {
    let folder = learns("quickstart.pta", 30, 0.9, &[]);
    let text = sample(folder.path(), "quickstart.pta", &["--length", "80", "--seed", "3"]);
    assert!(text.chars().count() >= 80, "{text}");
    assert_eq!(text, sample(folder.path(), "quickstart.pta", &["--length", "80", "--seed", "3"]));
}

#[test]
fn shakespeare() {
    let folder = learns("shakespeare.pta", 20, 0.95, &[]);
    let text = sample(folder.path(), "shakespeare.pta", &["--length", "40", "--prompt", "THE FOX"]);
    assert!(text.contains("THE FOX"), "{text}");
}

#[test]
fn first() {
    learns("first.pta", 8, 0.99, &["--set", "batch=4"]);
}

#[test]
fn llama() {
    let folder = learns("llama.pta", 20, 0.95, &["--set", "batch=2"]);
    sample(folder.path(), "llama.pta", &["--length", "20", "--top-k", "5", "--temperature", "0.5"]);
}

#[test]
fn moe() {
    learns("moe.pta", 12, 0.98, &["--set", "batch=2"]);
}

#[test]
fn muon() {
    learns("muon.pta", 12, 0.98, &["--set", "batch=2", "--set", "depth=2"]);
}

#[test]
fn lstm() {
    learns("lstm.pta", 10, 0.99, &["--set", "batch=4", "--set", "seq=32"]);
}

#[test]
fn digits() {
    learns("digits.pta", 60, 0.8, &[]);
}

#[test]
fn mnist() {
    learns("mnist.pta", 20, 0.95, &[]);
}

#[test]
fn vae() {
    let folder = learns("vae.pta", 24, 0.93, &["--set", "batch=16"]);
    sample(folder.path(), "vae.pta", &["--set", "batch=16", "--out", "drawn"]);
}

#[test]
fn gan() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    train(folder.path(), "gan.pta", 4, &["--preset", "tiny"]);
}

#[test]
fn big_linear() {
    learns("big_linear.pta", 10, 0.95, &["--preset", "small"]);
}
