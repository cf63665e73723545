//! Authorizes requests that change something: ADMIN_TOKEN, or the content of ADMIN_TOKEN_FILE.
//!
//! Wrong tokens are counted by client, in the store and with the algorithm that count requests. A
//! client with too many gets 429, even for the right token: else it could go on guessing.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arc_swap::ArcSwapOption;
use http::{HeaderMap, StatusCode, header};
use sha2::{Digest as _, Sha256};

use crate::admin::api::answer::Rejected;
use crate::check::{Check, Hits, Key};
use crate::file_watch::{FileSet, RecursiveMode, Watched};
use crate::http::budget::client_of;
use crate::limit::{Algorithm, Limit, Terms, Unit};
use crate::settings::parse::Secret;
use crate::store::memory::Counters;
use crate::telemetry::metric::Metrics;
use crate::time::{Clock, Span};

/// Wrong tokens of one client, an IPv4 address or an IPv6 /64, in a minute.
// bound admin_attempts_max: 429; tollgate_admin_actions_total{outcome="throttled"}
const ATTEMPTS_MAX: u32 = 10;
/// Bytes of the counters of clients with wrong tokens: some 14,000.
// bound admin_attempts_bytes_max: the client that is closest to its reset is forgotten;
// tollgate_memory_evicted_total{use="admin_attempts"}
const ATTEMPTS_BYTES_MAX: u64 = 1 << 20;
const NO_TOKEN: &str = "no admin token is configured; set ADMIN_TOKEN or ADMIN_TOKEN_FILE";
const FILE_SETTING: &str = "ADMIN_TOKEN_FILE";

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

/// Reloads the token when its file changes.
#[derive(Debug)]
pub(crate) struct TokenFile {
    path: PathBuf,
    files: FileSet,
    current: CurrentToken,
}

impl TokenOptions {
    /// # Errors
    /// The file cannot be used.
    pub(crate) fn new(token: Option<Secret>, file: Option<PathBuf>) -> Result<Self, String> {
        let Some(file) = file else {
            return Ok(Self { token, file: None });
        };
        Ok(Self {
            token: Some(read(&file)?),
            file: Some(file),
        })
    }
}

fn read(path: &Path) -> Result<Secret, String> {
    Secret::read_file(path, "a token")
        .map_err(|error| format!("{FILE_SETTING}: {}{error}", path.display()))
}

impl CurrentToken {
    fn set(&self, token: &Secret) {
        self.0
            .store(Some(Arc::new(hash(token.reveal().as_bytes()))));
    }
}

impl TokenCheck {
    /// With what reloads its file, if there is one.
    pub(crate) fn new(
        options: TokenOptions,
        clock: Clock,
        metrics: &Metrics,
    ) -> (Self, Option<TokenFile>) {
        let current = CurrentToken::default();
        if let Some(token) = &options.token {
            current.set(token);
        }
        let file = options.file.map(|path| TokenFile {
            files: FileSet::new(vec![path.clone()]),
            path,
            current: current.clone(),
        });
        let terms = Terms::new(ATTEMPTS_MAX, Unit::Minute, Algorithm::TokenBucket);
        let check = Self {
            current,
            attempts: Counters::new(ATTEMPTS_BYTES_MAX, "admin_attempts", metrics),
            limit: Limit::new(&terms).expect("ten per minute can be counted"),
            clock,
        };
        (check, file)
    }

    /// What to configure; `None` if there is a token.
    pub(crate) fn unconfigured(&self) -> Option<&'static str> {
        self.current.0.load().is_none().then_some(NO_TOKEN)
    }

    /// # Errors
    /// 403 without a configured token, 429 after too many wrong ones, 401 for a missing or wrong one.
    pub(crate) fn authorize(
        &self,
        headers: &HeaderMap,
        remote: Option<IpAddr>,
    ) -> Result<(), Rejected> {
        let current = self.current.0.load();
        let Some(expected) = current.as_deref() else {
            return Err(Rejected::new(StatusCode::FORBIDDEN, NO_TOKEN));
        };
        let client = remote.map_or_else(String::new, |remote| client_of(remote).to_string());
        let attempt = Check::new(Key::from(&*client), self.limit, Hits::Add(1));
        let now = self.clock.now();
        let attempts = self.attempts.peek(&attempt, now);
        if attempts.is_exhausted {
            let period = self.limit.period.as_micros();
            let secs = Span::from_micros(period / u64::from(ATTEMPTS_MAX)).ceil_secs();
            let reason = "too many attempts with a wrong token";
            return Err(Rejected::new(StatusCode::TOO_MANY_REQUESTS, reason).retry_after(secs));
        }
        let sent = headers.get(header::AUTHORIZATION);
        let sent = sent.and_then(|value| bearer(value.as_bytes()));
        if sent.is_some_and(|token| is_equal(&hash(token), expected)) {
            return Ok(());
        }
        self.attempts.decide_check(&attempt, now);
        let reason = match sent {
            Some(_) => "the admin token is wrong",
            None => "send the admin token as Authorization: Bearer TOKEN",
        };
        Err(Rejected::new(StatusCode::UNAUTHORIZED, reason))
    }
}

impl Watched for TokenFile {
    const NAME: &'static str = "admin-token";

    fn directories(&self) -> Vec<(PathBuf, RecursiveMode)> {
        self.files.directories()
    }

    fn has_changed(&mut self) -> bool {
        self.files.has_changed()
    }

    /// A file that cannot be used leaves the last token in use.
    fn load(&mut self) {
        match self.files.load(|| read(&self.path)) {
            None => {}
            Some(Ok(token)) => {
                self.current.set(&token);
                tracing::info!("admin token reloaded");
            }
            Some(Err(error)) => {
                tracing::error!(
                    "reload of the admin token rejected; the previous one stays in use: {error}"
                );
            }
        }
    }
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
