//! What a scalar means: the resolution rules of Go's `go.yaml.in/yaml/v2`, which `sigs.k8s.io/yaml` uses.

use base64::Engine as _;
use serde_json::{Number, Value};

/// A scalar's meaning, before it is turned into JSON.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Scalar {
    /// `null`, `~` or nothing.
    Null,
    /// A YAML 1.1 boolean.
    Bool(bool),
    /// An integer within `i64`.
    Int(i64),
    /// An integer above `i64::MAX`.
    Uint(u64),
    /// A finite number, or an infinity or NaN, which JSON does not have.
    Float(f64),
    /// Anything else.
    Str(String),
}

/// Why a scalar has no value.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ScalarError {
    /// The text does not fit its explicit tag.
    Tag { tag: &'static str },
    /// Not base64 although tagged `!!binary`.
    Base64,
}

const TRUE: [&str; 11] = ["y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON"];
const FALSE: [&str; 11] = ["n", "N", "no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF"];
const NULL: [&str; 5] = ["", "~", "null", "Null", "NULL"];

/// What plain text means without a tag.
pub(crate) fn resolve_plain(text: &str) -> Scalar {
    if NULL.contains(&text) {
        return Scalar::Null;
    }
    if TRUE.contains(&text) {
        return Scalar::Bool(true);
    }
    if FALSE.contains(&text) {
        return Scalar::Bool(false);
    }
    match text {
        ".nan" | ".NaN" | ".NAN" => return Scalar::Float(f64::NAN),
        ".inf" | ".Inf" | ".INF" | "+.inf" | "+.Inf" | "+.INF" => return Scalar::Float(f64::INFINITY),
        "-.inf" | "-.Inf" | "-.INF" => return Scalar::Float(f64::NEG_INFINITY),
        _ => {}
    }
    match text.as_bytes().first() {
        Some(b'.') => go_float(text).map_or_else(|| Scalar::Str(text.to_owned()), Scalar::Float),
        Some(b'0'..=b'9' | b'+' | b'-') => number(text).unwrap_or_else(|| Scalar::Str(text.to_owned())),
        _ => Scalar::Str(text.to_owned()),
    }
}

/// What text means under an explicit core tag (`str`, `int`, …); `None` as tag for a tag of another kind, which Go
/// leaves a string.
pub(crate) fn resolve_tagged(text: &str, tag: Option<&str>) -> Result<Scalar, ScalarError> {
    let resolved = resolve_plain(text);
    match tag {
        Some("int") => match resolved {
            Scalar::Int(_) | Scalar::Uint(_) => Ok(resolved),
            _ => Err(ScalarError::Tag { tag: "!!int" }),
        },
        Some("float") => match resolved {
            Scalar::Float(_) => Ok(resolved),
            #[allow(clippy::cast_precision_loss)] // what `!!float` asks for
            Scalar::Int(i) => Ok(Scalar::Float(i as f64)),
            _ => Err(ScalarError::Tag { tag: "!!float" }),
        },
        Some("bool") => match resolved {
            Scalar::Bool(_) => Ok(resolved),
            _ => Err(ScalarError::Tag { tag: "!!bool" }),
        },
        Some("null") => match resolved {
            Scalar::Null => Ok(resolved),
            _ => Err(ScalarError::Tag { tag: "!!null" }),
        },
        Some("binary") => base64::engine::general_purpose::STANDARD
            .decode(text.split_ascii_whitespace().collect::<String>())
            .map(|bytes| Scalar::Str(lossy(&bytes)))
            .map_err(|_| ScalarError::Base64),
        _ => Ok(Scalar::Str(text.to_owned())),
    }
}

/// A JSON value; `None` for infinities and NaN.
pub(crate) fn to_value(scalar: Scalar) -> Option<Value> {
    Some(match scalar {
        Scalar::Null => Value::Null,
        Scalar::Bool(b) => Value::Bool(b),
        Scalar::Int(i) => Value::from(i),
        Scalar::Uint(u) => Value::from(u),
        Scalar::Float(f) => {
            Value::Number(crate::canonical::number_from_f64(f).or_else(|| Number::from_f64(f))?)
        }
        Scalar::Str(s) => Value::String(s),
    })
}

/// A JSON object's key; `None` where Go refuses the key (`null`, and anything that is not a scalar).
pub(crate) fn to_key(scalar: Scalar) -> Option<String> {
    match scalar {
        Scalar::Null => None,
        Scalar::Bool(b) => Some(b.to_string()),
        Scalar::Int(i) => Some(i.to_string()),
        // Go's switch over key types has no uint64.
        Scalar::Uint(_) => None,
        Scalar::Float(f) => Some(float_key(f)),
        Scalar::Str(s) => Some(s),
    }
}

/// Text of bytes; each byte that is not UTF-8 becomes U+FFFD, as in Go's JSON encoder.
fn lossy(bytes: &[u8]) -> String {
    let mut out = String::new();
    for chunk in bytes.utf8_chunks() {
        out.push_str(chunk.valid());
        out.extend(std::iter::repeat_n('\u{fffd}', chunk.invalid().len()));
    }
    out
}

fn number(text: &str) -> Option<Scalar> {
    let plain: String = text.chars().filter(|c| *c != '_').collect();
    if let Some(int) = go_int(&plain) {
        return Some(int);
    }
    if is_yaml_float(&plain) { go_float(&plain).map(Scalar::Float) } else { None }
}

/// `strconv.ParseInt(s, 0, 64)`, then `strconv.ParseUint(s, 0, 64)`: base by prefix, a leading `0` is octal.
fn go_int(text: &str) -> Option<Scalar> {
    let (negative, signed, digits) = match text.as_bytes().first()? {
        b'-' => (true, true, text.get(1..)?),
        b'+' => (false, true, text.get(1..)?),
        _ => (false, false, text),
    };
    let lower = digits.get(..2).map(str::to_ascii_lowercase);
    let (radix, digits) = match lower.as_deref() {
        Some("0x") => (16, digits.get(2..)?),
        Some("0o") => (8, digits.get(2..)?),
        Some("0b") => (2, digits.get(2..)?),
        _ if digits.len() > 1 && digits.starts_with('0') => (8, digits.get(1..)?),
        _ => (10, digits),
    };
    // `from_str_radix` would take a second sign.
    if digits.is_empty() || !digits.chars().all(|c| c.is_digit(radix)) {
        return None;
    }
    let magnitude = u64::from_str_radix(digits, radix).ok()?;
    if negative {
        return 0i64.checked_sub_unsigned(magnitude).map(Scalar::Int);
    }
    match i64::try_from(magnitude) {
        Ok(int) => Some(Scalar::Int(int)),
        // `ParseUint` takes no sign.
        Err(_) if !signed => Some(Scalar::Uint(magnitude)),
        Err(_) => None,
    }
}

/// `^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$`
fn is_yaml_float(text: &str) -> bool {
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    let (mantissa, exponent) = match unsigned.find(['e', 'E']) {
        Some(at) => (&unsigned[..at], Some(&unsigned[at + 1..])),
        None => (unsigned, None),
    };
    let digits = |s: &str| !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit());
    let mantissa_fits = match mantissa.split_once('.') {
        Some(("", fraction)) => digits(fraction),
        Some((whole, fraction)) => digits(whole) && (fraction.is_empty() || digits(fraction)),
        None => digits(mantissa),
    };
    mantissa_fits && exponent.is_none_or(|e| digits(e.strip_prefix(['-', '+']).unwrap_or(e)))
}

/// `strconv.ParseFloat(s, 64)` for decimal text; out of range is an error there, hence `None`.
fn go_float(text: &str) -> Option<f64> {
    if !text.bytes().all(|b| b.is_ascii_digit() || matches!(b, b'.' | b'e' | b'E' | b'+' | b'-')) {
        return None;
    }
    text.parse::<f64>().ok().filter(|f| f.is_finite())
}

/// Go prints a float key with `strconv.FormatFloat(f, 'g', -1, 32)`.
fn float_key(f: f64) -> String {
    #[allow(clippy::cast_possible_truncation)] // bit size 32 is Go's
    let f = f as f32;
    if f.is_nan() {
        return ".nan".to_owned();
    }
    if f.is_infinite() {
        return if f > 0.0 { ".inf" } else { "-.inf" }.to_owned();
    }
    let scientific = format!("{f:e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    // Shortest 'g': scientific below 1e-4 and from 1e6 on.
    if (-4..6).contains(&exponent) {
        format!("{f}")
    } else {
        let sign = if exponent < 0 { '-' } else { '+' };
        format!("{mantissa}e{sign}{:02}", exponent.abs())
    }
}
