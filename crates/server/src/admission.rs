//! How many connections one address may hold, how fast it may open them, and what it may tell everybody in its rooms by all of them.

use std::{collections::HashMap, net::IpAddr, time::Duration};

use crate::{network::Network, rate::TokenBucket};

/// What counts as one address in IPv6, in bits: what one line or device has to itself.
const SITE_BITS: u8 = 64;
/// Some lines have many of those, up to this. All of them may hold so many times what one may.
const LINE_BITS: u8 = 48;
const PER_LINE: u32 = 4;

/// Counts connections by address. An IPv6 site counts as one: its /64; and all that one line may have is counted, too.
#[derive(Debug)]
pub(crate) struct Admission {
    per_address: u32,
    networks: HashMap<Network, Visitor>,
}

#[derive(Debug)]
struct Visitor {
    open: u32,
    opening: TokenBucket,
    telling: TokenBucket,
}

impl Admission {
    /// Allows each address `per_address` connections, opened as a burst or at an eighth of that per second. It may tell everybody in its rooms
    /// four times as many things at once, or an eighth of that per second: far less than an outbox holds, and a new connection brings no more. What owners decide does not
    /// count: strangers at the same address, in another room, could keep them from it.
    pub(crate) fn new(per_address: u32) -> Self {
        Self {
            per_address,
            networks: HashMap::new(),
        }
    }

    /// Lets a connection in, or says what has too many. Each one let in must be given back to [`Admission::handle_closed`].
    pub(crate) fn handle_opened(&mut self, address: IpAddr, now: Duration) -> Result<(), Network> {
        if self.networks.len() > 1_024 {
            self.networks
                .retain(|_, visitor| visitor.open > 0 || !visitor.is_as_new(now));
        }
        for (network, share) in counted(address) {
            let limit = self.per_address.saturating_mul(share);
            let new = || Visitor {
                open: 0,
                opening: bucket(limit, now),
                telling: bucket(limit.saturating_mul(4), now),
            };
            let visitor = self.networks.entry(network).or_insert_with(new);
            if visitor.open >= limit || !visitor.opening.has(1, now) {
                return Err(network);
            }
        }
        for (network, _) in counted(address) {
            let visitor = self.networks.get_mut(&network).expect("it was looked at");
            visitor.open += 1;
            visitor.opening.take(1, now);
        }
        Ok(())
    }

    /// Whether an address with an open connection may tell everybody in a room something now, which then counts.
    pub(crate) fn may_tell_all(&mut self, address: IpAddr, now: Duration) -> bool {
        counted(address).all(|(network, _)| {
            let visitor = self.networks.get_mut(&network);
            visitor.is_some_and(|visitor| visitor.telling.take(1, now))
        })
    }

    /// Gives back a connection that was let in.
    pub(crate) fn handle_closed(&mut self, address: IpAddr) {
        for (network, _) in counted(address) {
            if let Some(visitor) = self.networks.get_mut(&network) {
                visitor.open = visitor.open.saturating_sub(1);
            }
        }
    }
}

impl Visitor {
    fn is_as_new(&mut self, now: Duration) -> bool {
        self.opening.is_full(now) && self.telling.is_full(now)
    }
}

fn bucket(burst: u32, now: Duration) -> TokenBucket {
    TokenBucket::new(burst, burst.div_ceil(8), now)
}

/// What counts as one address.
pub(crate) fn site(address: IpAddr) -> Network {
    match address.to_canonical() {
        IpAddr::V6(_) => Network::of(address, SITE_BITS),
        IpAddr::V4(_) => address.into(),
    }
}

/// What an address is counted in, and how many addresses' share that has.
pub(crate) fn counted(address: IpAddr) -> impl Iterator<Item = (Network, u32)> {
    let is_ipv6 = address.to_canonical().is_ipv6();
    let line = is_ipv6.then(|| (Network::of(address, LINE_BITS), PER_LINE));
    [(site(address), 1)].into_iter().chain(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn limits_what_is_open_and_how_fast_it_opens() {
        let mut admission = Admission::new(8);
        let now = Duration::ZERO;
        assert_eq!(
            (0..10)
                .filter(|_| admission.handle_opened(ip("192.0.2.1"), now).is_ok())
                .count(),
            8
        );
        assert!(
            admission.handle_opened(ip("192.0.2.2"), now).is_ok(),
            "another address is not concerned"
        );
        admission.handle_closed(ip("192.0.2.1"));
        assert!(
            admission.handle_opened(ip("192.0.2.1"), now).is_err(),
            "one place is free, but the burst is used up"
        );
        assert!(
            admission
                .handle_opened(ip("192.0.2.1"), Duration::from_secs(1))
                .is_ok()
        );
        assert!(
            admission
                .handle_opened(ip("192.0.2.1"), Duration::from_secs(60))
                .is_err(),
            "all places are taken"
        );
    }

    #[test]
    fn what_is_told_to_all_is_of_the_address_not_of_a_connection() {
        let mut admission = Admission::new(2);
        let [now, later] = [0, 1].map(Duration::from_secs);
        let told = |admission: &mut Admission, address, now| {
            (0..20)
                .filter(|_| admission.may_tell_all(ip(address), now))
                .count()
        };
        assert!(admission.handle_opened(ip("192.0.2.1"), now).is_ok());
        assert_eq!(told(&mut admission, "192.0.2.1", now), 8);
        admission.handle_closed(ip("192.0.2.1"));
        // Among many others it is not forgotten before it is as good as new.
        for n in 0..2_000_u32 {
            let address = IpAddr::from((n + 1).to_be_bytes());
            assert!(admission.handle_opened(address, later).is_ok());
            admission.handle_closed(address);
        }
        assert!(admission.handle_opened(ip("192.0.2.1"), later).is_ok());
        assert_eq!(told(&mut admission, "192.0.2.1", later), 1);
        assert!(admission.handle_opened(ip("192.0.2.2"), later).is_ok());
        assert_eq!(
            told(&mut admission, "192.0.2.2", later),
            8,
            "another address"
        );
    }

    #[test]
    fn an_ipv6_site_counts_as_one_address_and_a_mapped_one_as_ipv4() {
        assert_eq!(
            site(ip("2001:db8:0:1::1")),
            site(ip("2001:db8:0:1:ffff::2"))
        );
        assert_ne!(site(ip("2001:db8:0:1::1")), site(ip("2001:db8:0:2::1")));
        assert_eq!(site(ip("::ffff:192.0.2.1")), ip("192.0.2.1").into());
    }

    #[test]
    fn a_line_with_many_sites_holds_what_four_of_them_may() {
        let mut admission = Admission::new(8);
        let now = Duration::ZERO;
        let opened = |admission: &mut Admission, site: u16, count| {
            let address = ip(&format!("2001:db8:0:{site:x}::1"));
            let opened = (0..count).map(|_| admission.handle_opened(address, now));
            opened
                .filter_map(Result::err)
                .map(|full| full.to_string())
                .collect::<Vec<_>>()
        };
        assert_eq!(opened(&mut admission, 0, 9), ["2001:db8::/64"]);
        for site in 1..25 {
            assert!(opened(&mut admission, site, 1).is_empty(), "{site}");
        }
        assert_eq!(opened(&mut admission, 25, 1), ["2001:db8::/48"]);
        assert!(admission.handle_opened(ip("2001:db8:1::1"), now).is_ok());
        for _ in 0..8 {
            admission.handle_closed(ip("2001:db8::1"));
        }
        let later = Duration::from_secs(2);
        let fits = |_: &u16| admission.handle_opened(ip("2001:db8::1"), later).is_ok();
        assert_eq!(
            (0..20).filter(fits).count(),
            2,
            "a second brings one to each"
        );
    }

    #[test]
    fn forgets_addresses_that_left() {
        let mut admission = Admission::new(8);
        for n in 0..5_000_u32 {
            let address = IpAddr::from(n.to_be_bytes());
            assert!(
                admission
                    .handle_opened(address, Duration::from_secs(n.into()))
                    .is_ok()
            );
            admission.handle_closed(address);
        }
        assert!(admission.networks.len() <= 1_025);
    }
}
