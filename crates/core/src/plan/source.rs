//! Objects as they were read, and where each of their fields stands.

use std::sync::Arc;

use cozy_yaml::{Document, Positions};
use serde_json::Value;

/// A place in a file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The file, named as the user would.
    pub file: Arc<str>,
    /// Line, from 1; `None` when only the file is known.
    pub line: Option<usize>,
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.line {
            Some(line) => write!(f, "{}:{line}", self.file),
            None => f.write_str(&self.file),
        }
    }
}

/// A piece of text that an object, or a part of it, was made from.
#[derive(Clone, Debug)]
pub struct Text {
    /// The file.
    pub file: Arc<str>,
    /// Where everything in it stands.
    pub positions: Positions,
    /// Pointer in the object that the text's root stands for: empty for an object or a strategic-merge patch.
    pub at: String,
    /// Lines of the file before the text: not 0 for a patch that stands inside a kustomization.
    pub lines_before: usize,
    /// What the text says; only needed where several texts make up one object.
    pub value: Option<Arc<Value>>,
}

/// The texts behind an object.
#[derive(Clone, Debug, Default)]
pub enum Source {
    /// Nothing is known.
    #[default]
    Unknown,
    /// The object stands in the file as it is.
    Exact(Text),
    /// The object was built by kustomize from these; later ones win over earlier ones.
    Built(Vec<Text>),
}

impl Source {
    /// Where the field stands that a pointer in the object names and that has this value.
    ///
    /// For a built object this is the last text that says exactly this value at that place; `None` when none does
    /// (a name prefix, a replacement, an inline patch of an unknown form): a wrong line would be worse than none.
    #[must_use]
    pub fn place(&self, pointer: &str, value: Option<&Value>) -> Option<Place> {
        match self {
            Self::Unknown => None,
            Self::Exact(text) => Some(text.place(pointer)),
            Self::Built(texts) => texts.iter().rev().find_map(|text| text.place_of_value(pointer, value)),
        }
    }

    /// Where the object as a whole stands: for a built one, the first of its texts.
    #[must_use]
    pub fn start(&self) -> Option<Place> {
        match self {
            Self::Unknown => None,
            Self::Exact(text) => Some(text.place("")),
            Self::Built(texts) => texts.first().map(|text| text.place("")),
        }
    }
}

impl Text {
    fn place(&self, pointer: &str) -> Place {
        let line = self.positions.nearest(pointer).line;
        Place { file: Arc::clone(&self.file), line: (line > 0).then_some(line + self.lines_before) }
    }

    fn place_of_value(&self, pointer: &str, value: Option<&Value>) -> Option<Place> {
        // A JSON patch at `/spec/a` speaks of `/spec/a/b` too.
        let below =
            pointer.strip_prefix(self.at.as_str()).filter(|rest| rest.is_empty() || rest.starts_with('/'))?;
        let said = self.value.as_deref()?.pointer(below)?;
        if let Some(value) = value
            && !cozy_yaml::canonical_eq(said, value)
        {
            return None;
        }
        Some(self.place(below))
    }
}

/// One object of a file.
#[derive(Clone, Debug)]
pub struct Object {
    /// What it says.
    pub value: Arc<Value>,
    /// Where.
    pub source: Source,
}

impl Object {
    /// The objects of a document that was read from `file`: itself, or the items of a `List`.
    #[must_use]
    pub fn from_document(document: Document, file: &Arc<str>) -> Vec<Self> {
        let mut out = Vec::new();
        flatten(document.value, document.positions, file, &mut out, 0);
        out
    }

    /// `apiVersion`, empty when it has none.
    #[must_use]
    pub fn api_version(&self) -> &str {
        text(&self.value, "apiVersion")
    }

    /// `kind`, empty when it has none.
    #[must_use]
    pub fn kind(&self) -> &str {
        text(&self.value, "kind")
    }

    /// The group of `apiVersion`, empty for Kubernetes' core group.
    #[must_use]
    pub fn group(&self) -> &str {
        self.api_version().rsplit_once('/').map_or("", |(group, _)| group)
    }

    /// `metadata.name`, empty when it has none.
    #[must_use]
    pub fn name(&self) -> &str {
        self.value.get("metadata").map_or("", |metadata| text(metadata, "name"))
    }

    /// `metadata.namespace`, empty when it has none.
    #[must_use]
    pub fn namespace(&self) -> &str {
        self.value.get("metadata").map_or("", |metadata| text(metadata, "namespace"))
    }

    /// What makes it the same object in two places.
    #[must_use]
    pub fn id(&self) -> ObjectId {
        ObjectId {
            group: self.group().to_owned(),
            kind: self.kind().to_owned(),
            namespace: self.namespace().to_owned(),
            name: self.name().to_owned(),
        }
    }
}

/// What makes an object the same in two places: everything but its version.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectId {
    /// API group.
    pub group: String,
    /// Kind.
    pub kind: String,
    /// Namespace; empty for a cluster-scoped object, and for one that leaves it to the applier.
    pub namespace: String,
    /// Name.
    pub name: String,
}

impl std::fmt::Display for ObjectId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.namespace.as_str() {
            "" => write!(f, "{}/{}", self.kind, self.name),
            namespace => write!(f, "{}/{namespace}/{}", self.kind, self.name),
        }
    }
}

fn text<'v>(value: &'v Value, key: &str) -> &'v str {
    value.get(key).and_then(Value::as_str).unwrap_or_default()
}

/// Lists in lists are legal; nobody nests them deeper than this on purpose.
const LIST_DEPTH: usize = 8;

fn flatten(value: Value, positions: Positions, file: &Arc<str>, out: &mut Vec<Object>, depth: usize) {
    let is_list = text(&value, "kind").ends_with("List") && value.get("items").is_some_and(Value::is_array);
    match value {
        Value::Null => {}
        Value::Object(mut map) if is_list && depth < LIST_DEPTH => {
            let Some(Value::Array(items)) = map.remove("items") else { return };
            for (index, item) in items.into_iter().enumerate() {
                let below = positions.below(&format!("/items/{index}")).unwrap_or_default();
                flatten(item, below, file, out, depth + 1);
            }
        }
        value => {
            let text =
                Text { file: Arc::clone(file), positions, at: String::new(), lines_before: 0, value: None };
            out.push(Object { value: Arc::new(value), source: Source::Exact(text) });
        }
    }
}
