//! Who owns which field: `metadata.managedFields`, read.
//!
//! The format is structured-merge-diff's FieldsV1: a tree whose keys are steps, `f:<name>` into a field, `k:<json>` to
//! the list element with these keys, `v:<json>` to an element of a set, `i:<index>` to an element by position, and `.`
//! for the node itself.

use serde_json::{Map, Value};

/// One step from a value to a part of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// The field of that name.
    Field(String),
    /// The list element with these keys.
    Keys(Map<String, Value>),
    /// The set's element of that value.
    Element(Value),
    /// The list element at that position.
    Index(usize),
}

/// A part of an object, from its root.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Path(pub Vec<Step>);

impl Path {
    /// The part's value in `object`.
    #[must_use]
    pub fn of<'v>(&self, object: &'v Value) -> Option<&'v Value> {
        self.0.iter().try_fold(object, |value, step| match step {
            Step::Field(name) => value.get(name),
            Step::Keys(keys) => value
                .as_array()?
                .iter()
                .find(|item| keys.iter().all(|(key, wanted)| item.get(key) == Some(wanted))),
            Step::Element(wanted) => value.as_array()?.iter().find(|item| *item == wanted),
            Step::Index(index) => value.get(index),
        })
    }

    /// Whether one is the other or a part of it.
    #[must_use]
    pub fn overlaps(&self, other: &Self) -> bool {
        self.0.iter().zip(&other.0).all(|(a, b)| a == b)
    }

    /// The names of the fields on the way, up to the first step into a list.
    pub fn fields(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map_while(|step| match step {
            Step::Field(name) => Some(name.as_str()),
            _ => None,
        })
    }

    /// Whether it is below the fields `prefix`.
    #[must_use]
    pub fn is_below(&self, prefix: &[&str]) -> bool {
        let mut fields = self.fields();
        prefix.iter().all(|name| fields.next() == Some(*name))
    }
}

impl std::fmt::Display for Path {
    /// As a JSON pointer; a step into a keyed list or a set is the keys or the element in brackets.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|step| match step {
            Step::Field(name) => write!(f, "/{}", cozy_yaml::escape_token(name)),
            Step::Keys(keys) => write!(f, "/[{}]", Value::Object(keys.clone())),
            Step::Element(value) => write!(f, "/[{value}]"),
            Step::Index(index) => write!(f, "/{index}"),
        })
    }
}

/// One manager's fields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// Name of the manager, such as `kubectl`.
    pub manager: String,
    /// `Apply` or `Update`.
    pub operation: String,
    /// The fields: leaves alone, and maps that are owned while nothing in them is.
    pub paths: Vec<Path>,
}

/// The owners of an object's fields, those of sub-resources left out.
#[must_use]
pub fn owners(object: &Value) -> Vec<Owner> {
    let entries = object.pointer("/metadata/managedFields").and_then(Value::as_array);
    let text =
        |entry: &Value, key: &str| entry.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    entries
        .into_iter()
        .flatten()
        .filter(|entry| text(entry, "subresource").is_empty())
        .map(|entry| Owner {
            manager: text(entry, "manager"),
            operation: text(entry, "operation"),
            paths: entry.get("fieldsV1").map(leaves).unwrap_or_default(),
        })
        .collect()
}

/// The leaves of a FieldsV1 tree. A step that cannot be read counts as the whole of what it is in.
#[must_use]
pub fn leaves(fields: &Value) -> Vec<Path> {
    let mut found = Vec::new();
    let mut pending = vec![(Path::default(), fields)];
    while let Some((path, node)) = pending.pop() {
        let children: Vec<_> = node
            .as_object()
            .into_iter()
            .flatten()
            .filter(|(key, _)| *key != ".")
            .map(|(key, child)| (step(key), child))
            .collect();
        if children.is_empty() || children.iter().any(|(step, _)| step.is_none()) {
            if !path.0.is_empty() {
                found.push(path);
            }
            continue;
        }
        for (step, child) in children.into_iter().rev() {
            let mut path = path.clone();
            path.0.extend(step);
            pending.push((path, child));
        }
    }
    found
}

fn step(key: &str) -> Option<Step> {
    let (kind, rest) = key.split_once(':')?;
    match kind {
        "f" => Some(Step::Field(rest.to_owned())),
        "k" => serde_json::from_str(rest).ok().map(Step::Keys),
        "v" => serde_json::from_str(rest).ok().map(Step::Element),
        "i" => rest.parse().ok().map(Step::Index),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn shown(fields: &Value) -> Vec<String> {
        leaves(fields).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn leaves_are_what_nothing_is_below() {
        let fields = json!({
            "f:metadata": {"f:labels": {".": {}, "f:a/b": {}}},
            "f:spec": {
                "f:empty": {".": {}},
                "f:containers": {"k:{\"name\":\"a\"}": {".": {}, "f:image": {}}},
                "f:finalizers": {"v:\"x\"": {}},
                "f:args": {"i:1": {}},
            },
        });
        assert_eq!(
            shown(&fields),
            [
                "/metadata/labels/a~1b",
                "/spec/args/1",
                r#"/spec/containers/[{"name":"a"}]/image"#,
                "/spec/empty",
                r#"/spec/finalizers/["x"]"#,
            ]
        );
    }

    #[test]
    fn an_unreadable_step_is_the_whole_of_what_it_is_in() {
        assert_eq!(shown(&json!({"f:spec": {"f:a": {"z:?": {}}, "f:b": {}}})), ["/spec/a", "/spec/b"]);
        assert_eq!(shown(&json!({"f:spec": {"k:{": {}}})), ["/spec"]);
        assert!(leaves(&json!({})).is_empty());
        assert!(leaves(&json!("text")).is_empty());
    }

    #[test]
    fn a_path_finds_its_value() {
        let object = json!({"spec": {"list": [{"name": "a", "n": 1}, {"name": "b", "n": 2}], "set": ["x"]}});
        let of = |fields: Value| leaves(&fields).first().and_then(|path| path.of(&object).cloned());
        assert_eq!(of(json!({"f:spec": {"f:list": {"k:{\"name\":\"b\"}": {"f:n": {}}}}})), Some(json!(2)));
        assert_eq!(of(json!({"f:spec": {"f:list": {"k:{\"name\":\"c\"}": {"f:n": {}}}}})), None);
        assert_eq!(of(json!({"f:spec": {"f:set": {"v:\"x\"": {}}}})), Some(json!("x")));
        assert_eq!(of(json!({"f:spec": {"f:set": {"i:0": {}}}})), Some(json!("x")));
    }

    #[test]
    fn sub_resources_have_owners_of_their_own() {
        let object = json!({"metadata": {"managedFields": [
            {"manager": "a", "operation": "Update", "subresource": "status", "fieldsV1": {"f:status": {}}},
            {"manager": "b", "operation": "Apply", "fieldsV1": {"f:spec": {"f:variant": {}}}},
        ]}});
        let owners = owners(&object);
        assert_eq!(owners.len(), 1);
        assert_eq!(owners[0].manager, "b");
        assert_eq!(owners[0].operation, "Apply");
    }
}
