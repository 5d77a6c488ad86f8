//! Cuts a text into documents before parsing, so that a broken one does not hide the others.

use serde::de::IgnoredAny;

use crate::{Error, ErrorKind, Position};

/// Part of a text that is parsed on its own.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Chunk<'a> {
    pub(crate) text: &'a str,
    /// Lines of the whole text before this one.
    pub(crate) lines_before: usize,
    /// Characters before it on its first line.
    pub(crate) columns_before: usize,
    pub(crate) json: bool,
}

/// A line that begins with `---` and a blank or nothing ends a document everywhere, even inside a block or
/// quoted scalar (YAML 1.2.2, section 9.1.2), so cutting there needs no parser.
pub(crate) fn split(text: &str) -> Vec<Chunk<'_>> {
    if let Some(chunks) = split_json(text) {
        return chunks;
    }
    let mut chunks = Vec::new();
    let mut start = 0;
    let mut start_line = 0;
    // Whether the chunk holds more than what may precede the `---` that begins a document.
    let mut content = false;
    let mut offset = 0;
    for (line, with_break) in text.split_inclusive('\n').enumerate() {
        let bare = with_break.trim_end_matches(['\n', '\r']);
        if is_marker(bare, "---") {
            if content {
                push(&mut chunks, text, start..offset, start_line);
                start = offset;
                start_line = line;
            }
            content = true;
        } else if is_marker(bare, "...") {
            push(&mut chunks, text, start..offset + with_break.len(), start_line);
            start = offset + with_break.len();
            start_line = line + 1;
            content = false;
        } else if !bare.trim_start().is_empty()
            && !bare.trim_start().starts_with('#')
            && !bare.starts_with('%')
        {
            content = true;
        }
        offset += with_break.len();
    }
    push(&mut chunks, text, start..text.len(), start_line);
    chunks
}

fn push<'a>(chunks: &mut Vec<Chunk<'a>>, text: &'a str, range: std::ops::Range<usize>, lines_before: usize) {
    let Some(text) = text.get(range) else { return };
    if !text.trim().is_empty() {
        chunks.push(Chunk { text, lines_before, columns_before: 0, json: false });
    }
}

fn is_marker(line: &str, marker: &str) -> bool {
    line.strip_prefix(marker).is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', '\t']))
}

/// JSON documents one after the other, which kubectl accepts and YAML does not. `None` when this is not all of
/// the text, so that it is read as YAML.
fn split_json(text: &str) -> Option<Vec<Chunk<'_>>> {
    if !text.trim_start().starts_with(['{', '[']) {
        return None;
    }
    let mut stream = serde_json::Deserializer::from_str(text).into_iter::<IgnoredAny>();
    let mut chunks = Vec::new();
    let (mut end, mut lines_before, mut columns_before) = (0, 0, 0);
    while let Some(document) = stream.next() {
        document.ok()?;
        let chunk = text.get(end..stream.byte_offset())?;
        chunks.push(Chunk { text: chunk, lines_before, columns_before, json: true });
        end = stream.byte_offset();
        lines_before += chunk.matches('\n').count();
        columns_before = match chunk.rsplit_once('\n') {
            Some((_, last)) => last.chars().count(),
            None => columns_before + chunk.chars().count(),
        };
    }
    Some(chunks)
}

/// The text of `bytes` without a byte order mark.
pub(crate) fn decode(bytes: &[u8]) -> Result<&str, Error> {
    match std::str::from_utf8(bytes) {
        Ok(text) => Ok(text.strip_prefix('\u{feff}').unwrap_or(text)),
        Err(error) => {
            let offset = error.valid_up_to();
            let before = bytes.get(..offset).unwrap_or_default();
            let last_line = before.rsplit(|b| *b == b'\n').next().unwrap_or_default();
            let hint = match bytes {
                [0xff, 0xfe, ..] | [0xfe, 0xff, ..] => ", it looks like UTF-16",
                [0x1f, 0x8b, ..] => ", it looks like a gzip archive",
                _ => "",
            };
            let position = Position {
                line: before.iter().filter(|b| **b == b'\n').count() + 1,
                column: String::from_utf8_lossy(last_line).chars().count() + 1,
            };
            Err(ErrorKind::Encoding { offset, hint }.at(position))
        }
    }
}
