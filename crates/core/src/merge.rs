//! Merging of the override layer into a package's values, with provenance.
