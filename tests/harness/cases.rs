//! The form of `.test` files: cases with a heading, a source, and one fenced expectation for each stage.
//!
//! ```text
//! --- unique-name stage[,stage] key=value
//! source
//! >>> other.pta
//! text of a file that the source imports
//! (three backticks)stage
//! expected text
//! (three backticks)
//! ```

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// At most so many lines a case, source and expectations together: a longer one tests more than one thing.
const MAX_LINES: usize = 220;

#[derive(Clone, Debug)]
pub struct Case {
    pub name: String,
    pub stages: Vec<String>,
    pub options: BTreeMap<String, String>,
    /// The main file's text.
    pub source: String,
    /// Further files, by name.
    pub files: BTreeMap<String, String>,
    /// Expectations by stage, as they stand in the file.
    pub expected: Vec<(String, String)>,
    /// The source as written, with the `>>>` lines.
    written: String,
}

/// All `.test` files below a folder, in order of path.
pub fn find(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut open = vec![folder.to_path_buf()];
    while let Some(folder) = open.pop() {
        for entry in std::fs::read_dir(&folder).expect("a folder of cases can be listed") {
            let path = entry.expect("a folder of cases can be listed").path();
            if path.is_dir() {
                open.push(path);
            } else if path.extension().is_some_and(|e| e == "test") {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// The cases of a file, or what is wrong with its form.
pub fn parse(text: &str) -> Result<Vec<Case>, String> {
    let mut cases: Vec<Case> = Vec::new();
    let mut lines = text.lines().enumerate().peekable();
    while let Some((number, line)) = lines.next() {
        let Some(heading) = line.strip_prefix("--- ") else {
            if line.trim().is_empty() {
                continue;
            }
            return Err(format!("line {}: expected a heading `--- name stage`", number + 1));
        };
        let mut case = parse_heading(heading).ok_or_else(|| format!("line {}: malformed heading", number + 1))?;
        let mut size = 1;
        while let Some((number, line)) = lines.next_if(|(_, l)| !l.starts_with("--- ")) {
            size += 1;
            let Some(stage) = line.strip_prefix("```") else {
                if case.expected.is_empty() {
                    case.written.push_str(line);
                    case.written.push('\n');
                } else if !line.trim().is_empty() {
                    return Err(format!("line {}: text after an expectation", number + 1));
                }
                continue;
            };
            let mut expected = String::new();
            loop {
                let (_, line) = lines.next().ok_or_else(|| format!("the fence of `{stage}` is not closed"))?;
                size += 1;
                if line == "```" {
                    break;
                }
                expected.push_str(line);
                expected.push('\n');
            }
            case.expected.push((stage.to_string(), expected));
        }
        if size > MAX_LINES {
            return Err(format!("case `{}` has {size} lines, more than {MAX_LINES}", case.name));
        }
        if cases.iter().any(|c| c.name == case.name) {
            return Err(format!("two cases are named `{}`", case.name));
        }
        split_files(&mut case);
        cases.push(case);
    }
    Ok(cases)
}

/// A file's text with these outcomes in place of the expectations.
pub fn write(cases: &[Case], outcomes: &[Vec<(String, String)>]) -> String {
    let mut out = String::new();
    for (case, outcome) in cases.iter().zip(outcomes) {
        if !out.is_empty() {
            out.push('\n');
        }
        let options: String = case.options.iter().map(|(k, v)| format!(" {k}={v}")).collect();
        let _ = writeln!(out, "--- {} {}{options}", case.name, case.stages.join(","));
        out.push_str(case.written.trim_end_matches('\n'));
        out.push('\n');
        for (stage, text) in outcome {
            let _ = writeln!(out, "```{stage}\n{text}```");
        }
    }
    out
}

fn parse_heading(heading: &str) -> Option<Case> {
    let mut words = heading.split_whitespace();
    let name = words.next()?.to_string();
    let stages = words.next()?.split(',').map(str::to_string).collect();
    let options =
        words.map(|w| w.split_once('=').map(|(k, v)| (k.to_string(), v.to_string()))).collect::<Option<_>>()?;
    Some(Case {
        name,
        stages,
        options,
        source: String::new(),
        files: BTreeMap::new(),
        expected: Vec::new(),
        written: String::new(),
    })
}

fn split_files(case: &mut Case) {
    let mut name: Option<String> = None;
    for line in case.written.trim_end_matches('\n').lines() {
        if let Some(next) = line.strip_prefix(">>> ") {
            name = Some(next.trim().to_string());
            continue;
        }
        let text = match &name {
            None => &mut case.source,
            Some(name) => case.files.entry(name.clone()).or_default(),
        };
        text.push_str(line);
        text.push('\n');
    }
}
