//! What a run found, with the texts that it points into; and errors of the runtime as findings.

use crate::diag::{Diagnostic, Sink};
use crate::program::Source;
use crate::runtime::RuntimeError;
use crate::source::{SourceMap, Span};

/// Diagnostics and the texts that their spans point into.
#[derive(Clone, Default, Debug)]
pub struct Findings {
    pub sources: SourceMap,
    pub sink: Sink,
}

/// The error is boxed, since it holds all source texts.
pub type Outcome<T> = Result<T, Box<Findings>>;

impl Findings {
    pub fn of(diagnostic: Diagnostic) -> Box<Findings> {
        let mut out = Findings::default();
        out.sink.push(diagnostic);
        Box::new(out)
    }

    /// Why a run ended, with the texts in which the place may lie.
    pub fn of_stop(stop: Stop, sources: &SourceMap) -> Box<Findings> {
        let mut out = Findings { sources: sources.clone(), sink: Sink::default() };
        stop.diagnostics(sources).into_iter().for_each(|d| out.sink.push(d));
        Box::new(out)
    }
}

impl From<RuntimeError> for Box<Findings> {
    fn from(error: RuntimeError) -> Box<Findings> {
        Findings::of(diagnostic(error))
    }
}

/// Why a run ended early.
#[derive(Clone, PartialEq, Debug)]
pub struct Stop {
    pub found: Vec<Diagnostic>,
    /// Where in the program the first of these happened, if that is known by file and line alone.
    pub at: Option<Source>,
}

impl From<RuntimeError> for Stop {
    fn from(error: RuntimeError) -> Stop {
        Stop { found: vec![diagnostic(error)], at: None }
    }
}

impl Stop {
    /// An error of what a place in the program asks for.
    pub fn at(error: RuntimeError, place: &Source) -> Stop {
        Stop { at: Some(place.clone()), ..Stop::from(error) }
    }

    pub fn diagnostics(self, sources: &SourceMap) -> Vec<Diagnostic> {
        let mut found = self.found;
        let Some(source) = self.at else { return found };
        let span = span_of(&source, sources);
        for d in found.iter_mut().filter(|d| d.primary.is_none()) {
            let bare = d.clone();
            *d = match span {
                Some(span) => bare.at(span, "here"),
                None if source.file.is_empty() => bare,
                None => bare.with_note(format!("at {}:{}:{}", source.file, source.line, source.column)),
            };
        }
        found
    }
}

/// The line from a place on, if its file is among the texts.
pub fn span_of(source: &Source, sources: &SourceMap) -> Option<Span> {
    let (file, text) = sources.files().find(|(_, f)| f.name == source.file)?;
    let before = source.line.checked_sub(1)? as usize;
    let mut lines = text.text.split_inclusive('\n');
    let start: usize = lines.by_ref().take(before).map(str::len).sum();
    let line = lines.next()?;
    let code = line.split("//").next().unwrap_or(line).trim_end();
    let skipped: usize = line.chars().take(source.column.saturating_sub(1) as usize).map(char::len_utf8).sum();
    Some(Span::new(file, start + skipped, start + code.len().max(skipped)))
}

/// An error of the runtime as a diagnostic without a place in source text.
pub fn diagnostic(error: RuntimeError) -> Diagnostic {
    let RuntimeError { code, message, notes, help, place } = error;
    let mut d = Diagnostic::error(code, message);
    if let Some(place) = place.filter(|p| !d.message.contains(p.as_str())) {
        d = d.with_note(format!("in {place}"));
    }
    for note in notes {
        d = d.with_note(note);
    }
    match help {
        Some(h) => d.help(h),
        None => d,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_found_in_the_text_and_said_in_words_elsewhere() {
        let mut sources = SourceMap::default();
        sources.add("a.pta", "dim b = 2\nlet ü = x[v = i] // gather\n");
        let source = Source { file: "a.pta".into(), line: 2, column: 9, ..Source::default() };
        let stop = Stop { at: Some(source), ..Stop::from(RuntimeError::new("E0809", "index 7")) };
        let d = stop.clone().diagnostics(&sources).remove(0);
        let span = d.primary.expect("a place").span;
        assert_eq!(sources.text(span), "x[v = i]");
        let d = stop.diagnostics(&SourceMap::default()).remove(0);
        assert_eq!((d.primary, d.notes), (None, vec!["at a.pta:2:9".to_string()]));
    }
}
