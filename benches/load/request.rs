//! Writes requests and reads answers, as gRPC frames them.

use anyhow::Context as _;
use bytes::{BufMut as _, Bytes, BytesMut};
use fastrand::Rng;
use h2::RecvStream;
use http::{HeaderMap, Request, StatusCode, Version};
use prost::Message as _;

use tollgate::base::proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use tollgate::base::proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use tollgate::base::proto::envoy::service::ratelimit::v3::rate_limit_response::Code;
use tollgate::base::proto::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};

use crate::load::args::{Args, Pick};
use crate::load::tally::Fate;

/// gRPC puts one byte for compression and four for the length before a message.
const FRAME_HEADER_LEN: usize = 5;
const PATH: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
const GRPC_STATUS: &str = "grpc-status";

/// The requests of a run, one after the other.
pub struct Requests {
    /// The keys of the entries of each descriptor.
    keys: Vec<Vec<String>>,
    value_prefix: String,
    /// The length of each value, so that all requests are equally long.
    digits: usize,
    descriptors: u32,
    domain: String,
    hits: u32,
    draw: Draw,
    random: Rng,
}

/// How a value's number is picked.
enum Draw {
    /// Any of this many, equally often.
    Uniform(u32),
    /// The first ones most: the sums of the weights up to each.
    Zipf(Vec<f64>),
    /// The place of the descriptor in its request.
    One,
    /// Counted up: the next one.
    New(u32),
}

impl Requests {
    pub fn new(args: &Args) -> Self {
        let values = match args.pick {
            Pick::One => args.descriptors,
            Pick::New => u32::MAX,
            Pick::Uniform | Pick::Zipf => args.keys,
        };
        let draw = match args.pick {
            Pick::Uniform => Draw::Uniform(args.keys),
            Pick::One => Draw::One,
            Pick::New => Draw::New(0),
            Pick::Zipf => Draw::Zipf(
                (1..=args.keys)
                    .scan(0.0, |sum, rank| {
                        *sum += f64::from(rank).powf(-args.zipf_exponent);
                        Some(*sum)
                    })
                    .collect(),
            ),
        };
        Self {
            keys: args
                .key
                .iter()
                .map(|keys| keys.split('+').map(str::to_owned).collect())
                .collect(),
            value_prefix: args.value_prefix.clone(),
            digits: (values - 1).max(1).ilog10() as usize + 1,
            descriptors: args.descriptors,
            domain: args.domain.clone(),
            hits: args.hits.unwrap_or(0),
            draw,
            random: Rng::with_seed(args.seed),
        }
    }

    /// The next request's body, and the number of its first descriptor's value.
    pub fn next(&mut self) -> (u32, Bytes) {
        let numbers: Vec<u32> = (0..self.descriptors).map(|place| self.draw(place)).collect();
        let descriptor = |(keys, number): (&Vec<String>, &u32)| {
            let value = format!("{}{number:0digits$}", self.value_prefix, digits = self.digits);
            let entry =
                |key: &String| Entry { key: key.clone().into(), value: value.clone().into() };
            RateLimitDescriptor {
                entries: keys.iter().map(entry).collect(),
                ..RateLimitDescriptor::default()
            }
        };
        let request = RateLimitRequest {
            domain: self.domain.clone().into(),
            descriptors: self.keys.iter().cycle().zip(&numbers).map(descriptor).collect(),
            hits_addend: self.hits,
        };
        let length = request.encoded_len();
        let mut bytes = BytesMut::with_capacity(FRAME_HEADER_LEN + length);
        bytes.put_u8(0);
        bytes.put_u32(length as u32);
        bytes.put(&*request.encode_to_vec());
        (numbers[0], bytes.freeze())
    }

    fn draw(&mut self, place: u32) -> u32 {
        match &mut self.draw {
            Draw::Uniform(values) => self.random.u32(..*values),
            Draw::One => place,
            Draw::New(next) => {
                let number = *next;
                *next += 1;
                number
            }
            Draw::Zipf(sums) => {
                let at = self.random.f64() * sums[sums.len() - 1];
                sums.partition_point(|sum| *sum <= at).min(sums.len() - 1) as u32
            }
        }
    }
}

/// The head of every request.
pub fn head(args: &Args) -> anyhow::Result<Request<()>> {
    let mut head = Request::post(format!("http://{}{PATH}", args.target))
        .version(Version::HTTP_2)
        .header("content-type", "application/grpc")
        .header("te", "trailers");
    if let Some(deadline) = args.deadline {
        // At most eight digits, says gRPC; milliseconds are what Envoy sends.
        let ms = deadline.as_millis().clamp(1, 99_999_999);
        head = head.header("grpc-timeout", format!("{ms}m"));
    }
    head.body(()).with_context(|| format!("read {:?} as an address", args.target))
}

/// Reads an answer to the end.
pub async fn read_answer(
    response: http::Response<RecvStream>,
    descriptors: u32,
) -> Result<Fate, h2::Error> {
    let (head, mut body) = response.into_parts();
    if let Some(failure) = failure(&head.headers) {
        return Ok(failure);
    }
    if head.status != StatusCode::OK {
        return Ok(Fate::Error(format!("http {}", head.status.as_u16())));
    }
    // h2 gives the bytes back to the connection's window when the stream is dropped, and no answer
    // fills a stream's own window.
    let mut whole = BytesMut::new();
    while let Some(bytes) = body.data().await {
        whole.extend_from_slice(&bytes?);
    }
    Ok(match body.trailers().await? {
        Some(trailers) if trailers.contains_key(GRPC_STATUS) => {
            failure(&trailers).unwrap_or_else(|| read_message(&whole, descriptors))
        }
        _ => Fate::Error("malformed: no grpc-status".to_owned()),
    })
}

/// The gRPC status, if there is one and it is not OK.
fn failure(headers: &HeaderMap) -> Option<Fate> {
    let code = tonic::Code::from_bytes(headers.get(GRPC_STATUS)?.as_bytes());
    let name = || {
        let name = format!("{code:?}").chars().fold(String::new(), |name, letter| {
            let is_next_word = letter.is_uppercase() && !name.is_empty();
            name + if is_next_word { "_" } else { "" } + &letter.to_uppercase().to_string()
        });
        Fate::Error(name)
    };
    (code != tonic::Code::Ok).then(name)
}

/// One framed `RateLimitResponse`, uncompressed, with a status per descriptor.
fn read_message(body: &[u8], descriptors: u32) -> Fate {
    let malformed = |why: &str| Fate::Error(format!("malformed: {why}"));
    let Some((header, message)) = body.split_first_chunk::<FRAME_HEADER_LEN>() else {
        return malformed("no message");
    };
    let [compressed, length @ ..] = *header;
    if compressed != 0 || u32::from_be_bytes(length) as usize != message.len() {
        return malformed("not exactly one plain message");
    }
    match RateLimitResponse::decode(message) {
        Err(_) => malformed("not protobuf"),
        Ok(response) if response.statuses.len() != descriptors as usize => {
            malformed("statuses do not match descriptors")
        }
        Ok(response) => match response.overall_code() {
            Code::Ok => Fate::Ok,
            Code::OverLimit => Fate::OverLimit,
            Code::Unknown => malformed("overall_code is neither OK nor OVER_LIMIT"),
        },
    }
}
