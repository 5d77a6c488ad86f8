//! Admission decisions: stamping, pruning, guards.
