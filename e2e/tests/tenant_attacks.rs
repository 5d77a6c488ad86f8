//! Every case of e2e/fixtures/attacks.yaml on a real API server, three ways: with the stamp and the policies, with
//! the stamp alone, with the policies alone.

#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "helpers of tests")]

mod product;
mod surface;

use std::collections::BTreeSet;

use kube::Client;
use kube::api::{Api, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use surface::{
    Surface, TENANT, api, apply, bare, documents, git_repository, kustomization, make, merge, refusal, typed,
};

/// What is there to stop an attack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layers {
    Both,
    Stamp,
    Policies,
}

/// What happened.
#[derive(Debug)]
enum Outcome {
    /// Done; the object afterwards, where there is one.
    Done(Option<Box<DynamicObject>>),
    Refused(u16, String),
}

struct Case<'a> {
    data: &'a Value,
}

impl<'a> Case<'a> {
    fn text(&self, key: &str) -> Option<&'a str> {
        self.data.get(key).and_then(Value::as_str)
    }

    fn id(&self) -> &'a str {
        self.text("id").unwrap()
    }

    fn kind(&self) -> &'a str {
        self.text("kind").unwrap_or("Kustomization")
    }

    /// None for kinds of the cluster.
    fn namespace(&self) -> Option<&'a str> {
        let cluster = [
            "Namespace",
            "ClusterRole",
            "ClusterRoleBinding",
            "CustomResourceDefinition",
            "Package",
            "PackageValues",
            "MutatingWebhookConfiguration",
            "ValidatingAdmissionPolicy",
            "ValidatingAdmissionPolicyBinding",
        ];
        (!cluster.contains(&self.kind())).then(|| self.text("namespace").unwrap_or(TENANT))
    }

    fn verbs(&self) -> Vec<&'a str> {
        match self.data.get("verbs") {
            Some(verbs) => verbs.as_array().unwrap().iter().map(|verb| verb.as_str().unwrap()).collect(),
            None => vec!["create", "update", "merge", "json"],
        }
    }

    /// What is expected to stop it.
    fn stops(&self, layers: Layers) -> &'a str {
        let stops = self.text("stops").unwrap();
        let any = ["rbac", "schema", "absent"].contains(&stops);
        match layers {
            Layers::Both => stops,
            Layers::Stamp if any || stops == "stamp" => stops,
            Layers::Stamp => "open",
            Layers::Policies => self.text("policies").unwrap_or(stops),
        }
    }

    /// An object of the kind that breaks no rule.
    fn innocent(&self, name: &str) -> Value {
        let namespace = self.namespace();
        match self.kind() {
            "Kustomization" => kustomization(namespace.unwrap(), name),
            "GitRepository" => git_repository(namespace.unwrap(), name),
            "Secret" => {
                let mut secret = bare("Secret", namespace, name);
                merge(&mut secret, &json!({ "type": "Opaque", "stringData": { "a": "b" } }));
                secret
            }
            kind => bare(kind, namespace, name),
        }
    }

    fn patch(&self) -> Value {
        self.data.get("object").cloned().unwrap_or_else(|| json!({}))
    }

    fn user(&self) -> String {
        match self.text("actor").unwrap_or("tenant") {
            "gitops" => "system:serviceaccount:tenant-foo:tenant-foo-gitops".into(),
            "controller" => "system:serviceaccount:cozy-fluxcd:kustomize-controller-tenant-foo".into(),
            user => user.into(),
        }
    }
}

fn table() -> Value {
    documents(include_bytes!("../fixtures/attacks.yaml")).remove(0)
}

/// What stamps: the rule is one, and served two ways.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stamp {
    Policy,
    Webhook,
}

#[tokio::test(flavor = "multi_thread")]
async fn each_attack_is_stopped_by_what_the_table_says() {
    three_ways(Stamp::Policy).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn and_with_the_webhook_as_the_stamp() {
    three_ways(Stamp::Webhook).await;
}

async fn three_ways(stamp: Stamp) {
    let table = table();
    let cases: Vec<_> = table["attacks"].as_array().unwrap().iter().map(|data| Case { data }).collect();
    assert!(cases.len() >= 100, "only {} cases", cases.len());
    let ids: BTreeSet<_> = cases.iter().map(Case::id).collect();
    assert_eq!(ids.len(), cases.len(), "an id is there twice");

    let surface = Surface::bare().await;
    let values = match stamp {
        Stamp::Policy => ["admission.mutation=policy", "admission.webhook.prune.enabled=false"],
        Stamp::Webhook => ["admission.mutation=webhook", "admission.webhook.prune.enabled=true"],
    };
    surface.install(&values).await.unwrap();
    let webhook = match stamp {
        Stamp::Policy => None,
        Stamp::Webhook => Some(product::Webhook::start(&surface, cozy_server::Rotation::default()).await),
    };
    surface.enforced().await;
    // The operator, which takes the rights away as soon as one layer is gone, does not run here.
    surface.grant().await;
    too_much(&surface).await;
    let mut wrong = Vec::new();
    let mut runs = run_all(&surface, &cases, Layers::Both, &mut wrong).await;
    drop_stamp(&surface, stamp).await;
    runs += run_all(&surface, &cases, Layers::Policies, &mut wrong).await;
    restore_stamp(&surface, stamp, &values).await;
    drop_policies(&surface).await;
    runs += run_all(&surface, &cases, Layers::Stamp, &mut wrong).await;
    println!("{} cases, {runs} requests", cases.len());
    if let Some(webhook) = webhook {
        webhook.stop(surface.cluster()).await;
    }
    assert!(wrong.is_empty(), "{} of {runs} went otherwise:\n{}", wrong.len(), wrong.join("\n"));
}

async fn run_all(surface: &Surface, cases: &[Case<'_>], layers: Layers, wrong: &mut Vec<String>) -> usize {
    let mut runs = 0;
    for case in cases {
        for verb in case.verbs() {
            runs += 1;
            let (outcome, name) = run(surface, case, verb, runs).await;
            if let Err(found) = judge(case, layers, &outcome) {
                wrong.push(format!(
                    "{} {verb} {layers:?}: expected {}, {found}",
                    case.id(),
                    case.stops(layers)
                ));
            }
            if let (Some(namespace), Some(name)) = (case.namespace(), name) {
                surface.delete(case.kind(), Some(namespace), &name).await;
            }
        }
    }
    runs
}

/// Carries one out. Returns the name of what may have to be tidied up.
async fn run(surface: &Surface, case: &Case<'_>, verb: &str, number: usize) -> (Outcome, Option<String>) {
    let client = surface.user(&case.user()).await;
    let target = case.patch()["metadata"]["name"].as_str().map(str::to_owned);
    let own = format!("case-{number}");
    let named = case.text("name").map(str::to_owned);
    let name = named.clone().or(target).unwrap_or(own);
    let mut tidy = Some(name.clone());
    let exists = match case.kind() {
        "Kustomization" | "GitRepository" | "Secret" | "Redis" | "ResourceQuota" => !verb.contains("create"),
        _ => false,
    };
    if exists && !["list", "deletecollection"].contains(&verb) {
        surface.create(&case.innocent(&name)).await;
    } else if named.is_some() {
        // It is the surface's own.
        tidy = None;
    }
    let api = api(&client, case.kind(), case.namespace());
    (act(&client, &api, case, verb, &name, surface).await, tidy)
}

async fn act(
    client: &Client,
    api: &Api<DynamicObject>,
    case: &Case<'_>,
    verb: &str,
    name: &str,
    surface: &Surface,
) -> Outcome {
    let mut object = case.innocent(name);
    merge(&mut object, &case.patch());
    let dry = |on: bool| PostParams { dry_run: on, field_manager: None };
    let answer = match verb {
        "create" => make(api, &dry(false), &object).await.map(Some),
        "dry-create" => make(api, &dry(true), &object).await.map(Some),
        "update" => {
            let admins = surface::api(&surface.admin, case.kind(), case.namespace());
            if let Ok(stored) = admins.get(name).await {
                object["metadata"]["resourceVersion"] = stored.metadata.resource_version.into();
            }
            api.replace(name, &dry(false), &typed(&object)).await.map(Some)
        }
        "merge" => api.patch(name, &PatchParams::default(), &Patch::Merge(case.patch())).await.map(Some),
        "status" => {
            api.patch_status(name, &PatchParams::default(), &Patch::Merge(case.patch())).await.map(Some)
        }
        "json" => {
            let operations: Vec<_> = object
                .as_object()
                .unwrap()
                .iter()
                .filter(|(key, _)| !["apiVersion", "kind", "metadata"].contains(&key.as_str()))
                .map(|(key, value)| json!({ "op": "add", "path": format!("/{key}"), "value": value }))
                .chain(case.patch()["metadata"].get("labels").map(|_| {
                    let labels = object["metadata"].get("labels").cloned().unwrap_or_else(|| json!({}));
                    json!({ "op": "add", "path": "/metadata/labels", "value": labels })
                }))
                .chain(case.patch()["metadata"].get("annotations").map(|_| {
                    json!({ "op": "add", "path": "/metadata/annotations", "value": object["metadata"]["annotations"] })
                }))
                .collect();
            let patch = serde_json::from_value(operations.into()).unwrap();
            api.patch(name, &PatchParams::default(), &Patch::<()>::Json(patch)).await.map(Some)
        }
        "apply" => {
            let parameters = PatchParams::apply("somebody").force();
            apply(api, &parameters, &object).await.map(Some)
        }
        "delete" => api.delete(name, &DeleteParams::default()).await.map(|_| None),
        "dry-delete" => {
            api.delete(name, &DeleteParams { dry_run: true, ..DeleteParams::default() }).await.map(|_| None)
        }
        "deletecollection" => {
            api.delete_collection(&DeleteParams::default(), &ListParams::default()).await.map(|_| None)
        }
        "get" => api.get(name).await.map(Some),
        "list" => api.list(&ListParams::default()).await.map(|_| None),
        "token" => {
            let path = format!("/api/v1/namespaces/{TENANT}/serviceaccounts/{name}/token");
            let review =
                json!({ "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {} });
            let request = http::Request::post(path)
                .header("Content-Type", "application/json")
                .body(review.to_string().into_bytes())
                .unwrap();
            client.request::<Value>(request).await.map(|_| None)
        }
        other => panic!("{}: the verb {other}", case.id()),
    };
    match answer {
        Ok(object) => Outcome::Done(object.map(Box::new)),
        Err(error) => {
            let (code, message) = refusal(&error);
            Outcome::Refused(code, message)
        }
    }
}

/// Whether it went as expected; if not, how.
fn judge(case: &Case<'_>, layers: Layers, outcome: &Outcome) -> Result<(), String> {
    let expected = case.stops(layers);
    match (expected, outcome) {
        ("rbac", Outcome::Refused(403, message)) if message.contains("cannot") => Ok(()),
        ("schema", Outcome::Refused(422, message)) if !message.contains("denied request") => Ok(()),
        ("open", Outcome::Done(_)) => Ok(()),
        // Set right: the object is the tenant's own in every point that the stamp is about.
        ("stamp", Outcome::Done(Some(object))) if stamped(case, object) => Ok(()),
        ("absent", Outcome::Done(Some(object))) if stamped(case, object) => Ok(()),
        (rule, Outcome::Refused(_, message)) if message.contains(&format!("[{rule}]")) => Ok(()),
        (_, outcome) => Err(match outcome {
            Outcome::Done(Some(object)) => format!("done: {}", serde_json::to_string(object).unwrap()),
            Outcome::Done(None) => "done".to_owned(),
            Outcome::Refused(code, message) => format!("refused with {code}: {message}"),
        }),
    }
}

fn stamped(case: &Case<'_>, object: &DynamicObject) -> bool {
    let namespace = case.namespace().unwrap();
    let labels = object.metadata.labels.clone().unwrap_or_default();
    labels.get("sharding.fluxcd.io/key").is_some_and(|shard| shard == namespace)
        && object.data["spec"]["serviceAccountName"] == format!("{namespace}-gitops")
        && object.data["spec"]["targetNamespace"] == namespace
}

/// A tenant to whom somebody gave too much by mistake.
async fn too_much(surface: &Surface) {
    surface.bind("spoiled", "super-admin", TENANT).await;
    let mut role = bare("Role", Some(TENANT), "too-much");
    role["rules"] = json!([
        { "apiGroups": ["helm.toolkit.fluxcd.io"], "resources": ["helmreleases"], "verbs": ["create"] },
        { "apiGroups": ["source.toolkit.fluxcd.io"], "resources": ["buckets"], "verbs": ["create"] },
    ]);
    surface.apply(&role).await;
    let mut binding = bare("RoleBinding", Some(TENANT), "too-much");
    merge(
        &mut binding,
        &json!({
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "too-much" },
            "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "spoiled" }],
        }),
    );
    surface.apply(&binding).await;
    let spoiled = surface.user("spoiled").await;
    surface::eventually("the policy for other kinds and the mistake are in force", || async {
        let dry = PostParams { dry_run: true, field_manager: None };
        let object = typed(&bare("HelmRelease", Some(TENANT), "probe"));
        let answer = api(&spoiled, "HelmRelease", Some(TENANT)).create(&dry, &object).await;
        answer.is_err_and(|error| refusal(&error).1.contains("[flux-kind]"))
    })
    .await;
}

async fn drop_stamp(surface: &Surface, stamp: Stamp) {
    match stamp {
        Stamp::Policy => {
            surface.delete("MutatingAdmissionPolicyBinding", None, "cozy-gitops-stamp").await;
            surface.delete("MutatingAdmissionPolicy", None, "cozy-gitops-stamp").await;
        }
        Stamp::Webhook => surface.delete("MutatingWebhookConfiguration", None, "cozy-gitops-tenant").await,
    }
    surface::eventually("the stamp is gone", || async { !is_stamped(surface).await }).await;
}

async fn restore_stamp(surface: &Surface, stamp: Stamp, values: &[&str]) {
    for object in surface::template(values) {
        let lost = match stamp {
            Stamp::Policy => "MutatingAdmissionPolicy",
            Stamp::Webhook => "MutatingWebhookConfiguration",
        };
        if surface::kind(&object).starts_with(lost) {
            surface.apply(&object).await;
        }
    }
    surface::eventually("the stamp is back", || async { is_stamped(surface).await }).await;
}

async fn is_stamped(surface: &Surface) -> bool {
    let mut object = kustomization("tenant-bar", "probe");
    merge(&mut object, &json!({ "spec": { "deletionPolicy": null } }));
    let dry = PostParams { dry_run: true, field_manager: None };
    let answer = make(&api(&surface.admin, "Kustomization", Some("tenant-bar")), &dry, &object).await;
    answer.is_ok_and(|object| object.data["spec"]["deletionPolicy"] == "Orphan")
}

async fn drop_policies(surface: &Surface) {
    for kind in ["ValidatingAdmissionPolicyBinding", "ValidatingAdmissionPolicy"] {
        for policy in api(&surface.admin, kind, None).list(&ListParams::default()).await.unwrap() {
            let name = policy.metadata.name.unwrap();
            if name.starts_with("cozy-gitops-") {
                surface.delete(kind, None, &name).await;
            }
        }
    }
    surface.unenforced().await;
}

/// docs/attack-table.md says what the table says; `UPDATE_ATTACK_TABLE=1` writes it.
#[test]
fn the_page_is_made_from_the_table() {
    let table = table();
    let mut page = String::from(
        "# Attacks, and what stops them\n\n<!-- Made from e2e/fixtures/attacks.yaml: UPDATE_ATTACK_TABLE=1 cargo test -p cozy-e2e \
         --test tenant_attacks the_page -->\n\nEach is tried on a real API server with the stamp and the policies, with the stamp \
         alone and with the policies alone; and all that twice, the stamp being the MutatingAdmissionPolicy or the webhook. `open`: the layer alone does not stop it. `rbac`: no right. `schema`: the kind's \
         own. `stamp`: set right. `absent`: without effect. Others are rules of [tenant-surface.md](tenant-surface.md).\n\n| \
         case | actor | attack | kind | verbs | both | stamp alone | policies alone |\n|---|---|---|---|---|---|---|---|\n",
    );
    for data in table["attacks"].as_array().unwrap() {
        let case = Case { data };
        let [both, stamp, policies] =
            [Layers::Both, Layers::Stamp, Layers::Policies].map(|layers| case.stops(layers));
        let actor = case.text("actor").unwrap_or("tenant");
        let (id, what, kind, verbs) =
            (case.id(), case.text("what").unwrap(), case.kind(), case.verbs().join(", "));
        page += &format!("| {id} | {actor} | {what} | {kind} | {verbs} | {both} | {stamp} | {policies} |\n");
    }
    for (key, title) in [("elsewhere", "Tried elsewhere"), ("waiting", "Waiting")] {
        page += &format!("\n## {title}\n\n");
        for entry in table[key].as_array().unwrap() {
            page += &format!("- class {}: {}\n", entry["class"], entry["what"].as_str().unwrap());
        }
    }
    let file = surface::repository("docs/attack-table.md");
    if std::env::var_os("UPDATE_ATTACK_TABLE").is_some() {
        std::fs::write(&file, &page).unwrap();
    }
    assert!(
        std::fs::read_to_string(&file).unwrap_or_default() == page,
        "{} is not what the table says; UPDATE_ATTACK_TABLE=1 writes it",
        file.display()
    );
}
