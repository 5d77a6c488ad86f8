//! The objects that rendering looks at, with indices, so that one event costs what it touches and not what there is.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use cozy_api::packages::{
    Component, DEFAULT_VARIANT, Install, Package, PackageSource, PackageValues, Variant,
};

use crate::chart::Chart;

/// Namespace and name of a HelmRelease.
pub type ReleaseKey = (String, String);

/// Packages, PackageSources, PackageValues and charts.
///
/// Every change returns the names of the Packages whose rendering it may change.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    packages: BTreeMap<String, Arc<Package>>,
    sources: BTreeMap<String, Arc<PackageSource>>,
    values: BTreeMap<String, Arc<PackageValues>>,
    charts: HashMap<String, Arc<Chart>>,
    revisions: HashMap<String, (Option<i64>, String)>,
    /// What each Package brings into the indices below.
    shares: HashMap<String, Share>,
    claims: HashMap<ReleaseKey, BTreeSet<String>>,
    tenants: HashMap<String, BTreeSet<String>>,
    privileged: HashMap<String, BTreeSet<String>>,
    dependents: HashMap<String, BTreeSet<String>>,
}

/// What one Package brings into the indices.
#[derive(Clone, Debug, Default, PartialEq)]
struct Share {
    releases: BTreeSet<ReleaseKey>,
    /// The same in spec order, which is that of dependents' `dependsOn`.
    ordered: Vec<ReleaseKey>,
    namespaces: BTreeSet<String>,
    privileged: BTreeSet<String>,
    depends_on: BTreeSet<String>,
    /// Whether dependents may go on: condition Ready=True.
    ready: bool,
    /// Whether its variant is there, so that dependents can name its HelmReleases.
    known: bool,
}

impl Snapshot {
    /// An empty one.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds or replaces a Package.
    pub fn set_package(&mut self, package: Package) -> BTreeSet<String> {
        let name = package.metadata.name.clone().unwrap_or_default();
        self.packages.insert(name.clone(), Arc::new(package));
        self.refresh(&name)
    }

    /// Removes a Package.
    pub fn remove_package(&mut self, name: &str) -> BTreeSet<String> {
        self.packages.remove(name);
        self.refresh(name)
    }

    /// Adds or replaces a PackageSource.
    pub fn set_source(&mut self, source: PackageSource) -> BTreeSet<String> {
        let name = source.metadata.name.clone().unwrap_or_default();
        self.sources.insert(name.clone(), Arc::new(source));
        self.refresh(&name)
    }

    /// Removes a PackageSource.
    pub fn remove_source(&mut self, name: &str) -> BTreeSet<String> {
        self.sources.remove(name);
        self.refresh(name)
    }

    /// Adds or replaces a PackageValues.
    pub fn set_values(&mut self, values: PackageValues) -> BTreeSet<String> {
        let name = values.metadata.name.clone().unwrap_or_default();
        self.values.insert(name.clone(), Arc::new(values));
        BTreeSet::from([name])
    }

    /// Removes a PackageValues.
    pub fn remove_values(&mut self, name: &str) -> BTreeSet<String> {
        self.values.remove(name);
        BTreeSet::from([name.to_owned()])
    }

    /// Sets what is known of the chart behind an ExternalArtifact (see [`artifact_name`]).
    pub fn set_chart(&mut self, artifact: String, chart: Arc<Chart>) {
        self.charts.insert(artifact, chart);
    }

    /// Forgets a chart.
    pub fn remove_chart(&mut self, artifact: &str) {
        self.charts.remove(artifact);
    }

    /// Sets the git revision that a generation of a PackageValues was applied from, where kustomize-controller did it.
    pub fn set_revision(&mut self, values: &str, generation: Option<i64>, revision: Option<String>) {
        match revision {
            Some(revision) => self.revisions.insert(values.to_owned(), (generation, revision)),
            None => self.revisions.remove(values),
        };
    }

    /// The git revision that a PackageValues was applied from, where known of the generation that it has.
    #[must_use]
    pub fn revision(&self, values: &str) -> Option<&str> {
        let (generation, revision) = self.revisions.get(values)?;
        (self.values.get(values)?.metadata.generation == *generation).then_some(revision)
    }

    /// The Package of that name.
    #[must_use]
    pub fn package(&self, name: &str) -> Option<&Package> {
        self.packages.get(name).map(Arc::as_ref)
    }

    /// The PackageSource of that name.
    #[must_use]
    pub fn source(&self, name: &str) -> Option<&PackageSource> {
        self.sources.get(name).map(Arc::as_ref)
    }

    /// The PackageValues of that name.
    #[must_use]
    pub fn values(&self, name: &str) -> Option<&PackageValues> {
        self.values.get(name).map(Arc::as_ref)
    }

    /// The chart behind an ExternalArtifact, as far as known.
    #[must_use]
    pub fn chart(&self, artifact: &str) -> Option<&Chart> {
        self.charts.get(artifact).map(Arc::as_ref)
    }

    /// Names of all Packages, ordered.
    pub fn package_names(&self) -> impl Iterator<Item = &str> {
        self.packages.keys().map(String::as_str)
    }

    /// Names of all PackageSources, ordered.
    pub fn source_names(&self) -> impl Iterator<Item = &str> {
        self.sources.keys().map(String::as_str)
    }

    /// Names of all PackageValues, ordered.
    pub fn values_names(&self) -> impl Iterator<Item = &str> {
        self.values.keys().map(String::as_str)
    }

    /// The variant that a Package selects, when both it and its PackageSource have one.
    #[must_use]
    pub fn variant(&self, name: &str) -> Option<&Variant> {
        let selected = selected_variant(self.package(name)?);
        find_variant(self.source(name)?, selected)
    }

    /// Namespaces that the Package's components live in.
    pub fn namespaces_of(&self, name: &str) -> impl Iterator<Item = &str> {
        self.shares.get(name).into_iter().flat_map(|share| &share.namespaces).map(String::as_str)
    }

    /// HelmReleases that the Package's enabled components want.
    pub fn releases_of(&self, name: &str) -> impl Iterator<Item = &ReleaseKey> {
        self.shares.get(name).into_iter().flat_map(|share| &share.releases)
    }

    /// Packages with a component in the namespace.
    pub fn users_of(&self, namespace: &str) -> impl Iterator<Item = &str> {
        self.tenants.get(namespace).into_iter().flatten().map(String::as_str)
    }

    /// Packages that want a HelmRelease.
    pub fn claimants(&self, namespace: &str, release: &str) -> impl Iterator<Item = &str> {
        let claims = self.claims.get(&(namespace.to_owned(), release.to_owned()));
        claims.into_iter().flatten().map(String::as_str)
    }

    /// Packages whose variant depends on the Package.
    pub fn dependents(&self, name: &str) -> impl Iterator<Item = &str> {
        self.dependents.get(name).into_iter().flatten().map(String::as_str)
    }

    /// Whether any Package has a privileged component in the namespace.
    #[must_use]
    pub fn is_privileged(&self, namespace: &str) -> bool {
        self.privileged.get(namespace).is_some_and(|packages| !packages.is_empty())
    }

    /// Whether any Package has a component in the namespace.
    #[must_use]
    pub fn is_used(&self, namespace: &str) -> bool {
        self.tenants.get(namespace).is_some_and(|packages| !packages.is_empty())
    }

    /// Which of the Packages that claim a HelmRelease has it: the oldest, among equals the first by name.
    #[must_use]
    pub fn release_owner(&self, namespace: &str, release: &str) -> Option<&str> {
        let claims = self.claims.get(&(namespace.to_owned(), release.to_owned()))?;
        claims
            .iter()
            .min_by_key(|name| {
                let created = self.package(name).and_then(|p| p.metadata.creation_timestamp.as_ref());
                // Without a time (offline) age cannot decide.
                (created.map(|time| time.0), name.as_str())
            })
            .map(String::as_str)
    }

    /// The shortest cycle of dependencies through a Package, from it back to it; `None` when there is none.
    #[must_use]
    pub fn cycle(&self, name: &str) -> Option<Vec<String>> {
        let mut came_from: HashMap<&str, &str> = HashMap::new();
        let mut queue = std::collections::VecDeque::from([self.shares.get_key_value(name)?.0.as_str()]);
        while let Some(at) = queue.pop_front() {
            let ignored =
                self.package(at).and_then(|p| p.spec.ignore_dependencies.as_deref()).unwrap_or_default();
            for next in self.shares.get(at).into_iter().flat_map(|share| &share.depends_on) {
                if ignored.contains(next) {
                    continue;
                }
                if next == name {
                    let mut path = vec![name.to_owned(), at.to_owned()];
                    let mut at = at;
                    while let Some(previous) = came_from.get(at) {
                        path.push((*previous).to_owned());
                        at = previous;
                    }
                    if path.len() > 1 && path.last().map(String::as_str) != Some(name) {
                        path.push(name.to_owned());
                    }
                    path.reverse();
                    return Some(path);
                }
                if let Some((next, _)) = self.shares.get_key_value(next)
                    && !came_from.contains_key(next.as_str())
                {
                    came_from.insert(next, at);
                    queue.push_back(next);
                }
            }
        }
        None
    }

    fn refresh(&mut self, name: &str) -> BTreeSet<String> {
        let mut touched = BTreeSet::from([name.to_owned()]);
        let new = self.share(name);
        let old = self.shares.remove(name).unwrap_or_default();
        if new == old {
            if new != Share::default() {
                self.shares.insert(name.to_owned(), new);
            }
            return touched;
        }
        // The order of its releases concerns dependents as well, so any change of the share wakes them.
        touched.extend(self.dependents(name).map(str::to_owned));
        for release in old.releases.union(&new.releases) {
            update(&mut self.claims, release, name, new.releases.contains(release));
            touched.extend(self.claims.get(release).into_iter().flatten().cloned());
        }
        for namespace in old.namespaces.union(&new.namespaces) {
            update(&mut self.tenants, namespace, name, new.namespaces.contains(namespace));
        }
        for namespace in old.privileged.union(&new.privileged) {
            let before = self.is_privileged(namespace);
            update(&mut self.privileged, namespace, name, new.privileged.contains(namespace));
            if before != self.is_privileged(namespace) {
                touched.extend(self.tenants.get(namespace).into_iter().flatten().cloned());
            }
        }
        for dependency in old.depends_on.union(&new.depends_on) {
            update(&mut self.dependents, dependency, name, new.depends_on.contains(dependency));
        }
        if new != Share::default() {
            self.shares.insert(name.to_owned(), new);
        }
        touched
    }

    fn share(&self, name: &str) -> Share {
        let mut share = Share::default();
        let Some(package) = self.package(name) else { return share };
        let conditions = package.status.as_ref().and_then(|status| status.conditions.as_ref());
        share.ready = cozy_api::flux::condition(conditions, "Ready")
            .is_some_and(|condition| condition.status == "True");
        let Some(variant) = self.variant(name) else { return share };
        share.known = true;
        share.depends_on.extend(variant.depends_on.iter().flatten().cloned());
        for (component, install) in installed(package, variant) {
            let Some(namespace) = install.namespace.as_deref().filter(|n| !n.is_empty()) else { continue };
            let key = (namespace.to_owned(), release_name(component, install).to_owned());
            share.ordered.push(key.clone());
            share.releases.insert(key);
            share.namespaces.insert(namespace.to_owned());
            if install.privileged == Some(true) {
                share.privileged.insert(namespace.to_owned());
            }
        }
        share
    }
}

fn update<K: Clone + Eq + std::hash::Hash>(
    index: &mut HashMap<K, BTreeSet<String>>,
    key: &K,
    name: &str,
    present: bool,
) {
    if present {
        index.entry(key.clone()).or_default().insert(name.to_owned());
    } else if let Some(names) = index.get_mut(key) {
        names.remove(name);
        if names.is_empty() {
            index.remove(key);
        }
    }
}

/// Name of the variant that the Package selects.
#[must_use]
pub fn selected_variant(package: &Package) -> &str {
    package.spec.variant.as_deref().filter(|v| !v.is_empty()).unwrap_or(DEFAULT_VARIANT)
}

/// The PackageSource's variant of that name.
#[must_use]
pub fn find_variant<'s>(source: &'s PackageSource, name: &str) -> Option<&'s Variant> {
    source.spec.variants.iter().flatten().find(|variant| variant.name == name)
}

/// Whether the Package leaves the component in.
#[must_use]
pub fn is_enabled(package: &Package, component: &str) -> bool {
    let said = package.spec.components.as_ref().and_then(|c| c.get(component)).and_then(|c| c.enabled);
    said != Some(false)
}

/// Components that become HelmReleases: enabled, and with `install`.
pub fn installed<'v>(
    package: &Package,
    variant: &'v Variant,
) -> impl Iterator<Item = (&'v Component, &'v Install)> {
    let components = variant.components.as_deref().unwrap_or_default().iter();
    components.filter_map(|component| {
        let install = component.install.as_ref()?;
        is_enabled(package, &component.name).then_some((component, install))
    })
}

/// Name of a component's HelmRelease.
#[must_use]
pub fn release_name<'c>(component: &'c Component, install: &'c Install) -> &'c str {
    install.release_name.as_deref().filter(|n| !n.is_empty()).unwrap_or(&component.name)
}

/// Name of the ExternalArtifact that holds a component's chart: `<source>-<variant>-<component>`, dots as dashes.
#[must_use]
pub fn artifact_name(source: &str, variant: &str, component: &str) -> String {
    format!("{source}-{variant}-{component}").replace('.', "-")
}
