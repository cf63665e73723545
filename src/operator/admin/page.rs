//! A page that is rendered once for all concurrent requests.
//!
//! A page of many metrics or rules takes a fraction of a second and many megabytes. So each kind is
//! rendered by one thread at a time, other than the one that answers liveness probes, and all
//! responses share the bytes. A response has a page whose rendering began after the request
//! arrived: it has everything that was counted before.
//!
//! ```text
//!  requests     1      2 3 4
//!  rendering    [ 1    ][ 2, 3, 4 ]
//! ```

use std::future::ready;
use std::sync::{Arc, Weak};

use axum::Extension;
use axum::body::Bytes;
use axum::response::{IntoResponse as _, Response};
use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, WeakShared};
use http::{StatusCode, header};
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::spawn_blocking;

use crate::base::http::response_budget::{Counted, Held, ResponseBudget};
use crate::telemetry::metric::Counter;

/// Pages of `/metrics` in memory. They are no part of the budget of other responses, which clients
/// that do not read may use up.
// bound pages_max: the previous page is repeated; tollgate_admin_pages_full_total
const PAGES_MAX: usize = 2;

/// A page, or the status of a response without one.
type Page = Result<Bytes, StatusCode>;

/// Held while a page is rendered.
pub(crate) type Turn = Arc<tokio::sync::Mutex<()>>;

/// A kind of page. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct SharedPage(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    budget: Budget,
    /// The page of the requests that wait for one whose rendering has not begun.
    next: Mutex<Option<WeakShared<BoxFuture<'static, Page>>>>,
    turn: Turn,
    /// The last page, while a response has it.
    last: Mutex<Weak<Held<String>>>,
    repeated: Counter,
}

/// Bounds of the pages in memory.
#[derive(Debug)]
enum Budget {
    Pages(Arc<Semaphore>),
    Bytes(ResponseBudget),
}

/// A response's share of a page.
struct Shared(Arc<Held<String>>);

impl AsRef<[u8]> for Shared {
    fn as_ref(&self) -> &[u8] {
        (*self.0).as_ref()
    }
}

/// The response with a page, whose bytes are counted already.
pub(crate) fn shown(content_type: &'static str, page: Bytes) -> Response {
    ([(header::CONTENT_TYPE, content_type)], Extension(Counted), page).into_response()
}

impl Budget {
    fn part(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        match self {
            Self::Pages(slots) => slots.clone().try_acquire_owned().ok(),
            Self::Bytes(budget) => budget.part(bytes),
        }
    }
}

impl SharedPage {
    /// A page that can always be sent. `repeated` counts the responses that repeat an older page.
    pub(crate) fn reserved(repeated: Counter) -> Self {
        Self::new(Budget::Pages(Arc::new(Semaphore::new(PAGES_MAX))), Turn::default(), repeated)
    }

    /// A page whose bytes are part of a budget. Of all pages with this `turn` one is rendered at a
    /// time.
    pub(crate) fn budgeted(budget: &ResponseBudget, turn: &Turn, repeated: Counter) -> Self {
        Self::new(Budget::Bytes(budget.clone()), turn.clone(), repeated)
    }

    fn new(budget: Budget, turn: Turn, repeated: Counter) -> Self {
        Self(Arc::new(Inner {
            budget,
            next: Mutex::default(),
            turn,
            last: Mutex::default(),
            repeated,
        }))
    }

    /// The current page, rendered unless another request's rendering is recent enough.
    ///
    /// # Errors
    /// 503 if no budget is left for it, and 500 if rendering panicked.
    pub(crate) async fn get(
        &self,
        render: impl FnOnce() -> String + Send + 'static,
    ) -> Result<Bytes, StatusCode> {
        self.get_after(ready(()), |()| render()).await
    }

    /// The same of a page that is rendered of what `prepare` returns, such as a permit.
    pub(crate) async fn get_after<P: Send + 'static>(
        &self,
        prepare: impl Future<Output = P> + Send + 'static,
        render: impl FnOnce(P) -> String + Send + 'static,
    ) -> Result<Bytes, StatusCode> {
        let page = {
            let mut next = self.0.next.lock();
            let shared = next.as_ref().and_then(WeakShared::upgrade);
            shared.unwrap_or_else(|| {
                let page = self.clone().rendered(prepare, render).boxed().shared();
                *next = page.downgrade();
                page
            })
        };
        page.await
    }

    async fn rendered<P: Send + 'static>(
        self,
        prepare: impl Future<Output = P> + Send,
        render: impl FnOnce(P) -> String + Send + 'static,
    ) -> Page {
        let turn = self.0.turn.clone().lock_owned().await;
        // Requests from now on need a later page.
        *self.0.next.lock() = None;
        let prepared = prepare.await;
        // It keeps the turn to its end, even if all requests are cancelled.
        let rendering = spawn_blocking(move || {
            let _turn = turn;
            self.kept(render(prepared))
        });
        let rendered = rendering.await;
        rendered.unwrap_or(Err(StatusCode::INTERNAL_SERVER_ERROR))
    }

    fn kept(&self, text: String) -> Page {
        let mut last = self.0.last.lock();
        let page = match self.0.budget.part(text.len()) {
            Some(part) => Arc::new(Held::new(text, part)),
            None => {
                self.0.repeated.inc();
                last.upgrade().ok_or(StatusCode::SERVICE_UNAVAILABLE)?
            }
        };
        *last = Arc::downgrade(&page);
        Ok(Bytes::from_owner(Shared(page)))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use tokio::task::JoinSet;

    use super::*;
    use crate::telemetry::metric::Metrics;

    fn page() -> (SharedPage, Counter) {
        let full = Metrics::new().counter("full", "Full.");
        (SharedPage::reserved(full.clone()), full)
    }

    #[tokio::test]
    async fn requests_during_a_rendering_share_the_next_page() {
        let (shared, _) = page();
        let (go, wait) = mpsc::channel::<()>();
        let mut asking = JoinSet::new();
        let first = shared.clone();
        asking.spawn(async move {
            first
                .get(move || {
                    let _ = wait.recv();
                    "first".to_owned()
                })
                .await
        });
        while shared.0.turn.try_lock().is_ok() {
            tokio::task::yield_now().await;
        }
        for number in 0..8 {
            let shared = shared.clone();
            asking.spawn(async move { shared.get(move || format!("later {number}")).await });
        }
        tokio::task::yield_now().await;
        drop(go);
        let pages = asking.join_all().await;
        let later: Vec<_> = pages.iter().flatten().filter(|page| &page[..] != b"first").collect();
        assert_eq!((pages.len(), later.len()), (9, 8));
        assert!(
            later.iter().all(|page| page.as_ptr() == later[0].as_ptr()),
            "they share the bytes"
        );
    }

    #[tokio::test]
    async fn previous_page_is_repeated_at_pages_max() {
        let (shared, full) = page();
        let mut unread = Vec::new();
        for number in 0..PAGES_MAX + 2 {
            unread.push(shared.get(move || number.to_string()).await.expect("it is rendered"));
        }
        assert_eq!((unread[PAGES_MAX].clone(), full.get()), (unread[PAGES_MAX - 1].clone(), 2));
        assert_eq!(unread.len(), 4, "they are two pages");
        unread.clear();
        assert_eq!(shared.get(|| "new".to_owned()).await.expect("it is rendered"), "new");
    }
}
