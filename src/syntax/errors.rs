//! A failed parse in words.

use super::build::Rule;
use crate::diag::Diagnostic;
use crate::source::{FileId, Span};
use pest::error::{Error, ErrorVariant, InputLocation};
use std::ops::Range;

/// Turns pest's error over a piece of a file into a diagnostic.
pub fn explain(error: &Error<Rule>, text: &str, piece: Range<usize>, file: FileId) -> Diagnostic {
    let at = match error.location {
        InputLocation::Pos(at) | InputLocation::Span((at, _)) => piece.start + at,
    };
    let positives = match &error.variant {
        ErrorVariant::ParsingError { positives, .. } => positives.as_slice(),
        ErrorVariant::CustomError { message } => {
            return Diagnostic::error("E0102", "text is too involved to parse")
                .at(Span::new(file, piece.start, piece.start), "in the item that begins here")
                .with_note(format!("the parser stopped: {message}"))
                .help("split the item into smaller ones");
        }
    };
    let found = Found::at(text, at);
    let span = Span::new(file, at, at + found.len);
    Diagnostic::error("E0101", format!("expected {}, found {}", expected(positives), found.words))
        .at(span, "unexpected")
}

struct Found {
    len: usize,
    words: String,
}

impl Found {
    fn at(text: &str, at: usize) -> Found {
        let rest = &text[at..];
        let Some(first) = rest.chars().next() else {
            return Found { len: 0, words: "the end of the file".into() };
        };
        let len = match first {
            '\n' => return Found { len: 0, words: "the end of the line".into() },
            c if c.is_ascii_alphanumeric() || c == '_' => {
                rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len())
            }
            c => c.len_utf8(),
        };
        Found { len, words: format!("`{}`", &rest[..len]) }
    }
}

fn expected(positives: &[Rule]) -> String {
    format!("{positives:?}")
}
