//! What must hold for any input: shared by the fuzz targets and the tests that replay the corpus.

use partita::diag::{Severity, Sink};
use partita::source::FileId;
use partita::syntax::{format::format_source, parse_file, print};

/// Parsing ends without a panic, and every error has a place in the text and a cure. True if there is none.
pub fn parse(bytes: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(bytes) else { return false };
    let mut sink = Sink::default();
    let file = parse_file(text, FileId(0), &mut sink);
    for found in sink.sorted() {
        assert!(found.help.is_some(), "{found:?}");
        let span = found.primary.as_ref().expect("a syntax error has a place").span;
        let (start, end) = (span.start as usize, span.end as usize);
        assert!(start <= end && text.is_char_boundary(start) && text.is_char_boundary(end), "{found:?}");
    }
    print::ast(&file);
    !sink.has_errors()
}

/// A text that parses can be formatted, means the same afterwards, and does not change when formatted again.
pub fn fmt_idempotent(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let mut sink = Sink::default();
    let before = parse_file(text, FileId(0), &mut sink);
    if sink.has_errors() {
        assert!(format_source(text).is_err());
        return;
    }
    let once = format_source(text).unwrap_or_else(|e| panic!("not formatted: {:?}\n{text}", e.sorted()));
    let after = parse_file(&once, FileId(0), &mut sink);
    assert!(!sink.has_errors(), "formatted text does not parse: {:?}\n{text}\n---\n{once}", sink.sorted());
    assert_eq!(print::ast(&before), print::ast(&after), "{text}\n---\n{once}");
    assert_eq!(comments(text), comments(&once), "comments of {text}\n---\n{once}");
    assert!(once.lines().all(|l| l == l.trim_end()), "blanks at a line's end of {once}");
    let twice = format_source(&once).unwrap_or_else(|e| panic!("not formatted again: {:?}\n{once}", e.sorted()));
    assert_eq!(once, twice, "from\n{text}");
}

/// The whole front end ends without a panic, whatever it finds; every error has a place and a cure.
pub fn check_source(bytes: &[u8]) {
    if let Ok(text) = std::str::from_utf8(bytes) {
        for found in partita::driver::check_source(text).sorted() {
            let whole = found.severity != Severity::Error || (found.primary.is_some() && found.help.is_some());
            assert!(whole, "{found:?}");
        }
    }
}

/// The comments of a text that parses, in order.
fn comments(text: &str) -> Vec<&str> {
    let mut found = Vec::new();
    for line in text.lines() {
        let mut inside = false;
        let mut chars = line.char_indices();
        while let Some((at, c)) = chars.next() {
            match c {
                '\\' if inside => drop(chars.next()),
                '"' => inside = !inside,
                '/' if !inside && line[at..].starts_with("//") => {
                    found.push(line[at..].trim_end());
                    break;
                }
                _ => {}
            }
        }
    }
    found
}
