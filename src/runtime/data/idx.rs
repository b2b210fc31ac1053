//! The header of IDX files (MNIST's format): two zero bytes, a type, the number of axes, and their sizes, big-endian.

use super::array::{Elem, Layout};
use super::file::{DataFile, malformed};
use crate::runtime::error::Result;

pub fn layout(file: &DataFile) -> Result<Layout> {
    let bad = |detail: String| malformed(file.path(), detail).help("see that the file is complete and of IDX format");
    if file.len() < 4 {
        return Err(bad("is too short for an IDX file".into()));
    }
    let start = file.slice(0, 4)?;
    let &[zero1, zero2, code, axes] = start else { return Err(bad("is too short for an IDX file".into())) };
    if [zero1, zero2] != [0, 0] {
        return Err(bad("is no IDX file: it does not begin with two zero bytes".into()));
    }
    let elem = match code {
        0x08 => Elem::U8,
        0x09 => Elem::I8,
        0x0b => Elem::I16,
        0x0c => Elem::I32,
        0x0d => Elem::F32,
        0x0e => Elem::F64,
        _ => return Err(bad(format!("has the unknown IDX element type 0x{code:02x}"))),
    };
    let offset = 4 + 4 * u64::from(axes);
    if file.len() < offset {
        return Err(bad("is truncated within its header".into()));
    }
    let sizes = file.slice(4, 4 * usize::from(axes))?;
    let shape =
        sizes.chunks_exact(4).map(|b| u32::from_be_bytes([b[0], b[1], b[2], b[3]]) as usize).collect::<Vec<usize>>();
    let layout = Layout { elem, big_endian: true, offset, shape, fortran: false };
    if layout.size().and_then(|n| n.checked_add(offset)).is_some_and(|end| end < file.len()) {
        return Err(bad(format!("has more bytes than an array {:?} needs", layout.shape)));
    }
    Ok(layout)
}

#[cfg(test)]
mod tests {
    use super::super::array::Array;
    use super::super::spec::{Source, SourceKind};
    use super::*;

    fn open(content: &[u8]) -> Result<Array> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x-idx");
        std::fs::write(&path, content).unwrap();
        Array::open(&Source::new(path, SourceKind::Idx))
    }

    #[test]
    fn images_and_big_endian_numbers() {
        let images = [0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 2, 10, 20, 30, 255];
        let array = open(&images).unwrap();
        assert_eq!((array.len(), array.sample_shape()), (2, &[1, 2][..]));
        let mut out = [0.0; 2];
        array.read(1, &mut out).unwrap();
        assert_eq!(out, [30.0, 255.0]);

        let mut floats = vec![0, 0, 0x0d, 1, 0, 0, 0, 1];
        floats.extend(1.5f32.to_be_bytes());
        let mut out = [0.0];
        open(&floats).unwrap().read(0, &mut out).unwrap();
        assert_eq!(out, [1.5]);
    }

    #[test]
    fn every_cut_and_foreign_bytes_are_errors() {
        let good = [0, 0, 8, 2, 0, 0, 0, 2, 0, 0, 0, 2, 1, 2, 3, 4];
        for cut in 0..good.len() {
            assert_eq!(open(&good[..cut]).unwrap_err().code, "E0802", "cut at {cut}");
        }
        for at in 0..good.len() {
            for with in [1, 2, 0x0e, 0x80, 0xff] {
                let mut bad = good;
                bad[at] = with;
                let _ = open(&bad);
            }
        }
        assert!(open(b"\x1f\x8b\x08\x00").unwrap_err().message.contains("no IDX file"));
        let long = [&good[..], &[9]].concat();
        assert!(open(&long).unwrap_err().message.contains("more bytes"));
    }
}
