//! Tests on a real kernel: they need `/dev/ublk-control` and root, and fail without.
//!
//! `cargo ktest-73` and `cargo ktest-612` run them in a guest (tests/vm/README.md).

mod affinity;
mod blocks;
mod busy;
mod control;
mod daemon;
mod durable;
mod files;
mod fleet;
mod guest;
mod house;
mod limits;
mod live;
mod load;
mod modes;
mod outside;
mod serve;
mod served;
mod session;
mod support;
mod trouble;
mod wedge;
