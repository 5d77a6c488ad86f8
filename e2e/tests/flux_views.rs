//! Every field of the views of Flux objects is a field of the real CRDs, of the same type: objects with all of them
//! set are written whole, without `..`, and pass the API server's strict validation.

#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

mod support;

use std::collections::BTreeMap;

use cozy_api::flux::{
    Artifact, ArtifactGenerator, ArtifactGeneratorSpec, ArtifactGeneratorStatus, CopyOperation, Decryption,
    DependencyRef, ExternalArtifact, ExternalArtifactSpec, ExternalArtifactStatus, GeneratorArtifact,
    GeneratorInventoryEntry, GeneratorSource, GitInclude, GitRef, GitRepository, GitRepositorySpec,
    GitVerify, HealthCheckExpr, HelmAction, HelmRelease, HelmReleaseSpec, HelmReleaseStatus, HelmStrategy,
    Inventory, InventoryEntry, Kustomization, KustomizationSpec, KustomizationStatus, LocalRef,
    OCIRepository, OCIRepositorySpec, ObjectRef, OciRef, OciVerify, Other, PostBuild, SourceStatus,
    SubstituteReference, ValuesReference, WaitStrategy,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use k8s_openapi::serde::{Serialize, de::DeserializeOwned};
use kube::api::{Api, Patch, PatchParams};
use kube::core::NamespaceResourceScope;
use kube::{Client, Resource};
use serde_json::{Value, json};

fn text(value: &str) -> Option<String> {
    Some(value.to_owned())
}

fn local(name: &str) -> Option<LocalRef> {
    Some(LocalRef { name: text(name), other: Other::new() })
}

fn object(api_version: &str, kind: &str) -> ObjectRef {
    ObjectRef {
        api_version: text(api_version),
        kind: text(kind),
        name: text("a"),
        namespace: text("default"),
        other: Other::new(),
    }
}

fn dependency() -> Option<Vec<DependencyRef>> {
    Some(vec![DependencyRef {
        name: text("b"),
        namespace: text("default"),
        ready_expr: text("true"),
        other: Other::new(),
    }])
}

fn health_checks() -> Option<Vec<HealthCheckExpr>> {
    Some(vec![HealthCheckExpr {
        api_version: text("example.org/v1"),
        kind: text("Thing"),
        in_progress: text("false"),
        failed: text("false"),
        current: text("true"),
        other: Other::new(),
    }])
}

fn ready() -> Option<Vec<Condition>> {
    Some(vec![
        serde_json::from_value(json!({
            "type": "Ready", "status": "True", "reason": "Succeeded", "message": "", "observedGeneration": 1,
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }))
        .unwrap(),
    ])
}

fn artifact() -> Option<Artifact> {
    Some(Artifact {
        url: text("http://flux.cozy-fluxcd/a.tar.gz"),
        path: text("a.tar.gz"),
        revision: text("main@sha1:0123"),
        digest: text("sha256:0000000000000000000000000000000000000000000000000000000000000000"),
        last_update_time: text("2026-01-01T00:00:00Z"),
        size: Some(1),
        other: Other::new(),
    })
}

fn action(crds: Option<String>) -> Option<HelmAction> {
    Some(HelmAction {
        timeout: text("10m0s"),
        strategy: Some(HelmStrategy {
            name: text("RetryOnFailure"),
            retry_interval: text("30s"),
            other: Other::new(),
        }),
        crds,
        other: Other::new(),
    })
}

fn helm_release() -> (HelmRelease, HelmReleaseStatus) {
    let mut chart = object("", "ExternalArtifact");
    chart.api_version = None;
    let spec = HelmReleaseSpec {
        chart_ref: Some(chart),
        interval: text("5m0s"),
        max_history: Some(5),
        install: action(text("Create")),
        upgrade: action(text("CreateReplace")),
        health_check_exprs: health_checks(),
        wait_strategy: Some(WaitStrategy { name: text("poller"), other: Other::new() }),
        values_from: Some(vec![ValuesReference {
            kind: text("Secret"),
            name: text("cozystack-values"),
            values_key: text("values.yaml"),
            target_path: text("a.b"),
            optional: Some(true),
            other: Other::new(),
        }]),
        values: Some(json!({ "a": [1, null] })),
        depends_on: dependency(),
        suspend: Some(false),
        other: Other::new(),
    };
    let status = HelmReleaseStatus {
        observed_generation: Some(1),
        conditions: ready(),
        last_attempted_config_digest: text("sha256:0"),
        last_attempted_revision: text("1.0.0"),
        other: Other::new(),
    };
    (HelmRelease::new("default", "a", spec), status)
}

fn artifact_generator() -> (ArtifactGenerator, ArtifactGeneratorStatus) {
    let spec = ArtifactGeneratorSpec {
        sources: Some(vec![GeneratorSource {
            alias: text("a"),
            kind: text("OCIRepository"),
            name: text("a"),
            namespace: text("default"),
            other: Other::new(),
        }]),
        artifacts: Some(vec![GeneratorArtifact {
            name: text("a"),
            copy: Some(vec![CopyOperation {
                from: text("@a/system/a/**"),
                to: text("@artifact/a/"),
                strategy: text("Overwrite"),
                other: Other::new(),
            }]),
            other: Other::new(),
        }]),
        other: Other::new(),
    };
    let status = ArtifactGeneratorStatus {
        conditions: ready(),
        inventory: Some(vec![GeneratorInventoryEntry {
            name: text("a"),
            namespace: text("default"),
            digest: text("sha256:0"),
            filename: text("a.tar.gz"),
            other: Other::new(),
        }]),
        observed_sources_digest: text("sha256:0"),
        other: Other::new(),
    };
    (ArtifactGenerator::new("default", "a", spec), status)
}

fn external_artifact() -> (ExternalArtifact, ExternalArtifactStatus) {
    let source = object("source.extensions.fluxcd.io/v1beta1", "ArtifactGenerator");
    let spec = ExternalArtifactSpec { source_ref: Some(source), other: Other::new() };
    let status = ExternalArtifactStatus { artifact: artifact(), conditions: ready(), other: Other::new() };
    (ExternalArtifact::new("default", "a", spec), status)
}

fn source_status() -> SourceStatus {
    SourceStatus {
        observed_generation: Some(1),
        conditions: ready(),
        artifact: artifact(),
        other: Other::new(),
    }
}

fn git_repository() -> (GitRepository, SourceStatus) {
    let spec = GitRepositorySpec {
        url: text("https://example.org/a"),
        secret_ref: local("gitops-a"),
        provider: text("generic"),
        service_account_name: None,
        interval: text("1m0s"),
        timeout: text("30s"),
        reference: Some(GitRef {
            branch: text("main"),
            tag: text("v1"),
            semver: text(">=1"),
            name: text("refs/heads/main"),
            commit: text("0123"),
            other: Other::new(),
        }),
        verify: Some(GitVerify { mode: text("HEAD"), secret_ref: local("gitops-keys"), other: Other::new() }),
        proxy_secret_ref: local("gitops-proxy"),
        ignore: text("*.md"),
        suspend: Some(false),
        recurse_submodules: Some(false),
        include: Some(vec![GitInclude {
            repository: local("b"),
            from_path: text("a"),
            to_path: text("b"),
            other: Other::new(),
        }]),
        sparse_checkout: Some(vec!["a".to_owned()]),
        other: Other::new(),
    };
    (GitRepository::new("default", "a", spec), source_status())
}

fn oci_repository() -> (OCIRepository, SourceStatus) {
    let spec = OCIRepositorySpec {
        url: text("oci://example.org/a"),
        secret_ref: local("gitops-a"),
        provider: text("generic"),
        service_account_name: text("a"),
        interval: text("1m0s"),
        timeout: text("30s"),
        reference: Some(OciRef {
            digest: text("sha256:0"),
            semver: text(">=1"),
            semver_filter: text(".*"),
            tag: text("v1"),
            other: Other::new(),
        }),
        verify: Some(OciVerify {
            provider: text("cosign"),
            secret_ref: local("gitops-keys"),
            other: Other::new(),
        }),
        cert_secret_ref: local("gitops-tls"),
        proxy_secret_ref: local("gitops-proxy"),
        insecure: Some(false),
        ignore: text("*.md"),
        suspend: Some(false),
        other: Other::new(),
    };
    (OCIRepository::new("default", "a", spec), source_status())
}

fn kustomization() -> (Kustomization, KustomizationStatus) {
    let spec = KustomizationSpec {
        source_ref: Some(object("source.toolkit.fluxcd.io/v1", "GitRepository")),
        path: text("./a"),
        interval: text("5m0s"),
        retry_interval: text("1m0s"),
        timeout: text("1m0s"),
        prune: Some(true),
        deletion_policy: text("Orphan"),
        wait: Some(true),
        force: Some(false),
        suspend: Some(false),
        service_account_name: text("a"),
        target_namespace: text("default"),
        kube_config: Some(json!({ "secretRef": { "name": "a" } })),
        decryption: Some(Decryption {
            provider: text("sops"),
            secret_ref: local("gitops-age"),
            service_account_name: text("a"),
            other: Other::new(),
        }),
        post_build: Some(PostBuild {
            substitute: Some(BTreeMap::from([("A".to_owned(), "b".to_owned())])),
            substitute_from: Some(vec![SubstituteReference {
                kind: text("Secret"),
                name: text("gitops-variables"),
                optional: Some(true),
                other: Other::new(),
            }]),
            other: Other::new(),
        }),
        depends_on: dependency(),
        health_checks: Some(vec![object("apps/v1", "Deployment")]),
        health_check_exprs: health_checks(),
        other: Other::new(),
    };
    let status = KustomizationStatus {
        observed_generation: Some(1),
        conditions: ready(),
        inventory: Some(Inventory {
            entries: Some(vec![InventoryEntry { id: text("a_b__C"), v: text("v1"), other: Other::new() }]),
            other: Other::new(),
        }),
        last_applied_revision: text("main@sha1:0123"),
        last_attempted_revision: text("main@sha1:0123"),
        other: Other::new(),
    };
    (Kustomization::new("default", "a", spec), status)
}

/// Server-side apply and a merge of the status, both strict: a field that the CRD does not have is an error.
async fn strict<K, S>(client: &Client, (object, status): (K, S))
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Serialize + DeserializeOwned,
    K: Clone + std::fmt::Debug,
    S: Serialize,
{
    let api: Api<K> = Api::namespaced(client.clone(), "default");
    let kind = K::kind(&());
    let parameters = PatchParams {
        field_validation: Some(kube::api::ValidationDirective::Strict),
        ..PatchParams::default()
    };
    let apply = PatchParams { field_manager: Some("test".to_owned()), ..parameters.clone() };
    api.patch("a", &apply, &Patch::Apply(&object)).await.unwrap_or_else(|error| panic!("{kind}: {error}"));
    let status = json!({ "status": status });
    let stored = api
        .patch_status("a", &parameters, &Patch::Merge(&status))
        .await
        .unwrap_or_else(|error| panic!("{kind}: {error}"));
    // And it comes back as it went.
    let stored: Value = serde_json::to_value(stored).unwrap();
    assert_eq!(stored["spec"], serde_json::to_value(&object).unwrap()["spec"], "{kind}");
    assert_eq!(stored["status"], status["status"], "{kind}");
}

#[tokio::test]
async fn every_field_of_a_view_is_one_of_flux() {
    let cluster = support::cluster().await;
    let client = cluster.admin();
    cluster.install_crds().await.unwrap();
    support::served(&client).await;
    strict(&client, helm_release()).await;
    strict(&client, artifact_generator()).await;
    strict(&client, external_artifact()).await;
    strict(&client, git_repository()).await;
    strict(&client, oci_repository()).await;
    strict(&client, kustomization()).await;
}
