//! The tenants' git surface: what [`cozy_core::tenant`] wants is there, as it should be, and gone when it should be.

use std::time::Duration;

use cozy_api::names;
use cozy_core::tenant::{FINALIZER, References, controller, desired, restart, restarted};
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};
use tracing::{info, warn};

use crate::queue::{Done, Queue};
use crate::reconcile::Context;
use crate::store::{Id, Kind};
use crate::write::WriteError;

/// Field manager of what is made for tenants.
const MANAGER: &str = "cozy-gitops";
/// Looked at again when a place among the running or the rolling may have become free.
const WAIT: Duration = Duration::from_secs(5);

/// A controller that runs needs a second or two.
const LET_GO: Duration = Duration::from_secs(15);

/// What one look at the store says.
struct Look {
    terminating: bool,
    /// Kustomizations of other controllers: there before the surface, or the platform's.
    outside: usize,
    /// Kustomizations that are going away with their namespace.
    leaving: Vec<Value>,
    wanted: Vec<Value>,
    /// Until the controller may have to be started anew.
    restart: Option<Duration>,
    existing: std::collections::HashMap<(Kind, Id), Value>,
}

/// Makes, mends or removes what a tenant namespace needs.
pub(crate) async fn tenant(context: &Context, queue: &Queue, namespace: &str) -> Done {
    let Some(tenants) = &context.config.tenants else { return Done::Ok };
    let look = context.store(|store| {
        let facts = store.tenants.get(namespace)?;
        let there = store.namespaces.get(namespace);
        let kustomizations = facts.kustomizations();
        let references = References::of(&kustomizations);
        let terminating = there.is_none_or(|there| there.terminating);
        let leaves = |object: &Value| {
            terminating && object.pointer("/metadata/deletionTimestamp").is_some_and(Value::is_string)
        };
        let outside =
            |object: &&Value| object.pointer("/metadata/shard").and_then(Value::as_str) != Some(namespace);
        let existing = facts.objects();
        let id = (names::FLUX_NAMESPACE.to_owned(), controller(namespace));
        let there = existing.get(&(Kind::Deployment, id));
        let restart = restart(namespace, &kustomizations, there, tenants.stuck, Timestamp::now());
        let mut wanted = Vec::new();
        if facts.has_kustomizations() {
            wanted = desired(&tenants.settings, namespace, &references);
            if let Some(at) = &restart.at {
                restarted(&mut wanted, at);
            }
        }
        Some(Look {
            terminating,
            outside: kustomizations.iter().filter(outside).count(),
            leaving: kustomizations.into_iter().filter(leaves).collect(),
            wanted,
            restart: restart.after,
            existing,
        })
    });
    let Some(look) = look else { return Done::Ok };
    if context.metrics.outside(namespace, look.outside) {
        warn!(
            namespace,
            kustomizations = look.outside,
            "not confined: they lack the namespace's shard label, so the platform's own controller applies them; \
             they become the tenant's when somebody changes them"
        );
    }
    if look.wanted.is_empty() {
        return remove(context, queue, namespace, &look).await;
    }
    let to_roll = look.wanted.iter().any(|object| {
        identity(object).is_some_and(|key| {
            key.0 == Kind::Deployment && look.existing.get(&key).is_none_or(|there| !covers(there, object))
        })
    });
    // Who counts the others has to be alone until its own is counted, too.
    let _place = if to_roll { Some(context.places.lock().await) } else { None };
    let beside = context.store(|store| store.beside(namespace));
    if !beside.has_controller && beside.controllers >= tenants.most {
        let note = format!(
            "{namespace}: no controller is started, since {} tenants have one already; the platform's value \
             tenant.maxTenants limits them",
            tenants.most
        );
        warn!(namespace, "{note}");
        context.events.warning(Kind::Namespace, namespace, None, "TenantLimit", &note).await;
        return Done::After(WAIT * 12);
    }
    let mut outcome = release(context, queue, namespace, &look.leaving).await;
    if let (Done::Ok, Some(after)) = (outcome, look.restart) {
        outcome = Done::After(after);
    }
    for object in &look.wanted {
        let Some((kind, id)) = identity(object) else { continue };
        let existing = look.existing.get(&(kind, id.clone()));
        if existing.is_some_and(|existing| covers(existing, object)) {
            continue;
        }
        // In a namespace that ends nothing can be made, and what is there ends with it.
        if look.terminating && id.0 == namespace {
            continue;
        }
        let rolls = kind == Kind::Deployment && existing.is_some();
        if rolls && !beside.is_rolling && beside.rolling >= tenants.rolling {
            outcome = Done::After(WAIT);
            continue;
        }
        match context.apply(queue, kind, &id.0, object, MANAGER, true).await {
            Ok(()) => info!(namespace, kind = kind.name(), name = id.1, "made or put back for the tenant"),
            Err(WriteError::NotLeader(_)) => return Done::Retry,
            Err(error) if error.is_stale() => outcome = Done::Retry,
            Err(error) => {
                warn!(namespace, kind = kind.name(), name = id.1, %error, "cannot be made for the tenant");
                outcome = Done::Retry;
            }
        }
    }
    outcome
}

/// Takes Flux's finalizer off Kustomizations that their controller should have let go of long ago: without its rights, or
/// without it, the namespace would never end. What they applied goes with the namespace.
async fn release(context: &Context, queue: &Queue, namespace: &str, leaving: &[Value]) -> Done {
    let mut outcome = Done::Ok;
    for object in leaving {
        let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        let finalizers = object.pointer("/metadata/finalizers").and_then(Value::as_array);
        let Some(at) = finalizers.and_then(|all| all.iter().position(|name| name == FINALIZER)) else {
            continue;
        };
        let since: Timestamp = text("/metadata/deletionTimestamp").parse().unwrap_or_default();
        let waited = Duration::try_from(Timestamp::now().duration_since(since)).unwrap_or_default();
        if waited < LET_GO {
            outcome = Done::After(LET_GO.saturating_sub(waited));
            continue;
        }
        let path = format!("/metadata/finalizers/{at}");
        let operations = json!([
            { "op": "test", "path": path, "value": FINALIZER },
            { "op": "remove", "path": path },
        ]);
        let name = text("/metadata/name");
        match context.patch(queue, Kind::Kustomization, namespace, name, operations, false).await {
            Ok(()) => {
                warn!(
                    namespace,
                    kustomization = name,
                    "let go: its controller did not, and the namespace ends"
                )
            }
            Err(WriteError::NotLeader(_)) => return Done::Retry,
            Err(error) if error.code() == 404 => {}
            Err(error) => {
                warn!(namespace, kustomization = name, %error, "cannot be let go");
                outcome = Done::Retry;
            }
        }
    }
    outcome
}

/// Removes the controller first and its rights last; the namespace's own objects end with a namespace that ends.
async fn remove(context: &Context, queue: &Queue, namespace: &str, look: &Look) -> Done {
    let mut existing: Vec<(&(Kind, Id), &Value)> = look.existing.iter().collect();
    existing
        .sort_by_key(|((kind, id), _)| (*kind != Kind::Deployment, id.0 == namespace, *kind, id.1.clone()));
    let mut outcome = Done::Ok;
    for ((kind, id), object) in existing {
        let leaving = object.pointer("/metadata/deletionTimestamp").is_some();
        if leaving || !is_ours(*kind, id, namespace) || look.terminating && id.0 == namespace {
            continue;
        }
        match context.delete(queue, *kind, &id.0, object).await {
            Ok(()) => {
                info!(namespace, kind = kind.name(), name = id.1, "removed with the last Kustomization")
            }
            Err(WriteError::NotLeader(_)) => return Done::Retry,
            Err(error) => {
                if !error.is_stale() {
                    warn!(namespace, kind = kind.name(), name = id.1, %error, "cannot be removed");
                }
                outcome = Done::Retry;
            }
        }
    }
    outcome
}

/// Whether an object of that name is one that is made for the tenant: the label alone is no proof.
fn is_ours(kind: Kind, id: &Id, namespace: &str) -> bool {
    let (account, controller) = (cozy_core::tenant::account(namespace), controller(namespace));
    match kind {
        Kind::Deployment | Kind::Network => *id == (names::FLUX_NAMESPACE.to_owned(), controller),
        Kind::Quota => id.0 == namespace && id.1 == cozy_core::tenant::QUOTA,
        Kind::Account => {
            id.0 == namespace && id.1 == account || id.0 == names::FLUX_NAMESPACE && id.1 == controller
        }
        Kind::Role | Kind::Binding => id.0 == namespace && (id.1 == account || id.1 == controller),
        _ => false,
    }
}

fn identity(object: &Value) -> Option<(Kind, Id)> {
    let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let kind = Kind::TENANT.into_iter().find(|kind| kind.name() == text("/kind"))?;
    Some((kind, (text("/metadata/namespace").to_owned(), text("/metadata/name").to_owned())))
}

/// Whether what is there says everything that is wanted; what the API server fills in, and labels of others, aside.
fn covers(existing: &Value, wanted: &Value) -> bool {
    match (existing, wanted) {
        (Value::Object(existing), Value::Object(wanted)) => wanted.iter().all(|(key, wanted)| {
            // Empty is left out by the API server, and the types by its lists.
            let left_out = matches!(wanted, Value::Array(items) if items.is_empty())
                || key == "apiVersion"
                || key == "kind";
            existing.get(key).map_or(left_out, |existing| covers(existing, wanted))
        }),
        (Value::Array(existing), Value::Array(wanted)) => {
            existing.len() == wanted.len() && existing.iter().zip(wanted).all(|(a, b)| covers(a, b))
        }
        _ => existing == wanted,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_server_fills_in_is_no_difference_and_what_somebody_changed_is() {
        let wanted = json!({ "rules": [{ "verbs": ["get"] }], "labels": { "a": "1" }, "tolerations": [] });
        let filled = json!({ "rules": [{ "verbs": ["get"], "x": null }], "labels": { "a": "1", "b": "2" }, "uid": "u" });
        assert!(covers(&filled, &wanted));
        for changed in [
            json!({ "rules": [{ "verbs": ["get", "list"] }], "labels": { "a": "1" } }),
            json!({ "rules": [{ "verbs": ["get"] }, {}], "labels": { "a": "1" } }),
            json!({ "rules": [{ "verbs": ["get"] }], "labels": {} }),
            json!({ "rules": [{ "verbs": ["get"] }], "labels": { "a": "1" }, "tolerations": [{}] }),
        ] {
            assert!(!covers(&changed, &wanted), "{changed}");
        }
    }

    #[test]
    fn the_label_alone_makes_nothing_ours() {
        let id = |namespace: &str, name: &str| (namespace.to_owned(), name.to_owned());
        assert!(is_ours(Kind::Role, &id("tenant-foo", "tenant-foo-gitops"), "tenant-foo"));
        assert!(!is_ours(Kind::Role, &id("tenant-bar", "tenant-foo-gitops"), "tenant-foo"));
        assert!(!is_ours(Kind::Role, &id("tenant-foo", "admin"), "tenant-foo"));
        assert!(!is_ours(Kind::Deployment, &id("cozy-fluxcd", "flux"), "tenant-foo"));
        assert!(!is_ours(Kind::Account, &id("cozy-system", "tenant-foo-gitops"), "tenant-foo"));
    }
}
