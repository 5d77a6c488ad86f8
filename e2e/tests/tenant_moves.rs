//! The routing attacks repeated while replicas of the webhook come, go and die, without the policies behind it: a write
//! is stamped or refused, whatever moment it comes at.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stderr)]

mod product;
mod surface;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use cozy_core::tenant::QUOTA;
use cozy_server::Rotation;
use kube::Client;
use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use product::Webhook;
use surface::{Surface, TENANT, api, apply, kustomization, make, merge, refusal};

/// How long the attacks go on.
const LONG_ENOUGH: Duration = Duration::from_secs(30);

fn is_stamped(object: &DynamicObject) -> bool {
    let labels = object.metadata.labels.clone().unwrap_or_default();
    labels.get("sharding.fluxcd.io/key").is_some_and(|shard| shard == TENANT)
        && object.data["spec"]["serviceAccountName"] == format!("{TENANT}-gitops")
        && object.data["spec"]["targetNamespace"] == TENANT
}

/// What a tenant puts on an object of its own.
fn changes() -> [Value; 7] {
    [
        json!({ "metadata": { "labels": null } }),
        json!({ "metadata": { "labels": { "sharding.fluxcd.io/key": "" } } }),
        json!({ "metadata": { "labels": { "sharding.fluxcd.io/key": "tenant-bar" } } }),
        json!({ "metadata": { "labels": { "sharding.fluxcd.io/key": "shard0" } } }),
        json!({ "spec": { "serviceAccountName": "default" } }),
        json!({ "spec": { "serviceAccountName": null } }),
        json!({ "spec": { "serviceAccountName": "" }, "metadata": { "labels": null } }),
    ]
}

/// Attacks until it is time; how many writes passed, and how many were refused.
async fn attack(tenant: Client, admin: Client, who: usize, over: Arc<AtomicBool>) -> (usize, usize) {
    let (mut passed, mut refused) = (0, 0);
    let kustomizations = api(&tenant, "Kustomization", Some(TENANT));
    let stored = api(&admin, "Kustomization", Some(TENANT));
    let mut number = who;
    while !over.load(Ordering::SeqCst) {
        let all = changes();
        let change = &all[number % all.len()];
        let name = format!("attack-{who}-{number}");
        number += 1;
        let mut object = kustomization(TENANT, &name);
        merge(&mut object, change);
        let made = make(&kustomizations, &PostParams::default(), &object).await;
        let by = PatchParams::apply("somebody").force();
        let answers = [
            made,
            kustomizations.patch(&name, &PatchParams::default(), &Patch::Merge(change)).await,
            apply(&kustomizations, &by, &object).await,
        ];
        for answer in answers {
            match answer {
                Ok(object) => {
                    assert!(is_stamped(&object), "{change}: {}", json!(object));
                    passed += 1;
                }
                // Not there, since its creation was refused.
                Err(error) if refusal(&error).0 == 404 => {}
                Err(error) => {
                    // The webhook could not be asked.
                    let (code, message) = refusal(&error);
                    assert!(code == 500 && message.contains("gitops.cozystack.io"), "{code} {message}");
                    refused += 1;
                }
            }
        }
        if let Some(object) = stored.get_opt(&name).await.unwrap() {
            assert!(is_stamped(&object), "{change}: {}", json!(object));
            stored.delete(&name, &DeleteParams::default()).await.unwrap();
        }
    }
    (passed, refused)
}

#[tokio::test(flavor = "multi_thread")]
async fn routing_holds_while_replicas_move() {
    let surface = Surface::bare().await;
    surface.install(&["admission.mutation=webhook"]).await.unwrap();
    let first = Webhook::start(&surface, Rotation::default()).await;
    surface.enforced().await;
    surface.grant().await;
    for kind in ["ValidatingAdmissionPolicyBinding", "ValidatingAdmissionPolicy"] {
        for policy in api(&surface.admin, kind, None).list(&ListParams::default()).await.unwrap() {
            surface.delete(kind, None, &policy.metadata.name.unwrap()).await;
        }
    }
    surface.unenforced().await;
    // It counts deletions late, so that so many writes would soon be refused for nothing of their own.
    surface.delete("ResourceQuota", Some(TENANT), QUOTA).await;

    let over = Arc::new(AtomicBool::new(false));
    let mut attackers = Vec::new();
    for who in 0..4 {
        let tenant = surface.user("tenant").await;
        attackers.push(tokio::spawn(attack(tenant, surface.admin.clone(), who, over.clone())));
    }
    let cluster = surface.cluster();
    let begin = Instant::now();
    let (mut gone, mut died) = (0, 0);
    let mut there = vec![first];
    while begin.elapsed() < LONG_ENOUGH {
        there.push(Webhook::start(&surface, Rotation::default()).await);
        tokio::time::sleep(Duration::from_millis(500)).await;
        // One goes as a rolling update takes it, the next as its node dies: its endpoint stays for a while.
        let one = there.remove(0);
        if gone > died {
            let port = one.port;
            one.die().await;
            tokio::time::sleep(Duration::from_secs(2)).await;
            cluster.unmap_endpoint("cozy-system", "cozy-gitops", port).await.unwrap();
            died += 1;
        } else {
            one.stop(cluster).await;
            gone += 1;
        }
        assert!(attackers.iter().all(|attacker| !attacker.is_finished()), "an attack has passed");
    }
    over.store(true, Ordering::SeqCst);
    let (mut passed, mut refused) = (0, 0);
    for attacker in attackers {
        let (more_passed, more_refused) = attacker.await.unwrap();
        passed += more_passed;
        refused += more_refused;
    }
    eprintln!("{passed} writes stamped, {refused} refused while {gone} replicas went and {died} died");
    assert!(passed > 100 && gone > 2 && died > 2, "{passed} {gone} {died}");
    for webhook in there {
        webhook.stop(cluster).await;
    }
}
