//! `lines`: every line of a file is one sample, of bytes.

use super::file::{DataFile, MEMORY_LIMIT, malformed};
use super::spec::{Bound, Source};
use crate::runtime::error::{Result, RuntimeError};
use crate::types::counted;

/// The id of a line end, which also fills `tokens` beyond a line.
const LINE_END: u8 = b'\n';
/// The target that losses leave out.
const IGNORED: i32 = -100;

#[derive(Debug)]
pub struct Lines {
    bytes: Vec<u8>,
    /// Start and length of each line of the part.
    lines: Vec<(usize, usize)>,
}

impl Lines {
    /// A line with its end must fit into `seq` positions.
    pub fn open(source: &Source, seq: usize, bound: Option<&Bound>) -> Result<Lines> {
        let path = source.path.as_path();
        let file = DataFile::open(path)?;
        if file.len() > MEMORY_LIMIT {
            return Err(malformed(path, format!("is larger than the {} GiB of `lines`", MEMORY_LIMIT >> 30)));
        }
        let bytes = file.into_bytes()?;
        let mut lines = vec![];
        let mut start = 0;
        for line in bytes.split_inclusive(|&b| b == LINE_END) {
            let len = line.strip_suffix(&[LINE_END]).unwrap_or(line).len();
            lines.push((start, len));
            start += line.len();
        }
        let (first, count) = super::loader::part(source, lines.len() as u64)?;
        let lines: Vec<_> = lines.drain(first as usize..(first + count) as usize).collect();
        for (i, &(start, len)) in lines.iter().enumerate() {
            let number = first as usize + i + 1;
            let place = format!("{}:{number}", path.display());
            if len + 1 > seq {
                return Err(RuntimeError::new(
                    "E0803",
                    format!(
                        "line {number} of `{}` has {}; with its end it does not fit {}",
                        path.display(),
                        counted(len, "byte"),
                        counted(seq, "position")
                    ),
                )
                .place(place)
                .help(format!("make the sequence dim at least {}, or shorten the line", len + 1)));
            }
            if let Some(bound) = bound {
                let line = bytes[start..start + len].iter().chain([&LINE_END]);
                if let Some(&b) = line.into_iter().find(|&&b| usize::from(b) >= bound.size) {
                    return Err(RuntimeError::new(
                        "E0803",
                        format!(
                            "byte {b} in line {number} of `{}` is not below dim {} = {}",
                            path.display(),
                            bound.dim,
                            bound.size
                        ),
                    )
                    .place(place)
                    .help("bytes need a vocabulary of 256"));
                }
            }
        }
        Ok(Lines { bytes, lines })
    }

    pub fn len(&self) -> u64 {
        self.lines.len() as u64
    }

    /// The fields of one sample; slices of the sequence length. Positions beyond the line are another document.
    pub fn read(&self, sample: u64, tokens: &mut [i32], targets: &mut [i32], document: &mut [i32]) {
        let (start, len) = self.lines[sample as usize];
        let line = &self.bytes[start..start + len];
        tokens.fill(i32::from(LINE_END));
        targets.fill(IGNORED);
        document.fill(1);
        for (i, &b) in line.iter().enumerate() {
            tokens[i + 1] = i32::from(b);
            targets[i] = i32::from(b);
        }
        targets[len] = i32::from(LINE_END);
        document[..=len].fill(0);
    }
}

#[cfg(test)]
mod tests {
    use super::super::spec::SourceKind;
    use super::*;

    fn open(content: &[u8], seq: usize, size: usize) -> Result<Lines> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("names.txt");
        std::fs::write(&path, content).unwrap();
        let bound = Bound { dim: "vocab".into(), size, negative: false };
        Lines::open(&Source::new(path, SourceKind::Lines), seq, Some(&bound))
    }

    #[test]
    fn a_line_becomes_tokens_and_targets() {
        let lines = open(b"ab\n\nxyz", 4, 256).unwrap();
        assert_eq!(lines.len(), 3);
        let read = |i| {
            let (mut t, mut y, mut d) = ([0; 4], [0; 4], [0; 4]);
            lines.read(i, &mut t, &mut y, &mut d);
            (t, y, d)
        };
        assert_eq!(read(0), ([10, 97, 98, 10], [97, 98, 10, -100], [0, 0, 0, 1]));
        assert_eq!(read(1), ([10, 10, 10, 10], [10, -100, -100, -100], [0, 1, 1, 1]));
        assert_eq!(read(2), ([10, 120, 121, 122], [120, 121, 122, 10], [0, 0, 0, 0]));
    }

    #[test]
    fn long_lines_and_foreign_bytes_name_their_line() {
        let e = open(b"ab\nabcd\n", 4, 256).unwrap_err();
        assert!(e.message.contains("line 2") && e.help.as_ref().unwrap().contains("at least 5"), "{e}");
        let e = open(b"ab\na\xc3\n", 4, 128).unwrap_err();
        assert!(e.message.contains("byte 195 in line 2"), "{e}");
    }
}
