//! Whole models with less of the processor's vector instructions than it has: the same program, the same losses but for rounding.

#[path = "common/run.rs"]
mod run;

use run::{command, metric};
use std::path::Path;

/// A transformer of sizes that no vector divides.
const PROGRAM: &str = r#"
use nn.{Embedding, LayerNorm, MultiHeadAttention, Mlp}
use losses.{cross_entropy}
use optim.{adamw}

dim batch = 3, seq = 21, vocab = 30, embed = 20, heads = 2, head_dim = embed / heads, mlp = 44

layer Block(x: [batch, seq, embed]) -> [batch, seq, embed] {
    let norm1, norm2 = LayerNorm[embed]
    let attend = MultiHeadAttention[seq, embed, heads, head_dim]
    let mlp_part = Mlp[embed, mlp]
    let h = x + attend(norm1(x))
    h + mlp_part(norm2(h))
}

model Gpt(tokens: int[batch, seq], targets: int[batch, seq]) {
    let wte = Embedding[vocab, embed]
    let logits = dot[embed](Block(wte(tokens)), wte.table)
    loss mean[batch, seq](cross_entropy[vocab](logits, targets))
}

train Gpt {
    data chars("text.txt")
    optimizer adamw(lr = 0.01)
    steps 4
}
"#;

/// Losses of some steps under a limit.
fn losses(folder: &Path, limit: &str, precision: &str) -> Vec<f64> {
    let file = format!("{limit}-{precision}.jsonl");
    let output = command()
        .env("PARTITA_CPU", limit)
        .args(["train", "gpt.pta", "--no-save", "--threads", "2", "--precision", precision, "--metrics", &file])
        .current_dir(folder)
        .output()
        .expect("the binary runs");
    assert!(output.status.success(), "{limit}: {}", String::from_utf8_lossy(&output.stderr));
    metric(&folder.join(file), "loss")
}

#[test]
fn models_train_alike_with_any_vectors() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("gpt.pta"), PROGRAM).expect("a file");
    let text = "the quick brown fox jumps over the lazy dog; ".repeat(9);
    std::fs::write(folder.path().join("text.txt"), text).expect("a file");
    for (precision, tolerance) in [("f32", 1e-5), ("bf16", 1e-2), ("f16", 2e-3)] {
        let all = losses(folder.path(), "all", precision);
        assert_eq!(all.len(), 4);
        for limit in ["avx512", "avx2", "plain"] {
            for (x, y) in losses(folder.path(), limit, precision).iter().zip(&all) {
                assert!((x - y).abs() < tolerance * y.abs(), "{precision} {limit}: {x} for {y}");
            }
        }
    }
}

#[test]
fn doctor_shows_what_is_allowed_and_other_names_are_errors() {
    let doctor = |limit: &str| command().env("PARTITA_CPU", limit).arg("doctor").output().expect("the binary runs");
    let plain = String::from_utf8(doctor("plain").stdout).expect("text");
    assert!(plain.contains("plain loops") && !plain.contains("avx512f"), "{plain}");
    let unknown = doctor("sse9");
    let text = String::from_utf8_lossy(&unknown.stderr).into_owned();
    assert_eq!(unknown.status.code(), Some(1));
    assert!(text.contains("E0902") && text.contains("avx2"), "{text}");
}

#[test]
fn built_programs_do_not_run_where_less_is_allowed() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("gpt.pta"), PROGRAM).expect("a file");
    std::fs::write(folder.path().join("text.txt"), "to and fro ".repeat(30)).expect("a file");
    let built = command()
        .args(["build", "gpt.pta", "-o", "built"])
        .current_dir(folder.path())
        .output()
        .expect("the binary runs");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let run = std::process::Command::new(folder.path().join("built"))
        .args(["train", "--no-save"])
        .env("PARTITA_CPU", "plain")
        .current_dir(folder.path())
        .output()
        .expect("the program runs");
    let text = String::from_utf8_lossy(&run.stderr);
    let doctor = command().arg("doctor").output().expect("the binary runs").stdout;
    if String::from_utf8_lossy(&doctor).contains("avx2") {
        assert!(!run.status.success() && text.contains("E0812") && text.contains("PARTITA_CPU"), "{text}");
    } else {
        assert!(run.status.success(), "{text}");
    }
}
