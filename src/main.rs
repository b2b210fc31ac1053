//! The `partita` command: see `cli`.
fn main() {}
