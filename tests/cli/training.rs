//! Training: the same numbers whatever the interruptions and threads, and what happens when it goes wrong.

use crate::run::{metric, partita, succeeds};
use crate::{err, fails, out, tiny, write};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// All tensors' bytes of a run's newest checkpoint, by file.
pub fn state(run: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut steps: Vec<_> = std::fs::read_dir(run)
        .expect("the run's folder")
        .map(|e| e.expect("an entry").path())
        .filter(|p| p.file_name().is_some_and(|n| n.to_string_lossy().starts_with("step-")))
        .collect();
    steps.sort();
    let newest = steps.pop().expect("a checkpoint");
    std::fs::read_dir(newest)
        .expect("the checkpoint's folder")
        .map(|e| e.expect("an entry").path())
        .filter(|p| p.extension().is_some_and(|e| e == "safetensors"))
        .map(|p| (p.file_name().expect("a name").to_string_lossy().into_owned(), std::fs::read(&p).expect("bytes")))
        .collect()
}

#[test]
fn a_resumed_run_is_the_uninterrupted_one_bit_for_bit() {
    let folder = tiny();
    let at = folder.path();
    succeeds(at, &["train", "tiny.pta", "--out", "whole", "--metrics", "whole.jsonl"]);
    succeeds(at, &["train", "tiny.pta", "--out", "parts", "--metrics", "parts.jsonl", "--steps", "5"]);
    let text = succeeds(at, &["train", "tiny.pta", "--out", "parts", "--metrics", "parts.jsonl", "--resume"]);
    assert!(text.contains("step 10 of 10"), "{text}");
    let whole = state(&at.join("whole"));
    assert_eq!(whole.keys().collect::<Vec<_>>(), ["average.safetensors", "model.safetensors", "optimizer.safetensors"]);
    assert!(whole == state(&at.join("parts")), "weights differ after resuming");
    for key in ["loss", "grad_norm"] {
        let all = metric(&at.join("whole.jsonl"), key);
        assert_eq!(all.len(), 10);
        assert_eq!(all, metric(&at.join("parts.jsonl"), key), "{key}");
    }
    let valid = metric(&at.join("whole.jsonl"), "valid_loss");
    assert_eq!(valid.len(), 3, "at steps 4, 8 and at the end");
    assert!(valid[2] < valid[0], "{valid:?}");
    // Another seed is another run; the checkpoint's cannot be changed.
    fails(at, &["train", "tiny.pta", "--out", "parts", "--resume", "--steps", "12", "--seed", "9"], 1, "E0902");
    let text = succeeds(at, &["train", "tiny.pta", "--out", "parts", "--resume"]);
    assert!(text.contains("nothing to do"), "{text}");
}

/// The steps of a run's checkpoints.
fn kept(run: &Path) -> Vec<u64> {
    let entries = std::fs::read_dir(run).expect("the run's folder");
    let names = entries.map(|e| e.expect("an entry").file_name().to_string_lossy().into_owned());
    let mut steps: Vec<u64> = names.filter_map(|n| n.strip_prefix("step-")?.parse().ok()).collect();
    steps.sort_unstable();
    steps
}

#[test]
fn the_train_item_says_how_many_checkpoints_stay() {
    let folder = tiny();
    let at = folder.path();
    let text = include_str!("tiny.pta");
    let with =
        |line: &str| write(at, "tiny.pta", text.replace("    steps 10\n", &format!("    steps 10\n    {line}\n")));
    for (line, steps) in [
        ("save every 2", &[6, 8, 10][..]),
        ("save every 2 keep 2", &[8, 10]),
        ("save every 3 keep 1 + 3", &[3, 6, 9, 10]),
        ("save every 2 keep all", &[2, 4, 6, 8, 10]),
    ] {
        with(line);
        succeeds(at, &["fmt", "--check", "tiny.pta"]);
        succeeds(at, &["train", "tiny.pta", "--out", line]);
        assert_eq!(kept(&at.join(line)), steps, "{line}");
    }
    // A run that goes on takes what is said now.
    with("save every 2 keep 1");
    succeeds(at, &["train", "tiny.pta", "--out", "save every 2 keep all", "--steps", "12", "--resume"]);
    assert_eq!(kept(&at.join("save every 2 keep all")), [12]);
    for line in ["save every 2 keep 0", "save every 2 keep 1.5", "save every 2 keep -1"] {
        with(line);
        let said = fails(at, &["check", "tiny.pta"], 1, "E0710");
        assert!(said.contains("positive whole constant"), "{said}");
    }
    with("save every 2 keep");
    fails(at, &["check", "tiny.pta"], 1, "E0101");
    with("log every 2 keep 3");
    fails(at, &["check", "tiny.pta"], 1, "E0101");
}

#[test]
fn the_best_checkpoint_stays() {
    let folder = tiny();
    let at = folder.path();
    // A rate that overshoots in the end: the last weights are not the best ones.
    let text = include_str!("tiny.pta")
        .replace("every 4", "every 2")
        .replace("adamw(lr = 1e-2)", "adamw(lr = where(step < 4, 1e-2, 3.0))")
        .replace("    average ema(decay = 0.9)\n", "")
        .replace("    steps 10\n", "    steps 10\n    save every 5 keep 1\n    save best\n");
    write(at, "tiny.pta", &text);
    succeeds(at, &["fmt", "--check", "tiny.pta"]);
    let best = |run: &str| -> serde_json::Value {
        let text = succeeds(at, &["eval", "tiny.pta", "--json", "--checkpoint", &format!("{run}/best")]);
        serde_json::from_str(&text).expect("an object")
    };
    succeeds(at, &["train", "tiny.pta", "--metrics", "m.jsonl"]);
    let losses = metric(&at.join("m.jsonl"), "valid_loss");
    let (least, lowest) = losses.iter().enumerate().min_by(|a, b| a.1.total_cmp(b.1)).expect("losses");
    assert!(least + 1 < losses.len(), "{losses:?}");
    let found = best("runs/Tiny");
    assert_eq!(found["step"].as_u64(), Some(2 * (least as u64 + 1)), "{losses:?}");
    assert_eq!(found["loss"].as_f64(), Some(*lowest));
    assert_eq!(kept(&at.join("runs/Tiny")), [10]);
    // Interrupted after the best one, the run keeps it.
    succeeds(at, &["train", "tiny.pta", "--steps", "5", "--out", "parts"]);
    succeeds(at, &["train", "tiny.pta", "--resume", "--out", "parts"]);
    assert!(state(&at.join("parts")) == state(&at.join("runs/Tiny")), "resuming is not affected");
    assert_eq!(best("parts")["loss"].as_f64(), Some(*lowest));
    succeeds(at, &["sample", "tiny.pta", "--checkpoint", "parts/best", "--length", "2"]);
    // A new run begins without it.
    succeeds(at, &["train", "tiny.pta", "--steps", "1", "--out", "parts"]);
    assert!(at.join("parts/before-1/best/index.json").is_file());
    assert_eq!(best("parts")["step"].as_u64(), Some(1));
    std::fs::remove_dir_all(at.join("parts/best")).expect("the best one");
    succeeds(at, &["train", "tiny.pta", "--steps", "2", "--no-save", "--out", "parts"]);
    assert!(!at.join("parts/best").exists());
    write(at, "tiny.pta", text.replace("    valid bytes(\"text.txt\", from = 0.8) every 2\n", ""));
    fails(at, &["check", "tiny.pta"], 1, "E0710");
}

#[test]
fn threads_change_nothing() {
    let folder = tiny();
    let at = folder.path();
    succeeds(at, &["train", "tiny.pta", "--out", "one", "--threads", "1"]);
    succeeds(at, &["train", "tiny.pta", "--out", "three", "--threads", "3"]);
    assert!(state(&at.join("one")) == state(&at.join("three")));
}

#[test]
fn the_interpreter_agrees() {
    let folder = tiny();
    let at = folder.path();
    let arguments = ["train", "tiny.pta", "--precision", "f64", "--steps", "4"];
    succeeds(at, &[&arguments[..], &["--out", "a", "--metrics", "a.jsonl"]].concat());
    succeeds(at, &[&arguments[..], &["--out", "b", "--metrics", "b.jsonl", "--engine", "interp"]].concat());
    for key in ["loss", "grad_norm", "valid_loss"] {
        let (a, b) = (metric(&at.join("a.jsonl"), key), metric(&at.join("b.jsonl"), key));
        assert!(!a.is_empty() && a.len() == b.len());
        for (x, y) in a.iter().zip(&b) {
            assert!((x / y - 1.0).abs() < 1e-9, "{key}: {x} and {y}");
        }
    }
}

#[test]
fn a_signal_saves_and_the_run_can_go_on() {
    let folder = tiny();
    let at = folder.path();
    let child = crate::run::command()
        .args(["train", "tiny.pta", "--steps", "100000000", "--out", "run", "--metrics", "m.jsonl"])
        .current_dir(at)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    let begin = Instant::now();
    let lines = || std::fs::read_to_string(at.join("m.jsonl")).map_or(0, |t| t.lines().count());
    while lines() < 1 {
        assert!(begin.elapsed() < Duration::from_secs(120), "training did not begin");
        std::thread::sleep(Duration::from_millis(20));
    }
    let killed = Command::new("kill").args(["-TERM", &child.id().to_string()]).status().expect("`kill` is there");
    assert!(killed.success());
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(143), "{}{}", out(&output), err(&output));
    assert!(out(&output).contains("--resume"), "{}", out(&output));
    let done = metric(&at.join("m.jsonl"), "step").last().copied().expect("a step") as u64;
    let more = (done + 2).to_string();
    let text = succeeds(at, &["train", "tiny.pta", "--out", "run", "--resume", "--steps", &more]);
    assert!(text.contains(&format!("step {more} of {more}")), "{text}");
}

#[test]
fn a_loss_that_is_not_finite_stops_and_its_line_is_found() {
    let folder = tiny();
    let at = folder.path();
    let text = std::fs::read_to_string(at.join("tiny.pta")).expect("the model");
    let bad = text.replace("loss mean[batch, seq](each)", "loss mean[batch, seq](log(each - each))");
    assert_ne!(bad, text);
    write(at, "bad.pta", &bad);
    let text = fails(at, &["train", "bad.pta", "--out", "run"], 1, "E0810");
    assert!(text.contains("--debug-nan"), "{text}");
    let text = fails(at, &["train", "bad.pta", "--out", "run", "--debug-nan"], 1, "E0810");
    assert!(text.contains("bad.pta:28:") && text.contains("`log` gave -inf"), "{text}");
}

#[test]
fn an_index_out_of_range_names_its_line() {
    let folder = tiny();
    let at = folder.path();
    let text = std::fs::read_to_string(at.join("tiny.pta")).expect("the model");
    let bad = text.replace("wte(tokens)", "wte(tokens * 3)");
    assert_ne!(bad, text);
    write(at, "bad.pta", &bad);
    let line = bad.lines().position(|l| l.contains("tokens * 3")).expect("the line") + 1;
    for engine in ["cpu", "interp"] {
        let text = fails(at, &["train", "bad.pta", "--out", "run", "--engine", engine], 1, "E0809");
        let own = text.find(&format!("bad.pta:{line}:")).expect("the program's own line");
        assert!(text.find("nn.pta:").is_some_and(|library| own < library), "{text}");
        assert!(text.contains("in this call"), "{text}");
        assert!(text.contains("help: indices of `vocab` are 0 to 255"), "{text}");
    }
}

#[test]
fn a_slice_that_does_not_fit_names_its_line() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let at = folder.path();
    let text = "use optim.{sgd}
dim row = 2, all = 5, part = 3
model M(first: int[row]) {
    param table: [all] = iota[all]
    loss mean[part](table[all = max[row](first).. -> part])
}
train M { data { first = csv(\"start.csv\") }
    optimizer sgd(lr = 0.0)
    steps 1 }";
    write(at, "slice.pta", text);
    for engine in ["cpu", "interp"] {
        let arguments = ["train", "slice.pta", "--out", "run", "--metrics", "m.jsonl", "--engine", engine];
        write(at, "start.csv", "first\n1\n2\n");
        succeeds(at, &arguments);
        assert_eq!(crate::run::metric(&at.join("m.jsonl"), "loss"), [3.0]);
        for bad in ["3", "-1"] {
            write(at, "start.csv", format!("first\n{bad}\n{bad}\n"));
            let text = fails(at, &arguments, 1, "E0809");
            assert!(text.contains("slice.pta:5:") && text.contains("all_start"), "{text}");
        }
    }
}

#[test]
fn a_dry_run_compiles_and_leaves_nothing() {
    let folder = tiny();
    let text = succeeds(folder.path(), &["train", "tiny.pta", "--dry-run", "--timings"]);
    assert!(text.contains("10 steps, not run"), "{text}");
    assert!(!folder.path().join("runs").exists());
    // More memory than there is may be wanted, but the data must be there.
    succeeds(folder.path(), &["train", "tiny.pta", "--dry-run", "--set", "embed=2000000000"]);
    let text = fails(folder.path(), &["train", "tiny.pta", "--dry-run", "--data", "none.txt"], 1, "E0801");
    assert!(text.contains("none.txt"), "{text}");
    fails(folder.path(), &["train", "tiny.pta", "--dry-run", "--set", "batch=4000"], 1, "E0804");
    let text = succeeds(folder.path(), &["train", "tiny.pta", "--dry-run", "--engine", "interp", "--steps", "1"]);
    assert!(text.contains("1 step, not run"), "{text}");
    assert!(!folder.path().join("runs").exists());
}

#[test]
fn runs_have_a_default_place_and_event_files() {
    let folder = tiny();
    let at = folder.path();
    succeeds(at, &["train", "tiny.pta", "--steps", "2"]);
    let run = at.join("runs/Tiny");
    assert!(run.join("step-00000002/index.json").is_file());
    let events =
        |e: std::io::Result<std::fs::DirEntry>| e.expect("an entry").file_name().to_string_lossy().contains("tfevents");
    assert!(std::fs::read_dir(&run).expect("the run").any(events));
    let evaluated = succeeds(at, &["eval", "tiny.pta"]);
    assert!(evaluated.starts_with("step 2: loss "), "{evaluated}");
    assert_eq!(
        succeeds(at, &["sample", "tiny.pta", "--prompt", "line", "--length", "5", "--temperature", "0"])
            .trim_end()
            .len(),
        9
    );
    // A second run keeps the first one's files aside.
    let names = |dir: &Path| -> Vec<String> {
        let entries = std::fs::read_dir(dir).expect("a folder");
        let names = entries.map(|e| e.expect("an entry").file_name().to_string_lossy().into_owned());
        let mut names: Vec<String> = names.filter(|n| n.contains("tfevents") || n.contains("step-")).collect();
        names.sort();
        names
    };
    let first = names(&run);
    assert_eq!(first.len(), 2, "{first:?}");
    write(at, "m.jsonl", "figures\n");
    let output = partita(at, &["train", "tiny.pta", "--steps", "1", "--metrics", "m.jsonl"]);
    assert!(err(&output).contains("the run before is now in runs/Tiny/before-1\n"), "{}", err(&output));
    assert!(err(&output).contains("older metrics are now in m.jsonl.before-1"), "{}", err(&output));
    assert_eq!(names(&run.join("before-1")), first);
    assert_eq!(names(&run).len(), 2, "its own");
    assert_eq!(std::fs::read_to_string(at.join("m.jsonl.before-1")).expect("figures"), "figures\n");
    assert_eq!(metric(&at.join("m.jsonl"), "loss").len(), 1);
}

#[test]
fn evaluation_reads_averages_and_writes_outputs() {
    let folder = tiny();
    let at = folder.path();
    succeeds(at, &["train", "tiny.pta", "--metrics", "m.jsonl"]);
    let evaluate = |arguments: &[&str]| -> serde_json::Value {
        let json = succeeds(at, &[&["eval", "--json"], arguments].concat());
        serde_json::from_str(&json).expect("an object")
    };
    let valid = metric(&at.join("m.jsonl"), "valid_loss");
    assert_eq!(evaluate(&["tiny.pta"])["loss"].as_f64(), valid.last().copied());
    let found = evaluate(&["tiny.pta", "--output", "each=each.npy"]);
    // The loss is the mean of the output that was written.
    let bytes = std::fs::read(at.join("each.npy")).expect("the array");
    let header = 10 + usize::from(u16::from_le_bytes([bytes[8], bytes[9]]));
    let values: Vec<f64> =
        bytes[header..].chunks_exact(4).map(|b| f64::from(f32::from_le_bytes([b[0], b[1], b[2], b[3]]))).collect();
    assert_eq!(values.len() as u64, found["batches"].as_u64().expect("a number") * 32);
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    assert!((mean / found["loss"].as_f64().expect("a number") - 1.0).abs() < 1e-5);
    // Weights are not their averages: evaluating the weights themselves gives another loss.
    let text = std::fs::read_to_string(at.join("tiny.pta")).expect("the model");
    write(at, "plain.pta", text.replace("    average ema(decay = 0.9)\n", ""));
    let plain = evaluate(&["plain.pta"])["loss"].as_f64().expect("a number");
    assert!((plain / valid[2] - 1.0).abs() > 1e-4, "{plain} and {valid:?}");
    let text = fails(at, &["eval", "tiny.pta", "--output", "eech=x.npy"], 1, "E0201");
    assert!(text.contains("its outputs: ") && text.contains("each"), "{text}");
}

#[test]
fn exported_weights_are_loaded_again() {
    let folder = tiny();
    let at = folder.path();
    let text = std::fs::read_to_string(at.join("tiny.pta")).expect("the model");
    let map = "\nweights plain of Tiny {\n    \"table\": [embed, vocab] = wte.table\n    \"w\": [vocab, embed] = head.weight\n    \"b\": [vocab] = head.shift\n    \"n\": [] = seen\n}\n";
    write(at, "tiny.pta", text.clone() + map);
    succeeds(at, &["train", "tiny.pta", "--steps", "3"]);
    let evaluated = succeeds(at, &["eval", "tiny.pta", "--json"]);
    let written = succeeds(at, &["export", "tiny.pta", "--with", "plain", "-o", "w.safetensors"]);
    assert!(written.ends_with("w.safetensors\n"), "{written}");
    succeeds(at, &["export", "tiny.pta", "-o", "own.safetensors"]);
    for load in ["load \"w.safetensors\" with plain", "load \"own.safetensors\""] {
        let loading = text.replace("    steps 10", &format!("    {load}\n    steps 10"));
        write(at, "loading.pta", loading + map);
        let again = succeeds(at, &["eval", "loading.pta", "--initial", "--json"]);
        let loss = |json: &str| serde_json::from_str::<serde_json::Value>(json).expect("an object")["loss"].clone();
        assert_eq!(loss(&again), loss(&evaluated), "{load}");
    }
    fails(at, &["export", "tiny.pta", "--with", "plane", "-o", "x.safetensors"], 1, "E0201");
    fails(at, &["export", "tiny.pta", "--set", "embed=3", "-o", "x.safetensors"], 1, "E0807");
}

#[test]
fn a_run_or_a_checkpoint_is_loaded_in_part() {
    let folder = tiny();
    let at = folder.path();
    let text = include_str!("tiny.pta");
    succeeds(at, &["train", "tiny.pta", "--steps", "3"]);
    let wider = text
        .replace("let head = Linear[embed, vocab]", "let head = Linear[embed, wide]")
        .replace("cross_entropy[vocab](logits, targets)", "cross_entropy[wide](logits, targets)");
    let wider = wider.replace("embed = 12", "embed = 12, wide = 300").replace("draw[vocab]", "draw[wide]");
    let with = |program: &str, load: &str| {
        write(at, "new.pta", program.replace("    steps 10", &format!("    {load}\n    steps 10")));
    };
    let loss = |arguments: &[&str]| -> serde_json::Value {
        let text = succeeds(at, &[&["eval", "new.pta", "--json"], arguments].concat());
        serde_json::from_str::<serde_json::Value>(&text).expect("an object")["loss"].clone()
    };
    // A run, and one of its checkpoints: the same weights, without the average that evaluation reads.
    for load in ["load \"runs/Tiny\"", "load \"runs/Tiny/step-00000003\""] {
        with(text, load);
        assert_ne!(loss(&["--initial"]), loss(&["--checkpoint", "runs/Tiny"]), "{load}");
        succeeds(at, &["train", "new.pta", "--dry-run"]);
    }
    let initial = |load: &str| {
        with(text, load);
        loss(&["--initial"])
    };
    assert_eq!(initial("load \"runs/Tiny\""), initial("load \"runs/Tiny/step-00000003/model.safetensors\""));
    // Another layer: the error points at the `load` and says what to leave out.
    with(&wider, "load \"runs/Tiny\"");
    let said = fails(at, &["train", "new.pta"], 1, "E0807");
    for part in [
        "new.pta:",
        "load \"runs/Tiny\"",
        "`head.weight` has shape [12, 256], in the model [12, 300]",
        "`head.shift`",
        "on \"**\" except \"head.**\"",
        "runs/Tiny",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert!(!said.contains("<std>"), "{said}");
    with(&wider, "load \"runs/Tiny\" on \"**\" except \"head.**\"\n    freeze \"wte.**\"");
    succeeds(at, &["train", "new.pta", "--steps", "2", "--out", "tuned"]);
    let tensor = |run: &str, name: &str| {
        let weights = partita::runtime::checkpoint::Weights::open(&at.join(run)).expect("a run");
        weights.read(name, partita::types::DType::F32).expect("a tensor")
    };
    assert!(tensor("runs/Tiny", "wte.table") == tensor("tuned", "wte.table"), "loaded and frozen");
    // States go with the paths that are selected: three steps of four samples, then two more.
    let seen = |run: &str| bytemuck::pod_read_unaligned::<f32>(&tensor(run, "seen"));
    assert_eq!((seen("runs/Tiny"), seen("tuned")), (12.0, 20.0));
    with(text, "load \"runs\"");
    let said = fails(at, &["train", "new.pta"], 1, "E0805");
    assert!(said.contains("new.pta:") && said.contains("neither a checkpoint nor"), "{said}");
    with(text, "load \"none\"");
    fails(at, &["train", "new.pta"], 1, "E0805");
    fails(at, &["train", "new.pta", "--dry-run"], 1, "E0805");
}

#[test]
fn a_profile_accounts_for_the_whole_step() {
    let folder = tiny();
    let at = folder.path();
    let text =
        succeeds(at, &["train", "tiny.pta", "--out", "run", "--steps", "4", "--profile", "--trace", "trace.json"]);
    assert!(text.contains("profile of 3 steps after the first"), "{text}");
    let shares = |title: &str| -> f64 {
        let table = text.split(title).nth(1).unwrap_or_else(|| panic!("no `{title}` in {text}"));
        let rows = table.lines().skip(2).take_while(|l| !l.is_empty());
        let share = |row: &str| row.split_whitespace().nth(2).and_then(|w| w.parse::<f64>().ok());
        rows.map(|row| share(row).unwrap_or_else(|| panic!("{row}"))).sum()
    };
    // Both tables hold all steps; each row is rounded to a tenth of a percent.
    let (kernels, lines) = (shares("by kernel"), shares("by line"));
    assert!((kernels - lines).abs() < 3.0 && kernels > 30.0 && kernels < 102.0, "{kernels} {lines}\n{text}");
    assert!(text.contains("tiny.pta:"), "{text}");
    let beside = text.split("beside a step: ").nth(1).unwrap_or_else(|| panic!("{text}"));
    let times: Vec<f64> = beside.split(' ').filter_map(|word| word.parse().ok()).collect();
    // Four steps with a checkpoint at the end, or sooner: both take some time, and no seconds.
    assert!(times.len() == 2 && times.iter().all(|t| (0.0..5000.0).contains(t)) && times[1] > 0.0, "{beside}");
    let trace: serde_json::Value = serde_json::from_slice(&std::fs::read(at.join("trace.json")).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().expect("a list of events");
    let runs: Vec<&serde_json::Value> = events.iter().filter(|e| e["ph"] == "X").collect();
    assert!(runs.iter().any(|e| e["cat"] == "product" && e["args"]["flops"].as_u64() > Some(0)));
    let start = |e: &serde_json::Value| e["ts"].as_f64().expect("a time");
    assert!(runs.windows(2).all(|w| start(w[0]) <= start(w[1])), "events in order");
    let text = fails(at, &["train", "tiny.pta", "--out", "run", "--trace", "tiny.pta"], 1, "E0813");
    assert!(text.contains("would destroy"), "{text}");
}

#[test]
fn values_that_go_bad_in_the_update_are_named_and_not_saved() {
    let folder = tiny();
    let at = folder.path();
    // The state is 0 in the first step.
    let divides = "dim a = 4\noptimizer weird(w: [..], g: [..], lr: f32) -> [..] {\n    state m: f32[..] = 0\n    update m = m + g\n    \
        w - lr * (g / m)\n}\nmodel M() {\n    param w: [a] = normal(0.1)\n    loss sum[a](w * w)\n}\n\
        train M {\n    optimizer weird(lr = 0.1)\n    steps 1\n}\n";
    write(at, "update.pta", divides);
    let text = fails(at, &["train", "update.pta"], 1, "E0810");
    assert!(text.contains("parameter `w` holds") && text.contains("after step 1"), "{text}");
    assert!(!at.join("runs/M/step-00000001").exists(), "nothing is saved");
    let text = fails(at, &["train", "update.pta", "--debug-nan"], 1, "E0810");
    assert!(text.contains("update.pta:5:"), "{text}");
    let root = "use optim.{sgd}\ndim a = 4\nmodel M() {\n    param w: [a] = 0\n    \
        loss sum[a](where(w > 0, sqrt(w), 0))\n}\ntrain M {\n    optimizer sgd(lr = 0.1)\n    steps 100\n}\n";
    write(at, "root.pta", root);
    let text = fails(at, &["train", "root.pta"], 1, "E0810");
    assert!(text.contains("gradients of step 1 are not finite"), "{text}");
    let text = fails(at, &["train", "root.pta", "--debug-nan"], 1, "E0810");
    assert!(text.contains("root.pta:5:"), "{text}");
    let text = fails(at, &["train", "root.pta", "--precision", "f16"], 1, "E0810");
    assert!(text.contains("loss scale has fallen"), "{text}");
}

#[test]
fn a_run_that_saves_nothing_moves_nothing_away() {
    let folder = tiny();
    let at = folder.path();
    succeeds(at, &["train", "tiny.pta", "--out", "run", "--steps", "3"]);
    let before = state(&at.join("run"));
    succeeds(at, &["train", "tiny.pta", "--out", "run", "--steps", "2", "--no-save"]);
    assert!(state(&at.join("run")) == before && !at.join("run/before-1").exists());
    succeeds(at, &["train", "tiny.pta", "--out", "none", "--steps", "2", "--no-save"]);
    assert!(!at.join("none").exists());
    // What cannot be written is said before the work, not after it.
    let text = fails(at, &["train", "tiny.pta", "--out", "run2", "--trace", "no/such/place.json"], 1, "E0813");
    assert!(!text.contains("step 1/") && !at.join("run2").exists(), "{text}");
    fails(at, &["train", "tiny.pta", "--metrics", "m", "--trace", "m", "--no-save"], 1, "E0902");
    fails(at, &["train", "tiny.pta", "--set", "train.clip=0.1", "--no-save"], 1, "E0902");
}

#[test]
fn what_is_given_for_validation_is_not_replaced_again() {
    let folder = tiny();
    let at = folder.path();
    let text = std::fs::read_to_string(at.join("text.txt")).expect("the data");
    write(at, "other.txt", &text[..text.len() / 2]);
    write(at, "same.txt", &text);
    succeeds(at, &["train", "tiny.pta", "--out", "run", "--steps", "2"]);
    let eval = |valid: &str| {
        let run = ["eval", "tiny.pta", "--checkpoint", "run", "--data", "other.txt", "--valid", valid];
        succeeds(at, &run)
    };
    // `text.txt` is also what the program trains on, in whose place `other.txt` is given.
    assert_eq!(eval("text.txt"), eval("same.txt"));
}
