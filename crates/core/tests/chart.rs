//! Keys that a chart does not know, and values that its schema refuses.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use cozy_core::chart::{Chart, coalesce};
use serde_json::{Value, json};

fn unknown(values: Value, schema: Option<Value>, layer: Value) -> Vec<String> {
    Chart { values, schema }.unknown_keys(&layer)
}

#[test]
fn a_key_is_known_from_the_defaults() {
    let values = json!({"a": {"b": 1}, "free": {}, "unset": null, "list": []});
    let layer = json!({"a": {"b": 2, "typo": 3}, "free": {"x": {"y": 1}}, "unset": {"z": 1}, "list": [{"q": 1}], "nope": {"deep": 1}, "global": {"x": 1}});
    assert_eq!(unknown(values, None, layer), ["/a/typo", "/nope"]);
}

#[test]
fn or_from_the_schema() {
    let schema = json!({
        "$defs": {"res": {"type": "object", "properties": {"cpu": {}}, "additionalProperties": false}},
        "type": "object",
        "properties": {
            "res": {"$ref": "#/$defs/res"},
            "any": {"type": "object"},
            "typed": {"type": "object", "additionalProperties": {"type": "object", "properties": {"x": {}}}},
            "either": {"oneOf": [{"type": "string"}, {"type": "object", "properties": {"y": {}}}]},
            "both": {"properties": {"own": {}}, "allOf": [{"properties": {"more": {}}}]},
            "kept": {"x-kubernetes-preserve-unknown-fields": true},
            "named": {"patternProperties": {"^a": {}, "^b": {"type": "object", "properties": {"x": {}}}}},
            "loose": {"anyOf": [{"type": "string"}, {"type": "object"}]},
            "when": {"properties": {"kind": {}}, "if": {"properties": {"kind": {"const": "x"}}}, "then": {"properties": {"x": {}}}},
            "list": {"type": "array", "items": {"type": "object", "properties": {"name": {}}}},
            "anylist": {"type": "array"},
            "nullable": {"type": ["object", "null"]},
        }
    });
    let layer = json!({
        "res": {"cpu": 1, "mem": 2}, "any": {"x": 1}, "typed": {"k": {"x": 1, "no": 1}}, "either": {"y": 1, "no": 1},
        "both": {"own": 1, "more": 1, "no": 1}, "kept": {"z": 1}, "named": {"a1": {"z": 1}, "b1": {"x": 1, "no": 1}, "c": 1}, "absent": 1, "loose": {"z": 1},
        "when": {"kind": 1, "x": 1, "no": 1}, "list": [{"name": 1}, {"nmae": 1}], "anylist": [{"z": 1}], "nullable": {"z": 1}
    });
    assert_eq!(
        unknown(json!({}), Some(schema), layer),
        [
            "/absent",
            "/both/no",
            "/either/no",
            "/list/1/nmae",
            "/named/b1/no",
            "/named/c",
            "/res/mem",
            "/typed/k/no",
            "/when/no"
        ]
    );
}

#[test]
fn a_schema_that_refers_to_itself_ends() {
    let schema = json!({"$ref": "#"});
    assert_eq!(unknown(json!({}), Some(schema), json!({"a": {"b": 1}})), Vec::<String>::new());
    let tree = json!({"properties": {"child": {"$ref": "#"}, "leaf": {}}});
    assert_eq!(
        unknown(json!({}), Some(tree), json!({"child": {"child": {"leaf": 1, "no": 1}}})),
        ["/child/child/no"]
    );
}

#[test]
fn a_schema_that_doubles_at_every_step_ends() {
    let mut schema = json!({"$ref": "#/$defs/d0", "$defs": {"d60": {"properties": {"leaf": {}}}}});
    for i in 0..60 {
        let next = json!({"$ref": format!("#/$defs/d{}", i + 1)});
        schema["$defs"][format!("d{i}")] = json!({"allOf": [next, next], "anyOf": [next, {"$ref": "#"}]});
    }
    assert_eq!(unknown(json!({}), Some(schema), json!({"leaf": 1, "no": 1})), ["/no"]);
}

/// Every chart of the platform: its own defaults satisfy its schema, and hold no key that it does not know.
#[test]
fn real_charts_know_their_own_defaults() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data/charts");
    let (mut seen, mut todo) = (0, vec![root.clone()]);
    while let Some(dir) = todo.pop() {
        for entry in std::fs::read_dir(&dir).into_iter().flatten().flatten() {
            if entry.path().is_dir() {
                todo.push(entry.path());
            }
        }
        let (Ok(values), Ok(schema)) =
            (std::fs::read(dir.join("values.yaml")), std::fs::read(dir.join("values.schema.json")))
        else {
            continue;
        };
        let values = cozy_yaml::parse_chart_values(&values, &cozy_yaml::Limits::default()).unwrap().value;
        let schema: Value = serde_json::from_slice(&schema).unwrap();
        let chart = Chart { values: values.clone(), schema: Some(schema) };
        let broken = chart.violations(&json!({}));
        assert!(broken.is_ok(), "{}: {broken:?}", dir.display());
        assert_eq!(chart.unknown_keys(&values), Vec::<String>::new(), "{}", dir.display());
        seen += 1;
    }
    if seen == 0 {
        println!("skipped: {} is not there", root.display());
    } else {
        println!("{seen} charts with a schema");
    }
}

#[test]
fn violations_name_the_place_but_not_the_value() {
    let chart = Chart {
        values: json!({"replicas": 1, "password": "x"}),
        schema: Some(
            json!({"properties": {"replicas": {"type": "integer"}, "password": {"type": "string", "maxLength": 3}}}),
        ),
    };
    assert_eq!(chart.violations(&json!({})).unwrap(), []);
    let found = chart.violations(&json!({"replicas": "three", "password": "hunter2"})).unwrap();
    let pointers: Vec<_> = found.iter().map(|v| v.pointer.as_str()).collect();
    assert_eq!(pointers.len(), 2);
    assert!(pointers.contains(&"/replicas") && pointers.contains(&"/password"));
    assert!(found.iter().all(|v| !v.message.contains("hunter2")), "{found:?}");
}

#[test]
fn defaults_satisfy_what_is_required() {
    let chart = Chart { values: json!({"a": 1}), schema: Some(json!({"required": ["a"]})) };
    assert_eq!(chart.violations(&json!({"b": 1})).unwrap(), []);
    assert_eq!(chart.violations(&json!({"a": null})).unwrap().len(), 1, "null removes the default");
}

#[test]
fn a_broken_schema_is_an_error_and_nothing_is_fetched() {
    let broken = Chart { values: json!({}), schema: Some(json!({"type": 5})) };
    assert!(broken.violations(&json!({})).is_err());
    let remote =
        Chart { values: json!({}), schema: Some(json!({"$ref": "https://example.org/schema.json"})) };
    assert!(remote.violations(&json!({})).is_err());
    let file = Chart { values: json!({}), schema: Some(json!({"$ref": "file:///etc/hostname"})) };
    assert!(file.violations(&json!({})).is_err());
}

#[test]
fn coalescing_is_helms() {
    let mut values = json!({"a": {"b": 1, "c": 2}, "l": [1, 2], "gone": 1});
    coalesce(&mut values, &json!({"a": {"b": {"now": "a map"}}, "l": [3], "gone": null, "new": 1}));
    assert_eq!(values, json!({"a": {"b": {"now": "a map"}, "c": 2}, "l": [3], "new": 1}));
}
