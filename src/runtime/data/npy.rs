//! The header of NumPy's `.npy` files, versions 1 to 3 (the format is described in NumPy's `numpy.lib.format`).

use super::array::{Elem, Layout};
use super::file::{DataFile, malformed};
use crate::runtime::error::{Result, RuntimeError};

/// Longest header that is read; NumPy itself distrusts headers over 10,000 bytes.
const HEADER_LIMIT: u64 = 1 << 16;

pub fn layout(file: &DataFile) -> Result<Layout> {
    let bad = |detail: &str| malformed(file.path(), detail).help("write it with numpy.save");
    let mut start = [0; 12];
    if file.len() < 10 {
        return Err(bad("is too short for an npy file"));
    }
    let known = file.len().min(12) as usize;
    start[..known].copy_from_slice(file.slice(0, known)?);
    if &start[..6] != b"\x93NUMPY" {
        return Err(bad("is no npy file: it does not begin as one"));
    }
    let (at, len) = match start[6] {
        1 => (10, u64::from(u16::from_le_bytes([start[8], start[9]]))),
        2 | 3 => (12, u64::from(u32::from_le_bytes([start[8], start[9], start[10], start[11]]))),
        v => return Err(bad(&format!("has npy version {v}, known are 1 to 3"))),
    };
    if len > HEADER_LIMIT || at + len > file.len() {
        return Err(bad("is truncated within its header, or the header is damaged"));
    }
    let header = String::from_utf8_lossy(file.slice(at, len as usize)?);
    let fields = Fields::parse(&header).ok_or_else(|| bad("has a damaged npy header"))?;
    let (elem, big_endian) = elem(&fields.descr).ok_or_else(|| {
        RuntimeError::new(
            "E0802",
            format!("data file `{}` has elements of type {}, which is not read", file.path().display(), fields.descr),
        )
        .place(file.path().display())
        .help("convert it: bool, integers of 8 to 64 bits and floats of 16 to 64 bits are read")
    })?;
    Ok(Layout { elem, big_endian, offset: at + len, shape: fields.shape, fortran: fields.fortran })
}

fn elem(descr: &str) -> Option<(Elem, bool)> {
    let quoted = descr.strip_prefix(['\'', '"'])?.strip_suffix(['\'', '"'])?;
    let (big, name) = match quoted.split_at_checked(1)? {
        (">", rest) => (true, rest),
        ("<" | "|" | "=", rest) => (false, rest),
        _ => (false, quoted),
    };
    let elem = match name {
        "b1" | "?" => Elem::Bool,
        "u1" => Elem::U8,
        "i1" => Elem::I8,
        "u2" => Elem::U16,
        "i2" => Elem::I16,
        "u4" => Elem::U32,
        "i4" => Elem::I32,
        "u8" => Elem::U64,
        "i8" => Elem::I64,
        "f2" => Elem::F16,
        "f4" => Elem::F32,
        "f8" => Elem::F64,
        _ => return None,
    };
    Some((elem, big))
}

/// The header's dictionary, a Python literal with exactly three keys.
struct Fields {
    /// As written, with its quotes.
    descr: String,
    fortran: bool,
    shape: Vec<usize>,
}

impl Fields {
    fn parse(header: &str) -> Option<Fields> {
        let mut rest = header.trim().strip_prefix('{')?.strip_suffix('}')?.trim();
        let (mut descr, mut fortran, mut shape) = (None, None, None);
        while !rest.is_empty() {
            let (key, after) = string(rest)?;
            let value = after.trim_start().strip_prefix(':')?.trim_start();
            let end = value_end(value)?;
            let (text, after) = (value[..end].trim_end(), &value[end..]);
            match key.trim_matches(['\'', '"']) {
                "descr" => descr = Some(text.to_string()),
                "fortran_order" => fortran = Some(text == "True"),
                "shape" => shape = Some(tuple(text)?),
                _ => return None,
            }
            rest = after.strip_prefix(',').unwrap_or(after).trim_start();
        }
        Some(Fields { descr: descr?, fortran: fortran?, shape: shape? })
    }
}

/// A quoted string, with its quotes, and what follows.
fn string(text: &str) -> Option<(&str, &str)> {
    let quote = text.chars().next().filter(|c| matches!(c, '\'' | '"'))?;
    let end = text[1..].find(quote)? + 2;
    Some(text.split_at(end))
}

/// Where a value ends: at the comma outside strings and brackets.
fn value_end(text: &str) -> Option<usize> {
    let mut depth = 0usize;
    let mut quote = None;
    for (i, c) in text.char_indices() {
        match (quote, c) {
            (Some(q), _) => quote = (c != q).then_some(q),
            (None, '\'' | '"') => quote = Some(c),
            (None, '(' | '[') => depth += 1,
            (None, ')' | ']') => depth = depth.checked_sub(1)?,
            (None, ',') if depth == 0 => return Some(i),
            _ => {}
        }
    }
    (quote.is_none() && depth == 0).then_some(text.len())
}

fn tuple(text: &str) -> Option<Vec<usize>> {
    let inner = text.strip_prefix('(')?.strip_suffix(')')?.trim();
    let inner = inner.strip_suffix(',').unwrap_or(inner);
    if inner.is_empty() {
        return Some(vec![]);
    }
    inner.split(',').map(|n| n.trim().trim_end_matches('L').parse().ok()).collect()
}

/// A file of version 1, for tests.
#[cfg(test)]
pub fn write(descr: &str, fortran: bool, shape: &[usize], data: &[u8]) -> Vec<u8> {
    let dims: Vec<String> = shape.iter().map(|n| format!("{n},")).collect();
    let order = if fortran { "True" } else { "False" };
    let mut header = format!("{{'descr': '{descr}', 'fortran_order': {order}, 'shape': ({}), }}", dims.join(" "));
    while (header.len() + 11) % 64 != 0 {
        header.push(' ');
    }
    header.push('\n');
    let mut out = b"\x93NUMPY\x01\x00".to_vec();
    out.extend((header.len() as u16).to_le_bytes());
    out.extend(header.as_bytes());
    out.extend(data);
    out
}

#[cfg(test)]
mod tests {
    use super::super::array::{Array, Numbers};
    use super::super::spec::{Source, SourceKind};
    use super::*;

    fn open(content: &[u8]) -> Result<Array> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.npy");
        std::fs::write(&path, content).unwrap();
        Array::open(&Source::new(path, SourceKind::Npy))
    }

    fn values(array: &Array) -> Vec<f64> {
        let n = array.sample_shape().iter().product();
        let mut out = vec![];
        for i in 0..array.len() {
            let mut sample = vec![0.0; n];
            array.read(i, &mut sample).unwrap();
            out.extend(sample);
        }
        out
    }

    #[test]
    fn every_type_is_read() {
        let cases: &[(&str, &[u8], f64, Numbers)] = &[
            ("|b1", &[1], 1.0, Numbers::Bool),
            ("|u1", &[200], 200.0, Numbers::Int),
            ("|i1", &[200], -56.0, Numbers::Int),
            ("<u2", &[1, 2], 513.0, Numbers::Int),
            ("<i2", &[0xff, 0xff], -1.0, Numbers::Int),
            (">i2", &[1, 2], 258.0, Numbers::Int),
            ("<u4", &[0, 0, 0, 128], 2147483648.0, Numbers::Int),
            ("<i4", &[0, 0, 0, 128], -2147483648.0, Numbers::Int),
            ("<i8", &(-5i64).to_le_bytes(), -5.0, Numbers::Int),
            ("<u8", &(1u64 << 40).to_le_bytes(), 1099511627776.0, Numbers::Int),
            ("<f2", &[0, 0x3e], 1.5, Numbers::Float),
            ("<f4", &1.25f32.to_le_bytes(), 1.25, Numbers::Float),
            (">f8", &(-0.1f64).to_be_bytes(), -0.1, Numbers::Float),
        ];
        for &(descr, bytes, value, numbers) in cases {
            let array = open(&write(descr, false, &[1], bytes)).unwrap();
            assert_eq!((values(&array), array.numbers), (vec![value], numbers), "{descr}");
        }
    }

    #[test]
    fn both_orders_and_all_versions() {
        let c = open(&write("|u1", false, &[2, 3, 2], &(0..12).collect::<Vec<u8>>())).unwrap();
        let expected: Vec<f64> = (0..12).map(f64::from).collect();
        assert_eq!(values(&c), expected);
        // the same array with the first axis fastest
        let mut f = vec![];
        for k in 0..2 {
            for j in 0..3 {
                for i in 0..2u8 {
                    f.push(i * 6 + j * 2 + k);
                }
            }
        }
        assert_eq!(values(&open(&write("|u1", true, &[2, 3, 2], &f)).unwrap()), expected);
        for version in [2u8, 3] {
            let v1 = write("|u1", false, &[2], &[5, 6]);
            let mut v = b"\x93NUMPY".to_vec();
            v.extend([version, 0]);
            v.extend(u32::from(u16::from_le_bytes([v1[8], v1[9]])).to_le_bytes());
            v.extend(&v1[10..]);
            assert_eq!(values(&open(&v).unwrap()), [5.0, 6.0]);
        }
    }

    #[test]
    fn truncated_foreign_and_odd_files_are_errors() {
        let good = write("<f4", false, &[2, 3], &[0; 24]);
        for cut in 0..good.len() {
            assert_eq!(open(&good[..cut]).unwrap_err().code, "E0802", "cut at {cut}");
        }
        let e = open(&write("<c16", false, &[1], &[0; 16])).unwrap_err();
        assert!(e.message.contains("type '<c16'"), "{e}");
        let e = open(&write("<f4", false, &[usize::MAX / 2, 9], &[])).unwrap_err();
        assert!(e.message.contains("truncated"), "{e}");
        assert_eq!(open(&write("<f4", false, &[], &[0; 4])).unwrap_err().code, "E0803");
        assert_eq!(open(&write("<f4", false, &[0, 4], &[])).unwrap_err().code, "E0804");
    }

    #[test]
    fn no_mutation_of_a_header_panics() {
        let good = write("<f4", true, &[2, 3], &[1; 24]);
        for at in 0..good.len() - 24 {
            // two of them at each byte, all of them often
            for k in 0..2 {
                let mut bad = good.clone();
                bad[at] = [0, b'\'', b'(', b')', b',', b'9', b'{', 0xff, b' '][(at * 2 + k) % 9];
                if let Ok(array) = open(&bad) {
                    values(&array);
                }
            }
        }
    }
}
