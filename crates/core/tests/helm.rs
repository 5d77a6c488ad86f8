//! What Helm makes of values: the real one, where it was built (`peers/build.sh`).
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout)]

use std::path::{Path, PathBuf};
use std::process::Command;

use cozy_core::chart::coalesce;
use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use serde_json::{Value, json};

/// The cached binary; `None`, with a printed line, where there is none.
fn helm() -> Option<PathBuf> {
    let from = |name: &str, below: &str| Some(Path::new(&std::env::var_os(name)?).join(below));
    let cache = from("COZY_GITOPS_CACHE", "")
        .or_else(|| from("XDG_CACHE_HOME", "cozy-gitops"))
        .or_else(|| from("HOME", ".cache/cozy-gitops"))?;
    let helm = cache.join("bin/helm");
    if helm.is_file() {
        return Some(helm);
    }
    println!("skipped: {} is not there, peers/build.sh builds it", helm.display());
    None
}

/// What templates of a chart with these defaults see under these values.
fn values_in_templates(helm: &Path, defaults: &Value, values: &Value) -> Value {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
    std::fs::create_dir(dir.path().join("templates")).unwrap();
    write("Chart.yaml", "apiVersion: v2\nname: c\nversion: 0.1.0\n");
    write("values.yaml", &cozy_yaml::to_yaml(defaults).unwrap());
    write("over.yaml", &cozy_yaml::to_yaml(values).unwrap());
    let template = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\ndata: {values: {{ toJson .Values | quote }}}\n";
    write("templates/x.yaml", template);
    let mut command = Command::new(helm);
    command.arg("template").arg("x").arg(dir.path()).arg("-f").arg(dir.path().join("over.yaml"));
    let output = command.env("HOME", dir.path()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let rendered = cozy_yaml::parse_one(&output.stdout, &cozy_yaml::Limits::default()).unwrap().value;
    serde_json::from_str(rendered["data"]["values"].as_str().unwrap()).unwrap()
}

/// Few keys, so that both sides meet.
fn tree() -> impl Strategy<Value = Value> {
    let leaf =
        prop::sample::select(vec![json!(null), json!(1), json!("x"), json!([1]), json!({}), json!(true)]);
    let tree = leaf.prop_recursive(4, 24, 4, |inner| {
        prop::collection::btree_map(prop::sample::select(vec!["a", "b", "c", "d"]), inner, 0..4)
            .prop_map(|map| map.into_iter().map(|(key, value)| (key.to_owned(), value)).collect::<Value>())
    });
    prop::collection::btree_map(prop::sample::select(vec!["a", "b", "c", "d"]), tree, 0..4)
        .prop_map(|map| map.into_iter().map(|(key, value)| (key.to_owned(), value)).collect::<Value>())
}

#[test]
fn values_coalesce_as_in_helm() {
    let Some(helm) = helm() else { return };
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let mut draw = || -> Value {
        (0..400).map(|i| (format!("case{i}"), tree().new_tree(&mut runner).unwrap().current())).collect()
    };
    let (mut ours, over) = (draw(), draw());
    let helms = values_in_templates(&helm, &ours, &over);
    let defaults = ours.clone();
    coalesce(&mut ours, &over);
    for (case, value) in ours.as_object().unwrap() {
        assert_eq!(value, &helms[case], "{} over {}", over[case], defaults[case]);
    }
    assert_eq!(ours, helms);

    // The top level has rules of its own.
    for _ in 0..8 {
        let mut draw = || tree().new_tree(&mut runner).unwrap().current();
        let (defaults, over) = (draw(), draw());
        let mut ours = defaults.clone();
        coalesce(&mut ours, &over);
        assert_eq!(ours, values_in_templates(&helm, &defaults, &over), "{over} over {defaults}");
    }
}

/// The product's promise: `null` in an override removes the chart's default, a list replaces, a map merges.
#[test]
fn an_override_reaches_the_templates() {
    use cozy_api::packages::ComponentValues;
    let Some(helm) = helm() else { return };
    let chart =
        json!({"image": {"tag": "v1", "pull": "Always"}, "debug": {"on": true}, "hosts": ["a"], "n": 1});
    let package = json!({"image": {"tag": "v2"}, "hosts": ["b"]});
    let layer = json!({"image": {"tag": "v3", "pull": null}, "debug": null, "hosts": ["c"], "n": 9_007_199_254_740_991_i64});
    let layer = ComponentValues { values: Some(layer), lists: None };
    let merged = cozy_core::merge::merge_component(Some(&package), &layer, None).unwrap().values.unwrap();
    assert_eq!(
        values_in_templates(&helm, &chart, &merged),
        json!({"image": {"tag": "v3"}, "hosts": ["c"], "n": 9_007_199_254_740_991_i64})
    );
}
