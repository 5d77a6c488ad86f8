//! PackageSource to ArtifactGenerator.

use cozy_api::flux::{
    ArtifactGenerator, ArtifactGeneratorSpec, CopyOperation, GeneratorArtifact, GeneratorSource,
};
use cozy_api::names;
use cozy_api::packages::{Component, Library, PackageSource, SourceRef};

use super::{Outcome, owner};
use crate::snapshot::artifact_name;

/// What a PackageSource becomes.
#[derive(Clone, Debug, PartialEq)]
pub struct GeneratorRender {
    /// The ArtifactGenerator; `None` when there is nothing to build.
    pub object: Option<ArtifactGenerator>,
    /// Comma-joined names of the variants.
    pub variants: String,
    /// The condition `Ready` when there is no ArtifactGenerator to take it from.
    pub without_generator: Option<Outcome>,
    /// Components whose chart is never built, and why.
    pub unbuilt: Vec<(String, &'static str)>,
}

/// Renders a PackageSource.
#[must_use]
pub fn render_package_source(source: &PackageSource) -> GeneratorRender {
    let name = source.metadata.name.as_deref().unwrap_or_default();
    let variants = source.spec.variants.as_deref().unwrap_or_default();
    let mut out = GeneratorRender {
        object: None,
        variants: variants.iter().map(|v| v.name.as_str()).collect::<Vec<_>>().join(","),
        without_generator: None,
        unbuilt: Vec::new(),
    };
    let Some(reference) = &source.spec.source_ref else {
        out.without_generator =
            Some(Outcome::new("Unknown", names::reason::SOURCE_REF_NOT_SET, "SourceRef is not configured"));
        return out;
    };
    let base = base_path(reference);
    let mut artifacts = Vec::new();
    for variant in variants {
        let libraries = variant.libraries.as_deref().unwrap_or_default();
        for component in variant.components.as_deref().unwrap_or_default() {
            match copies(reference, &base, component, libraries) {
                Ok(copy) => artifacts.push(GeneratorArtifact {
                    name: Some(artifact_name(name, &variant.name, &component.name)),
                    copy: Some(copy),
                    ..GeneratorArtifact::default()
                }),
                Err(why) => out.unbuilt.push((component.name.clone(), why)),
            }
        }
    }
    if artifacts.is_empty() {
        out.without_generator = Some(Outcome::new(
            "Unknown",
            names::reason::ARTIFACT_GENERATOR_NOT_FOUND,
            "ArtifactGenerator not found",
        ));
        return out;
    }
    let mut object = ArtifactGenerator::new(
        names::SYSTEM_NAMESPACE,
        name,
        ArtifactGeneratorSpec {
            sources: Some(vec![GeneratorSource {
                alias: Some(reference.name.clone()),
                kind: Some(reference.kind.clone()),
                name: Some(reference.name.clone()),
                namespace: Some(reference.namespace.clone()),
                ..GeneratorSource::default()
            }]),
            artifacts: Some(artifacts),
            ..ArtifactGeneratorSpec::default()
        },
    );
    object.metadata.labels = Some([(names::LABEL_PACKAGE_SOURCE.to_owned(), name.to_owned())].into());
    object.metadata.owner_references =
        Some(vec![owner("PackageSource", name, source.metadata.uid.as_deref())]);
    out.object = Some(object);
    out
}

/// Where the packages lie in the source: its `path`, else `packages` in git and the root in OCI artifacts.
fn base_path(reference: &SourceRef) -> String {
    match reference.path.as_deref().filter(|path| !path.is_empty()) {
        Some(path) => path.trim_matches('/').to_owned(),
        None if reference.kind == "GitRepository" => "packages".to_owned(),
        None => String::new(),
    }
}

fn copies(
    reference: &SourceRef,
    base: &str,
    component: &Component,
    libraries: &[Library],
) -> Result<Vec<CopyOperation>, &'static str> {
    // The segment is that of the path as written: with a slash at its end it is empty, and nothing is built.
    let segment = component.path.rsplit('/').next().unwrap_or_default();
    if segment.is_empty() {
        return Err(if component.path.is_empty() {
            "its path is empty"
        } else {
            "its path ends with a slash"
        });
    }
    let alias = &reference.name;
    let from = |parts: &[&str]| {
        let path: Vec<&str> =
            std::iter::once(base).chain(parts.iter().copied()).filter(|p| !p.is_empty()).collect();
        format!("@{alias}/{}", path.join("/"))
    };
    let path = component.path.trim_matches('/');
    let copy = |from: String, to: String, strategy: Option<&str>| CopyOperation {
        from: Some(from),
        to: Some(to),
        strategy: strategy.map(str::to_owned),
        ..CopyOperation::default()
    };
    let mut out = vec![copy(from(&[path, "**"]), format!("@artifact/{segment}/"), None)];
    for wanted in component.libraries.iter().flatten() {
        // Among libraries of one name the last one counts.
        let found = libraries.iter().rev().find(|library| library_name(library) == wanted);
        if let Some(library) = found {
            let to = format!("@artifact/{segment}/charts/{wanted}/");
            out.push(copy(from(&[library.path.trim_matches('/'), "**"]), to, None));
        }
    }
    for (index, file) in component.values_files.iter().flatten().enumerate() {
        let strategy = if index == 0 { "Overwrite" } else { "Merge" };
        out.push(copy(from(&[path, file]), format!("@artifact/{segment}/values.yaml"), Some(strategy)));
    }
    Ok(out)
}

fn library_name(library: &Library) -> &str {
    match library.name.as_deref().filter(|name| !name.is_empty()) {
        Some(name) => name,
        None => library.path.trim_matches('/').rsplit('/').next().unwrap_or_default(),
    }
}
