//! Every example that comes with data trains for a few steps, and its loss is sound.

use crate::run::{metric, succeeds};
use std::path::Path;

fn trains(example: &str, more: &[&str]) -> Vec<f64> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples").join(example);
    let path = path.to_string_lossy();
    let arguments = ["train", &path, "--metrics", "m.jsonl", "--steps", "3"];
    succeeds(folder.path(), &[&arguments[..], more].concat());
    let losses = metric(&folder.path().join("m.jsonl"), "loss");
    assert_eq!(losses.len(), 3);
    assert!(losses.iter().all(|x| x.is_finite()), "{losses:?}");
    losses
}

/// The first loss of an untrained classifier is about the logarithm of the number of classes.
fn begins_at(losses: &[f64], classes: f64) {
    assert!((losses[0] - classes.ln()).abs() < 0.2 * classes.ln(), "{losses:?}");
    // The rate may still be rising, so three steps need not be a success, but they are no failure.
    assert!(losses[2] < losses[0] + 0.1, "{losses:?}");
}

#[test]
fn quickstart() {
    begins_at(&trains("quickstart.pta", &[]), 64.0);
}

#[test]
fn digits() {
    begins_at(&trains("digits.pta", &[]), 10.0);
}

#[test]
fn mnist() {
    let losses = trains("mnist.pta", &[]);
    assert!(losses[2] < losses[0], "{losses:?}");
}

#[test]
fn llama() {
    begins_at(&trains("llama.pta", &["--set", "depth=1"]), 256.0);
}

#[test]
fn moe() {
    begins_at(&trains("moe.pta", &[]), 256.0);
}

#[test]
fn muon() {
    begins_at(&trains("muon.pta", &["--set", "depth=1"]), 256.0);
}

#[test]
fn gan() {
    trains("gan.pta", &["--preset", "tiny"]);
}

#[test]
fn big_linear() {
    let losses = trains("big_linear.pta", &["--preset", "small"]);
    assert!(losses[2] < losses[0], "{losses:?}");
}

#[test]
fn lstm() {
    let losses = trains("lstm.pta", &["--set", "batch=2"]);
    assert!(losses[2] < losses[0], "{losses:?}");
}

#[test]
fn shakespeare() {
    begins_at(&trains("shakespeare.pta", &["--set", "depth=1"]), 65.0);
}
