//! Authorizes requests that change something: ADMIN_TOKEN, or the content of ADMIN_TOKEN_FILE.
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
use sha2::{Digest as _, Sha256};

use crate::admin::api::answer::Rejected;
use crate::base::parse::Secret;
use crate::base::time::{Clock, Span};
use crate::check::{Check, Hits, Key};
use crate::file_watch::{FileSet, Reloaded};
use crate::http::budget::client_of;
use crate::limit::{Algorithm, Limit, Terms, Unit};
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
const SETTING: &str = "ADMIN_TOKEN";
const FILE_SETTING: &str = "ADMIN_TOKEN_FILE";
/// Characters that a random token has at least: 64 bits in hex. At 100,000 guesses a second, more
/// than a process answers, it is found after three million years.
const TOKEN_CHARS_MIN: usize = 16;

/// Where the token comes from.
#[derive(Debug, Clone, Default)]
pub(crate) struct TokenOptions {
    /// `None` without a token: nothing can be changed.
    pub(crate) token: Option<Secret>,
    /// The file that it was read from.
    pub(crate) file: Option<PathBuf>,
}

/// The hash of the current token. Clones share it.
#[derive(Debug, Clone, Default)]
struct CurrentToken(Arc<ArcSwapOption<[u8; 32]>>);

/// Authorizes requests by their token.
#[derive(Debug)]
pub(crate) struct TokenCheck {
    current: CurrentToken,
    attempts: Counters,
    limit: Limit,
    clock: Clock,
}

impl TokenOptions {
    /// # Errors
    /// The file cannot be used, or no request can have the token.
    pub(crate) fn new(token: Option<Secret>, file: Option<PathBuf>) -> Result<Self, String> {
        let Some(file) = file else {
            let unusable = token.as_ref().and_then(unusable);
            return match unusable {
                Some(what) => Err(format!("{SETTING} {what}")),
                None => Ok(Self { token, file: None }),
            };
        };
        Ok(Self {
            token: Some(read(&file)?),
            file: Some(file),
        })
    }

    /// A sentence about a token that can be guessed.
    pub(crate) fn warning(&self) -> Option<String> {
        self.token.as_ref().and_then(weakness)
    }
}

fn read(path: &Path) -> Result<Secret, String> {
    let token = Secret::read_file(path, "a token");
    let token = token.and_then(|token| match unusable(&token) {
        Some(what) => Err(format!(" {what}")),
        None => Ok(token),
    });
    token.map_err(|error| format!("{FILE_SETTING}: {}{error}", path.display()))
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

fn weakness(token: &Secret) -> Option<String> {
    (token.reveal().chars().count() < TOKEN_CHARS_MIN).then(|| {
        format!(
            "the admin token has fewer than {TOKEN_CHARS_MIN} characters, so it can be guessed; make one by `openssl rand -hex 32`"
        )
    })
}

impl CurrentToken {
    fn set(&self, token: &Secret) {
        self.0
            .store(Some(Arc::new(hash(token.reveal().as_bytes()))));
    }
}

impl TokenCheck {
    /// With the token's file, if there is one.
    pub(crate) fn new(
        options: TokenOptions,
        clock: Clock,
        metrics: &Metrics,
    ) -> (Arc<Self>, Option<Reloaded>) {
        let current = CurrentToken::default();
        if let Some(token) = &options.token {
            current.set(token);
        }
        let file = options.file.map(|path| reloaded(path, current.clone()));
        let terms = Terms::new(ATTEMPTS_MAX, Unit::Minute, Algorithm::TokenBucket);
        let check = Self {
            current,
            attempts: Counters::new(ATTEMPTS_BYTES_MAX, "admin_attempts", metrics),
            limit: Limit::new(&terms).expect("ten per minute can be counted"),
            clock,
        };
        (Arc::new(check), file)
    }

    /// The setting to configure; `None` if there is a token.
    pub(crate) fn unconfigured(&self) -> Option<&'static str> {
        self.current.0.load().is_none().then_some(NO_TOKEN)
    }

    /// # Errors
    /// 403 without a configured token, 401 for a missing or wrong one, and 429 for a wrong one
    /// after too many of them.
    pub(crate) fn authorize(
        &self,
        headers: &HeaderMap,
        remote: Option<IpAddr>,
    ) -> Result<(), Rejected> {
        let current = self.current.0.load();
        let Some(expected) = current.as_deref() else {
            return Err(Rejected::new(StatusCode::FORBIDDEN, NO_TOKEN));
        };
        let unauthorized = |reason| Err(Rejected::new(StatusCode::UNAUTHORIZED, reason));
        let sent = headers.get(header::AUTHORIZATION);
        let Some(sent) = sent.and_then(|value| bearer(value.as_bytes())) else {
            return unauthorized("send the admin token as Authorization: Bearer TOKEN");
        };
        if is_equal(&hash(sent), expected) {
            return Ok(());
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

/// Replaces the token when its file changes.
fn reloaded(path: PathBuf, current: CurrentToken) -> Reloaded {
    let mut reloaded = Reloaded::new("admin-token", "admin token");
    let replace = move |token: Secret| {
        current.set(&token);
        if let Some(weakness) = weakness(&token) {
            tracing::warn!("{weakness}");
        }
    };
    reloaded.add(
        FileSet::new(vec![path.clone()]),
        move || read(&path),
        replace,
    );
    reloaded
}

/// The token of `Bearer TOKEN`; the scheme is case-insensitive.
fn bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = value.split_at_checked("Bearer ".len())?;
    scheme
        .eq_ignore_ascii_case(b"Bearer ")
        .then(|| token.trim_ascii())
}

fn hash(token: &[u8]) -> [u8; 32] {
    Sha256::digest(token).into()
}

/// In a time that does not depend on the bytes: of hashes, it would reveal little anyway.
fn is_equal(one: &[u8; 32], other: &[u8; 32]) -> bool {
    let difference = one
        .iter()
        .zip(other)
        .fold(0, |sum, (one, other)| sum | (one ^ other));
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
            let error = TokenOptions::new(Some(Secret::new(token)), None).expect_err(token);
            assert!(
                error.starts_with(&format!("ADMIN_TOKEN {expected}")),
                "{error}"
            );
        }
        for token in ["x", "a b", "s3cret-\u{fc}"] {
            assert!(
                TokenOptions::new(Some(Secret::new(token)), None).is_ok(),
                "{token}"
            );
        }
    }

    #[test]
    fn short_tokens_are_reported() {
        let warning = |token: String| {
            let options = TokenOptions::new(Some(Secret::new(token)), None);
            options.expect("it can be sent").warning()
        };
        assert!(warning("x".repeat(TOKEN_CHARS_MIN - 1)).is_some());
        assert!(warning("x".repeat(TOKEN_CHARS_MIN)).is_none());
    }
}
