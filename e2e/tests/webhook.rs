//! The admission webhook of the product, asked by a real API server, with the rights that the chart gives it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stderr)]

mod product;
mod surface;

use std::time::{Duration, Instant};

use cozy_server::Rotation;
use k8s_openapi::api::core::v1::Secret;
use kube::Client;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use product::{SECRET, Webhook};
use serde_json::{Value, json};
use surface::{Surface, TENANT, api, apply, bare, git_repository, kustomization, make, merge, refusal};

const VALUES: &[&str] = &["admission.mutation=webhook", "admission.webhook.timeoutSeconds=10"];

/// A Kustomization as a tenant writes it.
fn plain(name: &str) -> Value {
    let mut object = kustomization(TENANT, name);
    merge(
        &mut object,
        &json!({
            "metadata": { "labels": null },
            "spec": { "serviceAccountName": null, "targetNamespace": null, "deletionPolicy": null },
        }),
    );
    object
}

fn assert_stamped(object: &kube::api::DynamicObject) {
    let labels = object.metadata.labels.clone().unwrap_or_default();
    assert_eq!(labels.get("sharding.fluxcd.io/key").map(String::as_str), Some(TENANT));
    let spec = &object.data["spec"];
    assert_eq!(spec["serviceAccountName"], format!("{TENANT}-gitops"));
    assert_eq!(spec["targetNamespace"], TENANT);
    assert_eq!(spec["deletionPolicy"], "Orphan");
}

/// Waits until the webhook is asked and answers.
async fn answered(client: &Client) {
    surface::eventually("the webhook stamps", || async {
        let parameters = PostParams { dry_run: true, field_manager: None };
        let created = make(&api(client, "Kustomization", Some(TENANT)), &parameters, &plain("probe")).await;
        created.is_ok_and(|object| object.metadata.labels.is_some())
    })
    .await;
}

fn bundle(configuration: &kube::api::DynamicObject) -> String {
    configuration.data["webhooks"][0]["clientConfig"]["caBundle"].as_str().unwrap_or_default().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_way_of_writing_is_stamped_and_what_keeps_it_so_is_put_back() {
    let surface = Surface::bare().await;
    surface.install(VALUES).await.unwrap();
    let webhook = Webhook::start(&surface, Rotation::default()).await;
    surface.enforced().await;
    surface.grant().await;
    let tenant = surface.user("tenant").await;
    answered(&tenant).await;
    let kustomizations = api(&tenant, "Kustomization", Some(TENANT));

    assert_stamped(&make(&kustomizations, &PostParams::default(), &plain("a")).await.unwrap());
    // Removed and changed, by each kind of patch and by replacing.
    let merge_patch = json!({ "metadata": { "labels": null }, "spec": { "serviceAccountName": "default" } });
    let patched = kustomizations.patch("a", &PatchParams::default(), &Patch::Merge(merge_patch)).await;
    assert_stamped(&patched.unwrap());
    let json_patch: json_patch::Patch = serde_json::from_value(json!([
        { "op": "replace", "path": "/metadata/labels/sharding.fluxcd.io~1key", "value": "tenants" },
        { "op": "remove", "path": "/spec/targetNamespace" },
    ]))
    .unwrap();
    let patched = kustomizations.patch("a", &PatchParams::default(), &Patch::<()>::Json(json_patch)).await;
    assert_stamped(&patched.unwrap());
    let mut replaced = kustomizations.get("a").await.unwrap();
    replaced.metadata.labels = None;
    replaced.data["spec"]["deletionPolicy"] = Value::Null;
    assert_stamped(&kustomizations.replace("a", &PostParams::default(), &replaced).await.unwrap());
    let by = PatchParams::apply("tenant").force();
    let applied = apply(&kustomizations, &by, &plain("a")).await.unwrap();
    assert_stamped(&applied);
    let applied = apply(&kustomizations, &by, &plain("b")).await.unwrap();
    assert_stamped(&applied);
    // Applying it again changes nothing: the stamp is no fight between owners.
    let again = apply(&kustomizations, &by, &plain("b")).await.unwrap();
    assert_eq!(again.metadata.generation, applied.metadata.generation);

    // What somebody changes is put back.
    let configurations = api(&surface.admin, "MutatingWebhookConfiguration", None);
    let good = bundle(&configurations.get("cozy-gitops-tenant").await.unwrap());
    assert!(!good.is_empty());
    let mut broken = configurations.get("cozy-gitops-tenant").await.unwrap();
    broken.data["webhooks"][0]["clientConfig"]["caBundle"] = Value::Null;
    configurations.replace("cozy-gitops-tenant", &PostParams::default(), &broken).await.unwrap();
    surface::eventually("the bundle is back", || async {
        bundle(&configurations.get("cozy-gitops-tenant").await.unwrap()) == good
    })
    .await;
    answered(&tenant).await;

    // Without its Secret there is another authority, and the API server learns of it.
    let secrets: Api<Secret> = Api::namespaced(surface.admin.clone(), "cozy-system");
    secrets.delete(SECRET, &DeleteParams::default()).await.unwrap();
    surface::eventually("another authority is published", || async {
        let now = bundle(&configurations.get("cozy-gitops-tenant").await.unwrap());
        !now.is_empty() && now != good
    })
    .await;
    answered(&tenant).await;

    // Gone, and nothing of the kind is written; back, and all is well.
    let port = webhook.port;
    webhook.stop(surface.cluster()).await;
    let parameters = PostParams { dry_run: true, field_manager: None };
    let refused = make(&kustomizations, &parameters, &plain("c")).await.unwrap_err();
    assert!(refusal(&refused).1.contains("kustomizations.gitops.cozystack.io"), "{refused}");
    let repositories = api(&tenant, "GitRepository", Some(TENANT));
    make(&repositories, &PostParams::default(), &git_repository(TENANT, "s")).await.unwrap();
    let webhook = Webhook::start_at(&surface, Rotation::default(), port).await;
    answered(&tenant).await;
    webhook.stop(surface.cluster()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn certificates_change_under_load_and_no_request_is_refused() {
    let surface = Surface::bare().await;
    surface.install(VALUES).await.unwrap();
    // A few turns of everything within the test.
    let rotation = Rotation {
        authority: Duration::from_secs(36),
        serving: Duration::from_secs(15),
        propagation: Duration::from_secs(5),
    };
    let first = Webhook::start(&surface, rotation).await;
    let second = Webhook::start(&surface, rotation).await;
    surface.enforced().await;
    surface.grant().await;
    let tenant = surface.user("tenant").await;
    answered(&tenant).await;

    let configurations = api(&surface.admin, "MutatingWebhookConfiguration", None);
    let kustomizations = api(&tenant, "Kustomization", Some(TENANT));
    let parameters = PostParams { dry_run: true, field_manager: None };
    let (mut bundles, mut requests) = (std::collections::BTreeSet::new(), 0);
    let begin = Instant::now();
    // Until three authorities have signed, however slow the machine is.
    while bundles.len() < 6 || begin.elapsed() < Duration::from_secs(40) {
        assert!(begin.elapsed() < 3 * surface::LONG, "{} bundles", bundles.len());
        let object = plain(&format!("r{requests}"));
        let created = make(&kustomizations, &parameters, &object).await;
        let created = created.unwrap_or_else(|error| panic!("after {:?}: {error}", begin.elapsed()));
        assert!(created.metadata.labels.is_some());
        requests += 1;
        if requests % 10 == 0 {
            bundles.insert(bundle(&configurations.get("cozy-gitops-tenant").await.unwrap()));
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    eprintln!("{requests} requests in {:?}, {} bundles", begin.elapsed(), bundles.len());
    first.stop(surface.cluster()).await;
    second.stop(surface.cluster()).await;
}

/// The customizer's guard of Package fields, served.
#[tokio::test(flavor = "multi_thread")]
async fn the_guard_of_package_fields_refuses_what_takes_them_from_the_chart() {
    let surface = Surface::bare().await;
    surface.install(VALUES).await.unwrap();
    let webhook = Webhook::start(&surface, Rotation::default()).await;
    let kubeconfig = surface.kubeconfig();
    let chart = surface::repository("packages/system/customizer").display().to_string();
    let customizer = |guard: bool| {
        let guard = format!("guards.packageFields.enabled={guard}");
        let arguments = [
            "upgrade",
            "--install",
            "customizer",
            &chart,
            "--namespace",
            "cozy-system",
            "--set",
            "source.url=https://git.example.org/platform.git,kustomization.path=./",
            "--set",
            &guard,
        ];
        tokio::task::block_in_place(|| surface::helm(Some(&kubeconfig), &arguments)).unwrap();
    };
    customizer(false);
    let package = |replicas: u64| {
        let mut package = bare("Package", None, "cozystack.linstor");
        package["spec"] = json!({ "components": { "linstor": { "values": { "replicas": replicas } } } });
        package
    };
    let by_helm = PostParams { field_manager: Some("helm-controller".to_owned()), ..PostParams::default() };
    let packages = api(&surface.admin, "Package", None);
    make(&packages, &by_helm, &package(3)).await.unwrap();
    let account = surface.user("system:serviceaccount:cozy-system:cozystack-customizer").await;
    let by_account = api(&account, "Package", None);
    let force = PatchParams { dry_run: true, ..PatchParams::apply("kustomize-controller").force() };

    // Off: the footgun as it is.
    by_account.patch("cozystack.linstor", &force, &Patch::Apply(package(5))).await.unwrap();

    customizer(true);
    surface::eventually("the guard is asked and answers", || async {
        match by_account.patch("cozystack.linstor", &force, &Patch::Apply(package(5))).await {
            Ok(_) => false,
            Err(error) => refusal(&error).1.contains("PackageValues"),
        }
    })
    .await;
    let refused = by_account.patch("cozystack.linstor", &force, &Patch::Apply(package(5))).await.unwrap_err();
    let (code, message) = refusal(&refused);
    assert_eq!(code, 403, "{message}");
    assert!(message.contains("/spec/components/linstor/values/replicas"), "{message}");
    // By a merge patch as well.
    let values = json!({ "spec": { "components": { "linstor": { "values": { "replicas": 5 } } } } });
    let dry = PatchParams { dry_run: true, ..PatchParams::default() };
    assert!(by_account.patch("cozystack.linstor", &dry, &Patch::Merge(&values)).await.is_err());
    // A field that the chart does not set, and a Package that it did not make.
    let other = json!({ "spec": { "components": { "linstor": { "values": { "other": true } } } } });
    by_account.patch("cozystack.linstor", &dry, &Patch::Merge(&other)).await.unwrap();
    let mut own = bare("Package", None, "cozystack.own");
    own["spec"] = json!({ "variant": "default" });
    make(&packages, &PostParams::default(), &own).await.unwrap();
    own["spec"] = json!({ "variant": "other" });
    by_account.patch("cozystack.own", &force, &Patch::Apply(own)).await.unwrap();
    // Others are not asked about.
    packages.patch("cozystack.linstor", &dry, &Patch::Merge(&values)).await.unwrap();

    customizer(false);
    surface::eventually("the guard is gone", || async {
        by_account.patch("cozystack.linstor", &force, &Patch::Apply(package(5))).await.is_ok()
    })
    .await;
    webhook.stop(surface.cluster()).await;
}
