//! The server's own authority: one Secret that all replicas share, and `caBundle` of the webhook configurations.
//!
//! Every replica does the same, and none needs to lead: the Secret is written by compare-and-swap, and the bundle that
//! follows from it is the same for all.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures::StreamExt as _;
use futures::stream::{BoxStream, select_all};
use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingWebhookConfiguration,
};
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt as _, watcher as watch};
use kube::{Client, ResourceExt as _};
use serde_json::json;
use tracing::{debug, info, warn};

use crate::listen::Published;
use crate::rotation::State;
use crate::{CONFIGURATION, LABEL_WEBHOOK, Own};

/// Key of the Secret with everything; `ca.crt` beside it is for people.
const STATE: &str = "rotation.json";
const BUNDLE: &str = "ca.crt";
const MANAGER: &str = "cozy-gitops-webhook";
/// After a write that failed.
const RETRY: Duration = Duration::from_secs(2);

/// What a watch brought.
enum Change {
    Secret(Event<Secret>),
    Mutating(Event<MutatingWebhookConfiguration>),
    Validating(Event<ValidatingWebhookConfiguration>),
}

/// A webhook configuration, as far as it matters here: of each webhook, name and `caBundle`.
type Webhooks = Vec<(String, Option<Vec<u8>>)>;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Mutating,
    Validating,
}

struct Keeper<'a> {
    own: &'a Own,
    names: Vec<String>,
    client: Client,
    published: &'a Published,
    secret: Option<Secret>,
    configurations: BTreeMap<(Kind, String), Webhooks>,
    /// Lists that were read whole.
    filled: [bool; 3],
    shown: Option<State>,
}

/// Keeps certificate, Secret and bundles; never ends.
pub(crate) async fn run(own: &Own, client: Client, published: &Published) {
    let mut keeper = Keeper {
        own,
        names: own.names(),
        client: client.clone(),
        published,
        secret: None,
        configurations: BTreeMap::new(),
        filled: [false; 3],
        shown: None,
    };
    let mut changes = changes(own, &client);
    let mut wait = None;
    loop {
        let timer = async {
            match wait {
                Some(wait) => tokio::time::sleep(wait).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            change = changes.next() => match change {
                Some(change) => keeper.learn(change),
                None => return,
            },
            () = timer => {}
        }
        wait = keeper.act().await;
    }
}

fn changes(own: &Own, client: &Client) -> impl futures::Stream<Item = Change> + Unpin {
    fn of<K, F>(api: Api<K>, config: watcher::Config, change: F) -> BoxStream<'static, Change>
    where
        K: kube::Resource + Clone + std::fmt::Debug + serde::de::DeserializeOwned + Send + 'static,
        F: Fn(Event<K>) -> Change + Send + 'static,
    {
        let events = watch(api, config).default_backoff().filter_map(|event| {
            // The watch comes back by itself.
            std::future::ready(event.inspect_err(|error| debug!(%error, "watch")).ok())
        });
        events.map(change).boxed()
    }
    let secret = watcher::Config::default().fields(&format!("metadata.name={}", own.secret));
    let label = watcher::Config::default().labels(&format!("{LABEL_WEBHOOK}={CONFIGURATION}"));
    select_all([
        of(Api::namespaced(client.clone(), &own.namespace), secret, Change::Secret),
        of(Api::all(client.clone()), label.clone(), Change::Mutating),
        of(Api::all(client.clone()), label, Change::Validating),
    ])
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

impl Keeper<'_> {
    fn learn(&mut self, change: Change) {
        match change {
            Change::Secret(Event::Init) => self.secret = None,
            Change::Secret(Event::InitApply(secret) | Event::Apply(secret)) => self.secret = Some(secret),
            Change::Secret(Event::Delete(_)) => self.secret = None,
            Change::Secret(Event::InitDone) => self.filled[0] = true,
            Change::Mutating(event) => {
                let done = self.configuration(Kind::Mutating, event, |configuration| {
                    let webhooks = configuration.webhooks.into_iter().flatten();
                    webhooks.map(|w| (w.name, w.client_config.ca_bundle.map(|bundle| bundle.0))).collect()
                });
                self.filled[1] |= done;
            }
            Change::Validating(event) => {
                let done = self.configuration(Kind::Validating, event, |configuration| {
                    let webhooks = configuration.webhooks.into_iter().flatten();
                    webhooks.map(|w| (w.name, w.client_config.ca_bundle.map(|bundle| bundle.0))).collect()
                });
                self.filled[2] |= done;
            }
        }
    }

    /// Whether a list is whole now.
    fn configuration<K: kube::Resource>(
        &mut self,
        kind: Kind,
        event: Event<K>,
        webhooks: impl Fn(K) -> Webhooks,
    ) -> bool {
        match event {
            Event::Init => self.configurations.retain(|(other, _), _| *other != kind),
            Event::InitApply(configuration) | Event::Apply(configuration) => {
                let key = (kind, configuration.name_any());
                self.configurations.insert(key, webhooks(configuration));
            }
            Event::Delete(configuration) => {
                self.configurations.remove(&(kind, configuration.name_any()));
            }
            Event::InitDone => return true,
        }
        false
    }

    /// Does what is due; when to come back without a change.
    async fn act(&mut self) -> Option<Duration> {
        if !self.filled[0] {
            return None;
        }
        let found = self.secret.as_ref().and_then(|secret| state(secret, &self.own.secret));
        let published = found.as_ref().is_some_and(|state| self.outdated(&state.bundle()).is_empty())
            && self.filled == [true; 3];
        let next = match &found {
            Some(found) => found.advance(now(), &self.own.rotation, &self.names, published),
            None => State::new(now(), &self.own.rotation, &self.names).map(Some),
        };
        let next = match next {
            Ok(next) => next,
            Err(error) => {
                warn!(secret = self.own.secret, "no certificate could be made: {error}");
                return Some(RETRY);
            }
        };
        let changed = next.is_some();
        let Some(wanted) = next.or(found) else { return Some(RETRY) };
        if changed || self.secret.as_ref().is_some_and(|secret| bundle(secret) != Some(wanted.bundle())) {
            if let Err(error) = self.store(&wanted).await {
                if !matches!(&error, kube::Error::Api(status) if status.code == 409 || status.code == 404) {
                    warn!(
                        secret = self.own.secret,
                        namespace = self.own.namespace,
                        "cannot be written: {error}"
                    );
                }
                // Another replica was faster, and the watch brings what it wrote.
                return Some(RETRY);
            }
            // Again from what is stored now: there may be more to do.
            return Some(Duration::ZERO);
        }
        if self.shown.as_ref().is_none_or(|shown| shown.serving != wanted.serving) {
            let serving = &wanted.serving;
            match self.published.show(&serving.certificate, &serving.key, serving.not_after) {
                Ok(()) => info!(not_after = serving.not_after, "a certificate is shown"),
                Err(error) => warn!(secret = self.own.secret, "the certificate cannot be used: {error}"),
            }
            self.shown = Some(wanted.clone());
        }
        let failed = self.publish(&wanted.bundle()).await;
        let due = Duration::from_secs(wanted.due(&self.own.rotation).saturating_sub(now()).max(1));
        Some(if failed { RETRY } else { due })
    }

    async fn store(&mut self, state: &State) -> Result<(), kube::Error> {
        let api: Api<Secret> = Api::namespaced(self.client.clone(), &self.own.namespace);
        let text = serde_json::to_vec(state).map_err(kube::Error::SerdeError)?;
        let mut secret = self.secret.clone().unwrap_or_default();
        secret.metadata.name = Some(self.own.secret.clone());
        secret.metadata.managed_fields = None;
        let labels = secret.metadata.labels.get_or_insert_default();
        labels.insert("app.kubernetes.io/managed-by".to_owned(), "cozy-gitops".to_owned());
        secret.data = Some(BTreeMap::from([
            (STATE.to_owned(), ByteString(text)),
            (BUNDLE.to_owned(), ByteString(state.bundle().into_bytes())),
        ]));
        let parameters = PostParams { field_manager: Some(MANAGER.to_owned()), ..PostParams::default() };
        let stored = if secret.metadata.resource_version.is_some() {
            api.replace(&self.own.secret, &parameters, &secret).await?
        } else {
            api.create(&parameters, &secret).await?
        };
        info!(secret = self.own.secret, namespace = self.own.namespace, "certificates were written");
        self.secret = Some(stored);
        Ok(())
    }

    /// Configurations with a webhook that trusts something else.
    fn outdated(&self, bundle: &str) -> Vec<(Kind, String)> {
        let outdated = self.configurations.iter().filter(|(_, webhooks)| {
            webhooks.iter().any(|(_, trusted)| trusted.as_deref() != Some(bundle.as_bytes()))
        });
        outdated.map(|(key, _)| key.clone()).collect()
    }

    /// Writes the bundle where it is not; whether that failed anywhere.
    async fn publish(&mut self, bundle: &str) -> bool {
        let mut failed = false;
        for (kind, name) in self.outdated(bundle) {
            let webhooks = self.configurations.get(&(kind, name.clone())).cloned().unwrap_or_default();
            let trusted = ByteString(bundle.as_bytes().to_vec());
            // Merged by name, so that everything else of the webhooks stays as it is.
            let patch = Patch::Strategic(json!({
                "webhooks": webhooks
                    .iter()
                    .map(|(name, _)| json!({ "name": name, "clientConfig": { "caBundle": trusted } }))
                    .collect::<Vec<_>>(),
            }));
            let parameters =
                PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
            let outcome = match kind {
                Kind::Mutating => Api::<MutatingWebhookConfiguration>::all(self.client.clone())
                    .patch(&name, &parameters, &patch)
                    .await
                    .map(drop),
                Kind::Validating => Api::<ValidatingWebhookConfiguration>::all(self.client.clone())
                    .patch(&name, &parameters, &patch)
                    .await
                    .map(drop),
            };
            match outcome {
                Ok(()) => {
                    info!(configuration = name, "caBundle was written");
                    let done =
                        webhooks.into_iter().map(|(name, _)| (name, Some(trusted.0.clone()))).collect();
                    self.configurations.insert((kind, name), done);
                }
                // It went meanwhile, and the watch says so.
                Err(kube::Error::Api(status)) if status.code == 404 => {}
                Err(error) => {
                    warn!(configuration = name, "caBundle cannot be written: {error}");
                    failed = true;
                }
            }
        }
        failed
    }
}

fn state(secret: &Secret, name: &str) -> Option<State> {
    let text = secret.data.as_ref()?.get(STATE)?;
    // Its content is in no error.
    serde_json::from_slice(&text.0)
        .inspect_err(|_| warn!(secret = name, "its key {STATE} cannot be read; it is made anew"))
        .ok()
}

fn bundle(secret: &Secret) -> Option<String> {
    String::from_utf8(secret.data.as_ref()?.get(BUNDLE)?.0.clone()).ok()
}
