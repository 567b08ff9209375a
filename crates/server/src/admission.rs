//! How many connections one address may hold, and how fast it may open them.

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
}

impl Admission {
    /// Allows each address `per_address` connections, opened as a burst or at an eighth of that per second.
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
                .retain(|_, visitor| visitor.open > 0 || !visitor.opening.is_full(now));
        }
        let limit = self.per_address;
        let visitor = self
            .addresses
            .entry(site(address))
            .or_insert_with(|| Visitor {
                open: 0,
                opening: TokenBucket::new(limit, limit.div_ceil(8), now),
            });
        let admitted = visitor.open < limit && visitor.opening.take(1, now);
        visitor.open += u32::from(admitted);
        admitted
    }

    /// Gives back a connection that was let in.
    pub(crate) fn handle_closed(&mut self, address: IpAddr) {
        if let Some(visitor) = self.addresses.get_mut(&site(address)) {
            visitor.open = visitor.open.saturating_sub(1);
        }
    }
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
