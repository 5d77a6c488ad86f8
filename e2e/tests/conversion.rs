//! Changing operators moves nothing: what ours writes over what the Go operator wrote is no change for a real API
//! server, and the other way round. Same objects, same field managers.

#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "helpers of tests")]

mod operator_support;
mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use cozy_api::flux::{ArtifactGenerator, HelmRelease};
use cozy_api::names::{MANAGER_OPERATOR, MANAGER_PACKAGE_SOURCE};
use cozy_api::packages::{Package, PackageSource};
use cozy_core::render::{Dependencies, RenderOptions, render_all};
use cozy_core::snapshot::Snapshot;
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::serde::{Serialize, de::DeserializeOwned};
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use kube::{Client, Resource, ResourceExt};
use serde_json::{Value, json};

/// The whole of the isp-full platform, recorded.
fn recorded() -> Option<PathBuf> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/data/golden/real-isp-full");
    if directory.is_dir() {
        return Some(directory);
    }
    println!("skipped: {} is not there", directory.display());
    None
}

async fn create_all<K>(client: &Client, file: &Path) -> Vec<K>
where
    K: Resource<DynamicType = (), Scope = kube::core::ClusterResourceScope> + Serialize + DeserializeOwned,
    K: Clone + std::fmt::Debug,
{
    let api: Api<K> = Api::all(client.clone());
    let mut created = Vec::new();
    for document in cozy_yaml::parse_bytes(&std::fs::read(file).unwrap(), &cozy_yaml::Limits::default()) {
        let object = document.unwrap().value;
        if object.is_object() {
            let object: K = serde_json::from_value(object).unwrap();
            created.push(api.create(&PostParams::default(), &object).await.unwrap());
        }
    }
    created
}

/// The recorded objects of a kind, owned by the objects of this cluster.
fn golden<K: DeserializeOwned>(directory: &Path, file: &str, uids: &BTreeMap<String, String>) -> Vec<K> {
    let bytes = std::fs::read(directory.join("output/01-all").join(file)).unwrap();
    let mut objects: Vec<Value> = serde_json::from_slice(&bytes).unwrap();
    for object in &mut objects {
        object.as_object_mut().unwrap().remove("status");
        let owner = &mut object["metadata"]["ownerReferences"][0];
        owner["uid"] = json!(uids[owner["name"].as_str().unwrap()]);
    }
    objects.into_iter().map(|object| serde_json::from_value(object).unwrap()).collect()
}

fn by_name<K: Resource<DynamicType = ()>>(objects: Vec<K>) -> BTreeMap<(String, String), K> {
    objects.into_iter().map(|object| ((object.namespace().unwrap(), object.name_any()), object)).collect()
}

/// Who owns fields of the object, and how.
fn managers(object: &impl Resource) -> Vec<(String, String)> {
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    let entries = object.meta().managed_fields.iter().flatten();
    entries.map(|entry| (text(&entry.manager), text(&entry.operation))).collect()
}

/// Writes the first as one operator does and the second over it as the other does: the second write changes nothing.
async fn releases_stay(
    client: &Client,
    first: &BTreeMap<(String, String), HelmRelease>,
    second: &BTreeMap<(String, String), HelmRelease>,
) {
    assert!(first.keys().eq(second.keys()));
    let parameters = PostParams { field_manager: Some(MANAGER_OPERATOR.to_owned()), ..PostParams::default() };
    for ((namespace, name), release) in first {
        let api: Api<HelmRelease> = Api::namespaced(client.clone(), namespace);
        let created = api.create(&parameters, release).await.unwrap();
        // The CRD's default status is stored by the first update of all; both operators make it.
        let mut again = release.clone();
        again.metadata.resource_version = created.resource_version();
        let before = api.replace(name, &parameters, &again).await.unwrap();
        let mut over = second[&(namespace.clone(), name.clone())].clone();
        over.metadata.resource_version = before.resource_version();
        let after = api.replace(name, &parameters, &over).await.unwrap();
        assert_eq!(after, before, "{namespace}/{name}");
        assert_eq!(
            managers(&after),
            [(MANAGER_OPERATOR.to_owned(), "Update".to_owned())],
            "{namespace}/{name}"
        );
        api.delete(name, &DeleteParams::default()).await.unwrap();
    }
}

/// The same for ArtifactGenerators, which are applied and never by force.
async fn generators_stay(
    client: &Client,
    first: &BTreeMap<(String, String), ArtifactGenerator>,
    second: &BTreeMap<(String, String), ArtifactGenerator>,
) {
    assert!(first.keys().eq(second.keys()));
    let parameters = PatchParams::apply(MANAGER_PACKAGE_SOURCE);
    for ((namespace, name), generator) in first {
        let api: Api<ArtifactGenerator> = Api::namespaced(client.clone(), namespace);
        let before = api.patch(name, &parameters, &Patch::Apply(generator)).await.unwrap();
        let over = &second[&(namespace.clone(), name.clone())];
        let after = api.patch(name, &parameters, &Patch::Apply(over)).await.unwrap();
        assert_eq!(after, before, "{namespace}/{name}");
        assert_eq!(
            managers(&after),
            [(MANAGER_PACKAGE_SOURCE.to_owned(), "Apply".to_owned())],
            "{namespace}/{name}"
        );
        api.delete(name, &DeleteParams::default()).await.unwrap();
    }
}

#[tokio::test]
async fn neither_operator_changes_what_the_other_wrote() {
    let Some(directory) = recorded() else { return };
    let cluster = support::cluster().await;
    let client = cluster.admin();
    cluster.install_crds().await.unwrap();
    support::served(&client).await;

    let packages: Vec<Package> = create_all(&client, &directory.join("input/Package.yaml")).await;
    let sources: Vec<PackageSource> = create_all(&client, &directory.join("input/PackageSource.yaml")).await;
    assert!(packages.len() >= 77 && sources.len() >= 99);
    let uids = |names: Vec<(String, Option<String>)>| -> BTreeMap<String, String> {
        names.into_iter().map(|(name, uid)| (name, uid.unwrap())).collect()
    };
    let package_uids = uids(packages.iter().map(|package| (package.name_any(), package.uid())).collect());
    let source_uids = uids(sources.iter().map(|source| (source.name_any(), source.uid())).collect());

    let mut snapshot = Snapshot::new();
    sources.into_iter().for_each(|source| drop(snapshot.set_source(source)));
    packages.into_iter().for_each(|package| drop(snapshot.set_package(package)));
    let ours = render_all(&snapshot, &RenderOptions::default(), Dependencies::Assumed);
    let our_releases = ours.packages.into_values().flat_map(|package| package.releases);
    let our_releases = by_name(our_releases.map(|release| release.object).collect());
    let our_generators = by_name(ours.sources.into_values().filter_map(|source| source.object).collect());
    let their_releases = by_name(golden(&directory, "helmreleases.json", &package_uids));
    let their_generators = by_name(golden(&directory, "artifactgenerators.json", &source_uids));
    assert!(their_releases.len() >= 91 && their_generators.len() >= 99);

    let namespaces: BTreeSet<_> = their_releases
        .keys()
        .chain(their_generators.keys())
        .map(|(namespace, _)| namespace.clone())
        .collect();
    for name in namespaces {
        let object = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name } });
        let api: Api<Namespace> = Api::all(client.clone());
        api.patch(&name, &PatchParams::apply("test"), &Patch::Apply(object)).await.unwrap();
    }

    releases_stay(&client, &their_releases, &our_releases).await;
    releases_stay(&client, &our_releases, &their_releases).await;
    generators_stay(&client, &their_generators, &our_generators).await;
    generators_stay(&client, &our_generators, &their_generators).await;
}

/// Ours starts on a cluster that the Go operator has reconciled, its HelmReleases, ArtifactGenerators and statuses as
/// recorded: no HelmRelease is written, and those that are there stay the objects that they were.
#[tokio::test(flavor = "multi_thread")]
async fn ours_takes_over_a_reconciled_cluster_and_writes_no_helmrelease() {
    let Some(directory) = recorded() else { return };
    let cluster = support::cluster().await;
    let client = cluster.admin();
    operator_support::prepare(&cluster).await;
    let packages: Vec<Package> = create_all(&client, &directory.join("input/Package.yaml")).await;
    let sources: Vec<PackageSource> = create_all(&client, &directory.join("input/PackageSource.yaml")).await;
    let mut uids = BTreeMap::new();
    uids.extend(packages.iter().map(|package| (package.name_any(), package.uid().unwrap())));
    let releases = by_name(golden::<HelmRelease>(&directory, "helmreleases.json", &uids));
    uids = sources.iter().map(|source| (source.name_any(), source.uid().unwrap())).collect();
    let generators = by_name(golden::<ArtifactGenerator>(&directory, "artifactgenerators.json", &uids));
    let bytes = std::fs::read(directory.join("output/01-all/namespaces.json")).unwrap();
    for namespace in serde_json::from_slice::<Vec<Value>>(&bytes).unwrap() {
        // As the Go operator applies them.
        let labels = namespace["metadata"]["labels"].as_object().unwrap().iter();
        let labels: BTreeMap<_, _> = labels
            .filter(|(label, _)| !label.starts_with("kubernetes.io/"))
            .map(|(label, value)| (label.clone(), value.clone()))
            .collect();
        let name = namespace["metadata"]["name"].as_str().unwrap();
        let object = json!({
            "apiVersion": "v1", "kind": "Namespace",
            "metadata": { "name": name, "labels": labels, "annotations": { "helm.sh/resource-policy": "keep" } },
        });
        let api: Api<Namespace> = Api::all(client.clone());
        let parameters = PatchParams::apply("cozystack-package-controller").force();
        api.patch(name, &parameters, &Patch::Apply(object)).await.unwrap();
    }
    let parameters = PostParams { field_manager: Some(MANAGER_OPERATOR.to_owned()), ..PostParams::default() };
    let mut before = BTreeMap::new();
    for ((namespace, name), release) in &releases {
        let api: Api<HelmRelease> = Api::namespaced(client.clone(), namespace);
        let created = api.create(&parameters, release).await.unwrap();
        before.insert((namespace.clone(), name.clone()), (created.uid(), created.resource_version()));
    }
    for ((namespace, name), generator) in &generators {
        let api: Api<ArtifactGenerator> = Api::namespaced(client.clone(), namespace);
        let parameters = PatchParams::apply(MANAGER_PACKAGE_SOURCE);
        api.patch(name, &parameters, &Patch::Apply(generator)).await.unwrap();
    }

    let operator = operator_support::Operator::start(client.clone());
    operator.ready().await;
    operator.quiet().await;
    assert_eq!(operator.writes(Some("HelmRelease")).await, 0);
    assert_eq!(operator.writes(Some("ArtifactGenerator")).await, 0);
    assert_eq!(operator.writes(Some("Namespace")).await, 0);
    let after: BTreeMap<_, _> = Api::<HelmRelease>::all(client.clone())
        .list(&kube::api::ListParams::default())
        .await
        .unwrap()
        .into_iter()
        .map(|release| {
            ((release.namespace().unwrap(), release.name_any()), (release.uid(), release.resource_version()))
        })
        .collect();
    assert_eq!(after, before);
    operator.stop().await;
}
