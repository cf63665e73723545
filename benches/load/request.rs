//! Writes requests: one template per run, into which each request's values are patched.
//!
//! Values have a fixed width (`u00042`), so that every request is as long as the template and no
//! length in it ever changes.

use anyhow::Context as _;
use bytes::Bytes;
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderMap, HeaderValue, Method, Request, Uri, Version, header};
use prost::Message as _;

use tollgate::proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use tollgate::proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use tollgate::proto::envoy::service::ratelimit::v3::RateLimitRequest;

use crate::load::args::{Args, Pick};
use crate::load::draw::{Draw, Random};

/// gRPC puts one byte for compression and four for the length before a message.
pub const FRAME_HEADER_LEN: usize = 5;

const PATH: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// The head that all requests share.
pub struct Head {
    uri: Uri,
    headers: HeaderMap,
}

/// Bodies, each for other values.
pub struct Bodies {
    template: Vec<u8>,
    /// Where the digits of each descriptor's value begin.
    digits_at: Vec<usize>,
    digits: usize,
    draw: Draw,
    random: Random,
}

/// One request's body, and whose counter it asks about.
#[derive(Clone)]
pub struct Body {
    pub bytes: Bytes,
    /// The number of the first descriptor's value.
    pub value: u32,
}

impl Head {
    pub fn new(args: &Args) -> anyhow::Result<Self> {
        let uri = Uri::builder()
            .scheme(Scheme::HTTP)
            .authority(
                args.target
                    .parse::<Authority>()
                    .with_context(|| format!("read {:?} as an authority", args.target))?,
            )
            .path_and_query(PathAndQuery::from_static(PATH))
            .build()
            .context("put the address together")?;
        let mut headers = HeaderMap::new();
        headers.insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/grpc"),
        );
        headers.insert(header::TE, HeaderValue::from_static("trailers"));
        if let Some(deadline) = args.deadline {
            // At most eight digits, says gRPC; milliseconds are what Envoy sends.
            let ms = deadline.as_millis().clamp(1, 99_999_999);
            headers.insert(
                "grpc-timeout",
                HeaderValue::from_str(&format!("{ms}m")).context("write grpc-timeout")?,
            );
        }
        Ok(Self { uri, headers })
    }

    pub fn request(&self) -> Request<()> {
        let mut request = Request::new(());
        *request.method_mut() = Method::POST;
        *request.version_mut() = Version::HTTP_2;
        *request.uri_mut() = self.uri.clone();
        *request.headers_mut() = self.headers.clone();
        request
    }
}

impl Bodies {
    pub fn new(args: &Args) -> anyhow::Result<Self> {
        let descriptors = u32::try_from(args.descriptors).context("count the descriptors")?;
        let values = if args.pick == Pick::One {
            descriptors
        } else {
            args.keys
        };
        let digits = (values - 1).max(1).ilog10() as usize + 1;
        let mut template = vec![0; FRAME_HEADER_LEN];
        let mut digits_at = Vec::new();

        // Protobuf messages can be written in pieces. A descriptor's value is the last thing in it,
        // so its digits end the piece.
        let domain = RateLimitRequest {
            domain: args.domain.clone().into(),
            ..RateLimitRequest::default()
        };
        template.extend(domain.encode_to_vec());
        for key in args.key.iter().cycle().take(args.descriptors) {
            let value = format!("{}{:0digits$}", args.value_prefix, 0);
            let entry = Entry {
                key: key.clone().into(),
                value: value.into(),
            };
            let descriptor = RateLimitDescriptor {
                entries: vec![entry],
                ..RateLimitDescriptor::default()
            };
            let piece = RateLimitRequest {
                descriptors: vec![descriptor],
                ..RateLimitRequest::default()
            };
            template.extend(piece.encode_to_vec());
            digits_at.push(template.len() - digits);
        }
        let hits = RateLimitRequest {
            hits_addend: args.hits.unwrap_or(0),
            ..RateLimitRequest::default()
        };
        template.extend(hits.encode_to_vec());

        let length = u32::try_from(template.len() - FRAME_HEADER_LEN)
            .context("fit the request into one gRPC message")?;
        template[1..FRAME_HEADER_LEN].copy_from_slice(&length.to_be_bytes());
        Ok(Self {
            template,
            digits_at,
            digits,
            draw: Draw::new(args),
            random: Random::new(args.seed),
        })
    }

    /// The next request's body, framed for gRPC.
    pub fn next(&mut self) -> Body {
        let mut bytes = self.template.clone();
        let mut first = 0;
        for (place, &at) in (0..).zip(&self.digits_at) {
            let number = self.draw.pick(&mut self.random, place);
            if place == 0 {
                first = number;
            }
            write_digits(&mut bytes[at..at + self.digits], number);
        }
        Body {
            bytes: bytes.into(),
            value: first,
        }
    }
}

/// Fills the place with the number in decimal, zeros in front.
fn write_digits(place: &mut [u8], mut number: u32) {
    for digit in place.iter_mut().rev() {
        *digit = b'0' + (number % 10) as u8;
        number /= 10;
    }
}
