//! The messages of a channel, with a bound on those that are not read yet.

use bb8_redis::redis::Msg;
use bb8_redis::redis::aio::{PubSub, PubSubStream};
use futures_util::{FutureExt as _, StreamExt as _};

use crate::store::redis::connect::reply_bound::Transferred;

/// The messages of a channel.
pub(crate) struct Subscription {
    messages: PubSubStream,
    transferred: Transferred,
    /// Whether messages were read since `transferred` was reset.
    has_read: bool,
}

impl Subscription {
    pub(crate) fn new(connection: PubSub, transferred: Transferred) -> Self {
        Self { messages: connection.into_on_message(), transferred, has_read: false }
    }

    /// The next message; `None` if the connection has ended.
    pub(crate) async fn next(&mut self) -> Option<Msg> {
        let next = match self.messages.next().now_or_never() {
            Some(next) => next,
            None => {
                // All complete messages were read.
                if std::mem::take(&mut self.has_read) {
                    self.transferred.reset();
                }
                self.messages.next().await
            }
        };
        self.has_read = true;
        next
    }
}
