//! Vocabulary shared by checking, operations, IRs and kernels: element types and elementwise functions.
//!
//! Invariant: nothing here knows of syntax, graphs or machines.

pub mod cpu;
pub mod map;
pub mod rng;
mod when;
mod words;

pub use map::{MapOp, ReduceKind, ScanKind};
pub use when::When;
pub use words::{counted, grouped};

/// The type of an element. There is no integer type but `I32` (it wraps).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, serde::Serialize, serde::Deserialize)]
pub enum DType {
    Bool,
    I32,
    F16,
    BF16,
    F32,
    F64,
}

impl DType {
    /// Bytes of one element in memory.
    pub fn bytes(self) -> usize {
        match self {
            DType::Bool => 1,
            DType::F16 | DType::BF16 => 2,
            DType::I32 | DType::F32 => 4,
            DType::F64 => 8,
        }
    }

    pub fn is_float(self) -> bool {
        matches!(self, DType::F16 | DType::BF16 | DType::F32 | DType::F64)
    }

    /// As written in the language and in printed IRs.
    pub fn name(self) -> &'static str {
        match self {
            DType::Bool => "bool",
            DType::I32 => "int",
            DType::F16 => "f16",
            DType::BF16 => "bf16",
            DType::F32 => "f32",
            DType::F64 => "f64",
        }
    }

    pub fn parse(name: &str) -> Option<DType> {
        Some(match name {
            "bool" => DType::Bool,
            "int" => DType::I32,
            "f16" => DType::F16,
            "bf16" => DType::BF16,
            "f32" => DType::F32,
            "f64" => DType::F64,
            _ => return None,
        })
    }
}

impl std::fmt::Display for DType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}
