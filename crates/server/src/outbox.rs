//! What waits to be sent on one connection. Bounded: a page that does not read is dropped, and delays nobody.

use std::{
    collections::VecDeque,
    sync::{Mutex, MutexGuard, PoisonError},
};

use axum::extract::ws::Utf8Bytes;
use tokio::sync::Notify;

use crate::signalling::ParticipantId;

/// At most this many bytes wait. Twenty people offering eight lanes each to a newcomer come to about 0.4 MB.
const MAX_BYTES: usize = 1 << 20;
/// At most this many messages wait.
const MAX_MESSAGES: usize = 4_096;
/// Of both, signals of other participants may take three quarters: the rest is for the server's own messages.
const MAX_SIGNAL_BYTES: usize = MAX_BYTES / 4 * 3;
const MAX_SIGNALS: usize = MAX_MESSAGES / 4 * 3;
/// At most this many bytes of one participant's signals wait.
const MAX_BYTES_OF_ONE: usize = MAX_BYTES / 4;

/// A bounded queue with an end. Anyone may put in; one task takes out.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    queue: Mutex<Queue>,
    changed: Notify,
    aborted: Notify,
}

#[derive(Debug, Default)]
struct Queue {
    messages: VecDeque<Waiting>,
    bytes: usize,
    end: Option<End>,
}

#[derive(Debug)]
struct Waiting {
    text: Utf8Bytes,
    /// Whose signal it is, if it is one.
    from: Option<ParticipantId>,
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

/// Why a message was not taken.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NotTaken {
    /// There is no room. A signal may be dropped; for want of anything else the connection is to be aborted.
    Full,
    /// The connection ends, or has ended: nothing is amiss.
    Ended,
}

impl Outbox {
    /// Adds a message of the server's own.
    pub(crate) fn push(&self, text: Utf8Bytes) -> Result<(), NotTaken> {
        let mut queue = self.lock();
        let fits = queue.messages.len() < MAX_MESSAGES && queue.bytes + text.len() <= MAX_BYTES;
        queue.add(Waiting { text, from: None }, fits)?;
        self.changed.notify_one();
        Ok(())
    }

    /// Adds another participant's signal.
    pub(crate) fn push_signal(&self, text: Utf8Bytes, from: ParticipantId) -> Result<(), NotTaken> {
        let mut queue = self.lock();
        let fits = queue.messages.len() < MAX_SIGNALS
            && queue.bytes + text.len() <= MAX_SIGNAL_BYTES
            && queue.bytes_from(from) + text.len() <= MAX_BYTES_OF_ONE;
        let from = Some(from);
        queue.add(Waiting { text, from }, fits)?;
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
        if let Some(Waiting { text, .. }) = queue.messages.pop_front() {
            queue.bytes -= text.len();
            return Some(Next::Send(text));
        }
        queue.end.map(Next::End)
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Queue {
    fn add(&mut self, message: Waiting, fits: bool) -> Result<(), NotTaken> {
        if self.end.is_some() {
            return Err(NotTaken::Ended);
        }
        if !fits {
            return Err(NotTaken::Full);
        }
        self.bytes += message.text.len();
        self.messages.push_back(message);
        Ok(())
    }

    fn bytes_from(&self, from: ParticipantId) -> usize {
        let its = self.messages.iter().filter(|one| one.from == Some(from));
        its.map(|one| one.text.len()).sum()
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
        assert_eq!(outbox.push("b".into()), Err(NotTaken::Ended));
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
        assert_eq!(outbox.push("x".into()), Err(NotTaken::Full));
        assert_eq!(outbox.next().await, Next::Send(large));
        assert_eq!(
            (0..)
                .take_while(|_| outbox.push("x".into()).is_ok())
                .count(),
            MAX_MESSAGES - 1
        );
    }

    #[tokio::test]
    async fn signals_leave_room_for_each_other_and_for_what_the_server_says() {
        let outbox = Outbox::default();
        let [ann, ben, cleo] = [1, 2, 3].map(|n| ParticipantId::of_secret(&[n; 32]));
        let large: Utf8Bytes = "x".repeat(MAX_BYTES_OF_ONE / 2).into();
        let count = |from| {
            let pushed = (0..10).map(|_| outbox.push_signal(large.clone(), from));
            pushed.filter(Result::is_ok).count()
        };
        assert_eq!([count(ann), count(ben), count(cleo)], [2, 2, 2]);
        let dan = ParticipantId::of_secret(&[4; 32]);
        assert_eq!(outbox.push_signal("x".into(), dan), Err(NotTaken::Full));
        assert_eq!(outbox.push(large.clone()), Ok(()));
        assert_eq!(outbox.next().await, Next::Send(large.clone()));
        assert_eq!(
            outbox.push_signal("x".into(), ann),
            Err(NotTaken::Full),
            "too much in all"
        );
        for _ in 0..2 {
            assert_eq!(outbox.next().await, Next::Send(large.clone()));
        }
        assert_eq!(count(ann), 2);
    }
}
