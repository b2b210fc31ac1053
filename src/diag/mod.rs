//! Diagnostics as values: what is wrong, where, what it clashes with, what to write instead.
//!
//! In: problems found by any room. Out: [`Diagnostic`]s in a [`Sink`], sorted by place, each reported once.
//! Invariants: every diagnostic has a code of `codes::CODES`; an error has a primary label unless it concerns
//! no source text (a data file, a checkpoint). Rendering is in `render` and `window`, which alone use codespan.

pub mod codes;
pub mod explain;
pub mod render;
mod window;

use crate::source::Span;
use serde::{Deserialize, Serialize};
use std::collections::HashSet;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    Error,
    Warning,
    Note,
}

/// A place and what is to be said about it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Label {
    pub span: Span,
    pub message: String,
}

/// One finding. Messages end without a full stop.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Diagnostic {
    pub severity: Severity,
    /// `E0301`, `W0001`: see [`codes`].
    #[serde(deserialize_with = "codes::read")]
    pub code: codes::Name,
    pub message: String,
    pub primary: Option<Label>,
    pub secondary: Vec<Label>,
    /// Further facts ("called from ..", measured sizes).
    pub notes: Vec<String>,
    /// What to write instead.
    pub help: Option<String>,
}

impl Diagnostic {
    pub fn error(code: &'static str, message: impl Into<String>) -> Diagnostic {
        Diagnostic::new(Severity::Error, code, message)
    }

    pub fn warning(code: &'static str, message: impl Into<String>) -> Diagnostic {
        Diagnostic::new(Severity::Warning, code, message)
    }

    pub fn note(code: &'static str, message: impl Into<String>) -> Diagnostic {
        Diagnostic::new(Severity::Note, code, message)
    }

    fn new(severity: Severity, code: &'static str, message: impl Into<String>) -> Diagnostic {
        debug_assert!(codes::find(code).is_some(), "code {code} is not in the registry");
        Diagnostic {
            severity,
            code,
            message: message.into(),
            primary: None,
            secondary: Vec::new(),
            notes: Vec::new(),
            help: None,
        }
    }

    pub fn at(mut self, span: Span, message: impl Into<String>) -> Diagnostic {
        self.primary = Some(Label { span, message: message.into() });
        self
    }

    pub fn and(mut self, span: Span, message: impl Into<String>) -> Diagnostic {
        self.secondary.push(Label { span, message: message.into() });
        self
    }

    pub fn with_note(mut self, note: impl Into<String>) -> Diagnostic {
        self.notes.push(note.into());
        self
    }

    pub fn help(mut self, help: impl Into<String>) -> Diagnostic {
        self.help = Some(help.into());
        self
    }
}

/// Collects diagnostics of a run. The same code at the same place is kept once, however often it is found.
#[derive(Clone, Default, Debug)]
pub struct Sink {
    found: Vec<Diagnostic>,
    /// Code and place of each that has a place.
    places: HashSet<(&'static str, Span)>,
    errors: usize,
}

impl Sink {
    pub fn push(&mut self, diagnostic: Diagnostic) {
        let new = diagnostic.primary.as_ref().is_none_or(|p| self.places.insert((diagnostic.code, p.span)));
        if new {
            self.errors += usize::from(diagnostic.severity == Severity::Error);
            self.found.push(diagnostic);
        }
    }

    pub fn has_errors(&self) -> bool {
        self.errors > 0
    }

    pub fn error_count(&self) -> usize {
        self.errors
    }

    pub fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    /// All findings, by file and place.
    pub fn sorted(&self) -> Vec<Diagnostic> {
        let mut all = self.found.clone();
        all.sort_by_key(|d| d.primary.as_ref().map(|p| p.span));
        all
    }

    pub fn extend(&mut self, other: Sink) {
        for d in other.found {
            self.push(d);
        }
    }

    /// Whether there are so many errors that a further one need not say what may have been meant.
    pub fn is_flooded(&self) -> bool {
        self.errors >= render::MAX_SHOWN
    }
}

/// At most so many candidates are compared with a misspelt name.
const MAX_CANDIDATES: usize = 4_000;

/// The candidate closest to a misspelt name, if one is close enough to be meant (Levenshtein distance at most a
/// third of the length).
pub fn did_you_mean<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let length = name.chars().count();
    let limit = (length / 3).max(1);
    candidates
        .into_iter()
        .filter(|c| *c != name && c.chars().count().abs_diff(length) <= limit)
        .take(MAX_CANDIDATES)
        .map(|c| (distance(name, c), c))
        .filter(|(d, _)| *d <= limit)
        .min_by_key(|(d, _)| *d)
        .map(|(_, c)| c)
}

/// Names as the end of a sentence: all of few, the first of many.
pub fn some_of<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    const SHOWN: usize = 12;
    let mut names = names.into_iter();
    let shown = names.by_ref().take(SHOWN).collect::<Vec<_>>().join(", ");
    if names.next().is_some() { format!("{shown}, ..") } else { shown }
}

fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.iter().enumerate() {
        let mut corner = row[0];
        row[0] = i + 1;
        for (j, cb) in b.iter().enumerate() {
            let next = if ca == cb { corner } else { 1 + corner.min(row[j]).min(row[j + 1]) };
            corner = row[j + 1];
            row[j + 1] = next;
        }
    }
    row[b.len()]
}
