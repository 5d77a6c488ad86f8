//! `cozy-gitops operator`: flags to [`cozy_operator::Config`], logs, signals.

use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};
use clap::{ArgAction, Args, ValueEnum};
use cozy_operator::{Beside, Config, PlatformSource};
use cozy_server::{Certificates, Own, Rotation, Server};

use crate::Outcome;
use crate::args::Releases;

/// Flags of the operator. Those of the Go cozystack-operator have its names and defaults.
#[derive(Debug, Args)]
pub(crate) struct Operator {
    /// Who writes the HelmReleases: this operator, or an unmodified cozystack-operator beside it.
    #[arg(long, value_enum, default_value_t, value_name = "MODE")]
    packages: Packages,
    /// Run only while holding the Lease `cozystack-operator.cozystack.io`.
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true")]
    leader_elect: bool,
    /// Address of the metrics; `0` for none.
    #[arg(long, value_name = "ADDRESS", default_value = ":8080", value_parser = address)]
    metrics_bind_address: String,
    /// Address of /healthz and /readyz; `0` for none.
    #[arg(long, value_name = "ADDRESS", default_value = ":8081", value_parser = address)]
    health_probe_bind_address: String,
    /// Address of the admission webhook; `0` for none.
    #[arg(long, value_name = "ADDRESS", default_value = "0", value_parser = address)]
    webhook_bind_address: String,
    /// Directory with the webhook's tls.crt and tls.key, such as cert-manager makes. Without it the operator makes its
    /// own certificates, renews them, and keeps caBundle of the webhook configurations.
    #[arg(long, value_name = "DIR")]
    webhook_certificate_dir: Option<PathBuf>,
    /// Service that leads to the webhook, in the operator's own namespace.
    #[arg(long, value_name = "NAME", default_value = "cozy-gitops")]
    webhook_service: String,
    /// Secret that the replicas share the webhook's certificates in.
    #[arg(long, value_name = "NAME", default_value = "cozy-gitops-webhook")]
    webhook_secret: String,
    /// Apply the CustomResourceDefinitions at start.
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true")]
    install_crds: bool,
    /// Apply Flux at start, from --flux-manifests.
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true")]
    install_flux: bool,
    /// Directory of Flux's manifests.
    #[arg(long, value_name = "DIR")]
    flux_manifests: Option<PathBuf>,
    /// Name of the Secret with the platform's values.
    #[arg(long, value_name = "NAME", default_value = "cozystack-values")]
    cozy_values_secret_name: String,
    /// Namespace of that Secret.
    #[arg(long, value_name = "NAMESPACE", default_value = "cozy-system")]
    cozy_values_secret_namespace: String,
    /// Label of the namespaces that get a copy of it.
    #[arg(long, value_name = "LABEL=VALUE", default_value = "cozystack.io/system=true")]
    cozy_values_namespace_selector: String,
    /// Name of the platform's own source.
    #[arg(long, value_name = "NAME", default_value = "cozystack-platform")]
    platform_source_name: String,
    /// `oci://…`, `https://…`, `http://…` or `ssh://…`: makes the platform's source at start.
    #[arg(long, value_name = "URL")]
    platform_source_url: Option<String>,
    /// Which revision of it: `tag=v1`, `digest=…`, `branch=main`, …; several joined by commas.
    #[arg(long, value_name = "KEY=VALUE,…", default_value = "")]
    platform_source_ref: String,
    /// Secret with credentials for it.
    #[arg(long, value_name = "NAME")]
    platform_source_secret_ref: Option<String>,
    /// Make accounts and controllers for the Kustomizations of tenant namespaces.
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true")]
    tenant_surface: bool,
    #[command(flatten)]
    tenants: Tenants,
    /// Accepted for compatibility; nothing is ever sent anywhere.
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, require_equals = true, default_value_t = true, default_missing_value = "true", hide = true)]
    disable_telemetry: bool,
    /// Format of the logs.
    #[arg(long, value_enum, default_value_t, value_name = "FORMAT")]
    log_format: LogFormat,
    /// What is logged: `error`, `warn`, `info`, `debug`, or a filter such as `cozy_operator=debug`.
    #[arg(long, value_name = "FILTER", default_value = "info")]
    log_level: String,
    #[command(flatten)]
    releases: Releases,
}

/// What the tenants' controllers are like.
#[derive(Debug, Args)]
struct Tenants {
    /// Image of the tenants' kustomize-controllers.
    #[arg(long, value_name = "IMAGE", default_value_t = cozy_core::tenant::Settings::default().image)]
    tenant_controller_image: String,
    /// Their resources, as JSON.
    #[arg(long, value_name = "JSON", value_parser = json, default_value_t = cozy_core::tenant::Settings::default().resources)]
    tenant_controller_resources: serde_json::Value,
    /// Their tolerations, as JSON.
    #[arg(long, value_name = "JSON", value_parser = json, default_value_t = cozy_core::tenant::Settings::default().tolerations)]
    tenant_controller_tolerations: serde_json::Value,
    /// Kustomizations that each reconciles at the same time.
    #[arg(long, value_name = "N", default_value_t = cozy_core::tenant::Settings::default().concurrency)]
    tenant_controller_concurrency: u32,
    /// Where their events go; nothing: nowhere.
    #[arg(long, value_name = "ADDRESS", default_value = "")]
    tenant_events_addr: String,
    /// Tenants that get a controller; those beyond wait, and are told.
    #[arg(long, value_name = "N", default_value_t = cozy_operator::Tenants::default().most)]
    tenant_max: usize,
    /// Controllers that are rolled at the same time when settings change.
    #[arg(long, value_name = "N", default_value_t = cozy_operator::Tenants::default().rolling)]
    tenant_max_rolling: usize,
    /// Kustomizations are stamped by a MutatingAdmissionPolicy, too (Kubernetes 1.36 and newer).
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true")]
    tenant_mutation_policy: bool,
    /// GitRepositories, and Kustomizations, that a tenant may have.
    #[arg(long, value_name = "N", default_value_t = cozy_core::tenant::Settings::default().sources)]
    tenant_max_sources: u32,
}

impl From<&Tenants> for cozy_operator::Tenants {
    fn from(flags: &Tenants) -> Self {
        Self {
            settings: cozy_core::tenant::Settings {
                image: flags.tenant_controller_image.clone(),
                resources: flags.tenant_controller_resources.clone(),
                tolerations: flags.tenant_controller_tolerations.clone(),
                events_address: flags.tenant_events_addr.clone(),
                concurrency: flags.tenant_controller_concurrency,
                sources: flags.tenant_max_sources,
            },
            most: flags.tenant_max,
            rolling: flags.tenant_max_rolling.max(1),
            mutation_policy: flags.tenant_mutation_policy,
            ..Self::default()
        }
    }
}

fn json(text: &str) -> Result<serde_json::Value, String> {
    serde_json::from_str(text).map_err(|error| format!("this is no JSON: {error}"))
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Packages {
    /// This operator.
    #[default]
    Operator,
    /// A cozystack-operator; overrides are merged at admission.
    Overlay,
}

#[derive(Clone, Copy, Debug, Default, ValueEnum)]
enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// For programs.
    Json,
}

fn address(text: &str) -> Result<String, String> {
    cozy_operator::bind_address(text).map(|_| text.to_owned())
}

impl Operator {
    fn config(&self) -> Result<Config> {
        if self.packages == Packages::Overlay {
            bail!(
                "--packages=overlay is not available yet; run with --packages=operator in place of the cozystack-operator"
            );
        }
        if self.install_flux && self.flux_manifests.is_none() {
            bail!("--install-flux needs --flux-manifests <dir>");
        }
        let pod = std::env::var("POD_NAME").or_else(|_| std::env::var("HOSTNAME")).unwrap_or_default();
        let defaults = Config::default();
        Ok(Config {
            render: (&self.releases).into(),
            cozy_values_secret_name: self.cozy_values_secret_name.clone(),
            cozy_values_secret_namespace: self.cozy_values_secret_namespace.clone(),
            cozy_values_namespace_selector: self.cozy_values_namespace_selector.clone(),
            platform_source_name: self.platform_source_name.clone(),
            platform_source: self.platform_source_url.clone().filter(|url| !url.is_empty()).map(|url| {
                PlatformSource {
                    url,
                    reference: self.platform_source_ref.clone(),
                    secret: self.platform_source_secret_ref.clone().filter(|name| !name.is_empty()),
                }
            }),
            install_crds: self.install_crds,
            flux_manifests: self.flux_manifests.clone().filter(|_| self.install_flux),
            leader_elect: self.leader_elect,
            metrics_bind_address: self.metrics_bind_address.clone(),
            health_probe_bind_address: self.health_probe_bind_address.clone(),
            tenants: self.tenant_surface.then(|| (&self.tenants).into()),
            // A restarted container is another process under the same pod name.
            identity: format!("{pod}_{}", defaults.identity),
            ..defaults
        })
    }
}

impl Operator {
    fn webhook(&self) -> Result<Option<cozy_server::Config>> {
        let address = cozy_operator::bind_address(&self.webhook_bind_address);
        let Some(bind) = address.map_err(|error| anyhow::anyhow!("--webhook-bind-address: {error}"))? else {
            return Ok(None);
        };
        let namespace = std::env::var("POD_NAMESPACE").ok().filter(|namespace| !namespace.is_empty());
        let certificates = match &self.webhook_certificate_dir {
            Some(directory) => Certificates::Directory(directory.clone()),
            None => Certificates::Own(Own {
                namespace: namespace.unwrap_or_else(|| cozy_api::names::SYSTEM_NAMESPACE.to_owned()),
                service: self.webhook_service.clone(),
                secret: self.webhook_secret.clone(),
                rotation: Rotation::default(),
            }),
        };
        Ok(Some(cozy_server::Config { bind, certificates }))
    }
}

/// Runs the operator until SIGTERM or SIGINT.
pub(crate) fn run(command: &Operator) -> Result<Outcome> {
    let filter = tracing_subscriber::EnvFilter::try_new(&command.log_level)
        .with_context(|| format!("--log-level {:?}", command.log_level))?;
    let logs = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match command.log_format {
        LogFormat::Text => logs.init(),
        LogFormat::Json => logs.json().init(),
    }
    let config = command.config()?;
    let webhook = command.webhook()?;
    let runtime = tokio::runtime::Runtime::new().context("cannot start the runtime")?;
    runtime.block_on(async {
        let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
        let (stop, stopped) = tokio::sync::watch::channel(false);
        tokio::spawn(async move {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = tokio::signal::ctrl_c() => {}
            }
            let _ = stop.send(true);
        });
        let shutdown = || {
            let mut stopped = stopped.clone();
            async move {
                let _ = stopped.wait_for(|stopped| *stopped).await;
            }
        };
        let client_config = kube::Config::infer()
            .await
            .context("no API server: set KUBECONFIG, or run in a pod with a ServiceAccount")?;
        let client = cozy_operator::client(client_config)?;
        let mut beside = Beside::default();
        let server = match webhook {
            Some(config) => Some(Server::bind(config, &mut beside.metrics).await?),
            None => None,
        };
        beside.ready.extend(server.as_ref().map(Server::ready));
        let answering = async {
            match server {
                Some(server) => server.run(client.clone(), shutdown()).await.map_err(anyhow::Error::from),
                None => Ok(()),
            }
        };
        let reconciling = async {
            cozy_operator::run_beside(config, client.clone(), beside, shutdown())
                .await
                .map_err(anyhow::Error::from)
        };
        // Whichever fails ends the process: a replica does both or none. Requests are answered until the end.
        tokio::try_join!(answering, reconciling)?;
        Ok(Outcome::Unchanged)
    })
}
