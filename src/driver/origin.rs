//! Where a checkpoint comes from: the program that wrote it, and what that program had set. A checkpoint's index keeps it,
//! so that a run does not go on, and weights are not used, as if they were another program's without a word.

use super::check::Checked;
use super::recipe::Recipe;
use crate::diag::Diagnostic;
use crate::elaborate::Elab;
use crate::ir::digest::digest;
use crate::runtime::RuntimeError;
use crate::runtime::checkpoint::{Checkpoint, bytes_fingerprint, text_fingerprint};
use crate::source::Span;
use crate::syntax::ast::{Train, TrainKind};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// A program as a file.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Author {
    /// Absolute.
    pub file: String,
    /// Fingerprint of its text.
    pub text: String,
}

/// What a checkpoint keeps of the program that wrote it.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Origin {
    pub author: Author,
    /// Names and values, in the words of the program: the model, the statements of the train item that a run depends on.
    pub settings: Vec<(String, String)>,
    /// Dims and constants of the file.
    pub values: Vec<(String, String)>,
    /// Fingerprints of what a step computes, and of what begins. They are of one version of the compiler.
    pub step: String,
    pub begin: String,
    pub version: String,
}

/// In a checkpoint's index.
const ORIGIN: &str = "origin";

impl Author {
    pub fn of(c: &Checked, path: &Path) -> Author {
        let file = std::fs::canonicalize(path).or_else(|_| std::path::absolute(path));
        let text = c.sources.files().next().map_or("", |(_, f)| f.text.as_str());
        Author {
            file: file.unwrap_or_else(|_| path.to_path_buf()).to_string_lossy().into_owned(),
            text: text_fingerprint(text),
        }
    }

    /// The program that wrote a checkpoint, if it is known to be another one. A file that was moved is the same.
    pub fn other<'c>(&self, from: &'c Checkpoint) -> Option<&'c str> {
        let before = &from.index.extra[ORIGIN]["author"];
        let (file, text) = (before["file"].as_str()?, before["text"].as_str()?);
        (file != self.file && text != self.text).then_some(file)
    }

    /// Weights of another program's checkpoint are used.
    pub fn warning(&self, from: &Checkpoint) -> Option<Diagnostic> {
        let file = self.other(from)?;
        let message = format!("checkpoint `{}` was written by another program: `{file}`", from.path().display());
        Some(Diagnostic::warning("W0012", message).help(
            "keep the runs of different programs apart with `--out DIR`, and name one of them with `--checkpoint DIR`",
        ))
    }

    /// An error of a checkpoint that does not fit, with the program that wrote it if that is another one.
    pub fn blamed(&self, error: RuntimeError, from: &Checkpoint) -> RuntimeError {
        match self.other(from) {
            Some(file) if error.code == "E0807" => error.note(format!("it was written by another program, `{file}`")),
            _ => error,
        }
    }
}

impl Origin {
    /// `plan`: its name, and where it says that replicas train apart or with earlier parameters.
    pub fn of(
        c: &Checked,
        path: &Path,
        (plan, replicas): (Option<&str>, Option<Span>),
        item: &Train,
        walk: &Elab,
    ) -> Origin {
        let words = |span: Span| c.sources.text(span).split_whitespace().collect::<Vec<_>>().join(" ");
        let mut settings = vec![("plan".to_string(), plan.unwrap_or("none").to_string())];
        settings.extend(replicas.map(|span| ("replicas".to_string(), words(span))));
        for line in &item.lines {
            let name = match &line.kind {
                TrainKind::Data { valid: false, .. } => "data",
                TrainKind::Samples { .. } => "samples",
                TrainKind::Optimizer { .. } => "optimizer",
                TrainKind::Freeze(_) => "freeze",
                TrainKind::Clip(_) => "clip",
                TrainKind::Gradient(_) => "gradient",
                TrainKind::Average(_) => "average",
                TrainKind::Let { .. } => "let",
                TrainKind::Data { .. }
                | TrainKind::Steps(_)
                | TrainKind::Seed(_)
                | TrainKind::Save { .. }
                | TrainKind::SaveBest
                | TrainKind::Log(_)
                | TrainKind::Load { .. } => continue,
            };
            let text = words(line.span);
            let value = text.strip_prefix(name).unwrap_or(&text).trim().to_string();
            let nth = settings.iter().filter(|s| s.0.split(' ').next() == Some(name)).count();
            settings.push((if nth == 0 { name.to_string() } else { format!("{name} {}", nth + 1) }, value));
        }
        let mut values = walk.values_of_file();
        values.extend(
            walk.settings.train.iter().filter(|s| s.0 == "clip").map(|(_, v)| ("train.clip".into(), v.to_string())),
        );
        Origin {
            author: Author::of(c, path),
            settings,
            values,
            step: bytes_fingerprint(&digest(&walk.b.graph)),
            begin: bytes_fingerprint(&digest(&walk.init.graph)),
            version: env!("CARGO_PKG_VERSION").to_string(),
        }
    }
}

/// What a checkpoint of a recipe keeps.
pub fn kept(recipe: &Recipe) -> serde_json::Value {
    serde_json::json!({"item": recipe.name, "model": recipe.model, "precision": recipe.precision, ORIGIN: recipe.origin})
}

/// What a checkpoint's run had otherwise, one sentence each.
pub fn differences(recipe: &Recipe, from: &Checkpoint) -> Vec<String> {
    let extra = &from.index.extra;
    let now = [("item", &recipe.name), ("model", &recipe.model), ("precision", &recipe.precision)];
    let differing = now.into_iter().filter_map(|(name, now)| differing(name, Some(extra[name].as_str()?), Some(now)));
    let mut out: Vec<String> = differing.collect();
    // Checkpoints may lack what is kept today.
    let Ok(before) = serde_json::from_value::<Origin>(extra[ORIGIN].clone()) else { return out };
    let own = &recipe.origin;
    compare(&before.settings, &own.settings, &mut out);
    if before.version == own.version && before.step == own.step {
        // Whatever was changed has no influence on a step.
        if before.begin != own.begin {
            out.push("other initial values, which have no effect on a run that goes on".to_string());
        }
        return out;
    }
    // A constant that only one of the two reads is seen by what reads it.
    let shared = |all: &[(String, String)], other: &[(String, String)]| -> Vec<(String, String)> {
        all.iter().filter(|v| other.iter().any(|o| o.0 == v.0)).cloned().collect()
    };
    compare(&shared(&before.values, &own.values), &shared(&own.values, &before.values), &mut out);
    if out.is_empty() && before.version == own.version {
        out.push("the program computes something else than before".to_string());
    }
    out
}

/// Settings of the same names, and those that only one of the two has.
fn compare(before: &[(String, String)], now: &[(String, String)], out: &mut Vec<String>) {
    let value = |all: &[(String, String)], name: &str| all.iter().find(|s| s.0 == name).map(|s| s.1.clone());
    let mut names: Vec<&String> = now.iter().chain(before).map(|s| &s.0).collect();
    let mut seen = indexmap::IndexSet::new();
    names.retain(|n| seen.insert(*n));
    out.extend(names.into_iter().filter_map(|n| differing(n, value(before, n).as_deref(), value(now, n).as_deref())));
}

fn differing(name: &str, before: Option<&str>, now: Option<&str>) -> Option<String> {
    let said = |value: Option<&str>| value.unwrap_or("none").to_string();
    (before != now).then(|| format!("{name} {} before, now {}", said(before), said(now)))
}

/// The warning of a run that goes on with other settings.
pub fn warning(recipe: &Recipe, from: &Checkpoint) -> Option<Diagnostic> {
    let mut all = differences(recipe, from);
    if recipe.seed != from.index.seed {
        all.push(format!(
            "the program says seed {}, and the run keeps the one that it began with, {}",
            recipe.seed, from.index.seed
        ));
    }
    if all.is_empty() {
        return None;
    }
    let mut d = Diagnostic::warning("W0011", "the run goes on with other settings than it began with");
    for difference in all {
        d = d.with_note(difference);
    }
    Some(d.help("give what it began with if it must go on as if it had not stopped, or begin anew with `--out DIR`"))
}

/// An error of restoring a checkpoint, with what may be the reason.
pub fn blamed(error: RuntimeError, recipe: &Recipe, from: &Checkpoint) -> RuntimeError {
    if error.code != "E0807" {
        return error;
    }
    let error = recipe.origin.author.blamed(error, from);
    let differences = differences(recipe, from);
    // What a rule of replicas keeps beside the optimizer's states is of no use to another one.
    let rule = differences.iter().any(|d| d.starts_with("replicas "));
    let error = differences.into_iter().take(REASONS).fold(error, RuntimeError::note);
    if !rule {
        return error;
    }
    let run = from.path().parent().unwrap_or(from.path()).display();
    error.help(format!(
        "go on under the plan that it was trained with, or begin anew with its parameters: `load \"{run}\"`"
    ))
}

/// Differences that are told of a checkpoint that does not fit.
const REASONS: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(all: &[(&str, &str)]) -> Vec<(String, String)> {
        all.iter().map(|(a, b)| (a.to_string(), b.to_string())).collect()
    }

    #[test]
    fn settings_of_either_side_are_compared() {
        let mut out = vec![];
        let before = pairs(&[("a", "1"), ("clip", "2"), ("same", "x")]);
        compare(&before, &pairs(&[("same", "x"), ("a", "3"), ("freeze", "\"b\"")]), &mut out);
        assert_eq!(out, ["a 1 before, now 3", "freeze none before, now \"b\"", "clip 2 before, now none"]);
    }
}
