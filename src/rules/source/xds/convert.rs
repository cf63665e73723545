//! Converts xDS resources to the schema of rules, which the compiler shares with YAML.
//!
//! A string that is not UTF-8 is an error of its rule rather than of the stream, so strings are
//! bytes until here (see `build.rs`).

use std::sync::Arc;

use prost::{DecodeError, Message as _};
use prost_types::value::Kind as ValueKind;
use prost_types::{Any, Struct, Value};

use crate::base::proto::ratelimit::config::ratelimit::v3::{
    RateLimitConfig, RateLimitDescriptor, RateLimitPolicy, RateLimitUnit,
};
use crate::base::text::Text;
use crate::rules::config::error::SourceFindings;
use crate::rules::config::metadata::go_float;
use crate::rules::config::schema::metadata;
use crate::rules::config::spec::{DescriptorSpec, Level, RateLimitSpec, RulesFile};
use crate::rules::config::yaml::{Kind, Located, Location, Node, Scalar, shortened};
use crate::rules::config::{Input, Source};
use crate::rules::source::xds::size::{DECODED_BYTES_MAX, decoded_bytes};

/// The type of the resources.
pub(crate) const TYPE_URL: &str =
    "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig";

/// Doubles hold all whole numbers below 2^53.
const WHOLE_MAX: f64 = 9_007_199_254_740_992.0;

/// A decoded resource.
#[derive(Debug)]
pub(crate) struct Resource {
    pub(crate) source: Source,
    config: RateLimitConfig,
}

/// The descriptors of a level.
#[derive(Debug)]
struct Descriptors<'r>(&'r [RateLimitDescriptor]);

/// The first fields of a [`RateLimitConfig`], to name a resource whose rest cannot be decoded.
#[derive(prost::Message)]
struct Head {
    #[prost(bytes = "vec", tag = "1")]
    name: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    domain: Vec<u8>,
}

impl Resource {
    /// Decodes an [`Any`], and takes its memory from what the resources of a response may have.
    ///
    /// # Errors
    /// It has another type or an invalid encoding, or takes more memory than `bytes_left`.
    pub(crate) fn read(resource: &[u8], bytes_left: &mut usize) -> Result<Self, String> {
        let any = Any::decode(resource)
            .map_err(|error| format!("a resource cannot be decoded: {error}"))?;
        if any.type_url != TYPE_URL {
            return Err(format!("a resource has type {}; expected {TYPE_URL}", any.type_url));
        }
        let named = |problem: String| match Head::decode(&*any.value) {
            Ok(Head { name, domain }) => {
                format!("resource {:?} of domain {:?} {problem}", Text(&name), Text(&domain))
            }
            Err(_) => format!("a resource {problem}"),
        };
        let undecodable = |error: DecodeError| named(format!("cannot be decoded: {error}"));
        let bytes = decoded_bytes(&any.value).map_err(undecodable)?;
        *bytes_left = bytes_left.checked_sub(bytes).ok_or_else(|| {
            let mib = DECODED_BYTES_MAX >> 20;
            named(format!(
                "and those before it take more than {mib} MiB when they are decoded (xds_decoded_bytes_max)"
            ))
        })?;
        let config = RateLimitConfig::decode(&*any.value).map_err(undecodable)?;
        let name: Arc<str> = Text(&config.name).shown().into();
        Ok(Self { source: Source { name: name.clone(), path: name, text: "".into() }, config })
    }

    /// The canonical encoding, since servers encode maps in any order.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.config.encode_to_vec()
    }
}

impl Input for Resource {
    fn source(&self) -> &Source {
        &self.source
    }

    fn read(&self, findings: &mut SourceFindings<'_>) -> Option<RulesFile<'_>> {
        let domain = Text(&self.config.domain).to_string();
        let findings = &mut findings.at(format_args!("domain {}", shortened(&domain)));
        text("name", &self.config.name, findings);
        Some(RulesFile {
            domain: located("domain", &self.config.domain, findings),
            descriptors: level(&self.config.descriptors),
            block: None,
        })
    }
}

/// A string as text. If it is not UTF-8, that is an error, and the text is percent-encoded.
fn text(field: &str, bytes: &[u8], findings: &mut SourceFindings<'_>) -> String {
    let text = Text(bytes).shown();
    if str::from_utf8(bytes).is_err() {
        let hint = "send rules in UTF-8; bytes that are not are shown percent-encoded";
        let text = format!("{field} is not UTF-8: {text}");
        findings.reject(Location::default(), text, hint);
    }
    text.into_owned()
}

fn located(field: &str, bytes: &[u8], findings: &mut SourceFindings<'_>) -> Located<String> {
    Located { value: text(field, bytes, findings), location: Location::default() }
}

impl Level for Descriptors<'_> {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn read(&self, index: usize, findings: &mut SourceFindings<'_>) -> Option<DescriptorSpec<'_>> {
        Some(descriptor(&self.0[index], findings))
    }
}

fn level(descriptors: &[RateLimitDescriptor]) -> Option<Box<dyn Level + '_>> {
    (!descriptors.is_empty()).then(|| Box::new(Descriptors(descriptors)) as Box<dyn Level>)
}

fn descriptor<'r>(
    descriptor: &'r RateLimitDescriptor,
    findings: &mut SourceFindings<'_>,
) -> DescriptorSpec<'r> {
    let key = located("key", &descriptor.key, findings);
    let value = text("value", &descriptor.value, findings);
    let policy = descriptor.rate_limit.as_ref();
    let rate_limit = policy.map(|policy| rate_limit(policy, findings));
    let descriptors = level(&descriptor.descriptors);
    let (metadata, block) = match &descriptor.metadata {
        Some(fields) => metadata(&map(fields), findings),
        None => (None, None),
    };
    DescriptorSpec {
        key,
        value,
        // Envoy Gateway sets it on every descriptor of a chain that ends in a limit, where it has
        // no effect, and users cannot change it.
        shadow_mode: descriptor.shadow_mode && rate_limit.is_some(),
        rate_limit,
        descriptors,
        quota_mode: descriptor.quota_mode,
        detailed_metric: descriptor.detailed_metric,
        metadata,
        block,
        ..DescriptorSpec::default()
    }
}

fn rate_limit(policy: &RateLimitPolicy, findings: &mut SourceFindings<'_>) -> RateLimitSpec {
    // An unknown number appears in the error as it was sent.
    let unit = RateLimitUnit::try_from(policy.unit)
        .map_or_else(|_| policy.unit.to_string(), |unit| unit.as_str_name().to_owned());
    let replaces = policy.replaces.iter();
    RateLimitSpec {
        unit: Located { value: unit, location: Location::default() },
        requests_per_unit: policy.requests_per_unit,
        unlimited: policy.unlimited,
        name: text("rate_limit.name", &policy.name, findings),
        replaces: replaces
            .map(|other| located("rate_limit.replaces.name", &other.name, findings))
            .collect(),
        ..RateLimitSpec::default()
    }
}

/// A struct as the YAML that has the same meaning.
fn map(fields: &Struct) -> Node {
    let pairs = fields
        .fields
        .iter()
        .map(|(key, value)| (scalar(Scalar::quoted(&**key)), value_node(value)));
    Node::of(Kind::Map(pairs.collect()))
}

fn value_node(value: &Value) -> Node {
    match &value.kind {
        None | Some(ValueKind::NullValue(_)) => scalar(Scalar::plain("")),
        Some(ValueKind::NumberValue(value)) => scalar(number(*value)),
        Some(ValueKind::StringValue(text)) => scalar(Scalar::quoted(&**text)),
        Some(ValueKind::BoolValue(value)) => scalar(Scalar::plain(value.to_string())),
        Some(ValueKind::StructValue(fields)) => map(fields),
        Some(ValueKind::ListValue(list)) => {
            Node::of(Kind::List(list.values.iter().map(value_node).collect()))
        }
    }
}

/// All numbers are sent as doubles: a whole one has no fraction.
fn number(value: f64) -> Scalar {
    if !value.is_finite() {
        Scalar::quoted(go_float(value))
    } else if value.abs() < WHOLE_MAX {
        Scalar::plain(value.to_string())
    } else {
        // With an exponent or a fraction.
        Scalar::plain(format!("{value:?}"))
    }
}

fn scalar(scalar: Scalar) -> Node {
    Node::of(Kind::Scalar(scalar))
}
