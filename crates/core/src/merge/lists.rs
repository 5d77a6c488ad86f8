//! Lists that merge by a rule.

use std::collections::HashMap;

use cozy_api::packages::{ListMerge, ListRule};
use serde_json::Value;

use super::{How, Place, Reason, kind_of, merge_plain};

/// Directive of an element, as in Kubernetes' strategic merge patches.
const PATCH: &str = "$patch";

/// The layer's list, checked by itself.
pub(super) struct Layer<'a> {
    list: &'a [Value],
    /// Of each element; none for `Append`.
    identities: Vec<String>,
}

/// Checks the layer's list by itself.
pub(super) fn layer<'a>(rule: &ListRule, list: &'a [Value]) -> Result<Layer<'a>, Reason> {
    if rule.kind == ListMerge::Append {
        return Ok(Layer { list, identities: Vec::new() });
    }
    let identities = identify(list, Place::Layer, rule.keys.as_deref().unwrap_or_default())?;
    match list.iter().position(|element| element.get(PATCH).is_some_and(|patch| patch != "delete")) {
        Some(index) => Err(Reason::Patch { index }),
        None => Ok(Layer { list, identities }),
    }
}

/// Merges the layer's list over the base by the rule.
///
/// `Map` keeps the base's order, merges elements with equal keys deep, appends new ones in the layer's order, and
/// removes the match of an element with `$patch: delete` (one without a match is counted, not refused: the entry
/// is gone either way, for example because an upgrade removed it). `Append` adds the layer's elements at the end.
pub(super) fn merge(
    rule: &ListRule,
    base: &[Value],
    place: Place,
    layer: &Layer<'_>,
) -> Result<(Vec<Value>, How), Reason> {
    let (mut added, mut changed, mut removed, mut unmatched) = (0, 0, 0, 0);
    let mut out: Vec<Option<Value>> = base.iter().cloned().map(Some).collect();
    if rule.kind == ListMerge::Append {
        added = layer.list.len();
        out.extend(layer.list.iter().cloned().map(Some));
    } else {
        let identities = identify(base, place, rule.keys.as_deref().unwrap_or_default())?;
        let index: HashMap<&str, usize> =
            identities.iter().enumerate().map(|(i, identity)| (identity.as_str(), i)).collect();
        for (element, identity) in layer.list.iter().zip(&layer.identities) {
            let below = index.get(identity.as_str()).and_then(|at| out.get_mut(*at));
            match (element.get(PATCH).is_some(), below) {
                (true, Some(below)) => {
                    *below = None;
                    removed += 1;
                }
                (true, None) => unmatched += 1,
                (false, Some(Some(below))) => {
                    merge_plain(below, element);
                    changed += 1;
                }
                (false, _) => {
                    out.push(Some(element.clone()));
                    added += 1;
                }
            }
        }
    }
    let how = How::ListMerged { below: place, added, changed, removed, unmatched };
    Ok((out.into_iter().flatten().collect(), how))
}

/// The identity of every element: the canonical JSON of its keys. No two are the same.
fn identify(list: &[Value], place: Place, keys: &[String]) -> Result<Vec<String>, Reason> {
    let mut out = Vec::with_capacity(list.len());
    for (index, element) in list.iter().enumerate() {
        let Value::Object(element) = element else {
            return Err(Reason::NotAMap { place, index, found: kind_of(element) });
        };
        let mut identity = String::new();
        for key in keys {
            match element.get(key) {
                None | Some(Value::Null) => {
                    return Err(Reason::MissingKey { place, index, key: key.clone() });
                }
                // A newline never occurs in canonical JSON, so identities of several keys cannot run together.
                Some(value) => {
                    identity.push_str(&cozy_yaml::canonical_json(value));
                    identity.push('\n');
                }
            }
        }
        out.push(identity);
    }
    let mut seen = HashMap::with_capacity(out.len());
    for (second, identity) in out.iter().enumerate() {
        if let Some(first) = seen.insert(identity.as_str(), second) {
            return Err(Reason::DuplicateKey { place, first, second });
        }
    }
    Ok(out)
}
