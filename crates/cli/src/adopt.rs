//! `cozy-gitops adopt`: the part of a hand-made Package that goes to git, and the way back.

use std::io::Read as _;
use std::path::PathBuf;

use anyhow::Context as _;
use clap::Args;
use cozy_api::names::{MANAGER_ADOPT, MANAGER_KUSTOMIZE};
use cozy_core::adopt::{self, Adoption};
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams};
use serde_json::Value;

use crate::Outcome;
use crate::printer::Printer;

/// Arguments of `adopt`.
#[derive(Debug, Args)]
pub(crate) struct Adopt {
    /// The Package.
    #[arg(default_value = "cozystack.cozystack-platform", value_name = "PACKAGE")]
    package: String,
    /// Read the Package from this file, or `-` for standard input, instead of the cluster. For it to tell who owns
    /// its fields, write it with `kubectl get --show-managed-fields`.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["context", "give_back"])]
    file: Option<PathBuf>,
    /// JSON pointer of a field to adopt with everything below it, such as /spec/variant; may be repeated. By default
    /// the whole spec that no chart owns.
    #[arg(long = "field", value_name = "POINTER", conflicts_with = "give_back")]
    fields: Vec<String>,
    /// Let kustomize-controller go as an owner of the Package, once its manifest is out of git. The spec stays as it is.
    #[arg(long)]
    give_back: bool,
    /// Context of the kubeconfig; by default the current one.
    #[arg(long, value_name = "NAME")]
    context: Option<String>,
}

/// Writes the manifest, or gives the Package back.
pub(crate) fn run(command: &Adopt, printer: Printer) -> anyhow::Result<Outcome> {
    if let Some(file) = &command.file {
        return manifest(&read(file)?, command, printer);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let packages = packages(command.context.clone()).await?;
        let object = packages
            .get(&command.package)
            .await
            .with_context(|| format!("cannot read Package {}", command.package))?;
        let object = serde_json::to_value(object)?;
        if command.give_back {
            give_back(&packages, &object, command, printer).await
        } else {
            manifest(&object, command, printer)
        }
    })
}

fn read(file: &std::path::Path) -> anyhow::Result<Value> {
    let mut bytes = Vec::new();
    if file.as_os_str() == "-" {
        std::io::stdin().lock().read_to_end(&mut bytes).context("cannot read standard input")?;
    } else {
        bytes = std::fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
    }
    let document = cozy_yaml::parse_one(&bytes, &cozy_yaml::Limits::default())
        .with_context(|| format!("cannot read {}", file.display()))?;
    Ok(document.value)
}

async fn packages(context: Option<String>) -> anyhow::Result<Api<DynamicObject>> {
    let options = kube::config::KubeConfigOptions { context, ..Default::default() };
    let config =
        kube::Config::from_kubeconfig(&options).await.context("no cluster: set KUBECONFIG, or use --file")?;
    let client = kube::Client::try_from(config)?;
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("cozystack.io", "v1alpha1", "Package"));
    Ok(Api::all_with(client, &resource))
}

fn manifest(object: &Value, command: &Adopt, printer: Printer) -> anyhow::Result<Outcome> {
    let adoption = adopt::adopt(object, &command.fields)?;
    printer.data(&cozy_yaml::to_yaml(&adoption.manifest)?)?;
    printer.note(&told(&adoption));
    Ok(Outcome::Unchanged)
}

/// What to know beside the manifest. Names and owners of fields, never values.
fn told(adoption: &Adoption) -> String {
    let mut text = String::new();
    let mut line = |words: String| {
        text.push_str(&crate::printer::visible(&words));
        text.push('\n');
    };
    for field in &adoption.fields {
        let owners = if field.owners.is_empty() { "-".to_owned() } else { field.owners.join(", ") };
        line(format!("adopts {} of {owners}", field.pointer));
    }
    for field in &adoption.left {
        let owners = if field.owners.is_empty() { "-".to_owned() } else { field.owners.join(", ") };
        line(format!("leaves {} to {owners}", field.pointer));
    }
    for pointer in &adoption.sensitive {
        line(format!("warning: {pointer} looks like a credential: encrypt it with SOPS, or leave it out"));
    }
    if !adoption.owners_known {
        line("warning: the Package does not tell who owns its fields; read it with `kubectl get --show-managed-fields`"
            .to_owned());
    }
    text
}

async fn give_back(
    packages: &Api<DynamicObject>,
    object: &Value,
    command: &Adopt,
    printer: Printer,
) -> anyhow::Result<Outcome> {
    let given = adopt::give_back(object)?;
    let what = || format!("cannot give back Package {}", command.package);
    packages
        .patch(&command.package, &PatchParams::apply(MANAGER_ADOPT), &Patch::Apply(&given.keep))
        .await
        .with_context(what)?;
    packages
        .patch(
            &command.package,
            &PatchParams::apply(MANAGER_KUSTOMIZE).force(),
            &Patch::Apply(&given.release),
        )
        .await
        .with_context(what)?;
    printer.note(&format!(
        "Package {} is given back; while its manifest is in git it will be taken again\n",
        command.package
    ));
    Ok(Outcome::Unchanged)
}
