//! Limits that are checked before parsing, in one pass over the text: size and nesting of brackets. After it every
//! recursive walk over the text's structure is bounded.

use crate::diag::Diagnostic;
use crate::source::{FileId, MAX_BYTES, Span};

pub const MAX_NESTING: usize = 128;

/// What is too much about a text, if anything.
pub fn excess(text: &str, file: FileId) -> Option<Diagnostic> {
    if text.len() > MAX_BYTES {
        return Some(
            Diagnostic::error("E0102", "a file is larger than 1 MiB")
                .at(Span::new(file, 0, 0), "starts here")
                .help("split it and join the parts with `use`"),
        );
    }
    let alone = |(at, _): &(usize, &str)| text.as_bytes().get(at + 1) != Some(&b'\n');
    if let Some((place, _)) = text.match_indices('\r').find(alone) {
        return Some(
            Diagnostic::error("E0101", "a carriage return that ends no line")
                .at(Span::new(file, place, place + 1), "without a line feed")
                .help("save the file with LF, or CR LF, at the end of each line"),
        );
    }
    let mut open: Vec<usize> = Vec::new();
    for (place, byte) in code_bytes(text) {
        match byte {
            b'(' | b'[' | b'{' => {
                open.push(place);
                if open.len() > MAX_NESTING {
                    return Some(
                        Diagnostic::error("E0102", format!("brackets nest deeper than {MAX_NESTING}"))
                            .at(Span::new(file, place, place + 1), format!("bracket {} inside others", open.len()))
                            .and(Span::new(file, open[0], open[0] + 1), "the outermost one")
                            .help("give inner parts names with `let`, or make them a function"),
                    );
                }
            }
            b')' | b']' | b'}' => {
                open.pop();
            }
            _ => {}
        }
    }
    None
}

/// The bytes of a text with their places, without those of comments and strings.
pub fn code_bytes(text: &str) -> impl Iterator<Item = (usize, u8)> + '_ {
    let bytes = text.as_bytes();
    let mut at = 0;
    std::iter::from_fn(move || {
        loop {
            let byte = *bytes.get(at)?;
            match byte {
                b'/' if bytes.get(at + 1) == Some(&b'/') => {
                    at += bytes[at..].iter().position(|b| *b == b'\n').unwrap_or(bytes.len() - at);
                }
                b'"' => {
                    at += 1;
                    while let Some(b) = bytes.get(at).filter(|b| **b != b'\n') {
                        at += if *b == b'\\' && bytes.get(at + 1).is_some_and(|n| *n != b'\n') { 2 } else { 1 };
                        if *b == b'"' {
                            break;
                        }
                    }
                }
                _ => {
                    at += 1;
                    return Some((at - 1, byte));
                }
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn carriage_returns_end_lines_only_before_line_feeds() {
        let found = excess("dim a = 2\rdim b = 3\r", FileId(0)).expect("too much");
        assert_eq!((found.code, found.primary.map(|p| p.span)), ("E0101", Some(Span::new(FileId(0), 9, 10))));
        assert_eq!(excess("dim a = 2\r\ndim b = 3\r\n", FileId(0)), None);
    }
}
