//! `cargo +nightly fuzz run read seeds` in crates/yaml: whatever the text, see `checks.rs`.
#![no_main]

#[path = "../checks.rs"]
mod checks;

libfuzzer_sys::fuzz_target!(|data: &[u8]| checks::read(data));
