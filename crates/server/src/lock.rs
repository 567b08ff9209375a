//! A room's passphrase: how it is kept, and how often one address, and all together, may be wrong about it.

use std::{collections::HashMap, net::IpAddr, time::Duration};

use ring::{hmac, rand::SystemRandom};

use crate::{
    admission::site,
    rate::TokenBucket,
    signalling::{ErrorCode, Passphrase},
};

/// What opens a room. It is kept for who resumes and may have missed it, as long as there is someone in the room.
#[derive(Debug)]
pub(crate) struct Lock {
    passphrase: Passphrase,
    /// Of this lock only, and random.
    key: hmac::Key,
    /// What all addresses together may still be wrong.
    wrong: TokenBucket,
}

impl Lock {
    pub(crate) fn new(passphrase: &Passphrase) -> Self {
        Self {
            passphrase: passphrase.clone(),
            key: hmac::Key::generate(hmac::HMAC_SHA256, &SystemRandom::new())
                .expect("the operating system has randomness"),
            // Whatever the time is: it is full.
            wrong: TokenBucket::new(ROOM_AT_ONCE, ROOM_PER_SECOND, Duration::ZERO),
        }
    }

    /// For those who are in the room.
    pub(crate) fn passphrase(&self) -> &Passphrase {
        &self.passphrase
    }

    /// Takes the same time wherever the two differ.
    pub(crate) fn opens_to(&self, said: &Passphrase) -> bool {
        let tag = hmac::sign(&self.key, self.passphrase.reveal().as_bytes());
        hmac::verify(&self.key, said.reveal().as_bytes(), tag.as_ref()).is_ok()
    }
}

/// An address may be wrong ten times at once, and ten times a minute after that.
const AT_ONCE: u32 = 60;
const EACH: usize = 6;
const PER_SECOND: u32 = 1;

/// A room takes sixty wrong ones at once, and sixty a minute after that, from however many addresses: a guesser with thousands gets no further.
/// While it is used up nobody else comes in, but who is in the room resumes.
const ROOM_AT_ONCE: u32 = 60;
const ROOM_PER_SECOND: u32 = 1;

/// Addresses that are remembered at once, each for a minute. Of more than these only the rooms keep count.
const MAX_ADDRESSES: usize = 4_096;

/// Counts wrong passphrases by address. A right one costs nothing: a class behind one address comes in together.
#[derive(Debug, Default)]
pub(crate) struct Guesses {
    wrong: HashMap<IpAddr, TokenBucket>,
}

impl Guesses {
    /// Whether the lock opens, and if not, why.
    pub(crate) fn try_lock(
        &mut self,
        lock: &mut Lock,
        said: Option<&Passphrase>,
        address: IpAddr,
        now: Duration,
    ) -> Result<(), (ErrorCode, &'static str)> {
        let Some(said) = said else {
            return Err((ErrorCode::Passphrase, "this room asks for a passphrase"));
        };
        let address = site(address);
        if self.wrong.len() >= MAX_ADDRESSES {
            self.wrong.retain(|_, bucket| !bucket.is_full(now));
        }
        let own = self.wrong.get_mut(&address);
        if !lock.wrong.has(1, now) || own.is_some_and(|own| !own.has(EACH, now)) {
            return Err((
                ErrorCode::TooFast,
                "too many wrong passphrases; wait a minute",
            ));
        }
        if lock.opens_to(said) {
            return Ok(());
        }
        lock.wrong.take(1, now);
        if self.wrong.len() < MAX_ADDRESSES || self.wrong.contains_key(&address) {
            self.wrong
                .entry(address)
                .or_insert_with(|| TokenBucket::new(AT_ONCE, PER_SECOND, now))
                .take(EACH, now);
        }
        Err((ErrorCode::Passphrase, "this is not the room's passphrase"))
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

    #[test]
    fn opens_to_the_same_text_only() {
        let lock = Lock::new(&passphrase("open sesame"));
        assert!(lock.opens_to(&passphrase("open sesame")));
        for wrong in ["open sesam", "open sesame ", "Open sesame", "x"] {
            assert!(!lock.opens_to(&passphrase(wrong)), "{wrong}");
        }
        assert!(!format!("{lock:?}").contains("sesame"));
    }

    #[test]
    fn ten_wrong_ones_at_once_then_one_in_six_seconds() {
        let (mut lock, mut guesses) = (Lock::new(&passphrase("right")), Guesses::default());
        let (right, wrong) = (passphrase("right"), passphrase("wrong"));
        let mut guess = |n, said, seconds| {
            let now = Duration::from_secs(seconds);
            let tried = guesses.try_lock(&mut lock, said, address(n), now);
            tried.map_err(|(code, _)| code)
        };
        for _ in 0..10 {
            assert_eq!(guess(1, Some(&wrong), 0), Err(ErrorCode::Passphrase));
        }
        assert_eq!(guess(1, Some(&wrong), 0), Err(ErrorCode::TooFast));
        assert_eq!(
            guess(1, Some(&right), 5),
            Err(ErrorCode::TooFast),
            "not even the right one"
        );
        assert_eq!(
            guess(1, None, 5),
            Err(ErrorCode::Passphrase),
            "saying nothing is no guess"
        );
        assert_eq!(
            guess(2, Some(&right), 5),
            Ok(()),
            "another address is not concerned"
        );
        assert_eq!(guess(1, Some(&wrong), 6), Err(ErrorCode::Passphrase));
        assert_eq!(guess(1, Some(&wrong), 6), Err(ErrorCode::TooFast));
        for _ in 0..100 {
            assert_eq!(
                guess(3, Some(&right), 6),
                Ok(()),
                "who knows it is never too fast"
            );
        }
    }

    #[test]
    fn sixty_wrong_ones_for_a_room_from_however_many_addresses() {
        let mut guesses = Guesses::default();
        let (right, wrong) = (passphrase("right"), passphrase("wrong"));
        let (mut lock, mut other) = (Lock::new(&right), Lock::new(&right));
        let mut guess = |lock: &mut Lock, n, said, seconds| {
            let now = Duration::from_secs(seconds);
            let tried = guesses.try_lock(lock, Some(said), address(n), now);
            tried.map_err(|(code, _)| code)
        };
        for n in 0..60 {
            let tried = guess(&mut lock, n, &wrong, 1_000);
            assert_eq!(tried, Err(ErrorCode::Passphrase), "{n}");
        }
        for said in [&wrong, &right] {
            let tried = guess(&mut lock, 60, said, 1_000);
            assert_eq!(tried, Err(ErrorCode::TooFast));
        }
        assert_eq!(
            guess(&mut other, 60, &right, 1_000),
            Ok(()),
            "another room is not concerned"
        );
        let tried = guess(&mut lock, 61, &wrong, 1_001);
        assert_eq!(tried, Err(ErrorCode::Passphrase), "one more each second");
        let tried = guess(&mut lock, 62, &wrong, 1_001);
        assert_eq!(tried, Err(ErrorCode::TooFast));
        assert_eq!(guess(&mut lock, 62, &right, 1_002), Ok(()));
    }

    #[test]
    fn what_is_remembered_of_addresses_is_bounded_and_newcomers_are_not_concerned() {
        let (right, wrong) = (passphrase("right"), passphrase("wrong"));
        let mut guesses = Guesses::default();
        let mut guess = |lock: &mut Lock, n, said, seconds| {
            let now = Duration::from_secs(seconds);
            let tried = guesses.try_lock(lock, Some(said), address(n), now);
            (tried.map_err(|(code, _)| code), guesses.wrong.len())
        };
        for n in 0..2 * MAX_ADDRESSES as u32 {
            let remembered = MAX_ADDRESSES.min(n as usize + 1);
            // In ever other rooms, as one room's guesses are bounded.
            let tried = guess(&mut Lock::new(&right), n, &wrong, 0);
            assert_eq!(tried, (Err(ErrorCode::Passphrase), remembered), "{n}");
        }
        let tried = guess(&mut Lock::new(&right), u32::MAX, &right, 0);
        assert_eq!(tried, (Ok(()), MAX_ADDRESSES));
        let tried = guess(&mut Lock::new(&right), u32::MAX, &wrong, 6);
        assert_eq!(
            tried,
            (Err(ErrorCode::Passphrase), 1),
            "those are forgotten"
        );
    }
}
