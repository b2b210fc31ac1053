//! A published model of 260,032 parameters: losses, the gradient of every tensor and training traces of an independent
//! implementation in f64, and the text that the model is known to write.
//!
//! The model's file is not part of the repository: the folder that holds `stories260K.bin` and `tok512.bin` is
//! `$PARTITA_DATA`, or `../shared/data` beside the checkout. Without it these tests say that they are skipped.

#[path = "common/golden.rs"]
mod golden;
#[path = "common/run.rs"]
mod run;

use golden::{numbers, root, write_npy};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// A folder with the program, the converted weights and one batch of data for each of so many steps.
struct Setting {
    folder: tempfile::TempDir,
    facts: Value,
}

fn data() -> Option<PathBuf> {
    let named = std::env::var_os("PARTITA_DATA").map(PathBuf::from);
    let found =
        [named, Some(root().join("../shared/data"))].into_iter().flatten().find(|p| p.join("stories260K.bin").exists());
    if found.is_none() {
        println!("skipped: no stories260K.bin in $PARTITA_DATA");
    }
    found
}

fn facts() -> Value {
    let text = std::fs::read_to_string(root().join("tests/models/stories260k.json")).expect("the reference is there");
    serde_json::from_str(&text).expect("the reference is JSON")
}

fn ids(value: &Value) -> Vec<i32> {
    numbers(value).iter().map(|n| *n as i32).collect()
}

/// Tokens and targets of a sequence.
type Row = (Vec<i32>, Vec<i32>);

impl Setting {
    fn new(rows: &[Row], steps: usize) -> Option<Setting> {
        let from = data()?;
        let folder = tempfile::tempdir().expect("a temporary folder");
        std::fs::copy(root().join("tests/models/stories260k.pta"), folder.path().join("story.pta")).expect("copied");
        convert(&from.join("stories260K.bin"), &folder.path().join("stories260k.safetensors"));
        std::fs::write(folder.path().join("tokenizer.json"), tokenizer(&from.join("tok512.bin"))).expect("written");
        let shape = [steps * rows.len(), rows[0].0.len()];
        let repeat = |pick: fn(&Row) -> &Vec<i32>| -> Vec<i32> {
            (0..steps).flat_map(|_| rows.iter().flat_map(|r| pick(r).clone())).collect()
        };
        write_npy(&folder.path().join("tokens.npy"), &repeat(|r| &r.0), &shape);
        write_npy(&folder.path().join("targets.npy"), &repeat(|r| &r.1), &shape);
        Some(Setting { folder, facts: facts() })
    }

    /// The program with the plan `p`.
    fn plan(&self, mesh: &str, lines: &str) {
        let text = std::fs::read_to_string(root().join("tests/models/stories260k.pta")).expect("the model is there");
        let text = format!("{text}\nplan p {{\n mesh {mesh}\n {lines}\n}}\n");
        std::fs::write(self.folder.path().join("story.pta"), text).expect("written");
    }

    /// Losses and gradient norms of a train item.
    fn trace(&self, item: &str, steps: usize, more: &[&str]) -> (Vec<f64>, Vec<f64>) {
        let steps = steps.to_string();
        let mut arguments = vec!["train", "story.pta", "--item", item, "--steps", &steps, "--metrics", "m.jsonl"];
        arguments.extend(more);
        run::succeeds(self.folder.path(), &arguments);
        let metrics = self.folder.path().join("m.jsonl");
        (run::metric(&metrics, "loss"), run::metric(&metrics, "grad_norm"))
    }
}

/// The rows of the training reference: 4 sequences of 64 tokens of the greedy text.
fn training_rows(facts: &Value) -> Vec<(Vec<i32>, Vec<i32>)> {
    let text = ids(&facts["greedy_ids_from_bos"]);
    (0..4).map(|k| (text[64 * k..64 * k + 64].to_vec(), text[64 * k + 1..64 * k + 65].to_vec())).collect()
}

#[track_caller]
fn close(ours: f64, theirs: f64, bound: f64) {
    assert!((ours - theirs).abs() <= bound * theirs.abs(), "{ours} is not {theirs}");
}

fn follows(item: &str, trace: &str, after: &str) {
    let Some(s) = Setting::new(&training_rows(&facts()), 6) else { return };
    for (precision, bound) in [("f64", 1e-9), ("f32", 1e-4)] {
        let (losses, norms) = s.trace(item, 6, &["--precision", precision]);
        let expected = s.facts["training"][trace].as_array().expect("a trace").clone();
        for (step, pair) in expected.iter().enumerate() {
            let pair = numbers(pair);
            close(losses[step], pair[0], bound * if precision == "f32" && step > 2 { 10.0 } else { 1.0 });
            close(norms[step], pair[1], bound * if precision == "f32" && step > 2 { 10.0 } else { 1.0 });
        }
        close(losses[5], s.facts["training"][after].as_f64().expect("a loss"), bound * 10.0);
    }
}

#[test]
fn gradient_descent_follows_the_reference() {
    follows("sgd", "sgd_lr0.02_loss_gradnorm_before_each_step", "sgd_loss_after_5");
}

/// One step of plain descent moves each weight by the rate times its gradient: the movement of every tensor, under the
/// names of the published file, gives the norm and the sum of its gradient.
#[test]
fn the_gradient_of_each_tensor_is_that_of_the_reference() {
    let Some(s) = Setting::new(&training_rows(&facts()), 1) else { return };
    s.trace("sgd", 1, &["--precision", "f64", "--out", "run"]);
    let arguments =
        ["export", "story.pta", "--item", "sgd", "--precision", "f64", "--checkpoint", "run", "--with", "original"];
    run::succeeds(s.folder.path(), &[&arguments[..], &["-o", "after.safetensors"]].concat());
    let [before, after] = ["stories260k", "after"].map(|name| {
        std::fs::read(s.folder.path().join(format!("{name}.safetensors"))).expect("the weights were written")
    });
    let [before, after] =
        [&before, &after].map(|bytes| safetensors::SafeTensors::deserialize(bytes).expect("a safetensors file"));
    let gradient = |name: &str| -> Vec<f64> {
        let [old, new] = [&before, &after].map(|file| {
            let bytes = file.tensor(name).unwrap_or_else(|_| panic!("no tensor {name}")).data();
            bytes.chunks_exact(8).map(|b| f64::from_le_bytes(b.try_into().expect("8 bytes"))).collect::<Vec<f64>>()
        });
        assert_eq!(old.len(), new.len());
        old.iter().zip(new).map(|(old, new)| (old - new) / 0.02).collect()
    };
    // The reference names the tensors of all layers together.
    let kinds = [
        ("token_embedding", "tok_embeddings.weight"),
        ("rms_att", "layers.{i}.attention_norm.weight"),
        ("wq", "layers.{i}.attention.wq.weight"),
        ("wk", "layers.{i}.attention.wk.weight"),
        ("wv", "layers.{i}.attention.wv.weight"),
        ("wo", "layers.{i}.attention.wo.weight"),
        ("rms_ffn", "layers.{i}.ffn_norm.weight"),
        ("w1", "layers.{i}.feed_forward.w1.weight"),
        ("w2", "layers.{i}.feed_forward.w2.weight"),
        ("w3", "layers.{i}.feed_forward.w3.weight"),
        ("rms_final", "norm.weight"),
    ];
    let training = &s.facts["training"];
    let (norms, sums) = (&training["grad_l2_per_tensor"], &training["grad_sum_per_tensor"]);
    assert_eq!(norms.as_object().expect("a norm for each tensor").len(), kinds.len());
    let layers = s.facts["config"]["layers"].as_u64().expect("a number of layers");
    for (kind, name) in kinds {
        let turns = if name.contains("{i}") { layers } else { 1 };
        let g: Vec<f64> = (0..turns).flat_map(|i| gradient(&name.replace("{i}", &i.to_string()))).collect();
        close(g.iter().map(|g| g * g).sum::<f64>().sqrt(), norms[kind].as_f64().expect("a norm"), 1e-9);
        close(g.iter().sum(), sums[kind].as_f64().expect("a sum"), 1e-8);
    }
}

#[test]
fn clipped_descent_follows_the_reference() {
    follows("clipped", "sgd_lr0.1_clip0.25_loss_gradnorm", "sgd_clip_loss_after_5");
}

#[test]
fn adamw_follows_the_reference() {
    follows("adamw", "adamw_lr1e-3_b0.9_0.95_eps1e-8_wd0.1_all_tensors", "adamw_loss_after_5");
}

/// Plans of the usual kinds; the model has 4 heads of keys and 512 tokens.
const PLANS: [(&str, &str); 21] = [
    ("dp = 2", "shard batch by dp"),
    ("dp = 3", "shard batch by dp"),
    ("dp = 4", "shard batch by dp"),
    ("dp = 2", "shard batch by dp\n zero 1 by dp"),
    ("dp = 4", "shard batch by dp\n zero 1 by dp"),
    ("dp = 2", "shard batch by dp\n zero 2 by dp\n microbatches 2"),
    ("dp = 4", "shard batch by dp\n zero 2 by dp"),
    ("dp = 2", "shard batch by dp\n zero 3 by dp\n microbatches 2"),
    ("dp = 4", "shard batch by dp\n zero 3 by dp"),
    ("tp = 2", "shard heads, mlp, vocab by tp"),
    ("tp = 3", "shard kv, mlp, vocab by tp"),
    ("tp = 4", "shard heads, mlp, vocab by tp"),
    ("tp = 8", "shard heads, mlp by tp"),
    ("tp = 2", "shard heads, mlp, vocab by tp\n shard seq by tp in RmsNorm"),
    ("tp = 4", "shard heads, mlp, vocab by tp\n shard seq by tp in RmsNorm\n recompute gathers"),
    ("dp = 2, tp = 2", "shard batch by dp\n shard heads, mlp, vocab by tp"),
    ("dp = 2, tp = 2", "shard batch by dp\n shard heads, mlp, vocab by tp\n shard seq by tp in RmsNorm"),
    ("cp = 2", "shard seq by cp"),
    ("cp = 2", "shard seq by cp { order = zigzag }"),
    ("cp = 2", "shard seq by cp { gather = ring, order = zigzag }"),
    ("cp = 2", "shard seq by cp\n shard heads by cp in attention"),
];

#[test]
#[cfg_attr(debug_assertions, ignore = "long where kernels of the library are not optimised")]
fn descent_on_many_ranks_follows_the_reference() {
    let Some(s) = Setting::new(&training_rows(&facts()), 3) else { return };
    let expected = s.facts["training"]["sgd_lr0.02_loss_gradnorm_before_each_step"].as_array().expect("a trace");
    for (mesh, lines) in PLANS {
        s.plan(mesh, lines);
        for (precision, bound) in [("f64", 1e-9), ("f32", 1e-4)] {
            let (losses, norms) = s.trace("sgd", 3, &["--precision", precision, "--plan", "p", "--no-save"]);
            for (step, pair) in expected.iter().take(3).enumerate() {
                let pair = numbers(pair);
                println!("{mesh}: {lines}, {precision}, step {step}");
                close(losses[step], pair[0], bound);
                close(norms[step], pair[1], bound);
            }
        }
    }
}

/// A7: rows with ever more counted tokens. Means of means are not the mean, wherever the sums are taken.
#[test]
fn a7_means_over_uneven_rows_divide_by_the_global_count() {
    let mut rows = training_rows(&facts());
    for (k, (_, targets)) in rows.iter_mut().enumerate() {
        targets[16 * (k + 1)..].fill(-100);
    }
    let Some(s) = Setting::new(&rows, 1) else { return };
    let uneven = &s.facts["training"]["uneven"];
    let of = |key: &str| uneven[key].as_f64().expect("a number");
    let (loss, norm) = (of("loss_token_weighted"), of("grad_l2_global"));
    // Those of the case; means of means would be 0.5460074 and 2.5026195.
    assert!((loss - 0.630_082_8).abs() < 1e-7 && (norm - 2.925_571_4).abs() < 1e-7, "{loss} {norm}");
    for (mesh, lines) in [
        ("dp = 1", "shard batch by dp"),
        ("dp = 4", "shard batch by dp"),
        ("dp = 3", "shard batch by dp"),
        ("dp = 2", "shard batch by dp\n microbatches 2"),
        ("dp = 1", "shard batch by dp\n microbatches 4"),
        ("cp = 2", "shard seq by cp"),
        ("cp = 2", "shard seq by cp { order = zigzag }"),
        ("dp = 2, cp = 2", "shard batch by dp\n shard seq by cp\n zero 2 by dp\n microbatches 2"),
    ] {
        s.plan(mesh, lines);
        println!("{mesh}: {lines}");
        let (losses, norms) = s.trace("sgd", 1, &["--precision", "f64", "--plan", "p", "--no-save"]);
        close(losses[0], loss, 1e-9);
        close(norms[0], norm, 1e-9);
    }
}

#[test]
fn losses_of_given_texts_are_those_of_the_reference() {
    for (preset, key, mean) in [("fixed", "fixed_ids", "fixed_mean_nll"), ("real", "real_ids", "real_mean_nll")] {
        let text = ids(&facts()[key]);
        let row = (text[..text.len() - 1].to_vec(), text[1..].to_vec());
        let Some(s) = Setting::new(&[row], 1) else { return };
        let expected = s.facts[mean].as_f64().expect("a loss");
        for (precision, bound) in [("f64", 1e-9), ("f32", 1e-4)] {
            let (losses, _) = s.trace("import", 1, &["--preset", preset, "--precision", precision]);
            close(losses[0], expected, bound);
        }
    }
}

#[test]
fn each_token_of_given_texts_has_the_loss_of_the_reference() {
    for (preset, key, each) in
        [("fixed", "fixed_ids", "fixed_nll_per_token"), ("real", "real_ids", "real_nll_per_token")]
    {
        let text = ids(&facts()[key]);
        let row = (text[..text.len() - 1].to_vec(), text[1..].to_vec());
        let Some(s) = Setting::new(&[row], 1) else { return };
        let arguments =
            ["eval", "story.pta", "--item", "import", "--preset", preset, "--initial", "--output", "each=each.npy"];
        run::succeeds(s.folder.path(), &arguments);
        let file = std::fs::read(s.folder.path().join("each.npy")).expect("the output was written");
        let start = 10 + usize::from(u16::from_le_bytes([file[8], file[9]]));
        let ours = file[start..].chunks_exact(4).map(|b| f64::from(f32::from_le_bytes([b[0], b[1], b[2], b[3]])));
        let theirs = numbers(&s.facts[each]);
        assert_eq!(ours.len(), theirs.len());
        for (ours, theirs) in ours.zip(theirs) {
            assert!((ours - theirs).abs() < 1e-4 * theirs.abs().max(1.0), "{ours} is not {theirs}");
        }
    }
}

#[test]
fn the_greedy_text_is_the_published_story() {
    let Some(s) = Setting::new(&training_rows(&facts()), 1) else { return };
    s.trace("import", 1, &["--out", "run"]);
    let arguments = ["sample", "story.pta", "--preset", "long", "--checkpoint", "run", "--length", "256"];
    let text = run::succeeds(s.folder.path(), &arguments);
    let story = s.facts["greedy_text"].as_str().expect("a text");
    assert_eq!(text.trim(), story.trim());
}

/// From seven sizes and float32 tensors, one after another, to a safetensors file of f64.
fn convert(from: &Path, to: &Path) {
    let bytes = std::fs::read(from).expect("the model's file can be read");
    let head: Vec<usize> =
        (0..7).map(|i| i32::from_le_bytes([0, 1, 2, 3].map(|k| bytes[4 * i + k])) as usize).collect();
    let [d, hidden, layers, heads, kv_heads, vocab, _context] = head[..] else { panic!("seven sizes") };
    let kv = d / heads * kv_heads;
    let mut at = 28;
    let mut take = |count: usize| -> Vec<u8> {
        let part = &bytes[at..at + 4 * count];
        at += 4 * count;
        part.chunks_exact(4)
            .flat_map(|b| f64::from(f32::from_le_bytes([b[0], b[1], b[2], b[3]])).to_le_bytes())
            .collect()
    };
    let mut tensors = vec![("tok_embeddings.weight".to_string(), vec![vocab, d], take(vocab * d))];
    // Each kind is stored for all layers together.
    let kinds: [(&str, Vec<usize>); 9] = [
        ("attention_norm", vec![d]),
        ("attention.wq", vec![d, d]),
        ("attention.wk", vec![kv, d]),
        ("attention.wv", vec![kv, d]),
        ("attention.wo", vec![d, d]),
        ("ffn_norm", vec![d]),
        ("feed_forward.w1", vec![hidden, d]),
        ("feed_forward.w2", vec![d, hidden]),
        ("feed_forward.w3", vec![hidden, d]),
    ];
    for (name, shape) in kinds {
        for layer in 0..layers {
            tensors.push((format!("layers.{layer}.{name}.weight"), shape.clone(), take(shape.iter().product())));
        }
    }
    tensors.push(("norm.weight".to_string(), vec![d], take(d)));
    golden::write_safetensors(to, &tensors);
}

/// The vocabulary as a `tokenizer.json`: enough to decode.
fn tokenizer(from: &Path) -> String {
    let bytes = std::fs::read(from).expect("the tokenizer's file can be read");
    let mut pieces = serde_json::Map::new();
    let mut at = 4;
    while at < bytes.len() {
        let length = i32::from_le_bytes([4, 5, 6, 7].map(|k| bytes[at + k])) as usize;
        let piece = String::from_utf8_lossy(&bytes[at + 8..at + 8 + length]).trim_matches('\n').to_string();
        at += 8 + length;
        pieces.insert(piece, json!(pieces.len()));
    }
    let special = |id: u32, content: &str| {
        json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
            "special": true})
    };
    json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": [special(0, "<unk>"), special(1, "<s>"), special(2, "</s>")],
        "normalizer": null, "pre_tokenizer": null, "post_processor": null,
        "decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]},
        "model": {"type": "WordLevel", "vocab": pieces, "unk_token": "<unk>"},
    })
    .to_string()
}
