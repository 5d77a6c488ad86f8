//! What several end-to-end tests share; the tests themselves are in `tests/`.

pub mod rbac;
pub mod rights;
pub mod snapshot;
pub mod sops;
