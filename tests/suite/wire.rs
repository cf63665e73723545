//! Our protobuf definitions say what Envoy's say: the same bytes, names and numbers.
//!
//! `envoy-types` is generated from Envoy's own files by other people; what it reads and writes is
//! taken for the truth. Where a message is turned from ours into theirs below, every field of both
//! is named, so that a field that one side adds or loses does not compile.

use std::collections::BTreeSet;
use std::fmt::Debug;

use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;
use prost::Message;
use prost_reflect::{DescriptorPool, DynamicMessage};
use tollgate::proto::DESCRIPTOR_SET;
use tonic::server::NamedService;
use tonic::{Request, Response, Status};

mod ours {
    pub(super) use prost_types::{Any, Duration, ListValue, Struct, Timestamp, Value, value::Kind};
    pub(super) use tollgate::proto::envoy::{
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
            rate_limit_service_client::RateLimitServiceClient,
            rate_limit_service_server::{RateLimitService, RateLimitServiceServer},
        },
        r#type::v3::RateLimitUnit,
    };
    pub(super) use tollgate::proto::google::rpc;
}

mod theirs {
    pub(super) use envoy_types::pb::envoy::{
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
            rate_limit_service_client::RateLimitServiceClient,
            rate_limit_service_server::{RateLimitService, RateLimitServiceServer},
        },
        r#type::v3::RateLimitUnit,
    };
    pub(super) use envoy_types::pb::google::protobuf::{
        Any, Duration, ListValue, Struct, Timestamp, UInt64Value, Value, value::Kind,
    };
    pub(super) use envoy_types::pb::google::rpc;
}

/// A server of either kind that wants [`full_request`] and answers [`full_response`].
struct Full;

proptest! {
    #[test]
    fn requests_are_the_same_bytes(ours in request()) {
        let theirs = their_request(ours.clone());
        read_each_other(&ours, &theirs)?;
        write_the_same(&ours, &theirs)?;
    }

    #[test]
    fn responses_are_the_same_bytes(ours in response(1)) {
        let theirs = their_response(ours.clone());
        read_each_other(&ours, &theirs)?;
        write_the_same(&ours, &theirs)?;
    }

    // Theirs writes the fields of a Struct in a random order, so with several of them only the content can be compared.
    #[test]
    fn responses_with_metadata_have_the_same_content(ours in response(4)) {
        let theirs = their_response(ours.clone());
        read_each_other(&ours, &theirs)?;
    }

    #[test]
    fn unknown_fields_are_skipped(ours in request(), number in 16u32..2048, value: u64) {
        let mut bytes = their_request(ours.clone()).encode_to_vec();
        prost::encoding::uint64::encode(number, &value, &mut bytes);
        prop_assert_eq!(ours::RateLimitRequest::decode(&*bytes)?, ours);
    }
}

#[test]
fn full_messages_encode_to_the_same_bytes() {
    assert_eq!(
        full_request().encode_to_vec(),
        their_request(full_request()).encode_to_vec()
    );
    assert_eq!(
        full_response().encode_to_vec(),
        their_response(full_response()).encode_to_vec()
    );
}

#[test]
fn service_has_the_same_name() {
    assert_eq!(
        <ours::RateLimitServiceServer<Full> as NamedService>::NAME,
        <theirs::RateLimitServiceServer<Full> as NamedService>::NAME
    );
}

#[tokio::test]
async fn their_client_calls_our_server() {
    let server = ours::RateLimitServiceServer::new(Full);
    let request = their_request(full_request());
    let response = theirs::RateLimitServiceClient::new(server)
        .should_rate_limit(request)
        .await;
    assert_eq!(
        response.unwrap().into_inner(),
        their_response(full_response())
    );
}

#[tokio::test]
async fn our_client_calls_their_server() {
    let server = theirs::RateLimitServiceServer::new(Full);
    let response = ours::RateLimitServiceClient::new(server)
        .should_rate_limit(full_request())
        .await;
    assert_eq!(response.unwrap().into_inner(), full_response());
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
        full_name::<theirs::RateLimitRequest>(),
        full_name::<theirs::RateLimitDescriptor>(),
        full_name::<theirs::Entry>(),
        full_name::<theirs::RateLimitOverride>(),
        full_name::<theirs::RateLimitResponse>(),
        full_name::<theirs::RateLimit>(),
        full_name::<theirs::Quota>(),
        full_name::<theirs::DescriptorStatus>(),
        full_name::<theirs::HeaderValue>(),
        full_name::<theirs::Node>(),
    ]);
    assert_eq!(ours, theirs);
}

/// What we send and read on a stream of resources. Theirs has fields that we leave out.
#[test]
fn discovery_messages_encode_to_the_same_bytes() {
    const TYPE: &str = "type.googleapis.com/a.B";
    let fields = || [("zone".to_owned(), "a")];
    let ours_text = |text: &str| ours::Value {
        kind: Some(ours::Kind::StringValue(text.to_owned())),
    };
    let theirs_text = |text: &str| theirs::Value {
        kind: Some(theirs::Kind::StringValue(text.to_owned())),
    };
    let ours = ours::DiscoveryRequest {
        version_info: "7".into(),
        node: Some(ours::Node {
            id: "me".to_owned(),
            metadata: Some(ours::Struct {
                fields: fields().map(|(key, text)| (key, ours_text(text))).into(),
            }),
        }),
        resource_names: vec!["r".to_owned()],
        type_url: TYPE.to_owned(),
        response_nonce: "n".into(),
        error_detail: Some(ours::rpc::Status {
            code: 3,
            message: "no".to_owned(),
            details: vec![ours::Any {
                type_url: TYPE.to_owned(),
                value: vec![1],
            }],
        }),
    };
    let theirs = theirs::DiscoveryRequest {
        version_info: "7".to_owned(),
        node: Some(theirs::Node {
            id: "me".to_owned(),
            metadata: Some(theirs::Struct {
                fields: fields().map(|(key, text)| (key, theirs_text(text))).into(),
            }),
            ..theirs::Node::default()
        }),
        resource_names: vec!["r".to_owned()],
        type_url: TYPE.to_owned(),
        response_nonce: "n".to_owned(),
        error_detail: Some(theirs::rpc::Status {
            code: 3,
            message: "no".to_owned(),
            details: vec![theirs::Any {
                type_url: TYPE.to_owned(),
                value: vec![1],
            }],
        }),
        ..theirs::DiscoveryRequest::default()
    };
    assert_eq!(ours.encode_to_vec(), theirs.encode_to_vec());

    let ours = ours::DiscoveryResponse {
        version_info: "8".into(),
        resources: vec![
            ours::Any {
                type_url: TYPE.to_owned(),
                value: vec![1, 2],
            }
            .encode_to_vec(),
        ],
        type_url: TYPE.into(),
        nonce: "n".into(),
    };
    let theirs = theirs::DiscoveryResponse {
        version_info: "8".to_owned(),
        resources: vec![theirs::Any {
            type_url: TYPE.to_owned(),
            value: vec![1, 2],
        }],
        type_url: TYPE.to_owned(),
        nonce: "n".to_owned(),
        ..theirs::DiscoveryResponse::default()
    };
    assert_eq!(ours.encode_to_vec(), theirs.encode_to_vec());
    assert_eq!(
        <ours::AggregatedDiscoveryServiceServer<()> as NamedService>::NAME,
        <theirs::AggregatedDiscoveryServiceServer<()> as NamedService>::NAME
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
    assert_eq!(
        from_json("RateLimitRequest", &request),
        full_request().encode_to_vec()
    );

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
    assert_eq!(
        from_json("RateLimitResponse", &response),
        full_response().encode_to_vec()
    );
}

#[tonic::async_trait]
impl ours::RateLimitService for Full {
    async fn should_rate_limit(
        &self,
        request: Request<ours::RateLimitRequest>,
    ) -> Result<Response<ours::RateLimitResponse>, Status> {
        assert_eq!(request.into_inner(), full_request());
        Ok(Response::new(full_response()))
    }
}

#[tonic::async_trait]
impl theirs::RateLimitService for Full {
    async fn should_rate_limit(
        &self,
        request: Request<theirs::RateLimitRequest>,
    ) -> Result<Response<theirs::RateLimitResponse>, Status> {
        assert_eq!(request.into_inner(), their_request(full_request()));
        Ok(Response::new(their_response(full_response())))
    }
}

/// Each side reads what the other wrote, and finds in it what it would have written itself.
fn read_each_other<Ours, Theirs>(ours: &Ours, theirs: &Theirs) -> Result<(), TestCaseError>
where
    Ours: Message + Default + PartialEq + Debug,
    Theirs: Message + Default + PartialEq + Debug,
{
    prop_assert_eq!(&Theirs::decode(&*ours.encode_to_vec())?, theirs);
    prop_assert_eq!(&Ours::decode(&*theirs.encode_to_vec())?, ours);
    Ok(())
}

fn write_the_same(ours: &impl Message, theirs: &impl Message) -> Result<(), TestCaseError> {
    prop_assert_eq!(ours.encode_to_vec(), theirs.encode_to_vec());
    Ok(())
}

/// Number and name of each value of an enum; Envoy's numbers are far from the end of the range.
fn names_of<E: TryFrom<i32>>(name: impl Fn(E) -> &'static str) -> Vec<(i32, &'static str)> {
    (-1..1000)
        .filter_map(|number| Some((number, name(E::try_from(number).ok()?))))
        .collect()
}

fn full_name<M: prost::Name>() -> String {
    M::full_name()
}

fn descriptors() -> DescriptorPool {
    DescriptorPool::decode(DESCRIPTOR_SET).expect("the compiled descriptors can be read")
}

fn from_json(message: &str, json: &serde_json::Value) -> Vec<u8> {
    let descriptor = descriptors()
        .get_message_by_name(&format!("envoy.service.ratelimit.v3.{message}"))
        .expect("a message of ours");
    DynamicMessage::deserialize(descriptor, json)
        .expect("JSON of that message")
        .encode_to_vec()
}

/// A request with every field set to something that is not its default.
fn full_request() -> ours::RateLimitRequest {
    ours::RateLimitRequest {
        domain: "edge".into(),
        descriptors: vec![ours::RateLimitDescriptor {
            entries: vec![ours::Entry {
                key: "user".into(),
                value: "ann".into(),
            }],
            limit: Some(ours::RateLimitOverride {
                requests_per_unit: 10,
                unit: ours::RateLimitUnit::Hour.into(),
            }),
            hits_addend: Some(u64::MAX),
            is_negative_hits: true,
        }],
        hits_addend: 3,
    }
}

/// A response with every field set to something that is not its default.
fn full_response() -> ours::RateLimitResponse {
    let header = |key: &str| ours::HeaderValue {
        key: key.to_owned(),
        value: "text".to_owned(),
        raw_value: b"\xff\xfe\xfd".to_vec(),
    };
    let quota = ours::Quota {
        requests: 5,
        id: "shared".to_owned(),
        expiration_specifier: Some(ours::ExpirationSpecifier::ValidUntil(ours::Timestamp {
            seconds: 60,
            nanos: 0,
        })),
    };
    let facts = [
        ours::Kind::StringValue("weekly".to_owned()),
        ours::Kind::NumberValue(7.5),
        ours::Kind::BoolValue(true),
        ours::Kind::NullValue(0),
    ];
    let facts = facts.map(|kind| ours::Value { kind: Some(kind) }).into();
    let facts = ours::Value {
        kind: Some(ours::Kind::ListValue(ours::ListValue { values: facts })),
    };
    ours::RateLimitResponse {
        overall_code: ours::Code::OverLimit.into(),
        statuses: vec![ours::DescriptorStatus {
            code: ours::Code::Ok.into(),
            current_limit: Some(ours::RateLimit {
                name: "weekly".to_owned(),
                requests_per_unit: 100,
                unit: ours::Unit::Week.into(),
            }),
            limit_remaining: 7,
            duration_until_reset: Some(ours::Duration {
                seconds: 30,
                nanos: 0,
            }),
            quota: Some(quota.clone()),
        }],
        response_headers_to_add: vec![header("to-client")],
        request_headers_to_add: vec![header("to-upstream")],
        raw_body: "slow down".into(),
        dynamic_metadata: Some(ours::Struct {
            fields: [("rule".to_owned(), facts)].into(),
        }),
        quota: Some(quota),
    }
}

prop_compose! {
    fn request()(
        domain in text(),
        descriptors in vec(descriptor(), 0..4),
        hits_addend: u32,
    ) -> ours::RateLimitRequest {
        ours::RateLimitRequest { domain: domain.into(), descriptors, hits_addend }
    }
}

prop_compose! {
    fn descriptor()(
        entries in vec(entry(), 0..4),
        limit in option::of(rate_limit_override()),
        hits_addend in prop_oneof![Just(None), Just(Some(0)), Just(Some(u64::MAX)), any::<u64>().prop_map(Some)],
        is_negative_hits: bool,
    ) -> ours::RateLimitDescriptor {
        ours::RateLimitDescriptor { entries, limit, hits_addend, is_negative_hits }
    }
}

prop_compose! {
    fn entry()(key in text(), value in text()) -> ours::Entry {
        ours::Entry { key: key.into(), value: value.into() }
    }
}

prop_compose! {
    fn rate_limit_override()(requests_per_unit: u32, unit in enum_number()) -> ours::RateLimitOverride {
        ours::RateLimitOverride { requests_per_unit, unit }
    }
}

prop_compose! {
    fn response(struct_fields_max: usize)(
        overall_code in enum_number(),
        statuses in vec(status(), 0..4),
        response_headers_to_add in vec(header(), 0..4),
        request_headers_to_add in vec(header(), 0..4),
        raw_body: Vec<u8>,
        dynamic_metadata in option::of(metadata(struct_fields_max)),
        quota in option::of(quota()),
    ) -> ours::RateLimitResponse {
        let raw_body = raw_body.into();
        ours::RateLimitResponse {
            overall_code, statuses, response_headers_to_add, request_headers_to_add, raw_body, dynamic_metadata, quota,
        }
    }
}

prop_compose! {
    fn status()(
        code in enum_number(),
        current_limit in option::of(rate_limit()),
        limit_remaining: u32,
        duration_until_reset in option::of((any::<i64>(), any::<i32>())),
        quota in option::of(quota()),
    ) -> ours::DescriptorStatus {
        let duration_until_reset = duration_until_reset.map(|(seconds, nanos)| ours::Duration { seconds, nanos });
        ours::DescriptorStatus { code, current_limit, limit_remaining, duration_until_reset, quota }
    }
}

prop_compose! {
    fn rate_limit()(name in text(), requests_per_unit: u32, unit in enum_number()) -> ours::RateLimit {
        ours::RateLimit { name, requests_per_unit, unit }
    }
}

prop_compose! {
    fn quota()(
        requests: u32,
        id in text(),
        valid_until in option::of((any::<i64>(), any::<i32>())),
    ) -> ours::Quota {
        let expiration_specifier = valid_until
            .map(|(seconds, nanos)| ours::ExpirationSpecifier::ValidUntil(ours::Timestamp { seconds, nanos }));
        ours::Quota { requests, id, expiration_specifier }
    }
}

prop_compose! {
    fn header()(key in text(), value in text(), raw_value: Vec<u8>) -> ours::HeaderValue {
        ours::HeaderValue { key, value, raw_value }
    }
}

fn metadata(fields_max: usize) -> impl Strategy<Value = ours::Struct> {
    let leaf = prop_oneof![
        Just(None),
        Just(Some(ours::Kind::NullValue(0))),
        any::<f64>().prop_map(|number| Some(ours::Kind::NumberValue(number))),
        text().prop_map(|text| Some(ours::Kind::StringValue(text))),
        any::<bool>().prop_map(|yes| Some(ours::Kind::BoolValue(yes))),
    ];
    let value = leaf
        .prop_map(|kind| ours::Value { kind })
        .prop_recursive(3, 16, 4, move |value| {
            let list = vec(value.clone(), 0..4)
                .prop_map(|values| ours::Kind::ListValue(ours::ListValue { values }));
            let fields = btree_map(text(), value, 0..=fields_max);
            let object = fields.prop_map(|fields| ours::Kind::StructValue(ours::Struct { fields }));
            prop_oneof![list, object].prop_map(|kind| ours::Value { kind: Some(kind) })
        });
    btree_map(text(), value, 0..=fields_max).prop_map(|fields| ours::Struct { fields })
}

/// A number that has a name more often than not, or any other: proto3 enums are open.
fn enum_number() -> impl Strategy<Value = i32> {
    prop_oneof![3 => 0..8, 1 => any::<i32>()]
}

fn text() -> impl Strategy<Value = String> {
    ".{0,8}"
}

fn their_request(ours: ours::RateLimitRequest) -> theirs::RateLimitRequest {
    let ours::RateLimitRequest {
        domain,
        descriptors,
        hits_addend,
    } = ours;
    theirs::RateLimitRequest {
        domain: their_text(domain),
        descriptors: descriptors.into_iter().map(their_descriptor).collect(),
        hits_addend,
    }
}

/// Theirs reads text only.
fn their_text(ours: Vec<u8>) -> String {
    String::from_utf8(ours).expect("it was made of text")
}

fn their_descriptor(ours: ours::RateLimitDescriptor) -> theirs::RateLimitDescriptor {
    let ours::RateLimitDescriptor {
        entries,
        limit,
        hits_addend,
        is_negative_hits,
    } = ours;
    theirs::RateLimitDescriptor {
        entries: entries
            .into_iter()
            .map(|ours::Entry { key, value }| theirs::Entry {
                key: their_text(key),
                value: their_text(value),
            })
            .collect(),
        limit: limit.map(
            |ours::RateLimitOverride {
                 requests_per_unit,
                 unit,
             }| theirs::RateLimitOverride {
                requests_per_unit,
                unit,
            },
        ),
        hits_addend: hits_addend.map(|value| theirs::UInt64Value { value }),
        is_negative_hits,
    }
}

fn their_response(ours: ours::RateLimitResponse) -> theirs::RateLimitResponse {
    let ours::RateLimitResponse {
        overall_code,
        statuses,
        response_headers_to_add,
        request_headers_to_add,
        raw_body,
        dynamic_metadata,
        quota,
    } = ours;
    theirs::RateLimitResponse {
        overall_code,
        statuses: statuses.into_iter().map(their_status).collect(),
        response_headers_to_add: response_headers_to_add
            .into_iter()
            .map(their_header)
            .collect(),
        request_headers_to_add: request_headers_to_add
            .into_iter()
            .map(their_header)
            .collect(),
        raw_body: raw_body.into(),
        dynamic_metadata: dynamic_metadata.map(their_struct),
        quota: quota.map(their_quota),
    }
}

fn their_status(ours: ours::DescriptorStatus) -> theirs::DescriptorStatus {
    let ours::DescriptorStatus {
        code,
        current_limit,
        limit_remaining,
        duration_until_reset,
        quota,
    } = ours;
    theirs::DescriptorStatus {
        code,
        current_limit: current_limit.map(
            |ours::RateLimit {
                 name,
                 requests_per_unit,
                 unit,
             }| theirs::RateLimit {
                name,
                requests_per_unit,
                unit,
            },
        ),
        limit_remaining,
        duration_until_reset: duration_until_reset
            .map(|ours::Duration { seconds, nanos }| theirs::Duration { seconds, nanos }),
        quota: quota.map(their_quota),
    }
}

fn their_quota(ours: ours::Quota) -> theirs::Quota {
    let ours::Quota {
        requests,
        id,
        expiration_specifier,
    } = ours;
    let expiration_specifier = expiration_specifier.map(|expiration| match expiration {
        ours::ExpirationSpecifier::ValidUntil(ours::Timestamp { seconds, nanos }) => {
            theirs::ExpirationSpecifier::ValidUntil(theirs::Timestamp { seconds, nanos })
        }
    });
    theirs::Quota {
        requests,
        id,
        expiration_specifier,
    }
}

fn their_header(ours: ours::HeaderValue) -> theirs::HeaderValue {
    let ours::HeaderValue {
        key,
        value,
        raw_value,
    } = ours;
    theirs::HeaderValue {
        key,
        value,
        raw_value,
    }
}

fn their_struct(ours: ours::Struct) -> theirs::Struct {
    let fields = ours
        .fields
        .into_iter()
        .map(|(name, value)| (name, their_value(value)))
        .collect();
    theirs::Struct { fields }
}

fn their_value(ours: ours::Value) -> theirs::Value {
    let kind = ours.kind.map(|kind| match kind {
        ours::Kind::NullValue(number) => theirs::Kind::NullValue(number),
        ours::Kind::NumberValue(number) => theirs::Kind::NumberValue(number),
        ours::Kind::StringValue(text) => theirs::Kind::StringValue(text),
        ours::Kind::BoolValue(yes) => theirs::Kind::BoolValue(yes),
        ours::Kind::StructValue(fields) => theirs::Kind::StructValue(their_struct(fields)),
        ours::Kind::ListValue(list) => {
            let values = list.values.into_iter().map(their_value).collect();
            theirs::Kind::ListValue(theirs::ListValue { values })
        }
    });
    theirs::Value { kind }
}
