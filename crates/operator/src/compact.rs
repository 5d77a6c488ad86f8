//! JSON values that are kept for long, as text: a tree of small maps takes many times the memory.

use serde_json::Value;

/// A JSON value as text; equal texts are equal values, since the keys of maps are sorted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Compact(Box<str>);

impl Compact {
    pub(crate) fn new(value: &Value) -> Self {
        Self(value.to_string().into())
    }

    /// The value again.
    pub(crate) fn value(&self) -> Value {
        // It was printed from a value.
        serde_json::from_str(&self.0).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_lost() {
        let value = serde_json::json!({
            "n": [9_007_199_254_740_993_u64, 0.1, -0.0, 1e300, null, true], "é\"\\\n\u{0}": { "": {} },
        });
        assert_eq!(Compact::new(&value).value(), value);
        assert_eq!(Compact::new(&value), Compact::new(&Compact::new(&value).value()));
    }
}
