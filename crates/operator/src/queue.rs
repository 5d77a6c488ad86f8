//! The work queue: each key once, one worker per key, retries with growing distance.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use crate::metrics::Metrics;

/// What is reconciled.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Key {
    /// A Package, with the PackageValues of its name.
    Package(String),
    /// A PackageSource.
    Source(String),
    /// A namespace's labels.
    Namespace(String),
    /// The copy of the values Secret in a namespace.
    Secret(String),
    /// The chart in an ExternalArtifact.
    Chart(String),
    /// The git revision that a PackageValues came from.
    Revision(String),
    /// What a tenant namespace needs for its git surface.
    Tenant(String),
    /// A role that is given to tenants once they are confined.
    Grant(String),
}

impl Key {
    /// For metrics and logs.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Package(_) => "Package",
            Self::Source(_) => "PackageSource",
            Self::Namespace(_) => "Namespace",
            Self::Secret(_) => "Secret",
            Self::Chart(_) => "Chart",
            Self::Revision(_) => "Revision",
            Self::Tenant(_) => "Tenant",
            Self::Grant(_) => "Grant",
        }
    }

    /// Name of the object.
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Package(name)
            | Self::Source(name)
            | Self::Namespace(name)
            | Self::Secret(name)
            | Self::Chart(name)
            | Self::Revision(name)
            | Self::Tenant(name)
            | Self::Grant(name) => name,
        }
    }
}

/// How a reconciliation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Done {
    /// As it should.
    Ok,
    /// It has to be looked at again after that time, without being a failure.
    After(Duration),
    /// It failed and is tried again later, each time after twice the time.
    Retry,
}

const FIRST_RETRY: Duration = Duration::from_millis(200);
/// Not more, so that what was fixed by hand is seen soon.
const LONGEST_RETRY: Duration = Duration::from_secs(60);

#[derive(Default)]
struct Inner {
    ready: VecDeque<Key>,
    queued: HashSet<Key>,
    active: HashSet<Key>,
    /// Queued again while a worker has them.
    again: HashSet<Key>,
    later: BTreeMap<(Instant, u64), Key>,
    failures: HashMap<Key, u32>,
    sequence: u64,
}

/// The work queue.
pub(crate) struct Queue {
    inner: Mutex<Inner>,
    wake: Notify,
    metrics: Arc<Metrics>,
}

impl Queue {
    pub(crate) fn new(metrics: Arc<Metrics>) -> Self {
        Self { inner: Mutex::default(), wake: Notify::new(), metrics }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues keys; those that are queued already are not queued twice.
    pub(crate) fn add(&self, keys: impl IntoIterator<Item = Key>) {
        let mut inner = self.lock();
        for key in keys {
            Self::push(&mut inner, key);
        }
        self.metrics.depth.set(i64::try_from(inner.ready.len()).unwrap_or(i64::MAX));
        drop(inner);
        self.wake.notify_one();
    }

    fn push(inner: &mut Inner, key: Key) {
        if inner.active.contains(&key) {
            inner.again.insert(key);
        } else if inner.queued.insert(key.clone()) {
            inner.ready.push_back(key);
        }
    }

    /// The next key; it is the caller's until [`Queue::done`].
    pub(crate) async fn next(&self) -> Key {
        loop {
            let wait = {
                let mut inner = self.lock();
                let now = Instant::now();
                while let Some(entry) = inner.later.first_entry() {
                    if entry.key().0 > now {
                        break;
                    }
                    let key = entry.remove();
                    Self::push(&mut inner, key);
                }
                if let Some(key) = inner.ready.pop_front() {
                    inner.queued.remove(&key);
                    inner.active.insert(key.clone());
                    let more = !inner.ready.is_empty();
                    self.metrics.depth.set(i64::try_from(inner.ready.len()).unwrap_or(i64::MAX));
                    drop(inner);
                    if more {
                        self.wake.notify_one();
                    }
                    return key;
                }
                inner.later.first_key_value().map(|((at, _), _)| at.saturating_duration_since(now))
            };
            let woken = self.wake.notified();
            match wait {
                Some(wait) => drop(tokio::time::timeout(wait, woken).await),
                None => woken.await,
            }
        }
    }

    /// Gives a key back.
    pub(crate) fn done(&self, key: Key, done: Done) {
        let mut inner = self.lock();
        inner.active.remove(&key);
        let again = inner.again.remove(&key);
        let after = match done {
            Done::Ok => {
                inner.failures.remove(&key);
                None
            }
            Done::After(time) => {
                inner.failures.remove(&key);
                Some(time)
            }
            Done::Retry => {
                let failures = inner.failures.entry(key.clone()).or_default();
                *failures += 1;
                Some(backoff(*failures))
            }
        };
        if again {
            Self::push(&mut inner, key);
        } else if let Some(after) = after {
            inner.sequence += 1;
            let slot = (Instant::now() + after, inner.sequence);
            inner.later.insert(slot, key);
        }
        drop(inner);
        self.wake.notify_one();
    }
}

/// Time before the retry after so many failures in a row.
fn backoff(failures: u32) -> Duration {
    FIRST_RETRY.saturating_mul(1 << failures.saturating_sub(1).min(16)).min(LONGEST_RETRY)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue() -> Queue {
        Queue::new(Arc::new(Metrics::new(Default::default())))
    }

    #[tokio::test]
    async fn a_key_is_worked_on_once_at_a_time_and_not_forgotten() {
        let queue = queue();
        let key = Key::Package("a".to_owned());
        queue.add([key.clone(), key.clone()]);
        assert_eq!(queue.next().await, key);
        queue.add([key.clone()]);
        assert!(tokio::time::timeout(Duration::from_millis(20), queue.next()).await.is_err());
        queue.done(key.clone(), Done::Ok);
        assert_eq!(queue.next().await, key);
        queue.done(key, Done::Ok);
        assert!(tokio::time::timeout(Duration::from_millis(20), queue.next()).await.is_err());
    }

    #[test]
    fn retries_are_bounded() {
        assert_eq!(backoff(1), FIRST_RETRY);
        assert_eq!(backoff(2), FIRST_RETRY * 2);
        assert_eq!(backoff(1000), LONGEST_RETRY);
    }
}
