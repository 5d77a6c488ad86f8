//! `cargo +nightly fuzz run merge seeds` in crates/core: whatever the values, see `checks.rs`.
#![no_main]

#[path = "../checks.rs"]
mod checks;

libfuzzer_sys::fuzz_target!(|data: &[u8]| checks::merge(data));
