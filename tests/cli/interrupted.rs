//! Signals: nothing is lost by them, and they are never ignored.

use crate::run::{metric, partita, succeeds};
use crate::{err, fails, out, tiny, write};
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

fn start(folder: &Path, arguments: &[&str]) -> Child {
    crate::run::command()
        .args(arguments)
        .current_dir(folder)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary runs")
}

fn signal(child: &Child, name: &str) {
    let sent = Command::new("kill").args([name, &child.id().to_string()]).status().expect("`kill` is there");
    assert!(sent.success());
}

fn within(time: Duration, what: &str, mut done: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !done() {
        assert!(begin.elapsed() < time, "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn ended(mut child: Child) -> Output {
    let asked = Instant::now();
    while child.try_wait().expect("it can be asked").is_none() {
        if asked.elapsed() > Duration::from_secs(60) {
            child.kill().expect("it can be killed");
            panic!("it did not end");
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    child.wait_with_output().expect("it ends")
}

/// Validates at every step, for longer than it trains.
fn validating() -> tempfile::TempDir {
    let folder = tiny();
    let text = std::fs::read_to_string(folder.path().join("tiny.pta")).expect("the model");
    write(folder.path(), "tiny.pta", text.replace("every 4", "every 1"));
    // A signal comes at any time: nearly all of it is validation.
    let words = std::fs::read_to_string(folder.path().join("text.txt")).expect("the data");
    write(folder.path(), "text.txt", words.repeat(20));
    folder
}

fn lines(path: &Path) -> usize {
    std::fs::read_to_string(path).map_or(0, |t| t.lines().count())
}

#[test]
fn a_validation_that_was_cut_short_is_done_on_resuming() {
    let folder = validating();
    let at = folder.path();
    let steps = "120";
    succeeds(at, &["train", "tiny.pta", "--steps", steps, "--out", "whole", "--metrics", "whole.jsonl"]);
    let parts = ["train", "tiny.pta", "--steps", steps, "--out", "parts", "--metrics", "parts.jsonl"];
    let mut cut_short = 0;
    for wanted in [3, 20, 40, 60, 80] {
        let more: &[&str] = if at.join("parts.jsonl").exists() { &["--resume"] } else { &[] };
        let mut child = start(at, &[&parts, more].concat());
        within(Duration::from_secs(120), "it trains", || {
            lines(&at.join("parts.jsonl")) >= wanted || child.try_wait().expect("it can be asked").is_some()
        });
        signal(&child, "-INT");
        let output = ended(child);
        let steps = std::fs::read_dir(at.join("parts")).expect("the run").map(|e| e.expect("an entry").path());
        let newest = steps.filter(|p| p.join("index.json").exists()).max().expect("a checkpoint");
        let index = std::fs::read_to_string(newest.join("index.json")).expect("an index");
        cut_short += usize::from(index.contains("unvalidated"));
        assert!(out(&output).contains("--resume") || output.status.success(), "{}{}", out(&output), err(&output));
    }
    assert!(cut_short > 0, "no validation was cut short");
    succeeds(at, &[&parts[..], &["--resume"]].concat());
    for key in ["step", "loss", "valid_loss", "grad_norm"] {
        let (whole, parts) = (metric(&at.join("whole.jsonl"), key), metric(&at.join("parts.jsonl"), key));
        assert_eq!(whole.len(), 120, "{key}");
        assert_eq!(whole, parts, "{key}");
    }
}

#[test]
fn the_last_validation_is_done_on_resuming() {
    let folder = tiny();
    let at = folder.path();
    // One step, and a validation that is far longer.
    write(at, "text.txt", "some words and others\n".repeat(900_000));
    let run = ["train", "tiny.pta", "--steps", "1", "--metrics", "m.jsonl"];
    let child = start(at, &run);
    within(Duration::from_secs(60), "the run begins", || at.join("runs/Tiny/.lock").exists());
    std::thread::sleep(Duration::from_millis(300));
    signal(&child, "-TERM");
    let output = ended(child);
    assert_eq!(output.status.code(), Some(143), "{}{}", out(&output), err(&output));
    if !at.join("runs/Tiny/step-00000001").exists() {
        return; // so slow a machine that there was no step
    }
    assert!(metric(&at.join("m.jsonl"), "valid_loss").is_empty(), "the validation was cut short");
    write(at, "text.txt", "some words and others\n".repeat(200));
    let resumed = succeeds(at, &[&run[..], &["--resume"]].concat());
    assert!(resumed.contains("step 1 of 1: validation loss"), "{resumed}");
    assert_eq!((metric(&at.join("m.jsonl"), "loss").len(), metric(&at.join("m.jsonl"), "valid_loss").len()), (1, 1));
    let again = succeeds(at, &[&run[..], &["--resume"]].concat());
    assert!(again.contains("nothing to do: 1 steps are wanted, 1 were done"), "{again}");
}

#[test]
fn the_first_signal_ends_a_run_that_waits_for_its_data() {
    let folder = tiny();
    let at = folder.path();
    let made = Command::new("mkfifo").arg("pipe").current_dir(at).status().expect("mkfifo runs");
    assert!(made.success());
    let text = std::fs::read_to_string(at.join("tiny.pta")).expect("the model");
    write(at, "tiny.pta", text.replace("    valid bytes(\"text.txt\", from = 0.8) every 4\n", ""));
    for (name, code) in [("-INT", 130), ("-TERM", 143)] {
        let mut child = start(at, &["train", "tiny.pta", "--data", "pipe"]);
        let mut said = String::new();
        BufReader::new(child.stderr.take().expect("a pipe")).read_line(&mut said).expect("it says what it trains");
        std::thread::sleep(Duration::from_millis(300));
        assert!(child.try_wait().expect("it can be asked").is_none(), "it waits for a writer: {said}");
        signal(&child, name);
        // On a slow machine it has not yet begun to catch signals.
        let status = ended(child).status;
        assert!(status.code() == Some(code) || status.signal() == Some(code - 128), "{name}: {status}");
    }
    assert!(!at.join("runs").exists());
    let output = partita(at, &["train", "tiny.pta", "--data", "/dev/zero"]);
    assert!(err(&output).contains("E0801") && err(&output).contains("without an end"), "{}", err(&output));
}

#[test]
fn a_run_that_is_past_its_steps_says_so() {
    let folder = tiny();
    let at = folder.path();
    succeeds(at, &["train", "tiny.pta", "--steps", "5"]);
    let output = partita(at, &["train", "tiny.pta", "--steps", "3", "--resume"]);
    assert!(out(&output).contains("nothing to do: 3 steps are wanted, 5 were done"), "{}", out(&output));
    assert!(!err(&output).contains("going on"), "{}", err(&output));
}

#[test]
fn other_settings_on_resuming_are_said() {
    let folder = tiny();
    let at = folder.path();
    succeeds(at, &["train", "tiny.pta", "--steps", "2"]);
    let output = partita(at, &["train", "tiny.pta", "--steps", "3", "--resume"]);
    assert!(!err(&output).contains("W0011"), "{}", err(&output));
    let output = partita(at, &["train", "tiny.pta", "--steps", "4", "--resume", "--precision", "bf16"]);
    assert!(output.status.success(), "{}", err(&output));
    assert!(
        err(&output).contains("W0011") && err(&output).contains("precision f32 before, now bf16"),
        "{}",
        err(&output)
    );
    let text = std::fs::read_to_string(at.join("tiny.pta")).expect("the model");
    write(at, "other.pta", text.replace("train Tiny", "train other of Tiny"));
    let output = partita(at, &["train", "other.pta", "--steps", "5", "--resume", "--out", "runs/Tiny"]);
    assert!(err(&output).contains("item Tiny before, now other"), "{}", err(&output));
}

#[test]
fn every_setting_that_matters_is_compared_on_resuming() {
    let folder = tiny();
    let at = folder.path();
    let text =
        include_str!("tiny.pta").replace("dim batch", "const rate = 1e-2\ndim batch").replace("lr = 1e-2", "lr = rate");
    write(at, "tiny.pta", &text);
    succeeds(at, &["train", "tiny.pta", "--steps", "1"]);
    let resumed = |changed: &str, more: &[&str]| {
        write(at, "tiny.pta", changed);
        // The checkpoint of one step stays the newest.
        let all = [&["train", "tiny.pta", "--steps", "1", "--resume"], more].concat();
        let output = partita(at, &all);
        assert!(output.status.success(), "{}", err(&output));
        err(&output)
    };
    for (old, new, more, says) in [
        ("", "", &[][..], ""),
        ("// A model", "// The model", &[], ""),
        ("steps 10", "steps 20", &[], ""),
        ("every 4", "every 5", &[], ""),
        ("lr = rate", "lr = 2e-2", &[], "optimizer adamw(lr = rate) before, now adamw(lr = 2e-2)"),
        ("rate = 1e-2", "rate = 2e-2", &[], "rate 0.01 before, now 0.02"),
        ("", "", &["--set", "rate=0.5"], "rate 0.01 before, now 0.5"),
        ("", "", &["--set", "batch=2"], "batch 4 before, now 2"),
        ("    steps", "    clip 1.0\n    steps", &[], "clip none before, now 1.0"),
        ("to = 0.8", "to = 0.7", &[], "data bytes(\"text.txt\", to = 0.8) before, now"),
        ("seed 3", "seed 4", &[], "the program says seed 4, and the run keeps the one that it began with, 3"),
        ("", "", &["--plan", "single", "--precision", "f32"], "plan none before, now single"),
        ("p = 0.2", "p = 0.3", &[], "the program computes something else than before"),
    ] {
        let said = resumed(&text.replace(old, new), more);
        match says {
            "" => assert!(!said.contains("W0011"), "{old}: {said}"),
            _ => assert!(said.contains("W0011") && said.contains(says), "{new} {more:?}: {said}"),
        }
        let listed = said.lines().filter(|l| l.starts_with(" = ") && l.contains(" before, now ")).count();
        assert!(listed <= 1, "{new} {more:?}: {said}");
    }
    // Where it does not fit, the reason is among the notes.
    let said = fails(at, &["train", "tiny.pta", "--resume", "--precision", "f64"], 1, "E0807");
    assert!(said.contains("precision f32 before, now f64"), "{said}");
}

#[test]
fn runs_of_two_programs_are_told_apart() {
    let folder = tiny();
    let at = folder.path();
    succeeds(at, &["train", "tiny.pta", "--steps", "1"]);
    // The same program in another place, and a changed one in the same place.
    let text = include_str!("tiny.pta");
    std::fs::create_dir(at.join("sub")).expect("a folder");
    write(at, "sub/moved.pta", text);
    write(at, "sub/text.txt", std::fs::read(at.join("text.txt")).expect("the text"));
    write(at, "tiny.pta", text.replace("steps 10", "steps 11"));
    let quiet = |arguments: &[&str]| {
        let output = partita(at, arguments);
        assert!(output.status.success() && !err(&output).contains("W0012"), "{arguments:?}: {}", err(&output));
    };
    quiet(&["eval", "tiny.pta"]);
    quiet(&["eval", "sub/moved.pta"]);
    write(at, "other.pta", text.replace("p = 0.2", "p = 0.5"));
    for arguments in [
        &["eval", "other.pta"][..],
        &["sample", "other.pta", "--length", "1"],
        &["export", "other.pta", "-o", "w.safetensors"],
        &["train", "other.pta", "--steps", "2", "--resume"],
    ] {
        let output = partita(at, arguments);
        assert!(output.status.success(), "{arguments:?}: {}", err(&output));
        assert!(err(&output).contains("W0012") && err(&output).contains("tiny.pta"), "{arguments:?}: {}", err(&output));
    }
    let said = err(&partita(at, &["train", "tiny.pta", "--steps", "1"]));
    assert!(said.contains("runs/Tiny/before-1, written by another program, ") && said.contains("other.pta"), "{said}");
    let said = fails(at, &["eval", "other.pta", "--set", "embed=6"], 1, "E0807");
    for part in ["`runs/Tiny/before-1`", "--checkpoint DIR", "written by another program", "embed 12 before, now 6"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let said = fails(at, &["sample", "other.pta", "--set", "embed=6"], 1, "E0807");
    assert!(said.contains("`runs/Tiny/before-1`") && said.contains("written by another program"), "{said}");
    let said = fails(at, &["export", "other.pta", "--set", "embed=6", "-o", "x.safetensors"], 1, "E0807");
    assert!(said.contains("`runs/Tiny/before-1`") && said.contains("written by another program"), "{said}");
}
