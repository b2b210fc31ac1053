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
    /// Where in the standard library, if `at` is the call that led there.
    pub within: Option<Source>,
}

/// Where the program names its data: input by input, or with an empty name a stream.
pub type DataPlaces = Vec<(String, Source)>;

impl From<RuntimeError> for Stop {
    fn from(error: RuntimeError) -> Stop {
        Stop { found: vec![diagnostic(error)], at: None, within: None }
    }
}

impl Stop {
    /// An error of what a place in the program asks for.
    pub fn at(error: RuntimeError, place: &Source) -> Stop {
        Stop { at: Some(place.clone()), ..Stop::from(error) }
    }

    /// An error of data that the program asks for.
    pub fn of_data(error: RuntimeError, places: &DataPlaces) -> Stop {
        let of_input = places.iter().find(|(name, _)| error.input.as_ref() == Some(name));
        let at = of_input.or(places.first()).map(|(_, place)| place.clone());
        Stop { at, ..Stop::from(error) }
    }

    pub fn diagnostics(self, sources: &SourceMap) -> Vec<Diagnostic> {
        let mut found = self.found;
        let Some(source) = self.at else { return found };
        let shown = |s: &Source| format!("{}:{}:{}", s.file, s.line, s.column);
        let span = span_of(&source, sources);
        for d in found.iter_mut().filter(|d| d.primary.is_none()) {
            let bare = d.clone();
            *d = match span {
                Some(span) => bare.at(span, if self.within.is_some() { "in this call" } else { "here" }),
                None if source.file.is_empty() => bare,
                None => bare.with_note(format!("at {}", shown(&source))),
            };
            if let Some(within) = &self.within {
                let outer = d.clone();
                *d = match span_of(within, sources) {
                    Some(span) => outer.and(span, "here"),
                    None => outer.with_note(format!("in the library at {}", shown(within))),
                };
            }
        }
        found
    }
}

/// What stands at a place, up to the end of its line, if its file is among the texts.
pub fn span_of(source: &Source, sources: &SourceMap) -> Option<Span> {
    let (file, text) = sources.files().find(|(_, f)| f.name == source.file)?;
    let before = source.line.checked_sub(1)? as usize;
    let mut lines = text.text.split_inclusive('\n');
    let start: usize = lines.by_ref().take(before).map(str::len).sum();
    let line = lines.next()?;
    let code = line.split("//").next().unwrap_or(line).trim_end();
    let skipped: usize = line.chars().take(source.column.saturating_sub(1) as usize).map(char::len_utf8).sum();
    let end = skipped + code.get(skipped..).map_or(0, |rest| element(rest).trim_end().len());
    Some(Span::new(file, start + skipped, start + end))
}

/// A text up to the comma or bracket that ends it as an element of a list.
fn element(text: &str) -> &str {
    let (mut depth, mut quoted) = (0u32, false);
    for (at, c) in text.char_indices() {
        match c {
            '"' => quoted = !quoted,
            _ if quoted => {}
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' if depth > 0 => depth -= 1,
            ')' | ']' | '}' => return &text[..at],
            ',' if depth == 0 => return &text[..at],
            _ => {}
        }
    }
    text
}

/// An error of the runtime as a diagnostic without a place in source text.
pub fn diagnostic(error: RuntimeError) -> Diagnostic {
    let RuntimeError { code, message, notes, help, place, .. } = error;
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

    #[test]
    fn the_programs_own_call_comes_before_the_librarys_line() {
        let mut sources = SourceMap::default();
        sources.add("a.pta", "loss mean[b](f(x, y), 2)\n");
        sources.add("<std>/nn.pta", "table[v = index]\n");
        let e = RuntimeError::new("E0809", "index 7").place("<std>/nn.pta:1:1").called_at("a.pta:1:14");
        let d = crate::driver::engine::stop(e.clone()).diagnostics(&sources).remove(0);
        let text = |l: &crate::diag::Label| (sources.text(l.span).to_string(), l.message.clone());
        assert_eq!(d.primary.as_ref().map(text), Some(("f(x, y)".into(), "in this call".into())));
        assert_eq!(text(&d.secondary[0]), ("table[v = index]".into(), "here".into()));
        let d = crate::driver::engine::stop(e).diagnostics(&SourceMap::default()).remove(0);
        assert_eq!(d.notes, ["at a.pta:1:14", "in the library at <std>/nn.pta:1:1"]);
    }

    #[test]
    fn data_of_an_input_is_where_the_input_is_fed() {
        let mut sources = SourceMap::default();
        sources.add("a.pta", "    data { x = npy(\"x.npy\"), y = csv(\"a,b.csv\", column = 9) }\n");
        let at = |column| Source { file: "a.pta".into(), line: 1, column, ..Source::default() };
        let places = vec![("x".to_string(), at(12)), ("y".to_string(), at(30))];
        let fed = |e: RuntimeError| {
            let d = Stop::of_data(e, &places).diagnostics(&sources).remove(0);
            sources.text(d.primary.expect("a place").span).to_string()
        };
        assert_eq!(fed(RuntimeError::new("E0803", "shape").of_input("y")), "y = csv(\"a,b.csv\", column = 9)");
        assert_eq!(fed(RuntimeError::new("E0803", "shape")), "x = npy(\"x.npy\")");
    }
}
