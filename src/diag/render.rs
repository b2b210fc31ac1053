//! Diagnostics as text for people and JSON for tools. With `window.rs` the only user of codespan.

use super::window::Texts;
use super::{Diagnostic, Severity, Sink};
use crate::source::SourceMap;
use codespan_reporting::diagnostic as cs;
use codespan_reporting::term;

/// At most so many errors are shown, and as many warnings and notes.
pub const MAX_SHOWN: usize = 100;

/// Renders the findings of a sink, sorted by place. `color` adds ANSI escapes.
pub fn text(sink: &Sink, sources: &SourceMap, color: bool) -> String {
    let texts = Texts::new(sources);
    let (shown, more) = first(sink);
    let mut out: String = shown.iter().map(|d| one(d, &texts, color)).collect();
    more.iter().for_each(|line| out += &format!("{line}\n"));
    out
}

/// What is shown, and what is said of the rest.
fn first(sink: &Sink) -> (Vec<Diagnostic>, Vec<String>) {
    let (mut errors, mut others) = (0, 0);
    let mut shown = Vec::new();
    for d in sink.sorted() {
        let count = if d.severity == Severity::Error { &mut errors } else { &mut others };
        *count += 1;
        if *count <= MAX_SHOWN {
            shown.push(d);
        }
    }
    let rest = |n: usize, one: &str, many: &str| match n.saturating_sub(MAX_SHOWN) {
        0 => None,
        1 => Some(format!("1 more {one}")),
        k => Some(format!("{k} more {many}")),
    };
    let more = [rest(errors, "error", "errors"), rest(others, "warning or note", "warnings and notes")];
    (shown, more.into_iter().flatten().collect())
}

fn one(diagnostic: &Diagnostic, texts: &Texts, color: bool) -> String {
    let files = texts.around(diagnostic);
    let severity = match diagnostic.severity {
        Severity::Error => cs::Severity::Error,
        Severity::Warning => cs::Severity::Warning,
        Severity::Note => cs::Severity::Note,
    };
    let mut labels = Vec::new();
    if let Some(p) = &diagnostic.primary {
        let (file, range) = files.range(p);
        labels.push(cs::Label::primary(file, range).with_message(&p.message));
    }
    for s in &diagnostic.secondary {
        let (file, range) = files.range(s);
        labels.push(cs::Label::secondary(file, range).with_message(&s.message));
    }
    let mut notes = diagnostic.notes.clone();
    if let Some(help) = &diagnostic.help {
        notes.push(format!("help: {help}"));
    }
    let shown = cs::Diagnostic::new(severity)
        .with_code(diagnostic.code)
        .with_message(&diagnostic.message)
        .with_labels(labels)
        .with_notes(notes);
    let config = term::Config::default();
    let result = if color {
        let mut buffer = term::termcolor::Buffer::ansi();
        term::emit_to_write_style(&mut buffer, &config, &files, &shown)
            .map(|()| String::from_utf8_lossy(buffer.as_slice()).into_owned())
    } else {
        term::emit_into_string(&config, &files, &shown)
    };
    result.unwrap_or_else(|_| format!("{}: {}\n", diagnostic.code, diagnostic.message))
}

/// One JSON object a finding, one a line; those beyond [`MAX_SHOWN`] are counted in an object of their own.
pub fn json(sink: &Sink, sources: &SourceMap) -> String {
    let mut out = String::new();
    let (shown, more) = first(sink);
    for d in shown {
        let label = |l: &super::Label| {
            let file = sources.file(l.span.file);
            let (line, column) = file.line_column(l.span.start);
            let (end_line, end_column) = file.line_column(l.span.end);
            serde_json::json!({"file": file.name, "line": line, "column": column, "end_line": end_line,
                "end_column": end_column, "message": l.message})
        };
        let value = serde_json::json!({
            "severity": d.severity,
            "code": d.code,
            "message": d.message,
            "primary": d.primary.as_ref().map(label),
            "secondary": d.secondary.iter().map(label).collect::<Vec<_>>(),
            "notes": d.notes,
            "help": d.help,
        });
        out.push_str(&value.to_string());
        out.push('\n');
    }
    for message in more {
        let value = serde_json::json!({"severity": Severity::Note, "code": "E0102", "message": message,
            "primary": null, "secondary": [], "notes": [], "help": null});
        out.push_str(&value.to_string());
        out.push('\n');
    }
    out
}
