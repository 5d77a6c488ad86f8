//! The admission policies of the tenant surface on a real API server: what passes, what is refused and by which
//! words, what lay there before, what is being deleted, and what happens without the webhook.

#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "helpers of tests")]

mod surface;

use kube::Client;
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use surface::{
    Surface, TENANT, api, bare, git_repository, kind, kustomization, make, merge, namespace, refusal,
};

/// The stamp by policy, no webhook: nobody answers one here.
const POLICIES: &[&str] = &["admission.mutation=policy", "admission.webhook.prune.enabled=false"];

async fn create(client: &Client, object: &Value) -> Result<DynamicObject, String> {
    let api = api(client, kind(object), namespace(object));
    let parameters = PostParams { dry_run: kind(object) != "Redis", field_manager: None };
    make(&api, &parameters, object).await.map_err(|error| refusal(&error).1)
}

fn with(mut object: Value, patch: Value) -> Value {
    merge(&mut object, &patch);
    object
}

/// The refusal names the rule, the field and what passes.
fn assert_refused(answer: Result<DynamicObject, String>, words: &[&str], about: &Value) {
    let message = match answer {
        Ok(_) => panic!("not refused: {about}"),
        Err(message) => message,
    };
    for word in words {
        assert!(message.contains(word), "{about}: {word:?} is not in: {message}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rules_hold_on_the_api_server() {
    let surface = Surface::start(POLICIES).await;
    let tenant = surface.user("tenant").await;
    addresses(&tenant).await;
    fields(&tenant).await;
    stamped(&surface, &tenant).await;
    large_objects_stay_in_the_budget(&tenant).await;
    secrets(&surface, &tenant).await;
    applications(&surface, &tenant).await;
    platform_writes_pass(&surface).await;
    without_warnings_of_the_type_checker(&surface).await;
}

/// Addresses of attacks.md's class 22, and what has to stay possible.
async fn addresses(tenant: &Client) {
    let refused = include_str!("../fixtures/addresses-refused.txt").lines();
    let odd = [
        "https://github.com/a\nb",
        "https://g\u{fc}thub.com/a",
        "https://\u{2460}\u{2466}.com/a",
        "https://",
    ];
    for url in refused.filter(|line| !line.is_empty() && !line.starts_with("# ")).chain(odd) {
        let object = with(git_repository(TENANT, "a"), json!({ "spec": { "url": url } }));
        // What the CRD's own pattern refuses never gets as far as the policies.
        let known = ["https://", "http://", "ssh://"].iter().any(|scheme| url.starts_with(scheme));
        let words =
            if known && !url.contains('\n') { ["spec.url", "such as"] } else { ["spec.url", "should match"] };
        assert_refused(create(tenant, &object).await, &words, &object);
    }
    for url in include_str!("../fixtures/addresses-allowed.txt").lines().filter(|line| !line.is_empty()) {
        let object = with(git_repository(TENANT, "a"), json!({ "spec": { "url": url } }));
        create(tenant, &object).await.unwrap_or_else(|message| panic!("{url}: {message}"));
    }
}

async fn fields(tenant: &Client) {
    let cases = [
        (
            json!({ "kubeConfig": { "secretRef": { "name": "gitops-x" } } }),
            "[kustomization-kubeconfig] spec.kubeConfig",
            "leave",
        ),
        (
            json!({ "kubeConfig": { "configMapRef": { "name": "gitops-x" } } }),
            "[kustomization-kubeconfig] spec.kubeConfig",
            "leave",
        ),
        (
            json!({ "targetNamespace": "kube-system" }),
            "[kustomization-target] spec.targetNamespace",
            "\"tenant-foo\"",
        ),
        (
            json!({ "sourceRef": { "kind": "Bucket" } }),
            "[kustomization-source] spec.sourceRef",
            "GitRepository",
        ),
        (
            json!({ "sourceRef": { "namespace": "cozy-system" } }),
            "[kustomization-source] spec.sourceRef",
            "\"tenant-foo\"",
        ),
        (
            json!({ "dependsOn": [{ "name": "a", "namespace": "tenant-bar" }] }),
            "[kustomization-depends] spec.dependsOn",
            "\"tenant-foo\"",
        ),
        (
            json!({ "healthChecks": [{ "kind": "Secret", "name": "a", "namespace": "kube-system" }] }),
            "[kustomization-health] spec.healthChecks",
            "\"tenant-foo\"",
        ),
        (json!({ "interval": "0s" }), "[kustomization-interval] spec.interval", "30s and 24h"),
        (json!({ "interval": "29s" }), "[kustomization-interval] spec.interval", "30s and 24h"),
        (json!({ "interval": "1000000h" }), "[kustomization-interval] spec.interval", "30s and 24h"),
        (
            json!({ "interval": "99999999999999999999h" }),
            "[kustomization-interval] spec.interval",
            "30s and 24h",
        ),
        (json!({ "retryInterval": "1ms" }), "[kustomization-retry] spec.retryInterval", "30s and 24h"),
        (json!({ "timeout": "0s" }), "[kustomization-timeout] spec.timeout", "1s and 1h"),
        (
            json!({ "postBuild": { "substituteFrom": [{ "kind": "Secret", "name": "postgres" }] } }),
            "[kustomization-substitute] spec.postBuild.substituteFrom",
            "gitops-",
        ),
        (
            json!({ "postBuild": { "substituteFrom": [{ "kind": "Secret", "name": "gitops-../postgres" }] } }),
            "[kustomization-substitute] spec.postBuild.substituteFrom",
            "gitops-",
        ),
        (
            json!({ "decryption": { "provider": "sops", "secretRef": { "name": "gitops-/../postgres" } } }),
            "[kustomization-decryption] spec.decryption",
            "gitops-",
        ),
        (
            json!({ "decryption": { "provider": "sops", "secretRef": { "name": "postgres" } } }),
            "[kustomization-decryption] spec.decryption",
            "gitops-",
        ),
        (
            json!({ "decryption": { "provider": "sops", "serviceAccountName": "other" } }),
            "[kustomization-decryption] spec.decryption",
            "tenant-foo-gitops",
        ),
        (
            json!({ "commonMetadata": { "labels": { "sharding.fluxcd.io/key": "tenants" } } }),
            "[kustomization-metadata] spec.commonMetadata",
            "fluxcd.io",
        ),
        (
            json!({ "components": ["https://git.example.com/x"] }),
            "[kustomization-components] spec.components",
            "../components/tls",
        ),
        (json!({ "path": "../other" }), "[kustomization-path] spec.path", "./apps"),
    ];
    for (patch, rule, passes) in cases {
        let object = with(kustomization(TENANT, "a"), json!({ "spec": patch }));
        assert_refused(create(tenant, &object).await, &[rule, passes], &object);
    }
    let cases = [
        (json!({ "provider": "azure" }), "[git-provider] spec.provider", "generic"),
        (json!({ "provider": "aws", "serviceAccountName": "x" }), "[git-provider] spec.provider", "generic"),
        (json!({ "proxySecretRef": { "name": "gitops-proxy" } }), "[git-proxy] spec.proxySecretRef", "leave"),
        (json!({ "secretRef": { "name": "postgres" } }), "[git-secret] spec.secretRef.name", "gitops-"),
        (json!({ "secretRef": { "name": "gitops-" } }), "[git-secret] spec.secretRef.name", "gitops-"),
        (
            json!({ "secretRef": { "name": "gitops-../postgres" } }),
            "[git-secret] spec.secretRef.name",
            "gitops-",
        ),
        (
            json!({ "verify": { "secretRef": { "name": "postgres" } } }),
            "[git-verify] spec.verify.secretRef.name",
            "gitops-",
        ),
        (json!({ "recurseSubmodules": true }), "[git-submodules] spec.recurseSubmodules", "false"),
        (
            json!({ "include": [{ "repository": { "name": "x" }, "toPath": "a/../../b" }] }),
            "[git-include] spec.include",
            "by name",
        ),
        (json!({ "interval": "1ms" }), "[git-interval] spec.interval", "30s and 24h"),
        (json!({ "timeout": "100m" }), "[git-timeout] spec.timeout", "1s and 60s"),
    ];
    for (patch, rule, passes) in cases {
        let object = with(git_repository(TENANT, "a"), json!({ "spec": patch }));
        assert_refused(create(tenant, &object).await, &[rule, passes], &object);
    }
    let everything = json!({ "spec": {
        "dependsOn": [{ "name": "b" }, { "name": "c", "namespace": TENANT }],
        "healthChecks": [{ "apiVersion": "apps.cozystack.io/v1alpha1", "kind": "Redis", "name": "a", "namespace": TENANT }],
        "decryption": { "provider": "sops", "secretRef": { "name": "gitops-age" } },
        "postBuild": {
            "substitute": { "size": "10Gi" },
            "substituteFrom": [{ "kind": "ConfigMap", "name": "gitops-settings", "optional": true }],
        },
        "patches": [{ "patch": "- op: remove\n  path: /spec/replicas", "target": { "kind": "Redis" } }],
        "commonMetadata": { "labels": { "team": "a" }, "annotations": { "example.com/b": "c" } },
        "components": ["../components/small"], "namePrefix": "a-", "wait": true, "force": true, "suspend": true,
        "timeout": "1m30s", "retryInterval": "1m", "interval": "1.5h", "deletionPolicy": "Delete",
    } });
    let object = with(kustomization(TENANT, "a"), everything);
    create(tenant, &object).await.unwrap_or_else(|message| panic!("{object}: {message}"));
    let everything = json!({ "spec": {
        "provider": "generic", "secretRef": { "name": "gitops-credentials" }, "ref": { "semver": ">=1.0.0" },
        "verify": { "mode": "Tag", "secretRef": { "name": "gitops-signers" } }, "timeout": "60s",
        "include": [{ "repository": { "name": "b" }, "fromPath": "x", "toPath": "y" }], "sparseCheckout": ["apps"],
        "ignore": "*.md", "suspend": false, "recurseSubmodules": false,
    } });
    let object = with(git_repository(TENANT, "a"), everything);
    create(tenant, &object).await.unwrap_or_else(|message| panic!("{object}: {message}"));
}

/// The MutatingAdmissionPolicy fills in what is not there, and a second time changes nothing.
async fn stamped(surface: &Surface, tenant: &Client) {
    let plain = json!({
        "apiVersion": "kustomize.toolkit.fluxcd.io/v1", "kind": "Kustomization",
        "metadata": { "name": "plain", "namespace": TENANT },
        "spec": { "interval": "5m", "prune": true, "sourceRef": { "kind": "GitRepository", "name": "a" } },
    });
    let kustomizations = api(tenant, "Kustomization", Some(TENANT));
    let created = make(&kustomizations, &PostParams::default(), &plain).await.unwrap();
    let labels = created.metadata.labels.clone().unwrap();
    assert_eq!(labels["sharding.fluxcd.io/key"], TENANT);
    assert_eq!(created.data["spec"]["serviceAccountName"], "tenant-foo-gitops");
    assert_eq!(created.data["spec"]["targetNamespace"], TENANT);
    assert_eq!(created.data["spec"]["deletionPolicy"], "Orphan");
    // The first replacement also stores the CRD's defaults.
    let second = kustomizations.replace("plain", &PostParams::default(), &created).await.unwrap();
    assert_eq!(second.data["spec"], created.data["spec"]);
    assert_eq!(second.metadata.labels, created.metadata.labels);
    let third = kustomizations.replace("plain", &PostParams::default(), &second).await.unwrap();
    assert_eq!(
        third.metadata.resource_version, second.metadata.resource_version,
        "stamping again is a write"
    );
    surface.delete("Kustomization", Some(TENANT), "plain").await;
}

/// As large as the rules let lists be, and objects near the API server's own limit, without an error of the cost budget.
async fn large_objects_stay_in_the_budget(tenant: &Client) {
    let depends: Vec<_> =
        (0..100).map(|i| json!({ "name": format!("source-{i}"), "namespace": TENANT })).collect();
    let checks: Vec<_> = (0..100)
        .map(|i| json!({ "apiVersion": "apps.cozystack.io/v1alpha1", "kind": "Redis", "name": format!("r{i}"), "namespace": TENANT }))
        .collect();
    let labels: serde_json::Map<_, _> =
        (0..200).map(|i| (format!("example.com/label-{i}"), "x".into())).collect();
    let object = with(
        kustomization(TENANT, "large"),
        json!({ "spec": {
            "dependsOn": depends, "healthChecks": checks, "commonMetadata": { "labels": labels },
            "components": (0..100).map(|i| format!("components/{i}")).collect::<Vec<_>>(),
            "patches": [{ "patch": "x".repeat(1_000_000) }],
            "postBuild": { "substituteFrom": (0..20).map(|i| json!({ "kind": "Secret", "name": format!("gitops-{i}") })).collect::<Vec<_>>() },
        } }),
    );
    create(tenant, &object).await.unwrap();
    let many: Vec<_> = (0..10_000).map(|i| json!({ "name": format!("s{i}") })).collect();
    let object = with(kustomization(TENANT, "many"), json!({ "spec": { "dependsOn": many } }));
    assert_refused(
        create(tenant, &object).await,
        &["[kustomization-depends]", "at most 100"],
        &json!("dependsOn"),
    );
    let host = format!("https://{}com/", "a.".repeat(120));
    let object = with(
        git_repository(TENANT, "large"),
        json!({ "spec": { "url": host, "ignore": "x\n".repeat(200_000) } }),
    );
    create(tenant, &object).await.unwrap();
    let object = with(
        git_repository(TENANT, "long"),
        json!({ "spec": { "url": format!("https://a.com/{}", "a".repeat(500_000)) } }),
    );
    assert_refused(create(tenant, &object).await, &["[git-url]"], &json!("a long URL"));
}

async fn secrets(surface: &Surface, tenant: &Client) {
    let secret = |name: &str, kind: &str| {
        with(bare("Secret", Some(TENANT), name), json!({ "type": kind, "stringData": { "a": "b" } }))
    };
    create(tenant, &secret("gitops-credentials", "Opaque")).await.unwrap();
    assert_refused(
        create(tenant, &secret("postgres", "Opaque")).await,
        &["[secret-name] metadata.name", "gitops-"],
        &json!(1),
    );
    for other in
        ["kubernetes.io/service-account-token", "helm.sh/release.v1", "bootstrap.kubernetes.io/token"]
    {
        let mut object = secret("gitops-token", other);
        object["metadata"]["annotations"] =
            json!({ "kubernetes.io/service-account.name": "tenant-foo-gitops" });
        assert_refused(
            create(tenant, &object).await,
            &["[secret-type] type", "kubernetes.io/ssh-auth"],
            &object,
        );
    }
    // Not theirs: neither changed, nor read through the answer to a patch without changes, nor deleted.
    surface.create(&secret("postgres", "Opaque")).await;
    let secrets = api(tenant, "Secret", Some(TENANT));
    let refused = secrets.patch("postgres", &PatchParams::default(), &Patch::Merge(json!({}))).await;
    assert_refused(refused.map_err(|error| refusal(&error).1), &["[secret-name]"], &json!("an empty patch"));
    let refused = secrets.delete("postgres", &DeleteParams::default()).await.map(|_| unreachable!());
    assert_refused(refused.map_err(|error| refusal(&error).1), &["[secret-name]"], &json!("a deletion"));
    let refused = secrets.get("postgres").await.map_err(|error| refusal(&error).1);
    assert_refused(refused, &["cannot get resource"], &json!("reading"));
    // Theirs, from beginning to end.
    make(&secrets, &PostParams::default(), &secret("gitops-mine", "Opaque")).await.unwrap();
    let change = json!({ "stringData": { "a": "c" } });
    secrets.patch("gitops-mine", &PatchParams::default(), &Patch::Merge(change)).await.unwrap();
    secrets.delete("gitops-mine", &DeleteParams::default()).await.unwrap();
    // The platform makes Secrets of any name and type in the same namespace.
    surface.delete("Secret", Some(TENANT), "postgres").await;
    create(&surface.admin, &secret("helm", "helm.sh/release.v1")).await.unwrap();
}

async fn applications(surface: &Surface, tenant: &Client) {
    let gitops = |name: &str, namespace: &str| {
        with(bare("GitOps", Some(namespace), name), json!({ "spec": { "sources": [] } }))
    };
    let applications = api(tenant, "GitOps", Some(TENANT));
    let create_really = |object: Value| {
        let applications = applications.clone();
        async move {
            make(&applications, &PostParams::default(), &object).await.map_err(|error| refusal(&error).1)
        }
    };
    assert_refused(
        create_really(gitops("other", TENANT)).await,
        &["[gitops-name] metadata.name", "must be gitops"],
        &json!("name"),
    );
    create_really(gitops("gitops", TENANT)).await.unwrap();
    // Whoever deletes is never held up.
    applications.delete("gitops", &DeleteParams::default()).await.unwrap();

    let redis = |name: &str| bare("Redis", Some(TENANT), name);
    let dry = PostParams { dry_run: true, field_manager: None };
    for client in [tenant, &surface.admin] {
        let answer = make(&api(client, "Redis", Some(TENANT)), &dry, &redis("a")).await;
        assert_refused(
            answer.map_err(|error| refusal(&error).1),
            &["[dry-run] dryRun", "--dry-run=client"],
            &json!("dry run"),
        );
    }
    let account = surface.user("system:serviceaccount:tenant-foo:tenant-foo-gitops").await;
    make(&api(&account, "Redis", Some(TENANT)), &dry, &redis("a")).await.unwrap();
    let neighbour = surface.user("system:serviceaccount:tenant-bar:tenant-bar-gitops").await;
    let answer = make(&api(&neighbour, "Redis", Some(TENANT)), &dry, &redis("a")).await;
    assert_refused(
        answer.map_err(|error| refusal(&error).1),
        &["cannot create resource"],
        &json!("a neighbour"),
    );
    let answer =
        make(&api(&account, "GitOps", Some(TENANT)), &PostParams::default(), &gitops("gitops", TENANT)).await;
    assert_refused(
        answer.map_err(|error| refusal(&error).1),
        &["[application-kind] kind", "by hand"],
        &json!("gitops in git"),
    );
    let labelled =
        with(redis("b"), json!({ "metadata": { "labels": { "sharding.fluxcd.io/key": "shard0" } } }));
    let answer = make(&api(&account, "Redis", Some(TENANT)), &PostParams::default(), &labelled).await;
    assert_refused(
        answer.map_err(|error| refusal(&error).1),
        &["[application-metadata] metadata"],
        &labelled,
    );
}

/// Outside tenants nothing is judged, and neither is anybody's Secret of the platform.
async fn platform_writes_pass(surface: &Surface) {
    let object = json!({
        "apiVersion": "kustomize.toolkit.fluxcd.io/v1", "kind": "Kustomization",
        "metadata": { "name": "platform", "namespace": "cozy-system" },
        "spec": { "interval": "1s", "prune": true, "sourceRef": { "kind": "OCIRepository", "name": "a", "namespace": "cozy-fluxcd" } },
    });
    let created = create(&surface.admin, &object).await.unwrap();
    assert_eq!(created.metadata.labels, None);
    assert_eq!(created.data["spec"].get("serviceAccountName"), None);
    let object = with(
        git_repository("cozy-system", "a"),
        json!({ "spec": { "url": "http://10.0.0.1/a", "interval": "1s" } }),
    );
    create(&surface.admin, &object).await.unwrap();
    create(&surface.admin, &bare("HelmRelease", Some(TENANT), "of-the-platform")).await.unwrap();
}

async fn without_warnings_of_the_type_checker(surface: &Surface) {
    let chart = surface::template(&[]);
    let wanted = chart.iter().filter(|object| object["kind"] == "ValidatingAdmissionPolicy").count();
    assert!(wanted > 5);
    let policies = api(&surface.admin, "ValidatingAdmissionPolicy", None);
    surface::eventually("all policies are type-checked", || async {
        let policies = policies.list(&Default::default()).await.unwrap();
        let ours: Vec<_> = policies
            .items
            .iter()
            .filter(|policy| policy.metadata.name.as_ref().unwrap().starts_with("cozy-gitops-"))
            .collect();
        let (all, mut count) = (ours.len(), 0);
        for policy in ours {
            let status = &policy.data["status"];
            assert!(status["typeChecking"].get("expressionWarnings").is_none(), "{status}");
            count += usize::from(status.get("typeChecking").is_some());
        }
        all == wanted && count == all
    })
    .await;
}

/// What lay in tenants' namespaces before the surface came: it stays, it may be deleted, the controllers that keep it
/// go on, and it may be changed only into what the rules allow.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_there_before_goes_on() {
    let surface = Surface::bare().await;
    let old = with(
        kustomization(TENANT, "old"),
        json!({
            "metadata": { "labels": null, "finalizers": ["finalizers.fluxcd.io"] },
            "spec": { "serviceAccountName": "helm", "interval": "10s", "kubeConfig": { "secretRef": { "name": "k" } } },
        }),
    );
    surface.create(&old).await;
    let old_source =
        with(git_repository(TENANT, "old"), json!({ "spec": { "url": "http://10.1.2.3/a.git" } }));
    surface.create(&old_source).await;
    surface.install(POLICIES).await.unwrap();
    surface.enforced().await;
    surface.grant().await;

    let controller = api(&surface.admin, "Kustomization", Some(TENANT));
    let merge_patch = |patch: Value| {
        let controller = controller.clone();
        async move {
            let answer = controller.patch("old", &PatchParams::default(), &Patch::Merge(patch)).await;
            answer.map_err(|error| refusal(&error).1)
        }
    };
    let asked = json!({ "metadata": { "annotations": { "reconcile.fluxcd.io/requestedAt": "now" } } });
    let after = merge_patch(asked).await.unwrap();
    assert_eq!(after.metadata.labels, None, "a change of metadata moves the object to another controller");
    let status = json!({ "status": { "lastAppliedRevision": "main@sha1:1" } });
    controller.patch_status("old", &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
    assert_refused(
        merge_patch(json!({ "spec": { "path": "./other" } })).await,
        &["[kustomization-"],
        &json!("path"),
    );
    assert_refused(
        merge_patch(json!({ "metadata": { "labels": { "sharding.fluxcd.io/key": "shard0" } } })).await,
        &["[kustomization-"],
        &json!("label"),
    );
    let sources = api(&surface.admin, "GitRepository", Some(TENANT));
    let answer = sources
        .patch("old", &PatchParams::default(), &Patch::Merge(json!({ "spec": { "interval": "6m" } })))
        .await;
    assert_refused(answer.map_err(|error| refusal(&error).1), &["[git-url]"], &json!("interval"));
    let good = json!({ "spec": { "url": "https://git.example.com/a.git" } });
    sources.patch("old", &PatchParams::default(), &Patch::Merge(good)).await.unwrap();

    // Being deleted: finalizers go, and nothing else opens.
    controller.delete("old", &DeleteParams::default()).await.unwrap();
    assert_refused(
        merge_patch(json!({ "spec": { "path": "./other" } })).await,
        &["[kustomization-"],
        &json!("deleting"),
    );
    merge_patch(json!({ "metadata": { "finalizers": null } })).await.unwrap();
    surface::eventually("the object is gone", || async {
        controller.get_opt("old").await.unwrap().is_none()
    })
    .await;
}

/// Nobody answers the webhook: Kustomizations of tenants wait, everything else goes on.
#[tokio::test(flavor = "multi_thread")]
async fn fails_closed_without_the_webhook() {
    let surface = Surface::bare().await;
    let before = kustomization(TENANT, "before");
    surface.create(&before).await;
    surface.install(&["admission.mutation=webhook", "admission.webhook.timeoutSeconds=2"]).await.unwrap();
    let webhook = api(&surface.admin, "MutatingWebhookConfiguration", None);
    let configuration = webhook.get("cozy-gitops-tenant").await.unwrap();
    assert_eq!(configuration.metadata.labels.unwrap()["gitops.cozystack.io/webhook"], "cozy-gitops");
    let refused = |answer: Result<DynamicObject, String>| {
        answer.is_err_and(|message| message.contains("kustomizations.gitops.cozystack.io"))
    };
    surface::eventually("the webhook is asked", || async {
        refused(create(&surface.admin, &kustomization(TENANT, "new")).await)
    })
    .await;
    let client = &surface.admin;
    create(client, &kustomization("cozy-system", "platform")).await.unwrap();
    create(client, &git_repository(TENANT, "source")).await.unwrap();
    create(client, &bare("Secret", Some(TENANT), "gitops-a")).await.unwrap();
    make(&api(client, "Redis", Some(TENANT)), &PostParams::default(), &bare("Redis", Some(TENANT), "r"))
        .await
        .unwrap();
    let change = json!({ "spec": { "replicas": 2 } });
    api(client, "Redis", Some(TENANT))
        .patch("r", &PatchParams::default(), &Patch::Merge(change))
        .await
        .unwrap();
    let kustomizations = api(client, "Kustomization", Some(TENANT));
    let status = json!({ "status": { "lastAppliedRevision": "main@sha1:1" } });
    kustomizations.patch_status("before", &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
    let finalizer = json!({ "metadata": { "finalizers": ["finalizers.fluxcd.io"] } });
    kustomizations.patch("before", &PatchParams::default(), &Patch::Merge(finalizer)).await.unwrap();
    kustomizations.delete("before", &DeleteParams::default()).await.unwrap();
    let none = json!({ "metadata": { "finalizers": null } });
    kustomizations.patch("before", &PatchParams::default(), &Patch::Merge(none)).await.unwrap();
}

/// What a tenant is told: the rule, which docs/tenant-surface.md explains, the field, and what would pass.
#[test]
fn every_refusal_says_which_rule_which_field_and_what_passes() {
    let page = std::fs::read_to_string(surface::repository("docs/tenant-surface.md")).unwrap();
    let rows: Vec<&str> = page.lines().filter(|line| line.starts_with("| `")).collect();
    let explained = |rule: &str| {
        let (prefix, rest) = rule.split_once('-').unwrap_or((rule, ""));
        rows.iter().filter_map(|row| row.split('|').nth(1)).any(|rules| {
            rules.contains(&format!("`{rule}`"))
                || rules.contains(&format!("`{prefix}-")) && rules.contains(&format!("`-{rest}`"))
        })
    };
    let passes = [
        "must be",
        "must begin",
        "must name",
        "must have",
        "leave",
        "at most",
        "such as",
        "only ",
        "use ",
        "make it",
        "no label",
        "beginning with",
        "stays until",
    ];
    let mut rules = std::collections::BTreeSet::new();
    for policy in surface::template(&["admission.mutation=both"]) {
        if policy["kind"] != "ValidatingAdmissionPolicy" {
            continue;
        }
        let name = policy["metadata"]["name"].as_str().unwrap();
        for validation in policy["spec"]["validations"].as_array().unwrap() {
            let text = validation["message"].as_str().or(validation["messageExpression"].as_str());
            let text = text.unwrap_or_else(|| panic!("{name}: {validation} says nothing"));
            // A CEL expression begins with the text that every refusal of the rule begins with.
            let text = text.trim_start_matches('\'');
            let (rule, rest) = text
                .strip_prefix('[')
                .and_then(|text| text.split_once("] "))
                .unwrap_or_else(|| panic!("{name}: no rule: {text}"));
            let (field, says) = rest.split_once(':').unwrap_or_else(|| panic!("{name}: no field: {text}"));
            assert!(
                ["spec.", "metadata", "kind", "type", "dryRun"].iter().any(|start| field.starts_with(start)),
                "{name}: {field:?} is no field: {text}"
            );
            assert!(passes.iter().any(|word| says.contains(word)), "{name}: says not what passes: {text}");
            assert!(explained(rule), "docs/tenant-surface.md does not explain {rule}");
            assert!(["Forbidden", "Invalid"].contains(&validation["reason"].as_str().unwrap_or("Invalid")));
            rules.insert(rule.to_owned());
        }
    }
    assert!(rules.len() > 30, "{rules:?}");
}
