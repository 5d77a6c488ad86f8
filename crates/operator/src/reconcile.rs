//! The reconcilers: look at the store, write the difference, tell the outcome.

use std::collections::{BTreeMap, HashMap};
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use cozy_api::names::{self, reason};
use cozy_api::packages::Validation;
use cozy_core::chart::Chart;
use cozy_core::render::recovery::{self, Recovery, recovery};
use cozy_core::render::write::{
    ReleaseWrite, condition_of, is_ours, package_status, release_write, source_status, values_status,
};
use cozy_core::render::{
    Dependencies, Gate, NamespaceRender, Outcome, PackageRender, ReleaseRender, render_orphan,
    render_package, render_package_source,
};
use cozy_core::snapshot::{ReleaseKey, artifact_name};
use futures::FutureExt;
use futures::future::join_all;
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tracing::{debug, error, info, warn};

use crate::charts;
use crate::config::Config;
use crate::events::Events;
use crate::lease::Leader;
use crate::metrics::Metrics;
use crate::queue::{Done, Key, Queue};
use crate::store::{Kind, Live, Store};
use crate::write::WriteError;

/// Requests at the same time.
const REQUESTS: usize = 24;
/// Looked at again soon: the watch has not told yet of what was changed meanwhile.
const SOON: Duration = Duration::from_millis(100);
/// A status that waiting may change for the better is not written before: it would be written twice.
const PATIENCE: Duration = Duration::from_millis(500);

/// What the reconcilers share.
pub(crate) struct Context {
    pub(crate) config: Arc<Config>,
    pub(crate) client: Client,
    pub(crate) leader: Arc<Leader>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) requests: Semaphore,
    pub(crate) events: Events,
    store: RwLock<Store>,
    namespace_locks: Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>,
    /// Held by whoever takes a place among the tenants' controllers.
    pub(crate) places: tokio::sync::Mutex<()>,
    /// What is remembered of the roles that are given to tenants.
    pub(crate) grants: Mutex<HashMap<String, crate::grant::Seen>>,
    /// Since when an object waits for something that is under way.
    waiting: Mutex<HashMap<Key, Instant>>,
    /// Digest of the chart that the snapshot has, by artifact; `None` when it cannot be read.
    charts: Mutex<HashMap<String, Option<String>>>,
    /// Reason of each PackageValues' condition, for the metric.
    reasons: Mutex<HashMap<String, &'static str>>,
    /// ArtifactGenerators that others add to: what was applied, and what came of it.
    applied: Mutex<HashMap<String, (Value, Value)>>,
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Context {
    pub(crate) fn new(
        config: Arc<Config>,
        client: Client,
        leader: Arc<Leader>,
        metrics: Arc<Metrics>,
    ) -> Self {
        let store = Store::new(&config.cozy_values_secret_namespace);
        Self {
            events: Events::new(client.clone(), &config.identity),
            requests: Semaphore::new(REQUESTS),
            store: RwLock::new(store),
            namespace_locks: Mutex::default(),
            places: tokio::sync::Mutex::default(),
            grants: Mutex::default(),
            waiting: Mutex::default(),
            charts: Mutex::default(),
            reasons: Mutex::default(),
            applied: Mutex::default(),
            config,
            client,
            leader,
            metrics,
        }
    }

    /// Looks at the store; `look` must not take long.
    pub(crate) fn store<T>(&self, look: impl FnOnce(&Store) -> T) -> T {
        look(&self.store.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Changes the store.
    pub(crate) fn store_mut<T>(&self, change: impl FnOnce(&mut Store) -> T) -> T {
        change(&mut self.store.write().unwrap_or_else(PoisonError::into_inner))
    }

    /// How long to wait on before a status that is not final is written; `None`: now.
    fn patience(&self, key: &Key, waits: bool) -> Option<Duration> {
        let mut waiting = lock(&self.waiting);
        if !waits {
            waiting.remove(key);
            return None;
        }
        let since = waiting.entry(key.clone()).or_insert_with(Instant::now);
        PATIENCE.checked_sub(since.elapsed()).filter(|left| !left.is_zero())
    }
}

/// Takes keys and reconciles them; never ends.
pub(crate) async fn work(context: &Context, queue: &Queue) {
    loop {
        let key = queue.next().await;
        let start = Instant::now();
        let outcome = AssertUnwindSafe(one(context, queue, &key)).catch_unwind().await;
        let done = outcome.unwrap_or_else(|_| {
            error!(
                kind = key.kind(),
                name = key.name(),
                "reconciling it went wrong in a way that it must not; the others go on"
            );
            Done::Retry
        });
        context.metrics.reconciled(key.kind(), done != Done::Retry, start.elapsed());
        queue.done(key, done);
    }
}

async fn one(context: &Context, queue: &Queue, key: &Key) -> Done {
    match key {
        Key::Package(name) => package(context, queue, name).await,
        Key::Source(name) => source(context, queue, name).await,
        Key::Namespace(name) => namespace(context, queue, name).await,
        Key::Secret(namespace) => secret(context, queue, namespace).await,
        Key::Chart(artifact) => chart(context, queue, artifact).await,
        Key::Revision(values) => revision(context, queue, values).await,
        Key::Tenant(namespace) => crate::tenant::tenant(context, queue, namespace).await,
        Key::Grant(role) => crate::grant::grant(context, queue, role).await,
    }
}

fn now() -> String {
    Timestamp::from_second(Timestamp::now().as_second()).unwrap_or_default().to_string()
}

// ------------------------------------------------------------------------------------------------ Package

/// What one look at the store says has to be done for a Package.
struct Plan {
    live: Live,
    values: Option<Live>,
    render: PackageRender,
    stalled: Option<Outcome>,
    namespaces: Vec<NamespaceRender>,
    /// Component, HelmRelease, what to do.
    writes: Vec<(String, ReleaseKey, ReleaseWrite)>,
    stale: Vec<Arc<Value>>,
    charts: Vec<String>,
    /// An override that is enforced waits for a chart that is on its way.
    held: bool,
}

enum Look {
    Nothing,
    Orphan(Live, cozy_core::render::ValuesRender),
    Broken(Live, String),
    Plan(Box<Plan>),
}

fn look(context: &Context, store: &Store, name: &str) -> Look {
    let values = store.values.get(name);
    let Some(live) = store.packages.get(name) else {
        return match (values, render_orphan(&store.snapshot, name)) {
            (Some(values), Some(render)) if values.broken.is_none() => Look::Orphan(values.clone(), render),
            _ => Look::Nothing,
        };
    };
    if live.deleting {
        return Look::Nothing;
    }
    let parts =
        [("Package", Some(live)), ("PackageSource", store.sources.get(name)), ("PackageValues", values)];
    for (kind, part) in parts {
        if let Some(why) = part.and_then(|part| part.broken.as_ref()) {
            let message = format!("{kind} {name} cannot be read: {why}; its HelmReleases stay as they are");
            return Look::Broken(live.clone(), message);
        }
    }
    let Some(render) = render_package(&store.snapshot, name, &context.config.render, Dependencies::Observed)
    else {
        return Look::Nothing;
    };

    let namespaces = render
        .namespaces
        .iter()
        .filter(|namespace| {
            store
                .namespaces
                .get(&namespace.name)
                .is_none_or(|facts| !facts.terminating && !facts.is(namespace.system, namespace.privileged))
        })
        .cloned()
        .collect();
    // The HelmReleases of a dependency whose variant is not there cannot be named: what was known of them stays.
    let unknown_dependency = render.dependencies.keys().any(|name| store.snapshot.variant(name).is_none());
    let mut writes = Vec::new();
    if render.gate != Gate::Closed {
        for release in &render.releases {
            let metadata = &release.object.metadata;
            let key =
                (metadata.namespace.clone().unwrap_or_default(), metadata.name.clone().unwrap_or_default());
            let existing = store.release(&key);
            let write = release_write(existing.as_deref(), release, unknown_dependency);
            if write == ReleaseWrite::Nothing
                || render.gate == Gate::UpdatesOnly && matches!(write, ReleaseWrite::Create(_))
            {
                continue;
            }
            writes.push((release.component.clone(), key, write));
        }
    }
    let stale = if render.gate == Gate::Closed {
        Vec::new()
    } else {
        let wanted: Vec<&ReleaseKey> = store.snapshot.releases_of(name).collect();
        store
            .labelled(name)
            .filter(|(key, _)| !wanted.contains(key))
            .filter(|(_, object)| {
                is_ours(object, names::LABEL_PACKAGE, "Package", name, live.uid.as_deref())
                    && object.pointer("/metadata/deletionTimestamp").is_none()
            })
            .map(|(_, object)| object)
            .collect()
    };
    let stalled =
        (render.gate == Gate::UpdatesOnly).then(|| store.snapshot.cycle(name)).flatten().map(|path| {
            Outcome {
                status: "True",
                reason: reason::DEPENDENCY_CYCLE.to_owned(),
                message: format!(
                    "dependency cycle: {}; break it in a PackageSource, or with spec.ignoreDependencies",
                    path.join(" -> ")
                ),
            }
        });
    let (charts, held) = charts_of(context, store, name);
    Look::Plan(Box::new(Plan {
        live: live.clone(),
        values: values.cloned(),
        render,
        stalled,
        namespaces,
        writes,
        stale,
        charts,
        held,
    }))
}

/// Artifacts whose charts the overrides want to know, and whether they have to be waited for.
fn charts_of(context: &Context, store: &Store, name: &str) -> (Vec<String>, bool) {
    let (Some(values), Some(variant)) = (store.snapshot.values(name), store.snapshot.variant(name)) else {
        return (Vec::new(), false);
    };
    let artifacts: Vec<String> = values
        .spec
        .components
        .iter()
        .flatten()
        .map(|(component, _)| artifact_name(name, &variant.name, component))
        .collect();
    let known = lock(&context.charts);
    let held = values.spec.validation == Some(Validation::Enforce)
        && artifacts.iter().any(|artifact| {
            store.artifacts.get(artifact).is_some_and(|there| match known.get(artifact) {
                Some(Some(digest)) => *digest != there.digest,
                Some(None) => false,
                None => true,
            })
        });
    (artifacts, held)
}

/// Asks the Kustomization that applied a PackageValues for the revision, which it notes before it applies anything. The
/// HelmRelease does not wait for the answer.
async fn revision(context: &Context, queue: &Queue, name: &str) -> Done {
    let Some((generation, owner)) = context.store_mut(|store| {
        let owner = store.recall_revision(name)?;
        Some((store.values.get(name)?.generation, owner))
    }) else {
        return Done::Ok;
    };
    let resource = kube::core::ApiResource::from_gvk(&kube::core::GroupVersionKind::gvk(
        "kustomize.toolkit.fluxcd.io",
        "v1",
        "Kustomization",
    ));
    let api: kube::Api<kube::api::DynamicObject> =
        kube::Api::namespaced_with(context.client.clone(), &owner.0, &resource);
    let told = match api.get_opt(&owner.1).await {
        Ok(object) => object.and_then(|object| {
            let revision = object.data.pointer("/status/lastAttemptedRevision")?;
            revision.as_str().map(str::to_owned)
        }),
        // Without the kind, or the right to read it, there is nothing to tell.
        Err(kube::Error::Api(status)) if status.code == 403 || status.code == 404 => {
            debug!(values = name, namespace = owner.0, kustomization = owner.1, %status, "no revision");
            None
        }
        Err(error) => {
            debug!(values = name, namespace = owner.0, kustomization = owner.1, %error, "no revision yet");
            return Done::Retry;
        }
    };
    let known = told.is_some();
    if context.store_mut(|store| store.set_revision(name, generation, told)) && known {
        queue.add([Key::Package(name.to_owned())]);
    }
    Done::Ok
}

async fn package(context: &Context, queue: &Queue, name: &str) -> Done {
    if context.store_mut(|store| store.recall_revision(name)).is_some() {
        queue.add([Key::Revision(name.to_owned())]);
    }
    let plan = match context.store(|store| look(context, store, name)) {
        Look::Nothing => {
            track_reason(context, name, None);
            context.patience(&Key::Package(name.to_owned()), false);
            return Done::Ok;
        }
        Look::Orphan(live, render) => return tell_values(context, queue, name, &live, &render).await,
        Look::Broken(live, message) => {
            let ready = Outcome { status: "False", reason: reason::INTERNAL_ERROR.to_owned(), message };
            return tell_broken(context, queue, Kind::Package, name, &live, &ready).await;
        }
        Look::Plan(plan) => *plan,
    };
    let Plan { live, values, mut render, stalled, namespaces, writes, stale, charts, held } = plan;

    let wanted_charts = context.store_mut(|store| {
        charts
            .into_iter()
            .filter(|artifact| {
                store.chart_users.entry(artifact.clone()).or_default().insert(name.to_owned()) || held
            })
            .map(Key::Chart)
            .collect::<Vec<_>>()
    });
    if !wanted_charts.is_empty() {
        queue.add(wanted_charts);
    }
    if held {
        // Soon there: the chart wakes this Package again.
        return Done::After(Duration::from_secs(10));
    }

    let applied =
        join_all(namespaces.iter().map(|namespace| ensure_namespace(context, queue, namespace))).await;
    let mut failed_namespaces = BTreeMap::new();
    for (namespace, outcome) in namespaces.iter().zip(applied) {
        match outcome {
            Ok(()) => {}
            Err(WriteError::NotLeader(_)) => return Done::Retry,
            Err(error) => {
                failed_namespaces.insert(namespace.name.clone(), error.to_string());
            }
        }
    }

    let mut problems = Vec::new();
    let mut retry = false;
    let mut soon = false;
    let outcomes = join_all(writes.iter().map(|(component, key, write)| {
        let failed_namespaces = &failed_namespaces;
        async move { (component, key, write_release(context, queue, key, write, failed_namespaces).await) }
    }))
    .await;
    for (component, key, outcome) in outcomes {
        match outcome {
            Ok(()) => {}
            Err(Failure::Stale) => soon = true,
            Err(Failure::Lost) => return Done::Retry,
            Err(Failure::Held) => problems.push(format!(
                "HelmRelease {} waits: the override of component {component} cannot be merged",
                key.1
            )),
            Err(Failure::Failed { message, again }) => {
                retry |= again;
                problems.push(message);
            }
        }
    }
    for object in &stale {
        let namespace = object.pointer("/metadata/namespace").and_then(Value::as_str).unwrap_or_default();
        let release = object.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
        match context.delete(queue, Kind::Release, namespace, object).await {
            Ok(()) => {
                info!(package = name, namespace, release, "deleted a HelmRelease that is no longer wanted")
            }
            Err(error) if error.is_stale() => soon = true,
            Err(WriteError::NotLeader(_)) => return Done::Retry,
            Err(error) => {
                retry = true;
                warn!(package = name, namespace, release, %error, "cannot delete a HelmRelease");
            }
        }
    }
    if soon {
        // Something changed below: nothing is told before it is looked at again.
        return Done::After(SOON);
    }
    if !failed_namespaces.is_empty() {
        retry = true;
        for (namespace, error) in &failed_namespaces {
            problems.push(format!("Failed to apply Namespace {namespace}: {error}"));
        }
    }
    problems.dedup();
    if !problems.is_empty() && render.gate == Gate::Open {
        render.ready = Outcome {
            status: "False",
            reason: reason::HELM_RELEASE_FAILED.to_owned(),
            message: problems.join("; "),
        };
    }

    let key = Key::Package(name.to_owned());
    let waits = render.gate == Gate::UpdatesOnly
        && condition_of(live.status().as_ref(), names::CONDITION_READY)
            .is_none_or(|(_, reason, _)| reason != reason::DEPENDENCIES_NOT_READY);
    if let Some(left) = context.patience(&key, waits) {
        return Done::After(left);
    }
    let key_of = |release: &ReleaseRender| {
        let metadata = &release.object.metadata;
        (metadata.namespace.clone().unwrap_or_default(), metadata.name.clone().unwrap_or_default())
    };
    let existing: HashMap<ReleaseKey, Arc<Value>> = context.store(|store| {
        let keys = render.releases.iter().map(key_of);
        keys.filter_map(|key| Some((key.clone(), store.release(&key)?))).collect()
    });
    render.settle(live.status().as_ref(), |release| existing.get(&key_of(release)).map(Arc::as_ref));
    let outcome = tell_package(context, queue, name, &live, &render, stalled.as_ref()).await;
    if outcome != Done::Ok {
        return outcome;
    }
    if let (Some(values), Some(told)) = (&values, &render.package_values) {
        let outcome = tell_values(context, queue, name, values, told).await;
        if outcome != Done::Ok {
            return outcome;
        }
    } else {
        track_reason(context, name, None);
    }
    if retry { Done::Retry } else { Done::Ok }
}

enum Failure {
    /// The cache was behind.
    Stale,
    /// Another replica leads.
    Lost,
    /// No last good values.
    Held,
    Failed {
        message: String,
        again: bool,
    },
}

async fn write_release(
    context: &Context,
    queue: &Queue,
    (namespace, release): &ReleaseKey,
    write: &ReleaseWrite,
    failed_namespaces: &BTreeMap<String, String>,
) -> Result<(), Failure> {
    let (verb, outcome) = match write {
        ReleaseWrite::Nothing => return Ok(()),
        ReleaseWrite::Hold => return Err(Failure::Held),
        ReleaseWrite::Foreign(owner) => {
            return Err(Failure::Failed {
                message: format!(
                    "HelmRelease {namespace}/{release} belongs to {owner}: delete it there, or rename this one with install.releaseName"
                ),
                again: false,
            });
        }
        ReleaseWrite::Create(object) => {
            if failed_namespaces.contains_key(namespace) {
                return Ok(());
            }
            let terminating =
                context.store(|store| store.namespaces.get(namespace).is_some_and(|facts| facts.terminating));
            if terminating {
                // Its end wakes the Package.
                return Err(Failure::Failed {
                    message: format!(
                        "Failed to create HelmRelease {release}: namespace {namespace} is being terminated"
                    ),
                    again: false,
                });
            }
            ("create", context.create(queue, Kind::Release, namespace, object).await)
        }
        ReleaseWrite::Update(object) => {
            ("update", context.replace(queue, Kind::Release, namespace, release, object).await)
        }
    };
    match outcome {
        Ok(()) => {
            debug!(namespace, release, verb, "wrote a HelmRelease");
            Ok(())
        }
        Err(WriteError::NotLeader(_)) => Err(Failure::Lost),
        // A create is answered 404 as well when its namespace is gone.
        Err(error) if error.is_stale() => Err(Failure::Stale),
        Err(error) => Err(Failure::Failed {
            message: format!("Failed to {verb} HelmRelease {release}: {error}"),
            again: true,
        }),
    }
}

async fn tell_package(
    context: &Context,
    queue: &Queue,
    name: &str,
    live: &Live,
    render: &PackageRender,
    stalled: Option<&Outcome>,
) -> Done {
    let Some(status) = package_status(live.status().as_ref(), live.generation, render, stalled, &now())
    else {
        return Done::Ok;
    };
    let old = condition_of(live.status().as_ref(), names::CONDITION_READY);
    let done = tell(context, queue, Kind::Package, name, live, &status).await;
    let new = &render.ready;
    let moved = old.as_ref().is_none_or(|(status, reason, _)| status != new.status || *reason != new.reason);
    let waits = new.reason == reason::DEPENDENCIES_NOT_READY && stalled.is_none();
    if done == Done::Ok && moved && new.status == "False" && !waits {
        let told = stalled.unwrap_or(new);
        context.events.warning(Kind::Package, name, live.uid.as_deref(), &told.reason, &told.message).await;
    }
    done
}

async fn tell_broken(
    context: &Context,
    queue: &Queue,
    kind: Kind,
    name: &str,
    live: &Live,
    ready: &Outcome,
) -> Done {
    let mut status = live.status().unwrap_or_else(|| json!({}));
    let before = status.clone();
    let mut conditions = status.get("conditions").and_then(Value::as_array).cloned().unwrap_or_default();
    cozy_core::render::write::set_condition(
        &mut conditions,
        names::CONDITION_READY,
        ready,
        live.generation,
        &now(),
    );
    if let Some(fields) = status.as_object_mut() {
        fields.insert("conditions".to_owned(), Value::Array(conditions));
    }
    if status == before {
        return Done::Ok;
    }
    let done = tell(context, queue, kind, name, live, &status).await;
    if done == Done::Ok {
        context.events.warning(kind, name, live.uid.as_deref(), &ready.reason, &ready.message).await;
    }
    done
}

async fn tell_values(
    context: &Context,
    queue: &Queue,
    name: &str,
    live: &Live,
    render: &cozy_core::render::ValuesRender,
) -> Done {
    track_reason(context, name, Some(&render.ready.reason));
    let Some(status) = values_status(live.status().as_ref(), render, &now()) else { return Done::Ok };
    let old = condition_of(live.status().as_ref(), names::CONDITION_READY);
    let done = tell(context, queue, Kind::Values, name, live, &status).await;
    let new = &render.ready;
    if done == Done::Ok && old.is_none_or(|(_, reason, _)| reason != new.reason) {
        let uid = live.uid.as_deref();
        if new.status == "True" {
            context.events.normal(Kind::Values, name, uid, &new.reason, &new.message).await;
        } else {
            context.events.warning(Kind::Values, name, uid, &new.reason, &new.message).await;
        }
    }
    done
}

async fn tell(context: &Context, queue: &Queue, kind: Kind, name: &str, live: &Live, status: &Value) -> Done {
    match context.write_status(queue, kind, name, &live.resource_version, status).await {
        Ok(()) => Done::Ok,
        Err(error) if error.is_stale() => Done::After(SOON),
        Err(WriteError::NotLeader(_)) => Done::Retry,
        Err(error) => {
            warn!(kind = kind.name(), name, %error, "cannot write a status");
            Done::Retry
        }
    }
}

/// Keeps the metric of PackageValues by reason.
fn track_reason(context: &Context, name: &str, to: Option<&str>) {
    const REASONS: [&str; 7] = [
        reason::MERGED,
        reason::SUSPENDED,
        reason::PACKAGE_NOT_FOUND,
        reason::PACKAGE_SOURCE_NOT_FOUND,
        reason::VARIANT_NOT_FOUND,
        reason::INVALID_LIST,
        reason::INVALID_VALUES,
    ];
    let to = to.and_then(|to| REASONS.iter().copied().find(|known| *known == to));
    let mut reasons = lock(&context.reasons);
    let from = match to {
        Some(to) => reasons.insert(name.to_owned(), to),
        None => reasons.remove(name),
    };
    if from != to {
        context.metrics.values_moved(from, to);
    }
}

// ---------------------------------------------------------------------------------------------- Namespace

/// Applies a namespace unless it is as it should be. Several Packages may want the same one at the same time.
async fn ensure_namespace(
    context: &Context,
    queue: &Queue,
    namespace: &NamespaceRender,
) -> Result<(), WriteError> {
    let mine = lock(&context.namespace_locks).entry(namespace.name.clone()).or_default().clone();
    let _turn = mine.lock().await;
    let (is_done, privileged) = context.store(|store| {
        let privileged = store.snapshot.is_privileged(&namespace.name);
        let facts = store.namespaces.get(&namespace.name);
        (facts.is_some_and(|facts| facts.terminating || facts.is(namespace.system, privileged)), privileged)
    });
    if is_done {
        return Ok(());
    }
    let wanted = NamespaceRender { privileged, ..namespace.clone() };
    let mut object = wanted.object();
    // The Go operator's body has both, and so its managed fields do.
    if let Some(fields) = object.as_object_mut() {
        fields.insert("spec".to_owned(), json!({}));
        fields.insert("status".to_owned(), json!({}));
    }
    context.apply(queue, Kind::Namespace, "", &object, names::MANAGER_PACKAGE, true).await
}

/// Keeps labels right when the Packages that want them come and go.
async fn namespace(context: &Context, queue: &Queue, name: &str) -> Done {
    let wanted = context.store(|store| {
        let facts = store.namespaces.get(name)?;
        let used = store.snapshot.is_used(name);
        let privileged = store.snapshot.is_privileged(name);
        // One that nobody uses any more keeps everything but the right to privileged pods. One that is used but
        // was never applied is the Packages' own business: they create it first.
        let stale = !used && facts.was_made_privileged();
        let system = !name.starts_with(names::TENANT_NAMESPACE_PREFIX);
        let differs = used && !facts.is(system, privileged);
        (!facts.terminating && (stale || differs)).then(|| NamespaceRender {
            name: name.to_owned(),
            system,
            privileged,
        })
    });
    let Some(wanted) = wanted else { return Done::Ok };
    match ensure_namespace(context, queue, &wanted).await {
        Ok(()) => Done::Ok,
        Err(error) if error.is_stale() => Done::After(SOON),
        Err(error) => {
            warn!(namespace = name, %error, "cannot apply a namespace");
            Done::Retry
        }
    }
}

// ------------------------------------------------------------------------------------------- PackageSource

async fn source(context: &Context, queue: &Queue, name: &str) -> Done {
    let seen = context.store(|store| {
        let live = store.sources.get(name)?.clone();
        let source = store.snapshot.source(name);
        let render = source.map(render_package_source);
        Some((live, render, store.generator(name)))
    });
    let Some((live, render, existing)) = seen else {
        lock(&context.applied).remove(name);
        context.patience(&Key::Source(name.to_owned()), false);
        return Done::Ok;
    };
    if live.deleting {
        return Done::Ok;
    }
    if let Some(why) = &live.broken {
        let message = format!("PackageSource {name} cannot be read: {why}; what it made stays as it is");
        let ready = Outcome { status: "False", reason: reason::INTERNAL_ERROR.to_owned(), message };
        return tell_broken(context, queue, Kind::Source, name, &live, &ready).await;
    }
    let Some(render) = render else { return Done::Ok };
    let mut retry = false;
    let mut failure = None;
    match &render.object {
        Some(object) => {
            let Ok(wanted) = serde_json::to_value(object) else { return Done::Ok };
            if !generator_is(context, name, &wanted, existing.as_deref()) {
                match context
                    .apply(
                        queue,
                        Kind::Generator,
                        names::SYSTEM_NAMESPACE,
                        &wanted,
                        names::MANAGER_PACKAGE_SOURCE,
                        false,
                    )
                    .await
                {
                    Ok(()) => {
                        let after = context.store(|store| store.generator(name));
                        if let Some(after) = after {
                            let spec = after.get("spec").cloned().unwrap_or_default();
                            let mut applied = lock(&context.applied);
                            if wanted.get("spec") == Some(&spec) {
                                applied.remove(name);
                            } else {
                                applied.insert(name.to_owned(), (wanted, spec));
                            }
                        }
                    }
                    Err(WriteError::NotLeader(_)) => return Done::Retry,
                    Err(error) => {
                        retry = true;
                        let reason = if error.code() == 409 {
                            reason::ARTIFACT_GENERATOR_CONFLICT
                        } else {
                            reason::ARTIFACT_GENERATOR_FAILED
                        };
                        failure = Some(Outcome {
                            status: "False",
                            reason: reason.to_owned(),
                            message: format!("ArtifactGenerator {name} cannot be applied: {error}"),
                        });
                    }
                }
            }
        }
        None => {
            if let Some(existing) = existing.as_deref().filter(|existing| {
                is_ours(existing, names::LABEL_PACKAGE_SOURCE, "PackageSource", name, live.uid.as_deref())
                    && existing.pointer("/metadata/deletionTimestamp").is_none()
            }) {
                match context.delete(queue, Kind::Generator, names::SYSTEM_NAMESPACE, existing).await {
                    Ok(()) => info!(source = name, "deleted an ArtifactGenerator that has nothing to build"),
                    Err(error) if error.is_stale() => return Done::After(SOON),
                    Err(error) => {
                        warn!(source = name, %error, "cannot delete an ArtifactGenerator");
                        retry = true;
                    }
                }
            }
        }
    }
    let generator = context.store(|store| store.generator(name));
    let mut later = None;
    let mut recovering = None;
    if let (Some(generator), Some(_), None) = (&generator, &render.object, &failure) {
        let step = recovery(generator, Timestamp::now());
        recovering = recovery::outcome(&step, name);
        match nudge(context, queue, name, generator, &step).await {
            Ok(next) => later = next,
            Err(error) if error.is_stale() => return Done::After(SOON),
            Err(WriteError::NotLeader(_)) => return Done::Retry,
            Err(error) => {
                warn!(source = name, %error, "cannot nudge source-watcher");
                retry = true;
            }
        }
    }
    let ready = failure
        .or_else(|| render.without_generator.clone())
        .or(recovering)
        .unwrap_or_else(|| generator_ready(generator.as_deref()));

    let waits = ready.reason == reason::ARTIFACT_GENERATOR_NOT_READY
        && condition_of(live.status().as_ref(), names::CONDITION_READY)
            .is_none_or(|(_, reason, _)| reason != reason::ARTIFACT_GENERATOR_NOT_READY);
    if let Some(left) = context.patience(&Key::Source(name.to_owned()), waits) {
        return Done::After(left);
    }
    if let Some(status) =
        source_status(live.status().as_ref(), live.generation, &render.variants, &ready, &now())
    {
        let moved = condition_of(live.status().as_ref(), names::CONDITION_READY)
            .is_none_or(|(_, reason, _)| reason != ready.reason);
        let done = tell(context, queue, Kind::Source, name, &live, &status).await;
        if done != Done::Ok {
            return done;
        }
        if moved && ready.status == "False" {
            context
                .events
                .warning(Kind::Source, name, live.uid.as_deref(), &ready.reason, &ready.message)
                .await;
        }
        if moved && !render.unbuilt.is_empty() {
            let told: Vec<String> = render
                .unbuilt
                .iter()
                .map(|(component, why)| format!("component {component} gets no artifact: {why}"))
                .collect();
            context
                .events
                .warning(Kind::Source, name, live.uid.as_deref(), "NotBuilt", &told.join("; "))
                .await;
        }
    }
    match later {
        _ if retry => Done::Retry,
        Some(later) => Done::After(later),
        None => Done::Ok,
    }
}

/// Does a step of the recovery of source-watcher; when to look again.
async fn nudge(
    context: &Context,
    queue: &Queue,
    name: &str,
    generator: &Value,
    step: &Recovery,
) -> Result<Option<Duration>, WriteError> {
    let until = |at: &Timestamp| Duration::try_from(at.duration_since(Timestamp::now())).unwrap_or_default();
    match step {
        Recovery::Nothing | Recovery::GivenUp => Ok(None),
        Recovery::Later(at) => Ok(Some(until(at))),
        Recovery::Waiting(_, at) => Ok(at.as_ref().map(until)),
        Recovery::Force(attempt) => {
            info!(source = name, attempt, "source-watcher lost a condition; it is nudged");
            let status = recovery::forced_status(generator, &now());
            let space = names::SYSTEM_NAMESPACE;
            let operations = json!([{ "op": "add", "path": "/status", "value": status }]);
            context.patch(queue, Kind::Generator, space, name, operations, true).await?;
            let mut annotations =
                generator.pointer("/metadata/annotations").cloned().unwrap_or_else(|| json!({}));
            let at = Timestamp::now().to_string();
            if let Some(fields) = annotations.as_object_mut() {
                for (annotation, value) in [
                    (names::ANNOTATION_RECONCILE_REQUESTED_AT, at.clone()),
                    (names::ANNOTATION_RECOVERY_ATTEMPTS, attempt.to_string()),
                    (names::ANNOTATION_LAST_RECOVERY, at),
                ] {
                    fields.insert(annotation.to_owned(), json!(value));
                }
            }
            let operations = json!([{ "op": "add", "path": "/metadata/annotations", "value": annotations }]);
            context.patch(queue, Kind::Generator, space, name, operations, false).await?;
            Ok(None)
        }
        Recovery::Clear => {
            // By name: what others annotated meanwhile stays.
            let there = generator.pointer("/metadata/annotations").and_then(Value::as_object);
            let operations: Vec<Value> =
                [names::ANNOTATION_RECOVERY_ATTEMPTS, names::ANNOTATION_LAST_RECOVERY]
                    .iter()
                    .filter(|name| there.is_some_and(|there| there.contains_key(**name)))
                    .map(|name| {
                        let path = format!("/metadata/annotations/{}", cozy_yaml::escape_token(name));
                        json!({ "op": "remove", "path": path })
                    })
                    .collect();
            let space = names::SYSTEM_NAMESPACE;
            context.patch(queue, Kind::Generator, space, name, Value::Array(operations), false).await?;
            Ok(None)
        }
    }
}

/// Whether an apply would change nothing.
fn generator_is(context: &Context, name: &str, wanted: &Value, existing: Option<&Value>) -> bool {
    let Some(existing) = existing else { return false };
    if existing.pointer("/metadata/deletionTimestamp").is_some() {
        // It is made anew when it is gone.
        return true;
    }
    let has = |part: &str| {
        let wanted = wanted.pointer(part).and_then(Value::as_object);
        let existing = existing.pointer(part);
        wanted.into_iter().flatten().all(|(key, value)| existing.and_then(|e| e.get(key)) == Some(value))
    };
    let owned = wanted.pointer("/metadata/ownerReferences") == existing.pointer("/metadata/ownerReferences");
    if !has("/metadata/labels") || !owned {
        return false;
    }
    let spec = existing.get("spec");
    if spec == wanted.get("spec") {
        return true;
    }
    // Others may add to it: what came of our last apply is as good as it gets.
    lock(&context.applied).get(name).is_some_and(|(applied, after)| applied == wanted && Some(after) == spec)
}

fn generator_ready(generator: Option<&Value>) -> Outcome {
    let found = condition_of(generator.and_then(|generator| generator.get("status")), names::CONDITION_READY);
    let Some((status, reason, message)) = found else {
        return Outcome {
            status: "Unknown",
            reason: reason::ARTIFACT_GENERATOR_NOT_READY.to_owned(),
            message: "ArtifactGenerator Ready condition not found".to_owned(),
        };
    };
    let status = match status.as_str() {
        "True" => "True",
        "False" => "False",
        _ => "Unknown",
    };
    Outcome { status, reason, message }
}

// ------------------------------------------------------------------------------------------------- Secret

async fn secret(context: &Context, queue: &Queue, namespace: &str) -> Done {
    let from = &context.config.cozy_values_secret_namespace;
    if namespace == from {
        return Done::Ok;
    }
    let Ok((label, value)) = context.config.selector() else { return Done::Ok };
    let (source, copy, wanted) = context.store(|store| {
        let facts = store.namespaces.get(namespace);
        let wanted = facts.is_some_and(|facts| {
            !facts.terminating && facts.labels.get(label).and_then(Value::as_str) == Some(value)
        });
        (store.secrets.get(from).cloned(), store.secrets.get(namespace).cloned(), wanted)
    });
    let outcome = match (source.filter(|_| wanted), copy) {
        (Some(source), copy) => {
            let name = &context.config.cozy_values_secret_name;
            let object =
                secret_copy(&source.object, copy.as_ref().map(|copy| copy.object.as_ref()), namespace, name);
            match copy {
                None => context.create(queue, Kind::Secret, namespace, &object).await,
                Some(copy) if is_same_secret(&copy.object, &object) => Ok(()),
                Some(_) => context.replace(queue, Kind::Secret, namespace, name, &object).await,
            }
        }
        (None, Some(copy)) if copy.ours && copy.object.pointer("/metadata/deletionTimestamp").is_none() => {
            context.delete(queue, Kind::Secret, namespace, &copy.object).await
        }
        (None, _) => Ok(()),
    };
    match outcome {
        Ok(()) => Done::Ok,
        Err(error) if error.is_stale() => Done::After(SOON),
        // Its namespace goes away, and the copy with it.
        Err(error) if error.code() == 403 && error.to_string().contains("being terminated") => Done::Ok,
        Err(error) => {
            warn!(namespace, %error, "cannot copy the values Secret");
            Done::Retry
        }
    }
}

/// The copy as it should be: data and type of the source; labels and annotations of the source, and of others.
fn secret_copy(source: &Value, copy: Option<&Value>, namespace: &str, name: &str) -> Value {
    let mut object = copy.cloned().unwrap_or_else(|| {
        json!({
            "apiVersion": "v1", "kind": "Secret",
            "metadata": { "name": name, "namespace": namespace },
        })
    });
    for part in ["data", "type"] {
        match (source.get(part), object.as_object_mut()) {
            (Some(value), Some(fields)) => drop(fields.insert(part.to_owned(), value.clone())),
            (None, Some(fields)) => drop(fields.remove(part)),
            _ => {}
        }
    }
    for part in ["labels", "annotations"] {
        let wanted = source.pointer(&format!("/metadata/{part}")).and_then(Value::as_object);
        let Some(wanted) = wanted else { continue };
        if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
            let there = metadata.entry(part).or_insert_with(|| json!({}));
            if let Some(there) = there.as_object_mut() {
                for (key, value) in wanted {
                    // What kubectl noted of the source is not true of a copy.
                    if key != "kubectl.kubernetes.io/last-applied-configuration" {
                        there.insert(key.clone(), value.clone());
                    }
                }
            }
            if metadata.get(part).and_then(Value::as_object).is_some_and(serde_json::Map::is_empty) {
                metadata.remove(part);
            }
        }
    }
    object
}

fn is_same_secret(a: &Value, b: &Value) -> bool {
    ["/data", "/type", "/metadata/labels", "/metadata/annotations"]
        .iter()
        .all(|part| a.pointer(part) == b.pointer(part))
}

// -------------------------------------------------------------------------------------------------- Chart

async fn chart(context: &Context, queue: &Queue, artifact: &str) -> Done {
    let (there, users) = context.store(|store| {
        (store.artifacts.get(artifact).cloned(), store.chart_users.get(artifact).cloned().unwrap_or_default())
    });
    let Some(there) = there else { return Done::Ok };
    if users.is_empty()
        || lock(&context.charts).get(artifact).is_some_and(|known| known.as_ref() == Some(&there.digest))
    {
        return Done::Ok;
    }
    let (read, done): (Option<Arc<Chart>>, Done) = match charts::fetch(&there.url, &there.digest).await {
        Ok(chart) => (Some(Arc::new(chart)), Done::Ok),
        Err(error) => {
            warn!(artifact, %error, "the chart's defaults and schema are not known");
            (None, if error.is_final() { Done::Ok } else { Done::Retry })
        }
    };
    let first = {
        let mut charts = lock(&context.charts);
        let digest = read.as_ref().map(|_| there.digest.clone());
        charts.insert(artifact.to_owned(), digest.clone()) != Some(digest)
    };
    if let Some(chart) = read {
        context.store_mut(|store| store.snapshot.set_chart(artifact.to_owned(), chart));
    }
    if first {
        queue.add(users.into_iter().map(Key::Package));
    }
    done
}
