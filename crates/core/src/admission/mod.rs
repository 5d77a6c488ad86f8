//! Admission decisions: stamping, pruning, guards.

pub mod package_guard;
