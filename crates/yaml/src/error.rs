//! Why a text cannot be read.

use crate::Position;

/// Why a text, or one document of it, cannot be read.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("line {position}: {kind}")]
pub struct Error {
    /// Where, in the whole text.
    pub position: Position,
    /// What is wrong, and what to do.
    pub kind: ErrorKind,
}

/// What is wrong with a text or a document.
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
    #[error("{text:?} cannot be read as {tag}; remove the tag or correct the value")]
    Tag {
        /// The scalar.
        text: String,
        /// Its tag.
        tag: String,
    },
    /// The value of `<<` is neither a mapping nor a list of mappings.
    #[error("the value of the merge key `<<` must be a mapping or a list of mappings")]
    Merge,
    /// An anchor that contains an alias of itself.
    #[error("the anchor contains an alias of itself; write the value out")]
    RecursiveAlias,
    /// Larger than [`crate::Limits::bytes`].
    #[error(
        "{bytes} bytes are more than the {limit} that a file of manifests may have; is it the right file?"
    )]
    TooLarge {
        /// Size of the text.
        bytes: u64,
        /// What is allowed.
        limit: usize,
    },
    /// Deeper than [`crate::Limits::depth`].
    #[error("nested deeper than {limit} levels")]
    TooDeep {
        /// What is allowed.
        limit: usize,
    },
    /// More than [`crate::Limits::nodes`].
    #[error("more than {limit} values in one document; is it the right file?")]
    TooMany {
        /// What is allowed.
        limit: usize,
    },
    /// More than [`crate::Limits::alias_nodes`] or [`crate::Limits::alias_bytes`].
    #[error(
        "its anchors and aliases expand to far more than it says; refusing what looks like a YAML bomb, write the values out"
    )]
    Expansion,
    /// Not UTF-8.
    #[error("byte {offset} is not UTF-8{hint}; save the file as UTF-8")]
    Encoding {
        /// Offset of the first wrong byte, from 0.
        offset: usize,
        /// What the text looks like instead: empty, or a clause that begins with a comma.
        hint: &'static str,
    },
    /// [`crate::parse_one`] found another number of documents than one.
    #[error("{0} documents where one is expected")]
    NotOne(usize),
}

impl ErrorKind {
    pub(crate) fn at(self, position: Position) -> Error {
        Error { position, kind: self }
    }

    /// About the text as a whole.
    pub(crate) fn anywhere(self) -> Error {
        self.at(Position { line: 1, column: 1 })
    }
}
