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

use std::collections::{BTreeMap, HashSet};

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
    /// A list was set as a whole.
    ListReplaced {
        /// Whose list it replaces; `None` when there is none below, or the chart's defaults are not known.
        below: Option<Place>,
        /// Entries of the list below that the new one does not have.
        dropped: usize,
    },
    /// A list was merged by a rule.
    ListMerged {
        /// Whose list it was merged into; the chart's is copied into the values by that.
        below: Place,
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

impl Override {
    /// Whether the Package sets this as well, so that the layer shadows it.
    #[must_use]
    pub fn shadows(&self) -> bool {
        self.from.is_some()
    }
}

/// Why a layer cannot be merged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MergeError {
    /// `values` is neither a map nor absent.
    #[error("`values` is {found}, not a map")]
    Values {
        /// What it is instead.
        found: &'static str,
    },
    /// A rule of `lists` is wrong, or does not fit the lists that it names.
    #[error("lists[{rule}] ({path:?}): {reason}")]
    Rule {
        /// Index of the rule in `lists`.
        rule: usize,
        /// Its path.
        path: String,
        /// What is wrong.
        reason: Reason,
    },
}

impl MergeError {
    /// Whether the same merge may succeed once the chart's own defaults are given.
    #[must_use]
    pub fn needs_chart_defaults(&self) -> bool {
        matches!(self, Self::Rule { reason: Reason::NeedsChartDefaults, .. })
    }

    /// RFC 6901 pointer, within the component's part of the PackageValues, of what is to be corrected:
    /// `/lists/0/path`, `/values/images/2`.
    #[must_use]
    pub fn pointer(&self) -> String {
        match self {
            Self::Values { .. } => "/values".to_owned(),
            Self::Rule { rule, path, reason } => match reason {
                Reason::NotAList { place: Place::Layer, .. } => format!("/values{path}"),
                Reason::NotAMap { place: Place::Layer, index, .. }
                | Reason::MissingKey { place: Place::Layer, index, .. }
                | Reason::DuplicateKey { place: Place::Layer, second: index, .. }
                | Reason::Patch { index } => format!("/values{path}/{index}"),
                Reason::NoKeys => format!("/lists/{rule}"),
                Reason::UnexpectedKeys | Reason::RepeatedKey { .. } => format!("/lists/{rule}/keys"),
                _ => format!("/lists/{rule}/path"),
            },
        }
    }
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
    /// `Map` with the same key twice.
    #[error("`keys` names {key:?} twice")]
    RepeatedKey {
        /// The key.
        key: String,
    },
    /// The layer's values have nothing at the path.
    #[error("`values` of this component sets nothing there; a rule speaks of a list that the override sets")]
    NotSet,
    /// The path leads through a list.
    #[error(
        "the path leads into the list {list:?}; elements of lists have no address, so lists inside them replace"
    )]
    ThroughList {
        /// Pointer of that list.
        list: String,
    },
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
    /// The Package has no list there and the chart's defaults are not known.
    #[error(
        "the Package sets no list there, so the chart's default list is the base, and the chart's values are not at hand"
    )]
    NeedsChartDefaults,
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
/// `base` is the Package's `values` (`None` when it has none; `null` says as little); `chart` the chart's own
/// defaults, where they are known: base of list rules whose list the Package does not set, and what a replaced
/// list is compared with. The cost is linear in the sizes of the three.
///
/// # Errors
/// When the layer's values are not a map, a list rule is wrong, or does not fit the lists that it names.
/// [`MergeError::needs_chart_defaults`] tells whether the call is worth repeating with the chart's defaults.
pub fn merge_component(
    base: Option<&Value>,
    layer: &ComponentValues,
    chart: Option<&Value>,
) -> Result<Merged, MergeError> {
    let rules = layer.lists.as_deref().unwrap_or_default();
    let nothing = Map::new();
    let over = match &layer.values {
        Some(Value::Object(over)) => over,
        None | Some(Value::Null) => &nothing,
        Some(other) => return Err(MergeError::Values { found: kind_of(other) }),
    };
    let by_path = index_rules(rules, over)?;
    if over.is_empty() {
        return Ok(Merged { values: base.cloned(), overrides: Vec::new() });
    }
    let mut merge = Merge { rules, by_path, chart, pointer: String::new(), overrides: Vec::new() };
    let mut values = match base {
        Some(Value::Object(map)) => map.clone(),
        None | Some(Value::Null) => Map::new(),
        Some(other) => {
            // Helm takes nothing but a map; a Package that says otherwise is replaced as a whole.
            merge.record(Some(other.clone()), How::Set);
            Map::new()
        }
    };
    merge.map(&mut values, over)?;
    let mut overrides = merge.overrides;
    overrides.sort_by(|a, b| a.pointer.cmp(&b.pointer));
    Ok(Merged { values: Some(Value::Object(values)), overrides })
}

/// Checks each rule by itself and against the layer's values.
fn index_rules<'r>(
    rules: &'r [ListRule],
    over: &Map<String, Value>,
) -> Result<BTreeMap<&'r str, usize>, MergeError> {
    use cozy_api::packages::ListMerge;

    let mut by_path = BTreeMap::new();
    for (index, rule) in rules.iter().enumerate() {
        let fail = |reason| Err(MergeError::Rule { rule: index, path: rule.path.clone(), reason });
        if !is_pointer(&rule.path) {
            return fail(Reason::Pointer);
        }
        if by_path.insert(rule.path.as_str(), index).is_some() {
            return fail(Reason::DuplicateRule);
        }
        match (rule.kind, rule.keys.as_deref().unwrap_or_default()) {
            (ListMerge::Map, []) => return fail(Reason::NoKeys),
            (ListMerge::Map, keys) => {
                if let Some((_, key)) =
                    keys.iter().enumerate().find(|(i, key)| keys.iter().take(*i).any(|k| k == *key))
                {
                    return fail(Reason::RepeatedKey { key: key.clone() });
                }
            }
            (ListMerge::Append, [_, ..]) => return fail(Reason::UnexpectedKeys),
            (ListMerge::Append, []) => {}
        }
        match lookup(over, &rule.path) {
            Found::Nothing => return fail(Reason::NotSet),
            Found::Below(list) => return fail(Reason::ThroughList { list: list.to_owned() }),
            Found::Value(Value::Array(_)) => {}
            Found::Value(other) => {
                return fail(Reason::NotAList { place: Place::Layer, found: kind_of(other) });
            }
        }
    }
    Ok(by_path)
}

/// RFC 6901, below the root: `/a~1b`, every `~` followed by `0` or `1`.
fn is_pointer(path: &str) -> bool {
    path.starts_with('/') && path.split('~').skip(1).all(|rest| rest.starts_with(['0', '1']))
}

/// What stands at a pointer.
enum Found<'v, 'p> {
    Nothing,
    Value(&'v Value),
    /// The pointer goes on below a list, whose own pointer this is.
    Below(&'p str),
}

/// The value at a pointer that goes through maps only: `Value::pointer` would also step into lists.
fn lookup<'v, 'p>(map: &'v Map<String, Value>, pointer: &'p str) -> Found<'v, 'p> {
    let mut map = map;
    let mut end = 0;
    let mut tokens = pointer.split('/').skip(1).peekable();
    while let Some(token) = tokens.next() {
        end += 1 + token.len();
        let Some(value) = map.get(&cozy_yaml::unescape_token(token)) else { return Found::Nothing };
        if tokens.peek().is_none() {
            return Found::Value(value);
        }
        match value {
            Value::Object(below) => map = below,
            Value::Array(_) => return Found::Below(pointer.get(..end).unwrap_or(pointer)),
            _ => return Found::Nothing,
        }
    }
    Found::Nothing
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
            cozy_yaml::push_token(&mut self.pointer, key);
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
                    None => (list.clone(), self.replaced(below, list)),
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
        let Some(rule) = self.rules.get(index) else {
            return Ok((list.to_vec(), self.replaced(below, list)));
        };
        let fail = |reason| MergeError::Rule { rule: index, path: rule.path.clone(), reason };
        // What is wrong with the layer itself is told first, whatever the list below.
        let layer = lists::layer(rule, list).map_err(fail)?;
        let (base, place) = match below {
            Some(Value::Array(base)) => (base.as_slice(), Place::Package),
            // The Package removes the chart's default on purpose.
            Some(Value::Null) => (&[] as &[Value], Place::Package),
            Some(other) => {
                return Err(fail(Reason::NotAList { place: Place::Package, found: kind_of(other) }));
            }
            None => match self.chart {
                None => return Err(fail(Reason::NeedsChartDefaults)),
                Some(chart) => match self.default(chart) {
                    Some(Value::Array(base)) => (base.as_slice(), Place::Chart),
                    None | Some(Value::Null) => (&[] as &[Value], Place::Chart),
                    Some(other) => {
                        return Err(fail(Reason::NotAList { place: Place::Chart, found: kind_of(other) }));
                    }
                },
            },
        };
        lists::merge(rule, base, place, &layer).map_err(fail)
    }

    /// The chart's default where the walk stands.
    fn default<'c>(&self, chart: &'c Value) -> Option<&'c Value> {
        match lookup(chart.as_object()?, &self.pointer) {
            Found::Value(value) => Some(value),
            Found::Nothing | Found::Below(_) => None,
        }
    }

    /// What is lost with the list below.
    fn replaced(&self, below: Option<&Value>, list: &[Value]) -> How {
        let (base, place) = match below {
            Some(below) => (below.as_array(), Place::Package),
            None => {
                (self.chart.and_then(|chart| self.default(chart)).and_then(Value::as_array), Place::Chart)
            }
        };
        let Some(base) = base else { return How::ListReplaced { below: None, dropped: 0 } };
        let kept: HashSet<String> = list.iter().map(cozy_yaml::canonical_json).collect();
        let dropped = base.iter().filter(|entry| !kept.contains(&cozy_yaml::canonical_json(entry))).count();
        How::ListReplaced { below: Some(place), dropped }
    }
}

/// Merges one map over another without rules: what an element of a `Map` list gets.
pub(crate) fn merge_plain(target: &mut Value, over: &Value) {
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
