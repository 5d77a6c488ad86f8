//! What is known of a component's chart: its default values and its schema.

use std::collections::HashSet;

use serde_json::{Map, Value};

/// A chart's own files, as far as overrides need them.
#[derive(Clone, Debug, Default)]
pub struct Chart {
    /// `values.yaml` with the component's values files merged in, subcharts' defaults below their names.
    pub values: Value,
    /// `values.schema.json`, where the chart ships one.
    pub schema: Option<Value>,
}

/// One way in which values break a schema.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// RFC 6901 pointer of the offending value.
    pub pointer: String,
    /// What is wrong, without the value itself.
    pub message: String,
}

/// The schema itself is broken, or refers to another document.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the chart's values.schema.json cannot be used: {0}")]
pub struct SchemaError(String);

impl Chart {
    /// Pointers of the layer's values that exist neither in the chart's default values nor in its schema, ordered.
    /// Of a map that is unknown as a whole only its own pointer is listed. Elements of lists are judged by the
    /// schema alone.
    #[must_use]
    pub fn unknown_keys(&self, layer: &Value) -> Vec<String> {
        let mut out = Vec::new();
        let schema = self.schema.as_ref().map_or(Known::No, |schema| Known::At(vec![schema]));
        self.walk(layer, Some(&self.values), &schema, &mut String::new(), &mut out);
        out.sort_unstable();
        out
    }

    fn walk(
        &self,
        layer: &Value,
        defaults: Option<&Value>,
        schema: &Known<'_>,
        pointer: &mut String,
        out: &mut Vec<String>,
    ) {
        let layer = match layer {
            Value::Object(layer) => layer,
            Value::Array(items) => return self.walk_list(items, schema, pointer, out),
            _ => return,
        };
        match defaults {
            // The chart leaves it empty for the user to fill.
            Some(Value::Object(map)) if map.is_empty() && !pointer.is_empty() => return,
            Some(Value::Null) if !pointer.is_empty() => return,
            _ => {}
        }
        for (key, value) in layer {
            // Helm hands `global` to every subchart.
            if pointer.is_empty() && key == "global" {
                continue;
            }
            let default = defaults.and_then(Value::as_object).and_then(|map| map.get(key));
            let below = self.step(schema, key);
            let length = pointer.len();
            cozy_yaml::push_token(pointer, key);
            match (&below, default) {
                (Known::Free, _) => {}
                (Known::No, None) => out.push(pointer.clone()),
                _ => self.walk(value, default, &below, pointer, out),
            }
            pointer.truncate(length);
        }
    }

    fn walk_list(&self, items: &[Value], schema: &Known<'_>, pointer: &mut String, out: &mut Vec<String>) {
        let Known::At(nodes) = schema else { return };
        let mut below: Vec<&Value> = Vec::new();
        for Part { node, .. } in self.parts(nodes) {
            match node {
                Value::Object(node) => match node.get("items") {
                    Some(items @ Value::Object(_)) => below.push(items),
                    // Anything, or by position.
                    _ if node.get("type").is_none_or(|kind| names(kind, "array")) => return,
                    _ => {}
                },
                _ => return,
            }
        }
        if below.is_empty() {
            return;
        }
        let below = Known::At(below);
        for (index, item) in items.iter().enumerate() {
            let length = pointer.len();
            cozy_yaml::push_token(pointer, &index.to_string());
            self.walk(item, None, &below, pointer, out);
            pointer.truncate(length);
        }
    }

    /// What the schema says of a key below.
    fn step<'s>(&'s self, schema: &Known<'s>, key: &str) -> Known<'s> {
        let Known::At(nodes) = schema else { return Known::No };
        let parts = self.parts(nodes);
        let mut found = Vec::new();
        for part in &parts {
            match part.step(key) {
                Known::Free => return Known::Free,
                Known::At(below) => found.extend(below),
                Known::No => {}
            }
        }
        if !found.is_empty() {
            return Known::At(found);
        }
        // Parts that only refer to each other say nothing.
        let silent = !parts.iter().any(Part::speaks_of_keys);
        let open = |part: &Part<'_>| !part.branch && part.allows_maps();
        if silent && parts.iter().any(open) { Known::Free } else { Known::No }
    }

    /// The schemas and all that they are made of (`$ref`, `allOf`, `anyOf`, …), each once: a schema may refer to
    /// itself.
    fn parts<'s>(&'s self, nodes: &[&'s Value]) -> Vec<Part<'s>> {
        let mut seen: HashSet<*const Value> = HashSet::new();
        let mut todo: Vec<Part<'s>> = nodes.iter().map(|node| Part { node, branch: false }).collect();
        let mut out = Vec::new();
        while let Some(part) = todo.pop() {
            if !seen.insert(std::ptr::from_ref(part.node)) {
                continue;
            }
            out.push(part);
            let Value::Object(node) = part.node else { continue };
            if let Some(Value::String(reference)) = node.get("$ref") {
                let target = reference.strip_prefix('#').and_then(|to| self.schema.as_ref()?.pointer(to));
                // What is elsewhere may say anything.
                todo.push(Part { node: target.unwrap_or(&Value::Bool(true)), branch: part.branch });
            }
            let lists =
                ["allOf", "anyOf", "oneOf"].iter().filter_map(|name| node.get(*name)?.as_array()).flatten();
            let single = ["if", "then", "else"].iter().filter_map(|name| node.get(*name));
            let dependent = node.get("dependentSchemas").and_then(Value::as_object).into_iter().flatten();
            let branches = lists.chain(single).chain(dependent.map(|(_, part)| part));
            todo.extend(branches.map(|node| Part { node, branch: true }));
        }
        out
    }

    /// How the effective values break the chart's schema: what Helm would refuse them for. Empty without a schema.
    ///
    /// # Errors
    /// When the schema itself is broken or refers to another document (nothing is ever fetched).
    pub fn violations(&self, values: &Value) -> Result<Vec<Violation>, SchemaError> {
        let Some(schema) = &self.schema else { return Ok(Vec::new()) };
        let validator =
            jsonschema::validator_for(schema).map_err(|error| SchemaError(error.masked().to_string()))?;
        // Helm validates what it coalesced.
        let mut coalesced = self.values.clone();
        coalesce(&mut coalesced, values);
        Ok(validator
            .iter_errors(&coalesced)
            .map(|error| Violation {
                pointer: error.instance_path().to_string(),
                message: error.masked().to_string(),
            })
            .collect())
    }
}

/// What a schema says of a place.
enum Known<'s> {
    /// Nothing.
    No,
    /// Anything is allowed below.
    Free,
    /// These schemas apply.
    At(Vec<&'s Value>),
}

/// One schema without the others that it is made of.
#[derive(Clone, Copy)]
struct Part<'s> {
    node: &'s Value,
    /// Whether it is a branch of another one, such as an element of `anyOf`.
    branch: bool,
}

/// Keywords that make a schema of others.
const COMBINING: [&str; 8] = ["$ref", "allOf", "anyOf", "oneOf", "if", "then", "else", "dependentSchemas"];

impl<'s> Part<'s> {
    fn speaks_of_keys(&self) -> bool {
        let speaks = |name| self.node.get(name).is_some();
        ["properties", "patternProperties", "additionalProperties"].into_iter().any(speaks)
    }

    fn allows_maps(&self) -> bool {
        self.node != &Value::Bool(false) && self.node.get("type").is_none_or(|kind| names(kind, "object"))
    }

    fn step(&self, key: &str) -> Known<'s> {
        let node = match self.node {
            Value::Object(node) => node,
            Value::Bool(true) if !self.branch => return Known::Free,
            // `if: true` and the like say nothing of keys, `false` allows none.
            _ => return Known::No,
        };
        if node.get("x-kubernetes-preserve-unknown-fields") == Some(&Value::Bool(true)) {
            return Known::Free;
        }
        let properties = node.get("properties").and_then(Value::as_object);
        let patterns = node.get("patternProperties").and_then(Value::as_object);
        let mut found: Vec<&Value> =
            properties.and_then(|properties| properties.get(key)).into_iter().collect();
        for (pattern, below) in patterns.into_iter().flatten() {
            if matches(pattern, key) {
                found.push(below);
            }
        }
        if !found.is_empty() {
            return Known::At(found);
        }
        match node.get("additionalProperties") {
            Some(Value::Bool(true)) => Known::Free,
            Some(Value::Object(below)) if below.is_empty() => Known::Free,
            Some(below @ Value::Object(_)) => Known::At(vec![below]),
            Some(_) => Known::No,
            None => {
                let silent = properties.is_none_or(Map::is_empty)
                    && patterns.is_none_or(Map::is_empty)
                    && !COMBINING.iter().any(|keyword| node.contains_key(*keyword));
                let object = node.get("type").map(|kind| names(kind, "object"));
                // A branch without a type, such as `required` alone, opens nothing.
                if silent && object.unwrap_or(!self.branch) { Known::Free } else { Known::No }
            }
        }
    }
}

/// Whether a schema's `type` is or lists `name`.
fn names(kind: &Value, name: &str) -> bool {
    kind == name || kind.as_array().is_some_and(|kinds| kinds.iter().any(|kind| kind == name))
}

/// Whether a key matches a pattern of `patternProperties`; one that cannot be compiled matches all.
fn matches(pattern: &str, key: &str) -> bool {
    let schema = serde_json::json!({ "pattern": pattern });
    jsonschema::validator_for(&schema).map_or(true, |validator| validator.is_valid(&Value::from(key)))
}

/// Merges values over a chart's defaults as Helm does (`chartutil.CoalesceValues`): maps merge, everything else
/// replaces, `null` removes the default that is there, and stays where there is none.
pub fn coalesce(defaults: &mut Value, over: &Value) {
    coalesce_at(defaults, over, true);
}

fn coalesce_at(defaults: &mut Value, over: &Value, top: bool) {
    let (Value::Object(defaults), Value::Object(over)) = (&mut *defaults, over) else {
        *defaults = over.clone();
        return;
    };
    for (key, value) in over {
        match defaults.get_mut(key) {
            // Over a `null` of the chart, `null` stays; Helm makes an exception of the top level.
            Some(below) if value.is_null() && (top || !below.is_null()) => {
                defaults.remove(key);
            }
            Some(below) => coalesce_at(below, value, false),
            None => {
                defaults.insert(key.clone(), value.clone());
            }
        }
    }
}

/// Merges one of a component's `valuesFiles` over those before it as Flux does when it builds the artifact
/// (`transform.MergeMaps`): like [`coalesce`], but `null` is a value like others.
pub fn merge_file(values: &mut Value, over: &Value) {
    crate::merge::merge_plain(values, over);
}
