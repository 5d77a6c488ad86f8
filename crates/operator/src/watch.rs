//! The watches: one per kind, each event into the store, what it concerns into the queue.

use std::collections::HashSet;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use futures::StreamExt;
use kube::api::DynamicObject;
use kube::runtime::watcher::{self, Event, watcher};
use serde_json::Value;
use tokio::sync::watch as signal;
use tokio::task::JoinSet;
use tracing::{debug, warn};

use crate::queue::Queue;
use crate::reconcile::Context;
use crate::store::Kind;

/// Objects per page of a list.
const PAGE: u32 = 500;
const FIRST_RETRY: Duration = Duration::from_millis(200);
const LONGEST_RETRY: Duration = Duration::from_secs(5);

/// Starts the watches; `synced` is set once all of them have listed what there is.
pub(crate) fn start(
    context: &Arc<Context>,
    queue: &Arc<Queue>,
    synced: &Arc<AtomicBool>,
    stopped: &signal::Receiver<bool>,
) -> JoinSet<()> {
    let mut kinds = Kind::ALL.to_vec();
    if context.config.tenants.is_some() {
        kinds.extend(Kind::TENANT);
        kinds.extend(Kind::ENFORCEMENT);
    }
    if context.config.tenants.as_ref().is_none_or(|tenants| !tenants.mutation_policy) {
        kinds.retain(|kind| !Kind::MUTATION.contains(kind));
    }
    let missing = Arc::new(AtomicUsize::new(kinds.len()));
    let mut tasks = JoinSet::new();
    for kind in kinds {
        let (context, queue, synced, missing) =
            (context.clone(), queue.clone(), synced.clone(), missing.clone());
        let mut stopped = stopped.clone();
        tasks.spawn(async move {
            let mut listed = false;
            let filled = || {
                if !std::mem::replace(&mut listed, true) && missing.fetch_sub(1, Ordering::SeqCst) == 1 {
                    synced.store(true, Ordering::SeqCst);
                }
            };
            tokio::select! {
                () = watch(&context, &queue, kind, filled) => {}
                _ = stopped.wait_for(|stopped| *stopped) => {}
            }
        });
    }
    tasks
}

async fn watch(context: &Context, queue: &Queue, kind: Kind, mut filled: impl FnMut()) {
    let mut config = watcher::Config::default().page_size(PAGE);
    if kind == Kind::Secret {
        // Never all Secrets: this one name.
        config = config.fields(&format!("metadata.name={}", context.config.cozy_values_secret_name));
    }
    if Kind::TENANT.contains(&kind) && kind != Kind::Kustomization {
        config = config.labels(cozy_core::tenant::LABEL_TENANT);
    }
    if kind == Kind::Grant {
        config = config.labels(cozy_core::enforcement::LABEL_RIGHTS);
    } else if Kind::ENFORCEMENT.contains(&kind) {
        config = config.labels(cozy_core::enforcement::LABEL_ENFORCEMENT);
    }
    let mut stream = pin!(watcher(context.watched(kind), config));
    let mut seen = HashSet::new();
    let mut retry = FIRST_RETRY;
    while let Some(event) = stream.next().await {
        let keys = match event {
            Ok(event) => {
                retry = FIRST_RETRY;
                match event {
                    Event::Init => {
                        seen.clear();
                        Vec::new()
                    }
                    Event::InitApply(object) => {
                        seen.insert((
                            object.metadata.namespace.clone().unwrap_or_default(),
                            object.metadata.name.clone().unwrap_or_default(),
                        ));
                        context.store_mut(|store| store.apply(kind, value(object)))
                    }
                    Event::InitDone => {
                        let keys = context.store_mut(|store| {
                            let gone: Vec<_> =
                                store.ids(kind).into_iter().filter(|id| !seen.contains(id)).collect();
                            gone.iter().flat_map(|id| store.remove(kind, id, None)).collect::<Vec<_>>()
                        });
                        seen = HashSet::new();
                        filled();
                        keys
                    }
                    Event::Apply(object) => context.store_mut(|store| store.apply(kind, value(object))),
                    Event::Delete(object) => {
                        let id = (
                            object.metadata.namespace.clone().unwrap_or_default(),
                            object.metadata.name.clone().unwrap_or_default(),
                        );
                        let version = object.metadata.resource_version.clone();
                        context.store_mut(|store| store.remove(kind, &id, version.as_deref()))
                    }
                }
            }
            Err(error) => {
                if kind == Kind::Artifact && is_not_found(&error) {
                    // A Flux without ExternalArtifacts: charts' defaults stay unknown, and that is told where it matters.
                    filled();
                    debug!("there are no ExternalArtifacts in this cluster");
                } else {
                    warn!(kind = kind.name(), %error, "the watch is tried again");
                }
                tokio::time::sleep(retry).await;
                retry = (retry * 2).min(LONGEST_RETRY);
                Vec::new()
            }
        };
        if !keys.is_empty() {
            queue.add(keys);
        }
    }
}

fn is_not_found(error: &watcher::Error) -> bool {
    match error {
        watcher::Error::InitialListFailed(kube::Error::Api(status)) => status.code == 404,
        _ => false,
    }
}

/// The object as plain JSON, without what nobody reads.
pub(crate) fn value(object: DynamicObject) -> Value {
    let DynamicObject { types, metadata, data } = object;
    let mut fields = match data {
        Value::Object(fields) => fields,
        _ => serde_json::Map::new(),
    };
    if let Some(types) = types {
        fields.insert("apiVersion".to_owned(), Value::String(types.api_version));
        fields.insert("kind".to_owned(), Value::String(types.kind));
    }
    fields.insert("metadata".to_owned(), serde_json::to_value(metadata).unwrap_or_default());
    Value::Object(fields)
}
