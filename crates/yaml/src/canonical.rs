//! Values as an API server stores them, and what two values have in common.

use std::fmt::Write as _;

use serde_json::{Map, Number, Value};
use sha2::{Digest, Sha256};

/// The value as an API server stores it and gives it back (measured on kube-apiserver 1.36).
///
/// Integers within `i64` stay exact; larger ones become the nearest `f64`; a float without a fraction that fits
/// `i64` becomes an integer (`1.0` is `1`, `-0.0` is `0`). Strings, `null`s and key sets stay as they are.
#[must_use]
pub fn normalize(value: Value) -> Value {
    match value {
        Value::Number(number) => Value::Number(normalize_number(number)),
        Value::Array(items) => Value::Array(items.into_iter().map(normalize).collect()),
        Value::Object(map) => Value::Object(map.into_iter().map(|(k, v)| (k, normalize(v))).collect()),
        other => other,
    }
}

fn normalize_number(number: Number) -> Number {
    if number.is_i64() {
        return number;
    }
    number.as_f64().and_then(|f| number_from_f64(f).or_else(|| Number::from_f64(f))).unwrap_or(number)
}

/// An integer where the float is one within `i64`; `None` otherwise.
///
/// Go writes a float with its shortest digits, filled up with zeros, and reads that text as an integer the next
/// time; beyond 2^53 that is not the integer which the float stands for.
pub(crate) fn number_from_f64(f: f64) -> Option<Number> {
    const EXACT: f64 = 9_007_199_254_740_992.0;
    if f.fract() != 0.0 || !f.is_finite() {
        return None;
    }
    if (-EXACT..=EXACT).contains(&f) {
        #[allow(clippy::cast_possible_truncation)] // the range was checked, the fraction is zero
        return Some(Number::from(f as i64));
    }
    f.to_string().parse::<i64>().ok().map(Number::from)
}

/// JSON with sorted keys, without insignificant whitespace, and numbers as [`normalize`] makes them: equal for
/// equal values, whatever text they were read from.
#[must_use]
pub fn canonical_json(value: &Value) -> String {
    let mut out = String::new();
    write_canonical(value, &mut out);
    out
}

fn write_canonical(value: &Value, out: &mut String) {
    match value {
        Value::Object(map) => {
            out.push('{');
            for (i, key) in sorted_keys(map).into_iter().enumerate() {
                if i > 0 {
                    out.push(',');
                }
                let _ = write!(out, "{}", Value::String(key.clone()));
                out.push(':');
                if let Some(value) = map.get(key) {
                    write_canonical(value, out);
                }
            }
            out.push('}');
        }
        Value::Array(items) => {
            out.push('[');
            for (i, item) in items.iter().enumerate() {
                if i > 0 {
                    out.push(',');
                }
                write_canonical(item, out);
            }
            out.push(']');
        }
        Value::Number(number) => {
            let _ = write!(out, "{}", normalize_number(number.clone()));
        }
        other => {
            let _ = write!(out, "{other}");
        }
    }
}

// Sorted here, because a dependency may switch serde_json's maps to insertion order for the whole build.
fn sorted_keys(map: &Map<String, Value>) -> Vec<&String> {
    let mut keys: Vec<&String> = map.keys().collect();
    keys.sort_unstable();
    keys
}

/// Whether two values are the same to an API server: key order, number notation and `-0` do not matter; `null`
/// and absent differ.
#[must_use]
pub fn canonical_eq(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(k, v)| b.get(k).is_some_and(|w| canonical_eq(v, w)))
        }
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(v, w)| canonical_eq(v, w))
        }
        (Value::Number(a), Value::Number(b)) => {
            a == b || normalize_number(a.clone()) == normalize_number(b.clone())
        }
        (a, b) => a == b,
    }
}

/// `sha256:<hex>` of the [`canonical_json`].
#[must_use]
pub fn digest(value: &Value) -> String {
    let hash = Sha256::digest(canonical_json(value).as_bytes());
    let mut out = String::with_capacity(7 + 64);
    out.push_str("sha256:");
    for byte in hash {
        let _ = write!(out, "{byte:02x}");
    }
    out
}
