//! Tenants get their roles once what confines them is in force, and lose them when it is not any more.

use std::time::{Duration, Instant};

use cozy_core::enforcement::{Grant, WITHHELD};
use serde_json::{Value, json};
use tracing::{error, info, warn};

use crate::queue::{Done, Queue};
use crate::reconcile::{Context, lock};
use crate::store::Kind;
use crate::write::WriteError;

/// API servers follow policies and webhook configurations by watches of their own, about a second behind.
const SETTLE: Duration = Duration::from_secs(5);
/// Not told before: while a release is installed, something is always missing.
const TELL_AFTER: Duration = Duration::from_secs(10);

/// What is remembered of a role between two looks.
#[derive(Debug)]
pub(crate) struct Seen {
    /// What was not in force then; empty: everything was.
    lacks: String,
    since: Instant,
}

/// Puts the label on a role, or takes it away; an annotation tells why it is not there.
pub(crate) async fn grant(context: &Context, queue: &Queue, name: &str) -> Done {
    let Some((role, objects)) =
        context.store(|store| store.grant(name).map(|role| (role, store.enforcement())))
    else {
        lock(&context.grants).remove(name);
        context.metrics.granted(name, None);
        return Done::Ok;
    };
    let grant = Grant::of(&role);
    let found = grant.enforcement(objects.iter().map(|(kind, object)| (*kind, object)));
    let lacks: Vec<&str> = found.missing.iter().chain(&found.pending).map(String::as_str).collect();
    let lacks = lacks.join("; ");
    let age = age(context, name, &lacks);
    let has = grant.label.as_ref().is_some_and(|label| grant.given.contains(label));
    // Pending alone takes nothing away: what was in force is, until the new is.
    let wanted = if has { found.missing.is_empty() } else { found.holds() && age >= SETTLE };
    let wanted = grant.label.as_ref().filter(|_| wanted);
    context.metrics.granted(name, Some(wanted.is_some()));

    let mut changes = label_changes(&grant, wanted);
    let taken = wanted.is_none() && !grant.given.is_empty();
    let mut later = None;
    match wanted {
        Some(_) => changes.extend(grant.withheld.is_some().then(|| annotation(&role, None)).flatten()),
        None if found.holds() => later = grant.label.as_ref().map(|_| SETTLE.saturating_sub(age)),
        None if grant.withheld.as_ref() == Some(&lacks) => {}
        None if taken || age >= TELL_AFTER => {
            warn!(role = name, lacks, "not given to tenants");
            changes.extend(annotation(&role, Some(&lacks)));
        }
        None => later = Some(TELL_AFTER.saturating_sub(age)),
    }
    if !changes.is_empty() {
        changes.insert(
            0,
            json!({
                "op": "add", "path": "/metadata/resourceVersion", "value": role.pointer("/metadata/resourceVersion"),
            }),
        );
        match context.patch(queue, Kind::Grant, "", name, Value::Array(changes), false).await {
            Ok(()) => {}
            Err(WriteError::NotLeader(_)) => return Done::Retry,
            Err(error) if error.is_stale() => return Done::Retry,
            Err(error) => {
                error!(role = name, %error, "the rights of tenants cannot be changed");
                return Done::Retry;
            }
        }
        match wanted {
            Some(label) if !has => info!(role = name, label, "given to tenants"),
            None if taken => error!(role = name, lacks, "taken from tenants"),
            _ => {}
        }
    }
    later.map_or(Done::Ok, Done::After)
}

fn label_changes(grant: &Grant, wanted: Option<&String>) -> Vec<Value> {
    let given = grant.given.iter();
    let remove = given
        .filter(|label| Some(*label) != wanted)
        .map(|label| json!({ "op": "remove", "path": path("labels", label) }));
    let add = wanted
        .filter(|label| !grant.given.contains(label))
        .map(|label| json!({ "op": "add", "path": path("labels", label), "value": "true" }));
    remove.chain(add).collect()
}

/// Says, or no longer says, what is missing.
fn annotation(role: &Value, lacks: Option<&str>) -> Option<Value> {
    let there = role.pointer("/metadata/annotations")?.get(WITHHELD).is_some();
    match lacks {
        Some(lacks) => Some(json!({ "op": "add", "path": path("annotations", WITHHELD), "value": lacks })),
        None => there.then(|| json!({ "op": "remove", "path": path("annotations", WITHHELD) })),
    }
}

fn path(map: &str, key: &str) -> String {
    format!("/metadata/{map}/{}", key.replace('~', "~0").replace('/', "~1"))
}

/// For how long it has been lacking just that.
fn age(context: &Context, name: &str, lacks: &str) -> Duration {
    let mut grants = lock(&context.grants);
    let fresh = || Seen { lacks: lacks.to_owned(), since: Instant::now() };
    let seen = grants.entry(name.to_owned()).or_insert_with(fresh);
    if seen.lacks != lacks {
        *seen = fresh();
    }
    seen.since.elapsed()
}
