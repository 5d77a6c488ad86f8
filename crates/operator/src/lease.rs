//! Leader election by a Lease, and the fence that keeps a former leader from writing.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client};
use tracing::{debug, warn};

use crate::config::Config;

/// Others take the lease over when it was not renewed for so long; controller-runtime's values.
const DURATION: Duration = Duration::from_secs(15);
/// The leader gives up when it could not renew for so long: before others take over.
const RENEW_DEADLINE: Duration = Duration::from_secs(10);
const RETRY: Duration = Duration::from_secs(2);

/// Not the leader (any more): nothing may be written.
#[derive(Debug, thiserror::Error)]
#[error("not the leader")]
pub(crate) struct NotLeader;

/// Holds, or waits for, the lease.
pub(crate) struct Leader {
    api: Api<Lease>,
    name: String,
    identity: String,
    enabled: bool,
    /// Writes are allowed until then.
    until: Mutex<Option<Instant>>,
    seen: Mutex<Option<(String, Instant)>>,
}

impl Leader {
    pub(crate) fn new(client: Client, config: &Config) -> Arc<Self> {
        Arc::new(Self {
            api: Api::namespaced(client, &config.lease_namespace),
            name: config.lease_name.clone(),
            identity: config.identity.clone(),
            enabled: config.leader_elect,
            until: Mutex::new(None),
            seen: Mutex::new(None),
        })
    }

    /// To be asked before every write: a process that was paused beyond its lease finds out here.
    pub(crate) fn check(&self) -> Result<(), NotLeader> {
        if !self.enabled {
            return Ok(());
        }
        let until = *self.until.lock().unwrap_or_else(PoisonError::into_inner);
        if until.is_some_and(|until| Instant::now() < until) { Ok(()) } else { Err(NotLeader) }
    }

    /// Waits until this replica leads.
    pub(crate) async fn acquire(&self) {
        loop {
            match self.attempt().await {
                Ok(true) => return,
                Ok(false) => {}
                Err(error) => warn!(lease = %self.name, %error, "cannot read or write the lease"),
            }
            tokio::time::sleep(jittered(RETRY)).await;
        }
    }

    /// Renews until that fails for too long, or another replica has the lease.
    pub(crate) async fn keep(&self) {
        loop {
            tokio::time::sleep(jittered(RETRY)).await;
            match tokio::time::timeout(RENEW_DEADLINE / 2, self.attempt()).await {
                Ok(Ok(true)) => {}
                Ok(Ok(false)) => return,
                Ok(Err(error)) => warn!(lease = %self.name, %error, "cannot renew the lease"),
                Err(_) => warn!(lease = %self.name, "renewing the lease takes too long"),
            }
            if self.check().is_err() {
                return;
            }
        }
    }

    /// Gives the lease back, so that another replica need not wait for its end.
    pub(crate) async fn release(&self) {
        if self.check().is_err() {
            return;
        }
        *self.until.lock().unwrap_or_else(PoisonError::into_inner) = None;
        let Ok(mut lease) = self.api.get(&self.name).await else { return };
        let Some(spec) = &mut lease.spec else { return };
        if spec.holder_identity.as_deref() != Some(&self.identity) {
            return;
        }
        // The API takes no empty holder.
        spec.holder_identity = None;
        spec.lease_duration_seconds = Some(1);
        if let Err(error) = self.api.replace(&self.name, &PostParams::default(), &lease).await {
            debug!(lease = %self.name, %error, "the lease was not given back");
        }
    }

    /// One attempt to take or renew; whether this replica leads now.
    async fn attempt(&self) -> Result<bool, kube::Error> {
        // Taken before the request, so that the fence falls no later than others may take over.
        let before = Instant::now();
        let now = MicroTime(Timestamp::now());
        let spec = |transitions, acquired| LeaseSpec {
            holder_identity: Some(self.identity.clone()),
            lease_duration_seconds: i32::try_from(DURATION.as_secs()).ok(),
            acquire_time: acquired,
            renew_time: Some(now.clone()),
            lease_transitions: transitions,
            ..LeaseSpec::default()
        };
        let Some(mut lease) = self.api.get_opt(&self.name).await? else {
            let lease = Lease {
                metadata: ObjectMeta { name: Some(self.name.clone()), ..ObjectMeta::default() },
                spec: Some(spec(Some(0), Some(now.clone()))),
            };
            return match self.api.create(&PostParams::default(), &lease).await {
                Ok(_) => Ok(self.holds(before)),
                Err(error) if is_conflict(&error) => Ok(false),
                Err(error) => Err(error),
            };
        };
        let old = lease.spec.clone().unwrap_or_default();
        let holder = old.holder_identity.clone().unwrap_or_default();
        let ours = holder == self.identity;
        if !ours && !holder.is_empty() && !self.expired(&lease, &old) {
            return Ok(false);
        }
        let transitions = old.lease_transitions.unwrap_or_default();
        lease.spec = Some(if ours {
            spec(Some(transitions), old.acquire_time.clone())
        } else {
            spec(Some(transitions.saturating_add(1)), Some(now.clone()))
        });
        // The resource version makes sure that nobody else took it meanwhile.
        match self.api.replace(&self.name, &PostParams::default(), &lease).await {
            Ok(_) => Ok(self.holds(before)),
            Err(error) if is_conflict(&error) => Ok(ours && self.check().is_ok()),
            Err(error) => Err(error),
        }
    }

    fn holds(&self, since: Instant) -> bool {
        *self.until.lock().unwrap_or_else(PoisonError::into_inner) = Some(since + RENEW_DEADLINE);
        true
    }

    /// Whether the holder has not renewed for the lease's time, by our own clock: clocks of nodes differ.
    fn expired(&self, lease: &Lease, spec: &LeaseSpec) -> bool {
        let version = lease.metadata.resource_version.clone().unwrap_or_default();
        let duration = u64::try_from(spec.lease_duration_seconds.unwrap_or(15)).unwrap_or(15);
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        match &*seen {
            Some((known, since)) if *known == version => since.elapsed() >= Duration::from_secs(duration),
            _ => {
                *seen = Some((version, Instant::now()));
                false
            }
        }
    }
}

fn is_conflict(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 409)
}

/// Up to a fifth more, so that replicas do not ask at the same moment.
fn jittered(time: Duration) -> Duration {
    let nanos = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |since| since.subsec_nanos());
    time + time.mul_f64(f64::from(nanos % 1000) / 5000.0)
}
