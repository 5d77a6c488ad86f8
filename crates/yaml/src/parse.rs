//! Builds values and positions from the parser's events.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use base64::Engine as _;
use granit_parser::{Event, Parser, ScalarStyle, ScanError, Span, Tag};
use serde_json::{Map, Value};

use crate::position::{Children, Entry, Node};
use crate::scalar::{Scalar, resolve};
use crate::split::{Chunk, decode, split_stream, whole};
use crate::tabs::Tabs;
use crate::{Error, ErrorKind, Limits, Position, Positions};

/// One document of a text.
#[derive(Clone, Debug)]
pub struct Document {
    /// What it says.
    pub value: Value,
    /// Where it says so.
    pub positions: Positions,
    /// Which of the text's documents it is, from 0; those of nothing but comments do not count.
    pub index: usize,
    /// Where its content begins.
    pub start: Position,
}

/// Reads every document of a file of manifests as kubectl and Flux do: cut at lines that begin with `---`,
/// documents of nothing but white space and comments left out, JSON documents one directly after the other.
///
/// Numbers are what the API server will store, see [`crate::normalize`]. A broken document is an `Err` in its place and does not hide the others. What kubectl and Flux refuse (text
/// after `---`, directives) or silently skip (text after `...`) is an error as well.
#[must_use]
pub fn parse_documents(text: &str, limits: &Limits) -> Vec<Result<Document, Error>> {
    if let Err(error) = limits.check_length(text.len() as u64) {
        return vec![Err(error)];
    }
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut out = Vec::new();
    let mut index = 0;
    for chunk in split_stream(text) {
        match chunk {
            Ok(chunk) => parse_chunk(&chunk, limits, Reading::Manifests, &mut index, &mut out),
            Err(error) => {
                out.push(Err(error));
                index += 1;
            }
        }
    }
    out
}

/// [`parse_documents`] of bytes: a byte order mark is skipped, anything but UTF-8 refused.
#[must_use]
pub fn parse_bytes(bytes: &[u8], limits: &Limits) -> Vec<Result<Document, Error>> {
    // Before decoding, so that refusing a huge file costs nothing.
    if let Err(error) = limits.check_length(bytes.len() as u64) {
        return vec![Err(error)];
    }
    match decode(bytes) {
        Ok(text) => parse_documents(text, limits),
        Err(error) => vec![Err(error)],
    }
}

/// Reads a text of exactly one document. A text without one is `null`. What may stand round the document
/// (`--- {a: b}`, directives) is YAML's, not kubectl's.
///
/// # Errors
/// The first error of the text, or [`ErrorKind::NotOne`].
pub fn parse_one(bytes: &[u8], limits: &Limits) -> Result<Document, Error> {
    one(bytes, limits, Reading::Text)
}

/// Reads a chart's `values.yaml` as Helm does: like [`parse_one`], but of a key that stands twice the last one
/// counts. Charts are others' work, and some that Cozystack ships have such keys.
///
/// # Errors
/// The first error of the text, or [`ErrorKind::NotOne`]: Helm would silently take the first document.
pub fn parse_chart_values(bytes: &[u8], limits: &Limits) -> Result<Document, Error> {
    one(bytes, limits, Reading::ChartValues)
}

fn one(bytes: &[u8], limits: &Limits, reading: Reading) -> Result<Document, Error> {
    limits.check_length(bytes.len() as u64)?;
    let mut out = Vec::new();
    let mut index = 0;
    for chunk in whole(decode(bytes)?, 0) {
        parse_chunk(&chunk, limits, reading, &mut index, &mut out);
    }
    let mut documents = out.into_iter().collect::<Result<Vec<_>, _>>()?;
    match (documents.pop(), documents.len()) {
        (None, _) => Ok(Document {
            value: Value::Null,
            positions: Positions::default(),
            index: 0,
            start: Position { line: 1, column: 1 },
        }),
        (Some(document), 0) => Ok(document),
        (Some(_), others) => Err(ErrorKind::NotOne(others + 1).anywhere()),
    }
}

fn parse_chunk(
    chunk: &Chunk<'_>,
    limits: &Limits,
    reading: Reading,
    index: &mut usize,
    out: &mut Vec<Result<Document, Error>>,
) {
    if chunk.json {
        if let Some(document) = crate::json::read(chunk, limits, reading).transpose() {
            out.push(document.map(|(value, node)| document_of(value, node, *index)));
            *index += 1;
        }
        return;
    }
    let options = granit_parser::options! {
        emit_comments: false,
        // As libyaml: a block scalar that the end of the text cuts off has no final line break.
        block_scalar_eof_without_line_feed: true,
        flow_nesting_limit: limits.depth.saturating_add(1),
        block_nesting_limit: limits.depth.saturating_add(1),
    };
    let mut composer = Composer::new(chunk, limits, reading);
    let mut tabs = Tabs::new(chunk.text);
    for event in Parser::new_from_str_with_options(chunk.text, options) {
        let step = match event {
            Ok((event, span)) => match tabs.before(&event, &span) {
                Some(tab) => Err(tab_error(chunk, tab)),
                None => composer.event(event, &span),
            },
            Err(error) => Err(scan_error(&error, chunk, limits)),
        };
        match step {
            Ok(None) => {}
            Ok(Some(finished)) => {
                if let Some((value, node)) = finished {
                    out.push(Ok(document_of(value, node, *index)));
                    *index += 1;
                }
            }
            Err(error) => {
                out.push(Err(error));
                *index += 1;
                return;
            }
        }
    }
}

fn document_of(value: Value, root: Arc<Node>, index: usize) -> Document {
    Document { value, start: root.start, positions: Positions { root }, index }
}

fn tab_error(chunk: &Chunk<'_>, offset: usize) -> Error {
    let before = chunk.text.get(..offset).unwrap_or_default();
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().unwrap_or_default().chars().count();
    let message = "a tab indents this line; kubectl and Flux take nothing but spaces there";
    ErrorKind::Syntax(message.to_owned()).at(place(chunk, line, column))
}

fn scan_error(error: &ScanError, chunk: &Chunk<'_>, limits: &Limits) -> Error {
    let position = place(chunk, error.marker().line(), error.marker().col());
    match error.kind() {
        granit_parser::ErrorKind::RecursionLimitExceeded => ErrorKind::TooDeep { limit: limits.depth },
        _ => ErrorKind::Syntax(error.info()),
    }
    .at(position)
}

fn place(chunk: &Chunk<'_>, line: usize, column: usize) -> Position {
    Position {
        line: chunk.lines_before + line.max(1),
        column: column + 1 + if line <= 1 { chunk.columns_before } else { 0 },
    }
}

/// What a text is read for.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Reading {
    /// Objects for an API server: numbers as it stores them.
    Manifests,
    /// Anything else: numbers as they are written.
    Text,
    /// A chart's values: of a key that stands twice, the last one counts.
    ChartValues,
}

/// A finished node on its way to its parent.
pub(crate) struct Built {
    pub(crate) value: Value,
    /// The key that this node would be; `None` when it cannot be one.
    pub(crate) key: Option<String>,
    pub(crate) node: Arc<Node>,
    /// Levels of collections in it.
    pub(crate) depth: usize,
    /// Whether it came from an alias.
    pub(crate) alias: bool,
}

/// An anchored node, and what copying it costs.
#[derive(Clone)]
struct Anchored {
    value: Value,
    key: Option<String>,
    node: Arc<Node>,
    depth: usize,
    nodes: usize,
    bytes: usize,
}

enum Pending {
    Nothing,
    Merge(Position),
    Key(String, Position),
}

enum Shape {
    List { items: Vec<Value>, nodes: Vec<Arc<Node>> },
    Map { map: Map<String, Value>, entries: BTreeMap<Box<str>, Entry>, pending: Pending },
}

/// A collection whose end was not seen yet.
struct Frame {
    shape: Shape,
    start: Position,
    anchor: usize,
    /// Deepest child so far.
    depth: usize,
    nodes_before: usize,
    bytes_before: usize,
}

pub(crate) struct Composer<'c, 'a> {
    chunk: &'c Chunk<'a>,
    limits: &'c Limits,
    reading: Reading,
    stack: Vec<Frame>,
    anchors: HashMap<usize, Anchored>,
    root: Option<Built>,
    /// Nodes and bytes of text so far, copies by aliases included.
    nodes: usize,
    bytes: usize,
    /// Those added by aliases.
    alias_nodes: usize,
    alias_bytes: usize,
    /// Whether the document holds nothing.
    empty: bool,
}

/// `Some` when a document ended: with its content unless it has none.
pub(crate) type Step = Result<Option<Option<(Value, Arc<Node>)>>, Error>;

impl<'c, 'a> Composer<'c, 'a> {
    pub(crate) fn new(chunk: &'c Chunk<'a>, limits: &'c Limits, reading: Reading) -> Self {
        Self {
            chunk,
            limits,
            reading,
            stack: Vec::new(),
            anchors: HashMap::new(),
            root: None,
            nodes: 0,
            bytes: 0,
            alias_nodes: 0,
            alias_bytes: 0,
            empty: false,
        }
    }

    fn event(&mut self, event: Event<'_>, span: &Span) -> Step {
        let at = place(self.chunk, span.start.line(), span.start.col());
        match event {
            Event::DocumentStart(..) => {
                *self = Self::new(self.chunk, self.limits, self.reading);
                Ok(None)
            }
            Event::DocumentEnd => Ok(Some(self.finished())),
            Event::Scalar(text, style, anchor, tag) => {
                self.nodes += 1;
                self.bytes += text.len();
                let is_root = self.stack.is_empty();
                self.empty = is_root
                    && tag.is_none()
                    && style == ScalarStyle::Plain
                    && span.start.index() == span.end.index();
                let merge_tag = match &tag {
                    None => style == ScalarStyle::Plain,
                    Some(tag) => core_name(tag).as_deref() == Some("merge"),
                };
                if text == "<<" && merge_tag && self.wants_key() {
                    return self.begin_merge(at);
                }
                if style == ScalarStyle::DoubleQuoted {
                    self.check_escapes(span)?;
                }
                let (value, key) = self.scalar(&text, style, tag.as_deref(), at)?;
                let node = Arc::new(Node { start: at, children: Children::None });
                let built = Built { value, key, node, depth: 0, alias: false };
                self.keep(anchor, &built, 1, text.len())?;
                self.attach(built, at)
            }
            Event::SequenceStart(_, anchor, _) => self.open_list(anchor, at),
            Event::MappingStart(_, anchor, _) => self.open_map(anchor, at),
            Event::SequenceEnd | Event::MappingEnd => self.close(),
            Event::Alias(id) => self.alias(id, at),
            _ => Ok(None),
        }
    }

    /// Escapes that the parser takes and Go's YAML 1.1 reader refuses: `\\/`, and halves of surrogate pairs.
    fn check_escapes(&self, span: &Span) -> Result<(), Error> {
        let Some(source) = span.slice(self.chunk.text).filter(|source| source.contains('\\')) else {
            return Ok(());
        };
        let position = || place(self.chunk, span.start.line(), span.start.col());
        let mut rest = source;
        while let Some((_, after)) = rest.split_once('\\') {
            let mut chars = after.chars();
            let message = match chars.next() {
                Some('/') => "`\\/` is an escape of JSON, not of YAML as Kubernetes reads it; write `/`",
                Some('u') if matches!(after.get(1..3), Some(hi) if is_surrogate(hi)) => {
                    "half of a surrogate pair is an escape of JSON, not of YAML as Kubernetes reads it; write \
                     the character itself or `\\U` and eight digits"
                }
                _ => {
                    rest = chars.as_str();
                    continue;
                }
            };
            return Err(ErrorKind::Syntax(message.to_owned()).at(position()));
        }
        Ok(())
    }

    fn wants_key(&self) -> bool {
        matches!(self.stack.last(), Some(Frame { shape: Shape::Map { pending: Pending::Nothing, .. }, .. }))
    }

    fn begin_merge(&mut self, at: Position) -> Step {
        if let Some(Frame { shape: Shape::Map { pending, .. }, .. }) = self.stack.last_mut() {
            *pending = Pending::Merge(at);
        }
        Ok(None)
    }

    pub(crate) fn open_list(&mut self, anchor: usize, at: Position) -> Step {
        self.open(Shape::List { items: Vec::new(), nodes: Vec::new() }, anchor, at)
    }

    pub(crate) fn open_map(&mut self, anchor: usize, at: Position) -> Step {
        let shape = Shape::Map { map: Map::new(), entries: BTreeMap::new(), pending: Pending::Nothing };
        self.open(shape, anchor, at)
    }

    /// Takes a scalar that is neither anchored nor a merge key.
    pub(crate) fn scalar_node(&mut self, built: Built, at: Position) -> Step {
        self.nodes += 1;
        self.bytes += built.value.as_str().map_or(0, str::len);
        self.attach(built, at)
    }

    /// The document, unless it has no content.
    pub(crate) fn finished(&mut self) -> Option<(Value, Arc<Node>)> {
        self.root.take().filter(|_| !self.empty).map(|root| (root.value, root.node))
    }

    fn open(&mut self, shape: Shape, anchor: usize, start: Position) -> Step {
        self.empty = false;
        if self.stack.len() >= self.limits.depth {
            return Err(ErrorKind::TooDeep { limit: self.limits.depth }.at(start));
        }
        self.nodes += 1;
        let (nodes_before, bytes_before) = (self.nodes - 1, self.bytes);
        self.stack.push(Frame { shape, start, anchor, depth: 0, nodes_before, bytes_before });
        Ok(None)
    }

    pub(crate) fn close(&mut self) -> Step {
        let Some(frame) = self.stack.pop() else { return Ok(None) };
        let (value, children) = match frame.shape {
            Shape::List { items, nodes } => (Value::Array(items), Children::List(Arc::new(nodes))),
            Shape::Map { map, entries, .. } => (Value::Object(map), Children::Map(Arc::new(entries))),
        };
        let node = Arc::new(Node { start: frame.start, children });
        let built = Built { value, key: None, node, depth: frame.depth + 1, alias: false };
        self.keep(frame.anchor, &built, self.nodes - frame.nodes_before, self.bytes - frame.bytes_before)?;
        self.attach(built, frame.start)
    }

    fn keep(&mut self, anchor: usize, built: &Built, nodes: usize, bytes: usize) -> Result<(), Error> {
        if anchor != 0 {
            // Keeping is a copy as well: a large node below many anchored ones must not be copied at each level.
            self.charge(nodes, bytes, built.node.start)?;
            let anchored = Anchored {
                value: built.value.clone(),
                key: built.key.clone(),
                node: Arc::clone(&built.node),
                depth: built.depth,
                nodes,
                bytes,
            };
            self.anchors.insert(anchor, anchored);
        }
        Ok(())
    }

    fn charge(&mut self, nodes: usize, bytes: usize, position: Position) -> Result<(), Error> {
        self.alias_nodes += nodes;
        self.alias_bytes += bytes;
        if self.alias_nodes > self.limits.alias_nodes || self.alias_bytes > self.limits.alias_bytes {
            return Err(ErrorKind::Expansion.at(position));
        }
        Ok(())
    }

    fn alias(&mut self, id: usize, at: Position) -> Step {
        self.empty = false;
        // The parser knows every anchor that was begun; only finished ones are here.
        let cost = self.anchors.get(&id).map(|anchored| (anchored.nodes, anchored.bytes));
        let Some((nodes, bytes)) = cost else { return Err(ErrorKind::RecursiveAlias.at(at)) };
        self.charge(nodes, bytes, at)?;
        let Some(anchored) = self.anchors.get(&id) else { return Ok(None) };
        if self.stack.len() + anchored.depth > self.limits.depth {
            return Err(ErrorKind::TooDeep { limit: self.limits.depth }.at(at));
        }
        self.nodes += anchored.nodes;
        self.bytes += anchored.bytes;
        // The element stands where the alias is; what is below it stands in the anchored node.
        let node = Arc::new(Node { start: at, children: anchored.node.children.share() });
        let built = Built {
            value: anchored.value.clone(),
            key: anchored.key.clone(),
            node,
            depth: anchored.depth,
            alias: true,
        };
        self.attach(built, at)
    }

    fn attach(&mut self, built: Built, at: Position) -> Step {
        if self.nodes > self.limits.nodes {
            return Err(ErrorKind::TooMany { limit: self.limits.nodes }.at(at));
        }
        let refuse = self.reading != Reading::ChartValues;
        let Some(frame) = self.stack.last_mut() else {
            self.root = Some(built);
            return Ok(None);
        };
        match &mut frame.shape {
            Shape::List { items, nodes } => {
                frame.depth = frame.depth.max(built.depth);
                items.push(built.value);
                nodes.push(built.node);
            }
            Shape::Map { map, entries, pending } => match std::mem::replace(pending, Pending::Nothing) {
                Pending::Nothing => {
                    let what = match &built.value {
                        Value::Object(_) => "a mapping",
                        Value::Array(_) => "a list",
                        Value::Null => "null",
                        _ => "a number beyond 64 bits",
                    };
                    let key = built.key.ok_or_else(|| ErrorKind::Key(what).at(at))?;
                    if let Some(entry) = entries.get(key.as_str()).filter(|entry| entry.own && refuse) {
                        return Err(ErrorKind::DuplicateKey { key, first: entry.key }.at(at));
                    }
                    *pending = Pending::Key(key, at);
                }
                Pending::Key(key, position) => {
                    frame.depth = frame.depth.max(built.depth);
                    let entry = Entry { key: position, node: built.node, own: true };
                    entries.insert(key.as_str().into(), entry);
                    map.insert(key, built.value);
                }
                Pending::Merge(position) => {
                    frame.depth = frame.depth.max(built.depth);
                    merge(map, entries, built, position)?;
                }
            },
        }
        Ok(None)
    }

    fn scalar(
        &self,
        text: &str,
        style: ScalarStyle,
        tag: Option<&Tag>,
        at: Position,
    ) -> Result<(Value, Option<String>), Error> {
        let plain = style == ScalarStyle::Plain;
        let text_value = || Ok((Value::String(text.to_owned()), Some(text.to_owned())));
        let Some(tag) = tag else {
            if !plain {
                return text_value();
            }
            let scalar = resolve(text);
            return self.finish(scalar, text, at);
        };
        let bad = || ErrorKind::Tag { text: text.to_owned(), tag: tag.original() }.at(at);
        let Some(name) = core_name(tag) else { return text_value() };
        match (name.as_ref(), resolve(text)) {
            ("str", _) => text_value(),
            ("binary", _) => {
                let bytes = base64::engine::general_purpose::STANDARD
                    .decode(text.replace(['\n', '\r'], ""))
                    .map_err(|_| bad())?;
                let text = lossy(&bytes);
                Ok((Value::String(text.clone()), Some(text)))
            }
            ("timestamp", Scalar::Text) => text_value(),
            ("null", scalar @ Scalar::Null)
            | ("bool", scalar @ Scalar::Bool(_))
            | ("int", scalar @ (Scalar::Int(_) | Scalar::Uint(_)))
            | ("float", scalar @ Scalar::Float(_)) => self.finish(scalar, text, at),
            #[expect(clippy::cast_precision_loss, reason = "what `!!float` asks for")]
            ("float", Scalar::Int(integer)) => self.finish(Scalar::Float(integer as f64), text, at),
            ("null" | "bool" | "int" | "float" | "timestamp", _) => Err(bad()),
            // Go takes the text of a scalar whose tag it does not know, and of one with the non-specific tag `!`.
            _ => text_value(),
        }
    }

    fn finish(&self, scalar: Scalar, text: &str, at: Position) -> Result<(Value, Option<String>), Error> {
        let key = scalar.clone().into_key(text);
        #[expect(clippy::cast_precision_loss, reason = "what the API server does with integers beyond i64")]
        let scalar = match scalar {
            Scalar::Uint(integer) if self.reading == Reading::Manifests => Scalar::Float(integer as f64),
            other => other,
        };
        match scalar.into_value(text) {
            Some(value) => Ok((value, key)),
            // Infinities and NaN are keys in Go, although they are not values.
            None if self.wants_key() => Ok((Value::Null, key)),
            None => Err(ErrorKind::Number(text.to_owned()).at(at)),
        }
    }
}

/// Whether the first two of four hexadecimal digits begin a surrogate, U+D800 to U+DFFF.
fn is_surrogate(digits: &str) -> bool {
    u8::from_str_radix(digits, 16).is_ok_and(|high| (0xd8..=0xdf).contains(&high))
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

/// The name of a tag of YAML's own, such as `int`.
fn core_name(tag: &Tag) -> Option<std::borrow::Cow<'_, str>> {
    tag.suffix_in_namespace("tag:yaml.org,2002:")
}

/// go.yaml.in/yaml/v2 writes the merged keys where `<<` stands: they replace earlier keys of the mapping, later
/// ones replace them; of several merged mappings the first wins.
fn merge(
    map: &mut Map<String, Value>,
    entries: &mut BTreeMap<Box<str>, Entry>,
    built: Built,
    position: Position,
) -> Result<(), Error> {
    let mut put = |value: Map<String, Value>, node: &Node| {
        for (key, value) in value {
            let child = match &node.children {
                Children::Map(children) => children.get(key.as_str()).cloned(),
                _ => None,
            };
            let own = entries.get(key.as_str()).is_some_and(|entry| entry.own);
            let entry = child.unwrap_or(Entry { key: position, node: Arc::default(), own });
            entries.insert(key.as_str().into(), Entry { own, ..entry });
            map.insert(key, value);
        }
    };
    match (built.value, &built.node.children) {
        (Value::Object(value), _) => put(value, &built.node),
        (Value::Array(items), Children::List(nodes)) if !built.alias => {
            if !items.iter().all(Value::is_object) {
                return Err(ErrorKind::Merge.at(position));
            }
            for (item, node) in items.into_iter().zip(nodes.iter()).rev() {
                if let Value::Object(value) = item {
                    put(value, node);
                }
            }
        }
        _ => return Err(ErrorKind::Merge.at(position)),
    }
    Ok(())
}
