//! YAML and JSON text that Go reads back unchanged.

use serde::ser::{Serialize, SerializeMap as _, SerializeSeq as _, Serializer};
use serde_json::Value;
use serde_json::ser::{Formatter, PrettyFormatter};
use std::io::{self, Write};

/// The value could not be printed; values read by this crate always can.
#[derive(Debug, thiserror::Error)]
#[error("cannot print the value: {0}")]
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

/// JSON on one line, with numbers in Go's spelling.
///
/// `serde_json` writes the float 2^64 as `1.8446744073709552e19`, Go as `18446744073709552000`: readers that
/// tell integers from floats take these for two values.
///
/// # Errors
/// When the value cannot be JSON: a map with keys that are not strings, an infinity.
pub fn to_json<T: Serialize + ?Sized>(value: &T) -> Result<String, PrintError> {
    write_json(value, GoNumbers(serde_json::ser::CompactFormatter))
}

/// [`to_json`] over several lines, indented by two spaces, with a final line break.
///
/// # Errors
/// As [`to_json`].
pub fn to_json_pretty<T: Serialize + ?Sized>(value: &T) -> Result<String, PrintError> {
    let mut out = write_json(value, GoNumbers(PrettyFormatter::new()))?;
    out.push('\n');
    Ok(out)
}

fn write_json<T: Serialize + ?Sized>(value: &T, formatter: impl Formatter) -> Result<String, PrintError> {
    let mut out = Vec::new();
    let mut serializer = serde_json::Serializer::with_formatter(&mut out, formatter);
    value.serialize(&mut serializer).map_err(|e| PrintError(e.to_string()))?;
    String::from_utf8(out).map_err(|e| PrintError(e.to_string()))
}

/// `encoding/json`: positional from 1e-6 up to, but without, 1e21; else scientific with a sign.
fn go_float(value: f64) -> String {
    let size = value.abs();
    if size == 0.0 || (1e-6..1e21).contains(&size) {
        return format!("{value}");
    }
    let text = format!("{value:e}");
    if size < 1.0 { text } else { text.replace('e', "e+") }
}

/// Another formatter with Go's numbers.
struct GoNumbers<F>(F);

impl<F: Formatter> Formatter for GoNumbers<F> {
    fn write_f64<W: ?Sized + Write>(&mut self, writer: &mut W, value: f64) -> io::Result<()> {
        writer.write_all(go_float(value).as_bytes())
    }

    fn begin_array<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.begin_array(writer)
    }

    fn end_array<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.end_array(writer)
    }

    fn begin_array_value<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        self.0.begin_array_value(writer, first)
    }

    fn end_array_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.end_array_value(writer)
    }

    fn begin_object<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.begin_object(writer)
    }

    fn end_object<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.end_object(writer)
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        self.0.begin_object_key(writer, first)
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.begin_object_value(writer)
    }

    fn end_object_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.end_object_value(writer)
    }
}
