//! Named tensors as bytes, and what is known of them without the bytes.

use half::{bf16, f16};
use safetensors::Dtype;
use serde::{Deserialize, Serialize};

use crate::types::DType;

#[cfg(target_endian = "big")]
compile_error!("safetensors files are little-endian, and are read and written here without conversion");

/// A tensor without its values.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TensorInfo {
    /// The parameter's path, such as `block.3.attention.wq`.
    pub name: String,
    pub dtype: DType,
    pub shape: Vec<usize>,
}

/// A tensor with its values, row-major in native byte order.
#[derive(Clone, PartialEq, Debug)]
pub struct Tensor {
    pub info: TensorInfo,
    pub bytes: Vec<u8>,
}

/// The same, borrowed: for export.
#[derive(Clone, Copy, Debug)]
pub struct TensorView<'a> {
    pub info: &'a TensorInfo,
    pub bytes: &'a [u8],
}

impl TensorInfo {
    pub fn new(name: impl Into<String>, dtype: DType, shape: impl Into<Vec<usize>>) -> TensorInfo {
        TensorInfo { name: name.into(), dtype, shape: shape.into() }
    }

    /// Bytes of the values; none if that overflows.
    pub fn size(&self) -> Option<usize> {
        self.shape.iter().try_fold(self.dtype.bytes(), |n, &d| n.checked_mul(d))
    }

    /// `f32[256, 128]`.
    pub fn describe(&self) -> String {
        let shape: Vec<String> = self.shape.iter().map(usize::to_string).collect();
        format!("{}[{}]", self.dtype.name(), shape.join(", "))
    }
}

impl Tensor {
    pub fn view(&self) -> TensorView<'_> {
        TensorView { info: &self.info, bytes: &self.bytes }
    }
}

/// A number that changes when a tensor's name, type or shape, or the order of tensors does (FNV-1a, 64 bits, in hex).
pub fn fingerprint<'a>(tensors: impl IntoIterator<Item = &'a TensorInfo>) -> String {
    let lines: String = tensors.into_iter().map(|info| format!("{} {}\n", info.name, info.describe())).collect();
    text_fingerprint(&lines)
}

/// The same for a text.
pub fn text_fingerprint(text: &str) -> String {
    bytes_fingerprint(text.as_bytes())
}

/// The same for bytes.
pub fn bytes_fingerprint(bytes: &[u8]) -> String {
    let hash = bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3));
    format!("{hash:016x}")
}

/// How a type is called in safetensors files.
pub fn stored_type(dtype: DType) -> Dtype {
    match dtype {
        DType::Bool => Dtype::BOOL,
        DType::I32 => Dtype::I32,
        DType::F16 => Dtype::F16,
        DType::BF16 => Dtype::BF16,
        DType::F32 => Dtype::F32,
        DType::F64 => Dtype::F64,
    }
}

/// Values of a stored type as another type; none for types that have no plain numbers. Between floats it rounds half to
/// even; to int it cuts off and saturates.
pub fn convert(bytes: &[u8], from: Dtype, to: DType) -> Option<Vec<u8>> {
    if from == stored_type(to) {
        return Some(bytes.to_vec());
    }
    let width = from.bitsize() / 8;
    let value: fn(&[u8]) -> f64 = match from {
        Dtype::BOOL | Dtype::U8 => |b| f64::from(b[0]),
        Dtype::I8 => |b| f64::from(b[0] as i8),
        Dtype::U16 => |b| f64::from(u16::from_le_bytes([b[0], b[1]])),
        Dtype::I16 => |b| f64::from(i16::from_le_bytes([b[0], b[1]])),
        Dtype::F16 => |b| f16::from_le_bytes([b[0], b[1]]).to_f64(),
        Dtype::BF16 => |b| bf16::from_le_bytes([b[0], b[1]]).to_f64(),
        Dtype::I32 => |b| f64::from(i32::from_le_bytes([b[0], b[1], b[2], b[3]])),
        Dtype::U32 => |b| f64::from(u32::from_le_bytes([b[0], b[1], b[2], b[3]])),
        Dtype::F32 => |b| f64::from(f32::from_le_bytes([b[0], b[1], b[2], b[3]])),
        Dtype::F64 => |b| f64::from_le_bytes(eight(b)),
        Dtype::I64 => |b| i64::from_le_bytes(eight(b)) as f64,
        Dtype::U64 => |b| u64::from_le_bytes(eight(b)) as f64,
        _ => return None,
    };
    let mut out = Vec::with_capacity(bytes.len() / width * to.bytes());
    for b in bytes.chunks_exact(width) {
        let v = value(b);
        match to {
            DType::Bool => out.push(u8::from(v != 0.0)),
            DType::I32 => out.extend((v as i32).to_le_bytes()),
            DType::F16 => out.extend(f16::from_f64(v).to_le_bytes()),
            DType::BF16 => out.extend(bf16::from_f64(v).to_le_bytes()),
            DType::F32 => out.extend((v as f32).to_le_bytes()),
            DType::F64 => out.extend(v.to_le_bytes()),
        }
    }
    Some(out)
}

fn eight(b: &[u8]) -> [u8; 8] {
    let mut out = [0; 8];
    out.copy_from_slice(&b[..8]);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conversions_keep_values() {
        let f32s: Vec<u8> = [1.5f32, -2.0, 65504.0].iter().flat_map(|v| v.to_le_bytes()).collect();
        for (via, to) in [(DType::F16, Dtype::F16), (DType::F64, Dtype::F64)] {
            let there = convert(&f32s, Dtype::F32, via).unwrap();
            assert_eq!(convert(&there, to, DType::F32).unwrap(), f32s, "{via:?}");
        }
        let ints: Vec<u8> = [-3i64, 1 << 40].iter().flat_map(|v| v.to_le_bytes()).collect();
        let back = convert(&ints, Dtype::I64, DType::I32).unwrap();
        assert_eq!(back, [(-3i32).to_le_bytes(), i32::MAX.to_le_bytes()].concat());
        assert_eq!(
            convert(&[0, 1], Dtype::BOOL, DType::F32).unwrap(),
            [0.0f32.to_le_bytes(), 1f32.to_le_bytes()].concat()
        );
        assert_eq!(convert(&[0x80, 0x3f], Dtype::BF16, DType::F32).unwrap(), 1.0f32.to_le_bytes());
        assert!(convert(&[0], Dtype::F8_E4M3, DType::F32).is_none());
    }

    #[test]
    fn fingerprints_see_names_types_shapes_and_order() {
        let a = TensorInfo::new("a", DType::F32, [2, 3]);
        let b = TensorInfo::new("b", DType::F32, [2, 3]);
        let all = [
            fingerprint([&a, &b]),
            fingerprint([&b, &a]),
            fingerprint([&a]),
            fingerprint([&TensorInfo::new("a", DType::F32, [3, 2])]),
            fingerprint([&TensorInfo::new("a", DType::F64, [2, 3])]),
        ];
        let distinct: std::collections::BTreeSet<_> = all.iter().collect();
        assert_eq!(distinct.len(), all.len());
        assert_eq!(all[0], fingerprint([&a, &b]));
    }
}
