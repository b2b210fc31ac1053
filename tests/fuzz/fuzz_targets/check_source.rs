//! Bytes through the whole front end. Run: `cargo fuzz run --fuzz-dir tests/fuzz -s none check_source tests/fuzz/corpus`.
#![no_main]

#[path = "../checks.rs"]
#[allow(dead_code)]
mod checks;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    checks::check_source(bytes);
});
