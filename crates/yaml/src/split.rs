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

/// Cuts a file of manifests as kubectl and Flux do (`k8s.io/apimachinery/pkg/util/yaml`): at lines that begin with
/// `---`. Such a line ends a document everywhere, even inside a block or quoted scalar (YAML 1.2.2, section 9.1.2),
/// so cutting there needs no parser. What they refuse or silently skip is an error in its place.
pub(crate) fn split_stream(text: &str) -> Vec<Result<Chunk<'_>, Error>> {
    let mut cut = Cut { text, chunks: Vec::new(), start: 0, start_line: 0, broken: None };
    // Whether the chunk has something besides comments, and whether `...` ended its document.
    let (mut content, mut ended) = (false, false);
    let mut offset = 0;
    for (line, with_break) in text.split_inclusive('\n').enumerate() {
        let bare = with_break.trim_end();
        let position = Position { line: line + 1, column: 1 };
        if let Some(rest) = bare.strip_prefix("---") {
            cut.end(offset, offset + with_break.len(), line + 1);
            (content, ended) = (false, false);
            let rest = rest.trim_start();
            if !rest.is_empty() && !rest.starts_with('#') {
                cut.refuse(
                    position,
                    format!("kubectl and Flux want nothing but a comment after `---`, not {rest:?}"),
                );
            }
        } else if ended && !is_blank(bare) {
            cut.refuse(
                position,
                "kubectl and Flux do not read on after `...`; begin the document with `---`".to_owned(),
            );
        } else if !content && bare.starts_with('%') {
            cut.refuse(position, "kubectl and Flux do not read directives; remove the line".to_owned());
        } else if bare == "..." || bare.starts_with("... ") {
            ended = true;
        } else {
            content |= !is_blank(bare);
        }
        offset += with_break.len();
    }
    cut.end(text.len(), text.len(), 0);
    cut.chunks
}

/// The whole text as one chunk of YAML, or as JSON documents one after the other.
pub(crate) fn whole(text: &str, lines_before: usize) -> Vec<Chunk<'_>> {
    split_json(text, lines_before)
        .unwrap_or_else(|| vec![Chunk { text, lines_before, columns_before: 0, json: false }])
}

struct Cut<'a> {
    text: &'a str,
    chunks: Vec<Result<Chunk<'a>, Error>>,
    start: usize,
    start_line: usize,
    broken: Option<Error>,
}

impl Cut<'_> {
    /// The first reason counts.
    fn refuse(&mut self, position: Position, message: String) {
        self.broken.get_or_insert(ErrorKind::Syntax(message).at(position));
    }

    /// Ends the chunk at `end`; the next one begins at `next`.
    fn end(&mut self, end: usize, next: usize, next_line: usize) {
        let text = self.text.get(self.start..end).unwrap_or_default();
        match self.broken.take() {
            Some(error) => self.chunks.push(Err(error)),
            None if text.trim().is_empty() => {}
            None => self.chunks.extend(whole(text, self.start_line).into_iter().map(Ok)),
        }
        (self.start, self.start_line) = (next, next_line);
    }
}

fn is_blank(line: &str) -> bool {
    let line = line.trim_start();
    line.is_empty() || line.starts_with('#')
}

/// JSON documents one after the other, which kubectl accepts and YAML does not; comments before the first are
/// skipped. `None` when this is not all of the text, so that it is read as YAML.
fn split_json(text: &str, lines_before: usize) -> Option<Vec<Chunk<'_>>> {
    let comments: usize = text.split_inclusive('\n').take_while(|line| is_blank(line)).map(str::len).sum();
    let (skipped, text) = text.split_at_checked(comments)?;
    if !text.trim_start().starts_with(['{', '[']) {
        return None;
    }
    let mut lines_before = lines_before + skipped.matches('\n').count();
    let mut stream = serde_json::Deserializer::from_str(text).into_iter::<IgnoredAny>();
    let mut chunks = Vec::new();
    let (mut end, mut columns_before) = (0, 0);
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
