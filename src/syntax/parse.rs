//! From text to tree: the guard, the grammar, and what is done when a file does not parse.

use super::ast::{File, Item, Lost};
use super::build::{Builder, Grammar, MAX_REPORTS, Rule};
use super::{errors, guard};
use crate::diag::{Diagnostic, Sink};
use crate::source::{FileId, Span};
use pest::Parser;
use std::num::NonZeroUsize;
use std::ops::Range;

/// Enough for the deepest text that the guard lets through, in a build without optimisation.
const STACK: usize = 64 << 20;
/// Steps of the parser. A file of the largest size needs far fewer; the bound keeps a flaw of the grammar from hanging.
const CALL_LIMIT: usize = 1 << 30;

/// The tree of a file. With errors in the sink the tree holds the items that are sound.
pub fn parse_file(text: &str, file: FileId, sink: &mut Sink) -> File {
    if let Some(too_much) = guard::excess(text, file) {
        sink.push(too_much);
        return File { items: Vec::new(), lost: Lost::All };
    }
    match on_large_stack(|| parse_guarded(text, file)) {
        Ok((parsed, found)) => {
            sink.extend(found);
            parsed
        }
        Err(why) => {
            let message = format!("cannot start a thread for parsing: {why}");
            sink.push(Diagnostic::error("E0811", message).at(Span::new(file, 0, 0), "while reading this file"));
            File { items: Vec::new(), lost: Lost::All }
        }
    }
}

/// Runs recursive work over a guarded text in a thread of its own, so that it does not depend on the caller's stack.
pub fn on_large_stack<T: Send>(work: impl FnOnce() -> T + Send) -> std::io::Result<T> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("syntax".into()).stack_size(STACK).spawn_scoped(scope, work)?;
        Ok(thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })
}

fn parse_guarded(text: &str, file: FileId) -> (File, Sink) {
    pest::set_call_limit(NonZeroUsize::new(CALL_LIMIT));
    let mut sink = Sink::default();
    let first = match parse_piece(text, 0..text.len(), file, &mut sink) {
        Ok(items) => return (File { items, lost: Lost::Nothing }, sink),
        Err(first) => first,
    };
    // pest stops at its first error: parse the items one by one, so that each says what is wrong with it.
    let (mut items, mut lost) = (Vec::new(), Vec::new());
    for piece in pieces(text) {
        if sink.error_count() >= MAX_REPORTS {
            lost.extend(names_of(&text[piece]));
            continue;
        }
        match parse_piece(text, piece.clone(), file, &mut sink) {
            Ok(more) => items.extend(more),
            Err(error) => {
                sink.push(*error);
                lost.extend(names_of(&text[piece]));
            }
        }
    }
    if !sink.has_errors() {
        sink.push(*first);
    }
    (File { items, lost: Lost::Names(lost) }, sink)
}

fn parse_piece(text: &str, piece: Range<usize>, file: FileId, sink: &mut Sink) -> Result<Vec<Item>, Box<Diagnostic>> {
    let offset = piece.start;
    let mut pairs = Grammar::parse(Rule::file, &text[piece.clone()])
        .map_err(|e| Box::new(errors::explain(&e, text, piece, file)))?;
    let mut builder = Builder::new(text, file, offset);
    let items = pairs.next().map(|file| builder.items(file)).unwrap_or_default();
    sink.extend(builder.sink);
    Ok(items)
}

/// The names that an item would define, as far as its broken text tells. Words of other languages (`def f(x)`) count, too.
fn names_of(item: &str) -> Vec<String> {
    let code: String = guard::code_bytes(item).map(|(_, byte)| char::from(byte)).collect();
    let words = |text: &str| -> Vec<String> {
        let all = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        all.filter(|w| !w.is_empty()).map(str::to_string).collect()
    };
    let code = code.trim_start();
    let Some((kind, rest)) = code.split_once([' ', '\t']) else { return Vec::new() };
    match (kind, rest.split_once('{')) {
        ("use", Some((_, listed))) => words(listed),
        ("use", None) => words(rest),
        ("dim" | "const", _) => rest.split(',').filter_map(|part| words(part).into_iter().next()).collect(),
        _ => words(rest).into_iter().take(1).collect(),
    }
}

/// Cuts a file before every line that begins an item: at column 0, and outside of brackets unless the words there can
/// begin nothing else (an unclosed bracket in one item must not swallow the next).
fn pieces(text: &str) -> Vec<Range<usize>> {
    let mut starts = vec![0];
    let mut depth = 0i32;
    let mut code = guard::code_bytes(text).peekable();
    let mut line_start = 0;
    let mut after_attribute = false;
    let mut train = false;
    for line in text.split_inclusive('\n') {
        // Of two lines that begin with `optimizer` and a name, a definition has types.
        let optimizes = train && depth > 0 && line.starts_with("optimizer") && !line.contains(':');
        let begins = item_word(line).filter(|_| !optimizes);
        if begins == Some(Certain::Yes) || (begins.is_some() && depth <= 0) {
            depth = 0;
            train = line.starts_with("train");
            if !after_attribute {
                starts.push(line_start);
            }
            after_attribute = line.starts_with('@');
        } else if !line.trim_start().starts_with("//") && !line.trim().is_empty() {
            after_attribute = false;
        }
        let end = line_start + line.len();
        while let Some((_, byte)) = code.next_if(|(place, _)| *place < end) {
            match byte {
                b'(' | b'[' | b'{' => depth += 1,
                b')' | b']' | b'}' => depth -= 1,
                _ => {}
            }
        }
        line_start = end;
    }
    starts.dedup();
    let ends = starts[1..].iter().copied().chain([text.len()]);
    starts.iter().copied().zip(ends).map(|(start, end)| start..end).collect()
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Certain {
    Yes,
    /// A statement may begin so, too.
    No,
}

/// Whether a line begins an item.
fn item_word(line: &str) -> Option<Certain> {
    if line.starts_with('@') {
        return Some(Certain::No);
    }
    let end = line.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(line.len());
    let (word, rest) = line.split_at(end);
    match word {
        "dim" | "const" => Some(Certain::No),
        "use" | "fn" | "layer" | "optimizer" | "model" | "preset" | "plan" | "train" | "sample" | "weights" => {
            // A name must follow: `model = 3` is a statement.
            let next = rest.trim_start_matches([' ', '\t']);
            let named = next.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_' || (word == "use" && c == '.'));
            (named && next.len() < rest.len()).then_some(Certain::Yes)
        }
        // Definitions of other languages, so that each is reported for itself.
        "def" | "class" | "func" | "function" | "import" | "from" => {
            rest.trim_start_matches([' ', '\t']).starts_with(|c: char| c.is_ascii_alphabetic()).then_some(Certain::No)
        }
        _ => None,
    }
}
