//! Bytes through the formatter, twice. Run: `cargo fuzz run --fuzz-dir tests/fuzz -s none fmt_idempotent tests/fuzz/corpus`.
#![no_main]

#[path = "../checks.rs"]
#[allow(dead_code)]
mod checks;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    checks::fmt_idempotent(bytes);
});
