//! Addresses that begin alike.

use std::{fmt, net::IpAddr, str::FromStr};

use serde::{Deserialize, Serialize};

/// One address, or all whose first bits are the same: `192.0.2.1`, `10.0.0.0/8`, `2001:db8::/48`. An IPv4 address in IPv6 is that IPv4 address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Deserialize, Serialize)]
#[serde(try_from = "String", into = "String")]
pub struct Network {
    first: IpAddr,
    bits: u8,
}

impl Network {
    /// The network that an address is in, of so many bits, or as many as an address has.
    pub(crate) fn of(address: IpAddr, bits: u8) -> Self {
        match address.to_canonical() {
            IpAddr::V4(address) => {
                let bits = bits.min(32);
                let mask = u32::MAX.checked_shl(32 - u32::from(bits)).unwrap_or(0);
                let first = IpAddr::V4((address.to_bits() & mask).into());
                Self { first, bits }
            }
            IpAddr::V6(address) => {
                let bits = bits.min(128);
                let mask = u128::MAX.checked_shl(128 - u32::from(bits)).unwrap_or(0);
                let first = IpAddr::V6((address.to_bits() & mask).into());
                Self { first, bits }
            }
        }
    }

    /// Whether an address is in it.
    pub fn contains(&self, address: IpAddr) -> bool {
        Self::of(address, self.bits) == *self
    }
}

impl From<IpAddr> for Network {
    fn from(address: IpAddr) -> Self {
        Self::of(address, 128)
    }
}

impl FromStr for Network {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let expected =
            "expected an IP address or a network, such as 127.0.0.1, 10.0.0.0/8 or 2001:db8::/32";
        let (address, bits) = text.split_once('/').unwrap_or((text, ""));
        let address: IpAddr = address.parse().map_err(|_| expected)?;
        let whole = Self::from(address);
        if !text.contains('/') {
            return Ok(whole);
        }
        let bits = bits.parse().ok().filter(|bits| *bits <= whole.bits);
        Ok(Self::of(address, bits.ok_or(expected)?))
    }
}

impl TryFrom<String> for Network {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<Network> for String {
    fn from(network: Network) -> Self {
        network.to_string()
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { first, bits } = self;
        if *self == Self::from(*first) {
            write!(f, "{first}")
        } else {
            write!(f, "{first}/{bits}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_written_as_it_is_read_and_has_what_begins_alike() {
        for (text, written, inside, outside) in [
            ("192.0.2.1", "192.0.2.1", "::ffff:192.0.2.1", "192.0.2.2"),
            ("::ffff:192.0.2.1", "192.0.2.1", "192.0.2.1", "::1"),
            ("10.1.2.3/8", "10.0.0.0/8", "10.255.0.1", "11.0.0.0"),
            ("192.0.2.0/31", "192.0.2.0/31", "192.0.2.1", "192.0.2.2"),
            ("0.0.0.0/0", "0.0.0.0/0", "255.255.255.255", "::1"),
            (
                "2001:db8::1/48",
                "2001:db8::/48",
                "2001:db8:0:ffff::1",
                "2001:db8:1::",
            ),
            ("::/0", "::/0", "2001:db8::", "192.0.2.1"),
        ] {
            let network: Network = text.parse().expect(text);
            assert_eq!(network.to_string(), written);
            assert_eq!(written.parse(), Ok(network));
            assert!(network.contains(inside.parse().expect(inside)), "{text}");
            assert!(!network.contains(outside.parse().expect(outside)), "{text}");
        }
        for text in [
            "",
            "localhost",
            "10.0.0.0/33",
            "10.0.0.0/",
            "10.0.0.0/-1",
            "10.0.0.0/8/8",
            "::/129",
            "::ffff:10.0.0.0/104",
            "10.0.0.0/8 ",
        ] {
            assert!(text.parse::<Network>().is_err(), "{text}");
        }
    }
}
