//! Labels, annotations, field managers, conditions and reasons: each name is written once, here.
//!
//! Those under `cozystack.io` and `fluxcd.io` belong to Cozystack and Flux and are compatibility surface;
//! those under `gitops.cozystack.io` are ours.

/// API group of Package, PackageSource and PackageValues.
pub const COZYSTACK_GROUP: &str = "cozystack.io";
/// API group of Cozystack's applications, served by its aggregated API.
pub const APPS_GROUP: &str = "apps.cozystack.io";
/// Namespace that holds the platform's configuration and charts.
pub const SYSTEM_NAMESPACE: &str = "cozy-system";
/// Namespace that holds the Flux controllers.
pub const FLUX_NAMESPACE: &str = "cozy-fluxcd";
/// Prefix of every tenant namespace.
pub const TENANT_NAMESPACE_PREFIX: &str = "tenant-";

/// Label on a HelmRelease: the Package that it was rendered from.
pub const LABEL_PACKAGE: &str = "cozystack.io/package";
/// Label on an ArtifactGenerator: the PackageSource that it was rendered from.
pub const LABEL_PACKAGE_SOURCE: &str = "cozystack.io/packagesource";
/// Label on a HelmRelease whose component is privileged; its value is `"true"`.
pub const LABEL_PRIVILEGED: &str = "cozystack.io/privileged";
/// Label on a namespace that belongs to the platform; `cozystack-values` is replicated there.
pub const LABEL_SYSTEM: &str = "cozystack.io/system";
/// Pod Security level of a namespace.
pub const LABEL_POD_SECURITY_ENFORCE: &str = "pod-security.kubernetes.io/enforce";
/// Shard label of Flux: a controller started with a selector on it reconciles only its own objects.
pub const LABEL_SHARD: &str = "sharding.fluxcd.io/key";
/// Set by kustomize-controller on what it applies: name of the Kustomization.
pub const LABEL_KUSTOMIZATION_NAME: &str = "kustomize.toolkit.fluxcd.io/name";
/// Set by kustomize-controller on what it applies: namespace of the Kustomization.
pub const LABEL_KUSTOMIZATION_NAMESPACE: &str = "kustomize.toolkit.fluxcd.io/namespace";

/// Annotation on a HelmRelease: comma-joined values files of the component.
pub const ANNOTATION_VALUES_FILES: &str = "cozyhr.cozystack.io/values-files";
/// Annotation on a PackageSource; exactly `"true"` leaves `cozystack-values` out of the HelmReleases.
pub const ANNOTATION_SKIP_COZYSTACK_VALUES: &str = "operator.cozystack.io/skip-cozystack-values";
/// Helm's annotation that keeps an object on uninstall.
pub const ANNOTATION_RESOURCE_POLICY: &str = "helm.sh/resource-policy";
/// Flux's annotation that asks for a reconciliation now.
pub const ANNOTATION_RECONCILE_REQUESTED_AT: &str = "reconcile.fluxcd.io/requestedAt";
/// Annotation on an ArtifactGenerator: how often the operator nudged source-watcher.
pub const ANNOTATION_RECOVERY_ATTEMPTS: &str = "cozystack.io/source-watcher-recovery-attempts";
/// Annotation on an ArtifactGenerator: when it did so last.
pub const ANNOTATION_LAST_RECOVERY: &str = "cozystack.io/source-watcher-last-recovery-at";
/// Annotation on a HelmRelease with overrides: `<PackageValues>@<generation>`, and ` <git revision>` when
/// kustomize-controller applied the PackageValues.
pub const ANNOTATION_VALUES_FROM: &str = "gitops.cozystack.io/values-from";
/// Annotation on a HelmRelease in overlay mode: digest of the values before the overrides were merged.
pub const ANNOTATION_BASE_VALUES_DIGEST: &str = "gitops.cozystack.io/base-values-digest";

/// Field manager of everything the Go operator creates or updates; ours takes its place.
pub const MANAGER_OPERATOR: &str = "cozystack-operator";
/// Field manager (Apply) of namespaces.
pub const MANAGER_PACKAGE: &str = "cozystack-package-controller";
/// Field manager (Apply) of ArtifactGenerators.
pub const MANAGER_PACKAGE_SOURCE: &str = "cozystack-packagesource-controller";
/// Field manager (Apply) of what an adopted Package keeps when it is given back.
pub const MANAGER_ADOPT: &str = "cozy-gitops-adopt";
/// Field manager of Flux's helm-controller: what charts set.
pub const MANAGER_HELM: &str = "helm-controller";
/// Field manager of Flux's kustomize-controller.
pub const MANAGER_KUSTOMIZE: &str = "kustomize-controller";

/// Name of the Secret with the platform's values, in `cozy-system` and replicated to system namespaces.
pub const COZYSTACK_VALUES: &str = "cozystack-values";

/// The condition that every kind here has.
pub const CONDITION_READY: &str = "Ready";
/// Condition on a Package: what does not go away by waiting, such as a cycle of dependencies.
pub const CONDITION_STALLED: &str = "Stalled";
/// Condition on a Package: whether its PackageValues were merged.
pub const CONDITION_VALUES_MERGED: &str = "ValuesMerged";

/// Largest size of `Package.status.effectiveValues` in bytes; above it only the digest stays.
pub const MAX_EFFECTIVE_VALUES_BYTES: usize = 256 * 1024;

/// Reasons of conditions.
///
/// Those of Package and PackageSource are the Go operator's, word for word; those of PackageValues are ours.
pub mod reason {
    /// Package is ready: all its HelmReleases are written.
    pub const RECONCILIATION_SUCCEEDED: &str = "ReconciliationSucceeded";
    /// Package, PackageValues: there is no PackageSource of the name.
    pub const PACKAGE_SOURCE_NOT_FOUND: &str = "PackageSourceNotFound";
    /// Package, PackageValues: the PackageSource has no variant that the Package selects.
    pub const VARIANT_NOT_FOUND: &str = "VariantNotFound";
    /// Package: a dependency is not ready, and HelmReleases are not created before it is.
    pub const DEPENDENCIES_NOT_READY: &str = "DependenciesNotReady";
    /// Package: a component's `dependsOn` leads nowhere.
    pub const DEPENDS_ON_FAILED: &str = "DependsOnFailed";
    /// Package: the API server refused a HelmRelease.
    pub const HELM_RELEASE_FAILED: &str = "HelmReleaseFailed";
    /// Package: another Package or component has the HelmRelease.
    pub const RELEASE_CONFLICT: &str = "ReleaseConflict";
    /// Package: the spec and the PackageSource cannot be turned into HelmReleases.
    pub const INVALID_CONFIGURATION: &str = "InvalidConfiguration";
    /// Package: none of the others; the message says what.
    pub const INTERNAL_ERROR: &str = "InternalError";

    /// Package, `Stalled`: it depends on itself, over others or directly.
    pub const DEPENDENCY_CYCLE: &str = "DependencyCycle";

    /// PackageSource: it has no `sourceRef`.
    pub const SOURCE_REF_NOT_SET: &str = "SourceRefNotSet";
    /// PackageSource: it has no components to build, hence no ArtifactGenerator.
    pub const ARTIFACT_GENERATOR_NOT_FOUND: &str = "ArtifactGeneratorNotFound";
    /// PackageSource: source-watcher has not reported on the ArtifactGenerator.
    pub const ARTIFACT_GENERATOR_NOT_READY: &str = "ArtifactGeneratorNotReady";
    /// PackageSource: someone else has fields of the ArtifactGenerator; the message says who.
    pub const ARTIFACT_GENERATOR_CONFLICT: &str = "ArtifactGeneratorConflict";
    /// PackageSource: the API server refused the ArtifactGenerator.
    pub const ARTIFACT_GENERATOR_FAILED: &str = "ArtifactGeneratorFailed";
    /// PackageSource: waiting for source-watcher after it was nudged.
    pub const AWAITING_SOURCE_WATCHER_RECOVERY: &str = "AwaitingSourceWatcherRecovery";
    /// PackageSource: source-watcher did not recover after the last nudge.
    pub const SOURCE_WATCHER_STALLED: &str = "SourceWatcherStalled";
    /// ArtifactGenerator: set by the operator to nudge source-watcher.
    pub const SOURCE_WATCHER_RECOVERY_FORCED: &str = "SourceWatcherRecoveryForced";

    /// PackageValues: the overrides are in force.
    pub const MERGED: &str = "Merged";
    /// PackageValues: there is no Package of the name.
    pub const PACKAGE_NOT_FOUND: &str = "PackageNotFound";
    /// PackageValues: a list rule does not fit the values.
    pub const INVALID_LIST: &str = "InvalidList";
    /// PackageValues: the chart's schema refuses the merged values.
    pub const INVALID_VALUES: &str = "InvalidValues";
    /// PackageValues: `spec.suspend` is set.
    pub const SUSPENDED: &str = "Suspended";
}
