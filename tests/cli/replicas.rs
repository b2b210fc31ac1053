//! Runs of replicas that train apart, of late gradients and of two versions of parameters: they stop and go on anywhere, and what they
//! leave is the model.

use crate::run::{metric, partita, succeeds};
use crate::training::state;
use crate::{err, fails, tiny, write};
use std::path::Path;

const PLANS: &str = "
plan far {
    mesh dp = 2
    shard batch by dp
    local(steps = 3) by dp { lr = 0.7, momentum = 0.9 }
}
plan mean {
    mesh dp = 2
    shard batch by dp
    local(steps = 4)
}
plan late {
    mesh dp = 2
    shard batch by dp
    async(staleness = 2) by dp
}
";

/// The model without its average, with plans.
fn folder() -> tempfile::TempDir {
    let folder = tiny();
    let text = std::fs::read_to_string(folder.path().join("tiny.pta")).expect("the model");
    let plain = text.replace("    average ema(decay = 0.9)\n", "").replace("adamw, ema", "adamw");
    write(folder.path(), "tiny.pta", format!("{plain}{PLANS}"));
    folder
}

/// Shapes of the tensors of a run's newest checkpoint, in a file.
fn shapes(run: &Path, file: &str) -> Vec<(String, Vec<usize>)> {
    let all = state(run);
    let tensors = safetensors::SafeTensors::deserialize(&all[file]).expect("a safetensors file");
    let mut out: Vec<_> = tensors.tensors().into_iter().map(|(n, t)| (n, t.shape().to_vec())).collect();
    out.sort();
    out
}

/// At steps 5 and 7 of 10, between two outer steps too.
#[test]
fn a_run_that_stops_between_outer_steps_goes_on_bit_for_bit() {
    let folder = folder();
    let at = folder.path();
    for plan in ["far", "mean", "late"] {
        let train = |out: &str, more: &[&str]| {
            let (metrics, precision) = (format!("{out}.jsonl"), ["--precision", "f64"]);
            let all =
                [&["train", "tiny.pta", "--plan", plan, "--out", out, "--metrics", &metrics][..], &precision, more];
            succeeds(at, &all.concat());
        };
        let [whole, parts] = ["whole", "parts"].map(|run| format!("{plan}-{run}"));
        train(&whole, &[]);
        train(&parts, &["--steps", "5"]);
        train(&parts, &["--steps", "7", "--resume"]);
        train(&parts, &["--resume"]);
        assert!(state(&at.join(&whole)) == state(&at.join(&parts)), "{plan}: weights differ after resuming");
        for key in ["loss", "grad_norm"] {
            let [whole, parts] = [&whole, &parts].map(|run| metric(&at.join(format!("{run}.jsonl")), key));
            assert_eq!((whole.len(), &whole), (10, &parts), "{plan}: {key}");
        }
        // The runs in between end with a validation of their own.
        let last = [&whole, &parts].map(|run| metric(&at.join(format!("{run}.jsonl")), "valid_loss").pop());
        assert!(last[0].is_some() && last[0] == last[1], "{plan}: {last:?}");
    }
}

/// A checkpoint's model has the model's shapes, so it is evaluated, sampled and exported without the plan.
#[test]
fn what_replicas_leave_is_the_model() {
    let folder = folder();
    let at = folder.path();
    succeeds(at, &["train", "tiny.pta", "--out", "alone", "--steps", "3"]);
    let trained = partita(at, &["train", "tiny.pta", "--out", "far", "--plan", "far"]);
    assert!(trained.status.success() && err(&trained).contains("W0016"), "{}", err(&trained));
    assert!(err(&trained).contains("`--steps 12`"), "{}", err(&trained));
    assert_eq!(shapes(&at.join("alone"), "model.safetensors"), shapes(&at.join("far"), "model.safetensors"));
    let own = shapes(&at.join("far"), "optimizer.safetensors");
    let copies = own.iter().find(|t| t.0 == "copy:wte.table").expect("the replicas' parameters");
    assert_eq!(copies.1, [2, 256, 12]);
    assert!(own.iter().any(|t| t.0 == "outer.momentum:wte.table" && t.1 == [256, 12]), "{own:?}");
    let said = |more: &[&str]| succeeds(at, &[&["eval", "tiny.pta", "--checkpoint", "far"], more].concat());
    assert_eq!(said(&[]), said(&["--plan", "far"]));
    let sample = |more: &[&str]| {
        succeeds(at, &[&["sample", "tiny.pta", "--checkpoint", "far", "--length", "20"], more].concat())
    };
    assert_eq!(sample(&[]), sample(&["--plan", "far"]));
    // One executable for all of it.
    succeeds(at, &["build", "tiny.pta", "--plan", "far", "-o", "prog"]);
    let built = |arguments: &[&str]| {
        let run =
            std::process::Command::new(at.join("prog")).args(arguments).current_dir(at).output().expect("it runs");
        assert!(run.status.success(), "{}", err(&run));
        String::from_utf8_lossy(&run.stdout).into_owned()
    };
    assert_eq!(built(&["sample", "--checkpoint", "far", "--length", "20"]), sample(&[]));
    built(&["train", "--out", "again"]);
    assert!(state(&at.join("far")) == state(&at.join("again")));
    // Another number of replicas, or none, is another run.
    let text = fails(at, &["train", "tiny.pta", "--out", "far", "--resume", "--steps", "12"], 1, "E0807");
    assert!(text.contains("replicas local(steps = 3) by dp { lr = 0.7, momentum = 0.9 } before, now none"), "{text}");
    assert!(text.contains("begin anew with its parameters: `load \"far\"`"), "{text}");
    let more = ["--plan", "far", "--mesh", "dp=4"];
    fails(at, &[&["train", "tiny.pta", "--out", "far", "--resume", "--steps", "12"][..], &more].concat(), 1, "E0807");
}

/// What is read in begins all replicas.
#[test]
fn replicas_begin_with_weights_that_are_loaded() {
    let folder = folder();
    let at = folder.path();
    succeeds(at, &["train", "tiny.pta", "--out", "first", "--steps", "3"]);
    let text = std::fs::read_to_string(at.join("tiny.pta")).expect("the model");
    let loads = text.replace("    steps 10\n", "    load \"first/step-00000003/model.safetensors\"\n    steps 3\n");
    write(at, "more.pta", loads.replace("lr = 1e-2", "lr = 0, weight_decay = 0"));
    succeeds(at, &["train", "more.pta", "--out", "second", "--plan", "mean"]);
    let [first, second] = ["first", "second"].map(|run| state(&at.join(run)).remove("model.safetensors"));
    let [first, second] = [first, second].map(|bytes| {
        let bytes = bytes.expect("a model");
        let tensors = safetensors::SafeTensors::deserialize(&bytes).expect("a safetensors file");
        tensors.tensor("wte.table").expect("a parameter").data().to_vec()
    });
    assert!(first == second, "weights that nothing moves are those that were loaded");
}

/// `comm` says what goes with each step, and what with an outer step alone.
#[test]
fn comm_tells_outer_steps_apart() {
    let folder = folder();
    let at = folder.path();
    let text = succeeds(at, &["comm", "tiny.pta", "--plan", "far"]);
    // 6,400 parameters of 4 bytes, once each to one other rank and back.
    for line in ["the outer step, after every 3 steps:", "sent per rank and outer step: 25,600 bytes; 8,541.3 a step"] {
        assert!(text.contains(line), "{text}");
    }
    let json: serde_json::Value =
        serde_json::from_str(&succeeds(at, &["comm", "tiny.pta", "--plan", "far", "--json"])).expect("JSON");
    assert_eq!((&json["outer"]["every"], &json["outer"]["wire_bytes"]), (&3.into(), &25600.into()));
    assert!(json["totals"]["wire_bytes"].as_f64().expect("a number") < 100.0, "{json}");
    let last = json["outer"]["collectives"].as_array().expect("a list").last().expect("one")["id"].clone();
    let why = succeeds(at, &["comm", "tiny.pta", "--plan", "far", "--why", &last.to_string()]);
    assert!(why.contains("bytes sent per rank and outer step") && why.contains("local(steps = 3) by dp"), "{why}");
    let late: serde_json::Value =
        serde_json::from_str(&succeeds(at, &["comm", "tiny.pta", "--plan", "late", "--json"])).expect("JSON");
    let large =
        late["collectives"].as_array().expect("a list").iter().filter(|c| c["wire_bytes"].as_f64() > Some(100.0));
    // Gradients of before are under way while the step computes.
    assert!(large.clone().count() > 0 && large.clone().all(|c| c["overlapped"] == true), "{late}");
}

/// What is compared follows the plan's own rule on both sides, which is said.
#[test]
fn plans_that_change_what_is_computed_are_verified_against_their_rule() {
    let folder = folder();
    let at = folder.path();
    let plain = "plan plain {\n    mesh dp = 2\n    shard batch by dp\n}\n";
    let text = std::fs::read_to_string(at.join("tiny.pta")).expect("the model");
    write(at, "tiny.pta", format!("{text}{plain}"));
    write(at, "deep.pta", crate::plans::DEEP.replace("schedule = zb_h1", "schedule = 2bw"));
    for (file, plan, word) in [
        ("tiny.pta", "far", Some("`local`")),
        ("tiny.pta", "late", Some("`async`")),
        ("deep.pta", "stages", Some("`schedule = 2bw`")),
        ("tiny.pta", "plain", None),
    ] {
        let said = succeeds(at, &["verify", file, "--plan", plan, "--steps", "1"]);
        let told = word.map(|w| format!("{w} changes what is computed: one device follows the same rule"));
        assert_eq!(told.as_ref().is_some_and(|t| said.contains(t)), word.is_some(), "{plan}: {said}");
        assert_eq!(said.contains("changes what is computed"), word.is_some(), "{plan}: {said}");
        assert!(said.contains("the same as one device: "), "{said}");
    }
}

/// The model is finite until the outer step, the replicas are not.
#[test]
fn replicas_that_are_not_finite_are_not_saved() {
    let folder = folder();
    let at = folder.path();
    let text = std::fs::read_to_string(at.join("tiny.pta")).expect("the model");
    write(at, "wild.pta", text.replace("lr = 1e-2", "lr = 3e38, weight_decay = 1e10"));
    let said = fails(at, &["train", "wild.pta", "--plan", "far", "--out", "wild", "--steps", "1"], 1, "E0810");
    assert!(said.contains("`copy:"), "{said}");
    assert!(!at.join("wild/step-00000001").exists());
}

/// A run that goes on fills its pipeline again; one of as many steps as gradients are late learns nothing, and says so.
#[test]
fn a_pipeline_that_does_not_drain_goes_on_bit_for_bit() {
    let folder = tiny();
    let at = folder.path();
    let two = crate::plans::DEEP.replace("schedule = zb_h1", "schedule = 2bw");
    write(
        at,
        "deep.pta",
        two.replace(
            "plan same",
            "plan late { mesh dp = 2\n    shard batch by dp\n    async(staleness = 4) by dp }\nplan same",
        ),
    );
    let train = |out: &str, more: &[&str]| {
        let metrics = format!("{out}.jsonl");
        let all = ["train", "deep.pta", "--plan", "stages", "--precision", "f64", "--out", out, "--metrics", &metrics];
        succeeds(at, &[&all, more].concat());
    };
    train("whole", &["--steps", "7"]);
    train("parts", &["--steps", "3"]);
    train("parts", &["--steps", "4", "--resume"]);
    train("parts", &["--steps", "7", "--resume"]);
    assert!(state(&at.join("whole")) == state(&at.join("parts")), "weights differ after resuming");
    let [whole, parts] = ["whole", "parts"].map(|run| metric(&at.join(format!("{run}.jsonl")), "loss"));
    assert_eq!((whole.len(), &whole), (7, &parts));
    let late = |steps: &str| {
        let all = ["train", "deep.pta", "--plan", "late", "--no-save", "--steps", steps];
        err(&partita(at, &all)).contains("W0017")
    };
    assert_eq!([late("4"), late("5")], [true, false]);
}

/// The two versions of 2BW are alike where a run of another plan goes on; what else a step needs must be in the checkpoint.
#[test]
fn a_plain_run_goes_on_under_2bw() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = folder.path();
    let program = |optimizer: &str| {
        format!(
            "use optim.{{sgd, adamw}}\ndim batch = 4, wide = 3, depth = 4\nmodel Net(x: [batch, wide]) {{\n    let h = x\n    \
             for i in depth {{ param u: [wide] = 1.0\n        h = h * u }}\n    loss mean[batch, wide](square(h - 0.5))\n}}\n\
             train Net {{\n    data {{ x = csv(\"x.csv\", shuffle = false) }}\n    optimizer {optimizer}\n    steps 4\n}}\n\
             plan two {{\n    mesh pp = 2\n    pipeline depth by pp {{ schedule = 2bw, microbatches = 4 }}\n}}\n"
        )
    };
    write(at, "x.csv", (0..24).map(|k| format!("0.{k},0.5,0.25\n")).collect::<String>());
    for optimizer in ["sgd(lr = 0.1)", "adamw(lr = 0.1)"] {
        write(at, "m.pta", program(optimizer));
        for more in [&["--steps", "3"][..], &["--resume", "--metrics", "plain.jsonl"]] {
            succeeds(at, &[&["train", "m.pta", "--out", "plain"][..], more].concat());
        }
        succeeds(at, &["train", "m.pta", "--out", "two", "--steps", "3"]);
        succeeds(at, &["train", "m.pta", "--out", "two", "--plan", "two", "--resume", "--metrics", "two.jsonl"]);
        let [plain, two] = ["plain.jsonl", "two.jsonl"].map(|file| super::run::metric(&at.join(file), "loss"));
        assert!(plain.len() == 1 && (plain[0] - two[0]).abs() < 1e-6, "{optimizer}: {plain:?} {two:?}");
        for gone in ["plain", "two"] {
            std::fs::remove_dir_all(at.join(gone)).expect("a run");
            std::fs::remove_file(at.join(gone).with_extension("jsonl")).expect("metrics");
        }
    }
    // Moments that were never kept are not taken for zeros.
    write(at, "m.pta", program("sgd(lr = 0.1)"));
    succeeds(at, &["train", "m.pta", "--out", "plain", "--steps", "3"]);
    write(at, "m.pta", program("adamw(lr = 0.1)"));
    let text = fails(at, &["train", "m.pta", "--out", "plain", "--resume"], 1, "E0807");
    assert!(text.contains("is not in the checkpoint"), "{text}");
}
