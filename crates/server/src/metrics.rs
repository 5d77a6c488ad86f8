//! Prometheus metrics of the webhook.

use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

type Labels = Vec<(&'static str, &'static str)>;

/// All metrics of the webhook.
#[derive(Clone)]
pub(crate) struct Metrics {
    reviews: Family<Labels, Counter>,
    seconds: Family<Labels, Histogram>,
    expiry: Gauge,
}

impl Metrics {
    pub(crate) fn register(registry: &mut Registry) -> Self {
        let reviews = Family::<Labels, Counter>::default();
        registry.register("admission_reviews", "Admission reviews, by path and verdict", reviews.clone());
        let buckets = || Histogram::new([0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.05, 0.25, 1.0]);
        let seconds = Family::<Labels, Histogram>::new_with_constructor(buckets);
        registry.register("admission_seconds", "Time of an admission review, by path", seconds.clone());
        let expiry = Gauge::default();
        registry.register(
            "webhook_certificate_expiry_timestamp_seconds",
            "When the webhook's certificate ends; 0 before there is one, or when that is not known",
            expiry.clone(),
        );
        Self { reviews, seconds, expiry }
    }

    pub(crate) fn reviewed(&self, path: &'static str, verdict: &'static str, time: Duration) {
        self.reviews.get_or_create(&vec![("path", path), ("verdict", verdict)]).inc();
        self.seconds.get_or_create(&vec![("path", path)]).observe(time.as_secs_f64());
    }

    /// Seconds since 1970.
    pub(crate) fn expires(&self, at: u64) {
        self.expiry.set(i64::try_from(at).unwrap_or(i64::MAX));
    }
}
