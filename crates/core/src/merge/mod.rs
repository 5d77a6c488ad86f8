//! Merging of the override layer into a package's values, with provenance.
//!
//! The rules are Helm's own, so that an override means the same wherever it stands: maps merge deep; scalars, lists
//! and changes of type replace; `null` is kept (Helm then removes the chart's default). Lists merge only where a
//! [`ListRule`] asks for it. See `docs/merge.md`.
//!
//! What holds, and is tested as properties:
//! - an empty layer changes nothing, not even absent into empty;
//! - merging the same layer twice is merging it once (with `Append` it is not, by its nature);
//! - `(a + b) + c == a + (b + c)` as long as no path is a map in one layer and something else in another: a scalar
//!   between two maps cuts off what the first one said;
//! - what the layer does not name stays as it is, bit for bit.

mod diff;
mod lists;

use std::collections::BTreeMap;

use cozy_api::packages::{ComponentValues, ListRule};
use serde_json::{Map, Value};

pub use diff::{Change, diff_values};

/// Values with a layer merged in.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Merged {
    /// What the HelmRelease carries; `None` when neither the base nor the layer says anything.
    pub values: Option<Value>,
    /// Every leaf that the layer sets, ordered by pointer.
    pub overrides: Vec<Override>,
}

/// One leaf that the layer sets.
#[derive(Clone, Debug, PartialEq)]
pub struct Override {
    /// RFC 6901 pointer in the component's values.
    pub pointer: String,
    /// What stood there in the base; the layer shadows it. `None` when the base does not set it.
    pub from: Option<Value>,
    /// How the layer's value came in.
    pub how: How,
}

/// How a leaf of the layer came into the values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum How {
    /// A scalar, `null` or an empty map was set, or something of another type was replaced.
    Set,
    /// A list was set as a whole. `dropped` entries that the list below had (the base's, else the chart's default)
    /// are not in it any more.
    ListReplaced {
        /// Entries of the list below that are lost.
        dropped: usize,
    },
    /// A list was merged by a rule.
    ListMerged {
        /// Entries appended.
        added: usize,
        /// Entries merged with one of the base.
        changed: usize,
        /// Entries removed by `$patch: delete`.
        removed: usize,
        /// `$patch: delete` entries that matched nothing.
        unmatched: usize,
    },
}

/// Why a layer cannot be merged. Everything here is about one rule of `lists`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("lists[{rule}] ({path:?}): {reason}")]
pub struct MergeError {
    /// Index of the rule in `lists`.
    pub rule: usize,
    /// Its path.
    pub path: String,
    /// What is wrong.
    pub reason: Reason,
}

/// What is wrong with a list rule or the lists that it names.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Reason {
    /// Not an RFC 6901 pointer below the root.
    #[error("not an RFC 6901 pointer such as /images")]
    Pointer,
    /// Another rule has the same path.
    #[error("a rule before it has the same path; keep one")]
    DuplicateRule,
    /// `Map` without keys.
    #[error("type Map needs `keys`, the fields that identify an element")]
    NoKeys,
    /// `Append` with keys.
    #[error("type Append takes no `keys`")]
    UnexpectedKeys,
    /// The layer's values have nothing at the path.
    #[error("`values` sets nothing there; a rule needs the list that it merges, and cannot reach into lists")]
    NotSet,
    /// Something that is not a list.
    #[error("{place} is {found}, not a list")]
    NotAList {
        /// Whose value it is.
        place: Place,
        /// What it is instead.
        found: &'static str,
    },
    /// An element that is not a map.
    #[error("element {index} of {place} is {found}, not a map, so it has no keys")]
    NotAMap {
        /// Whose list it is.
        place: Place,
        /// Index of the element.
        index: usize,
        /// What it is instead.
        found: &'static str,
    },
    /// An element without one of the keys.
    #[error("element {index} of {place} lacks the key {key:?}")]
    MissingKey {
        /// Whose list it is.
        place: Place,
        /// Index of the element.
        index: usize,
        /// The missing key.
        key: String,
    },
    /// Two elements with the same keys.
    #[error("elements {first} and {second} of {place} have the same keys")]
    DuplicateKey {
        /// Whose list it is.
        place: Place,
        /// Index of one element.
        first: usize,
        /// Index of the other.
        second: usize,
    },
    /// A `$patch` other than `delete`.
    #[error("element {index}: the only `$patch` there is is `delete`")]
    Patch {
        /// Index of the element in the layer's list.
        index: usize,
    },
    /// The base has no list there and the chart's defaults are not known.
    #[error("the Package sets no list there and the chart's own values are not available")]
    NeedsChart,
}

/// Whose list it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The PackageValues'.
    Layer,
    /// The Package's.
    Package,
    /// The chart's default.
    Chart,
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Layer => "the override's value",
            Self::Package => "the Package's value",
            Self::Chart => "the chart's default",
        })
    }
}

/// Merges one component's layer over the Package's values.
///
/// `base` is the Package's `values` (`None` when it has none); `chart` the chart's own defaults, where they are
/// known: base of list rules whose list the Package does not set, and what a replaced list is compared with.
///
/// # Errors
/// When a list rule is wrong, or does not fit the lists that it names. Nothing else can fail.
pub fn merge_component(
    base: Option<&Value>,
    layer: &ComponentValues,
    chart: Option<&Value>,
) -> Result<Merged, MergeError> {
    let rules = layer.lists.as_deref().unwrap_or_default();
    let nothing = Value::Null;
    let over = layer.values.as_ref().unwrap_or(&nothing);
    let by_path = index_rules(rules, over)?;
    let Value::Object(over) = over else {
        return Ok(Merged { values: base.cloned(), overrides: Vec::new() });
    };
    if over.is_empty() {
        return Ok(Merged { values: base.cloned(), overrides: Vec::new() });
    }
    let mut merge = Merge { rules, by_path, chart, pointer: String::new(), overrides: Vec::new() };
    let mut values = base.cloned().unwrap_or_else(|| Value::Object(Map::new()));
    if let Value::Object(values) = &mut values {
        merge.map(values, over)?;
    } else {
        merge.record(Some(values.clone()), How::Set);
        let mut fresh = Map::new();
        merge.map(&mut fresh, over)?;
        values = Value::Object(fresh);
    }
    let mut overrides = merge.overrides;
    overrides.sort_by(|a, b| a.pointer.cmp(&b.pointer));
    Ok(Merged { values: Some(values), overrides })
}

/// Checks each rule by itself and against the layer's values.
fn index_rules<'r>(rules: &'r [ListRule], over: &Value) -> Result<BTreeMap<&'r str, usize>, MergeError> {
    use cozy_api::packages::ListMerge;

    let mut by_path = BTreeMap::new();
    for (index, rule) in rules.iter().enumerate() {
        let fail = |reason| Err(MergeError { rule: index, path: rule.path.clone(), reason });
        if !is_pointer(&rule.path) {
            return fail(Reason::Pointer);
        }
        if by_path.insert(rule.path.as_str(), index).is_some() {
            return fail(Reason::DuplicateRule);
        }
        match (rule.kind, rule.keys.as_deref().unwrap_or_default()) {
            (ListMerge::Map, []) => return fail(Reason::NoKeys),
            (ListMerge::Append, [_, ..]) => return fail(Reason::UnexpectedKeys),
            _ => {}
        }
        match lookup(over, &rule.path) {
            None => return fail(Reason::NotSet),
            Some(Value::Array(_)) => {}
            Some(other) => return fail(Reason::NotAList { place: Place::Layer, found: kind_of(other) }),
        }
    }
    Ok(by_path)
}

/// RFC 6901, below the root: `/a~1b`, every `~` followed by `0` or `1`.
fn is_pointer(path: &str) -> bool {
    path.starts_with('/') && path.split('~').skip(1).all(|rest| rest.starts_with(['0', '1']))
}

/// The value at a pointer that goes through maps only: `Value::pointer` would also step into lists.
fn lookup<'v>(value: &'v Value, pointer: &str) -> Option<&'v Value> {
    pointer
        .split('/')
        .skip(1)
        .try_fold(value, |value, token| value.as_object()?.get(&cozy_yaml::unescape_token(token)))
}

/// The value's type in words.
fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "a map",
    }
}

struct Merge<'a> {
    rules: &'a [ListRule],
    by_path: BTreeMap<&'a str, usize>,
    chart: Option<&'a Value>,
    /// Where the walk stands.
    pointer: String,
    overrides: Vec<Override>,
}

impl Merge<'_> {
    fn record(&mut self, from: Option<Value>, how: How) {
        self.overrides.push(Override { pointer: self.pointer.clone(), from, how });
    }

    fn map(&mut self, target: &mut Map<String, Value>, over: &Map<String, Value>) -> Result<(), MergeError> {
        for (key, value) in over {
            let length = self.pointer.len();
            self.pointer.push('/');
            self.pointer.push_str(&cozy_yaml::escape_token(key));
            self.entry(target, key, value)?;
            self.pointer.truncate(length);
        }
        Ok(())
    }

    fn entry(&mut self, target: &mut Map<String, Value>, key: &str, value: &Value) -> Result<(), MergeError> {
        match value {
            Value::Object(over) => {
                let mut below = target.get_mut(key);
                if let Some(Value::Object(below)) = &mut below {
                    return self.map(below, over);
                }
                if below.is_some() || over.is_empty() {
                    self.record(below.cloned(), How::Set);
                }
                let mut fresh = Map::new();
                self.map(&mut fresh, over)?;
                target.insert(key.to_owned(), Value::Object(fresh));
            }
            Value::Array(list) => {
                let below = target.get(key);
                let (merged, how) = match self.by_path.get(self.pointer.as_str()) {
                    Some(&rule) => self.merge_list(rule, below, list)?,
                    None => (list.clone(), How::ListReplaced { dropped: self.dropped(below, list) }),
                };
                let from = target.insert(key.to_owned(), Value::Array(merged));
                self.record(from, how);
            }
            scalar => {
                let from = target.insert(key.to_owned(), scalar.clone());
                self.record(from, How::Set);
            }
        }
        Ok(())
    }

    fn merge_list(
        &self,
        index: usize,
        below: Option<&Value>,
        list: &[Value],
    ) -> Result<(Vec<Value>, How), MergeError> {
        let Some(rule) = self.rules.get(index) else { return Ok((list.to_vec(), How::Set)) };
        let fail = |reason| MergeError { rule: index, path: rule.path.clone(), reason };
        let (base, place) = match below {
            Some(Value::Array(base)) => (base.as_slice(), Place::Package),
            // The Package removes the chart's default on purpose.
            Some(Value::Null) => (&[] as &[Value], Place::Package),
            Some(other) => {
                return Err(fail(Reason::NotAList { place: Place::Package, found: kind_of(other) }));
            }
            None => match self.chart.map(|chart| lookup(chart, &self.pointer)) {
                None => return Err(fail(Reason::NeedsChart)),
                Some(Some(Value::Array(base))) => (base.as_slice(), Place::Chart),
                Some(None | Some(Value::Null)) => (&[] as &[Value], Place::Chart),
                Some(Some(other)) => {
                    return Err(fail(Reason::NotAList { place: Place::Chart, found: kind_of(other) }));
                }
            },
        };
        lists::merge(rule, base, place, list).map_err(fail)
    }

    /// Entries of the list below that the new list does not have.
    fn dropped(&self, below: Option<&Value>, list: &[Value]) -> usize {
        let base = match below {
            Some(below) => below.as_array(),
            None => self.chart.and_then(|chart| lookup(chart, &self.pointer)).and_then(Value::as_array),
        };
        let Some(base) = base else { return 0 };
        let mut kept: Vec<String> = list.iter().map(cozy_yaml::canonical_json).collect();
        kept.sort_unstable();
        base.iter().filter(|entry| kept.binary_search(&cozy_yaml::canonical_json(entry)).is_err()).count()
    }
}

/// Merges one map over another without rules: what an element of a `Map` list gets.
fn merge_plain(target: &mut Value, over: &Value) {
    match (target, over) {
        (Value::Object(target), Value::Object(over)) => {
            for (key, value) in over {
                match target.get_mut(key) {
                    Some(below) => merge_plain(below, value),
                    None => {
                        target.insert(key.clone(), value.clone());
                    }
                }
            }
        }
        (target, over) => *target = over.clone(),
    }
}
