//! Diagnostics as text for people and JSON for tools. The only user of codespan.

use super::{Diagnostic, Severity, Sink};
use crate::source::SourceMap;
use codespan_reporting::diagnostic as cs;
use codespan_reporting::files::SimpleFiles;
use codespan_reporting::term;

/// Renders all findings of a sink, sorted by place. `color` adds ANSI escapes.
pub fn text(sink: &Sink, sources: &SourceMap, color: bool) -> String {
    sink.sorted().iter().map(|d| one(d, sources, color)).collect()
}

/// Renders one finding.
pub fn one(diagnostic: &Diagnostic, sources: &SourceMap, color: bool) -> String {
    let mut files = SimpleFiles::new();
    let ids: Vec<usize> = sources.files().map(|(_, f)| files.add(f.name.as_str(), f.text.as_str())).collect();
    let severity = match diagnostic.severity {
        Severity::Error => cs::Severity::Error,
        Severity::Warning => cs::Severity::Warning,
        Severity::Note => cs::Severity::Note,
    };
    let mut labels = Vec::new();
    if let Some(p) = &diagnostic.primary {
        labels.push(
            cs::Label::primary(ids[p.span.file.0 as usize], p.span.start as usize..p.span.end as usize)
                .with_message(&p.message),
        );
    }
    for s in &diagnostic.secondary {
        labels.push(
            cs::Label::secondary(ids[s.span.file.0 as usize], s.span.start as usize..s.span.end as usize)
                .with_message(&s.message),
        );
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

/// One JSON object a finding, one a line.
pub fn json(sink: &Sink, sources: &SourceMap) -> String {
    let mut out = String::new();
    for d in sink.sorted() {
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
    out
}
