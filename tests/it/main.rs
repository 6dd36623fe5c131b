//! Everything that needs no ublk: the house rules, the pure parts, and the whole supervisor on the
//! simulated driver.
#![allow(clippy::unwrap_used)]

mod faults;
mod law;
mod layers;
mod lifecycle;
mod order;
mod recorder;
mod support;
