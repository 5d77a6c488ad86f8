//! What each tenant role, the tenant's account and its controller may do, as the API server answers `kubectl auth can-i
//! --list`: recorded in full, so that a right more or less is seen in review.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod surface;

use std::fmt::Write as _;

use cozy_core::tenant::{account, controller};
use cozy_e2e::rights::{self, Asked, can};
use cozy_e2e::snapshot::expect;
use kube::Client;

use surface::{Surface, TENANT, eventually};

/// By Cozystack's roles, from the least to the most.
const ROLES: [(&str, &str); 4] = [
    ("cozy:tenant:view", "viewer"),
    ("cozy:tenant:use", "user"),
    ("cozy:tenant:admin", "admin-of-tenant"),
    ("cozy:tenant:super-admin", "tenant"),
];

const KUSTOMIZATIONS: Asked<'_> =
    Asked { group: "kustomize.toolkit.fluxcd.io", resource: "kustomizations", namespace: TENANT, name: "" };

/// What somebody may do in some namespaces.
async fn table(who: &str, client: &Client, namespaces: &[&str]) -> String {
    let mut text = String::new();
    for namespace in namespaces {
        let list = rights::list(client, namespace).await.unwrap();
        write!(text, "{who} in {namespace}:\n{list}\n").unwrap();
    }
    text
}

/// All roles, in the namespace where they are bound.
async fn roles(surface: &Surface) -> String {
    let mut text = String::new();
    for (role, user) in ROLES {
        text += &table(role, &surface.user(user).await, &[TENANT]).await;
    }
    text
}

/// Waits until the API server's authorizer has followed the roles.
async fn may(client: &Client, verb: &str, asked: Asked<'_>, wanted: bool) {
    eventually(&format!("{verb} {asked:?} to be {wanted}"), || async {
        can(client, verb, asked).await.unwrap() == wanted
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_right_is_on_record() {
    let surface = Surface::bare().await;
    let viewer = surface.user("viewer").await;
    let tenant = surface.user("tenant").await;
    let before = roles(&surface).await;

    // Installed, and not yet enforced: nobody has anything that was not there before.
    surface.install(&["admission.mutation=policy"]).await.unwrap();
    surface.enforced().await;
    assert_eq!(roles(&surface).await, before, "the chart alone has to give nothing");
    expect("tenant-rights-withheld.txt", &before).unwrap();

    surface.grant().await;
    may(&tenant, "patch", KUSTOMIZATIONS, true).await;
    expect("tenant-rights-edit.txt", &roles(&surface).await).unwrap();
    // Nothing of it reaches another tenant or the platform; a parent's rights reach its child as they did.
    for namespace in ["tenant-bar", "cozy-fluxcd", "cozy-system"] {
        let nobody = rights::list(&surface.user("nobody").await, namespace).await.unwrap();
        assert_eq!(rights::list(&tenant, namespace).await.unwrap(), nobody, "{namespace}");
    }
    let child = rights::list(&tenant, "tenant-foo-b").await.unwrap();
    assert_eq!(child, rights::list(&tenant, TENANT).await.unwrap());

    // The account that the repository is applied as, and the controller that does it.
    let of_git = surface.cluster().service_account_client(TENANT, &account(TENANT)).await.unwrap();
    let its_controller =
        surface.cluster().service_account_client("cozy-fluxcd", &controller(TENANT)).await.unwrap();
    let everywhere = [TENANT, "tenant-foo-b", "tenant-bar", "cozy-fluxcd", "cozy-system"];
    let accounts = table("<namespace>-gitops", &of_git, &everywhere).await
        + &table("kustomize-controller-<namespace>", &its_controller, &everywhere).await;
    expect("tenant-rights-accounts.txt", &accounts).unwrap();

    // A repository may do nothing that its tenant may not, and less: the tenant writes Secrets and sources, too.
    let theirs = rights::rules(&of_git, TENANT).await.unwrap();
    let mut asked = 0;
    for ((group, resource, name), verbs) in &theirs {
        for verb in verbs {
            let about = Asked { group, resource, namespace: TENANT, name };
            assert!(can(&of_git, verb, about).await.unwrap(), "{verb} {about:?}");
            assert!(can(&tenant, verb, about).await.unwrap(), "only git may {verb} {about:?}");
            asked += 1;
        }
    }
    assert!(asked > 4, "{theirs:?}");
    for (group, resource) in [
        ("kustomize.toolkit.fluxcd.io", "kustomizations"),
        ("source.toolkit.fluxcd.io", "gitrepositories"),
        ("", "secrets"),
    ] {
        let about = Asked { group, resource, namespace: TENANT, name: "" };
        assert!(can(&tenant, "create", about).await.unwrap());
        assert!(!can(&of_git, "create", about).await.unwrap(), "git may create {resource}");
    }

    // Who would rather have tenants look only, or not at all.
    surface.install(&["admission.mutation=policy", "tenant.fluxAccess=view"]).await.unwrap();
    surface.grant().await;
    may(&tenant, "patch", KUSTOMIZATIONS, false).await;
    expect("tenant-rights-view.txt", &roles(&surface).await).unwrap();
    surface.install(&["admission.mutation=policy", "tenant.fluxAccess=none"]).await.unwrap();
    may(&viewer, "list", KUSTOMIZATIONS, false).await;
    may(&tenant, "list", KUSTOMIZATIONS, false).await;
    assert_eq!(roles(&surface).await, before, "nobody has anything with fluxAccess none");
    // What git is applied with is the operator's and has nothing to do with what the tenant sees.
    let after = table("<namespace>-gitops", &of_git, &everywhere).await
        + &table("kustomize-controller-<namespace>", &its_controller, &everywhere).await;
    assert_eq!(after, accounts);
}
