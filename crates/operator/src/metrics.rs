//! Prometheus metrics.

use std::time::Duration;

use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

type Labels = Vec<(&'static str, &'static str)>;

/// All metrics of the operator.
pub(crate) struct Metrics {
    registry: Registry,
    reconciles: Family<Labels, Counter>,
    seconds: Family<Labels, Histogram>,
    writes: Family<Labels, Counter>,
    values: Family<Labels, Gauge>,
    grants: Family<Vec<(&'static str, String)>, Gauge>,
    outside: Family<Vec<(&'static str, String)>, Gauge>,
    /// Keys that wait for a worker.
    pub(crate) depth: Gauge,
    /// Whether this replica leads.
    pub(crate) leader: Gauge,
}

fn histogram() -> Histogram {
    Histogram::new([0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0])
}

impl Metrics {
    /// `registry` may hold metrics of others already.
    pub(crate) fn new(mut registry: Registry) -> Self {
        let reconciles = Family::<Labels, Counter>::default();
        registry.register("reconciles", "Reconciliations, by kind and result", reconciles.clone());
        let seconds = Family::<Labels, Histogram>::new_with_constructor(histogram);
        registry.register("reconcile_seconds", "Time of a reconciliation, by kind", seconds.clone());
        let writes = Family::<Labels, Counter>::default();
        registry.register("writes", "Write requests, by kind, verb and result", writes.clone());
        let values = Family::<Labels, Gauge>::default();
        registry.register(
            "packagevalues",
            "PackageValues by the reason of their condition Ready; PackageNotFound are orphans",
            values.clone(),
        );
        let grants = Family::<Vec<(&'static str, String)>, Gauge>::default();
        registry.register(
            "tenant_rights_granted",
            "1 while the role is given to tenants; 0 while what confines them is not in force",
            grants.clone(),
        );
        let outside = Family::<Vec<(&'static str, String)>, Gauge>::default();
        registry.register(
            "tenant_kustomizations_outside",
            "Kustomizations of a tenant's namespace that its own controller does not apply",
            outside.clone(),
        );
        let depth = Gauge::default();
        registry.register("queue_depth", "Objects that wait to be reconciled", depth.clone());
        let leader = Gauge::default();
        registry.register("leader", "1 while this replica leads", leader.clone());
        Self { registry, reconciles, seconds, writes, values, grants, outside, depth, leader }
    }

    pub(crate) fn reconciled(&self, kind: &'static str, ok: bool, time: Duration) {
        let result = if ok { "ok" } else { "retry" };
        self.reconciles.get_or_create(&vec![("kind", kind), ("result", result)]).inc();
        self.seconds.get_or_create(&vec![("kind", kind)]).observe(time.as_secs_f64());
    }

    pub(crate) fn wrote(&self, kind: &'static str, verb: &'static str, ok: bool) {
        let result = if ok { "ok" } else { "error" };
        self.writes.get_or_create(&vec![("kind", kind), ("verb", verb), ("result", result)]).inc();
    }

    /// A PackageValues went from one reason to another.
    pub(crate) fn values_moved(&self, from: Option<&'static str>, to: Option<&'static str>) {
        if let Some(from) = from {
            self.values.get_or_create(&vec![("reason", from)]).dec();
        }
        if let Some(to) = to {
            self.values.get_or_create(&vec![("reason", to)]).inc();
        }
    }

    /// A role is given to tenants, is not, or is no more.
    pub(crate) fn granted(&self, role: &str, granted: Option<bool>) {
        let labels = vec![("role", role.to_owned())];
        match granted {
            Some(granted) => {
                self.grants.get_or_create(&labels).set(granted.into());
            }
            None => {
                self.grants.remove(&labels);
            }
        }
    }

    /// So many Kustomizations of a tenant's namespace are not its controller's; whether that is news, and not good news.
    pub(crate) fn outside(&self, namespace: &str, count: usize) -> bool {
        let labels = vec![("namespace", namespace.to_owned())];
        if count == 0 {
            self.outside.remove(&labels);
            return false;
        }
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        self.outside.get_or_create(&labels).set(count) < count
    }

    /// In Prometheus' text format.
    pub(crate) fn text(&self) -> String {
        let mut out = String::new();
        // Writing to a string does not fail.
        let _ = encode(&mut out, &self.registry);
        out
    }
}
