//! How many connections one address may hold, how fast it may open them, and what it may tell everybody in its rooms by all of them.

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv6Addr},
    time::Duration,
};

use crate::rate::TokenBucket;

/// Counts connections by address. An IPv6 site counts as one: its /64.
#[derive(Debug)]
pub(crate) struct Admission {
    per_address: u32,
    addresses: HashMap<IpAddr, Visitor>,
}

#[derive(Debug)]
struct Visitor {
    open: u32,
    opening: TokenBucket,
    telling: TokenBucket,
}

impl Admission {
    /// Allows each address `per_address` connections, opened as a burst or at an eighth of that per second. It may tell everybody in its rooms
    /// four times as many things at once, or an eighth of that per second: far less than an outbox holds, and a new connection brings no more.
    pub(crate) fn new(per_address: u32) -> Self {
        Self {
            per_address,
            addresses: HashMap::new(),
        }
    }

    /// Lets a connection in, or not. Each one let in must be given back to [`Admission::handle_closed`].
    pub(crate) fn handle_opened(&mut self, address: IpAddr, now: Duration) -> bool {
        if self.addresses.len() > 1_024 {
            self.addresses
                .retain(|_, visitor| visitor.open > 0 || !visitor.is_as_new(now));
        }
        let limit = self.per_address;
        let visitor = self
            .addresses
            .entry(site(address))
            .or_insert_with(|| Visitor {
                open: 0,
                opening: bucket(limit, now),
                telling: bucket(limit.saturating_mul(4), now),
            });
        let admitted = visitor.open < limit && visitor.opening.take(1, now);
        visitor.open += u32::from(admitted);
        admitted
    }

    /// Whether an address with an open connection may tell everybody in a room something now, which then counts.
    pub(crate) fn may_tell_all(&mut self, address: IpAddr, now: Duration) -> bool {
        let visitor = self.addresses.get_mut(&site(address));
        visitor.is_some_and(|visitor| visitor.telling.take(1, now))
    }

    /// Gives back a connection that was let in.
    pub(crate) fn handle_closed(&mut self, address: IpAddr) {
        if let Some(visitor) = self.addresses.get_mut(&site(address)) {
            visitor.open = visitor.open.saturating_sub(1);
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
pub(crate) fn site(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(
            address.to_bits() & !u128::from(u64::MAX),
        )),
        address => address,
    }
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
                .filter(|_| admission.handle_opened(ip("192.0.2.1"), now))
                .count(),
            8
        );
        assert!(
            admission.handle_opened(ip("192.0.2.2"), now),
            "another address is not concerned"
        );
        admission.handle_closed(ip("192.0.2.1"));
        assert!(
            !admission.handle_opened(ip("192.0.2.1"), now),
            "one place is free, but the burst is used up"
        );
        assert!(admission.handle_opened(ip("192.0.2.1"), Duration::from_secs(1)));
        assert!(
            !admission.handle_opened(ip("192.0.2.1"), Duration::from_secs(60)),
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
        assert!(admission.handle_opened(ip("192.0.2.1"), now));
        assert_eq!(told(&mut admission, "192.0.2.1", now), 8);
        admission.handle_closed(ip("192.0.2.1"));
        // Among many others it is not forgotten before it is as good as new.
        for n in 0..2_000_u32 {
            let address = IpAddr::from((n + 1).to_be_bytes());
            assert!(admission.handle_opened(address, later));
            admission.handle_closed(address);
        }
        assert!(admission.handle_opened(ip("192.0.2.1"), later));
        assert_eq!(told(&mut admission, "192.0.2.1", later), 1);
        assert!(admission.handle_opened(ip("192.0.2.2"), later));
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
        assert_eq!(site(ip("::ffff:192.0.2.1")), ip("192.0.2.1"));
    }

    #[test]
    fn forgets_addresses_that_left() {
        let mut admission = Admission::new(8);
        for n in 0..5_000_u32 {
            let address = IpAddr::from(n.to_be_bytes());
            assert!(admission.handle_opened(address, Duration::from_secs(n.into())));
            admission.handle_closed(address);
        }
        assert!(admission.addresses.len() <= 1_025);
    }
}
