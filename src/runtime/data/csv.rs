//! Comma-separated numbers, one sample a line, with an optional heading.

use std::path::Path;

use super::array::{Elem, Layout};
use super::file::{DataFile, malformed};
use crate::runtime::error::{Result, RuntimeError};

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

/// The picked columns. A first line in which a picked column is no number is a heading; blank lines at the end are
/// skipped.
pub fn parse(path: &Path, bytes: Vec<u8>, column: Option<usize>, count: Option<usize>) -> Result<Table> {
    let text = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&bytes).trim_ascii_end();
    let mut table = Table { values: vec![], rows: 0, shape: vec![], fraction_at: None };
    let mut columns = None;
    for (i, line) in text.split(|&b| b == b'\n').enumerate() {
        if text.is_empty() {
            break;
        }
        let number = i + 1;
        let bad = |detail: String| {
            malformed(path, format!("{detail} in line {number}"))
                .place(format!("{}:{number}", path.display()))
                .help("mend or remove the line; fields are numbers with commas between them")
        };
        let line = std::str::from_utf8(line).map_err(|_| bad("is not UTF-8 text".into()))?;
        let width = line.split(',').count();
        if *columns.get_or_insert(width) != width {
            return Err(bad(format!("has {width} instead of {} fields", columns.unwrap_or(0))));
        }
        let picked = pick(path, width, column, count)?;
        let before = table.values.len();
        for (c, field) in line.split(',').enumerate().filter(|(c, _)| picked.contains(c)) {
            match number_of(field) {
                Some(value) => table.values.push(value),
                None if i == 0 => break,
                None => {
                    let shown: String = field.trim().chars().take(40).collect();
                    return Err(bad(format!("has {shown:?} where a number is needed (column {c})")));
                }
            }
            if table.fraction_at.is_none() && table.values.last().is_some_and(|v| v.fract() != 0.0) {
                table.fraction_at = Some(format!("line {number}, column {c}"));
            }
        }
        if table.values.len() - before == picked.len() {
            table.rows += 1;
        } else {
            // a heading: a number before its first word is none of the data
            table.values.clear();
            table.fraction_at = None;
        }
    }
    let width = pick(path, columns.unwrap_or(usize::MAX), column, count)?.len();
    if column.is_none() || count.is_some() {
        table.shape = vec![if columns.is_some() { width } else { 0 }];
    }
    Ok(table)
}

fn pick(path: &Path, width: usize, column: Option<usize>, count: Option<usize>) -> Result<std::ops::Range<usize>> {
    let first = column.unwrap_or(0);
    let count = count.unwrap_or(if column.is_some() { 1 } else { width });
    match first.checked_add(count) {
        Some(end) if end <= width && count > 0 => Ok(first..end),
        _ => Err(RuntimeError::new(
            "E0803",
            format!("`{}` has {width} columns, asked for are {count} from column {first} on", path.display()),
        )
        .place(path.display())
        .help("columns are counted from 0")),
    }
}

/// Finite numbers only; `nan` and `inf` stand for missing values in most tables.
fn number_of(field: &str) -> Option<f64> {
    let field = field.trim();
    let field = field.strip_prefix('"').and_then(|f| f.strip_suffix('"')).unwrap_or(field);
    field.trim().parse().ok().filter(|v: &f64| v.is_finite())
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
        for text in ["a,b\n1,2\n", "1.5,b\n1,2", "\u{feff}a,b\n1,2"] {
            let t = table(text, None, None).unwrap();
            assert_eq!((t.values, t.rows, t.fraction_at), (vec![1.0, 2.0], 1, None), "{text}");
        }
        assert_eq!(table("a,1\nb,2", Some(1), None).unwrap().values, [1.0, 2.0]);
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
        assert!(e.message.contains("not UTF-8 text in line 2"), "{e}");
    }

    #[test]
    fn an_empty_file_has_no_rows() {
        for text in ["", "\n\n"] {
            let t = table(text, Some(3), Some(4)).unwrap();
            assert_eq!((t.rows, t.values.len()), (0, 0));
        }
    }
}
