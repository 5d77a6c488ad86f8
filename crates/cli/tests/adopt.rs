//! `cozy-gitops adopt` on files, as its user sees it. On a cluster, what it computes is tried in e2e/tests/adopt.rs.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::process::Output;

use assert_cmd::Command;

const PACKAGE: &str = r"
apiVersion: cozystack.io/v1alpha1
kind: Package
metadata:
  name: cozystack.cozystack-platform
  uid: 0b2c5c6e-0000-4000-8000-000000000000
  managedFields:
  - manager: kubectl-create
    operation: Update
    fieldsV1: {f:spec: {f:variant: {}, f:components: {f:platform: {f:values: {f:host: {}, f:adminPassword: {}}}}}}
spec:
  variant: isp-full
  components:
    platform:
      values:
        host: 'yes'
        adminPassword: hunter2
status:
  conditions: []
";

fn adopt(arguments: &[&str], input: &str) -> Output {
    let mut command = Command::cargo_bin("cozy-gitops").unwrap();
    command.arg("adopt").args(arguments).write_stdin(input).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn the_manifest_is_on_standard_output_and_the_owners_on_standard_error() {
    let output = adopt(&["--file", "-"], PACKAGE);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let documents = cozy_yaml::parse_bytes(&output.stdout, &cozy_yaml::Limits::default());
    let manifest = documents.into_iter().next().unwrap().unwrap().value;
    assert_eq!(manifest["metadata"]["annotations"]["kustomize.toolkit.fluxcd.io/ssa"], "Merge");
    assert_eq!(manifest["metadata"]["annotations"]["kustomize.toolkit.fluxcd.io/prune"], "disabled");
    assert_eq!(manifest["spec"]["components"]["platform"]["values"]["host"], "yes");
    assert!(manifest.get("status").is_none() && manifest["metadata"].get("uid").is_none());
    let told = text(&output.stderr);
    assert!(told.contains("adopts /spec/variant of kubectl-create (Update)"), "{told}");
    assert!(
        told.contains("warning: /spec/components/platform/values/adminPassword looks like a credential"),
        "{told}"
    );
    assert!(!told.contains("hunter2"), "{told}");
}

#[test]
fn some_fields_are_written_alone() {
    let output = adopt(&["--file", "-", "--field", "/spec/variant"], PACKAGE);
    let manifest = text(&output.stdout);
    assert!(manifest.contains("variant: isp-full") && !manifest.contains("hunter2"), "{manifest}");
    assert!(text(&output.stderr).contains("leaves /spec/components/platform/values/host"));
}

#[test]
fn what_cannot_be_adopted_fails_without_output() {
    for (arguments, input, told) in [
        (&["--file", "-", "--field", "/spec/nothing"][..], PACKAGE, "has no field /spec/nothing"),
        (&["--file", "-"], "apiVersion: v1\nkind: Secret\nmetadata: {name: a}\n", "but v1 Secret"),
        (&["--file", "-"], "a: [", "cannot read"),
        (&["--file", "/nowhere/at/all"], "", "cannot read /nowhere/at/all"),
        (&["--file", "-", "--give-back"], PACKAGE, "cannot be used with"),
    ] {
        let output = adopt(arguments, input);
        assert_eq!(output.status.code(), Some(1), "{told}");
        assert!(output.stdout.is_empty(), "{told}");
        assert!(text(&output.stderr).contains(told), "{}", text(&output.stderr));
    }
}

#[test]
fn a_package_that_does_not_tell_its_owners_is_warned_of() {
    let start = PACKAGE.find("  managedFields:").unwrap();
    let end = PACKAGE.find("spec:\n  variant").unwrap();
    let output = adopt(&["--file", "-"], &format!("{}{}", &PACKAGE[..start], &PACKAGE[end..]));
    assert!(text(&output.stderr).contains("--show-managed-fields"), "{}", text(&output.stderr));
}
