//! Bytes through the parser. Run: `cargo fuzz run --fuzz-dir tests/fuzz -s none parse tests/fuzz/corpus`.
#![no_main]

#[path = "../checks.rs"]
#[allow(dead_code)]
mod checks;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    checks::parse(bytes);
});
