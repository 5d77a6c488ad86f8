//! What is never shown: Secrets' data, and what SOPS encrypted.

use serde_json::Value;

use super::source::Object;

/// What stands in place of a value that SOPS encrypted. Two of them compare equal: the same text is encrypted
/// differently each time, so nothing can be said about a change.
pub const ENCRYPTED: &str = "(encrypted by SOPS)";

/// Whether the object's data must not be shown.
#[must_use]
pub fn is_secret(object: &Object) -> bool {
    object.kind() == "Secret"
}

/// Removes SOPS' metadata and ciphertext from a document that it encrypted; others stay as they are.
#[must_use]
pub fn conceal(mut object: Object) -> Object {
    if !object.value.get("sops").is_some_and(Value::is_object) {
        return object;
    }
    let mut value = Value::clone(&object.value);
    if let Value::Object(map) = &mut value {
        map.remove("sops");
    }
    conceal_value(&mut value);
    object.value = value.into();
    if let super::Source::Built(texts) = &mut object.source {
        for text in texts {
            if let Some(said) = &mut text.value {
                let mut concealed = Value::clone(said);
                conceal_value(&mut concealed);
                *said = concealed.into();
            }
        }
    }
    object
}

fn conceal_value(value: &mut Value) {
    match value {
        Value::String(text) if text.starts_with("ENC[") => ENCRYPTED.clone_into(text),
        Value::Array(list) => list.iter_mut().for_each(conceal_value),
        Value::Object(map) => map.values_mut().for_each(conceal_value),
        _ => {}
    }
}

/// Whether a value holds ciphertext of SOPS.
#[must_use]
pub(super) fn is_concealed(value: &Value) -> bool {
    match value {
        Value::String(text) => text == ENCRYPTED,
        Value::Array(list) => list.iter().any(is_concealed),
        Value::Object(map) => map.values().any(is_concealed),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::plan::Source;

    #[test]
    fn ciphertext_is_equal_to_other_ciphertext_and_clear_text_stays() {
        let read = |cipher: &str| {
            let value =
                json!({"a": format!("ENC[AES256_GCM,data:{cipher}]"), "b": ["x"], "sops": {"mac": cipher}});
            conceal(Object { value: value.into(), source: Source::Unknown }).value
        };
        assert_eq!(read("one"), read("two"));
        assert_eq!(*read("one"), json!({"a": ENCRYPTED, "b": ["x"]}));
        assert!(is_concealed(&read("one")));
    }

    #[test]
    fn an_object_without_sops_metadata_is_left_alone() {
        let value = json!({"a": "ENC[x", "sops": "no map"});
        let object = conceal(Object { value: value.clone().into(), source: Source::Unknown });
        assert_eq!(*object.value, value);
    }
}
