//! What is known of a component's chart: its default values and its schema.

use serde_json::Value;

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
    /// Of a map that is unknown as a whole only its own pointer is listed.
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
        let Value::Object(layer) = layer else { return };
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

    /// What the schema says of a key below.
    fn step<'s>(&'s self, schema: &Known<'s>, key: &str) -> Known<'s> {
        let Known::At(nodes) = schema else { return Known::No };
        let mut found = Vec::new();
        for node in nodes {
            match self.step_node(node, key, 0) {
                Known::Free => return Known::Free,
                Known::At(below) => found.extend(below),
                Known::No => {}
            }
        }
        if found.is_empty() { Known::No } else { Known::At(found) }
    }

    fn step_node<'s>(&'s self, node: &'s Value, key: &str, depth: usize) -> Known<'s> {
        // Deep enough for any real schema; a `$ref` to itself ends here.
        if depth > 32 {
            return Known::Free;
        }
        let Value::Object(node) = node else {
            return if node == &Value::Bool(true) { Known::Free } else { Known::No };
        };
        if node.get("x-kubernetes-preserve-unknown-fields") == Some(&Value::Bool(true))
            || node.contains_key("patternProperties")
        {
            return Known::Free;
        }
        let mut found = Vec::new();
        if let Some(Value::String(reference)) = node.get("$ref") {
            match reference.strip_prefix('#').and_then(|pointer| self.schema.as_ref()?.pointer(pointer)) {
                Some(target) => match self.step_node(target, key, depth + 1) {
                    Known::Free => return Known::Free,
                    Known::At(below) => found.extend(below),
                    Known::No => {}
                },
                None => return Known::Free,
            }
        }
        for combination in ["allOf", "anyOf", "oneOf"] {
            for part in node.get(combination).and_then(Value::as_array).into_iter().flatten() {
                // A part that says nothing about properties, such as `required` alone, opens nothing.
                if !["properties", "additionalProperties", "$ref", "allOf", "anyOf", "oneOf"]
                    .iter()
                    .any(|k| part.get(k).is_some())
                {
                    continue;
                }
                match self.step_node(part, key, depth + 1) {
                    Known::Free => return Known::Free,
                    Known::At(below) => found.extend(below),
                    Known::No => {}
                }
            }
        }
        let properties = node.get("properties").and_then(Value::as_object);
        if let Some(below) = properties.and_then(|properties| properties.get(key)) {
            found.push(below);
        } else {
            match node.get("additionalProperties") {
                Some(Value::Bool(true)) => return Known::Free,
                Some(Value::Object(below)) if below.is_empty() => return Known::Free,
                Some(below @ Value::Object(_)) => found.push(below),
                Some(_) => {}
                None => {
                    let says_nothing = properties.is_none_or(serde_json::Map::is_empty)
                        && !["$ref", "allOf", "anyOf", "oneOf"].iter().any(|k| node.contains_key(*k));
                    if says_nothing && found.is_empty() && node.get("type").is_none_or(|t| t == "object") {
                        return Known::Free;
                    }
                }
            }
        }
        if found.is_empty() { Known::No } else { Known::At(found) }
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

/// Helm's `CoalesceTables`: maps merge, everything else replaces, `null` removes the default.
pub fn coalesce(defaults: &mut Value, over: &Value) {
    match (defaults, over) {
        (Value::Object(defaults), Value::Object(over)) => {
            for (key, value) in over {
                if value.is_null() {
                    defaults.remove(key);
                } else if let Some(below) = defaults.get_mut(key) {
                    coalesce(below, value);
                } else {
                    defaults.insert(key.clone(), value.clone());
                }
            }
        }
        (defaults, over) => *defaults = over.clone(),
    }
}
