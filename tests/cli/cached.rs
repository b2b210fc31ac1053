//! Programs that were compiled before are not compiled again, and nobody can tell but by the time.

use crate::run::{command, metric};
use crate::{err, out, tiny, write};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

const CACHE: &str = "kept/programs";

/// `partita` with a cache in the folder.
fn caching(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = command();
    command.env("PARTITA_CACHE", folder.join(CACHE)).args(arguments).arg("--timings").current_dir(folder);
    command
}

/// Runs it, which must succeed; whether it was compiled before, and what it said but for the timings.
fn run(folder: &Path, arguments: &[&str]) -> (bool, String) {
    said(caching(folder, arguments).output().expect("the binary runs"))
}

fn said(output: Output) -> (bool, String) {
    assert!(output.status.success(), "{}", err(&output));
    let all = err(&output) + &out(&output);
    let timed = |l: &&str| l.ends_with(" ms") || l.contains("tokens/s");
    let rest: Vec<&str> = all.lines().filter(|l| !timed(l)).collect();
    (all.lines().any(|l| l.starts_with("read cache")), rest.join("\n"))
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    let list = fs::read_dir(folder.join(CACHE)).expect("the cache was made");
    list.map(|e| e.expect("it can be listed").path()).collect()
}

fn losses(folder: &Path, name: &str) -> Vec<u64> {
    metric(&folder.join(name), "loss").into_iter().map(f64::to_bits).collect()
}

fn replace(folder: &Path, file: &str, old: &str, new: &str) {
    let text = fs::read_to_string(folder.join(file)).expect("it is there");
    assert!(text.contains(old), "{file} has no `{old}`");
    write(folder, file, text.replace(old, new));
}

#[test]
fn the_second_run_is_the_first_one_without_compiling() {
    let folder = tiny();
    let at = folder.path();
    replace(at, "tiny.pta", "    let h = dropout", "    let spare = 1\n    let h = dropout");
    let train =
        |n: &str| run(at, &["train", "tiny.pta", "--out", &format!("run{n}"), "--metrics", &format!("{n}.jsonl")]);
    let (first, second) = (train("1"), train("2"));
    assert_eq!((first.0, second.0), (false, true));
    assert!(first.1.contains("W0001") && first.1.contains("let spare = 1"), "{}", first.1);
    assert_eq!(first.1.replace("run1", "run2"), second.1, "the same is said, warnings too");
    let expected = losses(at, "1.jsonl");
    assert_eq!((expected.len(), losses(at, "2.jsonl")), (10, expected));
    for command in [&["eval", "tiny.pta"][..], &["eval", "tiny.pta", "--initial"], &["sample", "tiny.pta", "--initial"]]
    {
        let mut all = command.to_vec();
        if !command.contains(&"--initial") {
            all.extend(["--checkpoint", "run1"]);
        }
        let (first, second) = (run(at, &all), run(at, &all));
        assert_eq!((first.0, second.0), (false, true), "{command:?}");
        assert_eq!(first.1, second.1, "{command:?}");
    }
    let built = ["a", "b"].map(|name| {
        let found = run(at, &["build", "tiny.pta", "-o", name]);
        (found.0, fs::read(at.join(name)).expect("it was built"))
    });
    assert_eq!((built[0].0, built[1].0), (false, true));
    assert!(built[0].1 == built[1].1, "the built programs differ");
}

#[test]
fn what_changes_a_program_makes_it_another_one() {
    let folder = tiny();
    let at = folder.path();
    write(at, "mine.pta", "fn twice(x: [..]) -> [..] { 2 * x }\n");
    replace(at, "tiny.pta", "use losses", "use .mine.{twice}\nuse losses");
    replace(at, "tiny.pta", "(wte(tokens))", "(twice(wte(tokens)))");
    let train = |more: &[&str]| run(at, &[&["train", "tiny.pta", "--dry-run"][..], more].concat()).0;
    assert_eq!((train(&[]), train(&[])), (false, true));
    for more in
        [&["--set", "embed=16"][..], &["--precision", "f64"], &["--plan", "single"], &["--set", "train.steps=3"]]
    {
        assert_eq!((train(more), train(more)), (false, true), "{more:?}");
    }
    replace(at, "tiny.pta", "lr = 1e-2", "lr = 2e-2");
    assert_eq!((train(&[]), train(&[])), (false, true));
    replace(at, "mine.pta", "2 * x", "3 * x");
    assert_eq!((train(&[]), train(&[])), (false, true));
    // The number of threads changes nothing, and what was compiled first is still there.
    replace(at, "tiny.pta", "lr = 2e-2", "lr = 1e-2");
    replace(at, "mine.pta", "3 * x", "2 * x");
    assert!(train(&["--threads", "1"]));
    // Another folder with the same texts writes other checkpoints.
    let other = tiny();
    for file in ["tiny.pta", "mine.pta"] {
        fs::copy(at.join(file), other.path().join(file)).expect("it can be copied");
    }
    fs::create_dir_all(other.path().join("kept")).expect("it can be made");
    fs::rename(at.join(CACHE), other.path().join(CACHE)).expect("it can be moved");
    assert!(!run(other.path(), &["train", "tiny.pta", "--dry-run"]).0);
}

#[test]
fn a_program_with_mistakes_is_never_kept() {
    let folder = tiny();
    let at = folder.path();
    replace(at, "tiny.pta", "head(h)", "haed(h)");
    for _ in 0..2 {
        let output = caching(at, &["train", "tiny.pta"]).output().expect("the binary runs");
        assert!(err(&output).contains("E0201"), "{}", err(&output));
    }
    assert!(!at.join(CACHE).exists());
}

#[test]
fn damaged_entries_are_compiled_anew() {
    let folder = tiny();
    let at = folder.path();
    let train = |name: &str| run(at, &["train", "tiny.pta", "--no-save", "--metrics", name]).0;
    assert!(!train("a.jsonl"));
    let [entry] = &entries(at)[..] else { panic!("one entry") };
    let good = fs::read(entry).expect("it is there");
    let mut flipped = good.clone();
    flipped[good.len() / 2] ^= 1;
    for bad in [&good[..good.len() / 2], &flipped, b"", b"something else"] {
        write(at, entry.to_str().expect("a plain path"), bad);
        assert!(!train("b.jsonl"));
        assert_eq!(losses(at, "a.jsonl"), losses(at, "b.jsonl"));
        assert!(train("c.jsonl"), "it was mended");
    }
}

#[test]
fn a_cache_that_cannot_be_written_is_none() {
    let folder = tiny();
    let at = folder.path();
    write(at, "kept", "no folder");
    let train = || run(at, &["train", "tiny.pta", "--dry-run"]);
    let (first, second) = (train(), train());
    assert_eq!((first.0, second.0, first.1), (false, false, second.1));
}

#[test]
fn two_processes_compile_one_program() {
    let folder = tiny();
    let at = folder.path();
    let started = ["a.jsonl", "b.jsonl"].map(|name| {
        let out = format!("run-{name}");
        let mut command = caching(at, &["train", "tiny.pta", "--out", &out, "--metrics", name]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary runs")
    });
    for child in started {
        said(child.wait_with_output().expect("it ends"));
    }
    assert_eq!(losses(at, "a.jsonl"), losses(at, "b.jsonl"));
    assert!(run(at, &["train", "tiny.pta", "--dry-run"]).0);
    assert_eq!(entries(at).len(), 1);
}

#[test]
fn doctor_shows_the_cache() {
    let folder = tiny();
    let at = folder.path();
    let doctor = |cache: &str| {
        let output = command().env("PARTITA_CACHE", cache).current_dir(at).arg("doctor").output();
        out(&output.expect("the binary runs"))
    };
    assert!(doctor("off").contains("cache        off"));
    assert!(doctor(CACHE).contains(&format!("{CACHE}: 0 programs")), "{}", doctor(CACHE));
    run(at, &["train", "tiny.pta", "--dry-run"]);
    assert!(doctor(CACHE).contains(&format!("{CACHE}: 1 program, ")), "{}", doctor(CACHE));
    assert!(doctor("tiny.pta").contains("tiny.pta: not used"), "{}", doctor("tiny.pta"));
}
