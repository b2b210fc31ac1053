//! Twenty steps of the golden models against two independent implementations, in f64 and in f32.

#[path = "common/golden.rs"]
mod golden;
#[path = "ranks/golden.rs"]
mod ranks;
#[path = "common/run.rs"]
mod run;

use golden::Golden;

/// Trains a variant at a precision; gives losses and gradient norms of the steps.
fn train(golden: &Golden, precision: &str) -> (Vec<f64>, Vec<f64>) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let model = golden.write(folder.path(), 20);
    let model = model.to_string_lossy();
    let arguments =
        ["train", &model, "--preset", &golden.variant, "--precision", precision, "--metrics", "metrics.jsonl"];
    run::succeeds(folder.path(), &arguments);
    let metrics = folder.path().join("metrics.jsonl");
    (run::metric(&metrics, "loss"), run::metric(&metrics, "grad_norm"))
}

fn relative(a: f64, b: f64) -> f64 {
    (a - b).abs() / b.abs()
}

fn matches_in_f64(model: &str, variant: &str) {
    let golden = Golden::load(model, variant);
    let (losses, norms) = train(&golden, "f64");
    assert_eq!(losses.len(), 20);
    for (step, (ours, theirs)) in losses.iter().zip(golden.losses()).enumerate() {
        assert!(relative(*ours, theirs) < 1e-9, "step {step}: loss {ours}, not {theirs}");
    }
    for (step, (ours, theirs)) in norms.iter().zip(golden.grad_norms()).enumerate() {
        assert!(relative(*ours, theirs) < 1e-8, "step {step}: gradient norm {ours}, not {theirs}");
    }
}

fn matches_in_f32(model: &str, variant: &str) {
    let golden = Golden::load(model, variant);
    let (losses, _) = train(&golden, "f32");
    assert_eq!(losses.len(), 20);
    for (step, (ours, theirs)) in losses.iter().zip(golden.losses()).enumerate() {
        let bound = if step < 5 { 2e-4 } else { 2e-3 };
        assert!(relative(*ours, theirs) < bound, "step {step}: loss {ours}, not {theirs}");
    }
}

/// Sixteen-bit values with f32 master weights: near the f64 losses at every step, and gradients near theirs. (bf16 has a
/// significand of 8 bits, f16 of 11; where experts are chosen, a close choice may go the other way.)
fn matches_in_16_bits(model: &str, variant: &str, precision: &str, bound: f64) {
    let golden = Golden::load(model, variant);
    let (losses, norms) = train(&golden, precision);
    assert_eq!(losses.len(), 20);
    for (step, (ours, theirs)) in losses.iter().zip(golden.losses()).enumerate() {
        assert!(relative(*ours, theirs) < bound, "step {step}: loss {ours}, not {theirs}");
    }
    for (step, (ours, theirs)) in norms.iter().zip(golden.grad_norms()).enumerate() {
        assert!(relative(*ours, theirs) < 10.0 * bound, "step {step}: gradient norm {ours}, not {theirs}");
    }
}

macro_rules! variants {
    ($($name:ident $model:literal $variant:literal)*) => { $(
        mod $name {
            #[test]
            fn in_f64() {
                super::matches_in_f64($model, $variant);
            }

            #[test]
            fn in_f32() {
                super::matches_in_f32($model, $variant);
            }
        }
    )* };
}

variants! {
    gpt_tiny "gpt" "tiny"
    gpt_nano "gpt" "nano"
    llama_tiny "llama" "tiny"
    llama_nano "llama" "nano"
    moe_tiny "moe" "tiny"
    moe_tiny_capacity "moe" "tiny_capacity"
    moe_nano "moe" "nano"
}

macro_rules! sixteen_bits {
    ($($name:ident $model:literal $variant:literal $f16_bound:literal)*) => { $(
        mod $name {
            #[test]
            fn in_bf16() {
                super::matches_in_16_bits($model, $variant, "bf16", 5e-3);
            }

            #[test]
            fn in_f16() {
                super::matches_in_16_bits($model, $variant, "f16", $f16_bound);
            }
        }
    )* };
}

// The small variants say as much as the large ones, sooner.
sixteen_bits! {
    gpt_16_bits "gpt" "tiny" 1e-3
    llama_16_bits "llama" "tiny" 1e-3
    moe_16_bits "moe" "tiny" 5e-3
    moe_capacity_16_bits "moe" "tiny_capacity" 5e-3
}

#[test]
fn weights_and_data_are_those_of_the_reference() {
    for (model, variant) in [("gpt", "tiny"), ("llama", "nano"), ("moe", "tiny_capacity")] {
        let golden = Golden::load(model, variant);
        for (i, expected) in golden::numbers(&golden.facts["wte_first4"]).iter().enumerate() {
            assert_eq!(0.1 * golden::hashed(0, i as u32), *expected);
        }
        let folder = tempfile::tempdir().expect("a temporary folder");
        golden.write(folder.path(), 2);
        let bytes = std::fs::read(folder.path().join("tokens.npy")).expect("written");
        let (b, t) = (golden.config("B"), golden.config("T"));
        let data = &bytes[bytes.len() - 2 * b * t * 4..];
        let second_step = &data[b * t * 4..];
        for (i, expected) in golden::numbers(&golden.facts["tokens1_row0_first8"]).iter().enumerate() {
            let at = i * 4;
            let token =
                i32::from_le_bytes([second_step[at], second_step[at + 1], second_step[at + 2], second_step[at + 3]]);
            assert_eq!(f64::from(token), *expected);
        }
    }
}
