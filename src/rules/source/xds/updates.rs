//! Publishes the rules of xDS responses, and decides the replies.
//!
//! A response that equals the previous one is neither compiled nor logged again. Servers made with
//! go-control-plane resend rejected rules as soon as they get the NACK, without end: repeated NACKs
//! are sent with backoff.

use std::time::Duration;

use crate::base::backoff::Backoff;
use crate::base::proto::envoy::service::discovery::v3::DiscoveryResponse;
use crate::base::text::{Text, prefix};
use crate::rules::source::publisher::{RulePublisher, hash_of};
use crate::rules::source::xds::codec::RESOURCES_MAX;
use crate::rules::source::xds::convert::{Resource, TYPE_URL};
use crate::rules::source::xds::size::DECODED_BYTES_MAX;
use crate::telemetry::metric::{Counter, Metrics};

/// Bytes of the errors in a NACK. The log has all of them.
const ERROR_BYTES_MAX: usize = 16 << 10;
/// Resources that are named because they cannot be decoded; the others are not read.
const PROBLEMS_MAX: usize = 100;
/// Delays of repeated NACKs. The server sends valid rules only after the NACK, so the delay is
/// short.
const NACK_BACKOFF: Backoff =
    Backoff::new(Duration::from_millis(200), Duration::from_secs(5), 2.0, 0.5);

/// The responses of a control plane, across streams.
#[derive(Debug)]
pub(crate) struct Updates {
    pub(crate) publisher: RulePublisher,
    /// The version of the last accepted response, so that the server need not send it again.
    pub(crate) accepted_version: Vec<u8>,
    /// The hash of the last response, and its result.
    last: Option<(u64, Published)>,
    /// The resources of the last response, to be compiled again when the overlay changes.
    resources: Option<Vec<Resource>>,
    nack_backoff: Backoff,
    accepted: Counter,
    rejected: Counter,
    repeated: Counter,
}

/// The reply to a response.
#[derive(Debug)]
pub(crate) struct Reply {
    /// The errors of a NACK; `None` for an ACK.
    pub(crate) error: Option<String>,
    /// When to send it, unless another response arrives first; `None` for at once.
    pub(crate) delay: Option<Duration>,
    /// Whether the response had new rules that were published.
    pub(crate) is_news: bool,
}

/// Success, or all errors.
type Published = Result<(), Vec<String>>;

impl Updates {
    /// Registers the metrics.
    pub(crate) fn new(publisher: RulePublisher, metrics: &Metrics) -> Self {
        let updates = |verdict| {
            metrics.counter_with(
                "tollgate_xds_updates_total",
                "Responses of the xDS server, by result.",
                &[("verdict", verdict)],
            )
        };
        Self {
            publisher,
            accepted_version: Vec::new(),
            last: None,
            resources: None,
            nack_backoff: NACK_BACKOFF,
            accepted: updates("accepted"),
            rejected: updates("refused"),
            repeated: updates("repeated"),
        }
    }

    /// Forgets the last response and its version: a server does not resend a version that it takes
    /// for the newest.
    pub(crate) fn forget(&mut self) {
        self.accepted_version.clear();
        self.last = None;
    }

    /// Publishes the rules of a response, unless it equals the last one.
    pub(crate) fn handle_response(&mut self, response: DiscoveryResponse) -> Reply {
        let content = response.resources.iter().map(|resource| ("", &**resource));
        let hash = hash_of(content.chain([("type_url", &*response.type_url)]));
        let repeated = self.last.take().filter(|(last, _)| *last == hash);
        let is_new = repeated.is_none();
        let published = repeated.map_or_else(|| self.publish(&response), |(_, last)| last);
        let counter = match &published {
            _ if !is_new => &self.repeated,
            Ok(()) => &self.accepted,
            Err(_) => &self.rejected,
        };
        counter.inc();
        if is_new {
            self.nack_backoff.reset();
        }
        if published.is_ok() {
            self.accepted_version = response.version_info;
        }
        let error = published.as_ref().err().map(|errors| truncated(errors.join("\n")));
        let reply = Reply {
            delay: (!is_new && error.is_some()).then(|| self.nack_backoff.pause()),
            is_news: is_new && error.is_none(),
            error,
        };
        self.last = Some((hash, published));
        reply
    }

    /// Rejects a response that is larger than `message_bytes_max`.
    pub(crate) fn reject_oversized(&mut self, message_bytes_max: usize) {
        let problem = format!(
            "a response has more than {message_bytes_max} bytes; increase XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES"
        );
        // The next response is published even if its rules serve already.
        self.last = None;
        // Logged once, not with every stream on which it is sent.
        if self.publisher.last_error().as_ref() != Some(&problem) {
            self.publisher.reject(vec![problem]);
        }
    }

    /// Compiles the last resources again, with the new overlay.
    pub(crate) fn recompile(&mut self) {
        let Some(resources) = &self.resources else {
            return;
        };
        let published = self.publish_resources(resources);
        if let Some((_, last)) = &mut self.last {
            *last = published;
        }
    }

    fn publish(&mut self, response: &DiscoveryResponse) -> Published {
        if response.type_url != TYPE_URL.as_bytes() {
            return Err(self.publisher.reject(vec![format!(
                "a response has type {}; expected {TYPE_URL}",
                Text(&response.type_url)
            )]));
        }
        if response.resources.len() > RESOURCES_MAX {
            return Err(self.publisher.reject(vec![format!(
                "a response has more than {RESOURCES_MAX} resources (xds_resources_max)"
            )]));
        }
        let mut resources = Vec::new();
        let mut problems = Vec::new();
        let mut bytes_left = DECODED_BYTES_MAX;
        for resource in &response.resources {
            match Resource::read(resource, &mut bytes_left) {
                Ok(resource) => resources.push(resource),
                Err(problem) => problems.push(problem),
            }
            if problems.len() >= PROBLEMS_MAX {
                break;
            }
        }
        if !problems.is_empty() {
            return Err(self.publisher.reject(problems));
        }
        let published = self.publish_resources(&resources);
        self.resources = Some(resources);
        published
    }

    fn publish_resources(&self, resources: &[Resource]) -> Published {
        let overlay = self.publisher.read_overlay();
        let overlay = overlay.map_err(|error| self.publisher.reject(vec![format!("{error:#}")]))?;
        let bytes: Vec<Vec<u8>> = resources.iter().map(Resource::bytes).collect();
        let names = resources.iter().map(|resource| &*resource.source.name);
        let texts = names.zip(bytes.iter().map(|bytes| &**bytes));
        self.publisher.publish(resources, texts.collect(), overlay)
    }
}

/// At most [`ERROR_BYTES_MAX`] of a text, and how much is missing.
fn truncated(mut text: String) -> String {
    let left_out = text.len().saturating_sub(ERROR_BYTES_MAX);
    if left_out > 0 {
        text.truncate(prefix(&text, ERROR_BYTES_MAX).len());
        text += &format!("… (and {left_out} bytes more, which are in the log)");
    }
    text
}
