//! Kubernetes types and names of cozy-gitops: nothing here decides anything or talks to anybody.
//!
//! - [`packages`]: `cozystack.io/v1alpha1` Package, PackageSource and PackageValues;
//! - [`flux`]: the views of Flux objects that the product reads or writes;
//! - [`names`]: labels, annotations, field managers, conditions and reasons.

pub mod flux;
pub mod names;
mod object;
pub mod packages;
mod schema;

pub use schema::crds;
