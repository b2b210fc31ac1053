//! Built programs run without source and compiler, and give what the compiler's own run gives.

use crate::data::{TEXT, TOKENIZER, WORDS};
use crate::run::{metric, succeeds};
use crate::{err, fails, out, tiny, write};
use std::io::ErrorKind;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

fn prog(folder: &Path, arguments: &[&str]) -> Output {
    prog_from(folder, folder, arguments)
}

/// Runs the program of one folder in another.
fn prog_from(folder: &Path, at: &Path, arguments: &[&str]) -> Output {
    loop {
        match Command::new(folder.join("prog")).args(arguments).current_dir(at).output() {
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

#[test]
fn a_built_program_carries_its_tokenizer() {
    let (folder, away) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("another"));
    let (at, away) = (folder.path(), away.path());
    std::fs::create_dir(at.join("in")).expect("a folder for the source");
    write(at, "in/tokenizer.json", TOKENIZER);
    write(at, "in/text.txt", "to be\nnot to be\n".repeat(40));
    write(at, "in/m.pta", WORDS.replace("DATA", TEXT));
    let sample = ["sample", "--checkpoint", "ours", "--prompt", "not", "--temperature", "0", "--length", "30"];
    succeeds(at, &["train", "in/m.pta", "--out", "ours"]);
    let evaluated = succeeds(at, &["eval", "in/m.pta", "--checkpoint", "ours"]);
    let drawn = succeeds(at, &[&sample[..], &["in/m.pta"]].concat());
    succeeds(at, &["build", "in/m.pta", "-o", "prog"]);
    // What a build reads is not written over.
    fails(at, &["build", "in/m.pta", "-o", "in/tokenizer.json"], 1, "E0813");
    // The data is found from anywhere while it is where it was.
    assert_eq!(
        out(&prog_from(at, away, &["eval", "--checkpoint", at.join("ours").to_str().expect("a path")])),
        evaluated
    );
    let info = out(&prog(at, &["info"]));
    let place = std::fs::canonicalize(at.join("in/text.txt")).expect("it is there");
    assert_eq!(info.matches(&place.display().to_string()).count(), 2, "{info}");

    std::fs::rename(at.join("in/text.txt"), away.join("moved.txt")).expect("the data is moved");
    std::fs::rename(at.join("ours"), away.join("ours")).expect("the run is moved");
    std::fs::remove_dir_all(at.join("in")).expect("nothing else is needed");
    let output = prog_from(at, away, &["train", "--out", "theirs"]);
    let said = err(&output);
    assert_eq!(output.status.code(), Some(1));
    assert!(said.contains("E0801") && said.contains(&place.display().to_string()), "{said}");
    assert!(said.contains("`--data FILE`"), "{said}");
    let output = prog_from(at, away, &["train", "--out", "theirs", "--data", "moved.txt"]);
    assert!(output.status.success(), "{}", err(&output));
    for run in ["ours", "theirs"] {
        let eval = prog_from(at, away, &["eval", "--checkpoint", run, "--data", "moved.txt"]);
        assert_eq!(out(&eval), evaluated, "{}", err(&eval));
    }
    assert_eq!(out(&prog_from(at, away, &sample)), drawn);
}

#[test]
fn a_program_is_not_built_without_its_tokenizer() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = folder.path();
    write(at, "m.pta", WORDS.replace("DATA", "tokens(\"ids.bin\")"));
    let said = fails(at, &["build", "m.pta", "-o", "prog"], 1, "E0801");
    assert!(said.contains("`tokenizer.json`") && said.contains("carries its tokenizers"), "{said}");
    write(at, "tokenizer.json", "{}");
    fails(at, &["build", "m.pta", "-o", "prog"], 1, "E0802");
    assert!(!at.join("prog").exists());
}

#[test]
#[cfg(target_os = "linux")]
fn a_path_that_is_no_text_is_not_carried() {
    use std::os::unix::ffi::OsStrExt;
    let folder = tiny();
    let odd = folder.path().join(std::ffi::OsStr::from_bytes(b"in\xff"));
    std::fs::create_dir(&odd).expect("any bytes make a name");
    std::fs::rename(folder.path().join("tiny.pta"), odd.join("tiny.pta")).expect("moved");
    let said = fails(&odd, &["build", "tiny.pta", "-o", "prog"], 1, "E0813");
    assert!(said.contains("is not UTF-8"), "{said}");
}

/// Two inputs in training, and files of their own to validate on.
const PAIRS: &str = r#"
dim batch = 2
optimizer keep(w: [..], g: [..]) -> [..] { w - 0 * g }
model M(x: [batch], y: [batch]) {
    param w: [] = 1
    loss mean[batch](square(w * x - y))
}
train M {
    data { x = csv("x.csv", column = 0), y = csv("y.csv", column = 0) }
    valid { x = csv("vx.csv", column = 0), y = csv("y.csv", column = 0) }
    optimizer keep()
    steps 1
}
"#;

#[test]
fn every_file_of_data_may_be_given() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = folder.path();
    write(at, "m.pta", PAIRS);
    for (name, value) in [("x", 1), ("y", 3), ("vx", 5), ("four", 4), ("nine", 9)] {
        write(at, &format!("{name}.csv"), format!("{value}\n{value}\n"));
    }
    succeeds(at, &["build", "m.pta", "-o", "prog"]);
    // Training loss, and the loss of validation.
    let losses = |arguments: &[&str]| -> (Vec<f64>, Vec<f64>) {
        let all = [&["train"][..], arguments, &["--metrics", "m.jsonl"]].concat();
        succeeds(at, &[&all[..], &["m.pta"]].concat());
        let ours = (metric(&at.join("m.jsonl"), "loss"), metric(&at.join("m.jsonl"), "valid_loss"));
        let output = prog(at, &all);
        assert!(output.status.success(), "{}", err(&output));
        assert_eq!(metric(&at.join("m.jsonl"), "loss"), ours.0);
        ours
    };
    assert_eq!(losses(&[]), (vec![4.0], vec![4.0]));
    assert_eq!(losses(&["--data", "four.csv"]), (vec![1.0], vec![4.0]));
    // In `valid`, too, where that reads the same.
    assert_eq!(losses(&["--data", "y=four.csv"]), (vec![9.0], vec![1.0]));
    assert_eq!(losses(&["--data", "nine.csv", "--data", "y.csv=four.csv"]), (vec![25.0], vec![1.0]));
    assert_eq!(losses(&["--valid", "nine.csv", "--valid", "y=four.csv"]), (vec![4.0], vec![25.0]));
    // What is given to evaluation is what it is done on.
    let eval = |arguments: &[&str]| {
        let all = [&["eval", "--checkpoint", "runs/M", "--json"][..], arguments].concat();
        let ours = succeeds(at, &[&all[..], &["m.pta"]].concat());
        assert_eq!(out(&prog(at, &all)), ours);
        ours
    };
    assert!(eval(&["--data", "nine.csv"]).contains("\"loss\":36.0"));
    assert!(eval(&["--data", "vx.csv=nine.csv", "--data", "y=four.csv"]).contains("\"loss\":25.0"));
    assert!(eval(&["--data", "x.csv=nine.csv", "--valid", "four.csv"]).contains("\"loss\":1.0"));

    let said = fails(at, &["train", "m.pta", "--data", "yy=four.csv"], 1, "E0902");
    assert!(said.contains("did you mean `y=four.csv`?"), "{said}");
    fails(at, &["train", "m.pta", "--data", "four.csv", "--data", "nine.csv"], 1, "E0902");
    std::fs::remove_file(at.join("vx.csv")).expect("it is gone");
    let said = fails(at, &["train", "m.pta"], 1, "E0801");
    assert!(said.contains("`vx.csv`") && said.contains("`--valid FILE`"), "{said}");
    std::fs::remove_file(at.join("y.csv")).expect("it is gone");
    let said = err(&prog(at, &["train"]));
    assert!(said.contains("y.csv`") && said.contains("`--data y=FILE`"), "{said}");
    let without = &PAIRS.lines().filter(|l| !l.contains("valid")).collect::<Vec<_>>().join("\n");
    write(at, "m.pta", without);
    fails(at, &["eval", "m.pta", "--initial", "--valid", "four.csv"], 1, "E0902");
}
