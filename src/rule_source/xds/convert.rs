//! From what a control plane sends to the shape of rules. No judgement: that is the compiler's, who knows no protobuf.

use prost::Message as _;
use prost_types::value::Kind;
use prost_types::{Any, Struct, Value};
use serde_json::Value as Json;

use crate::config::error::SourceFindings;
use crate::config::metadata::number;
use crate::config::schema::{DescriptorSpec, RateLimitSpec, RulesFile, take_block};
use crate::config::{Input, Located, Source};
use crate::proto::ratelimit::config::ratelimit::v3::{RateLimitConfig, RateLimitDescriptor, RateLimitPolicy, RateLimitUnit};
use crate::rules::Metadata;

/// What is asked for.
pub const TYPE_URL: &str = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig";

/// A resource that could be read.
#[derive(Debug)]
pub struct Resource {
    source: Source,
    config: RateLimitConfig,
}

impl Resource {
    /// Reads a resource.
    ///
    /// # Errors
    /// It is of another type, or no protobuf.
    pub fn read(any: &Any) -> Result<Self, String> {
        if any.type_url != TYPE_URL {
            return Err(format!("a resource is of type {}, and not {TYPE_URL}", any.type_url));
        }
        let config = RateLimitConfig::decode(&*any.value).map_err(|error| format!("a resource cannot be read: {error}"))?;
        let name: std::sync::Arc<str> = config.name.as_str().into();
        Ok(Self { source: Source { name: name.clone(), path: name, text: "".into() }, config })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.config.name
    }

    /// Its bytes as we would write them: servers write maps in any order.
    pub fn bytes(&self) -> Vec<u8> {
        self.config.encode_to_vec()
    }
}

impl Input for Resource {
    fn source(&self) -> &Source {
        &self.source
    }

    fn read(&self, findings: &mut SourceFindings<'_>) -> Option<RulesFile> {
        let place = format!("domain {} > ", self.config.domain);
        let descriptors = level(&self.config.descriptors, &place, findings);
        Some(RulesFile { domain: located(&self.config.domain), descriptors, block: None })
    }
}

fn level(descriptors: &[RateLimitDescriptor], place: &str, findings: &mut SourceFindings<'_>) -> Vec<DescriptorSpec> {
    let numbered = descriptors.iter().enumerate();
    numbered.map(|(index, one)| descriptor(one, &format!("{place}descriptors[{index}]"), findings)).collect()
}

fn descriptor(descriptor: &RateLimitDescriptor, place: &str, findings: &mut SourceFindings<'_>) -> DescriptorSpec {
    let mut metadata = descriptor.metadata.as_ref().map(json);
    DescriptorSpec {
        key: located(&descriptor.key),
        value: located(&descriptor.value),
        rate_limit: descriptor.rate_limit.as_ref().map(rate_limit),
        descriptors: level(&descriptor.descriptors, &format!("{place}."), findings),
        // Envoy Gateway sets it on every link of a chain that ends in a limit. It means nothing there, and nobody could mend it.
        shadow_mode: descriptor.shadow_mode && descriptor.rate_limit.is_some(),
        quota_mode: descriptor.quota_mode,
        detailed_metric: descriptor.detailed_metric,
        block: metadata.as_mut().and_then(|metadata| take_block(metadata, place, findings)),
        metadata,
        ..DescriptorSpec::default()
    }
}

fn rate_limit(policy: &RateLimitPolicy) -> RateLimitSpec {
    // A number that has no name is told as it came.
    let unit = RateLimitUnit::try_from(policy.unit).map_or_else(|_| policy.unit.to_string(), |unit| unit.as_str_name().to_owned());
    RateLimitSpec {
        unit: located(&unit),
        requests_per_unit: policy.requests_per_unit,
        unlimited: policy.unlimited,
        name: policy.name.clone(),
        replaces: policy.replaces.iter().map(|other| located(&other.name)).collect(),
        ..RateLimitSpec::default()
    }
}

fn json(metadata: &Struct) -> Metadata {
    metadata.fields.iter().map(|(key, value)| (key.clone(), json_value(value))).collect()
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

fn located(text: &str) -> Located<String> {
    Located { value: text.to_owned(), ..Located::default() }
}
