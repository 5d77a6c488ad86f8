//! SOPS with age in the admin's repository: a file that the real sops encrypted, decrypted by the real controller.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stderr)]

mod admin;

use admin::{NAME, SYSTEM};
use cozy_e2e::sops::{encrypt, key};
use cozy_testenv::{Cluster, Flux, GitServer};
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, ListParams};
use serde_json::json;

const KEYS: &str = "^(data|stringData|values)$";

const PASSWORD: &str = "wK3-plain-text-of-the-password";

#[tokio::test]
async fn encrypted_files_are_decrypted_with_the_admins_key_and_leak_nowhere() {
    let cluster = Cluster::start().await.unwrap();
    cluster.install_crds().await.unwrap();
    let _flux = Flux::start(&cluster).await.unwrap();
    let git = GitServer::start_plain().await.unwrap();
    let repository = git.repository("platform").await.unwrap();
    let directory = cluster.dir().to_path_buf();
    let (identity, public) = key(&directory, "admin.agekey").unwrap();
    let (other, _) = key(&directory, "other.agekey").unwrap();

    let secret = format!(
        "apiVersion: v1\nkind: Secret\nmetadata:\n  name: grafana-admin\n  namespace: cozy-customizer\nstringData:\n  password: {PASSWORD}\n"
    );
    let values = format!(
        "apiVersion: cozystack.io/v1alpha1\nkind: PackageValues\nmetadata:\n  name: cozystack.keycloak\nspec:\n  components:\n    \
         keycloak:\n      values:\n        admin:\n          password: {PASSWORD}\n          attempts: 3\n"
    );
    let secret = encrypt(&directory, &public, KEYS, &secret).unwrap();
    let values = encrypt(&directory, &public, KEYS, &values).unwrap();
    assert!(secret.contains("ENC[AES256_GCM") && !secret.contains(PASSWORD));
    assert!(values.contains("ENC[AES256_GCM") && !values.contains(PASSWORD));

    // Without decryption kustomize-controller applies the ciphertext of a Secret as if it were the text (it looks for
    // `sops` after having dropped the field), and the API server refuses a PackageValues for its field `sops`.
    let mut surface = admin::quick(repository.url(), "");
    let secrets: Api<Secret> = Api::namespaced(cluster.admin(), "cozy-customizer");
    let commit = repository.push(&[("clusters/prod/secret.yaml", &secret)]).await.unwrap();
    admin::enable(&cluster, &surface).await.unwrap();
    admin::applied(&cluster, &commit).await.unwrap();
    let ciphertext = secrets.get("grafana-admin").await.unwrap().data.unwrap()["password"].0.clone();
    assert!(ciphertext.starts_with(b"ENC[AES256_GCM"));
    let commit = repository.push(&[("clusters/prod/keycloak.yaml", &values)]).await.unwrap();
    let (_, _, message) = admin::refused(&cluster, &commit).await.unwrap();
    assert!(message.contains(".sops: field not declared"), "{message}");
    assert_eq!(admin::get(&admin::package_values(&cluster), "cozystack.keycloak").await.unwrap(), None);

    // With somebody else's key nothing changes.
    let keys = |identity: &str| {
        json!({
            "apiVersion": "v1", "kind": "Secret",
            "metadata": {"name": "customizer-age", "namespace": SYSTEM},
            "stringData": {"admin.agekey": identity},
        })
    };
    cluster.apply_value(keys(&other)).await.unwrap();
    surface["decryption"] = json!({"provider": "sops", "secretRef": "customizer-age"});
    admin::enable(&cluster, &surface).await.unwrap();
    let message = cozy_testenv::eventually("decryption to fail", async || {
        let object = admin::get(&admin::kustomizations(&cluster), NAME).await?.unwrap_or_default();
        Ok(admin::ready(&object)
            .filter(|(status, _, message)| status == "False" && message.contains("decrypt"))
            .map(|(.., message)| message))
    })
    .await
    .unwrap();
    assert!(!message.contains(PASSWORD), "{message}");
    assert_eq!(secrets.get("grafana-admin").await.unwrap().data.unwrap()["password"].0, ciphertext);

    // With the admin's own it is.
    cluster.apply_value(keys(&identity)).await.unwrap();
    admin::applied(&cluster, &commit).await.unwrap();
    let applied = secrets.get("grafana-admin").await.unwrap();
    assert_eq!(applied.data.unwrap()["password"].0, PASSWORD.as_bytes());
    let object = admin::get(&admin::package_values(&cluster), "cozystack.keycloak").await.unwrap().unwrap();
    assert_eq!(
        object.pointer("/spec/components/keycloak/values/admin"),
        Some(&json!({"password": PASSWORD, "attempts": 3})),
    );
    assert_eq!(object.get("sops"), None);

    // The plain text is nowhere that the admin's key does not lead: not in events, statuses or the platform's logs.
    let events: Api<k8s_openapi::api::core::v1::Event> = Api::all(cluster.admin());
    let events = events.list(&ListParams::default()).await.unwrap();
    assert!(!serde_json::to_string(&events.items).unwrap().contains(PASSWORD));
    let object = admin::get(&admin::kustomizations(&cluster), NAME).await.unwrap().unwrap();
    assert!(!object.to_string().contains(PASSWORD));
    for entry in std::fs::read_dir(cluster.dir()).unwrap().flatten() {
        let path = entry.path();
        if path.extension().is_some_and(|extension| extension == "log") && !path.ends_with("audit.log") {
            assert!(!std::fs::read_to_string(&path).unwrap().contains(PASSWORD), "{}", path.display());
        }
    }

    // A rotated file follows.
    let rotated = "apiVersion: v1\nkind: Secret\nmetadata:\n  name: grafana-admin\n  namespace: cozy-customizer\nstringData:\n  \
                   password: rotated\n";
    let rotated = encrypt(&directory, &public, KEYS, rotated).unwrap();
    let commit = repository.push(&[("clusters/prod/secret.yaml", &rotated)]).await.unwrap();
    admin::applied(&cluster, &commit).await.unwrap();
    assert_eq!(secrets.get("grafana-admin").await.unwrap().data.unwrap()["password"].0, b"rotated");
}
