//! Partita: a language for neural networks and for how they are spread over machines, and its compiler.
pub mod autodiff;
pub mod check;
pub mod cli;
pub mod codegen;
pub mod diag;
pub mod driver;
pub mod elaborate;
pub mod interp;
pub mod ir;
pub mod kernel;
pub mod memory;
pub mod program;
pub mod resolve;
pub mod runtime;
pub mod source;
pub mod syntax;
pub mod types;
