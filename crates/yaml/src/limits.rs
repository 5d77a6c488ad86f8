//! Bounds on what is read, so that hostile or mistaken input costs a bounded amount of time and memory.

use crate::{Error, ErrorKind};

/// Bounds on one text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Largest text, in bytes.
    pub bytes: usize,
    /// Deepest nesting of mappings and sequences, aliases expanded.
    pub depth: usize,
    /// Most nodes (scalars, sequences, mappings) of one document, aliases expanded; each costs some 100 bytes.
    pub nodes: usize,
    /// Most nodes that the anchors and aliases of one document may add.
    pub alias_nodes: usize,
    /// Most bytes of text that the anchors and aliases of one document may add.
    pub alias_bytes: usize,
}

impl Default for Limits {
    /// 32 MiB of text, 120 levels (below the 128 at which `serde_json` stops), two million nodes; 200,000 nodes and
    /// 16 MiB of text out of aliases (Go stops near 400,000 decode operations).
    fn default() -> Self {
        Self { bytes: 32 << 20, depth: 120, nodes: 2_000_000, alias_nodes: 200_000, alias_bytes: 16 << 20 }
    }
}

impl Limits {
    /// Whether a text of `length` bytes may be read; meant for the size of a file before it is opened.
    ///
    /// # Errors
    /// [`ErrorKind::TooLarge`] when it may not.
    pub fn check_length(&self, length: u64) -> Result<(), Error> {
        if length > self.bytes as u64 {
            return Err(ErrorKind::TooLarge { bytes: length, limit: self.bytes }.anywhere());
        }
        Ok(())
    }
}
