//! Built programs run without source and compiler, and give what the compiler's own run gives.

use crate::run::{metric, succeeds};
use crate::{err, out, tiny};
use std::io::ErrorKind;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

fn prog(folder: &Path, arguments: &[&str]) -> Output {
    loop {
        match Command::new(folder.join("prog")).args(arguments).current_dir(folder).output() {
            // A process that another test started at that moment still holds the file as it was written.
            Err(e) if e.kind() == ErrorKind::ExecutableFileBusy => std::thread::sleep(Duration::from_millis(20)),
            other => return other.expect("the program runs"),
        }
    }
}

#[test]
fn a_built_program_trains_evaluates_and_samples() {
    let folder = tiny();
    let at = folder.path();
    assert!(succeeds(at, &["build", "tiny.pta", "-o", "prog"]).starts_with("prog: "));
    succeeds(at, &["train", "tiny.pta", "--out", "ours", "--metrics", "ours.jsonl"]);
    let evaluated = succeeds(at, &["eval", "tiny.pta", "--checkpoint", "ours"]);
    let drawn = succeeds(at, &["sample", "tiny.pta", "--checkpoint", "ours", "--length", "9", "--seed", "5"]);
    std::fs::remove_file(at.join("tiny.pta")).expect("the source is not needed");

    let output = prog(at, &["train", "--out", "theirs", "--metrics", "theirs.jsonl"]);
    assert!(output.status.success(), "{}", err(&output));
    let losses = metric(&at.join("ours.jsonl"), "loss");
    assert_eq!(losses.len(), 10);
    assert_eq!(losses, metric(&at.join("theirs.jsonl"), "loss"));
    assert_eq!(out(&prog(at, &["eval", "--checkpoint", "theirs"])), evaluated);
    assert_eq!(out(&prog(at, &["sample", "--checkpoint", "theirs", "--length", "9", "--seed", "5"])), drawn);
    assert!(out(&prog(at, &["info"])).contains("6,400"));
    assert_eq!(prog(at, &["check"]).status.code(), Some(2));
}

#[test]
fn a_damaged_program_says_so() {
    let folder = tiny();
    let at = folder.path();
    succeeds(at, &["build", "tiny.pta", "-o", "prog"]);
    let whole = std::fs::read(at.join("prog")).expect("the program");
    let end = whole.len();
    // Within the program, its length, the mark at the end; then cut short, and with something after it.
    let flipped = [end - 2000, end - 16, end - 9, end - 1].map(|n| {
        let mut bytes = whole.clone();
        bytes[n] ^= 1;
        bytes
    });
    let cut = [1, 16, 3000].map(|n| whole[..end - n].to_vec());
    let longer = [&whole[..], b"x"].concat();
    for bytes in flipped.into_iter().chain(cut).chain([longer]) {
        std::fs::write(at.join("prog"), bytes).expect("it can be damaged");
        let output = prog(at, &["info"]);
        assert_eq!(output.status.code(), Some(1));
        assert!(err(&output).contains("E0812"), "{}", err(&output));
    }
}
