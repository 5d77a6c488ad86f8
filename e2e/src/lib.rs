//! See tests/ and benches/.
