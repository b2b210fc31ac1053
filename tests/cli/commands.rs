//! Commands that do not train.

use crate::run::{partita, succeeds};
use crate::{err, fails, out, tiny, write};
use std::io::Write;
use std::process::Stdio;

#[test]
fn check_counts_parameters_and_states() {
    let folder = tiny();
    assert_eq!(succeeds(folder.path(), &["check", "tiny.pta"]), "Tiny: 6,400 parameters, 1 values of state\n");
    let set = succeeds(folder.path(), &["check", "tiny.pta", "--set", "embed=1"]);
    assert_eq!(set, "Tiny: 768 parameters, 1 values of state\n");
    let json = succeeds(folder.path(), &["check", "tiny.pta", "--json"]);
    let line: serde_json::Value = serde_json::from_str(json.lines().last().unwrap_or("")).expect("one object a line");
    assert_eq!(line["parameters"], 6400);
}

#[test]
fn check_fails_with_places_and_as_json() {
    let folder = tiny();
    write(folder.path(), "bad.pta", "dim a = 2\nmodel M(x: [a]) {\n    loss sum[b](x)\n    loss y\n}\n");
    let text = fails(folder.path(), &["check", "bad.pta"], 1, "E0201");
    assert!(text.contains("bad.pta:3:14") && text.contains("bad.pta:4:10"), "{text}");
    assert!(text.ends_with("2 errors\n"), "{text}");
    let output = partita(folder.path(), &["check", "bad.pta", "--json"]);
    assert_eq!(output.status.code(), Some(1));
    let found: Vec<serde_json::Value> =
        out(&output).lines().map(|l| serde_json::from_str(l).expect("an object")).collect();
    assert_eq!(found.len(), 2);
    assert_eq!((&found[0]["code"], &found[0]["primary"]["line"]), (&"E0201".into(), &3.into()));
    fails(folder.path(), &["check", "missing.pta"], 1, "E0207");
}

#[test]
fn the_standard_library_can_be_read() {
    let folder = tiny();
    assert_eq!(succeeds(folder.path(), &["std"]), "losses\nnn\noptim\nschedule\n");
    let page = succeeds(folder.path(), &["std", "nn"]);
    assert!(page.contains("layer Linear[i, o, bias = true, std = 0.02](x: [.., i]) -> [.., o]\n"), "{page}");
    assert!(succeeds(folder.path(), &["std", "optim", "--source"]).contains("update m = m1"));
    let text = fails(folder.path(), &["std", "optimm"], 1, "E0902");
    assert!(text.contains("did you mean optim?"), "{text}");
}

#[test]
fn colours_only_where_they_are_wanted() {
    let folder = tiny();
    write(folder.path(), "bad.pta", "model M() { loss y }\n");
    assert!(!err(&partita(folder.path(), &["check", "bad.pta"])).contains('\x1b'));
    assert!(err(&partita(folder.path(), &["check", "bad.pta", "--color", "always"])).contains('\x1b'));
}

#[test]
fn a_wrong_command_line_has_an_exit_code_of_its_own() {
    let folder = tiny();
    for arguments in [
        &["check"][..],
        &["frobnicate"],
        &["train", "tiny.pta", "--steps", "0"],
        &["train", "tiny.pta", "--steps", "x"],
        &["check", "tiny.pta", "--set", "nothing"],
        &["train", "tiny.pta", "--precision", "f8"],
        &["train", "tiny.pta", "--mesh", "dp"],
        &["memory", "tiny.pta", "--limit", "5 horses"],
    ] {
        let output = partita(folder.path(), arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}\n{}", err(&output));
    }
    assert!(succeeds(folder.path(), &["--version"]).starts_with("partita "));
    assert!(succeeds(folder.path(), &["train", "--help"]).contains("--resume"));
}

#[test]
fn settings_that_do_not_exist_are_errors() {
    let folder = tiny();
    let text = fails(folder.path(), &["check", "tiny.pta", "--set", "embd=4"], 1, "E0201");
    assert!(text.contains("did you mean `embed`?"), "{text}");
    fails(folder.path(), &["check", "tiny.pta", "--preset", "big"], 1, "E0201");
    fails(folder.path(), &["train", "tiny.pta", "--item", "Tony"], 1, "E0711");
}

#[test]
fn a_plan_that_is_not_there_is_refused_with_a_cure() {
    let folder = tiny();
    for command in [&["memory"][..], &["train"], &["sample"], &["build", "-o", "x"], &["eval"], &["export", "-o", "x"]]
    {
        let with = |more: &[&str]| fails(folder.path(), &[command, &["tiny.pta"], more].concat(), 1, "E050");
        let text = with(&["--mesh", "dp=2"]);
        assert!(text.contains("E0507") && text.contains("no plan is named"), "{text}");
        assert!(with(&["--plan", "many", "--mesh", "dq=1"]).contains("did you mean `dp`?"));
    }
    let text = fails(folder.path(), &["memory", "tiny.pta", "--plan", "singel"], 1, "E0509");
    assert!(text.contains("did you mean `single`?"), "{text}");
    let text = fails(folder.path(), &["memory", "tiny.pta", "--plan", "many", "--mesh", "dq=1"], 1, "E0501");
    assert!(text.contains("did you mean `dp`?"), "{text}");
    // One rank is one device, and the plan's precision counts: twice the bytes.
    let peak = |arguments: &[&str]| -> u64 {
        let json = succeeds(folder.path(), &[&["memory", "tiny.pta", "--json"], arguments].concat());
        let report: serde_json::Value = serde_json::from_str(&json).expect("a report");
        report["ranks"][0]["by_category"]["parameters"].as_u64().expect("bytes")
    };
    let single = peak(&["--plan", "single"]);
    assert_eq!(single, 2 * peak(&[]));
    assert_eq!(single, 2 * peak(&["--plan", "single", "--precision", "f32"]));
    assert_eq!(peak(&[]), peak(&["--plan", "many", "--mesh", "dp=1,tp=1"]));
}

#[test]
fn memory_sums_up_and_fails_over_a_limit() {
    let folder = tiny();
    let json = succeeds(folder.path(), &["memory", "tiny.pta", "--json"]);
    let report: serde_json::Value = serde_json::from_str(&json).expect("a report");
    let rank = &report["ranks"][0];
    let peak = rank["peak_bytes"].as_u64().expect("bytes");
    let categories: u64 =
        rank["by_category"].as_object().expect("an object").values().map(|v| v.as_u64().expect("bytes")).sum();
    let sources: u64 =
        rank["by_source"].as_array().expect("a list").iter().map(|e| e["bytes"].as_u64().expect("bytes")).sum();
    assert_eq!((categories, sources), (peak, peak));
    assert_eq!(
        rank["by_category"]["optimizer_state"].as_u64(),
        rank["by_category"]["parameters"].as_u64().map(|n| 2 * n)
    );
    // A checkpoint is written from a copy: all of its tensors.
    let copy = rank["checkpoint_bytes"].as_u64().expect("bytes");
    succeeds(folder.path(), &["train", "tiny.pta", "--steps", "1"]);
    let index = std::fs::read(folder.path().join("runs/Tiny/step-00000001/index.json")).expect("an index");
    let index: serde_json::Value = serde_json::from_slice(&index).expect("JSON");
    let tensors = index["tensors"].as_array().expect("a list").iter();
    let elements = |t: &serde_json::Value| -> u64 {
        t["shape"].as_array().expect("sizes").iter().map(|n| n.as_u64().expect("a size")).product()
    };
    assert_eq!(copy, tensors.map(|t| 4 * elements(t)).sum::<u64>());
    // The limit counts it, too.
    let all = peak + rank["scratch_bytes"].as_u64().expect("bytes") + copy;
    succeeds(folder.path(), &["memory", "tiny.pta", "--limit", &all.to_string()]);
    let text = fails(folder.path(), &["memory", "tiny.pta", "--limit", &(all - 1).to_string()], 1, "E0604");
    assert!(text.contains("while a checkpoint is written: `train --no-save`"), "{text}");
    let text = fails(folder.path(), &["memory", "tiny.pta", "--limit", "1KiB"], 1, "E0604");
    assert!(text.contains("tiny.pta:") || text.contains("<std>/"), "{text}");
    succeeds(folder.path(), &["memory", "tiny.pta", "--limit", "1GiB"]);
    assert!(succeeds(folder.path(), &["memory", "tiny.pta"]).starts_with("peak "));
}

#[test]
fn one_of_a_kind_is_singular() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let at = folder.path();
    write(
        at,
        "one.pta",
        "use optim.{sgd}\ndim n = 2\nmodel One() {\n    param w: f32 = 1\n    loss w * mean[n](normal[n]())\n}\ntrain One {\n    optimizer sgd(lr = 0.1)\n    steps 1\n}\n",
    );
    let output = partita(at, &["train", "one.pta", "--threads", "1"]);
    let said = err(&output);
    assert!(said.contains("One: 1 parameter in 1 tensor, 1 sample a step, f32, 1 thread\n"), "{said}");
    write(at, "two.txt", "x");
    let text = include_str!("tiny.pta").replace("\"text.txt\", to = 0.8", "\"two.txt\"");
    write(at, "tiny.pta", text.replace("dropout[p = 0.2](wte(tokens))", "dropout[p = 0.2](wte(tokens), 1, 2)"));
    let said = fails(at, &["check", "tiny.pta"], 1, "E0314");
    assert!(said.contains("takes 1 argument\n"), "{said}");
    write(at, "tiny.pta", text);
    let said = fails(at, &["train", "tiny.pta"], 1, "E0804");
    assert!(said.contains("`two.txt` has 1 element here"), "{said}");
}

#[test]
fn forms_of_a_program_are_stable() {
    let folder = tiny();
    for stage in ["ast", "check", "graph", "backward", "kernel", "clif", "vector"] {
        let arguments = ["ir", "tiny.pta", "--stage", stage];
        let first = succeeds(folder.path(), &arguments);
        assert!(first.lines().count() > 10, "{stage}:\n{first}");
        assert_eq!(first, succeeds(folder.path(), &arguments), "{stage}");
    }
    let summary = succeeds(folder.path(), &["ir", "tiny.pta", "--stage", "check"]);
    for line in [
        "input tokens: int[batch, seq]",
        "param wte.table: f32[vocab -> embed] = normal(std)",
        "state seen: f32 = 0",
        "plan many",
    ] {
        assert!(summary.contains(line), "{line}\n{summary}");
    }
    fails(folder.path(), &["ir", "tiny.pta", "--model", "Tony"], 1, "E0711");
}

#[test]
fn dumps_hold_what_every_pass_left() {
    let folder = tiny();
    succeeds(folder.path(), &["memory", "tiny.pta", "--dump", "passes"]);
    let names: Vec<String> = std::fs::read_dir(folder.path().join("passes"))
        .expect("the folder was made")
        .map(|e| e.expect("an entry").file_name().to_string_lossy().into_owned())
        .collect();
    assert!(names.iter().any(|n| n.ends_with("-train-pruned.txt")), "{names:?}");
    write(folder.path(), "file", "");
    fails(folder.path(), &["memory", "tiny.pta", "--dump", "file/x"], 1, "E0813");
}

#[test]
fn explain_shows_a_page_or_says_what_codes_look_like() {
    let folder = tiny();
    assert!(succeeds(folder.path(), &["explain", "e0301"]).starts_with("# E0301"));
    fails(folder.path(), &["explain", "E03"], 1, "E0902");
}

#[test]
fn fmt_formats_in_place_and_checks() {
    let folder = tiny();
    write(folder.path(), "a.pta", "dim a=2\n");
    let output = partita(folder.path(), &["fmt", "--check", "a.pta"]);
    assert_eq!((output.status.code(), out(&output)), (Some(1), "a.pta\n".to_string()));
    assert_eq!(succeeds(folder.path(), &["fmt", "a.pta"]), "a.pta\n");
    assert_eq!(std::fs::read_to_string(folder.path().join("a.pta")).expect("it is there"), "dim a = 2\n");
    assert_eq!(succeeds(folder.path(), &["fmt", "--check", "a.pta", "tiny.pta"]), "");
    write(folder.path(), "bad.pta", "dim = \n");
    let text = fails(folder.path(), &["fmt", "bad.pta"], 1, "E0101");
    assert!(text.contains("bad.pta:1"), "{text}");
    fails(folder.path(), &["fmt", "missing.pta"], 1, "E0207");
    let mut child = crate::run::command()
        .args(["fmt", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    child.stdin.take().expect("a pipe").write_all(b"dim  b =  3").expect("it reads");
    assert_eq!(out(&child.wait_with_output().expect("it ends")), "dim b = 3\n");
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let folder = tiny();
    let mut child = crate::run::command()
        .args(["ir", "tiny.pta", "--stage", "backward"])
        .current_dir(folder.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("it ends");
    assert_eq!((output.status.code(), err(&output)), (Some(0), String::new()));
}

#[test]
fn doctor_and_completions() {
    let folder = tiny();
    let doctor = succeeds(folder.path(), &["doctor"]);
    assert!(["products", "processors"].iter().all(|fact| doctor.contains(fact)), "{doctor}");
    assert!(succeeds(folder.path(), &["completions", "bash"]).contains("partita"));
}
