//! Tenants get their roles when everything that confines them is in force, and lose them when it is not.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod product;
mod surface;

use cozy_core::enforcement::{Grant, LABEL_ENFORCEMENT, LABEL_RIGHTS, WITHHELD};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use product::{Product, tenants};
use surface::{Surface, TENANT, api, eventually, kustomization, make, merge, refusal};

const EDIT: &str = "cozy:tenant-gitops:edit";
const LABEL: &str = "rbac.cozystack.io/aggregate-to-tenant-super-admin";

async fn labels(surface: &Surface, role: &str) -> Vec<String> {
    let role = api(&surface.admin, "ClusterRole", None).get(role).await.unwrap();
    let labels = role.metadata.labels.unwrap_or_default().into_keys();
    labels.filter(|label| label.contains("aggregate-to")).collect()
}

/// Whether the tenant may write Kustomizations, as the API server sees it.
async fn may(surface: &Surface) -> bool {
    let tenant = surface.user("tenant").await;
    match api(&tenant, "Kustomization", Some(TENANT)).list(&ListParams::default()).await {
        Ok(_) => true,
        Err(error) => {
            assert_eq!(refusal(&error).0, 403);
            false
        }
    }
}

async fn given(surface: &Surface) {
    eventually("the rights are given", || async {
        may(surface).await && labels(surface, EDIT).await == [LABEL]
    })
    .await;
}

async fn taken(surface: &Surface, why: &str) {
    eventually(&format!("the rights are taken: {why}"), || async {
        !may(surface).await && labels(surface, EDIT).await.is_empty()
    })
    .await;
}

/// What the role says of why nobody has it.
async fn withheld(surface: &Surface, contains: &str) {
    eventually(&format!("it says that {contains:?} is missing"), || async {
        let role = api(&surface.admin, "ClusterRole", None).get(EDIT).await.unwrap();
        let told = role.metadata.annotations.unwrap_or_default().remove(WITHHELD);
        if contains.is_empty() { told.is_none() } else { told.is_some_and(|told| told.contains(contains)) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rights_come_with_the_enforcement_and_go_with_it() {
    let surface = Surface::plain().await;
    surface.install(&["admission.mutation=webhook"]).await.unwrap();
    // The chart alone gives nobody anything: the webhook has no authority yet.
    assert!(!may(&surface).await);
    let product = Product::start(surface.cluster(), tenants()).await;
    given(&surface).await;
    assert_eq!(labels(&surface, "cozy:tenant-gitops:view").await.len(), 1);
    withheld(&surface, "").await;
    // The first that a tenant may write is stamped and checked.
    let tenant = surface.user("tenant").await;
    let mut plain = kustomization(TENANT, "a");
    merge(
        &mut plain,
        &json!({ "metadata": { "labels": null }, "spec": { "serviceAccountName": null, "targetNamespace": null } }),
    );
    let dry = PostParams { dry_run: true, field_manager: None };
    let made = make(&api(&tenant, "Kustomization", Some(TENANT)), &dry, &plain).await.unwrap();
    assert_eq!(made.data["spec"]["serviceAccountName"], format!("{TENANT}-gitops"));

    // Each kind of enforcement, loosened in its own way; put back by the chart.
    let loosen = async |kind: &str, name: &str, patch: Value| {
        let objects = api(&surface.admin, kind, None);
        if patch.is_null() {
            objects.delete(name, &DeleteParams::default()).await.unwrap();
        } else {
            objects.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
        }
        taken(&surface, name).await;
        withheld(&surface, name).await;
        // By the chart's own text, whatever Helm thinks is there.
        let chart = surface::template(&["admission.mutation=webhook"]);
        let good = chart.iter().find(|object| object["kind"] == kind && object["metadata"]["name"] == name);
        let mut good = good.unwrap().clone();
        if let Ok(mut there) = objects.get(name).await {
            if kind != "MutatingWebhookConfiguration" {
                there.data["spec"] = good["spec"].take();
                objects.replace(name, &PostParams::default(), &there).await.unwrap();
            } else {
                let ignore =
                    json!([{ "op": "replace", "path": "/webhooks/0/failurePolicy", "value": "Fail" }]);
                let patch = Patch::<()>::Json(serde_json::from_value(ignore).unwrap());
                objects.patch(name, &PatchParams::default(), &patch).await.unwrap();
            }
        } else {
            surface.apply(&good).await;
        }
        given(&surface).await;
        withheld(&surface, "").await;
    };
    loosen(
        "ValidatingAdmissionPolicy",
        "cozy-gitops-secrets",
        json!({ "spec": { "failurePolicy": "Ignore" } }),
    )
    .await;
    loosen(
        "ValidatingAdmissionPolicyBinding",
        "cozy-gitops-kustomizations",
        json!({ "spec": { "validationActions": ["Audit"] } }),
    )
    .await;
    loosen("ValidatingAdmissionPolicyBinding", "cozy-gitops-gitrepositories", Value::Null).await;
    loosen("ValidatingAdmissionPolicy", "cozy-gitops-quota", Value::Null).await;
    loosen("MutatingWebhookConfiguration", "cozy-gitops-tenant", Value::Null).await;

    // A label that somebody else puts on: not that way.
    let other = json!({ "metadata": { "labels": { "rbac.cozystack.io/aggregate-to-tenant-view": "true" } } });
    let roles = api(&surface.admin, "ClusterRole", None);
    roles.patch(EDIT, &PatchParams::default(), &Patch::Merge(other)).await.unwrap();
    given(&surface).await;

    // An upgrade changes nothing of it, and neither does a restart.
    surface.install(&["admission.mutation=webhook", "tenant.bounds.minInterval=40s"]).await.unwrap();
    let begin = std::time::Instant::now();
    while begin.elapsed() < std::time::Duration::from_secs(8) {
        assert!(may(&surface).await, "after {:?}", begin.elapsed());
        tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    }
    product.stop(surface.cluster()).await;
    let before = roles.get(EDIT).await.unwrap().metadata.resource_version;
    let product = Product::start(surface.cluster(), tenants()).await;
    tokio::time::sleep(std::time::Duration::from_secs(8)).await;
    assert_eq!(roles.get(EDIT).await.unwrap().metadata.resource_version, before);

    // Another role of Cozystack: the first loses it.
    surface.install(&["admission.mutation=webhook", "tenant.grantTo.edit=admin"]).await.unwrap();
    eventually("the other role has it", || async {
        labels(&surface, EDIT).await == ["rbac.cozystack.io/aggregate-to-tenant-admin"]
    })
    .await;
    // None at all.
    surface.install(&["admission.mutation=webhook", "tenant.fluxAccess=none"]).await.unwrap();
    eventually("nobody has it", || async { !may(&surface).await }).await;
    product.runs();
    product.stop(surface.cluster()).await;
}

/// What the roles wait for is all that the chart brings to confine tenants, whatever is switched on.
#[test]
fn the_roles_wait_for_everything_that_the_chart_brings() {
    for mutation in ["webhook", "policy", "both"] {
        for (prune, dry_run) in [(true, true), (true, false), (false, true), (false, false)] {
            let values = [
                format!("admission.mutation={mutation}"),
                format!("admission.webhook.prune.enabled={prune}"),
                format!("admission.dryRunGuard.enabled={dry_run}"),
            ];
            let values: Vec<&str> = values.iter().map(String::as_str).collect();
            let objects = surface::template(&values);
            let mut brought: Vec<String> = objects
                .iter()
                .filter(|object| !object["metadata"]["labels"][LABEL_ENFORCEMENT].is_null())
                .map(|object| {
                    format!("{}/{}", surface::kind(object), object["metadata"]["name"].as_str().unwrap())
                })
                .filter(|object| !object.contains("Binding/"))
                .collect();
            brought.sort();
            let roles = objects.iter().filter(|object| !object["metadata"]["labels"][LABEL_RIGHTS].is_null());
            let mut seen = 0;
            for role in roles {
                let grant = Grant::of(role);
                let mut waits: Vec<String> =
                    grant.enforced_by.iter().map(|(kind, name)| format!("{kind}/{name}")).collect();
                waits.sort();
                assert_eq!(waits, brought, "{values:?}");
                assert!(grant.label.is_some() && grant.given.is_empty());
                seen += 1;
            }
            assert_eq!(seen, 2);
            // Every policy has its binding, or it confines nobody.
            let bindings = objects.iter().filter(|object| {
                surface::kind(object).ends_with("PolicyBinding")
                    && !object["metadata"]["labels"][LABEL_ENFORCEMENT].is_null()
            });
            assert_eq!(bindings.count(), brought.iter().filter(|object| object.contains("Policy/")).count());
        }
    }
}
