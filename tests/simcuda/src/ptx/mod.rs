//! PTX as NVRTC writes it: text to tree (`lex`, `parse`), calls inlined and names given addresses (`link`), registers
//! given rows by their lifetimes (`alloc`). `exec::decode` makes operations of the result.

pub mod alloc;
pub mod lex;
pub mod link;
pub mod parse;
pub mod tree;

/// Why a PTX text cannot be run: the line (1-based) and the reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PtxError {
    pub line: u32,
    pub reason: String,
}

impl std::fmt::Display for PtxError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PTX line {}: {}", self.line, self.reason)
    }
}

pub(crate) fn error<T>(line: u32, reason: impl Into<String>) -> Result<T, PtxError> {
    Err(PtxError { line, reason: reason.into() })
}
