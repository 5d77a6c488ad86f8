//! A stand-in for source-watcher, which is not served as a module: ArtifactGenerators become ExternalArtifacts.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use anyhow::{Context as _, bail};
use axum::extract::State;
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse as _, Response};
use cozy_api::flux::ArtifactGenerator;
use futures::StreamExt as _;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, DynamicObject, Patch, PatchParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Client, ResourceExt as _};
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};

use crate::cluster::Cluster;

const MANAGER: &str = "source-watcher";

/// Builds what the ArtifactGenerators of the cluster ask for, each source being one local directory, and serves it over
/// plain HTTP. Copies of whole directories and of single files (`Overwrite`, or `Merge` of YAML) are understood: what
/// PackageSources become.
pub struct SourceWatcher {
    tasks: Vec<tokio::task::JoinHandle<()>>,
}

type Archives = Arc<Mutex<BTreeMap<String, Vec<u8>>>>;
type Files = BTreeMap<String, Vec<u8>>;

struct Builder {
    kube: Client,
    source: PathBuf,
    address: String,
    archives: Archives,
}

impl SourceWatcher {
    /// Starts; `source` stands for the content of every source.
    ///
    /// # Errors
    /// When it cannot listen.
    pub async fn start(cluster: &Cluster, source: &Path) -> anyhow::Result<Self> {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        let archives = Archives::default();
        let builder = Builder {
            kube: cluster.admin(),
            source: source.to_path_buf(),
            address: listener.local_addr()?.to_string(),
            archives: Arc::clone(&archives),
        };
        let router = axum::Router::new().fallback(serve).with_state(archives);
        let server = tokio::spawn(async move {
            let _ = axum::serve(listener, router).await;
        });
        Ok(Self { tasks: vec![server, tokio::spawn(async move { builder.run().await })] })
    }
}

impl Drop for SourceWatcher {
    fn drop(&mut self) {
        self.tasks.iter().for_each(tokio::task::JoinHandle::abort);
    }
}

async fn serve(State(archives): State<Archives>, uri: Uri) -> Response {
    let found = archives.lock().ok().and_then(|archives| archives.get(uri.path()).cloned());
    found.map_or_else(|| StatusCode::NOT_FOUND.into_response(), axum::response::IntoResponse::into_response)
}

impl Builder {
    async fn run(self) {
        let api: Api<ArtifactGenerator> = Api::all(self.kube.clone());
        let mut changes =
            watcher(api, watcher::Config::default()).default_backoff().applied_objects().boxed();
        while let Some(change) = changes.next().await {
            // The watcher comes back by itself.
            let Ok(generator) = change else { continue };
            let name = generator.name_any();
            if let Err(error) = self.reconcile(&generator).await {
                tracing::warn!("source-watcher stand-in: {name}: {error:#}");
            }
        }
    }

    async fn reconcile(&self, generator: &ArtifactGenerator) -> anyhow::Result<()> {
        let known = generator.status.as_ref().and_then(|status| status.conditions.as_ref());
        let observed =
            known.into_iter().flatten().find(|c| c.type_ == "Ready").and_then(|c| c.observed_generation);
        if observed.is_some() && observed == generator.metadata.generation {
            return Ok(());
        }
        let namespace = generator.namespace().unwrap_or_default();
        let built = self.build_all(generator, &namespace).await;
        let (ready, reason, message) = match &built {
            Ok(inventory) => ("True", "Succeeded", format!("built {} artifact(s)", inventory.len())),
            Err(error) => ("False", "BuildFailed", format!("{error:#}")),
        };
        let status = json!({ "status": {
            "conditions": [{
                "type": "Ready", "status": ready, "reason": reason, "message": message,
                "observedGeneration": generator.metadata.generation, "lastTransitionTime": now(),
            }],
            "inventory": built.unwrap_or_default(),
        } });
        let api: Api<ArtifactGenerator> = Api::namespaced(self.kube.clone(), &namespace);
        api.patch_status(&generator.name_any(), &PatchParams::apply(MANAGER), &Patch::Merge(&status)).await?;
        Ok(())
    }

    async fn build_all(&self, generator: &ArtifactGenerator, namespace: &str) -> anyhow::Result<Vec<Value>> {
        let mut inventory = Vec::new();
        for artifact in generator.spec.artifacts.iter().flatten() {
            let name = artifact.name.clone().context("an artifact without a name")?;
            let mut files = Files::new();
            for copy in artifact.copy.iter().flatten() {
                let (from, to) = (copy.from.as_deref(), copy.to.as_deref());
                let (from, to) = (from.context("a copy without `from`")?, to.context("a copy without `to`")?);
                self.copy(&mut files, from, to, copy.strategy.as_deref()).with_context(|| name.clone())?;
            }
            inventory.push(self.publish(generator, namespace, &name, &archive(&files)?).await?);
        }
        Ok(inventory)
    }

    fn copy(&self, files: &mut Files, from: &str, to: &str, strategy: Option<&str>) -> anyhow::Result<()> {
        // `@<alias>/<path>`: whatever the alias, there is one source.
        let path = from.split_once('/').map(|(_, path)| path).context("`from` names no path")?;
        let to = to.strip_prefix("@artifact/").context("`to` lies outside the artifact")?;
        if let Some(directory) = path.strip_suffix("**") {
            let directory = self.source.join(directory);
            if !directory.is_dir() {
                bail!("{from}: no such directory");
            }
            return copy_directory(files, &directory, to);
        }
        let text = std::fs::read(self.source.join(path)).with_context(|| from.to_owned())?;
        let merged = match (strategy, files.get(to)) {
            (Some("Merge"), Some(base)) => merge(base, &text)?,
            _ => text,
        };
        files.insert(to.to_owned(), merged);
        Ok(())
    }

    async fn publish(
        &self,
        generator: &ArtifactGenerator,
        namespace: &str,
        name: &str,
        archive: &[u8],
    ) -> anyhow::Result<Value> {
        let hex: String = Sha256::digest(archive).iter().map(|byte| format!("{byte:02x}")).collect();
        let digest = format!("sha256:{hex}");
        let path = format!("/externalartifact/{namespace}/{name}/{hex}.tar.gz");
        if let Ok(mut archives) = self.archives.lock() {
            archives.insert(path.clone(), archive.to_vec());
        }
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(
            "source.toolkit.fluxcd.io",
            "v1",
            "ExternalArtifact",
        ));
        let api: Api<DynamicObject> = Api::namespaced_with(self.kube.clone(), namespace, &resource);
        let object = json!({
            "apiVersion": "source.toolkit.fluxcd.io/v1", "kind": "ExternalArtifact", "metadata": { "name": name },
            "spec": { "sourceRef": {
                "apiVersion": "source.extensions.fluxcd.io/v1beta1", "kind": "ArtifactGenerator",
                "name": generator.name_any(), "namespace": namespace,
            } },
        });
        let manager = PatchParams::apply(MANAGER).force();
        api.patch(name, &manager, &Patch::Apply(&object)).await?;
        let status = json!({ "status": {
            "artifact": {
                "digest": digest, "revision": format!("latest@{digest}"), "lastUpdateTime": now(),
                "path": path.trim_start_matches('/'), "url": format!("http://{}{path}", self.address),
                "size": archive.len(),
            },
            "conditions": [{
                "type": "Ready", "status": "True", "reason": "Succeeded", "message": "artifact is ready",
                "lastTransitionTime": now(),
            }],
        } });
        api.patch_status(name, &PatchParams::apply(MANAGER), &Patch::Merge(&status)).await?;
        Ok(
            json!({ "name": name, "namespace": namespace, "digest": digest, "filename": format!("{hex}.tar.gz") }),
        )
    }
}

fn now() -> String {
    Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

fn copy_directory(files: &mut Files, directory: &Path, to: &str) -> anyhow::Result<()> {
    for entry in std::fs::read_dir(directory).with_context(|| directory.display().to_string())? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if entry.file_type()?.is_dir() {
            copy_directory(files, &entry.path(), &format!("{to}{name}/"))?;
        } else {
            files.insert(format!("{to}{name}"), std::fs::read(entry.path())?);
        }
    }
    Ok(())
}

/// Maps merge, everything else replaces; what comes out is JSON, which is YAML.
fn merge(base: &[u8], over: &[u8]) -> anyhow::Result<Vec<u8>> {
    fn deep(base: &mut Value, over: Value) {
        match (base, over) {
            (Value::Object(base), Value::Object(over)) => {
                for (key, value) in over {
                    deep(base.entry(key).or_insert(Value::Null), value);
                }
            }
            (base, over) => *base = over,
        }
    }
    let read = |text: &[u8]| -> anyhow::Result<Value> {
        let value = cozy_yaml::parse_one(text, &cozy_yaml::Limits::default())?.value;
        Ok(if value.is_null() { Value::Object(Map::new()) } else { value })
    };
    let mut merged = read(base)?;
    deep(&mut merged, read(over)?);
    Ok(serde_json::to_vec_pretty(&merged)?)
}

fn archive(files: &Files) -> anyhow::Result<Vec<u8>> {
    let encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    let mut builder = tar::Builder::new(encoder);
    for (path, content) in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        builder.append_data(&mut header, path, content.as_slice())?;
    }
    let mut encoder = builder.into_inner()?;
    encoder.flush()?;
    Ok(encoder.finish()?)
}
