//! The value of one input as it is given by hand: an array in a file, numbers, or text.

use std::path::Path;

use super::array::{Array, Numbers};
use super::batch::Field;
use super::loader::{fits, misfit};
use super::spec::{Dim, Input, Source, SourceKind};
use crate::runtime::error::{Result, RuntimeError};
use crate::runtime::tokenizer::Codec;
use crate::types::counted;

/// The bytes of an input, row-major over its dims in declared order. `text` is the path of an `.npy` file, one number for
/// every element, as many numbers as there are elements, or words for a sequence of ids, written by `codec`; a sequence
/// that is longer than the words goes on with 0.
pub fn given(input: &Input, text: &str, codec: &dyn Fn() -> Result<Box<dyn Codec>>) -> Result<Vec<u8>> {
    let count: usize = input.dims.iter().map(|d| d.size).product();
    let (values, kind, from) = match (file(text), numbers(text)) {
        (Some(path), _) => {
            let (values, kind) = array(input, path)?;
            (values, kind, format!("`{}`", path.display()))
        }
        (None, Some(values)) => {
            let kind = if values.iter().any(|v| v.fract() != 0.0) { Numbers::Float } else { Numbers::Int };
            let values = match values[..] {
                [one] => vec![one; count],
                _ => values,
            };
            (values, kind, format!("`--input {}`", input.name))
        }
        (None, None) => (ids(input, text, count, codec)?, Numbers::Int, format!("the text of `{}`", input.name)),
    };
    if values.len() != count {
        return Err(RuntimeError::new(
            "E0803",
            format!("{from} has {}, input {} takes {count}", counted(values.len(), "element"), input.describe()),
        )
        .help("give one number for all elements, a number for each, or an array in an `.npy` file"));
    }
    if kind == Numbers::Float && !input.dtype.is_float() {
        return Err(RuntimeError::new("E0803", format!("{from} has floats, input {} takes none", input.describe()))
            .help("give whole numbers"));
    }
    if let Some(i) = values.iter().position(|&v| !fits(v, input)) {
        return Err(RuntimeError::new(
            "E0803",
            format!(
                "value {} for input `{}` {}: element {} of {from}, counted from 1",
                values[i],
                input.name,
                misfit(input),
                i + 1
            ),
        )
        .help("give values in this range"));
    }
    // As one sample of a row.
    let dims = [1, count].map(|size| Dim { name: String::new(), size }).to_vec();
    let mut field = Field::new(&Input { dims, sample: 0, ..input.clone() });
    field.write(0, &values);
    Ok(field.bytes().to_vec())
}

fn file(text: &str) -> Option<&Path> {
    text.ends_with(".npy").then(|| Path::new(text))
}

/// Numbers with commas between them; words that Rust takes for numbers (`nan`) are words here.
fn numbers(text: &str) -> Option<Vec<f64>> {
    let number = |part: &str| {
        let part = part.trim();
        part.starts_with(|c: char| c.is_ascii_digit() || "+-.".contains(c)).then(|| part.parse().ok()).flatten()
    };
    text.split(',').map(number).collect()
}

/// An array of the input's axes, in declared order; those of size 1 may be there or not.
fn array(input: &Input, path: &Path) -> Result<(Vec<f64>, Numbers)> {
    let array = Array::open(&Source::new(path, SourceKind::Npy)).map_err(|e| match e.code {
        "E0801" => e.help("give the path of an `.npy` file"),
        _ => e,
    })?;
    let shape: Vec<usize> = [&[array.len() as usize], array.sample_shape()].concat();
    let long = |sizes: &mut dyn Iterator<Item = usize>| sizes.filter(|n| *n != 1).collect::<Vec<_>>();
    if long(&mut shape.iter().copied()) != long(&mut input.dims.iter().map(|d| d.size)) {
        return Err(RuntimeError::new(
            "E0803",
            format!("`{}` has shape {shape:?}, input {} has another", path.display(), input.describe()),
        )
        .place(path.display())
        .help("the axes of the file are the input's dims in declared order"));
    }
    let mut values = vec![0.0; shape.iter().product()];
    let row = values.len() / shape[0];
    for (i, out) in values.chunks_exact_mut(row).enumerate() {
        array.read(i as u64, out)?;
    }
    Ok((values, array.numbers))
}

fn ids(input: &Input, text: &str, count: usize, codec: &dyn Fn() -> Result<Box<dyn Codec>>) -> Result<Vec<f64>> {
    if input.dtype != crate::types::DType::I32 || input.dims.iter().filter(|d| d.size != 1).count() > 1 {
        return Err(RuntimeError::new(
            "E0902",
            format!("`--input {}={text}` is neither numbers nor the path of an `.npy` file", input.name),
        )
        .note(format!("only one sequence of ids may be given as text; this is {}", input.describe()))
        .help("give numbers, such as `1` or `1,2,3`, or a file"));
    }
    if Path::new(text).is_file() {
        return Err(RuntimeError::new("E0902", format!("`{text}` is a file, but no `.npy` file"))
            .help("write it with numpy.save; if text is meant, put it in quotes of its own"));
    }
    // Quotes make text of what looks like numbers or a path.
    let inner = text.strip_prefix('"').and_then(|t| t.strip_suffix('"')).unwrap_or(text);
    let ids = codec()?.encode(inner)?;
    if ids.len() > count {
        return Err(RuntimeError::new(
            "E0803",
            format!(
                "the text of `{}` has {}, input {} takes {count}",
                input.name,
                counted(ids.len(), "element"),
                input.describe()
            ),
        )
        .help("shorten it"));
    }
    let fill = std::iter::repeat_n(0.0, count - ids.len());
    Ok(ids.iter().map(|id| f64::from(*id)).chain(fill).collect())
}

#[cfg(test)]
mod tests {
    use super::super::npy;
    use super::super::spec::Bound;
    use super::*;
    use crate::runtime::tokenizer::Bytes;
    use crate::types::DType;

    fn input(dtype: DType, sizes: &[usize]) -> Input {
        let dims = sizes.iter().enumerate().map(|(i, size)| Dim { name: format!("d{i}"), size: *size }).collect();
        Input { name: "x".into(), dtype, dims, sample: 0, bound: None }
    }

    fn bytes(input: &Input, text: &str) -> Result<Vec<u8>> {
        given(input, text, &|| Ok(Box::new(Bytes)))
    }

    fn ints(input: &Input, text: &str) -> Vec<i32> {
        let bytes = bytes(input, text).unwrap();
        bytes.chunks_exact(4).map(|b| i32::from_ne_bytes(b.try_into().unwrap())).collect()
    }

    #[test]
    fn numbers_text_and_files() {
        let row = input(DType::I32, &[1, 4]);
        assert_eq!(ints(&row, "7"), [7; 4]);
        assert_eq!(ints(&row, "1,-2, 3,4"), [1, -2, 3, 4]);
        assert_eq!(ints(&row, "abc"), [97, 98, 99, 0]);
        assert_eq!(ints(&row, "\"12\""), [49, 50, 0, 0]);
        assert_eq!(ints(&row, "nan"), [110, 97, 110, 0]);
        assert_eq!(bytes(&input(DType::F32, &[]), "0.5").unwrap(), 0.5f32.to_ne_bytes());
        assert_eq!(bytes(&input(DType::Bool, &[2]), "1,0").unwrap(), [1, 0]);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.npy");
        std::fs::write(&path, npy::write("|u1", false, &[2, 2], &[1, 2, 3, 4])).unwrap();
        assert_eq!(ints(&input(DType::I32, &[2, 1, 2]), path.to_str().unwrap()), [1, 2, 3, 4]);
        let halves = bytes(&input(DType::F16, &[2, 2]), path.to_str().unwrap()).unwrap();
        assert_eq!(halves[2..4], half::f16::from_f32(2.0).to_ne_bytes());
    }

    #[test]
    fn what_does_not_fit_is_an_error() {
        let bound = Some(Bound { dim: "vocab".into(), size: 5, negative: false });
        let row = Input { bound, ..input(DType::I32, &[1, 4]) };
        let code = |input: &Input, text: &str| {
            let e = bytes(input, text).unwrap_err();
            assert!(e.help.is_some(), "{e}");
            (e.code, e.message)
        };
        assert!(code(&row, "1,2,5,3").1.contains("value 5 for input `x` is not in 0 .. dim vocab = 5: element 3 of"));
        assert!(code(&row, "-1").1.contains("value -1"));
        assert!(code(&row, "1,2").1.contains("has 2 elements, input x: int[d0 = 1, d1 = 4] takes 4"));
        assert!(code(&row, "0.5").1.contains("floats"));
        assert!(code(&row, "abcde").1.contains("5 elements"));
        assert_eq!(code(&input(DType::F32, &[4]), "abc").0, "E0902");
        assert_eq!(code(&input(DType::I32, &[2, 2]), "abc").0, "E0902");
        assert_eq!(code(&input(DType::Bool, &[2]), "2").0, "E0803");
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.npy");
        assert_eq!(code(&row, path.to_str().unwrap()).0, "E0801");
        std::fs::write(&path, npy::write("<f4", false, &[4], &[0; 16])).unwrap();
        assert!(code(&row, path.to_str().unwrap()).1.contains("floats"));
        std::fs::write(&path, npy::write("|u1", false, &[2, 2], &[0; 4])).unwrap();
        assert!(code(&row, path.to_str().unwrap()).1.contains("has shape [2, 2]"));
        std::fs::write(&path, npy::write("|u1", false, &[4], &[0; 3])).unwrap();
        assert_eq!(code(&row, path.to_str().unwrap()).0, "E0802");
        let other = dir.path().join("x.txt");
        std::fs::write(&other, "a").unwrap();
        assert!(code(&row, other.to_str().unwrap()).1.contains("is a file"));
    }
}
