//! PackageSource + Package + PackageValues → the objects that the operator applies.
