//! Text -> syntax tree.
pub mod ast;
