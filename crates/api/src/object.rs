//! The envelope that every kind here shares: `apiVersion`, `kind`, `metadata`, `spec`, `status`.
//!
//! Not kube's `CustomResource` derive, for two reasons. Its root object refuses one without `spec`, which
//! Cozystack's CRDs let through: a single `kind: Package` with nothing but a name would stop the watch of all
//! of them. And its schemas make every optional field nullable, which those CRDs do not.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use serde::Deserialize;
use serde_json::Value;

/// Defines a kind: its struct, [`kube::Resource`] and the two-way serialization with `apiVersion` and `kind`.
macro_rules! object {
    (@scope Cluster) => { kube::core::ClusterResourceScope };
    (@scope Namespaced) => { kube::core::NamespaceResourceScope };
    (@new Cluster, $name:ident, $spec:ty) => {
        impl $name {
            /// The object of that name, without status.
            #[must_use]
            pub fn new(name: &str, spec: $spec) -> Self {
                let mut object = Self { spec, ..Self::default() };
                object.metadata.name = Some(name.to_owned());
                object
            }
        }
    };
    (@new Namespaced, $name:ident, $spec:ty) => {
        impl $name {
            /// The object of that namespace and name, without status.
            #[must_use]
            pub fn new(namespace: &str, name: &str, spec: $spec) -> Self {
                let mut object = Self { spec, ..Self::default() };
                object.metadata.namespace = Some(namespace.to_owned());
                object.metadata.name = Some(name.to_owned());
                object
            }
        }
    };
    (
        $(#[$doc:meta])*
        $name:ident = $scope:ident $group:literal / $version:literal $plural:literal, $spec:ty, $status:ty
    ) => {
        $(#[$doc])*
        #[derive(Clone, Debug, Default, PartialEq, serde::Deserialize)]
        pub struct $name {
            /// Name, labels, owners and so on.
            #[serde(default)]
            pub metadata: k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta,
            /// What is wanted; empty when the object has none.
            #[serde(default, deserialize_with = "crate::object::null_is_default")]
            pub spec: $spec,
            /// What was seen.
            #[serde(default)]
            pub status: Option<$status>,
        }

        $crate::object::object!(@new $scope, $name, $spec);

        impl kube::Resource for $name {
            type DynamicType = ();
            type Scope = $crate::object::object!(@scope $scope);

            fn kind(_: &()) -> std::borrow::Cow<'_, str> {
                stringify!($name).into()
            }
            fn group(_: &()) -> std::borrow::Cow<'_, str> {
                $group.into()
            }
            fn version(_: &()) -> std::borrow::Cow<'_, str> {
                $version.into()
            }
            fn api_version(_: &()) -> std::borrow::Cow<'_, str> {
                concat!($group, "/", $version).into()
            }
            fn plural(_: &()) -> std::borrow::Cow<'_, str> {
                $plural.into()
            }
            fn meta(&self) -> &k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta {
                &self.metadata
            }
            fn meta_mut(&mut self) -> &mut k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta {
                &mut self.metadata
            }
        }

        impl kube::core::object::HasSpec for $name {
            type Spec = $spec;

            fn spec(&self) -> &$spec {
                &self.spec
            }
            fn spec_mut(&mut self) -> &mut $spec {
                &mut self.spec
            }
        }

        impl kube::core::object::HasStatus for $name {
            type Status = $status;

            fn status(&self) -> Option<&$status> {
                self.status.as_ref()
            }
            fn status_mut(&mut self) -> &mut Option<$status> {
                &mut self.status
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                use serde::ser::SerializeStruct;
                let fields = 4 + usize::from(self.status.is_some());
                let mut object = serializer.serialize_struct(stringify!($name), fields)?;
                object.serialize_field("apiVersion", concat!($group, "/", $version))?;
                object.serialize_field("kind", stringify!($name))?;
                object.serialize_field("metadata", &self.metadata)?;
                object.serialize_field("spec", &self.spec)?;
                if let Some(status) = &self.status {
                    object.serialize_field("status", status)?;
                }
                object.end()
            }
        }
    };
}

pub(crate) use object;

/// Reads `null` as nothing: the API server drops a `null` that is the value of a field or of a map's entry (and
/// refuses one that is an element of a list), so what is read from files has to do the same.
pub(crate) fn null_is_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: serde::Deserializer<'de>,
    T: serde::Deserialize<'de> + Default,
{
    Ok(Option::<T>::deserialize(deserializer)?.unwrap_or_default())
}

/// Reads conditions, whatever a CRD lets through: its `format: date-time` is looser than ours (`23:59:59,5z` is one),
/// and one odd timestamp must not stop the watch of all objects. Such a condition is kept with the epoch as its time.
pub(crate) fn conditions<'de, D>(deserializer: D) -> Result<Option<Vec<Condition>>, D::Error>
where
    D: serde::Deserializer<'de>,
{
    let read = |mut condition: Value| {
        serde_json::from_value(condition.clone()).ok().or_else(|| {
            *condition.get_mut("lastTransitionTime")? = Value::from("1970-01-01T00:00:00Z");
            serde_json::from_value(condition).ok()
        })
    };
    let conditions = Option::<Vec<Value>>::deserialize(deserializer)?;
    Ok(conditions.map(|conditions| conditions.into_iter().filter_map(read).collect()))
}

/// Reads a map without the entries that are `null`; see [`null_is_default`].
pub(crate) fn null_entries_are_absent<'de, D, V>(
    deserializer: D,
) -> Result<Option<BTreeMap<String, V>>, D::Error>
where
    D: serde::Deserializer<'de>,
    V: serde::Deserialize<'de>,
{
    let map = Option::<BTreeMap<String, Option<V>>>::deserialize(deserializer)?;
    Ok(map.map(|map| map.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()))
}
