//! What waits to be sent on one connection. Bounded: a page that does not read is dropped, and delays nobody.

use std::{
    collections::VecDeque,
    sync::{Mutex, MutexGuard, PoisonError},
};

use axum::extract::ws::Utf8Bytes;
use tokio::sync::Notify;

/// At most this many bytes wait. Twenty people offering eight lanes each to a newcomer come to about 0.4 MB.
const MAX_BYTES: usize = 1 << 20;
/// At most this many messages wait.
const MAX_MESSAGES: usize = 4_096;

/// A bounded queue with an end. Anyone may put in; one task takes out.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    queue: Mutex<Queue>,
    changed: Notify,
    aborted: Notify,
}

#[derive(Debug, Default)]
struct Queue {
    messages: VecDeque<Utf8Bytes>,
    bytes: usize,
    end: Option<End>,
}

/// How a connection ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// With this close code, after everything before it was sent.
    Close(u16),
    /// At once, without another word: its page does not read.
    Abort,
}

/// What to do next on the connection.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next {
    Send(Utf8Bytes),
    End(End),
}

/// The queue is full: abort the connection.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Full;

impl Outbox {
    /// Adds a message, unless the connection already ends.
    pub(crate) fn push(&self, message: Utf8Bytes) -> Result<(), Full> {
        let mut queue = self.lock();
        if queue.end.is_some() {
            return Ok(());
        }
        if queue.messages.len() >= MAX_MESSAGES || queue.bytes + message.len() > MAX_BYTES {
            return Err(Full);
        }
        queue.bytes += message.len();
        queue.messages.push_back(message);
        self.changed.notify_one();
        Ok(())
    }

    /// Ends the connection. The first close counts, but an abort overrides it.
    pub(crate) fn end(&self, end: End) {
        let mut queue = self.lock();
        if end == End::Abort || queue.end.is_none() {
            queue.end = Some(end);
        }
        self.changed.notify_one();
        if end == End::Abort {
            self.aborted.notify_one();
        }
    }

    /// Waits for something to do.
    pub(crate) async fn next(&self) -> Next {
        loop {
            let changed = self.changed.notified();
            if let Some(next) = self.take() {
                return next;
            }
            changed.await;
        }
    }

    /// Waits for an abort: what is being sent at that moment is given up.
    pub(crate) async fn aborted(&self) {
        self.aborted.notified().await;
    }

    fn take(&self) -> Option<Next> {
        let mut queue = self.lock();
        if queue.end == Some(End::Abort) {
            return Some(Next::End(End::Abort));
        }
        if let Some(message) = queue.messages.pop_front() {
            queue.bytes -= message.len();
            return Some(Next::Send(message));
        }
        queue.end.map(Next::End)
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn everything_before_a_close_is_sent_and_nothing_after_it() {
        let outbox = Outbox::default();
        assert_eq!(outbox.push("a".into()), Ok(()));
        outbox.end(End::Close(1008));
        outbox.end(End::Close(1000));
        assert_eq!(outbox.push("b".into()), Ok(()));
        assert_eq!(outbox.next().await, Next::Send("a".into()));
        assert_eq!(outbox.next().await, Next::End(End::Close(1008)));
    }

    #[tokio::test]
    async fn an_abort_skips_what_waits() {
        let outbox = Outbox::default();
        assert_eq!(outbox.push("a".into()), Ok(()));
        outbox.end(End::Abort);
        assert_eq!(outbox.next().await, Next::End(End::Abort));
    }

    #[tokio::test]
    async fn is_bounded_in_bytes_and_in_messages() {
        let outbox = Outbox::default();
        let large: Utf8Bytes = "x".repeat(MAX_BYTES / 2).into();
        assert_eq!(outbox.push(large.clone()), Ok(()));
        assert_eq!(outbox.push(large.clone()), Ok(()));
        assert_eq!(outbox.push("x".into()), Err(Full));
        assert_eq!(outbox.next().await, Next::Send(large));
        assert_eq!(
            (0..)
                .take_while(|_| outbox.push("x".into()).is_ok())
                .count(),
            MAX_MESSAGES - 1
        );
    }
}
