//! What a plain scalar means: the rules of go.yaml.in/yaml/v2 (`resolve.go`), which `sigs.k8s.io/yaml` uses.

use serde_json::{Number, Value};

use crate::canonical::number_from_f64;

/// A resolved scalar, before it becomes JSON.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Scalar {
    Null,
    Bool(bool),
    Int(i64),
    Uint(u64),
    Float(f64),
    Text,
}

/// What an untagged plain scalar means. `Text` stands for the text itself.
pub(crate) fn resolve(text: &str) -> Scalar {
    let Some(first) = text.bytes().next() else { return Scalar::Null };
    match first {
        b'y' | b'Y' | b'n' | b'N' | b't' | b'T' | b'f' | b'F' | b'o' | b'O' | b'~' => word(text),
        b'.' => match text {
            ".nan" | ".NaN" | ".NAN" => Scalar::Float(f64::NAN),
            ".inf" | ".Inf" | ".INF" => Scalar::Float(f64::INFINITY),
            _ => float(text),
        },
        b'0'..=b'9' | b'+' | b'-' => match text {
            "+.inf" | "+.Inf" | "+.INF" => Scalar::Float(f64::INFINITY),
            "-.inf" | "-.Inf" | "-.INF" => Scalar::Float(f64::NEG_INFINITY),
            _ => number(text),
        },
        _ => Scalar::Text,
    }
}

fn word(text: &str) -> Scalar {
    match text {
        "y" | "Y" | "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => {
            Scalar::Bool(true)
        }
        "n" | "N" | "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => {
            Scalar::Bool(false)
        }
        "~" | "null" | "Null" | "NULL" => Scalar::Null,
        _ => Scalar::Text,
    }
}

fn number(text: &str) -> Scalar {
    let plain = text.replace('_', "");
    let (negative, unsigned) = match plain.as_bytes().first() {
        Some(b'-') => (true, plain.get(1..).unwrap_or_default()),
        Some(b'+') => (false, plain.get(1..).unwrap_or_default()),
        _ => (false, plain.as_str()),
    };
    let signed = unsigned.len() != plain.len();
    if let Some(magnitude) = integer(unsigned) {
        if negative {
            if let Some(value) = 0i64.checked_sub_unsigned(magnitude) {
                return Scalar::Int(value);
            }
        } else if let Ok(value) = i64::try_from(magnitude) {
            return Scalar::Int(value);
        } else if !signed {
            return Scalar::Uint(magnitude);
        }
    }
    match float(&plain) {
        Scalar::Text => go_binary(&plain),
        other => other,
    }
}

/// `strconv.ParseUint(text, 0, 64)` after underscores are gone.
fn integer(text: &str) -> Option<u64> {
    let (digits, radix) = match text.as_bytes() {
        [b'0', b'x' | b'X', ..] => (text.get(2..)?, 16),
        [b'0', b'b' | b'B', ..] => (text.get(2..)?, 2),
        [b'0', b'o' | b'O', ..] => (text.get(2..)?, 8),
        [b'0', _, ..] => (text.get(1..)?, 8),
        _ => (text, 10),
    };
    // from_str_radix accepts a sign, ParseUint does not here.
    if digits.starts_with(['+', '-']) {
        return None;
    }
    u64::from_str_radix(digits, radix).ok()
}

/// `[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?` that does not overflow.
fn float(text: &str) -> Scalar {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let (mantissa, exponent) = match unsigned.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, Some(exponent.strip_prefix(['+', '-']).unwrap_or(exponent))),
        None => (unsigned, None),
    };
    let digits = |s: &str| !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit());
    let mantissa_fits = match mantissa.split_once('.') {
        Some(("", fraction)) => digits(fraction),
        Some((whole, fraction)) => digits(whole) && (fraction.is_empty() || digits(fraction)),
        None => digits(mantissa),
    };
    if !mantissa_fits || !exponent.is_none_or(digits) {
        return Scalar::Text;
    }
    match text.parse::<f64>() {
        Ok(value) if value.is_finite() => Scalar::Float(value),
        _ => Scalar::Text,
    }
}

/// Go's own fallback for binary numbers, which lets a sign follow `0b`.
fn go_binary(text: &str) -> Scalar {
    let Some(digits) = text.strip_prefix("0b") else { return Scalar::Text };
    i64::from_str_radix(digits, 2).map_or(Scalar::Text, Scalar::Int)
}

impl Scalar {
    /// As JSON; `text` is what was written. `None` for NaN and the infinities.
    pub(crate) fn into_value(self, text: &str) -> Option<Value> {
        Some(match self {
            Self::Null => Value::Null,
            Self::Bool(value) => Value::Bool(value),
            Self::Int(value) => Value::from(value),
            Self::Uint(value) => Value::from(value),
            Self::Float(value) => Value::Number(number_from_f64(value).or_else(|| Number::from_f64(value))?),
            Self::Text => Value::String(text.to_owned()),
        })
    }

    /// As the key of a JSON object, in Go's spelling. `None` where Go refuses.
    pub(crate) fn into_key(self, text: &str) -> Option<String> {
        Some(match self {
            Self::Null | Self::Uint(_) => return None,
            Self::Bool(value) => value.to_string(),
            Self::Int(value) => value.to_string(),
            Self::Float(value) => go_float_key(value),
            Self::Text => text.to_owned(),
        })
    }
}

/// `strconv.FormatFloat(value, 'g', -1, 32)` with YAML's names for what is not finite.
fn go_float_key(value: f64) -> String {
    #[expect(clippy::cast_possible_truncation, reason = "Go formats keys with 32 bits")]
    let value = value as f32;
    if value.is_nan() {
        return ".nan".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { ".inf".to_owned() } else { "-.inf".to_owned() };
    }
    let scientific = format!("{value:e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if !(-4..6).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        format!("{mantissa}e{sign}{:02}", exponent.abs())
    } else {
        format!("{value}")
    }
}
