//! A page that is rendered once for all concurrent requests.
//!
//! A page of many metrics or rules takes a fraction of a second and many megabytes. So each kind is
//! rendered by one thread at a time, other than the one that answers liveness probes, and all
//! responses share the bytes. A response has a page whose rendering began after the request arrived:
//! it has everything that was counted before.
//!
//! ```text
//!  requests     1      2 3 4
//!  rendering    [ 1    ][ 2, 3, 4 ]
//! ```

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use axum::body::Bytes;
use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore};
use tokio::task::spawn_blocking;

use crate::telemetry::metric::Counter;

/// Pages of one kind in memory, such as `/metrics`. Clients that do not read keep theirs until they
/// are closed; meanwhile the previous page is repeated.
// bound pages_max: the last one is sent again; tollgate_admin_pages_full_total
const PAGES_MAX: usize = 4;

/// A kind of page. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct SharedPage(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    /// Renderings so far.
    begun: AtomicU64,
    last: Arc<Mutex<Option<Rendered>>>,
    slots: Arc<Semaphore>,
    full: Counter,
}

#[derive(Debug)]
struct Rendered {
    number: u64,
    page: Bytes,
}

/// The bytes of a page, and its slot.
struct PageOwner {
    text: String,
    _slot: OwnedSemaphorePermit,
}

impl AsRef<[u8]> for PageOwner {
    fn as_ref(&self) -> &[u8] {
        self.text.as_bytes()
    }
}

impl SharedPage {
    /// `full` counts the responses that repeat an older page.
    pub(crate) fn new(full: Counter) -> Self {
        Self(Arc::new(Inner {
            begun: AtomicU64::new(0),
            last: Arc::default(),
            slots: Arc::new(Semaphore::new(PAGES_MAX)),
            full,
        }))
    }

    /// The current page, rendered unless another request's rendering is recent enough; `None` if
    /// rendering panicked.
    pub(crate) async fn get(
        &self,
        render: impl FnOnce() -> String + Send + 'static,
    ) -> Option<Bytes> {
        let begun = self.0.begun.load(Relaxed);
        let mut last = self.0.last.clone().lock_owned().await;
        if let Some(rendered) = last.as_ref().filter(|rendered| rendered.number > begun) {
            return Some(rendered.page.clone());
        }
        let slot = self.0.slots.clone().try_acquire_owned();
        let slot = match (slot, last.as_ref()) {
            (Ok(slot), _) => slot,
            (Err(_), Some(rendered)) => {
                self.0.full.inc();
                return Some(rendered.page.clone());
            }
            // Every page in memory was once the last one.
            (Err(_), None) => return None,
        };
        let number = self.0.begun.fetch_add(1, Relaxed) + 1;
        // It keeps the lock to its end, even if the request is cancelled.
        let rendering = spawn_blocking(move || {
            let page = Bytes::from_owner(PageOwner {
                text: render(),
                _slot: slot,
            });
            *last = Some(Rendered {
                number,
                page: page.clone(),
            });
            page
        });
        rendering.await.ok()
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
        (SharedPage::new(full.clone()), full)
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
        while shared.0.begun.load(Relaxed) == 0 {
            tokio::task::yield_now().await;
        }
        for number in 0..8 {
            let shared = shared.clone();
            asking.spawn(async move { shared.get(move || format!("later {number}")).await });
        }
        tokio::task::yield_now().await;
        drop(go);
        let pages = asking.join_all().await;
        let later: Vec<_> = pages
            .iter()
            .flatten()
            .filter(|page| &page[..] != b"first")
            .collect();
        assert_eq!((pages.len(), later.len()), (9, 8));
        assert!(
            later.iter().all(|page| page.as_ptr() == later[0].as_ptr()),
            "they share the bytes"
        );
        assert_eq!(shared.0.begun.load(Relaxed), 2);
    }

    #[tokio::test]
    async fn previous_page_is_repeated_at_pages_max() {
        let (shared, full) = page();
        let mut unread = Vec::new();
        for number in 0..PAGES_MAX + 2 {
            unread.push(
                shared
                    .get(move || number.to_string())
                    .await
                    .expect("it is rendered"),
            );
        }
        assert_eq!(
            (unread[PAGES_MAX].clone(), full.get()),
            (unread[PAGES_MAX - 1].clone(), 2)
        );
        unread.drain(..2);
        assert_eq!(
            shared
                .get(|| "new".to_owned())
                .await
                .expect("it is rendered"),
            "new"
        );
    }
}
