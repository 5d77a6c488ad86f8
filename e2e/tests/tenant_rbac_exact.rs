//! The rights that the operator has for the tenant surface are what it uses, verb by verb; those that no request shows
//! are taken away one by one, and it can do without none.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod product;
mod surface;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use cozy_core::tenant::{FINALIZER, References, Settings, desired};
use cozy_e2e::rbac::{Access, differences, granted, used};
use k8s_openapi::api::rbac::v1::PolicyRule;
use kube::Error;
use kube::api::{Api, DynamicObject, Patch, PatchParams};
use serde_json::{Value, json};

use product::{Product, tenants};
use surface::{LONG, Surface, api, eventually, git_repository, kustomization, merge, namespace};

const USER: &str = "system:serviceaccount:cozy-system:cozy-gitops";
const NAME: &str = "cozy-gitops";

/// What the rendered chart grants the operator.
fn grants(values: &[&str]) -> BTreeSet<Access> {
    let mut grants = BTreeSet::new();
    for object in surface::template(values) {
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        let rules = || serde_json::from_value::<Vec<PolicyRule>>(object["rules"].clone()).unwrap();
        match object["kind"].as_str().unwrap_or_default() {
            "ClusterRole" if name == NAME => grants.extend(granted(&rules(), "")),
            "Role" if name.starts_with(NAME) => grants.extend(granted(&rules(), namespace(&object).unwrap())),
            _ => {}
        }
    }
    grants
}

/// A right that is checked beside a request and leaves no trace in the audit log.
fn is_silent(access: &Access) -> bool {
    ["escalate", "bind"].contains(&access.verb.as_str())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_operators_rights_for_tenants_are_those_that_it_uses() {
    let values = ["admission.mutation=both"];
    let all = grants(&values);
    let without = grants(&["admission.mutation=both", "tenant.enabled=false"]);
    let of_tenants: BTreeSet<Access> = all.difference(&without).cloned().collect();
    assert!(of_tenants.len() > 40, "{of_tenants:?}");
    let silent = of_tenants.iter().filter(|access| is_silent(access)).count();

    let surface = Surface::plain().await;
    surface.install(&values).await.unwrap();
    let mut settings = tenants();
    settings.mutation_policy = true;
    let product = Product::start(surface.cluster(), settings).await;
    surface.granted().await;
    // Two tenants get theirs. No controller ever runs here.
    for tenant in ["tenant-foo", "tenant-bar"] {
        surface.create(&git_repository(tenant, "apps")).await;
        let mut kustomization = kustomization(tenant, "apps");
        if tenant == "tenant-bar" {
            merge(&mut kustomization, &json!({ "metadata": { "finalizers": [FINALIZER] } }));
        }
        surface.create(&kustomization).await;
    }
    let deployments = api(&surface.admin, "Deployment", Some("cozy-fluxcd"));
    eventually("both to have a controller", || async {
        deployments.list(&Default::default()).await.unwrap().items.len() == 2
    })
    .await;
    // One loses its sources, the other its namespace, which its controller would keep.
    surface.delete("Kustomization", Some("tenant-foo"), "apps").await;
    surface.delete("Namespace", None, "tenant-bar").await;

    let deadline = Instant::now() + LONG;
    let loud: BTreeSet<Access> = of_tenants.iter().filter(|access| !is_silent(access)).cloned().collect();
    let audible: BTreeSet<Access> = all.iter().filter(|access| !is_silent(access)).cloned().collect();
    loop {
        let used = used(&surface.cluster().audit_log().unwrap(), USER);
        // Rights for other things are another test's; of these none may be missing, of the tenants' none be too much.
        let mut found = differences(&loud, &used.iter().filter(|u| covered(&loud, u)).cloned().collect());
        found.extend(differences(&audible, &used).into_iter().filter(|line| line.starts_with("used")));
        if found.is_empty() {
            break;
        }
        product.runs();
        assert!(Instant::now() < deadline, "{}", found.join("\n"));
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    product.stop(surface.cluster()).await;
    assert_eq!(silent, 4, "{of_tenants:?}");
    each_silent_right_is_needed(&surface).await;
}

fn covered(grants: &BTreeSet<Access>, used: &Access) -> bool {
    grants.iter().any(|grant| grant.covers(used))
}

/// Takes `escalate` and `bind` away and looks what the operator cannot do any more.
async fn each_silent_right_is_needed(surface: &Surface) {
    let operator = surface.cluster().service_account_client("cozy-system", NAME).await.unwrap();
    let made = desired(&Settings::default(), "tenant-foo", &References::default());
    let of = |kind: &str| made.iter().find(|object| object["kind"] == kind).unwrap().clone();
    let mut wider = of("Role");
    wider["rules"] = json!([{ "apiGroups": ["apps.cozystack.io"], "resources": ["*"], "verbs": ["*"] }]);
    let label = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": { "name": "cozy:tenant-gitops:edit", "labels": { "example.com/probe": "true" } },
    });
    let roles: Api<DynamicObject> = api(&surface.admin, "ClusterRole", None);
    let full = roles.get(NAME).await.unwrap().data["rules"].clone();
    surface.create(&of("Role")).await;
    let apply = async |object: &Value| {
        let parameters = PatchParams { dry_run: true, ..PatchParams::apply("cozy-gitops") }.force();
        let objects = api(&operator, surface::kind(object), namespace(object));
        match objects
            .patch(object["metadata"]["name"].as_str().unwrap(), &parameters, &Patch::Apply(object))
            .await
        {
            Ok(_) => String::new(),
            Err(Error::Api(status)) if status.code == 403 => status.message.clone(),
            Err(error) => panic!("{error}"),
        }
    };
    for (object, resource, verb, names, told) in [
        (&wider, "roles", "escalate", json!(null), "not currently held"),
        (&of("RoleBinding"), "roles", "bind", json!(null), "not currently held"),
        (
            &label,
            "clusterroles",
            "escalate",
            json!(["cozy:tenant-gitops:edit", "cozy:tenant-gitops:view"]),
            "not currently held",
        ),
    ] {
        let mut rules = full.clone();
        let mut taken = 0;
        for rule in rules.as_array_mut().unwrap() {
            if rule["resources"] == json!([resource]) && rule["resourceNames"] == names {
                let verbs = rule["verbs"].as_array_mut().unwrap();
                let before = verbs.len();
                verbs.retain(|has| has != verb);
                taken += before - verbs.len();
            }
        }
        assert_eq!(taken, 1, "{verb} {resource}");
        for (rules, wanted) in [(&rules, told), (&full, "")] {
            let patch = Patch::Merge(json!({ "rules": rules }));
            roles.patch(NAME, &PatchParams::default(), &patch).await.unwrap();
            eventually(&format!("{verb} {resource}: {wanted:?}"), || async {
                let answer = apply(object).await;
                if wanted.is_empty() { answer.is_empty() } else { answer.contains(wanted) }
            })
            .await;
        }
    }
}
