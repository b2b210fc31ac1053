//! The formatter: one style for all sources, 120 columns, 4 blanks of indentation.
//!
//! In: a text that parses. Out: the same program. Kept are all comments, single blank lines, blocks on one line that
//! fit there, and the column of comments behind code; needless commas and `;` go. Formatting twice changes nothing
//! more, and a last check compares the trees of both texts, so that a flaw here cannot change a program.
//!
//! Reading order: `tree` (tokens and brackets), `layout` (where lines may break), `doc` (where they do).

mod doc;
mod layout;
mod tree;

use super::build::{Grammar, Rule};
use super::{parse, print};
use crate::diag::{Diagnostic, Sink};
use crate::source::{FileId, MAX_BYTES, Span};
use pest::Parser;

/// The formatted text, or why the text does not parse, with places in file 0.
pub fn format_source(text: &str) -> Result<String, Sink> {
    let file = FileId(0);
    let mut sink = Sink::default();
    let before = parse::parse_file(text, file, &mut sink);
    if sink.has_errors() {
        return Err(sink);
    }
    let formatted = parse::on_large_stack(|| {
        let mut pairs = Grammar::parse(Rule::file, text).ok()?;
        let items = tree::items(pairs.next()?);
        let layout = layout::Layout::new(text);
        Some(doc::render(&layout.file(&items)))
    });
    let refused = |found: Diagnostic, help: &str| {
        let mut sink = Sink::default();
        sink.push(found.at(Span::new(file, 0, 0), "left as it is").help(help));
        Err(sink)
    };
    let Some(formatted) = formatted.ok().flatten() else {
        return refused(Diagnostic::error("E0811", "this file could not be formatted"), "try again with more memory");
    };
    if formatted.len() > MAX_BYTES {
        let found = Diagnostic::error("E0102", "formatted, this file would be larger than 1 MiB");
        return refused(found, "split it and join the parts with `use`");
    }
    let after = parse::parse_file(&formatted, file, &mut sink);
    if sink.has_errors() || print::ast(&before) != print::ast(&after) {
        let found = Diagnostic::error("E0901", "the formatter would change the meaning of this file");
        return refused(found, "please report this file");
    }
    Ok(formatted)
}
