//! Authorizes requests by their token. The one of ADMIN_TOKEN or ADMIN_TOKEN_FILE may change
//! counters and rules and see values of descriptors, that of ADMIN_READ_TOKEN only the latter.
//!
//! Wrong tokens are counted by client, in the store and with the algorithm that count requests, and
//! a client with too many gets 429. The right token is accepted all the same: behind a proxy or a
//! port-forward all clients have one address, and one of them must not lock out the others. So only
//! the length of the token bounds guesses, and short ones are reported.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arc_swap::ArcSwapOption;
use http::{HeaderMap, StatusCode, header};
use ring::digest::{SHA256, digest};

use crate::base::file_watch::{FileSet, Reloaded};
use crate::base::http::budget::client_of;
use crate::base::parse::Secret;
use crate::base::time::{Clock, Span};
use crate::limits::check::{Check, Hits, Key};
use crate::limits::{Algorithm, Limit, Terms, Unit};
use crate::operator::admin::api::answer::Rejected;
use crate::store::memory::Counters;
use crate::telemetry::metric::Metrics;

/// Wrong tokens of one client, an IPv4 address or an IPv6 /64, in a minute.
// bound admin_attempts_max: the next wrong one gets 429;
// tollgate_admin_actions_total{outcome="throttled"}
const ATTEMPTS_MAX: u32 = 10;
/// Bytes of the counters of clients with wrong tokens: some 14,000.
// bound admin_attempts_bytes_max: the client that is closest to its reset is forgotten;
// tollgate_memory_evicted_total{use="admin_attempts"}
const ATTEMPTS_BYTES_MAX: u64 = 1 << 20;
const NO_TOKEN: &str = "no admin token is configured; set ADMIN_TOKEN or ADMIN_TOKEN_FILE";
const READ_ONLY: &str = "ADMIN_READ_TOKEN may only read; send the value of ADMIN_TOKEN";
const SAME: &str = "ADMIN_TOKEN and ADMIN_READ_TOKEN are the same, so both could change counters; make another one";
/// Characters that a random token has at least: 64 bits in hex. At 100,000 guesses a second, more
/// than a process answers, it is found after three million years.
const TOKEN_CHARS_MIN: usize = 16;

/// What the bearer of a token may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd)]
pub(crate) enum Right {
    /// See values of descriptors.
    Read,
    /// Change counters and rules, too.
    Change,
}

/// Where the tokens come from.
#[derive(Debug, Clone)]
pub(crate) struct TokenOptions {
    read: TokenSource,
    change: TokenSource,
}

/// A token and its settings.
#[derive(Debug, Clone)]
pub(crate) struct TokenSource {
    setting: &'static str,
    token: Option<Secret>,
    /// The file that it was read from.
    file: Option<PathBuf>,
}

/// The hash of the current token. Clones share it.
#[derive(Debug, Clone, Default)]
struct CurrentToken(Arc<ArcSwapOption<[u8; 32]>>);

/// Authorizes requests by their token.
#[derive(Debug)]
pub(crate) struct TokenCheck {
    read: CurrentToken,
    change: CurrentToken,
    attempts: Counters,
    limit: Limit,
    clock: Clock,
}

impl TokenOptions {
    /// # Errors
    /// Both tokens are the same.
    pub(crate) fn new(change: TokenSource, read: TokenSource) -> Result<Self, String> {
        let secret = |source: &TokenSource| Some(source.token.as_ref()?.reveal().to_owned());
        if change.token.is_some() && secret(&change) == secret(&read) {
            return Err(format!("{}: {SAME}", read.setting));
        }
        Ok(Self { read, change })
    }

    /// A sentence about each token that can be guessed.
    pub(crate) fn warnings(&self) -> impl Iterator<Item = String> {
        [&self.change, &self.read]
            .into_iter()
            .filter_map(|source| weakness(source.setting, source.token.as_ref()?))
    }
}

impl TokenSource {
    /// # Errors
    /// The file cannot be used, or no request can have the token.
    pub(crate) fn new(
        setting: &'static str,
        token: Option<Secret>,
        file: Option<PathBuf>,
    ) -> Result<Self, String> {
        let token = match &file {
            Some(file) => Some(read(setting, file)?),
            None => token,
        };
        match token.as_ref().and_then(unusable) {
            Some(what) if file.is_none() => Err(format!("{setting} {what}")),
            _ => Ok(Self { setting, token, file }),
        }
    }

    fn current(&self) -> CurrentToken {
        let current = CurrentToken::default();
        if let Some(token) = &self.token {
            current.set(token);
        }
        current
    }

    /// Replaces the current token whenever its file has changed to one that is not the `other`.
    fn follow(self, current: &CurrentToken, other: &CurrentToken, files: &mut Reloaded) {
        let setting = self.setting;
        if let Some(path) = self.file {
            let replaced = current.clone();
            let other = other.clone();
            let replace = move |token: Secret| {
                replaced.set(&token);
                if let Some(weakness) = weakness(setting, &token) {
                    tracing::warn!("{weakness}");
                }
            };
            let set = FileSet::new(vec![path.clone()]);
            let read = move || match read(setting, &path)? {
                token if other.is(&hash(token.reveal().as_bytes())) => {
                    Err(format!("{setting}_FILE: {}: {SAME}", path.display()))
                }
                token => Ok(token),
            };
            files.add(set, read, replace);
        }
    }
}

fn read(setting: &str, path: &Path) -> Result<Secret, String> {
    let token = Secret::read_file(path, "a token");
    let token = token.and_then(|token| match unusable(&token) {
        Some(what) => Err(format!(" {what}")),
        None => Ok(token),
    });
    token.map_err(|error| format!("{setting}_FILE: {}{error}", path.display()))
}

/// Why no header of a request can have this token.
fn unusable(token: &Secret) -> Option<&'static str> {
    let token = token.reveal();
    if token.is_empty() {
        Some("is empty")
    } else if token.trim() != token {
        Some("begins or ends with a blank, which no request can send; remove it")
    } else if token.contains(char::is_control) {
        Some("has a control character, which no request can send; remove it")
    } else {
        None
    }
}

fn weakness(setting: &str, token: &Secret) -> Option<String> {
    (token.reveal().chars().count() < TOKEN_CHARS_MIN).then(|| {
        format!(
            "{setting} has fewer than {TOKEN_CHARS_MIN} characters, so it can be guessed; make one by `openssl rand -hex 32`"
        )
    })
}

impl CurrentToken {
    fn set(&self, token: &Secret) {
        self.0.store(Some(Arc::new(hash(token.reveal().as_bytes()))));
    }

    fn is_configured(&self) -> bool {
        self.0.load().is_some()
    }

    fn is(&self, sent: &[u8; 32]) -> bool {
        self.0.load().as_deref().is_some_and(|token| is_equal(sent, token))
    }
}

impl TokenCheck {
    /// With the files of tokens.
    pub(crate) fn new(
        options: TokenOptions,
        clock: Clock,
        metrics: &Metrics,
    ) -> (Arc<Self>, Option<Reloaded>) {
        let mut files = Reloaded::new("admin-token", "admin token");
        let TokenOptions { read, change } = options;
        let current_read = read.current();
        let current_change = change.current();
        read.follow(&current_read, &current_change, &mut files);
        change.follow(&current_change, &current_read, &mut files);
        let terms = Terms::new(ATTEMPTS_MAX.into(), Unit::Minute, Algorithm::TokenBucket);
        let check = Self {
            read: current_read,
            change: current_change,
            attempts: Counters::new(ATTEMPTS_BYTES_MAX, "admin_attempts", metrics),
            limit: Limit::new(&terms).expect("ten per minute can be counted"),
            clock,
        };
        let files = (!files.is_empty()).then_some(files);
        (Arc::new(check), files)
    }

    /// The setting to configure for changes; `None` if there is a token.
    pub(crate) fn unconfigured(&self) -> Option<&'static str> {
        (!self.change.is_configured()).then_some(NO_TOKEN)
    }

    /// Whether a token lets its bearer see values.
    pub(crate) fn reveals(&self) -> bool {
        self.read.is_configured() || self.change.is_configured()
    }

    /// Authorizes a change.
    ///
    /// # Errors
    /// 403 without a configured token or for the one that may only read, and those of
    /// [`Self::right`].
    pub(crate) fn authorize(
        &self,
        headers: &HeaderMap,
        remote: Option<IpAddr>,
    ) -> Result<(), Rejected> {
        let forbidden = |reason| Err(Rejected::new(StatusCode::FORBIDDEN, reason));
        if !self.change.is_configured() {
            return forbidden(NO_TOKEN);
        }
        match self.right(headers, remote)? {
            Right::Change => Ok(()),
            Right::Read => forbidden(READ_ONLY),
        }
    }

    /// # Errors
    /// 401 for a missing or wrong token, and 429 for a wrong one after too many of them.
    pub(crate) fn right(
        &self,
        headers: &HeaderMap,
        remote: Option<IpAddr>,
    ) -> Result<Right, Rejected> {
        let unauthorized = |reason| Err(Rejected::new(StatusCode::UNAUTHORIZED, reason));
        let sent = headers.get(header::AUTHORIZATION);
        let Some(sent) = sent.and_then(|value| bearer(value.as_bytes())) else {
            return unauthorized("send the admin token as Authorization: Bearer TOKEN");
        };
        let sent = hash(sent);
        if self.change.is(&sent) {
            return Ok(Right::Change);
        }
        if self.read.is(&sent) {
            return Ok(Right::Read);
        }
        let client = remote.map_or_else(String::new, |remote| client_of(remote).to_string());
        let attempt = Check::new(Key::from(&*client), self.limit, Hits::Add(1));
        if self.attempts.decide_check(&attempt, self.clock.now()).over {
            let period = self.limit.period.as_micros();
            let secs = Span::from_micros(period / u64::from(ATTEMPTS_MAX)).ceil_secs();
            let reason = "too many attempts with a wrong token";
            return Err(Rejected::new(StatusCode::TOO_MANY_REQUESTS, reason).retry_after(secs));
        }
        unauthorized("the admin token is wrong")
    }
}

/// The token of `Bearer TOKEN`; the scheme is case-insensitive.
fn bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = value.split_at_checked("Bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"Bearer ").then(|| token.trim_ascii())
}

fn hash(token: &[u8]) -> [u8; 32] {
    *digest(&SHA256, token).as_ref().first_chunk().expect("it has 32 bytes")
}

/// In a time that does not depend on the bytes: of hashes, it would reveal little anyway.
fn is_equal(one: &[u8; 32], other: &[u8; 32]) -> bool {
    let difference = one.iter().zip(other).fold(0, |sum, (one, other)| sum | (one ^ other));
    std::hint::black_box(difference) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_that_no_request_can_send_are_errors() {
        for (token, expected) in [
            ("", "is empty"),
            (" ", "begins or ends with a blank"),
            (" x ", "begins or ends with a blank"),
            ("x\t", "begins or ends with a blank"),
            ("x\n", "begins or ends with a blank"),
            ("a\u{1b}b", "has a control character"),
        ] {
            let error =
                TokenSource::new("ADMIN_TOKEN", Some(Secret::new(token)), None).expect_err(token);
            assert!(error.starts_with(&format!("ADMIN_TOKEN {expected}")), "{error}");
        }
        for token in ["x", "a b", "s3cret-\u{fc}"] {
            assert!(
                TokenSource::new("ADMIN_TOKEN", Some(Secret::new(token)), None).is_ok(),
                "{token}"
            );
        }
    }

    #[test]
    fn short_tokens_are_reported() {
        let warning = |token: String| weakness("ADMIN_TOKEN", &Secret::new(token));
        assert!(warning("x".repeat(TOKEN_CHARS_MIN - 1)).is_some());
        assert!(warning("x".repeat(TOKEN_CHARS_MIN)).is_none());
    }
}
