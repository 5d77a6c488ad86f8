//! JSON documents, read as Go's JSON reader does: escapes and characters that YAML does not know, numbers that
//! must be numbers.

use std::sync::Arc;

use serde_json::Value;

use crate::parse::{Built, Composer, Reading};
use crate::position::{Children, Node};
use crate::split::Chunk;
use crate::{Error, ErrorKind, Limits, Position};

/// Reads one document whose syntax `serde_json` has accepted.
pub(crate) fn read(
    chunk: &Chunk<'_>,
    limits: &Limits,
    reading: Reading,
) -> Result<Option<(Value, Arc<Node>)>, Error> {
    let mut composer = Composer::new(chunk, limits, reading);
    let (mut line, mut column) = (chunk.lines_before + 1, chunk.columns_before + 1);
    let mut rest = chunk.text;
    while let Some(first) = rest.chars().next() {
        let position = Position { line, column };
        let token = match first {
            '{' => {
                composer.open_map(0, position)?;
                1
            }
            '[' => {
                composer.open_list(0, position)?;
                1
            }
            '}' | ']' => {
                composer.close()?;
                1
            }
            '"' => {
                let token = string_length(rest);
                let text = unquote(rest.get(..token).unwrap_or_default())
                    .ok_or_else(|| ErrorKind::Syntax("not a JSON string".to_owned()).at(position))?;
                composer.scalar_node(built(Value::String(text), position), position)?;
                token
            }
            '-' | '0'..='9' | 't' | 'f' | 'n' => {
                let token = rest.find([',', ']', '}', ' ', '\t', '\n', '\r']).unwrap_or(rest.len());
                let text = rest.get(..token).unwrap_or_default();
                let value = serde_json::from_str::<Value>(text)
                    .map_err(|_| ErrorKind::Number(text.to_owned()).at(position))?;
                composer.scalar_node(built(as_go_prints(value, reading), position), position)?;
                token
            }
            // White space, commas and colons: the syntax is known to be right.
            other => other.len_utf8(),
        };
        let (read, after) = rest.split_at_checked(token).unwrap_or((rest, ""));
        match read.rsplit_once('\n') {
            Some((lines, last)) => {
                line += lines.matches('\n').count() + 1;
                column = last.chars().count() + 1;
            }
            None => column += read.chars().count(),
        }
        rest = after;
    }
    Ok(composer.finished())
}

fn built(value: Value, position: Position) -> Built {
    let key = value.as_str().map(str::to_owned);
    Built {
        value,
        key,
        node: Arc::new(Node { start: position, children: Children::None }),
        depth: 0,
        alias: false,
    }
}

/// `1.0` is `1`, as it is once Go printed what it read; in manifests, integers beyond `i64` are floats.
fn as_go_prints(value: Value, reading: Reading) -> Value {
    match value {
        Value::Number(number) if number.is_f64() => {
            let integer = number.as_f64().and_then(crate::canonical::number_from_f64);
            Value::Number(integer.unwrap_or(number))
        }
        value @ Value::Number(_) if reading == Reading::Manifests => crate::normalize(value),
        other => other,
    }
}

/// Length in bytes of the string that `text` begins with, quotes included.
fn string_length(text: &str) -> usize {
    let mut escaped = false;
    for (offset, byte) in text.bytes().enumerate().skip(1) {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => return offset + 1,
            _ => {}
        }
    }
    text.len()
}

/// The text of a quoted string; half of a surrogate pair is U+FFFD, as in Go.
fn unquote(quoted: &str) -> Option<String> {
    if let Ok(text) = serde_json::from_str(quoted) {
        return Some(text);
    }
    let mut out = String::with_capacity(quoted.len());
    let mut rest = quoted.strip_prefix('"')?.strip_suffix('"')?;
    while let Some((plain, escape)) = rest.split_once('\\') {
        out.push_str(plain);
        // Whole pairs and simple escapes go through serde_json, what it refuses is a lone half.
        let length = if escape.starts_with('u') { 5 } else { escape.chars().next()?.len_utf8() };
        let pair =
            escape.get(..length).zip(escape.get(length..length + 6).filter(|next| next.starts_with("\\u")));
        let text = |escapes: &str| serde_json::from_str::<String>(&format!("\"\\{escapes}\"")).ok();
        let both =
            pair.and_then(|(high, low)| text(&format!("{high}{low}")).filter(|t| t.chars().count() == 1));
        if let Some(both) = both {
            out.push_str(&both);
            rest = escape.get(length + 6..)?;
        } else {
            out.push_str(&text(escape.get(..length)?).unwrap_or_else(|| "\u{fffd}".to_owned()));
            rest = escape.get(length..)?;
        }
    }
    out.push_str(rest);
    Some(out)
}
