//! One file per command.

pub(crate) mod operator;
pub(crate) mod plan;
pub(crate) mod render;
pub(crate) mod simple;
