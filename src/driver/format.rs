//! Formatting of one text, and writing it back without ever leaving half a file.

use super::findings::{Findings, Outcome};
use crate::syntax::format::format_source;
use std::path::Path;

/// The text formatted. `name` is for messages.
pub fn text(name: &str, text: &str) -> Outcome<String> {
    format_source(text).map_err(|sink| {
        let mut findings = Findings { sink, ..Findings::default() };
        findings.sources.add(name, text);
        Box::new(findings)
    })
}

/// Replaces a file at once.
pub fn write(path: &Path, text: &str) -> std::io::Result<()> {
    // The file behind a link is replaced, not the link.
    let target = std::fs::canonicalize(path)?;
    let name = target.file_name().unwrap_or_default().to_string_lossy();
    let temporary = target.with_file_name(format!(".{name}.tmp"));
    let kept = std::fs::metadata(&target)?.permissions();
    let written = std::fs::write(&temporary, text)
        .and_then(|()| std::fs::set_permissions(&temporary, kept))
        .and_then(|()| std::fs::rename(&temporary, &target));
    if written.is_err() {
        let _ = std::fs::remove_file(&temporary);
    }
    written
}
