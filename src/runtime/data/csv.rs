//! Comma-separated numbers, one sample a line, with an optional heading.

use std::path::Path;

use super::array::{Elem, Layout};
use super::file::{DataFile, malformed};
use crate::runtime::error::{Result, RuntimeError};
use crate::types::counted;

#[derive(Debug)]
pub struct Table {
    values: Vec<f64>,
    rows: usize,
    /// A sample's axes: none for a single column.
    shape: Vec<usize>,
    /// Line and column of the first value that is no whole number.
    pub fraction_at: Option<String>,
}

impl Table {
    /// As an array in memory.
    pub fn into_array(self, path: &Path) -> (DataFile, Layout) {
        let bytes = self.values.iter().flat_map(|v| v.to_le_bytes()).collect();
        let shape = [vec![self.rows], self.shape].concat();
        let layout = Layout { elem: Elem::F64, big_endian: false, offset: 0, shape, fortran: false };
        (DataFile::memory(path, bytes), layout)
    }
}

/// The picked columns. A first record of words alone is a heading: one that holds a number is data, so that a value that
/// is missing there is not taken for a name. Blank lines at the end are skipped. Other columns may hold any text.
pub fn parse(path: &Path, bytes: Vec<u8>, column: Option<usize>, count: Option<usize>) -> Result<Table> {
    if bytes.starts_with(b"\xff\xfe") || bytes.starts_with(b"\xfe\xff") {
        return Err(malformed(path, "is UTF-16 text").help("convert the file to UTF-8"));
    }
    let text = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&bytes).trim_ascii_end();
    let mut table = Table { values: vec![], rows: 0, shape: vec![], fraction_at: None };
    let mut columns = None;
    let mut records = Records { text, at: 0, line: 1 };
    let mut fields = vec![];
    while let Some(line) = records.next(&mut fields) {
        let bad = |detail: String| {
            malformed(path, format!("{detail} in line {line}")).place(format!("{}:{line}", path.display())).help(
                match line {
                    1 => "mend or remove the line; a heading is a first line without any number",
                    _ => "mend or remove the line; fields are numbers with commas between them",
                },
            )
        };
        if fields.last().is_some_and(|f| f.starts_with(b"\"") && !closed(f)) {
            return Err(bad("has a quote that is not closed".into()));
        }
        let width = fields.len();
        if *columns.get_or_insert(width) != width {
            return Err(bad(format!("has {width} instead of {} fields", columns.unwrap_or(0))));
        }
        let picked = pick(path, &fields, column, count)?;
        if line == 1 && heading(&fields) && picked.clone().any(|c| value(fields[c]).is_none()) {
            continue;
        }
        for c in picked {
            let field = fields[c];
            match value(field) {
                Some(value) => table.values.push(value),
                None => {
                    let shown: String = String::from_utf8_lossy(field).trim().chars().take(40).collect();
                    return Err(bad(format!("has {shown:?} where a number is needed (column {c})")));
                }
            }
            if table.fraction_at.is_none() && table.values.last().is_some_and(|v| v.fract() != 0.0) {
                table.fraction_at = Some(format!("line {line}, column {c}"));
            }
        }
        table.rows += 1;
    }
    if column.is_none() || count.is_some() {
        table.shape = vec![count.or(columns).unwrap_or(0)];
    }
    Ok(table)
}

/// Records of fields, as RFC 4180 describes them: commas and line ends within quotes are text. A line may end in `\n`,
/// `\r\n` or `\r`.
struct Records<'a> {
    text: &'a [u8],
    at: usize,
    line: usize,
}

impl<'a> Records<'a> {
    /// The fields of the next record, with their quotes, and the line where it begins.
    fn next(&mut self, fields: &mut Vec<&'a [u8]>) -> Option<usize> {
        fields.clear();
        if self.at >= self.text.len() {
            return None;
        }
        let first = self.line;
        let (mut start, mut quoted) = (self.at, false);
        loop {
            let byte = self.text.get(self.at).copied();
            let field = &self.text[start..self.at];
            self.at += 1;
            match byte {
                Some(b'"') if quoted || field.is_empty() => quoted = !quoted,
                // a doubled quote
                Some(b'"') if field.starts_with(b"\"") && field.ends_with(b"\"") => quoted = true,
                Some(b',') if !quoted => {
                    fields.push(field);
                    start = self.at;
                }
                Some(b'\n' | b'\r') => {
                    if byte == Some(b'\r') && self.text.get(self.at) == Some(&b'\n') {
                        self.at += 1;
                    }
                    self.line += 1;
                    if !quoted {
                        fields.push(field);
                        return Some(first);
                    }
                }
                None => {
                    fields.push(field);
                    return Some(first);
                }
                Some(_) => {}
            }
        }
    }
}

/// Whether a quoted field ends with its quote: its quotes come in pairs.
fn closed(field: &[u8]) -> bool {
    field.iter().filter(|&&b| b == b'"').count().is_multiple_of(2)
}

fn pick(path: &Path, fields: &[&[u8]], column: Option<usize>, count: Option<usize>) -> Result<std::ops::Range<usize>> {
    let width = fields.len();
    let first = column.unwrap_or(0);
    let count = count.unwrap_or(if column.is_some() { 1 } else { width });
    match first.checked_add(count) {
        Some(end) if end <= width && count > 0 => Ok(first..end),
        _ => Err(RuntimeError::new(
            "E0803",
            format!(
                "`{}` has {}, asked for are {count} from column {first} on",
                path.display(),
                counted(width, "column")
            ),
        )
        .place(path.display())
        .help(match fields {
            [one] if one.contains(&b';') => "separate columns by commas, not semicolons",
            [one] if one.contains(&b'\t') => "separate columns by commas, not tabs",
            _ => "columns are counted from 0",
        })),
    }
}

/// Any number of a field, `nan` and `inf` among them.
fn number(field: &[u8]) -> Option<f64> {
    let field = std::str::from_utf8(field).ok()?.trim();
    let field = field.strip_prefix('"').and_then(|f| f.strip_suffix('"')).unwrap_or(field);
    field.trim().parse().ok()
}

/// Finite numbers only; `nan` and `inf` stand for missing values in most tables.
fn value(field: &[u8]) -> Option<f64> {
    number(field).filter(|v| v.is_finite())
}

/// Whether a record holds words and no number.
fn heading(fields: &[&[u8]]) -> bool {
    let word = |f: &&[u8]| !f.trim_ascii().is_empty();
    fields.iter().any(word) && fields.iter().all(|f| number(f).is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(text: &str, column: Option<usize>, count: Option<usize>) -> Result<Table> {
        parse(Path::new("t.csv"), text.as_bytes().to_vec(), column, count)
    }

    #[test]
    fn columns_are_picked() {
        let text = "1,2,3.5\r\n4, 5,\"6\"\r\n\r\n";
        let all = table(text, None, None).unwrap();
        assert_eq!((all.values, all.rows, all.shape), (vec![1.0, 2.0, 3.5, 4.0, 5.0, 6.0], 2, vec![3]));
        assert_eq!(all.fraction_at.as_deref(), Some("line 1, column 2"));
        let one = table(text, Some(1), None).unwrap();
        assert_eq!((one.values, one.shape, one.fraction_at), (vec![2.0, 5.0], vec![], None));
        let two = table(text, Some(1), Some(2)).unwrap();
        assert_eq!((two.values, two.shape), (vec![2.0, 3.5, 5.0, 6.0], vec![2]));
        let first = table(text, None, Some(1)).unwrap();
        assert_eq!((first.values, first.shape), (vec![1.0, 4.0], vec![1]));
    }

    #[test]
    fn a_heading_is_skipped() {
        for text in ["a,b\n1,2\n", ",b\n1,2", "\u{feff}a,b\n1,2"] {
            let t = table(text, None, None).unwrap();
            assert_eq!((t.values, t.rows, t.fraction_at), (vec![1.0, 2.0], 1, None), "{text}");
        }
        assert_eq!(table("a,1\nb,2", Some(1), None).unwrap().values, [1.0, 2.0]);
    }

    #[test]
    fn a_first_record_with_a_number_is_data() {
        for (text, column) in [
            ("1,,3\n4,5,6", 1),
            ("nan,5,6\n4,5,6", 0),
            ("1,1e400,2\n4,5,6", 1),
            ("0x10,2,3\n4,5,6", 0),
            (",,\n1,2,3", 0),
        ] {
            let e = table(text, None, None).unwrap_err();
            assert_eq!(e.code, "E0802", "{text}");
            assert!(e.message.contains(&format!("(column {column}) in line 1")), "{e}");
            assert!(e.help.unwrap().contains("heading"), "{text}");
        }
        // also where the number is in a column that nobody asks for
        assert!(table("-,1\n2,3", Some(0), None).is_err());
    }

    #[test]
    fn garbage_names_its_line() {
        let e = table("1,2\n3,x\n", None, None).unwrap_err();
        assert_eq!((e.code, e.place.as_deref()), ("E0802", Some("t.csv:2")));
        assert!(e.message.contains("\"x\" where a number is needed (column 1) in line 2"), "{e}");
        assert!(table("1,2\n3\n", None, None).unwrap_err().message.contains("1 instead of 2 fields in line 2"));
        assert!(table("1\n\n2\n", None, None).unwrap_err().message.contains("line 2"));
        assert!(table("1\nnan\n", None, None).unwrap_err().message.contains("line 2"));
        assert_eq!(table("1,2\n", Some(1), Some(2)).unwrap_err().code, "E0803");
        assert_eq!(table("1,2\n", Some(2), None).unwrap_err().code, "E0803");
        let e = parse(Path::new("t.csv"), b"1\n\xff\n".to_vec(), None, None).unwrap_err();
        assert!(e.code == "E0802" && e.message.contains("in line 2"), "{e}");
        let e = parse(Path::new("t.csv"), b"\xff\xfe1\0\n\0".to_vec(), None, None).unwrap_err();
        assert!(e.message.contains("UTF-16"), "{e}");
        for (text, cure) in [("1;2;3\n", "semicolons"), ("1\t2\t3\n", "tabs")] {
            assert!(table(text, Some(0), Some(3)).unwrap_err().help.unwrap().contains(cure));
        }
        assert!(table("1,2\n3,\"4\n5,6\n", None, None).unwrap_err().message.contains("not closed in line 2"));
    }

    #[test]
    fn quotes_hold_commas_and_line_ends() {
        let text = "id,name,age\n1,\"Ann, \"\"A\"\"\",30\n2,\"two\r\nlines\",\"31\"\n3,it\"s,32\r4,\"\",33";
        let ages = table(text, Some(2), None).unwrap();
        assert_eq!((ages.rows, ages.values), (4, vec![30.0, 31.0, 32.0, 33.0]));
        // lines are counted as an editor counts them
        let e = table(&text.replace("32", "x"), Some(2), None).unwrap_err();
        assert!(e.message.contains("line 5"), "{e}");
        // columns that nobody asks for may hold any bytes
        let latin = parse(Path::new("t.csv"), b"caf\xe9,1\n\xe9,2\n".to_vec(), Some(1), None).unwrap();
        assert_eq!(latin.values, [1.0, 2.0]);
        assert_eq!(table("1,2\r3,4\r", None, None).unwrap().rows, 2);
    }

    #[test]
    fn any_bytes_are_a_table_or_an_error() {
        let mut x = 7u32;
        for _ in 0..3000 {
            let text: Vec<u8> = (0..12)
                .map(|_| {
                    x = x.wrapping_mul(1664525).wrapping_add(1013904223);
                    b"12,,\"\"\n\r\xffx. "[(x >> 24) as usize % 12]
                })
                .collect();
            if let Ok(t) = parse(Path::new("t.csv"), text.clone(), None, None) {
                assert_eq!(t.values.len(), t.rows * t.shape[0], "{text:?}");
            }
        }
    }

    #[test]
    fn an_empty_file_has_no_rows() {
        for text in ["", "\n\n"] {
            let t = table(text, Some(3), Some(4)).unwrap();
            assert_eq!((t.rows, t.values.len()), (0, 0));
        }
    }
}
