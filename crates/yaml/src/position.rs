//! Where keys and elements stand in the text.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// A place in a text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
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

/// Where each key and list element of a document stands. Cheap to clone; an aliased subtree is shared.
#[derive(Clone, Debug, Default)]
pub struct Positions {
    pub(crate) root: Arc<Node>,
}

/// Position of a node and of what it holds.
#[derive(Debug, Default)]
pub(crate) struct Node {
    pub(crate) start: Position,
    pub(crate) children: Children,
}

#[derive(Debug, Default)]
pub(crate) enum Children {
    #[default]
    None,
    Map(Arc<BTreeMap<Box<str>, Entry>>),
    List(Arc<Vec<Arc<Node>>>),
}

impl Children {
    /// The same children for another node.
    pub(crate) fn share(&self) -> Self {
        match self {
            Self::None => Self::None,
            Self::Map(entries) => Self::Map(Arc::clone(entries)),
            Self::List(nodes) => Self::List(Arc::clone(nodes)),
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) key: Position,
    pub(crate) node: Arc<Node>,
    /// Whether the key stands in the mapping itself rather than coming from `<<`.
    pub(crate) own: bool,
}

impl Positions {
    /// Where the key (of a mapping entry) or the element (of a list) that an RFC 6901 `pointer` names stands;
    /// below an alias, where it stands in the anchored node. The empty pointer is the document itself. `None`
    /// for an invalid pointer and for what is not there.
    #[must_use]
    pub fn get(&self, pointer: &str) -> Option<Position> {
        let (position, exact) = self.walk(pointer)?;
        exact.then_some(position)
    }

    /// Like [`Positions::get`], but falls back to the closest ancestor that is there.
    #[must_use]
    pub fn nearest(&self, pointer: &str) -> Position {
        self.walk(pointer).map_or(self.root.start, |(position, _)| position)
    }

    /// The positions below `pointer`, for a document that is part of another one (an item of a `List`).
    #[must_use]
    pub fn below(&self, pointer: &str) -> Option<Self> {
        let mut node = &self.root;
        for token in parse_pointer(pointer)? {
            (_, node) = node.child(&token)?;
        }
        Some(Self { root: Arc::clone(node) })
    }

    fn walk(&self, pointer: &str) -> Option<(Position, bool)> {
        let mut node = &self.root;
        let mut position = node.start;
        for token in parse_pointer(pointer)? {
            match node.child(&token) {
                Some((at, child)) => {
                    position = at;
                    node = child;
                }
                None => return Some((position, false)),
            }
        }
        Some((position, true))
    }
}

impl Node {
    fn child(&self, token: &str) -> Option<(Position, &Arc<Self>)> {
        match &self.children {
            Children::None => None,
            Children::Map(entries) => entries.get(token).map(|entry| (entry.key, &entry.node)),
            Children::List(nodes) => {
                let node = nodes.get(list_index(token)?)?;
                Some((node.start, node))
            }
        }
    }
}

/// RFC 6901 section 4: digits without leading zeros.
fn list_index(token: &str) -> Option<usize> {
    let plain = token == "0" || (!token.starts_with('0') && token.bytes().all(|b| b.is_ascii_digit()));
    if plain { token.parse().ok() } else { None }
}

/// Splits an RFC 6901 pointer into unescaped tokens; `None` when it is not one (it must be empty or begin with
/// `/`, and `~` must be followed by `0` or `1`).
#[must_use]
pub fn parse_pointer(pointer: &str) -> Option<Vec<String>> {
    if pointer.is_empty() {
        return Some(Vec::new());
    }
    let valid = |token: &str| token.split('~').skip(1).all(|rest| rest.starts_with(['0', '1']));
    pointer.strip_prefix('/')?.split('/').map(|token| valid(token).then(|| unescape_token(token))).collect()
}

/// One token of an RFC 6901 pointer, escaped.
///
/// ```
/// assert_eq!(cozy_yaml::escape_token("a/b~c"), "a~1b~0c");
/// ```
#[must_use]
pub fn escape_token(token: &str) -> String {
    token.replace('~', "~0").replace('/', "~1")
}

/// One escaped token of an RFC 6901 pointer, as it was before [`escape_token`].
#[must_use]
pub fn unescape_token(token: &str) -> String {
    token.replace("~1", "/").replace("~0", "~")
}

/// Appends `/` and the escaped key to a pointer.
pub fn push_token(pointer: &mut String, key: &str) {
    pointer.push('/');
    if key.contains(['~', '/']) {
        pointer.push_str(&escape_token(key));
    } else {
        pointer.push_str(key);
    }
}
