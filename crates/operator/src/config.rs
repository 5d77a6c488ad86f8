//! What the operator's flags say.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use cozy_api::names;
use cozy_core::render::RenderOptions;

/// What the operator's flags say; the defaults are the Go operator's.
#[derive(Clone, Debug)]
pub struct Config {
    /// `--helmrelease-*`.
    pub render: RenderOptions,
    /// `--cozy-values-secret-name`: the Secret that is copied.
    pub cozy_values_secret_name: String,
    /// `--cozy-values-secret-namespace`: where it comes from.
    pub cozy_values_secret_namespace: String,
    /// `--cozy-values-namespace-selector`, `key=value`: where it is copied to.
    pub cozy_values_namespace_selector: String,
    /// `--platform-source-name`.
    pub platform_source_name: String,
    /// `--platform-source-url` and what belongs to it.
    pub platform_source: Option<PlatformSource>,
    /// `--install-crds`.
    pub install_crds: bool,
    /// `--install-flux` with `--flux-manifests <dir>`.
    pub flux_manifests: Option<PathBuf>,
    /// `--leader-elect`.
    pub leader_elect: bool,
    /// Name of the Lease.
    pub lease_name: String,
    /// Namespace of the Lease.
    pub lease_namespace: String,
    /// Who this replica is in the Lease; unique per process.
    pub identity: String,
    /// `--metrics-bind-address`; `0` for none.
    pub metrics_bind_address: String,
    /// `--health-probe-bind-address`; `0` for none.
    pub health_probe_bind_address: String,
    /// Objects reconciled at the same time.
    pub workers: usize,
    /// `--tenant-surface` and what belongs to it; none: nothing is made for tenants.
    pub tenants: Option<Tenants>,
}

/// The tenants' git surface.
#[derive(Clone, Debug, PartialEq)]
pub struct Tenants {
    /// What every tenant's controller is like.
    pub settings: cozy_core::tenant::Settings,
    /// Tenants that get a controller; those beyond wait.
    pub most: usize,
    /// Controllers that are rolled at the same time when settings change.
    pub rolling: usize,
    /// How long a controller may take to let go of a deleted Kustomization before it is started anew.
    pub stuck: Duration,
    /// The stamp is a MutatingAdmissionPolicy, too, which Kubernetes before 1.36 does not have.
    pub mutation_policy: bool,
}

impl Default for Tenants {
    fn default() -> Self {
        Self {
            settings: cozy_core::tenant::Settings::default(),
            most: 200,
            rolling: 5,
            stuck: Duration::from_secs(180),
            mutation_policy: false,
        }
    }
}

/// Where the platform's own packages come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlatformSource {
    /// `oci://`, `https://`, `http://` or `ssh://`.
    pub url: String,
    /// `k=v,k=v`; keys of an OCIRepository's or GitRepository's `spec.ref`.
    pub reference: String,
    /// Secret with credentials.
    pub secret: Option<String>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            render: RenderOptions::default(),
            cozy_values_secret_name: names::COZYSTACK_VALUES.to_owned(),
            cozy_values_secret_namespace: names::SYSTEM_NAMESPACE.to_owned(),
            cozy_values_namespace_selector: format!("{}=true", names::LABEL_SYSTEM),
            platform_source_name: "cozystack-platform".to_owned(),
            platform_source: None,
            install_crds: false,
            flux_manifests: None,
            leader_elect: false,
            lease_name: "cozystack-operator.cozystack.io".to_owned(),
            lease_namespace: names::SYSTEM_NAMESPACE.to_owned(),
            identity: format!("cozy-gitops-{}", std::process::id()),
            metrics_bind_address: ":8080".to_owned(),
            health_probe_bind_address: ":8081".to_owned(),
            workers: 8,
            tenants: None,
        }
    }
}

impl Config {
    /// Refuses what the Go operator refuses.
    pub(crate) fn check(&self) -> Result<(), String> {
        for (flag, value) in [
            ("helmrelease-interval", self.render.interval),
            ("helmrelease-retry-interval", self.render.retry_interval),
            ("helmrelease-install-timeout", self.render.install_timeout),
            ("helmrelease-upgrade-timeout", self.render.upgrade_timeout),
        ] {
            if value.as_nanos() <= 0 {
                return Err(format!("--{flag} has to be greater than zero, not {value}"));
            }
        }
        if self.render.max_history < 0 {
            let value = self.render.max_history;
            return Err(format!("--helmrelease-max-history cannot be negative, as {value} is"));
        }
        self.selector()?;
        Ok(())
    }

    /// Label and value of the namespaces that get a copy.
    pub(crate) fn selector(&self) -> Result<(&str, &str), String> {
        let text = &self.cozy_values_namespace_selector;
        match text.split_once("==").or_else(|| text.split_once('=')) {
            Some((key, value)) if !key.trim().is_empty() => Ok((key.trim(), value.trim())),
            _ => Err(format!("--cozy-values-namespace-selector has to be <label>=<value>, not {text:?}")),
        }
    }
}

/// Reads `--metrics-bind-address` and its like: `:8080`, `127.0.0.1:8080`; `0` or nothing means none.
///
/// # Errors
/// When it is neither.
pub fn bind_address(text: &str) -> Result<Option<SocketAddr>, String> {
    if text.is_empty() || text == "0" {
        return Ok(None);
    }
    let fail = || format!("{text:?} is no address such as :8080 or 127.0.0.1:8080");
    match text.strip_prefix(':') {
        Some(port) => {
            let port = port.parse().map_err(|_| fail())?;
            Ok(Some(SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), port)))
        }
        None => text.parse().map(Some).map_err(|_| fail()),
    }
}
