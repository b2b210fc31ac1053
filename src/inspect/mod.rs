//! What is shown of a program that is spread over ranks, as values, text, JSON and HTML.
//!
//! In: a [`Sharded`](crate::shard::Sharded) and the texts of the program. Out: plain values that print themselves; nothing is
//! printed here. Invariant: the same program gives the same text. Reading order: `comm.rs` (the collectives of a step), `table.rs` (as
//! text), `html.rs` (as a page), `why.rs` (one collective explained), `unasked.rs` (gathers that nobody asked for),
//! `layouts.rs` (every value with its layout).

pub mod comm;
mod html;
pub mod layouts;
pub mod table;
pub mod unasked;
pub mod why;

pub use comm::Comm;

/// 837888 as `837,888`.
fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::with_capacity(digits.len() * 4 / 3);
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(c);
    }
    out
}
