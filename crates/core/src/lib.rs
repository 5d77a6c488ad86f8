//! Every decision of cozy-gitops: synchronous, without I/O, clock or environment.

pub mod admission;
pub mod adopt;
pub mod chart;
pub mod duration;
pub mod enforcement;
pub mod managed;
pub mod merge;
pub mod plan;
pub mod render;
pub mod snapshot;
pub mod tenant;
