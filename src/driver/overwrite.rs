//! What a command reads is not written over.

use super::findings::{Findings, Outcome};
use crate::diag::Diagnostic;
use crate::runtime::data::reason;
use crate::source::SourceMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Refuses to write to a file that is one of `read` or of the program's texts, by whatever path.
pub fn refuse(to: &Path, sources: &SourceMap, read: &[PathBuf]) -> Outcome<()> {
    // A file that is not there yet is none of them.
    let Ok(target) = std::fs::metadata(to) else { return Ok(()) };
    let same = |p: &Path| std::fs::metadata(p).is_ok_and(|m| (m.dev(), m.ino()) == (target.dev(), target.ino()));
    let texts = sources.files().map(|(_, f)| Path::new(&f.name));
    let Some(found) = texts.chain(read.iter().map(PathBuf::as_path)).find(|p| target.is_file() && same(p)) else {
        return Ok(());
    };
    let message = format!("writing `{}` would destroy `{}`, which this command needs", to.display(), found.display());
    Err(Findings::of(Diagnostic::error("E0813", message).help("name another file to write")))
}

/// Sees that a file can be written, before work is done whose result it is to hold.
pub fn writable(path: &Path) -> Outcome<()> {
    let opened = std::fs::OpenOptions::new().append(true).create(true).open(path);
    opened.map(|_| ()).map_err(|e| unwritten(path, &e))
}

/// The error of a file that cannot be written.
pub fn unwritten(path: &Path, why: &std::io::Error) -> Box<Findings> {
    let d = Diagnostic::error("E0813", format!("cannot write `{}`: {}", path.display(), reason(why)))
        .help("see that the directory is there, writable, and has space");
    Findings::of(d)
}
