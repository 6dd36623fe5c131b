//! Everything that needs no ublk: the house rules, the pure parts, and the whole supervisor on the
//! simulated driver.
#![allow(clippy::unwrap_used)]

mod admission;
mod affinity;
mod asks;
mod documents;
mod errors;
mod faults;
mod groups;
mod histories;
mod law;
mod layers;
mod lifecycle;
mod live;
mod live_threads;
mod model;
mod order;
mod outside;
mod panics;
mod real_time;
mod recorder;
mod service;
mod starts;
mod support;
mod workers;
