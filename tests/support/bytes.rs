//! Arrays of numbers as the bytes of buffers.

use half::{bf16, f16};
use partita::types::DType;

/// A buffer as bytes.
pub fn pack(dtype: DType, values: &[f64]) -> Vec<u8> {
    values
        .iter()
        .flat_map(|&x| match dtype {
            DType::Bool => vec![u8::from(x != 0.0)],
            DType::I32 => (x as i32).to_le_bytes().to_vec(),
            DType::F16 => f16::from_f64(x).to_le_bytes().to_vec(),
            DType::BF16 => bf16::from_f64(x).to_le_bytes().to_vec(),
            DType::F32 => (x as f32).to_le_bytes().to_vec(),
            DType::F64 => x.to_le_bytes().to_vec(),
        })
        .collect()
}

pub fn unpack(dtype: DType, bytes: &[u8]) -> Vec<f64> {
    bytes
        .chunks_exact(dtype.bytes())
        .map(|c| match dtype {
            DType::Bool => f64::from(c[0]),
            DType::I32 => f64::from(i32::from_le_bytes(c.try_into().unwrap())),
            DType::F16 => f16::from_le_bytes(c.try_into().unwrap()).to_f64(),
            DType::BF16 => bf16::from_le_bytes(c.try_into().unwrap()).to_f64(),
            DType::F32 => f64::from(f32::from_le_bytes(c.try_into().unwrap())),
            DType::F64 => f64::from_le_bytes(c.try_into().unwrap()),
        })
        .collect()
}
