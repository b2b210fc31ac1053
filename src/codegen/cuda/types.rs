//! How types and numbers are written in CUDA C.

use crate::types::DType;

/// An element in memory.
pub fn stored(dtype: DType) -> &'static str {
    match dtype {
        DType::Bool => "u8",
        DType::I32 => "int",
        DType::F16 => "f16",
        DType::BF16 => "bf16",
        DType::F32 => "float",
        DType::F64 => "double",
    }
}

/// A value in a register.
pub fn held(dtype: DType) -> &'static str {
    match dtype {
        DType::Bool => "bool",
        DType::I32 => "int",
        DType::F16 | DType::BF16 | DType::F32 => "float",
        DType::F64 => "double",
    }
}

/// A constant as a value of a type.
pub fn constant(dtype: DType, x: f64) -> String {
    match dtype {
        DType::Bool => (x != 0.0).to_string(),
        DType::I32 if x as i64 as i32 == i32::MIN => "(-2147483647 - 1)".to_string(),
        DType::I32 => (x as i64 as i32).to_string(),
        DType::F16 => float(half::f16::from_f32(x as f32).to_f32()),
        DType::BF16 => float(half::bf16::from_f32(x as f32).to_f32()),
        DType::F32 => float(x as f32),
        DType::F64 if x.is_finite() => format!("{x:?}"),
        DType::F64 => format!("(double){}", float(x as f32)),
    }
}

/// An f32, exactly.
pub fn float(x: f32) -> String {
    match x {
        _ if x.is_nan() => "NOT_A_NUMBER".to_string(),
        f32::INFINITY => "INFINITE".to_string(),
        f32::NEG_INFINITY => "-INFINITE".to_string(),
        _ => format!("{x:?}f"),
    }
}

/// A name that C takes, of any text.
pub fn name(text: &str) -> String {
    let keep = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
    text.chars().map(keep).take(40).collect()
}
