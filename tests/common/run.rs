//! Runs the `partita` binary in a folder and reads the metrics that it writes.
#![allow(dead_code, reason = "each test binary uses a part")]

use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output};

/// `partita`, which keeps nothing outside of the folders of the test.
pub fn command() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_partita"));
    command.env("PARTITA_CACHE", "off");
    command
}

/// Runs `partita` with these arguments; the working folder is `folder`.
pub fn partita(folder: &Path, arguments: &[&str]) -> Output {
    command().args(arguments).current_dir(folder).output().expect("the binary was built with the tests")
}

/// The same, which must succeed; gives standard output.
pub fn succeeds(folder: &Path, arguments: &[&str]) -> String {
    let output = partita(folder, arguments);
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "partita {}\n{out}{err}", arguments.join(" "));
    out.into_owned()
}

/// One number of every line of a metrics file.
pub fn metric(path: &Path, key: &str) -> Vec<f64> {
    let text = std::fs::read_to_string(path).expect("the run wrote its metrics");
    let value = |line: &str| serde_json::from_str::<Value>(line).expect("a line is an object")[key].as_f64();
    text.lines().filter_map(value).collect()
}
