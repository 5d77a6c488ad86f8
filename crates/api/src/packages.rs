//! `cozystack.io/v1alpha1`: Package, PackageSource and PackageValues.
//!
//! Package and PackageSource are Cozystack's own kinds (cozystack/cozystack, `api/v1alpha1`); the fields here
//! are those of its CRDs plus the status that overrides need. Anything these structs do not know is dropped by
//! deserialization, so nothing may ever write a whole object back through them: status is written alone.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::object::object;
use crate::schema;

/// Variant that a Package selects when it names none.
pub const DEFAULT_VARIANT: &str = "default";

object! {
    /// An installed package: which variant of the PackageSource of the same name, with what values.
    Package = Cluster "cozystack.io" / "v1alpha1" "packages", PackageSpec, PackageStatus
}

/// Which PackageSource variant is installed, and with what values.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PackageSpec {
    /// Name of the PackageSource's variant; `default` when absent or empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub variant: Option<String>,
    /// PackageSource dependencies that are neither waited for nor passed on to the HelmReleases.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ignore_dependencies: Option<Vec<String>>,
    /// Overrides by component name.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "crate::object::null_entries_are_absent"
    )]
    pub components: Option<BTreeMap<String, PackageComponent>>,
}

/// What a Package says of one component.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PackageComponent {
    /// `false` leaves the component out; absent means enabled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// Helm values; any JSON value. Absent and `null` both mean none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::any_value")]
    pub values: Option<Value>,
}

/// What the operator saw and did.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PackageStatus {
    /// Conditions: `Ready`, and `ValuesMerged` while a PackageValues of this name exists.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "crate::object::conditions"
    )]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Option<Vec<Condition>>,
    /// Readiness of each dependency that is not ignored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dependencies: Option<BTreeMap<String, DependencyStatus>>,
    /// Values that the HelmReleases carry, by component, for components with overrides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effective_values: Option<BTreeMap<String, EffectiveValues>>,
    /// What overrides the Package's own values, by component.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overrides: Option<BTreeMap<String, ComponentOverrides>>,
    /// Printer column: `<overridden pointers>` or empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub override_summary: Option<String>,
}

/// Readiness of one dependency.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DependencyStatus {
    /// Whether the Package of that name has condition Ready=True.
    pub ready: bool,
}

/// The merged values of one component.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EffectiveValues {
    /// `sha256:<hex>` of the canonical JSON of the HelmRelease's `spec.values`.
    pub digest: String,
    /// The values; absent when all values of the Package together exceed 256 KiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::any_value")]
    pub values: Option<Value>,
}

/// Who overrides what in one component.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ComponentOverrides {
    /// Name of the PackageValues.
    pub from: String,
    /// Its `metadata.generation` that is in force.
    pub generation: i64,
    /// Git revision that kustomize-controller applied it from, when it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<String>,
    /// RFC 6901 pointers, sorted, of what the override sets.
    #[serde(default)]
    pub pointers: Vec<String>,
    /// Those of `pointers` that the Package sets as well: the override shadows them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shadowing: Vec<String>,
}

object! {
    /// A package that can be installed: where its charts come from and which variants it has.
    PackageSource = Cluster "cozystack.io" / "v1alpha1" "packagesources", PackageSourceSpec, PackageSourceStatus
}

/// Where a package's charts come from and which variants of it exist.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PackageSourceSpec {
    /// The Flux source of the charts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_ref: Option<SourceRef>,
    /// The variants that a Package can select.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub variants: Option<Vec<Variant>>,
}

/// Reference to the Flux source that holds the packages.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SourceRef {
    /// `GitRepository` or `OCIRepository`.
    #[schemars(extend("enum" = ["GitRepository", "OCIRepository"]))]
    pub kind: String,
    /// Name of the source.
    pub name: String,
    /// Namespace of the source.
    pub namespace: String,
    /// Base path of the packages; default `packages` for a GitRepository, the root for an OCIRepository.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
}

/// One way to install a package.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Variant {
    /// Name that a Package selects it by.
    pub name: String,
    /// Packages that must be ready before this one's HelmReleases are first created.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub depends_on: Option<Vec<String>>,
    /// Library charts that components may bundle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub libraries: Option<Vec<Library>>,
    /// The Helm releases, in order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub components: Option<Vec<Component>>,
}

/// A library chart placed in a component's `charts/`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Library {
    /// Name in `charts/`; default the last segment of the path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Path of the library chart below the source's base path.
    pub path: String,
}

/// One chart of a variant.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Component {
    /// Name, unique in the variant.
    pub name: String,
    /// Path of the chart below the source's base path.
    pub path: String,
    /// Libraries of the variant that this chart bundles.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub libraries: Option<Vec<String>>,
    /// Values files of the chart, in order; the first replaces `values.yaml`, others are merged into it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub values_files: Option<Vec<String>>,
    /// How it is installed; without it the chart is only built.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub install: Option<Install>,
}

/// Parameters of a component's HelmRelease.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Install {
    /// Name of the HelmRelease; default the component's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub release_name: Option<String>,
    /// Namespace of the HelmRelease.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Whether the release's namespace must allow privileged pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub privileged: Option<bool>,
    /// Components of the same variant that must be installed first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub depends_on: Option<Vec<String>>,
    /// `Skip`, `Create` or `CreateReplace`; passed to `spec.upgrade.crds`.
    #[serde(default, rename = "upgradeCRDs", skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["Skip", "Create", "CreateReplace"]))]
    pub upgrade_crds: Option<String>,
    /// CEL health checks of the custom resources that the chart renders.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health_check_exprs: Option<Vec<HealthCheckExpr>>,
    /// `poller` or `legacy`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["poller", "legacy"]))]
    pub wait_strategy: Option<String>,
}

/// CEL health check of one kind.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HealthCheckExpr {
    /// API version of the kind.
    pub api_version: String,
    /// The kind.
    pub kind: String,
    /// Expression that is true when the object is in progress.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_progress: Option<String>,
    /// Expression that is true when the object failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
    /// Expression that is true when the object is current.
    pub current: String,
}

/// What the operator saw and did.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PackageSourceStatus {
    /// Comma-joined names of the variants.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub variants: Option<String>,
    /// Condition `Ready`, copied from the ArtifactGenerator.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "crate::object::conditions"
    )]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Option<Vec<Condition>>,
}

object! {
    /// The admin's override layer of the Package of the same name, which is the only binding there is.
    PackageValues = Cluster "cozystack.io" / "v1alpha1" "packagevalues", PackageValuesSpec, PackageValuesStatus
}

/// The admin's override layer of the Package of the same name.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PackageValuesSpec {
    /// `true`: contributes nothing, and says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspend: Option<bool>,
    /// What a violation of the chart's `values.schema.json` does; default `Warn`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub validation: Option<Validation>,
    /// Overrides by component of the Package's active variant.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "crate::object::null_entries_are_absent"
    )]
    #[schemars(extend("maxProperties" = schema::MAX_COMPONENTS))]
    pub components: Option<BTreeMap<String, ComponentValues>>,
}

/// What a violation of the chart's `values.schema.json` does. `Warn`, the default, merges and reports it; `Enforce`
/// keeps the HelmRelease's last good values and reports it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Validation {
    /// Merge, and report the violation.
    #[default]
    Warn,
    /// Keep the HelmRelease's last good values, and report the violation.
    Enforce,
}

/// Overrides of one component.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ComponentValues {
    /// Values merged over the Package's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::object_value")]
    pub values: Option<Value>,
    /// Lists that are merged instead of replaced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend(
        "maxItems" = schema::MAX_LISTS,
        "x-kubernetes-list-type" = "map",
        "x-kubernetes-list-map-keys" = ["path"]
    ))]
    pub lists: Option<Vec<ListRule>>,
}

/// Opt-in to merging one list.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = schema::list_rule_validations()))]
pub struct ListRule {
    /// RFC 6901 pointer of the list in the component's values, such as `/images` or `/a~1b/list`. One rule per path.
    #[schemars(extend("maxLength" = schema::MAX_POINTER_LENGTH, "pattern" = schema::POINTER_PATTERN))]
    pub path: String,
    /// How it is merged.
    #[serde(rename = "type")]
    pub kind: ListMerge,
    /// For `Map`: the fields that identify an element, such as `[name]`. Not allowed for `Append`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend(
        "minItems" = 1,
        "maxItems" = schema::MAX_KEYS,
        "x-kubernetes-list-type" = "set",
        "items" = { "type": "string", "minLength": 1, "maxLength": schema::MAX_KEY_LENGTH }
    ))]
    pub keys: Option<Vec<String>>,
}

/// How the list is merged. `Map`: elements with equal keys are merged deep, new ones are appended, and one with
/// `$patch: delete` removes its match. `Append`: elements are added at the end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ListMerge {
    /// Elements with equal keys are merged deep, new ones appended, `$patch: delete` removes.
    #[default]
    Map,
    /// Elements are added at the end.
    Append,
}

/// What became of the overrides.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PackageValuesStatus {
    /// Generation that this status speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Condition `Ready`.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "crate::object::conditions"
    )]
    #[schemars(schema_with = "schema::conditions_by_type")]
    pub conditions: Option<Vec<Condition>>,
    /// Per component of the spec.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub components: Option<BTreeMap<String, ComponentValuesStatus>>,
}

/// What became of one component's overrides.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ComponentValuesStatus {
    /// Whether the overrides are in force.
    pub state: ComponentState,
    /// Pointers that exist neither in the chart's `values.yaml` nor in its `values.schema.json`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unknown_keys: Option<Vec<String>>,
    /// Overlay mode: the merged values (on the Package in operator mode).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effective_values: Option<EffectiveValues>,
}

/// Whether the component's overrides are in force: `Applied`, or why not: the active variant has no such component,
/// the Package disables it, or it has no HelmRelease (yet).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ComponentState {
    /// They are in the HelmRelease.
    Applied,
    /// The active variant has no such component; ignored for the merge.
    #[default]
    UnknownComponent,
    /// The Package disables the component.
    Disabled,
    /// The component has no `install`, or its HelmRelease does not exist yet.
    NotInstalled,
}
