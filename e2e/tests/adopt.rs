//! Self-adoption of the bootstrap Package, and the mistake that it is not: a manifest that names the chart's fields.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stderr)]

mod admin;

use admin::NAME;
use cozy_core::adopt;
use cozy_core::managed;
use cozy_testenv::{Cluster, Flux, GitServer, Repository, eventually};
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::{Value, json};

const BOOTSTRAP: &str = "cozystack.cozystack-platform";

const BY_HAND: &str = r#"
apiVersion: cozystack.io/v1alpha1
kind: Package
metadata:
  name: cozystack.cozystack-platform
  labels:
    team: platform
spec:
  variant: isp-full
  components:
    platform:
      values:
        bundles:
          disabledPackages: [cozystack.velero]
        networking:
          podCIDR: 10.244.0.0/16
        publishing:
          host: example.org
          apiServerEndpoint: https://example.org:443
        cpuAllocationRatio: 10
        largest: 9007199254740993
"#;

/// The manager's own fields, as pointers.
fn owned_by(object: &Value, manager: &str, operation: &str) -> Vec<String> {
    let mut paths: Vec<String> = managed::owners(object)
        .iter()
        .filter(|owner| owner.manager == manager && owner.operation == operation)
        .flat_map(|owner| owner.paths.iter().map(ToString::to_string))
        .collect();
    paths.sort();
    paths
}

async fn surface(cluster: &Cluster) -> (Flux, GitServer, Repository) {
    cluster.install_crds().await.unwrap();
    let flux = Flux::start(cluster).await.unwrap();
    let git = GitServer::start_plain().await.unwrap();
    let repository = git.repository("platform").await.unwrap();
    // Git has no empty directories, and Flux wants the path to be there.
    let other = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: base, namespace: cozy-customizer}\n";
    repository.push(&[("clusters/prod/base.yaml", other)]).await.unwrap();
    (flux, git, repository)
}

async fn package(cluster: &Cluster, name: &str) -> Value {
    admin::get(&admin::packages(cluster.admin()), name).await.unwrap().unwrap()
}

#[tokio::test]
async fn the_bootstrap_package_is_adopted_field_by_field_and_given_back_unchanged() {
    let cluster = Cluster::start().await.unwrap();
    let (_flux, _git, repository) = surface(&cluster).await;
    // By hand, as the installation guide says.
    let file = cluster.dir().join("bootstrap.yaml");
    std::fs::write(&file, BY_HAND).unwrap();
    cluster.kubectl(&["apply", "-f", &file.display().to_string()]).await.unwrap();
    let before = package(&cluster, BOOTSTRAP).await;

    let fields = [
        "/spec/components/platform/values/publishing/host".to_owned(),
        "/spec/components/platform/values/bundles".to_owned(),
    ];
    let adoption = adopt::adopt(&before, &fields).unwrap();
    assert!(adoption.owners_known);
    assert_eq!(adoption.fields[0].owners, ["kubectl-client-side-apply (Update)"]);
    let manifest = cozy_yaml::to_yaml(&adoption.manifest).unwrap();
    let commit = repository.push(&[("clusters/prod/bootstrap.yaml", &manifest)]).await.unwrap();
    admin::enable(&cluster, &admin::quick(repository.url(), "")).await.unwrap();
    admin::applied(&cluster, &commit).await.unwrap();

    // The customizer owns just those fields, and they have not changed. Who made the Package still owns all of it.
    let adopted = package(&cluster, BOOTSTRAP).await;
    assert_eq!(adopted["spec"], before["spec"]);
    assert_eq!(adopted["metadata"]["generation"], before["metadata"]["generation"]);
    assert_eq!(
        owned_by(&adopted, "kustomize-controller", "Apply"),
        [
            "/metadata/annotations/kustomize.toolkit.fluxcd.io~1prune",
            "/metadata/annotations/kustomize.toolkit.fluxcd.io~1ssa",
            "/metadata/labels/kustomize.toolkit.fluxcd.io~1name",
            "/metadata/labels/kustomize.toolkit.fluxcd.io~1namespace",
            "/spec/components/platform/values/bundles/disabledPackages",
            "/spec/components/platform/values/publishing/host",
        ]
    );
    assert_eq!(
        owned_by(&adopted, "kubectl-client-side-apply", "Update"),
        owned_by(&before, "kubectl-client-side-apply", "Update")
    );
    assert_eq!(adopted["metadata"]["labels"]["team"], "platform");

    // A change in git follows, and touches nothing else.
    let changed = manifest.replace("host: example.org", "host: example.net");
    assert_ne!(changed, manifest);
    let commit = repository.push(&[("clusters/prod/bootstrap.yaml", &changed)]).await.unwrap();
    admin::applied(&cluster, &commit).await.unwrap();
    let object = package(&cluster, BOOTSTRAP).await;
    let mut wanted = before["spec"].clone();
    *wanted.pointer_mut("/components/platform/values/publishing/host").unwrap() = json!("example.net");
    assert_eq!(object["spec"], wanted);

    // Out of git: the Package stays, and so does its spec.
    let commit = repository.remove(&["clusters/prod/bootstrap.yaml"]).await.unwrap();
    admin::applied(&cluster, &commit).await.unwrap();
    let object = package(&cluster, BOOTSTRAP).await;
    assert_eq!(object["spec"], wanted);

    // Given back: the customizer owns nothing of it any more, its marks are gone, and the spec is as it was.
    let given = adopt::give_back(&object).unwrap();
    let packages = admin::packages(cluster.admin());
    packages
        .patch(BOOTSTRAP, &PatchParams::apply(cozy_api::names::MANAGER_ADOPT), &Patch::Apply(&given.keep))
        .await
        .unwrap();
    packages
        .patch(BOOTSTRAP, &PatchParams::apply("kustomize-controller").force(), &Patch::Apply(&given.release))
        .await
        .unwrap();
    let free = package(&cluster, BOOTSTRAP).await;
    assert_eq!(free["spec"], wanted);
    assert_eq!(free["metadata"]["labels"], before["metadata"]["labels"]);
    assert_eq!(free["metadata"]["annotations"], before["metadata"]["annotations"]);
    assert_eq!(free["metadata"]["generation"], object["metadata"]["generation"]);
    assert!(owned_by(&free, "kustomize-controller", "Apply").is_empty());
    assert!(adopt::give_back(&free).is_err());
    // And it stays so while the customizer goes on.
    let commit = repository
        .push(&[(
            "clusters/prod/other.yaml",
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: other, namespace: cozy-customizer}\n",
        )])
        .await
        .unwrap();
    admin::applied(&cluster, &commit).await.unwrap();
    let later = package(&cluster, BOOTSTRAP).await;
    assert_eq!(later["metadata"]["resourceVersion"], free["metadata"]["resourceVersion"]);
}

#[tokio::test]
async fn without_the_merge_annotation_what_kubectl_made_is_lost() {
    // Why `adopt` writes the annotation: kustomize-controller takes kubectl's fields over and drops those that the
    // manifest does not name.
    let cluster = Cluster::start().await.unwrap();
    let (_flux, _git, repository) = surface(&cluster).await;
    let file = cluster.dir().join("bootstrap.yaml");
    std::fs::write(&file, BY_HAND).unwrap();
    cluster.kubectl(&["apply", "-f", &file.display().to_string()]).await.unwrap();
    let before = package(&cluster, BOOTSTRAP).await;
    let mut manifest = adopt::adopt(&before, &["/spec/variant".to_owned()]).unwrap().manifest;
    manifest["metadata"]["annotations"].as_object_mut().unwrap().remove("kustomize.toolkit.fluxcd.io/ssa");
    let commit = repository
        .push(&[("clusters/prod/bootstrap.yaml", &cozy_yaml::to_yaml(&manifest).unwrap())])
        .await
        .unwrap();
    admin::enable(&cluster, &admin::quick(repository.url(), "")).await.unwrap();
    admin::applied(&cluster, &commit).await.unwrap();
    let object = package(&cluster, BOOTSTRAP).await;
    assert_eq!(object.pointer("/spec/components/platform/values/publishing"), None, "{}", object["spec"]);
}

#[tokio::test]
async fn a_manifest_that_names_a_field_of_the_chart_takes_it_by_force() {
    let cluster = Cluster::start().await.unwrap();
    let (_flux, _git, repository) = surface(&cluster).await;
    let spec =
        json!({"variant": "default", "components": {"kubevirt": {"values": {"cpuAllocationRatio": 10}}}});
    admin::package_of_the_chart(&cluster, "cozystack.kubevirt", &spec).await.unwrap();
    let ratio = "/spec/components/kubevirt/values/cpuAllocationRatio";
    let before = package(&cluster, "cozystack.kubevirt").await;
    assert!(owned_by(&before, "helm-controller", "Update").contains(&ratio.to_owned()));

    let manifest = "apiVersion: cozystack.io/v1alpha1\nkind: Package\nmetadata:\n  name: cozystack.kubevirt\n  annotations:\n    \
                    kustomize.toolkit.fluxcd.io/prune: disabled\nspec:\n  components:\n    kubevirt:\n      values:\n        \
                    cpuAllocationRatio: 4\n";
    let commit = repository.push(&[("clusters/prod/kubevirt.yaml", manifest)]).await.unwrap();
    admin::enable(&cluster, &admin::quick(repository.url(), "")).await.unwrap();
    // No conflict, no word: the Kustomization is ready.
    admin::applied(&cluster, &commit).await.unwrap();
    let taken = package(&cluster, "cozystack.kubevirt").await;
    assert_eq!(taken.pointer(ratio), Some(&json!(4)));
    assert!(!owned_by(&taken, "helm-controller", "Update").contains(&ratio.to_owned()));
    assert!(owned_by(&taken, "kustomize-controller", "Apply").contains(&ratio.to_owned()));

    // The chart's next release sets it again, and the next reconciliation undoes that.
    let helm = PatchParams { field_manager: Some("helm-controller".to_owned()), ..PatchParams::default() };
    let release = json!({"spec": {"components": {"kubevirt": {"values": {"cpuAllocationRatio": 12}}}}});
    admin::packages(cluster.admin())
        .patch("cozystack.kubevirt", &helm, &Patch::Merge(&release))
        .await
        .unwrap();
    eventually("the chart's change to be undone", async || {
        let object = admin::get(&admin::packages(cluster.admin()), "cozystack.kubevirt").await?;
        Ok((object.as_ref().and_then(|object| object.pointer(ratio)) == Some(&json!(4))).then_some(()))
    })
    .await
    .unwrap();

    // Without `prune: disabled` the account is asked to delete a Package that leaves git. It may not, and says so.
    let commit = repository
        .push(&[("clusters/prod/kubevirt.yaml", &manifest.replace("prune: disabled", "prune: enabled"))])
        .await
        .unwrap();
    admin::applied(&cluster, &commit).await.unwrap();
    let commit = repository.remove(&["clusters/prod/kubevirt.yaml"]).await.unwrap();
    let (_, reason, message) = admin::refused(&cluster, &commit).await.unwrap();
    assert_eq!(reason, "PruneFailed", "{message}");
    assert!(message.contains("cannot delete resource \"packages\""), "{message}");
    assert_eq!(package(&cluster, "cozystack.kubevirt").await["metadata"]["uid"], before["metadata"]["uid"]);

    // Nothing is stuck by that: the default policy orphans.
    admin::kustomizations(&cluster).delete(NAME, &DeleteParams::default()).await.unwrap();
    eventually("the Kustomization to go", async || {
        Ok(admin::get(&admin::kustomizations(&cluster), NAME).await?.is_none().then_some(()))
    })
    .await
    .unwrap();
}
