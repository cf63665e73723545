//! Encodes requests and decodes responses. Resources beyond the bound are left out while a response
//! is decoded: an empty one takes two bytes of the message, and 50 in memory.

use prost::encoding::{DecodeContext, decode_key, skip_field};
use prost::{DecodeError, Message as _};
use tonic::Status;
use tonic::codec::{Codec, DecodeBuf, Decoder};
use tonic_prost::{ProstCodec, ProstEncoder};

use crate::base::proto::envoy::service::discovery::v3::{DiscoveryRequest, DiscoveryResponse};

/// Resources of a response. Each is decoded, named and compiled on its own.
// bound xds_resources_max: the response is rejected, the previous rules stay;
// tollgate_rules_rejected
pub(super) const RESOURCES_MAX: usize = 10_000;
/// The field of a response that has the resources.
const RESOURCES: u32 = 2;

#[derive(Debug, Default)]
pub(super) struct ResponseCodec;

/// Decodes at most one resource more than [`RESOURCES_MAX`].
#[derive(Debug)]
pub(super) struct ResponseDecoder;

impl Codec for ResponseCodec {
    type Encode = DiscoveryRequest;
    type Decode = DiscoveryResponse;
    type Encoder = ProstEncoder<DiscoveryRequest>;
    type Decoder = ResponseDecoder;

    fn encoder(&mut self) -> Self::Encoder {
        ProstCodec::<DiscoveryRequest, DiscoveryResponse>::default().encoder()
    }

    fn decoder(&mut self) -> Self::Decoder {
        ResponseDecoder
    }
}

impl Decoder for ResponseDecoder {
    type Item = DiscoveryResponse;
    type Error = Status;

    fn decode(&mut self, message: &mut DecodeBuf<'_>) -> Result<Option<Self::Item>, Status> {
        let response = response(message);
        response.map(Some).map_err(|error| Status::internal(error.to_string()))
    }
}

fn response(message: &mut DecodeBuf<'_>) -> Result<DiscoveryResponse, DecodeError> {
    let mut response = DiscoveryResponse::default();
    while prost::bytes::Buf::has_remaining(message) {
        let (number, wire_type) = decode_key(message)?;
        let context = DecodeContext::default();
        if number == RESOURCES && response.resources.len() > RESOURCES_MAX {
            skip_field(wire_type, number, message, context)?;
        } else {
            response.merge_field(number, wire_type, message, context)?;
        }
    }
    Ok(response)
}
