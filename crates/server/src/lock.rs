//! A room's passphrase: how it is kept, and how often one address, and all together, may be wrong about it.

use std::{collections::HashMap, net::IpAddr, time::Duration};

use ring::{hmac, rand::SystemRandom};

use crate::{
    admission::{counted, site},
    network::Network,
    rate::TokenBucket,
    signalling::{ErrorCode, Passphrase},
};

/// What opens a room. It is kept for who resumes and may have missed it, as long as there is someone in the room.
#[derive(Debug)]
pub(crate) struct Lock {
    passphrase: Passphrase,
    /// Of this lock only, and random.
    key: hmac::Key,
    /// What each address and line may still be wrong, and all together.
    guesses: HashMap<Network, Guesses>,
    wrong: TokenBucket,
}

/// The wrong passphrases of an address, or of a line.
#[derive(Debug)]
struct Guesses {
    left: TokenBucket,
    /// Of the last one. Said again it costs nothing: that is a class that was told a wrong one, and tells a guesser nothing.
    last: hmac::Tag,
}

/// An address may be wrong ten times at once, and ten times a minute after that; a line of many addresses four times as often, which is less often than a room
/// takes: nobody holds its door shut alone.
const AT_ONCE: u32 = 60;
const EACH: usize = 6;
const PER_SECOND: u32 = 1;

/// A room takes sixty wrong ones at once, and sixty a minute after that, from however many addresses: a guesser with thousands gets no further.
/// While it is used up nobody else comes in, but who is in the room resumes.
const ROOM_AT_ONCE: u32 = 60;
const ROOM_PER_SECOND: u32 = 1;

/// Addresses and lines that are remembered before those are forgotten that were not wrong for a minute. A room's own limit leaves hardly more than 120 of each.
const MANY_ADDRESSES: usize = 256;

impl Lock {
    pub(crate) fn new(passphrase: &Passphrase) -> Self {
        Self {
            passphrase: passphrase.clone(),
            key: hmac::Key::generate(hmac::HMAC_SHA256, &SystemRandom::new())
                .expect("the operating system has randomness"),
            guesses: HashMap::new(),
            // Whatever the time is: it is full.
            wrong: TokenBucket::new(ROOM_AT_ONCE, ROOM_PER_SECOND, Duration::ZERO),
        }
    }

    /// For those who are in the room.
    pub(crate) fn passphrase(&self) -> &Passphrase {
        &self.passphrase
    }

    /// Whether it opens to somebody at that address, and if not, why. Wrong ones are counted, by address: a right one costs nothing, for a class
    /// behind one address comes in together.
    pub(crate) fn open(
        &mut self,
        said: Option<&Passphrase>,
        address: IpAddr,
        now: Duration,
    ) -> Result<(), (ErrorCode, &'static str)> {
        let Some(said) = said else {
            return Err((ErrorCode::Passphrase, "this room asks for a passphrase"));
        };
        if self.guesses.len() >= MANY_ADDRESSES {
            self.guesses.retain(|_, own| !own.left.is_full(now));
        }
        let is_used_up = |(network, _)| {
            let own = self.guesses.get_mut(&network);
            own.is_some_and(|own| !own.left.has(EACH, now))
        };
        if !self.wrong.has(1, now) || counted(address).any(is_used_up) {
            return Err((
                ErrorCode::TooFast,
                "too many wrong passphrases; wait a minute",
            ));
        }
        if self.opens_to(said) {
            return Ok(());
        }
        let own = self.guesses.get(&site(address));
        if !own.is_some_and(|own| self.is_of(&own.last, said)) {
            let last = self.tag(said);
            self.wrong.take(1, now);
            for (network, shares) in counted(address) {
                let own = self.guesses.entry(network).or_insert_with(|| Guesses {
                    left: TokenBucket::new(shares * AT_ONCE, shares * PER_SECOND, now),
                    last,
                });
                own.left.take(EACH, now);
                own.last = last;
            }
        }
        Err((ErrorCode::Passphrase, "this is not the room's passphrase"))
    }

    /// Takes the same time wherever the two differ.
    pub(crate) fn opens_to(&self, said: &Passphrase) -> bool {
        self.is_of(&self.tag(&self.passphrase), said)
    }

    fn is_of(&self, tag: &hmac::Tag, said: &Passphrase) -> bool {
        hmac::verify(&self.key, said.reveal().as_bytes(), tag.as_ref()).is_ok()
    }

    fn tag(&self, passphrase: &Passphrase) -> hmac::Tag {
        hmac::sign(&self.key, passphrase.reveal().as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passphrase(text: &str) -> Passphrase {
        text.to_owned().try_into().expect("a passphrase")
    }

    fn address(n: u32) -> IpAddr {
        IpAddr::from(n.to_be_bytes())
    }

    fn lock() -> Lock {
        Lock::new(&passphrase("right"))
    }

    /// What becomes of it, at a time in seconds.
    fn said(lock: &mut Lock, text: &str, n: u32, seconds: u64) -> Result<(), ErrorCode> {
        let now = Duration::from_secs(seconds);
        let opened = lock.open(Some(&passphrase(text)), address(n), now);
        opened.map_err(|(code, _)| code)
    }

    const WRONG: Result<(), ErrorCode> = Err(ErrorCode::Passphrase);
    const TOO_FAST: Result<(), ErrorCode> = Err(ErrorCode::TooFast);

    #[test]
    fn opens_to_the_same_text_only() {
        let mut lock = Lock::new(&passphrase("open sesame"));
        assert_eq!(said(&mut lock, "open sesame", 0, 0), Ok(()));
        // Spaces around it are no part of it: they come along when it is pasted.
        assert_eq!(said(&mut lock, " open sesame ", 0, 0), Ok(()));
        for wrong in ["open sesam", "opensesame", "Open sesame", "x"] {
            assert_eq!(said(&mut lock, wrong, 0, 0), WRONG, "{wrong}");
        }
        let nothing = lock.open(None, address(0), Duration::ZERO);
        assert_eq!(nothing.map_err(|(code, _)| code), WRONG);
        assert!(!format!("{lock:?}").contains("sesame"));
    }

    #[test]
    fn ten_wrong_ones_at_once_then_one_in_six_seconds() {
        let mut lock = lock();
        for n in 0..10 {
            assert_eq!(said(&mut lock, &format!("wrong {n}"), 1, 0), WRONG);
        }
        assert_eq!(said(&mut lock, "wrong", 1, 0), TOO_FAST);
        let right = said(&mut lock, "right", 1, 5);
        assert_eq!(right, TOO_FAST, "not even the right one");
        let nothing = lock.open(None, address(1), Duration::from_secs(5));
        assert_eq!(nothing.map_err(|(code, _)| code), WRONG, "is no guess");
        let other = said(&mut lock, "right", 2, 5);
        assert_eq!(other, Ok(()), "another address is not concerned");
        assert_eq!(said(&mut lock, "wrong", 1, 6), WRONG);
        assert_eq!(said(&mut lock, "wrong again", 1, 6), TOO_FAST);
        for _ in 0..100 {
            let right = said(&mut lock, "right", 3, 6);
            assert_eq!(right, Ok(()), "who knows it is never too fast");
        }
    }

    #[test]
    fn a_class_that_was_told_a_wrong_one_is_one_that_is_wrong() {
        let mut lock = lock();
        for _ in 0..100 {
            assert_eq!(said(&mut lock, "left", 1, 0), WRONG);
        }
        assert_eq!(said(&mut lock, "right", 1, 0), Ok(()));
        let in_turns = ["Right", "left"].into_iter().cycle();
        let allowed = in_turns.take_while(|text| said(&mut lock, text, 1, 0) == WRONG);
        assert_eq!(allowed.take(100).count(), 9, "two in turns are guesses");
    }

    #[test]
    fn who_is_wrong_in_one_room_locks_nobody_out_of_another() {
        let (mut own, mut other) = (lock(), lock());
        for n in 0..11 {
            said(&mut own, &n.to_string(), 1, 0).expect_err("is wrong");
        }
        assert_eq!(said(&mut own, "right", 1, 0), TOO_FAST);
        assert_eq!(said(&mut other, "right", 1, 0), Ok(()));
    }

    #[test]
    fn sixty_wrong_ones_for_a_room_from_however_many_addresses() {
        let mut lock = lock();
        for n in 0..60 {
            assert_eq!(said(&mut lock, "wrong", n, 1_000), WRONG, "{n}");
        }
        for text in ["wrong", "right"] {
            assert_eq!(said(&mut lock, text, 60, 1_000), TOO_FAST);
        }
        let more = said(&mut lock, "wrong", 61, 1_001);
        assert_eq!(more, WRONG, "one more each second");
        assert_eq!(said(&mut lock, "wrong", 62, 1_001), TOO_FAST);
        assert_eq!(said(&mut lock, "right", 62, 1_002), Ok(()));
    }

    #[test]
    fn one_line_of_many_addresses_does_not_keep_others_out() {
        let mut lock = lock();
        let mut wrong = 0;
        for second in 1_000..1_600 {
            // Of a /48, another /64 each time.
            for n in 0..8u128 {
                let n = u128::from(second) * 8 + n;
                let address = IpAddr::from((0x2001_0db8_0001_u128 << 80 | n << 64).to_be_bytes());
                let now = Duration::from_secs(second);
                let said = lock.open(Some(&passphrase("wrong")), address, now);
                wrong += usize::from(said.map_err(|(code, _)| code) == WRONG);
            }
            assert_eq!(said(&mut lock, "right", 1, second), Ok(()), "{second}");
        }
        assert!((400..450).contains(&wrong), "{wrong}");
    }

    #[test]
    fn what_is_remembered_of_addresses_is_bounded() {
        let mut lock = lock();
        for n in 0..10_000u32 {
            // As fast as the room allows.
            assert_eq!(said(&mut lock, "wrong", n, 1_000 + u64::from(n)), WRONG);
            assert!(lock.guesses.len() <= 2 * MANY_ADDRESSES);
        }
    }
}
