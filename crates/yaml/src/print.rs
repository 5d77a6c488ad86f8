//! YAML text that Go reads back unchanged.

use serde::ser::{Serialize, SerializeMap as _, SerializeSeq as _, Serializer};
use serde_json::Value;

/// The value could not be printed; values read by this crate always can.
#[derive(Debug, thiserror::Error)]
#[error("cannot print the value as YAML: {0}")]
pub struct PrintError(String);

/// One YAML document, without a `---` line, ending in a newline; keys sorted by their bytes, as Go sorts them.
///
/// Strings that YAML 1.1 would read as something else (`yes`, `0755`, `1_000`, `~`) are quoted; strings of several
/// lines become literal blocks where that loses nothing.
///
/// # Errors
/// When the serializer refuses the value.
pub fn to_yaml(value: &Value) -> Result<String, PrintError> {
    // Long lines stay whole: a folded block of a certificate or a script is unreadable and diffs badly.
    let options = serde_saphyr::ser_options! { folded_wrap_chars: usize::MAX, min_fold_chars: usize::MAX };
    let mut out = serde_saphyr::to_string_with_options(&Sorted(value), options)
        .map_err(|e| PrintError(e.to_string()))?;
    if !out.ends_with('\n') {
        out.push('\n');
    }
    Ok(out)
}

// serde_json keeps insertion order when any crate of the build asks for it; output must not depend on that.
struct Sorted<'a>(&'a Value);

impl Serialize for Sorted<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Value::Array(items) => {
                let mut list = serializer.serialize_seq(Some(items.len()))?;
                for item in items {
                    list.serialize_element(&Sorted(item))?;
                }
                list.end()
            }
            Value::Object(map) => {
                let mut entries: Vec<_> = map.iter().collect();
                entries.sort_unstable_by_key(|(key, _)| *key);
                let mut out = serializer.serialize_map(Some(entries.len()))?;
                for (key, value) in entries {
                    out.serialize_entry(key, &Sorted(value))?;
                }
                out.end()
            }
            scalar => scalar.serialize(serializer),
        }
    }
}
