//! Views of Flux objects. Unknown fields are kept (`other`), so that an object of a newer Flux survives a round trip.
//!
//! A field is typed where the product reads or writes it and stays in `other` elsewhere. Everything optional in
//! at least one served version is an [`Option`]: a view must read whatever the API server stored. Durations are
//! Go's strings (`5m0s`), as on the wire.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::object::object;
use crate::packages;

/// Fields that a view does not name.
pub type Other = Map<String, Value>;

/// Defines a part of a Flux object: all fields optional, unknown ones kept in `other`.
macro_rules! view {
    ($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $type:ty,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
        #[serde(rename_all = "camelCase")]
        pub struct $name {
            $(
                $(#[$field_doc])*
                #[serde(default, skip_serializing_if = "Option::is_none")]
                pub $field: Option<$type>,
            )*
            /// Everything else, unchanged.
            #[serde(flatten)]
            pub other: Other,
        }
    };
}

view! {
    /// Reference to an object of the same namespace, by name.
    LocalRef {
        /// Its name.
        name: String,
    }
}

view! {
    /// Reference to an object; a namespace that is absent is the referrer's.
    ObjectRef {
        /// API group and version.
        api_version: String,
        /// Kind.
        kind: String,
        /// Name.
        name: String,
        /// Namespace.
        namespace: String,
    }
}

impl ObjectRef {
    /// A reference without `apiVersion`, as the operator writes it.
    #[must_use]
    pub fn to(kind: &str, namespace: &str, name: &str) -> Self {
        Self {
            kind: Some(kind.to_owned()),
            name: Some(name.to_owned()),
            namespace: Some(namespace.to_owned()),
            ..Self::default()
        }
    }
}

view! {
    /// An object that has to be ready first.
    DependencyRef {
        /// Its name.
        name: String,
        /// Its namespace; absent: the referrer's.
        namespace: String,
        /// CEL expression that replaces the default readiness check.
        ready_expr: String,
    }
}

view! {
    /// A packed source, served by source-controller or source-watcher.
    Artifact {
        /// Where it is downloaded, over plain HTTP inside the cluster.
        url: String,
        /// Path below the storage's root.
        path: String,
        /// Human-readable revision, such as `main@sha1:<commit>` or `latest@sha256:<digest>`.
        revision: String,
        /// `<algorithm>:<hex>` of the file.
        digest: String,
        /// When it was stored, in RFC 3339.
        last_update_time: String,
        /// Bytes of the file.
        size: i64,
    }
}

/// The condition of that type, if the object has it.
#[must_use]
pub fn condition<'a>(conditions: Option<&'a Vec<Condition>>, kind: &str) -> Option<&'a Condition> {
    conditions?.iter().find(|condition| condition.type_ == kind)
}

// ---------------------------------------------------------------------------------------------- HelmRelease

object! {
    /// `helm.toolkit.fluxcd.io/v2` HelmRelease.
    HelmRelease = Namespaced "helm.toolkit.fluxcd.io" / "v2" "helmreleases", HelmReleaseSpec, HelmReleaseStatus
}

view! {
    /// What helm-controller installs.
    HelmReleaseSpec {
        /// Where the chart comes from.
        chart_ref: ObjectRef,
        /// How often it is reconciled.
        interval: String,
        /// Revisions that Helm keeps; 0: all.
        max_history: i64,
        /// Parameters of `helm install`.
        install: HelmAction,
        /// Parameters of `helm upgrade`.
        upgrade: HelmAction,
        /// CEL health checks of custom resources that the chart renders.
        health_check_exprs: Vec<HealthCheckExpr>,
        /// How readiness is awaited.
        wait_strategy: WaitStrategy,
        /// Values from Secrets and ConfigMaps, below `values` in precedence.
        values_from: Vec<ValuesReference>,
        /// Values; any JSON value. `null` and absent both mean none.
        values: Value,
        /// HelmReleases that have to be ready first.
        depends_on: Vec<DependencyRef>,
        /// Whether reconciliation is stopped.
        suspend: bool,
    }
}

view! {
    /// Parameters of one Helm action.
    HelmAction {
        /// Longest time of one Kubernetes operation.
        timeout: String,
        /// What happens when the action fails.
        strategy: HelmStrategy,
        /// What happens to the chart's `crds/`: `Skip`, `Create` or `CreateReplace`.
        crds: String,
    }
}

view! {
    /// What happens when an action fails.
    HelmStrategy {
        /// `RemediateOnFailure` or `RetryOnFailure`.
        name: String,
        /// Time between two attempts.
        retry_interval: String,
    }
}

view! {
    /// How readiness is awaited.
    WaitStrategy {
        /// `poller` or `legacy`.
        name: String,
    }
}

view! {
    /// Values from a Secret or ConfigMap.
    ValuesReference {
        /// `Secret` or `ConfigMap`.
        kind: String,
        /// Its name, in the HelmRelease's namespace.
        name: String,
        /// Key in its data; default `values.yaml`.
        values_key: String,
        /// Where in the values it goes; default the root.
        target_path: String,
        /// Whether it may be absent.
        optional: bool,
    }
}

view! {
    /// CEL health check of one kind.
    HealthCheckExpr {
        /// API version of the kind.
        api_version: String,
        /// The kind.
        kind: String,
        /// Expression that is true when the object is in progress.
        in_progress: String,
        /// Expression that is true when the object failed.
        failed: String,
        /// Expression that is true when the object is current.
        current: String,
    }
}

impl From<&packages::HealthCheckExpr> for HealthCheckExpr {
    fn from(expr: &packages::HealthCheckExpr) -> Self {
        let packages::HealthCheckExpr { api_version, kind, in_progress, failed, current } = expr.clone();
        Self {
            api_version: Some(api_version),
            kind: Some(kind),
            in_progress,
            failed,
            current: Some(current),
            other: Other::new(),
        }
    }
}

view! {
    /// What helm-controller saw.
    HelmReleaseStatus {
        /// Generation that the status speaks of.
        observed_generation: i64,
        /// Conditions: `Ready`, `Released`, …
        #[serde(deserialize_with = "crate::object::conditions")]
        conditions: Vec<Condition>,
        /// Digest of the values of the last attempt.
        last_attempted_config_digest: String,
        /// Chart version of the last attempt.
        last_attempted_revision: String,
    }
}

// ------------------------------------------------------------------------- ArtifactGenerator, ExternalArtifact

object! {
    /// `source.extensions.fluxcd.io/v1beta1` ArtifactGenerator.
    ArtifactGenerator = Namespaced "source.extensions.fluxcd.io" / "v1beta1" "artifactgenerators",
    ArtifactGeneratorSpec, ArtifactGeneratorStatus
}

view! {
    /// Which artifacts source-watcher builds from which sources.
    ArtifactGeneratorSpec {
        /// The sources.
        sources: Vec<GeneratorSource>,
        /// The artifacts.
        artifacts: Vec<GeneratorArtifact>,
    }
}

view! {
    /// A source with the alias that copies name it by.
    GeneratorSource {
        /// Name in `@<alias>/…`.
        alias: String,
        /// Kind of the source.
        kind: String,
        /// Name of the source.
        name: String,
        /// Namespace of the source.
        namespace: String,
    }
}

view! {
    /// One artifact: an ExternalArtifact of the same name.
    GeneratorArtifact {
        /// Its name.
        name: String,
        /// What goes into it, in order.
        copy: Vec<CopyOperation>,
    }
}

view! {
    /// One copy into an artifact.
    CopyOperation {
        /// `@<alias>/<glob>`.
        from: String,
        /// `@artifact/<path>`.
        to: String,
        /// `Overwrite` or `Merge` (of YAML files).
        strategy: String,
    }
}

view! {
    /// What source-watcher saw.
    ArtifactGeneratorStatus {
        /// Conditions: `Ready`, `Reconciling`, …
        #[serde(deserialize_with = "crate::object::conditions")]
        conditions: Vec<Condition>,
        /// The ExternalArtifacts that it made.
        inventory: Vec<GeneratorInventoryEntry>,
        /// Digest of the sources of the last build.
        observed_sources_digest: String,
    }
}

view! {
    /// An ExternalArtifact that an ArtifactGenerator made.
    GeneratorInventoryEntry {
        /// Its name.
        name: String,
        /// Its namespace.
        namespace: String,
        /// Digest of its artifact.
        digest: String,
        /// File of its artifact.
        filename: String,
    }
}

object! {
    /// `source.toolkit.fluxcd.io/v1` ExternalArtifact.
    ExternalArtifact = Namespaced "source.toolkit.fluxcd.io" / "v1" "externalartifacts",
    ExternalArtifactSpec, ExternalArtifactStatus
}

view! {
    /// Who makes the artifact.
    ExternalArtifactSpec {
        /// The object that it is made from, such as an ArtifactGenerator.
        source_ref: ObjectRef,
    }
}

view! {
    /// The artifact.
    ExternalArtifactStatus {
        /// The artifact, once there is one.
        artifact: Artifact,
        /// Conditions: `Ready`.
        #[serde(deserialize_with = "crate::object::conditions")]
        conditions: Vec<Condition>,
    }
}

// ------------------------------------------------------------------------------- GitRepository, OCIRepository

object! {
    /// `source.toolkit.fluxcd.io/v1` GitRepository.
    GitRepository = Namespaced "source.toolkit.fluxcd.io" / "v1" "gitrepositories",
    GitRepositorySpec, SourceStatus
}

view! {
    /// Which git repository is fetched, and how.
    GitRepositorySpec {
        /// `https://`, `http://` or `ssh://`.
        url: String,
        /// Secret with credentials.
        secret_ref: LocalRef,
        /// `generic`, `azure`, `github` or `aws`; absent: `generic`.
        provider: String,
        /// ServiceAccount whose identity the provider uses.
        service_account_name: String,
        /// How often it is fetched.
        interval: String,
        /// Longest time of a git operation; absent: 60s.
        timeout: String,
        /// What is checked out; absent: branch `master`.
        #[serde(rename = "ref")]
        reference: GitRef,
        /// Signature verification.
        verify: GitVerify,
        /// Secret with the proxy's address and credentials.
        proxy_secret_ref: LocalRef,
        /// What is left out of the artifact, in `.gitignore` syntax.
        ignore: String,
        /// Whether reconciliation is stopped.
        suspend: bool,
        /// Whether submodules are fetched as well.
        recurse_submodules: bool,
        /// Artifacts of other GitRepositories that are placed in this one's.
        include: Vec<GitInclude>,
        /// Directories that are checked out; absent: all.
        sparse_checkout: Vec<String>,
    }
}

view! {
    /// What is checked out; `commit` wins over `name`, `semver`, `tag`, `branch` in this order.
    GitRef {
        /// Branch.
        branch: String,
        /// Tag.
        tag: String,
        /// Range of tags.
        semver: String,
        /// Full reference, such as `refs/heads/main`.
        name: String,
        /// Commit.
        commit: String,
    }
}

view! {
    /// Signature verification of commits and tags.
    GitVerify {
        /// `HEAD`, `Tag` or `TagAndHEAD`.
        mode: String,
        /// Secret with the trusted keys.
        secret_ref: LocalRef,
    }
}

view! {
    /// Another repository's artifact, placed in this one's.
    GitInclude {
        /// The GitRepository.
        repository: LocalRef,
        /// Path in its artifact.
        from_path: String,
        /// Path in this one's artifact.
        to_path: String,
    }
}

view! {
    /// What source-controller saw.
    SourceStatus {
        /// Generation that the status speaks of.
        observed_generation: i64,
        /// Conditions: `Ready`, `ArtifactInStorage`, …
        #[serde(deserialize_with = "crate::object::conditions")]
        conditions: Vec<Condition>,
        /// The artifact, once there is one.
        artifact: Artifact,
    }
}

object! {
    /// `source.toolkit.fluxcd.io/v1` OCIRepository.
    OCIRepository = Namespaced "source.toolkit.fluxcd.io" / "v1" "ocirepositories",
    OCIRepositorySpec, SourceStatus
}

view! {
    /// Which OCI artifact is fetched, and how.
    OCIRepositorySpec {
        /// `oci://<host>/<repository>`.
        url: String,
        /// Secret with credentials.
        secret_ref: LocalRef,
        /// `generic`, `aws`, `azure` or `gcp`; absent: `generic`.
        provider: String,
        /// ServiceAccount whose pull secrets or identity are used.
        service_account_name: String,
        /// How often it is looked up.
        interval: String,
        /// Longest time of an operation; absent: 60s.
        timeout: String,
        /// What is pulled; absent: tag `latest`.
        #[serde(rename = "ref")]
        reference: OciRef,
        /// Signature verification.
        verify: OciVerify,
        /// Secret with certificates.
        cert_secret_ref: LocalRef,
        /// Secret with the proxy's address and credentials.
        proxy_secret_ref: LocalRef,
        /// Whether plain HTTP is allowed.
        insecure: bool,
        /// What is left out of the artifact, in `.gitignore` syntax.
        ignore: String,
        /// Whether reconciliation is stopped.
        suspend: bool,
    }
}

view! {
    /// What is pulled; `digest` wins over `semver`, `tag`.
    OciRef {
        /// `sha256:<hex>`.
        digest: String,
        /// Range of tags.
        semver: String,
        /// Regular expression that tags have to match before `semver` applies.
        semver_filter: String,
        /// Tag.
        tag: String,
    }
}

view! {
    /// Signature verification of OCI artifacts.
    OciVerify {
        /// `cosign` or `notation`.
        provider: String,
        /// Secret with the trusted keys.
        secret_ref: LocalRef,
    }
}

// -------------------------------------------------------------------------------------------- Kustomization

object! {
    /// `kustomize.toolkit.fluxcd.io/v1` Kustomization.
    Kustomization = Namespaced "kustomize.toolkit.fluxcd.io" / "v1" "kustomizations",
    KustomizationSpec, KustomizationStatus
}

view! {
    /// What kustomize-controller applies, and how.
    KustomizationSpec {
        /// The source.
        source_ref: ObjectRef,
        /// Directory in the source; absent: its root.
        path: String,
        /// How often it is applied.
        interval: String,
        /// Time between two attempts after a failure; absent: `interval`.
        retry_interval: String,
        /// Longest time of one reconciliation; absent: `interval`.
        timeout: String,
        /// Whether objects that left the source are deleted.
        prune: bool,
        /// What happens to the objects when the Kustomization is deleted: `MirrorPrune`, `Delete`,
        /// `WaitForTermination` or `Orphan`; absent: `MirrorPrune`.
        deletion_policy: String,
        /// Whether all objects are waited for.
        wait: bool,
        /// Whether objects with changed immutable fields are made anew.
        force: bool,
        /// Whether reconciliation is stopped.
        suspend: bool,
        /// ServiceAccount, of the same namespace, that is impersonated.
        service_account_name: String,
        /// Namespace that all namespaced objects are moved to.
        target_namespace: String,
        /// Another cluster; any value, since any value is refused for tenants.
        kube_config: Value,
        /// Decryption of SOPS documents.
        decryption: Decryption,
        /// Variable substitution.
        post_build: PostBuild,
        /// Kustomizations that have to be ready first.
        depends_on: Vec<DependencyRef>,
        /// Objects that have to be healthy.
        health_checks: Vec<ObjectRef>,
        /// CEL health checks of custom resources.
        health_check_exprs: Vec<HealthCheckExpr>,
    }
}

view! {
    /// Decryption of SOPS documents.
    Decryption {
        /// `sops`.
        provider: String,
        /// Secret with the keys.
        secret_ref: LocalRef,
        /// ServiceAccount whose identity a key management service sees.
        service_account_name: String,
    }
}

view! {
    /// Variable substitution after the build.
    PostBuild {
        /// Variables.
        substitute: BTreeMap<String, String>,
        /// Secrets and ConfigMaps with variables; later ones win.
        substitute_from: Vec<SubstituteReference>,
    }
}

view! {
    /// Variables from a Secret or ConfigMap.
    SubstituteReference {
        /// `Secret` or `ConfigMap`.
        kind: String,
        /// Its name, in the Kustomization's namespace.
        name: String,
        /// Whether it may be absent.
        optional: bool,
    }
}

view! {
    /// What kustomize-controller saw and did.
    KustomizationStatus {
        /// Generation that the status speaks of.
        observed_generation: i64,
        /// Conditions: `Ready`, `Reconciling`, `Healthy`, …
        #[serde(deserialize_with = "crate::object::conditions")]
        conditions: Vec<Condition>,
        /// The objects that it applied.
        inventory: Inventory,
        /// Revision that was last applied in full.
        last_applied_revision: String,
        /// Revision of the last attempt.
        last_attempted_revision: String,
    }
}

view! {
    /// The objects that a Kustomization applied.
    Inventory {
        /// One entry per object.
        entries: Vec<InventoryEntry>,
    }
}

view! {
    /// One applied object.
    InventoryEntry {
        /// `<namespace>_<name>_<group>_<kind>`; namespace empty for a cluster-scoped object, group empty for
        /// the core group. `:` in a name is written `__`.
        id: String,
        /// API version.
        v: String,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn round_trip<K: Serialize + for<'de> Deserialize<'de>>(object: &Value) -> Value {
        serde_json::to_value(serde_json::from_value::<K>(object.clone()).unwrap()).unwrap()
    }

    #[test]
    fn fields_of_a_newer_flux_survive_at_every_level() {
        let object = json!({
            "apiVersion": "kustomize.toolkit.fluxcd.io/v1",
            "kind": "Kustomization",
            "metadata": { "name": "a", "namespace": "tenant-a" },
            "spec": {
                "interval": "5m0s",
                "novel": { "deep": [1, 2.5, null, 9_007_199_254_740_993_i64] },
                "sourceRef": { "kind": "GitRepository", "name": "a", "novel": true },
                "postBuild": { "substitute": { "A": "b" }, "novel": [] },
                "decryption": { "provider": "sops", "secretRef": { "name": "k", "novel": "x" } },
            },
            "status": { "novel": {}, "inventory": { "entries": [{ "id": "a_b__C", "v": "v1", "novel": 0 }] } },
        });
        assert_eq!(round_trip::<Kustomization>(&object), object);
    }

    #[test]
    fn git_and_oci_references_are_read_from_ref() {
        let git: GitRepository = serde_json::from_value(json!({
            "metadata": { "name": "a" }, "spec": { "url": "https://a", "ref": { "branch": "main" } },
        }))
        .unwrap();
        assert_eq!(git.spec.reference.as_ref().unwrap().branch.as_deref(), Some("main"));
        assert_eq!(serde_json::to_value(&git).unwrap()["spec"]["ref"], json!({ "branch": "main" }));
        assert!(git.spec.other.is_empty());
    }

    #[test]
    fn an_object_of_nothing_but_a_name_is_read() {
        let release: HelmRelease = serde_json::from_value(json!({ "metadata": { "name": "a" } })).unwrap();
        assert_eq!(release.spec, HelmReleaseSpec::default());
        assert_eq!(release.status, None);
    }

    #[test]
    fn a_new_object_serializes_with_its_type_and_nothing_else() {
        let release = HelmRelease::new("cozy-linstor", "linstor", HelmReleaseSpec::default());
        assert_eq!(
            serde_json::to_value(release).unwrap(),
            json!({
                "apiVersion": "helm.toolkit.fluxcd.io/v2",
                "kind": "HelmRelease",
                "metadata": { "name": "linstor", "namespace": "cozy-linstor" },
                "spec": {},
            })
        );
    }
}
