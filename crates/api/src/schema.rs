//! The CustomResourceDefinitions of Package, PackageSource and PackageValues.
//!
//! Those of Package and PackageSource are Cozystack's own plus the status that overrides need: every validation,
//! and nothing beyond, so that both operators' CRDs take each other's objects.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceColumnDefinition, CustomResourceDefinition, CustomResourceDefinitionNames,
    CustomResourceDefinitionSpec, CustomResourceDefinitionVersion, CustomResourceSubresourceStatus,
    CustomResourceSubresources, CustomResourceValidation, JSONSchemaProps,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::schema::{OptionalEnum, StructuralSchemaRewriter};
use kube::{CustomResourceExt, Resource};
use schemars::generate::SchemaSettings;
use schemars::transform::AddNullable;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde_json::{Value, json};

use crate::packages::{
    Package, PackageSource, PackageSourceSpec, PackageSourceStatus, PackageSpec, PackageStatus,
    PackageValues, PackageValuesSpec, PackageValuesStatus,
};

/// Components that a PackageValues may override. With the bounds below it keeps the estimated cost of the CEL
/// rule within the API server's budget.
pub(crate) const MAX_COMPONENTS: u32 = 256;
/// List rules per component.
pub(crate) const MAX_LISTS: u32 = 64;
/// Fields that identify an element of one list.
pub(crate) const MAX_KEYS: u32 = 8;
/// Characters of a field's name.
pub(crate) const MAX_KEY_LENGTH: u32 = 253;
/// Characters of a list's pointer.
pub(crate) const MAX_POINTER_LENGTH: u32 = 1024;
/// RFC 6901, without the empty pointer: the values themselves are an object, not a list.
pub(crate) const POINTER_PATTERN: &str = "^(/([^/~]|~[01])*)+$";

/// All CRDs, in the order in which they are applied: Package, PackageSource, PackageValues.
///
/// Beside an unmodified Cozystack operator (overlay mode) only the last one is ours to install.
#[must_use]
pub fn crds() -> Vec<CustomResourceDefinition> {
    vec![Package::crd(), PackageSource::crd(), PackageValues::crd()]
}

/// Any JSON value, kept as it is.
pub(crate) fn any_value(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "x-kubernetes-preserve-unknown-fields": true })
}

/// Any JSON object, kept as it is.
pub(crate) fn object_value(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true })
}

/// `metav1.Condition` with the validations that controller-gen gives it; k8s-openapi's schema has none.
pub(crate) fn conditions(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "items": {
            "description": "One aspect of the current state of this object.",
            "type": "object",
            "required": ["lastTransitionTime", "message", "reason", "status", "type"],
            "properties": {
                "lastTransitionTime": {
                    "description": "When the status last changed from one value to another.",
                    "type": "string",
                    "format": "date-time",
                },
                "message": {
                    "description": "Details for a person; may be empty.",
                    "type": "string",
                    "maxLength": 32768,
                },
                "observedGeneration": {
                    "description": "`metadata.generation` that the condition was set upon.",
                    "type": "integer",
                    "format": "int64",
                    "minimum": 0,
                },
                "reason": {
                    "description": "Reason of the last transition, in CamelCase, for programs.",
                    "type": "string",
                    "maxLength": 1024,
                    "minLength": 1,
                    "pattern": "^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$",
                },
                "status": {
                    "description": "`True`, `False` or `Unknown`.",
                    "type": "string",
                    "enum": ["True", "False", "Unknown"],
                },
                "type": {
                    "description": "Type of condition, in CamelCase.",
                    "type": "string",
                    "maxLength": 316,
                    "pattern": concat!(
                        "^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?",
                        "(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$"
                    ),
                },
            },
        },
    })
}

/// [`conditions`] at most one of each type. Cozystack's CRDs lack the rule, so it is for our own kind alone.
pub(crate) fn conditions_by_type(generator: &mut SchemaGenerator) -> Schema {
    let mut schema = conditions(generator);
    schema.insert("x-kubernetes-list-type".to_owned(), json!("map"));
    schema.insert("x-kubernetes-list-map-keys".to_owned(), json!(["type"]));
    schema
}

/// `keys` exactly for `Map`.
pub(crate) fn list_rule_validations() -> Value {
    json!([{
        "rule": "has(self.keys) == (self.type == 'Map')",
        "message": "type Map needs keys, the fields that identify an element; type Append has none",
        "fieldPath": ".keys",
    }])
}

/// Schema of a kind, from its spec's and status' types.
fn object_schema<Spec: JsonSchema, Status: JsonSchema>(description: &str) -> Option<JSONSchemaProps> {
    let mut schema = json!({
        "description": description,
        "type": "object",
        "properties": {
            "apiVersion": {
                "description": "Version of the schema of this object; see the Kubernetes API conventions.",
                "type": "string",
            },
            "kind": { "description": "Kind of this object; cannot be changed.", "type": "string" },
            "metadata": { "type": "object" },
            "spec": part::<Spec>(),
            "status": part::<Status>(),
        },
    });
    tidy(&mut schema);
    serde_json::from_value(schema).ok()
}

/// Schema of one type by the same steps as kube's derive.
fn part<T: JsonSchema>() -> Value {
    SchemaSettings::openapi3()
        .with(|settings| {
            settings.inline_subschemas = true;
            settings.meta_schema = None;
        })
        .with_transform(AddNullable::default())
        .with_transform(StructuralSchemaRewriter)
        .with_transform(OptionalEnum)
        .into_generator()
        .into_root_schema_for::<T>()
        .to_value()
}

/// Removes what schemars derives from `Option` and serde's defaults: an optional field may be absent, but `null`
/// is no value of it in Cozystack's CRDs, and no field is filled in.
fn tidy(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            if fields.get("nullable") == Some(&Value::Bool(true)) {
                fields.remove("nullable");
            }
            for (name, field) in fields.iter_mut() {
                match (name.as_str(), field) {
                    // Below it the keys are fields of the object, not of the schema.
                    ("properties", Value::Object(properties)) => {
                        for property in properties.values_mut() {
                            if let Value::Object(keywords) = property {
                                keywords.remove("default");
                                keywords.remove("title");
                            }
                            tidy(property);
                        }
                    }
                    (_, field) => tidy(field),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(tidy),
        _ => {}
    }
}

/// One printer column.
fn column(name: &str, kind: &str, json_path: &str, description: &str) -> CustomResourceColumnDefinition {
    CustomResourceColumnDefinition {
        name: name.to_owned(),
        type_: kind.to_owned(),
        json_path: json_path.to_owned(),
        description: Some(description.to_owned()),
        ..CustomResourceColumnDefinition::default()
    }
}

const READY: &str = ".status.conditions[?(@.type=='Ready')].status";
const READY_MESSAGE: &str = ".status.conditions[?(@.type=='Ready')].message";

/// The CRD of a cluster-scoped kind with one version, stored and served, and a status subresource.
fn definition<K: Resource<DynamicType = ()>>(
    short_names: &[&str],
    categories: &[&str],
    columns: Vec<CustomResourceColumnDefinition>,
    schema: Option<JSONSchemaProps>,
) -> CustomResourceDefinition {
    let (kind, plural, group) = (K::kind(&()), K::plural(&()), K::group(&()));
    let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    CustomResourceDefinition {
        metadata: ObjectMeta { name: Some(format!("{plural}.{group}")), ..ObjectMeta::default() },
        spec: CustomResourceDefinitionSpec {
            group: group.into_owned(),
            names: CustomResourceDefinitionNames {
                kind: kind.to_string(),
                list_kind: Some(format!("{kind}List")),
                plural: plural.into_owned(),
                singular: Some(kind.to_lowercase()),
                short_names: Some(owned(short_names)),
                categories: (!categories.is_empty()).then(|| owned(categories)),
            },
            scope: "Cluster".to_owned(),
            versions: vec![CustomResourceDefinitionVersion {
                name: K::version(&()).into_owned(),
                served: true,
                storage: true,
                additional_printer_columns: Some(columns),
                schema: Some(CustomResourceValidation { open_api_v3_schema: schema }),
                subresources: Some(CustomResourceSubresources {
                    scale: None,
                    status: Some(CustomResourceSubresourceStatus(json!({}))),
                }),
                ..CustomResourceDefinitionVersion::default()
            }],
            ..CustomResourceDefinitionSpec::default()
        },
        ..CustomResourceDefinition::default()
    }
}

/// [`CustomResourceExt`] from [`definition`]'s arguments.
macro_rules! custom_resource {
    ($kind:ident, $name:literal, $short:expr, $categories:expr, $columns:expr, $schema:expr) => {
        impl CustomResourceExt for $kind {
            fn crd() -> CustomResourceDefinition {
                definition::<Self>(Self::shortnames(), $categories, $columns, $schema)
            }
            fn crd_name() -> &'static str {
                $name
            }
            fn api_resource() -> kube::core::ApiResource {
                kube::core::ApiResource::erase::<Self>(&())
            }
            fn shortnames() -> &'static [&'static str] {
                $short
            }
        }
    };
}

custom_resource!(
    Package,
    "packages.cozystack.io",
    &["pkg", "pkgs"],
    &[],
    vec![
        column("Variant", "string", ".spec.variant", "Selected variant"),
        column("Ready", "string", READY, "Ready status"),
        column("Status", "string", READY_MESSAGE, "Ready message"),
        column("Overrides", "string", ".status.overrideSummary", "What the PackageValues overrides"),
    ],
    object_schema::<PackageSpec, PackageStatus>(
        "An installed package: which variant of the PackageSource of the same name, with what values."
    )
);

custom_resource!(
    PackageSource,
    "packagesources.cozystack.io",
    &["pks"],
    &[],
    vec![
        column("Variants", "string", ".status.variants", "Package variants (comma-separated)"),
        column("Ready", "string", READY, "Ready status"),
        column("Status", "string", READY_MESSAGE, "Ready message"),
    ],
    object_schema::<PackageSourceSpec, PackageSourceStatus>(
        "A package that can be installed: where its charts come from and which variants it has."
    )
);

custom_resource!(
    PackageValues,
    "packagevalues.cozystack.io",
    &["pkv"],
    &["cozystack"],
    vec![
        column("Ready", "string", READY, "Whether the overrides are in force"),
        column(
            "Reason",
            "string",
            ".status.conditions[?(@.type=='Ready')].reason",
            "Why they are or are not"
        ),
        column("Status", "string", READY_MESSAGE, "Ready message"),
        CustomResourceColumnDefinition {
            priority: Some(1),
            ..column("Suspended", "boolean", ".spec.suspend", "Whether the overrides are suspended")
        },
        column("Age", "date", ".metadata.creationTimestamp", "Time since creation"),
    ],
    object_schema::<PackageValuesSpec, PackageValuesStatus>(
        "The admin's override layer of the Package of the same name, which is the only binding there is."
    )
);
