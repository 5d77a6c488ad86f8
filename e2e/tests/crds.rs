//! The CRDs on a real API server: Cozystack's objects pass unchanged, installing ours over Cozystack's keeps every
//! object, and PackageValues' validations refuse what they should and nothing else.

#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "helpers of tests")]

mod support;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use cozy_api::packages::{Package, PackageSource, PackageValues};
use kube::api::{
    Api, ApiResource, DeleteParams, DynamicObject, ListParams, ObjectMeta, Patch, PatchParams, PostParams,
};
use kube::{Client, CustomResourceExt};
use serde_json::{Value, json};

/// Where the real objects of Cozystack are, when they are there.
fn data() -> Option<PathBuf> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/data/cozystack");
    if directory.is_dir() {
        return Some(directory);
    }
    println!("skipped: {} is not there", directory.display());
    None
}

fn read(file: &Path) -> Vec<Value> {
    let bytes = std::fs::read(file).unwrap();
    cozy_yaml::parse_bytes(&bytes, &cozy_yaml::Limits::default())
        .into_iter()
        .map(|document| document.unwrap().value)
        .filter(|value| !value.is_null())
        .collect()
}

/// Cozystack's PackageSources and Packages, by kind and name; the sources' own files win over the platform's rendering.
fn cozystack(data: &Path) -> BTreeMap<(String, String), Value> {
    let mut files = vec![
        data.join("platform/isp-full.packagesources.yaml"),
        data.join("platform/isp-full.packages.yaml"),
    ];
    files.extend(std::fs::read_dir(data.join("sources")).unwrap().map(|entry| entry.unwrap().path()));
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    files
        .iter()
        .flat_map(|file| read(file))
        .map(|object| ((text(&object["kind"]), text(&object["metadata"]["name"])), object))
        .collect()
}

fn resource(kind: &str) -> ApiResource {
    match kind {
        "Package" => Package::api_resource(),
        "PackageSource" => PackageSource::api_resource(),
        "PackageValues" => PackageValues::api_resource(),
        other => panic!("unexpected {other}"),
    }
}

fn api(client: &Client, kind: &str) -> Api<DynamicObject> {
    Api::all_with(client.clone(), &resource(kind))
}

/// What the author wrote: without what the API server adds.
fn authored(object: &DynamicObject) -> Value {
    let mut metadata = json!({ "name": object.metadata.name });
    for (key, map) in [("labels", &object.metadata.labels), ("annotations", &object.metadata.annotations)] {
        if let Some(map) = map {
            metadata[key] = json!(map);
        }
    }
    let mut all = object.data.clone();
    all["metadata"] = metadata;
    all["apiVersion"] = json!("cozystack.io/v1alpha1");
    all["kind"] = json!(object.types.as_ref().unwrap().kind);
    all
}

fn refusal(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => status.message.clone(),
        other => panic!("no answer of the API server: {other}"),
    }
}

#[tokio::test]
async fn installing_over_cozystacks_crds_keeps_every_real_object() {
    let Some(data) = data() else { return };
    let cluster = support::cluster().await;
    let client = cluster.admin();
    let cozystacks = |name: &str| read(&data.join(format!("crds/cozystack.io_{name}.yaml")));
    support::install(&client, &cozystacks("packages")).await;
    support::install(&client, &cozystacks("packagesources")).await;

    let objects = cozystack(&data);
    let count = |kind: &str| objects.keys().filter(|(found, _)| found == kind).count();
    assert!(count("PackageSource") >= 99 && count("Package") >= 77, "{} objects", objects.len());
    let mut before = BTreeMap::new();
    for ((kind, name), object) in &objects {
        let object: DynamicObject = serde_json::from_value(object.clone()).unwrap();
        let created = api(&client, kind).create(&PostParams::default(), &object).await.unwrap();
        let status = json!({ "status": { "conditions": [{
            "type": "Ready", "status": "True", "reason": "ReconciliationSucceeded", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }]}});
        let ready = api(&client, kind)
            .patch_status(name, &PatchParams::default(), &Patch::Merge(&status))
            .await
            .unwrap();
        assert_eq!(created.metadata.uid, ready.metadata.uid);
        before.insert((kind.clone(), name.clone()), ready);
    }

    support::install_our_crds(&client).await;

    for ((kind, name), earlier) in &before {
        let now = api(&client, kind).get(name).await.unwrap();
        assert_eq!(&now, earlier, "{kind} {name}");
        // Admitted again, by our validations: nothing to write.
        let replaced = api(&client, kind).replace(name, &PostParams::default(), &now).await.unwrap();
        assert_eq!(replaced.metadata.resource_version, earlier.metadata.resource_version, "{kind} {name}");
    }

    // And back: what ours adds is pruned by Cozystack's, everything else stays.
    support::install(&client, &cozystacks("packages")).await;
    for ((kind, name), earlier) in before.iter().filter(|((kind, _), _)| kind == "Package") {
        assert_eq!(&api(&client, kind).get(name).await.unwrap(), earlier, "{kind} {name}");
    }
}

#[tokio::test]
async fn our_crds_take_real_objects_unchanged_and_keep_unknown_fields_where_they_may_be() {
    let cluster = support::cluster().await;
    let client = cluster.admin();
    support::install_our_crds(&client).await;

    if let Some(data) = data() {
        for ((kind, name), object) in cozystack(&data) {
            let parsed: DynamicObject = serde_json::from_value(object.clone()).unwrap();
            // Strict: an unknown or duplicate field would be refused, not dropped.
            let stored = create_strictly(&client, &kind, &parsed).await.unwrap();
            assert_eq!(authored(&stored), object, "{kind} {name}");
        }
    }

    // Any JSON in a Package's values, and unknown fields at every depth of them.
    for (name, values) in [
        ("object", json!({ "a": { "b": [1, null, { "c": 9_007_199_254_740_993_i64 }] }, "d": null })),
        ("list", json!([1, "x"])),
        ("text", json!("x")),
        ("number", json!(1)),
    ] {
        let spec = json!({ "components": { "c": { "values": values } } });
        let stored = create(&client, "Package", name, spec.clone()).await.unwrap();
        assert_eq!(stored.data["spec"], spec, "{name}");
    }
    // Elsewhere an unknown field is pruned.
    let stored =
        create(&client, "Package", "pruned", json!({ "novel": 1, "variant": "default" })).await.unwrap();
    assert_eq!(stored.data["spec"], json!({ "variant": "default" }));

    // The status of overrides is kept, any value in it; it is written by its own subresource alone.
    let status = json!({
        "effectiveValues": { "c": { "digest": "sha256:0", "values": { "x": [null, 1.5] } } },
        "overrides": { "c": { "from": "object", "generation": 3, "pointers": ["/a", "/b~1c"], "shadowing": ["/a"] } },
        "overrideSummary": "c: /a, /b~1c",
    });
    let patched = api(&client, "Package")
        .patch_status("object", &PatchParams::default(), &Patch::Merge(&json!({ "status": status })))
        .await
        .unwrap();
    assert_eq!(patched.data["status"], status);
    assert_eq!(patched.metadata.generation, Some(1), "status is no change of the spec");
    let overwritten = json!({ "status": { "overrideSummary": "by a user" } });
    let patched = api(&client, "Package")
        .patch("object", &PatchParams::default(), &Patch::Merge(&overwritten))
        .await
        .unwrap();
    assert_eq!(patched.data["status"], status, "the main resource must not write the status");

    // Timestamps that the API server takes although RFC 3339 does not; our types read the object all the same.
    for time in ["2026-01-01t23:59:59z", "2026-01-01T00:00:00,5Z", "2026-01-01T00:00:00-99:99"] {
        let status = json!({ "status": { "conditions": [{
            "type": "Ready", "status": "True", "reason": "A", "message": "", "lastTransitionTime": time,
        }]}});
        api(&client, "Package")
            .patch_status("text", &PatchParams::default(), &Patch::Merge(&status))
            .await
            .unwrap();
        let package = Api::<Package>::all(client.clone()).get("text").await.unwrap();
        assert_eq!(package.status.unwrap().conditions.unwrap()[0].type_, "Ready");
    }

    let columns = table(&client, "packages").await;
    assert_eq!(columns.0, ["Name", "Variant", "Ready", "Status", "Overrides"]);
    assert!(columns.1.iter().any(|row| row[0] == "object" && row[4] == "c: /a, /b~1c"), "{columns:?}");
}

async fn create_strictly(client: &Client, kind: &str, object: &DynamicObject) -> kube::Result<DynamicObject> {
    let url = format!("/apis/cozystack.io/v1alpha1/{}?fieldValidation=Strict", resource(kind).plural);
    let request = http::Request::post(url)
        .header("Content-Type", "application/json")
        .body(serde_json::to_vec(object).unwrap())
        .unwrap();
    client.request(request).await
}

async fn create(client: &Client, kind: &str, name: &str, spec: Value) -> kube::Result<DynamicObject> {
    let object = DynamicObject::new(name, &resource(kind)).data(json!({ "spec": spec }));
    api(client, kind).create(&PostParams::default(), &object).await
}

/// Column names and rows of `kubectl get`.
async fn table(client: &Client, plural: &str) -> (Vec<String>, Vec<Vec<String>>) {
    let request = http::Request::get(format!("/apis/cozystack.io/v1alpha1/{plural}"))
        .header("Accept", "application/json;as=Table;g=meta.k8s.io;v=v1")
        .body(Vec::new())
        .unwrap();
    let table: Value = client.request(request).await.unwrap();
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let names = table["columnDefinitions"].as_array().unwrap().iter().map(|column| text(&column["name"]));
    let rows = table["rows"].as_array().unwrap().iter();
    let rows = rows.map(|row| row["cells"].as_array().unwrap().iter().map(text).collect());
    (names.collect(), rows.collect())
}

fn rule(path: &str, kind: &str, keys: Option<Value>) -> Value {
    let mut rule = json!({ "path": path, "type": kind });
    if let Some(keys) = keys {
        rule["keys"] = keys;
    }
    rule
}

fn with_lists(lists: Value) -> Value {
    json!({ "components": { "c": { "lists": lists } } })
}

#[tokio::test]
async fn package_values_are_refused_or_taken_as_the_api_says() {
    let cluster = support::cluster().await;
    let client = cluster.admin();
    support::install_our_crds(&client).await;

    let key = || Some(json!(["name"]));
    let long = "a".repeat(254);
    let many: Vec<Value> = (0..65).map(|index| rule(&format!("/{index}"), "Append", None)).collect();
    let components: serde_json::Map<String, Value> =
        (0..257).map(|index| (format!("c{index}"), json!({ "values": {} }))).collect();
    let refused: Vec<(&str, Value, &str)> = vec![
        ("values-list", json!({ "components": { "c": { "values": [1] } } }), "must be of type object"),
        ("values-text", json!({ "components": { "c": { "values": "a: 1" } } }), "must be of type object"),
        ("list-null", with_lists(json!([null])), "must be of type object"),
        ("components-list", json!({ "components": [] }), "must be of type object"),
        ("validation", json!({ "validation": "Ignore" }), "Unsupported value"),
        ("suspend", json!({ "suspend": "yes" }), "must be of type boolean"),
        ("path-empty", with_lists(json!([rule("", "Append", None)])), "spec.components.c.lists[0].path"),
        ("path-relative", with_lists(json!([rule("images", "Append", None)])), "should match"),
        ("path-dots", with_lists(json!([rule("a.b", "Append", None)])), "should match"),
        ("path-tilde", with_lists(json!([rule("/a~", "Append", None)])), "should match"),
        ("path-escape", with_lists(json!([rule("/a~2b", "Append", None)])), "should match"),
        (
            "path-long",
            with_lists(json!([rule(&format!("/{}", "a".repeat(1024)), "Append", None)])),
            "Too long",
        ),
        ("path-absent", with_lists(json!([{ "type": "Append" }])), "Required value"),
        ("type-absent", with_lists(json!([{ "path": "/a" }])), "Required value"),
        ("type-other", with_lists(json!([rule("/a", "Set", None)])), "Unsupported value"),
        ("map-without-keys", with_lists(json!([rule("/a", "Map", None)])), "type Map needs keys"),
        (
            "map-no-keys",
            with_lists(json!([rule("/a", "Map", Some(json!([])))])),
            "should have at least 1 items",
        ),
        ("append-with-keys", with_lists(json!([rule("/a", "Append", key())])), "type Append has none"),
        ("key-twice", with_lists(json!([rule("/a", "Map", Some(json!(["n", "n"])))])), "Duplicate value"),
        ("key-empty", with_lists(json!([rule("/a", "Map", Some(json!([""])))])), "at least 1 chars"),
        ("key-long", with_lists(json!([rule("/a", "Map", Some(json!([long])))])), "Too long"),
        (
            "keys-many",
            with_lists(json!([rule(
                "/a",
                "Map",
                Some(json!((0..9).map(|i| i.to_string()).collect::<Vec<_>>()))
            )])),
            "Too many",
        ),
        (
            "path-twice",
            with_lists(json!([rule("/a", "Append", None), rule("/a", "Map", key())])),
            "Duplicate value",
        ),
        ("lists-many", with_lists(json!(many)), "Too many"),
        ("components-many", json!({ "components": components }), "Too many"),
    ];
    for (name, spec, expected) in refused {
        match create(&client, "PackageValues", name, spec).await {
            Ok(_) => panic!("{name} was taken"),
            Err(error) => {
                let message = refusal(&error);
                assert!(message.contains(expected), "{name}: {message}");
            }
        }
    }

    let most: serde_json::Map<String, Value> = (0..200)
        .map(|component| {
            let lists: Vec<Value> = (0..64).map(|list| rule(&format!("/{list}"), "Map", key())).collect();
            (format!("c{component}"), json!({ "lists": lists }))
        })
        .collect();
    let taken: Vec<(&str, Value)> = vec![
        ("empty", json!({})),
        ("suspended", json!({ "suspend": true, "validation": "Enforce" })),
        ("no-values", json!({ "components": { "c": {} } })),
        (
            "unknown-deep",
            json!({ "components": { "a.b": { "values": { "x": { "y": [null, 1.5, { "z": false }] } } } } }),
        ),
        ("exact", json!({ "components": { "c": { "values": { "n": 9_007_199_254_740_993_i64 } } } })),
        (
            "pointers",
            with_lists(json!([
                rule("/", "Append", None),
                rule("/a", "Append", None),
                rule("/a/0/b", "Map", key()),
                rule("/a~1b/c~0d", "Append", None),
                rule("/ключ/с пробелом", "Map", Some(json!(["name", "namespace"]))),
            ])),
        ),
        // The CEL rule's cost is bounded: as much as fits into one object is evaluated within the budget.
        ("most", json!({ "components": most })),
    ];
    for (name, spec) in taken {
        let stored = create(&client, "PackageValues", name, spec.clone()).await.unwrap();
        assert_eq!(stored.data["spec"], spec, "{name}");
    }
    // A null that is no element of a list is dropped; our types read files alike.
    for (name, spec, stored) in [
        ("null-spec", json!(null), json!(null)),
        ("null-components", json!({ "components": null }), json!({})),
        ("null-component", json!({ "components": { "c": null } }), json!({ "components": {} })),
        (
            "null-values",
            json!({ "components": { "c": { "values": null } } }),
            json!({ "components": { "c": {} } }),
        ),
    ] {
        for kind in ["PackageValues", "Package"] {
            let object = create(&client, kind, name, spec.clone()).await.unwrap();
            assert_eq!(object.data["spec"], stored, "{kind} {name}");
        }
    }
    let bare = DynamicObject {
        types: Some(kube::core::TypeMeta::resource::<PackageValues>()),
        metadata: ObjectMeta { name: Some("bare".into()), ..ObjectMeta::default() },
        data: json!({}),
    };
    api(&client, "PackageValues").create(&PostParams::default(), &bare).await.unwrap();
    // Our types read every one of them.
    let read = Api::<PackageValues>::all(client.clone()).list(&ListParams::default()).await.unwrap();
    assert_eq!(read.items.len(), 12);

    the_documentations_examples_are_taken(&client).await;
    status_is_a_subresource(&client).await;
    rules_of_two_appliers_are_merged_by_path(&client).await;
    names_columns_and_category(&client).await;
}

async fn the_documentations_examples_are_taken(client: &Client) {
    let page = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/api.md")).unwrap();
    let blocks = page.split("```yaml\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    let mut taken = 0;
    for block in blocks {
        let object =
            cozy_yaml::parse_bytes(block.as_bytes(), &cozy_yaml::Limits::default()).remove(0).unwrap().value;
        if object["apiVersion"] == "cozystack.io/v1alpha1" {
            let parsed: DynamicObject = serde_json::from_value(object.clone()).unwrap();
            let kind = object["kind"].as_str().unwrap();
            let stored = create_strictly(client, kind, &parsed).await.unwrap();
            assert_eq!(authored(&stored), object);
            taken += 1;
        }
    }
    assert!(taken > 0);
}

async fn status_is_a_subresource(client: &Client) {
    let api = api(client, "PackageValues");
    let condition = |reason: &str| {
        json!({
            "type": "Ready", "status": "True", "reason": reason, "message": "", "observedGeneration": 1,
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        })
    };
    let status = json!({ "status": {
        "observedGeneration": 1,
        "conditions": [condition("Merged")],
        "components": { "c": { "state": "Applied", "unknownKeys": ["/x"] } },
    }});
    let patched = api.patch_status("exact", &PatchParams::default(), &Patch::Merge(&status)).await.unwrap();
    assert_eq!(patched.data["status"], status["status"]);
    assert_eq!(patched.metadata.generation, Some(1));
    for (bad, expected) in [
        (json!({ "conditions": [condition("not camel case")] }), "should match"),
        (json!({ "conditions": [condition("A"), condition("B")] }), "Duplicate value"),
        (json!({ "components": { "c": { "state": "Broken" } } }), "Unsupported value"),
    ] {
        let error = api
            .patch_status("exact", &PatchParams::default(), &Patch::Merge(&json!({ "status": bad })))
            .await
            .unwrap_err();
        assert!(refusal(&error).contains(expected), "{}", refusal(&error));
    }
    let spec = json!({ "spec": { "suspend": true }, "status": null });
    let patched = api.patch("exact", &PatchParams::default(), &Patch::Merge(&spec)).await.unwrap();
    assert_eq!(patched.metadata.generation, Some(2));
    assert_eq!(patched.data["status"], status["status"], "a write of the spec must leave the status alone");
}

async fn rules_of_two_appliers_are_merged_by_path(client: &Client) {
    let api = api(client, "PackageValues");
    for (manager, path) in [("one", "/a"), ("two", "/b")] {
        let object = json!({
            "apiVersion": "cozystack.io/v1alpha1", "kind": "PackageValues", "metadata": { "name": "shared" },
            "spec": with_lists(json!([rule(path, "Append", None)])),
        });
        api.patch("shared", &PatchParams::apply(manager), &Patch::Apply(&object)).await.unwrap();
    }
    let stored = api.get("shared").await.unwrap();
    let paths: Vec<_> = stored.data["spec"]["components"]["c"]["lists"]
        .as_array()
        .unwrap()
        .iter()
        .map(|rule| &rule["path"])
        .collect();
    assert_eq!(paths, ["/a", "/b"]);
    api.delete("shared", &DeleteParams::default()).await.unwrap();
}

async fn names_columns_and_category(client: &Client) {
    let (names, rows) = table(client, "packagevalues").await;
    assert_eq!(names, ["Name", "Ready", "Reason", "Status", "Suspended", "Age"]);
    let row = rows.iter().find(|row| row[0] == "exact").unwrap();
    assert_eq!(row[1..5], ["True", "Merged", "", "true"]);

    let request = http::Request::get("/apis/cozystack.io/v1alpha1").body(Vec::new()).unwrap();
    let discovery: Value = client.request(request).await.unwrap();
    let resource = |name: &str| {
        discovery["resources"].as_array().unwrap().iter().find(|resource| resource["name"] == name).cloned()
    };
    let values = resource("packagevalues").unwrap();
    assert_eq!(values["shortNames"], json!(["pkv"]));
    assert_eq!(values["categories"], json!(["cozystack"]));
    assert_eq!(values["namespaced"], json!(false));
    assert_eq!(values["singularName"], json!("packagevalues"));
    assert!(resource("packagevalues/status").is_some());
    assert_eq!(resource("packages").unwrap()["shortNames"], json!(["pkg", "pkgs"]));
    assert_eq!(resource("packagesources").unwrap()["shortNames"], json!(["pks"]));
}
