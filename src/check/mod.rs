//! Rules that need no graph: constants and their arithmetic, paths and selectors, plans.
//!
//! In: syntax trees and resolved names. Out: values and diagnostics. `elaborate` calls these while it walks a program,
//! since the language checks a definition at each distinct use, with the dims of that use (a definition of its own
//! would need a second set of rules for open dims).
//! Reading order: `constant.rs`, `select.rs`, `plan.rs`, `replicas.rs`, `style.rs`.

pub mod constant;
pub mod plan;
pub mod replicas;
pub mod select;
pub mod style;
