//! Lists that merge by a rule.

use std::collections::HashMap;

use cozy_api::packages::{ListMerge, ListRule};
use serde_json::Value;

use super::{How, Place, Reason, kind_of, merge_plain};

/// Directive of an element, as in Kubernetes' strategic merge patches.
const PATCH: &str = "$patch";

/// Merges the layer's list over the base by the rule.
///
/// `Map` keeps the base's order, merges elements with equal keys deep, appends new ones in the layer's order, and
/// removes the match of an element with `$patch: delete` (one without a match is counted, not refused: the entry
/// is gone either way, for example because an upgrade removed it). `Append` adds the layer's elements at the end.
pub(super) fn merge(
    rule: &ListRule,
    base: &[Value],
    place: Place,
    list: &[Value],
) -> Result<(Vec<Value>, How), Reason> {
    let mut out = base.to_vec();
    if rule.kind == ListMerge::Append {
        out.extend_from_slice(list);
        return Ok((
            out,
            How::ListMerged { below: place, added: list.len(), changed: 0, removed: 0, unmatched: 0 },
        ));
    }
    let keys = rule.keys.as_deref().unwrap_or_default();
    let index = identify(base, place, keys)?;
    let (mut added, mut changed, mut removed, mut unmatched) = (0, 0, 0, 0);
    let mut gone = vec![false; base.len()];
    let layer = identify(list, Place::Layer, keys)?;
    let mut identities: Vec<(&String, &usize)> = layer.iter().collect();
    identities.sort_unstable_by_key(|(_, position)| **position);
    for (identity, &position) in identities {
        let Some(element) = list.get(position) else { continue };
        let matching = index.get(identity).copied();
        match element.get(PATCH) {
            Some(Value::String(patch)) if patch == "delete" => match matching.and_then(|at| gone.get_mut(at))
            {
                Some(gone) => {
                    *gone = true;
                    removed += 1;
                }
                None => unmatched += 1,
            },
            Some(_) => return Err(Reason::Patch { index: position }),
            None => match matching.and_then(|at| out.get_mut(at)) {
                Some(below) => {
                    merge_plain(below, element);
                    changed += 1;
                }
                None => {
                    out.push(element.clone());
                    added += 1;
                }
            },
        }
    }
    let mut position = 0;
    out.retain(|_| {
        let keep = !gone.get(position).copied().unwrap_or(false);
        position += 1;
        keep
    });
    Ok((out, How::ListMerged { below: place, added, changed, removed, unmatched }))
}

/// Position of every element by the canonical JSON of its keys.
fn identify(list: &[Value], place: Place, keys: &[String]) -> Result<HashMap<String, usize>, Reason> {
    let mut out = HashMap::with_capacity(list.len());
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
        if let Some(first) = out.insert(identity, index) {
            return Err(Reason::DuplicateKey { place, first, second: index });
        }
    }
    Ok(out)
}
