//! The one door between YAML text and values.
//!
//! Flux, Helm and kubectl read YAML with Go's `sigs.k8s.io/yaml`; what this crate reads is what they read: the
//! YAML 1.1 booleans (`yes`, `on`, `y`), octal numbers (`0755` is 493), underscores in numbers, merge keys, keys
//! that are not strings. It differs from Go on purpose, always towards refusing: a mapping with the same key twice
//! is an error (Go takes the last one), so is a document that kubectl skips without a word, a second document
//! where Helm reads only the first, and input beyond [`Limits`]. Towards accepting there is one difference: JSON
//! may stand below comments.
//!
//! - [`parse_documents`] and [`parse_bytes`] read files of manifests, with the position of every key and element;
//!   [`parse_one`] and [`parse_chart_values`] read texts of one document;
//! - [`normalize`], [`canonical_json`], [`canonical_eq`] and [`digest`] compare values as an API server stores them;
//! - [`to_yaml`], [`to_json`] and [`to_json_pretty`] print values so that Go reads them back unchanged.
//!
//! ```
//! let documents = cozy_yaml::parse_documents("a: yes\nb: [0755]\n", &cozy_yaml::Limits::default());
//! let document = documents[0].as_ref().unwrap();
//! assert_eq!(document.value, serde_json::json!({"a": true, "b": [493]}));
//! assert_eq!(document.positions.get("/b/0").unwrap().to_string(), "2:5");
//! ```

mod canonical;
mod error;
mod json;
mod limits;
mod parse;
mod position;
mod print;
mod scalar;
mod split;
mod tabs;

pub use canonical::{canonical_eq, canonical_json, digest, normalize};
pub use error::{Error, ErrorKind};
pub use limits::Limits;
pub use parse::{Document, parse_bytes, parse_chart_values, parse_documents, parse_one};
pub use position::{Position, Positions, escape_token, parse_pointer, push_token, unescape_token};
pub use print::{PrintError, to_json, to_json_pretty, to_yaml};
