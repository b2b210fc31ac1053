//! Golden files: each case of `tests/golden/**/*.test` is one test. `BLESS=1` writes what the stages print into the files.

#[path = "harness/cases.rs"]
mod cases;
#[path = "harness/stages.rs"]
mod stages;

use cases::Case;
use libtest_mimic::{Arguments, Failed, Trial};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let mut trials = Vec::new();
    for path in cases::find(&folder) {
        let topic = path.strip_prefix(&folder).unwrap_or(&path).with_extension("").to_string_lossy().replace('/', "::");
        let text = std::fs::read_to_string(&path).expect("a file of cases is UTF-8");
        match cases::parse(&text) {
            Err(why) => trials.push(Trial::test(topic, move || Err(Failed::from(why)))),
            Ok(cases) if blesses(&arguments) => {
                trials.push(Trial::test(format!("{topic}::bless"), move || bless(&path, &text, &cases)));
            }
            Ok(cases) => {
                for case in cases {
                    let path = path.clone();
                    trials.push(Trial::test(format!("{topic}::{}", case.name), move || compare(&path, &case)));
                }
            }
        }
    }
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// Whether expectations are to be written. Never where a continuous integration service runs the tests.
fn blesses(arguments: &Arguments) -> bool {
    let set = |name: &str| std::env::var_os(name).is_some_and(|v| !v.is_empty() && v != "0" && v != "false");
    assert!(!(set("BLESS") && set("CI")), "expectations are not blessed under CI");
    set("BLESS") && !arguments.list
}

fn outcomes(case: &Case) -> Result<Vec<(String, String)>, String> {
    let mut all = Vec::new();
    for stage in &case.stages {
        let text = stages::run(stage, case).map_err(|why| format!("case `{}`: {why}", case.name))?;
        if !stages::is_silent(stage) {
            all.push((stage.clone(), text));
        }
    }
    Ok(all)
}

fn compare(path: &Path, case: &Case) -> Result<(), Failed> {
    let outcome = outcomes(case)?;
    let mut wrong = String::new();
    for (stage, _) in &case.expected {
        if !outcome.iter().any(|(s, _)| s == stage) {
            let _ = writeln!(wrong, "the expectation of `{stage}` is stale: the heading does not ask for it");
        }
    }
    for (stage, text) in &outcome {
        let expected = case.expected.iter().find(|(s, _)| s == stage).map_or("", |(_, t)| t);
        if expected != text {
            let diff = similar::TextDiff::from_lines(expected, text);
            let _ = writeln!(wrong, "{}", diff.unified_diff().header("expected", stage).context_radius(3));
        }
    }
    if wrong.is_empty() {
        return Ok(());
    }
    let _ = writeln!(wrong, "in {}; to accept: BLESS=1 cargo test --test golden", path.display());
    Err(Failed::from(wrong))
}

fn bless(path: &PathBuf, text: &str, cases: &[Case]) -> Result<(), Failed> {
    let outcomes = cases.iter().map(outcomes).collect::<Result<Vec<_>, _>>()?;
    let blessed = cases::write(cases, &outcomes);
    if blessed != text {
        std::fs::write(path, blessed).map_err(|e| Failed::from(e.to_string()))?;
    }
    Ok(())
}
