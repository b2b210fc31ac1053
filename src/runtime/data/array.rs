//! Arrays of samples: the first axis counts samples, the others are a sample's shape.

use half::f16;

use super::file::{DataFile, malformed};
use super::spec::{Source, SourceKind};
use super::{csv, idx, npy};
use crate::runtime::error::{Result, RuntimeError};

/// The type of a stored element.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Elem {
    Bool,
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    U64,
    I64,
    F16,
    F32,
    F64,
}

/// The language's type of an array's elements, before conversion to an input's.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Numbers {
    Bool,
    Int,
    Float,
}

/// How the bytes of an array lie in a file.
#[derive(Debug)]
pub struct Layout {
    pub elem: Elem,
    pub big_endian: bool,
    /// Where the first element stands.
    pub offset: u64,
    /// Axes, the one of samples first.
    pub shape: Vec<usize>,
    /// First axis fastest.
    pub fortran: bool,
}

/// Samples `start..start + len` of an array.
#[derive(Debug)]
pub struct Array {
    file: DataFile,
    layout: Layout,
    pub numbers: Numbers,
    /// For a CSV file: where its first value that is no whole number stands, for messages.
    pub fraction_at: Option<String>,
    start: u64,
    len: u64,
}

impl Elem {
    pub fn bytes(self) -> usize {
        match self {
            Elem::Bool | Elem::U8 | Elem::I8 => 1,
            Elem::U16 | Elem::I16 | Elem::F16 => 2,
            Elem::U32 | Elem::I32 | Elem::F32 => 4,
            Elem::U64 | Elem::I64 | Elem::F64 => 8,
        }
    }

    fn numbers(self) -> Numbers {
        match self {
            Elem::Bool => Numbers::Bool,
            Elem::F16 | Elem::F32 | Elem::F64 => Numbers::Float,
            _ => Numbers::Int,
        }
    }

    /// The value of an element's bytes.
    fn value(self, b: &[u8], big_endian: bool) -> f64 {
        let mut w = [0; 8];
        w[..b.len()].copy_from_slice(b);
        if big_endian {
            w[..b.len()].reverse();
        }
        let [b0, b1, b2, b3, ..] = w;
        match self {
            Elem::Bool => f64::from(u8::from(b0 != 0)),
            Elem::U8 => f64::from(b0),
            Elem::I8 => f64::from(b0 as i8),
            Elem::U16 => f64::from(u16::from_le_bytes([b0, b1])),
            Elem::I16 => f64::from(i16::from_le_bytes([b0, b1])),
            Elem::F16 => f16::from_le_bytes([b0, b1]).to_f64(),
            Elem::U32 => f64::from(u32::from_le_bytes([b0, b1, b2, b3])),
            Elem::I32 => f64::from(i32::from_le_bytes([b0, b1, b2, b3])),
            Elem::F32 => f64::from(f32::from_le_bytes([b0, b1, b2, b3])),
            Elem::U64 => u64::from_le_bytes(w) as f64,
            Elem::I64 => i64::from_le_bytes(w) as f64,
            Elem::F64 => f64::from_le_bytes(w),
        }
    }
}

impl Layout {
    /// Bytes of all elements; none if that overflows.
    pub fn size(&self) -> Option<u64> {
        self.shape.iter().try_fold(self.elem.bytes() as u64, |n, &d| n.checked_mul(d as u64))
    }

    fn sample_len(&self) -> usize {
        self.shape[1..].iter().product()
    }
}

impl Array {
    pub fn open(source: &Source) -> Result<Array> {
        let path = source.path.as_path();
        let file = DataFile::open(path)?;
        let mut fraction_at = None;
        let (mut file, mut layout) = match &source.kind {
            SourceKind::Npy => {
                let layout = npy::layout(&file)?;
                (file, layout)
            }
            SourceKind::Idx => {
                let layout = idx::layout(&file)?;
                (file, layout)
            }
            SourceKind::Csv { column, count } => {
                let table = csv::parse(path, file.into_bytes()?, *column, *count)?;
                fraction_at = table.fraction_at.clone();
                table.into_array(path)
            }
            other => {
                return Err(RuntimeError::new(
                    "E0803",
                    format!("`{}` is a stream: it cannot stand in an expression", other.name()),
                )
                .place(path.display())
                .help(format!("write `data {}(..)` without braces", other.name())));
            }
        };
        if layout.shape.is_empty() {
            return Err(RuntimeError::new(
                "E0803",
                format!("`{}` holds one number, not an array of samples", path.display()),
            )
            .place(path.display())
            .help("store an array whose first axis counts samples"));
        }
        let end = layout.size().and_then(|n| n.checked_add(layout.offset));
        if end.is_none_or(|end| end > file.len()) {
            let needed = end.map_or("more bytes than there can be".to_string(), |e| format!("{e} bytes"));
            return Err(malformed(
                path,
                format!("is truncated: an array {:?} needs {needed}, the file has {}", layout.shape, file.len()),
            )
            .help("write the file again"));
        }
        if layout.fortran {
            (file, layout) = transpose(file, layout)?;
        }
        let numbers = match source.kind {
            SourceKind::Csv { .. } if fraction_at.is_none() => Numbers::Int,
            _ => layout.elem.numbers(),
        };
        let (start, len) = super::loader::part(source, layout.shape[0] as u64)?;
        Ok(Array { file, layout, numbers, fraction_at, start, len })
    }

    /// Samples in the part.
    pub fn len(&self) -> u64 {
        self.len
    }

    pub fn path(&self) -> &std::path::Path {
        self.file.path()
    }

    /// Axes of one sample.
    pub fn sample_shape(&self) -> &[usize] {
        &self.layout.shape[1..]
    }

    /// Reads a sample of the part in C order.
    pub fn read(&self, sample: u64, out: &mut [f64]) -> Result<()> {
        let Layout { elem, big_endian, offset, .. } = self.layout;
        let len = self.layout.sample_len() * elem.bytes();
        let raw = self.file.slice(offset + (self.start + sample) * len as u64, len)?;
        for (value, bytes) in out.iter_mut().zip(raw.chunks_exact(elem.bytes())) {
            *value = elem.value(bytes, big_endian);
        }
        Ok(())
    }

    /// The sample's number in the whole file, for messages.
    pub fn file_index(&self, sample: u64) -> u64 {
        self.start + sample
    }
}

/// Fortran order to C order, in memory: samples would otherwise be scattered over the whole file.
fn transpose(file: DataFile, layout: Layout) -> Result<(DataFile, Layout)> {
    let path = file.path().to_path_buf();
    let bytes = file.into_bytes()?;
    let size = layout.elem.bytes();
    let data = &bytes[layout.offset as usize..];
    let count: usize = layout.shape.iter().product();
    let mut out = Vec::with_capacity(count * size);
    // `index` counts in C order while `at` follows it in Fortran order
    let mut index = vec![0; layout.shape.len()];
    let mut strides = vec![1; layout.shape.len()];
    for i in 1..layout.shape.len() {
        strides[i] = strides[i - 1] * layout.shape[i - 1];
    }
    let mut at = 0;
    for _ in 0..count {
        out.extend_from_slice(&data[at * size..(at + 1) * size]);
        for axis in (0..index.len()).rev() {
            index[axis] += 1;
            at += strides[axis];
            if index[axis] < layout.shape[axis] {
                break;
            }
            at -= strides[axis] * layout.shape[axis];
            index[axis] = 0;
        }
    }
    Ok((DataFile::memory(&path, out), Layout { offset: 0, fortran: false, ..layout }))
}
