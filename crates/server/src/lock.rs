//! A room's passphrase: how it is kept, and how often one address may be wrong about it.

use std::{collections::HashMap, net::IpAddr, time::Duration};

use ring::{hmac, rand::SystemRandom};

use crate::{
    admission::site,
    rate::TokenBucket,
    signalling::{ErrorCode, Passphrase},
};

/// What a passphrase is compared with. The passphrase itself is not kept.
#[derive(Debug)]
pub(crate) struct Lock {
    salt: hmac::Key,
    tag: hmac::Tag,
}

impl Lock {
    pub(crate) fn new(passphrase: &Passphrase) -> Self {
        let salt = hmac::Key::generate(hmac::HMAC_SHA256, &SystemRandom::new())
            .expect("the operating system has randomness");
        Self {
            tag: hmac::sign(&salt, passphrase.reveal().as_bytes()),
            salt,
        }
    }

    /// Takes the same time wherever the two differ.
    fn opens_to(&self, said: &Passphrase) -> bool {
        hmac::verify(&self.salt, said.reveal().as_bytes(), self.tag.as_ref()).is_ok()
    }
}

/// An address may be wrong ten times at once, and ten times a minute after that.
const AT_ONCE: u32 = 60;
const EACH: usize = 6;
const PER_SECOND: u32 = 1;

/// Addresses that are remembered at once, each for a minute. While there are more, newcomers have to wait.
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
        lock: &Lock,
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
        let may_guess = match self.wrong.get_mut(&address) {
            Some(bucket) => bucket.has(EACH, now),
            None => self.wrong.len() < MAX_ADDRESSES,
        };
        if !may_guess {
            return Err((
                ErrorCode::TooFast,
                "too many wrong passphrases from this address; wait a minute",
            ));
        }
        if lock.opens_to(said) {
            return Ok(());
        }
        self.wrong
            .entry(address)
            .or_insert_with(|| TokenBucket::new(AT_ONCE, PER_SECOND, now))
            .take(EACH, now);
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
        let (lock, mut guesses) = (Lock::new(&passphrase("right")), Guesses::default());
        let (right, wrong) = (passphrase("right"), passphrase("wrong"));
        let mut guess = |n, said, seconds| {
            let now = Duration::from_secs(seconds);
            let tried = guesses.try_lock(&lock, said, address(n), now);
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
    fn what_is_remembered_of_addresses_is_bounded() {
        let (lock, mut guesses) = (Lock::new(&passphrase("right")), Guesses::default());
        let wrong = passphrase("wrong");
        let mut refused = 0;
        for n in 0..2 * MAX_ADDRESSES as u32 {
            let tried = guesses.try_lock(&lock, Some(&wrong), address(n), Duration::ZERO);
            refused += usize::from(matches!(tried, Err((ErrorCode::TooFast, _))));
        }
        assert_eq!(
            (guesses.wrong.len(), refused),
            (MAX_ADDRESSES, MAX_ADDRESSES)
        );
        let tried = guesses.try_lock(
            &lock,
            Some(&wrong),
            address(u32::MAX),
            Duration::from_secs(6),
        );
        assert_eq!(tried.map_err(|(code, _)| code), Err(ErrorCode::Passphrase));
        assert_eq!(guesses.wrong.len(), 1, "those are forgotten");
    }
}
