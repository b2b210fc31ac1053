//! Text -> syntax tree, and the tree's text back.
//!
//! In: the text of one file. Out: [`ast::File`] with a span on every node, and diagnostics E0101 to E0106 in the sink.
//! Invariants: no input makes this room panic or overflow the stack; a file with errors still gives the items that
//! are sound, so that one bad item hides no others; expressions of the tree are at most [`expr::MAX_HEIGHT`] high.
//!
//! Reading order: `grammar/partita.pest`, `ast`, `parse` (from text to tree), `items`, `lines`, `plans`, `expr` (one
//! function for each rule), `errors` (a failed parse in words), `format` (the formatter), `print` (a dump for people).

pub mod ast;
mod build;
mod errors;
pub mod expr;
pub mod format;
mod guard;
mod habits;
mod items;
mod lines;
mod parse;
mod plans;
pub mod print;
pub mod visit;

pub use parse::parse_file;
