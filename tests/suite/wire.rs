//! Our protobuf definitions say what Envoy's say: the same bytes, names and numbers.
//!
//! `envoy-types` is generated from Envoy's own files by other people; what it reads and writes is
//! taken for the truth. The full messages below name every field of both, so that a field that one
//! side adds or loses does not compile.

use std::collections::BTreeSet;

use prost::{Message, Name as _};
use prost_reflect::{DescriptorPool, DynamicMessage};
use tollgate::base::proto::DESCRIPTOR_SET;
use tonic::server::NamedService;

/// The messages of Envoy below a path.
macro_rules! messages {
    ($($root:ident)::+) => {
        pub(super) use $($root)::+::envoy::{
            config::core::v3::{HeaderValue, Node},
            extensions::common::ratelimit::v3::{
                RateLimitDescriptor,
                rate_limit_descriptor::{Entry, RateLimitOverride},
            },
            service::discovery::v3::{
                DiscoveryRequest, DiscoveryResponse,
                aggregated_discovery_service_server::AggregatedDiscoveryServiceServer,
            },
            service::ratelimit::v3::{
                RateLimitRequest, RateLimitResponse,
                rate_limit_response::{
                    Code, DescriptorStatus, Quota, RateLimit, quota::ExpirationSpecifier,
                    rate_limit::Unit,
                },
                rate_limit_service_server::RateLimitServiceServer,
            },
            r#type::v3::RateLimitUnit,
        };
        pub(super) use $($root)::+::google::rpc;
    };
}

mod ours {
    pub(super) use prost_types::{Any, Duration, ListValue, Struct, Timestamp, Value, value::Kind};

    messages!(tollgate::base::proto);
}

mod theirs {
    pub(super) use envoy_types::pb::google::protobuf::{
        Any, Duration, ListValue, Struct, Timestamp, UInt64Value, Value, value::Kind,
    };

    messages!(envoy_types::pb);
}

/// A request with every field set to something that is not its default.
macro_rules! full_request {
    ($side:ident, $hits:expr) => {
        $side::RateLimitRequest {
            domain: "edge".into(),
            descriptors: vec![$side::RateLimitDescriptor {
                entries: vec![$side::Entry { key: "user".into(), value: "ann".into() }],
                limit: Some($side::RateLimitOverride {
                    requests_per_unit: 10,
                    unit: $side::RateLimitUnit::Hour.into(),
                }),
                hits_addend: Some($hits),
                is_negative_hits: true,
            }],
            hits_addend: 3,
        }
    };
}

/// A response with every field set to something that is not its default.
macro_rules! full_response {
    ($side:ident) => {{
        use $side::{Kind, Value};
        let header = |key: &str| $side::HeaderValue {
            key: key.to_owned(),
            value: "text".to_owned(),
            raw_value: b"\xff\xfe\xfd".to_vec(),
        };
        let until = $side::Timestamp { seconds: 60, nanos: 0 };
        let quota = $side::Quota {
            requests: 5,
            id: "shared".to_owned(),
            expiration_specifier: Some($side::ExpirationSpecifier::ValidUntil(until)),
        };
        let facts = [
            Kind::StringValue("weekly".to_owned()),
            Kind::NumberValue(7.5),
            Kind::BoolValue(true),
            Kind::NullValue(0),
        ];
        let values = facts.map(|kind| Value { kind: Some(kind) }).into();
        let facts = Kind::ListValue($side::ListValue { values });
        let facts = Value { kind: Some(facts) };
        $side::RateLimitResponse {
            overall_code: $side::Code::OverLimit.into(),
            statuses: vec![$side::DescriptorStatus {
                code: $side::Code::Ok.into(),
                current_limit: Some($side::RateLimit {
                    name: "weekly".to_owned(),
                    requests_per_unit: 100,
                    unit: $side::Unit::Week.into(),
                }),
                limit_remaining: 7,
                duration_until_reset: Some($side::Duration { seconds: 30, nanos: 0 }),
                quota: Some(quota.clone()),
            }],
            response_headers_to_add: vec![header("to-client")],
            request_headers_to_add: vec![header("to-upstream")],
            raw_body: "slow down".into(),
            dynamic_metadata: Some($side::Struct { fields: [("rule".to_owned(), facts)].into() }),
            quota: Some(quota),
        }
    }};
}

#[test]
fn full_messages_encode_to_the_same_bytes() {
    let theirs = full_request!(theirs, theirs::UInt64Value { value: u64::MAX });
    let request = theirs.encode_to_vec();
    assert_eq!(full_request().encode_to_vec(), request);
    assert_eq!(ours::RateLimitRequest::decode(&*request), Ok(full_request()));
    let response = full_response!(theirs).encode_to_vec();
    assert_eq!(full_response().encode_to_vec(), response);
    assert_eq!(ours::RateLimitResponse::decode(&*response), Ok(full_response()));
}

#[test]
fn enums_have_the_same_names_and_numbers() {
    assert_eq!(
        names_of(|e: ours::Code| e.as_str_name()),
        names_of(|e: theirs::Code| e.as_str_name()),
    );
    assert_eq!(
        names_of(|e: ours::Unit| e.as_str_name()),
        names_of(|e: theirs::Unit| e.as_str_name()),
    );
    assert_eq!(
        names_of(|e: ours::RateLimitUnit| e.as_str_name()),
        names_of(|e: theirs::RateLimitUnit| e.as_str_name()),
    );
}

#[test]
fn only_the_unit_of_responses_has_a_week() {
    assert_eq!(ours::Unit::try_from(7), Ok(ours::Unit::Week));
    assert!(ours::RateLimitUnit::try_from(7).is_err());
}

/// What reflection shows.
#[test]
fn messages_have_the_same_names() {
    let ours: BTreeSet<String> = descriptors()
        .all_messages()
        .filter(|message| message.package_name().starts_with("envoy."))
        .map(|message| message.full_name().to_owned())
        .collect();
    let theirs = BTreeSet::from([
        theirs::RateLimitRequest::full_name(),
        theirs::RateLimitDescriptor::full_name(),
        theirs::Entry::full_name(),
        theirs::RateLimitOverride::full_name(),
        theirs::RateLimitResponse::full_name(),
        theirs::RateLimit::full_name(),
        theirs::Quota::full_name(),
        theirs::DescriptorStatus::full_name(),
        theirs::HeaderValue::full_name(),
        theirs::Node::full_name(),
    ]);
    assert_eq!(ours, theirs);
}

/// What we send and read on a stream of resources. Theirs has fields that we leave out.
#[test]
fn discovery_messages_encode_to_the_same_bytes() {
    const TYPE: &str = "type.googleapis.com/a.B";
    // The fields that both have.
    macro_rules! request {
        ($side:ident $(, $rest:expr)?) => {{
            let kind = Some($side::Kind::StringValue("a".to_owned()));
            let fields = [("zone".to_owned(), $side::Value { kind })].into();
            $side::DiscoveryRequest {
                version_info: "7".into(),
                node: Some($side::Node {
                    id: "me".to_owned(),
                    metadata: Some($side::Struct { fields }),
                    $(..$rest.node.unwrap_or_default())?
                }),
                resource_names: vec!["r".to_owned()],
                type_url: TYPE.to_owned(),
                response_nonce: "n".into(),
                error_detail: Some($side::rpc::Status {
                    code: 3,
                    message: "no".to_owned(),
                    details: vec![$side::Any {
                        type_url: TYPE.to_owned(),
                        value: vec![1],
                    }],
                }),
                $(..$rest)?
            }
        }};
    }
    let theirs = request!(theirs, theirs::DiscoveryRequest::default());
    assert_eq!(request!(ours).encode_to_vec(), theirs.encode_to_vec());

    let resource = theirs::Any { type_url: TYPE.to_owned(), value: vec![1, 2] };
    let ours = ours::DiscoveryResponse {
        version_info: "8".into(),
        resources: vec![resource.encode_to_vec()],
        type_url: TYPE.into(),
        nonce: "n".into(),
    };
    let theirs = theirs::DiscoveryResponse {
        version_info: "8".to_owned(),
        resources: vec![resource],
        type_url: TYPE.to_owned(),
        nonce: "n".to_owned(),
        ..theirs::DiscoveryResponse::default()
    };
    assert_eq!(ours.encode_to_vec(), theirs.encode_to_vec());
}

#[test]
fn services_have_the_same_names() {
    assert_eq!(
        [
            ours::AggregatedDiscoveryServiceServer::<()>::NAME,
            ours::RateLimitServiceServer::<()>::NAME,
        ],
        [
            theirs::AggregatedDiscoveryServiceServer::<()>::NAME,
            theirs::RateLimitServiceServer::<()>::NAME,
        ],
    );
}

/// Field names as Envoy's documentation spells them: generated Rust does not keep them, JSON and
/// reflection live by them.
#[test]
fn json_names_are_those_of_envoys_documentation() {
    let request = serde_json::json!({
        "domain": "edge",
        "descriptors": [{
            "entries": [{"key": "user", "value": "ann"}],
            "limit": {"requests_per_unit": 10, "unit": "HOUR"},
            "hits_addend": "18446744073709551615",
            "is_negative_hits": true,
        }],
        "hits_addend": 3,
    });
    assert_eq!(from_json("RateLimitRequest", &request), full_request().encode_to_vec());

    let header =
        |key: &str| serde_json::json!([{"key": key, "value": "text", "raw_value": "//79"}]);
    let response = serde_json::json!({
        "overall_code": "OVER_LIMIT",
        "statuses": [{
            "code": "OK",
            "current_limit": {"name": "weekly", "requests_per_unit": 100, "unit": "WEEK"},
            "limit_remaining": 7,
            "duration_until_reset": "30s",
            "quota": {"requests": 5, "valid_until": "1970-01-01T00:01:00Z", "id": "shared"},
        }],
        "response_headers_to_add": header("to-client"),
        "request_headers_to_add": header("to-upstream"),
        "raw_body": "c2xvdyBkb3du",
        "dynamic_metadata": {"rule": ["weekly", 7.5, true, null]},
        "quota": {"requests": 5, "valid_until": "1970-01-01T00:01:00Z", "id": "shared"},
    });
    assert_eq!(from_json("RateLimitResponse", &response), full_response().encode_to_vec());
}

/// Number and name of each value of an enum; Envoy's numbers are far from the end of the range.
fn names_of<E: TryFrom<i32>>(name: impl Fn(E) -> &'static str) -> Vec<(i32, &'static str)> {
    (-1..1000).filter_map(|number| Some((number, name(E::try_from(number).ok()?)))).collect()
}

fn descriptors() -> DescriptorPool {
    DescriptorPool::decode(DESCRIPTOR_SET).expect("the compiled descriptors can be read")
}

fn from_json(message: &str, json: &serde_json::Value) -> Vec<u8> {
    let descriptor = descriptors()
        .get_message_by_name(&format!("envoy.service.ratelimit.v3.{message}"))
        .expect("a message of ours");
    DynamicMessage::deserialize(descriptor, json).expect("JSON of that message").encode_to_vec()
}

fn full_request() -> ours::RateLimitRequest {
    full_request!(ours, u64::MAX)
}

fn full_response() -> ours::RateLimitResponse {
    full_response!(ours)
}
