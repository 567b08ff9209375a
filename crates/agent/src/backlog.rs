//! How long what was handed to a lane waits before it leaves.

use std::collections::VecDeque;

/// What SCTP and DTLS put around the data of a packet, in bytes: SCTP's common header (RFC 9260, 3.1), and a record of DTLS 1.2 with AES-GCM
/// (RFC 6347, 4.1, and RFC 5288, 3).
const PACKET_BYTES: usize = 12 + 13 + 8 + 16;
/// What SCTP puts before each datagram (RFC 9260, 3.3.1); it fills it up to a multiple of four.
const CHUNK_BYTES: usize = 16;

/// The datagrams that were handed to one lane and have not left.
///
/// SCTP holds back what its congestion window does not allow, and does not say how much that is, only what is not acknowledged. But datagrams leave in
/// order, each once (nothing is sent again), so the lengths of the packets tell which have left.
#[derive(Debug, Default)]
pub(crate) struct Backlog {
    /// Length, and when it was handed over, ns. Oldest first.
    waiting: VecDeque<(usize, u64)>,
    waiting_bytes: usize,
    outstanding: usize,
    wait_ns: u64,
}

impl Backlog {
    /// A datagram is handed over.
    pub(crate) fn add(&mut self, bytes: usize, now_ns: u64) {
        self.waiting.push_back((bytes, now_ns));
        self.waiting_bytes += bytes;
    }

    /// A packet has left.
    pub(crate) fn handle_packet(&mut self, bytes: usize) {
        let mut room = bytes.saturating_sub(PACKET_BYTES);
        while let Some(&(length, _)) = self.waiting.front() {
            let Some(rest) = room.checked_sub(CHUNK_BYTES + length.next_multiple_of(4)) else {
                return;
            };
            room = rest;
            self.leave();
        }
    }

    /// So many bytes have not left, or are not acknowledged.
    pub(crate) fn set_outstanding(&mut self, bytes: usize) {
        self.outstanding = bytes;
        while self.waiting_bytes > bytes {
            self.leave();
        }
    }

    fn leave(&mut self) {
        if let Some((length, _)) = self.waiting.pop_front() {
            self.waiting_bytes -= length;
        }
    }

    /// Finds out how long datagrams wait. Not to be called while sending: who was held up and now catches up has not read yet what was
    /// acknowledged meanwhile.
    pub(crate) fn take_stock(&mut self, now_ns: u64) {
        let oldest = self.waiting.front();
        self.wait_ns = oldest.map_or(0, |&(_, at)| now_ns.saturating_sub(at));
    }

    /// Bytes that have not left, or are not acknowledged.
    pub(crate) fn outstanding(&self) -> usize {
        self.outstanding
    }

    /// How long the oldest datagram had waited when stock was last taken.
    pub(crate) fn wait_ns(&self) -> u64 {
        self.wait_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A packet's length with these datagrams in it.
    fn packet(datagrams: &[usize]) -> usize {
        let chunks = datagrams.iter().map(|it| 16 + it.next_multiple_of(4));
        49 + chunks.sum::<usize>()
    }

    #[test]
    fn what_leaves_does_not_wait_though_it_is_not_acknowledged() {
        let mut backlog = Backlog::default();
        for at in 0..10 {
            backlog.add(533, at);
            backlog.set_outstanding(533 * (at as usize + 1));
            backlog.handle_packet(packet(&[533]));
        }
        // An acknowledgement of ours is no datagram, and what is empty needs none.
        backlog.handle_packet(49 + 16);
        backlog.take_stock(1_000);
        assert_eq!((backlog.outstanding(), backlog.wait_ns()), (5_330, 0));
    }

    #[test]
    fn what_is_held_back_waits_until_it_leaves() {
        let mut backlog = Backlog::default();
        for at in [100, 200, 300] {
            backlog.add(40, at);
        }
        backlog.set_outstanding(120);
        backlog.take_stock(1_000);
        assert_eq!(backlog.wait_ns(), 900);
        // An acknowledgement with a long list of gaps is shorter than one of them.
        backlog.handle_packet(49 + 16 + 36);
        backlog.handle_packet(packet(&[40, 40]));
        assert_eq!(backlog.wait_ns(), 900, "not looked at yet");
        backlog.take_stock(1_000);
        assert_eq!(backlog.wait_ns(), 700);
        // However it left: it is acknowledged.
        backlog.set_outstanding(0);
        backlog.take_stock(1_000);
        assert_eq!(backlog.wait_ns(), 0);
    }
}
