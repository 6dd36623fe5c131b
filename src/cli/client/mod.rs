//! The client: one request to the daemon's socket at a time, each with a deadline.
//!
//! ```text
//!   Call ─ transport (HTTP/1.1 on a Unix socket) ─> Reply ─┬─ JSON
//!                                                          └─ Failure: exit status, text, remedy
//!   events ─ transport ─ stream ─> Item …
//! ```
//!
//! Invariants: nothing is waited for without a bound, not even an event stream (its heartbeats
//! count); an answer has a largest size; what is no answer of ublkd's is said to be none.

mod failure;
mod stream;
mod transport;

pub(super) use failure::Failure;
pub(super) use stream::Item;
pub(super) use transport::{Call, Client};

/// Writes text as one segment of a path or one value of a query.
pub(super) fn encoded(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    let encode = |byte| match plain(byte) {
        true => char::from(byte).to_string(),
        false => format!("%{byte:02X}"),
    };
    text.bytes().map(encode).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn names_cannot_leave_their_segment() {
        assert_eq!(super::encoded("vol-1_A.b"), "vol-1_A.b");
        assert_eq!(
            super::encoded("a/../b?c=d&e#f %\u{e4}"),
            "a%2F..%2Fb%3Fc%3Dd%26e%23f%20%25%C3%A4"
        );
    }
}
