//! `render`.

use anyhow::Result;
use cozy_core::plan::Severity;
use cozy_core::render::{
    Dependencies, Outcome as Condition, PackageRender, RenderedAll, ValuesRender, render_all,
};
use cozy_core::snapshot::Snapshot;
use serde_json::{Map, Value, json};

use crate::args::{self, RenderOutput};
use crate::printer::Printer;
use crate::{Outcome, text};

/// Renders and prints.
pub(crate) fn run(command: &args::Render, printer: &Printer) -> Result<Outcome> {
    let (prepared, mut findings) = super::plan::prepare(&command.inputs, command.repo.as_deref())?;
    let options = (&command.inputs.releases).into();
    let rendered = render_all(prepared.snapshot(), &options, Dependencies::Assumed);
    let objects = objects(prepared.snapshot(), &rendered)?;
    let printed = match command.output {
        RenderOutput::Json => {
            let list = json!({ "apiVersion": "v1", "kind": "List", "items": objects });
            cozy_yaml::to_json_pretty(&list)?
        }
        RenderOutput::Yaml => {
            let mut text = String::new();
            for object in &objects {
                text.push_str("---\n");
                text.push_str(&cozy_yaml::to_yaml(object)?);
            }
            text
        }
    };
    printer.data(&printed)?;
    findings.extend(prepared.plan(&options).findings);
    findings.retain(|finding| finding.severity == Severity::Error);
    if findings.is_empty() {
        return Ok(Outcome::Unchanged);
    }
    let mut told = String::new();
    text::findings(&mut told, &findings);
    printer.note(&told);
    Ok(Outcome::Failed)
}

/// Every object that the operator makes, and ours with their status, ordered by kind, namespace and name.
fn objects(snapshot: &Snapshot, rendered: &RenderedAll) -> Result<Vec<Value>> {
    let mut out = Vec::new();
    for (name, package) in &rendered.packages {
        for release in &package.releases {
            out.push(serde_json::to_value(&release.object)?);
        }
        out.extend(package.namespaces.iter().map(cozy_core::render::NamespaceRender::object));
        if let Some(object) = snapshot.package(name) {
            let generation = object.metadata.generation;
            out.push(with_status(serde_json::to_value(object)?, package_status(package, generation)));
        }
        if let (Some(object), Some(values)) = (snapshot.values(name), &package.package_values) {
            out.push(with_status(serde_json::to_value(object)?, values_status(values)));
        }
    }
    for (name, values) in &rendered.orphans {
        if let Some(object) = snapshot.values(name) {
            out.push(with_status(serde_json::to_value(object)?, values_status(values)));
        }
    }
    for (name, source) in &rendered.sources {
        if let Some(object) = &source.object {
            out.push(serde_json::to_value(object)?);
        }
        if let Some(object) = snapshot.source(name) {
            let mut status = json!({ "variants": source.variants });
            if let Some(ready) = &source.without_generator {
                let generation = object.metadata.generation;
                put(&mut status, "conditions", json!([condition("Ready", ready, generation)]));
            }
            out.push(with_status(serde_json::to_value(object)?, status));
        }
    }
    out.sort_by_cached_key(|object| {
        let text =
            |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
        (text("/kind"), text("/metadata/namespace"), text("/metadata/name"))
    });
    // A namespace belongs to all the Packages that use it.
    out.dedup();
    Ok(out)
}

fn put(object: &mut Value, key: &str, value: Value) {
    if let Value::Object(map) = object {
        map.insert(key.to_owned(), value);
    }
}

fn with_status(mut object: Value, status: Value) -> Value {
    put(&mut object, "status", status);
    object
}

/// A condition without its time, which only a cluster has.
fn condition(kind: &str, outcome: &Condition, generation: Option<i64>) -> Value {
    let mut out = json!({
        "type": kind, "status": outcome.status, "reason": outcome.reason, "message": outcome.message,
    });
    if let Some(generation) = generation {
        put(&mut out, "observedGeneration", json!(generation));
    }
    out
}

fn package_status(package: &PackageRender, generation: Option<i64>) -> Value {
    let mut conditions = vec![condition("Ready", &package.ready, generation)];
    if let Some(merged) = &package.values_merged {
        conditions.push(condition("ValuesMerged", merged, generation));
    }
    let mut status = json!({ "conditions": conditions });
    if !package.dependencies.is_empty() {
        let dependencies: Map<String, Value> = package
            .dependencies
            .iter()
            .map(|(name, ready)| (name.clone(), json!({ "ready": ready })))
            .collect();
        put(&mut status, "dependencies", Value::Object(dependencies));
    }
    if !package.effective_values.is_empty() {
        put(&mut status, "effectiveValues", json!(package.effective_values));
    }
    if !package.overrides.is_empty() {
        put(&mut status, "overrides", json!(package.overrides));
    }
    status
}

fn values_status(values: &ValuesRender) -> Value {
    let mut status = json!({ "conditions": [condition("Ready", &values.ready, values.generation)] });
    if !values.components.is_empty() {
        let components: Map<String, Value> = values
            .components
            .iter()
            .map(|(name, component)| {
                let mut out = json!({ "state": component.state });
                if let Some(keys) = component.unknown_keys.as_ref().filter(|keys| !keys.is_empty()) {
                    put(&mut out, "unknownKeys", json!(keys));
                }
                (name.clone(), out)
            })
            .collect();
        put(&mut status, "components", Value::Object(components));
    }
    status
}
