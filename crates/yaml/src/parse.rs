//! Text to documents, with positions.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use granit_parser::{Event, Options, Parser, ScalarStyle, Span, Tag};
use serde_json::{Map, Value};

use crate::scalar::{self, Scalar, ScalarError};
use crate::unescape_token;

/// A place in a text; both count from 1, columns in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.line, self.column)
    }
}

/// One document of a text.
#[derive(Clone, Debug)]
pub struct Document {
    /// What it says. Numbers are as written; see [`crate::normalize`].
    pub value: Value,
    /// Where it says it.
    pub positions: Positions,
    /// Number of the document in its text, from 0; documents without content are not counted.
    pub index: usize,
    /// Where its content begins.
    pub start: Position,
}

/// Where the keys and elements of a document stand.
#[derive(Clone, Debug)]
pub struct Positions {
    root: Arc<Node>,
}

#[derive(Debug)]
struct Node {
    position: Position,
    children: Children,
}

#[derive(Debug)]
enum Children {
    None,
    Map(Vec<(String, Arc<Node>)>),
    Seq(Vec<Arc<Node>>),
}

impl Positions {
    /// Position of the key or element that the RFC 6901 pointer names, or `None` when the document has none.
    #[must_use]
    pub fn get(&self, pointer: &str) -> Option<Position> {
        let (node, whole) = self.walk(pointer);
        whole.then_some(node.position)
    }

    /// Position of the deepest key or element on the pointer's way that exists; the document's start when none does.
    #[must_use]
    pub fn nearest(&self, pointer: &str) -> Position {
        self.walk(pointer).0.position
    }

    fn walk(&self, pointer: &str) -> (&Node, bool) {
        let mut node = self.root.as_ref();
        for token in pointer.split('/').skip(1) {
            let token = unescape_token(token);
            let child = match &node.children {
                Children::None => None,
                Children::Map(entries) => entries.iter().find(|(key, _)| *key == token).map(|(_, node)| node),
                Children::Seq(items) => token.parse::<usize>().ok().and_then(|i| items.get(i)),
            };
            match child {
                Some(child) => node = child,
                None => return (node, false),
            }
        }
        (node, true)
    }
}

/// What input may cost at most.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Size of one text in bytes.
    pub bytes: usize,
    /// Nesting of maps and lists.
    pub depth: usize,
    /// Values in one document, each use of an alias counted anew: what a "billion laughs" document multiplies.
    pub nodes: usize,
}

impl Default for Limits {
    /// 32 MiB, 128 levels, two million values: far above any real manifest, far below what hurts.
    fn default() -> Self {
        Self { bytes: 32 * 1024 * 1024, depth: 128, nodes: 2_000_000 }
    }
}

/// Why a document could not be read.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("line {position}: {kind}")]
pub struct Error {
    /// Where, in the whole text.
    pub position: Position,
    /// What is wrong.
    pub kind: ErrorKind,
}

/// What is wrong with a document.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Not YAML.
    #[error("not valid YAML: {0}")]
    Syntax(String),
    /// A mapping names a key twice.
    #[error(
        "key {key:?} is already set at line {first}; Kubernetes would silently take the last one, so remove one of them"
    )]
    DuplicateKey {
        /// The key.
        key: String,
        /// Where it was first set.
        first: Position,
    },
    /// A key that JSON cannot have.
    #[error("{0} cannot be a key; quote it if it is meant as text")]
    Key(&'static str),
    /// A number that JSON cannot have.
    #[error("{0:?} is not a number that JSON can hold; quote it if it is meant as text")]
    Number(String),
    /// A scalar that does not fit its tag.
    #[error("{text:?} cannot be read as {tag}")]
    Tag {
        /// The scalar.
        text: String,
        /// Its tag.
        tag: &'static str,
    },
    /// The value of `<<` is neither a mapping nor a list of mappings.
    #[error("the value of the merge key `<<` must be a mapping or a list of mappings")]
    Merge,
    /// An anchor that contains an alias of itself.
    #[error("the anchor contains an alias of itself")]
    RecursiveAlias,
    /// Larger than [`Limits::bytes`].
    #[error(
        "{bytes} bytes are more than the {limit} that a file of manifests may have; is it the right file?"
    )]
    TooLarge {
        /// Size of the text.
        bytes: usize,
        /// What is allowed.
        limit: usize,
    },
    /// Deeper than [`Limits::depth`].
    #[error("nested deeper than {limit} levels")]
    TooDeep {
        /// What is allowed.
        limit: usize,
    },
    /// More values than [`Limits::nodes`], aliases expanded.
    #[error("more than {limit} values once its aliases are expanded; refusing what looks like a YAML bomb")]
    TooMany {
        /// What is allowed.
        limit: usize,
    },
    /// Not UTF-8.
    #[error("byte {offset} is not UTF-8; save the file as UTF-8")]
    Encoding {
        /// Offset of the first wrong byte, from 0.
        offset: usize,
    },
}

/// [`parse_documents`] of bytes: a byte order mark is skipped, anything but UTF-8 refused.
#[must_use]
pub fn parse_bytes(bytes: &[u8], limits: &Limits) -> Vec<Result<Document, Error>> {
    if bytes.len() > limits.bytes {
        return vec![Err(too_large(bytes.len(), limits))];
    }
    match std::str::from_utf8(bytes) {
        Ok(text) => parse_documents(text, limits),
        Err(error) => {
            let offset = error.valid_up_to();
            let before = bytes.get(..offset).unwrap_or_default();
            let line = 1 + before.iter().filter(|b| **b == b'\n').count();
            let line_start = before.iter().rposition(|b| *b == b'\n').map_or(0, |at| at + 1);
            let column =
                1 + String::from_utf8_lossy(before.get(line_start..).unwrap_or_default()).chars().count();
            vec![Err(Error { position: Position { line, column }, kind: ErrorKind::Encoding { offset } })]
        }
    }
}

/// Reads a stream of YAML documents (JSON is YAML) as kubectl does: split at `---` lines, documents without
/// content left out.
///
/// Every document is read on its own, so a broken one does not hide the others.
#[must_use]
pub fn parse_documents(text: &str, limits: &Limits) -> Vec<Result<Document, Error>> {
    if text.len() > limits.bytes {
        return vec![Err(too_large(text.len(), limits))];
    }
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut out = Vec::new();
    let mut index = 0;
    for (first_line, chunk) in split(text) {
        let mut reader = Reader::new(chunk, first_line, limits);
        loop {
            match reader.next_document() {
                Ok(Some((value, root))) => {
                    let start = root.position;
                    out.push(Ok(Document { value, positions: Positions { root }, index, start }));
                    index += 1;
                }
                Ok(None) => break,
                Err(error) => {
                    out.push(Err(error));
                    index += 1;
                    break;
                }
            }
        }
    }
    out
}

fn too_large(bytes: usize, limits: &Limits) -> Error {
    Error {
        position: Position { line: 1, column: 1 },
        kind: ErrorKind::TooLarge { bytes, limit: limits.bytes },
    }
}

/// Chunks that begin at the text's start or at a `---` line, with the number of lines before each.
///
/// Directives (`%YAML`) belong to the document that follows them, so they do not make a chunk of their own.
fn split(text: &str) -> Vec<(usize, &str)> {
    let mut chunks = Vec::new();
    let (mut start, mut start_line, mut only_directives) = (0, 0, true);
    let (mut offset, mut line_number) = (0, 0);
    for line in text.split_inclusive('\n') {
        let is_marker = line
            .strip_prefix("---")
            .is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', '\t', '\r', '\n']));
        if is_marker {
            if !only_directives {
                chunks.push((start_line, &text[start..offset]));
                (start, start_line) = (offset, line_number);
            }
            only_directives = false;
        } else if !line.trim().is_empty() && !line.starts_with(['%', '#']) {
            only_directives = false;
        }
        offset += line.len();
        line_number += 1;
    }
    chunks.push((start_line, &text[start..]));
    chunks
}

struct Reader<'a> {
    parser: Parser<'a, granit_parser::StrInput<'a>>,
    /// Lines before the chunk.
    first_line: usize,
    limits: &'a Limits,
    /// By anchor id; `None` while the anchored node is being read.
    anchors: HashMap<usize, Option<Anchored>>,
    nodes: usize,
}

#[derive(Clone)]
struct Anchored {
    value: Value,
    node: Arc<Node>,
    size: usize,
    /// Meaning of an anchored scalar, for its use as a key.
    scalar: Option<Scalar>,
}

impl<'a> Reader<'a> {
    fn new(chunk: &'a str, first_line: usize, limits: &'a Limits) -> Self {
        let mut options = Options::default();
        options.set_emit_comments(false);
        // Go's reader has neither limit; ours is `limits.depth`.
        options.flow_nesting_limit = limits.depth;
        options.block_nesting_limit = limits.depth;
        options.block_scalar_eof_without_line_feed = true;
        Self {
            parser: Parser::new_from_str_with_options(chunk, options),
            first_line,
            limits,
            anchors: HashMap::new(),
            nodes: 0,
        }
    }

    fn next_document(&mut self) -> Result<Option<(Value, Arc<Node>)>, Error> {
        loop {
            let Some((event, _)) = self.next()? else { return Ok(None) };
            match event {
                Event::StreamEnd => return Ok(None),
                Event::DocumentStart(..) => {
                    self.anchors.clear();
                    self.nodes = 0;
                    let Some((event, span)) = self.next()? else { return Ok(None) };
                    let nothing = span.start.index() == span.end.index();
                    if matches!(&event, Event::Scalar(_, ScalarStyle::Plain, 0, None)) && nothing {
                        continue;
                    }
                    let read = self.node(event, span, 0)?;
                    return Ok(Some((read.value, read.node)));
                }
                _ => {}
            }
        }
    }

    fn next(&mut self) -> Result<Option<(Event<'a>, Span)>, Error> {
        self.parser.next_event().transpose().map_err(|error| {
            let position = self.position(error.marker().line(), error.marker().col());
            Error { position, kind: ErrorKind::Syntax(error.info()) }
        })
    }

    fn position(&self, line: usize, column: usize) -> Position {
        Position { line: self.first_line + line.max(1), column: column + 1 }
    }

    fn start(&self, span: Span) -> Position {
        self.position(span.start.line(), span.start.col())
    }

    fn count(&mut self, nodes: usize, position: Position) -> Result<(), Error> {
        self.nodes = self.nodes.saturating_add(nodes);
        if self.nodes > self.limits.nodes {
            return Err(Error { position, kind: ErrorKind::TooMany { limit: self.limits.nodes } });
        }
        Ok(())
    }

    fn unexpected_end(&self, position: Position) -> Error {
        Error { position, kind: ErrorKind::Syntax("unexpected end of the document".to_owned()) }
    }

    fn node(&mut self, event: Event<'a>, span: Span, depth: usize) -> Result<Anchored, Error> {
        let position = self.start(span);
        if depth > self.limits.depth {
            return Err(Error { position, kind: ErrorKind::TooDeep { limit: self.limits.depth } });
        }
        self.count(1, position)?;
        match event {
            Event::Scalar(text, style, anchor, tag) => {
                let scalar =
                    meaning(&text, style, tag.as_deref()).map_err(|kind| Error { position, kind })?;
                let value = scalar::to_value(scalar.clone())
                    .ok_or_else(|| Error { position, kind: ErrorKind::Number(text.clone().into_owned()) })?;
                let node = Arc::new(Node { position, children: Children::None });
                let read = Anchored { value, node, size: 1, scalar: Some(scalar) };
                self.anchor(anchor, &read);
                Ok(read)
            }
            Event::Alias(id) => match self.anchors.get(&id) {
                Some(Some(anchored)) => {
                    let anchored = anchored.clone();
                    self.count(anchored.size, position)?;
                    Ok(anchored)
                }
                _ => Err(Error { position, kind: ErrorKind::RecursiveAlias }),
            },
            Event::SequenceStart(_, anchor, _) => {
                if anchor > 0 {
                    self.anchors.insert(anchor, None);
                }
                let (mut items, mut nodes, mut size) = (Vec::new(), Vec::new(), 1);
                loop {
                    let Some((event, span)) = self.next()? else { return Err(self.unexpected_end(position)) };
                    if matches!(event, Event::SequenceEnd) {
                        break;
                    }
                    let at = self.start(span);
                    let item = self.node(event, span, depth + 1)?;
                    size += item.size;
                    items.push(item.value);
                    nodes.push(moved(item.node, at));
                }
                let node = Arc::new(Node { position, children: Children::Seq(nodes) });
                let read = Anchored { value: Value::Array(items), node, size, scalar: None };
                self.anchor(anchor, &read);
                Ok(read)
            }
            Event::MappingStart(_, anchor, _) => {
                if anchor > 0 {
                    self.anchors.insert(anchor, None);
                }
                let read = self.mapping(position, depth)?;
                self.anchor(anchor, &read);
                Ok(read)
            }
            _ => Err(self.unexpected_end(position)),
        }
    }

    fn anchor(&mut self, id: usize, read: &Anchored) {
        if id > 0 {
            self.anchors.insert(id, Some(read.clone()));
        }
    }

    fn mapping(&mut self, position: Position, depth: usize) -> Result<Anchored, Error> {
        let mut map = Map::new();
        let mut entries = Entries::default();
        let mut size = 1;
        loop {
            let Some((event, span)) = self.next()? else { return Err(self.unexpected_end(position)) };
            if matches!(event, Event::MappingEnd) {
                break;
            }
            let at = self.start(span);
            let is_merge = match &event {
                Event::Scalar(text, style, _, tag) => {
                    text == "<<"
                        && match tag.as_deref().and_then(core_tag) {
                            Some(tag) => tag == "merge",
                            None => tag.is_none() && *style == ScalarStyle::Plain,
                        }
                }
                _ => false,
            };
            let key = if is_merge { None } else { Some(self.key(event, span, depth)?) };
            let Some((event, span)) = self.next()? else { return Err(self.unexpected_end(at)) };
            let value_at = self.start(span);
            let read = self.node(event, span, depth + 1)?;
            size += read.size;
            match key {
                None => merge(&read, &mut map, &mut entries)
                    .ok_or(Error { position: value_at, kind: ErrorKind::Merge })?,
                Some(key) => {
                    if let Some(first) = entries.explicit.insert(key.clone(), at) {
                        return Err(Error { position: at, kind: ErrorKind::DuplicateKey { key, first } });
                    }
                    entries.set(key.clone(), moved(read.node, at));
                    map.insert(key, read.value);
                }
            }
        }
        let node = Arc::new(Node { position, children: Children::Map(entries.nodes) });
        Ok(Anchored { value: Value::Object(map), node, size, scalar: None })
    }

    fn key(&mut self, event: Event<'a>, span: Span, depth: usize) -> Result<String, Error> {
        let position = self.start(span);
        if let Event::Scalar(text, style, 0, tag) = &event {
            let scalar = meaning(text, *style, tag.as_deref()).map_err(|kind| Error { position, kind })?;
            // Infinities are keys, although they are not values.
            if let Some(key) = scalar::to_key(scalar) {
                return Ok(key);
            }
        }
        let read = self.node(event, span, depth + 1)?;
        let kind = match (&read.scalar, &read.value) {
            (Some(scalar), _) => match scalar::to_key(scalar.clone()) {
                Some(key) => return Ok(key),
                None if *scalar == Scalar::Null => "null",
                None => "a number this large",
            },
            (None, Value::Array(_)) => "a list",
            (None, _) => "a mapping",
        };
        Err(Error { position, kind: ErrorKind::Key(kind) })
    }
}

/// Positions of a mapping's keys.
#[derive(Default)]
struct Entries {
    nodes: Vec<(String, Arc<Node>)>,
    index: HashMap<String, usize>,
    /// Keys that the mapping sets itself, as opposed to through `<<`.
    explicit: HashMap<String, Position>,
}

impl Entries {
    fn set(&mut self, key: String, node: Arc<Node>) {
        match self.index.get(&key).and_then(|i| self.nodes.get_mut(*i)) {
            Some(entry) => entry.1 = node,
            None => {
                self.index.insert(key.clone(), self.nodes.len());
                self.nodes.push((key, node));
            }
        }
    }
}

/// The same node at another place: a mapping's value is found at its key, an alias's where it is used.
fn moved(node: Arc<Node>, position: Position) -> Arc<Node> {
    if node.position == position {
        return node;
    }
    let children = match &node.children {
        Children::None => Children::None,
        Children::Map(entries) => Children::Map(entries.clone()),
        Children::Seq(items) => Children::Seq(items.clone()),
    };
    Arc::new(Node { position, children })
}

/// Like Go: what `<<` brings replaces what stands before it, what stands after replaces it; of a list the first
/// mapping wins.
fn merge(read: &Anchored, map: &mut Map<String, Value>, entries: &mut Entries) -> Option<()> {
    match (&read.value, &read.node.children) {
        (Value::Object(from), Children::Map(nodes)) => {
            for (key, node) in nodes {
                if let Some(value) = from.get(key) {
                    map.insert(key.clone(), value.clone());
                    entries.set(key.clone(), Arc::clone(node));
                }
            }
            Some(())
        }
        (Value::Array(items), Children::Seq(nodes)) => {
            for (item, node) in items.iter().zip(nodes).rev() {
                if !item.is_object() {
                    return None;
                }
                let one = Anchored { value: item.clone(), node: Arc::clone(node), size: 0, scalar: None };
                merge(&one, map, entries)?;
            }
            Some(())
        }
        _ => None,
    }
}

fn core_tag(tag: &Tag) -> Option<&str> {
    if tag.handle() == "tag:yaml.org,2002:" { Some(tag.suffix()) } else { None }
}

fn meaning(text: &str, style: ScalarStyle, tag: Option<&Tag>) -> Result<Scalar, ErrorKind> {
    match tag {
        None if style == ScalarStyle::Plain => Ok(scalar::resolve_plain(text)),
        None => Ok(Scalar::Str(text.to_owned())),
        Some(tag) => scalar::resolve_tagged(text, core_tag(tag)).map_err(|error| {
            let tag = match error {
                ScalarError::Tag { tag } => tag,
                ScalarError::Base64 => "!!binary",
            };
            ErrorKind::Tag { text: text.to_owned(), tag }
        }),
    }
}
