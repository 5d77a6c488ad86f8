//! The one door between YAML text and values.
//!
//! Flux, Helm and kubectl read YAML with Go's `sigs.k8s.io/yaml`; what this crate reads is what they read: the
//! YAML 1.1 booleans (`yes`, `on`, `y`), octal numbers (`0755` is 493), underscores in numbers, merge keys, keys
//! that are not strings. It differs from Go on purpose in two places, both towards refusing: a mapping with the
//! same key twice is an error (Go takes the last one), and so is input beyond [`Limits`].
//!
//! - [`parse_documents`] and [`parse_bytes`] read documents, with the position of every key and element;
//! - [`normalize`], [`canonical_json`], [`canonical_eq`] and [`digest`] compare values as an API server stores them;
//! - [`to_yaml`] prints values so that Go reads them back unchanged.

mod canonical;
mod parse;
mod print;
mod scalar;

pub use canonical::{canonical_eq, canonical_json, digest, normalize};
pub use parse::{Document, Error, ErrorKind, Limits, Position, Positions, parse_bytes, parse_documents};
pub use print::{PrintError, to_yaml};

/// One token of an RFC 6901 pointer, escaped.
///
/// ```
/// assert_eq!(cozy_yaml::escape_token("a/b~c"), "a~1b~0c");
/// ```
#[must_use]
pub fn escape_token(token: &str) -> String {
    token.replace('~', "~0").replace('/', "~1")
}

/// One escaped token of an RFC 6901 pointer, as it was before [`escape_token`].
#[must_use]
pub fn unescape_token(token: &str) -> String {
    token.replace("~1", "/").replace("~0", "~")
}
