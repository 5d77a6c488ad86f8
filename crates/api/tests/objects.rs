//! Real objects pass through the types without loss, and awkward ones are read.

#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "helpers of tests")]

use std::path::{Path, PathBuf};

use cozy_api::flux::{ArtifactGenerator, HelmRelease};
use cozy_api::packages::{Package, PackageSource, PackageValues};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

fn documents(file: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(file).unwrap();
    let documents: Vec<Value> = serde_saphyr::from_multiple(&text).unwrap();
    documents.into_iter().filter(|document| !document.is_null()).collect()
}

fn data(below: &str) -> Option<Vec<PathBuf>> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data").join(below);
    let Ok(entries) = std::fs::read_dir(&directory) else {
        println!("skipped: {} is not there", directory.display());
        return None;
    };
    Some(entries.map(|entry| entry.unwrap().path()).collect())
}

fn same<K: DeserializeOwned + serde::Serialize>(object: &Value) {
    let read: K = serde_json::from_value(object.clone()).unwrap();
    let mut written = serde_json::to_value(read).unwrap();
    if object.get("metadata").is_some_and(|metadata| metadata.get("creationTimestamp") == Some(&Value::Null))
    {
        written["metadata"]["creationTimestamp"] = Value::Null;
    }
    assert_eq!(&written, object);
}

#[test]
fn every_package_source_and_package_of_cozystack_survives_the_types() {
    let Some(mut files) = data("cozystack/sources") else { return };
    files.extend(data("cozystack/platform").unwrap());
    let (mut sources, mut packages) = (0, 0);
    for object in files.iter().flat_map(|file| documents(file)) {
        match object["kind"].as_str().unwrap() {
            "PackageSource" => {
                same::<PackageSource>(&object);
                sources += 1;
            }
            "Package" => {
                same::<Package>(&object);
                packages += 1;
            }
            other => panic!("unexpected {other}"),
        }
    }
    assert!(sources >= 99 && packages >= 77, "{sources} PackageSources, {packages} Packages");
}

#[test]
fn an_object_without_spec_is_read_since_the_schema_lets_it_through() {
    let object = json!({ "metadata": { "name": "a" } });
    assert_eq!(serde_json::from_value::<Package>(object.clone()).unwrap().spec.variant, None);
    assert_eq!(serde_json::from_value::<PackageSource>(object.clone()).unwrap().spec.source_ref, None);
    assert_eq!(serde_json::from_value::<PackageValues>(object).unwrap().spec.components, None);
}

#[test]
fn values_of_a_package_are_any_json_and_exact() {
    for values in [json!([1]), json!("x"), json!(9_007_199_254_740_993_i64), json!({ "a": null }), json!({})]
    {
        let object = json!({
            "apiVersion": "cozystack.io/v1alpha1", "kind": "Package", "metadata": { "name": "a" },
            "spec": { "components": { "c": { "values": values } } },
        });
        same::<Package>(&object);
    }
}

#[test]
fn null_is_absent_as_the_api_server_stores_it() {
    for (spec, stored) in [
        (Value::Null, json!({})),
        (json!({ "components": null }), json!({})),
        (json!({ "components": { "c": null } }), json!({ "components": {} })),
        (json!({ "components": { "c": { "values": null } } }), json!({ "components": { "c": {} } })),
    ] {
        let object = json!({ "metadata": { "name": "a" }, "spec": spec });
        let package: Package = serde_json::from_value(object.clone()).unwrap();
        assert_eq!(serde_json::to_value(package.spec).unwrap(), stored);
        let values: PackageValues = serde_json::from_value(object).unwrap();
        assert_eq!(serde_json::to_value(values.spec).unwrap(), stored);
    }
    let source: PackageSource = serde_json::from_value(json!({ "metadata": {}, "spec": null })).unwrap();
    assert_eq!(source.spec.variants, None);
}

/// Files of that name anywhere below the directory.
fn below(directory: &Path, name: &str, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            below(&path, name, found);
        } else if path.file_name().is_some_and(|file| file == name) {
            found.push(path);
        }
    }
}

/// Recorded objects have a placeholder where time goes by.
fn with_times(value: &mut Value) {
    match value {
        Value::String(text) if text == "<time>" => *text = "2026-01-01T00:00:00Z".to_owned(),
        Value::Array(items) => items.iter_mut().for_each(with_times),
        Value::Object(fields) => fields.values_mut().for_each(with_times),
        _ => {}
    }
}

#[test]
fn every_recorded_release_and_generator_survives_the_views() {
    let Some(_) = data("golden") else { return };
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data/golden");
    for (name, least) in [("helmreleases.json", 300), ("artifactgenerators.json", 200)] {
        let mut files = Vec::new();
        below(&golden, name, &mut files);
        let mut seen = 0;
        for file in files {
            let mut objects: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
            with_times(&mut objects);
            for object in objects.as_array().unwrap() {
                if name == "helmreleases.json" {
                    same::<HelmRelease>(object)
                } else {
                    same::<ArtifactGenerator>(object)
                }
                seen += 1;
            }
        }
        assert!(seen >= least, "{seen} of {name}");
    }
}
