//! Every `.pta` file of the repository parses and checks, and every model reports the parameters that are known of it.

use partita::diag::{Severity, Sink, render};
use partita::driver::{self, Request};
use partita::resolve::stdlib;
use partita::source::{Disk, SourceMap};
use partita::syntax::parse_file;
use std::path::Path;

fn folder(path: &str) -> Vec<(String, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    let mut files: Vec<_> = std::fs::read_dir(folder)
        .expect("the folder is part of the repository")
        .map(|entry| entry.expect("a folder can be listed").path())
        .filter(|p| p.extension().is_some_and(|e| e == "pta"))
        .collect();
    files.sort();
    let read = |p: &std::path::PathBuf| std::fs::read_to_string(p).expect("a source is UTF-8");
    files.iter().map(|p| (format!("{path}/{}", p.file_name().unwrap_or_default().to_string_lossy()), read(p))).collect()
}

fn all_sources() -> Vec<(String, String)> {
    let mut all: Vec<_> =
        stdlib::MODULES.iter().map(|(name, text)| (format!("stdlib/{name}.pta"), text.to_string())).collect();
    for path in ["examples", "tests/golden_models", "tests/models"] {
        all.extend(folder(path));
    }
    all
}

#[test]
fn every_source_parses() {
    let mut complaints = String::new();
    let all = all_sources();
    assert!(all.len() > 30, "only {} sources found", all.len());
    for (name, text) in all {
        let mut sources = SourceMap::default();
        let mut sink = Sink::default();
        let file = sources.add(name, text.as_str());
        parse_file(&text, file, &mut sink);
        complaints += &render::text(&sink, &sources, false);
    }
    assert!(complaints.is_empty(), "{complaints}");
}

/// A line of `tests/counts.txt`; `-` is None.
struct Count {
    file: String,
    preset: Option<String>,
    parameters: u64,
    states: Option<u64>,
}

fn counts() -> Vec<Count> {
    let lines = include_str!("counts.txt").lines().filter(|l| !l.starts_with('#'));
    let mut all = Vec::new();
    for line in lines {
        let words: Vec<&str> = line.split(' ').collect();
        let [file, preset, parameters, states, _trained] = words[..] else { panic!("malformed line: {line}") };
        let number = |w: &str| (w != "-").then(|| w.parse::<u64>().expect("a number"));
        let preset = (preset != "-").then(|| preset.to_string());
        let parameters = number(parameters).expect("every model states its parameters");
        all.push(Count { file: file.to_string(), preset, parameters, states: number(states) });
    }
    all
}

fn check_file(path: &str, presets: Vec<String>) -> driver::Checked {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    driver::check::check(&Request { path, presets, ..Request::default() }, &Disk)
}

#[test]
fn every_example_checks_and_counts_as_published() {
    let mut wrong = String::new();
    for count in counts() {
        let name = format!("{} {}", count.file, count.preset.as_deref().unwrap_or("-"));
        let checked = check_file(&format!("examples/{}.pta", count.file), count.preset.into_iter().collect());
        if !checked.sink.is_empty() {
            wrong += &format!("{name}:\n{}", render::text(&checked.sink, &checked.sources, false));
            continue;
        }
        let [model] = &checked.models[..] else { panic!("{name}: one model expected") };
        if model.parameters != count.parameters || count.states.is_some_and(|s| s != model.states) {
            wrong += &format!(
                "{name}: {} parameters and {} state values, not {} and {:?}\n",
                model.parameters, model.states, count.parameters, count.states
            );
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn every_example_has_a_count() {
    let counted: Vec<String> = counts().into_iter().map(|c| format!("examples/{}.pta", c.file)).collect();
    for (name, _) in folder("examples") {
        assert!(counted.contains(&name), "{name} is not in tests/counts.txt");
    }
}

#[test]
fn models_of_the_tests_check() {
    for (file, preset, parameters) in [
        ("golden_models/gpt", "tiny", 28_032),
        ("golden_models/gpt", "nano", 842_496),
        ("golden_models/llama", "tiny", 28_832),
        ("golden_models/llama", "nano", 853_120),
        ("golden_models/moe", "tiny", 45_120),
        ("golden_models/moe", "tiny_capacity", 45_120),
        ("golden_models/moe", "nano", 1_231_104),
        ("models/stories260k", "fixed", 260_032),
    ] {
        let checked = check_file(&format!("tests/{file}.pta"), vec![preset.to_string()]);
        assert!(checked.sink.is_empty(), "{}", render::text(&checked.sink, &checked.sources, false));
        assert_eq!(checked.models[0].parameters, parameters, "{file} {preset}");
    }
}

#[test]
fn the_standard_library_checks_by_itself() {
    for (name, _) in stdlib::MODULES {
        let checked = check_file(&format!("stdlib/{name}.pta"), Vec::new());
        let serious = checked.sink.sorted().iter().any(|d| d.severity != Severity::Note);
        assert!(!serious, "{}", render::text(&checked.sink, &checked.sources, false));
    }
}
