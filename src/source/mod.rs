//! Source files: ids, spans, line and column lookup, and the trait through which the compiler reads files.
//!
//! In: paths. Out: [`SourceMap`] (every text seen, by [`FileId`]) and [`Span`]s into it.
//! Invariant: a span's bounds lie on character boundaries of its file's text, `start <= end`.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Component, Path, PathBuf};

/// Index of a file in a [`SourceMap`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, serde::Serialize, serde::Deserialize)]
pub struct FileId(pub u32);

/// A half-open range of bytes of one file.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, serde::Serialize, serde::Deserialize)]
pub struct Span {
    pub file: FileId,
    pub start: u32,
    pub end: u32,
}

impl Span {
    pub fn new(file: FileId, start: usize, end: usize) -> Span {
        Span { file, start: start as u32, end: end as u32 }
    }

    /// The smallest span that covers both. Both lie in one file.
    pub fn to(self, other: Span) -> Span {
        debug_assert_eq!(self.file, other.file);
        Span { file: self.file, start: self.start.min(other.start), end: self.end.max(other.end) }
    }
}

/// A value with the place it was written at.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Spanned<T> {
    pub node: T,
    pub span: Span,
}

/// One text that the compiler has read.
#[derive(Clone, Debug)]
pub struct SourceFile {
    /// The path as shown to the user; `<std>/nn.pta` for the embedded standard library.
    pub name: String,
    pub text: String,
    line_starts: Vec<u32>,
}

impl SourceFile {
    pub fn new(name: String, text: String) -> SourceFile {
        let mut line_starts = vec![0];
        line_starts.extend(text.bytes().enumerate().filter(|(_, b)| *b == b'\n').map(|(i, _)| i as u32 + 1));
        SourceFile { name, text, line_starts }
    }

    /// Line and column of a byte, both from 1; the column counts characters.
    pub fn line_column(&self, byte: u32) -> (usize, usize) {
        let line = self.line_starts.partition_point(|&s| s <= byte) - 1;
        let start = self.line_starts[line] as usize;
        let end = (byte as usize).min(self.text.len());
        (line + 1, self.text.get(start..end).map_or(0, |s| s.chars().count()) + 1)
    }
}

/// Every text read in one run.
#[derive(Clone, Debug, Default)]
pub struct SourceMap {
    files: Vec<SourceFile>,
}

impl SourceMap {
    pub fn add(&mut self, name: impl Into<String>, text: impl Into<String>) -> FileId {
        self.files.push(SourceFile::new(name.into(), text.into()));
        FileId(self.files.len() as u32 - 1)
    }

    pub fn file(&self, id: FileId) -> &SourceFile {
        &self.files[id.0 as usize]
    }

    pub fn files(&self) -> impl Iterator<Item = (FileId, &SourceFile)> {
        self.files.iter().enumerate().map(|(i, f)| (FileId(i as u32), f))
    }

    pub fn text(&self, span: Span) -> &str {
        self.file(span.file).text.get(span.start as usize..span.end as usize).unwrap_or("")
    }

    /// Whether a place lies in the standard library, which the user has not written.
    pub fn in_library(&self, span: Span) -> bool {
        self.files.get(span.file.0 as usize).is_some_and(|f| f.name.starts_with("<std>/"))
    }

    /// `file.pta:12:5`, for reports.
    pub fn place(&self, span: Span) -> String {
        let file = self.file(span.file);
        let (line, column) = file.line_column(span.start);
        format!("{}:{line}:{column}", file.name)
    }
}

/// How the compiler reads files, from several threads. The core never touches the disk by itself.
pub trait World: Sync {
    /// The bytes of a file, or the reason why it cannot be read.
    fn read(&self, path: &Path) -> Result<Vec<u8>, String>;
}

/// Most bytes of a file of the language; of a larger one only a character more is read.
pub const MAX_BYTES: usize = 1 << 20;

/// The disk.
pub struct Disk;

impl World for Disk {
    fn read(&self, path: &Path) -> Result<Vec<u8>, String> {
        let mut bytes = Vec::new();
        // A device may have no end.
        let read = std::fs::File::open(path).and_then(|f| f.take(MAX_BYTES as u64 + 4).read_to_end(&mut bytes));
        read.map(|_| bytes).map_err(|e| e.to_string())
    }
}

/// The text of a file; of one that is too large (see [`MAX_BYTES`]) the cut end may lack a part of its last character.
/// The error is the place of the first byte that is none of UTF-8.
pub fn text_of(mut bytes: Vec<u8>) -> Result<String, usize> {
    if bytes.len() > MAX_BYTES
        && let Err(e) = std::str::from_utf8(&bytes)
        && e.error_len().is_none()
    {
        bytes.truncate(e.valid_up_to());
    }
    String::from_utf8(bytes).map_err(|e| e.utf8_error().valid_up_to())
}

/// Files held in memory, for tests and tools.
#[derive(Default)]
pub struct Memory(pub BTreeMap<PathBuf, String>);

impl World for Memory {
    fn read(&self, path: &Path) -> Result<Vec<u8>, String> {
        self.0.get(&normalise(path)).map(|t| t.clone().into_bytes()).ok_or_else(|| "no such file".to_string())
    }
}

/// The path without `.` and inner `..`, by text alone.
pub fn normalise(path: &Path) -> PathBuf {
    let mut out = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir if matches!(out.components().next_back(), Some(Component::Normal(_))) => {
                out.pop();
            }
            other => out.push(other),
        }
    }
    out
}
