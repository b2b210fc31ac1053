//! Rules of the house that the compiler does not enforce: room edges, sizes of files, documentation of every module,
//! a page and a test for every diagnostic.

use partita::diag::codes::CODES;
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// Room by room, what it may use besides itself (`docs/architecture.md` has the reasons).
const EDGES: &[(&str, &str)] = &[
    ("source", ""),
    ("types", "source"),
    ("diag", "source"),
    ("mesh", "types"),
    ("syntax", "source diag"),
    ("resolve", "source diag syntax"),
    ("ir", "source diag types mesh"),
    ("ops", "source diag types ir"),
    ("schedule", "source diag types mesh"),
    ("check", "source diag types schedule syntax resolve ops"),
    ("elaborate", "source diag types schedule syntax resolve check ir ops"),
    ("autodiff", "source diag types ir ops"),
    ("stage", "source diag types ir ops"),
    ("interp", "source types mesh ir ops"),
    ("stage", "source diag types mesh ir"),
    ("stream", "source types ir"),
    ("pipeline", "types mesh ir schedule"),
    ("kernel", "source types mesh ir pipeline program"),
    ("memory", "source types kernel program"),
    ("program", "types mesh"),
    ("codegen", "types kernel memory program"),
    ("runtime", "types mesh program"),
    ("shard", "source diag types mesh ir"),
    ("recompute", "source types ir"),
    ("inspect", "source diag types mesh ir schedule shard"),
    ("driver", "*"),
    // It steps through runs and prints their errors, so it names what programs and runs are made of.
    ("cli", "driver diag source types program runtime"),
];

/// Crates that one room alone may name (a file's path begins with the owner).
const OWNERS: &[(&str, &[&str])] = &[
    ("pest", &["syntax/"]),
    ("codespan_reporting", &["diag/render.rs", "diag/window.rs"]),
    ("clap", &["cli/"]),
    ("indicatif", &["cli/"]),
    ("cranelift_codegen", &["codegen/cpu/"]),
    ("safetensors", &["runtime/checkpoint"]),
    ("libloading", &["runtime/device/cuda/"]),
];

const SOFT_LIMIT: usize = 900;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Files below a folder with this extension, as (path from that folder, text).
fn files(folder: &str, extension: &str) -> Vec<(String, String)> {
    let top = root().join(folder);
    let (mut found, mut open) = (Vec::new(), vec![top.clone()]);
    while let Some(folder) = open.pop() {
        let Ok(entries) = std::fs::read_dir(&folder) else { continue };
        for entry in entries {
            let path = entry.expect("a folder can be listed").path();
            if path.is_dir() {
                open.push(path);
            } else if path.extension().is_some_and(|e| e == extension) {
                let name = path.strip_prefix(&top).unwrap_or(&path).to_string_lossy().into_owned();
                found.push((name, std::fs::read_to_string(&path).expect("a text is UTF-8")));
            }
        }
    }
    found.sort();
    found
}

/// A file's text without its unit tests, which may use any room.
fn product_part(text: &str) -> &str {
    text.find("#[cfg(test)]\nmod tests {").map_or(text, |at| &text[..at])
}

/// Whether a file is a module of tests alone: its parent declares it under `#[cfg(test)]`.
fn is_test_file(name: &str) -> bool {
    let path = Path::new(name);
    let (Some(stem), Some(folder)) = (path.file_stem(), path.parent()) else { return false };
    let stem = stem.to_string_lossy();
    let declares = |parent: PathBuf| {
        let text = std::fs::read_to_string(parent).unwrap_or_default();
        text.split("#[cfg(test)]\n").skip(1).any(|after| {
            let line = after.lines().next().unwrap_or("");
            line.ends_with(&format!("mod {stem};"))
        })
    };
    let folder = root().join("src").join(folder);
    declares(folder.join("mod.rs")) || declares(folder.with_extension("rs"))
}

fn room_of(name: &str) -> &str {
    name.split(['/', '.']).next().unwrap_or(name)
}

/// Rooms that a text names by `crate::room` or `crate::{room, ..}`.
fn rooms_used(text: &str) -> Vec<&str> {
    let mut used = Vec::new();
    for (at, path) in text.match_indices("crate::") {
        let rest = &text[at + path.len()..];
        if let Some(list) = rest.strip_prefix('{') {
            let mut depth = 0usize;
            let mut start = true;
            for (i, c) in list.char_indices() {
                match c {
                    '{' => depth += 1,
                    '}' if depth == 0 => break,
                    '}' => depth -= 1,
                    ',' if depth == 0 => start = true,
                    c if start && c.is_alphabetic() => {
                        used.push(word(&list[i..]));
                        start = false;
                    }
                    _ => {}
                }
            }
        } else {
            used.push(word(rest));
        }
    }
    used
}

fn word(text: &str) -> &str {
    let end = text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
    &text[..end]
}

#[test]
fn rooms_use_only_what_the_table_allows() {
    let mut wrong = String::new();
    for (name, text) in files("src", "rs") {
        let room = room_of(&name);
        if matches!(room, "lib" | "main") || is_test_file(&name) {
            continue;
        }
        let Some((_, allowed)) = EDGES.iter().find(|(r, _)| *r == room) else {
            let _ = writeln!(wrong, "src/{name}: room `{room}` is not in the table");
            continue;
        };
        for used in rooms_used(product_part(&text)) {
            let is_room = EDGES.iter().any(|(r, _)| *r == used);
            if is_room && used != room && *allowed != "*" && !allowed.split(' ').any(|a| a == used) {
                let _ = writeln!(wrong, "src/{name}: `{room}` may not use `{used}`");
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn crates_stay_with_their_owners() {
    let mut wrong = String::new();
    for (name, text) in files("src", "rs") {
        for (krate, owners) in OWNERS {
            let uses = text.contains(&format!("use {krate}")) || text.contains(&format!(" {krate}::"));
            if uses && !owners.iter().any(|o| name.starts_with(o)) {
                let _ = writeln!(wrong, "src/{name} uses {krate}, which belongs to {owners:?}");
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn only_the_command_line_prints_and_exits() {
    let mut wrong = String::new();
    for (name, text) in files("src", "rs") {
        if matches!(room_of(&name), "cli" | "main") || is_test_file(&name) {
            continue;
        }
        for call in ["println!(", "print!(", "eprintln!(", "eprint!(", "process::exit(", "dbg!("] {
            if product_part(&text).contains(call) {
                let _ = writeln!(wrong, "src/{name} calls {call}");
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn unsafe_code_stays_where_it_is_needed() {
    // Machine code, buffers that threads share, and the map of a data file.
    let places = ["runtime/device/", "runtime/comm/", "runtime/exec/", "runtime/data/file.rs"];
    let mut wrong = String::new();
    for (name, text) in files("src", "rs") {
        if !places.iter().any(|p| name.starts_with(p)) && product_part(&text).contains("unsafe ") {
            let _ = writeln!(wrong, "src/{name} has unsafe code");
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn unsafe_code_of_the_software_gpu_stays_at_its_edges() {
    // Calls of C, mapped memory, processor features.
    let places = [
        "driver/abi/",
        "driver/device.rs",
        "driver/pinned.rs",
        "nccl/abi.rs",
        "nccl/shared.rs",
        "check/device.rs",
        "exec/warp.rs",
        "exec/lanes.rs",
        "place.rs",
    ];
    let mut wrong = String::new();
    for (name, text) in files("tests/simcuda/src", "rs") {
        if !places.iter().any(|p| name.starts_with(p)) && text.contains("unsafe ") {
            let _ = writeln!(wrong, "tests/simcuda/src/{name} has unsafe code");
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn every_file_is_documented_and_of_readable_size() {
    let mut wrong = String::new();
    for folder in ["src", "tests"] {
        for (name, text) in files(folder, "rs") {
            if !text.starts_with("//! ") {
                let _ = writeln!(wrong, "{folder}/{name} does not begin with a `//!` line");
            }
            let lines = text.lines().count();
            if lines > SOFT_LIMIT {
                let _ = writeln!(wrong, "{folder}/{name} has {lines} lines, more than {SOFT_LIMIT}");
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn every_code_has_a_page_and_a_test() {
    let mut wrong = String::new();
    let pages: Vec<String> = files("docs/errors", "md").into_iter().map(|(name, _)| name).collect();
    let golden: Vec<String> = files("tests/golden/ui", "test").into_iter().map(|(name, _)| name).collect();
    let mut tests: String = files("tests", "rs").into_iter().filter(|(n, _)| n != "tidy.rs").map(|(_, t)| t).collect();
    let mut product = String::new();
    for (name, text) in files("src", "rs") {
        tests += if is_test_file(&name) { &text } else { &text[product_part(&text).len()..] };
        if !is_test_file(&name) && !["diag/codes.rs", "diag/explain.rs"].contains(&name.as_str()) {
            product += product_part(&text);
        }
    }
    for code in CODES.iter().map(|c| c.code) {
        if !pages.iter().any(|p| p.starts_with(code)) {
            let _ = writeln!(wrong, "{code} has no page in docs/errors");
        }
        let tested = golden.iter().any(|g| g.starts_with(code)) || tests.contains(code);
        if !tested {
            let _ = writeln!(wrong, "{code} has no test");
        }
        if !product.contains(&format!("\"{code}\"")) {
            let _ = writeln!(wrong, "{code} is given by nothing");
        }
    }
    for page in pages.iter().filter(|p| p.starts_with(['E', 'W'])) {
        if !CODES.iter().any(|c| page.starts_with(c.code)) {
            let _ = writeln!(wrong, "docs/errors/{page} explains no code");
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn no_file_names_a_place_outside_the_repository() {
    // Written in two halves, so that this file does not find itself.
    let words = [concat!("/wo", "rk/"), concat!("../sha", "red/golden"), concat!("wt-", "std")];
    let mut wrong = String::new();
    for (folder, extension) in
        [("src", "rs"), ("tests", "rs"), ("tests", "test"), ("docs", "md"), ("examples", "pta"), ("stdlib", "pta")]
    {
        for (name, text) in files(folder, extension) {
            for word in words.iter().filter(|w| text.contains(**w)) {
                let _ = writeln!(wrong, "{folder}/{name} names {word}");
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

/// A path without the line that it ends in, or the mark of a sentence.
fn without_line(path: &str) -> &str {
    let path = path.trim_end_matches(['.', ',', ':']);
    match path.rsplit_once(':') {
        Some((file, line)) if line.bytes().all(|b| b.is_ascii_digit()) => file,
        _ => path,
    }
}

#[test]
fn files_that_the_readme_names_exist() {
    let mut wrong = String::new();
    let mut texts = files("docs", "md");
    texts.retain(|(name, _)| !name.starts_with("errors/"));
    texts.push(("../README.md".into(), std::fs::read_to_string(root().join("README.md")).expect("there is a README")));
    for (name, text) in texts {
        for path in text.split(['`', '(', ')', ' ', '\n']) {
            let looks_like_a_file =
                ["examples/", "docs/", "stdlib/", "tests/", "src/"].iter().any(|p| path.starts_with(p))
                    && !path.contains(['*', '<', '{', '|', '\'']);
            if looks_like_a_file && !Path::new(&root()).join(without_line(path)).exists() {
                let _ = writeln!(wrong, "{name} names {path}, which does not exist");
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn noted_instruction_counts_are_those_of_the_script() {
    let read = |name: &str| std::fs::read_to_string(root().join("benches").join(name)).expect("it is there");
    let script = read("instructions.sh");
    let cases = script.split_once("cases=(").and_then(|(_, rest)| rest.split_once("\n)")).expect("a list of cases").0;
    let names = cases.lines().filter_map(|l| Some(l.trim().strip_prefix('"')?.split_once(':')?.0.to_string()));
    let noted: serde_json::Map<String, serde_json::Value> =
        serde_json::from_str(&read("instructions.json")).expect("an object");
    assert_eq!(noted.keys().cloned().collect::<Vec<_>>(), names.collect::<Vec<_>>());
    for (name, count) in &noted {
        assert!(count.as_u64().is_some_and(|n| n > 1_000_000), "{name}: {count}");
    }
}
