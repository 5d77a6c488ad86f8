//! Replays what was recorded of the Go operator on a real API server: the same input gives the same objects.
//!
//! After every recorded step the whole of it is rendered and compared, field by field. Steps whose objects are left
//! over from before, or that show a fault of the Go operator which is not to be repeated, are listed with the reason.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stderr)]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use cozy_api::packages::{Package, PackageSource};
use cozy_core::render::{Dependencies, Gate, RenderOptions, reachable, render_all};
use cozy_core::snapshot::Snapshot;
use serde_json::{Value, json};

/// What is not compared, where, and why.
const SKIPPED: [(&str, &str, &str); 22] = [
    ("c02", "04", "helmreleases: those of the former variant are left over"),
    ("c05", "10", "helmreleases, status: dependents go on although a dependency went away"),
    ("c05", "11", "helmreleases, status: dependents go on although a dependency went away"),
    ("c06", "03", "helmreleases: left over from before the PackageSource went"),
    ("c08", "07", "namespaces: Go leaves the privileged label after the privileged Package went"),
    ("c14", "08", "status: objects come and go while the step was recorded"),
    ("c14b", "03", "status, helmreleases: the Package is being deleted"),
    ("c14b", "04", "status, helmreleases: Go makes releases of a Package that is being deleted"),
    (
        "c17",
        "02",
        "status, namespaces, helmreleases: Go gives up on all components for one without namespace",
    ),
    ("c17", "03", "status, helmreleases: Go waits for a component that is disabled"),
    ("c22", "04", "status, helmreleases: Go lets two Packages fight for one release"),
    ("c22", "05", "status: the deletion was not recorded"),
    ("c23", "02", "status, helmreleases: Go lets two components fight for one release"),
    ("c25", "02", "status, helmreleases: the API server refuses objects in a namespace that goes away"),
    ("c26", "09", "status: a condition set by hand"),
    ("c29", "02", "helmreleases: labels and annotations of the former owner are kept"),
    ("c29", "03", "helmreleases: labels and annotations of the former owner are kept"),
    ("c29", "04", "helmreleases, generators: the deletion was not recorded"),
    ("c30", "08", "helmreleases: left over while the variant is missing"),
    ("c30", "09", "helmreleases: left over while the variant is missing"),
    (
        "c27",
        "",
        "generators: the recovery of source-watcher is the operator's, it does not follow from the input",
    ),
    ("c28", "", "generators: stale ones are the operator's"),
];

fn skipped(case: &str, step: &str, what: &str) -> bool {
    let case = case.split('-').next().unwrap();
    let step = step.split('-').next().unwrap();
    SKIPPED.iter().any(|(c, s, why)| {
        *c == case && (s.is_empty() || *s == step) && why.split(':').next().unwrap().contains(what)
    })
}

#[test]
fn recorded_cases_come_out_the_same() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data/golden");
    let Ok(cases) = fs::read_dir(&root) else {
        eprintln!("skipped: {} is not there", root.display());
        return;
    };
    let mut compared = 0;
    let mut failures = Vec::new();
    let mut cases: Vec<PathBuf> = cases.map(|c| c.unwrap().path()).filter(|p| p.is_dir()).collect();
    cases.sort();
    for case in cases {
        let name = case.file_name().unwrap().to_str().unwrap().to_owned();
        for step in steps(&case) {
            compared += compare(&case, &name, &step, &mut failures);
        }
    }
    assert!(compared > 700, "only {compared} objects were compared");
    assert!(failures.is_empty(), "{} of {compared} objects differ:\n{}", failures.len(), failures.join("\n"));
}

/// Names of the recorded steps, in order.
fn steps(case: &Path) -> Vec<String> {
    let mut out: Vec<String> = fs::read_dir(case.join("output"))
        .unwrap()
        .map(|e| e.unwrap())
        .filter(|e| e.path().is_dir())
        .map(|e| e.file_name().into_string().unwrap())
        .collect();
    out.sort();
    out
}

/// The objects that exist after a step, from the recorded requests.
fn objects(case: &Path, step: &str) -> BTreeMap<(String, String), Value> {
    let mut out = BTreeMap::new();
    let mut files: Vec<PathBuf> =
        fs::read_dir(case.join("input")).unwrap().map(|e| e.unwrap().path()).collect();
    files.sort();
    let last: u32 = step.split('-').next().unwrap().parse().unwrap();
    // These were recorded with the platform's own PackageSources in place.
    if case.file_name().unwrap().to_str().unwrap().starts_with("real-all-variants") {
        let mut sources: Vec<PathBuf> =
            fs::read_dir(case.join("../../cozystack/sources")).unwrap().map(|e| e.unwrap().path()).collect();
        sources.sort();
        for file in sources {
            for document in cozy_yaml::parse_bytes(&fs::read(file).unwrap(), &cozy_yaml::Limits::default()) {
                add(&mut out, document.unwrap().value, 0);
            }
        }
    }
    let is_real = case.file_name().unwrap().to_str().unwrap().starts_with("real");
    for (index, file) in files.iter().enumerate() {
        let name = file.file_name().unwrap().to_str().unwrap();
        let number = name.split('-').next().unwrap().parse::<u32>().ok();
        if !is_real && number.is_some_and(|n| n > last) {
            continue;
        }
        let text = fs::read_to_string(file).unwrap();
        if let Some((method, path)) =
            text.lines().next().and_then(|l| l.strip_prefix("# ")).and_then(|l| l.split_once(' '))
        {
            let path = path.split(' ').next().unwrap();
            if let Some(path) = path.strip_prefix("/apis/cozystack.io/v1alpha1/") {
                request(&mut out, method, path, &text, index);
                continue;
            }
            if matches!(method, "POST" | "PUT" | "PATCH" | "DELETE") {
                continue;
            }
        }
        for document in cozy_yaml::parse_documents(&text, &cozy_yaml::Limits::default()) {
            add(&mut out, document.unwrap().value, index);
        }
    }
    out
}

fn request(
    objects: &mut BTreeMap<(String, String), Value>,
    method: &str,
    path: &str,
    text: &str,
    index: usize,
) {
    let body: Value = serde_json::from_str(text.split_once('\n').unwrap().1).unwrap_or(Value::Null);
    let mut parts = path.split('/');
    let kind = match parts.next().unwrap() {
        "packages" => "Package",
        "packagesources" => "PackageSource",
        other => panic!("{other}"),
    };
    let key = (kind.to_owned(), parts.next().unwrap_or_default().to_owned());
    if parts.next() == Some("status") {
        return;
    }
    match method {
        "POST" | "PUT" => add(objects, body, index),
        // A foreground deletion or a finalizer delays it; in the recorded steps it is done.
        "DELETE" => {
            objects.remove(&key);
        }
        "PATCH" => {
            if let Some(object) = objects.get_mut(&key) {
                merge_patch(object, &body);
            }
        }
        other => panic!("{other}"),
    }
}

fn add(objects: &mut BTreeMap<(String, String), Value>, mut object: Value, index: usize) {
    let key = (
        object["kind"].as_str().unwrap().to_owned(),
        object["metadata"]["name"].as_str().unwrap().to_owned(),
    );
    let created = objects.get(&key).map(|old| old["metadata"]["creationTimestamp"].clone());
    object["metadata"]["creationTimestamp"] =
        created.unwrap_or_else(|| json!(format!("2026-01-01T00:{:02}:{:02}Z", index / 60 % 60, index % 60)));
    objects.insert(key, cozy_yaml::normalize(object));
}

fn merge_patch(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    for (key, value) in patch {
        if value.is_null() {
            target.as_object_mut().unwrap().remove(key);
        } else {
            merge_patch(&mut target[key], value);
        }
    }
}

fn compare(case: &Path, name: &str, step: &str, failures: &mut Vec<String>) -> usize {
    let mut snapshot = Snapshot::new();
    for ((kind, _), object) in objects(case, step) {
        match kind.as_str() {
            "Package" => drop(snapshot.set_package(serde_json::from_value::<Package>(object).unwrap())),
            "PackageSource" => {
                drop(snapshot.set_source(serde_json::from_value::<PackageSource>(object).unwrap()))
            }
            _ => {}
        }
    }
    let ready = reachable(&snapshot);
    let rendered = render_all(&snapshot, &RenderOptions::default(), Dependencies::Ready(&ready));
    let recorded = |file: &str| -> BTreeMap<String, Value> {
        let text = fs::read_to_string(case.join("output").join(step).join(file)).unwrap();
        let list: Vec<Value> = serde_json::from_str(&text).unwrap();
        list.into_iter()
            .map(|object| {
                let metadata = &object["metadata"];
                let key = format!(
                    "{}/{}",
                    metadata["namespace"].as_str().unwrap_or_default(),
                    metadata["name"].as_str().unwrap()
                );
                (key, object)
            })
            .collect()
    };
    let mut check = Check { place: format!("{name}/{step}"), failures, compared: 0 };

    if !skipped(name, step, "helmreleases") {
        let ours = rendered.packages.values().filter(|p| p.gate == Gate::Open).flat_map(|p| &p.releases);
        let ours = ours.map(|r| {
            let mut object = serde_json::to_value(&r.object).unwrap();
            object["metadata"]["ownerReferences"][0]["uid"] = json!("<uid>");
            (
                format!(
                    "{}/{}",
                    object["metadata"]["namespace"].as_str().unwrap(),
                    object["metadata"]["name"].as_str().unwrap()
                ),
                object,
            )
        });
        let mut theirs = recorded("helmreleases.json");
        for object in theirs.values_mut() {
            object.as_object_mut().unwrap().remove("status");
        }
        check.same("HelmRelease", ours.collect(), theirs);
    }
    if !skipped(name, step, "generators") {
        let ours = rendered.sources.values().filter_map(|s| s.object.as_ref()).map(|o| {
            let mut object = serde_json::to_value(o).unwrap();
            object["metadata"]["ownerReferences"][0]["uid"] = json!("<uid>");
            (format!("cozy-system/{}", object["metadata"]["name"].as_str().unwrap()), object)
        });
        let mut theirs = recorded("artifactgenerators.json");
        for object in theirs.values_mut() {
            object.as_object_mut().unwrap().remove("status");
        }
        let mut ours: BTreeMap<String, Value> = ours.collect();
        // There only the generators of the installed Packages were recorded.
        if name.starts_with("real-all-variants") {
            ours.retain(|key, _| theirs.contains_key(key));
        }
        check.same("ArtifactGenerator", ours, theirs);
    }
    if !skipped(name, step, "namespaces") {
        let theirs = recorded("namespaces.json");
        for namespace in rendered.packages.values().flat_map(|p| &p.namespaces) {
            let recorded = theirs.get(&format!("/{}", namespace.name)).cloned().unwrap_or_default();
            let ours = namespace.object();
            check.compared += 1;
            for field in ["labels", "annotations"] {
                for (key, value) in ours["metadata"][field].as_object().into_iter().flatten() {
                    if &recorded["metadata"][field][key] != value {
                        check.failures.push(format!(
                            "{}: Namespace {}: {key}: {}",
                            check.place, namespace.name, recorded["metadata"][field]
                        ));
                    }
                }
            }
            let privileged =
                recorded["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "privileged";
            if privileged != namespace.privileged {
                check.failures.push(format!("{}: Namespace {}: privileged", check.place, namespace.name));
            }
        }
    }
    if !skipped(name, step, "status") {
        let ours = rendered.packages.iter().map(|(name, p)| {
            let mut status = json!({ "ready": [p.ready.status, p.ready.reason, p.ready.message] });
            for (dependency, ready) in &p.dependencies {
                status["dependencies"][dependency] = json!({ "ready": ready });
            }
            (format!("/{name}"), status)
        });
        let theirs = recorded("packages.json").into_iter().map(|(key, object)| {
            let conditions = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
            let ready = conditions.iter().find(|c| c["type"] == "Ready").cloned().unwrap_or_default();
            let mut status = json!({ "ready": [ready["status"], ready["reason"], ready["message"]] });
            if let Some(dependencies) = object["status"].get("dependencies") {
                status["dependencies"] = dependencies.clone();
            }
            (key, status)
        });
        check.same("status of Package", ours.collect(), theirs.collect());
        for (key, object) in recorded("packagesources.json") {
            check.compared += 1;
            let Some(ours) = rendered.sources.get(&key[1..]) else {
                check.failures.push(format!("{}: PackageSource {key} is not in the input", check.place));
                continue;
            };
            if object["status"]["variants"] != json!(ours.variants)
                && !(ours.variants.is_empty() && object["status"].get("variants").is_none())
            {
                check.failures.push(format!(
                    "{}: PackageSource {key}: {} is not {:?}",
                    check.place, object["status"], ours.variants
                ));
            }
        }
    }
    check.compared
}

struct Check<'a> {
    place: String,
    failures: &'a mut Vec<String>,
    compared: usize,
}

impl Check<'_> {
    fn same(&mut self, kind: &str, ours: BTreeMap<String, Value>, theirs: BTreeMap<String, Value>) {
        let keys: std::collections::BTreeSet<&String> = ours.keys().chain(theirs.keys()).collect();
        for key in keys {
            self.compared += 1;
            let (a, b) = (ours.get(key), theirs.get(key));
            let same = matches!((a, b), (Some(a), Some(b)) if cozy_yaml::canonical_eq(a, b));
            if !same {
                let changes = cozy_core::merge::diff_values(b, a);
                let told: Vec<String> = changes
                    .iter()
                    .take(4)
                    .map(|c| format!("{}: {:?} became {:?}", c.pointer, c.from, c.to))
                    .collect();
                self.failures.push(format!("{}: {kind} {key}: {}", self.place, told.join("; ")));
            }
        }
    }
}
