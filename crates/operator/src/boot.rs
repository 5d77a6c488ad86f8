//! What is done once, before the controllers: CRDs, Flux, the platform's own source.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use cozy_api::names;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DynamicObject, Patch, PatchParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::discovery::{self, Scope};
use kube::{Api, Client, CustomResourceExt};
use serde_json::{Map, Value, json};
use tracing::info;

use crate::Error;
use crate::config::{Config, PlatformSource};
use crate::lease::Leader;

/// Longest wait for what was installed.
const PATIENCE: Duration = Duration::from_secs(120);
const LOOK_AGAIN: Duration = Duration::from_millis(200);

fn failed(step: &str, reason: impl std::fmt::Display) -> Error {
    Error::Boot { step: step.to_owned(), reason: reason.to_string() }
}

fn manager() -> PatchParams {
    PatchParams::apply(names::MANAGER_OPERATOR).force()
}

/// Everything that the flags ask for, in the Go operator's order.
pub(crate) async fn run(config: &Config, client: &Client, leader: &Leader) -> Result<(), Error> {
    if config.install_crds {
        install_crds(client, leader).await?;
    }
    if let Some(directory) = &config.flux_manifests {
        install_flux(client, leader, directory).await?;
    }
    if let Some(source) = &config.platform_source {
        leader.check().map_err(|error| failed("platform source", error))?;
        platform_source(config, client, source).await?;
        if config.install_crds {
            platform_package_source(config, client, source).await?;
        }
    }
    Ok(())
}

async fn install_crds(client: &Client, leader: &Leader) -> Result<(), Error> {
    const STEP: &str = "--install-crds";
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    let crds = [
        cozy_api::packages::Package::crd(),
        cozy_api::packages::PackageSource::crd(),
        cozy_api::packages::PackageValues::crd(),
    ];
    for crd in &crds {
        leader.check().map_err(|error| failed(STEP, error))?;
        let name = crd.metadata.name.as_deref().unwrap_or_default();
        api.patch(name, &manager(), &Patch::Apply(crd))
            .await
            .map_err(|error| failed(STEP, format!("{name}: {error}")))?;
    }
    for crd in &crds {
        let name = crd.metadata.name.as_deref().unwrap_or_default();
        wait_established(&api, STEP, name).await?;
    }
    info!("the CRDs are installed");
    Ok(())
}

async fn wait_established(api: &Api<CustomResourceDefinition>, step: &str, name: &str) -> Result<(), Error> {
    let start = Instant::now();
    loop {
        let crd = api.get(name).await.map_err(|error| failed(step, format!("{name}: {error}")))?;
        let conditions = crd.status.and_then(|status| status.conditions).unwrap_or_default();
        if conditions.iter().any(|c| c.type_ == "Established" && c.status == "True") {
            return Ok(());
        }
        if start.elapsed() > PATIENCE {
            return Err(failed(step, format!("CRD {name} was not established within two minutes")));
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

/// Applies every manifest of a directory: namespaces and CRDs first, then the rest, then waits for Deployments.
async fn install_flux(client: &Client, leader: &Leader, directory: &Path) -> Result<(), Error> {
    const STEP: &str = "--install-flux";
    let read = directory.to_owned();
    let objects = tokio::task::spawn_blocking(move || manifests(&read))
        .await
        .map_err(|error| failed(STEP, error))?
        .map_err(|error| failed(STEP, error))?;
    let kind = |object: &Value| object.get("kind").and_then(Value::as_str).unwrap_or_default().to_owned();
    let (first, rest): (Vec<&Value>, Vec<&Value>) = objects
        .iter()
        .partition(|object| matches!(kind(object).as_str(), "Namespace" | "CustomResourceDefinition"));
    for object in &first {
        apply(client, leader, STEP, object).await?;
    }
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    for object in first.iter().filter(|object| kind(object) == "CustomResourceDefinition") {
        let name = object.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
        wait_established(&crds, STEP, name).await?;
    }
    for object in &rest {
        apply(client, leader, STEP, object).await?;
    }
    for object in rest.iter().filter(|object| kind(object) == "Deployment") {
        wait_available(client, STEP, object).await?;
    }
    info!(objects = objects.len(), "Flux is installed");
    Ok(())
}

/// All objects of all `.yaml`, `.yml` and `.json` files of a directory, in the order of the files' names.
fn manifests(directory: &Path) -> Result<Vec<Value>, String> {
    let told = |path: &Path, error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let mut files: Vec<PathBuf> = std::fs::read_dir(directory)
        .map_err(|error| told(directory, &error))?
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| told(directory, &error))?
        .into_iter()
        .map(|entry| entry.path())
        .filter(|path| {
            path.extension().and_then(|e| e.to_str()).is_some_and(|e| matches!(e, "yaml" | "yml" | "json"))
        })
        .collect();
    files.sort();
    let mut objects = Vec::new();
    for file in files {
        let bytes = std::fs::read(&file).map_err(|error| told(&file, &error))?;
        for document in cozy_yaml::parse_bytes(&bytes, &cozy_yaml::Limits::default()) {
            let object = document.map_err(|error| told(&file, &error))?.value;
            match object.get("items").and_then(Value::as_array) {
                Some(items) if object.get("kind").and_then(Value::as_str) == Some("List") => {
                    objects.extend(items.iter().cloned());
                }
                _ if object.is_null() => {}
                _ => objects.push(object),
            }
        }
    }
    if objects.is_empty() {
        return Err(told(directory, &"there is no manifest in it"));
    }
    Ok(objects)
}

async fn apply(client: &Client, leader: &Leader, step: &str, object: &Value) -> Result<(), Error> {
    leader.check().map_err(|error| failed(step, error))?;
    let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let (version, kind, name) = (text("/apiVersion"), text("/kind"), text("/metadata/name"));
    let told = |error: &dyn std::fmt::Display| failed(step, format!("{kind} {name}: {error}"));
    let (group, version) = version.split_once('/').unwrap_or(("", version));
    let gvk = GroupVersionKind::gvk(group, version, kind);
    let (resource, capabilities) =
        discovery::pinned_kind(client, &gvk).await.map_err(|error| told(&error))?;
    let api: Api<DynamicObject> = match (capabilities.scope, text("/metadata/namespace")) {
        (Scope::Namespaced, "") => Api::namespaced_with(client.clone(), names::FLUX_NAMESPACE, &resource),
        (Scope::Namespaced, namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        (Scope::Cluster, _) => Api::all_with(client.clone(), &resource),
    };
    api.patch(name, &manager(), &Patch::Apply(object)).await.map_err(|error| told(&error))?;
    Ok(())
}

async fn wait_available(client: &Client, step: &str, object: &Value) -> Result<(), Error> {
    let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let namespace =
        Some(text("/metadata/namespace")).filter(|ns| !ns.is_empty()).unwrap_or(names::FLUX_NAMESPACE);
    let name = text("/metadata/name");
    let api: Api<k8s_openapi::api::apps::v1::Deployment> = Api::namespaced(client.clone(), namespace);
    let start = Instant::now();
    loop {
        let deployment = api.get(name).await.map_err(|error| failed(step, format!("{name}: {error}")))?;
        let conditions = deployment.status.and_then(|status| status.conditions).unwrap_or_default();
        if conditions.iter().any(|c| c.type_ == "Available" && c.status == "True") {
            return Ok(());
        }
        if start.elapsed() > PATIENCE {
            return Err(failed(
                step,
                format!("Deployment {namespace}/{name} was not available within two minutes"),
            ));
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

/// `k=v,k=v` with the keys that the source's kind knows.
fn reference(text: &str, known: &[&str]) -> Result<Map<String, Value>, Error> {
    let mut out = Map::new();
    for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        match part.split_once('=') {
            Some((key, value)) if known.contains(&key.trim()) => {
                out.insert(key.trim().to_owned(), json!(value.trim()));
            }
            _ => {
                let known = known.join(", ");
                return Err(failed(
                    "--platform-source-ref",
                    format!("{part:?} is not <key>=<value>; the keys are {known}"),
                ));
            }
        }
    }
    Ok(out)
}

fn source_kind(url: &str) -> Result<(&'static str, &'static str, &'static [&'static str]), Error> {
    if url.starts_with("oci://") {
        Ok(("OCIRepository", "ocirepositories", &["digest", "semver", "semverFilter", "tag"]))
    } else if ["https://", "http://", "ssh://"].iter().any(|scheme| url.starts_with(scheme)) {
        Ok(("GitRepository", "gitrepositories", &["branch", "tag", "semver", "name", "commit"]))
    } else {
        Err(failed(
            "--platform-source-url",
            format!("{url:?} begins with none of oci://, https://, http://, ssh://"),
        ))
    }
}

/// Creates or updates the platform's source. Not by server-side apply, as the Go operator does not; unlike it, what
/// others added stays.
async fn platform_source(config: &Config, client: &Client, source: &PlatformSource) -> Result<(), Error> {
    const STEP: &str = "--platform-source-url";
    let (kind, plural, known) = source_kind(&source.url)?;
    let reference = reference(&source.reference, known)?;
    let mut spec = json!({ "url": source.url, "interval": "5m0s" });
    if let Some(fields) = spec.as_object_mut() {
        if !reference.is_empty() {
            fields.insert("ref".to_owned(), Value::Object(reference));
        }
        if let Some(secret) = source.secret.as_deref().filter(|secret| !secret.is_empty()) {
            fields.insert("secretRef".to_owned(), json!({ "name": secret }));
        }
    }
    let resource = ApiResource::from_gvk_with_plural(
        &GroupVersionKind::gvk("source.toolkit.fluxcd.io", "v1", kind),
        plural,
    );
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), names::SYSTEM_NAMESPACE, &resource);
    let name = &config.platform_source_name;
    let parameters = kube::api::PostParams {
        field_manager: Some(names::MANAGER_OPERATOR.to_owned()),
        ..kube::api::PostParams::default()
    };
    let start = Instant::now();
    loop {
        let outcome = match api.get_opt(name).await {
            Ok(Some(existing)) if says(existing.data.get("spec"), &spec) => Ok(()),
            Ok(Some(_)) => {
                let patch = json!([{ "op": "add", "path": "/spec", "value": spec }]);
                let patch: Patch<()> =
                    Patch::Json(serde_json::from_value(patch).map_err(|error| failed(STEP, error))?);
                let parameters = PatchParams {
                    field_manager: Some(names::MANAGER_OPERATOR.to_owned()),
                    ..PatchParams::default()
                };
                api.patch(name, &parameters, &patch).await.map(drop)
            }
            Ok(None) => {
                let mut object = DynamicObject::new(name, &resource);
                object.data = json!({ "spec": spec });
                api.create(&parameters, &object).await.map(drop)
            }
            Err(error) => Err(error),
        };
        match outcome {
            Ok(()) => return Ok(()),
            // Flux may be on its way.
            Err(kube::Error::Api(status)) if status.code == 404 && start.elapsed() < PATIENCE => {
                tokio::time::sleep(LOOK_AGAIN).await;
            }
            Err(error) => return Err(failed(STEP, format!("{kind} {name}: {error}"))),
        }
    }
}

/// Whether a source's spec says what is wanted; what the API server fills in, and fields that are none of ours, aside.
fn says(existing: Option<&Value>, wanted: &Value) -> bool {
    ["url", "interval", "ref", "secretRef"]
        .iter()
        .all(|field| existing.and_then(|spec| spec.get(field)) == wanted.get(field))
}

/// The PackageSource of the platform itself, from which everything else comes.
async fn platform_package_source(
    config: &Config,
    client: &Client,
    source: &PlatformSource,
) -> Result<(), Error> {
    let (kind, _, _) = source_kind(&source.url)?;
    let name = format!("cozystack.{}", config.platform_source_name);
    let variants: Vec<Value> = ["default", "isp-full", "isp-hosted", "isp-full-generic"]
        .iter()
        .map(|variant| {
            json!({
                "name": variant,
                "components": [{
                    "name": "platform",
                    "path": "core/platform",
                    "install": { "namespace": names::SYSTEM_NAMESPACE, "releaseName": "cozystack-platform" },
                    "valuesFiles": ["values.yaml", format!("values-{variant}.yaml")],
                }],
            })
        })
        .collect();
    let object = json!({
        "apiVersion": "cozystack.io/v1alpha1",
        "kind": "PackageSource",
        "metadata": {
            "name": name,
            "annotations": { (names::ANNOTATION_SKIP_COZYSTACK_VALUES): "true" },
        },
        "spec": {
            "sourceRef": {
                "kind": kind,
                "name": config.platform_source_name,
                "namespace": names::SYSTEM_NAMESPACE,
                "path": "/",
            },
            "variants": variants,
        },
    });
    let resource = crate::write::resource(crate::store::Kind::Source);
    let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
    api.patch(&name, &manager(), &Patch::Apply(&object))
        .await
        .map_err(|error| failed("platform source", format!("PackageSource {name}: {error}")))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_have_known_keys_alone() {
        let read = reference("tag=v1, digest=sha256:x", &["digest", "tag"]).unwrap();
        assert_eq!(Value::Object(read), json!({ "tag": "v1", "digest": "sha256:x" }));
        assert!(reference("branch=main", &["digest", "tag"]).is_err());
        assert!(reference("tag", &["tag"]).is_err());
    }
}
