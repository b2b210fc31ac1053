//! What is shown of a program that is spread over ranks, as values, text, JSON and HTML.
//!
//! In: a [`Sharded`](crate::shard::Sharded) and the texts of the program. Out: plain values that print themselves; nothing is
//! printed here. Invariant: the same program gives the same text. Reading order: `comm.rs` (the collectives of a step), `names.rs` (what values are called), `sends.rs` (what stages send), `table.rs` (as
//! text), `html.rs` (as a page), `why.rs` (one collective explained), `unasked.rs` (gathers that nobody asked for),
//! `layouts.rs` (every value with its layout), `schedule/` (a pipeline in time), `memory.rs` (memory over time).

pub mod comm;
mod html;
pub mod layouts;
pub mod memory;
pub mod names;
pub mod schedule;
pub mod sends;
pub mod table;
pub mod unasked;
pub mod why;

pub use comm::Comm;
