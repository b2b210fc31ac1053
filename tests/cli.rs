//! The command line from outside: what each command prints, how it fails, and that nothing is lost on the way.

#[path = "cli/cached.rs"]
mod cached;
#[path = "cli/comm.rs"]
mod comm;
#[path = "cli/commands.rs"]
mod commands;
#[path = "cli/data.rs"]
mod data;
#[path = "cli/interrupted.rs"]
mod interrupted;
#[path = "cli/memory.rs"]
mod memory;
#[path = "cli/meshes.rs"]
mod meshes;
#[path = "cli/plans.rs"]
mod plans;
#[path = "cli/programs.rs"]
mod programs;
#[path = "cli/replicas.rs"]
mod replicas;
#[path = "common/run.rs"]
mod run;
#[path = "cli/sampling.rs"]
mod sampling;
#[path = "cli/schedules.rs"]
mod schedules;
#[path = "cli/training.rs"]
mod training;
#[path = "cli/writing.rs"]
mod writing;

use std::path::Path;
use std::process::Output;
use tempfile::TempDir;

/// A folder with a small model, `tiny.pta`, that has dropout, model state, an average and a sample item, and its text.
fn tiny() -> TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let text: String =
        (0..60).map(|i| format!("line {i} of a text that repeats itself and then does not {}\n", i * i)).collect();
    write(folder.path(), "text.txt", &text);
    write(folder.path(), "tiny.pta", include_str!("cli/tiny.pta"));
    folder
}

fn write(folder: &Path, name: &str, text: impl AsRef<[u8]>) {
    std::fs::write(folder.join(name), text).expect("a temporary file can be written");
}

fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Runs a command that must fail with this exit code and name an error's code; gives standard error.
fn fails(folder: &Path, arguments: &[&str], status: i32, code: &str) -> String {
    let output = run::partita(folder, arguments);
    let text = err(&output);
    assert_eq!(output.status.code(), Some(status), "partita {}\n{}{text}", arguments.join(" "), out(&output));
    assert!(text.contains(code), "partita {} should say {code}:\n{text}", arguments.join(" "));
    assert!(!text.contains("panicked"), "{text}");
    text
}
