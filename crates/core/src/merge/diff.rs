//! What differs between two values.

use serde_json::Value;

/// One difference.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// RFC 6901 pointer; empty for the whole.
    pub pointer: String,
    /// What was there; `None` when nothing was, which is not the same as `null`.
    pub from: Option<Value>,
    /// What is there now; `None` when nothing is.
    pub to: Option<Value>,
}

/// The leaves that differ, ordered by pointer. Lists are leaves: a list is set as a whole, so it is shown as a whole.
#[must_use]
pub fn diff_values(from: Option<&Value>, to: Option<&Value>) -> Vec<Change> {
    let mut out = Vec::new();
    walk(from, to, &mut String::new(), &mut out);
    out.sort_by(|a, b| a.pointer.cmp(&b.pointer));
    out
}

fn walk(from: Option<&Value>, to: Option<&Value>, pointer: &mut String, out: &mut Vec<Change>) {
    let empty = serde_json::Map::new();
    let (before, after) = match (from, to) {
        (Some(Value::Object(a)), Some(Value::Object(b))) => (a, b),
        // A map that appears or goes is told leaf by leaf, so that each can be traced to its line.
        (None, Some(Value::Object(b))) if !b.is_empty() => (&empty, b),
        (Some(Value::Object(a)), None) if !a.is_empty() => (a, &empty),
        (Some(a), Some(b)) if cozy_yaml::canonical_eq(a, b) => return,
        (None, None) => return,
        (from, to) => {
            out.push(Change { pointer: pointer.clone(), from: from.cloned(), to: to.cloned() });
            return;
        }
    };
    let keys = before.keys().chain(after.keys().filter(|key| !before.contains_key(*key)));
    for key in keys {
        let length = pointer.len();
        cozy_yaml::push_token(pointer, key);
        walk(before.get(key), after.get(key), pointer, out);
        pointer.truncate(length);
    }
}
