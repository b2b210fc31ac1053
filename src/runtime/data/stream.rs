//! Streams of ids: bytes, characters, tokens, and text through a tokenizer. Reads windows; knows no batches.

use std::path::Path;

use super::chars::CharTable;
use super::file::{DataFile, malformed, read_text};
use super::spec::{Bound, IdWidth, Source, SourceKind};
use crate::runtime::error::{Result, RuntimeError};
use crate::runtime::tokenizer::{Codec, Tokenizer};

/// Parts up to this many ids are checked against the vocabulary when they are opened, longer ones as they are read.
const CHECK_AT_ONCE: u64 = 1 << 24;

/// Ids `start..start + len` of a file.
#[derive(Debug)]
pub struct Stream {
    file: DataFile,
    /// Bytes of an id: 1, 2 or 4, little-endian.
    width: usize,
    start: u64,
    len: u64,
    /// What ids must stay below, with the dim's name.
    bound: Option<Bound>,
    /// The id after which a document ends.
    pub end: Option<u32>,
    pub chars: Option<CharTable>,
}

impl Stream {
    /// `chars`: the numbering to use instead of the file's own.
    pub fn open(source: &Source, bound: Option<&Bound>, chars: Option<&CharTable>) -> Result<Stream> {
        let path = source.path.as_path();
        let mut table = None;
        let mut end = None;
        let (file, width) = match &source.kind {
            SourceKind::Bytes => (DataFile::open(path)?, 1),
            SourceKind::Chars => {
                let text = read_text(path)?;
                let used = chars.cloned().unwrap_or_else(|| CharTable::of(&text));
                check_table(path, &used, bound)?;
                let file = encode_chars(path, &text, &used)?;
                table = Some(used);
                file
            }
            SourceKind::Tokens { width, end: e } => {
                end = *e;
                let file = DataFile::open(path)?;
                let width = if *width == IdWidth::U16 { 2 } else { 4 };
                if file.len() % width != 0 {
                    return Err(malformed(
                        path,
                        format!("has {} bytes, which is no multiple of the {width} of an id", file.len()),
                    )
                    .help("it may be truncated, or of another `dtype` (u16 or u32)"));
                }
                (file, width as usize)
            }
            SourceKind::Text { tokenizer, end: token, split } => {
                let tokenizer = Tokenizer::open(tokenizer)?;
                end = token.as_ref().map(|t| tokenizer.known_token(t)).transpose()?;
                let ids = documents(&tokenizer, &read_text(path)?, split.as_deref(), end)?;
                (DataFile::memory(path, ids.iter().flat_map(|id| id.to_le_bytes()).collect()), 4)
            }
            other => return Err(RuntimeError::internal(format!("`{}` is no stream", other.name()))),
        };
        let total = file.len() / width as u64;
        let (start, len) = super::loader::part(source, total)?;
        let stream = Stream { file, width, start, len, bound: bound.cloned(), end, chars: table };
        if len <= CHECK_AT_ONCE {
            stream.check_all()?;
        }
        Ok(stream)
    }

    /// Ids in the part.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Reads `out.len()` ids from position `at` of the part.
    pub fn read(&self, at: u64, out: &mut [u32]) -> Result<()> {
        let raw = self.file.slice((self.start + at) * self.width as u64, out.len() * self.width)?;
        for (id, bytes) in out.iter_mut().zip(raw.chunks_exact(self.width)) {
            *id = match *bytes {
                [a] => u32::from(a),
                [a, b] => u32::from(u16::from_le_bytes([a, b])),
                [a, b, c, d] => u32::from_le_bytes([a, b, c, d]),
                _ => unreachable!("ids are 1, 2 or 4 bytes wide"),
            };
        }
        // ids are stored as i32, whatever the vocabulary
        let limit = self.bound.as_ref().map_or(1 << 31, |b| b.size as u64);
        match out.iter().position(|&id| u64::from(id) >= limit) {
            Some(i) => Err(self.out_of_range(self.start + at + i as u64, out[i])),
            None => Ok(()),
        }
    }

    fn check_all(&self) -> Result<()> {
        let mut ids = vec![0; 1 << 16];
        let mut at = 0;
        while at < self.len {
            let n = (self.len - at).min(ids.len() as u64);
            self.read(at, &mut ids[..n as usize])?;
            at += n;
        }
        Ok(())
    }

    fn out_of_range(&self, position: u64, id: u32) -> RuntimeError {
        let path = self.file.path().display();
        let what = if self.width == 1 { "byte" } else { "id" };
        let limit = match &self.bound {
            Some(b) => format!("dim {} = {}", b.dim, b.size),
            None => "2^31, the largest that `int` holds".to_string(),
        };
        RuntimeError::new("E0803", format!("{what} {id} at position {position} of `{path}` is not below {limit}"))
            .place(path)
            .help("raise the vocabulary dim, or use the data that the vocabulary was made for")
    }
}

fn check_table(path: &Path, table: &CharTable, bound: Option<&Bound>) -> Result<()> {
    let Some(bound) = bound.filter(|b| table.len() > b.size) else { return Ok(()) };
    Err(RuntimeError::new(
        "E0803",
        format!(
            "`{}` has {} distinct characters, more than dim {} = {}",
            path.display(),
            table.len(),
            bound.dim,
            bound.size
        ),
    )
    .place(path.display())
    .help(format!("write `dim {} = {}`", bound.dim, table.len())))
}

/// The ids of a text's documents, each with the end token behind it, unless its text brings it.
fn documents(tokenizer: &Tokenizer, text: &str, split: Option<&str>, end: Option<u32>) -> Result<Vec<u32>> {
    let mut ids = vec![];
    let parts: Vec<&str> = match split {
        Some(by) => text.split(by).map(|d| d.trim_matches(['\n', '\r'])).collect(),
        None => vec![text],
    };
    for part in parts.into_iter().filter(|p| !p.is_empty()) {
        ids.extend(tokenizer.encode(part)?);
        ids.extend(end.filter(|e| ids.last() != Some(e)));
    }
    Ok(ids)
}

fn encode_chars(path: &Path, text: &str, table: &CharTable) -> Result<(DataFile, usize)> {
    let width = match table.len() {
        0..=0x100 => 1,
        0x101..=0x1_0000 => 2,
        _ => 4,
    };
    let mut ids = Vec::with_capacity(text.len() * width);
    for (position, c) in text.chars().enumerate() {
        let Some(id) = table.id(c) else {
            return Err(RuntimeError::new(
                "E0803",
                format!(
                    "character {c:?} at position {position} of `{}` is not among the {} of the training data",
                    path.display(),
                    table.len()
                ),
            )
            .place(path.display())
            .help("use text of the same characters, or train on data that has them"));
        };
        ids.extend_from_slice(&id.to_le_bytes()[..width]);
    }
    Ok((DataFile::memory(path, ids), width))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bound(size: usize) -> Bound {
        Bound { dim: "vocab".into(), size, negative: false }
    }

    fn write(content: &[u8]) -> (tempfile::TempDir, std::path::PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("data");
        std::fs::write(&path, content).unwrap();
        (dir, path)
    }

    fn read_all(stream: &Stream) -> Vec<u32> {
        let mut out = vec![0; stream.len() as usize];
        stream.read(0, &mut out).unwrap();
        out
    }

    #[test]
    fn tokens_of_both_widths() {
        let (_dir, path) = write(&[1, 0, 0, 0, 255, 255, 0, 0]);
        let source = |width| Source::new(&path, SourceKind::Tokens { width, end: None });
        assert_eq!(read_all(&Stream::open(&source(IdWidth::U16), None, None).unwrap()), [1, 0, 65535, 0]);
        assert_eq!(read_all(&Stream::open(&source(IdWidth::U32), None, None).unwrap()), [1, 65535]);
        let mut half = source(IdWidth::U16);
        half.from = 0.5;
        assert_eq!(read_all(&Stream::open(&half, None, None).unwrap()), [65535, 0]);
        let e = Stream::open(&half, Some(&bound(65535)), None).unwrap_err();
        assert_eq!(e.code, "E0803");
        assert!(e.message.contains("id 65535 at position 2") && e.message.contains("dim vocab = 65535"), "{e}");
        half.from = 0.75;
        Stream::open(&half, Some(&bound(65535)), None).unwrap();
    }

    #[test]
    fn ids_that_int_cannot_hold_are_errors() {
        let (_dir, path) = write(&[0, 0, 0, 128]);
        let source = Source::new(&path, SourceKind::Tokens { width: IdWidth::U32, end: None });
        assert!(Stream::open(&source, None, None).unwrap_err().message.contains("2147483648"));
    }

    #[test]
    fn odd_token_files_are_malformed() {
        let (_dir, path) = write(&[1, 0, 0]);
        let source = Source::new(&path, SourceKind::Tokens { width: IdWidth::U16, end: None });
        assert_eq!(Stream::open(&source, None, None).unwrap_err().code, "E0802");
    }

    #[test]
    fn chars_number_the_whole_file_and_check_the_vocabulary() {
        let (_dir, path) = write("bca\nab".as_bytes());
        let mut source = Source::new(&path, SourceKind::Chars);
        source.to = 0.5;
        let stream = Stream::open(&source, Some(&bound(4)), None).unwrap();
        assert_eq!(read_all(&stream), [2, 3, 1]);
        assert_eq!(stream.chars.unwrap().len(), 4);
        let e = Stream::open(&source, Some(&bound(3)), None).unwrap_err();
        assert!(e.message.contains("has 4 distinct characters, more than dim vocab = 3"), "{e}");
        let e = Stream::open(&source, None, Some(&CharTable::of("abc"))).unwrap_err();
        assert!(e.message.contains("'\\n' at position 3"), "{e}");
    }

    #[test]
    fn many_characters_take_wider_ids() {
        let text: String = (0..300).map(|i| char::from_u32(0x4e00 + i).unwrap()).collect();
        let (_dir, path) = write(text.as_bytes());
        let stream = Stream::open(&Source::new(&path, SourceKind::Chars), None, None).unwrap();
        assert!(read_all(&stream).into_iter().eq(0..300));
    }
}
