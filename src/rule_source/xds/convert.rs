//! Converts xDS resources to the schema of rules, which the compiler shares with YAML.
//!
//! A string that is not UTF-8 is an error of its rule rather than of the stream, so strings are bytes
//! until here (see `build.rs`).

use std::sync::Arc;

use prost::Message as _;
use prost_types::value::Kind;
use prost_types::{Any, Struct, Value};
use serde_json::Value as Json;

use crate::config::error::{Draft, SourceFindings};
use crate::config::metadata::number;
use crate::config::schema::take_block;
use crate::config::source::Located;
use crate::config::spec::{DescriptorSpec, RateLimitSpec, RulesFile};
use crate::config::yaml::Location;
use crate::config::{Input, Source};
use crate::proto::ratelimit::config::ratelimit::v3::{
    RateLimitConfig, RateLimitDescriptor, RateLimitPolicy, RateLimitUnit,
};
use crate::rules::Metadata;
use crate::text::Text;

/// The type of the resources.
pub(crate) const TYPE_URL: &str =
    "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig";

/// A decoded resource.
#[derive(Debug)]
pub(crate) struct Resource {
    source: Source,
    config: RateLimitConfig,
}

/// The first fields of a [`RateLimitConfig`], to name a resource whose rest cannot be decoded.
#[derive(prost::Message)]
struct Head {
    #[prost(bytes = "vec", tag = "1")]
    name: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    domain: Vec<u8>,
}

/// Converts the strings of one part of a resource.
struct Strings<'s, 'f> {
    place: &'s str,
    findings: &'s mut SourceFindings<'f>,
}

impl Resource {
    /// Decodes an [`Any`].
    ///
    /// # Errors
    /// It has another type, or an invalid encoding.
    pub(crate) fn read(resource: &[u8]) -> Result<Self, String> {
        let any = Any::decode(resource)
            .map_err(|error| format!("a resource cannot be decoded: {error}"))?;
        if any.type_url != TYPE_URL {
            return Err(format!(
                "a resource has type {}; expected {TYPE_URL}",
                any.type_url
            ));
        }
        let config = RateLimitConfig::decode(&*any.value).map_err(|error| {
            match Head::decode(&*any.value) {
                Ok(Head { name, domain }) => format!(
                    "resource {:?} of domain {:?} cannot be decoded: {error}",
                    Text(&name),
                    Text(&domain)
                ),
                Err(_) => format!("a resource cannot be decoded: {error}"),
            }
        })?;
        let name: Arc<str> = Text(&config.name).shown().into();
        Ok(Self {
            source: Source {
                name: name.clone(),
                path: name,
                text: "".into(),
            },
            config,
        })
    }

    pub(crate) fn name(&self) -> &str {
        &self.source.name
    }

    /// Its canonical encoding: servers encode maps in any order.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.config.encode_to_vec()
    }
}

impl Input for Resource {
    fn source(&self) -> &Source {
        &self.source
    }

    fn read(&self, findings: &mut SourceFindings<'_>) -> Option<RulesFile> {
        let domain = format!("domain {}", Text(&self.config.domain));
        let mut strings = Strings {
            place: &domain,
            findings,
        };
        strings.text("name", &self.config.name);
        let located_domain = strings.located("domain", &self.config.domain);
        let descriptors = level(&self.config.descriptors, &format!("{domain} > "), findings);
        Some(RulesFile {
            domain: located_domain,
            descriptors,
            block: None,
        })
    }
}

impl Strings<'_, '_> {
    /// A string as text. If it is not UTF-8, that is an error, and the text is percent-encoded.
    fn text(&mut self, field: &str, bytes: &[u8]) -> String {
        let text = Text(bytes).shown();
        if str::from_utf8(bytes).is_err() {
            let text = format!("{field} is not UTF-8: {text}");
            let hint = Some(
                "send rules in UTF-8; bytes that are not are shown percent-encoded".to_owned(),
            );
            self.findings.problem(Draft {
                location: Location::default(),
                place: self.place,
                text,
                hint,
            });
        }
        text.into_owned()
    }

    fn located(&mut self, field: &str, bytes: &[u8]) -> Located<String> {
        located(self.text(field, bytes))
    }

    fn rate_limit(&mut self, policy: &RateLimitPolicy) -> RateLimitSpec {
        // An unknown number appears in the error as it was sent.
        let unit = RateLimitUnit::try_from(policy.unit).map_or_else(
            |_| policy.unit.to_string(),
            |unit| unit.as_str_name().to_owned(),
        );
        RateLimitSpec {
            unit: located(unit),
            requests_per_unit: policy.requests_per_unit,
            unlimited: policy.unlimited,
            name: self.text("rate_limit.name", &policy.name),
            replaces: policy
                .replaces
                .iter()
                .map(|other| self.located("rate_limit.replaces.name", &other.name))
                .collect(),
            ..RateLimitSpec::default()
        }
    }
}

fn level(
    descriptors: &[RateLimitDescriptor],
    place: &str,
    findings: &mut SourceFindings<'_>,
) -> Vec<DescriptorSpec> {
    let numbered = descriptors.iter().enumerate();
    numbered
        .map(|(index, one)| descriptor(one, &format!("{place}descriptors[{index}]"), findings))
        .collect()
}

fn descriptor(
    descriptor: &RateLimitDescriptor,
    place: &str,
    findings: &mut SourceFindings<'_>,
) -> DescriptorSpec {
    let mut strings = Strings { place, findings };
    let key = strings.located("key", &descriptor.key);
    let value = strings.located("value", &descriptor.value);
    let rate_limit = descriptor
        .rate_limit
        .as_ref()
        .map(|policy| strings.rate_limit(policy));
    let mut metadata = descriptor.metadata.as_ref().map(json);
    DescriptorSpec {
        key,
        value,
        rate_limit,
        descriptors: level(&descriptor.descriptors, &format!("{place}."), findings),
        // Envoy Gateway sets it on every descriptor of a chain that ends in a limit, where it has no
        // effect, and users cannot change it.
        shadow_mode: descriptor.shadow_mode && descriptor.rate_limit.is_some(),
        quota_mode: descriptor.quota_mode,
        detailed_metric: descriptor.detailed_metric,
        block: metadata
            .as_mut()
            .and_then(|metadata| take_block(metadata, place, findings)),
        metadata,
        ..DescriptorSpec::default()
    }
}

fn json(metadata: &Struct) -> Metadata {
    metadata
        .fields
        .iter()
        .map(|(key, value)| (key.clone(), json_value(value)))
        .collect()
}

fn json_value(value: &Value) -> Json {
    match &value.kind {
        None | Some(Kind::NullValue(_)) => Json::Null,
        Some(Kind::NumberValue(value)) => number(*value),
        Some(Kind::StringValue(text)) => text.clone().into(),
        Some(Kind::BoolValue(value)) => (*value).into(),
        Some(Kind::StructValue(fields)) => json(fields).into(),
        Some(Kind::ListValue(list)) => list.values.iter().map(json_value).collect(),
    }
}

fn located(value: String) -> Located<String> {
    Located {
        value,
        ..Located::default()
    }
}
