//! Whatever the CRDs let through, the types read: one object that they refused would stop the watch of all.

#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

use cozy_api::crds;
use cozy_api::packages::{Package, PackageSource, PackageValues};
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use proptest::strategy::Union;
use serde_json::{Map, Value, json};

/// Timestamps that the API server's `format: date-time` takes.
const TIMES: [&str; 6] = [
    "2026-01-01T00:00:00Z",
    "2026-01-01t23:59:59z",
    "2026-01-01T00:00:00.123456789+14:00",
    "2026-01-01T00:00:00,5Z",
    "0000-01-01T00:00:00Z",
    "2026-01-01T00:00:00-99:99",
];

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>()
            .prop_filter_map("finite", |number| serde_json::Number::from_f64(number).map(Value::from)),
        ".{0,8}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 16, 4, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..4).prop_map(Value::from),
            btree_map(".{0,6}", inner, 0..4).prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

/// Values that a structural schema accepts; patterns and CEL rules are not looked at, so it makes more, not fewer.
fn accepted(schema: &Value) -> BoxedStrategy<Value> {
    if let Some(values) = schema["enum"].as_array() {
        return Union::new(values.iter().cloned().map(Just)).boxed();
    }
    let preserve = schema["x-kubernetes-preserve-unknown-fields"] == true;
    match schema["type"].as_str() {
        None => any_json().boxed(),
        Some("string") if schema["format"] == "date-time" => {
            proptest::sample::select(TIMES.to_vec()).prop_map(Value::from).boxed()
        }
        Some("string") => ".{0,12}".prop_map(Value::from).boxed(),
        Some("boolean") => any::<bool>().prop_map(Value::from).boxed(),
        Some("integer") => any::<i64>().prop_map(Value::from).boxed(),
        Some("array") => vec(accepted(&schema["items"]), 0..3).prop_map(Value::from).boxed(),
        Some("object") if preserve => btree_map(".{0,6}", any_json(), 0..3)
            .prop_map(|map| Value::Object(map.into_iter().collect()))
            .boxed(),
        Some("object") if schema["additionalProperties"].is_object() => {
            btree_map(".{0,6}", accepted(&schema["additionalProperties"]), 0..3)
                .prop_map(|map| Value::Object(map.into_iter().collect()))
                .boxed()
        }
        Some("object") => {
            let required: Vec<&str> =
                schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
            let mut fields: BoxedStrategy<Map<String, Value>> = Just(Map::new()).boxed();
            for (name, property) in schema["properties"].as_object().into_iter().flatten() {
                let (name, needed) = (name.clone(), required.contains(&name.as_str()));
                let value = (accepted(property), any::<bool>());
                fields = (fields, value)
                    .prop_map(move |(mut fields, (value, present))| {
                        if needed || present {
                            fields.insert(name.clone(), value);
                        }
                        fields
                    })
                    .boxed();
            }
            fields.prop_map(Value::Object).boxed()
        }
        Some(other) => panic!("unexpected type {other}"),
    }
}

fn objects() -> impl Strategy<Value = Value> {
    Union::new(crds().into_iter().map(|crd| {
        let crd = serde_json::to_value(crd).unwrap();
        let kind = crd["spec"]["names"]["kind"].clone();
        let mut schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"].clone();
        for given in ["apiVersion", "kind", "metadata"] {
            schema["properties"].as_object_mut().unwrap().remove(given);
        }
        accepted(&schema).prop_map(move |mut object| {
            object["apiVersion"] = json!("cozystack.io/v1alpha1");
            object["kind"] = kind.clone();
            object["metadata"] = json!({ "name": "a" });
            object
        })
    }))
}

/// What is read and written again; the types keep whatever the schema has.
fn round_trip(object: &Value) -> Result<Value, serde_json::Error> {
    match object["kind"].as_str() {
        Some("Package") => serde_json::to_value(serde_json::from_value::<Package>(object.clone())?),
        Some("PackageSource") => {
            serde_json::to_value(serde_json::from_value::<PackageSource>(object.clone())?)
        }
        _ => serde_json::to_value(serde_json::from_value::<PackageValues>(object.clone())?),
    }
}

/// Every pointer to a leaf, without timestamps (written in one form) and without what is empty or null.
fn leaves(at: &str, value: &Value, found: &mut Vec<(String, String)>) {
    match value {
        Value::Object(fields) => {
            fields.iter().for_each(|(name, field)| leaves(&format!("{at}/{name}"), field, found))
        }
        Value::Array(items) => {
            items.iter().enumerate().for_each(|(index, item)| leaves(&format!("{at}/{index}"), item, found));
        }
        Value::Null => {}
        _ if at.ends_with("/lastTransitionTime") => {}
        leaf => found.push((at.to_owned(), leaf.to_string())),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn the_types_read_and_keep_whatever_the_schema_accepts(object in objects()) {
        let written = round_trip(&object);
        prop_assert!(written.is_ok(), "{:?}\n{object}", written.err());
        let (mut before, mut after) = (Vec::new(), Vec::new());
        leaves("", &object, &mut before);
        leaves("", &written.unwrap(), &mut after);
        prop_assert_eq!(before, after);
    }
}
