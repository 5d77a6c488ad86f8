//! Our CRDs of Package and PackageSource are Cozystack's, plus status fields and one printer column.

#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "helpers of tests")]

use std::path::{Path, PathBuf};

use cozy_api::crds;
use serde_json::{Map, Value};

/// What ours may have beyond Cozystack's, as paths of properties.
const ADDED: [&str; 3] = ["/status/effectiveValues", "/status/overrides", "/status/overrideSummary"];

fn cozystack_crd(name: &str) -> Option<Value> {
    let file: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../../shared/data/cozystack/crds")
        .join(format!("cozystack.io_{name}.yaml"));
    let Ok(text) = std::fs::read_to_string(&file) else {
        println!("skipped: {} is not there", file.display());
        return None;
    };
    Some(serde_saphyr::from_str(&text).unwrap())
}

fn our_crd(name: &str) -> Value {
    let crd = crds()
        .into_iter()
        .find(|crd| crd.metadata.name.as_deref() == Some(&format!("{name}.cozystack.io")))
        .unwrap();
    serde_json::to_value(crd).unwrap()
}

fn keywords(schema: &Value) -> Map<String, Value> {
    let mut keywords = schema.as_object().unwrap().clone();
    for structural in ["description", "properties", "items", "additionalProperties"] {
        keywords.remove(structural);
    }
    if let Some(Value::Array(required)) = keywords.get_mut("required") {
        required.sort_by_key(ToString::to_string);
    }
    // The API's `minimum` and the like are floats: 0 and 0.0 are the same bound.
    for value in keywords.values_mut() {
        if let Some(number) = value.as_f64() {
            *value = Value::from(number);
        }
    }
    keywords
}

/// Every difference between the schemas of one node and what is below it.
fn compare(path: &str, theirs: &Value, ours: &Value, differences: &mut Vec<String>) {
    if keywords(theirs) != keywords(ours) {
        differences.push(format!("{path}: {:?} became {:?}", keywords(theirs), keywords(ours)));
    }
    if theirs.get("description").is_some() && ours.get("description").is_none() {
        differences.push(format!("{path}: lost its description"));
    }
    let empty = Map::new();
    let properties = |schema: &Value| schema["properties"].as_object().unwrap_or(&empty).clone();
    let (their_properties, our_properties) = (properties(theirs), properties(ours));
    for (name, their_property) in &their_properties {
        match our_properties.get(name) {
            Some(our_property) => {
                compare(&format!("{path}/{name}"), their_property, our_property, differences);
            }
            None => differences.push(format!("{path}/{name}: missing")),
        }
    }
    for name in our_properties.keys().filter(|name| !their_properties.contains_key(*name)) {
        let path = format!("{path}/{name}");
        if !ADDED.contains(&path.as_str()) {
            differences.push(format!("{path}: added"));
        }
    }
    for (keyword, mark) in [("items", "[]"), ("additionalProperties", "{}")] {
        match (theirs.get(keyword), ours.get(keyword)) {
            (None, None) => {}
            (Some(theirs), Some(ours)) => compare(&format!("{path}{mark}"), theirs, ours, differences),
            (theirs, ours) => differences.push(format!("{path}: {keyword} {theirs:?} became {ours:?}")),
        }
    }
}

fn schema(crd: &Value) -> &Value {
    &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
}

#[test]
fn schemas_are_cozystacks_plus_the_status_of_overrides() {
    for name in ["packages", "packagesources"] {
        let Some(theirs) = cozystack_crd(name) else { return };
        let mut differences = Vec::new();
        compare("", schema(&theirs), schema(&our_crd(name)), &mut differences);
        assert!(differences.is_empty(), "{name}:\n{}", differences.join("\n"));
    }
}

#[test]
fn names_scope_and_subresources_are_cozystacks() {
    for name in ["packages", "packagesources"] {
        let Some(mut theirs) = cozystack_crd(name) else { return };
        let mut ours = our_crd(name);
        for crd in [&mut theirs, &mut ours] {
            let version = &mut crd["spec"]["versions"][0];
            version["schema"].take();
            version["additionalPrinterColumns"].take();
        }
        assert_eq!(ours["spec"], theirs["spec"], "{name}");
    }
}

#[test]
fn printer_columns_are_cozystacks_with_overrides_last() {
    for (name, added) in [("packages", vec!["Overrides"]), ("packagesources", vec![])] {
        let Some(theirs) = cozystack_crd(name) else { return };
        let columns =
            |crd: &Value| crd["spec"]["versions"][0]["additionalPrinterColumns"].as_array().unwrap().clone();
        let (theirs, ours) = (columns(&theirs), columns(&our_crd(name)));
        assert_eq!(ours[..theirs.len()], theirs[..], "{name}");
        let rest: Vec<_> =
            ours[theirs.len()..].iter().map(|column| column["name"].as_str().unwrap()).collect();
        assert_eq!(rest, added);
    }
}

#[test]
fn a_difference_of_any_kind_is_found() {
    let theirs = serde_json::json!({ "type": "object", "properties": {
        "a": { "type": "string", "enum": ["x"], "description": "A." },
        "b": { "type": "array", "items": { "type": "string" } },
        "c": { "x-kubernetes-preserve-unknown-fields": true },
    }});
    let broken = [
        ("/properties/a/enum", Value::from(vec!["x", "y"])),
        ("/properties/a/description", Value::Null),
        ("/properties/b/items/type", Value::from("integer")),
        ("/properties/b/items", Value::Null),
        ("/properties/c/x-kubernetes-preserve-unknown-fields", Value::Null),
        ("/properties/c", Value::Null),
        ("/properties/d", serde_json::json!({ "type": "string" })),
        ("/properties/b/maxItems", Value::from(1)),
    ];
    for (pointer, value) in broken {
        let mut ours = theirs.clone();
        let (parent, key) = pointer.rsplit_once('/').unwrap();
        let parent = ours.pointer_mut(parent).unwrap().as_object_mut().unwrap();
        if value.is_null() {
            parent.remove(key)
        } else {
            parent.insert(key.to_owned(), value)
        };
        let mut differences = Vec::new();
        compare("", &theirs, &ours, &mut differences);
        assert_eq!(differences.len(), 1, "{pointer}: {differences:?}");
    }
}
