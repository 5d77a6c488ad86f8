//! Cozystack's conventions for what is in `packages/`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use cozy_api::packages::PackageSource;
use serde_json::Value;

use crate::files;

/// Where Cozystack keeps its PackageSources.
const SOURCES: &str = "packages/core/platform/sources";
/// Layers of charts that hold packages of ours.
const LAYERS: [&str; 3] = ["packages/system", "packages/apps", "packages/extra"];

fn children(directory: &Path) -> Result<Vec<PathBuf>> {
    if !directory.is_dir() {
        return Ok(Vec::new());
    }
    let entries =
        std::fs::read_dir(directory).with_context(|| format!("cannot list {}", directory.display()))?;
    let mut paths = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    paths.sort();
    Ok(paths)
}

fn read(file: &Path) -> Result<Vec<Value>> {
    let bytes = std::fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
    cozy_yaml::parse_bytes(&bytes, &cozy_yaml::Limits::default())
        .into_iter()
        .map(|document| Ok(document?.value))
        .filter(|value| !matches!(value, Ok(Value::Null)))
        .collect()
}

/// What is wrong with a PackageSource whose charts are below `packages`.
fn source_problems(stem: &str, value: &Value, packages: &Path) -> Vec<String> {
    let source: PackageSource = match serde_json::from_value(value.clone()) {
        Ok(source) => source,
        Err(error) => return vec![format!("is no PackageSource: {error}")],
    };
    let mut problems = Vec::new();
    // What the types do not know is lost on the way: a misspelt field.
    if serde_json::to_value(&source).ok().as_ref() != Some(value) {
        problems.push("has a field that PackageSource does not have".to_owned());
    }
    if source.metadata.name.as_deref() != Some(&format!("cozystack.{stem}")) {
        problems.push(format!("is not named cozystack.{stem}, after its file"));
    }
    for variant in source.spec.variants.iter().flatten() {
        let components = || variant.components.iter().flatten();
        let names: BTreeSet<&str> = components().map(|component| component.name.as_str()).collect();
        let libraries: BTreeSet<&str> = variant
            .libraries
            .iter()
            .flatten()
            .map(|library| {
                library.name.as_deref().unwrap_or_else(|| library.path.rsplit('/').next().unwrap_or_default())
            })
            .collect();
        if names.len() != components().count() {
            problems.push(format!("variant {} has two components of one name", variant.name));
        }
        for component in components() {
            let at = format!("variant {}, component {}", variant.name, component.name);
            let chart = packages.join(&component.path);
            if !chart.join("Chart.yaml").is_file() {
                problems.push(format!("{at}: there is no chart at {}", component.path));
            }
            for file in component.values_files.iter().flatten() {
                if !chart.join(file).is_file() {
                    problems.push(format!("{at}: the chart has no {file}"));
                }
            }
            for library in component.libraries.iter().flatten() {
                if !libraries.contains(library.as_str()) {
                    problems.push(format!("{at}: the variant has no library {library}"));
                }
            }
            let Some(install) = &component.install else { continue };
            if install.namespace.as_deref().unwrap_or_default().is_empty() {
                problems.push(format!("{at}: no namespace"));
            }
            for dependency in install.depends_on.iter().flatten() {
                if !names.contains(dependency.as_str()) {
                    problems.push(format!("{at}: depends on {dependency}, which the variant does not have"));
                }
            }
        }
    }
    problems
}

/// What is wrong with the chart in `directory`.
fn chart_problems(directory: &Path) -> Result<Vec<String>> {
    let mut problems = Vec::new();
    let name = directory.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let chart = read(&directory.join("Chart.yaml"))?.into_iter().next().unwrap_or_default();
    // Applications and their definitions (`…-rd`) are named as they are; the platform's own charts have a prefix.
    let is_system = directory.parent().is_some_and(|layer| layer.ends_with("system"));
    let expected = if is_system && !name.ends_with("-rd") { format!("cozy-{name}") } else { name.to_owned() };
    if chart["name"] != expected.as_str() {
        problems.push(format!("Chart.yaml: the name is not {expected}"));
    }
    for file in ["values.yaml", "Makefile"] {
        if !directory.join(file).is_file() {
            problems.push(format!("no {file}"));
        }
    }
    let tests = children(&directory.join("tests"))?;
    if !tests.iter().any(|test| test.to_string_lossy().ends_with("_test.yaml")) {
        problems.push("no tests/*_test.yaml".to_owned());
    }
    Ok(problems)
}

/// Fails when a chart or a PackageSource breaks a convention, or one names something that is not there.
pub(crate) fn follow_the_conventions() -> Result<()> {
    let root = files::root();
    let mut problems = Vec::new();
    for file in children(&root.join(SOURCES))? {
        let stem = file.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default().to_owned();
        for value in read(&file)? {
            let found = source_problems(&stem, &value, &root.join("packages"));
            problems.extend(found.into_iter().map(|problem| format!("{SOURCES}/{stem}.yaml: {problem}")));
        }
    }
    for layer in LAYERS {
        for directory in children(&root.join(layer))? {
            if directory.join("Chart.yaml").is_file() {
                let name = directory.strip_prefix(&root).unwrap_or(&directory).display().to_string();
                problems.extend(
                    chart_problems(&directory)?.into_iter().map(|problem| format!("{name}: {problem}")),
                );
            }
        }
    }
    if problems.is_empty() { Ok(()) } else { bail!(problems.join("\n")) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn source(component: Value) -> Value {
        json!({
            "apiVersion": "cozystack.io/v1alpha1", "kind": "PackageSource", "metadata": { "name": "cozystack.x" },
            "spec": { "variants": [{ "name": "default", "components": [component] }] },
        })
    }

    #[test]
    fn a_source_names_only_what_is_there() {
        let packages = files::root().join("packages");
        let good = json!({
            "name": "cozy-gitops", "path": "system/cozy-gitops", "valuesFiles": ["values.yaml"],
            "install": { "namespace": "cozy-system" },
        });
        assert_eq!(source_problems("x", &source(good.clone()), &packages), Vec::<String>::new());
        for (pointer, value, expected) in [
            ("/path", json!("system/missing"), "there is no chart"),
            ("/valuesFiles", json!(["values-missing.yaml"]), "has no values-missing.yaml"),
            ("/libraries", json!(["cozy-lib"]), "no library cozy-lib"),
            ("/install/dependsOn", json!(["other"]), "depends on other"),
            ("/install/namespace", json!(""), "no namespace"),
            ("/novel", json!(1), "does not have"),
        ] {
            let mut component = good.clone();
            let (parent, key) = pointer.rsplit_once('/').unwrap();
            component.pointer_mut(parent).unwrap()[key] = value;
            let problems = source_problems("x", &source(component), &packages).join("\n");
            assert!(problems.contains(expected), "{pointer}: {problems}");
        }
        assert!(source_problems("y", &source(good), &packages).join("").contains("cozystack.y"));
    }
}
