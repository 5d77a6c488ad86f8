//! Walks a directory as Flux does.

use std::collections::HashSet;
use std::fs::Metadata;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cozy_core::plan::{Finding, FindingKind, Place, Severity};

use super::{Loaded, Names, Role, kustomize, read_file};

/// Left out by source-controller, which makes the artifact that kustomize-controller reads.
const IGNORED_DIRECTORIES: [&str; 3] = [".git", ".github", ".circleci"];
const IGNORED_FILES: [&str; 11] = [
    ".travis.yml",
    ".gitlab-ci.yml",
    "appveyor.yml",
    ".drone.yml",
    "cloudbuild.yaml",
    "codeship-services.yml",
    "codeship-steps.yml",
    ".goreleaser.yml",
    ".sops.yaml",
    ".flux.yaml",
    ".sourceignore",
];

/// One walk below one directory.
pub(super) struct Walk<'a> {
    names: &'a Names,
    role: Role,
    /// What the repository may not be left for; `None` where the files are trusted.
    root: Option<PathBuf>,
    /// Directories on the way down, resolved.
    above: Vec<PathBuf>,
    /// Directories that links led to, resolved: each is read once.
    linked: HashSet<PathBuf>,
    out: &'a mut Loaded,
}

impl<'a> Walk<'a> {
    pub(super) fn new(names: &'a Names, role: Role, root: Option<PathBuf>, out: &'a mut Loaded) -> Self {
        Self { names, role, root, above: Vec::new(), linked: HashSet::new(), out }
    }

    /// Reads a directory with everything below it. A kustomization is built and not descended into.
    pub(super) fn directory(&mut self, path: &Path) {
        let name = self.names.of(path);
        if self.role == Role::Repository && path.join(".sourceignore").is_file() {
            let message = "Flux leaves out what this file lists; the plan does not look at it";
            self.ignored(&self.names.of(&path.join(".sourceignore")), message);
        }
        if kustomize::file_of(path).is_some() {
            kustomize::build(path, self.names, self.root.as_deref(), self.out);
            return;
        }
        let canonical = match path.canonicalize() {
            Ok(canonical) => canonical,
            Err(error) => return self.out.unreadable(&name, format!("cannot be read: {error}")),
        };
        let entries = std::fs::read_dir(path).and_then(|entries| entries.collect::<Result<Vec<_>, _>>());
        let mut entries = match entries {
            Ok(entries) => entries,
            Err(error) => {
                return self.out.unreadable(&name, format!("the directory cannot be read: {error}"));
            }
        };
        entries.sort_by_key(std::fs::DirEntry::file_name);
        self.above.push(canonical);
        for entry in entries {
            self.entry(&entry.path());
        }
        self.above.pop();
    }

    fn entry(&mut self, path: &Path) {
        let name = self.names.of(path);
        let own = match path.symlink_metadata() {
            Ok(own) => own,
            Err(error) => return self.out.unreadable(&name, format!("cannot be read: {error}")),
        };
        let metadata = if own.is_symlink() {
            match self.follow(path, &name) {
                Some(metadata) => metadata,
                None => return,
            }
        } else {
            own
        };
        let file_name = path.file_name().unwrap_or_default().to_string_lossy();
        if metadata.is_dir() {
            if !IGNORED_DIRECTORIES.contains(&&*file_name) {
                self.directory(path);
            }
            return;
        }
        if !is_manifest(path) || IGNORED_FILES.contains(&&*file_name) {
            return;
        }
        if self.role == Role::Repository && path.extension().is_some_and(|extension| extension == "json") {
            let message = "Flux reads .json files only where a kustomization.yaml lists them; the plan reads it all the same";
            self.ignored(&name, message);
        }
        match read_file(path) {
            Ok(bytes) => self.out.documents(&bytes, &name),
            Err(error) => self.out.unreadable(&name, format!("cannot be read: {error:#}")),
        }
    }

    /// What a link leads to; `None` when it must not be followed, which was told.
    fn follow(&mut self, path: &Path, name: &Arc<str>) -> Option<Metadata> {
        let metadata = match path.metadata() {
            Ok(metadata) => metadata,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound && !is_manifest(path) => return None,
            Err(error) => {
                self.out.unreadable(name, format!("the symbolic link leads nowhere: {error}"));
                return None;
            }
        };
        if !metadata.is_dir() && !is_manifest(path) {
            return None;
        }
        let target = match path.canonicalize() {
            Ok(target) => target,
            Err(error) => {
                self.out.unreadable(name, format!("the symbolic link leads nowhere: {error}"));
                return None;
            }
        };
        if self.root.as_ref().is_some_and(|root| !target.starts_with(root)) {
            self.out.unreadable(name, "the symbolic link leads out of the repository");
            return None;
        }
        if self.role == Role::Repository {
            self.ignored(
                name,
                "Flux leaves symbolic links out; the plan reads what it leads to all the same",
            );
        }
        if metadata.is_dir() {
            if self.above.contains(&target) {
                self.out.unreadable(name, "the symbolic link leads to a directory that it is in: a loop");
                return None;
            }
            if !self.linked.insert(target) {
                return None;
            }
        }
        Some(metadata)
    }

    fn ignored(&mut self, name: &Arc<str>, message: &str) {
        let finding = Finding::new(FindingKind::IgnoredFile, Severity::Warning, message);
        self.out.findings.push(finding.place(Place { file: Arc::clone(name), line: None }));
    }
}

/// By its name, as kubectl has it.
fn is_manifest(path: &Path) -> bool {
    path.extension().is_some_and(|extension| ["yaml", "yml", "json"].iter().any(|known| extension == *known))
}
